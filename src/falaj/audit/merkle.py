"""The Merkle tree of RFC 6962 as it is stored and proved: tiles of 256 hashes, and the two proofs.

Pure: no store and no clock. A proof needs the hashes of perfect subtrees only; `Tiles` finds each in one tile, so a
proof over millions of events reads a handful of tiles.
"""

from collections.abc import Callable, Mapping, Sequence

from falaj.core.errors import Corrupt, Invalid
from falaj.core.frontier import HASH_BYTES, MAX_SIZE, Frontier, check_size, node_hash

TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT

Subtree = Callable[[int, int], bytes]
"""(height, index) -> the hash of the perfect subtree over leaves [index << height, (index + 1) << height)."""
TileReader = Callable[[int, int], Sequence[bytes]]
"""(level, index) -> the hashes of that tile, fewer than 256 when it is still growing."""


def grow(size: int, edge: Mapping[int, Sequence[bytes]], leaves: Sequence[bytes]) -> dict[tuple[int, int], list[bytes]]:
    """The tiles that change when `leaves` are added to a tree of `size`, whole, by (level, index).

    `edge` holds the growing tile of each level: (size >> 8*level) % 256 hashes.
    """
    check_size(size + len(leaves))
    changed: dict[tuple[int, int], list[bytes]] = {}
    level, count, fresh = 0, size, list(leaves)
    while fresh:
        index, inside = divmod(count, TILE_WIDTH)
        held = list(edge.get(level, ()))[:inside]
        if len(held) != inside:
            raise Corrupt(
                f"the growing tile of level {level} has {len(held)} hashes, not {inside}", "run: falaj audit check"
            )
        row = held + fresh
        tiles = [row[i : i + TILE_WIDTH] for i in range(0, len(row), TILE_WIDTH)]
        changed.update({(level, index + i): tile for i, tile in enumerate(tiles)})
        fresh = [perfect_root(tile) for tile in tiles if len(tile) == TILE_WIDTH]
        count >>= TILE_HEIGHT
        level += 1
    return changed


def perfect_root(hashes: Sequence[bytes]) -> bytes:
    """The root over a power of two of hashes."""
    row = list(hashes)
    while len(row) > 1:
        pairs = iter(row)
        row = [node_hash(left, right) for left, right in zip(pairs, pairs, strict=True)]
    return row[0]


class Tiles:
    """Hashes of perfect subtrees out of tiles; keeps what it has read, so use one for one proof or one export."""

    def __init__(self, read: TileReader) -> None:
        self._read = read
        self._held: dict[tuple[int, int], Sequence[bytes]] = {}

    @property
    def num_read(self) -> int:
        """How many tiles were needed so far."""
        return len(self._held)

    def subtree(self, height: int, index: int) -> bytes:
        """The hash of the perfect subtree of this height at this place."""
        level, inner = divmod(height, TILE_HEIGHT)
        first = index << inner
        tile = self._tile(level, first // TILE_WIDTH)
        start = first % TILE_WIDTH
        hashes = tile[start : start + (1 << inner)]
        if len(hashes) != 1 << inner:
            raise Corrupt(
                f"tile {level}/{first // TILE_WIDTH} of the audit log ends too early", "run: falaj audit check"
            )
        return perfect_root(hashes)

    def _tile(self, level: int, index: int) -> Sequence[bytes]:
        at = (level, index)
        if at not in self._held:
            self._held[at] = self._read(level, index)
        return self._held[at]


def frontier_at(size: int, subtree: Subtree) -> Frontier:
    """The frontier a tree had when it was `size` leaves."""
    check_size(size)
    hashes, start = [], 0
    for height in range(size.bit_length() - 1, -1, -1):
        if size >> height & 1:
            hashes.append(subtree(height, start >> height))
            start += 1 << height
    return Frontier(size, hashes)


def inclusion(index: int, size: int, subtree: Subtree) -> list[bytes]:
    """PATH(index, D[size]) of RFC 6962: the siblings from the leaf up to the root."""
    check_size(size)
    if not 0 <= index < size:
        raise Invalid(f"a tree of {size} has no leaf {index}", "ask for an event that is sealed")
    proof: list[bytes] = []
    start, stop = 0, size
    while stop - start > 1:
        middle = start + _split(stop - start)
        if index < middle:
            proof.append(_range_root(middle, stop, subtree))
            stop = middle
        else:
            proof.append(_range_root(start, middle, subtree))
            start = middle
    return proof[::-1]


def consistency(old: int, new: int, subtree: Subtree) -> list[bytes]:
    """PROOF(old, D[new]) of RFC 6962: what shows that the tree of `old` is the beginning of the tree of `new`."""
    check_size(new)
    if not 0 < old <= new:
        raise Invalid(f"there is no consistency proof from {old} to {new}", "1 <= from <= to")
    proof: list[bytes] = []
    start, stop, whole = 0, new, True
    while old != stop:
        middle = start + _split(stop - start)
        if old <= middle:
            proof.append(_range_root(middle, stop, subtree))
            stop = middle
        else:
            proof.append(_range_root(start, middle, subtree))
            start, whole = middle, False
    if not whole:
        proof.append(_range_root(start, stop, subtree))
    return proof[::-1]


def check_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162 section 2.1.3.2. False for any proof that is not exactly of the right length and content."""
    if not 0 <= index < size <= MAX_SIZE or not _hashes(leaf, root, *proof):
        return False
    fn, sn, node = index, size - 1, leaf
    for sibling in proof:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            node = node_hash(sibling, node)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            node = node_hash(node, sibling)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and node == root


def check_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """RFC 9162 section 2.1.4.2. A tree is consistent with itself by the empty proof; nothing is proven about size 0."""
    if not 0 < old <= new <= MAX_SIZE or not _hashes(old_root, new_root, *proof):
        return False
    if old == new:
        return not proof and old_root == new_root
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    if not path:
        return False
    fn, sn = old - 1, new - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    first = second = path[0]
    for node in path[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            first, second = node_hash(node, first), node_hash(node, second)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            second = node_hash(second, node)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and first == old_root and second == new_root


def _range_root(start: int, stop: int, subtree: Subtree) -> bytes:
    """MTH over leaves [start, stop), where start is a multiple of the smallest power of two that holds the range."""
    parts = []
    while start < stop:
        height = (stop - start).bit_length() - 1
        parts.append(subtree(height, start >> height))
        start += 1 << height
    node = parts[-1]
    for left in reversed(parts[:-1]):
        node = node_hash(left, node)
    return node


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def _hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_BYTES for value in values)
