#!/usr/bin/env python3
"""falaj_verify: check a Falaj evidence pack (or one proof) on any machine, with no network and no other part of Falaj.

    python falaj_verify.py pack.zip                         a pack, as a zip file or as a folder
    python falaj_verify.py pack.zip --key <public key>      ... and that it is signed by the log whose key you know
    python falaj_verify.py pack.zip --known checkpoint.txt  ... and that nothing you saw earlier was taken back
    python falaj_verify.py proof.json --key <public key>    the proof of a single event
    python falaj_verify.py certificate.json --key <key>     an erasure certificate, with the proof inside it
    python falaj_verify.py answer/ --key <public key>       an answer to an access request: every file of the folder
    python falaj_verify.py answer/ --log pack.zip           ... by the keys that this pack of the log shows
    python falaj_verify.py --lang ar --help                 help and reports in Arabic

Needs Python 3.10 or newer and nothing else. Exit code: 0 intact, 1 damaged or untrue (the report says where), 2 the
check could not be made: also where nothing was changed, but no trusted key shows which log signed a proof, a
certificate or an answer.

What is in a pack (every number is an event's index in the log, counted from 0):

    manifest.json            the SHA-256 of every file, and which part of which log this is
    manifest.sig             the log's signature over the SHA-256 of manifest.json
    evidence.json, evidence/ where somebody put more beside it: the SHA-256 of every such file and of manifest.json
    evidence.proof.json      that the log holds the SHA-256 of evidence.json, and who put it there
    keys.json                every key the log ever had; each introduced by a checkpoint that the key before signed too
    witnesses.json           the keys of the witnesses
    base.json                where the pack starts: the checkpoint before it, and the hashes of the tree up to there
    events/<first>.jsonl     the events, one a line, exactly the bytes that were hashed
    events/<first>.leaves    the hashes of those events, 32 bytes each: they show which line is the damaged one
    checkpoints.jsonl        the signed checkpoints, oldest first
    proofs.json              consistency and inclusion proofs
    README.txt, falaj_verify.py

How events become one hash (RFC 6962): leaf = SHA-256(0x00 || line), node = SHA-256(0x01 || left || right); a tree of
n leaves has the largest power of two below n on its left. A checkpoint is a C2SP signed note: origin, size, root, then
the lines `time` (microseconds), `number`, `previous` (SHA-256 of the previous text), `key` (which signs), signatures.
"""

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the auditor chooses the Python; before what an older one cannot read
    sys.stderr.write("cannot check: this verifier needs Python 3.10 or newer\n")
    sys.exit(2)

import argparse
import base64
import concurrent.futures
import contextlib
import itertools
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256, sha512
from pathlib import Path
from typing import Any, NoReturn

FORMAT = "falaj-evidence/1"
SEGMENT = 16384  # a segment ends where the index is a multiple of this, so that whole subtrees fit in it
BLOCK = 65536  # so many bytes of lines are worked on at once: they stay in the processor's cache
MAX_SIZE = 2**63 - 1
CLOCK_SLACK_US = 60 * 1_000_000  # how far an event's clock may run ahead of the clock that signed
NAMES = re.compile(
    r"(manifest|keys|witnesses|base|proofs)\.json|manifest\.sig|checkpoints\.jsonl|README\.txt|falaj_verify\.py"
    r"|events/[0-9]{12}\.(jsonl|leaves)|evidence(\.proof)?\.json|evidence/[a-z0-9][a-z0-9._-]{0,63}"
)
ENCLOSED = ("evidence.json", "evidence.proof.json", "evidence/")  # what was put beside a log's part, by whom
EVENT = re.compile(rb'\{"actor":"(?:[^"\\]|\\.)*","at":([0-9]{1,20}),.*?\},"id":"([^"\\]+)","inputs":\[.*\}')
Problem = dict[str, Any]
Place = tuple[str, int, int, int]  # path, offset, size, checksum (-1: none)
Piece = tuple[int, bytes]  # a perfect subtree: height, hash
MALFORMED = (KeyError, TypeError, AttributeError, ValueError, IndexError)
# What a machine, a disk or an unforeseen file may raise: the check ends with exit code 2.
UNFORESEEN = (
    *MALFORMED, ArithmeticError, AssertionError, EOFError, LookupError, MemoryError, OSError, RuntimeError,
    struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class CannotCheck(Exception):
    """There is nothing to check: no such file, or not a pack at all."""


class Damage(Exception):
    """One thing that is not as it must be; `where` has file, line, event, bytes or checkpoint, as far as known."""

    def __init__(self, what: str, **where: Any) -> None:
        super().__init__(what)
        self.problem: Problem = {"what": what, **where}


# ---------------------------------------------------------------- Ed25519 (RFC 8032), verification only, strict

# Points are (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z on -x² + y² = 1 + dx²y². A table holds the multiples 1..15 of
# each power of 16 of a point as (Y-X, Y+X, 2Z, 2dT), so that a product is 64 additions and no doubling.
Point = tuple[int, int, int, int]
PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, PRIME) % PRIME
ROOT_OF_MINUS_ONE = pow(2, (PRIME - 1) // 4, PRIME)
IDENTITY: Point = (0, 1, 1, 0)
BASE_POINT = bytes([0x58] + [0x66] * 31)


@lru_cache(maxsize=1024)
def verify_ed25519(public: bytes, signature: bytes, message: bytes) -> bool:
    """True when `signature` is valid. Refuses every second encoding: S >= L, y >= p, and points of small order."""
    table = multiples_of(public) if len(public) == 32 else None
    if table is None or len(signature) != 64:
        return False
    scalar = int.from_bytes(signature[32:], "little")
    if scalar >= ORDER:
        return False
    challenge = int.from_bytes(sha512(signature[:32] + public + message).digest(), "little") % ORDER
    base = multiples_of(BASE_POINT) or []
    point = add_multiple(add_multiple(IDENTITY, base, scalar), table, (ORDER - challenge) % ORDER)
    return encode_point(point) == signature[:32] and not has_small_order(point)


@lru_cache(maxsize=64)
def multiples_of(encoded: bytes) -> list[list[Point]] | None:
    """The table of an encoded point; None for bytes that encode no point, or one of small order."""
    point = decode_point(encoded)
    if point is None or has_small_order(point):
        return None
    table = []
    for _ in range(64):
        row, multiple = [], point
        for _ in range(15):
            x, y, z, t = multiple
            row.append(((y - x) % PRIME, (y + x) % PRIME, 2 * z % PRIME, 2 * CURVE_D * t % PRIME))
            multiple = add_row(multiple, row[0])
        table.append(row)
        point = multiple
    return table


def add_multiple(point: Point, table: list[list[Point]], scalar: int) -> Point:
    """The point plus `scalar` times the table's point."""
    for row in table:
        digit = scalar & 15
        scalar >>= 4
        if digit:
            point = add_row(point, row[digit - 1])
    return point


def add_row(point: Point, row: Point) -> Point:
    """The sum of a point and an entry of a table; the formula holds for all points, equal ones too."""
    x, y, z, t = point
    a, b, c, d = (y - x) * row[0] % PRIME, (y + x) * row[1] % PRIME, t * row[3] % PRIME, z * row[2] % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME


def has_small_order(point: Point) -> bool:
    """True for the eight points that eight times themselves are the identity."""
    for _ in range(3):
        x, y, z, t = point
        point = add_row(point, ((y - x) % PRIME, (y + x) % PRIME, 2 * z % PRIME, 2 * CURVE_D * t % PRIME))
    return point[0] % PRIME == 0 and (point[1] - point[2]) % PRIME == 0


def decode_point(encoded: bytes) -> Point | None:
    """The point that 32 bytes encode in the one way it can be encoded, or None."""
    number = int.from_bytes(encoded, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= PRIME:
        return None
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * ROOT_OF_MINUS_ONE % PRIME
    if (x * x - square) % PRIME or (x == 0 and sign):
        return None
    x = PRIME - x if x & 1 != sign else x
    return x, y, 1, x * y % PRIME


def encode_point(point: Point) -> bytes:
    """The 32 bytes of a point."""
    inverse = pow(point[2], -1, PRIME)
    x, y = point[0] * inverse % PRIME, point[1] * inverse % PRIME
    return (y | (x & 1) << 255).to_bytes(32, "little")


# ---------------------------------------------------------------- the container: a folder or a zip file


def open_folder(path: Path) -> dict[str, Place]:
    """Where each file of the pack is. Nothing else may lie in the folder."""
    places: dict[str, Place] = {}
    for full in sorted(path.rglob("*")):
        name = full.relative_to(path).as_posix()
        if full.is_symlink() or not (full.is_dir() or (full.is_file() and NAMES.fullmatch(name))):
            raise Damage("this file does not belong to a pack", file=name)
        if full.is_file():
            places[name] = (str(full), 0, full.stat().st_size, -1)
    return places


def open_zip(path: Path) -> dict[str, Place]:
    """The same for a zip file. Every byte must be the one that follows from names, sizes, checksums and contents."""
    places: dict[str, Place] = {}
    directory, offset = b"", 0
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, struct.error) as error:
        raise Damage(f"the zip file is cut off or its directory is damaged ({error})", file="(zip)") from error
    with path.open("rb") as file:
        for entry in entries:
            name, crc, size = entry.filename, entry.CRC, entry.file_size
            if name in places or not NAMES.fullmatch(name):
                raise Damage("this file does not belong to a pack", file=name[:100])
            raw, wide = name.encode(), offset >= 0xFFFFFFFF
            local = struct.pack("<IHHHHHIII2H", 0x04034B50, 20, 0, 0, 0, 0x21, crc, size, size, len(raw), 0) + raw
            extra = struct.pack("<HHQ", 1, 8, offset) if wide else b""
            version = 45 if wide else 20
            directory += struct.pack("<I6H3I", 0x02014B50, 0x300 | version, version, 0, 0, 0, 0x21, crc, size, size)
            directory += struct.pack("<5H2I", len(raw), len(extra), 0, 0, 0, 0o100644 << 16, min(offset, 0xFFFFFFFF))
            directory += raw + extra
            file.seek(offset)
            if file.read(len(local)) != local:
                raise Damage("the zip header of this file is damaged", file=name, bytes=[offset, offset + len(local)])
            places[name] = (str(path), offset + len(local), size, crc)
            offset += len(local) + size
        end = zip_end(len(entries), len(directory), offset)
        file.seek(offset)
        if file.read() != directory + end:
            raise Damage("the zip directory is damaged", file="(zip)", bytes=[offset, offset + len(directory + end)])
    return places


def zip_end(count: int, size: int, start: int) -> bytes:
    """The bytes that must end a zip file with such a directory."""
    wide = b""
    if count >= 0xFFFF or max(size, start) >= 0xFFFFFFFF:
        wide = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
        wide += struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
    count, size, start = min(count, 0xFFFF), min(size, 0xFFFFFFFF), min(start, 0xFFFFFFFF)
    return wide + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, start, 0)


def load(place: Place) -> tuple[bytes, bool]:
    """The bytes of one file of the pack, and whether size and checksum are those of the container."""
    path, offset, size, crc = place
    with Path(path).open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    return data, len(data) == size and (crc < 0 or zlib.crc32(data) == crc)


def read_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object, with no key twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Damage("this file cannot be read as JSON", file=name) from error
    if not isinstance(value, dict):
        raise Damage("this file does not hold a JSON object", file=name)
    return value


# ---------------------------------------------------------------- signed notes


def unb64(text: str) -> bytes:
    """Bytes from canonical base64; ValueError for any other text."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("not canonical base64")
    return data


class Note:
    """A signed note: its text, and its signatures as (name, four bytes naming the key, signature)."""

    def __init__(self, note: str) -> None:
        text, blank, lines = note.partition("\n\n")
        self.text = text + "\n"
        self.signatures: list[tuple[str, bytes, bytes]] = []
        if not blank or not lines.endswith("\n"):
            raise ValueError("not a signed note")
        for line in lines[:-1].split("\n"):
            dash, name, code = line.split(" ")
            raw = unb64(code)
            if dash != "\u2014" or len(raw) not in (68, 76):
                raise ValueError("not a signature line")
            self.signatures.append((name, raw[:4], raw[4:]))

    def signed_by(self, name: str, public: bytes, kind: int = 1) -> bool:
        """True when this Ed25519 key signed: the text itself (kind 1), or time and text as a witness does (kind 4)."""
        for signer, key_hash, raw in self.signatures:
            if signer == name and key_hash == key_id(name, public, kind):
                stamp = f"cosignature/v1\ntime {int.from_bytes(raw[:8], 'big')}\n" if kind == 4 else ""
                return verify_ed25519(public, raw[8:] if kind == 4 else raw, (stamp + self.text).encode())
        return False


def key_id(name: str, public: bytes, kind: int) -> bytes:
    """The four bytes by which a note names a key."""
    return sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


class Checkpoint(Note):
    """A checkpoint, read strictly: seven lines, every number written in the one way it can be written."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.origin, size, root, time, number, previous, key = self.text[:-1].split("\n")
        words = [line.split(" ") for line in (time, number, previous, key)]
        if [word[0] for word in words] != ["time", "number", "previous", "key"] or any(len(w) != 2 for w in words):
            raise ValueError("not a checkpoint")
        self.size, self.time, self.number = (plain_int(t) for t in (size, words[0][1], words[1][1]))
        self.root, self.previous, self.key = unb64(root), words[2][1], unb64(words[3][1])
        if len(self.root) != 32 or len(self.key) != 32 or not 0 < self.size <= MAX_SIZE:
            raise ValueError("not a checkpoint")

    def digest(self) -> str:
        """What the next checkpoint quotes as `previous`."""
        return base64.b64encode(sha256(self.text.encode()).digest()).decode()


def plain_int(text: str) -> int:
    """A number without sign, spaces or leading zeros."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,18}", text):
        raise ValueError("not a plain number")
    return int(text)


# ---------------------------------------------------------------- the tree


def node(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return sha256(b"\x01" + left + right).digest()


def push(stack: list[Piece], height: int, value: bytes) -> None:
    """Add a perfect subtree on the right of a tree that is kept as its perfect subtrees."""
    while stack and stack[-1][0] == height:
        value, height = node(stack.pop()[1], value), height + 1
    stack.append((height, value))


def root_of(stack: list[Piece]) -> bytes:
    """The root of such a tree."""
    if not stack:
        return sha256(b"").digest()
    value = stack[-1][1]
    for _, left in reversed(stack[:-1]):
        value = node(left, value)
    return value


def root_from_inclusion(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes | None:
    """The root that an inclusion proof leads to, or None when the proof has the wrong length."""
    if not 0 <= index < size <= MAX_SIZE or bool(path) != (size > 1):
        return None
    if size == 1:
        return leaf
    half = 1 << ((size - 1).bit_length() - 1)
    if index < half:
        inner = root_from_inclusion(leaf, index, half, path[:-1])
        return inner and node(inner, path[-1])
    inner = root_from_inclusion(leaf, index - half, size - half, path[:-1])
    return inner and node(path[-1], inner)


def roots_from_growth(
    old: int, new: int, root: bytes, path: list[bytes], whole: bool = True
) -> tuple[bytes, bytes] | None:
    """The (old, new) roots that a consistency proof leads to, or None when the proof has the wrong length."""
    if not 0 < old <= new <= MAX_SIZE:
        return None
    if old == new:
        known = [root] if whole else path
        return (known[0], known[0]) if len(path) == (0 if whole else 1) else None
    if not path:
        return None
    half = 1 << ((new - 1).bit_length() - 1)
    if old <= half:
        inner = roots_from_growth(old, half, root, path[:-1], whole)
        return inner and (inner[0], node(inner[1], path[-1]))
    inner = roots_from_growth(old - half, new - half, root, path[:-1], False)
    return inner and (node(path[-1], inner[0]), node(path[-1], inner[1]))


# ---------------------------------------------------------------- one segment of events (runs on every core)


@dataclass
class Task:
    """One segment: the events [start, stop), its files and their digests, and the sizes where a root must be known."""

    start: int
    stop: int
    stem: str
    places: tuple[Place, Place]
    digests: tuple[str, str]
    cuts: list[int]
    marks: tuple[bytes, bytes]


@dataclass
class Found:
    """What a segment turned out to be."""

    well: tuple[bool, bool]
    count: int
    used: int = 0
    damage: tuple[int, str, list[int]] | None = None
    ids: bytes = b""  # sorted, one a line
    twice: bytes = b""
    latest: dict[int, int] = field(default_factory=dict)
    cuts: dict[int, list[Piece]] = field(default_factory=dict)


@dataclass
class Lines:
    """What is read of the lines of a segment: their hashes, times and ids. `plain` False: read times and ids slowly."""

    leaves: list[bytes] = field(default_factory=list)
    times: list[bytes] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    plain: bool = True


def check_segment(task: Task) -> Found:
    """Hash the lines of one segment and build its subtrees up to each cut; note ids, times and damage."""
    (events, events_well), (held, held_well) = (load(place) for place in task.places)
    held_well &= sha256(held).hexdigest() == task.digests[1]
    read = read_lines(events, task.marks)
    recorded, damage = read.leaves, None
    if events[-1:] != b"\n" or b"".join(read.leaves) != held:
        recorded = [held[i : i + 32] for i in range(0, len(held), 32)]
        damage = locate(events, read.leaves, recorded)
    if damage or not held_well:
        # Else every line has just been compared with its own recorded SHA-256, under a digest that the log has signed.
        events_well &= sha256(events).hexdigest() == task.digests[0]
    found = Found((events_well, held_well), len(read.leaves), damage=damage)
    if not read.plain:
        read_slowly(events, task.marks, read, found)
    # Where the lines are known to be damaged and their hashes are not, go on with the hashes: more damage is found.
    used = read.leaves if events_well or not held_well else recorded
    found.used, ids = len(used), sorted(read.ids)
    found.ids = b"\n".join(ids)
    if len(set(ids)) != len(ids):
        found.twice = next(one for one, other in itertools.pairwise(ids) if one == other)
    levels, previous = build_levels(task.start, used), 0
    for cut in task.cuts:
        if cut <= task.start + len(used):
            found.cuts[cut] = cover(levels, task.start, cut)
        inside, previous = read.times[previous : cut - task.start], cut - task.start
        found.latest[cut] = int(max(inside, default=b"0"))
    return found


def read_lines(events: bytes, marks: tuple[bytes, bytes]) -> Lines:
    """Hash every line, and find its time and id without parsing JSON: a quote inside a JSON text is always escaped, so
    the first `","at":` ends the actor and the first `},"id":"` ends the body: they are the fields themselves."""
    read, start, end, (tenant, zone) = Lines(), 0, events.rfind(b"\n") + 1, marks
    while start < end:
        stop = events.find(b"\n", min(start + BLOCK, end - 1))
        block = events[start:stop]
        lines = block.split(b"\n")
        read.leaves += [sha256(b"\x00" + line).digest() for line in lines]
        times = [line[(i := line.find(b'","at":') + 7) : i + 16] for line in lines]
        ids = [line[(i := line.find(b'},"id":"') + 8) : i + 33] for line in lines]  # 32 characters and the end quote
        digits, names, count = b"".join(times), b"".join(ids), len(lines)
        plain = (
            len(digits) == 16 * count and digits.isdigit() and names[32::33] == b'"' * count == b'"' * names.count(b'"')
        )
        ends = [line.endswith(zone) for line in lines]
        plain = plain and len(names) == 33 * count and block.count(tenant) == count and all(ends)
        read.plain &= plain
        read.times += times
        read.ids += ids
        start = stop + 1
    return read


def read_slowly(events: bytes, marks: tuple[bytes, bytes], read: Lines, found: Found) -> None:
    """The same line by line, for clocks and ids of any length; the first that is no event of this log is damage."""
    offset, (tenant, zone) = 0, marks
    read.times, read.ids = [], []
    for number, line in enumerate(events.split(b"\n")[:-1]):
        fits = EVENT.fullmatch(line)
        if not fits or not line.endswith(zone) or tenant not in line:
            found.damage = found.damage or (
                number,
                "this line is not an event of this log",
                [offset, offset + len(line)],
            )
            return
        read.times.append(fits[1].zfill(20))
        read.ids.append(fits[2] + b'"')
        offset += len(line) + 1


def build_levels(first: int, hashes: list[bytes]) -> list[tuple[int, list[bytes]]]:
    """For each height: the index of the first perfect subtree inside, and the hashes of all of them."""
    levels = [(first, hashes)]
    while len(hashes) > 1:
        pairs = iter(hashes[first & 1 :])
        first = (first + 1) >> 1
        hashes = [sha256(b"\x01" + left + right).digest() for left, right in zip(pairs, pairs, strict=False)]
        levels.append((first, hashes))
    return levels


def cover(levels: list[tuple[int, list[bytes]]], start: int, stop: int) -> list[Piece]:
    """[start, stop) as perfect subtrees, left to right."""
    pieces = []
    while start < stop:
        height = (stop - start).bit_length() - 1
        if start:
            height = min(height, (start & -start).bit_length() - 1)
        first, hashes = levels[height]
        pieces.append((height, hashes[(start >> height) - first]))
        start += 1 << height
    return pieces


def locate(events: bytes, leaves: list[bytes], held: list[bytes]) -> tuple[int, str, list[int]]:
    """The first line that differs from its recorded hash, what happened to it, and its bytes."""
    lines = events.split(b"\n")[:-1]
    both = min(len(leaves), len(held))
    at = next((i for i in range(both) if leaves[i] != held[i]), both)
    start = sum(len(line) + 1 for line in lines[:at])
    if at >= len(lines):
        return at, f"the events end here, {len(held) - at} too early", [start, len(events)]
    if at >= len(held):
        return at, f"{len(lines) - at} events too many", [start, len(events)]
    where, near = [start, start + len(lines[at])], slice(at + 1, at + 1000)
    flip = find_flip(b"\n".join(lines[at : at + 2]) + b"\n", held[at])
    if flip:
        return at, f"the event was changed: bit {flip[1]} of byte {start + flip[0]} is flipped", where
    moved, later = leaves[at] in held[near], held[at] in leaves[near]
    if moved and later:
        return at, "events have changed places from here on", where
    what = "an event was taken out here" if moved else "an event was put in here" if later else "the event was changed"
    return at, what, where


def find_flip(region: bytes, leaf: bytes) -> tuple[int, int] | None:
    """The one bit (byte, bit) whose flipping back gives the recorded hash of the first line, if there is one."""
    work = bytearray(region[:16384])
    for byte in range(len(work)):
        for bit in range(8):
            work[byte] ^= 1 << bit
            if sha256(b"\x00" + bytes(work[: work.find(b"\n")])).digest() == leaf:
                return byte, bit
            work[byte] ^= 1 << bit
    return None


def ids_from(ids: bytes, bound: bytes) -> set[bytes]:
    """Of a sorted list of ids those not below `bound`: usually a few at its end."""
    count = 256
    while len(parts := ids.rsplit(b"\n", count)) > count and parts[1] >= bound:
        count *= 8
    return {one for one in parts[len(parts) > count :] if one >= bound}


def ids_upto(ids: bytes, bound: bytes) -> set[bytes]:
    """Of a sorted list of ids those not above `bound`: usually a few at its beginning."""
    count = 256
    while len(parts := ids.split(b"\n", count)) > count and parts[-2] <= bound:
        count *= 8
    return {one for one in parts[: len(parts) - (len(parts) > count)] if one <= bound}


# ---------------------------------------------------------------- the pack


@dataclass
class Key:
    """A key of the log and the time (microseconds) during which it signed; `until` 0 is still."""

    public: bytes
    start: int
    until: int


class Pack:
    """One check of one pack, from the outside in: container, manifest, keys, checkpoints, events, proofs."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.path, self.options = path, options
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.places: dict[str, Place] = {}
        self.keys: list[Key] = []
        self.witnesses: dict[str, bytes] = {}
        self.checkpoints: list[Checkpoint] = []
        self.stack: list[Piece] = []
        self.ids: list[tuple[bytes, bytes]] = []  # of each segment: its last id, and all of them
        self.roots: dict[int, bytes] = {}  # what the events themselves lead to, by size

    def check(self) -> dict[str, Any]:
        """Everything; gives the report."""
        steps = (
            self.check_files,
            self.check_keys,
            self.check_checkpoints,
            self.check_events,
            self.check_proofs,
            self.check_evidence,
            self.check_known,
        )
        for step in steps:
            try:
                step()
            except Damage as damage:
                self.problems.append(damage.problem)
            except MALFORMED as error:
                self.add(
                    f"something is missing or not what it must be: {error}", file=step.__name__.removeprefix("check_")
                )
            if self.problems and (
                (step == self.check_files and not self.facts) or (step == self.check_keys and not self.keys)
            ):
                break
        return report(self.problems, self.notes, self.facts)

    def add(self, what: str, **where: Any) -> None:
        self.problems.append({"what": what, **where})

    def read(self, name: str) -> bytes:
        if name not in self.places:
            raise Damage("the file is missing", file=name)
        return load(self.places[name])[0]

    def check_files(self) -> None:
        """The container, and every file against the manifest (events are checked where they are read)."""
        self.places = open_folder(self.path) if self.path.is_dir() else open_zip(self.path)
        raw = self.read("manifest.json")
        self.manifest_digest, manifest = sha256(raw).hexdigest(), read_json(raw, "manifest.json")
        if manifest["format"] != FORMAT:
            raise Damage(f"this verifier reads {FORMAT}", file="manifest.json")
        self.files, self.last = dict(manifest["files"]), int(manifest["last"])
        self.origin, self.start, self.stop = str(manifest["origin"]), int(manifest["from"]), int(manifest["to"])
        self.facts = {"origin": self.origin, "from": self.start, "to": self.stop, "events": self.stop - self.start}
        own = {name for name in self.places if not name.startswith(ENCLOSED)}
        for name in sorted(set(self.files) ^ (own - {"manifest.json", "manifest.sig"})):
            self.add("the file is missing" if name in self.files else "the file is not in the manifest", file=name)
        for name in sorted(own - {n for n in self.files if n.startswith("events/")}):
            data, well = load(self.places[name])
            entry = self.files.get(name, {"bytes": len(data), "sha256": sha256(data).hexdigest()})
            if not well or len(data) != entry["bytes"] or sha256(data).hexdigest() != entry["sha256"]:
                self.add("the file is not the one in the manifest", file=name)

    def check_keys(self) -> None:
        """Every key since the log began: introduced by a checkpoint that it signed, as did the key before it."""
        keys: list[Key] = []
        for entry in read_json(self.read("keys.json"), "keys.json")["keys"]:
            key, note = Key(unb64(entry["public"]), entry["from"], entry["until"]), Checkpoint(entry["note"])
            where: Problem = {"file": "keys.json", "checkpoint": note.number}
            if (note.key, note.time, note.origin) != (key.public, key.start, self.origin):
                raise Damage("a key was introduced by a checkpoint that does not name it", **where)
            if not all(note.signed_by(self.origin, k.public) for k in [key, *keys[-1:]]):
                raise Damage("a key was introduced without the signatures of the new and the old key", **where)
            if (keys[-1].until if keys else note.number) != (key.start if keys else 1):
                raise Damage("the keys' times of validity leave a gap", **where)
            keys.append(key)
        if not keys or keys[-1].until:
            raise Damage("the newest key is missing", file="keys.json")
        self.keys = keys
        self.facts |= {"key": base64.b64encode(self.keys[-1].public).decode(), "pinned": bool(self.options.key)}
        if any(public not in [key.public for key in self.keys] for public in self.options.key):
            self.add("the log was never signed by the key you gave", file="keys.json")
        for entry in read_json(self.read("witnesses.json"), "witnesses.json")["witnesses"]:
            self.witnesses[entry["name"]] = unb64(entry["key"])
        self.witnesses |= self.options.witness
        self.check_manifest_signature()

    def check_manifest_signature(self) -> None:
        seal, text = (
            Note(self.read("manifest.sig").decode("utf-8")),
            f"{FORMAT}\n{self.origin}\n{self.manifest_digest}\n",
        )
        if seal.text != text or len(seal.signatures) != 1 or not seal.signed_by(self.origin, self.keys[-1].public):
            raise Damage(
                "the log's signature does not fit the manifest: one of the two was changed", file="manifest.sig"
            )

    def check_checkpoints(self) -> None:
        """Signatures, validity of keys, the chain from each to the next, sizes and times that only grow."""
        base = read_json(self.read("base.json"), "base.json")
        hashes = [bytes.fromhex(text) for text in base["hashes"]]
        heights = [h for h in range(self.start.bit_length() - 1, -1, -1) if self.start >> h & 1]
        if base["size"] != self.start or len(heights) != len(hashes) or any(len(h) != 32 for h in hashes):
            raise Damage("the hashes before the pack are not those of a tree of that size", file="base.json")
        self.stack = list(zip(heights, hashes, strict=True))
        before = Checkpoint(base["note"]) if self.start else None
        if before:
            self.check_signatures(before, {"file": "base.json", "checkpoint": before.number})
            if (before.size, before.root) != (self.start, root_of(self.stack)):
                raise Damage(
                    "the pack does not begin at the checkpoint before it", file="base.json", checkpoint=before.number
                )
            self.roots[self.start] = before.root
        for line, raw in enumerate(self.read("checkpoints.jsonl").split(b"\n")[:-1], 1):
            where = {"file": "checkpoints.jsonl", "line": line, "checkpoint": before.number + 1 if before else 1}
            try:
                note = Checkpoint(json.loads(raw.decode("utf-8")))
            except (*MALFORMED, RecursionError) as error:
                raise Damage("the checkpoint cannot be read", **where) from error
            self.check_signatures(note, where)
            if (note.number, note.previous) != ((before.number + 1, before.digest()) if before else (1, "-")):
                raise Damage("the checkpoint does not follow the one before it", **where)
            if before and (note.size <= before.size or note.time < before.time):
                raise Damage("the checkpoint is smaller or older than the one before it", **where)
            self.checkpoints.append(note)
            before = note
        self.facts["checkpoints"] = len(self.checkpoints)
        if not before or (before.size, before.number) != (self.stop, self.last):
            raise Damage("the checkpoints do not end where the manifest says", file="checkpoints.jsonl")

    def check_signatures(self, note: Checkpoint, where: Problem) -> None:
        """The log's own signature, by a key valid at that time; and that every other line is what it claims to be."""
        if note.origin != self.origin:
            raise Damage(f"this is a checkpoint of another log, {note.origin[:100]}", **where)
        valid = [k for k in self.keys if k.public == note.key and k.start <= note.time < (k.until or note.time + 1)]
        if not valid or not note.signed_by(self.origin, note.key):
            raise Damage("the checkpoint is not signed by the key that was valid then", **where)
        for name, key_hash, _ in note.signatures:
            own = [k.public for k in self.keys if name == self.origin and key_id(name, k.public, 1) == key_hash]
            if name in self.witnesses and note.signed_by(name, self.witnesses[name], 4):
                self.facts.setdefault("witnessed", {})[name] = note.size
            elif not own or not all(note.signed_by(name, public) for public in own):
                raise Damage(f"the signature by {name[:100]} is wrong or its key is not known", **where)

    def check_events(self) -> None:
        """Hash every line, build the tree, and compare its root at every checkpoint."""
        tasks = self.tasks()
        jobs = self.options.jobs or os.cpu_count() or 1
        if jobs > 1 and len(tasks) > 3:
            with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
                self.follow(tasks, pool.map(check_segment, tasks))
        else:
            self.follow(tasks, map(check_segment, tasks))

    def tasks(self) -> list[Task]:
        """One task a segment, in order, with no index left out and no file left over."""
        known = {note.size for note in self.options.known}
        cuts = sorted(
            {note.size for note in self.checkpoints} | {size for size in known if self.start < size < self.stop}
        )
        tenant, zone = (json.dumps(word, ensure_ascii=False).encode() for word in self.origin.split("/")[2:])
        marks = (b',"tenant":' + tenant + b',"verb":"', b',"zone":' + zone + b"}")
        tasks, start, done = [], self.start, 0
        while start < self.stop:
            stop, stem = min(self.stop, (start // SEGMENT + 1) * SEGMENT), f"events/{start:012d}"
            names = (stem + ".jsonl", stem + ".leaves")
            if not all(name in self.places and name in self.files for name in names):
                raise Damage(f"the events {start} to {stop - 1} are missing", file=names[0], event=start)
            first = done
            while done < len(cuts) and cuts[done] < stop:
                done += 1
            places, digests = [self.places[n] for n in names], [str(self.files[n]["sha256"]) for n in names]
            inside = [*cuts[first:done], stop]
            tasks.append(Task(start, stop, stem, (places[0], places[1]), (digests[0], digests[1]), inside, marks))
            start = stop
        used = {task.stem + end for task in tasks for end in (".jsonl", ".leaves")}
        for name in sorted(set(self.files) - used):
            if name.startswith("events/"):
                self.add("these events are not in the part of the log that the pack is about", file=name)
        return tasks

    def follow(self, tasks: list[Task], results: Iterable[Found]) -> None:
        """Put the segments together, in order."""
        notes, last = {note.size: note for note in self.checkpoints}, self.start
        for done, (task, found) in enumerate(zip(tasks, results, strict=True), 1):
            self.note_damage(task, found)
            self.note_ids(task, found)
            stack = self.stack
            for cut in task.cuts:
                stack = list(self.stack)
                for height, value in found.cuts.get(cut, ()):
                    push(stack, height, value)
                self.roots[cut] = root_of(stack) if cut in found.cuts else b""
                if cut in notes:
                    self.compare(notes[cut], task, found, last)
                    last = cut
            self.stack = stack
            progress(done, len(tasks), self.options.quiet)

    def compare(self, note: Checkpoint, task: Task, found: Found, last: int) -> None:
        """A checkpoint with what the events lead to."""
        first = task.start + found.damage[0] if found.damage else last
        where: Problem = {"checkpoint": note.number, "event": first, "file": task.stem + ".jsonl"}
        if self.roots[note.size] != note.root:
            self.add(f"the events {last} to {note.size - 1} do not lead to the root of this checkpoint", **where)
        if found.latest.get(note.size, 0) > note.time + CLOCK_SLACK_US:
            self.add("an event is younger than the checkpoint over it", **where)

    def note_damage(self, task: Task, found: Found) -> None:
        """What the segment itself showed."""
        name, held, must = task.stem + ".jsonl", task.stem + ".leaves", task.stop - task.start
        if found.damage and (not found.well[0] or found.well[1]):
            line, what, where = found.damage
            self.add(what, file=name, line=line + 1, event=task.start + line, bytes=where)
        for well, file in zip(found.well, (name, held), strict=True):
            if not well:
                self.add("the file is not the one in the manifest", file=file)
        if found.count != must or found.used != must:
            self.add(f"{found.count} events where {must} must be", file=name)
        if found.damage and all(found.well) and found.count == must:
            self.add("the lines and their recorded hashes differ", file=held)

    def note_ids(self, task: Task, found: Found) -> None:
        """No id twice. Ids begin with a time, so that a segment shares at most its edges with those before it."""
        first, last = found.ids[: found.ids.find(b"\n")], found.ids[found.ids.rfind(b"\n") + 1 :]
        twice = {found.twice} if found.twice else set()
        for before_last, before in self.ids:
            if before_last >= first:
                twice |= ids_from(before, first) & ids_upto(found.ids, before_last)
        self.ids.append((last, found.ids))
        if twice:
            events, one = load(task.places[0])[0], min(twice)
            line = events.count(b"\n", 0, events.rfind(one))
            where = {"file": task.stem + ".jsonl", "line": line + 1, "event": task.start + line}
            self.add(f"the id {one[:-1].decode(errors='replace')} occurs a second time", **where)

    def check_proofs(self) -> None:
        """The proofs that came along, against the signed roots."""
        proofs, roots = read_json(self.read("proofs.json"), "proofs.json"), {n.size: n.root for n in self.checkpoints}
        if self.start:
            roots[self.start] = self.roots[self.start]
        for proof in proofs["consistency"]:
            path, old, new = [bytes.fromhex(text) for text in proof["hashes"]], proof["old"], proof["new"]
            pair = roots_from_growth(old, new, roots.get(old, b""), path)
            if not pair or pair != (roots.get(old), roots.get(new)):
                self.add(f"the consistency proof from {old} to {new} is wrong", file="proofs.json")
        for proof in proofs["inclusion"]:
            path, index = [bytes.fromhex(text) for text in proof["hashes"]], proof["index"]
            root = root_from_inclusion(bytes.fromhex(proof["leaf"]), index, proof["size"], path)
            if not root or root != roots.get(proof["size"]):
                self.add(f"the inclusion proof of event {index} is wrong", file="proofs.json")

    def check_evidence(self) -> None:
        """What was put beside this part of the log: the files somebody vouched for in the log itself, and no other."""
        names = {name for name in self.places if name.startswith(ENCLOSED)}
        if not names:
            return
        raw, data = self.read("evidence.json"), self.read("evidence.proof.json")
        told, proof = read_json(raw, "evidence.json"), read_json(data, "evidence.proof.json")
        files = dict(told["files"])
        if told["log"] != self.manifest_digest:
            self.add("the evidence was made for another part of the log", file="evidence.json")
        for name in sorted(set(files) ^ (names - set(ENCLOSED))):
            self.add("the file is missing" if name in files else "nobody vouched for this file", file=name)
        for name in sorted(names):
            held, well = load(self.places[name])
            entry = files.get(name, {"bytes": len(held), "sha256": sha256(held).hexdigest()})
            if not well or len(held) != entry["bytes"] or sha256(held).hexdigest() != entry["sha256"]:
                self.add("the file is not the one that was vouched for", file=name)
        event, note = read_json(proof["event"].encode(), "evidence.proof.json"), Checkpoint(proof["note"])
        found = check_proof(data, Trust([key.public for key in self.keys]))
        self.problems += [problem | {"file": "evidence.proof.json"} for problem in found["problems"]]
        digest = f"sha256:{sha256(raw).hexdigest()}"
        if (event["verb"], event["body"]["digest"], note.origin) != ("audit.attest", digest, self.origin):
            self.add("the proof is about something else than this evidence", file="evidence.proof.json")
        if len({signature[1] for signature in note.signatures}) != len(note.signatures) or not all(
            any(Note(f"{note.text}\n{line}\n").signed_by(self.origin, key.public) for key in self.keys)
            for line in proof["note"].partition("\n\n")[2][:-1].split("\n")
        ):
            self.add("a signature under the proof is not the log's", file="evidence.proof.json")
        if json.dumps(proof, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() != data or (
            set(proof) != {"event", "format", "hashes", "index", "leaf", "note", "size"}
            or proof["format"] != "falaj-proof/1"
            or any(bytes.fromhex(text).hex() != text for text in proof["hashes"])
        ):
            self.add("the proof is not written in the one way it can be", file="evidence.proof.json")
        self.facts["evidence"] = {"about": told["about"], "by": event["actor"], "files": len(files)}

    def check_known(self) -> None:
        """What was seen earlier must still be so: the same root at that size, and no log that ends before it."""
        for note in self.options.known:
            if note.origin != self.origin or note.size < self.start:
                self.notes.append(
                    f"the known checkpoint {note.number} of {note.origin} is outside this pack: not compared"
                )
            elif note.size > self.stop:
                what = f"the log was rolled back: {note.size} events were seen before, the pack ends at {self.stop}"
                self.add(what, checkpoint=note.number)
            elif self.roots.get(note.size) != note.root:
                self.add(f"split view: another root was seen before at size {note.size}", checkpoint=note.number)
        for name in self.options.witness:
            if name not in self.facts.get("witnessed", {}):
                self.add(f"no checkpoint in the pack is cosigned by {name}", file="checkpoints.jsonl")


@dataclass
class Trust:
    """What the auditor holds by another way: keys of the log, and a pack of it whose roots are compared."""

    keys: list[bytes]
    log: Pack | None = None

    def check_checkpoint(self, note: Checkpoint) -> list[Problem]:
        """The checkpoint must be signed by the key it names, that key be trusted, and its root stand in the log."""
        problems: list[Problem] = []
        if not note.signed_by(note.origin, note.key) or (self.keys and note.key not in self.keys):
            problems.append({"what": "the checkpoint is not signed by the log's key", "checkpoint": note.number})
        log = self.log
        if log is not None and (
            note.origin != log.origin or (log.start < note.size <= log.stop and log.roots.get(note.size) != note.root)
        ):
            problems.append({"what": "the checkpoint is not in the log of this pack", "checkpoint": note.number})
        return problems


def read_trust(options: argparse.Namespace) -> Trust:
    """The keys given, those of the checkpoints seen earlier, and every key that the pack of the log introduces."""
    keys = list(options.key)
    keys += [note.key for note in options.known if note.signed_by(note.origin, note.key)]
    if options.log is None:
        return Trust(keys)
    if not options.log.exists():
        raise CannotCheck("there is no such file or folder")
    log = Pack(options.log, options)
    if not log.check()["ok"]:
        raise CannotCheck(f"the pack that --log names is damaged: {in_words(log.problems[0])}")
    return Trust([*keys, *(key.public for key in log.keys)], log)


def check_proof(data: bytes, trust: Trust) -> dict[str, Any]:
    """One event's proof: {event, index, size, leaf, hashes, note}, by trusted keys or else the key of its note."""
    problems: list[Problem] = []
    try:
        proof = read_json(data, "proof")
        note, path = Checkpoint(proof["note"]), [bytes.fromhex(text) for text in proof["hashes"]]
        leaf, index = sha256(b"\x00" + proof["event"].encode()).digest(), proof["index"]
        problems += trust.check_checkpoint(note)
        if proof["size"] != note.size or root_from_inclusion(leaf, index, note.size, path) != note.root:
            problems.append({"what": "the event is not in the log at that place", "event": index})
        if proof["leaf"] != leaf.hex():
            problems.append({"what": "the event is not the one that was proven", "event": index})
    except Damage as damage:
        return report([damage.problem], [], {})
    except MALFORMED as error:
        return report([{"what": f"something is missing or not what it must be: {error}", "file": "proof"}], [], {})
    key, pinned = base64.b64encode(note.key).decode(), bool(trust.keys)
    return report(problems, [], {
        "origin": note.origin, "events": 1, "checkpoints": 1, "key": key, "pinned": pinned, "kind": "proof",
    })  # fmt: skip


# ---------------------------------------------------------------- certificates and answers to access requests


def check_certificate(data: bytes, trust: Trust) -> dict[str, Any]:
    """An erasure certificate: its statement against its digest, signature, and the event that the proof proves."""
    name, problems = "certificate", list[Problem]()
    try:
        certificate = read_json(data, name)
        statement, digest = certificate["statement"].encode(), certificate["digest"]
        proof, public = certificate["proof"], unb64(certificate["key"])
        if f"sha256:{sha256(statement).hexdigest()}" != digest:
            problems.append({"what": "the statement is not the one that the digest names", "file": name})
        if not verify_ed25519(public, unb64(certificate["signature"]), statement):
            problems.append({"what": "the signature does not fit the statement", "file": name})
        if not isinstance(proof, dict):
            raise Damage("the proof is missing", file=name)
        checked = check_proof(json.dumps(proof).encode(), trust)
        problems += checked["problems"]
        event = read_json(str(proof["event"]).encode(), name)
        if (event["verb"], event["body"]["digest"]) != ("privacy.certify", digest):
            problems.append({"what": "the proven event is about something else than this statement", "file": name})
        state = read_json(statement, name).get("state", "")
        if certificate.get("state", state) != state or event["body"].get("state", state) != state:
            problems.append({"what": "the certificate's state is not the one in its statement", "file": name})
        problems += check_signer(public, Checkpoint(proof["note"]), trust, name)
    except Damage as damage:
        return report([damage.problem], [], {})
    except MALFORMED as error:
        return report([{"what": f"something is missing or not what it must be: {error}", "file": name}], [], {})
    facts = {key: checked[key] for key in ("origin", "events", "checkpoints", "key", "pinned") if key in checked}
    return report(problems, [], facts | {"kind": "certificate", "state": state})


def check_signer(public: bytes, note: Checkpoint, trust: Trust, name: str) -> list[Problem]:
    """A statement is signed by a trusted key; without one by the key of its checkpoint, which proves nothing yet."""
    if public in (trust.keys or [note.key]):
        return []
    what = (
        "the statement is not signed by a key you gave"
        if trust.keys
        else "the statement is signed by another key than its checkpoint: give the log's keys (--key, --log)"
    )
    return [{"what": what, "file": name}]


def check_answer(folder: Path, trust: Trust) -> dict[str, Any]:
    """An answer to an access request: every file against manifest.json, its signature, and the proof of its event."""
    problems, facts = list[Problem](), dict[str, Any]()
    try:
        raw = (folder / "manifest.json").read_bytes()
        files = dict(read_json(raw, "manifest.json")["files"])
        facts = {"kind": "answer", "files": len(files), "pinned": bool(trust.keys)}
        present = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
        own = {"manifest.json", "signature.json", "proof.json"}
        missing = (set(files) - set(present)) | (own - set(present))
        problems += [{"what": "the file is missing", "file": name} for name in sorted(missing)]
        extra = sorted(set(present) - own - set(files))
        problems += [{"what": "the file is not in the manifest", "file": name} for name in extra]
        for name in sorted(set(files) & set(present)):
            if f"sha256:{sha256(present[name].read_bytes()).hexdigest()}" != files[name]:
                problems.append({"what": "the file is not the one in the manifest", "file": name})
        if not missing & own:
            facts |= check_answer_proof(present, f"sha256:{sha256(raw).hexdigest()}", trust, problems)
    except Damage as damage:
        problems.append(damage.problem)
    except MALFORMED as error:
        problems.append({"what": f"something is missing or not what it must be: {error}", "file": "manifest.json"})
    return report(problems, [], facts)


def check_answer_proof(present: dict[str, Path], digest: str, trust: Trust, problems: list[Problem]) -> dict[str, Any]:
    """The signature beside an answer, and the proof that the log holds the event in which its manifest was signed."""
    data = present["proof.json"].read_bytes()
    signature = read_json(present["signature.json"].read_bytes(), "signature.json")
    public = unb64(signature["key"])
    if not verify_ed25519(public, unb64(signature["signature"]), digest.encode()):
        problems.append({"what": "the signature does not fit the manifest", "file": "signature.json"})
    checked = check_proof(data, trust)
    problems += checked["problems"]
    proof = read_json(data, "proof.json")
    event = read_json(str(proof["event"]).encode(), "proof.json")
    if (event["verb"], event["body"]["manifest"]) != ("privacy.sign", digest):
        problems.append({"what": "the proven event is about something else than this manifest", "file": "proof.json"})
    problems += check_signer(public, Checkpoint(proof["note"]), trust, "signature.json")
    return {key: checked[key] for key in ("origin", "events", "checkpoints", "key") if key in checked}


# ---------------------------------------------------------------- the report and the command


def report(problems: list[Problem], notes: list[str], facts: dict[str, Any]) -> dict[str, Any]:
    """The result. `first` is the earliest damaged event, else the earliest checkpoint, else the first file."""
    first = next(iter(problems), None)
    for kind in ("checkpoint", "event"):
        placed = [problem for problem in problems if kind in problem]
        first = min(placed, key=lambda p: (p[kind], "line" not in p)) if placed else first
    # A pack shows the log itself, with its key to compare; what is taken out of a log needs a key that is trusted.
    unproven = not problems and facts.get("kind") in ("proof", "certificate", "answer") and not facts["pinned"]
    ok = not problems and not unproven
    return {"ok": ok, "unproven": unproven, "first": first, "problems": problems, "notes": notes, **facts}


ARABIC = {
    "file": "الملف", "line": "السطر", "event": "الحدث", "checkpoint": "نقطة التحقق", "bytes": "البايتات",
    "OK: {} events under {} checkpoints of {}": "سليم: {} حدثًا تحت {} نقطة تحقق في السجل {}",
    "OK: certificate, proven by the log {}": "سليم: شهادة يُثبتها السجل {}",
    "OK: PARTIAL certificate (its statement lists what was not searched), proven by {}":
        "سليم: شهادة جزئية (يذكر بيانها ما لم يُبحث فيه) يُثبتها السجل {}",
    "the certificate's state is not the one in its statement": "حالة الشهادة غير المذكورة في بيانها",
    "OK: answer, {} files as they were signed, proven by the log {}":
        "سليم: رد على طلب اطلاع، وعدد ملفاته كما وُقّعت {}، يُثبته السجل {}",
    "OK: one event, proven by the log {}": "سليم: حدث واحد يُثبته السجل {}",
    "AUTHENTICITY UNPROVEN: nothing in it was changed, but no trusted key shows which log signed it":
        "الأصالة غير مثبتة: لم يتغيّر شيء من محتواه، لكن لا مفتاح موثوقًا يُثبت أي سجل وقّعه",
    "it names the key {} of the log {}": "يذكر المفتاح {} للسجل {}",
    "give the log's key (--key) or an evidence pack of the log (--log)":
        "أعطِ مفتاح السجل (--key) أو حزمة أدلة من السجل (--log)",
    "the key is the one of the pack that --log names: compare it with one you were given":
        "المفتاح هو مفتاح الحزمة المذكورة في --log: قارنه بمفتاح وصلك بطريق آخر",
    "the checkpoint is not in the log of this pack": "نقطة التحقق ليست في سجل هذه الحزمة",
    "the pack that --log names is damaged: {}": "الحزمة المذكورة في --log تالفة: {}",
    "usage: ": "الاستخدام: ", "options": "الخيارات", "what is checked": "ما يُتحقق منه",
    "Check a Falaj evidence pack, proof, certificate or access answer, offline.":
        "تتحقق دون اتصال بالشبكة من حزمة أدلة أو إثبات أو شهادة محو أو رد على طلب اطلاع من منصة فلج.",
    "Exit code: 0 intact, 1 damaged or untrue, 2 could not be checked or authenticity unproven.":
        "رمز الخروج: 0 سليم، 1 تالف أو غير صحيح، 2 تعذّر التحقق أو الأصالة غير مثبتة.",
    "a pack or an access answer (zip file or folder), a certificate, or a proof (JSON)":
        "حزمة أو رد على طلب اطلاع (ملف مضغوط أو مجلد) أو شهادة أو إثبات (JSON)",
    "a key of the log that you were given by another way": "مفتاح للسجل وصلك بطريق آخر",
    "an evidence pack of the log: its keys are trusted once it is checked":
        "حزمة أدلة من السجل: تُعتمد مفاتيحها بعد التحقق منها",
    "a checkpoint seen earlier or by a witness": "نقطة تحقق شوهدت من قبل أو عند شاهد",
    "demand this cosignature": "اشتراط هذا التوقيع المشارك",
    "how many processes; as many as there are cores when 0": "عدد العمليات المتوازية، وبعدد أنوية المعالج عند 0",
    "the language of help and report; that of LC_ALL or LANG when not given":
        "لغة المساعدة والتقرير، ولغة البيئة (LC_ALL أو LANG) إن لم تُذكر",
    "print the whole report as JSON": "طباعة التقرير كله بصيغة JSON",
    "no progress bar": "بلا شريط تقدّم",
    "show this help and exit": "عرض هذه المساعدة ثم الخروج",
    "DAMAGED: {}": "تالف: {}",
    "cannot check: {}": "تعذّر التحقق: {}",
    "with {} files of evidence ({}), vouched for by {}": "ومعه {} من ملفات الأدلة ({})، وشهد لها {}",
    "this is evidence, not certification": "هذه أدلة وليست شهادة امتثال",
    "witnessed by {} up to event {}": "شهد عليه {} حتى الحدث {}",
    "the log's key is {}": "مفتاح السجل هو {}",
    "compare it with what you were given by another way (--key)": "قارنه بما وصلك بطريق آخر (--key)",
    "note: {}": "ملاحظة: {}",
    "interrupted": "أوقفه المستخدم",
    "there is no such file or folder": "لا يوجد ملف أو مجلد بهذا الاسم",
    "this is not an evidence pack: neither a folder nor a zip file nor a proof":
        "ليس حزمة أدلة: لا مجلدًا ولا ملفًا مضغوطًا ولا إثباتًا",
    "the following arguments are required: {}": "ينقص ما يلي: {}",
    "unrecognized arguments: {}": "خيارات غير معروفة: {}",
    "an option cannot be read: {}": "تعذّرت قراءة أحد الخيارات: {}",
    "the file is missing": "الملف مفقود",
    "the file is not in the manifest": "الملف غير مذكور في البيان",
    "the file is not the one in the manifest": "الملف ليس هو المذكور في البيان",
    "this file does not belong to a pack": "هذا الملف لا ينتمي إلى الحزمة",
    "the zip file is cut off or its directory is damaged ({})": "الملف المضغوط مبتور أو فهرسه تالف ({})",
    "the zip header of this file is damaged": "ترويسة هذا الملف في الملف المضغوط تالفة",
    "the zip directory is damaged": "فهرس الملف المضغوط تالف",
    "this file cannot be read as JSON": "تعذّرت قراءة هذا الملف بصيغة JSON",
    "this file does not hold a JSON object": "لا يحتوي هذا الملف كائن JSON",
    "something is missing or not what it must be: {}": "شيء ناقص أو على غير ما يجب: {}",
    "this verifier reads {}": "تقرأ أداة التحقق هذه الصيغة {}",
    "a key was introduced by a checkpoint that does not name it": "أُدخل مفتاح بنقطة تحقق لا تذكره",
    "a key was introduced without the signatures of the new and the old key":
        "أُدخل مفتاح بغير توقيعي المفتاحين الجديد والقديم",
    "the keys' times of validity leave a gap": "في مدد صلاحية المفاتيح انقطاع",
    "the newest key is missing": "أحدث مفتاح مفقود",
    "the log was never signed by the key you gave": "لم يُوقَّع السجل قط بالمفتاح الذي أعطيته",
    "the log's signature does not fit the manifest: one of the two was changed":
        "توقيع السجل لا يطابق البيان: غُيّر أحدهما",
    "the hashes before the pack are not those of a tree of that size": "البصمات السابقة للحزمة ليست لشجرة بهذا الحجم",
    "the pack does not begin at the checkpoint before it": "لا تبدأ الحزمة عند نقطة التحقق السابقة لها",
    "the checkpoint cannot be read": "تعذّرت قراءة نقطة التحقق",
    "the checkpoint does not follow the one before it": "نقطة التحقق لا تلي ما قبلها",
    "the checkpoint is smaller or older than the one before it": "نقطة التحقق أصغر أو أقدم مما قبلها",
    "the checkpoints do not end where the manifest says": "لا تنتهي نقاط التحقق حيث يذكر البيان",
    "this is a checkpoint of another log, {}": "نقطة تحقق من سجل آخر، {}",
    "the checkpoint is not signed by the key that was valid then": "نقطة التحقق غير موقعة بالمفتاح الساري وقتها",
    "the signature by {} is wrong or its key is not known": "توقيع {} خاطئ أو مفتاحه غير معروف",
    "the events {} to {} are missing": "الأحداث من {} إلى {} مفقودة",
    "these events are not in the part of the log that the pack is about": "هذه الأحداث خارج جزء السجل الذي تخصه الحزمة",
    "the events {} to {} do not lead to the root of this checkpoint":
        "الأحداث من {} إلى {} لا تؤدي إلى جذر نقطة التحقق هذه",
    "an event is younger than the checkpoint over it": "حدث أحدث من نقطة التحقق التي تشمله",
    "{} events where {} must be": "{} حدثًا والواجب {}",
    "the lines and their recorded hashes differ": "الأسطر تخالف بصماتها المسجلة",
    "the id {} occurs a second time": "تكرر المعرّف {}",
    "this line is not an event of this log": "هذا السطر ليس حدثًا من هذا السجل",
    "the events end here, {} too early": "تنتهي الأحداث هنا قبل أوانها بعدد {}",
    "{} events too many": "أحداث زائدة عددها {}",
    "the event was changed: bit {} of byte {} is flipped": "غُيّر الحدث: انقلبت البت {} من البايت {}",
    "the event was changed": "غُيّر الحدث",
    "events have changed places from here on": "تبدلت مواضع الأحداث من هنا",
    "an event was taken out here": "حُذف حدث من هنا",
    "an event was put in here": "أُدخل حدث هنا",
    "the consistency proof from {} to {} is wrong": "إثبات الاتساق من {} إلى {} خاطئ",
    "the inclusion proof of event {} is wrong": "إثبات احتواء الحدث {} خاطئ",
    "the evidence was made for another part of the log": "أُعدّت الأدلة لجزء آخر من السجل",
    "nobody vouched for this file": "لم يشهد أحد لهذا الملف",
    "the file is not the one that was vouched for": "الملف ليس هو الذي شُهد له",
    "the proof is about something else than this evidence": "الإثبات عن شيء غير هذه الأدلة",
    "a signature under the proof is not the log's": "توقيع تحت الإثبات ليس توقيع السجل",
    "the proof is not written in the one way it can be": "لم يُكتب الإثبات بصيغته الوحيدة الجائزة",
    "the known checkpoint {} of {} is outside this pack: not compared":
        "نقطة التحقق المعروفة {} من {} خارج هذه الحزمة: لم تُقارن",
    "the log was rolled back: {} events were seen before, the pack ends at {}":
        "أُرجع السجل إلى الوراء: شوهد من قبل {} حدثًا، والحزمة تنتهي عند {}",
    "split view: another root was seen before at size {}": "سجلان مختلفان: شوهد من قبل جذر آخر عند الحجم {}",
    "no checkpoint in the pack is cosigned by {}": "لا نقطة تحقق في الحزمة عليها توقيع مشارك من {}",
    "the checkpoint is not signed by the log's key": "نقطة التحقق غير موقعة بمفتاح السجل",
    "the event is not in the log at that place": "ليس الحدث في السجل في ذلك الموضع",
    "the event is not the one that was proven": "ليس الحدث هو الذي أُثبت",
    "the statement is not the one that the digest names": "البيان الوارد ليس هو الذي تدل عليه البصمة",
    "the signature does not fit the statement": "التوقيع لا يطابق البيان",
    "the proof is missing": "الإثبات مفقود",
    "the proven event is about something else than this statement": "الحدث المُثبت عن شيء غير هذا البيان",
    "the statement is not signed by a key you gave": "البيان غير موقع بمفتاح أعطيته",
    "the statement is signed by another key than its checkpoint: give the log's keys (--key, --log)":
        "وُقّع البيان بمفتاح غير مفتاح نقطة تحققه: أعطِ مفاتيح السجل (--key أو --log)",
    "the signature does not fit the manifest": "التوقيع لا يطابق البيان",
    "the proven event is about something else than this manifest": "الحدث المُثبت عن شيء غير هذا البيان",
}  # fmt: skip


def translate(text: str, language: str) -> str:
    """A sentence of the report in a language; one that is not in the list stays English."""
    if language != "ar":
        return text
    if text in ARABIC:
        return ARABIC[text]
    for english, arabic in ARABIC.items():
        fits = "{}" in english and re.fullmatch(re.escape(english).replace(r"\{\}", "(.*?)"), text, re.DOTALL)
        if fits:
            return arabic.format(*(translate(part, language) for part in fits.groups()))
    return text


def in_words(problem: Problem, language: str = "en") -> str:
    """A problem as one line of text."""
    words = [word for word in ("file", "line", "event", "checkpoint") if word in problem]
    places = [f"{translate(word, language)} {problem[word]}" for word in words]
    places += ["{} {}-{}".format(translate("bytes", language), *problem["bytes"])] if "bytes" in problem else []
    return (
        ("، " if language == "ar" else ", ").join(places)
        + (": " if places else "")
        + translate(str(problem["what"]), language)
    )


def progress(done: int, total: int, quiet: bool) -> None:
    if not quiet and sys.stderr.isatty():
        bar = "#" * (30 * done // total)
        sys.stderr.write(f"\r[{bar:.<30}] {done}/{total} segments" + ("\n" if done == total else ""))
        sys.stderr.flush()


class HelpInLanguage(argparse.HelpFormatter):
    """Help whose own words are in the language of the report."""

    language = "en"

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, translate("usage: ", self.language) if prefix is None else prefix)


class HelpInArabic(HelpInLanguage):
    language = "ar"


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are reports as well: exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise CannotCheck(f"an option cannot be read: {message}")


REPEATED = {"action": "append", "default": []}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "--key": ("a key of the log that you were given by another way", {**REPEATED, "metavar": "KEY"}),
    "--log": (
        "an evidence pack of the log: its keys are trusted once it is checked",
        {"type": Path, "metavar": "PACK"},
    ),
    "--known": ("a checkpoint seen earlier or by a witness", {**REPEATED, "type": Path, "metavar": "FILE"}),
    "--witness": ("demand this cosignature", {**REPEATED, "metavar": "NAME:KEY"}),
    "--jobs": (
        "how many processes; as many as there are cores when 0",
        {"type": int, "default": 0, "metavar": "NUMBER"},
    ),
    "--lang": (
        "the language of help and report; that of LC_ALL or LANG when not given",
        {"choices": ("en", "ar")},
    ),
    "--json": ("print the whole report as JSON", {"action": "store_true"}),
    "--quiet": ("no progress bar", {"action": "store_true"}),
    "--help": ("show this help and exit", {"action": "help"}),
}


def make_parser(language: str) -> argparse.ArgumentParser:
    """The parser, with help in a language."""
    description = "Check a Falaj evidence pack, proof, certificate or access answer, offline."
    codes = "Exit code: 0 intact, 1 damaged or untrue, 2 could not be checked or authenticity unproven."
    what = "a pack or an access answer (zip file or folder), a certificate, or a proof (JSON)"
    parser = Parser(
        prog="falaj_verify.py", add_help=False, formatter_class=HelpInArabic if language == "ar" else HelpInLanguage,
        description=translate(description, language), epilog=translate(codes, language),
    )  # fmt: skip
    places = parser.add_argument_group(translate("what is checked", language))
    places.add_argument("pack", type=Path, metavar="FILE", help=translate(what, language))
    group = parser.add_argument_group(translate("options", language))
    for name, (text, more) in OPTIONS.items():
        names = ("-h", name) if name == "--help" else (name,)
        group.add_argument(*names, help=translate(text, language), **more)
    return parser


def choose_language(argv: list[str]) -> str:
    """`--lang` wherever it stands, else the language of the environment."""
    named = re.search(r"--lang[ =](en|ar)\b", " ".join(argv))
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return named[1] if named else "ar" if re.match(r"ar\b|ar_", locale) else "en"


def arguments(argv: list[str], language: str = "en") -> argparse.Namespace:
    options = make_parser(language).parse_args(argv)
    try:
        options.key = [unb64(text) for text in options.key]
        options.witness = {text.partition(":")[0]: unb64(text.partition(":")[2]) for text in options.witness}
        options.known = [Checkpoint(path.read_text(encoding="utf-8")) for path in options.known]
    except (ValueError, OSError) as error:
        raise CannotCheck(f"an option cannot be read: {error}") from error
    return options


def verify(options: argparse.Namespace) -> dict[str, Any]:
    """The report about what the options name."""
    path: Path = options.pack
    if not path.exists():
        raise CannotCheck("there is no such file or folder")
    certificate = path / "certificate.json" if path.is_dir() else path
    if path.name == "manifest.json" and (path.parent / "signature.json").is_file():
        path = path.parent
    if path.is_dir() and is_answer(path):
        return named_by_log(check_answer(path, read_trust(options)), options)
    if path.is_dir() and not (certificate.is_file() and not (path / "manifest.json").exists()):
        return Pack(path, options).check()
    with certificate.open("rb") as file:
        start = file.read(4)
    if start[:1] == b"{":
        data, trust = certificate.read_bytes(), read_trust(options)
        return named_by_log((check_certificate if b'"statement"' in data else check_proof)(data, trust), options)
    if not zipfile.is_zipfile(path) and start != b"PK\x03\x04":
        raise CannotCheck("this is not an evidence pack: neither a folder nor a zip file nor a proof")
    return Pack(path, options).check()


def named_by_log(found: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The report, with a note where nothing but the pack of `--log` showed the key."""
    if options.log is not None and not options.key and found["ok"]:
        found["notes"].append("the key is the one of the pack that --log names: compare it with one you were given")
    return found


def is_answer(folder: Path) -> bool:
    """True for a folder whose manifest answers a request; a pack's manifest has a signature in another file."""
    manifest = folder / "manifest.json"
    return manifest.is_file() and not (folder / "manifest.sig").exists() and b'"request"' in manifest.read_bytes()


def main(argv: list[str]) -> int:
    """The exit code: 0 intact, 1 damaged, 2 could not be checked, or by no trusted key. Never a traceback."""
    language = choose_language(argv)
    try:
        options = arguments(argv, language)
        found = verify(options)
        text = json.dumps(found, indent=1, ensure_ascii=False) if options.json else in_lines(found, language)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except CannotCheck as error:
        return give_up(translate(str(error), language), language)
    except UNFORESEEN as error:
        return give_up(f"{type(error).__name__}: {error}", language)
    except KeyboardInterrupt:
        return give_up(translate("interrupted", language), language)
    return 2 if found["unproven"] else 0 if found["ok"] else 1


def give_up(reason: str, language: str) -> int:
    """Say why nothing could be checked."""
    with contextlib.suppress(OSError):
        sys.stderr.write(translate(f"cannot check: {reason}", language) + "\n")
    return 2


def in_lines(found: dict[str, Any], language: str) -> str:
    """The report for people."""
    lines = [headline(found)]
    if found["first"]:
        lines = [f"DAMAGED: {in_words(found['first'], language)}"]
        lines += [f"  - {in_words(problem, language)}" for problem in found["problems"][:20]]
    if "evidence" in found:
        lines += ["  with {files} files of evidence ({about}), vouched for by {by}".format(**found["evidence"])]
        lines += ["  this is evidence, not certification"]
    lines += [f"  witnessed by {name} up to event {size}" for name, size in found.get("witnessed", {}).items()]
    if found["unproven"]:
        lines += [f"  it names the key {found['key']} of the log {found['origin']}"]
        lines += ["  give the log's key (--key) or an evidence pack of the log (--log)"]
    elif "key" in found and not found["pinned"]:
        lines += [f"  the log's key is {found['key']}", "  compare it with what you were given by another way (--key)"]
    lines += [f"  note: {text}" for text in found["notes"]]
    return "\n".join(
        line if line.startswith("  - ") else "  " * line.startswith("  ") + translate(line.strip(), language)
        for line in lines
    )


def headline(found: dict[str, Any]) -> str:
    """What was found intact, in one line."""
    if found["unproven"]:
        return "AUTHENTICITY UNPROVEN: nothing in it was changed, but no trusted key shows which log signed it"
    if found.get("kind") == "proof":
        return f"OK: one event, proven by the log {found.get('origin')}"
    if found.get("kind") == "certificate" and found.get("state") == "partial":
        return f"OK: PARTIAL certificate (its statement lists what was not searched), proven by {found.get('origin')}"
    if found.get("kind") == "certificate":
        return f"OK: certificate, proven by the log {found.get('origin')}"
    if found.get("kind") == "answer":
        return f"OK: answer, {found.get('files')} files as they were signed, proven by the log {found.get('origin')}"
    return f"OK: {found.get('events')} events under {found.get('checkpoints')} checkpoints of {found.get('origin')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
