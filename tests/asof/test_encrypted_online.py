"""Rows of the online store are encrypted with a key of their space, and open at their own place only."""

import contextlib
import hashlib
import os
import pickle
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from falaj.asof.encrypted_online_store import KEY_REFRESH_INTERVAL_S, EncryptedOnlineStore
from falaj.asof.space_keys import (
    SpaceKeys,
    decrypt_space_keys,
    derive_hash_key,
    derive_space_key,
    encode_space_keys,
    encrypt_space_keys,
    make_key_finder,
)
from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.core.errors import Conflict, CorruptData, Invalid, NotFound, Unavailable
from falaj.core.online_rows import pack_rank, unpack_entry
from falaj.core.ports import OnlineStore
from falaj.govern.keyring import ONLINE_SETTLE_S
from tests.govern.keyhouse import House
from tests.town import refusal

NOW = 1_700_000_000_000_000
TENANT_KEY, NAME_KEY = bytes(range(32)), bytes(range(32, 64))
SECRET = b"salary 31,400"
PERSON = b"784-1990-1234567-1"


def row_at(event_us: int, value: bytes = SECRET) -> bytes:
    return pack_rank(event_us, 0, 0) + value


def find_keys(space: str) -> SpaceKeys:
    return SpaceKeys({1: derive_space_key(TENANT_KEY, space)}, 1, 1, derive_hash_key(NAME_KEY, space))


def stored_key(key: bytes, space: str = "s") -> bytes:
    return hashlib.blake2b(key, digest_size=16, key=derive_hash_key(NAME_KEY, space)).digest()


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[OnlineStore]:
    store: OnlineStore = LmdbOnlineStore(f"lmdb:{tmp_path}/online")
    with contextlib.closing(store):
        yield store


def test_rows_of_every_form_come_back(raw: OnlineStore) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    rows = [(b"present", row_at(NOW)), (b"waiting", row_at(NOW)), (b"waiting", row_at(NOW + 9)), (b"", row_at(1, b"e"))]
    assert store.put("s", [*rows, (b"bare", pack_rank(0, 0, 0))], NOW) == 5
    keys = [b"present", b"missing", b"waiting", b"", b"bare"]
    (cells,) = store.get([("s", keys)])
    assert cells[0] == row_at(NOW)
    assert cells[1] is None
    assert cells[2] is not None
    assert unpack_entry(cells[2]) == [row_at(NOW), row_at(NOW + 9)]
    assert cells[3:] == [row_at(1, b"e"), pack_rank(0, 0, 0)]
    assert store.get([("s", [b"present"]), ("s", [])]) == [[row_at(NOW)], []]


def test_store_beneath_sees_rank_and_hashed_key_alone(raw: OnlineStore) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    store.put("s", [(PERSON, row_at(NOW))], NOW)
    store.note("s", b"[7]")
    ((key, cell),) = raw.scan("s")
    assert key == stored_key(PERSON)
    assert PERSON not in cell
    assert cell[:24] == pack_rank(NOW, 0, 0)
    assert SECRET not in cell
    assert raw.note("s") != b"[7]"
    assert store.note("s") == b"[7]"


def test_newest_row_stands_whatever_order_they_come_in(raw: OnlineStore) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    for event, value in ((5, b"five"), (3, b"three"), (5, b"repeated")):
        store.put("s", [(b"k", row_at(event, value))], NOW)
    assert store.get([("s", [b"k"])]) == [[row_at(5, b"five")]]


def test_no_two_rows_share_a_nonce(raw: OnlineStore) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    store.put("s", [(b"%d" % number, row_at(NOW)) for number in range(2000)], NOW)
    assert len({cell[28:40] for _, cell in raw.scan("s")}) == 2000


def test_no_byte_of_the_file_names_a_person_after_rows_were_replaced_and_deleted(
    raw: OnlineStore, tmp_path: Path
) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    others = [(b"%d" % number, row_at(NOW)) for number in range(500)]
    for event in range(5):
        store.put("s", [(PERSON, row_at(NOW + event)), *others], NOW + 9)
        store.put("refused", [(PERSON, pack_rank(0, 0, 0))], NOW)
    file = tmp_path / "online" / "data.mdb"
    assert PERSON not in file.read_bytes()
    assert [store.delete(space, [PERSON]) for space in ("s", "refused")] == [1, 1]
    assert PERSON not in file.read_bytes()
    assert store.get([("s", [PERSON]), ("refused", [PERSON])]) == [[None], [None]]


def test_scan_gives_entity_keys_page_by_page(raw: OnlineStore) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    rows = {b"%d" % number: row_at(NOW) for number in range(300)} | {b"": row_at(NOW)}
    waiting = (b"0", row_at(NOW + 9))
    store.put("s", [*rows.items(), *((b"bare%d" % number, pack_rank(0, 0, 0)) for number in range(300)), waiting], NOW)
    opened: list[tuple[bytes, bytes]] = []
    while page := store.scan("s", opened[-1][0] if opened else None, 7):
        opened += page
    cells = dict(opened)
    assert len(opened) == len(cells)
    assert unpack_entry(cells.pop(b"0")) == [row_at(NOW), row_at(NOW + 9)]
    assert cells == {key: row for key, row in rows.items() if key != b"0"}
    assert store.scan("other") == []


@pytest.mark.parametrize("place", [("s", b"other"), ("t", b"k")])
def test_row_moved_to_another_place_does_not_open(raw: OnlineStore, place: tuple[str, bytes]) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    store.put("s", [(b"k", row_at(NOW))], NOW)
    ((_, cell),) = raw.scan("s")
    space, key = place
    raw.put(space, [(stored_key(key, space), cell)], NOW)
    assert isinstance(refusal(lambda: store.get([(space, [key])])), CorruptData)


@pytest.mark.parametrize("at", [30, 45, -1])
def test_altered_row_does_not_open(raw: OnlineStore, at: int) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    store.put("s", [(b"k", row_at(NOW))], NOW)
    ((_, cell),) = raw.scan("s")
    altered = bytearray(pack_rank(NOW + 1, 0, 0) + cell[24:])
    altered[at] ^= 1
    raw.put("s", [(stored_key(b"k"), bytes(altered))], NOW + 2)
    assert isinstance(refusal(lambda: store.get([("s", [b"k"])])), (CorruptData, Unavailable))


def test_reader_goes_by_the_rank_inside(raw: OnlineStore) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    store.put("s", [(b"k", row_at(5))], NOW)
    ((_, cell),) = raw.scan("s")
    raw.put("s", [(stored_key(b"k"), pack_rank(NOW, 0, 0) + cell[24:])], NOW)
    assert store.get([("s", [b"k"])]) == [[row_at(5)]], "the owner of the store cannot make a row newer than it is"


@pytest.mark.parametrize("planted", [row_at(NOW), row_at(NOW, b"x" * 200), pack_rank(NOW, 0, 0) + b"\x00\x00\x00\x01"])
def test_row_in_the_clear_is_refused(raw: OnlineStore, planted: bytes) -> None:
    raw.put("s", [(stored_key(b"k"), planted)], NOW)
    store = EncryptedOnlineStore(raw, find_keys)
    assert isinstance(refusal(lambda: store.get([("s", [b"k"])])), (CorruptData, Unavailable))


@pytest.mark.parametrize("mark", [b"[7,0,0]", b"", b"\0\0\0\x01" + bytes(40)])
def test_mark_that_does_not_open_passes_for_nothing_filled(raw: OnlineStore, mark: bytes) -> None:
    store = EncryptedOnlineStore(raw, find_keys)
    assert not store.is_unreadable("s")
    raw.note("s", mark)
    assert store.note("s") is None
    assert store.is_unreadable("s")


def test_keys_that_travelled_read_and_do_not_write(raw: OnlineStore) -> None:
    EncryptedOnlineStore(raw, find_keys).put("s", [(b"k", row_at(NOW))], NOW)
    sealed = encrypt_space_keys("secret of an endpoint", {"s": encode_space_keys(find_keys("s"))})
    assert encode_space_keys(find_keys("s"))["1"] not in sealed
    reader = EncryptedOnlineStore(raw, make_key_finder(decrypt_space_keys("secret of an endpoint", sealed)))
    assert reader.get([("s", [b"k"])]) == [[row_at(NOW)]]
    assert isinstance(refusal(lambda: reader.put("s", [(b"k", row_at(NOW))], NOW)), Invalid)
    for secret, text in (("another secret", sealed), ("secret of an endpoint", sealed[:-8]), ("", "no base64!")):
        assert isinstance(refusal(partial(decrypt_space_keys, secret, text)), Invalid)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(reader)
    assert "salary" not in repr(find_keys("s"))
    assert str(derive_space_key(TENANT_KEY, "s")) not in repr(find_keys("s"))
    assert str(derive_hash_key(NAME_KEY, "s")) not in repr(find_keys("s"))
    assert isinstance(refusal(lambda: reader.get([("other", [b"k"])])), Unavailable), (
        "hashed with no key, none is there"
    )


def test_rotated_key_encrypts_once_every_reader_knows_it(tmp_path: Path, raw: OnlineStore) -> None:
    house = House(tmp_path, start=time.time())
    with contextlib.closing(house):
        store = EncryptedOnlineStore(raw, partial(house.ring.online_keys, "acme"), clock=house.now)
        store.put("s", [(b"before", row_at(NOW))], NOW)
        store.note("s", b"mark")
        house.rotations.begin(house.ctx(), "online", "acme", "uae")
        house.time += KEY_REFRESH_INTERVAL_S + 1
        store.put("s", [(b"soon", row_at(NOW))], NOW)
        assert [cell[24:28] for _, cell in raw.scan("s")] == [b"\0\0\0\x01"] * 2
        assert sorted(house.ring.online_keys("acme", "s").by_version) == [1, 2], "readers have it before it is used"
        house.time += ONLINE_SETTLE_S
        store.put("s", [(b"after", row_at(NOW))], NOW)
        assert max(cell[24:28] for _, cell in raw.scan("s")) == b"\0\0\0\x02"
        every = [b"before", b"soon", b"after"]
        assert store.get([("s", every)]) == [[row_at(NOW)] * 3]
        assert {key for key, _ in store.scan("s")} == set(every)
        assert not store.is_unreadable("s")


def test_retired_key_opens_nothing_and_the_space_is_filled_anew(tmp_path: Path, raw: OnlineStore) -> None:
    house = House(tmp_path, start=time.time())
    with contextlib.closing(house):
        store = EncryptedOnlineStore(raw, partial(house.ring.online_keys, "acme"), clock=house.now)
        store.put("s", [(b"k", row_at(NOW)), (b"barred", pack_rank(0, 0, 0))], NOW)
        store.note("s", b"mark")
        retire = partial(house.rotations.retire_online, house.ctx(), "acme", "uae")
        assert isinstance(refusal(retire), NotFound)
        house.rotations.begin(house.ctx(), "online", "acme", "uae")
        assert "call again in" in str(refusal(retire))
        assert isinstance(refusal(retire), Conflict)
        house.time += 600
        assert retire().version == 2
        house.time += KEY_REFRESH_INTERVAL_S + 1
        assert isinstance(refusal(lambda: store.get([("s", [b"k"])])), CorruptData)
        assert store.scan("s") == [], "nobody can open them any more"
        assert store.get([("s", [b"barred"])]) == [[pack_rank(0, 0, 0)]], "a mark of a person outlives every rotation"
        assert store.is_unreadable("s")
        assert store.note("s") is None
        store.drop("s")
        store.put("s", [(b"k", row_at(NOW))], NOW)
        store.note("s", b"anew")
        assert store.get([("s", [b"k"])]) == [[row_at(NOW)]]
        assert store.note("s") == b"anew"
        assert not store.is_unreadable("s")
        assert "keys.end" in house.verbs("acme")


def test_version_that_another_process_made_is_looked_up(raw: OnlineStore) -> None:
    keys = {1: os.urandom(32)}
    writer = EncryptedOnlineStore(raw, lambda _: SpaceKeys(dict(keys), max(keys), 1, b"h"), clock=lambda: 0.0)
    reader = EncryptedOnlineStore(raw, lambda _: SpaceKeys(dict(keys), 1, 1, b"h"), clock=lambda: 0.0)
    writer.put("s", [(b"k", row_at(NOW))], NOW)
    assert reader.get([("s", [b"k"])]) == [[row_at(NOW)]]
    keys[2] = os.urandom(32)
    EncryptedOnlineStore(raw, lambda _: SpaceKeys(dict(keys), 2, 1, b"h")).put("s", [(b"k2", row_at(NOW))], NOW)
    assert reader.get([("s", [b"k2"])]) == [[row_at(NOW)]]
