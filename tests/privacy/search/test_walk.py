"""Sources without columns are searched by value: prompts in journals and traces, texts and files of runs."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.ref import Ref
from falaj.serve.sealed_blocks import RowOwner
from tests.infer import models
from tests.serve.ground import logged
from tests.town import LABEL, Town

WHO, OTHER = "784-1990-1234567-1", "784-1985-7654321-9"
CHAT = Ref.parse("endpoint:fraud/chat")
TRACE = "tr-" + "0f3c2b5a9d8e4f71" * 2


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    made = Town(folder / "house")
    made.as_("admin").clusters.change("local", {"tenants": "bank"})
    mona = made.as_("mona")
    mona.serve.add(CHAT, mona.catalog.publish("model:fraud/mlp", str(models.mlp(folder / "mlp")), label=LABEL).ref)
    yield made
    made.close()


def _search(town: Town, who: str) -> tuple[set[str], set[str]]:
    salem = town.as_("salem")
    request = salem.privacy.ask("erasure", who).ref
    salem.privacy.step(request, "restrict")
    page = salem.privacy.search(request, who)
    assert not page.next
    return {match.ref for match in page.matches}, {unread.ref for unread in page.unread}


def test_prompts_tags_and_files_are_searched_by_value(town: Town) -> None:
    amal = town.as_("amal")
    prompt = f'{{"prompt": "may client {WHO.replace("-", "")} have a loan?"}}'.encode()
    lines = [logged(time.time(), "q1", "session-1", request=prompt), logged(time.time(), "q2", "session-2")]
    town.house.desks["serve"].journal.append(RowOwner("bank", CHAT, "ae-dubai"), lines)
    amal.track.create("experiment:fraud/chat")
    facts = {"request": f"who is {WHO}?", "response": "a client"}
    amal.traces.record("experiment:fraud/chat", TRACE, facts=facts)
    amal.track.attach(f"trace:fraud/{TRACE}", "spans.json", f'[{{"input": "{WHO}"}}]'.encode())
    run = amal.track.start("experiment:fraud/chat", tags={"note": f"asked by {WHO}"}).ref.bare
    matches, _ = _search(town, WHO)
    assert {str(CHAT), f"record trace:fraud/{TRACE}", f"record {run}"} <= matches
    assert any(match.startswith("artifact:") and "spans.json" in match for match in matches)
    assert not _search(town, OTHER)[0]


def test_bytes_of_deleted_versions_are_collected_before_the_search_ends(town: Town, tmp_path: Path) -> None:
    amal, salem = town.as_("amal"), town.as_("salem")
    (tmp_path / "rows.csv").write_text(f"id\n{OTHER}\n")
    version = amal.catalog.publish("dataset:fraud/gone", str(tmp_path / "rows.csv"), label=LABEL).ref
    assert str(version) in _search(town, OTHER)[0]
    salem.catalog.delete(version, "request")
    ctx = town.house.context(town.actor("salem"))
    collector = town.house.desks["store"].collector
    assert collector.count_unreached(ctx) > 0
    matches, unread = _search(town, OTHER)
    assert not matches
    assert "deleted data" not in unread
    assert collector.count_unreached(ctx) == 0


def test_search_goes_on_with_the_cursor_of_the_call_before(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = "784-1999-5555555-5"
    (tmp_path / "rows.csv").write_text(f"id\n{who}\n")
    version = town.as_("amal").catalog.publish("dataset:fraud/slices", str(tmp_path / "rows.csv"), label=LABEL).ref
    monkeypatch.setattr("falaj.privacy.person_search.MAX_CALL_S", 0.0)
    salem = town.as_("salem")
    request = salem.privacy.ask("erasure", who).ref
    page, calls = salem.privacy.search(request, who), 1
    while page.next:
        page, calls = salem.privacy.search(request, who, page.next), calls + 1
    assert calls > 5
    assert str(version) in {match.ref for match in page.matches}
