"""Which nodes to buy for work that waits: places are looked for on nodes only imagined, then the scheduler is asked.

What it starts there is what it would start on real ones, by the same rights, quotas and places; so nothing is ever
bought for a job that a limit, a budget or the law holds back.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from falaj.schedule.decide import Scheduler
from falaj.schedule.forecast import pool, size
from falaj.schedule.model import Job, Node, Reservation, Shape, Snapshot, Spot
from falaj.schedule.place import place
from falaj.schedule.world import World
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
    """Jobs that start on what is bought, each with a kind it starts on."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Jobs that wait, and why nothing is bought for them."""


def settled(facts: Snapshot, coming: Iterable[Node] = ()) -> Scheduler:
    """The scheduler after it started what it can, on the nodes there are and those that come."""
    calm = replace(facts.knobs, grow=False, patience=0)
    board = Scheduler(replace(facts, nodes=(*facts.nodes, *coming), knobs=calm))
    _run(board)
    return board


@dataclass(frozen=True, slots=True)
class Offer:
    """So many nodes of a kind, and whom they start where."""

    kind: NodeKind
    count: int
    placed: tuple[tuple[Job, tuple[Spot, ...]], ...]


class Shop:
    """One visit. Places are looked for in a world of what there is and all that could be bought; what is taken home is
    what the scheduler then uses of it. What a kind that was bought only just is cheapest for waits a moment, and gets
    nothing dearer instead."""

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
        jobs = tuple(_steady(job, min(notices)) if notices and not job.spots else job for job in facts.jobs)
        self._facts = replace(facts, jobs=jobs)
        new = {name: kind.imagine(kind.most, NEW) for name, kind in self._kinds.items()}
        self._world = World([*facts.nodes, *(node for some in new.values() for node in some)])
        for job in jobs:
            self._world.hold(job.spots, job.shape.roles)
        self._rows = {name: [self._world.index[node.name] for node in some] for name, some in new.items()}
        """By kind, the rows of nodes that can still be bought."""
        self._allowed = np.arange(len(self._world.nodes)) < len(facts.nodes)
        self._bought: dict[str, int] = {}
        self._left: dict[str, Job] = {}

    def buy(self, late: Iterable[str]) -> Basket:
        """The cheapest nodes that start these jobs, the first of them first."""
        known = {job.id: job for job in self._facts.jobs}
        self._left = {name: known[name] for name in late}
        meant: dict[str, str] = {}
        hopeless: dict[Shape, str] = {}
        refused: dict[str, str] = {}
        tries = 0
        for name, job in list(self._left.items()):
            if name not in self._left or (job.shape not in hopeless and tries >= MOST_TRIES):
                continue
            if job.shape not in hopeless:
                tries += 1
                best = self._best(job)
                if best is not None:
                    self._take(best)
                    meant.update({one.id: best.kind.name for one, _ in best.placed})
                    continue
                hopeless[job.shape] = self._why_not(job)
            refused[name] = hopeless[job.shape]
        return self._home(meant, refused)

    def _best(self, job: Job) -> Offer | None:
        """What starts a job, with most of its like for the money."""
        best: tuple[Fraction, int, str] | None = None
        found = None
        for name, kind in sorted(self._kinds.items()):
            most = self._room.get(name, 0)
            if self._money is not None and kind.node.price:
                most = min(most, self._money // kind.node.price)
            for offer in self._offers(kind, most):
                jobs = [one for one, _ in offer.placed]
                if not any(one is job for one in jobs):
                    continue
                like = sum(_size(one) for one in jobs if pool(one.shape) == pool(job.shape))
                price = expected_price(kind, jobs)
                rank = (Fraction(offer.count * price, max(like, 1)), -like, name)
                if price and (best is None or rank < best):
                    best, found = rank, offer
        return found

    def _offers(self, kind: NodeKind, most: int) -> Generator[Offer]:
        """For more and more nodes of a kind: who could start."""
        world, allowed = self._world, self._allowed.copy()
        placed: list[tuple[Job, tuple[Spot, ...]]] = []
        lines: dict[Shape, list[Job]] = {}
        for job in reversed(self._left.values()):
            lines.setdefault(job.shape, []).append(job)
        try:
            for count, row in enumerate(self._rows[kind.name][:most], 1):
                allowed[row] = True
                for shape, line in lines.items():
                    if not any(world.possible(world.ask(role.ask))[row] for role in shape.roles):
                        continue
                    while line and (spots := place(world, shape, shape.least, allowed)) is not None:
                        world.take(spots, shape.roles)
                        placed.append((line.pop(), spots))
                yield Offer(kind, count, tuple(placed))
                if not any(lines.values()):
                    return
        finally:
            for job, spots in placed:
                world.give(spots, job.shape.roles)

    def _take(self, offer: Offer) -> None:
        name, rows = offer.kind.name, self._rows[offer.kind.name]
        self._allowed[rows[: offer.count]] = True
        self._rows[name] = rows[offer.count :]
        self._bought[name] = self._bought.get(name, 0) + offer.count
        self._room[name] -= offer.count
        if self._money is not None:
            self._money -= offer.count * offer.kind.node.price
        for job, spots in offer.placed:
            self._world.take(spots, job.shape.roles)
            del self._left[job.id]

    def _home(self, meant: Mapping[str, str], refused: Mapping[str, str]) -> Basket:
        """What was bought, less what the scheduler would not use."""
        nodes = {name: self._kinds[name].imagine(count, NEW) for name, count in self._bought.items()}
        board = settled(self._facts, [node for some in nodes.values() for node in some]) if nodes else None
        running = board.running if board else {}
        used = {spot.node for job in running.values() for spot in job.spots}
        used |= {spot.node for turn in (board.turns.of.values() if board else ()) for spot in turn.spots}
        counts = {name: sum(node.name in used for node in some) for name, some in nodes.items()}
        starts = {
            job.id: node.rpartition(NEW)[0]
            for job in running.values()
            if NEW in (node := max((spot.node for spot in job.spots), key=lambda name: NEW in name, default=""))
        }
        said = {name: "others come before it on what is bought" for name in meant if name not in running}
        said |= {name: f"{kind} is bought for it in a moment" for name, kind in starts.items() if kind in self._cooling}
        return Basket(
            {name: count for name, count in counts.items() if count and name not in self._cooling},
            {name: kind for name, kind in starts.items() if kind not in self._cooling},
            {**{name: why for name, why in refused.items() if name not in starts}, **said},
        )

    def _why_not(self, job: Job) -> str:
        """Which kind would have done, were it not for money or number."""
        could = []
        for name, kind in sorted(self._kinds.items()):
            with closing(self._offers(kind, kind.most)) as offers:
                count = next((one.count for one in offers if any(job is other for other, _ in one.placed)), 0)
            if count and expected_price(kind, [job]):
                could.append((count * kind.node.price, count, name))
        if not could:
            return "no kind of node would start it"
        _, count, name = min(could)
        short = self._money is not None and self._room.get(name, 0) >= count
        said = "the money for an hour does not reach" if short else "no more of them may be had now"
        return f"{count} of {name} would start it, and {said}"


def late(board: Scheduler, kinds: Iterable[NodeKind], knobs: ScaleKnobs) -> list[str]:
    """Who waits too long for lack of nodes, first who waits longest; not who waits for a quota, a budget, or rests.
    Gives everybody a turn, as far as the board has turns to give."""
    boots = min((kind.boot_s for kind in kinds), default=0)
    found: list[str] = []
    for job in sorted(board.lines.jobs.values(), key=lambda job: (job.submitted, job.id)):
        number = board.lines.numbers[job.id]
        parked = number in board.parked.get(job.queue, ()) or board.too_dear(job, number) is not None
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
