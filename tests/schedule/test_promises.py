"""I4: a queue that wants what it is promised has it as soon as those who must go have had their grace."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from falaj.schedule.model import Queue, SchedulerOptions, SchedulerSnapshot
from falaj.schedule.scheduler import Scheduler
from tests.schedule.made import job, node

GRACE_S = 30
A_CYCLE_S = 30


def used(it: Scheduler, queue: str) -> int:
    return it.tree.usage[it.tree.index[queue]][it.tree.quotas.index("gpu")] // 1000


def goes(it: Scheduler, name: str) -> None:
    gone = it.running[name]
    facts = {"stopping": 0, "stopped_for": "", "started": 0, "evictions": gone.evictions + 1}
    it.change(replace(gone, spots=(), charged=(), **facts))


# Two jobs share what one gang leaves; a third needs another gang at once, not when the first has gone.
@example(gpus=1, slots=1, others=2, part=3, had=0, wants=3, saves=1, ran=0, ratio=0)
@settings(max_examples=40, deadline=None)
@given(
    gpus=st.sampled_from((1, 1, 2, 4, 8)),
    slots=st.sampled_from((1, 1, 2)),
    others=st.sampled_from((1, 2, 4, 8)),
    part=st.integers(1, 16),
    had=st.integers(0, 16),
    wants=st.integers(1, 20),
    saves=st.integers(0, 60),
    ran=st.sampled_from((0, 30, 90, 4000)),
    ratio=st.sampled_from((0, 2)),
)
def test_a_guarantee_is_met_within_the_longest_grace_and_a_cycle(
    gpus: int, slots: int, others: int, part: int, had: int, wants: int, saves: int, ran: int, ratio: int
) -> None:
    """Of gangs and from gangs, of which each is a whole part of a node, so that nothing is too scattered.

    Where the others overtake each other in their own queue meanwhile, what they stopped for that has its grace first.
    """
    size = gpus * slots
    promised = min(part, 16 // size)
    had = min(had, promised)
    queues = (Queue("root/a"), Queue("root/b", guarantee={"gpu": promised * size * 1000}))
    nodes = (node("n0"), node("n1"))
    it = Scheduler(SchedulerSnapshot(0, nodes, queues, (), knobs=SchedulerOptions(progress_ratio=ratio)))
    facts = {"save_s": saves, "resumes": bool(saves)}
    for number in range(had):
        it.submit(job(f"b-old{number:02}", "root/b", gpus, slots, **facts))
    it.cycle(0)
    for number in range(16):
        it.submit(job(f"a{number:02}", gpus=others, **facts))
    it.cycle(0)
    now = ran
    for number in range(wants):
        it.submit(job(f"b-new{number:02}", "root/b", gpus, slots, submitted=now))
    owed = min(promised, had + wants) * size
    until, going = now + (saves + GRACE_S) * (2 if ratio else 1) + A_CYCLE_S, dict[str, int]()
    while used(it, "root/b") < owed:
        assert now <= until, f"I4: {used(it, 'root/b')} of {owed} after {now - ran} s"
        plan = it.cycle(now)
        going |= {one.job: now + one.grace_s for one in plan.evictions}
        if not plan.starts and not plan.evictions:
            now = min([*going.values(), now + A_CYCLE_S])
        for name in [name for name, at in going.items() if at <= now]:
            del going[name]
            goes(it, name)
