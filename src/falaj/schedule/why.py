"""Why a job waits, in one dominant word, when it will start, and the smallest change that starts it now.

A change is only told after it was made, on a copy, and the scheduler decided again: then it did start.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from falaj.core.errors import NotFound
from falaj.schedule.blocked import refused
from falaj.schedule.budget import BUDGET
from falaj.schedule.changes import Change, Fix, altered, changed, less, merged, ways
from falaj.schedule.decide import Scheduler
from falaj.schedule.ground import Refusal
from falaj.schedule.model import (
    BANDS,
    BEST_EFFORT,
    GPU,
    NEVER,
    WHOLE,
    Ask,
    Job,
    Node,
    Queue,
    Reason,
    Shape,
    Snapshot,
    Spot,
)
from falaj.schedule.place import place
from falaj.schedule.share import Tree
from falaj.schedule.words import BUDGETS, counted, spendable
from falaj.schedule.world import World

SOON = "its turn is now: it starts with the next decision"
MOST_TRIES = 24
"""So many changes of one kind are tried."""
_MOST_RAISED = 4
"""So many limits and budgets are raised for one job."""
_MOST_PROVEN = 1000
_QUOTAS = ("limit", "budget", "guarantee-of-others")
NOTHING: Fix = ("", ())


class _Proven(NamedTuple):
    """What could run on a fleet, by queue and shape."""

    facts: tuple[list[Node], list[Any]]
    asked: set[tuple[str, Shape]]


_PROVEN = [_Proven(([], []), set())]
"""The last fleet that was asked of."""


def explain(source: Snapshot | Scheduler, job_id: str, closed: Mapping[str, Sequence[str]] | None = None) -> Reason:
    """Why a job waits, when it will start, and what would start it now.

    `closed` are the nodes and clusters that somebody closed and can open again, with the nodes that take work then.
    """
    facts = source if isinstance(source, Snapshot) else source.snapshot(source.now)
    job = next((one for one in facts.jobs if one.id == job_id), None)
    if job is None:
        raise NotFound(f"there is no job {job_id}", "it is over, or was never submitted", job_id)
    if job.spots:
        word = "it is being stopped, and waits again when it is gone" if job.stopping else "it runs"
        return Reason("stopping" if job.stopping else "held", word, starts=facts.now)
    never = possible(facts.nodes, facts.queues, job)
    if never is not None:
        return never
    board = _Asked(facts)
    board.cycle(facts.now)
    if job_id in board.running:
        return Reason("capacity", SOON, starts=facts.now)
    reason = board.reason(job)
    text, change = _Fixes(facts, board, job).best(reason.code, closed or {})
    return replace(reason, fix=text, change=change)


def reasons(facts: Snapshot, job_ids: Collection[str]) -> dict[str, Reason]:
    """Why these jobs wait, without what would help: one decision for all of them, however many are asked about."""
    waiting = [job for job in facts.jobs if job.id in job_ids and not job.spots]
    if not waiting:
        return {}
    alone = _alone(facts.nodes, facts.queues)
    board = _Asked(facts)
    board.cycle(facts.now)
    found: dict[str, Reason] = {}
    for job in waiting:
        never = _wrong(job.shape) or _never(*alone, job)
        if never:
            found[job.id] = Reason("impossible", never)
        elif job.id in board.running:
            found[job.id] = Reason("capacity", SOON, starts=facts.now)
        else:
            found[job.id] = board.reason(job)
    return found


def starts(facts: Snapshot, job_id: str) -> bool:
    """Does a job start, given these facts, or is room made for it?"""
    return _begins(Scheduler(facts), job_id)


def possible(nodes: Sequence[Node], queues: Sequence[Queue], job: Job) -> Reason | None:
    """None when a job could run if nothing else did; else why it never can, and the nearest request that could."""
    wrong = _wrong(job.shape)
    if wrong:
        return Reason("impossible", wrong)
    # Most jobs ask for what others asked for before, of the same fleet: that it can be is worth remembering.
    facts = list(nodes), [(one.name, one.limit, one.guarantee, one.lend) for one in queues]
    asked = job.queue, job.shape
    proven = _PROVEN[0]
    if asked in proven.asked and proven.facts == facts:
        return None
    world, tree = _alone(nodes, queues)
    text = _never(world, tree, job)
    if not text:
        if proven.facts != facts or len(proven.asked) >= _MOST_PROVEN:
            proven = _PROVEN[0] = _Proven(facts, set())
        proven.asked.add(asked)
        return None

    def helps(change: Change) -> bool:
        return not _never(world, tree, altered(job, change))

    # First with less of something, then without it, then with less of several things.
    singles = (way for whole in (False, True) for way in ways(job.shape, whole=whole))
    fix = next((found for way in singles if (found := way.nearest(helps)) is not None), None) or less(job, helps)
    return Reason("impossible", text, f"ask for {fix[0]}", fix[1]) if fix else Reason("impossible", text)


# reasons


class _Asked(Scheduler):
    """A scheduler of one's own, to be asked about its jobs."""

    def __init__(self, facts: Snapshot) -> None:
        super().__init__(facts)
        self._when: dict[tuple[str, int], int] = {}
        """By leaf and shape, when quotas let one more of it in."""

    def reason(self, job: Job) -> Reason:
        """The one word that says most."""
        if job.id in self.lines.resting:
            return Reason("backing-off", "its cluster refused it; it is tried again later", starts=job.not_before)
        at, _ = self._turn(job)
        fits, refusal = self.look(job)
        if refusal is not None:
            return replace(refused(job.queue, refusal), starts=max(at, self._allowed(job, refusal)))
        if self.waited_for(job.id):
            return Reason("stopping", "others are being stopped to make room for it", starts=at)
        if fits:
            return Reason("reservation", "the places it fits in are held for jobs that come before it", starts=at)
        lent = self.turns.lend(0)
        room = self._room_for(job)
        self.turns.take_back(lent)
        return replace(room, starts=at)

    def look(self, job: Job) -> tuple[bool, Refusal | None]:
        """Would it fit if nothing were held for others, and the quota or budget that refuses it."""
        refusal = self.tree.refusal(job.queue, self.amount(self.lines.numbers[job.id]))
        if refusal is not None:
            return False, refusal
        lent = self.turns.lend(0)
        found, refusal = self._find(job)
        self.turns.take_back(lent)
        if found is None and refusal is None and (spots := self._turn(job)[1]):
            refusal = self._afford(job, spots)[1]  # who has no room yet may not be able to pay for it, either
        return found is not None, refusal

    def _turn(self, job: Job) -> tuple[int, tuple[Spot, ...]]:
        """When and where there is room for it; never, where that is not known."""
        turn = self.turns.of.get(job.id)
        if turn is not None and turn.spots:
            return turn.at, turn.spots
        return self.profile.earliest(job.shape, job.shape.least, self.now) or (NEVER, ())

    def _allowed(self, job: Job, refusal: Refusal) -> int:
        """When what refuses it lets it in: as what runs ends, or when a budget's window is over."""
        if refusal[1].startswith(BUDGET):
            unit = refusal[1].removeprefix(BUDGET)
            short = [one for one in self.budgets.of(refusal[0]) if one.unit == unit]
            # What it costs is what is missing and what is left.
            ends = [one.ends for one in short if refusal[2] <= one.spent + one.held]
            return max(ends) if ends else NEVER
        line = job.queue, self.lines.numbers[job.id]
        if line not in self._when:
            self._when[line] = self._let_in(job.queue, self.amount(line[1]))
        return self._when[line]

    def _let_in(self, queue: str, amount: list[int]) -> int:
        """When quotas let a leaf have so much more, if what runs ends as expected and nobody else takes it."""
        ends = sorted((self.profile.end(one.id), one.id) for one in self.running.values())
        gone = list[str]()
        at = NEVER
        for end, one in ends:
            gone.append(one)
            self.tree.charge(self.running[one].queue, self._counted[one], -1)
            if self.tree.refusal(queue, amount) is None:
                at = end
                break
        for one in gone:
            self.tree.charge(self.running[one].queue, self._counted[one])
        return at

    def _room_for(self, job: Job) -> Reason:
        """No place has room for all of it, too little is free, or in too small pieces, or nothing of it is open."""
        shape, stays = job.shape, self._lasting(job)
        if shape.required and place(self.world, replace(shape, required=False), shape.least, stays) is not None:
            return Reason("topology", f"no {shape.level} has room for all of it, though the whole has")
        ask = shape.roles[0].ask
        suits = self.profile.suiting(ask)
        rows = [row for row in np.flatnonzero(suits.any(axis=1)).tolist() if self.world.nodes[row].open]
        if not rows:
            return Reason("place", "every node it could run on is closed, ill or does not answer")
        rows = [row for row in rows if stays is None or stays[row]]
        if not rows:
            return Reason("place", "every node it could run on goes before it would be over")
        each = ask.gpus * WHOLE or ask.milli
        if not each:
            return Reason("capacity", "too little is free")
        need, free = shape.least * each, int(self.world.dev[rows].clip(0)[suits[rows]].sum())
        verb = "is" if free == WHOLE else "are"
        if free >= need:
            text = f"{counted(GPU, free)} {verb} free for its {need / WHOLE:g}, in pieces that are too small"
            return Reason("fragmented", text)
        return Reason("capacity", f"it needs {counted(GPU, need)} where {free / WHOLE:g} {verb} free")


def _begins(board: Scheduler, job_id: str) -> bool:
    plan = board.cycle(board.now)
    wanted = [one.wanted_by for one in plan.evictions] + [one.wanted_by for one in plan.resizes]
    return job_id in wanted or any(start.job == job_id for start in plan.starts)


# changes


class _Fixes:
    """Changes that may start a job, each tried on a copy of the facts."""

    def __init__(self, facts: Snapshot, board: _Asked, job: Job) -> None:
        self._facts, self._board, self._job = facts, board, job
        self._known: dict[Change, bool] = {}
        self._left = 0

    def best(self, code: str, closed: Mapping[str, Sequence[str]]) -> Fix:
        """The smallest change that starts it; nothing where none was found."""
        if code == "backing-off":
            return self._again(closed)
        return next(filter(None, self._in_turn(code, closed)), NOTHING)

    def _again(self, closed: Mapping[str, Sequence[str]]) -> Fix:
        """Try it again at once; and whatever else it takes then."""
        text, change = fix = "try it again at once", (("not_before", "0"),)
        if self._whole(fix) is not None:
            return fix
        rest = explain(changed(self._facts, self._job.id, change), self._job.id, closed)
        return (f"{text}, and {rest.fix}", merged(change, rest.change)) if rest.change else NOTHING

    def _in_turn(self, code: str, closed: Mapping[str, Sequence[str]]) -> Iterator[Fix | None]:
        raised = self._raised() if code in _QUOTAS else NOTHING
        gentle = code != "guarantee-of-others"  # to ask for less is gentler than to take what somebody keeps
        if raised[1] and gentle:
            yield self._whole(raised)
        if code == "place":
            doors = [(f"open {name}", ((f"open:{name}", ",".join(nodes)),)) for name, nodes in closed.items()]
            yield from map(self._whole, doors[:MOST_TRIES])
            yield self._whole((f"open {', '.join(closed)}", tuple(pair for _, change in doors for pair in change)))
        yield self._less(NOTHING, code)
        if raised[1]:
            yield self._whole(raised)
            yield self._less(raised, code)
        yield self._waits(raised)

    def _helps(self, change: Change) -> bool:
        """Does it start then? Every kind of change has its own share of tries."""
        if change not in self._known and self._left > 0:
            self._left -= 1
            self._known[change] = starts(changed(self._facts, self._job.id, change), self._job.id)
        return self._known.get(change, False)

    def _whole(self, fix: Fix) -> Fix | None:
        self._left += 1
        return fix if self._helps(fix[1]) else None

    def _less(self, base: Fix, code: str) -> Fix | None:
        """Ask for less, or stand in another band."""
        before = f"{base[0]}, and " if base[0] else ""
        for way in ways(self._job.shape, whole=False):
            self._left = MOST_TRIES
            found = way.nearest(lambda change: self._helps(merged(base[1], change)))
            if found is not None:
                return f"{before}ask for {found[0]}", merged(base[1], found[1])
        tree, band = self._board.tree, self._job.shape.band
        queues = [tree.queues[row] for row in tree.paths[tree.index[self._job.queue]]]
        top = min(min(queue.top_band, queue.ask_band) for queue in queues)
        # What is best effort is not charged.
        for other in (*range(band + 1, top + 1), *((BEST_EFFORT,) if code == "budget" and band else ())):
            word = "raise" if other > band else "lower"
            fix = f"{before}{word} it to the band {BANDS[other]}", merged(base[1], (("band", str(other)),))
            if self._whole(fix) is not None:
                return fix
        return None

    def _raised(self) -> Fix:
        """What refuses it raised, one quota or budget after the other, until nothing does; nothing where that cannot
        be."""
        board, texts, change = self._board, dict[str, str](), Change()
        before = Counter[tuple[str, str]]()
        for _ in range(_MOST_RAISED):
            _, refusal = board.look(self._job)
            if refusal is None:
                break
            step = _raise(board.tree, self._job.queue, refusal, before[refusal[:2]])
            if step is None:
                break
            before[refusal[:2]] += 1
            key, worth, text = step
            if key.startswith("budget:"):
                worth += int(dict(change).get(key, "0"))
            texts[key] = text(worth)
            change = merged(change, ((key, str(worth)),))
            board = _Asked(changed(self._facts, self._job.id, change))
            if _begins(board, self._job.id):
                self._known[change] = True
                break
        return " and ".join(texts.values()), change

    def _waits(self, base: Fix) -> Fix | None:
        """Wait for the end of as few jobs as it takes: of those that run, the soonest first; of those that come before
        it, too, at last."""
        board, job = self._board, self._job
        ends = sorted((board.profile.end(one.id), one.id) for one in board.running.values())
        before = sorted((one.submitted, one.id) for one in board.lines.jobs.values() if one.id != job.id)
        near = [name for _, name in (*ends, *before)]
        self._left = MOST_TRIES

        def fix(count: int) -> Fix:
            text = f"{near[0]} ends" if count == 1 else f"{count} jobs are over, {near[count - 1]} the last"
            text = f"{base[0]}, and wait until {text}" if base[0] else f"wait until {text}"
            return text, merged(base[1], (("after", ",".join(near[:count])),))

        few, many = 0, 1
        while many < len(near) and not self._helps(fix(many)[1]):
            few, many = many, 4 * many
        many = min(many, len(near))
        if not many or not self._helps(fix(many)[1]):
            return None
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if self._helps(fix(middle)[1]) else (middle, many)
        return fix(many)


def _raise(tree: Tree, queue: str, refusal: Refusal, times: int) -> tuple[str, int, Callable[[int], str]] | None:
    """What to raise to how much, and how that is said. Others may take what is raised: the next time it is more."""
    name, quota, missing = refusal
    if quota.startswith(BUDGET):
        unit = quota.removeprefix(BUDGET)
        said = BUDGETS[unit][0]
        return (
            f"budget:{name}:{unit}",
            missing,
            lambda more: f"raise the budget of {name} by {spendable(unit, more)} {said}",
        )
    row = tree.index[name]
    if queue == name or queue.startswith(name + "/"):
        limit = tree.limit[row][tree.quotas.index(quota)] + (missing << times)
        return f"limit:{name}:{quota}", limit, lambda most: f"raise the limit of {name} to {counted(quota, most)}"
    keeper = tree.queues[row]
    promised = keeper.guarantee.get(quota, 0)
    lent = keeper.lend.get(quota, promised)
    more = min(lent + (missing << times), promised)
    return (
        (f"lend:{name}:{quota}", more, lambda most: f"let {name} lend {counted(quota, most)}") if more > lent else None
    )


# what can never be


def _alone(nodes: Sequence[Node], queues: Sequence[Queue]) -> tuple[World, Tree]:
    """The fleet as it is when nothing runs and nothing is closed."""
    world = World([replace(node, open=True, leaving=NEVER) for node in nodes])
    return world, Tree(queues, world.pools())


def _never(world: World, tree: Tree, job: Job) -> str:
    """Why it could not even run alone; empty when it could."""
    if job.queue not in tree.index or tree.children[tree.index[job.queue]]:
        return f"{job.queue} is no queue that jobs wait in"
    amount = world.quota(job.shape, None, job.shape.least).tolist()
    for row in tree.paths[tree.index[job.queue]]:
        for quota, need, limit in zip(tree.quotas, amount, tree.limit[row], strict=False):
            if need > limit:
                most = counted(quota, limit)
                return f"it needs {counted(quota, need)}, and {tree.names[row]} may never have more than {most}"
    if place(world, job.shape, job.shape.least) is None:
        return "no set of nodes could hold it, even if nothing else ran"
    return ""


def _wrong(shape: Shape) -> str:
    if not shape.roles or any(role.count < 1 for role in shape.roles):
        return "every role of it must have at least one slot, and it at least one role"
    if shape.low > shape.high or shape.low < 0:
        return f"its least width {shape.low} is more than its greatest, {shape.high}"
    if any(_odd(role.ask) for role in shape.roles):
        return f"a slot asks for whole {GPU}s, or for 1 to {WHOLE - 1} thousandths of one, and for nothing below 0"
    return ""


def _odd(ask: Ask) -> bool:
    return (
        bool(ask.gpus and ask.milli) or not 0 <= ask.milli < WHOLE or min((ask.gpus, *dict(ask.amounts).values())) < 0
    )
