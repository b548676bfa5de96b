"""Reading a version from beside the platform: its snapshot over the byte channel, and how paths are written."""

import os
from collections.abc import Iterator
from typing import ClassVar

from falaj.catalog.records import Opened
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Denied, Unavailable
from falaj.core.ref import Ref
from falaj.snapshot.read import Entry, Snapshot

_TRIES = 4


class Reading:
    """The bytes of one version, for a snapshot to fetch from.

    A read may outlive its ticket, and its connection: the one is asked for again, the other taken up where it broke.
    """

    def __init__(self, here: Here, version: Ref, ticket: str, view: Ref | None = None) -> None:
        self._here, self._version, self._ticket, self._view = here, version, ticket, view

    def __call__(self, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        for turn in range(_TRIES):
            try:
                for chunk in self._here.bytes.get(self._ticket, digest, start, stop):
                    start += len(chunk)
                    yield chunk
            except (Denied, Unavailable) as error:
                over = isinstance(error, Denied)
                if turn + 1 == _TRIES or (over and "expired" not in error.message):
                    raise
                if over:
                    self._ticket = _open(self._here, self._version, self._view).ticket
            else:
                return


def open_version(here: Here, name: Ref, view: Ref | None = None) -> tuple[Opened, Snapshot]:
    """Ask to read a version, and its files; with `view`, as rows of that feature view."""
    opened = _open(here, name, view)
    return opened, Snapshot(opened.tree, Reading(here, opened.ref, opened.ticket, view))


def _open(here: Here, name: Ref, view: Ref | None) -> Opened:
    opened: Opened = here.catalog.open(name) if view is None else here.catalog.open(name, view)
    return opened


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file of a version."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("name", "size_bytes", "kind", "target")

    path: str
    kind: str
    size_bytes: int
    executable: bool
    digest: str
    target: str = ""

    @property
    def name(self) -> str:
        """The path as a terminal may show it."""
        return printable(self.path)


def row_of(entry: Entry) -> FileRow:
    """An entry as people and programs read it."""
    target = text_of(entry.target) if entry.kind == "link" else ""
    return FileRow(text_of(entry.path), entry.kind, entry.size, entry.executable, entry.digest, target)


def path_of(text: str) -> bytes:
    """A path inside a version, as it was typed."""
    path = os.fsencode(text)
    while path.startswith(b"./"):
        path = path[2:].lstrip(b"/")
    return path


def text_of(path: bytes) -> str:
    """A path for JSON and for people; bytes that are no UTF-8 are written as \\x and two digits."""
    return path.decode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """The same without what would move a cursor or clear a screen: names come from whoever published them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
