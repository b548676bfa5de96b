"""A witness: someone with a key and a memory of their own who cosigns a checkpoint only when nothing was taken back.

Usable without the platform, by a customer, a regulator or an auditor:

    python -m falaj.audit.witness --name regulator --folder ./witness key
    python -m falaj.audit.witness --name regulator --folder ./witness cosign checkpoint.txt proof.json --log-key <key>

The witness keeps the last size and root it saw of each log. A checkpoint that is smaller, that is of the same size with
another root, or that has no consistency proof from the last one is refused, and so is one that is not the log's own.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import note
from falaj.audit.merkle import check_consistency
from falaj.audit.records import Checkpoint
from falaj.core.errors import Conflict, Denied, FalajError, Invalid


class Witness:
    """One witness: its name, its key, and the file of what it has seen."""

    def __init__(self, name: str, folder: Path) -> None:
        if not note.is_witness_name(name):
            raise Invalid(
                f"{name!r} is no name of a witness", "letters, digits, dots and dashes, for example regulator.example"
            )
        self.name, self._folder = name, folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = self._load_key()

    @property
    def public(self) -> str:
        """The public key, base64: what the log's owner registers and what auditors pin."""
        return note.b64(note.public_of(self._key))

    def seen(self, origin: str) -> Checkpoint | None:
        """The newest checkpoint of a log that this witness cosigned."""
        text = self._state().get(origin)
        return note.parse(text) if text else None

    def cosign(self, signed: str, proof: Sequence[str], log_key: str, at: float) -> str:
        """Check a checkpoint against what was seen before and cosign it; gives the note with this witness's line added.

        `proof` is the consistency proof (hex) from the size seen last, empty the first time. `log_key` is the key that
        this witness trusts at first; a log that changed its key shows the checkpoint that introduced the new one.
        """
        fresh = note.parse(signed)
        text, lines = note.split(signed)
        before = self.seen(fresh.origin)
        trusted = before.key if before else log_key
        if not any(note.check(text, line, fresh.origin, note.unb64(trusted)) for line in lines):
            raise Denied(
                "the checkpoint is not signed by the key of this log", "a new key must be introduced by the old one"
            )
        if not any(note.check(text, line, fresh.origin, note.unb64(fresh.key)) for line in lines):
            raise Denied("the checkpoint is not signed by the key it names", "give it unchanged")
        if before:
            _check_growth(before, fresh, proof)
        line = note.cosign(text, self.name, self._key, at)
        if not before or fresh.size > before.size:
            self._remember(fresh.origin, signed)
        return signed + line + "\n"

    def _load_key(self) -> Ed25519PrivateKey:
        path = self._folder / "witness.key"
        if not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(Ed25519PrivateKey.generate().private_bytes_raw())
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())

    def _state(self) -> dict[str, str]:
        path = self._folder / "seen.json"
        if not path.exists():
            return {}
        state: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return state

    def _remember(self, origin: str, signed: str) -> None:
        """Durable before the signature is given away: a witness that forgets can be lied to."""
        state = self._state() | {origin: signed}
        path = self._folder / "seen.json"
        fresh = path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _check_growth(before: Checkpoint, fresh: Checkpoint, proof: Sequence[str]) -> None:
    if fresh.size < before.size:
        raise Conflict(
            f"the log was rolled back from {before.size} to {fresh.size} events", "ask its owner; keep both checkpoints"
        )
    try:
        hashes = [bytes.fromhex(text) for text in proof]
    except ValueError as error:
        raise Invalid(
            "the consistency proof is not hexadecimal", "give the hashes as `falaj audit consistency` prints them"
        ) from error
    if fresh.size == before.size and fresh.root != before.root:
        raise Conflict(f"split view: two roots for {fresh.size} events", "ask the log's owner; keep both checkpoints")
    if not check_consistency(before.size, fresh.size, note.unb64(before.root), note.unb64(fresh.root), hashes):
        raise Conflict(
            f"nothing proves that {fresh.size} events continue the {before.size} seen before",
            f"give the proof from {before.size}",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The witness's own command."""
    parser = argparse.ArgumentParser(prog="falaj.audit.witness", description="Cosign checkpoints of Falaj logs.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    acts = parser.add_subparsers(dest="act", required=True)
    acts.add_parser("key", help="print the public key")
    one = acts.add_parser("cosign", help="check and cosign a checkpoint")
    one.add_argument("checkpoint", type=Path)
    one.add_argument("proof", type=Path, nargs="?", help="the output of falaj audit consistency --json")
    one.add_argument("--log-key", default="", help="the log's public key, needed the first time")
    chosen = parser.parse_args(argv)
    try:
        witness = Witness(chosen.name, chosen.folder)
        if chosen.act == "key":
            sys.stdout.write(witness.public + "\n")
            return 0
        proof = json.loads(chosen.proof.read_text(encoding="utf-8"))["hashes"] if chosen.proof else []
        sys.stdout.write(
            witness.cosign(chosen.checkpoint.read_text(encoding="utf-8"), proof, chosen.log_key, time.time())
        )
    except FalajError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"an input cannot be read: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
