"""Copies judged again: a grant that holds keeps one lawful, and ends it when it ends; strangers see nothing."""

from pathlib import Path

import pytest

from falaj.core.errors import Denied, Invalid
from tests.documents import keep_contract
from tests.town import LABEL, Town, refusal

BLOB = "blob:fraud/sample"


def test_a_copy_is_as_lawful_as_its_grant(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    salem, omar = town.as_("salem"), town.as_("omar")
    salem.store.put(BLOB, [b"rows"], label=LABEL)
    asked = salem.zones.grant("AE-PDPL:23a", "ae-dubai", "eu-west", BLOB, ("fraud",), keep_contract(salem))
    for name in ("badr", "dana"):
        town.as_(name).approvals.give(str(asked.approval), asked.digest)
    salem.store.copy(BLOB, to="eu-west")

    held = omar.zones.copies("blob")
    assert (held.zones["eu-west"], held.misplaced) == (1, ())
    objects = omar.zones.copies("object")
    assert set(objects.zones) == {"ae-dubai", "eu-west"}
    assert objects.misplaced == ()

    town.as_("sami").zones.revoke(f"grant:zones/{asked.grant.id}", "the contract ended")
    (wrong,) = omar.zones.copies("blob").misplaced
    assert (wrong.thing, wrong.zone, wrong.rules) == (f"{BLOB}@v1", "eu-west", ("regime-not-cleared:AE-PDPL",))

    # What no record needs any more is not accounted for, wherever it lies, until the collector has taken it.
    town.as_("salem").store.delete(BLOB, reason="the contract ended")
    assert omar.zones.copies("blob").misplaced == ()
    left = omar.zones.copies("object").misplaced
    assert {(one.zone, one.rules) for one in left} == {(zone, ("unaccounted",)) for zone in ("ae-dubai", "eu-west")}

    assert isinstance(refusal(lambda: town.as_("amal").zones.copies("blob")), Denied)
    with pytest.raises(Invalid, match="a page of 0"):
        omar.zones.copies("blob", limit=0)
    town.close()
