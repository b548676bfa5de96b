"""Why a job waits, in one dominant word, when it will start, and the smallest change that starts it now.

A change is only told after it was made, on a copy, and the scheduler decided again: then it did start.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from falaj.core.errors import NotFound
from falaj.schedule.blocked import BUDGET, refused
from falaj.schedule.decide import Scheduler
from falaj.schedule.model import BANDS, GPU, NEVER, WHOLE, Ask, Job, Node, Queue, Reason, Role, Shape, Snapshot
from falaj.schedule.place import place
from falaj.schedule.share import Tree
from falaj.schedule.world import World

Change = tuple[tuple[str, str], ...]
Fix = tuple[str, Change]
SOON = "its turn is now: it starts with the next decision"
MOST_TRIES = 24
"""So many changes are tried before none is told."""
_MOST_PROVEN = 1000


class _Proven(NamedTuple):
    """What could run on a fleet, by queue and shape."""

    facts: tuple[list[Node], list[Any]]
    asked: set[tuple[str, Shape]]


_PROVEN = [_Proven(([], []), set())]
"""The last fleet that was asked of."""


def explain(source: Snapshot | Scheduler, job_id: str) -> Reason:
    """Why a job waits, when it will start, and what would start it now."""
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
    board = Scheduler(facts)
    board.cycle(facts.now)
    if job_id in board.running:
        return Reason("capacity", SOON, starts=facts.now)
    reason = _reason(board, job)
    for text, change in _fixes(board, job, reason.code)[:MOST_TRIES]:
        if starts(changed(facts, job_id, change), job_id):
            return replace(reason, fix=text, change=change)
    return reason


def reasons(facts: Snapshot, job_ids: Collection[str]) -> dict[str, Reason]:
    """Why these jobs wait, without what would help: one decision for all of them, however many are asked about."""
    waiting = [job for job in facts.jobs if job.id in job_ids and not job.spots]
    if not waiting:
        return {}
    alone = _alone(facts.nodes, facts.queues)
    board = Scheduler(facts)
    board.cycle(facts.now)
    found: dict[str, Reason] = {}
    for job in waiting:
        never = _wrong(job.shape) or _never(*alone, job)
        if never:
            found[job.id] = Reason("impossible", never)
        elif job.id in board.running:
            found[job.id] = Reason("capacity", SOON, starts=facts.now)
        else:
            found[job.id] = _reason(board, job)
    return found


def starts(facts: Snapshot, job_id: str) -> bool:
    """Does a job start, given these facts, or is room made for it?"""
    plan = Scheduler(facts).cycle(facts.now)
    wanted = [one.wanted_by for one in plan.evictions] + [one.wanted_by for one in plan.resizes]
    return job_id in wanted or any(start.job == job_id for start in plan.starts)


def changed(facts: Snapshot, job_id: str, change: Change) -> Snapshot:
    """The facts after a change that a reason told of."""
    for name, value in change:
        kind, _, rest = name.partition(":")
        if kind == "limit":
            queue, _, quota = rest.partition(":")
            queues = [
                replace(one, limit={**one.limit, quota: int(value)}) if one.name == queue else one
                for one in facts.queues
            ]
            facts = replace(facts, queues=tuple(queues))
        elif kind == "budget":
            facts = replace(facts, queues=tuple(_richer(one, rest, int(value)) for one in facts.queues))
        elif kind == "after":
            gone = set(value.split(","))
            facts = replace(facts, jobs=tuple(one for one in facts.jobs if one.id not in gone))
        else:
            jobs = [_altered(one, kind, value) if one.id == job_id else one for one in facts.jobs]
            facts = replace(facts, jobs=tuple(jobs))
    return facts


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
    for fix, change in _narrower(job):
        if not _never(world, tree, _with(job, change)):
            return Reason("impossible", text, f"ask for {fix}", change)
    return Reason("impossible", text)


# reasons


def _reason(board: Scheduler, job: Job) -> Reason:
    """The one word that says most."""
    number, shape = board.lines.numbers[job.id], job.shape
    if job.id in board.lines.resting:
        return Reason("backing-off", "its cluster refused it; it is tried again later", starts=job.not_before)
    refusal = board.parked.get(job.queue, {}).get(number) or board.tree.refusal(job.queue, board.amount(number))
    if refusal is not None:
        return _refused(board, job, refusal)
    if board.waited_for(job.id):
        return Reason("stopping", "others are being stopped to make room for it", starts=board.turns.of[job.id].at)
    at = board.turns.of[job.id].at if job.id in board.turns.of else _earliest(board, job)
    lent = board.turns.lend(0)
    fits, loose = (
        place(board.world, shape, shape.least),
        place(board.world, replace(shape, required=False), shape.least),
    )
    room = _room(board, shape)
    board.turns.take_back(lent)
    if fits is not None:
        return Reason("reservation", "the places it fits in are held for jobs that come before it", starts=at)
    if shape.required and loose is not None:
        return Reason("topology", f"no {shape.level} has room for all of it, though the whole has", starts=at)
    return replace(room, starts=at)


def _refused(board: Scheduler, job: Job, refusal: tuple[str, str, int]) -> Reason:
    below = refusal[0]
    ends = sorted(board.profile.end(one.id) for one in board.running.values() if one.queue.startswith(below))
    return replace(refused(job.queue, refusal), starts=ends[0] if ends else NEVER)


def _earliest(board: Scheduler, job: Job) -> int:
    turn = board.profile.earliest(job.shape, job.shape.least, board.now)
    return turn[0] if turn else NEVER


def _room(board: Scheduler, shape: Shape) -> Reason:
    """Too little is free, or enough in too small pieces, or nothing of the kind is open."""
    ask = shape.roles[0].ask
    suits = board.profile.suiting(ask)
    rows = [row for row in np.flatnonzero(suits.any(axis=1)).tolist() if board.world.nodes[row].open]
    if not rows:
        return Reason("place", "every node it could run on is closed or ill")
    each = ask.gpus * WHOLE or ask.milli
    need = shape.least * each
    free = int(board.world.dev[rows].clip(0)[suits[rows]].sum()) if each else 0
    if each and free >= need:
        return Reason("fragmented", f"{free} milli-GPU are free for its {need}, in pieces that are too small")
    return Reason("capacity", f"it needs {need} milli-GPU where {free} are free" if each else "too little is free")


# changes


def _fixes(board: Scheduler, job: Job, code: str) -> list[Fix]:
    """Changes that may start it, the smallest first."""
    if code == "backing-off":
        return [("try it again at once", (("not_before", "0"),))]
    found: list[Fix] = []
    if code in ("limit", "budget", "guarantee-of-others"):
        found += _quotas(board, job)
    found += [(f"ask for {text}", change) for text, change in _narrower(job) if code != "budget"]
    for band in range(job.shape.band + 1, len(BANDS)):
        found.append((f"raise it to the band {BANDS[band]}", (("band", str(band)),)))
    return found[: MOST_TRIES - 9] + list(_waits(board, job))


def _quotas(board: Scheduler, job: Job) -> Iterator[Fix]:
    number = board.lines.numbers[job.id]
    refusal = board.parked.get(job.queue, {}).get(number) or board.tree.refusal(job.queue, board.amount(number))
    if refusal is None:
        return
    queue, quota, missing = refusal
    if quota.startswith(BUDGET):
        unit = quota.removeprefix(BUDGET)
        yield f"raise the budget of {queue} by {missing} {unit}", ((f"budget:{queue}:{unit}", str(missing)),)
    elif job.queue == queue or job.queue.startswith(queue + "/"):
        limit = board.tree.limit[board.tree.index[queue]][board.tree.quotas.index(quota)]
        for more in (missing, 2 * missing, 4 * missing, 16 * missing):
            yield (
                f"raise the limit of {queue} to {limit + more} {quota}",
                ((f"limit:{queue}:{quota}", str(limit + more)),),
            )


def _waits(board: Scheduler, job: Job) -> Iterator[Fix]:
    """Wait for the end of one job, or of as many as it takes; of those that come before it too, at last."""
    ends = sorted((board.profile.end(one.id), one.id) for one in board.running.values())
    before = sorted((one.submitted, one.id) for one in board.lines.jobs.values() if one.id != job.id)
    near, count = [name for _, name in (*ends, *before)], 1
    while count < 4 * len(near):
        some = near[:count]
        text = f"{some[0]} ends" if len(some) == 1 else f"{len(some)} jobs are over, {some[-1]} the last"
        yield f"wait until {text}", (("after", ",".join(some)),)
        count *= 4


def _narrower(job: Job) -> Iterator[Fix]:
    """Smaller or freer requests, the nearest first."""
    first = job.shape.roles[0]
    if job.shape.required:
        yield f"any {job.shape.level} instead of one", (("level", ""),)
    for width in _steps(job.shape.least):
        yield f"{width} of {job.shape.least} {first.name} slots", (("width", str(width)),)
    for gpus in _steps(first.ask.gpus):
        yield f"{gpus} of {first.ask.gpus} GPUs a slot", (("gpus", str(gpus)),)
    if first.ask.models:
        yield "any model of GPU", (("models", ""),)
    for name, amount in first.ask.amounts:
        for less in _steps(amount):
            yield f"{less} {name} a slot", ((name, str(less)),)


def _steps(most: int) -> list[int]:
    """Whole numbers below: all of them when they are few, halves when not."""
    if most <= 16:
        return list(range(most - 1, 0, -1))
    return [most * part // 8 for part in range(7, 0, -1)]


def _with(job: Job, change: Change) -> Job:
    for kind, value in change:
        job = _altered(job, kind, value)
    return job


def _altered(job: Job, kind: str, value: str) -> Job:
    if kind == "not_before":
        return replace(job, not_before=int(value))
    shape, first = job.shape, job.shape.roles[0]
    shapes: dict[str, Callable[[], Shape]] = {
        "width": lambda: replace(_first(shape, replace(first, count=int(value))), low=0, high=0),
        "level": lambda: replace(shape, level=value, required=False),
        "band": lambda: replace(shape, band=int(value)),
        "gpus": lambda: _first(shape, replace(first, ask=replace(first.ask, gpus=int(value)))),
        "models": lambda: _first(shape, replace(first, ask=replace(first.ask, models=()))),
    }
    amounts = tuple((name, int(value) if name == kind else amount) for name, amount in first.ask.amounts)
    other = shapes.get(kind, lambda: _first(shape, replace(first, ask=replace(first.ask, amounts=amounts))))
    return replace(job, shape=other())


def _first(shape: Shape, role: Role) -> Shape:
    return replace(shape, roles=(role, *shape.roles[1:]))


def _richer(queue: Queue, which: str, more: int) -> Queue:
    name, _, unit = which.partition(":")
    if queue.name != name:
        return queue
    budgets = (replace(one, amount=one.amount + more) if one.unit == unit else one for one in queue.budgets)
    return replace(queue, budgets=tuple(budgets))


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
                return f"it needs {need} {quota}, and {tree.names[row]} may never have more than {limit}"
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
