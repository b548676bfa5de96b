"""A walk through a store: what the ledger knows is no stray, what it does not know is."""

from pathlib import Path

from falaj.core.errors import Denied
from tests.people import enroll
from tests.town import Town, refusal


def test_what_no_ledger_knows_is_named(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    town.as_("salem").store.put("blob:fraud/sample", [b"rows"], label="sensitive")
    town.tokens["hessa"] = enroll(town.as_("admin"), "hessa", ("auditor",), jurisdiction="AE")
    hessa = town.as_("hessa")
    assert (hessa.store.strays("ae-dubai").blobs, hessa.store.strays("ae-dubai").strays) == (1, 0)
    assert hessa.audit.census().ok
    town.house.blobs.open_zone("ae-dubai").put("ab" * 32, [b"left by somebody"])
    walked = hessa.store.strays("ae-dubai")
    assert (walked.blobs, walked.strays, walked.names) == (2, 1, ("ab" * 32,))
    counted = hessa.audit.census()
    assert [(one.zone, one.rules) for one in counted.misplaced] == [("ae-dubai", ("unaccounted",))]
    assert isinstance(refusal(lambda: town.as_("omar").store.strays("ae-dubai")), Denied)
    assert any("beside all ledgers" in text for text in town.as_("omar").audit.census().unseen)
    town.close()
