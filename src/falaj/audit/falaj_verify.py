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

PACK_FORMAT = "falaj-evidence/1"
SEGMENT_EVENTS = 16384  # a segment ends where the index is a multiple of this, so that whole subtrees fit in it
BLOCK_BYTES = 65536  # so many bytes of lines are worked on at once: they stay in the processor's cache
MAX_LOG_SIZE = 2**63 - 1
CLOCK_SLACK_US = 60 * 1_000_000  # how far an event's clock may run ahead of the clock that signed
PACK_FILE_PATTERN = re.compile(
    r"(manifest|keys|witnesses|base|proofs)\.json|manifest\.sig|checkpoints\.jsonl|README\.txt|falaj_verify\.py"
    r"|events/[0-9]{12}\.(jsonl|leaves)|evidence(\.proof)?\.json|evidence/[a-z0-9][a-z0-9._-]{0,63}"
)
EVIDENCE_PREFIXES = ("evidence.json", "evidence.proof.json", "evidence/")  # what was put beside a log's part, by whom
EVENT_PATTERN = re.compile(rb'\{"actor":"(?:[^"\\]|\\.)*","at":([0-9]{1,20}),.*?\},"id":"([^"\\]+)","inputs":\[.*\}')
PackProblem = dict[str, Any]
FileLocation = tuple[str, int, int, int]  # path, offset, size, checksum (-1: none)
SubtreeHash = tuple[int, bytes]  # a perfect subtree: height, hash
MALFORMED_INPUT_ERRORS = (KeyError, TypeError, AttributeError, ValueError, IndexError)
# What a machine, a disk or an unforeseen file may raise: the check ends with exit code 2.
UNFORESEEN_ERRORS = (
    *MALFORMED_INPUT_ERRORS,
    ArithmeticError,
    AssertionError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class CannotCheckError(Exception):
    """There is nothing to check: no such file, or not a pack at all."""


class DamageError(Exception):
    """One thing that is not as it must be; `where` has file, line, event, bytes or checkpoint, as far as known."""

    def __init__(self, description: str, **location: Any) -> None:
        super().__init__(description)
        self.problem: PackProblem = {"what": description, **location}


# ---------------------------------------------------------------- Ed25519 (RFC 8032), verification only, strict

# Points are (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z on -x² + y² = 1 + dx²y². A table holds the multiples 1..15 of
# each power of 16 of a point as (Y-X, Y+X, 2Z, 2dT), so that a product is 64 additions and no doubling.
CurvePoint = tuple[int, int, int, int]
FIELD_PRIME = 2**255 - 19
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, FIELD_PRIME) % FIELD_PRIME
ROOT_OF_MINUS_ONE = pow(2, (FIELD_PRIME - 1) // 4, FIELD_PRIME)
IDENTITY_POINT: CurvePoint = (0, 1, 1, 0)
BASE_POINT = bytes([0x58] + [0x66] * 31)


@lru_cache(maxsize=1024)
def verify_ed25519(public: bytes, signature: bytes, message: bytes) -> bool:
    """True when `signature` is valid. Refuses every second encoding: S >= L, y >= p, and points of small order."""
    table = build_multiples_table(public) if len(public) == 32 else None
    if table is None or len(signature) != 64:
        return False
    scalar = int.from_bytes(signature[32:], "little")
    if scalar >= GROUP_ORDER:
        return False
    challenge = int.from_bytes(sha512(signature[:32] + public + message).digest(), "little") % GROUP_ORDER
    base = build_multiples_table(BASE_POINT) or []
    point = add_multiple(add_multiple(IDENTITY_POINT, base, scalar), table, (GROUP_ORDER - challenge) % GROUP_ORDER)
    return encode_point(point) == signature[:32] and not has_small_order(point)


@lru_cache(maxsize=64)
def build_multiples_table(encoded: bytes) -> list[list[CurvePoint]] | None:
    """The table of an encoded point; None for bytes that encode no point, or one of small order."""
    point = decode_point(encoded)
    if point is None or has_small_order(point):
        return None
    table = []
    for _ in range(64):
        row, multiple = [], point
        for _ in range(15):
            x, y, z, t = multiple
            row.append(
                ((y - x) % FIELD_PRIME, (y + x) % FIELD_PRIME, 2 * z % FIELD_PRIME, 2 * CURVE_D * t % FIELD_PRIME)
            )
            multiple = add_row(multiple, row[0])
        table.append(row)
        point = multiple
    return table


def add_multiple(point: CurvePoint, table: list[list[CurvePoint]], scalar: int) -> CurvePoint:
    """The point plus `scalar` times the table's point."""
    for row in table:
        digit = scalar & 15
        scalar >>= 4
        if digit:
            point = add_row(point, row[digit - 1])
    return point


def add_row(point: CurvePoint, row: CurvePoint) -> CurvePoint:
    """The sum of a point and an entry of a table; the formula holds for all points, equal ones too."""
    x, y, z, t = point
    a, b, c, d = (
        (y - x) * row[0] % FIELD_PRIME,
        (y + x) * row[1] % FIELD_PRIME,
        t * row[3] % FIELD_PRIME,
        z * row[2] % FIELD_PRIME,
    )
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % FIELD_PRIME, g * h % FIELD_PRIME, f * g % FIELD_PRIME, e * h % FIELD_PRIME


def has_small_order(point: CurvePoint) -> bool:
    """True for the eight points that eight times themselves are the identity."""
    for _ in range(3):
        x, y, z, t = point
        point = add_row(
            point, ((y - x) % FIELD_PRIME, (y + x) % FIELD_PRIME, 2 * z % FIELD_PRIME, 2 * CURVE_D * t % FIELD_PRIME)
        )
    return point[0] % FIELD_PRIME == 0 and (point[1] - point[2]) % FIELD_PRIME == 0


def decode_point(encoded: bytes) -> CurvePoint | None:
    """The point that 32 bytes encode in the one way it can be encoded, or None."""
    number = int.from_bytes(encoded, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= FIELD_PRIME:
        return None
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, FIELD_PRIME) % FIELD_PRIME
    x = pow(square, (FIELD_PRIME + 3) // 8, FIELD_PRIME)
    if (x * x - square) % FIELD_PRIME:
        x = x * ROOT_OF_MINUS_ONE % FIELD_PRIME
    if (x * x - square) % FIELD_PRIME or (x == 0 and sign):
        return None
    x = FIELD_PRIME - x if x & 1 != sign else x
    return x, y, 1, x * y % FIELD_PRIME


def encode_point(point: CurvePoint) -> bytes:
    """The 32 bytes of a point."""
    inverse = pow(point[2], -1, FIELD_PRIME)
    x, y = point[0] * inverse % FIELD_PRIME, point[1] * inverse % FIELD_PRIME
    return (y | (x & 1) << 255).to_bytes(32, "little")


# ---------------------------------------------------------------- the container: a folder or a zip file


def list_folder_files(path: Path) -> dict[str, FileLocation]:
    """Where each file of the pack is. Nothing else may lie in the folder."""
    locations: dict[str, FileLocation] = {}
    for full_path in sorted(path.rglob("*")):
        name = full_path.relative_to(path).as_posix()
        if full_path.is_symlink() or not (
            full_path.is_dir() or (full_path.is_file() and PACK_FILE_PATTERN.fullmatch(name))
        ):
            raise DamageError("this file does not belong to a pack", file=name)
        if full_path.is_file():
            locations[name] = (str(full_path), 0, full_path.stat().st_size, -1)
    return locations


def list_zip_files(path: Path) -> dict[str, FileLocation]:
    """The same for a zip file. Every byte must be the one that follows from names, sizes, checksums and contents."""
    locations: dict[str, FileLocation] = {}
    directory, offset = b"", 0
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, struct.error) as error:
        raise DamageError(f"the zip file is cut off or its directory is damaged ({error})", file="(zip)") from error
    with path.open("rb") as file:
        for entry in entries:
            name, crc, size = entry.filename, entry.CRC, entry.file_size
            if name in locations or not PACK_FILE_PATTERN.fullmatch(name):
                raise DamageError("this file does not belong to a pack", file=name[:100])
            raw_name, needs_zip64 = name.encode(), offset >= 0xFFFFFFFF
            local_header = (
                struct.pack("<IHHHHHIII2H", 0x04034B50, 20, 0, 0, 0, 0x21, crc, size, size, len(raw_name), 0) + raw_name
            )
            zip64_extra = struct.pack("<HHQ", 1, 8, offset) if needs_zip64 else b""
            version = 45 if needs_zip64 else 20
            directory += struct.pack("<I6H3I", 0x02014B50, 0x300 | version, version, 0, 0, 0, 0x21, crc, size, size)
            directory += struct.pack(
                "<5H2I", len(raw_name), len(zip64_extra), 0, 0, 0, 0o100644 << 16, min(offset, 0xFFFFFFFF)
            )
            directory += raw_name + zip64_extra
            file.seek(offset)
            if file.read(len(local_header)) != local_header:
                raise DamageError(
                    "the zip header of this file is damaged", file=name, bytes=[offset, offset + len(local_header)]
                )
            locations[name] = (str(path), offset + len(local_header), size, crc)
            offset += len(local_header) + size
        end_record = build_zip_end(len(entries), len(directory), offset)
        file.seek(offset)
        if file.read() != directory + end_record:
            raise DamageError(
                "the zip directory is damaged", file="(zip)", bytes=[offset, offset + len(directory + end_record)]
            )
    return locations


def build_zip_end(count: int, size: int, start: int) -> bytes:
    """The bytes that must end a zip file with such a directory."""
    zip64_end = b""
    if count >= 0xFFFF or max(size, start) >= 0xFFFFFFFF:
        zip64_end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
        zip64_end += struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
    count, size, start = min(count, 0xFFFF), min(size, 0xFFFFFFFF), min(start, 0xFFFFFFFF)
    return zip64_end + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, start, 0)


def load_file(location: FileLocation) -> tuple[bytes, bool]:
    """The bytes of one file of the pack, and whether size and checksum are those of the container."""
    path, offset, size, crc = location
    with Path(path).open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    return data, len(data) == size and (crc < 0 or zlib.crc32(data) == crc)


def read_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object, with no key twice."""

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise DamageError("this file cannot be read as JSON", file=name) from error
    if not isinstance(value, dict):
        raise DamageError("this file does not hold a JSON object", file=name)
    return value


# ---------------------------------------------------------------- signed notes


def decode_base64(text: str) -> bytes:
    """Bytes from canonical base64; ValueError for any other text."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("not canonical base64")
    return data


class SignedNote:
    """A signed note: its text, and its signatures as (name, four bytes naming the key, signature)."""

    def __init__(self, note: str) -> None:
        text, blank, lines = note.partition("\n\n")
        self.text = text + "\n"
        self.signatures: list[tuple[str, bytes, bytes]] = []
        if not blank or not lines.endswith("\n"):
            raise ValueError("not a signed note")
        for line in lines[:-1].split("\n"):
            marker, name, encoded = line.split(" ")
            decoded = decode_base64(encoded)
            if marker != "\u2014" or len(decoded) not in (68, 76):
                raise ValueError("not a signature line")
            self.signatures.append((name, decoded[:4], decoded[4:]))

    def signed_by(self, name: str, public: bytes, signature_type: int = 1) -> bool:
        """True when this Ed25519 key signed: the text itself (kind 1), or time and text as a witness does (kind 4)."""
        for signer, key_hash, signature in self.signatures:
            if signer == name and key_hash == compute_key_id(name, public, signature_type):
                timestamp_prefix = (
                    f"cosignature/v1\ntime {int.from_bytes(signature[:8], 'big')}\n" if signature_type == 4 else ""
                )
                return verify_ed25519(
                    public, signature[8:] if signature_type == 4 else signature, (timestamp_prefix + self.text).encode()
                )
        return False


def compute_key_id(name: str, public: bytes, signature_type: int) -> bytes:
    """The four bytes by which a note names a key."""
    return sha256(name.encode() + b"\n" + bytes([signature_type]) + public).digest()[:4]


class LogCheckpoint(SignedNote):
    """A checkpoint, read strictly: seven lines, every number written in the one way it can be written."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.origin, size, root, time, number, previous, key = self.text[:-1].split("\n")
        labelled_values = [line.split(" ") for line in (time, number, previous, key)]
        if [labelled_value[0] for labelled_value in labelled_values] != ["time", "number", "previous", "key"] or any(
            len(labelled) != 2 for labelled in labelled_values
        ):
            raise ValueError("not a checkpoint")
        self.size, self.time, self.number = (
            parse_plain_int(number_text) for number_text in (size, labelled_values[0][1], labelled_values[1][1])
        )
        self.root, self.previous, self.key = (
            decode_base64(root),
            labelled_values[2][1],
            decode_base64(labelled_values[3][1]),
        )
        if len(self.root) != 32 or len(self.key) != 32 or not 0 < self.size <= MAX_LOG_SIZE:
            raise ValueError("not a checkpoint")

    def digest(self) -> str:
        """What the next checkpoint quotes as `previous`."""
        return base64.b64encode(sha256(self.text.encode()).digest()).decode()


def parse_plain_int(text: str) -> int:
    """A number without sign, spaces or leading zeros."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,18}", text):
        raise ValueError("not a plain number")
    return int(text)


# ---------------------------------------------------------------- the tree


def hash_node(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return sha256(b"\x01" + left + right).digest()


def push_subtree(stack: list[SubtreeHash], height: int, value: bytes) -> None:
    """Add a perfect subtree on the right of a tree that is kept as its perfect subtrees."""
    while stack and stack[-1][0] == height:
        value, height = hash_node(stack.pop()[1], value), height + 1
    stack.append((height, value))


def compute_root(stack: list[SubtreeHash]) -> bytes:
    """The root of such a tree."""
    if not stack:
        return sha256(b"").digest()
    value = stack[-1][1]
    for _, left_hash in reversed(stack[:-1]):
        value = hash_node(left_hash, value)
    return value


def root_from_inclusion(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes | None:
    """The root that an inclusion proof leads to, or None when the proof has the wrong length."""
    if not 0 <= index < size <= MAX_LOG_SIZE or bool(path) != (size > 1):
        return None
    if size == 1:
        return leaf
    half = 1 << ((size - 1).bit_length() - 1)
    if index < half:
        inner = root_from_inclusion(leaf, index, half, path[:-1])
        return inner and hash_node(inner, path[-1])
    inner = root_from_inclusion(leaf, index - half, size - half, path[:-1])
    return inner and hash_node(path[-1], inner)


def roots_from_growth(
    old_size: int, new_size: int, root: bytes, path: list[bytes], is_old_complete: bool = True
) -> tuple[bytes, bytes] | None:
    """The (old, new) roots that a consistency proof leads to, or None when the proof has the wrong length."""
    if not 0 < old_size <= new_size <= MAX_LOG_SIZE:
        return None
    if old_size == new_size:
        old_roots = [root] if is_old_complete else path
        return (old_roots[0], old_roots[0]) if len(path) == (0 if is_old_complete else 1) else None
    if not path:
        return None
    half = 1 << ((new_size - 1).bit_length() - 1)
    if old_size <= half:
        inner = roots_from_growth(old_size, half, root, path[:-1], is_old_complete)
        return inner and (inner[0], hash_node(inner[1], path[-1]))
    inner = roots_from_growth(old_size - half, new_size - half, root, path[:-1], False)
    return inner and (hash_node(path[-1], inner[0]), hash_node(path[-1], inner[1]))


# ---------------------------------------------------------------- one segment of events (runs on every core)


@dataclass
class SegmentTask:
    """One segment: the events [start, stop), its files and their digests, and the sizes where a root must be known."""

    start: int
    stop: int
    stem: str
    places: tuple[FileLocation, FileLocation]
    digests: tuple[str, str]
    cuts: list[int]
    marks: tuple[bytes, bytes]


@dataclass
class SegmentResult:
    """What a segment turned out to be."""

    well: tuple[bool, bool]
    count: int
    used: int = 0
    damage: tuple[int, str, list[int]] | None = None
    ids: bytes = b""  # sorted, one a line
    twice: bytes = b""
    latest: dict[int, int] = field(default_factory=dict)
    cuts: dict[int, list[SubtreeHash]] = field(default_factory=dict)


@dataclass
class LineHashes:
    """What is read of the lines of a segment: their hashes, times and ids. `plain` False: read times and ids slowly."""

    leaves: list[bytes] = field(default_factory=list)
    times: list[bytes] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    plain: bool = True


def check_segment(task: SegmentTask) -> SegmentResult:
    """Hash the lines of one segment and build its subtrees up to each cut; note ids, times and damage."""
    (events, events_intact), (recorded_bytes, leaves_intact) = (load_file(location) for location in task.places)
    leaves_intact &= sha256(recorded_bytes).hexdigest() == task.digests[1]
    line_hashes = read_lines(events, task.marks)
    recorded, damage = line_hashes.leaves, None
    if events[-1:] != b"\n" or b"".join(line_hashes.leaves) != recorded_bytes:
        recorded = [recorded_bytes[i : i + 32] for i in range(0, len(recorded_bytes), 32)]
        damage = locate_difference(events, line_hashes.leaves, recorded)
    if damage or not leaves_intact:
        # Else every line has just been compared with its own recorded SHA-256, under a digest that the log has signed.
        events_intact &= sha256(events).hexdigest() == task.digests[0]
    result = SegmentResult((events_intact, leaves_intact), len(line_hashes.leaves), damage=damage)
    if not line_hashes.plain:
        read_lines_slowly(events, task.marks, line_hashes, result)
    # Where the lines are known to be damaged and their hashes are not, go on with the hashes: more damage is found.
    used_hashes = line_hashes.leaves if events_intact or not leaves_intact else recorded
    result.used, ids = len(used_hashes), sorted(line_hashes.ids)
    result.ids = b"\n".join(ids)
    if len(set(ids)) != len(ids):
        result.twice = next(duplicate for duplicate, next_id in itertools.pairwise(ids) if duplicate == next_id)
    levels, previous = build_levels(task.start, used_hashes), 0
    for cut in task.cuts:
        if cut <= task.start + len(used_hashes):
            result.cuts[cut] = cover_range(levels, task.start, cut)
        covered_times, previous = line_hashes.times[previous : cut - task.start], cut - task.start
        result.latest[cut] = int(max(covered_times, default=b"0"))
    return result


def read_lines(events: bytes, field_marks: tuple[bytes, bytes]) -> LineHashes:
    """Hash every line, and find its time and id without parsing JSON: a quote inside a JSON text is always escaped, so
    the first `","at":` ends the actor and the first `},"id":"` ends the body: they are the fields themselves."""
    line_hashes, start, end, (tenant, zone) = LineHashes(), 0, events.rfind(b"\n") + 1, field_marks
    while start < end:
        stop = events.find(b"\n", min(start + BLOCK_BYTES, end - 1))
        block = events[start:stop]
        lines = block.split(b"\n")
        line_hashes.leaves += [sha256(b"\x00" + line).digest() for line in lines]
        times = [line[(field_start := line.find(b'","at":') + 7) : field_start + 16] for line in lines]
        ids = [
            line[(field_start := line.find(b'},"id":"') + 8) : field_start + 33] for line in lines
        ]  # 32 characters and the end quote
        joined_times, joined_ids, count = b"".join(times), b"".join(ids), len(lines)
        is_plain = (
            len(joined_times) == 16 * count
            and joined_times.isdigit()
            and joined_ids[32::33] == b'"' * count == b'"' * joined_ids.count(b'"')
        )
        zone_matches = [line.endswith(zone) for line in lines]
        is_plain = is_plain and len(joined_ids) == 33 * count and block.count(tenant) == count and all(zone_matches)
        line_hashes.plain &= is_plain
        line_hashes.times += times
        line_hashes.ids += ids
        start = stop + 1
    return line_hashes


def read_lines_slowly(
    events: bytes, field_marks: tuple[bytes, bytes], line_hashes: LineHashes, result: SegmentResult
) -> None:
    """The same line by line, for clocks and ids of any length; the first that is no event of this log is damage."""
    offset, (tenant, zone) = 0, field_marks
    line_hashes.times, line_hashes.ids = [], []
    for number, line in enumerate(events.split(b"\n")[:-1]):
        event_match = EVENT_PATTERN.fullmatch(line)
        if not event_match or not line.endswith(zone) or tenant not in line:
            result.damage = result.damage or (
                number,
                "this line is not an event of this log",
                [offset, offset + len(line)],
            )
            return
        line_hashes.times.append(event_match[1].zfill(20))
        line_hashes.ids.append(event_match[2] + b'"')
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


def cover_range(levels: list[tuple[int, list[bytes]]], start: int, stop: int) -> list[SubtreeHash]:
    """[start, stop) as perfect subtrees, left to right."""
    subtrees = []
    while start < stop:
        height = (stop - start).bit_length() - 1
        if start:
            height = min(height, (start & -start).bit_length() - 1)
        first, hashes = levels[height]
        subtrees.append((height, hashes[(start >> height) - first]))
        start += 1 << height
    return subtrees


def locate_difference(events: bytes, leaves: list[bytes], recorded_hashes: list[bytes]) -> tuple[int, str, list[int]]:
    """The first line that differs from its recorded hash, what happened to it, and its bytes."""
    lines = events.split(b"\n")[:-1]
    shared_count = min(len(leaves), len(recorded_hashes))
    line_number = next((i for i in range(shared_count) if leaves[i] != recorded_hashes[i]), shared_count)
    start = sum(len(line) + 1 for line in lines[:line_number])
    if line_number >= len(lines):
        return line_number, f"the events end here, {len(recorded_hashes) - line_number} too early", [start, len(events)]
    if line_number >= len(recorded_hashes):
        return line_number, f"{len(lines) - line_number} events too many", [start, len(events)]
    byte_range, nearby = [start, start + len(lines[line_number])], slice(line_number + 1, line_number + 1000)
    flipped_bit = find_flipped_bit(
        b"\n".join(lines[line_number : line_number + 2]) + b"\n", recorded_hashes[line_number]
    )
    if flipped_bit:
        return (
            line_number,
            f"the event was changed: bit {flipped_bit[1]} of byte {start + flipped_bit[0]} is flipped",
            byte_range,
        )
    is_moved, occurs_later = (
        leaves[line_number] in recorded_hashes[nearby],
        recorded_hashes[line_number] in leaves[nearby],
    )
    if is_moved and occurs_later:
        return line_number, "events have changed places from here on", byte_range
    description = (
        "an event was taken out here"
        if is_moved
        else "an event was put in here"
        if occurs_later
        else "the event was changed"
    )
    return line_number, description, byte_range


def find_flipped_bit(region: bytes, leaf: bytes) -> tuple[int, int] | None:
    """The one bit (byte, bit) whose flipping back gives the recorded hash of the first line, if there is one."""
    trial_bytes = bytearray(region[:16384])
    for byte in range(len(trial_bytes)):
        for bit in range(8):
            trial_bytes[byte] ^= 1 << bit
            if sha256(b"\x00" + bytes(trial_bytes[: trial_bytes.find(b"\n")])).digest() == leaf:
                return byte, bit
            trial_bytes[byte] ^= 1 << bit
    return None


def list_ids_from(sorted_ids: bytes, lowest_id: bytes) -> set[bytes]:
    """Of a sorted list of ids those not below `lowest_id`: usually a few at its end."""
    count = 256
    while len(parts := sorted_ids.rsplit(b"\n", count)) > count and parts[1] >= lowest_id:
        count *= 8
    return {event_id for event_id in parts[len(parts) > count :] if event_id >= lowest_id}


def list_ids_up_to(sorted_ids: bytes, highest_id: bytes) -> set[bytes]:
    """Of a sorted list of ids those not above `highest_id`: usually a few at its beginning."""
    count = 256
    while len(parts := sorted_ids.split(b"\n", count)) > count and parts[-2] <= highest_id:
        count *= 8
    return {event_id for event_id in parts[: len(parts) - (len(parts) > count)] if event_id <= highest_id}


# ---------------------------------------------------------------- the pack


@dataclass
class LogKey:
    """A key of the log and the time (microseconds) during which it signed; `until` 0 is still."""

    public: bytes
    start: int
    until: int


class PackCheck:
    """One check of one pack, from the outside in: container, manifest, keys, checkpoints, events, proofs."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.path, self.options = path, options
        self.problems: list[PackProblem] = []
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}
        self.places: dict[str, FileLocation] = {}
        self.keys: list[LogKey] = []
        self.witnesses: dict[str, bytes] = {}
        self.checkpoints: list[LogCheckpoint] = []
        self.stack: list[SubtreeHash] = []
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
            except DamageError as damage:
                self.problems.append(damage.problem)
            except MALFORMED_INPUT_ERRORS as error:
                self.add(
                    f"something is missing or not what it must be: {error}", file=step.__name__.removeprefix("check_")
                )
            if self.problems and (
                (step == self.check_files and not self.facts) or (step == self.check_keys and not self.keys)
            ):
                break
        return build_report(self.problems, self.notes, self.facts)

    def add(self, description: str, **location: Any) -> None:
        self.problems.append({"what": description, **location})

    def read(self, name: str) -> bytes:
        if name not in self.places:
            raise DamageError("the file is missing", file=name)
        return load_file(self.places[name])[0]

    def check_files(self) -> None:
        """The container, and every file against the manifest (events are checked where they are read)."""
        self.places = list_folder_files(self.path) if self.path.is_dir() else list_zip_files(self.path)
        manifest_bytes = self.read("manifest.json")
        self.manifest_digest, manifest = sha256(manifest_bytes).hexdigest(), read_json(manifest_bytes, "manifest.json")
        if manifest["format"] != PACK_FORMAT:
            raise DamageError(f"this verifier reads {PACK_FORMAT}", file="manifest.json")
        self.files, self.last = dict(manifest["files"]), int(manifest["last"])
        self.origin, self.start, self.stop = str(manifest["origin"]), int(manifest["from"]), int(manifest["to"])
        self.facts = {"origin": self.origin, "from": self.start, "to": self.stop, "events": self.stop - self.start}
        log_file_names = {name for name in self.places if not name.startswith(EVIDENCE_PREFIXES)}
        for name in sorted(set(self.files) ^ (log_file_names - {"manifest.json", "manifest.sig"})):
            self.add("the file is missing" if name in self.files else "the file is not in the manifest", file=name)
        for name in sorted(log_file_names - {file_name for file_name in self.files if file_name.startswith("events/")}):
            data, is_intact = load_file(self.places[name])
            entry = self.files.get(name, {"bytes": len(data), "sha256": sha256(data).hexdigest()})
            if not is_intact or len(data) != entry["bytes"] or sha256(data).hexdigest() != entry["sha256"]:
                self.add("the file is not the one in the manifest", file=name)

    def check_keys(self) -> None:
        """Every key since the log began: introduced by a checkpoint that it signed, as did the key before it."""
        keys: list[LogKey] = []
        for entry in read_json(self.read("keys.json"), "keys.json")["keys"]:
            key, note = (
                LogKey(decode_base64(entry["public"]), entry["from"], entry["until"]),
                LogCheckpoint(entry["note"]),
            )
            location: PackProblem = {"file": "keys.json", "checkpoint": note.number}
            if (note.key, note.time, note.origin) != (key.public, key.start, self.origin):
                raise DamageError("a key was introduced by a checkpoint that does not name it", **location)
            if not all(note.signed_by(self.origin, log_key.public) for log_key in [key, *keys[-1:]]):
                raise DamageError("a key was introduced without the signatures of the new and the old key", **location)
            if (keys[-1].until if keys else note.number) != (key.start if keys else 1):
                raise DamageError("the keys' times of validity leave a gap", **location)
            keys.append(key)
        if not keys or keys[-1].until:
            raise DamageError("the newest key is missing", file="keys.json")
        self.keys = keys
        self.facts |= {"key": base64.b64encode(self.keys[-1].public).decode(), "pinned": bool(self.options.key)}
        if any(public not in [key.public for key in self.keys] for public in self.options.key):
            self.add("the log was never signed by the key you gave", file="keys.json")
        for entry in read_json(self.read("witnesses.json"), "witnesses.json")["witnesses"]:
            self.witnesses[entry["name"]] = decode_base64(entry["key"])
        self.witnesses |= self.options.witness
        self.check_manifest_signature()

    def check_manifest_signature(self) -> None:
        seal, text = (
            SignedNote(self.read("manifest.sig").decode("utf-8")),
            f"{PACK_FORMAT}\n{self.origin}\n{self.manifest_digest}\n",
        )
        if seal.text != text or len(seal.signatures) != 1 or not seal.signed_by(self.origin, self.keys[-1].public):
            raise DamageError(
                "the log's signature does not fit the manifest: one of the two was changed", file="manifest.sig"
            )

    def check_checkpoints(self) -> None:
        """Signatures, validity of keys, the chain from each to the next, sizes and times that only grow."""
        base = read_json(self.read("base.json"), "base.json")
        hashes = [bytes.fromhex(text) for text in base["hashes"]]
        heights = [
            height_or_hash
            for height_or_hash in range(self.start.bit_length() - 1, -1, -1)
            if self.start >> height_or_hash & 1
        ]
        if (
            base["size"] != self.start
            or len(heights) != len(hashes)
            or any(len(height_or_hash) != 32 for height_or_hash in hashes)
        ):
            raise DamageError("the hashes before the pack are not those of a tree of that size", file="base.json")
        self.stack = list(zip(heights, hashes, strict=True))
        previous = LogCheckpoint(base["note"]) if self.start else None
        if previous:
            self.check_signatures(previous, {"file": "base.json", "checkpoint": previous.number})
            if (previous.size, previous.root) != (self.start, compute_root(self.stack)):
                raise DamageError(
                    "the pack does not begin at the checkpoint before it", file="base.json", checkpoint=previous.number
                )
            self.roots[self.start] = previous.root
        for line, raw_line in enumerate(self.read("checkpoints.jsonl").split(b"\n")[:-1], 1):
            location = {"file": "checkpoints.jsonl", "line": line, "checkpoint": previous.number + 1 if previous else 1}
            try:
                note = LogCheckpoint(json.loads(raw_line.decode("utf-8")))
            except (*MALFORMED_INPUT_ERRORS, RecursionError) as error:
                raise DamageError("the checkpoint cannot be read", **location) from error
            self.check_signatures(note, location)
            if (note.number, note.previous) != ((previous.number + 1, previous.digest()) if previous else (1, "-")):
                raise DamageError("the checkpoint does not follow the one before it", **location)
            if previous and (note.size <= previous.size or note.time < previous.time):
                raise DamageError("the checkpoint is smaller or older than the one before it", **location)
            self.checkpoints.append(note)
            previous = note
        self.facts["checkpoints"] = len(self.checkpoints)
        if not previous or (previous.size, previous.number) != (self.stop, self.last):
            raise DamageError("the checkpoints do not end where the manifest says", file="checkpoints.jsonl")

    def check_signatures(self, note: LogCheckpoint, location: PackProblem) -> None:
        """The log's own signature, by a key valid at that time; and that every other line is what it claims to be."""
        if note.origin != self.origin:
            raise DamageError(f"this is a checkpoint of another log, {note.origin[:100]}", **location)
        valid_keys = [
            log_key
            for log_key in self.keys
            if log_key.public == note.key and log_key.start <= note.time < (log_key.until or note.time + 1)
        ]
        if not valid_keys or not note.signed_by(self.origin, note.key):
            raise DamageError("the checkpoint is not signed by the key that was valid then", **location)
        for name, key_hash, _ in note.signatures:
            own_keys = [
                log_key.public
                for log_key in self.keys
                if name == self.origin and compute_key_id(name, log_key.public, 1) == key_hash
            ]
            if name in self.witnesses and note.signed_by(name, self.witnesses[name], 4):
                self.facts.setdefault("witnessed", {})[name] = note.size
            elif not own_keys or not all(note.signed_by(name, public) for public in own_keys):
                raise DamageError(f"the signature by {name[:100]} is wrong or its key is not known", **location)

    def check_events(self) -> None:
        """Hash every line, build the tree, and compare its root at every checkpoint."""
        tasks = self.tasks()
        jobs = self.options.jobs or os.cpu_count() or 1
        if jobs > 1 and len(tasks) > 3:
            with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
                self.follow(tasks, pool.map(check_segment, tasks))
        else:
            self.follow(tasks, map(check_segment, tasks))

    def tasks(self) -> list[SegmentTask]:
        """One task a segment, in order, with no index left out and no file left over."""
        known_sizes = {note.size for note in self.options.known}
        cut_sizes = sorted(
            {note.size for note in self.checkpoints} | {size for size in known_sizes if self.start < size < self.stop}
        )
        tenant, zone = (
            json.dumps(origin_part, ensure_ascii=False).encode() for origin_part in self.origin.split("/")[2:]
        )
        field_marks = (b',"tenant":' + tenant + b',"verb":"', b',"zone":' + zone + b"}")
        tasks, start, cut_index = [], self.start, 0
        while start < self.stop:
            segment_stop, file_stem = (
                min(self.stop, (start // SEGMENT_EVENTS + 1) * SEGMENT_EVENTS),
                f"events/{start:012d}",
            )
            names = (file_stem + ".jsonl", file_stem + ".leaves")
            if not all(name in self.places and name in self.files for name in names):
                raise DamageError(f"the events {start} to {segment_stop - 1} are missing", file=names[0], event=start)
            first_cut = cut_index
            while cut_index < len(cut_sizes) and cut_sizes[cut_index] < segment_stop:
                cut_index += 1
            segment_locations, digests = (
                [self.places[segment_file] for segment_file in names],
                [str(self.files[segment_file]["sha256"]) for segment_file in names],
            )
            segment_cuts = [*cut_sizes[first_cut:cut_index], segment_stop]
            tasks.append(
                SegmentTask(
                    start,
                    segment_stop,
                    file_stem,
                    (segment_locations[0], segment_locations[1]),
                    (digests[0], digests[1]),
                    segment_cuts,
                    field_marks,
                )
            )
            start = segment_stop
        used_files = {task.stem + file_suffix for task in tasks for file_suffix in (".jsonl", ".leaves")}
        for name in sorted(set(self.files) - used_files):
            if name.startswith("events/"):
                self.add("these events are not in the part of the log that the pack is about", file=name)
        return tasks

    def follow(self, tasks: list[SegmentTask], results: Iterable[SegmentResult]) -> None:
        """Put the segments together, in order."""
        notes_by_size, last_size = {note.size: note for note in self.checkpoints}, self.start
        for done_count, (task, result) in enumerate(zip(tasks, results, strict=True), 1):
            self.note_damage(task, result)
            self.note_ids(task, result)
            trial_stack = self.stack
            for cut in task.cuts:
                trial_stack = list(self.stack)
                for height, value in result.cuts.get(cut, ()):
                    push_subtree(trial_stack, height, value)
                self.roots[cut] = compute_root(trial_stack) if cut in result.cuts else b""
                if cut in notes_by_size:
                    self.compare(notes_by_size[cut], task, result, last_size)
                    last_size = cut
            self.stack = trial_stack
            show_progress(done_count, len(tasks), self.options.quiet)

    def compare(self, note: LogCheckpoint, task: SegmentTask, result: SegmentResult, last_size: int) -> None:
        """A checkpoint with what the events lead to."""
        first_event = task.start + result.damage[0] if result.damage else last_size
        location: PackProblem = {"checkpoint": note.number, "event": first_event, "file": task.stem + ".jsonl"}
        if self.roots[note.size] != note.root:
            self.add(
                f"the events {last_size} to {note.size - 1} do not lead to the root of this checkpoint", **location
            )
        if result.latest.get(note.size, 0) > note.time + CLOCK_SLACK_US:
            self.add("an event is younger than the checkpoint over it", **location)

    def note_damage(self, task: SegmentTask, result: SegmentResult) -> None:
        """What the segment itself showed."""
        name, leaves_name, expected_count = task.stem + ".jsonl", task.stem + ".leaves", task.stop - task.start
        if result.damage and (not result.well[0] or result.well[1]):
            line, description, byte_range = result.damage
            self.add(description, file=name, line=line + 1, event=task.start + line, bytes=byte_range)
        for is_intact, file_name in zip(result.well, (name, leaves_name), strict=True):
            if not is_intact:
                self.add("the file is not the one in the manifest", file=file_name)
        if result.count != expected_count or result.used != expected_count:
            self.add(f"{result.count} events where {expected_count} must be", file=name)
        if result.damage and all(result.well) and result.count == expected_count:
            self.add("the lines and their recorded hashes differ", file=leaves_name)

    def note_ids(self, task: SegmentTask, result: SegmentResult) -> None:
        """No id twice. Ids begin with a time, so that a segment shares at most its edges with those before it."""
        first, last = result.ids[: result.ids.find(b"\n")], result.ids[result.ids.rfind(b"\n") + 1 :]
        duplicate_ids = {result.twice} if result.twice else set()
        for earlier_last_id, earlier_ids in self.ids:
            if earlier_last_id >= first:
                duplicate_ids |= list_ids_from(earlier_ids, first) & list_ids_up_to(result.ids, earlier_last_id)
        self.ids.append((last, result.ids))
        if duplicate_ids:
            events, duplicate = load_file(task.places[0])[0], min(duplicate_ids)
            line = events.count(b"\n", 0, events.rfind(duplicate))
            location = {"file": task.stem + ".jsonl", "line": line + 1, "event": task.start + line}
            self.add(f"the id {duplicate[:-1].decode(errors='replace')} occurs a second time", **location)

    def check_proofs(self) -> None:
        """The proofs that came along, against the signed roots."""
        proofs, roots = (
            read_json(self.read("proofs.json"), "proofs.json"),
            {checkpoint_note.size: checkpoint_note.root for checkpoint_note in self.checkpoints},
        )
        if self.start:
            roots[self.start] = self.roots[self.start]
        for proof in proofs["consistency"]:
            path, old_size, new_size = [bytes.fromhex(text) for text in proof["hashes"]], proof["old"], proof["new"]
            computed_roots = roots_from_growth(old_size, new_size, roots.get(old_size, b""), path)
            if not computed_roots or computed_roots != (roots.get(old_size), roots.get(new_size)):
                self.add(f"the consistency proof from {old_size} to {new_size} is wrong", file="proofs.json")
        for proof in proofs["inclusion"]:
            path, index = [bytes.fromhex(text) for text in proof["hashes"]], proof["index"]
            root = root_from_inclusion(bytes.fromhex(proof["leaf"]), index, proof["size"], path)
            if not root or root != roots.get(proof["size"]):
                self.add(f"the inclusion proof of event {index} is wrong", file="proofs.json")

    def check_evidence(self) -> None:
        """What was put beside this part of the log: the files somebody vouched for in the log itself, and no other."""
        names = {name for name in self.places if name.startswith(EVIDENCE_PREFIXES)}
        if not names:
            return
        manifest_bytes, data = self.read("evidence.json"), self.read("evidence.proof.json")
        evidence_manifest, proof = read_json(manifest_bytes, "evidence.json"), read_json(data, "evidence.proof.json")
        files = dict(evidence_manifest["files"])
        if evidence_manifest["log"] != self.manifest_digest:
            self.add("the evidence was made for another part of the log", file="evidence.json")
        for name in sorted(set(files) ^ (names - set(EVIDENCE_PREFIXES))):
            self.add("the file is missing" if name in files else "nobody vouched for this file", file=name)
        for name in sorted(names):
            file_bytes, is_intact = load_file(self.places[name])
            entry = files.get(name, {"bytes": len(file_bytes), "sha256": sha256(file_bytes).hexdigest()})
            if not is_intact or len(file_bytes) != entry["bytes"] or sha256(file_bytes).hexdigest() != entry["sha256"]:
                self.add("the file is not the one that was vouched for", file=name)
        event, note = read_json(proof["event"].encode(), "evidence.proof.json"), LogCheckpoint(proof["note"])
        proof_report = check_proof(data, TrustedKeys([key.public for key in self.keys]))
        self.problems += [problem | {"file": "evidence.proof.json"} for problem in proof_report["problems"]]
        digest = f"sha256:{sha256(manifest_bytes).hexdigest()}"
        if (event["verb"], event["body"]["digest"], note.origin) != ("audit.attest", digest, self.origin):
            self.add("the proof is about something else than this evidence", file="evidence.proof.json")
        if len({signature[1] for signature in note.signatures}) != len(note.signatures) or not all(
            any(SignedNote(f"{note.text}\n{line}\n").signed_by(self.origin, key.public) for key in self.keys)
            for line in proof["note"].partition("\n\n")[2][:-1].split("\n")
        ):
            self.add("a signature under the proof is not the log's", file="evidence.proof.json")
        if json.dumps(proof, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() != data or (
            set(proof) != {"event", "format", "hashes", "index", "leaf", "note", "size"}
            or proof["format"] != "falaj-proof/1"
            or any(bytes.fromhex(text).hex() != text for text in proof["hashes"])
        ):
            self.add("the proof is not written in the one way it can be", file="evidence.proof.json")
        self.facts["evidence"] = {"about": evidence_manifest["about"], "by": event["actor"], "files": len(files)}

    def check_known(self) -> None:
        """What was seen earlier must still be so: the same root at that size, and no log that ends before it."""
        for note in self.options.known:
            if note.origin != self.origin or note.size < self.start:
                self.notes.append(
                    f"the known checkpoint {note.number} of {note.origin} is outside this pack: not compared"
                )
            elif note.size > self.stop:
                description = (
                    f"the log was rolled back: {note.size} events were seen before, the pack ends at {self.stop}"
                )
                self.add(description, checkpoint=note.number)
            elif self.roots.get(note.size) != note.root:
                self.add(f"split view: another root was seen before at size {note.size}", checkpoint=note.number)
        for name in self.options.witness:
            if name not in self.facts.get("witnessed", {}):
                self.add(f"no checkpoint in the pack is cosigned by {name}", file="checkpoints.jsonl")


@dataclass
class TrustedKeys:
    """What the auditor holds by another way: keys of the log, and a pack of it whose roots are compared."""

    keys: list[bytes]
    log: PackCheck | None = None

    def check_checkpoint(self, note: LogCheckpoint) -> list[PackProblem]:
        """The checkpoint must be signed by the key it names, that key be trusted, and its root stand in the log."""
        problems: list[PackProblem] = []
        if not note.signed_by(note.origin, note.key) or (self.keys and note.key not in self.keys):
            problems.append({"what": "the checkpoint is not signed by the log's key", "checkpoint": note.number})
        log = self.log
        if log is not None and (
            note.origin != log.origin or (log.start < note.size <= log.stop and log.roots.get(note.size) != note.root)
        ):
            problems.append({"what": "the checkpoint is not in the log of this pack", "checkpoint": note.number})
        return problems


def read_trusted_keys(options: argparse.Namespace) -> TrustedKeys:
    """The keys given, those of the checkpoints seen earlier, and every key that the pack of the log introduces."""
    keys = list(options.key)
    keys += [note.key for note in options.known if note.signed_by(note.origin, note.key)]
    if options.log is None:
        return TrustedKeys(keys)
    if not options.log.exists():
        raise CannotCheckError("there is no such file or folder")
    log = PackCheck(options.log, options)
    if not log.check()["ok"]:
        raise CannotCheckError(f"the pack that --log names is damaged: {describe_problem(log.problems[0])}")
    return TrustedKeys([*keys, *(key.public for key in log.keys)], log)


def check_proof(data: bytes, trust: TrustedKeys) -> dict[str, Any]:
    """One event's proof: {event, index, size, leaf, hashes, note}, by trusted keys or else the key of its note."""
    problems: list[PackProblem] = []
    try:
        proof = read_json(data, "proof")
        note, path = LogCheckpoint(proof["note"]), [bytes.fromhex(text) for text in proof["hashes"]]
        leaf, index = sha256(b"\x00" + proof["event"].encode()).digest(), proof["index"]
        problems += trust.check_checkpoint(note)
        if proof["size"] != note.size or root_from_inclusion(leaf, index, note.size, path) != note.root:
            problems.append({"what": "the event is not in the log at that place", "event": index})
        if proof["leaf"] != leaf.hex():
            problems.append({"what": "the event is not the one that was proven", "event": index})
    except DamageError as damage:
        return build_report([damage.problem], [], {})
    except MALFORMED_INPUT_ERRORS as error:
        return build_report(
            [{"what": f"something is missing or not what it must be: {error}", "file": "proof"}], [], {}
        )
    key, pinned = base64.b64encode(note.key).decode(), bool(trust.keys)
    return build_report(
        problems,
        [],
        {
            "origin": note.origin,
            "events": 1,
            "checkpoints": 1,
            "key": key,
            "pinned": pinned,
            "kind": "proof",
        },
    )


# ---------------------------------------------------------------- certificates and answers to access requests


def check_certificate(data: bytes, trust: TrustedKeys) -> dict[str, Any]:
    """An erasure certificate: its statement against its digest, signature, and the event that the proof proves."""
    name, problems = "certificate", list[PackProblem]()
    try:
        certificate = read_json(data, name)
        statement, digest = certificate["statement"].encode(), certificate["digest"]
        proof, public = certificate["proof"], decode_base64(certificate["key"])
        if f"sha256:{sha256(statement).hexdigest()}" != digest:
            problems.append({"what": "the statement is not the one that the digest names", "file": name})
        if not verify_ed25519(public, decode_base64(certificate["signature"]), statement):
            problems.append({"what": "the signature does not fit the statement", "file": name})
        if not isinstance(proof, dict):
            raise DamageError("the proof is missing", file=name)
        proof_report = check_proof(json.dumps(proof).encode(), trust)
        problems += proof_report["problems"]
        event = read_json(str(proof["event"]).encode(), name)
        if (event["verb"], event["body"]["digest"]) != ("privacy.certify", digest):
            problems.append({"what": "the proven event is about something else than this statement", "file": name})
        state = read_json(statement, name).get("state", "")
        if certificate.get("state", state) != state or event["body"].get("state", state) != state:
            problems.append({"what": "the certificate's state is not the one in its statement", "file": name})
        problems += check_signer(public, LogCheckpoint(proof["note"]), trust, name)
    except DamageError as damage:
        return build_report([damage.problem], [], {})
    except MALFORMED_INPUT_ERRORS as error:
        return build_report([{"what": f"something is missing or not what it must be: {error}", "file": name}], [], {})
    facts = {
        key: proof_report[key] for key in ("origin", "events", "checkpoints", "key", "pinned") if key in proof_report
    }
    return build_report(problems, [], facts | {"kind": "certificate", "state": state})


def check_signer(public: bytes, note: LogCheckpoint, trust: TrustedKeys, name: str) -> list[PackProblem]:
    """A statement is signed by a trusted key; without one by the key of its checkpoint, which proves nothing yet."""
    if public in (trust.keys or [note.key]):
        return []
    description = (
        "the statement is not signed by a key you gave"
        if trust.keys
        else "the statement is signed by another key than its checkpoint: give the log's keys (--key, --log)"
    )
    return [{"what": description, "file": name}]


def check_answer(folder: Path, trust: TrustedKeys) -> dict[str, Any]:
    """An answer to an access request: every file against manifest.json, its signature, and the proof of its event."""
    problems, facts = list[PackProblem](), dict[str, Any]()
    try:
        manifest_bytes = (folder / "manifest.json").read_bytes()
        files = dict(read_json(manifest_bytes, "manifest.json")["files"])
        facts = {"kind": "answer", "files": len(files), "pinned": bool(trust.keys)}
        files_by_name = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
        signature_files = {"manifest.json", "signature.json", "proof.json"}
        missing = (set(files) - set(files_by_name)) | (signature_files - set(files_by_name))
        problems += [{"what": "the file is missing", "file": name} for name in sorted(missing)]
        extra_files = sorted(set(files_by_name) - signature_files - set(files))
        problems += [{"what": "the file is not in the manifest", "file": name} for name in extra_files]
        for name in sorted(set(files) & set(files_by_name)):
            if f"sha256:{sha256(files_by_name[name].read_bytes()).hexdigest()}" != files[name]:
                problems.append({"what": "the file is not the one in the manifest", "file": name})
        if not missing & signature_files:
            facts |= check_answer_proof(files_by_name, f"sha256:{sha256(manifest_bytes).hexdigest()}", trust, problems)
    except DamageError as damage:
        problems.append(damage.problem)
    except MALFORMED_INPUT_ERRORS as error:
        problems.append({"what": f"something is missing or not what it must be: {error}", "file": "manifest.json"})
    return build_report(problems, [], facts)


def check_answer_proof(
    files_by_name: dict[str, Path], digest: str, trust: TrustedKeys, problems: list[PackProblem]
) -> dict[str, Any]:
    """The signature beside an answer, and the proof that the log holds the event in which its manifest was signed."""
    data = files_by_name["proof.json"].read_bytes()
    signature = read_json(files_by_name["signature.json"].read_bytes(), "signature.json")
    public = decode_base64(signature["key"])
    if not verify_ed25519(public, decode_base64(signature["signature"]), digest.encode()):
        problems.append({"what": "the signature does not fit the manifest", "file": "signature.json"})
    proof_report = check_proof(data, trust)
    problems += proof_report["problems"]
    proof = read_json(data, "proof.json")
    event = read_json(str(proof["event"]).encode(), "proof.json")
    if (event["verb"], event["body"]["manifest"]) != ("privacy.sign", digest):
        problems.append({"what": "the proven event is about something else than this manifest", "file": "proof.json"})
    problems += check_signer(public, LogCheckpoint(proof["note"]), trust, "signature.json")
    return {key: proof_report[key] for key in ("origin", "events", "checkpoints", "key") if key in proof_report}


# ---------------------------------------------------------------- the report and the command


def build_report(problems: list[PackProblem], notes: list[str], facts: dict[str, Any]) -> dict[str, Any]:
    """The result. `first_problem` is the earliest damaged event, else the earliest checkpoint, else the first file."""
    first_problem = next(iter(problems), None)
    for location_kind in ("checkpoint", "event"):
        located_problems = [problem for problem in problems if location_kind in problem]
        first_problem = (
            min(located_problems, key=lambda problem_item: (problem_item[location_kind], "line" not in problem_item))
            if located_problems
            else first_problem
        )
    # A pack shows the log itself, with its key to compare; what is taken out of a log needs a key that is trusted.
    is_unproven = not problems and facts.get("kind") in ("proof", "certificate", "answer") and not facts["pinned"]
    is_ok = not problems and not is_unproven
    return {"ok": is_ok, "unproven": is_unproven, "first": first_problem, "problems": problems, "notes": notes, **facts}


ARABIC = {
    "file": "الملف",
    "line": "السطر",
    "event": "الحدث",
    "checkpoint": "نقطة التحقق",
    "bytes": "البايتات",
    "OK: {} events under {} checkpoints of {}": "سليم: {} حدثًا تحت {} نقطة تحقق في السجل {}",
    "OK: certificate, proven by the log {}": "سليم: شهادة يُثبتها السجل {}",
    "OK: PARTIAL certificate (its statement lists "
    "what was not searched), proven by {}": "سليم: شهادة جزئية (يذكر بيانها ما لم يُبحث فيه) يُثبتها السجل {}",
    "the certificate's state is not the one in its statement": "حالة الشهادة غير المذكورة في بيانها",
    "OK: answer, {} files as they were signed, proven by the log {}": "سليم: رد على طلب اطلاع، وعدد ملفاته "
    "كما وُقّعت {}، يُثبته السجل {}",
    "OK: one event, proven by the log {}": "سليم: حدث واحد يُثبته السجل {}",
    "AUTHENTICITY UNPROVEN: nothing in it was changed, "
    "but no trusted key shows which log signed it": "الأصالة غير مثبتة: لم يتغيّر شيء من محتواه، "
    "لكن لا مفتاح موثوقًا يُثبت أي سجل وقّعه",
    "it names the key {} of the log {}": "يذكر المفتاح {} للسجل {}",
    "give the log's key (--key) or an "
    "evidence pack of the log (--log)": "أعطِ مفتاح السجل (--key) أو حزمة أدلة من السجل (--log)",
    "the key is the one of the pack that --log names: "
    "compare it with one you were given": "المفتاح هو مفتاح الحزمة المذكورة في --log: قارنه بمفتاح وصلك بطريق آخر",
    "the checkpoint is not in the log of this pack": "نقطة التحقق ليست في سجل هذه الحزمة",
    "the pack that --log names is damaged: {}": "الحزمة المذكورة في --log تالفة: {}",
    "usage: ": "الاستخدام: ",
    "options": "الخيارات",
    "what is checked": "ما يُتحقق منه",
    "Check a Falaj evidence pack, proof, "
    "certificate or access answer, offline.": "تتحقق دون اتصال بالشبكة من حزمة أدلة أو إثبات أو "
    "شهادة محو أو رد على طلب اطلاع من منصة فلج.",
    "Exit code: 0 intact, 1 damaged or untrue, 2 could "
    "not be checked or authenticity unproven.": "رمز الخروج: 0 سليم، 1 تالف أو غير صحيح، 2 "
    "تعذّر التحقق أو الأصالة غير مثبتة.",
    "a pack or an access answer (zip file or folder), "
    "a certificate, or a proof (JSON)": "حزمة أو رد على طلب اطلاع (ملف مضغوط أو مجلد) أو شهادة أو إثبات (JSON)",
    "a key of the log that you were given by another way": "مفتاح للسجل وصلك بطريق آخر",
    "an evidence pack of the log: its keys "
    "are trusted once it is checked": "حزمة أدلة من السجل: تُعتمد مفاتيحها بعد التحقق منها",
    "a checkpoint seen earlier or by a witness": "نقطة تحقق شوهدت من قبل أو عند شاهد",
    "demand this cosignature": "اشتراط هذا التوقيع المشارك",
    "how many processes; as many as there are cores when 0": "عدد العمليات المتوازية، وبعدد أنوية المعالج عند 0",
    "the language of help and report; that "
    "of LC_ALL or LANG when not given": "لغة المساعدة والتقرير، ولغة البيئة (LC_ALL أو LANG) إن لم تُذكر",
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
    "this is not an evidence pack: neither a "
    "folder nor a zip file nor a proof": "ليس حزمة أدلة: لا مجلدًا ولا ملفًا مضغوطًا ولا إثباتًا",
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
    "a key was introduced without the "
    "signatures of the new and the old key": "أُدخل مفتاح بغير توقيعي المفتاحين الجديد والقديم",
    "the keys' times of validity leave a gap": "في مدد صلاحية المفاتيح انقطاع",
    "the newest key is missing": "أحدث مفتاح مفقود",
    "the log was never signed by the key you gave": "لم يُوقَّع السجل قط بالمفتاح الذي أعطيته",
    "the log's signature does not fit the "
    "manifest: one of the two was changed": "توقيع السجل لا يطابق البيان: غُيّر أحدهما",
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
    "the events {} to {} do not lead to "
    "the root of this checkpoint": "الأحداث من {} إلى {} لا تؤدي إلى جذر نقطة التحقق هذه",
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
    "the known checkpoint {} of {} is "
    "outside this pack: not compared": "نقطة التحقق المعروفة {} من {} خارج هذه الحزمة: لم تُقارن",
    "the log was rolled back: {} events were "
    "seen before, the pack ends at {}": "أُرجع السجل إلى الوراء: شوهد من قبل {} حدثًا، والحزمة تنتهي عند {}",
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
    "the statement is signed by another key than its "
    "checkpoint: give the log's keys (--key, --log)": "وُقّع البيان بمفتاح غير مفتاح نقطة تحققه: "
    "أعطِ مفاتيح السجل (--key أو --log)",
    "the signature does not fit the manifest": "التوقيع لا يطابق البيان",
    "the proven event is about something else than this manifest": "الحدث المُثبت عن شيء غير هذا البيان",
}


def translate_sentence(text: str, language: str) -> str:
    """A sentence of the report in a language; one that is not in the list stays English."""
    if language != "ar":
        return text
    if text in ARABIC:
        return ARABIC[text]
    for english, arabic in ARABIC.items():
        sentence_match = "{}" in english and re.fullmatch(re.escape(english).replace(r"\{\}", "(.*?)"), text, re.DOTALL)
        if sentence_match:
            return arabic.format(*(translate_sentence(part, language) for part in sentence_match.groups()))
    return text


def describe_problem(problem: PackProblem, language: str = "en") -> str:
    """A problem as one line of text."""
    location_fields = [
        location_field for location_field in ("file", "line", "event", "checkpoint") if location_field in problem
    ]
    location_texts = [
        f"{translate_sentence(location_field, language)} {problem[location_field]}"
        for location_field in location_fields
    ]
    location_texts += (
        ["{} {}-{}".format(translate_sentence("bytes", language), *problem["bytes"])] if "bytes" in problem else []
    )
    return (
        ("، " if language == "ar" else ", ").join(location_texts)
        + (": " if location_texts else "")
        + translate_sentence(str(problem["what"]), language)
    )


def show_progress(done_count: int, total: int, is_quiet: bool) -> None:
    if not is_quiet and sys.stderr.isatty():
        progress_bar = "#" * (30 * done_count // total)
        sys.stderr.write(
            f"\r[{progress_bar:.<30}] {done_count}/{total} segments" + ("\n" if done_count == total else "")
        )
        sys.stderr.flush()


class TranslatedHelp(argparse.HelpFormatter):
    """Help whose own words are in the language of the report."""

    language = "en"

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(
            usage, actions, groups, translate_sentence("usage: ", self.language) if prefix is None else prefix
        )


class ArabicHelp(TranslatedHelp):
    language = "ar"


class ReportingParser(argparse.ArgumentParser):
    """A parser whose refusals are reports as well: exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise CannotCheckError(f"an option cannot be read: {message}")


REPEATED_OPTION = {"action": "append", "default": []}
OPTION_DEFINITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "--key": ("a key of the log that you were given by another way", {**REPEATED_OPTION, "metavar": "KEY"}),
    "--log": (
        "an evidence pack of the log: its keys are trusted once it is checked",
        {"type": Path, "metavar": "PACK"},
    ),
    "--known": ("a checkpoint seen earlier or by a witness", {**REPEATED_OPTION, "type": Path, "metavar": "FILE"}),
    "--witness": ("demand this cosignature", {**REPEATED_OPTION, "metavar": "NAME:KEY"}),
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
    exit_code_text = "Exit code: 0 intact, 1 damaged or untrue, 2 could not be checked or authenticity unproven."
    pack_help = "a pack or an access answer (zip file or folder), a certificate, or a proof (JSON)"
    parser = ReportingParser(
        prog="falaj_verify.py",
        add_help=False,
        formatter_class=ArabicHelp if language == "ar" else TranslatedHelp,
        description=translate_sentence(description, language),
        epilog=translate_sentence(exit_code_text, language),
    )
    pack_group = parser.add_argument_group(translate_sentence("what is checked", language))
    pack_group.add_argument("pack", type=Path, metavar="FILE", help=translate_sentence(pack_help, language))
    option_group = parser.add_argument_group(translate_sentence("options", language))
    for name, (help_text, argument_options) in OPTION_DEFINITIONS.items():
        names = ("-h", name) if name == "--help" else (name,)
        option_group.add_argument(*names, help=translate_sentence(help_text, language), **argument_options)
    return parser


def choose_language(argv: list[str]) -> str:
    """`--lang` wherever it stands, else the language of the environment."""
    language_match = re.search(r"--lang[ =](en|ar)\b", " ".join(argv))
    locale_name = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return language_match[1] if language_match else "ar" if re.match(r"ar\b|ar_", locale_name) else "en"


def parse_arguments(argv: list[str], language: str = "en") -> argparse.Namespace:
    options = make_parser(language).parse_args(argv)
    try:
        options.key = [decode_base64(text) for text in options.key]
        options.witness = {text.partition(":")[0]: decode_base64(text.partition(":")[2]) for text in options.witness}
        options.known = [LogCheckpoint(path.read_text(encoding="utf-8")) for path in options.known]
    except (ValueError, OSError) as error:
        raise CannotCheckError(f"an option cannot be read: {error}") from error
    return options


def verify_path(options: argparse.Namespace) -> dict[str, Any]:
    """The report about what the options name."""
    path: Path = options.pack
    if not path.exists():
        raise CannotCheckError("there is no such file or folder")
    certificate = path / "certificate.json" if path.is_dir() else path
    if path.name == "manifest.json" and (path.parent / "signature.json").is_file():
        path = path.parent
    if path.is_dir() and is_access_answer(path):
        return note_untrusted_key(check_answer(path, read_trusted_keys(options)), options)
    if path.is_dir() and not (certificate.is_file() and not (path / "manifest.json").exists()):
        return PackCheck(path, options).check()
    with certificate.open("rb") as file:
        first_bytes = file.read(4)
    if first_bytes[:1] == b"{":
        data, trust = certificate.read_bytes(), read_trusted_keys(options)
        return note_untrusted_key((check_certificate if b'"statement"' in data else check_proof)(data, trust), options)
    if not zipfile.is_zipfile(path) and first_bytes != b"PK\x03\x04":
        raise CannotCheckError("this is not an evidence pack: neither a folder nor a zip file nor a proof")
    return PackCheck(path, options).check()


def note_untrusted_key(pack_report: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The report, with a note where nothing but the pack of `--log` showed the key."""
    if options.log is not None and not options.key and pack_report["ok"]:
        pack_report["notes"].append(
            "the key is the one of the pack that --log names: compare it with one you were given"
        )
    return pack_report


def is_access_answer(folder: Path) -> bool:
    """True for a folder whose manifest answers a request; a pack's manifest has a signature in another file."""
    manifest = folder / "manifest.json"
    return manifest.is_file() and not (folder / "manifest.sig").exists() and b'"request"' in manifest.read_bytes()


def main(argv: list[str]) -> int:
    """The exit code: 0 intact, 1 damaged, 2 could not be checked, or by no trusted key. Never a traceback."""
    language = choose_language(argv)
    try:
        options = parse_arguments(argv, language)
        pack_report = verify_path(options)
        text = (
            json.dumps(pack_report, indent=1, ensure_ascii=False)
            if options.json
            else format_report(pack_report, language)
        )
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except CannotCheckError as error:
        return report_cannot_check(translate_sentence(str(error), language), language)
    except UNFORESEEN_ERRORS as error:
        return report_cannot_check(f"{type(error).__name__}: {error}", language)
    except KeyboardInterrupt:
        return report_cannot_check(translate_sentence("interrupted", language), language)
    return 2 if pack_report["unproven"] else 0 if pack_report["ok"] else 1


def report_cannot_check(reason: str, language: str) -> int:
    """Say why nothing could be checked."""
    with contextlib.suppress(OSError):
        sys.stderr.write(translate_sentence(f"cannot check: {reason}", language) + "\n")
    return 2


def format_report(pack_report: dict[str, Any], language: str) -> str:
    """The report for people."""
    lines = [format_headline(pack_report)]
    if pack_report["first"]:
        lines = [f"DAMAGED: {describe_problem(pack_report['first'], language)}"]
        lines += [f"  - {describe_problem(problem, language)}" for problem in pack_report["problems"][:20]]
    if "evidence" in pack_report:
        lines += ["  with {files} files of evidence ({about}), vouched for by {by}".format(**pack_report["evidence"])]
        lines += ["  this is evidence, not certification"]
    lines += [f"  witnessed by {name} up to event {size}" for name, size in pack_report.get("witnessed", {}).items()]
    if pack_report["unproven"]:
        lines += [f"  it names the key {pack_report['key']} of the log {pack_report['origin']}"]
        lines += ["  give the log's key (--key) or an evidence pack of the log (--log)"]
    elif "key" in pack_report and not pack_report["pinned"]:
        lines += [
            f"  the log's key is {pack_report['key']}",
            "  compare it with what you were given by another way (--key)",
        ]
    lines += [f"  note: {text}" for text in pack_report["notes"]]
    return "\n".join(
        line if line.startswith("  - ") else "  " * line.startswith("  ") + translate_sentence(line.strip(), language)
        for line in lines
    )


def format_headline(pack_report: dict[str, Any]) -> str:
    """What was found intact, in one line."""
    if pack_report["unproven"]:
        return "AUTHENTICITY UNPROVEN: nothing in it was changed, but no trusted key shows which log signed it"
    if pack_report.get("kind") == "proof":
        return f"OK: one event, proven by the log {pack_report.get('origin')}"
    if pack_report.get("kind") == "certificate" and pack_report.get("state") == "partial":
        return (
            "OK: PARTIAL certificate (its statement lists what was not "
            f"searched), proven by {pack_report.get('origin')}"
        )
    if pack_report.get("kind") == "certificate":
        return f"OK: certificate, proven by the log {pack_report.get('origin')}"
    if pack_report.get("kind") == "answer":
        return (
            f"OK: answer, {pack_report.get('files')} files as they were "
            f"signed, proven by the log {pack_report.get('origin')}"
        )
    return (
        f"OK: {pack_report.get('events')} events under {pack_report.get('checkpoints')} "
        f"checkpoints of {pack_report.get('origin')}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
