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

from falaj.snapshot.folder_scan import FileMarks, NamesOf, collect_marks, iterate_runs

_PAGE_HEAD = struct.Struct("<32s32sIQHH")


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
        page_head = _PAGE_HEAD.pack(
            self.digest, self.stamps, self.num_files, self.size_bytes, len(self.first), len(self.bundles)
        )
        return page_head + self.first + b"".join(self.bundles)

    @classmethod
    def decode(cls, last_path: bytes, row: bytes) -> "KeptPage":
        """What `encode` was asked of."""
        digest, stamps_digest, num_files, size_bytes, length, count = _PAGE_HEAD.unpack_from(row)
        offset = _PAGE_HEAD.size + length
        bundles = tuple(
            row[offset + 32 * bundle_index : offset + 32 * bundle_index + 32] for bundle_index in range(count)
        )
        return cls(row[_PAGE_HEAD.size : offset], last_path, digest, stamps_digest, num_files, size_bytes, bundles)


class ReusePlan(NamedTuple):
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


class StampFingerprint:
    """A digest over paths and stamps; the same whether they came one by one or many at a time."""

    def __init__(self, marks: FileMarks = (b"", b"")) -> None:
        self._paths, self._stamps = blake3(marks[0]), blake3(marks[1])

    def add(self, marks: FileMarks) -> None:
        """Go on with these files."""
        self._paths.update(marks[0])
        self._stamps.update(marks[1])

    def digest(self) -> bytes:
        """Of all that was added."""
        return blake3(self._paths.digest() + self._stamps.digest()).digest()


def compare_stamps(folder: Path, pages: Sequence[KeptPage], names_of: NamesOf | None = None) -> ReusePlan:
    """Compare the stamps of a folder with those of its pages; no file is opened."""
    page_fingerprint, digest_by_page, page_index = StampFingerprint(), dict[int, bytes](), 0
    ask_stamps = None
    if pages:  # a folder of less than a page is not worth the loading
        from falaj.snapshot.stamps import Stamper

        ask_stamps = Stamper().of
    for run in iterate_runs(folder, [page.last for page in pages], names_of):
        if run.cut != page_index:
            digest_by_page[page_index] = page_fingerprint.digest()
            page_fingerprint, page_index = StampFingerprint(), run.cut
        page_fingerprint.add(collect_marks(run, ask_stamps))
    digest_by_page[page_index] = page_fingerprint.digest()
    unchanged_pages = frozenset(
        page_index for page_index, page in enumerate(pages) if digest_by_page.get(page_index) == page.stamps
    )
    tail_digest = digest_by_page.pop(len(pages), StampFingerprint().digest())
    return ReusePlan(pages, unchanged_pages, combine_fingerprints(digest_by_page.values(), tail_digest))


def combine_fingerprints(pages: Iterable[bytes], tail_digest: bytes) -> bytes:
    """Of a whole folder: the stamps of its pages in order, and of the files behind the last of them."""
    return blake3(b"".join([*pages, tail_digest])).digest()
