"""The Merkle tree of RFC 6962 as it is stored and proved: tiles of 256 hashes, and the two proofs.

Pure: no store and no clock. A proof needs the hashes of perfect subtrees only; `TileTree` finds each in one tile, so a
proof over millions of events reads a handful of tiles.
"""

from collections.abc import Callable, Mapping, Sequence

from falaj.core.errors import CorruptData, Invalid
from falaj.core.merkle_frontier import HASH_BYTES, MAX_LOG_SIZE, MerkleFrontier, check_log_size, hash_nodes

TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT

ReadSubtree = Callable[[int, int], bytes]
"""(height, index) -> the hash of the perfect subtree over leaves [index << height, (index + 1) << height)."""
ReadTile = Callable[[int, int], Sequence[bytes]]
"""(level, index) -> the hashes of that tile, fewer than 256 when it is still growing."""


def grow_tiles(
    size: int, growing_tiles: Mapping[int, Sequence[bytes]], leaves: Sequence[bytes]
) -> dict[tuple[int, int], list[bytes]]:
    """The tiles that change when `leaves` are added to a tree of `size`, whole, by (level, index).

    `growing_tiles` holds the growing tile of each level: (size >> 8*level) % 256 hashes.
    """
    check_log_size(size + len(leaves))
    changed_tiles: dict[tuple[int, int], list[bytes]] = {}
    level, count, new_hashes = 0, size, list(leaves)
    while new_hashes:
        index, tile_count = divmod(count, TILE_WIDTH)
        tile_hashes = list(growing_tiles.get(level, ()))[:tile_count]
        if len(tile_hashes) != tile_count:
            raise CorruptData(
                f"the growing tile of level {level} has {len(tile_hashes)} hashes, not {tile_count}",
                "run: falaj audit check",
            )
        level_hashes = tile_hashes + new_hashes
        tiles = [level_hashes[i : i + TILE_WIDTH] for i in range(0, len(level_hashes), TILE_WIDTH)]
        changed_tiles.update({(level, index + i): tile for i, tile in enumerate(tiles)})
        new_hashes = [compute_perfect_root(tile) for tile in tiles if len(tile) == TILE_WIDTH]
        count >>= TILE_HEIGHT
        level += 1
    return changed_tiles


def compute_perfect_root(hashes: Sequence[bytes]) -> bytes:
    """The root over a power of two of hashes."""
    level_hashes = list(hashes)
    while len(level_hashes) > 1:
        pairs = iter(level_hashes)
        level_hashes = [hash_nodes(left, right) for left, right in zip(pairs, pairs, strict=True)]
    return level_hashes[0]


class TileTree:
    """Hashes of perfect subtrees out of tiles; keeps what it has read, so use one for one proof or one export."""

    def __init__(self, read_tile: ReadTile) -> None:
        self.read_tile = read_tile
        self.cached_tiles: dict[tuple[int, int], Sequence[bytes]] = {}

    @property
    def num_read(self) -> int:
        """How many tiles were needed so far."""
        return len(self.cached_tiles)

    def subtree(self, height: int, index: int) -> bytes:
        """The hash of the perfect subtree of this height at this place."""
        level, inner_height = divmod(height, TILE_HEIGHT)
        first = index << inner_height
        tile = self.get_tile(level, first // TILE_WIDTH)
        start = first % TILE_WIDTH
        hashes = tile[start : start + (1 << inner_height)]
        if len(hashes) != 1 << inner_height:
            raise CorruptData(
                f"tile {level}/{first // TILE_WIDTH} of the audit log ends too early", "run: falaj audit check"
            )
        return compute_perfect_root(hashes)

    def get_tile(self, level: int, index: int) -> Sequence[bytes]:
        tile_key = (level, index)
        if tile_key not in self.cached_tiles:
            self.cached_tiles[tile_key] = self.read_tile(level, index)
        return self.cached_tiles[tile_key]


def compute_frontier(size: int, read_subtree: ReadSubtree) -> MerkleFrontier:
    """The frontier a tree had when it was `size` leaves."""
    check_log_size(size)
    hashes, start = [], 0
    for height in range(size.bit_length() - 1, -1, -1):
        if size >> height & 1:
            hashes.append(read_subtree(height, start >> height))
            start += 1 << height
    return MerkleFrontier(size, hashes)


def prove_inclusion(index: int, size: int, read_subtree: ReadSubtree) -> list[bytes]:
    """PATH(index, D[size]) of RFC 6962: the siblings from the leaf up to the root."""
    check_log_size(size)
    if not 0 <= index < size:
        raise Invalid(f"a tree of {size} has no leaf {index}", "ask for an event that is sealed")
    proof: list[bytes] = []
    start, stop = 0, size
    while stop - start > 1:
        middle = start + _largest_power_below(stop - start)
        if index < middle:
            proof.append(_compute_range_root(middle, stop, read_subtree))
            stop = middle
        else:
            proof.append(_compute_range_root(start, middle, read_subtree))
            start = middle
    return proof[::-1]


def prove_consistency(old: int, new: int, read_subtree: ReadSubtree) -> list[bytes]:
    """PROOF(old, D[new]) of RFC 6962: what shows that the tree of `old` is the beginning of the tree of `new`."""
    check_log_size(new)
    if not 0 < old <= new:
        raise Invalid(f"there is no consistency proof from {old} to {new}", "1 <= from <= to")
    proof: list[bytes] = []
    start, stop, is_complete = 0, new, True
    while old != stop:
        middle = start + _largest_power_below(stop - start)
        if old <= middle:
            proof.append(_compute_range_root(middle, stop, read_subtree))
            stop = middle
        else:
            proof.append(_compute_range_root(start, middle, read_subtree))
            start, is_complete = middle, False
    if not is_complete:
        proof.append(_compute_range_root(start, stop, read_subtree))
    return proof[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162 section 2.1.3.2. False for any proof that is not exactly of the right length and content."""
    if not 0 <= index < size <= MAX_LOG_SIZE or not _are_hashes(leaf, root, *proof):
        return False
    node_index, last_index, node_value = index, size - 1, leaf
    for sibling in proof:
        if last_index == 0:
            return False
        if node_index & 1 or node_index == last_index:
            node_value = hash_nodes(sibling, node_value)
            while not node_index & 1 and node_index:
                node_index, last_index = node_index >> 1, last_index >> 1
        else:
            node_value = hash_nodes(node_value, sibling)
        node_index, last_index = node_index >> 1, last_index >> 1
    return last_index == 0 and node_value == root


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """RFC 9162 section 2.1.4.2. A tree is consistent with itself by the empty proof; nothing is proven about size 0."""
    if not 0 < old <= new <= MAX_LOG_SIZE or not _are_hashes(old_root, new_root, *proof):
        return False
    if old == new:
        return not proof and old_root == new_root
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    if not path:
        return False
    node_index, last_index = old - 1, new - 1
    while node_index & 1:
        node_index, last_index = node_index >> 1, last_index >> 1
    old_value = new_value = path[0]
    for node in path[1:]:
        if last_index == 0:
            return False
        if node_index & 1 or node_index == last_index:
            old_value, new_value = hash_nodes(node, old_value), hash_nodes(node, new_value)
            while not node_index & 1 and node_index:
                node_index, last_index = node_index >> 1, last_index >> 1
        else:
            new_value = hash_nodes(new_value, node)
        node_index, last_index = node_index >> 1, last_index >> 1
    return last_index == 0 and old_value == old_root and new_value == new_root


def _compute_range_root(start: int, stop: int, read_subtree: ReadSubtree) -> bytes:
    """MTH over leaves [start, stop), where start is a multiple of the smallest power of two that holds the range."""
    subtree_hashes = []
    while start < stop:
        height = (stop - start).bit_length() - 1
        subtree_hashes.append(read_subtree(height, start >> height))
        start += 1 << height
    node = subtree_hashes[-1]
    for left in reversed(subtree_hashes[:-1]):
        node = hash_nodes(left, node)
    return node


def _largest_power_below(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def _are_hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_BYTES for value in values)
