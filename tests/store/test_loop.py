"""Reconcile loops: one leader, killed between work and apply, lease lost, the same call twice."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import StaleRevision, Unavailable
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger
from falaj.store.outcome_expiry import OutcomeExpiryLoop
from falaj.store.reconcile_loop import LEASE_S, LoopIteration, LoopRunner

JOB = Ref.parse("job:house/one")


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Work:
    """A loop with a script: `do` is called in every step."""

    def __init__(self, do: Callable[[LoopIteration], bool], name: str = "work", every_s: float = 30.0) -> None:
        self.name, self.every_s, self._do, self.eager = name, every_s, do, True
        self.hears: tuple[str, ...] = ()
        self.minds: set[str] = set()

    def step(self, iteration: LoopIteration) -> bool:
        return self._do(iteration)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(SqliteLedgerStore(f"sqlite:{tmp_path}/ledger.db"))
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def loops(ledger: Ledger, clock: Clock, owner: str, *work: Work) -> LoopRunner:
    return LoopRunner(
        ledger, owner, work, lambda name: CallContext(Actor(f"loop-{name}", SYSTEM_TENANT), "home", now=clock)
    )


def advance(ledger: Ledger, ctx: CallContext, rev: int | None) -> int:
    """The guarded write of a result."""
    with ledger.write(ctx) as tx:
        record = tx.put(JOB, {"by": ctx.actor.id}, rev=rev)
        tx.emit("advance", record.ref)
    return record.rev


def revision(ledger: Ledger, ctx: CallContext) -> int | None:
    with ledger.read(ctx) as tx:
        held = tx.get(JOB)
    return held.rev if held else None


def test_a_clock_that_was_wrong_stops_no_loop(ledger: Ledger, clock: Clock) -> None:
    ran: list[str] = []
    one = loops(ledger, clock, "one", Work(lambda turn: bool(ran.append("one"))))
    two = loops(ledger, clock, "two", Work(lambda turn: bool(ran.append("two"))))
    clock.now += 86_400
    one.run_once()
    clock.now -= 86_400
    two.run_once()  # the first one died with its clock a day ahead
    one.run_once()  # or it did not, and learns that another leads
    assert ran == ["one", "two"]


def test_one_replica_leads_until_its_lease_runs_out(ledger: Ledger, clock: Clock) -> None:
    ran: list[tuple[str, int]] = []
    one = loops(ledger, clock, "one", Work(lambda turn: bool(ran.append(("one", turn.token)))))
    two = loops(ledger, clock, "two", Work(lambda turn: bool(ran.append(("two", turn.token)))))
    one.run_once()
    two.run_once()
    clock.now += LEASE_S - 1
    one.run_once()
    two.run_once()
    assert ran == [("one", 1), ("one", 1)], "extended, with the same token"
    clock.now += LEASE_S + 1
    two.run_once()
    one.run_once()
    assert ran[2:] == [("two", 2)], "the token grows with every change of leader"


def test_killed_between_work_and_apply_the_next_leader_does_it_again(ledger: Ledger, clock: Clock) -> None:
    effects: list[int] = []

    def work(turn: LoopIteration) -> bool:
        rev = revision(ledger, turn.ctx)
        effects.append(turn.token)
        if turn.token == 1:
            raise KeyboardInterrupt
        advance(ledger, turn.ctx, rev)
        return False

    with pytest.raises(KeyboardInterrupt):
        loops(ledger, clock, "killed", Work(work)).run_once()
    heir = loops(ledger, clock, "heir", Work(work))
    heir.run_once()
    assert effects == [1], "not while the dead one's lease lasts"
    clock.now += LEASE_S + 1
    heir.run_once()
    assert effects == [1, 2]
    assert len(ledger.tail()) == 1


def test_a_leader_who_lost_its_lease_discards_its_result(ledger: Ledger, clock: Clock) -> None:
    heir = loops(
        ledger, clock, "heir", Work(lambda turn: bool(advance(ledger, turn.ctx, revision(ledger, turn.ctx)) * 0))
    )
    seen: list[bool] = []

    def slow(turn: LoopIteration) -> bool:
        rev = revision(ledger, turn.ctx)
        seen.append(turn.alive())
        clock.now += LEASE_S + 1
        heir.run_once()
        seen.append(turn.alive())
        advance(ledger, turn.ctx, rev)
        return True

    assert loops(ledger, clock, "slow", Work(slow)).run_once() == 1
    assert seen == [True, False]
    (fact,) = ledger.tail()
    assert fact.event.actor == "loop-work"
    with ledger.read(CallContext(Actor("x", SYSTEM_TENANT), "home")) as tx:
        assert tx.need(JOB).rev == 1, "the late result was thrown away"


def test_a_long_step_keeps_its_lease_by_asking(ledger: Ledger, clock: Clock) -> None:
    def long(turn: LoopIteration) -> bool:
        for _ in range(5):
            clock.now += LEASE_S * 0.8
            assert turn.alive()
            assert ledger.lease("loop:work", "rival", 10, clock.now) is None
        return False

    loops(ledger, clock, "one", Work(long)).run_once()
    assert ledger.lease("loop:work", "one", 10, clock.now) == 1


def test_the_same_step_twice_applies_once(ledger: Ledger, clock: Clock) -> None:
    asked = CallContext(Actor("loop", SYSTEM_TENANT), "home", request="apply-1", keyed=True)

    def work(turn: LoopIteration) -> bool:
        if ledger.outcome(asked, "f") is None:
            with ledger.write(asked) as tx:
                tx.emit("apply", JOB.at("r1"))
                tx.remember("1", "f")
        return False

    one = loops(ledger, clock, "one", Work(work))
    one.run_once()
    one.run_once()
    assert len(ledger.tail()) == 1


def test_a_failing_loop_backs_off_and_others_go_on(ledger: Ledger, clock: Clock) -> None:
    ran: list[str] = []

    def broken(turn: LoopIteration) -> bool:
        ran.append("broken")
        raise RuntimeError("a bug")

    def busy(turn: LoopIteration) -> bool:
        ran.append("busy")
        raise Unavailable("no answer")

    pair = loops(
        ledger,
        clock,
        "one",
        Work(broken, "broken"),
        Work(busy, "busy"),
        Work(lambda turn: bool(ran.append("fine")), "fine"),
    )
    pair.run_once()
    assert ran == ["broken", "busy", "fine"]
    pauses = []
    turner = pair._workers[0]
    for _ in range(12):
        turner.turn()
        pauses.append(turner._pause_length_s())
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60.0
    turner.loop = Work(lambda turn: False, "broken", 7.0)
    turner.turn()
    assert turner._pause_length_s() == 7.0


def test_threads_wake_on_commit_and_stop_within_a_second(ledger: Ledger) -> None:
    stepped = threading.Semaphore(0)

    def work(turn: LoopIteration) -> bool:
        stepped.release()
        return False

    running = LoopRunner(ledger, "one", [Work(work, every_s=3600.0)])
    running.start()
    assert [t.name for t in threading.enumerate() if t.name == "falaj-loop-work"]
    assert stepped.acquire(timeout=10), "once at the start"
    advance(ledger, CallContext(Actor("ann", SYSTEM_TENANT), "home"), None)
    assert stepped.acquire(timeout=10), "and after a commit, long before every_s"
    running.stop(timeout_s=1.0)
    assert not [t for t in threading.enumerate() if t.name == "falaj-loop-work"]
    assert ledger.lease("loop:work", "two", 10, 0.0) == 2, "the lease was given back"


def test_one_that_says_what_it_hears_is_woken_by_that_and_nothing_else(ledger: Ledger) -> None:
    steps = {"jobs": threading.Semaphore(0), "all": threading.Semaphore(0)}
    hearing = Work(lambda turn: bool(steps["jobs"].release()), "jobs", every_s=3600.0)
    hearing.hears = ("job",)
    running = LoopRunner(
        ledger, "one", [hearing, Work(lambda turn: bool(steps["all"].release()), "all", every_s=3600.0)]
    )
    running.start()
    ctx = CallContext(Actor("ann", SYSTEM_TENANT), "home")
    assert all(stepped.acquire(timeout=10) for stepped in steps.values()), "once at the start"
    with ledger.write(ctx) as tx:
        tx.emit("note", Ref("note", "house", "one", "v1"))
    assert steps["all"].acquire(timeout=10)
    with ledger.group():
        advance(ledger, ctx, None)
    assert steps["jobs"].acquire(timeout=10)
    assert steps["all"].acquire(timeout=10)
    ledger.bells.nudge("job")
    assert steps["jobs"].acquire(timeout=10), "without a commit"
    ledger.bells.ring()
    assert steps["jobs"].acquire(timeout=10), "and by whoever cannot say what it was"
    assert steps["all"].acquire(timeout=10)
    running.stop(timeout_s=1.0)
    assert not steps["jobs"].acquire(timeout=0), "the note woke it"
    assert not steps["all"].acquire(timeout=0), "the nudge woke it"


def test_one_that_hears_is_not_woken_by_what_it_wrote_itself(ledger: Ledger) -> None:
    ctx, steps = CallContext(Actor("ann", SYSTEM_TENANT), "home"), list[int | None]()
    there = threading.Semaphore(0)

    def work(turn: LoopIteration) -> bool:
        steps.append(revision(ledger, ctx))
        if steps == [None]:
            advance(ledger, ctx, None)
        there.release()
        return False

    hearing = Work(work, every_s=3600.0)
    hearing.hears = ("job",)
    running = LoopRunner(ledger, "one", [hearing])
    running.start()
    assert there.acquire(timeout=10)
    advance(ledger, ctx, 1)
    assert there.acquire(timeout=10), "others wake it"
    running.stop(timeout_s=1.0)
    assert steps == [None, 2]


def test_more_to_do_means_again_at_once(ledger: Ledger, clock: Clock) -> None:
    left = [3]

    def work(turn: LoopIteration) -> bool:
        left[0] -= 1
        return left[0] > 0

    assert loops(ledger, clock, "one", Work(work)).run_once() == 3


def test_a_stale_result_is_no_failure(ledger: Ledger, clock: Clock) -> None:
    def work(turn: LoopIteration) -> bool:
        raise StaleRevision("somebody was first")

    made = loops(ledger, clock, "one", Work(work))
    made.run_once()
    assert made._workers[0]._pause_length_s() == 30.0


def test_outcomes_are_kept_for_a_week_and_then_forgotten(ledger: Ledger, clock: Clock) -> None:
    clock.now = 1_800_000_000.0
    asked = [CallContext(Actor("ann", "acme"), "home", request=f"r{n}", keyed=True, now=clock) for n in range(3)]
    for ctx in asked:
        with ledger.write(ctx) as tx:
            tx.emit("do", JOB.at("r1"))
            tx.remember("1", "f")
        clock.now += 2 * 86_400
    sweep = loops(ledger, clock, "one", Work(OutcomeExpiryLoop(ledger).step))
    sweep.run_once()
    assert [ledger.outcome(ctx, "f") for ctx in asked] == ["1", "1", "1"]
    clock.now += 3 * 86_400
    sweep.run_once()
    assert [ledger.outcome(ctx, "f") for ctx in asked] == [None, "1", "1"]
    clock.now += 20 * 86_400
    sweep.run_once()
    assert [ledger.outcome(ctx, "f") for ctx in asked] == [None, None, None]
    assert len(ledger.tail()) == 3, "the events stay"


def test_one_that_minds_some_things_is_woken_by_those_as_long_as_it_does(ledger: Ledger) -> None:
    work = Work(lambda turn: False, every_s=3600.0)
    work.minds = {"note"}
    running = LoopRunner(ledger, "one", [work])
    running.start()
    running.stop()  # nobody takes notice any more: what woke it stays to be seen
    turner, ctx = running._workers[0], CallContext(Actor("ann", SYSTEM_TENANT), "home")

    def woken(rev: int | None) -> bool:
        turner._wake_event.clear()
        advance(ledger, ctx, rev)
        return turner._wake_event.is_set()

    assert not woken(None)
    work.minds.add("job")
    assert woken(1)
    work.minds.discard("job")
    assert not woken(2)
