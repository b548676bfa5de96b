#!/usr/bin/env python3
"""falaj_verify: check a Falaj evidence pack (or one proof) on any machine, with no network and no other part of Falaj.

    python falaj_verify.py pack.zip                         a pack, as a zip file or as a folder
    python falaj_verify.py pack.zip --key <public key>      ... and that it is signed by the log whose key you were given
    python falaj_verify.py pack.zip --known checkpoint.txt  ... and that nothing you saw earlier was taken back
    python falaj_verify.py proof.json --key <public key>    the proof of a single event

Needs Python 3.9 or newer and the package `cryptography`. Exit code: 0 all is well, 1 something is damaged or untrue (the
report says where), 2 the check could not be made.

What is in a pack (every number is an event's index in the log, counted from 0):

    manifest.json            the SHA-256 of every file, and which part of which log this is
    manifest.sig             the log's signature over the SHA-256 of manifest.json
    keys.json                every key the log ever had; each new key was introduced by a checkpoint signed by the old one too
    witnesses.json           the keys of the witnesses
    base.json                where the pack starts: the checkpoint before it, and the hashes of the tree up to there
    events/<first>.jsonl     the events, one a line, exactly the bytes that were hashed
    events/<first>.leaves    the hashes of those events, 32 bytes each: they show which line is the damaged one
    checkpoints.jsonl        the signed checkpoints, oldest first
    proofs.json              consistency and inclusion proofs
    README.txt, falaj_verify.py

How events become one hash (RFC 6962): leaf = SHA-256(0x00 || line), node = SHA-256(0x01 || left || right); a tree of n leaves
has the largest power of two below n on its left. A checkpoint is a C2SP signed note: origin, size, root, then the lines
`time` (microseconds), `number`, `previous` (SHA-256 of the previous text), `key` (the key that signs), then signatures.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import json
import os
import re
import struct
import sys
import zlib
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FORMAT, PROOF_FORMAT = "falaj-evidence/1", "falaj-proof/1"
SEGMENT = 16384  # a segment file ends where the index is a multiple of this, so that whole subtrees fit in it
MAX_SIZE = 2**63 - 1
CLOCK_SLACK_US = 60 * 1_000_000  # how far an event's clock may run ahead of the clock that signed
NAME = re.compile(r"(?:manifest\.json|manifest\.sig|keys\.json|witnesses\.json|base\.json|checkpoints\.jsonl|proofs\.json|README\.txt"
                  r"|falaj_verify\.py|events/[0-9]{12}\.(?:jsonl|leaves))")


class CannotCheck(Exception):
    """There is nothing to check: no such file, or not a pack at all."""


class Damage(Exception):
    """One thing that is not as it must be. `where` has file, line, event, byte range or checkpoint, as far as they are known."""

    def __init__(self, what, **where):
        super().__init__(what)
        self.what, self.where = what, where


# ---------------------------------------------------------------- the report


class Report:
    """Collects what is wrong and what is known; `first` is the most exact place found."""

    def __init__(self):
        self.problems, self.notes, self.facts = [], [], {}

    def add(self, what, **where):
        self.problems.append({"what": what, **where})

    def first(self):
        """The earliest damaged event, else the earliest checkpoint, else the first file."""
        for kind in ("event", "checkpoint"):
            placed = [p for p in self.problems if kind in p]
            if placed:
                return min(placed, key=lambda p: (p[kind], "line" not in p))
        return self.problems[0] if self.problems else None

    def result(self):
        return {"ok": not self.problems, "first": self.first(), "problems": self.problems, "notes": self.notes, **self.facts}


def in_words(problem):
    """A problem as one line of text."""
    places = [f"{word} {problem[word]}" for word in ("file", "line", "event", "checkpoint") if word in problem]
    if "bytes" in problem:
        places.append("bytes {}-{}".format(*problem["bytes"]))
    return ", ".join(places) + (": " if places else "") + problem["what"]


# ---------------------------------------------------------------- the container: folder or zip


class Folder:
    """A pack as a folder."""

    def __init__(self, path, report):
        self.places = {}
        for parent, folders, files in os.walk(path):
            for name in files + [f for f in folders if os.path.islink(os.path.join(parent, f))]:
                full = os.path.join(parent, name)
                short = os.path.relpath(full, path).replace(os.sep, "/")
                if NAME.fullmatch(short) and os.path.isfile(full) and not os.path.islink(full):
                    self.places[short] = (full, 0, os.path.getsize(full))
                else:
                    report.add("this file does not belong to a pack", file=short)


class Zip:
    """A pack as a zip file. Every byte of it is accounted for: files stored as they are, one after another, nothing between."""

    def __init__(self, path, report):
        self.places = {}
        self.size = os.path.getsize(path)
        with open(path, "rb") as file:
            self.file = file
            if self._at(0, 4) != b"PK\x03\x04":
                raise CannotCheck("this is not an evidence pack: neither a folder nor a zip file")
            try:
                count, start, size = self._end()
                directory = self._at(start, size)
                self._walk(path, count, start, directory)
            except (struct.error, IndexError, UnicodeDecodeError) as error:
                raise Damage("the zip file is cut off or its structure is damaged", file=os.path.basename(path)) from error

    def _at(self, offset, length):
        self.file.seek(offset)
        return self.file.read(length)

    def _end(self):
        """The end record: how many files, where the directory starts and how long it is."""
        tail = self._at(max(0, self.size - 22), 22)
        count, size, start = struct.unpack("<8xH2xII2x", tail) if len(tail) == 22 else (0, 0, 0)
        count = struct.unpack("<H", tail[8:10])[0] if len(tail) == 22 else 0
        expect, ends = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, start, 0), self.size - 22
        if tail != expect:
            raise Damage("the zip file is cut off or has bytes added at its end", file="(zip)", bytes=[max(0, ends), self.size])
        if 0xFFFFFFFF in (size, start) or count == 0xFFFF:
            wide = self._at(ends - 76, 76)
            count, size, start = struct.unpack("<32xQQQ20x", wide)
            ends -= 76
            record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
            if wide != record + struct.pack("<IIQI", 0x07064B50, 0, ends, 1):
                raise Damage("the end record of the zip file is damaged", file="(zip)", bytes=[ends, self.size])
        if start + size != ends:
            raise Damage("the zip file has bytes that belong to no file", file="(zip)", bytes=[start + size, ends])
        return count, start, size

    def _walk(self, path, count, start, directory):
        """Every directory entry and every local header must be exactly the bytes that follow from name, size and checksum."""
        at = expected = 0
        for _ in range(count):
            crc, size, name_len, extra_len, offset = struct.unpack("<16xI4xIHH10xI", directory[at : at + 46])
            raw = directory[at + 46 : at + 46 + name_len]
            name, wide = raw.decode("ascii"), expected >= 0xFFFFFFFF
            extra = struct.pack("<HHQ", 1, 8, expected) if wide else b""
            version, low = (45, 0xFFFFFFFF) if wide else (20, expected)
            entry = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0x300 | version, version, 0, 0, 0, 0x21, crc, size, size, len(raw), len(extra),
                                0, 0, 0, 0o100644 << 16, low) + raw + extra
            if directory[at : at + len(entry)] != entry or offset != low:
                raise Damage("the zip directory is damaged", file=name, bytes=[start + at, start + at + len(entry)])
            header = struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 0, 0, 0x21, crc, size, size, len(raw), 0) + raw
            if self._at(expected, len(header)) != header:
                raise Damage("the zip header of this file is damaged", file=name, bytes=[expected, expected + len(header)])
            if name in self.places or not NAME.fullmatch(name):
                raise Damage("this file does not belong to a pack", file=name)
            self.places[name] = (path, expected + len(header), size, crc)
            at, expected = at + len(entry), expected + len(header) + size
        if at != len(directory) or expected != start:
            raise Damage("the zip file has bytes that belong to no file", file="(zip)", bytes=[expected, start])


def load(place):
    """The bytes of one file of the pack, checked against the zip's checksum where there is one."""
    path, offset, size = place[:3]
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(size)
    return data, len(data) == size and (len(place) == 3 or zlib.crc32(data) == place[3])


def read_json(data, name):
    """A JSON object, with no key twice."""

    def unique(pairs):
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


def unb64(text):
    """Bytes from canonical base64; ValueError for any other text."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("not canonical base64")
    return data


class Note:
    """A signed note: its text and its signature lines as (name, four bytes naming the key, signature)."""

    def __init__(self, note):
        text, blank, lines = note.partition("\n\n")
        self.text, self.signatures = text + "\n", []
        if not blank or not lines.endswith("\n"):
            raise ValueError("not a signed note")
        for line in lines[:-1].split("\n"):
            dash, name, code = line.split(" ")
            raw = unb64(code)
            if dash != "\u2014" or len(raw) not in (68, 76):
                raise ValueError("not a signature line")
            self.signatures.append((name, raw[:4], raw[4:]))

    def signed_by(self, name, public):
        """True when this Ed25519 key signed the text, as itself (type 1) or as a witness (type 4)."""
        for signer, key_hash, signature in self.signatures:
            if signer == name and key_hash in (key_id(name, public, 1), key_id(name, public, 4)):
                message = self.text.encode()
                if len(signature) == 72:  # a witness signs the time it looked as well
                    stamp, signature = int.from_bytes(signature[:8], "big"), signature[8:]
                    message = f"cosignature/v1\ntime {stamp}\n".encode() + message
                try:
                    Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
                    return True
                except (InvalidSignature, ValueError):
                    return False
        return False


def key_id(name, public, kind):
    """The four bytes by which a note names a key."""
    return sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]


class Checkpoint(Note):
    """A checkpoint read strictly: seven lines, every number written in the one way it can be written."""

    def __init__(self, note):
        super().__init__(note)
        origin, size, root, time, number, previous, key = self.text[:-1].split("\n")
        words = [line.split(" ") for line in (time, number, previous, key)]
        if [w[0] for w in words] != ["time", "number", "previous", "key"] or any(len(w) != 2 for w in words):
            raise ValueError("not a checkpoint")
        self.origin, self.size, self.root = origin, strict_int(size), unb64(root)
        self.time, self.number = strict_int(words[0][1]), strict_int(words[1][1])
        self.previous, self.key = words[2][1], unb64(words[3][1])
        if len(self.root) != 32 or len(self.key) != 32 or not 0 < self.size <= MAX_SIZE:
            raise ValueError("not a checkpoint")

    def digest(self):
        return base64.b64encode(sha256(self.text.encode()).digest()).decode()


def strict_int(text):
    if not re.fullmatch(r"0|[1-9][0-9]{0,18}", text):
        raise ValueError("not a plain number")
    return int(text)


# ---------------------------------------------------------------- the tree


def node(left, right):
    return sha256(b"\x01" + left + right).digest()


def push(stack, height, value):
    """Add a perfect subtree on the right of a tree that is kept as (height, hash) of its perfect subtrees."""
    while stack and stack[-1][0] == height:
        value, height = node(stack.pop()[1], value), height + 1
    stack.append((height, value))


def root_of(stack):
    if not stack:
        return sha256(b"").digest()
    value = stack[-1][1]
    for _, left in reversed(stack[:-1]):
        value = node(left, value)
    return value


def root_from_inclusion(leaf, index, size, path):
    """The root that an inclusion proof leads to, or None when the proof has the wrong length."""
    if not 0 <= index < size <= MAX_SIZE:
        return None
    if size == 1:
        return leaf if not path else None
    if not path:
        return None
    half = 1 << ((size - 1).bit_length() - 1)
    if index < half:
        inner = root_from_inclusion(leaf, index, half, path[:-1])
        return inner and node(inner, path[-1])
    inner = root_from_inclusion(leaf, index - half, size - half, path[:-1])
    return inner and node(path[-1], inner)


def roots_from_consistency(old, new, old_root, path, whole=True):
    """The (old, new) roots that a consistency proof leads to, or None when the proof has the wrong length."""
    if not 0 < old <= new <= MAX_SIZE:
        return None
    if old == new:
        if whole:
            return (old_root, old_root) if not path else None
        return (path[0], path[0]) if len(path) == 1 else None
    if not path:
        return None
    half = 1 << ((new - 1).bit_length() - 1)
    if old <= half:
        inner = roots_from_consistency(old, half, old_root, path[:-1], whole)
        return inner and (inner[0], node(inner[1], path[-1]))
    inner = roots_from_consistency(old - half, new - half, old_root, path[:-1], False)
    return inner and (node(path[-1], inner[0]), node(path[-1], inner[1]))


# ---------------------------------------------------------------- one segment of events (runs on every core)


def check_segment(task):
    """Hash the lines of one segment. Gives subtrees at each cut (a size at which a root must be known), ids, times, damage."""
    events, events_well = load(task["events"])
    held, held_well = load(task["leaves"])
    events_well = events_well and sha256(events).hexdigest() == task["events_sha256"]
    held_well = held_well and sha256(held).hexdigest() == task["leaves_sha256"]
    lines = events.split(b"\n")
    rest = lines.pop()
    leaves = [sha256(b"\x00" + line).digest() for line in lines]
    found = {"events_well": events_well, "leaves_well": held_well, "count": len(lines), "damage": None, "ids": [], "latest": {}}
    if rest or b"".join(leaves) != held:
        found["damage"] = locate(events, lines, leaves, [held[i : i + 32] for i in range(0, len(held), 32)])
    # Where the lines are known to be damaged and their hashes are not, go on with the hashes: later damage is found as well.
    used = leaves if events_well or not held_well else [held[i : i + 32] for i in range(0, len(held) - 31, 32)]
    found["used"] = len(used)
    levels = build_levels(task["start"], used)
    found["cuts"] = {cut: cover(levels, task["start"], cut) for cut in task["cuts"] if cut <= task["start"] + len(used)}
    try:
        read_fields(task, lines, found)
    except Damage as damage:
        found["damage"] = found["damage"] or (damage.where["line"], damage.what, damage.where["bytes"])
    return found


def build_levels(first, leaves):
    """For each height the index of the first perfect subtree inside, and the hashes of all of them."""
    levels = [(first, leaves)]
    while len(leaves) > 1:
        skip = first & 1
        first = (first + skip) >> 1
        pairs = iter(leaves[skip:])
        leaves = [sha256(b"\x01" + left + right).digest() for left, right in zip(pairs, pairs)]
        levels.append((first, leaves))
    return levels


def cover(levels, start, stop):
    """[start, stop) as perfect subtrees (height, hash), left to right."""
    pieces = []
    while start < stop:
        height = (stop - start).bit_length() - 1
        if start:
            height = min(height, (start & -start).bit_length() - 1)
        first, hashes = levels[height]
        pieces.append((height, hashes[(start >> height) - first]))
        start += 1 << height
    return pieces


def read_fields(task, lines, found):
    """Ids and times without parsing JSON: a quote inside a JSON text is always escaped, so these marks occur only as keys.

    The first `","at":` ends the actor, the first `},"id":"` ends the body; both are the fields themselves.
    """
    ids, times, offset = [], [], 0
    for at, line in enumerate(lines):
        i, j = line.find(b'","at":', 9), line.find(b'},"id":"')
        times.append(line[i + 7 : i + 23])
        ids.append(line[j + 8 : j + 40])
        if i < 0 or j < i or line[i + 23 : i + 24] != b"," or line[j + 40 : j + 41] != b'"' or not line.endswith(task["tail"]):
            raise Damage("this line is not an event of this log", line=at, bytes=[offset, offset + len(line)])
        offset += len(line) + 1
    found["ids"] = b"".join(ids)
    previous = 0
    for cut in task["cuts"]:
        inside = times[previous : cut - task["start"]]
        previous = cut - task["start"]
        if inside:
            found["latest"][cut] = max(inside)


def locate(events, lines, leaves, held):
    """Which line is the first that differs from its recorded hash, what happened to it, and its bytes: (line, what, [a, b])."""
    at = next((i for i, (a, b) in enumerate(zip(leaves, held)) if a != b), min(len(leaves), len(held)))
    start = sum(len(line) + 1 for line in lines[:at])
    if at >= len(lines):
        return at, f"the events end here, {len(held) - at} too early", [start, len(events)]
    stop = start + len(lines[at])
    if at >= len(held):
        return at, f"{len(lines) - at} events too many", [start, len(events)]
    flip = find_flip(b"\n".join(lines[at : at + 2]) + b"\n", held[at])
    if flip:
        byte, bit = flip
        return at, f"the event was changed: bit {bit} of byte {start + byte} is flipped", [start, stop]
    if leaves[at] in held[at + 1 : at + 1000]:
        if held[at] in leaves[at + 1 : at + 1000]:
            return at, "two events have changed places", [start, stop]
        return at, "an event was taken out here", [start, stop]
    if held[at] in leaves[at + 1 : at + 1000]:
        return at, "an event was put in here", [start, stop]
    return at, "the event was changed", [start, stop]


def find_flip(region, leaf):
    """The one bit (byte, bit) whose flipping back gives the recorded hash of the first line, or None."""
    if len(region) > 16384:
        return None
    work = bytearray(region)
    for byte in range(len(work)):
        for bit in range(8):
            work[byte] ^= 1 << bit
            line = bytes(work[: work.find(b"\n")])
            if sha256(b"\x00" + line).digest() == leaf:
                return byte, bit
            work[byte] ^= 1 << bit
    return None


# ---------------------------------------------------------------- the pack


class Pack:
    """One check of one pack, from the outside in: container, manifest, keys, checkpoints, events, proofs."""

    def __init__(self, path, options):
        self.report, self.options = Report(), options
        self.places, self.whole, self.checkpoints, self.witnesses, self.roots = {}, {}, [], {}, {}
        if not os.path.exists(path):
            raise CannotCheck("there is no such file or folder")
        try:
            self.places = (Folder if os.path.isdir(path) else Zip)(path, self.report).places
        except Damage as damage:
            self.report.add(damage.what, **damage.where)

    def check(self):
        """Everything; gives the report."""
        for step in (self.check_manifest, self.check_keys, self.check_checkpoints, self.check_events, self.check_proofs, self.check_known):
            try:
                step()
            except Damage as damage:
                self.report.add(damage.what, **damage.where)
                if step in (self.check_manifest, self.check_keys):
                    break
            except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
                self.report.add(f"a field is missing or is not what it must be ({error})", file=STEP_FILES[step.__name__])
                if step in (self.check_manifest, self.check_keys):
                    break
        return self.report.result()

    def read(self, name):
        if name not in self.places:
            raise Damage("the file is missing", file=name)
        data, well = load(self.places[name])
        self.whole[name] = well
        return data

    def check_manifest(self):
        raw = self.read("manifest.json")
        self.manifest = read_json(raw, "manifest.json")
        if self.manifest["format"] != FORMAT:
            raise Damage(f"the format is {self.manifest['format']!r}; this verifier reads {FORMAT}", file="manifest.json")
        self.origin, self.start, self.stop = self.manifest["origin"], int(self.manifest["from"]), int(self.manifest["to"])
        self.report.facts = {"origin": self.origin, "from": self.start, "to": self.stop, "events": self.stop - self.start, "checkpoints": 0}
        self.digest, self.sealed = sha256(raw).hexdigest(), self.read("manifest.sig")
        listed = set(self.manifest["files"])
        for name in sorted(listed - set(self.places)):
            self.report.add("the file is missing", file=name)
        for name in sorted(set(self.places) - listed - {"manifest.json", "manifest.sig"}):
            self.report.add("the file is not in the manifest", file=name)
        for name in sorted(listed & set(self.places)):
            if not name.startswith("events/"):
                entry, data = self.manifest["files"][name], self.read(name)
                if not self.whole[name] or len(data) != entry["bytes"] or sha256(data).hexdigest() != entry["sha256"]:
                    self.report.add("the file is not the one in the manifest", file=name)
        for name in ("manifest.json", "manifest.sig"):
            if not self.whole[name]:
                self.report.add("the zip checksum of this file is wrong", file=name)

    def check_keys(self):
        """Every key since the log began: introduced by a checkpoint that it signed, and that the key before it signed as well."""
        self.keys, before = [], None
        for entry in read_json(self.read("keys.json"), "keys.json")["keys"]:
            public, note = unb64(entry["public"]), Checkpoint(entry["note"])
            if note.key != public or note.time != entry["from"] or note.origin != self.origin:
                raise Damage("a key was introduced by a checkpoint that does not name it", file="keys.json", checkpoint=note.number)
            if not note.signed_by(self.origin, public) or (before and not note.signed_by(self.origin, before["public"])):
                raise Damage("a key was introduced without the signatures of the old and the new key", file="keys.json", checkpoint=note.number)
            if before and before["until"] != entry["from"]:
                raise Damage("the validity periods of the keys leave a gap or overlap", file="keys.json", checkpoint=note.number)
            before = {"public": public, "from": entry["from"], "until": entry["until"], "number": note.number}
            self.keys.append(before)
        if not self.keys or self.keys[-1]["until"] or self.keys[0]["number"] != 1:
            raise Damage("the first or the last key is missing", file="keys.json")
        self.check_manifest_signature()
        for entry in read_json(self.read("witnesses.json"), "witnesses.json")["witnesses"]:
            self.witnesses[entry["name"]] = unb64(entry["key"])
        self.witnesses.update(self.options.witness)
        self.report.facts["key"] = base64.b64encode(self.keys[-1]["public"]).decode()
        self.report.facts["pinned"] = bool(self.options.key)
        for public in self.options.key:
            if public not in [key["public"] for key in self.keys]:
                self.report.add("the log was never signed by the key you gave", file="keys.json")

    def check_manifest_signature(self):
        try:
            note = Note(self.sealed.decode("utf-8"))
            well = note.text == f"{FORMAT}\n{self.origin}\n{self.digest}\n" and len(note.signatures) == 1
        except ValueError:
            well = False
        if not well or not note.signed_by(self.origin, self.keys[-1]["public"]):
            self.report.add("the log's signature does not fit the manifest: one of the two was changed", file="manifest.sig")

    def check_checkpoints(self):
        """Signatures, key periods, the chain from each to the next, sizes and times that only grow."""
        base = read_json(self.read("base.json"), "base.json")
        self.base = [bytes.fromhex(text) for text in base["hashes"]]
        self.stack, before = [], None
        heights = [h for h in range(self.start.bit_length() - 1, -1, -1) if self.start >> h & 1]
        if base["size"] != self.start or len(heights) != len(self.base) or any(len(h) != 32 for h in self.base):
            raise Damage("the hashes before the pack are not those of a tree of that size", file="base.json")
        self.stack = list(zip(heights, self.base))
        if self.start:
            before = Checkpoint(base["note"])
            self.check_one(before, "base.json", 1)
            if before.size != self.start or root_of(self.stack) != before.root:
                raise Damage("the hashes before the pack do not lead to the root of the checkpoint before it", file="base.json", checkpoint=before.number)
        for line, raw in enumerate(self.read("checkpoints.jsonl").split(b"\n")[:-1], 1):
            where = {"file": "checkpoints.jsonl", "line": line, "checkpoint": (before.number if before else 0) + 1}
            try:
                note = Checkpoint(json.loads(raw.decode("utf-8")))
            except (ValueError, AttributeError, TypeError, RecursionError) as error:
                raise Damage("the checkpoint cannot be read", **where) from error
            self.check_one(note, "checkpoints.jsonl", line)
            expected = (before.number + 1, before.digest()) if before else (1, "-")
            if (note.number, note.previous) != expected:
                raise Damage("the checkpoint does not follow the one before it", **where)
            if before and (note.size <= before.size or note.time < before.time):
                raise Damage("the checkpoint is smaller or older than the one before it", **where)
            self.checkpoints.append(note)
            before = note
        if not before or before.size != self.stop or before.number != self.manifest["last"]:
            raise Damage("the checkpoints do not end where the manifest says", file="checkpoints.jsonl", checkpoint=before.number if before else 0)
        self.report.facts["checkpoints"] = len(self.checkpoints)

    def check_one(self, note, file, line):
        where = {"file": file, "line": line, "checkpoint": note.number}
        if note.origin != self.origin:
            raise Damage(f"this is a checkpoint of another log, {note.origin}", **where)
        key = next((k for k in self.keys if k["public"] == note.key), None)
        if not key or note.time < key["from"] or (key["until"] and note.time >= key["until"]):
            raise Damage("the checkpoint is signed by a key that was not valid then", **where)
        if not note.signed_by(self.origin, note.key):
            raise Damage("the log's signature of this checkpoint is wrong", **where)
        known = {key_id(self.origin, k["public"], 1) for k in self.keys}
        for name, key_hash, _ in note.signatures:
            if name in self.witnesses and note.signed_by(name, self.witnesses[name]):
                self.report.facts.setdefault("witnessed", {})[name] = note.size
            elif name != self.origin or key_hash not in known or not all(
                    note.signed_by(name, k["public"]) for k in self.keys if key_id(name, k["public"], 1) == key_hash):
                raise Damage(f"a signature by {name} is wrong or its key is not known", **where)

    def tasks(self):
        """One task a segment file, in order, with no index left out."""
        cuts = sorted({c.size for c in self.checkpoints} | {k.size for k in self.options.known if self.start < k.size <= self.stop})
        tenant, zone = self.origin.split("/")[2:4]
        tasks, start = [], self.start
        while start < self.stop:
            stop, stem = min(self.stop, (start // SEGMENT + 1) * SEGMENT), f"events/{start:012d}"
            for name in (stem + ".jsonl", stem + ".leaves"):
                if name not in self.places or name not in self.manifest["files"]:
                    raise Damage(f"the events {start} to {stop - 1} are missing", file=name, event=start)
            tasks.append({
                "start": start, "stop": stop, "stem": stem, "tail": b',"zone":' + json.dumps(zone).encode() + b"}", "tenant": tenant,
                "events": self.places[stem + ".jsonl"], "events_sha256": self.manifest["files"][stem + ".jsonl"]["sha256"],
                "leaves": self.places[stem + ".leaves"], "leaves_sha256": self.manifest["files"][stem + ".leaves"]["sha256"],
                "cuts": [c for c in cuts if start < c < stop] + [stop],
            })
            start = stop
        return tasks

    def check_events(self):
        """Hash every line, build the tree, compare the root at every checkpoint."""
        tasks, seen = self.tasks(), set()
        for name in set(self.manifest["files"]) - {t["stem"] + end for t in tasks for end in (".jsonl", ".leaves")}:
            if name.startswith("events/"):
                self.report.add("these events are not part of the log that the pack speaks of", file=name)
        jobs = self.options.jobs or os.cpu_count() or 1
        if jobs > 1 and len(tasks) > 3:
            with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
                self.follow(tasks, pool.map(check_segment, tasks), seen)
        else:
            self.follow(tasks, map(check_segment, tasks), seen)

    def follow(self, tasks, results, seen):
        by_size = {c.size: c for c in self.checkpoints}
        last = self.start
        for done, (task, found) in enumerate(zip(tasks, results), 1):
            self.note_damage(task, found)
            self.note_ids(task, found["ids"], seen)
            for cut in task["cuts"]:
                stack = list(self.stack)
                for height, value in found["cuts"].get(cut, ()):
                    push(stack, height, value)
                self.roots[cut] = root_of(stack) if cut in found["cuts"] else b""
                note = by_size.get(cut)
                if note and self.roots[cut] != note.root:
                    self.report.add(f"the events {last} to {cut - 1} do not lead to the root of this checkpoint", checkpoint=note.number,
                                    event=found["damage"][0] + task["start"] if found["damage"] else last, file=task["stem"] + ".jsonl")
                latest = found["latest"].get(cut, b"")
                if note and latest.isdigit() and int(latest) > note.time + CLOCK_SLACK_US:
                    self.report.add("an event is younger than the checkpoint over it", checkpoint=note.number, event=last)
                if note:
                    last = cut
            self.stack = stack
            progress(done, len(tasks), self.options.quiet)

    def note_damage(self, task, found):
        name, damage = task["stem"] + ".jsonl", found["damage"]
        if damage and (not found["events_well"] or found["leaves_well"]):
            line, what, places = damage
            self.report.add(what, file=name, line=line + 1, event=task["start"] + line, bytes=places)
        if not found["events_well"]:
            self.report.add("the file is not the one in the manifest", file=name)
        if not found["leaves_well"]:
            self.report.add("the file is not the one in the manifest", file=task["stem"] + ".leaves")
        if found["count"] != task["stop"] - task["start"] or found["used"] != found["count"]:
            self.report.add(f"{found['count']} events where {task['stop'] - task['start']} must be", file=name)

    def note_ids(self, task, ids, seen):
        fresh = {ids[i : i + 32] for i in range(0, len(ids), 32)}
        if len(fresh) * 32 != len(ids) or not seen.isdisjoint(fresh):
            again = set()
            for i in range(0, len(ids), 32):
                one = ids[i : i + 32]
                if one in seen or one in again:
                    self.report.add(f"the id {one.decode(errors='replace')} occurs a second time", file=task["stem"] + ".jsonl", line=i // 32 + 1,
                                    event=task["start"] + i // 32)
                    break
                again.add(one)
        seen |= fresh

    def check_proofs(self):
        proofs = read_json(self.read("proofs.json"), "proofs.json")
        roots = {c.size: c.root for c in self.checkpoints}
        if self.start:
            roots[self.start] = root_of(list(zip(range(len(self.base), 0, -1), self.base)))
        for proof in proofs["consistency"]:
            path = [bytes.fromhex(text) for text in proof["hashes"]]
            pair = roots_from_consistency(proof["old"], proof["new"], roots.get(proof["old"]), path) if proof["old"] in roots else None
            if not pair or pair != (roots[proof["old"]], roots.get(proof["new"])) or any(len(h) != 32 for h in path):
                self.report.add(f"the consistency proof from {proof['old']} to {proof['new']} is wrong", file="proofs.json")
        for proof in proofs["inclusion"]:
            path = [bytes.fromhex(text) for text in proof["hashes"]]
            root = root_from_inclusion(bytes.fromhex(proof["leaf"]), proof["index"], proof["size"], path)
            if not root or root != roots.get(proof["size"]) or any(len(h) != 32 for h in path):
                self.report.add(f"the inclusion proof of event {proof['index']} is wrong", file="proofs.json")

    def check_known(self):
        """What was seen earlier must still be so: the same root at that size, and no log that ends before it."""
        roots = {c.size: c.root for c in self.checkpoints}
        for note in self.options.known:
            if note.origin != self.origin:
                self.report.notes.append(f"a known checkpoint is of another log, {note.origin}, and was not compared")
            elif note.size > self.stop:
                self.report.add(f"the log was rolled back: {note.size} events were seen before, the pack ends at {self.stop}", checkpoint=note.number)
            elif note.size < self.start:
                self.report.notes.append(f"the known checkpoint of size {note.size} lies before the pack and was not compared")
            else:
                now = roots.get(note.size) or self.roots.get(note.size) or root_of(list(zip(range(len(self.base), 0, -1), self.base)))
                if now != note.root:
                    self.report.add(f"split view: at size {note.size} another root was seen before", checkpoint=note.number)
        for name in self.options.witness:
            if name not in self.report.facts.get("witnessed", {}):
                self.report.add(f"no checkpoint in the pack is cosigned by {name}", file="checkpoints.jsonl")


STEP_FILES = {"check_manifest": "manifest.json", "check_keys": "keys.json", "check_checkpoints": "checkpoints.jsonl", "check_events": "events",
              "check_proofs": "proofs.json", "check_known": "manifest.json"}


def check_proof(data, options):
    """One event's proof: {format, event, index, size, leaf, hashes, note}, against the key of its note or the key given."""
    report, proof = Report(), read_json(data, "proof")
    try:
        note, leaf = Checkpoint(proof["note"]), sha256(b"\x00" + proof["event"].encode()).digest()
        path = [bytes.fromhex(text) for text in proof["hashes"]]
        report.facts = {"origin": note.origin, "events": 1, "checkpoints": 1, "key": base64.b64encode(note.key).decode(), "pinned": bool(options.key)}
        if not note.signed_by(note.origin, note.key) or (options.key and note.key not in options.key):
            report.add("the checkpoint is not signed by the log's key", checkpoint=note.number)
        if proof["leaf"] != leaf.hex():
            report.add("the event is not the one that was proven", event=proof["index"])
        if proof["size"] != note.size or any(len(h) != 32 for h in path) or root_from_inclusion(leaf, proof["index"], note.size, path) != note.root:
            report.add("the event is not in the log at that place", event=proof["index"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        report.add(f"a field is missing or is not what it must be ({error})", file="proof")
    return report.result()


# ---------------------------------------------------------------- the command


def progress(done, total, quiet):
    if not quiet and sys.stderr.isatty():
        filled = 30 * done // total
        sys.stderr.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} segments" + ("\n" if done == total else ""))
        sys.stderr.flush()


def arguments(argv):
    parser = argparse.ArgumentParser(prog="falaj_verify.py", description="Check a Falaj evidence pack or proof, offline.")
    parser.add_argument("pack", help="a pack (zip file or folder) or the JSON proof of one event")
    parser.add_argument("--key", action="append", default=[], help="a public key of the log that you were given by another way (base64)")
    parser.add_argument("--known", action="append", default=[], help="a file with a checkpoint you saw earlier, or that a witness keeps")
    parser.add_argument("--witness", action="append", default=[], metavar="NAME=KEY", help="demand a cosignature by this witness")
    parser.add_argument("--jobs", type=int, default=0, help="how many processes (as many as there are cores)")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(argv)
    try:
        options.key = [unb64(text) for text in options.key]
        options.witness = {name: unb64(key) for name, key in (text.rsplit("=", 1) if text[-1:] != "=" else split_key(text) for text in options.witness)}
        known = []
        for path in options.known:
            with open(path, encoding="utf-8") as file:
                known.append(Checkpoint(file.read()))
        options.known = known
    except (ValueError, OSError) as error:
        raise CannotCheck(f"an option cannot be read: {error}") from error
    return options


def split_key(text):
    """NAME=KEY where the key itself ends in padding."""
    name, _, key = text.partition("=")
    return name, key


def verify(argv):
    """The report for these arguments."""
    options = arguments(argv)
    if os.path.isfile(options.pack) and os.path.getsize(options.pack) < 1 << 22:
        with open(options.pack, "rb") as file:
            data = file.read()
        if data[:1] == b"{":
            try:
                return check_proof(data, options), options
            except Damage as damage:
                raise CannotCheck(damage.what) from damage
    return Pack(options.pack, options).check(), options


def main(argv=None):
    try:
        report, options = verify(sys.argv[1:] if argv is None else argv)
    except (CannotCheck, OSError) as error:
        print(f"cannot check: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report, indent=1, ensure_ascii=False))
        return 0 if report["ok"] else 1
    if report["ok"]:
        print(f"OK: {report.get('events')} events under {report.get('checkpoints')} checkpoints of {report.get('origin')}")
    else:
        print(f"DAMAGED: {in_words(report['first'])}")
        for problem in report["problems"][:20]:
            print(f"  - {in_words(problem)}")
    for name, size in report.get("witnessed", {}).items():
        print(f"  witnessed by {name} up to event {size}")
    if "key" in report and not report["pinned"]:
        print(f"  the log's key is {report['key']}\n  compare it with the key you were given by another way, or give it with --key")
    for text in report["notes"]:
        print(f"  note: {text}")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
