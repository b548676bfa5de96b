"""The keyring: what it seals opens only where it belongs, keys are made once, and nothing of them shows."""

import contextlib
import logging
import os
import pickle
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import CorruptData, FalajError, NotFound
from falaj.core.ref import Ref
from falaj.govern import encryption, key_table
from falaj.govern.key_table import KEY_REFRESH_S, KeySlot
from falaj.govern.keyring import Keyring, compute_key_id
from tests.govern.keyhouse import House

MARKER = "the-marker-7f3c9d"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def again(house: House) -> House:
    """Another process on the same folder, with nothing in memory."""
    return House(house.home, start=house.time)


# sealing


def test_records_and_events_come_back_after_a_restart(house: House) -> None:
    house.write("t", {"note": MARKER}, why=MARKER)
    other = again(house)
    assert other.read("t") == {"note": MARKER}
    assert other.ledger.tail(tenant="acme")[-1].event.body["why"] == MARKER
    other.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=600), aad=st.binary(max_size=80), at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_one_changed_bit_anywhere_is_refused(house: House, data: bytes, aad: bytes, at: int, flip: int) -> None:
    sealed = house.ring.seal("acme", "uae", data, aad)
    assert house.ring.unseal("acme", "uae", sealed, aad) == data
    at %= len(sealed)
    with pytest.raises(CorruptData):
        house.ring.unseal("acme", "uae", sealed[:at] + bytes([sealed[at] ^ flip]) + sealed[at + 1 :], aad)
    with pytest.raises(CorruptData):
        house.ring.unseal("acme", "uae", sealed[:at], aad)


@pytest.mark.parametrize(
    ("tenant", "zone", "aad"),
    [("beta", "uae", b"a"), ("acme", "eu", b"a"), ("acme", "uae", b"b"), ("nobody", "nowhere", b"a")],
)
def test_moved_ciphertext_does_not_open(house: House, tenant: str, zone: str, aad: bytes) -> None:
    for one in (("beta", "uae"), ("acme", "eu")):
        house.ring.seal(*one, b"x", b"a")
    sealed = house.ring.seal("acme", "uae", b"secret", b"a")
    before = house.ledger.logs()
    with pytest.raises(CorruptData):
        house.ring.unseal(tenant, zone, sealed, aad)
    assert house.ledger.logs() == before, "reading made keys"


def test_an_unknown_suite_is_corrupt(house: House) -> None:
    sealed = house.ring.seal("acme", "uae", b"x", b"")
    with pytest.raises(CorruptData, match="form"):
        house.ring.unseal("acme", "uae", b"\x7f" + sealed[1:], b"")
    _, wrapped = house.ring.new_object_key("acme", "uae")
    with pytest.raises(CorruptData):
        house.ring.object_key("acme", "uae", wrapped[:3] + "fw" + wrapped[5:])


@pytest.mark.parametrize("column", ["tenant", "name"])
def test_a_row_moved_in_the_database_does_not_open(house: House, column: str) -> None:
    house.write("a", {"x": 1})
    house.write("b", {"x": 2}, tenant="beta")
    raw = sqlite3.connect(house.home / "ledger.db")
    move = {
        "tenant": "UPDATE records SET tenant = 'acme' WHERE kind = 'dataset' AND name = 'b'",
        "name": "UPDATE records SET name = 'c' WHERE kind = 'dataset' AND name = 'b'",
    }
    raw.execute(move[column])
    raw.commit()
    raw.close()
    name, tenant = ("b", "acme") if column == "tenant" else ("c", "beta")
    with pytest.raises(CorruptData):
        house.read(name, tenant)


def test_no_plaintext_lies_on_the_disk(house: House) -> None:
    """K1: nor does any key."""
    house.write("t", {"note": MARKER}, why=MARKER)
    house.ring.subject_seal("acme", "uae", MARKER, MARKER.encode())
    house.ring.secret_seal("acme", "uae", MARKER.encode(), b"")
    house.ring.log_signer("acme", "uae")
    plain = [key for held in house.ring.table.loaded_keys.values() for key in held.open.values()]
    assert len(plain) > 5
    for file in house.home.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert MARKER.encode() not in data, file
            assert not any(key in data for key in plain), file


# nonces


def test_no_nonce_repeats_under_one_key_and_full_lanes_give_way(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """K5, with a lane of 50 messages, four threads and two replicas."""
    monkeypatch.setattr(encryption, "MAX_MESSAGES_PER_KEY", 50)
    house.ring.prepare("acme", "uae")
    other = again(house)
    sealed: list[bytes] = []

    def work(ring: Keyring) -> None:
        sealed.extend([ring.seal("acme", "uae", b"x", b"") for _ in range(200)])

    threads = [threading.Thread(target=work, args=(ring,)) for ring in (house.ring, other.ring) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = [one[: encryption.HEAD_BYTES + 12] for one in sealed]
    assert len(sealed) == 800
    assert len(set(used)) == 800
    lanes = [one[: encryption.HEAD_BYTES] for one in used]
    assert max(lanes.count(lane) for lane in set(lanes)) <= 50
    assert all(other.ring.unseal("acme", "uae", one, b"") == b"x" for one in sealed)
    other.close()


def test_counters_in_a_lane_only_grow(house: House) -> None:
    first, second = (house.ring.seal("acme", "uae", b"x", b"") for _ in range(2))
    count = slice(encryption.HEAD_BYTES, encryption.HEAD_BYTES + 4)
    assert first[: encryption.HEAD_BYTES] == second[: encryption.HEAD_BYTES]
    assert int.from_bytes(second[count], "big") == int.from_bytes(first[count], "big") + 1


def test_a_forked_process_uses_no_nonce_of_its_parent(house: House) -> None:
    house.ring.seal("acme", "uae", b"x", b"")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, house.ring.seal("acme", "uae", b"x", b"")[: encryption.HEAD_BYTES + 12])
        os._exit(0)
    theirs = os.read(read, 100)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert len(theirs) == encryption.HEAD_BYTES + 12
    assert theirs != house.ring.seal("acme", "uae", b"x", b"")[: encryption.HEAD_BYTES + 12]


# making keys


def test_a_key_made_in_a_transaction_that_is_undone_is_never_used(house: House) -> None:
    with contextlib.suppress(ZeroDivisionError), house.ledger.write(house.ctx()) as tx:
        tx.emit("x", Ref("dataset", "fraud", "t", "r1"))
        assert house.ring.seal("acme", "uae", b"inside", b"")
        raise ZeroDivisionError
    house.write("t", {"note": 1})
    other = again(house)
    assert other.read("t") == {"note": 1}
    assert other.verbs("acme").count("keys.create") == 2
    other.close()


def test_a_key_made_in_an_open_transaction_is_unknown_to_other_threads(house: House) -> None:
    with contextlib.suppress(ZeroDivisionError), house.ledger.write(house.ctx()):
        house.ring.seal("acme", "uae", b"inside", b"")
        assert KeySlot("acme", "uae", "meta") not in house.ring.table.loaded_keys
        assert not house.ring.encryptors
        raise ZeroDivisionError
    assert not house.ring._local.lanes
    assert not house.ring.table._local.held


def test_keys_made_in_a_group_that_ends_well_are_kept(house: House) -> None:
    with house.ledger.group():
        house.write("a", {"n": 1})
        house.write("b", {"n": 2})
    other = again(house)
    assert (other.read("a"), other.read("b")) == ({"n": 1}, {"n": 2})
    assert house.ring.table.shared(KeySlot("acme", "uae", "meta"))
    other.close()


def test_replicas_that_make_the_same_keys_at_once_agree(tmp_path: Path) -> None:
    houses = [House(tmp_path) for _ in range(3)]
    tenants = [f"t{n}" for n in range(5)]
    start = threading.Barrier(6)
    sealed: list[tuple[str, bytes]] = []
    failures: list[FalajError] = []

    def work(house: House) -> None:
        start.wait()
        try:
            sealed.extend([(tenant, house.ring.seal(tenant, "uae", b"x", b"")) for tenant in tenants])
        except FalajError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(house,)) for house in houses * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    fresh = House(tmp_path)
    assert [fresh.ring.unseal(tenant, "uae", one, b"") for tenant, one in sealed] == [b"x"] * 30
    for tenant in tenants:
        assert fresh.verbs(tenant).count("keys.create") == 2
        assert fresh.key_body("meta.uae", tenant)["versions"].keys() == {"1"}
    for house in (*houses, fresh):
        house.close()


def test_making_a_key_is_an_event_in_the_log_of_its_owner(house: House) -> None:
    house.ring.log_signer("acme", "uae")
    made = [(f.event.tenant, f.event.subject.name) for f in house.ledger.tail() if f.event.verb == "keys.create"]
    assert len(made) == len(set(made))
    assert {("house", "zone.uae"), ("acme", "tenant.uae"), ("acme", "meta.uae"), ("acme", "log.uae")} <= set(made)


def test_without_the_root_key_nothing_opens_and_nothing_is_overwritten(house: House) -> None:
    house.write("t", {"note": 1})
    before = house.key_body("zone.uae", SYSTEM_TENANT)
    (house.home / "keys" / "falaj.1.key").rename(house.home / "kept.key")
    other = again(house)
    with pytest.raises(NotFound):
        other.read("t")
    with pytest.raises(NotFound):
        other.write("u", {"note": 2})
    (house.home / "kept.key").rename(house.home / "keys" / "falaj.1.key")
    other.close()
    assert house.key_body("zone.uae", SYSTEM_TENANT) == before
    assert house.read("t") == {"note": 1}


def test_another_root_key_is_refused(house: House, tmp_path: Path) -> None:
    house.write("t", {"note": 1})
    file = house.home / "keys" / "falaj.1.key"
    file.rename(tmp_path / "old")
    house.secrets.close()
    other = again(house)
    other.secrets.wrap("falaj", b"0" * 32, b"")
    with pytest.raises(CorruptData):
        other.read("t")
    other.close()


# object keys, signers


def test_object_keys_open_only_in_their_tenant_and_zone(house: House) -> None:
    dek, wrapped = house.ring.new_object_key("acme", "uae")
    assert len(dek) == 32
    assert wrapped.startswith("v1:")
    assert again(house).ring.object_key("acme", "uae", wrapped) == dek
    for tenant, zone in (("beta", "uae"), ("acme", "eu"), ("beta", "nowhere")):
        if zone != "nowhere":
            house.ring.new_object_key(tenant, zone)
        with pytest.raises(CorruptData):
            house.ring.object_key(tenant, zone, wrapped)


@pytest.mark.parametrize("bad", ["", "v1", "v:", "v1:", "v1:!!", "vv1:AAAA", "v99999999999:AAAA", "v2:AAAA", "1:AAAA"])
def test_a_wrapped_key_that_is_none_is_corrupt(house: House, bad: str) -> None:
    house.ring.new_object_key("acme", "uae")
    with pytest.raises(CorruptData):
        house.ring.object_key("acme", "uae", bad)


def test_signing_keys_are_the_same_in_every_replica_and_differ_between_logs(house: House) -> None:
    signer = house.ring.log_signer("acme", "uae")
    token, permit = house.ring.token_signer(), house.ring.permit_key()
    other = House(house.home)
    other.ring.table.home = "eu"
    for mine, theirs in ((signer, other.ring.log_signer("acme", "uae")), (token, other.ring.token_signer())):
        theirs.public_key().verify(mine.sign(b"x"), b"x")
    assert other.ring.permit_key() == permit
    keys = {house.ring.log_signer(t, z).private_bytes_raw() for t in ("acme", "beta") for z in ("uae", "eu")}
    assert len(keys | {token.private_bytes_raw(), permit}) == 6
    with house.ledger.read(house.ctx()) as tx:
        published = tx.need(Ref("log-key", "keys", "log.uae", "v1")).body
    assert published["key_id"] == compute_key_id(signer.public_key())
    other.close()


# the cache


def test_the_cache_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_table, "MAX_CACHED_KEYS", 8)
    for n in range(6):
        house.ring.seal(f"t{n}", "uae", b"x", b"")
    assert len(house.ring.table.loaded_keys) <= 8


def test_what_another_replica_rotated_is_read_at_once_and_used_when_the_cache_is_stale(house: House) -> None:
    house.write("a", {"n": 1})
    other = again(house)
    other.rotations.begin(other.ctx(), "meta", "acme", "uae")
    other.write("b", {"n": 2})
    assert house.read("b") == {"n": 2}
    house.time += KEY_REFRESH_S + 1
    assert encryption.read_key_version(house.ring.seal("acme", "uae", b"x", b"")) == 2
    other.close()


def test_one_thread_refreshes_while_the_others_go_on(house: House) -> None:
    """Every thread inside a transaction holds a connection; if each waited for a second one, none would get it."""
    house.write("a", {"n": 1})
    house.time += KEY_REFRESH_S + 1
    slot = KeySlot("acme", "uae", "meta")
    before = house.ring.table.held(slot)
    house.time += KEY_REFRESH_S + 1
    with house.ring.table.refresh_lock:
        assert house.ring.table.held(slot) is before
        house.time += KEY_REFRESH_S
        assert house.ring.table.version(slot, 1) == before.open[1], "to open, an old reading is good enough"
        assert house.ring.table.held(slot) is not before, "to seal, so old a reading is not"


def test_a_warm_start_reads_the_data_keys_of_every_log(house: House) -> None:
    house.write("a", {"n": 1})
    other = again(house)
    other.ring.warm()
    assert {(slot.tenant, slot.purpose) for slot in other.ring.table.loaded_keys} >= {
        ("acme", "meta"),
        ("house", "meta"),
    }
    other.close()


# nothing shows


def test_no_key_shows_in_repr_pickle_exceptions_or_logs(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    house.write("t", {"note": MARKER})
    ring, table = house.ring, house.ring.table
    house.ring.subject_seal("acme", "uae", "person", b"x")
    plain = {key for held in table.loaded_keys.values() for key in held.open.values()} | {ring.permit_key()}
    said = [
        repr(ring),
        repr(table),
        repr(list(table.loaded_keys.values())),
        repr(ring.encryptors),
        repr(ring.decryptors),
        caplog.text,
    ]
    for act in (
        lambda: ring.unseal("acme", "uae", b"\x01" + b"\0" * 60, b""),
        lambda: ring.object_key("acme", "uae", "v1:" + "A" * 80),
        lambda: ring.subject_open("acme", "uae", "s1:" + "0" * 40 + ":1:" + "AQ" + "A" * 60),
    ):
        with pytest.raises(CorruptData) as raised:
            act()
        said.append("".join(traceback.format_exception(raised.value)))
    said.extend(repr(fact) for fact in house.ledger.tail())
    for key in plain:
        assert not any(key.hex() in text or repr(key)[2:-1] in text for text in said)
    for thing in (ring, table, *table.loaded_keys.values(), *ring.encryptors.values(), house.secrets):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
