"""Copies on the node: made once, whole or not at all, within their limit, whoever is killed on the way."""

import hashlib
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.errors import CorruptData
from falaj.feed.batch_loader import BatchLoader
from falaj.feed.file_cache import FileCache, SourceFile, find_node_cache, is_slow_storage
from falaj.feed.sources import open_source
from tests.feed.shelf import SIZE, numbers, put

SPAWNED = multiprocessing.get_context("fork")


def held(cache: FileCache) -> list[Path]:
    return sorted(file for file in cache.folder.iterdir() if file.suffix not in {".lock", ".tmp"})


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "far" / f"{number}.bin" for number in range(6)]
    made[0].parent.mkdir()
    for number, file in enumerate(made):
        file.write_bytes(bytes([number]) * 1000)
    return made


def test_a_file_is_copied_once(tmp_path: Path, files: list[Path]) -> None:
    cache = FileCache(tmp_path / "near", 10_000)
    with cache.local(files[0]) as first:
        written = first.stat().st_ctime_ns, first.stat().st_ino
        assert first.read_bytes() == files[0].read_bytes()
    with cache.local(files[0]) as second:
        assert second == first
        assert second.stat().st_ino == written[1]


def test_the_least_lately_used_go_and_the_limit_holds(tmp_path: Path, files: list[Path]) -> None:
    cache = FileCache(tmp_path / "near", 3000)
    for turn, number in enumerate([0, 1, 2, 0, 3, 4]):
        with cache.local(files[number]) as copy:
            assert copy.read_bytes()[0] == number
            os.utime(copy, ns=(turn, turn))
        assert sum(file.stat().st_size for file in held(cache)) <= 3000
    assert {file.read_bytes()[0] for file in held(cache)} == {0, 3, 4}


def test_what_is_in_use_stays_and_others_are_read_in_place(tmp_path: Path, files: list[Path]) -> None:
    cache = FileCache(tmp_path / "near", 1500)
    with cache.local(files[0]) as first:
        with cache.local(files[1]) as second:
            assert second == files[1]
        assert first.exists()
    with cache.local(files[1]) as second:
        assert second != files[1]
    assert not first.exists()


def test_a_file_larger_than_the_cache_is_read_in_place(tmp_path: Path, files: list[Path]) -> None:
    with FileCache(tmp_path / "near", 500).local(files[0]) as found:
        assert found == files[0]


def test_what_is_not_what_the_manifest_says_is_refused(tmp_path: Path, files: list[Path]) -> None:
    cache = FileCache(tmp_path / "near", 10_000)
    good = hashlib.sha256(files[0].read_bytes()).hexdigest()
    with cache.local(files[0], good) as copy:
        assert copy != files[0]
    with pytest.raises(CorruptData, match=r"1\.bin"), cache.local(files[1], good):
        pass
    assert len(held(cache)) == 1


def test_a_torn_copy_is_made_again(tmp_path: Path, files: list[Path]) -> None:
    cache = FileCache(tmp_path / "near", 10_000)
    with cache.local(files[0]) as copy:
        pass
    copy.write_bytes(b"torn")
    with cache.local(files[0]) as again:
        assert again.read_bytes() == files[0].read_bytes()


def test_a_file_that_changed_is_another_one(tmp_path: Path, files: list[Path]) -> None:
    cache = FileCache(tmp_path / "near", 10_000)
    kept = SourceFile(files[0], cache)
    with kept.local():
        pass
    files[0].write_bytes(b"new" * 500)
    with pytest.raises(CorruptData, match="changed"), kept.local():
        pass
    with SourceFile(files[0], cache).local() as copy:
        assert copy.read_bytes() == b"new" * 500


def _read_all(folder: Path, near: Path, limit: int, told: Any) -> None:
    feed = BatchLoader(open_source(folder, window=2, cache=FileCache(near, limit)), 20, micro=5, seed=3)
    told.put([numbers(given.batch) for given in feed.stream(0, SIZE // 20)])


def test_several_processes_share_a_cache_that_is_too_small_for_all(tmp_path: Path) -> None:
    folder = put("shards", tmp_path / "far")
    expected = [
        numbers(given.batch) for given in BatchLoader(open_source(folder, window=2), 20, micro=5, seed=3).stream(0, 25)
    ]
    limit = 2 * max(file.stat().st_size for file in folder.glob("*.shard")) + 10
    told = SPAWNED.Queue()
    readers = [SPAWNED.Process(target=_read_all, args=(folder, tmp_path / "near", limit, told)) for _ in range(3)]
    for reader in readers:
        reader.start()
    assert [told.get(timeout=100) for _ in readers] == [expected] * 3
    for reader in readers:
        reader.join(100)
        assert reader.exitcode == 0
    assert sum(file.stat().st_size for file in held(FileCache(tmp_path / "near", limit))) <= limit


def _fill(files: list[Path], near: Path, started: Any) -> None:
    cache = FileCache(near, 1 << 30)
    started.set()
    for file in files:
        with cache.local(file):
            pass


@pytest.mark.parametrize("turn", range(8))
def test_a_reader_killed_while_the_cache_fills_leaves_a_good_cache(turn: int, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.bin" for number in range(8)]
    for number, file in enumerate(files):
        file.write_bytes(np.random.default_rng(number).bytes(3 << 20))
    near, started = tmp_path / "near", SPAWNED.Event()
    victim = SPAWNED.Process(target=_fill, args=(files, near, started))
    victim.start()
    deadline = time.monotonic() + 100
    # On progress, not on time: at the first draft, the second, ...; at once when they are faster than we look.
    while time.monotonic() < deadline and victim.is_alive():
        if started.is_set() and near.exists() and sum(1 for _ in near.glob("*.lock")) > turn:
            break
    os.kill(victim.pid or 0, signal.SIGKILL)
    victim.join(100)
    cache = FileCache(near, 1 << 30)
    for file in files:
        with cache.local(file) as copy:
            assert copy != file
            assert copy.read_bytes() == file.read_bytes()
    assert list(near.glob("*.tmp")) == []
    assert len(held(cache)) == len(files)


def test_drafts_of_the_dead_make_room(tmp_path: Path, files: list[Path]) -> None:
    cache = FileCache(tmp_path / "near", 1500)
    (cache.folder / "0123.tmp").write_bytes(b"x" * 1400)
    with cache.local(files[0]) as copy:
        assert copy != files[0]


def test_local_folders_need_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FALAJ_CACHE", raising=False)
    assert not is_slow_storage(tmp_path)
    assert find_node_cache(tmp_path) is None
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "near"))
    monkeypatch.setenv("FALAJ_CACHE_BYTES", "12345")
    found = find_node_cache(tmp_path)
    assert found is not None
    assert (found.folder, found.limit_bytes) == (tmp_path / "near", 12345)


@pytest.mark.parametrize("kind", ["parquet", "feather", "jsonl", "tar", "shards"])
def test_every_kind_reads_through_the_cache(kind: str, tmp_path: Path) -> None:
    folder, cache = put(kind, tmp_path / "far"), FileCache(tmp_path / "near", 1 << 30)
    plain, cached = (BatchLoader(open_source(folder, cache=how), 20, micro=5) for how in (False, cache))
    assert [numbers(g.batch) for g in plain.stream(0, 5)] == [numbers(g.batch) for g in cached.stream(0, 5)]
    assert held(cache)
