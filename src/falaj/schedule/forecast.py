"""How long a job will still run: from the steps it reports, else from the run times of its family.

A family is a template and a shape. Its P25 and P90 are leaned on those of the same person, then of the same pool, while
there are few runs. They are added up as rungs of a ladder of eight steps to a doubling: a very long job does not spoil
a mean, and an estimate changes only when it changes by much.

Without steps, a job is ranked by a level of age that never falls while it runs, and that is LEVEL times higher once the
job has outrun it. Where the run times of a family are similar, the first level is P90: nearly all jobs end before they
give way to younger ones. Where they are not, a job that has run long is likely to run long still: the first level is
P25.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from falaj.schedule.model import CPU, GPU, NEVER, WHOLE, Job, Past, Shape

UNKNOWN_S = 3600
"""What is expected of a job nobody knows anything about, where something must be expected."""
SURE_S = 60
"""A job that ran so long measured its own steps well enough."""
STEP_CHANGE = 8
"""A step time that differs from the last one of its family by less than this part of it changes no estimate."""
FEW = 3
"""So many observations weigh as much as all that lies behind them."""
MANY = 20
LEVEL = 32
"""A level of age is so many times the one before it."""
SIMILAR = 4
"""The run times of a family are similar where P90 is at most so many times P25."""
_KEPT = 100_000
LADDER = sorted({round(2 ** (i / 8)) for i in range(8 * 31)})

Rungs = tuple[int, int]
Cells = tuple[str, ...]
Cell = tuple[int, int, int]
"""Observations, and the sums of their rungs at P25 and P90."""


def pool(shape: Shape) -> str:
    """The pool a shape draws on: the model it names first, any GPU, or cpu."""
    for role in shape.roles:
        if role.ask.gpus or role.ask.milli:
            return role.ask.models[0] if role.ask.models else GPU
    return CPU


def size(shape: Shape, width: int = 0) -> int:
    """What it occupies, in milli-devices, or in milli-cores where it has no devices."""
    devices = cores = 0
    for index, role in enumerate(shape.roles):
        count = width if width and not index else role.count
        devices += count * (role.ask.gpus * WHOLE + role.ask.milli)
        cores += count * dict(role.ask.amounts).get(CPU, 0)
    return devices or cores or WHOLE


def key(shape: Shape) -> str:
    """The shape in short, as `Past.key` has it: its pool, its devices, its width."""
    return f"{pool(shape)}:{size(shape)}x{shape.roles[0].count}"


def who(template: str) -> str:
    """Whose template it is: what stands before its first slash."""
    return template.partition("/")[0]


def quantiles(template: str, shape_key: str, seconds: Iterable[int], step_us: int = 0) -> Past:
    """What the last runs say of the next."""
    ranked = sorted(seconds)
    last = len(ranked) - 1
    return Past(template, shape_key, len(ranked), ranked[last // 4], ranked[(9 * last + 9) // 10], step_us)


@lru_cache(maxsize=100_000)
def cells(template: str, shape_key: str) -> tuple[str, str, str]:
    """What an estimate rests on, by name: the template with its shape; its person in the pool; the pool."""
    pool_cell = "pool:" + shape_key.partition(":")[0]
    return f"own:{template}/{shape_key}", f"who:{who(template)}/{pool_cell}", pool_cell


class Forecast:
    """What is known of runtimes."""

    def __init__(self, past: Iterable[Past] = ()) -> None:
        self._past: dict[tuple[str, str], Past] = {}
        self._owns: dict[tuple[str, str], Cell] = {}
        self._cells: dict[str, Cell] = {}
        self._leaned: dict[str, Rungs | None] = {}
        self._expected: dict[tuple[str, str], tuple[int, int] | None] = {}
        """What was worked out since something that it rests on was learned."""
        for one in past:
            self.learn(one)

    def learn(self, past: Past) -> Cells:
        """Take newer quantiles; gives the cells that say something else than before."""
        own, who_cell, pool_cell = cells(past.template, past.key)
        old = self._past.get((past.template, past.key))
        if old is not None and not past.step_us:
            past = replace(past, step_us=old.step_us)
        self._past[past.template, past.key] = past
        self._owns[past.template, past.key] = _cell(past)
        before = self._mean(pool_cell), self._lean(who_cell, pool_cell)
        for name in (who_cell, pool_cell):
            self._add(name, old, -1)
            self._add(name, past, 1)
        if self._mean(pool_cell) != before[0]:
            self._leaned.clear()
            self._expected.clear()
            return own, who_cell, pool_cell
        self._leaned.pop(who_cell, None)
        if self._lean(who_cell, pool_cell) != before[1]:
            self._expected.clear()
            return own, who_cell
        self._expected.pop((past.template, past.key), None)
        return (own,)

    def learn_step_time(self, job: Job, shape_key: str) -> Cells:
        """Take the step time that a running job measured for jobs of its family; return the cells that changed.

        A family whose first job still runs has a step time and no quantiles: its `Past` counts 0 runs.
        """
        if not job.spots or not job.step_us or _measured_s(job) < SURE_S:
            return ()
        old = self._past.get((job.template, shape_key)) or Past(job.template, shape_key, 0, 0, 0)
        if abs(job.step_us - old.step_us) * STEP_CHANGE < old.step_us:
            return ()
        return self.learn(replace(old, step_us=job.step_us))

    def past(self) -> tuple[Past, ...]:
        """All that was learned, sorted."""
        return tuple(self._past[name] for name in sorted(self._past))

    def expected(self, template: str, shape_key: str) -> tuple[int, int] | None:
        """P25 and P90 of the whole run in seconds; None when nothing like it ever ran."""
        name = template, shape_key
        if name not in self._expected:
            if len(self._expected) >= _KEPT:
                self._expected.clear()
            _, who_cell, pool_cell = cells(template, shape_key)
            rungs = _blend(self._owns.get(name), self._lean(who_cell, pool_cell))
            self._expected[name] = None if rungs is None else (LADDER[rungs[0]], LADDER[max(rungs)])
        return self._expected[name]

    def left(self, job: Job, shape_key: str, now: int) -> tuple[int, int] | None:
        """Seconds that it is ranked by and that it still runs at P90; None when nobody knows.

        With steps it is ranked by what is left of them, else by its level of age. `ran_s` counts the attempts before.
        """
        ran = _ran_s(job, now)
        most = max(job.limit_s - ran, 1) if job.limit_s else NEVER
        steps = self._by_steps(job, shape_key)
        if steps is not None:
            since = max(now - max(job.seen, job.started), 0) if job.spots else 0
            return min(_outrun(steps[0], since) - since, most), min(_outrun(steps[1], since) - since, most)
        run = self.expected(job.template, shape_key)
        return None if run is None else (min(_level(*run, ran), most), min(_outrun(run[1], ran) - ran, most))

    def rank_lasts(self, job: Job, shape_key: str, now: int) -> int:
        """Seconds until a running job without counted steps reaches its next level of age; 0: its rank falls as time
        passes, or nothing like it ever ran."""
        run = self.expected(job.template, shape_key)
        if run is None or self._by_steps(job, shape_key) is not None:
            return 0
        ran = _ran_s(job, now)
        return _level(*run, ran) - ran

    def end(self, job: Job, shape_key: str, now: int) -> int:
        """When it is over at P90; something is always expected, and doubled as often as it was exceeded."""
        left = self.left(job, shape_key, now)
        return now + (self.unknown(job, now) if left is None else left[1])

    def unknown(self, job: Job, now: int) -> int:
        """Seconds that a job is taken to run still, of which nobody knows anything."""
        ran = _ran_s(job, now)
        return max((job.limit_s or _outrun(UNKNOWN_S, ran)) - ran, 1)

    def _by_steps(self, job: Job, shape_key: str) -> tuple[int, int] | None:
        """From when its steps were last counted, by its own speed once that is sure, else by its predecessors'."""
        if not job.steps:
            return None
        own = job.step_us if _measured_s(job) >= SURE_S else 0
        known = self._past.get((job.template, shape_key))
        step = own or (known.step_us if known else 0)
        if not step:
            return None
        left = max((job.steps - job.done) * step // 1_000_000, 1)
        return left, left + left // (10 if own else 4)

    def _lean(self, who_cell: str, pool_cell: str) -> Rungs | None:
        """What a person's jobs of a pool take, leaned on what everybody's do."""
        if who_cell not in self._leaned:
            self._leaned[who_cell] = _blend(self._cells.get(who_cell), self._mean(pool_cell))
        return self._leaned[who_cell]

    def _mean(self, name: str) -> Rungs | None:
        return _blend(self._cells.get(name), None)

    def _add(self, name: str, past: Past | None, sign: int) -> None:
        if past is not None:
            old, more = self._cells.get(name, (0, 0, 0)), _cell(past)
            self._cells[name] = (old[0] + sign * more[0], old[1] + sign * more[1], old[2] + sign * more[2])


def _ran_s(job: Job, now: int) -> int:
    return job.ran_s + (max(now - job.started, 0) if job.spots else 0)


def _measured_s(job: Job) -> int:
    """Seconds that it had run when its steps were last counted, in all attempts."""
    return job.ran_s + max(job.seen - job.started, 0)


def _outrun(whole: int, ran: int) -> int:
    while whole <= ran:
        whole *= 2
    return whole


def _level(low: int, high: int, ran: int) -> int:
    """The age until which a job keeps its rank, and which is its rank."""
    level = low if low * SIMILAR < high else high
    while level <= ran:
        level *= LEVEL
    return level


def _blend(cell: Cell | None, behind: Rungs | None) -> Rungs | None:
    if cell is None or not cell[0]:
        return behind
    count, low, high = cell
    if behind is None:
        return low // count, high // count
    return (low + FEW * behind[0]) // (count + FEW), (high + FEW * behind[1]) // (count + FEW)


def _cell(past: Past) -> Cell:
    count = min(past.count, MANY)
    return count, count * _rung(past.p25), count * _rung(max(past.p90, past.p25))


def _rung(seconds: int) -> int:
    return bisect_right(LADDER, max(seconds, 1)) - 1
