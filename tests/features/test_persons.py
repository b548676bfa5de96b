"""The keys of people in a real house: made once, destroyed for good, whoever is at it at the same moment."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.asof.person_sealing import (
    PSEUDONYM_BYTES,
    decrypt_blocks,
    encode_person_keys,
    encrypt_runs,
    generate_person_keys,
    make_associated_data,
)
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder
from falaj.catalog.version_reader import open_version
from falaj.core.errors import CorruptData, Denied, NotFound, StaleRevision
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features import person_keys
from falaj.features.person_keys import (
    SINGLE_FILE,
    PersonKeyAccess,
    compute_file_number,
    delete_old_tables,
    destroy_person_keys,
    ensure_person_keys,
    list_live_versions,
    list_pseudonyms,
    make_keys_ref,
    publish_unshared,
    read_person_keys,
    split_into_files,
)
from falaj.snapshot import amend
from falaj.snapshot.amend import find_holding_batches
from falaj.snapshot.tree_format import format_digest
from falaj.store.collector import Collector
from tests.town import LABEL, Town, refusal

AAD = make_associated_data("bank", "ae-dubai", "dataset:fraud/spend.rows1", "p0000-of-0001-0000000000000000.seg")
_NUMBERS = iter(range(1000))


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    yield made
    made.close()


class Pointer:
    """Which version counts, as the record of a stream keeps it: it moves only from the one that was read."""

    def __init__(self) -> None:
        self.at: Ref | None = None
        self._lock = threading.Lock()

    def current(self) -> Ref | None:
        return self.at

    def swap(self, before: Ref | None, after: Ref) -> None:
        with self._lock:
            if self.at != before:
                raise StaleRevision("another was faster", "call again")
            self.at = after


def pseudonyms(subjects: Sequence[bytes]) -> list[str]:
    return [hashlib.sha256(one).digest()[:PSEUDONYM_BYTES].hex() for one in subjects]


@pytest.fixture
def lock() -> PersonKeyAccess:
    pointer = Pointer()
    rows = Ref("dataset", f"p{next(_NUMBERS)}", "spend.rows1")
    return PersonKeyAccess(make_keys_ref(rows), Label.parse(LABEL), "", pointer.current, pointer.swap, pseudonyms)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables lie in several files from few people on."""
    monkeypatch.setattr(person_keys, "_PEOPLE_PER_FILE", 16_384)
    monkeypatch.setattr(amend, "MIN_BATCH_BYTES", 256 << 10)


def test_keys_are_made_once_and_destroyed_for_good(town: Town, lock: PersonKeyAccess) -> None:
    salem = town.as_("salem")
    names = list_pseudonyms(lock, [b"c1", b"c2", b"c3"])
    keys = ensure_person_keys(salem, lock, names)
    assert ensure_person_keys(salem, lock, names[:2]) == keys == read_person_keys(salem, lock)
    assert len(list(list_live_versions(salem, lock.table))) == 1, "a table that lacks nobody was written again"
    blocks = encrypt_runs([b"one", b"two", b"three"], names, keys, AAD)
    grown = ensure_person_keys(salem, lock, list_pseudonyms(lock, [b"c4", b"c1"]))
    assert decrypt_blocks(blocks, names, grown, AAD) == [b"one", b"two", b"three"]

    done = destroy_person_keys(salem, lock, names[1:2], "erased 77aa")
    assert done.kept == ()
    assert {ref.version for ref in done.gone} == {"v1", "v2"}
    assert decrypt_blocks(blocks, names, read_person_keys(salem, lock), AAD) == [b"one", None, b"three"]
    live = list(list_live_versions(salem, lock.table))
    assert [version.ref for version in live] == [lock.current()]
    assert live[0].label == Label.parse(LABEL)
    assert live[0].table is None, "statistics of keys"
    again = destroy_person_keys(salem, lock, names[1:2], "erased 77aa")
    assert (again.table, again.gone, again.kept) == (done.table, (), ())
    assert isinstance(refusal(lambda: open_version(salem, done.gone[0])), NotFound)


def test_no_later_version_keeps_the_bytes_of_a_destroyed_key(town: Town, lock: PersonKeyAccess, small: None) -> None:
    """A table large enough to lie in several files, and those in chunks: what lay beside the key is stored again."""
    salem = town.as_("salem")
    names = list_pseudonyms(lock, [b"%d" % i for i in range(40_000)])
    keys = ensure_person_keys(salem, lock, names)
    first, before = open_version(salem, lock.current())
    assert len(list(before.entries())) == 4
    lost = keys.take(names[:1])[0]
    assert lost is not None
    assert lost in _stored(salem, lock.current())
    [batch] = find_holding_batches(before, [before.entry(parted_name(keys, names[0]))])
    destroy_person_keys(salem, lock, names[:1], "erased 77aa")
    opened, _ = open_version(salem, lock.current())
    kept = {batch.bundle for batch in first.tree.batches} & {batch.bundle for batch in opened.tree.batches}
    assert 0 < len(kept) < len(first.tree.batches), "one person's leaving wrote the whole table, or nothing"
    assert lost not in _stored(salem, lock.current())
    [shard] = [one.shard for one in first.tree.batches if one.bundle == batch]
    assert isinstance(refusal(lambda: list(salem.bytes.get(opened.ticket, shard))), Denied)
    # What the collector finds nobody needs goes for good.
    ctx = replace(town.house.system(), tenant="bank")
    later = replace(ctx, now=lambda: ctx.now() + 30_000.0)
    collector = Collector(town.house.blobs, ("blob", "dataset", "model", "code"))
    assert collector.collect(later).condemned
    assert collector.collect(replace(ctx, now=lambda: ctx.now() + 90_000.0)).deleted
    assert read_person_keys(salem, lock).missing(names) == [names[0]]


def _stored(here: Any, ref: Ref | None) -> bytes:
    """All that whoever may read a version can ask for."""
    assert ref is not None
    opened, snapshot = open_version(here, ref)
    packs = {place.pack for load in snapshot.shards for _, place in load().chunks()}
    return b"".join(b"".join(here.bytes.get(opened.ticket, format_digest(pack))) for pack in sorted(packs))


def parted_name(keys: Any, name: bytes) -> bytes:
    """In which file of a table somebody is."""
    parts = split_into_files(keys)
    return [*parts][compute_file_number(name, len(parts))].encode()


def test_a_table_grows_and_shrinks_file_by_file(town: Town, lock: PersonKeyAccess, small: None) -> None:
    salem = town.as_("salem")
    names = list_pseudonyms(lock, [b"%d" % i for i in range(40_000)])
    keys = ensure_person_keys(salem, lock, names)
    one = list_pseudonyms(lock, [b"x"])
    grown = ensure_person_keys(salem, lock, one)
    assert grown == read_person_keys(salem, lock)
    assert grown.without(one) == keys
    # Some in every file, and one who is nowhere.
    some = [*names[::1000], *list_pseudonyms(lock, [b"nobody"])]
    destroy_person_keys(salem, lock, some, "erased 77aa")
    assert read_person_keys(salem, lock) == grown.without(some)
    done = destroy_person_keys(salem, lock, some, "erased 77aa")
    assert (done.gone, done.kept) == ((), ())


def test_a_table_of_one_file_that_is_large_is_parted_when_somebody_leaves(
    town: Town, lock: PersonKeyAccess, small: None, tmp_path: Path
) -> None:
    """Tables from before there were parts."""
    salem = town.as_("salem")
    keys = generate_person_keys(list_pseudonyms(lock, [b"%d" % i for i in range(20_000)]))
    (tmp_path / SINGLE_FILE).write_bytes(encode_person_keys(keys))
    old = publish_unshared(salem, PublishOrder(lock.table, PublishSource(tmp_path), label=lock.label))
    lock.swap(None, old)
    assert read_person_keys(salem, lock) == keys
    gone = list_pseudonyms(lock, [b"7"])
    destroy_person_keys(salem, lock, gone, "erased 77aa")
    assert read_person_keys(salem, lock) == keys.without(gone)
    assert len(list(open_version(salem, lock.current())[1].entries())) == 2


@pytest.mark.parametrize(
    "files",
    [
        {"other": 0},
        {"people-00-of-02.keys": 0},
        {SINGLE_FILE: 0, "people-00-of-02.keys": 1},
        {"people-00-of-02.keys": 1, "people-01-of-02.keys": 0},
    ],
)
def test_a_table_with_wrong_files_is_refused(
    town: Town, lock: PersonKeyAccess, tmp_path: Path, files: dict[str, int]
) -> None:
    """Else somebody's key would be looked for where it is not."""
    salem = town.as_("salem")
    halves = list(split_into_files(generate_person_keys([bytes([i]) * 16 for i in range(256)]), 2).values())
    for name, half in files.items():
        (tmp_path / name).write_bytes(encode_person_keys(halves[half]))
    lock.swap(None, publish_unshared(salem, PublishOrder(lock.table, PublishSource(tmp_path), label=lock.label)))
    assert isinstance(refusal(lambda: read_person_keys(salem, lock)), CorruptData)
    assert isinstance(
        refusal(lambda: destroy_person_keys(salem, lock, [b"\x07" * 16, b"\xf7" * 16], "erased 77aa")), CorruptData
    )


def test_two_that_add_people_at_once_lose_nobody(town: Town, lock: PersonKeyAccess) -> None:
    people = [list_pseudonyms(lock, [b"shared", b"%d" % who]) for who in range(4)]
    made: list[Any] = [None] * 4

    def add(who: int) -> None:
        made[who] = ensure_person_keys(town.as_("amal"), lock, people[who])

    threads = [threading.Thread(target=add, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = read_person_keys(town.as_("amal"), lock)
    for who in range(4):
        assert final.take(people[who]) == made[who].take(people[who]), "somebody sealed under a key that is lost"
    # Whoever brings rows may not delete; what lost the race goes with the next erasure, or when somebody tidies up.
    delete_old_tables(town.as_("salem"), lock, "tables that nobody uses")
    assert [version.ref for version in list_live_versions(town.as_("salem"), lock.table)] == [lock.current()]


def test_killed_between_any_two_steps_it_goes_on(town: Town, lock: PersonKeyAccess) -> None:
    salem = town.as_("salem")
    names = list_pseudonyms(lock, [b"c1", b"c2"])
    ensure_person_keys(salem, lock, names)

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with pytest.raises(Killed):
        destroy_person_keys(salem, replace(lock, swap=die), names[:1], "erased 77aa")
    assert not read_person_keys(salem, lock).missing(names), "nothing is gone before it counts"
    calls = iter(range(10))

    def swap_and_die(before: Ref | None, after: Ref) -> None:
        lock.swap(before, after)
        next(calls)
        raise Killed

    with pytest.raises(Killed):
        destroy_person_keys(salem, replace(lock, swap=swap_and_die), names[:1], "erased 77aa")
    assert len(list(list_live_versions(salem, lock.table))) == 2
    done = destroy_person_keys(salem, lock, names[:1], "erased 77aa")
    assert [ref.version for ref in done.gone] == ["v1"]
    assert [version.ref for version in list_live_versions(salem, lock.table)] == [lock.current()]


def test_a_hold_keeps_the_old_tables_and_is_told(town: Town, lock: PersonKeyAccess) -> None:
    salem = town.as_("salem")
    names = list_pseudonyms(lock, [b"c1"])
    ensure_person_keys(salem, lock, names)
    salem.catalog.hold(lock.current(), "case 7")
    done = destroy_person_keys(salem, lock, names, "erased 77aa")
    assert [one.ref.version for one in done.kept] == ["v1"]
    assert "case 7" in done.kept[0].why
    assert "release" in done.kept[0].do


def test_who_may_not_erase_destroys_nothing(town: Town, lock: PersonKeyAccess) -> None:
    names = list_pseudonyms(lock, [b"c1"])
    ensure_person_keys(town.as_("amal"), lock, names)
    assert isinstance(refusal(lambda: destroy_person_keys(town.as_("sara"), lock, names, "mine")), NotFound | Denied)
    assert not read_person_keys(town.as_("amal"), lock).missing(names)


def test_pseudonyms_that_do_not_fit_are_refused(lock: PersonKeyAccess) -> None:
    assert isinstance(
        refusal(lambda: list_pseudonyms(replace(lock, pseudonyms=lambda _: ["ab"]), [b"c1"])), CorruptData
    )
    assert isinstance(refusal(lambda: list_pseudonyms(replace(lock, pseudonyms=lambda _: []), [b"c1"])), CorruptData)
    assert list_pseudonyms(lock, []) == []


def test_publish_apart_is_a_publish(town: Town, lock: PersonKeyAccess, tmp_path: Any) -> None:
    (tmp_path / "a.txt").write_text("same in both")
    amal, name = town.as_("amal"), lock.table
    v1 = publish_unshared(amal, PublishOrder(name, PublishSource(tmp_path), label=Label.parse(LABEL)))
    assert publish_unshared(amal, PublishOrder(name, PublishSource(tmp_path), label=Label.parse(LABEL))) == v1, (
        "nothing new to say"
    )
    (tmp_path / "b.txt").write_text("new")
    v2 = publish_unshared(amal, PublishOrder(name, PublishSource(tmp_path), inputs={"before": v1}))
    first, second = (open_version(amal, ref)[0].tree for ref in (v1, v2))
    assert not {batch.bundle for batch in first.batches} & {batch.bundle for batch in second.batches}
    assert amal.catalog.verify(v2).ok
