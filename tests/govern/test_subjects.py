"""Subject keys: a person forgotten is gone, and what the log proved of them is proven still (K2, K6)."""

import contextlib
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import Conflict, CorruptData, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.govern.key_table import KEY_REFRESH_S, KeySlot
from tests.govern.keyhouse import DAY_S, House

PERSON = "784-1990-1234567-1"
STORY = b"Fatima bought a boat"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def tell(house: House, person: str = PERSON, story: bytes = STORY) -> str:
    sealed = house.ring.subject_seal("acme", "uae", person, story)
    with house.ledger.write(house.ctx()) as tx:
        tx.emit("seen", Ref("dataset", "fraud", "t", "v1"), sealed=sealed)
    return sealed


def test_what_is_sealed_for_a_person_opens_also_after_a_restart(house: House) -> None:
    sealed = tell(house)
    other = House(house.home)
    assert other.ring.subject_open("acme", "uae", sealed) == STORY
    other.close()


def test_the_forgotten_are_gone_and_the_log_still_proves_itself(house: House) -> None:
    sealed, kept = tell(house), tell(house, "another person")
    before = house.ledger.leaves("", tenant="acme", zone="uae", limit=1000)
    pseudonym = house.ring.subject_forget(house.ctx(), "uae", PERSON)
    for one in (house, House(house.home)):
        with pytest.raises(NotFound, match="forgotten"):
            one.ring.subject_open("acme", "uae", sealed)
        assert one.ring.subject_open("acme", "uae", kept) == STORY
        facts = one.ledger.tail(tenant="acme", zone="uae")
        assert sealed in [fact.event.sealed for fact in facts]
        assert all(sha256(b"\0" + fact.raw).digest() == fact.leaf for fact in facts)
        after = one.ledger.leaves("", tenant="acme", zone="uae", limit=1000)
        assert after[: len(before)] == before
        assert facts[-1].event.verb == "subjects.forget"
        assert facts[-1].event.body["pseudonym"] == pseudonym


def test_all_remaining_keys_and_the_raw_store_yield_nothing(house: House) -> None:
    """K2: open every wrapped key that is left with everything that is left, and try each on the payload."""
    from base64 import b64decode

    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from falaj.govern.encryption import build_aad

    sealed = tell(house)
    name = sealed.split(":")[1]
    house.ring.subject_forget(house.ctx(), "uae", PERSON)
    fresh = House(house.home)
    fresh.ring.prepare("acme", "uae")
    with fresh.ledger.read(fresh.ctx()) as tx:
        slots = [KeySlot.of(record.key) for record in tx.find("key", limit=1000).records]
        slots += [KeySlot.of(record.key) for record in tx.find("key", tenant="house", limit=1000).records]
    keys = [key for slot in slots for key in _versions(fresh, slot)]
    assert len(keys) > 7
    data = b64decode(sealed.split(":")[3])
    for key in keys:
        with pytest.raises(InvalidTag):
            AESGCM(key).decrypt(data[1:13], data[13:], build_aad("payload", "acme", "uae", name, 1))


def test_a_backup_of_before_is_dead_once_the_keys_above_were_rotated(house: House, tmp_path: Path) -> None:
    """K2 for backups and for what a disk still holds of old rows: the erasure latency is a rotation's length."""
    sealed = tell(house)
    backup = tmp_path / "backup"
    backup.mkdir()
    old, new = house.home / "ledger.db", backup / "ledger.db"
    with contextlib.closing(sqlite3.connect(old)) as raw, contextlib.closing(sqlite3.connect(new)) as copy:
        raw.backup(copy)
    house.ring.subject_forget(house.ctx(), "uae", PERSON)
    (backup / "keys").symlink_to(house.home / "keys")
    restored = House(backup, secrets=house.secrets)
    assert restored.ring.subject_open("acme", "uae", sealed) == STORY, "until then a backup can bring the person back"
    for scope, tenant in (("tenant", "acme"), ("zone", "house"), ("root", "house")):
        house.rotations.begin(house.ctx(tenant), scope, tenant, "" if scope == "root" else "uae")
        house.finish_rotations()
    restored = House(backup, secrets=house.secrets)
    with pytest.raises(NotFound):
        restored.ring.subject_open("acme", "uae", sealed)
    assert not _opens_with_live_keys(house, restored, sealed.split(":")[1])
    assert "seen" in house.verbs("acme")


def _opens_with_live_keys(house: House, backup: House, pseudonym: str) -> bool:
    """True if any key that lives now opens the subject's key, or the keys above it, as the backup has them."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from falaj.govern.encryption import unwrap_key

    live = []
    for tenant in ("acme", "house"):
        with house.ledger.read(house.ctx(tenant)) as tx:
            live += [key for r in tx.find("key", limit=1000).records for key in _versions(house, KeySlot.of(r.key))]
    assert len(live) >= 6
    chain = (KeySlot("acme", "uae", "subject", pseudonym), KeySlot("acme", "uae", "tenant"))
    with backup.ledger.read(backup.ctx()) as tx:
        for slot in chain:
            record = tx.key(slot.key)
            assert record is not None
            for key in live:
                with contextlib.suppress(CorruptData):
                    unwrap_key(AESGCM(key), record.body["versions"]["1"], slot.aad(1))
                    return True
    return False


def _versions(house: House, slot: KeySlot) -> list[bytes]:
    held = house.ring.table.held(slot, create_missing=False)
    return [house.ring.table.version(slot, version) for version in held.wrapped]


def test_a_forgotten_person_is_not_recorded_again_silently(house: House) -> None:
    tell(house)
    house.ring.subject_forget(house.ctx(), "uae", PERSON)
    for one in (house, House(house.home)):
        with pytest.raises(Denied, match="forgotten"):
            one.ring.subject_seal("acme", "uae", PERSON, b"again")


def test_forgetting_twice_and_forgetting_the_unknown_are_the_same(house: House) -> None:
    tell(house)
    first = house.ring.subject_forget(house.ctx(), "uae", PERSON)
    assert house.ring.subject_forget(house.ctx(), "uae", PERSON) == first
    assert house.verbs("acme").count("subjects.forget") == 1
    house.ring.subject_forget(house.ctx(), "uae", "never seen")
    with pytest.raises(Denied):
        house.ring.subject_seal("acme", "uae", "never seen", b"x")


def test_a_hold_or_a_retention_blocks_and_its_end_does_not_shred(house: House) -> None:
    """K6."""
    sealed = tell(house)
    with pytest.raises(Conflict, match="case-7"):
        house.ring.subject_forget(house.ctx(), "uae", PERSON, legal_holds=("case-7",))
    with pytest.raises(Conflict):
        house.ring.subject_forget(house.ctx(), "uae", PERSON, retain_until=house.time + 10)
    house.time += DAY_S
    assert house.ring.subject_open("acme", "uae", sealed) == STORY
    assert "subjects.forget" not in house.verbs("acme")
    house.ring.subject_forget(house.ctx(), "uae", PERSON, retain_until=house.time - 1)
    with pytest.raises(NotFound):
        house.ring.subject_open("acme", "uae", sealed)


def test_other_replicas_forget_within_the_life_of_their_cache(house: House) -> None:
    sealed = tell(house)
    other = House(house.home, start=house.time)
    assert other.ring.subject_open("acme", "uae", sealed) == STORY
    house.ring.subject_forget(house.ctx(), "uae", PERSON)
    other.time += KEY_REFRESH_S + 1
    with pytest.raises(NotFound):
        other.ring.subject_open("acme", "uae", sealed)
    other.close()


def test_a_forgetting_that_is_undone_forgets_nobody(house: House) -> None:
    sealed = tell(house)
    with contextlib.suppress(ZeroDivisionError), house.ledger.write(house.ctx()):
        house.ring.subject_forget(house.ctx(), "uae", PERSON)
        raise ZeroDivisionError
    assert house.ring.subject_open("acme", "uae", sealed) == STORY


def test_persons_are_apart_and_so_are_tenants_and_zones(house: House) -> None:
    sealed = tell(house)
    names = {house.ring.subjects.pseudonym(t, z, PERSON) for t in ("acme", "beta") for z in ("uae", "eu")}
    assert len(names) == 4
    mine, theirs = sealed.split(":"), tell(house, "other").split(":")
    for tenant, zone, text in (
        ("beta", "uae", sealed),
        ("acme", "eu", sealed),
        ("acme", "uae", ":".join([mine[0], theirs[1], *mine[2:]])),
        ("acme", "uae", ":".join([*mine[:2], "2", mine[3]])),
    ):
        with pytest.raises(CorruptData):
            house.ring.subject_open(tenant, zone, text)


def test_the_identifier_is_nowhere_in_the_store(house: House) -> None:
    tell(house)
    house.ring.subject_forget(house.ctx(), "uae", PERSON)
    dump = "\n".join(sqlite3.connect(house.home / "ledger.db").iterdump())
    assert PERSON not in dump
    for file in house.home.rglob("*"):
        if file.is_file():
            assert PERSON.encode() not in file.read_bytes()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(max_size=80), st.from_regex(r"s1:[0-9a-f]{40}:[0-9]{1,4}:[A-Za-z0-9+/=]{0,60}", fullmatch=True)
    )
)
def test_arbitrary_text_is_corrupt_and_never_anything_else(house: House, text: str) -> None:
    with pytest.raises(CorruptData):
        house.ring.subject_open("acme", "uae", text)


@pytest.mark.parametrize("subject", ["", "x" * 1025])
def test_a_subject_needs_a_name_of_sane_length(house: House, subject: str) -> None:
    with pytest.raises(Invalid):
        house.ring.subject_seal("acme", "uae", subject, b"x")
    with pytest.raises(Invalid):
        house.ring.subject_seal("acme", "uae", "a", b"x" * 65_537)
