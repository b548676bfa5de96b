"""An erasure on a server: its client is killed (-9), then the server; what is half done shows, and one run ends it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import falaj
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from tests.people import enroll, enroll_tenant
from tests.replica import FALAJ, Replica
from tests.servers.process import wait_until
from tests.town import LABEL, refusal

WHO, OTHERS = "784-1990-1234567-1", ["784-1985-7654321-9", "784-1991-2222222-2"]
DEFINITIONS = f'''
from falaj.features import Entity, Feature, Source, view

client = Entity("fraud/client", keys={{"emirates_id": "string"}}, subject="emirates_id", about="A client")
score = view("fraud/score", client, Source("dataset:fraud/scores", event="at"),
             features=[Feature("points", "int64")], label="{LABEL}", owner="amal")
'''
TEAM = {"amal": "data-scientist", "salem": "data-steward", "badr": "approver", "dana": "dpo"}
WORDS = {"ar": "كشف الاحتيال", "en": "to find fraud"}


class Bank:
    """A server of a bank, and the tokens of its people."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        (home / "falaj.toml").write_text('zone = "ae-dubai"\n')
        self.home, self.replica, self.open = home, Replica(home), list[Any]()
        self.listen = self.replica.url.partition("//")[2]
        boss = self.replica.as_(enroll_tenant(self.replica.as_(), "bank", "fatima"))
        self.tokens = {name: enroll(boss, name, (role,), jurisdiction="AE") for name, role in TEAM.items()}

    def as_(self, name: str) -> Any:
        """The platform as this person sees it."""
        platform = falaj.connect(self.replica.url, token=self.tokens[name], purpose="fraud")
        self.open.append(platform)
        return platform

    def close(self) -> None:
        """Close what was opened, and kill the server."""
        for platform in self.open:
            platform.close()
        self.replica.__exit__()

    def kill_and_start(self) -> None:
        """kill -9 of the server, and a new one on the same folder and port."""
        self.replica.__exit__()
        self.replica = Replica(self.home, first=False, listen=self.listen)

    def start_erasing(self, request: Ref) -> "subprocess.Popen[bytes]":
        """`falaj privacy erase` in a process of its own."""
        command = [*FALAJ, "--at", self.replica.url, "--purpose", "fraud", "privacy", "erase", str(request), WHO]
        environment = {**os.environ, "FALAJ_TOKEN": self.tokens["salem"]}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    made = Bank(tmp_path / "bank")
    yield made
    made.close()


def plant(bank: Bank, folder: Path) -> tuple[Ref, Ref]:
    """The person in a table that a court holds, in a CSV file, and in feature rows."""
    amal, dana = bank.as_("amal"), bank.as_("dana")
    dana.privacy.add_purpose("fraud", "legal-duty", ("AE-PDPL",), WORDS, 365)
    people = [WHO, *OTHERS]
    moments = pa.array([1_700_000_000_000_000] * 3, pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"emirates_id": people, "at": moments, "points": [1, 2, 3]}), folder / "scores.parquet")
    held = amal.catalog.publish("dataset:fraud/scores", str(folder / "scores.parquet"), label=LABEL).ref
    (folder / "rows.csv").write_text("".join(f"{one},1\n" for one in ("reference", *people)))
    listed = amal.catalog.publish("dataset:fraud/rows", str(folder / "rows.csv"), label=LABEL).ref
    (folder / "features.py").write_text(DEFINITIONS)
    amal.features.apply(str(folder / "features.py"))
    amal.features.materialize("view:fraud/score")
    dana.catalog.hold(held, "case 9")
    return held, listed


def test_erasure_killed_and_finished(bank: Bank, tmp_path: Path) -> None:
    held, listed = plant(bank, tmp_path)
    salem, badr = bank.as_("salem"), bank.as_("badr")
    request = salem.privacy.ask("erasure", WHO).ref
    planned = salem.privacy.erase(request, WHO, plan=True)
    actions = {item.ref: item.action for item in planned.items}
    assert (actions[str(held)], actions[str(listed)]) == ("restrict", "erase")
    plan = badr.privacy.plan(request)
    badr.approvals.give(plan.approval, plan.digest)

    process = bank.start_erasing(request)
    wait_until(lambda: "features" in salem.privacy.request(request).steps or process.poll() is not None, 60)
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    process.wait()
    _check_half_done(salem, request)

    process = bank.start_erasing(request)
    wait_until(lambda: "tables" in salem.privacy.request(request).steps or process.poll() is not None, 60)
    bank.kill_and_start()
    process.kill()
    process.wait()
    salem, dana = bank.as_("salem"), bank.as_("dana")
    _check_half_done(salem, request)

    assert salem.privacy.erase(request, WHO).state == "retained"
    assert "restricted" in refusal(lambda: salem.catalog.open(held)).message
    dana.catalog.release(held, "case 9")
    for version in salem.privacy.holds():
        dana.catalog.release(version.ref, "case 9")
    assert salem.privacy.erase(request, WHO).ok
    for name in (held, listed):
        assert isinstance(refusal(lambda name=name: salem.catalog.open(name)), NotFound)
    out = salem.catalog.checkout(listed.bare, str(tmp_path / "rows")).folder
    assert next(Path(out).glob("*.csv")).read_text().splitlines()[1:] == [f"{one},1" for one in OTHERS]
    out = salem.catalog.checkout(held.bare, str(tmp_path / "scores")).folder
    assert pq.read_table(next(Path(out).glob("*.parquet"))).column("emirates_id").to_pylist() == OTHERS
    read = bank.as_("amal").features.read("view:fraud/score", {"emirates_id": [WHO, *OTHERS]})
    assert read.statuses["points"] == ["NOT_FOUND", "PRESENT", "PRESENT"]


def _check_half_done(salem: Any, request: Ref) -> None:
    """Everybody who looks sees how far it is, and there is no certificate."""
    assert salem.privacy.plan(request).state == "executing"
    shown = salem.privacy.request(request)
    assert shown.state == "open"
    assert "features" in shown.steps
    assert isinstance(refusal(lambda: salem.privacy.certificate(request)), NotFound)
