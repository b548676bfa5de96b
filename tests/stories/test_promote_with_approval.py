"""A model's way into production and out of it: evidence, four eyes, history, rollback, and an emergency that ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Denied
from tests.catalog.shelfhouse import MODEL, model, pass_time
from tests.servers.seaweed import SeaweedServer
from tests.town import Town, refusal


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """The same town twice: SQLite and folders, then PostgreSQL and S3."""
    if request.param == "laptop":
        made = Town(tmp_path / "house")
    else:
        server: SeaweedServer = request.getfixturevalue("s3_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        new_s3: Callable[[], Any] = request.getfixturevalue("new_s3")
        bucket = f"{new_s3().url}?endpoint={server.endpoint}&region=us-east-1&allow_http=true"
        monkeypatch.setenv("FALAJ_BLOBS", bucket)
        made = Town(tmp_path / "house", store=request.getfixturevalue("new_postgres")())
    yield made
    made.close()


def test_promote_with_approval(town: Town) -> None:
    amal, badr, dana, catalog = town.as_("amal"), town.as_("badr"), town.as_("dana"), town.as_("amal").catalog
    town.as_("salem").catalog.require("gate:fraud/production", ("auc >= current", "signature", "bias", "2 approvals"))
    v1, v2, v3 = (model(amal, text, metrics={"auc": auc}) for text, auc in (("1", 0.9), ("22", 0.93), ("333", 0.7)))
    for version in (v1, v2, v3):
        town.as_("mona").catalog.attest(version, "bias", True, {"report": "sha256:" + "9f" * 32})

    asked = catalog.promote(v1, "production", reason="the first")
    assert asked.state == "waiting"
    assert str(asked.approval) in asked.next
    assert isinstance(refusal(lambda: amal.approvals.give(asked.approval)), Denied), "its author approved it"
    badr.approvals.give(asked.approval, asked.digest)
    pass_time(town)
    assert catalog.show(v1).stage == "experiment", "one voice was enough"
    dana.approvals.give(asked.approval, asked.digest)
    pass_time(town)
    assert catalog.show(f"{MODEL}@production").ref == v1

    better = catalog.promote(v2, "production", reason="better by 0.03")
    badr.approvals.give(better.approval)
    dana.approvals.give(better.approval)
    # Asking again does what the loop would have done.
    assert catalog.promote(v2, "production").state == "done"
    assert catalog.show(v1).stage == "retired"

    worse = catalog.promote(v3, "production", reason="cheaper")
    assert (worse.state, worse.ok) == ("refused", False)
    assert "auc is 0.7, and of model:fraud/scorer@v2 0.93" in worse.why
    reasons = [str(event.body["reason"]) for event in town.events(verb="catalog.promote", version="v3")]
    assert any("auc" in reason for reason in reasons), "the refusal left no trace"

    told = catalog.history(f"{MODEL}@production")
    assert [(each.ref, each.by, each.approved_by) for each in told] == [
        (v1, "amal", ("badr", "dana")),
        (v2, "amal", ("badr", "dana")),
    ]
    assert told[0].until == told[1].since
    assert catalog.history(f"{MODEL}@production", on=str(told[0].since))[0].ref == v1

    back = catalog.rollback(MODEL, reason="false alarms")
    assert (back.ref, back.approved_by) == (v1, ("badr", "dana"))
    assert catalog.show(f"{MODEL}@production").ref == v1
    assert [each.ref for each in catalog.history(f"{MODEL}@production")] == [v1, v2, v1]


def test_an_emergency_ends_unless_others_ratify_it(town: Town) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    town.as_("salem").catalog.require("gate:fraud/production", ("2 approvals",))
    v1, v2, v3 = (model(amal, text) for text in ("1", "22", "333"))
    for version in (v1, v2, v3):
        # Nobody ratified the second of them, so other people are needed for the third.
        asker, first = ("amal", "badr") if version != v3 else ("mona", "bilal")
        asked = town.as_(asker).catalog.promote(version, "production", "the night shift", version != v1)
        town.as_(first).approvals.give(asked.approval)
        if version == v3:
            pass_time(town)
            assert catalog.show(f"{MODEL}@production").ref == version
        if version in (v1, v3):
            town.as_("dana").approvals.give(asked.approval)
        pass_time(town)
        assert catalog.show(f"{MODEL}@production").ref == version
        if version == v2:
            pass_time(town, 23.9)
            assert catalog.show(f"{MODEL}@production").ref == v2, "it ended too early"
            pass_time(town, 24.1)
            assert catalog.show(f"{MODEL}@production").ref == v1, "an emergency outlived its day"
            assert "fully approved" in refusal(lambda: catalog.rollback(MODEL, to="v2")).message
    pass_time(town, 24.1)
    assert catalog.show(f"{MODEL}@production").ref == v3, "what was ratified was undone"
    told = catalog.history(f"{MODEL}@production")
    assert [(each.ref.version, each.how) for each in told] == [
        ("v1", "promote"),
        ("v2", "emergency, lapsed"),
        ("v1", "lapse"),
        ("v3", "emergency, ratified by dana"),
    ]
    assert "nobody ratified" in told[2].why
