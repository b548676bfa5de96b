"""Witnesses remember, and refuse whatever takes something back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import proofs, signed_note
from falaj.audit.records import SignedCheckpoint
from falaj.audit.witness import CheckpointWitness, main
from falaj.core.errors import Conflict, Denied, Invalid
from tests.audit.house import House, embedded


@pytest.fixture
def house(tmp_path: Path) -> House:
    return embedded(tmp_path)


def grow(house: House, count: int) -> SignedCheckpoint:
    house.act(count)
    made = house.sealer.seal(house.ctx(), "bank", "home")
    assert made is not None
    return made


def proof(house: House, old: SignedCheckpoint, new: SignedCheckpoint) -> tuple[str, ...]:
    return proofs.prove_growth(house.log(house.ctx()), new.origin, old.size, new.size).hashes


def test_it_cosigns_what_grew_and_remembers(house: House, tmp_path: Path) -> None:
    first, second = grow(house, 3), grow(house, 4)
    witness = CheckpointWitness("regulator", tmp_path / "w")
    signed = witness.cosign(first.note, [], first.key, 1000.0)
    text, lines = signed_note.split_note(signed)
    assert signed_note.verify_signature_line(text, lines[-1], "regulator", signed_note.decode_base64(witness.public))
    again = CheckpointWitness("regulator", tmp_path / "w")
    assert again.public == witness.public
    with pytest.raises(Conflict, match="nothing proves"):
        again.cosign(second.note, [], first.key, 1001.0)
    again.cosign(second.note, proof(house, first, second), first.key, 1001.0)
    with pytest.raises(Conflict, match="rolled back"):
        again.cosign(first.note, [], first.key, 1002.0)
    assert again.cosign(second.note, [], first.key, 1003.0), "the same checkpoint again is no harm"
    seen = again.seen(first.origin)
    assert seen is not None
    assert seen.size == 7


def test_it_refuses_a_strange_key_and_follows_a_new_one(house: House, tmp_path: Path) -> None:
    first = grow(house, 2)
    stranger = signed_note.encode_base64(signed_note.get_public_bytes(Ed25519PrivateKey.generate()))
    witness = CheckpointWitness("regulator", tmp_path / "w")
    with pytest.raises(Denied):
        witness.cosign(first.note, [], stranger, 1.0)
    witness.cosign(first.note, [], first.key, 1.0)
    house.signers.rotate("bank", "home")
    second, third = grow(house, 2), grow(house, 2)
    with pytest.raises(Denied):
        witness.cosign(third.note, proof(house, first, third), first.key, 2.0)
    witness.cosign(second.note, proof(house, first, second), "", 3.0)
    witness.cosign(third.note, proof(house, second, third), "", 4.0)
    forged = signed_note.join_note(signed_note.split_note(third.note)[0], *signed_note.split_note(second.note)[1])
    with pytest.raises(Denied):
        witness.cosign(forged, [], "", 5.0)


def test_it_reads_strictly(house: House, tmp_path: Path) -> None:
    first = grow(house, 1)
    witness = CheckpointWitness("regulator", tmp_path / "w")
    for broken in (
        "",
        "x",
        first.note[:-1],
        first.note.replace("\n1\n", "\n01\n"),
        first.note.replace("time ", "Time "),
    ):
        with pytest.raises((Invalid, Denied)):
            witness.cosign(broken, [], first.key, 1.0)
    for name in ("", "a b", "falaj/x/y/z", "a+b", "../x"):
        with pytest.raises(Invalid):
            CheckpointWitness(name, tmp_path / "other")


def test_the_key_is_for_its_owner_only(tmp_path: Path) -> None:
    CheckpointWitness("regulator", tmp_path / "w")
    assert (tmp_path / "w" / "witness.key").stat().st_mode & 0o077 == 0


def test_the_command(house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = grow(house, 3)
    (tmp_path / "c.txt").write_text(first.note)
    base = ["--name", "regulator", "--folder", str(tmp_path / "w")]
    assert main([*base, "key"]) == 0
    public = capsys.readouterr().out.strip()
    assert main([*base, "cosign", str(tmp_path / "c.txt"), "--log-key", first.key]) == 0
    text, lines = signed_note.split_note(capsys.readouterr().out)
    assert signed_note.verify_signature_line(text, lines[-1], "regulator", signed_note.decode_base64(public))
    second = grow(house, 1)
    (tmp_path / "c.txt").write_text(second.note)
    (tmp_path / "p.json").write_text(json.dumps({"hashes": proof(house, first, second)}))
    assert main([*base, "cosign", str(tmp_path / "c.txt")]) == Conflict.exit_code
    assert main([*base, "cosign", str(tmp_path / "c.txt"), str(tmp_path / "p.json")]) == 0
    assert main([*base, "cosign", str(tmp_path / "missing")]) == 2
    done = subprocess.run(
        [sys.executable, "-m", "falaj.audit.witness", *base, "key"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == public
