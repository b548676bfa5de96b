"""Streams of every kind of source: the same for every world, from any step, with nothing left behind."""

import gc
import os
import resource
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.core.errors import CorruptData, Invalid, Unavailable, UserCodeFailed
from falaj.feed import device_transfer
from falaj.feed.batch_loader import BatchLoader, FetchedBatch
from falaj.feed.device_transfer import BatchDevice
from falaj.feed.read_ahead import ReadAhead
from falaj.feed.shards import write_shards
from falaj.feed.sources import open_source
from tests.feed.shelf import KINDS, SIZE, Mapped, columns, numbers, put
from tests.feed.transforms import die, double, fails_at_77

torch.set_num_threads(1)
STEPS = 45
"""More than two epochs."""


def read(feed: BatchLoader, first: int, last: int, world: int = 1) -> dict[tuple[int, int], list[int]]:
    found = {}
    for rank in range(world):
        expected = [(step, number) for step in range(first, last) for number in feed.plan.share(rank, world)]
        given = list(feed.stream(first, last, rank, world))
        assert [(one.step, one.number) for one in given] == expected
        found.update({(one.step, one.number): numbers(one.batch) for one in given})
    return found


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BatchLoader]:
    home = tmp_path_factory.mktemp("shelf")
    return {kind: BatchLoader(open_source(put(kind, home / kind), window=3), 24, micro=4, seed=9) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_world_gives_the_same_and_any_step_can_be_begun(kind: str, feeds: dict[str, BatchLoader]) -> None:
    feed = feeds[kind]
    expected = read(feed, 0, STEPS)
    stream = [number for key in sorted(expected) for number in expected[key]]
    assert sorted(stream[:SIZE]) == sorted(stream[SIZE : 2 * SIZE]) == list(range(SIZE))
    assert stream[:SIZE] != stream[SIZE : 2 * SIZE]
    for world in (2, 3, 6):
        assert read(feed, 0, STEPS, world) == expected
    assert read(feed, 31, STEPS, 2) == {key: ids for key, ids in expected.items() if key[0] >= 31}


@given(
    kind=st.sampled_from(KINDS), first=st.integers(0, 60), steps=st.integers(1, 5), world=st.sampled_from([1, 2, 3, 6])
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_resuming_gives_the_rest_of_the_same_stream(
    kind: str, first: int, steps: int, world: int, feeds: dict[str, BatchLoader]
) -> None:
    rest = read(feeds[kind], first, first + steps, world)
    whole = read(feeds[kind], max(0, first - 3), first + steps)
    assert rest == {key: ids for key, ids in whole.items() if key[0] >= first}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"stream", "sized"}])
def test_unshuffled_is_as_it_lies(kind: str, tmp_path: Path) -> None:
    feed = BatchLoader(open_source(put(kind, tmp_path / "x"), window=2), 10, micro=5, shuffle=False)
    assert [n for ids in read(feed, 0, SIZE // 10).values() for n in ids] == list(range(SIZE))


def test_forms_that_shuffle_alike_read_alike(feeds: dict[str, BatchLoader]) -> None:
    alike = ("arrays", "tensors", "npy", "npz", "npz packed", "jsonl", "tar", "map", "many")
    assert len({tuple(map(tuple, read(feeds[kind], 3, 9).values())) for kind in alike}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_columns_come_as_tensors(kind: str, feeds: dict[str, BatchLoader]) -> None:
    (first, *_) = feeds[kind].stream(0, 1)
    assert all(isinstance(column, torch.Tensor) or kind == "jsonl" for column in first.batch.values())


@pytest.mark.parametrize("reading", [{}, {"threads": 3, "ahead": 9}, {"ahead": 1}, {"workers": 2}])
def test_a_transform_changes_batches_and_not_their_order(reading: Any, tmp_path: Path) -> None:
    source = open_source(put("shards", tmp_path / "x"), transform=double)
    feed = BatchLoader(source, 24, micro=4, seed=9, **reading)
    found = list(feed.stream(0, 10))
    assert [numbers(one.batch) for one in found] == [feed.plan.ids(one.step, one.number).tolist() for one in found]
    assert all(torch.equal(one.batch["double"], one.batch["x"] * 2) for one in found)
    told = {tuple(one.batch["told"].tolist()) for one in found}
    if "workers" in reading:
        assert {torch_there for _, torch_there in told} == {0}
    else:
        assert told == {(os.getpid(), 1)}


@pytest.mark.parametrize("reading", [{}, {"workers": 1}])
def test_what_fails_in_the_background_is_told_once_with_its_samples(reading: Any) -> None:
    feed = BatchLoader(columns(), 20, micro=5, shuffle=False, transform=fails_at_77, **reading)
    stream = feed.stream(0, 100)
    given = []
    with pytest.raises(UserCodeFailed, match=r"samples 75, 76, 77, 78, 79 .*ZeroDivisionError: seventy-seven") as told:
        given.extend(iter(stream.__next__, None))
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    assert list(stream) == []


def test_errors_of_our_own_come_as_they_are() -> None:
    class Broken(Mapped):
        def __getitem__(self, number: int) -> Any:
            raise CorruptData(f"sample {number} is torn")

    with pytest.raises(CorruptData, match="torn"):
        next(BatchLoader(Broken(), 4).stream(0, 1))


def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(Unavailable, match="worker process died"):
        list(BatchLoader(columns(), 20, transform=die, workers=1).stream(0, 3))


@pytest.mark.parametrize("kind", ["parquet", "map", "shards", "stream"])
def test_closing_early_leaves_nothing_behind(kind: str, feeds: dict[str, BatchLoader]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # objects of earlier tests that only the collector frees
        gc.collect()
    before, opened = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        stream = feeds[kind].stream(0, 10**6)
        next(stream)
        stream.close()
    gc.collect()
    assert threading.active_count() <= before
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened + 3


def test_a_stream_that_is_never_begun_starts_nothing() -> None:
    before = threading.active_count()
    BatchLoader(Mapped(), 4).stream(0, 10)
    assert threading.active_count() == before


def test_waiting_is_counted_only_when_there_was_some() -> None:
    class Slow(Mapped):
        gate = threading.Event()

        def __getitem__(self, number: int) -> Any:
            self.gate.wait(60)
            return super().__getitem__(number)

    slow = Slow()
    timer = threading.Timer(0.3, slow.gate.set)
    timer.start()
    stream = BatchLoader(slow, 8, micro=4, ahead=2).stream(0, 3)
    first = next(stream)
    assert first.waited_s >= 0.25
    deadline = time.monotonic() + 60
    while any(thread.name.startswith("falaj-feed") and thread.is_alive() for thread in threading.enumerate()):
        rest = list(stream)
        assert time.monotonic() < deadline
    assert sum(one.waited_s for one in rest) < first.waited_s
    timer.join()


def test_memory_on_the_processor_needs_no_thread() -> None:
    before = threading.active_count()
    stream = BatchLoader(columns(), 8).stream(0, 3)
    assert next(stream).waited_s > 0
    assert threading.active_count() == before


@pytest.mark.parametrize("cold", [False, True])
def test_what_is_mapped_needs_a_thread_only_where_a_disk_is_waited_for(cold: bool, tmp_path: Path) -> None:
    held = {"x": np.arange(4000)[:, None].repeat(2048, 1), "y": np.arange(4000)}
    (shard,) = write_shards(held, tmp_path / "x").glob("*.shard")
    with shard.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED if cold else os.POSIX_FADV_WILLNEED)
        if cold and not _waits(shard):
            pytest.skip("this file system keeps all its files in memory")
    feed = BatchLoader(tmp_path / "x", 64, micro=32, seed=3)
    seen, threads = [], set()
    for one in feed.stream(0, 60):
        assert np.array_equal(one.batch["x"][:, 7], one.batch["y"])
        seen.append((one.step, one.number, one.batch["y"].tolist()))
        threads |= {thread.name for thread in threading.enumerate() if thread.name.startswith("falaj-feed")}
    assert seen == [(step, n, feed.plan.ids(step, n).tolist()) for step in range(60) for n in range(2)]
    assert bool(threads) == cold


def _waits(file: Path) -> bool:
    """Whether a page near the end of a file, which was to be forgotten, has to be waited for."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    np.memmap(file, np.uint8, "r")[-(1 << 20)].item()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt > before


def test_writing_into_a_batch_leaves_the_samples_alone(tmp_path: Path) -> None:
    for kind in ("arrays", "tensors", "npy", "shards"):
        feed = BatchLoader(put(kind, tmp_path / kind), 8)
        before = read(feed, 0, 1)
        next(feed.stream(0, 1)).batch["x"].fill_(-1)
        assert read(feed, 0, 1) == before


def test_an_empty_dataset_is_refused(tmp_path: Path) -> None:
    for kind in ("arrays", "npy", "npz", "shards", "parquet", "feather", "arrow", "jsonl", "tar", "map", "sized"):
        with pytest.raises(Invalid, match="empty"):
            BatchLoader(open_source(put(kind, tmp_path / kind, 0)), 4)
    with pytest.raises(Invalid, match="empty"):
        next(BatchLoader(put("stream", tmp_path, 0), 4).stream(0, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", ["arrays", "parquet", "shards", "map"])
def test_batches_arrive_whole_on_a_gpu(kind: str, tmp_path: Path) -> None:
    feed = BatchLoader(put(kind, tmp_path / kind), 24, micro=4, seed=9, device="cuda")
    plain = BatchLoader(put(kind, tmp_path / "plain"), 24, micro=4, seed=9)
    for one, other in zip(feed.stream(0, 200), plain.stream(0, 200), strict=True):
        assert isinstance(one, FetchedBatch)
        assert one.batch["x"].is_cuda
        # Work on the GPU at once: it must wait for the copy.
        assert torch.equal((one.batch["x"] * 2).cpu(), other.batch["x"] * 2)


@pytest.mark.parametrize("most", [0, 1000, 1 << 20])
def test_only_so_much_lies_on_a_device_before_it_is_asked_for(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_transfer, "MAX_SENT_BYTES", most)
    pq.write_table(pa.table({"x": np.arange(4000, dtype=np.float32)}), tmp_path / "x.parquet", row_group_size=500)
    source = open_source(tmp_path / "x.parquet", window=4)
    plan = BatchLoader(source, 16, micro=8, seed=3).plan
    # Not the word for this process's own memory: batches are sent there, and can be counted.
    ahead = ReadAhead(source, BatchDevice("cpu:0"), {})
    together = ahead.together(8)
    assert together >= 256
    there, read = [], []
    for _, batches, _ in ahead.run(plan.blocks(range(400), range(2), together), 8):
        for batch in batches:
            there.append((ahead.sending.there, ahead.sending.there_bytes))
            read.append(batch["x"])
    ahead.close()
    assert max(size for _, size in there) <= max(most, device_transfer.MIN_SENT_BATCHES * 32) + 32
    assert min(number for number, _ in there[:-1]) >= 1, "the next one is always on its way"
    assert there[0][0] == (len(there) - 1 if most > 32 * len(there) else max(1, most // 32 - 1))
    assert (ahead.sending.there, ahead.sending.there_bytes) == (0, 0)
    plain = BatchLoader(open_source(tmp_path / "x.parquet", window=4), 16, micro=8, seed=3)
    assert torch.equal(torch.cat(read), torch.cat([one.batch["x"] for one in plain.stream(0, 400)]))
