"""The clock around the real scheduler: no work is done twice without being lost first, and none is forgotten."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.schedule.model import Job, JobEviction, JobShape, Queue
from falaj.simulator.replay_engine import ReplayEngine
from falaj.simulator.trace import TraceJob, build_trace, make_nodes, split_into_slots

QUEUES = (Queue("root/a"), Queue("root/b", guarantee={"gpu": 4000}), Queue("root/c", weight=2))


class Told(ReplayEngine):
    """Adds up what the scheduler says is lost."""

    lost: Counter[str]

    def _apply_eviction(self, now: int, eviction: JobEviction) -> None:
        self.lost[eviction.job] += eviction.lost
        super()._apply_eviction(now, eviction)


loads = st.lists(
    st.tuples(
        st.sampled_from(QUEUES),
        st.sampled_from((1, 2, 4, 8, 16)),
        st.sampled_from((1, 2, 2, 3)),
        st.integers(0, 2000),
        st.integers(1, 3000),
        st.booleans(),
    ),
    min_size=4,
    max_size=24,
)


@settings(max_examples=20, deadline=None)
@given(loads)
def test_work_done_and_work_lost_are_the_seconds_that_were_held(
    wants: list[tuple[Queue, int, int, int, int, bool]],
) -> None:
    """I14: whoever saves goes on where it was; what the others lose is what the scheduler said they would."""
    made = []
    for number, (queue, gpus, band, at, work, saves) in enumerate(wants):
        facts = {"resumes": True, "save_s": 5} if saves else {}
        shape = JobShape(split_into_slots(gpus, 8), band=band)
        made.append(TraceJob(Job(f"j{number:02}", queue.name, shape, at, **facts), float(work), loses=not saves))
    engine = Told(build_trace(make_nodes(2, 8), QUEUES, made))
    engine.lost = Counter()
    outcome = engine.run()
    assert outcome.jobs == len(made)
    for load in made:
        life, role = engine.lives[load.job.id], load.job.shape.roles[0]
        width, lost = role.count * role.ask.gpus, engine.lost[load.job.id]
        assert not load.job.resumes or not lost
        assert abs((life.ran - load.work_s) * width - lost) <= width * (1 + life.job.evictions), load.job.id


def test_what_is_held_for_one_for_whom_others_went_goes_to_no_later_turn() -> None:
    """A gang of the whole fleet and the two halves that it displaces went round for ever at one moment."""
    wants = [
        ("a", 1, 3, 555, 1889, True), ("c", 8, 1, 720, 2498, False), ("b", 16, 3, 236, 481, False),
        ("c", 16, 3, 1694, 1075, False), ("b", 2, 3, 224, 2922, False), ("b", 16, 3, 1582, 957, False),
        ("a", 4, 2, 1809, 1691, True), ("a", 2, 3, 1233, 736, False), ("a", 1, 2, 1100, 1440, False),
        ("c", 8, 2, 584, 2374, False),
    ]  # fmt: skip
    made = []
    for number, (queue, gpus, band, at, work, saves) in enumerate(wants):
        facts = {"resumes": True, "save_s": 5} if saves else {}
        job = Job(f"j{number:02}", f"root/{queue}", JobShape(split_into_slots(gpus, 8), band=band), at, **facts)
        made.append(TraceJob(job, float(work), loses=not saves))
    assert ReplayEngine(build_trace(make_nodes(2, 8), QUEUES, made)).run().jobs == len(made)


def test_who_is_done_before_it_has_saved_is_done() -> None:
    """One that is to give way, and has less to do than to save, ends: nothing of it runs again."""
    first = TraceJob(
        Job("low", "root/a", JobShape(split_into_slots(16, 8), band=2), 0, resumes=True, save_s=5), 303.0, loses=False
    )
    made = [first, TraceJob(Job("owner", "root/b", JobShape(split_into_slots(4, 8), band=2), 300), 50.0)]
    engine = Told(build_trace(make_nodes(2, 8), QUEUES, made))
    engine.lost = Counter()
    engine.run()
    assert engine.lost.keys() == {"low"}, "it was not asked to give way"
    life = engine.lives["low"]
    assert (life.ran, life.job.evictions) == (303.0, 0)


def test_a_long_job_of_unknown_length_gives_way_while_nothing_else_happens() -> None:
    """Nothing arrived or ended after the short job came: it waited until the long one was over."""
    facts = {"template": "ann/a", "resumes": True, "save_s": 1}
    shape = JobShape(split_into_slots(8, 8))
    work_s = {f"past{number:02}": 100 for number in range(20)} | {"long": 100_000, "short": 100}
    at = {name: 200 * number for number, name in enumerate(work_s)} | {"short": 4010}
    made = [TraceJob(Job(name, "root/a", shape, at[name], **facts), float(run_s)) for name, run_s in work_s.items()]
    engine = ReplayEngine(build_trace(make_nodes(1, 8), QUEUES[:1], made))
    engine.run()
    assert engine.lives["long"].job.evictions == 1
    assert engine.lives["short"].first < 4010 + 1100
