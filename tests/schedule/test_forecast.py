"""What is expected of a run: from its own steps, its predecessors, its owner's other work, or its pool."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from falaj.schedule.model import Job, RuntimeQuantiles, SlotPlacement
from falaj.schedule.runtime_forecast import LEVEL, UNKNOWN_RUNTIME_S, RuntimeForecast, compute_quantiles, to_shape_key
from falaj.schedule.scheduler import Scheduler
from tests.schedule.made import job, shape, snapshot

ONE = to_shape_key(shape())


def past(template: str, p25: int, p90: int, count: int = 20, **facts: int) -> RuntimeQuantiles:
    return RuntimeQuantiles(template, ONE, count, p25, p90, **facts)


def running(template: str) -> Job:
    return job("j", template=template, spots=(SlotPlacement("c/n0", 0, (0,)),), started=0)


def rank(forecast: RuntimeForecast, template: str, age: int) -> int:
    return (forecast.left(running(template), ONE, age) or (0, 0))[0]


def test_quantiles_of_the_same_template_and_shape_are_believed() -> None:
    forecast = RuntimeForecast([past("ann/train", 1000, 4000)])
    low, high = forecast.expected("ann/train", ONE) or (0, 0)
    assert 900 < low <= 1000
    assert 3500 < high <= 4000


def test_few_observations_lean_on_the_owner_and_then_on_the_pool() -> None:
    forecast = RuntimeForecast([past("ann/a", 100, 200), past("bob/b", 10_000, 20_000), past("ann/new", 6400, 6400, 1)])
    alone, new = forecast.expected("ann/other", ONE), forecast.expected("ann/new", ONE)
    stranger = forecast.expected("eve/x", ONE)
    assert alone is not None
    assert new is not None
    assert stranger is not None
    assert 100 <= alone[0] < stranger[0] < 10_000, "the owner's work counts before everybody's"
    assert alone[0] < new[0] < 6400, "one observation moves the estimate, and does not make it"
    assert forecast.expected("eve/x", to_shape_key(shape(milli=5, models=("A10",)))) is None, "another pool"


def test_what_runs_longer_than_expected_is_expected_twice_as_long() -> None:
    forecast = RuntimeForecast([past("ann/a", 128, 128)])
    started = replace(running("ann/a"), started=1000)
    ends = [forecast.end(started, ONE, now) - 1000 for now in (1000, 1127, 1128, 1256)]
    assert ends[0] == ends[1]
    assert ends[2] == 2 * ends[0]
    assert ends[3] == 4 * ends[0]


def test_where_run_times_differ_much_a_job_is_ranked_later_the_longer_it_runs() -> None:
    """It was taken to have the less left the longer it ran; of runs with a heavy tail the opposite is true."""
    forecast = RuntimeForecast([compute_quantiles("ann/a", ONE, [2**power for power in range(4, 20)])])
    ages = (0, 60, 600, 6000, 60_000, 2_000_000)
    ranks = [rank(forecast, "ann/a", age) for age in ages]
    assert ranks == sorted(ranks)
    assert ranks[0] <= 128
    assert ranks[-1] > 1000 * ranks[0]


def test_where_run_times_differ_little_a_job_gives_way_to_no_younger_one_of_its_family() -> None:
    forecast = RuntimeForecast([compute_quantiles("ann/a", ONE, range(800, 1200))])
    young, old = rank(forecast, "ann/a", 0), rank(forecast, "ann/a", 1000)
    assert young == old
    assert rank(forecast, "ann/a", 1300) >= LEVEL * young, "it is another kind of run"


def test_a_rank_by_age_stays_until_the_next_level() -> None:
    forecast = RuntimeForecast([past("ann/a", 100, 20_000)])
    for age in (0, 60, 150, 4000, 30_000):
        lasts = forecast.rank_lasts(running("ann/a"), ONE, age)
        assert rank(forecast, "ann/a", age) == rank(forecast, "ann/a", age + lasts - 1)
        assert rank(forecast, "ann/a", age + lasts) > rank(forecast, "ann/a", age)
    assert forecast.rank_lasts(running("eve/x"), "cpu:1x1", 60) == 0, "nothing like it ever ran"
    counted = replace(running("ann/a"), steps=50, step_us=10**7, done=10, seen=100)
    assert forecast.rank_lasts(counted, ONE, 110) == 0, "what is left of counted steps falls as time passes"


def test_a_limit_caps_what_is_expected() -> None:
    forecast = RuntimeForecast([past("ann/a", 5000, 9000)])
    assert forecast.left(job("j", template="ann/a", limit_s=60), ONE, 0) == (60, 60)
    assert forecast.end(job("j", template="nobody/knows", limit_s=60), "cpu:1x1", 0) == 60


def test_measured_steps_beat_history_once_it_ran_a_minute() -> None:
    forecast = RuntimeForecast([past("ann/a", 5000, 9000)])
    facts = {
        "template": "ann/a",
        "steps": 100,
        "step_us": 2_000_000,
        "spots": (SlotPlacement("c/n0", 0, (0,)),),
        "started": 10,
    }
    early = forecast.left(job("j", done=5, seen=20, **facts), ONE, 20)
    sure = forecast.left(job("j", done=40, seen=90, **facts), ONE, 100)
    assert early is not None
    assert early[0] > 1000
    assert sure == (110, 122), "sixty steps of two seconds, ten seconds ago"


def test_steps_of_predecessors_are_used_before_the_first_is_measured() -> None:
    forecast = RuntimeForecast([past("ann/a", 5000, 9000, step_us=1_000_000)])
    assert forecast.left(job("j", template="ann/a", steps=100), ONE, 0) == (100, 125)


def test_of_what_nobody_knows_something_is_expected() -> None:
    assert RuntimeForecast().left(job("j"), ONE, 0) is None
    assert RuntimeForecast().end(job("j"), ONE, 7) == 7 + UNKNOWN_RUNTIME_S


def test_learning_says_when_others_are_touched() -> None:
    forecast = RuntimeForecast([past(f"ann/{one}", 100, 200) for one in range(50)])
    assert len(forecast.learn(past("ann/3", 101, 200))) == 1, "only its own"
    assert "pool:gpu" in forecast.learn(past("zoe/first", 5, 5)), "everybody's"
    assert forecast.past() == tuple(sorted(forecast.past(), key=lambda one: (one.template, one.key)))


NAMES = ("ann/a", "ann/b", "bob/a", "eve/x")
learned = st.tuples(st.sampled_from(NAMES), st.integers(1, 5000), st.integers(1, 30))


@given(st.lists(learned, max_size=12))
def test_what_is_remembered_of_an_estimate_is_what_would_be_worked_out_anew(seen: list[tuple[str, int, int]]) -> None:
    forecast = RuntimeForecast()
    for name, seconds, count in seen:
        forecast.learn(past(name, seconds, 2 * seconds, count))
        fresh = RuntimeForecast(forecast.past())
        assert [forecast.expected(one, ONE) for one in NAMES] == [fresh.expected(one, ONE) for one in NAMES]


def test_a_family_takes_the_step_time_of_a_job_that_still_runs() -> None:
    """On a cold cluster nobody's length was known before the first job of its kind had ended."""
    first = job("first", template="ann/a", spots=(SlotPlacement("c/n0", 0, (0,)),), started=10, steps=10**6)
    sibling = job("second", template="ann/a", steps=500)
    scheduler = Scheduler(snapshot(1, [first, sibling], now=30))
    forecast = scheduler.forecast
    scheduler.change(replace(first, done=10, step_us=2_000_000, seen=30))
    assert forecast.left(sibling, ONE, 30) is None, "it has not run for a minute"
    scheduler.change(replace(first, done=30, step_us=2_000_000, seen=70))
    assert forecast.left(sibling, ONE, 70) == (1000, 1250)
    scheduler.change(replace(first, done=35, step_us=2_100_000, seen=81))
    assert forecast.left(sibling, ONE, 81) == (1000, 1250), "a twentieth more changes no estimate"
    scheduler.change(replace(first, done=40, step_us=4_000_000, seen=101))
    assert forecast.left(sibling, ONE, 101) == (2000, 2500)
    restarted = Scheduler(scheduler.snapshot(101))
    assert restarted.forecast.left(sibling, ONE, 101) == (2000, 2500)
    scheduler.learn(past("ann/a", 100, 200, 1))
    assert forecast.left(sibling, ONE, 101) == (2000, 2500), "an end that measured no step keeps the step time"


def test_a_running_job_is_its_family_s_only_source_of_step_times_and_of_no_quantile() -> None:
    forecast = RuntimeForecast([past("bob/b", 640, 640)])
    measured = job("j", template="ann/a", spots=(SlotPlacement("c/n0", 0, (0,)),), started=10, seen=90, step_us=5)
    before = forecast.expected("ann/a", ONE)
    forecast.learn_step_time(measured, ONE)
    assert forecast.expected("ann/a", ONE) == before
