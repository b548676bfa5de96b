"""Taking back: who must make room, who may not be disturbed, and that it always ends."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.schedule.fair_share import ShareTree
from falaj.schedule.fairness_potential import FairnessPotential
from falaj.schedule.model import NEVER, JobShape, Queue, Role, SchedulerOptions, SlotRequest
from falaj.schedule.scheduler import Scheduler
from tests.schedule import made
from tests.schedule.closed import BOLD, NOW, Closed, gang

A, B = "root/a", "root/b"


def filled(knobs: SchedulerOptions = BOLD, **guarantee: int) -> Closed:
    """Two nodes, all sixteen devices with `a`, in gangs of two."""
    queues = [Queue(f"root/{name}", guarantee={"gpu": guarantee.get(name, 0)}) for name in "ab"]
    cluster = Closed(2, queues, knobs)
    for number in range(8):
        cluster.submit(f"a{number}", A, gang(2), 36_000, started=NOW - 3600, saved=NOW - 60 * number, resumes=True)
    cluster.admit()
    return cluster


def test_a_queue_takes_back_what_it_deserves_and_no_more() -> None:
    cluster = filled()
    for number in range(8):
        cluster.submit(f"b{number}", B, gang(2), 36_000)
    assert cluster.rest() == 4
    assert sum(job.queue == B for job in cluster.running.jobs.values()) == 4


def test_no_rounding_makes_a_promise_of_nothing() -> None:
    """On a large cluster what rounding may cost is more than a device."""
    cluster = Closed(1, [Queue(A), Queue(B)])
    potential = FairnessPotential(ShareTree([Queue(A), Queue(B)], {"gpu": 1 << 36}), np.array([[0], [1 << 36], [1000]]))
    assert potential.slack[0] > 1000
    assert potential.cause(cluster.tree.leaf(B), [0], [1000]) == "share"


def test_width_goes_first_then_best_effort_then_gangs() -> None:
    cluster = Closed(1, [Queue(A), Queue(B)])
    cluster.submit("wide", A, gang(1, 4, low=2), 36_000)
    cluster.submit("cheap", B, gang(2, band=0), 36_000)
    cluster.submit("firm", A, gang(2), 36_000)
    cluster.admit()
    cluster.widen("wide", 4)
    cluster.submit("one", B, gang(1), 3600)
    first = cluster.make_room("one")
    assert first
    assert [len(one.spots) for one in first.resizes] == [3]  # no more than needed
    assert not first.evictions
    cluster.submit("two", B, gang(3), 3600)
    second = cluster.make_room("two")
    assert second
    assert ([one.job for one in second.evictions], [one.job for one in second.resizes]) == (["cheap"], ["wide"])


def test_who_may_be_stopped_shrinks_instead_however_lately_it_was_resized() -> None:
    cluster = Closed(1, [Queue(A)], replace(BOLD, progress_ratio=2, resize_gap_s=300))
    long = {"started": NOW - 7200, "saved": NOW - 1, "resumes": True}
    cluster.submit("wide", A, gang(1, 4, low=1), 36_000, resized=NOW - 1, **long)
    cluster.submit("firm", A, gang(4), 90, **long)
    cluster.admit()
    cluster.widen("wide", 4)
    cluster.submit("short", A, gang(2), 60)
    found = cluster.make_room("short")
    assert found
    assert ([len(one.spots) for one in found.resizes], found.evictions) == ([2], ())


def test_cores_are_made_free_where_they_are_what_is_short() -> None:
    cluster = Closed(1, [Queue(A), Queue(B)])
    cluster.submit("cores", A, JobShape((Role("worker", SlotRequest((("cpu", 63_000),))),), band=0), 36_000)
    cluster.admit()
    cluster.submit("devices", B, gang(2), 3600)
    assert not cluster.start("devices")
    found = cluster.victims("devices")
    assert found
    assert [one.job for one in found.evictions] == ["cores"]


def test_c1_no_circles_between_gangs_of_different_sizes() -> None:
    """Two queues whose gangs never divide the capacity evenly."""
    cluster = Closed(1, [Queue(A), Queue(B)])
    for number in range(3):
        cluster.submit(f"a{number}", A, gang(5), 36_000)
        cluster.submit(f"b{number}", B, gang(3), 36_000)
    cluster.rest()


def test_c2_what_is_freed_is_for_whom_it_was_freed() -> None:
    """The plan names the places, and the places lie in what the victims give up."""
    cluster = filled()
    cluster.submit("big", B, gang(8), 36_000)
    found = cluster.victims("big")
    assert found
    freed = {(spot.node, device) for one in found.evictions
             for spot in cluster.running.jobs[one.job].spots for device in spot.devices}  # fmt: skip
    assert {(spot.node, device) for spot in found.spots for device in spot.devices} == freed
    assert {one.wanted_by for one in found.evictions} == {"big"}


def test_c2_what_is_promised_counts_before_it_starts() -> None:
    """While its victims save and stop, a queue cannot claim for others what it was given already."""
    queues = (Queue("root/a"), Queue("root/b", guarantee={"gpu": 8000}))
    jobs = [made.job(f"a{one}", "root/a", 2, limit_s=36_000) for one in range(8)]
    it = Scheduler(made.snapshot(2, jobs, queues))
    assert len(it.cycle(0).starts) == 8
    for one in range(5):
        it.submit(made.job(f"b{one}", "root/b", 2, limit_s=36_000))
    plans = [it.cycle(now) for now in (1000, 1001, 1030, 1060)]
    assert [[one.wanted_by for one in plan.evictions] for plan in plans] == [["b0", "b1", "b2", "b3"], [], [], []]


def test_c3_nobody_is_stopped_for_a_job_that_would_not_start_even_so() -> None:
    cluster = filled()
    shape = gang(8)
    role = replace(shape.roles[0], ask=replace(shape.roles[0].ask, amounts=(("cpu", 65_000),)))
    cluster.submit("hungry", B, replace(shape, roles=(role,)), 36_000)
    assert cluster.victims("hungry") is None
    cluster = Closed(2, [Queue(A), Queue(B, limit={"gpu": 1000})])
    cluster.submit("a0", A, gang(8, 2), 36_000)
    cluster.admit()
    cluster.submit("b0", B, gang(2), 36_000)
    assert cluster.victims("b0") is None


def test_c4_one_gang_goes_as_a_whole_rather_than_a_part_of_many() -> None:
    cluster = Closed(4, [Queue(A), Queue(B)])
    for number in range(2):
        cluster.submit(f"a{number}", A, gang(4, 4), 36_000)
    cluster.admit()
    cluster.submit("b0", B, gang(8, 2), 36_000)
    found = cluster.make_room("b0")
    assert found
    assert len(found.evictions) == 1
    assert not found.resizes
    assert all(len(job.spots) == sum(role.count for role in job.shape.roles) for job in cluster.running.jobs.values())


def test_c5_work_lost_is_a_part_of_work_gained() -> None:
    """A short job of a queue that is owed something does not cost another days of work."""
    cluster = filled(SchedulerOptions())
    for name, job in list(cluster.running.jobs.items()):
        cluster.running.put(replace(job, resumes=False, started=NOW - 86_400), cluster.left[name], NOW)
    cluster.submit("short", B, gang(2), 600)
    assert cluster.victims("short") is None
    cluster.submit("long", B, gang(2), 7 * 86_400)
    assert cluster.victims("long") is not None


def test_c5_who_has_more_never_disturbs_who_has_less() -> None:
    cluster = Closed(2, [Queue(A), Queue(B), Queue("root/c")])
    cluster.submit("a0", A, gang(8), 36_000)
    cluster.submit("b0", B, gang(4), 36_000)
    cluster.submit("c0", "root/c", gang(4), 36_000)
    cluster.admit()
    cluster.submit("a1", A, gang(8), 36_000)
    cluster.submit("a2", A, gang(4), 36_000)
    assert cluster.victims("a1") is None
    assert cluster.victims("a2") is None


def test_c15_whoever_saved_last_goes_first_and_has_time_to_save() -> None:
    cluster = filled()
    job = cluster.running.jobs["a0"]
    cluster.running.put(replace(job, save_s=20), 36_000, NOW)
    cluster.submit("b0", B, gang(2), 36_000)
    found = cluster.victims("b0")
    assert found
    assert [(one.job, one.grace_s, one.lost) for one in found.evictions] == [("a0", 50, 0)]


def test_c15_what_is_not_known_to_be_saved_counts_since_the_start() -> None:
    cluster = filled()
    cluster.running.put(replace(cluster.running.jobs["a7"], saved=0, started=NOW - 100), 36_000, NOW)
    cluster.running.drop("a0")
    cluster.running.drop("a1")
    cluster.submit("b0", B, gang(2), 36_000)
    found = cluster.victims("b0")
    assert found
    assert [(one.job, one.lost) for one in found.evictions] == [("a7", 200)]


def test_c17_only_so_much_is_taken_back_in_a_window_but_guarantees_are_met() -> None:
    cluster = filled(SchedulerOptions(reclaim_percent=20))
    for number in range(4):
        cluster.submit(f"b{number}", B, gang(2), 36_000)
    assert cluster.rest() == 1  # 4 of 16 devices would be 25 percent
    cluster.now += 601
    cluster.seen.clear()
    assert cluster.rest() == 1
    owed = filled(SchedulerOptions(reclaim_percent=20), b=6000)
    for number in range(4):
        owed.submit(f"b{number}", B, gang(2), 36_000)
    assert owed.rest() == 4


def test_nothing_young_is_disturbed_except_for_a_guarantee_or_a_higher_band() -> None:
    cluster = filled(SchedulerOptions(min_run_s=4000))
    cluster.submit("b0", B, gang(2), 36_000)
    assert cluster.victims("b0") is None
    cluster.submit("a-high", A, gang(2, band=3), 36_000)
    assert cluster.victims("a-high") is not None
    owed = filled(SchedulerOptions(min_run_s=4000), b=2000)
    owed.submit("b0", B, gang(2), 36_000)
    assert owed.victims("b0") is not None


def test_a_job_with_much_less_to_do_goes_first_in_its_queue_if_it_pays() -> None:
    cluster = filled()
    cluster.submit("short", A, gang(2), 1800)
    found = cluster.victims("short")
    assert found
    assert [one.why for one in found.evictions] == ["a job of its queue has much less left to do"]
    cluster.submit("half", A, gang(2), 30_000)
    assert cluster.victims("half") is None
    cluster.submit("wide", A, gang(8), 10_000)  # four would wait 10,000 s each, so that one need not wait 36,000
    assert cluster.victims("wide") is None
    for name, job in list(cluster.running.jobs.items()):
        cluster.running.put(replace(job, evictions=20), 36_000, NOW)
        assert name
    assert cluster.victims("short") is None  # 22 times less is asked of it by now


def test_a_deadline_in_danger_overtakes_later_ones() -> None:
    cluster = filled(replace(BOLD, progress_ratio=0))
    cluster.submit("due", A, gang(2), 30_000, deadline=NOW + 31_000)
    assert cluster.victims("due") is None
    assert cluster.victims("due", urgent=True) is not None
    for name, job in list(cluster.running.jobs.items()):
        cluster.running.put(replace(job, deadline=NOW + 30_000), cluster.left[name], NOW)
    assert cluster.victims("due", urgent=True) is None
    assert NEVER > NOW


jobs = st.tuples(
    st.integers(0, 5), st.sampled_from([(1, 1), (2, 1), (3, 1), (5, 1), (8, 1), (4, 2), (8, 2), (2, 3)]),
    st.sampled_from([0, 1, 2, 2, 2, 3]), st.booleans(), st.sampled_from([None, 100, 1000, 5000, 40_000]),
)  # fmt: skip
leaves = st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 3000, 6000]), st.sampled_from([None, 8000, 12_000]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(leaves, min_size=6, max_size=6), st.lists(jobs, min_size=4, max_size=24), st.integers(0, 24))
def test_it_comes_to_rest_and_no_state_comes_twice(
    queues: list[tuple[int, int, int | None]],
    wants: list[tuple[int, tuple[int, int], int, bool, int | None]],
    late: int,
) -> None:
    """I3, I7, I8 over random trees and jobs: laws hold in every state, everything promised starts, and it ends."""
    names = [f"root/d{number % 2}/t{number}" for number in range(6)]
    tree = [
        Queue(name, weight, {"gpu": promised}, {"gpu": most} if most else {})
        for name, (weight, promised, most) in zip(names, queues, strict=True)
    ]
    cluster = Closed(3, tree)
    for turn in (wants[:late], wants[late:]):
        for leaf, (gpus, slots), band, elastic, left in turn:
            shape = gang(gpus, slots, band, low=1 if elastic and slots > 1 else 0)
            cluster.submit(f"{len(cluster.left)}", names[leaf], shape, left)
        cluster.seen.clear()
        cluster.rest()
        for row, used in enumerate(cluster.tree.usage[:-1]):
            assert all(have <= most for have, most in zip(used, cluster.tree.limit[row], strict=True))
