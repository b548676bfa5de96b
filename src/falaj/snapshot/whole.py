"""Pages taken whole: where no stamp of a page's files changed, the page is what it was, and no file of it is passed.

A publish remembers of every page which paths it ends with, a digest over the stamps of its files, and the batches that
its files lie in. The next one first compares the stamps, many files at a time; only what lies in a page that changed,
or in one that a change before it made begin elsewhere, is passed file by file.
"""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from falaj.snapshot.scan import Marks, NamesOf, marks, runs

_HEAD = struct.Struct("<32s32sIQHH")


class KeptPage(NamedTuple):
    """A page of the tree that the last publish made."""

    first: bytes
    last: bytes
    digest: bytes
    stamps: bytes
    """Over the paths and stamps of all files after the page before it; zeros where one may have changed unseen."""
    num_files: int
    size_bytes: int
    bundles: tuple[bytes, ...]

    def encode(self) -> bytes:
        """All but `last`, by which it is found."""
        head = _HEAD.pack(self.digest, self.stamps, self.num_files, self.size_bytes, len(self.first), len(self.bundles))
        return head + self.first + b"".join(self.bundles)

    @classmethod
    def decode(cls, last: bytes, row: bytes) -> "KeptPage":
        """What `encode` was asked of."""
        digest, marks, num_files, size_bytes, length, count = _HEAD.unpack_from(row)
        at = _HEAD.size + length
        bundles = tuple(row[at + 32 * n : at + 32 * n + 32] for n in range(count))
        return cls(row[_HEAD.size : at], last, digest, marks, num_files, size_bytes, bundles)


class Plan(NamedTuple):
    """What is known of a folder before any of its files is passed."""

    pages: Sequence[KeptPage] = ()
    same: frozenset[int] = frozenset()
    """Which of the pages have the stamps that they had."""
    fingerprint: bytes = b""
    """Over every path and stamp; empty when nobody looked."""

    @property
    def cuts(self) -> list[bytes]:
        """Where the pages end."""
        return [page.last for page in self.pages]


class Fingerprint:
    """A digest over paths and stamps; the same whether they came one by one or many at a time."""

    def __init__(self, marks: Marks = (b"", b"")) -> None:
        self._paths, self._stamps = blake3(marks[0]), blake3(marks[1])

    def add(self, marks: Marks) -> None:
        """Go on with these files."""
        self._paths.update(marks[0])
        self._stamps.update(marks[1])

    def digest(self) -> bytes:
        """Of all that was added."""
        return blake3(self._paths.digest() + self._stamps.digest()).digest()


def look(folder: Path, pages: Sequence[KeptPage], names_of: NamesOf | None = None) -> Plan:
    """Compare the stamps of a folder with those of its pages; no file is opened."""
    part, parts, at = Fingerprint(), dict[int, bytes](), 0
    ask = None
    if pages:  # a folder of less than a page is not worth the loading
        from falaj.snapshot.stamps import Stamper

        ask = Stamper().of
    for run in runs(folder, [page.last for page in pages], names_of):
        if run.cut != at:
            parts[at] = part.digest()
            part, at = Fingerprint(), run.cut
        part.add(marks(run, ask))
    parts[at] = part.digest()
    same = frozenset(at for at, page in enumerate(pages) if parts.get(at) == page.stamps)
    tail = parts.pop(len(pages), Fingerprint().digest())
    return Plan(pages, same, fingerprint_of(parts.values(), tail))


def fingerprint_of(pages: Iterable[bytes], tail: bytes) -> bytes:
    """Of a whole folder: the stamps of its pages in order, and of the files behind the last of them."""
    return blake3(b"".join([*pages, tail])).digest()
