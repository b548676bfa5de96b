"""Rows sealed for each person: round trips, destroyed keys, altered bytes, the table of keys, and hostile tables."""

import hashlib
import pickle
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.person_sealing import (
    PSEUDONYM_BYTES,
    PersonKeys,
    decode_person_keys,
    decrypt_blocks,
    encode_person_keys,
    encrypt_runs,
    generate_person_keys,
    make_associated_data,
)
from falaj.core.errors import Conflict, CorruptData, FalajError, Invalid

AAD = make_associated_data("bank", "ae-dubai", "dataset:fraud/spend.rows1", "p0001-of-0004-00000000000000a0.seg")
NAMES = st.binary(min_size=16, max_size=16)
# Names that end in zeros, or differ in their last byte only: what a comparison of texts might take for equal.
NEAR = st.tuples(st.sampled_from([b"\0" * 15, b"a" + b"\0" * 14]), st.binary(min_size=1, max_size=1)).map(b"".join)


def refused(act: object, kind: type[FalajError]) -> None:
    with pytest.raises(kind):
        act()  # type: ignore[operator]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.one_of(NAMES, NEAR), st.binary(max_size=400)), max_size=30), st.data())
def test_runs_open_as_they_were_and_only_those_of_whom_is_left(
    runs: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    names, plain = [name for name, _ in runs], [run for _, run in runs]
    keys = decode_person_keys(encode_person_keys(generate_person_keys(names)))
    blocks = encrypt_runs(plain, names, keys, AAD)
    assert decrypt_blocks(blocks, names, keys, AAD) == plain
    gone = data.draw(st.sets(st.sampled_from(names))) if names else set()
    left = keys.without(list(gone))
    assert decrypt_blocks(blocks, names, left, AAD) == [None if name in gone else run for name, run in runs]
    assert left.missing(names) == sorted(gone)
    assert len(left) == len(set(names)) - len(gone)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(NAMES, NEAR), min_size=1, max_size=40, unique=True), st.data())
def test_tables_are_sets(names: list[bytes], data: st.DataObject) -> None:
    keys = generate_person_keys(names)
    some = data.draw(st.sets(st.sampled_from(names)))
    parts = keys.without(list(some)), keys.without([name for name in names if name not in some])
    assert parts[0].merge(parts[1]) == parts[1].merge(parts[0]) == keys == keys.merge(parts[0])
    assert len(encode_person_keys(keys)) == 24 + 48 * len(names)
    assert [key is None for key in parts[0].take(names)] == [name in some for name in names]
    assert len(set(keys.take(names))) == len(names), "two people share a key"
    if some:
        refused(lambda: keys.merge(generate_person_keys(list(some))), Conflict)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_break_the_table(noise: bytes) -> None:
    good = encode_person_keys(generate_person_keys([bytes([i]) * 16 for i in range(4)]))
    for hostile in (noise, good[:24] + noise, good[: len(noise)] + noise, noise[:16].ljust(16) + good[16:]):
        if hostile != good:
            with suppress(CorruptData):
                assert encode_person_keys(decode_person_keys(hostile)) == hostile


def test_a_table_out_of_order_or_with_a_name_twice_is_refused() -> None:
    good = encode_person_keys(generate_person_keys([b"a" * 16, b"b" * 16]))
    head, first, second, keys = good[:24], good[24:40], good[40:56], good[56:]
    refused(lambda: decode_person_keys(head + second + first + keys), CorruptData)
    refused(lambda: decode_person_keys(head + first + first + keys), CorruptData)
    refused(lambda: decode_person_keys(good[:16] + (2**64 - 1).to_bytes(8, "little") + good[24:]), CorruptData)
    refused(lambda: decode_person_keys(good + b"\0"), CorruptData)


def test_every_altered_moved_or_lent_block_is_refused() -> None:
    names = [b"a" * 16, b"b" * 16, b"a" * 16]
    keys = generate_person_keys(names)
    blocks = encrypt_runs([b"one", b"two", b"three"], names, keys, AAD)
    for at in range(len(blocks[0])):
        torn = bytearray(blocks[0])
        torn[at] ^= 1
        refused(lambda torn=torn: decrypt_blocks([bytes(torn)], names[:1], keys, AAD), CorruptData)
        refused(lambda at=at: decrypt_blocks([blocks[0][:at]], names[:1], keys, AAD), CorruptData)
    # The same person's blocks in each other's place, another's name on it, another segment, zone or tenant.
    refused(lambda: decrypt_blocks([blocks[2], blocks[1], blocks[0]], names, keys, AAD), CorruptData)
    refused(lambda: decrypt_blocks(blocks[:1], [b"b" * 16], keys, AAD), CorruptData)
    parts = ("bank", "ae-dubai", "dataset:fraud/spend.rows1", "p0001-of-0004-00000000000000a0.seg")
    for other in range(4):
        aad = make_associated_data(*(part + "x" if i == other else part for i, part in enumerate(parts)))
        refused(lambda aad=aad: decrypt_blocks(blocks, names, keys, aad), CorruptData)
    assert make_associated_data("a", "bc", "", "") != make_associated_data("ab", "c", "", "")
    assert decrypt_blocks(blocks[2:], names[2:], keys, AAD, [2]) == [b"three"]
    refused(lambda: decrypt_blocks(blocks, names[:2], keys, AAD), Invalid)
    refused(lambda: decrypt_blocks(blocks, names, keys, AAD, [0, 1]), Invalid)


def test_who_has_no_key_is_not_sealed_and_no_two_seals_are_equal() -> None:
    keys = generate_person_keys([b"a" * 16])
    refused(lambda: encrypt_runs([b"x"], [b"b" * 16], keys, AAD), Invalid)
    refused(lambda: encrypt_runs([b"x"], [b"a"], keys, AAD), Invalid)
    refused(lambda: encrypt_runs([b"x"], [], keys, AAD), Invalid)
    again = [encrypt_runs([b"x"], [b"a" * 16], keys, AAD)[0] for _ in range(50)]
    assert len({block[1:13] for block in again}) == 50
    assert decrypt_blocks([memoryview(again[0])], [b"a" * 16], keys, AAD) == [b"x"]
    assert decrypt_blocks(again[:1], [b"a" * 16], generate_person_keys([]), AAD) == [None]


def test_keys_stay_out_of_sight() -> None:
    keys = generate_person_keys([b"a" * 16])
    assert repr(keys) == "Keys(1 people)"
    with pytest.raises(TypeError):
        pickle.dumps(keys)


def test_names_are_found_whatever_their_order() -> None:
    names = [hashlib.sha256(str(i).encode()).digest()[:PSEUDONYM_BYTES] for i in range(1000)]
    keys = generate_person_keys(names[::2])
    found = keys.find(names)
    assert (found >= 0).tolist() == [i % 2 == 0 for i in range(1000)]
    by_place = sorted((int(at), name) for at, name in zip(found, names, strict=True) if at >= 0)
    assert all(a[1] < b[1] for a, b in pairwise(by_place))
    assert isinstance(keys, PersonKeys)
