"""Logs of pods, read on from a cursor: the time of the last line, and which of the lines with that very time it was.

Kubernetes goes back to a whole second, so lines that were read already come again and are left out here.
"""

import re
from collections.abc import Callable

from falaj.core.errors import Invalid
from falaj.core.executor import LogChunk

_FIRST_READ_BYTES, _MAX_READ_BYTES = 1 << 20, 1 << 27
_CURSOR_PATTERN = re.compile(r"([0-9TZ:.+-]+)#(\d+)")
LogLine = tuple[str, int, str]
"""When, the how many-eth of that time, and what."""


def get_since_time(cursor: str) -> str:
    """The second to ask from; nothing for all."""
    if cursor and not _CURSOR_PATTERN.fullmatch(cursor):
        raise Invalid("this is no cursor of a log", "begin again without one")
    return re.sub(r"\.\d+", "", cursor.partition("#")[0])


def read_log(fetch_log: Callable[[int], bytes], cursor: str, limit: int, is_over: bool) -> LogChunk:
    """Lines after a cursor. `fetch_log` gives up to so many bytes from the cursor's second on."""
    max_bytes = _FIRST_READ_BYTES
    while True:
        data = fetch_log(max_bytes)
        is_truncated = len(data) >= max_bytes
        new_lines = _skip_to_cursor(_parse_lines(data, is_over and not is_truncated), cursor)
        if new_lines or not is_truncated or max_bytes >= _MAX_READ_BYTES:
            break
        # More than a page in one second, all of it read already.
        max_bytes *= 8
    page = new_lines[:limit]
    next_cursor = f"{page[-1][0]}#{page[-1][1]}" if page else cursor
    return LogChunk(
        tuple(text for _, _, text in page), next_cursor, is_over and not is_truncated and len(page) == len(new_lines)
    )


def _parse_lines(data: bytes, is_complete: bool) -> list[LogLine]:
    rows = data.decode(errors="replace").split("\n")
    if not is_complete or not rows[-1]:
        rows.pop()
    log_lines: list[LogLine] = []
    for row in rows:
        stamp, _, text = row.partition(" ")
        same_time_count = log_lines[-1][1] + 1 if log_lines and log_lines[-1][0] == stamp else 1
        log_lines.append((stamp, same_time_count, text.rstrip("\r")))
    return log_lines


def _skip_to_cursor(lines: list[LogLine], cursor: str) -> list[LogLine]:
    stamp, _, same_time_count = cursor.partition("#")
    if not cursor:
        return lines
    cursor_index = next(
        (line_index for line_index, line in enumerate(lines) if line[:2] == (stamp, int(same_time_count))), None
    )
    if cursor_index is not None:
        return lines[cursor_index + 1 :]
    # Rotated away: what is newer is new.
    return [line for line in lines if _to_sort_key(line[0]) > _to_sort_key(stamp)]


def _to_sort_key(stamp: str) -> tuple[str, str]:
    second, _, fraction = stamp.rstrip("Z").partition(".")
    return second, fraction.ljust(9, "0")
