"""Killed at any point of a put, a copy or a collection: nothing acknowledged is lost, nothing half-written is seen, and
the space comes back. Asked on both ledgers."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falaj.backends.cloud_objects import CloudObjectStore
from falaj.core.errors import Conflict, CorruptData, NotFound
from falaj.store import blob_store
from falaj.store.maintenance_loops import SCRUB_ROUND_S, CollectLoop, ScrubLoop
from falaj.store.reconcile_loop import LoopRunner
from falaj.store.sealed_format import CHUNK_BYTES
from falaj.store.stored_objects import LIVE
from tests.servers.seaweed import Bucket
from tests.store.blobhouse import HOUR, THING, Clock, House, noise

DATA = noise(3 * CHUNK_BYTES + 77)
KEPT = noise(2 * CHUNK_BYTES + 5, 9)

# The child counts its way through our own code and kills itself, as kill -9 does, at the step it is told.
CHILD = """
import os, signal, sys, threading
sys.path[:0] = {path!r}
from pathlib import Path
from falaj.store import blob_store
from tests.stories.test_blob_faults import act
from tests.servers.seaweed import Bucket
from tests.store.blobhouse import Clock, House
blob_store.PART_CHUNKS = 1
count, kill_at = 0, {kill_at}
def step(frame, event, arg):
    global count
    name = frame.f_code.co_filename
    if event == "call" and ("/falaj/store/" in name or "/falaj/backends/" in name):
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
house = House(Path({folder!r}), Clock({at}), url={url!r})
threading.setprofile(step)
sys.setprofile(step)
said = act(house, {op!r})
sys.setprofile(None)
print("done", said, count, flush=True)
"""


def act(house: House, op: str) -> str:
    """What the child does; what it gives is its acknowledgement."""
    if op == "put":
        return house.put(DATA).digest
    if op == "copy":
        return house.copy(house.put(KEPT).digest, "eu").digest
    return str(house.collector.collect(house.ctx).deleted)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_store, "PART_CHUNKS", 1)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "sqlite" else str(request.getfixturevalue("new_postgres")())


def run_child(house: House, op: str, kill_at: int) -> tuple[str, int]:
    """(what it acknowledged, how many steps it took); nothing when it was killed."""
    text = CHILD.format(
        path=sys.path, kill_at=kill_at, folder=str(house.folder), at=house.clock.at, url=house.url, op=op
    )
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env={**os.environ})
    if run.returncode == -signal.SIGKILL:
        assert kill_at
        return "", 0
    assert run.returncode == 0, run.stderr
    _, said, steps = run.stdout.split()
    return said, int(steps)


def prepare(folder: Path, url: str) -> tuple[House, str]:
    """A house with something kept, and with something that nothing needs and that is condemned and old."""
    house = House(folder, Clock(), url=url)
    kept = house.put(KEPT).digest
    house.keep("kept", kept)
    house.put(noise(CHUNK_BYTES + 1, 4))
    for _ in range(2):
        house.clock.at += 2 * HOUR
        house.collector.collect(house.ctx)
    house.clock.at += 2 * HOUR
    return house, kept


def check(house: House, kept: str, op: str, acknowledged: str) -> None:
    """What must hold after any death."""
    assert house.get(kept) == KEPT
    assert house.collector.scrub(house.ctx).broken == ()
    zone = "eu" if op == "copy" else "home"
    wanted, data = {"put": (DATA, DATA), "copy": (KEPT, KEPT)}.get(op, (b"", b""))
    if op != "collect":
        digest = acknowledged or blob_store.format_digest(blob_store.blake3(wanted).hexdigest())
        try:
            assert house.get(digest, zone) == data
        except NotFound:
            assert not acknowledged
        again = house.put(DATA) if op == "put" else house.copy(kept, "eu")
        assert house.get(again.digest, zone) == data


def clean_up(house: House) -> None:
    """Let go of everything: the collector must bring every byte back."""
    house.release("kept")
    house.collect_all()
    assert house.states() == {}
    for zone in ("home", "eu"):
        assert house.files(zone) == []
        for draft in (house.folder / "zones" / zone / "incoming").glob("*"):
            os.utime(draft, (1, 1))
    house.close()
    fresh = House(house.folder, house.clock, url=house.url)
    for zone in ("home", "eu"):
        fresh.open_zone(zone)
        assert list((house.folder / "zones" / zone / "incoming").iterdir()) == []
    fresh.close()


def die_and_look(tmp_path: Path, url: str, op: str, points: int) -> None:
    house, kept = prepare(tmp_path, url)
    said, steps = run_child(house, op, 0)
    assert said
    assert steps > 50
    check(house, kept, op, said)
    for point in range(points):
        kill_at = 1 + (point * steps + point * 7) // points
        if op != "collect":
            # Forget what the last round left, so that this one has everything to do.
            for _ in range(6):
                house.clock.at += 2 * HOUR
                house.collector.collect(house.ctx)
        said, _ = run_child(house, op, kill_at)
        check(house, kept, op, said)
        if op == "collect":
            house.put(noise(CHUNK_BYTES + 1, 4))
            for _ in range(2):
                house.clock.at += 2 * HOUR
                house.collector.collect(house.ctx)
            house.clock.at += 2 * HOUR
    clean_up(house)


@pytest.mark.parametrize("op", ["put", "copy", "collect"])
def test_killed_at_any_point(tmp_path: Path, url: str, op: str) -> None:
    die_and_look(tmp_path, url, op, points=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("op", ["put", "copy", "collect"])
def test_killed_at_many_points(tmp_path: Path, url: str, op: str) -> None:
    die_and_look(tmp_path, url, op, points=80)


def test_puts_of_one_digest_race_with_each_other_and_the_collector(tmp_path: Path, url: str) -> None:
    house = House(tmp_path, url=url)
    stop = threading.Event()
    digests: list[str] = []

    def putting() -> None:
        digests.extend(house.put(DATA).digest for _ in range(5))

    def collecting() -> None:
        while not stop.is_set():
            house.collector.collect(house.context())

    house.put(b"makes the keys")
    putters = [threading.Thread(target=putting) for _ in range(4)]
    collector = threading.Thread(target=collecting)
    for thread in (*putters, collector):
        thread.start()
    for thread in putters:
        thread.join()
    stop.set()
    collector.join()
    assert len(digests) == 20
    assert house.get(digests[0]) == DATA
    house.keep("kept", digests[0])
    house.collect_all()
    assert house.get(digests[0]) == DATA
    assert len(house.files()) == 4
    house.close()


def test_the_loops_collect_and_scrub_by_themselves(tmp_path: Path, url: str) -> None:
    house = House(tmp_path, url=url)
    kept = house.put(KEPT).digest
    house.keep("kept", kept)
    house.put(DATA)
    small = house.files()[0]
    loops = [CollectLoop(house.ledger, house.collector), ScrubLoop(house.ledger, house.collector)]
    runner = LoopRunner(house.ledger, "one", loops, lambda name: house.context(tenant="house"))
    for _ in range(8):
        house.clock.at += 2 * HOUR
        runner.run_once()
    assert set(house.states().values()) == {LIVE}
    assert house.get(kept) == KEPT
    assert len(house.files()) == 3
    broken = next(f for f in (small, *house.files()) if f.exists())
    broken.write_bytes(b"rotten")
    runner.run_once()
    assert house.ledger.tail(tenant="acme", verb="store.broken") == []
    house.clock.at += SCRUB_ROUND_S
    runner.run_once()
    (fact,) = house.ledger.tail(tenant="acme", verb="store.broken")
    assert str(fact.event.subject) == "dataset:p/kept@v1"
    house.close()


def test_two_collectors_at_once_do_no_harm(tmp_path: Path, url: str) -> None:
    house, kept = prepare(tmp_path, url)
    threads = [threading.Thread(target=lambda: house.collector.collect(house.context())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(house, kept, "collect", "")
    clean_up(house)


def test_a_copy_broken_off_is_taken_up_where_it_stopped(tmp_path: Path) -> None:
    house = House(tmp_path)
    blob = house.put(DATA)
    store, calls = house.open_zone("eu"), itertools.count()

    class Failing:
        """The real store, until the third object."""

        def put(self, key: str, chunks: Iterator[bytes]) -> int:
            if next(calls) == 2:
                raise Conflict("the line is down")
            return store.put(key, chunks)

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

    house.stores["eu"] = Failing()  # type: ignore[assignment]
    with pytest.raises(Conflict):
        house.copy(blob.digest, "eu")
    before = {f: f.stat().st_mtime_ns for f in house.files("eu")}
    assert before
    with pytest.raises(NotFound):
        house.get(blob.digest, "eu")
    house.stores["eu"] = store
    house.copy(blob.digest, "eu")
    assert house.get(blob.digest, "eu") == DATA
    assert {f: f.stat().st_mtime_ns for f in before} == before
    house.close()


def test_bytes_that_rot_on_the_way_are_never_copied_on(tmp_path: Path) -> None:
    house = House(tmp_path)
    blob = house.put(DATA)
    file = house.files()[1]
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CorruptData):
        house.copy(blob.digest, "eu")
    with pytest.raises(NotFound):
        house.blobs.get(house.ctx, THING, "eu", blob.digest, house.permit("read", "eu"))
    house.close()


def test_everything_on_a_far_store(tmp_path: Path, new_s3: Callable[[], Bucket]) -> None:
    """Put, range, repeat, copy, rot, scrub, heal and collect, with S3 in one zone and a folder in the other."""
    bucket = new_s3()
    house = House(tmp_path)
    far = house.stores["home"] = CloudObjectStore(bucket.url, bucket.options)

    def broken_off() -> Iterator[bytes]:
        yield DATA[: 2 * CHUNK_BYTES + 5]
        raise Conflict("the client went away")

    with pytest.raises(Conflict):
        house.put(broken_off())
    there = {stat.key for stat in far.list()}
    digest = house.put(DATA).digest
    assert there < {stat.key for stat in far.list()}
    assert (house.get(digest), house.get(digest, start=CHUNK_BYTES - 3, stop=2 * CHUNK_BYTES + 3)) == (
        DATA,
        DATA[CHUNK_BYTES - 3 : 2 * CHUNK_BYTES + 3],
    )
    house.copy(digest, "eu")
    assert house.get(digest, "eu") == DATA
    house.keep("kept", digest)
    rotten = next(far.list()).key
    far.put(rotten, [b"rotten"])
    (broken,) = house.collector.scrub(house.ctx).broken
    assert [str(ref) for ref in broken.refs] == ["dataset:p/kept@v1"]
    with pytest.raises(CorruptData):
        house.get(digest)
    house.put(DATA)
    assert house.get(digest) == DATA
    house.release("kept")
    house.collect_all()
    assert list(far.list()) == []
    house.close()
