"""Shards: every chunk is found, no other is, and a damaged index is noticed."""

import random
import time

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import CorruptData
from falaj.snapshot.shard import ChunkLocation, ChunkShard, ShardIndex, encode_shard, to_mapped_bytes

PACKS = [(f"b3:{'a' * 64}", 1 << 24), (f"b3:{'b' * 64}", 1 << 40)]


@given(st.sets(st.binary(min_size=32, max_size=32), max_size=60), st.binary(min_size=32, max_size=32))
def test_what_is_in_is_found_and_nothing_else(digests: set[bytes], other: bytes) -> None:
    shard = ChunkShard(encode_shard(PACKS, [(digest, 1, index, 5) for index, digest in enumerate(sorted(digests))]))
    for change in (shard.learn, shard.forget):
        for digest in digests:
            found = shard.find(digest)
            assert found is not None
            assert found.pack == b"\xbb" * 32
        assert (shard.find(other) is not None) == (other in digests)
        change()
    assert dict(shard.chunks()).keys() == digests


def test_digests_that_are_not_spread_are_found_too() -> None:
    digests = [bytes(24) + i.to_bytes(8, "big") for i in range(5_000)] + [b"\xff" * 24 + bytes(8)]
    shard = ChunkShard(encode_shard(PACKS, [(digest, 0, 1, 2) for digest in sorted(digests)]))
    assert all(shard.find(digest) == ChunkLocation(b"\xaa" * 32, 1, 2) for digest in digests)
    assert shard.find(bytes(23) + b"\1" + bytes(8)) is None


def test_a_lookup_takes_microseconds_in_a_mapped_file() -> None:
    digests = [blake3(b"%d" % i).digest() for i in range(100_000)]
    shard = ChunkShard(to_mapped_bytes((encode_shard(PACKS, [(digest, 0, 1, 2) for digest in sorted(digests)]),)))
    asked = random.Random(1).sample(digests, 5_000)
    begun = time.process_time()
    assert all(shard.find(digest) for digest in asked)
    assert (time.process_time() - begun) / len(asked) < 50e-6


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"x", lambda d: b"", lambda d: b"XXX" + d[3:]])
def test_a_damaged_shard_is_corrupt(change: object) -> None:
    data = encode_shard(PACKS, [(b"d" * 32, 0, 1, 2)])
    with pytest.raises(CorruptData):
        ChunkShard(change(data))  # type: ignore[operator]
    with pytest.raises(CorruptData):
        ChunkShard(data[:3] + b"\x09" + data[4:])


@pytest.mark.parametrize("record", [(b"d" * 32, 2, 0, 1), (b"d" * 32, 0, 5, 1 << 24), (b"d" * 32, 0, 0, (1 << 24) + 1)])
def test_a_chunk_outside_its_pack_is_corrupt(record: tuple[bytes, int, int, int]) -> None:
    with pytest.raises(CorruptData):
        ChunkShard(encode_shard(PACKS, [record])).find(b"d" * 32)


def test_batches_are_asked_newest_first_and_only_as_far_as_needed() -> None:
    loaded: list[int] = []

    def shard(number: int, count: int) -> ChunkShard:
        loaded.append(number)
        digests = [blake3(b"%d %d" % (number, i)).digest() for i in range(count)]
        return ChunkShard(encode_shard(PACKS, [(digest, 0, 1, 2) for digest in sorted(digests)]))

    index = ShardIndex([lambda: shard(0, 5_000), lambda: shard(1, 3), lambda: shard(2, 5_000)])
    assert index.find(blake3(b"2 7").digest()) == (2, ChunkLocation(b"\xaa" * 32, 1, 2))
    assert loaded == [2]
    assert index.find(blake3(b"1 1").digest()) == (1, ChunkLocation(b"\xaa" * 32, 1, 2))
    assert index.find(b"n" * 32) is None
    assert index.find(blake3(b"0 4999").digest()) == (0, ChunkLocation(b"\xaa" * 32, 1, 2))
    assert loaded == [2, 1, 0]


def test_one_batch_at_a_time_is_known_by_heart() -> None:
    """Whoever reads much of one finds it by a map; the other's is given back."""
    batches = [[bytes([which]) + number.to_bytes(31, "big") for number in range(5_000)] for which in (0, 1)]
    shards = [
        ChunkShard(encode_shard(PACKS, [(digest, 0, which, 2) for digest in every]))
        for which, every in enumerate(batches)
    ]
    index = ShardIndex([iter([shard]).__next__ for shard in shards], builds_map=True)
    for which in (0, 1, 0):
        assert all(index.find(digest) == (which, ChunkLocation(b"\xaa" * 32, which, 2)) for digest in batches[which])
        assert [bool(shard._offset_by_digest) for shard in shards] == [which == 0, which == 1]
    assert index.find(b"\2" * 32) is None
