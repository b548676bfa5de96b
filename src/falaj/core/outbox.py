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

_PART_FILE_PATTERN = re.compile(r"([a-z]+-[0-9]{1,9})(?:\.([0-9]{1,9}))?\.jsonl", re.ASCII)
_MIN_READ_BYTES = 1 << 16
_MAX_READ_BYTES = 1 << 20
"""Bytes read of one writer in one call, and the longest line that is believed."""


def read_outbox(
    folder: str | Path, after: str = "", select_writer: Callable[[str], bool] | None = None
) -> tuple[Facts, str]:
    """Facts after a cursor, in order for each writer, and the next cursor. `select_writer` chooses writers."""
    positions = _parse_cursor(after)
    facts: Facts = []
    for writer, parts in sorted(_list_part_numbers(folder).items()):
        if select_writer is None or select_writer(writer):
            positions[writer] = _read_writer_facts(folder, writer, sorted(parts), positions.get(writer, (0, 0)), facts)
    return facts, json.dumps(positions, separators=(",", ":")) if positions else ""


def find_last_lines(path: str | Path, lines: int, max_bytes: int) -> int:
    """Where the last so many lines of a file of strangers begin, as far back as so many bytes show them."""
    with contextlib.suppress(OSError):
        size = Path(path).stat(follow_symlinks=False).st_size
        start = max(0, size - max_bytes)
        data = read_untrusted_file(path, start, max_bytes)
        offset = len(data) - data.endswith(b"\n")
        for _ in range(lines):
            offset = data.rfind(b"\n", 0, offset)
            if offset < 0:
                # Its beginning is not in sight: the first whole line is the first.
                return start + data.find(b"\n") + 1 if start else 0
        return start + offset + 1
    return 0


def find_data_extent(path: str | Path, start: int) -> tuple[int, int, int]:
    """(where the next bytes at or after `start` lie that are in no hole of the file, where the next hole begins, the
    file's size). A file that is not there has no bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return start, start, 0
    size = start
    try:
        size = os.fstat(fd).st_size
        if start >= size:
            return start, start, size
        data_start = os.lseek(fd, start, os.SEEK_DATA)
        return data_start, os.lseek(fd, data_start, os.SEEK_HOLE), size
    except OSError:  # a hole up to the end
        return size, size, size
    finally:
        os.close(fd)


def read_untrusted_file(path: str | Path, start: int, max_bytes: int) -> bytes:
    """Bytes of a plain file that somebody else may have put there; nothing where there is none."""
    try:
        # A link would lead out of the folder, and a pipe would hold us.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            file_status = os.fstat(fd)
            # Room for all that might be there would be made, and taken away, every time. Files of the kernel say 0.
            max_bytes = min(max_bytes, max(file_status.st_size - start, _MIN_READ_BYTES))
            return os.pread(fd, max_bytes, start) if stat.S_ISREG(file_status.st_mode) else b""
        finally:
            os.close(fd)
    except OSError:
        return b""


def format_part_name(writer: str, part: int) -> str:
    """What a part of a writer's outbox is called."""
    return f"{writer}.{part}.jsonl" if part else f"{writer}.jsonl"


def list_part_numbers(folder: str | Path, writer: str) -> list[int]:
    """The parts a writer has in a folder, oldest first."""
    return sorted(_list_part_numbers(folder).get(writer, []))


def _parse_cursor(after: str) -> dict[str, tuple[int, int]]:
    if not after:
        return {}
    try:
        return {writer: (int(part), int(start)) for writer, (part, start) in json.loads(after).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Invalid("this is no cursor of an outbox", "begin again without one") from None


def _list_part_numbers(folder: str | Path) -> dict[str, list[int]]:
    parts_by_writer: dict[str, list[int]] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if match := _PART_FILE_PATTERN.fullmatch(entry.name):
                parts_by_writer.setdefault(match[1], []).append(int(match[2] or 0))
    return parts_by_writer


def _read_writer_facts(
    folder: str | Path, writer: str, parts: list[int], position: tuple[int, int], facts: Facts
) -> tuple[int, int]:
    part, start = position
    for part_number in [part_number_candidate for part_number_candidate in parts if part_number_candidate >= part]:
        part, start = part_number, start if part_number == part else 0
        data = read_untrusted_file(f"{folder}/{format_part_name(writer, part)}", start, _MAX_READ_BYTES)
        complete_bytes = data.rfind(b"\n") + 1 or (len(data) if len(data) == _MAX_READ_BYTES else 0)
        facts.extend(_parse_facts(data[:complete_bytes]))
        start += complete_bytes
        if len(data) == _MAX_READ_BYTES:
            break
    return part, start


def _parse_facts(data: bytes) -> Facts:
    facts: Facts = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(fact := json.loads(line), dict):
                facts.append(fact)
    return facts
