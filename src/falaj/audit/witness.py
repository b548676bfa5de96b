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

from falaj.audit import signed_note
from falaj.audit.merkle import verify_consistency
from falaj.audit.records import SignedCheckpoint
from falaj.core.errors import Conflict, Denied, FalajError, Invalid


class CheckpointWitness:
    """One witness: its name, its key, and the file of what it has seen."""

    def __init__(self, name: str, folder: Path) -> None:
        if not signed_note.is_witness_name(name):
            raise Invalid(
                f"{name!r} is no name of a witness", "letters, digits, dots and dashes, for example regulator.example"
            )
        self.name, self._folder = name, folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = self.load_key()

    @property
    def public(self) -> str:
        """The public key, base64: what the log's owner registers and what auditors pin."""
        return signed_note.encode_base64(signed_note.get_public_bytes(self._key))

    def seen(self, origin: str) -> SignedCheckpoint | None:
        """The newest checkpoint of a log that this witness cosigned."""
        text = self.read_state().get(origin)
        return signed_note.parse_checkpoint(text) if text else None

    def cosign(self, signed: str, proof: Sequence[str], log_key: str, seen_at: float) -> str:
        """Check a checkpoint against what was seen before and cosign it; gives the note with this witness's line added.

        `proof` is the consistency proof (hex) from the size seen last, empty the first time. `log_key` is the key that
        this witness trusts at first; a log that changed its key shows the checkpoint that introduced the new one.
        """
        checkpoint = signed_note.parse_checkpoint(signed)
        text, lines = signed_note.split_note(signed)
        last_checkpoint = self.seen(checkpoint.origin)
        trusted_key = last_checkpoint.key if last_checkpoint else log_key
        if not any(
            signed_note.verify_signature_line(text, line, checkpoint.origin, signed_note.decode_base64(trusted_key))
            for line in lines
        ):
            raise Denied(
                "the checkpoint is not signed by the key of this log", "a new key must be introduced by the old one"
            )
        if not any(
            signed_note.verify_signature_line(text, line, checkpoint.origin, signed_note.decode_base64(checkpoint.key))
            for line in lines
        ):
            raise Denied("the checkpoint is not signed by the key it names", "give it unchanged")
        if last_checkpoint:
            _require_growth(last_checkpoint, checkpoint, proof)
        line = signed_note.cosign_text(text, self.name, self._key, seen_at)
        if not last_checkpoint or checkpoint.size > last_checkpoint.size:
            self.write_state(checkpoint.origin, signed)
        return signed + line + "\n"

    def load_key(self) -> Ed25519PrivateKey:
        path = self._folder / "witness.key"
        if not path.exists():
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(Ed25519PrivateKey.generate().private_bytes_raw())
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())

    def read_state(self) -> dict[str, str]:
        path = self._folder / "seen.json"
        if not path.exists():
            return {}
        state: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return state

    def write_state(self, origin: str, signed: str) -> None:
        """Durable before the signature is given away: a witness that forgets can be lied to."""
        state = self.read_state() | {origin: signed}
        path = self._folder / "seen.json"
        draft_path = path.with_suffix(".new")
        with draft_path.open("w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft_path.replace(path)
        folder_fd = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)


def _require_growth(last_checkpoint: SignedCheckpoint, checkpoint: SignedCheckpoint, proof: Sequence[str]) -> None:
    if checkpoint.size < last_checkpoint.size:
        raise Conflict(
            f"the log was rolled back from {last_checkpoint.size} to {checkpoint.size} events",
            "ask its owner; keep both checkpoints",
        )
    try:
        hashes = [bytes.fromhex(text) for text in proof]
    except ValueError as error:
        raise Invalid(
            "the consistency proof is not hexadecimal", "give the hashes as `falaj audit consistency` prints them"
        ) from error
    if checkpoint.size == last_checkpoint.size and checkpoint.root != last_checkpoint.root:
        raise Conflict(
            f"split view: two roots for {checkpoint.size} events", "ask the log's owner; keep both checkpoints"
        )
    if not verify_consistency(
        last_checkpoint.size,
        checkpoint.size,
        signed_note.decode_base64(last_checkpoint.root),
        signed_note.decode_base64(checkpoint.root),
        hashes,
    ):
        raise Conflict(
            f"nothing proves that {checkpoint.size} events continue the {last_checkpoint.size} seen before",
            f"give the proof from {last_checkpoint.size}",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The witness's own command."""
    parser = argparse.ArgumentParser(prog="falaj.audit.witness", description="Cosign checkpoints of Falaj logs.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    subcommands = parser.add_subparsers(dest="act", required=True)
    subcommands.add_parser("key", help="print the public key")
    cosign_parser = subcommands.add_parser("cosign", help="check and cosign a checkpoint")
    cosign_parser.add_argument("checkpoint", type=Path)
    cosign_parser.add_argument("proof", type=Path, nargs="?", help="the output of falaj audit consistency --json")
    cosign_parser.add_argument("--log-key", default="", help="the log's public key, needed the first time")
    options = parser.parse_args(argv)
    try:
        witness = CheckpointWitness(options.name, options.folder)
        if options.act == "key":
            sys.stdout.write(witness.public + "\n")
            return 0
        proof = json.loads(options.proof.read_text(encoding="utf-8"))["hashes"] if options.proof else []
        sys.stdout.write(
            witness.cosign(options.checkpoint.read_text(encoding="utf-8"), proof, options.log_key, time.time())
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
