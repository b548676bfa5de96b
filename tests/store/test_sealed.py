"""The sealed form opens whole, in ranges, and not at all when anything about it changed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid
from falaj.store.sealed_format import (
    CHUNK_BYTES,
    HEAD_BYTES,
    TAG_BYTES,
    ObjectCipher,
    ObjectIdentity,
    create_sealed_head,
    split_into_chunks,
)
from tests.store.blobhouse import noise

KEY = bytes(range(32))
PLACE = ObjectIdentity("acme", "home", "a" * 64)
SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17)
BIG = noise(3 * CHUNK_BYTES + 17)


def seal_of(size: int, head: bytes = b"\x01prefix0") -> ObjectCipher:
    return ObjectCipher(KEY, PLACE, size, head)


def sealed(data: bytes, seal: ObjectCipher | None = None) -> bytes:
    return b"".join(bytes(piece) for piece in (seal or seal_of(len(data))).seal(split_into_chunks([data])))


SEALED = sealed(BIG)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_sealed_opens_again(size: int) -> None:
    data = BIG[:size]
    seal = seal_of(size)
    closed = sealed(data, seal)
    assert len(closed) == seal.sealed_size == HEAD_BYTES + size + TAG_BYTES * max(1, -(-size // CHUNK_BYTES))
    assert b"".join(seal.open_all(closed)) == data
    assert size < 64 or data[:64] not in closed


@given(cut=st.integers(0, len(SEALED) - 1))
@settings(max_examples=60, deadline=None)
def test_every_truncation_fails(cut: int) -> None:
    with pytest.raises(CorruptData):
        seal_of(len(BIG)).open_all(SEALED[:cut])


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_truncation_at_a_chunk_fails_even_when_the_size_is_believed(chunks: int) -> None:
    """Who can also change the recorded size still cannot pass a shorter object off: the last flag is in the nonce."""
    cut = SEALED[: HEAD_BYTES + chunks * (CHUNK_BYTES + TAG_BYTES)]
    with pytest.raises(CorruptData):
        seal_of(chunks * CHUNK_BYTES).open_all(cut)


@pytest.mark.parametrize(
    "extra", [b"\0", b"x" * (CHUNK_BYTES + TAG_BYTES), SEALED[HEAD_BYTES : HEAD_BYTES + CHUNK_BYTES + TAG_BYTES]]
)
def test_bytes_added_fail(extra: bytes) -> None:
    with pytest.raises(CorruptData):
        seal_of(len(BIG)).open_all(SEALED + extra)
    with pytest.raises(CorruptData):
        seal_of(len(BIG) + len(extra) - TAG_BYTES).open_all(SEALED + extra)


@given(at=st.integers(0, len(SEALED) - 1), bit=st.integers(0, 7))
@settings(max_examples=80, deadline=None)
def test_every_flipped_bit_fails(at: int, bit: int) -> None:
    broken = bytearray(SEALED)
    broken[at] ^= 1 << bit
    with pytest.raises(CorruptData):
        seal_of(len(BIG)).open_all(bytes(broken))


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 2), (0, 2)])
def test_every_reordering_fails(a: int, b: int) -> None:
    step = CHUNK_BYTES + TAG_BYTES
    chunks = [SEALED[HEAD_BYTES + i * step : HEAD_BYTES + (i + 1) * step] for i in range(4)]
    chunks[a], chunks[b] = chunks[b], chunks[a]
    with pytest.raises(CorruptData):
        seal_of(len(BIG)).open_all(SEALED[:HEAD_BYTES] + b"".join(chunks))


@pytest.mark.parametrize(
    "place",
    [
        ObjectIdentity("bank", "home", "a" * 64),
        ObjectIdentity("acme", "eu", "a" * 64),
        ObjectIdentity("acme", "home", "b" * 64),
        ObjectIdentity("acmehome", "", "a" * 64),
        ObjectIdentity("acm", "ehome", "a" * 64),
    ],
)
def test_another_place_fails_even_with_the_right_key(place: ObjectIdentity) -> None:
    with pytest.raises(CorruptData):
        replace(seal_of(len(BIG)), place=place).open_all(SEALED)


def test_another_key_fails() -> None:
    with pytest.raises(CorruptData):
        ObjectCipher(bytes(32), PLACE, len(BIG), SEALED[:HEAD_BYTES]).open_all(SEALED)


@pytest.mark.parametrize("suite", [0, 2, 255])
def test_an_unknown_suite_fails(suite: int) -> None:
    with pytest.raises(CorruptData):
        seal_of(1, bytes((suite,)) + b"prefix0")


@given(span=st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted))
@settings(max_examples=30, deadline=None)
def test_any_run_of_chunks_opens_alone(span: list[int]) -> None:
    first, last = span
    seal = seal_of(len(BIG))
    start, stop = seal.span(first, last)
    assert b"".join(seal.open_run(first, SEALED[start:stop])) == BIG[first * CHUNK_BYTES : last * CHUNK_BYTES]


def test_a_chunk_that_is_not_there_fails() -> None:
    with pytest.raises(CorruptData):
        seal_of(1).open_chunk(1, b"x" * TAG_BYTES)


@pytest.mark.parametrize("size", [4, 6, CHUNK_BYTES + 5])
def test_more_or_fewer_bytes_than_announced_are_refused(size: int) -> None:
    with pytest.raises(Invalid):
        sealed(b"12345", seal_of(size))


def test_heads_differ_and_nonces_never_repeat() -> None:
    assert len({create_sealed_head() for _ in range(1000)}) == 1000
    seal = seal_of(5 * CHUNK_BYTES)
    assert len({seal._make_nonce(i) for i in range(5)} | {seal_of(4 * CHUNK_BYTES)._make_nonce(3)}) == 6


def test_no_key_in_the_repr() -> None:
    assert KEY.hex() not in repr(seal_of(1))
    assert repr(KEY) not in repr(seal_of(1))


@given(sizes=st.lists(st.integers(0, 50), max_size=30), size=st.integers(1, 40))
def test_rechunk_keeps_the_bytes(sizes: list[int], size: int) -> None:
    data = [noise(n, i) for i, n in enumerate(sizes)]
    pieces = list(split_into_chunks(data, size))
    assert b"".join(pieces) == b"".join(data)
    assert all(len(piece) == size for piece in pieces[:-1])
    assert all(0 < len(piece) <= size for piece in pieces[-1:])


def test_rechunk_lets_its_caller_reuse_a_buffer() -> None:
    def reusing() -> object:
        buffer = bytearray(3)
        for i in range(4):
            buffer[:] = bytes((i,)) * 3
            yield memoryview(buffer)

    assert b"".join(split_into_chunks(reusing(), 5)) == b"\0\0\0\1\1\1\2\2\2\3\3\3"  # type: ignore[arg-type]
