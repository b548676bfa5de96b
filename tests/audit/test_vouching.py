"""What people vouch for: once in the log, always by the same proof, which anybody can check offline."""

import json
from pathlib import Path

import pytest

from falaj.core.errors import Denied, Invalid
from falaj.store.codec import to_plain
from tests.audit.house import verify
from tests.town import Town, refusal

DIGEST = "sha256:" + "9f" * 32


def test_the_same_digest_has_one_event_and_one_proof(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    omar = town.as_("omar")
    first = omar.audit.attest(DIGEST, "a report")
    omar.audit.seal()
    again = town.as_("sami").audit.attest(DIGEST, "the same, said otherwise")
    assert again == first
    told = [event for event in town.events(verb="audit.attest") if "digest" in event.body]
    assert [(event.actor, event.body["digest"], event.body["about"]) for event in told] == [
        ("omar", DIGEST, "a report")
    ]
    (tmp_path / "proof.json").write_text(json.dumps(to_plain(first)), encoding="utf-8")
    assert verify(tmp_path / "proof.json")[0] == 2, "without a trusted key nothing shows which log it is"
    code, report = verify(tmp_path / "proof.json", "--key", omar.audit.checkpoints(limit=1)[0].key)
    assert (code, report["ok"]) == (0, True)
    with pytest.raises(Invalid, match="no digest"):
        omar.audit.attest("md5:1")
    assert isinstance(refusal(lambda: town.as_("amal").audit.attest(DIGEST)), Denied)
    town.close()
