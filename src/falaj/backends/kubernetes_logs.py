"""Logs of pods, read on from a cursor: the time of the last line, and which of the lines with that very time it was.

Kubernetes goes back to a whole second, so lines that were read already come again and are left out here.
"""

import re
from collections.abc import Callable

from falaj.core.errors import Invalid
from falaj.core.execute import LogChunk

_BYTES, _MOST_BYTES = 1 << 20, 1 << 27
_CURSOR = re.compile(r"([0-9TZ:.+-]+)#(\d+)")
Line = tuple[str, int, str]
"""When, the how many-eth of that time, and what."""


def since(cursor: str) -> str:
    """The second to ask from; nothing for all."""
    if cursor and not _CURSOR.fullmatch(cursor):
        raise Invalid("this is no cursor of a log", "begin again without one")
    return re.sub(r"\.\d+", "", cursor.partition("#")[0])


def read_log(fetch: Callable[[int], bytes], cursor: str, limit: int, over: bool) -> LogChunk:
    """Lines after a cursor. `fetch` gives up to so many bytes from the cursor's second on."""
    most = _BYTES
    while True:
        data = fetch(most)
        cut = len(data) >= most
        fresh = _after(_lines(data, over and not cut), cursor)
        if fresh or not cut or most >= _MOST_BYTES:
            break
        # More than a page in one second, all of it read already.
        most *= 8
    part = fresh[:limit]
    ahead = f"{part[-1][0]}#{part[-1][1]}" if part else cursor
    return LogChunk(tuple(text for _, _, text in part), ahead, over and not cut and len(part) == len(fresh))


def _lines(data: bytes, whole: bool) -> list[Line]:
    rows = data.decode(errors="replace").split("\n")
    if not whole or not rows[-1]:
        rows.pop()
    found: list[Line] = []
    for row in rows:
        stamp, _, text = row.partition(" ")
        same = found[-1][1] + 1 if found and found[-1][0] == stamp else 1
        found.append((stamp, same, text.rstrip("\r")))
    return found


def _after(lines: list[Line], cursor: str) -> list[Line]:
    stamp, _, same = cursor.partition("#")
    if not cursor:
        return lines
    here = next((at for at, line in enumerate(lines) if line[:2] == (stamp, int(same))), None)
    if here is not None:
        return lines[here + 1 :]
    # Rotated away: what is newer is new.
    return [line for line in lines if _order(line[0]) > _order(stamp)]


def _order(stamp: str) -> tuple[str, str]:
    second, _, fraction = stamp.rstrip("Z").partition(".")
    return second, fraction.ljust(9, "0")
