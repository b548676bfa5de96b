"""The tree against RFC 6962: published vectors, the recursive definition as an oracle, and hostile proofs."""

import hashlib
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.audit import merkle
from falaj.core.errors import CorruptData, Invalid
from falaj.core.merkle_frontier import EMPTY_ROOT, MerkleFrontier, hash_leaf, hash_nodes
from tests.audit import oracle

VECTOR_LEAVES = [
    bytes.fromhex(x)
    for x in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
VECTOR_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaves_of(count: int) -> list[bytes]:
    return [hash_leaf(str(i).encode()) for i in range(count)]


def tiles_of(leaves: list[bytes], steps: int = 1) -> merkle.TileTree:
    """Tiles grown in `steps` uneven parts, as sealing grows them."""
    store: dict[tuple[int, int], list[bytes]] = {}
    cuts = sorted({0, len(leaves), *(random.Random(steps).randrange(len(leaves) + 1) for _ in range(steps - 1))})
    for start, stop in itertools.pairwise(cuts):
        edge = {level: store.get((level, (start >> 8 * level) // 256), []) for level in range(8)}
        store.update(merkle.grow_tiles(start, edge, leaves[start:stop]))
    return merkle.TileTree(lambda level, index: store[level, index])


def test_the_published_roots() -> None:
    frontier = MerkleFrontier()
    assert frontier.root() == hashlib.sha256(b"").digest()
    for data, root in zip(VECTOR_LEAVES, VECTOR_ROOTS, strict=True):
        frontier.append(hash_leaf(data))
        assert frontier.root().hex() == root


def test_the_published_proofs() -> None:
    """Inclusion and consistency proofs of the certificate-transparency test suite."""
    tiles = tiles_of([hash_leaf(data) for data in VECTOR_LEAVES])
    assert [h.hex() for h in merkle.prove_inclusion(0, 8, tiles.subtree)] == [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ]
    assert [h.hex() for h in merkle.prove_inclusion(5, 8, tiles.subtree)] == [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]
    assert [h.hex() for h in merkle.prove_consistency(6, 8, tiles.subtree)] == [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ]


def test_every_small_tree_agrees_with_the_definition() -> None:
    leaves = leaves_of(40)
    for size in range(1, 41):
        tiles = tiles_of(leaves[:size])
        root = oracle.root(leaves[:size])
        assert merkle.compute_frontier(size, tiles.subtree).root() == root
        for index in range(size):
            proof = merkle.prove_inclusion(index, size, tiles.subtree)
            assert proof == oracle.path(index, leaves[:size])
            assert merkle.verify_inclusion(leaves[index], index, size, proof, root)
        for old in range(1, size + 1):
            proof = merkle.prove_consistency(old, size, tiles.subtree)
            assert proof == oracle.consistency(old, leaves[:size])
            assert merkle.verify_consistency(old, size, oracle.root(leaves[:old]), root, proof)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1500), st.integers(1, 7), st.randoms(use_true_random=False))
def test_tiles_grown_in_any_steps_give_the_same_proofs(size: int, steps: int, dice: random.Random) -> None:
    leaves = leaves_of(size)
    tiles = tiles_of(leaves, steps)
    index, old = dice.randrange(size), dice.randrange(1, size + 1)
    assert merkle.prove_inclusion(index, size, tiles.subtree) == oracle.path(index, leaves)
    assert merkle.prove_consistency(old, size, tiles.subtree) == oracle.consistency(old, leaves)
    assert merkle.compute_frontier(old, tiles.subtree).root() == oracle.root(leaves[:old])


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 64), st.data())
def test_a_changed_proof_is_refused(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    tiles = tiles_of(leaves)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    root, old_root = oracle.root(leaves), oracle.root(leaves[:old])
    path, proof = merkle.prove_inclusion(index, size, tiles.subtree), merkle.prove_consistency(old, size, tiles.subtree)
    extra = data.draw(st.binary(min_size=32, max_size=32))
    for longer in (
        *([*path[:i], extra, *path[i:]] for i in range(len(path) + 1)),
        *(path[:i] + path[i + 1 :] for i in range(len(path))),
    ):
        assert not merkle.verify_inclusion(leaves[index], index, size, longer, root)
    for longer in (
        *([*proof[:i], extra, *proof[i:]] for i in range(len(proof) + 1)),
        *(proof[:i] + proof[i + 1 :] for i in range(len(proof))),
    ):
        assert not merkle.verify_consistency(old, size, old_root, root, longer)
    for other in range(size):
        if other != index:
            assert not merkle.verify_inclusion(leaves[index], other, size, path, root)
    assert not merkle.verify_consistency(old, size, extra, root, proof)
    assert not merkle.verify_consistency(old, size, old_root, extra, proof)


def test_sizes_of_nothing_and_too_much_are_refused() -> None:
    leaf = leaves_of(1)[0]
    tiles = tiles_of([leaf])
    for size in (0, -1, 2**63, 2**64):
        assert not merkle.verify_inclusion(leaf, 0, size, [], leaf)
        assert not merkle.verify_consistency(1, size, leaf, leaf, [])
        with pytest.raises(Invalid):
            merkle.prove_inclusion(0, size, tiles.subtree)
    assert not merkle.verify_consistency(0, 1, EMPTY_ROOT, leaf, [])
    assert not merkle.verify_inclusion(leaf, 1, 1, [], leaf)
    assert not merkle.verify_inclusion(leaf, -1, 1, [], leaf)
    assert not merkle.verify_inclusion(leaf[:31], 0, 1, [], leaf[:31])
    assert not merkle.verify_consistency(2, 1, leaf, leaf, [])
    with pytest.raises(Invalid):
        merkle.prove_consistency(0, 1, tiles.subtree)
    with pytest.raises(Invalid):
        MerkleFrontier(2**63, [])
    with pytest.raises(CorruptData):
        MerkleFrontier(3, [leaf])
    with pytest.raises(CorruptData):
        merkle.grow_tiles(5, {0: [leaf]}, [leaf])


def test_a_proof_over_millions_reads_a_handful_of_tiles() -> None:
    """A tree of 2**24 + 77 leaves, all equal, so that every tile can be made up on the spot."""
    size = 2**24 + 77
    towers = [leaves_of(1)[0]]
    for _ in range(30):
        towers.append(hash_nodes(towers[-1], towers[-1]))
    tiles = merkle.TileTree(lambda level, index: [towers[8 * level]] * min(256, (size >> 8 * level) - 256 * index))
    root = merkle.compute_frontier(size, tiles.subtree).root()
    for index in (0, 1_234_567, 2**24 - 1, 2**24, size - 1):
        fresh = merkle.TileTree(tiles.read_tile)
        proof = merkle.prove_inclusion(index, size, fresh.subtree)
        assert merkle.verify_inclusion(towers[0], index, size, proof, root)
        assert fresh.num_read <= 8
    fresh = merkle.TileTree(tiles.read_tile)
    proof = merkle.prove_consistency(9_999_999, size, fresh.subtree)
    assert merkle.verify_consistency(
        9_999_999, size, merkle.compute_frontier(9_999_999, tiles.subtree).root(), root, proof
    )
    assert fresh.num_read <= 12
