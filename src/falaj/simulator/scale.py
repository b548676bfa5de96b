"""Which nodes to buy for the work that waits, and what each costs: the scheduler is asked, with nodes only imagined.

What starts on an imagined node is what would start on a real one, by the same rights, quotas and places; so nothing is
ever bought for a job that a limit, a budget or the law holds back.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from falaj.schedule.decide import Scheduler
from falaj.schedule.forecast import pool, size
from falaj.schedule.model import Job, Node, Reservation, Shape, Snapshot
from falaj.simulator.kinds import HOUR_S, NodeKind, ScaleKnobs

MOST_STARTS = 1000
NEW = "+"
"""The mark of nodes not yet asked for; those that come have another."""
MOST_TRIES = 32
"""So often the kinds are compared at one visit; the next one goes on."""


@dataclass(frozen=True, slots=True)
class Basket:
    """What to buy, and what becomes of whom by it."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """How many more of each kind."""
    starts: Mapping[str, str] = field(default_factory=dict)
    """Jobs that nodes are bought for, each with the kind that was bought for it first."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Jobs that wait, and why nothing is bought for them."""


def settled(facts: Snapshot, coming: Iterable[Node] = ()) -> Scheduler:
    """The scheduler after it started what it can, on the nodes there are and those that come."""
    calm = replace(facts.knobs, grow=False, patience=0)
    board = Scheduler(replace(facts, nodes=(*facts.nodes, *coming), knobs=calm))
    _run(board)
    return board


class Shop:
    """One visit: what there is of each kind, how much money, and which kinds were bought only just. What one of those
    is cheapest for waits a moment, and gets nothing dearer instead."""

    def __init__(
        self,
        facts: Snapshot,
        kinds: Iterable[NodeKind],
        room: Mapping[str, int],
        money: int | None,
        cooling: Iterable[str] = (),
    ) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._room, self._money, self._cooling = dict(room), money, set(cooling)
        notices = [kind.notice_s for kind in self._kinds.values() if kind.node.spot]
        self._late: dict[str, Job] = {}
        jobs = tuple(_steady(job, min(notices)) if notices and not job.spots else job for job in facts.jobs)
        self._facts = replace(facts, jobs=jobs)
        self._bought: dict[str, int] = {}

    def buy(self, late: Iterable[str]) -> Basket:
        """The cheapest nodes that start these jobs, the first of them first."""
        known = {job.id: job for job in self._facts.jobs}
        self._late = {name: known[name] for name in late}
        starts: dict[str, str] = {}
        refused: dict[str, str] = {}
        hopeless: dict[Shape, str] = {}
        tries = 0
        for name, job in self._late.items():
            if name in starts or tries >= MOST_TRIES:
                continue
            if job.shape not in hopeless:
                tries += 1
                best = self._best(job)
                if best is not None:
                    starts.update(dict.fromkeys(best[2], best[0].name))
                    self._take(best[0], best[1])
                    continue
                hopeless[job.shape] = self._why_not(job)
            refused[name] = hopeless[job.shape]
        soon = {job: f"{name} is bought for it in a moment" for job, name in starts.items() if name in self._cooling}
        return Basket(
            {name: count for name, count in self._needed().items() if name not in self._cooling},
            {job: name for job, name in starts.items() if name not in self._cooling},
            {**{job: why for job, why in refused.items() if job not in starts}, **soon},
        )

    def _take(self, kind: NodeKind, count: int) -> None:
        self._bought[kind.name] = self._bought.get(kind.name, 0) + count
        self._room[kind.name] -= count
        if self._money is not None:
            self._money -= count * kind.node.price

    def _best(self, job: Job) -> tuple[NodeKind, int, list[str]] | None:
        """What starts a job, with most of its like for the money."""
        best: tuple[Fraction, int, str] | None = None
        found = None
        for name, kind in sorted(self._kinds.items()):
            for count, started in self._offers(kind):
                if job.id not in started:
                    continue
                jobs = [self._late[one] for one in started]
                like = sum(_size(one) for one in jobs if pool(one.shape) == pool(job.shape))
                price = expected_price(kind, jobs)
                rank = (Fraction(count * price, max(like, 1)), -like, name)
                if price and (best is None or rank < best):
                    best, found = rank, (kind, count, started)
        return found

    def _offers(self, kind: NodeKind) -> Iterator[tuple[int, list[str]]]:
        """For more and more nodes of a kind: which of the late jobs they start."""
        price = kind.node.price
        most = self._room.get(kind.name, 0)
        if self._money is not None and price:
            most = min(most, self._money // price)
        if most <= 0:
            return
        had = self._bought.get(kind.name, 0)
        board = self._trial()
        fresh = kind.imagine(had + most, NEW)[had:]
        before = set(board.running)
        count = 0
        while count < most:
            more = max(1, count // 8)
            for node in fresh[count : count + more]:
                board.node(node)
            count = min(count + more, most)
            _run(board)
            started = [name for name in self._late if name in board.running and name not in before]
            yield count, started
            if len(started) + len(before & self._late.keys()) == len(self._late):
                return

    def _trial(self) -> Scheduler:
        nodes = [node for name, count in self._bought.items() for node in self._kinds[name].imagine(count, NEW)]
        return settled(self._facts, nodes)

    def _needed(self) -> dict[str, int]:
        """What was bought, less what nothing would use in the end."""
        if not self._bought:
            return {}
        board = self._trial()
        used = {spot.node for job in board.running.values() for spot in job.spots}
        used |= {spot.node for turn in board.turns.of.values() for spot in turn.spots}
        counts = {
            name: sum(node.name in used for node in self._kinds[name].imagine(count, NEW))
            for name, count in self._bought.items()
        }
        return {name: count for name, count in counts.items() if count}

    def _why_not(self, job: Job) -> str:
        """Which kind would have done, were it not for money or number."""
        money, room = self._money, self._room
        self._money, self._room = None, {name: kind.most for name, kind in self._kinds.items()}
        could = []
        for name, kind in sorted(self._kinds.items()):
            count = next((count for count, started in self._offers(kind) if job.id in started), 0)
            if count and expected_price(kind, [job]):
                could.append((count * kind.node.price, count, name))
        self._money, self._room = money, room
        if not could:
            return "no kind of node would start it"
        _, count, name = min(could)
        short = money is not None and room.get(name, 0) >= count
        said = "the money for an hour does not reach" if short else "no more of them may be had now"
        return f"{count} of {name} would start it, and {said}"


def late(board: Scheduler, kinds: Iterable[NodeKind], knobs: ScaleKnobs) -> list[str]:
    """Who waits too long for lack of nodes, first who waits longest; not who waits for a quota, a budget, or rests.
    Gives everybody a turn, as far as the board has turns to give."""
    boots = min((kind.boot_s for kind in kinds), default=0)
    found: list[str] = []
    for job in sorted(board.lines.jobs.values(), key=lambda job: (job.submitted, job.id)):
        parked = board.lines.numbers[job.id] in board.parked.get(job.queue, ())
        if parked or job.not_before > board.now:
            continue
        if job.id not in board.turns.of and board.turns.room(pool(job.shape)):
            turn = board.turns.plan(job.id, job.shape, job.shape.least, board.now)
            if turn is not None:
                board.turns.put(Reservation(job.id, *turn), pool(job.shape), job.shape.roles, board.run_s(job))
        soon = max(job.submitted + knobs.wait_s, board.now + boots)
        if job.id not in board.turns.of or board.turns.of[job.id].at > soon:
            found.append(job.id)
    return found


def expected_price(kind: NodeKind, jobs: Iterable[Job]) -> int:
    """An hour of useful work on it: what is lost when it is taken away, and coming back, is paid for nothing. None of
    that can be had (0) when more is lost than done."""
    price = max(kind.node.price, 1)
    if not kind.node.spot:
        return price
    lost_s = max((job.save_s + job.restart_s for job in jobs), default=0) + kind.boot_s
    useful = 1000 * HOUR_S - kind.node.hazard * lost_s
    return price * 1000 * HOUR_S // useful if useful > 0 else 0


def _size(job: Job) -> int:
    return max(1, size(job.shape, job.shape.least))


def _steady(job: Job, notice_s: int) -> Job:
    """A job that could not save before a spot node is gone is not to be counted on for one."""
    if (job.resumes and 0 < job.save_s < notice_s) or not any(role.ask.spot for role in job.shape.roles):
        return job
    roles = tuple(replace(role, ask=replace(role.ask, spot=False)) for role in job.shape.roles)
    return replace(job, shape=replace(job.shape, roles=roles))


def _run(board: Scheduler) -> None:
    while len(board.cycle(board.now, MOST_STARTS).starts) >= MOST_STARTS:
        pass
