"""Evidence packs: a part of a log with everything needed to check it offline, as files, as a zip stream or in a folder.

The same log and the same range give the same bytes. The zip stores files as they are, so that every byte of it follows
from its content and the verifier can account for all of them; and nothing of a pack ever lies in a temporary file.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from falaj.audit import signed_note
from falaj.audit.log_sealing import SealedLog
from falaj.audit.merkle import compute_frontier
from falaj.audit.proofs import prove_event, prove_growth
from falaj.audit.records import RegisteredWitness, SignedCheckpoint
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid
from falaj.core.merkle_frontier import HASH_BYTES
from falaj.store.records import LoggedEvent, LogLines

PACK_FORMAT = "falaj-evidence/1"
SEGMENT_EVENTS = 16_384
"""Events in one file: at multiples of this a new file begins, so that a file holds whole subtrees."""
MAX_CONSISTENCY_PROOFS = 64
VERIFIER_PATH = Path(__file__).with_name("falaj_verify.py")

_README_TEXT = """Falaj evidence pack
===================

This folder or zip file holds a part of one tamper-evident log with everything needed to check it:

    python falaj_verify.py <this pack>              the report in English
    python falaj_verify.py <this pack> --lang ar    the report in Arabic

It needs Python 3.10 or newer and no other program, package or network. It ends with exit code 0 (intact), 1 (damaged:
the report says where) or 2 (it could not be checked).

The verifier inside is for convenience. Whoever could alter the pack could alter it too: take it from another place, and
compare the key it prints with one you were given by another way (--key).


حزمة أدلة من منصة فلج
=====================

يضم هذا المجلد أو الملف المضغوط جزءًا من سجل محمي من العبث، مع كل ما يلزم للتحقق منه:

    python falaj_verify.py <this pack> --lang ar    التقرير بالعربية
    python falaj_verify.py --lang ar --help         المساعدة بالعربية

تحتاج أداة التحقق إلى Python 3.10 أو أحدث، ولا تحتاج إلى أي برنامج آخر أو حزمة برمجية أو شبكة.
وتنتهي برمز الخروج 0 (سليم) أو 1 (تالف، ويبيّن التقرير موضع التلف) أو 2 (تعذّر التحقق).

الأداة المرفقة للتيسير فقط، فمن استطاع تغيير الحزمة استطاع تغيير الأداة: خذ الأداة من مصدر آخر، وقارن المفتاح الذي تطبعه
بمفتاح وصلك بطريق آخر (--key).
"""


@dataclass(frozen=True, slots=True)
class CheckpointRange:
    """Which part of a log: from the end of checkpoint `first` (0: the beginning) to the end of checkpoint `last`."""

    first: int
    last: int


ReadLogLines = Callable[[str, int], LogLines]
"""(position, how many) -> the next events of the log after a ledger position; nobody needs to have read them."""


def generate_pack_files(
    log: SealedLog,
    checkpoint_range: CheckpointRange,
    read_lines: ReadLogLines,
    signer: Ed25519PrivateKey,
    witnesses: Iterable[RegisteredWitness],
    proven_events: Iterable[LoggedEvent] = (),
) -> Iterator[tuple[str, bytes]]:
    """The files of a pack, in order, one at a time."""
    manifest_entries: dict[str, dict[str, str | int]] = {}

    def add_entry(name: str, data: bytes) -> tuple[str, bytes]:
        manifest_entries[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return name, data

    last_checkpoint = log.checkpoint(checkpoint_range.last)
    start_size = log.checkpoint(checkpoint_range.first).size if checkpoint_range.first else 0
    yield add_entry("README.txt", _README_TEXT.encode())
    yield add_entry("falaj_verify.py", VERIFIER_PATH.read_bytes())
    yield add_entry("keys.json", _encode_canonical_json(_build_keys(log)))
    yield add_entry(
        "witnesses.json",
        _encode_canonical_json(
            {"witnesses": [{"key": witness_item.key, "name": witness_item.name} for witness_item in witnesses]}
        ),
    )
    yield add_entry("base.json", _encode_canonical_json(_build_base(log, checkpoint_range.first, start_size)))
    for name, data in _generate_event_files(log, start_size, last_checkpoint.size, read_lines):
        yield add_entry(name, data)
    checkpoints = [log.checkpoint(number) for number in range(checkpoint_range.first + 1, checkpoint_range.last + 1)]
    yield add_entry(
        "checkpoints.jsonl",
        b"".join(
            json.dumps(checkpoint_item.note, ensure_ascii=False).encode() + b"\n" for checkpoint_item in checkpoints
        ),
    )
    yield add_entry(
        "proofs.json",
        _encode_canonical_json(_build_proofs(log, start_size, last_checkpoint, checkpoints, proven_events)),
    )
    manifest = _encode_canonical_json(
        {
            "files": manifest_entries,
            "format": PACK_FORMAT,
            "from": start_size,
            "last": checkpoint_range.last,
            "origin": last_checkpoint.origin,
            "to": last_checkpoint.size,
        }
    )
    yield "manifest.json", manifest
    signed_text = f"{PACK_FORMAT}\n{last_checkpoint.origin}\n{hashlib.sha256(manifest).hexdigest()}\n"
    yield (
        "manifest.sig",
        signed_note.join_note(signed_text, signed_note.sign_text(signed_text, last_checkpoint.origin, signer)).encode(),
    )


def generate_zip(entries: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """The files as a zip: stored, no dates, nothing optional; the directory follows from names, sizes and checksums."""
    directory, offset, count = bytearray(), 0, 0
    for name, data in entries:
        raw_name, crc, size = name.encode("ascii"), zlib.crc32(data), len(data)
        if size >= 0xFFFFFFFF:
            raise Invalid(f"{name} of the pack is too large", "export a shorter time")
        yield struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0x21, crc, size, size, len(raw_name), 0) + raw_name
        yield data
        needs_zip64 = offset >= 0xFFFFFFFF
        version, extra = (45, struct.pack("<HHQ", 1, 8, offset)) if needs_zip64 else (20, b"")
        directory += struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 0x300 | version, version, 0, 0, 0, 0x21, crc, size, size, len(raw_name),
            len(extra), 0, 0, 0, 0o100644 << 16, 0xFFFFFFFF if needs_zip64 else offset,
        ) + raw_name + extra  # fmt: skip
        offset, count = offset + 30 + len(raw_name) + size, count + 1
    yield bytes(directory)
    yield _build_zip_end(count, len(directory), offset)


def _build_zip_end(count: int, size: int, start: int) -> bytes:
    zip64_end = b""
    if count >= 0xFFFF or size >= 0xFFFFFFFF or start >= 0xFFFFFFFF:
        zip64_end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
        zip64_end += struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
        count, size, start = min(count, 0xFFFF), min(size, 0xFFFFFFFF), min(start, 0xFFFFFFFF)
    return zip64_end + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, start, 0)


def _build_keys(log: SealedLog) -> dict[str, object]:
    """Every key since the log began, each with the checkpoint that introduced it and the time it was valid."""
    notes = [log.checkpoint(number) for _, number, _ in log.head.keys]
    start_times = [round(key_checkpoint.at * 1_000_000) for key_checkpoint in notes]
    end_times = [*start_times[1:], 0]
    return {
        "keys": [
            {"from": valid_from, "note": key_checkpoint.note, "public": key_checkpoint.key, "until": valid_until}
            for key_checkpoint, valid_from, valid_until in zip(notes, start_times, end_times, strict=True)
        ]
    }


def _build_base(log: SealedLog, first_checkpoint: int, start_size: int) -> dict[str, object]:
    hashes = [hash_value.hex() for hash_value in compute_frontier(start_size, log.tiles.subtree).hashes]
    return {
        "hashes": hashes,
        "note": log.checkpoint(first_checkpoint).note if first_checkpoint else "",
        "size": start_size,
    }


def _generate_event_files(
    log: SealedLog, start: int, stop: int, read_lines: ReadLogLines
) -> Iterator[tuple[str, bytes]]:
    cursor = log.positions((start - 1) // 256)[(start - 1) % 256] if start else ""
    while start < stop:
        file_stop = min(stop, (start // SEGMENT_EVENTS + 1) * SEGMENT_EVENTS)
        raw_lines: list[bytes] = []
        leaves: list[bytes] = []
        while len(raw_lines) < file_stop - start:
            log_lines = read_lines(cursor, file_stop - start - len(raw_lines))
            if not log_lines.raws:
                raise CorruptData(
                    f"event {start + len(raw_lines)} of the audit log is missing in the ledger",
                    "run: falaj audit check",
                )
            raw_lines += log_lines.raws
            leaves += log_lines.leaves
            cursor = log_lines.pos
        sealed_leaves, leaf_bytes = log.leaves(start, file_stop), b"".join(leaves)
        if leaf_bytes != sealed_leaves:
            wrong_index = start + next(
                i for i, leaf in enumerate(leaves) if not sealed_leaves.startswith(leaf, HASH_BYTES * i)
            )
            raise CorruptData(
                f"event {wrong_index} in the ledger is not the one that was sealed", "run: falaj audit check"
            )
        raw_lines.append(b"")
        yield f"events/{start:012d}.jsonl", b"\n".join(raw_lines)
        yield f"events/{start:012d}.leaves", leaf_bytes
        start = file_stop


def _build_proofs(
    log: SealedLog,
    start_size: int,
    last_checkpoint: SignedCheckpoint,
    checkpoints: Sequence[SignedCheckpoint],
    proven_events: Iterable[LoggedEvent],
) -> dict[str, object]:
    """That every witnessed checkpoint (the newest of them), and the beginning of the pack, lead to its end."""
    witnessed = [
        checkpoint_item.size
        for checkpoint_item in checkpoints
        if len(signed_note.split_note(checkpoint_item.note)[1]) > 1
    ][-MAX_CONSISTENCY_PROOFS:]
    sizes = sorted({size for size in (start_size, checkpoints[0].size, *witnessed) if 0 < size < last_checkpoint.size})
    consistency_proofs = [prove_growth(log, last_checkpoint.origin, size, last_checkpoint.size) for size in sizes]
    inclusion_proofs = [prove_event(log, logged_event, last_checkpoint) for logged_event in proven_events]
    return {
        "consistency": [
            {"hashes": proof_item.hashes, "new": proof_item.new, "old": proof_item.old}
            for proof_item in consistency_proofs
        ],
        "inclusion": [
            {"hashes": proof_item.hashes, "index": proof_item.index, "leaf": proof_item.leaf, "size": proof_item.size}
            for proof_item in inclusion_proofs
        ],
    }


def _encode_canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
