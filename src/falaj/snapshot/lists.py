"""Names in large folders, remembered: while a folder has the stamp that it had, nobody put a name in or took one out.

To list the names of a folder takes half as long as to look at its files. Only file systems of which it is known that
they stamp a folder with every change of its names are believed, and no stamp so young that a change may hide in it.
"""

import os
import sys
import time
from types import TracebackType
from typing import Self

from falaj.snapshot.folder_scan import STAMP_BYTES, list_names, make_stamp
from falaj.snapshot.publish_state import PublishState, is_settled

_LEAST = 64
"""Fewer names than this are listed sooner than remembered."""
_ROWS, _NAMES = 256, 65_536
"""So many folders are held until they are written, or so many names of them."""
_BELIEVED = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994, 0x794C7630})
"""ext4, XFS, Btrfs, F2FS, tmpfs and overlays of them."""


class Lists:
    """What folders hold, for one walk: they are asked for in the order of paths."""

    def __init__(self, state: PublishState) -> None:
        self._state = state
        self._rows = state.lists()
        self._head = next(self._rows, None)
        self._changed: list[tuple[bytes, bytes | None]] = []
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._pass_before(None)
            self._flush()
        self._rows.close()

    def of(self, fd: int, path: bytes) -> list[bytes]:
        """The names in an open folder, as `scan.listed` gives them."""
        self._pass_before(path)
        stamp, begun, row = make_stamp(os.fstat(fd)), time.time_ns(), None
        if self._head is not None and self._head[0] == path:
            row = self._head[1]
            self._head = next(self._rows, None)
        if row is not None and row.startswith(stamp):
            return row[STAMP_BYTES:].split(b"\0")
        names = list_names(fd, path)
        if len(names) >= _LEAST and is_settled(stamp, begun) and _believed(fd):
            self._changed.append((path, stamp + b"\0".join(names)))
            self._held += len(names)
        elif row is not None:
            self._changed.append((path, None))
        if len(self._changed) >= _ROWS or self._held >= _NAMES:
            self._flush()
        return names

    def _pass_before(self, path: bytes | None) -> None:
        """Folders that nobody asked for are gone."""
        while self._head is not None and (path is None or self._head[0] < path):
            self._changed.append((self._head[0], None))
            self._head = next(self._rows, None)

    def _flush(self) -> None:
        if self._changed:
            self._state.keep_lists(self._changed)
            self._changed, self._held = [], 0


def _believed(fd: int) -> bool:
    """Whether the file system stamps its folders; the kernel's answer begins with what kind it is."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return False
    import ctypes

    answer = ctypes.create_string_buffer(256)
    return not ctypes.CDLL(None).fstatfs(fd, answer) and int.from_bytes(answer.raw[:8], sys.byteorder) in _BELIEVED
