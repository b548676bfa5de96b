"""The growing Merkle tree of RFC 6962: leaf and node hashes, and the right edge, which is all that appending needs."""

import hashlib
from collections.abc import Iterable
from dataclasses import field

from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid

HASH_BYTES = 32
MAX_LOG_SIZE = 2**63 - 1
EMPTY_ROOT = hashlib.sha256().digest()
_sha256 = hashlib.sha256


def hash_leaf(data: bytes) -> bytes:
    """The hash of a leaf: SHA-256(0x00 || data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def hash_nodes(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node: SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(slots=True)
class MerkleFrontier:
    """The right edge of a tree: the hashes of its perfect subtrees, largest first; all that appending needs."""

    size: int = 0
    hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_log_size(self.size)
        if len(self.hashes) != self.size.bit_count() or any(len(h) != HASH_BYTES for h in self.hashes):
            raise CorruptData(
                f"{len(self.hashes)} hashes are not the frontier of a tree of {self.size}", "run: falaj audit check"
            )

    def append(self, leaf_hash_value: bytes) -> None:
        """Add one leaf hash."""
        check_log_size(self.size + 1)
        node, size = leaf_hash_value, self.size
        while size & 1:
            node = hash_nodes(self.hashes.pop(), node)
            size >>= 1
        self.hashes.append(node)
        self.size += 1

    def extend(self, leaf_hashes: Iterable[bytes]) -> None:
        """Add many, level by level: what a tree of so many costs is then its hashes, and little else."""
        level_hashes, remaining_size = list(leaf_hashes), self.size
        check_log_size(self.size + len(level_hashes))
        self.size += len(level_hashes)
        right_edge: list[bytes] = []
        while level_hashes:
            if remaining_size & 1:
                level_hashes.insert(0, self.hashes.pop())
            if len(level_hashes) & 1:
                right_edge.append(level_hashes.pop())
            pairs = iter(level_hashes)
            level_hashes = [_sha256(b"\x01" + left + right).digest() for left, right in zip(pairs, pairs, strict=True)]
            remaining_size >>= 1
        self.hashes += reversed(right_edge)

    def root(self) -> bytes:
        """The tree head: MTH of RFC 6962."""
        if not self.hashes:
            return EMPTY_ROOT
        node = self.hashes[-1]
        for left in reversed(self.hashes[:-1]):
            node = hash_nodes(left, node)
        return node


def check_log_size(size: int) -> None:
    """Invalid unless a log can have that many events."""
    if not 0 <= size <= MAX_LOG_SIZE:
        raise Invalid(f"{size} is no size of a log", f"0 to {MAX_LOG_SIZE}")
