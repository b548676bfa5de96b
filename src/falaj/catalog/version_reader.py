"""Reading a version from beside the platform: its snapshot over the byte channel, and how paths are written."""

import os
from collections.abc import Iterator
from typing import ClassVar

from falaj.catalog.records import OpenedVersion
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Unavailable
from falaj.core.ref import Ref
from falaj.snapshot.tree_reader import TreeEntry, TreeSnapshot

_MAX_READ_TRIES = 4


class VersionReader:
    """The bytes of one version, for a snapshot to fetch from.

    A read may outlive its ticket, and its connection: the one is asked for again, the other taken up where it broke.
    """

    def __init__(self, client: Client, version: Ref, ticket: str, view: Ref | None = None) -> None:
        self.client, self._version, self._ticket, self._view = client, version, ticket, view

    def __call__(self, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        for attempt in range(_MAX_READ_TRIES):
            try:
                for chunk in self.client.bytes.get(self._ticket, digest, start, stop):
                    start += len(chunk)
                    yield chunk
            except (Denied, Unavailable) as error:
                is_denied = isinstance(error, Denied)
                if attempt + 1 == _MAX_READ_TRIES or (is_denied and "expired" not in error.message):
                    raise
                if is_denied:
                    self._ticket = _open_ticket(self.client, self._version, self._view).ticket
            else:
                return


def open_version(client: Client, name: Ref, view: Ref | None = None) -> tuple[OpenedVersion, TreeSnapshot]:
    """Ask to read a version, and its files; with `view`, as rows of that feature view."""
    opened = _open_ticket(client, name, view)
    return opened, TreeSnapshot(opened.tree, VersionReader(client, opened.ref, opened.ticket, view))


def _open_ticket(client: Client, name: Ref, view: Ref | None) -> OpenedVersion:
    opened: OpenedVersion = client.catalog.open(name) if view is None else client.catalog.open(name, view)
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
        return to_printable(self.path)


def to_file_row(entry: TreeEntry) -> FileRow:
    """An entry as people and programs read it."""
    target = decode_path(entry.target) if entry.kind == "link" else ""
    return FileRow(decode_path(entry.path), entry.kind, entry.size, entry.executable, entry.digest, target)


def encode_path(text: str) -> bytes:
    """A path inside a version, as it was typed."""
    path = os.fsencode(text)
    while path.startswith(b"./"):
        path = path[2:].lstrip(b"/")
    return path


def decode_path(path: bytes) -> str:
    """A path for JSON and for people; bytes that are no UTF-8 are written as \\x and two digits."""
    return path.decode("utf-8", "backslashreplace")


def to_printable(text: str) -> str:
    """The same without what would move a cursor or clear a screen: names come from whoever published them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
