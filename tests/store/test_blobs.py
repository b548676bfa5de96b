"""Bytes by content: what is put is got, once per tenant and zone, sealed, against permits only, in bounded memory."""

import contextlib
import hashlib
import itertools
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Denied, Invalid, NotFound, Unavailable
from falaj.core.ports import ObjectStore
from falaj.core.transfer_permits import PERMIT_LIFETIME_S
from falaj.store.blob_store import PART_CHUNKS, _ChunkRead
from falaj.store.sealed_format import CHUNK_BYTES, HEAD_BYTES
from tests.store.blobhouse import THING, House, noise, stream

PART = PART_CHUNKS * CHUNK_BYTES
SIZES = (
    0,
    1,
    1000,
    CHUNK_BYTES - 1,
    CHUNK_BYTES,
    CHUNK_BYTES + 1,
    5 * CHUNK_BYTES,
    PART - 1,
    PART,
    PART + 1,
    2 * PART + 5,
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("size", SIZES)
def test_what_is_put_is_got(house: House, size: int) -> None:
    data = noise(size)
    blob = house.put(data)
    assert blob.digest == "b3:" + blake3(data).hexdigest()
    assert (blob.size, blob.zone) == (size, "home")
    assert house.get(blob.digest) == data


def test_ranges_equal_slices(house: House) -> None:
    data = noise(2 * PART + 3 * CHUNK_BYTES + 7)
    large, small = house.put(data).digest, house.put(data[: 3 * CHUNK_BYTES + 7]).digest
    edges = (
        0,
        1,
        CHUNK_BYTES - 1,
        CHUNK_BYTES,
        CHUNK_BYTES + 1,
        3 * CHUNK_BYTES + 7,
        PART - 1,
        PART,
        PART + 1,
        2 * PART,
        len(data) - 1,
        len(data),
    )
    for start in edges:
        for stop in (*edges, None, len(data) + 5):
            if stop is not None and stop < start:
                continue
            assert house.get(large, start=start, stop=stop) == data[start:stop]
            assert house.get(small, start=start, stop=stop) == data[: 3 * CHUNK_BYTES + 7][start:stop]


def test_a_range_reads_only_the_chunks_it_needs(house: House) -> None:
    """Break every other chunk on disk: the range still opens, the whole does not."""
    data = noise(8 * CHUNK_BYTES)
    blob = house.put(data)
    (file,) = house.files()
    raw = bytearray(file.read_bytes())
    raw[HEAD_BYTES + 5 * (CHUNK_BYTES + 16) + 9] ^= 1
    file.write_bytes(raw)
    assert (
        house.get(blob.digest, start=2 * CHUNK_BYTES - 5, stop=4 * CHUNK_BYTES)
        == data[2 * CHUNK_BYTES - 5 : 4 * CHUNK_BYTES]
    )
    with pytest.raises(CorruptData):
        house.get(blob.digest)


def test_who_reads_beside_others_opens_for_itself(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads for every reader would be more threads than cores."""
    monkeypatch.setattr("falaj.store.blob_store._DECRYPT_THREADS", 2)
    data = noise(9 * CHUNK_BYTES)
    digest = house.put(data).digest
    seen: set[str] = set()
    read = _ChunkRead.open

    def watched(run: _ChunkRead, store: ObjectStore) -> list[bytes]:
        seen.add(threading.current_thread().name)
        return read(run, store)

    monkeypatch.setattr(_ChunkRead, "open", watched)
    here = threading.current_thread().name
    for _ in range(2):
        assert house.get(digest) == data
        assert here not in seen
        other = house.blobs.get(house.ctx, THING, "home", digest, house.permit("read"))
        next(other)
        seen.clear()
        assert house.get(digest, start=0, stop=3 * CHUNK_BYTES) == data[: 3 * CHUNK_BYTES]
        assert here in seen
        other.close()  # type: ignore[attr-defined]
        seen.clear()


@given(cuts=st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=6))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_way_it_is_cut_does_not_matter(house: House, cuts: list[int]) -> None:
    data = noise(3 * CHUNK_BYTES, 3)
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    assert house.put(pieces).digest == "b3:" + blake3(data).hexdigest()


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (5, 4)])
def test_ranges_that_make_no_sense_are_refused(house: House, start: int, stop: int | None) -> None:
    blob = house.put(b"x" * 10)
    with pytest.raises(Invalid):
        house.get(blob.digest, start=start, stop=stop)


@pytest.mark.parametrize(
    "digest", ["", "b3:", "sha256:" + "0" * 64, "b3:" + "0" * 63, "b3:" + "G" * 64, "b3:../../../x"]
)
def test_no_digest_but_a_digest_is_accepted(house: House, digest: str) -> None:
    with pytest.raises(Invalid):
        house.get(digest)


def test_bytes_lie_once_per_tenant_and_zone(house: House) -> None:
    data = noise(CHUNK_BYTES)
    assert house.put(data) == house.put(data)
    assert len(house.files()) == 1
    other = house.context("bank")
    house.blobs.put(other, THING, "home", [data], house.permit("write", tenant="bank"))
    house.put(data, "eu")
    assert (len(house.files()), len(house.files("eu"))) == (2, 1)


def test_versions_of_a_file_share_their_equal_parts(house: House) -> None:
    data = noise(2 * PART)
    house.put(data + b"one")
    house.put(data + b"two")
    assert len(house.files()) == 4


def test_the_store_shows_no_digest_and_no_plain_byte(house: House) -> None:
    data = b"the quick brown fox " * 1000
    blob = house.put(data)
    (file,) = house.files()
    digests = {blob.digest[3:], hashlib.sha256(data).hexdigest()}
    assert file.name not in digests
    assert b"quick brown" not in file.read_bytes()
    for path in house.folder.rglob("*"):
        assert not path.is_file() or b"quick brown" not in path.read_bytes(), path


def test_another_tenant_finds_nothing(house: House) -> None:
    blob = house.put(b"mine")
    with pytest.raises(NotFound):
        house.blobs.get(house.context("bank"), THING, "home", blob.digest, house.permit("read", tenant="bank"))


def test_a_copy_is_sealed_anew_under_the_other_zones_keys(house: House) -> None:
    data = noise(PART + 5)
    blob = house.put(data)
    house.copy(blob.digest, "eu")
    assert house.get(blob.digest, "eu") == data
    assert {f.name for f in house.files()}.isdisjoint(f.name for f in house.files("eu"))
    # The bytes of one zone put in the place of the other's do not open, though tenant and object are the same.
    mine, theirs = (
        house.files()[0],
        min(house.files("eu"), key=lambda f: f.stat().st_size != house.files()[0].stat().st_size),
    )
    theirs.write_bytes(mine.read_bytes())
    with pytest.raises(CorruptData):
        house.get(blob.digest, "eu")


def test_objects_swapped_on_disk_do_not_open(house: House) -> None:
    one, two = house.put(noise(5000, 1)), house.put(noise(5000, 2))
    a, b = house.files()
    swap = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(swap)
    for blob in (one, two):
        with pytest.raises(CorruptData):
            house.get(blob.digest)


def test_a_lost_object_is_corrupt_and_named(house: House) -> None:
    blob = house.put(noise(100))
    house.files()[0].unlink()
    with pytest.raises(CorruptData, match=blob.digest[3:19]):
        house.get(blob.digest)


@pytest.mark.parametrize("size", [100, CHUNK_BYTES, 3 * CHUNK_BYTES + 5, PART + 5])
def test_every_flipped_byte_is_found_before_the_last_chunk_is_given(house: House, size: int) -> None:
    data = noise(size)
    blob = house.put(data)
    file = house.files()[-1]
    raw = bytearray(file.read_bytes())
    raw[-20] ^= 0x10
    file.write_bytes(raw)
    got: list[bytes] = []
    with pytest.raises(CorruptData):
        got.extend(house.blobs.get(house.ctx, THING, "home", blob.digest, house.permit("read")))
    assert sum(map(len, got)) < size


class TestPermits:
    """Nothing moves without one, and one is good for exactly one act."""

    def test_each_is_good_once(self, house: House) -> None:
        permit = house.permit("write")
        house.blobs.put(house.ctx, THING, "home", [b"x"], permit)
        with pytest.raises(Denied):
            house.blobs.put(house.ctx, THING, "home", [b"x"], permit)

    def test_forged(self, house: House) -> None:
        permit = house.permit("write", "eu")
        for forged in (replace(permit, dst="home"), replace(permit, dst="home", mac=""), replace(permit, mac="0" * 64)):
            with pytest.raises(Denied):
                house.blobs.put(house.ctx, THING, "home", [b"x"], forged)
        assert house.states() == {}

    def test_expired(self, house: House) -> None:
        permit = house.permit("write")
        house.clock.at += PERMIT_LIFETIME_S
        with pytest.raises(Denied):
            house.blobs.put(house.ctx, THING, "home", [b"x"], permit)

    @pytest.mark.parametrize(
        ("op", "zone", "thing", "tenant"),
        [
            ("read", "home", THING, "acme"),
            ("copy", "home", THING, "acme"),
            ("write", "eu", THING, "acme"),
            ("write", "home", "blob:p/other", "acme"),
            ("write", "home", THING, "bank"),
        ],
    )
    def test_of_another_act(self, house: House, op: str, zone: str, thing: str, tenant: str) -> None:
        taken: list[bytes] = []

        def chunks() -> Iterator[bytes]:
            taken.append(b"x")
            yield b"x"

        with pytest.raises(Denied):
            house.blobs.put(house.ctx, THING, "home", chunks(), house.permit(op, zone, thing, tenant))
        assert taken == []
        assert house.states() == {}

    def test_reading_copying_and_deleting_ask_too(self, house: House) -> None:
        digest = house.put(b"x").digest
        with pytest.raises(Denied):
            house.blobs.get(house.ctx, THING, "home", digest, house.permit("write"))
        for permits in (
            (house.permit("copy"), house.permit("copy", "eu")),
            (house.permit("read"), house.permit("write", "eu")),
            (house.permit("read"), house.permit("copy", "home")),
        ):
            with pytest.raises(Denied):
                house.blobs.copy(house.ctx, THING, digest, "home", "eu", permits)
        with pytest.raises(Denied):
            house.blobs.delete(house.ctx, THING, "home", digest, house.permit("read"))
        house.blobs.delete(house.ctx, THING, "home", digest, house.permit("delete"))
        assert not (house.folder / "zones" / "eu").exists()


class TestBrokenOff:
    """A put that failed leaves nothing readable, and the next one sends only what is missing."""

    def test_the_error_of_the_reader_comes_through(self, house: House) -> None:
        def failing(after: int) -> Iterator[bytes]:
            yield from stream(after)
            raise Unavailable("the client went away", "try again")

        for after in (0, CHUNK_BYTES, 3 * PART):
            with pytest.raises(Unavailable, match="client went away"):
                house.put(failing(after))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("blobs")]
        assert house.states() == {} or set(house.states().values()) == {"live"}

    def test_a_repeat_sends_only_the_missing_parts(self, house: House) -> None:
        data = noise(4 * PART + 9)

        def broken() -> Iterator[bytes]:
            yield data[: 3 * PART + 5]
            raise Unavailable("gone")

        with pytest.raises(Unavailable):
            house.put(broken())
        there = {f: f.stat().st_mtime_ns for f in house.files()}
        assert there
        assert house.get(house.put(data).digest) == data
        assert {f: f.stat().st_mtime_ns for f in there} == there
        assert len(house.files()) == 5

    def test_a_full_disk_is_said_and_leaves_nothing(self, house: House) -> None:
        home = house.folder / "zones" / "home"
        house.open_zone("home")
        program = f"""
import resource, signal, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from tests.store.blobhouse import House, noise
house = House(Path({str(house.folder)!r}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
house.put(b"makes the keys")
resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, resource.RLIM_INFINITY))
try:
    house.put(noise(1_000_000))
except Exception as error:
    print(type(error).__name__, error.message)
"""
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert run.stdout.strip() == "Unavailable the disk of the blob store is full", run.stderr
        assert list((home / "incoming").iterdir()) == []
        assert len(house.files()) == 1
        data = noise(1_000_000)
        assert house.get(house.put(data).digest) == data


def test_puts_of_the_same_bytes_at_the_same_time_all_succeed(house: House) -> None:
    data = noise(PART + CHUNK_BYTES)
    digests: list[str] = []
    threads = [threading.Thread(target=lambda: digests.append(house.put(data).digest)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(digests) == 6
    assert house.get(digests[0]) == data
    house.keep("kept", digests[0])
    house.collect_all()
    assert len(house.files()) == 2
    assert house.get(digests[0]) == data


def test_memory_stays_bounded(house: House) -> None:
    """256 MiB go in and out; the process grows by less than a third of that."""
    size = 256 << 20
    house.put(noise(PART + 1))
    before = _peak_after_reset()
    blob = house.put(stream(size))
    digest = hashlib.blake2b()
    for chunk in house.blobs.get(house.ctx, THING, "home", blob.digest, house.permit("read")):
        digest.update(chunk[:8])
    grown = _peak() - before
    assert blob.size == size
    assert grown < 85 << 20, f"grew by {grown >> 20} MiB"


def _peak_after_reset() -> int:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next((line for line in lines if line.startswith("VmHWM")), "")
    return int(found.split()[1]) << 10 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_only_files_inside_the_zones_folder_are_opened(house: House) -> None:
    """Names and digests of callers never reach the file system."""
    seen: list[str] = []
    watching = True

    def hook(event: str, args: tuple[object, ...]) -> None:
        if watching and event == "open" and isinstance(args[0], str):
            seen.append(args[0])

    sys.addaudithook(hook)
    try:
        for thing in ("blob:p/../../etc/passwd", "blob:p/%2e%2e", "\0", "/etc/passwd", "x" * 4096):
            permit = house.permits.issue("write", thing, "acme", "home", "home", label="", policy="", now=house.clock())
            house.blobs.put(house.ctx, thing, "home", [thing.encode()], permit)
    finally:
        watching = False
    assert seen
    for name in seen:
        assert not Path(name).is_absolute() or name.startswith(str(house.folder)), name
        assert ".." not in name
        assert "passwd" not in name
