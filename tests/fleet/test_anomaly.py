"""What looks wrong: found soon, said once, and never where all is well."""

from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.fleet import alert_kinds
from falaj.fleet.alert_kinds import AlertSignal
from falaj.fleet.anomaly import AlertLatch, MinuteTrend, SlotLimit, TargetWatch
from tests.fleet.traces import HOUR, MINUTE, STEP_S, normal_node, normal_run

Figures = dict[str, float]


def node_signs(rows: Iterable[tuple[int, Figures]]) -> list[tuple[int, AlertSignal]]:
    watch, found = TargetWatch(), list[tuple[int, AlertSignal]]()
    for at, figures in rows:
        held = {0: "job"} if figures.pop("held") else dict[int, str]()
        found += [(at, sign) for sign in watch.node(at, figures, held)]
    return found


def run_signs(
    rows: Iterable[tuple[int, Figures]], members: int, memory: float = 64_000
) -> list[tuple[int, AlertSignal]]:
    slots = {slot: SlotLimit("worker", f"hall/n{slot}", 8, memory) for slot in range(members)}
    watch = TargetWatch()
    return [(at, sign) for at, figures in rows for sign in watch.run(at, figures, slots)]


def test_a_node_that_is_well_raises_nothing() -> None:
    assert [(at / HOUR, sign.kind, sign.text) for at, sign in node_signs(normal_node(Random(0), 10))] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 13))
def test_a_year_of_nodes_that_are_well_raises_nothing(seed: int) -> None:
    assert [(at / HOUR, sign.kind, sign.text) for at, sign in node_signs(normal_node(Random(seed), 30))] == []


@pytest.mark.parametrize("members", [1, 2, 8])
def test_a_gang_that_is_well_raises_nothing(members: int) -> None:
    found = run_signs(normal_run(Random(members), 12, members), members)
    assert [(at / HOUR, sign.kind, sign.text) for at, sign in found] == []


def _idle(age: int, figures: Figures) -> None:
    figures |= {"held": 1, "0.busy": 40.0 if age % (7 * HOUR) == 0 else 0.0}


def _hot(age: int, figures: Figures) -> None:
    heat = min(91.0, 70 + age / 30)
    slow = heat >= 87
    figures |= {"held": 1, "0.busy": 95.0, "0.temperature": heat, "0.clock": 1200 if slow else 1900}
    figures["0.throttled"] = 100 if slow else 0


def _hot_and_silent(age: int, figures: Figures) -> None:
    _hot(age, figures)
    del figures["0.throttled"]


def _faulty(age: int, figures: Figures) -> None:
    figures["0.xid"] = 1.0 if age % (5 * HOUR) == 0 else 0.0


def _leaking(age: int, figures: Figures) -> None:
    figures |= {"held": 1, "0.busy": 80.0, "0.memory": 30_000 + age * 5.0}


def _filling(age: int, figures: Figures) -> None:
    figures["disk"] = max(0.0, 500_000 - age * 20.0)


@pytest.mark.parametrize(
    ("kind", "wrong", "most_s"),
    [
        (alert_kinds.IDLE, _idle, 12 * MINUTE),
        (alert_kinds.HEAT, _hot, 14 * MINUTE),
        (alert_kinds.HEAT, _hot_and_silent, 14 * MINUTE),
        (alert_kinds.FAULT, _faulty, MINUTE),
        (alert_kinds.LEAK, _leaking, 75 * MINUTE),
        (alert_kinds.DISK, _filling, 75 * MINUTE),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_trouble_of_a_node_is_found_once_and_soon(
    kind: str, wrong: Callable[[int, Figures], None], most_s: int, seed: int
) -> None:
    random = Random(seed)
    begin = random.randrange(5, 20) * HOUR
    rows = []
    for at, figures in normal_node(random, 1.2):
        if begin <= at < begin + 2 * HOUR:
            wrong(at - begin, figures)
        rows.append((at, figures))
    found = [(at, sign) for at, sign in node_signs(rows) if sign.kind == kind]
    opened = [at for at, sign in found if sign.opens]
    assert len(opened) == 1, found
    assert begin <= opened[0] <= begin + most_s
    # What belongs to a job ends with it, a fault after a day; all else ends when it is over.
    ends = [True, False] if kind in (alert_kinds.HEAT, alert_kinds.DISK) else [True, False][: len(found)]
    assert [sign.opens for _, sign in found] == ends


def _lag(age: int, figures: Figures) -> None:
    figures |= {"2.power": figures["2.power"] * 0.6, "2.busy": figures["2.busy"] * 0.6}


def _late(age: int, figures: Figures) -> None:
    figures["r2.pace"] *= 0.6


def _starve(age: int, figures: Figures) -> None:
    figures |= {"1.cpu": 8.0, "1.busy": figures["1.busy"] / 5}


def _leak(age: int, figures: Figures) -> None:
    figures["3.rss"] = 20_000 + age * 3.0


@pytest.mark.parametrize(
    ("kind", "part", "wrong", "most_s"),
    [
        (alert_kinds.STRAGGLER, "2", _lag, 20 * MINUTE),
        (alert_kinds.STRAGGLER, "r2", _late, 20 * MINUTE),
        (alert_kinds.STARVED, "1", _starve, 15 * MINUTE),
        (alert_kinds.LEAK, "slot 3", _leak, 75 * MINUTE),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_trouble_of_a_run_is_found_once_and_soon(
    kind: str, part: str, wrong: Callable[[int, Figures], None], most_s: int, seed: int
) -> None:
    begin, rows = 3 * HOUR, []
    for at, figures in normal_run(Random(seed), 8, 8):
        if begin <= at < begin + 3 * HOUR:
            wrong(at - begin, figures)
        rows.append((at, figures))
    found = [(at, sign) for at, sign in run_signs(rows, 8) if sign.kind == kind]
    assert {sign.part for _, sign in found} == {part}
    assert [sign.opens for _, sign in found] == [True, False]
    assert begin <= found[0][0] <= begin + most_s


def test_what_one_job_did_is_not_laid_at_the_next_ones_door() -> None:
    watch = TargetWatch()
    idle = {"0.busy": 0.0}
    first = [sign for at in range(0, 9 * MINUTE, STEP_S) for sign in watch.node(at, idle, {0: "a"})]
    second = [sign for at in range(9 * MINUTE, 18 * MINUTE, STEP_S) for sign in watch.node(at, idle, {0: "b"})]
    assert first + second == []
    (sign,) = [sign for at in range(18 * MINUTE, 25 * MINUTE, STEP_S) for sign in watch.node(at, idle, {0: "b"})]
    assert (sign.kind, sign.opens, sign.since) == (alert_kinds.IDLE, True, 9 * MINUTE)


def test_who_takes_over_does_not_say_it_again_and_closes_what_another_opened() -> None:
    watch = TargetWatch([(alert_kinds.IDLE, "0")])
    quiet = [sign for at in range(0, HOUR, STEP_S) for sign in watch.node(at, {"0.busy": 0.0}, {0: "a"})]
    busy = [sign for at in range(HOUR, 2 * HOUR, STEP_S) for sign in watch.node(at, {"0.busy": 90.0}, {0: "a"})]
    assert (quiet, [sign.opens for sign in busy]) == ([], [False])


@given(st.lists(st.booleans(), min_size=1, max_size=400), st.integers(60, 900), st.integers(60, 900))
@settings(max_examples=200, deadline=None)
def test_a_latch_never_flaps(looks: list[bool], open_s: int, close_s: int) -> None:
    latch, turned = AlertLatch((open_s, close_s)), list[int]()
    for number, bad in enumerate(looks):
        before = latch.opened
        if latch.feed(number * 15, bad):
            turned.append(number * 15)
            assert latch.opened != before
            assert bad == latch.opened
    waits = [open_s, close_s] * len(turned)
    assert all(b - a >= wait for a, b, wait in zip([0, *turned], turned, waits, strict=False))


@given(st.floats(1, 50), st.floats(0, 20), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_trend_says_when_the_limit_is_reached(slope: float, noise: float, seed: int) -> None:
    random, trend = Random(seed), MinuteTrend()
    for minute in range(60):
        trend.feed(minute * 60, slope * (100 + minute + random.uniform(-noise, noise) / 20))
    left = trend.left_s(slope * 300)
    assert left is not None
    assert left == pytest.approx(142 * 60, rel=0.1)
    flat = MinuteTrend()
    for minute in range(60):
        flat.feed(minute * 60, 1000 + random.uniform(-noise, noise))
    assert flat.left_s(2000) is None
