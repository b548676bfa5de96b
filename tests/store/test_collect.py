"""What nothing needs goes, what anything needs stays, whoever comes in between; what is broken is found and named."""

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from falaj.core.errors import Conflict, CorruptData, NotFound, Unavailable
from falaj.core.ref import Ref
from falaj.store.blob_store import PART_CHUNKS
from falaj.store.collector import CONDEMN, DELETE, KEEP, REVIVE, TIDY, decide_action
from falaj.store.sealed_format import CHUNK_BYTES
from falaj.store.stored_objects import (
    BROKEN,
    CONDEMNED,
    DELETING,
    LIVE,
    WRITING,
    StoredObject,
    close_intent,
    create_attempt,
    find_stored_object,
    open_intent,
    save_object,
    settle_object,
)
from tests.store.blobhouse import HOUR, House, noise

PART = PART_CHUNKS * CHUNK_BYTES
OLD, YOUNG, HORIZON = 1.0, 3.0, 2.0
STRAY = ("s",)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("state", "stray", "reached", "at", "verdict"),
    [
        (LIVE, (), True, OLD, KEEP),
        (LIVE, (), False, OLD, CONDEMN),
        (LIVE, (), False, YOUNG, KEEP),
        (LIVE, STRAY, True, OLD, TIDY),
        (LIVE, STRAY, True, YOUNG, KEEP),
        (LIVE, STRAY, False, OLD, CONDEMN),
        (BROKEN, (), True, OLD, KEEP),
        (BROKEN, STRAY, True, OLD, KEEP),
        (BROKEN, (), False, OLD, CONDEMN),
        (CONDEMNED, (), False, OLD, DELETE),
        (CONDEMNED, (), False, YOUNG, KEEP),
        (CONDEMNED, (), True, OLD, REVIVE),
        (WRITING, (), False, OLD, DELETE),
        (WRITING, (), False, YOUNG, KEEP),
        (WRITING, STRAY, True, OLD, KEEP),
        (DELETING, (), False, OLD, DELETE),
        (DELETING, (), False, YOUNG, DELETE),
    ],
)
def test_judge(state: str, stray: tuple[str, ...], reached: bool, at: float, verdict: str) -> None:
    thing = StoredObject("acme", "home", "a" * 64, state, 1, stray=stray, at=at)
    assert decide_action(thing, reached, HORIZON) == verdict


@pytest.mark.parametrize("size", [0, 1000, 2 * PART + 5])
def test_what_nothing_reaches_goes_after_two_graces(house: House, size: int) -> None:
    digest = house.put(noise(size)).digest
    house.clock.at += HOUR / 2
    assert house.collector.collect(house.ctx).condemned == 0
    house.clock.at += HOUR
    assert house.collector.collect(house.ctx).condemned == 1
    assert house.get(digest) == noise(size)
    house.collect_all()
    assert house.files() == []
    assert house.states() == {}


@pytest.mark.parametrize("size", [1000, 2 * PART + 5])
@pytest.mark.parametrize("field", ["digest", "digest.1", "digest.77"])
def test_what_a_record_reaches_stays(house: House, size: int, field: str) -> None:
    data = noise(size)
    digest = house.put(data).digest
    house.keep("kept", digest, field=field)
    assert house.collect_all() == 0
    assert house.get(digest) == data
    house.release("kept")
    assert house.collect_all() == (1 if size == 1000 else 4)
    assert house.files() == []


@pytest.mark.parametrize("size", [1000, 2 * PART + 5])
def test_at_once_deletes_what_nothing_reaches_without_a_grace(house: House, size: int) -> None:
    kept, gone = house.put(noise(size, 1)).digest, house.put(noise(size, 2)).digest
    house.keep("kept", kept)
    house.clock.at += 1
    assert house.collector.count_unreached(house.ctx) > 0
    while house.collector.collect(house.ctx, without_grace=True).deleted:
        pass
    assert house.collector.count_unreached(house.ctx) == 0
    assert house.get(kept) == noise(size, 1)
    with pytest.raises(NotFound):
        house.get(gone)


def test_at_once_leaves_what_an_open_put_may_have_been_told_of(house: House) -> None:
    digest = house.put(noise(1000)).digest
    with house.blobs.ledger.write(house.ctx) as tx:
        intent = open_intent(tx, house.ctx, "put", "blob:p/n", "home")
    house.clock.at += HOUR / 4
    assert house.collector.collect(house.ctx, without_grace=True).deleted == 0, (
        "it was touched just before the put began"
    )
    with house.blobs.ledger.write(house.ctx) as tx:
        close_intent(tx, intent)
    assert house.collector.collect(house.ctx, without_grace=True).deleted == 1
    with pytest.raises(NotFound):
        house.get(digest)


def test_copies_that_a_record_does_not_name_go(house: House) -> None:
    digest = house.put(noise(5)).digest
    house.copy(digest, "eu")
    house.keep("kept", digest, "home")
    house.collect_all()
    assert (len(house.files()), len(house.files("eu"))) == (1, 0)


def test_another_tenants_bytes_are_not_looked_at(house: House) -> None:
    bank = house.context("bank")
    house.blobs.put(bank, "blob:p/n", "home", [b"theirs"], house.permit("write", tenant="bank"))
    house.collect_all()
    assert len(house.files()) == 1


def test_a_put_of_condemned_bytes_revives_them(house: House) -> None:
    data = noise(1000)
    digest = house.put(data).digest
    house.clock.at += 2 * HOUR
    house.collector.collect(house.ctx)
    assert set(house.states().values()) == {CONDEMNED}
    (file,) = house.files()
    written = file.stat().st_mtime_ns
    assert house.put(data).digest == digest
    assert set(house.states().values()) == {LIVE}
    assert file.stat().st_mtime_ns == written
    assert house.collector.collect(house.ctx).deleted == 0


def test_a_record_written_while_condemned_saves_the_bytes(house: House) -> None:
    digest = house.put(noise(1000)).digest
    house.clock.at += 2 * HOUR
    house.collector.collect(house.ctx)
    house.keep("late", digest)
    assert house.collect_all() == 0
    assert set(house.states().values()) == {LIVE}


def test_a_put_between_the_last_look_and_the_deletion_wins(house: House) -> None:
    """The collector has said that it deletes and the bytes go; a put at that moment writes under another name."""
    data = noise(1000)
    house.put(data)
    house.clock.at += 2 * HOUR
    house.collector.collect(house.ctx)
    house.clock.at += 2 * HOUR
    store = house.open_zone("home")

    class Racing:
        """The real store, with somebody putting the same bytes right before a deletion."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def delete(self, key: str) -> None:
            house.stores["home"] = store
            assert house.states()
            house.digest = house.put(data).digest  # type: ignore[attr-defined]
            store.delete(key)

    house.stores["home"] = Racing()  # type: ignore[assignment]
    outcome = house.collector.collect(house.ctx)
    house.stores["home"] = store
    assert outcome.skipped == 1
    assert house.get(house.digest) == data  # type: ignore[attr-defined]
    house.keep("kept", house.digest)  # type: ignore[attr-defined]
    house.collect_all()
    assert len(house.files()) == 1
    assert house.get(house.digest) == data  # type: ignore[attr-defined]


def test_a_writer_given_up_for_dead_cannot_come_back(house: House) -> None:
    """Its bytes may be gone: it gets no acknowledgement."""
    attempt = create_attempt(house.keys, "acme", "home", "a" * 64)
    wanted = StoredObject("acme", "home", "a" * 64, WRITING, 1, attempt.key, attempt.dek, attempt.head)
    for state in (None, DELETING, BROKEN):
        with house.ledger.project(house.ctx) as tx:
            if state is not None:
                old = find_stored_object(tx, "acme", "home", "a" * 64)
                save_object(tx, replace(wanted, state=state, rev=old.rev if old else 0))
        with house.ledger.project(house.ctx) as tx:
            assert settle_object(tx, wanted, attempt) is None


def test_a_writer_overtaken_by_the_collector_hears_of_it_and_leaves_nothing(house: House) -> None:
    store = house.open_zone("home")

    class Slow:
        """The real store, so slow that the collector comes by twice while it writes."""

        def put(self, key: str, chunks: Iterable[bytes]) -> int:
            house.collect_all()
            return store.put(key, chunks)

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

    house.stores["home"] = Slow()  # type: ignore[assignment]
    with pytest.raises(Conflict):
        house.put(noise(100))
    house.stores["home"] = store
    assert house.files() == []
    assert house.states() == {}


def test_a_long_put_keeps_its_parts(house: House) -> None:
    """Parts that lie there for longer than the grace are safe while their put goes on."""
    data = noise(5 * PART)

    def slow() -> Iterator[bytes]:
        for at in range(0, len(data), CHUNK_BYTES):
            if at and at % PART == 0:
                house.clock.at += 0.9 * HOUR
                house.collector.collect(house.ctx)
            yield data[at : at + CHUNK_BYTES]

    digest = house.put(slow()).digest
    assert house.get(digest) == data
    house.keep("kept", digest)
    house.collect_all()
    assert house.get(digest) == data


def test_a_put_that_stood_still_for_a_day_is_told_to_start_again(house: House) -> None:
    data = noise(4 * PART)

    def stalled() -> Iterator[bytes]:
        yield data[: 3 * PART]
        for _ in range(3):
            house.clock.at += 8 * HOUR
            house.collector.collect(house.ctx)
        yield data[3 * PART :]

    with pytest.raises(Conflict):
        house.put(stalled())
    assert house.get(house.put(data).digest) == data


def test_a_store_that_does_not_answer_holds_up_no_other(house: House) -> None:
    house.put(noise(10))
    house.put(noise(11), "eu")
    store = house.open_zone("eu")

    class Down:
        def delete(self, key: str) -> None:
            raise Unavailable("down")

    house.clock.at += 2 * HOUR
    house.collector.collect(house.ctx)
    house.clock.at += 2 * HOUR
    house.stores["eu"] = Down()  # type: ignore[assignment]
    outcome = house.collector.collect(house.ctx)
    house.stores["eu"] = store
    assert (outcome.deleted, outcome.skipped) == (1, 1)
    assert house.collect_all() == 1
    assert house.files("eu") == []


def test_puts_and_collections_of_one_digest_at_the_same_time(house: House) -> None:
    """Whatever the order, bytes that a record came to hold are there at the end."""
    data = noise(20_000)
    stop = threading.Event()

    def collecting() -> None:
        # Most passes find nothing old enough; every so often one comes that is hours ahead.
        for turn in itertools.count():
            if stop.is_set():
                return
            at = house.clock.at + (turn * HOUR if turn % 60 == 0 else 0)
            house.collector.collect(replace(house.ctx, now=lambda at=at: at))

    thread = threading.Thread(target=collecting)
    thread.start()
    held = 0
    try:
        for i in range(60):
            # The collector's clock is hours ahead, so a put can be overtaken; then it must say so and never pretend.
            with contextlib.suppress(Conflict, NotFound):
                digest = house.put(data).digest
                with house.ledger.write(house.ctx) as tx:
                    house.blobs.hold(tx, house.ctx, "home", digest)
                    tx.put(Ref("dataset", "p", f"d{i}", "v1"), {}, terms={"digest": digest})
                    tx.emit("test.keep", Ref("dataset", "p", f"d{i}", "v1"))
                assert house.get(digest) == data
                house.release(f"d{i}")
                held += 1
    finally:
        stop.set()
        thread.join()
    assert held
    house.clock.at += 100_000 * HOUR  # past everything that the collector's clock has touched
    house.keep("last", house.put(data).digest)
    house.collect_all()
    assert house.get("b3:" + blake3(data).hexdigest()) == data
    assert len(house.files()) == 1


class TestScrub:
    """Reads everything, proves it, names what is broken and who needs it."""

    def test_all_is_well(self, house: House) -> None:
        for i in range(3):
            house.put(noise(1000, i))
        found = house.collector.scrub(house.ctx)
        assert (found.checked, found.size_bytes, found.broken, found.next) == (3, 3000, (), "")

    @pytest.mark.parametrize("how", ["flip", "cut", "gone", "swap", "empty"])
    def test_every_harm_is_found_and_named(self, house: House, how: str) -> None:
        digest = house.put(noise(5000, 1)).digest
        (file,) = house.files()
        house.keep("needs", digest)
        house.put(noise(5000, 2))
        other = next(f for f in house.files() if f != file)
        raw = bytearray(file.read_bytes())
        if how == "flip":
            raw[4000] ^= 1
        contents = {"cut": raw[:-1], "swap": other.read_bytes(), "empty": b"", "flip": raw}
        file.unlink() if how == "gone" else file.write_bytes(contents[how])
        (broken,) = house.collector.scrub(house.ctx).broken
        assert (broken.digest, broken.zone) == (digest, "home")
        assert broken.refs == (Ref("dataset", "p", "needs", "v1"),)
        with pytest.raises(CorruptData):
            house.get(digest)
        told = house.ledger.tail(tenant="acme", verb="store.broken")
        assert [(fact.event.subject, fact.event.body["digest"]) for fact in told] == [(broken.refs[0], digest)]

    def test_a_broken_part_names_who_needs_the_whole(self, house: House) -> None:
        data = noise(PART + 100)
        digest = house.put(data).digest
        house.keep("needs", digest)
        small = min(house.files(), key=lambda f: f.stat().st_size)
        small.write_bytes(b"broken")
        (broken,) = house.collector.scrub(house.ctx).broken
        assert broken.refs == (Ref("dataset", "p", "needs", "v1"),)
        assert broken.digest != digest

    def test_putting_the_bytes_again_heals(self, house: House) -> None:
        data = noise(PART + 100)
        digest = house.put(data).digest
        house.keep("needs", digest)
        for file in house.files():
            file.write_bytes(b"broken")
        assert len(house.collector.scrub(house.ctx).broken) == 2
        assert house.put(data).digest == digest
        assert house.get(digest) == data
        assert house.collector.scrub(house.ctx).broken == ()
        house.collect_all()
        assert len(house.files()) == 2
        assert house.get(digest) == data

    def test_what_was_only_out_of_reach_is_well_again(self, house: House) -> None:
        digest = house.put(noise(100)).digest
        (file,) = house.files()
        raw = file.read_bytes()
        file.unlink()
        assert len(house.collector.scrub(house.ctx).broken) == 1
        file.write_bytes(raw)
        assert house.get(digest) == noise(100)
        assert house.collector.scrub(house.ctx).broken == ()
        assert set(house.states().values()) == {LIVE}

    def test_it_goes_on_where_it_stopped(self, house: House) -> None:
        for i in range(5):
            house.put(noise(100, i))
        house.files()[3].unlink()
        after, checked, broken, seen = "", 0, 0, []
        while True:
            found = house.collector.scrub(house.ctx, after, limit=2, progress=lambda thing: seen.append(thing.digest))
            checked, broken, after = checked + found.checked, broken + len(found.broken), found.next
            if not after:
                break
        assert (checked, broken, len(set(seen))) == (5, 1, 5)
