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

from falaj.audit import note
from falaj.audit.merkle import frontier_at
from falaj.audit.prove import prove, prove_growth
from falaj.audit.records import Checkpoint, Witness
from falaj.audit.seal import Log
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid
from falaj.core.frontier import HASH_BYTES
from falaj.store.records import Fact, Lines

FORMAT = "falaj-evidence/1"
SEGMENT = 16_384
"""Events in one file: at multiples of this a new file begins, so that a file holds whole subtrees."""
MAX_PROOFS = 64
VERIFIER = Path(__file__).with_name("falaj_verify.py")

_README = """Falaj evidence pack
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
class Span:
    """Which part of a log: from the end of checkpoint `first` (0: the beginning) to the end of checkpoint `last`."""

    first: int
    last: int


Facts = Callable[[str, int], Lines]
"""(position, how many) -> the next events of the log after a ledger position; nobody needs to have read them."""


def files(
    log: Log,
    span: Span,
    facts: Facts,
    signer: Ed25519PrivateKey,
    witnesses: Iterable[Witness],
    proven: Iterable[Fact] = (),
) -> Iterator[tuple[str, bytes]]:
    """The files of a pack, in order, one at a time."""
    made: dict[str, dict[str, str | int]] = {}

    def entry(name: str, data: bytes) -> tuple[str, bytes]:
        made[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return name, data

    last = log.checkpoint(span.last)
    start = log.checkpoint(span.first).size if span.first else 0
    yield entry("README.txt", _README.encode())
    yield entry("falaj_verify.py", VERIFIER.read_bytes())
    yield entry("keys.json", _json(_keys(log)))
    yield entry("witnesses.json", _json({"witnesses": [{"key": w.key, "name": w.name} for w in witnesses]}))
    yield entry("base.json", _json(_base(log, span.first, start)))
    for name, data in _events(log, start, last.size, facts):
        yield entry(name, data)
    checkpoints = [log.checkpoint(number) for number in range(span.first + 1, span.last + 1)]
    yield entry(
        "checkpoints.jsonl", b"".join(json.dumps(c.note, ensure_ascii=False).encode() + b"\n" for c in checkpoints)
    )
    yield entry("proofs.json", _json(_proofs(log, start, last, checkpoints, proven)))
    manifest = _json(
        {"files": made, "format": FORMAT, "from": start, "last": span.last, "origin": last.origin, "to": last.size}
    )
    yield "manifest.json", manifest
    text = f"{FORMAT}\n{last.origin}\n{hashlib.sha256(manifest).hexdigest()}\n"
    yield "manifest.sig", note.join(text, note.sign(text, last.origin, signer)).encode()


def zip_stream(entries: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """The files as a zip: stored, no dates, nothing optional; the directory follows from names, sizes and checksums."""
    directory, offset, count = bytearray(), 0, 0
    for name, data in entries:
        raw, crc, size = name.encode("ascii"), zlib.crc32(data), len(data)
        if size >= 0xFFFFFFFF:
            raise Invalid(f"{name} of the pack is too large", "export a shorter time")
        yield struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0x21, crc, size, size, len(raw), 0) + raw
        yield data
        wide = offset >= 0xFFFFFFFF
        version, extra = (45, struct.pack("<HHQ", 1, 8, offset)) if wide else (20, b"")
        directory += struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, 0x300 | version, version, 0, 0, 0, 0x21, crc, size, size, len(raw),
            len(extra), 0, 0, 0, 0o100644 << 16, 0xFFFFFFFF if wide else offset,
        ) + raw + extra  # fmt: skip
        offset, count = offset + 30 + len(raw) + size, count + 1
    yield bytes(directory)
    yield _zip_end(count, len(directory), offset)


def _zip_end(count: int, size: int, start: int) -> bytes:
    wide = b""
    if count >= 0xFFFF or size >= 0xFFFFFFFF or start >= 0xFFFFFFFF:
        wide = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
        wide += struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
        count, size, start = min(count, 0xFFFF), min(size, 0xFFFFFFFF), min(start, 0xFFFFFFFF)
    return wide + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, start, 0)


def _keys(log: Log) -> dict[str, object]:
    """Every key since the log began, each with the checkpoint that introduced it and the time it was valid."""
    notes = [log.checkpoint(number) for _, number, _ in log.head.keys]
    times = [round(c.at * 1_000_000) for c in notes]
    ends = [*times[1:], 0]
    return {
        "keys": [
            {"from": a, "note": c.note, "public": c.key, "until": b} for c, a, b in zip(notes, times, ends, strict=True)
        ]
    }


def _base(log: Log, first: int, start: int) -> dict[str, object]:
    hashes = [h.hex() for h in frontier_at(start, log.tiles.subtree).hashes]
    return {"hashes": hashes, "note": log.checkpoint(first).note if first else "", "size": start}


def _events(log: Log, start: int, stop: int, facts: Facts) -> Iterator[tuple[str, bytes]]:
    pos = log.positions((start - 1) // 256)[(start - 1) % 256] if start else ""
    while start < stop:
        end = min(stop, (start // SEGMENT + 1) * SEGMENT)
        raws: list[bytes] = []
        leaves: list[bytes] = []
        while len(raws) < end - start:
            part = facts(pos, end - start - len(raws))
            if not part.raws:
                raise Corrupt(
                    f"event {start + len(raws)} of the audit log is missing in the ledger", "run: falaj audit check"
                )
            raws += part.raws
            leaves += part.leaves
            pos = part.pos
        sealed, found = log.leaves(start, end), b"".join(leaves)
        if found != sealed:
            wrong = start + next(i for i, leaf in enumerate(leaves) if not sealed.startswith(leaf, HASH_BYTES * i))
            raise Corrupt(f"event {wrong} in the ledger is not the one that was sealed", "run: falaj audit check")
        raws.append(b"")
        yield f"events/{start:012d}.jsonl", b"\n".join(raws)
        yield f"events/{start:012d}.leaves", found
        start = end


def _proofs(
    log: Log, start: int, last: Checkpoint, checkpoints: Sequence[Checkpoint], proven: Iterable[Fact]
) -> dict[str, object]:
    """That every witnessed checkpoint (the newest of them), and the beginning of the pack, lead to its end."""
    witnessed = [c.size for c in checkpoints if len(note.split(c.note)[1]) > 1][-MAX_PROOFS:]
    sizes = sorted({size for size in (start, checkpoints[0].size, *witnessed) if 0 < size < last.size})
    grown = [prove_growth(log, last.origin, size, last.size) for size in sizes]
    inside = [prove(log, fact, last) for fact in proven]
    return {
        "consistency": [{"hashes": p.hashes, "new": p.new, "old": p.old} for p in grown],
        "inclusion": [{"hashes": p.hashes, "index": p.index, "leaf": p.leaf, "size": p.size} for p in inside],
    }


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
