"""Points on the port: whatever is appended and settled in whatever order, a curve is the sorted set of its points."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.backends.series_sqlite import SqliteSeriesStore
from falaj.core.errors import CorruptData, Unavailable
from falaj.core.ports import SeriesBlock
from falaj.track import metric_store as module
from falaj.track.metric_points import MetricPoint, pack_points, spot_rank
from falaj.track.metric_store import CompactionWorker, MetricStore
from falaj.track.records import Metric
from tests.servers.process import wait_until
from tests.town import Town

KEYS = st.sampled_from(["loss", "acc", "wide"])
STEPS = st.integers(-2, 12) | st.just(0)
VALUES = st.floats().map(lambda value: math.nan if math.isnan(value) else value) | st.sampled_from([0.0, 1.0, math.nan])
POINTS = st.lists(st.tuples(KEYS, STEPS, st.sampled_from([0.0, 1.0, 2.5]), VALUES), min_size=1, max_size=60)
ACTS = st.lists(POINTS | st.just("settle"), max_size=12)


class Plain:
    """A ledger as far as measures need one, without a cipher."""

    cipher = None


class Other:
    """A cipher that only binds: what is moved elsewhere does not open."""

    cipher: Any

    def __init__(self) -> None:
        self.cipher = self

    def seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
        return aad + b"|" + data

    def unseal(self, tenant: str, zone: str, sealed: bytes, aad: bytes) -> bytes:
        if not sealed.startswith(aad + b"|"):
            raise CorruptData("it stands in another's place")
        return sealed[len(aad) + 1 :]


@pytest.fixture
def measures(tmp_path: Path) -> Iterator[MetricStore]:
    series = SqliteSeriesStore(f"sqlite:{tmp_path}/series.db")
    made = MetricStore(series, Other())  # type: ignore[arg-type]
    yield made
    made.close()
    series.close()


def write(measures: MetricStore, points: list[MetricPoint], run: str = "r") -> None:
    measures.write([measures._seal_block(("t", run, "z"), "", pack_points(points), len(points), 1.0)])


def curve(measures: MetricStore, key: str, limit: int = 7) -> list[tuple[int, float, float]]:
    """The whole curve, page by page."""
    found: list[Metric] = []
    after = ""
    while True:
        page = measures.curve(("t", "r"), key, after, limit, 0)
        assert len(page.points) <= limit
        found += page.points
        after = page.next
        if not after:
            return [(one.step, one.at, one.number) for one in found]


def model(points: list[MetricPoint], key: str) -> list[tuple[int, float, float]]:
    unique = {(step, at, pack("d", v)): (step, at, v) for name, step, at, v in points if name == key}
    return sorted(unique.values(), key=spot_rank)


def bits(spots: list[tuple[int, float, float]]) -> list[Any]:
    return sorted((step, at, pack("d", value)) for step, at, value in spots)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTS)
def test_settling_changes_nothing_that_can_be_seen(tmp_path_factory: pytest.TempPathFactory, acts: list[Any]) -> None:
    small, module.MAX_BLOCK_SPOTS = module.MAX_BLOCK_SPOTS, 8
    series = SqliteSeriesStore(f"sqlite:{tmp_path_factory.mktemp('s')}/series.db")
    measures = MetricStore(series, Other())  # type: ignore[arg-type]
    try:
        said: list[MetricPoint] = []
        for act in acts:
            if act == "settle":
                measures.settle("t", "r")
            else:
                said += act
                write(measures, act)
        for key in ("loss", "acc", "wide", "nothing"):
            found, wanted = curve(measures, key, 64), model(said, key)
            assert bits(found) == bits(wanted)
            assert [spot_rank(spot) for spot in found] == [spot_rank(spot) for spot in wanted]
            drawn = measures.curve(("t", "r"), key, "", 1, 5)
            assert drawn.total == len(wanted)
        heads = measures.heads("t", "r")
        for key, metric in heads.items():
            assert spot_rank((metric.step, metric.at, metric.number)) == spot_rank(model(said, key)[-1])
        assert set(heads) == {point[0] for point in said}
    finally:
        module.MAX_BLOCK_SPOTS = small
        measures.close()
        series.close()


def test_pages_of_distinct_ranks_join_to_the_whole(measures: MetricStore) -> None:
    points = [("loss", step, float(step % 3), 1.0 / (step + 1)) for step in range(500)]
    for start in range(0, 500, 50):
        write(measures, points[start : start + 50])
        if start % 150 == 0:
            measures.settle("t", "r")
    assert curve(measures, "loss", 7) == model(points, "loss")


def test_points_without_steps_are_not_written_over_and_over(measures: MetricStore) -> None:
    """All at step 0, as clients do that name none: time tells the blocks apart."""
    for chunk in range(20):
        write(measures, [("loss", 0, 1000.0 * chunk + n, float(n)) for n in range(1000)])
        measures.settle("t", "r")
    blocks = measures._series.read("t", ["r"], "m0")
    assert sum(block.length for block in blocks) == 20_000
    assert 5 <= len(blocks) <= 12
    assert all(a.high < b.low for a, b in pairwise(blocks))


def test_a_thin_run_is_only_put_together(measures: MetricStore) -> None:
    for n in range(5):
        write(measures, [(f"m{key}", n, 0.0, 1.0) for key in range(100)])
    assert measures.settle("t", "r")
    assert [block.length for block in measures._series.read("t", ["r"], "")] == [500]
    assert measures._series.read("t", ["r"], "head") == []
    assert not measures.settle("t", "r")
    assert len(measures.heads("t", "r")) == 100


def test_two_that_settle_at_once_lose_nothing(measures: MetricStore) -> None:
    for start in range(0, 3000, 100):
        write(measures, [("loss", start + n, 0.0, 1.0) for n in range(100)])
    threads = [threading.Thread(target=measures.settle, args=("t", "r")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measures.curve(("t", "r"), "loss", "", 1, 10).total == 3000


def test_of_many_that_are_to_be_settled_only_those_with_points_are(measures: MetricStore) -> None:
    write(measures, [("loss", 1, 0.0, 1.0)])
    write(measures, [("loss", 1, 0.0, 1.0)], "damaged")
    tried = list[tuple[str, str]]()

    def settle(tenant: str, run: str) -> bool:
        tried.append((tenant, run))
        if run == "damaged":
            raise CorruptData("it cannot be read")
        return True

    settler = CompactionWorker(settle, measures._runs_with_arrivals)
    settler._queued_runs = {("t", run): None for run in ("damaged", *(f"none-{number}" for number in range(20)), "r")}
    settler.ask(("other", "single"))
    wait_until(lambda: len(tried) == 3, 20)
    settler.close()
    assert tried == [("t", "damaged"), ("t", "r"), ("other", "single")], "one alone is not looked for first"


def test_a_reader_beside_the_settler_never_misses_a_point(measures: MetricStore) -> None:
    seen: list[int] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(measures.curve(("t", "r"), "loss", "", 1, 10).total)

    reader = threading.Thread(target=look)
    reader.start()
    for start in range(0, 2000, 20):
        write(measures, [("loss", start + n, 0.0, 1.0) for n in range(20)])
        if start % 200 == 0:
            measures.settle("t", "r")
    stop.set()
    reader.join()
    assert seen == sorted(seen)
    assert measures.curve(("t", "r"), "loss", "", 1, 10).total == 2000


def test_many_small_writes_share_their_commits(measures: MetricStore, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    append = measures._series.append
    gate = threading.Event()

    def slow(blocks: list[SeriesBlock]) -> None:
        calls.append(len(blocks))
        gate.wait(10)
        append(blocks)

    monkeypatch.setattr(measures._series, "append", slow)
    threads = [threading.Thread(target=write, args=(measures, [("a", n, 0.0, 0.0)])) for n in range(40)]
    for thread in threads:
        thread.start()
    while len(measures._write_coalescer._pending) < 39:
        pass
    gate.set()
    for thread in threads:
        thread.join()
    assert sum(calls) == 40
    assert len(calls) == 2


def test_a_failure_is_told_to_everyone_who_waited(measures: MetricStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(blocks: list[SeriesBlock]) -> None:
        raise Unavailable("the disk is full", "make room")

    monkeypatch.setattr(measures._series, "append", full)
    with pytest.raises(Unavailable, match="disk is full"):
        write(measures, [("a", 1, 0.0, 0.0)])


def test_a_block_moved_elsewhere_does_not_open(town: Town, amal: Any, run: Any) -> None:
    amal.track.log(run, metrics=({"key": "loss", "value": 1.0},))
    series = town.house.track.measures._series
    (block,) = series.read("bank", [run.name], "")
    other = amal.track.start("experiment:fraud/scoring").ref
    for moved in (block._replace(series=other.name), block._replace(series=other.name, id="x")):
        series.append([moved])
        with pytest.raises(CorruptData):
            amal.track.show(other)
        series.delete("bank", other.name)
    assert b"loss" not in block.data


@pytest.mark.parametrize("forward", [True, False])
def test_a_million_points_stay_fast(measures: MetricStore, forward: bool) -> None:
    begun = time.monotonic()
    count = 1_000_000 if forward else 100_000
    starts = range(0, count, 4000)
    for start in starts if forward else reversed(starts):
        write(measures, [("loss", start + n, start * 1.0, n * 0.5) for n in range(4000)])
        if start % 16_000 == 0:
            measures.settle("t", "r")
    written = time.monotonic()
    drawn = measures.curve(("t", "r"), "loss", "", 1, 500)
    sampled = time.monotonic()
    page = measures.curve(("t", "r"), "loss", f"{count // 2} 0.0 0.0", 10_000, 0)
    paged = time.monotonic()
    assert drawn.total == count
    assert len(drawn.points) <= 1500
    assert len(page.points) == 10_000
    assert written - begun < 60
    assert sampled - written < 5
    assert paged - sampled < 1
    print(f"{count}: {written - begun:.2f} s in, {sampled - written:.3f} s drawn, {paged - sampled:.3f} s a page")


def test_a_long_curve_is_drawn_from_folds_as_from_its_spots(
    measures: MetricStore, monkeypatch: pytest.MonkeyPatch, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    dice = random.Random(5)
    points = [("loss", step, 5.0 + step, math.nan if step % 97 == 0 else dice.random()) for step in range(80_000)]
    for start in range(0, 70_000, 10_000):
        write(measures, points[start : start + 10_000])
        measures.settle("t", "r")
    bins = 100
    plain = measures.curves(("t", "r"), ("loss",), bins)[0]
    wait_for(lambda: len(folds(measures)) == len(measures._series.read("t", ["r"], "m0")))
    assert not measures.fold("t", "r"), "nothing is due any more"
    write(measures, points[70_000:75_000])
    write(measures, points[75_000:])
    assert measures.settle("t", "r"), "the folds follow what is settled"
    beside = [f"{block.id}f" for block in measures._series.read("t", ["r"], "m0")]
    assert [block.id for block in folds(measures)] == beside
    write(measures, [("loss", 80_000, 9e9, 7.0)])
    monkeypatch.setattr(measures, "_bin_spots", None)
    drawn = measures.curves(("t", "r"), ("loss",), bins)[0]
    assert drawn.total == 80_001
    assert len(drawn.points) <= 3 * bins
    for one in (plain, drawn):
        numbers = [point.number for point in one.points if not math.isnan(point.number)]
        kept = [p[3] for p in points[: 70_000 if one is plain else None] if not math.isnan(p[3])]
        assert min(numbers) == min(kept)
        assert max(numbers) == (max(kept) if one is plain else 7.0)
    exact = measures.curves(("t", "r"), ("loss",), 20, (False, 10_000.5, 40_000))[0]
    assert exact.total == 30_000
    assert exact.points[-1].step == 40_000
    few = measures.curves(("t", "r"), ("loss",), 20, (False, 500, 530))[0]
    assert [point.step for point in few.points] == list(range(500, 531))
    monkeypatch.undo()
    assert measures.curves(("t", "r"), ("loss",), 20, (False, 90_000, 1e300))[0].total == 0


def test_spots_that_come_late_and_before_others_are_drawn_too(measures: MetricStore) -> None:
    write(measures, [("loss", step, 0.0, 1.0) for step in range(80_000)])
    measures.settle("t", "r")
    assert measures.fold("t", "r")
    write(measures, [("loss", 17, 0.5, 99.0)])
    for _ in range(2):
        drawn = measures.curves(("t", "r"), ("loss",), 50)[0]
        assert drawn.total == 80_001
        assert max(point.number for point in drawn.points) == 99.0
        measures.settle("t", "r")


def folds(measures: MetricStore) -> list[SeriesBlock]:
    return measures._series.read("t", ["r"], "f0")


def test_the_settler_starts_by_itself(measures: MetricStore, wait_for: Callable[[Callable[[], bool]], None]) -> None:
    for n in range(300):
        write(measures, [("loss", n, 0.0, 1.0)])
    wait_for(lambda: bool(measures._series.read("t", ["r"], "head")))
    assert measures.curve(("t", "r"), "loss", "", 1, 10).total == 300


def test_runs_that_are_begun_together_are_settled_one_after_the_other(
    measures: MetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, turns = dict[str, int](), list[int]()
    runs = [f"{n:032x}" for n in range(8)]
    monkeypatch.setattr(measures._compaction_worker, "ask", lambda name: asked.setdefault(name[1], len(turns)))
    for turn in range(module.COMPACT_AFTER_BLOCKS):
        turns.append(turn)
        blocks = [measures._seal_block(("t", run, "z"), "", b"", 1, 1.0) for run in runs]
        measures._count_arrived(blocks)
    assert sorted(asked) == runs
    assert len(set(asked.values())) > len(runs) // 2
    assert min(asked.values()) > module.COMPACT_AFTER_BLOCKS // 2
