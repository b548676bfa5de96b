"""The growing Merkle tree of RFC 6962: leaf and node hashes, and the right edge, which is all that appending needs."""

import hashlib
from collections.abc import Iterable
from dataclasses import field

from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid

HASH_BYTES = 32
MAX_SIZE = 2**63 - 1
EMPTY_ROOT = hashlib.sha256().digest()
_sha256 = hashlib.sha256


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf: SHA-256(0x00 || data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node: SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(slots=True)
class Frontier:
    """The right edge of a tree: the hashes of its perfect subtrees, largest first; all that appending needs."""

    size: int = 0
    hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_size(self.size)
        if len(self.hashes) != self.size.bit_count() or any(len(h) != HASH_BYTES for h in self.hashes):
            raise Corrupt(
                f"{len(self.hashes)} hashes are not the frontier of a tree of {self.size}", "run: falaj audit check"
            )

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        check_size(self.size + 1)
        node, size = leaf, self.size
        while size & 1:
            node = node_hash(self.hashes.pop(), node)
            size >>= 1
        self.hashes.append(node)
        self.size += 1

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Add many, level by level: what a tree of so many costs is then its hashes, and little else."""
        nodes, bits = list(leaves), self.size
        check_size(self.size + len(nodes))
        self.size += len(nodes)
        low: list[bytes] = []
        while nodes:
            if bits & 1:
                nodes.insert(0, self.hashes.pop())
            if len(nodes) & 1:
                low.append(nodes.pop())
            pairs = iter(nodes)
            nodes = [_sha256(b"\x01" + left + right).digest() for left, right in zip(pairs, pairs, strict=True)]
            bits >>= 1
        self.hashes += reversed(low)

    def root(self) -> bytes:
        """The tree head: MTH of RFC 6962."""
        if not self.hashes:
            return EMPTY_ROOT
        node = self.hashes[-1]
        for left in reversed(self.hashes[:-1]):
            node = node_hash(left, node)
        return node


def check_size(size: int) -> None:
    """Invalid unless a log can have that many events."""
    if not 0 <= size <= MAX_SIZE:
        raise Invalid(f"{size} is no size of a log", f"0 to {MAX_SIZE}")
