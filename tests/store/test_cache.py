"""The block cache: what it asks of the store behind it, what it forgets first, and what breaks under it."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.backends.cloud_objects import CloudObjectStore
from falaj.backends.folder_objects import FolderObjectStore
from falaj.core.errors import Invalid, NotFound, Unavailable
from falaj.core.ports import ObjectStat
from falaj.store.blob_cache import BLOCK_BYTES, MIN_CACHE_BYTES, CachedObjectStore

MIB = 1 << 20


class Counted:
    """A real folder of blobs that notes every read, and can be told to fail or to wait."""

    requests = 4

    def __init__(self, root: Path) -> None:
        self._store = FolderObjectStore(f"dir:{root}", {})
        self.reads: list[tuple[str, int, int | None]] = []
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        return self._store.put(key, chunks)

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        self.reads.append((key, start, stop))
        self.gate.wait(30)
        if self.broken:
            raise Unavailable("the line is cut")
        return self._store.open(key, start, stop)

    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]:
        return self._store.stat(keys)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def far(tmp_path: Path) -> Counted:
    return Counted(tmp_path / "far")


def cache_of(far: Any, tmp_path: Path, limit: int = 64 * MIB) -> CachedObjectStore:
    return CachedObjectStore(far, tmp_path / "cache", limit)


def got(store: Any, key: str, *span: Any) -> bytes:
    return b"".join(store.open(key, *span))


def blocks(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "cache" / "blocks").rglob("*") if path.is_file())


def test_a_second_read_asks_nobody(far: Counted, tmp_path: Path) -> None:
    data = os.urandom(3 * MIB + 5)
    far.put("a", [data])
    cache = cache_of(far, tmp_path)
    assert got(cache, "a") == data
    assert far.reads == [("a", 0, 8 * BLOCK_BYTES)]
    assert got(cache, "a") == data
    assert got(cache, "a", MIB + 1, 2 * MIB) == data[MIB + 1 : 2 * MIB]
    assert len(far.reads) == 1
    assert (cache.misses, cache.hits) == (8, 5)


def test_only_the_blocks_that_are_missing_are_fetched(far: Counted, tmp_path: Path) -> None:
    data = os.urandom(6 * MIB)
    far.put("a", [data])
    cache = cache_of(far, tmp_path)
    assert got(cache, "a", 2 * MIB + 7, 3 * MIB + 7) == data[2 * MIB + 7 : 3 * MIB + 7]
    assert got(cache, "a") == data
    assert [read[1:] for read in far.reads] == [(2 * MIB, 4 * MIB), (0, 2 * MIB), (4 * MIB, 12 * MIB)]
    assert got(cache, "a", 6 * MIB, None) == b""
    assert len(far.reads) == 3


def test_what_was_put_is_near_and_only_when_it_is_there(far: Counted, tmp_path: Path) -> None:
    cache, data = cache_of(far, tmp_path), os.urandom(2 * MIB)
    assert cache.put("a", (memoryview(data)[i : i + 300_000] for i in range(0, len(data), 300_000))) == len(data)
    assert got(cache, "a") == data
    assert cache.put("empty", []) == 0
    assert got(cache, "empty") == b""
    assert far.reads == []

    def failing() -> Iterator[bytes]:
        yield bytes(3 * MIB)
        raise Unavailable("the client went away")

    with pytest.raises(Unavailable):
        cache.put("b", failing())
    with pytest.raises(NotFound):
        got(cache, "b")
    assert len(blocks(tmp_path)) == 4
    assert list((tmp_path / "cache" / "incoming").iterdir()) == []


def test_it_survives_a_restart_and_a_store_that_is_away(far: Counted, tmp_path: Path) -> None:
    cache_of(far, tmp_path).put("a", [b"x" * 5])
    far.broken = True
    assert got(cache_of(far, tmp_path), "a") == b"xxxxx"
    with pytest.raises(Unavailable, match="line is cut"):
        got(cache_of(far, tmp_path), "b")
    far.broken = False
    far.put("b", [b"back"])
    assert got(cache_of(far, tmp_path), "b") == b"back"


def test_delete_takes_the_blocks_along(far: Counted, tmp_path: Path) -> None:
    cache = cache_of(far, tmp_path)
    cache.put("a", [bytes(2 * MIB + 1)])
    cache.put("b", [b"stays"])
    cache.pin(["a"])
    cache.delete("a")
    assert len(blocks(tmp_path)) == 1
    assert list((tmp_path / "cache" / "pins").iterdir()) == []
    with pytest.raises(NotFound):
        got(cache, "a")


@pytest.mark.parametrize(
    "harm",
    [
        lambda file, other: file.write_bytes(file.read_bytes()[:-1]),
        lambda file, other: file.write_bytes(b""),
        lambda file, other: file.write_bytes(bytes(len(file.read_bytes()))),
        lambda file, other: file.write_bytes(file.read_bytes() + b"x"),
        lambda file, other: file.write_bytes(other.read_bytes()),
        lambda file, other: (file.unlink(), file.symlink_to(other)),
        lambda file, other: (file.unlink(), os.mkfifo(file)),
        lambda file, other: (file.unlink(), file.mkdir()),
        lambda file, other: file.chmod(0),
    ],
)
def test_a_harmed_block_is_fetched_again(far: Counted, tmp_path: Path, harm: Any) -> None:
    data = os.urandom(2 * MIB + 77)
    cache = cache_of(far, tmp_path)
    cache.put("a", [data])
    harm(*blocks(tmp_path)[1:])
    assert got(cache, "a") == data
    assert got(cache, "a", 100, 2 * MIB) == data[100 : 2 * MIB]


def test_what_was_used_longest_ago_goes_first(far: Counted, tmp_path: Path) -> None:
    cache = cache_of(far, tmp_path, 20 * MIB)
    for number in range(16):
        cache.put(f"k{number}", [bytes([number]) * (MIB - 100)])
    got(cache, "k0")
    for number in range(16, 26):
        cache.put(f"k{number}", [bytes([number]) * (MIB - 100)])
    assert sum(path.stat().st_size for path in blocks(tmp_path)) <= 20 * MIB
    far.reads.clear()
    assert got(cache, "k0", 0, 1) == b"\0"
    assert got(cache, "k25", 0, 1) == b"\x19"
    assert far.reads == []
    assert got(cache, "k1", 0, 1) == b"\1"
    assert len(far.reads) == 1


def test_what_is_pinned_stays_also_after_a_restart(far: Counted, tmp_path: Path) -> None:
    cache = cache_of(far, tmp_path, MIN_CACHE_BYTES)
    cache.pin([f"p{number}" for number in range(4)])
    for name in ("p", "k", "q"):
        for number in range(12):
            cache.put(f"{name}{number}", [bytes([number]) * (MIB - 100)])
        cache = cache_of(far, tmp_path, MIN_CACHE_BYTES)
    far.reads.clear()
    for number in range(4):
        assert got(cache, f"p{number}", 0, 1) == bytes([number])
    assert far.reads == []
    cache.unpin([f"p{number}" for number in range(4)])
    for number in range(40):
        cache.put(f"r{number}", [bytes(MIB - 100)])
    assert got(cache, "p0", 0, 1) == b"\0"
    assert len(far.reads) == 1


def test_pins_fill_the_cache_and_no_more(far: Counted, tmp_path: Path) -> None:
    cache = cache_of(far, tmp_path, MIN_CACHE_BYTES)
    keys = [f"p{number}" for number in range(30)]
    cache.pin(keys)
    for key in keys:
        cache.put(key, [key.encode() * 300_000])
    assert sum(path.stat().st_size for path in blocks(tmp_path)) <= MIN_CACHE_BYTES
    assert all(got(cache, key) == key.encode() * 300_000 for key in keys)


def test_many_readers_of_a_missing_block_fetch_it_once(far: Counted, tmp_path: Path) -> None:
    data = os.urandom(4 * MIB)
    far.put("a", [data])
    cache = cache_of(far, tmp_path)
    far.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(got, cache, "a", at * 1000, 4 * MIB) for at in range(8)]
        far.gate.set()
        assert [reader.result() for reader in readers] == [data[at * 1000 :] for at in range(8)]
    assert len(far.reads) == 1


def test_a_reader_that_stops_halfway_holds_up_nobody(far: Counted, tmp_path: Path) -> None:
    data = os.urandom(9 * MIB)
    far.put("a", [data])
    cache = cache_of(far, tmp_path)
    slow = cache.open("a")
    assert next(slow) == data[:MIB]
    assert got(cache, "a") == data
    far.broken = True
    with contextlib.suppress(Unavailable):
        got(cache, "b")
    far.broken = False
    far.put("b", [b"x"])
    assert got(cache, "b") == b"x"


@given(st.integers(0, 3 * MIB), st.lists(st.tuples(st.integers(0, 4 * MIB), st.none() | st.integers(0, 4 * MIB))))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_range_is_what_the_store_behind_gives(
    tmp_path: Path, size: int, spans: list[tuple[int, int | None]]
) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    far = FolderObjectStore(f"dir:{tmp_path}/far", {})
    key = f"k{size}"
    far.put(key, [data])
    cache = cache_of(far, tmp_path)
    for start, stop in [*spans, (0, None)]:
        assert got(cache, key, start, stop) == data[start : stop if stop is None else max(start, stop)]
    cache.close()


def test_nobody_else_may_look(far: Counted, tmp_path: Path) -> None:
    cache_of(far, tmp_path).put("a", [b"x"])
    for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_disk_that_takes_nothing_fails_nobody(far: Counted, tmp_path: Path) -> None:
    cache, data = cache_of(far, tmp_path), os.urandom(2 * MIB)
    (tmp_path / "cache" / "incoming").rmdir()
    assert cache.put("a", [data]) == len(data)
    assert got(cache, "a") == data


def test_a_cache_too_small_to_help_is_refused(far: Counted, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        cache_of(far, tmp_path, MIN_CACHE_BYTES - 1)


def test_it_is_as_far_as_the_store_behind_it(far: Counted, tmp_path: Path) -> None:
    assert cache_of(far, tmp_path).requests == 4
    near = FolderObjectStore(f"dir:{tmp_path}/near", {})
    assert CachedObjectStore(near, tmp_path / "other", MIN_CACHE_BYTES).requests == 0


WORKER = """
import sys, random
from pathlib import Path
from falaj.backends.folder_objects import FolderObjectStore
from falaj.store.blob_cache import CachedObjectStore
root, seed = Path(sys.argv[1]), int(sys.argv[2])
cache = CachedObjectStore(FolderObjectStore(f"dir:{root}/far", {}), root / "cache", 16 << 20)
dice = random.Random(seed)
for turn in range(int(sys.argv[3])):
    number = dice.randrange(24)
    data = b"".join(cache.open(f"k{number}"))
    assert data == bytes([number]) * (1_500_000 + number), number
    print(turn, flush=True)
"""


def worker(tmp_path: Path, seed: int, turns: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(seed), str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_several_processes_share_a_folder_and_some_are_killed(tmp_path: Path) -> None:
    far = FolderObjectStore(f"dir:{tmp_path}/far", {})
    for number in range(24):
        far.put(f"k{number}", [bytes([number]) * (1_500_000 + number)])
    lasting = [worker(tmp_path, seed, 80) for seed in (1, 2)]
    for seed in (3, 4, 5):
        victim = worker(tmp_path, seed, 100_000)
        assert victim.stdout is not None
        for _ in range(7):
            victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    for one in lasting:
        _, errors = one.communicate(timeout=60)
        assert one.returncode == 0, errors
    cache = CachedObjectStore(far, tmp_path / "cache", 16 * MIB)
    for number in range(24):
        assert got(cache, f"k{number}") == bytes([number]) * (1_500_000 + number)
    assert sum(path.stat().st_size for path in blocks(tmp_path)) <= 17 * MIB


def test_what_the_dead_left_is_cleared(far: Counted, tmp_path: Path) -> None:
    cache_of(far, tmp_path)
    incoming = tmp_path / "cache" / "incoming"
    for name in ("dead", "young"):
        (incoming / name).write_bytes(b"half")
    os.utime(incoming / "dead", (1, 1))
    cache_of(far, tmp_path).put("a", [b"x"])
    assert [path.name for path in incoming.iterdir()] == ["young"]


def test_a_hit_costs_less_than_the_way_to_the_store(s3_url: Any, tmp_path: Path) -> None:
    store = CloudObjectStore(s3_url.url, s3_url.options)
    data = os.urandom(16 * MIB)
    store.put("a", [data])
    cache, seconds = cache_of(store, tmp_path), dict[str, float]()
    for what in ("miss", "hit"):
        start = time.perf_counter()
        assert got(cache, "a") == data
        seconds[what] = time.perf_counter() - start
    print({what: f"{16 / taken:.0f} MiB/s" for what, taken in seconds.items()})
    assert cache.hits >= 16
    assert seconds["hit"] < seconds["miss"]
