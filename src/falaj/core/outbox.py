"""The outbox as readers see it: a folder in which every writer of an attempt appends facts, one JSON object a line.

    <writer>.jsonl, <writer>.1.jsonl, <writer>.2.jsonl …      writer: slot-N (a launcher) or rank-R (a process)

A writer that was killed leaves a torn last line, and a process may write what it likes into its own folder: what is no
whole JSON object is skipped. Cursors are opaque texts; the empty one is the beginning.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from falaj.core.errors import Invalid

Facts = list[dict[str, object]]

_FILE = re.compile(r"([a-z]+-[0-9]{1,9})(?:\.([0-9]{1,9}))?\.jsonl", re.ASCII)
_LEAST = 1 << 16
_CHUNK = 1 << 20
"""Bytes read of one writer in one call, and the longest line that is believed."""


def read_outbox(folder: str | Path, after: str = "", of: Callable[[str], bool] | None = None) -> tuple[Facts, str]:
    """Facts after a cursor, in order for each writer, and the next cursor. `of` chooses writers."""
    places = _places(after)
    facts: Facts = []
    for writer, parts in sorted(_writers(folder).items()):
        if of is None or of(writer):
            places[writer] = _read_writer(folder, writer, sorted(parts), places.get(writer, (0, 0)), facts)
    return facts, json.dumps(places, separators=(",", ":")) if places else ""


def last_lines(path: str | Path, lines: int, most: int) -> int:
    """Where the last so many lines of a file of strangers begin, as far back as so many bytes show them."""
    with contextlib.suppress(OSError):
        size = Path(path).stat(follow_symlinks=False).st_size
        start = max(0, size - most)
        data = read_file(path, start, most)
        at = len(data) - data.endswith(b"\n")
        for _ in range(lines):
            at = data.rfind(b"\n", 0, at)
            if at < 0:
                # Its beginning is not in sight: the first whole line is the first.
                return start + data.find(b"\n") + 1 if start else 0
        return start + at + 1
    return 0


def data_extent(path: str | Path, start: int) -> tuple[int, int, int]:
    """(where the next bytes at or after `start` lie that are in no hole of the file, where the next hole begins, the
    file's size). A file that is not there has no bytes."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return start, start, 0
    size = start
    try:
        size = os.fstat(file).st_size
        if start >= size:
            return start, start, size
        begin = os.lseek(file, start, os.SEEK_DATA)
        return begin, os.lseek(file, begin, os.SEEK_HOLE), size
    except OSError:  # a hole up to the end
        return size, size, size
    finally:
        os.close(file)


def read_file(path: str | Path, start: int, most: int) -> bytes:
    """Bytes of a plain file that somebody else may have put there; nothing where there is none."""
    try:
        # A link would lead out of the folder, and a pipe would hold us.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            # Room for all that might be there would be made, and taken away, every time. Files of the kernel say 0.
            most = min(most, max(found.st_size - start, _LEAST))
            return os.pread(file, most, start) if stat.S_ISREG(found.st_mode) else b""
        finally:
            os.close(file)
    except OSError:
        return b""


def file_name(writer: str, part: int) -> str:
    """What a part of a writer's outbox is called."""
    return f"{writer}.{part}.jsonl" if part else f"{writer}.jsonl"


def parts_of(folder: str | Path, writer: str) -> list[int]:
    """The parts a writer has in a folder, oldest first."""
    return sorted(_writers(folder).get(writer, []))


def _places(after: str) -> dict[str, tuple[int, int]]:
    if not after:
        return {}
    try:
        return {writer: (int(part), int(start)) for writer, (part, start) in json.loads(after).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Invalid("this is no cursor of an outbox", "begin again without one") from None


def _writers(folder: str | Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if match := _FILE.fullmatch(entry.name):
                found.setdefault(match[1], []).append(int(match[2] or 0))
    return found


def _read_writer(
    folder: str | Path, writer: str, parts: list[int], place: tuple[int, int], facts: Facts
) -> tuple[int, int]:
    part, start = place
    for here in [one for one in parts if one >= part]:
        part, start = here, start if here == part else 0
        data = read_file(f"{folder}/{file_name(writer, part)}", start, _CHUNK)
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == _CHUNK else 0)
        facts.extend(_parse(data[:whole]))
        start += whole
        if len(data) == _CHUNK:
            break
    return part, start


def _parse(data: bytes) -> Facts:
    found: Facts = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(fact := json.loads(line), dict):
                found.append(fact)
    return found
