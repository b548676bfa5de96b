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

from falaj.schedule.model import CPU, GPU, MILLI_PER_UNIT, NEVER, Job, JobShape, RuntimeQuantiles

UNKNOWN_RUNTIME_S = 3600
"""What is expected of a job nobody knows anything about, where something must be expected."""
STEP_TIME_SURE_S = 60
"""A job that ran so long measured its own steps well enough."""
STEP_CHANGE = 8
"""A step time that differs from the last one of its family by less than this part of it changes no estimate."""
PRIOR_WEIGHT = 3
"""So many observations weigh as much as all that lies behind them."""
MAX_OBSERVATIONS = 20
LEVEL = 32
"""A level of age is so many times the one before it."""
SIMILAR = 4
"""The run times of a family are similar where P90 is at most so many times P25."""
_MAX_CACHED = 100_000
RUNTIME_LADDER = sorted({round(2 ** (i / 8)) for i in range(8 * 31)})

RungPair = tuple[int, int]
EvidenceKeys = tuple[str, ...]
EvidenceSums = tuple[int, int, int]
"""Observations, and the sums of their rungs at P25 and P90."""


def get_pool(shape: JobShape) -> str:
    """The pool a shape draws on: the model it names first, any GPU, or cpu."""
    for role in shape.roles:
        if role.ask.gpus or role.ask.milli:
            return role.ask.models[0] if role.ask.models else GPU
    return CPU


def compute_shape_size(shape: JobShape, width: int = 0) -> int:
    """What it occupies, in milli-devices, or in milli-cores where it has no devices."""
    devices = cores = 0
    for index, role in enumerate(shape.roles):
        count = width if width and not index else role.count
        devices += count * (role.ask.gpus * MILLI_PER_UNIT + role.ask.milli)
        cores += count * dict(role.ask.amounts).get(CPU, 0)
    return devices or cores or MILLI_PER_UNIT


def to_shape_key(shape: JobShape) -> str:
    """The shape in short, as `Past.key` has it: its pool, its devices, its width."""
    return f"{get_pool(shape)}:{compute_shape_size(shape)}x{shape.roles[0].count}"


def get_template_owner(template: str) -> str:
    """Whose template it is: what stands before its first slash."""
    return template.partition("/")[0]


def compute_quantiles(template: str, shape_key: str, seconds: Iterable[int], step_us: int = 0) -> RuntimeQuantiles:
    """What the last runs say of the next."""
    ranked = sorted(seconds)
    last = len(ranked) - 1
    return RuntimeQuantiles(template, shape_key, len(ranked), ranked[last // 4], ranked[(9 * last + 9) // 10], step_us)


@lru_cache(maxsize=100_000)
def build_evidence_keys(template: str, shape_key: str) -> tuple[str, str, str]:
    """What an estimate rests on, by name: the template with its shape; its person in the pool; the pool."""
    pool_key = "pool:" + shape_key.partition(":")[0]
    return f"own:{template}/{shape_key}", f"who:{get_template_owner(template)}/{pool_key}", pool_key


class RuntimeForecast:
    """What is known of runtimes."""

    def __init__(self, past: Iterable[RuntimeQuantiles] = ()) -> None:
        self._quantiles: dict[tuple[str, str], RuntimeQuantiles] = {}
        self._evidence_by_template: dict[tuple[str, str], EvidenceSums] = {}
        self._evidence_by_key: dict[str, EvidenceSums] = {}
        self._pooled_cache: dict[str, RungPair | None] = {}
        self._expected_cache: dict[tuple[str, str], tuple[int, int] | None] = {}
        """What was worked out since something that it rests on was learned."""
        for entry in past:
            self.learn(entry)

    def learn(self, quantiles: RuntimeQuantiles) -> EvidenceKeys:
        """Take newer quantiles; gives the cells that say something else than before."""
        own_key, owner_key, pool_key = build_evidence_keys(quantiles.template, quantiles.key)
        previous = self._quantiles.get((quantiles.template, quantiles.key))
        if previous is not None and not quantiles.step_us:
            quantiles = replace(quantiles, step_us=previous.step_us)
        self._quantiles[quantiles.template, quantiles.key] = quantiles
        self._evidence_by_template[quantiles.template, quantiles.key] = _build_evidence(quantiles)
        rungs_before = self._get_mean_rungs(pool_key), self._get_pooled_rungs(owner_key, pool_key)
        for evidence_key in (owner_key, pool_key):
            self._add_evidence(evidence_key, previous, -1)
            self._add_evidence(evidence_key, quantiles, 1)
        if self._get_mean_rungs(pool_key) != rungs_before[0]:
            self._pooled_cache.clear()
            self._expected_cache.clear()
            return own_key, owner_key, pool_key
        self._pooled_cache.pop(owner_key, None)
        if self._get_pooled_rungs(owner_key, pool_key) != rungs_before[1]:
            self._expected_cache.clear()
            return own_key, owner_key
        self._expected_cache.pop((quantiles.template, quantiles.key), None)
        return (own_key,)

    def learn_step_time(self, job: Job, shape_key: str) -> EvidenceKeys:
        """Take the step time that a running job measured for jobs of its family; return the cells that changed.

        A family whose first job still runs has a step time and no quantiles: its `Past` counts 0 runs.
        """
        if not job.spots or not job.step_us or _measured_s(job) < STEP_TIME_SURE_S:
            return ()
        old = self._quantiles.get((job.template, shape_key)) or RuntimeQuantiles(job.template, shape_key, 0, 0, 0)
        if abs(job.step_us - old.step_us) * STEP_CHANGE < old.step_us:
            return ()
        return self.learn(replace(old, step_us=job.step_us))

    def past(self) -> tuple[RuntimeQuantiles, ...]:
        """All that was learned, sorted."""
        return tuple(self._quantiles[name] for name in sorted(self._quantiles))

    def expected(self, template: str, shape_key: str) -> tuple[int, int] | None:
        """P25 and P90 of the whole run in seconds; None when nothing like it ever ran."""
        name = template, shape_key
        if name not in self._expected_cache:
            if len(self._expected_cache) >= _MAX_CACHED:
                self._expected_cache.clear()
            _, owner_key, pool_key = build_evidence_keys(template, shape_key)
            rungs = _blend_rungs(self._evidence_by_template.get(name), self._get_pooled_rungs(owner_key, pool_key))
            self._expected_cache[name] = (
                None if rungs is None else (RUNTIME_LADDER[rungs[0]], RUNTIME_LADDER[max(rungs)])
            )
        return self._expected_cache[name]

    def left(self, job: Job, shape_key: str, now: int) -> tuple[int, int] | None:
        """Seconds that it is ranked by and that it still runs at P90; None when nobody knows.

        With steps it is ranked by what is left of them, else by its level of age. `ran_s` counts the attempts before.
        """
        ran_s = _ran_s(job, now)
        max_left_s = max(job.limit_s - ran_s, 1) if job.limit_s else NEVER
        by_steps = self._estimate_by_steps(job, shape_key)
        if by_steps is not None:
            elapsed_s = max(now - max(job.seen, job.started), 0) if job.spots else 0
            return min(_double_past(by_steps[0], elapsed_s) - elapsed_s, max_left_s), min(
                _double_past(by_steps[1], elapsed_s) - elapsed_s, max_left_s
            )
        run = self.expected(job.template, shape_key)
        return (
            None
            if run is None
            else (min(_level(*run, ran_s), max_left_s), min(_double_past(run[1], ran_s) - ran_s, max_left_s))
        )

    def rank_lasts(self, job: Job, shape_key: str, now: int) -> int:
        """Seconds until a running job without counted steps reaches its next level of age; 0: its rank falls as time
        passes, or nothing like it ever ran."""
        run = self.expected(job.template, shape_key)
        if run is None or self._estimate_by_steps(job, shape_key) is not None:
            return 0
        ran = _ran_s(job, now)
        return _level(*run, ran) - ran

    def end(self, job: Job, shape_key: str, now: int) -> int:
        """When it is over at P90; something is always expected, and doubled as often as it was exceeded."""
        left_s = self.left(job, shape_key, now)
        return now + (self.unknown(job, now) if left_s is None else left_s[1])

    def unknown(self, job: Job, now: int) -> int:
        """Seconds that a job is taken to run still, of which nobody knows anything."""
        ran_s = _ran_s(job, now)
        return max((job.limit_s or _double_past(UNKNOWN_RUNTIME_S, ran_s)) - ran_s, 1)

    def _estimate_by_steps(self, job: Job, shape_key: str) -> tuple[int, int] | None:
        """From when its steps were last counted, by its own speed once that is sure, else by its predecessors'."""
        if not job.steps:
            return None
        own_step_us = job.step_us if _measured_s(job) >= STEP_TIME_SURE_S else 0
        quantiles = self._quantiles.get((job.template, shape_key))
        used_step_us = own_step_us or (quantiles.step_us if quantiles else 0)
        if not used_step_us:
            return None
        left_s = max((job.steps - job.done) * used_step_us // 1_000_000, 1)
        return left_s, left_s + left_s // (10 if own_step_us else 4)

    def _get_pooled_rungs(self, owner_key: str, pool_key: str) -> RungPair | None:
        """What a person's jobs of a pool take, leaned on what everybody's do."""
        if owner_key not in self._pooled_cache:
            self._pooled_cache[owner_key] = _blend_rungs(
                self._evidence_by_key.get(owner_key), self._get_mean_rungs(pool_key)
            )
        return self._pooled_cache[owner_key]

    def _get_mean_rungs(self, name: str) -> RungPair | None:
        return _blend_rungs(self._evidence_by_key.get(name), None)

    def _add_evidence(self, name: str, past: RuntimeQuantiles | None, sign: int) -> None:
        if past is not None:
            previous, added = self._evidence_by_key.get(name, (0, 0, 0)), _build_evidence(past)
            self._evidence_by_key[name] = (
                previous[0] + sign * added[0],
                previous[1] + sign * added[1],
                previous[2] + sign * added[2],
            )


def _ran_s(job: Job, now: int) -> int:
    return job.ran_s + (max(now - job.started, 0) if job.spots else 0)


def _measured_s(job: Job) -> int:
    """Seconds that it had run when its steps were last counted, in all attempts."""
    return job.ran_s + max(job.seen - job.started, 0)


def _double_past(total_s: int, ran_s: int) -> int:
    while total_s <= ran_s:
        total_s *= 2
    return total_s


def _level(low: int, high: int, ran: int) -> int:
    """The age until which a job keeps its rank, and which is its rank."""
    level = low if low * SIMILAR < high else high
    while level <= ran:
        level *= LEVEL
    return level


def _blend_rungs(evidence: EvidenceSums | None, prior: RungPair | None) -> RungPair | None:
    if evidence is None or not evidence[0]:
        return prior
    count, low, high = evidence
    if prior is None:
        return low // count, high // count
    return (low + PRIOR_WEIGHT * prior[0]) // (count + PRIOR_WEIGHT), (high + PRIOR_WEIGHT * prior[1]) // (
        count + PRIOR_WEIGHT
    )


def _build_evidence(past: RuntimeQuantiles) -> EvidenceSums:
    count = min(past.count, MAX_OBSERVATIONS)
    return count, count * _find_rung(past.p25), count * _find_rung(max(past.p90, past.p25))


def _find_rung(seconds: int) -> int:
    return bisect_right(RUNTIME_LADDER, max(seconds, 1)) - 1
