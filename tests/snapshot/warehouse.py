"""A place for bytes on a folder, with both halves of the channel that snapshots use: real, only without a house."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from blake3 import blake3

from falaj.core.byte_channel import UploadReceipt
from falaj.core.errors import Denied, NotFound
from falaj.snapshot.records import PublishedTree
from falaj.snapshot.tree_reader import TreeSnapshot


class Warehouse:
    """Stores pieces by digest; a receipt is good for this warehouse only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.puts: list[UploadReceipt] = []
        self.bundles: dict[str, tuple[str, ...]] = {}
        self.fetched: list[tuple[str, int, int | None]] = []
        self.before_put: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def put(self, chunks: Iterable[bytes]) -> UploadReceipt:
        with self._lock:
            self.before_put()
            data = b"".join(chunks)
            receipt = self._receipt(f"b3:{blake3(data).hexdigest()}", len(data))
            self.path(receipt.digest).write_bytes(data)
            self.puts.append(receipt)
            return receipt

    def bundle(self, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        assert 0 < len(receipts) <= 4096
        for receipt in receipts:
            if receipt != self._receipt(receipt.digest, receipt.size) or not self.path(receipt.digest).exists():
                raise Denied("a receipt is forged or of another thing", "send the bytes again")
        parts = tuple(dict.fromkeys(receipt.digest for receipt in receipts))
        digest = f"b3:{blake3(chr(10).join(parts).encode()).hexdigest()}"
        self.bundles[digest] = parts
        return self._receipt(digest, sum(receipt.size for receipt in receipts))

    def fetch(self, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self.fetched.append((digest, start, stop))
        try:
            with self.path(digest).open("rb") as file:
                file.seek(start)
                left = None if stop is None else stop - start
                while block := file.read(1 << 20 if left is None else min(left, 1 << 20)):
                    left = None if left is None else left - len(block)
                    yield block
        except FileNotFoundError:
            raise NotFound(f"there is no {digest}", "restore it") from None

    def open(self, tree: PublishedTree, cache: Path | None = None) -> TreeSnapshot:
        """A tree of ours, readable only through what its batches hold."""
        held = {part for batch in tree.batches for part in self.bundles[batch.bundle]}

        def fetch(digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
            if digest not in held:
                raise Denied(f"the tree does not hold {digest}", "ask for what it names")
            return self.fetch(digest, start, stop)

        return TreeSnapshot(tree, fetch, cache)

    def path(self, digest: str) -> Path:
        return self.folder / digest.removeprefix("b3:")

    def _receipt(self, digest: str, size: int) -> UploadReceipt:
        return UploadReceipt(digest, size, hashlib.sha256(f"{self.folder} {digest} {size}".encode()).hexdigest())
