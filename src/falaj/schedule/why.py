"""Why a job waits, in one dominant word, when it will start, and the smallest change that starts it now.

A change is only told after it was made, on a copy, and the scheduler decided again: then it did start.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from falaj.core.errors import NotFound
from falaj.schedule.amount_text import BUDGET_UNITS, describe_amount, format_budget_amount
from falaj.schedule.blocked_jobs import explain_refusal
from falaj.schedule.budget import BUDGET_PREFIX
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.model import (
    BANDS,
    BEST_EFFORT,
    GPU,
    MILLI_PER_UNIT,
    NEVER,
    Job,
    JobShape,
    Node,
    Queue,
    SchedulerSnapshot,
    SlotPlacement,
    SlotRequest,
    WaitReason,
)
from falaj.schedule.placement import find_placement
from falaj.schedule.request_changes import (
    RequestChange,
    SuggestedFix,
    alter_job,
    apply_change,
    find_combined_relaxation,
    iter_relaxations,
    merge_changes,
)
from falaj.schedule.scheduler import Scheduler
from falaj.schedule.state import Refusal

STARTS_NOW_TEXT = "its turn is now: it starts with the next decision"
MAX_TRIES = 24
"""So many changes of one kind are tried."""
_MAX_RAISED = 4
"""So many limits and budgets are raised for one job."""
_MAX_PROVEN = 1000
_QUOTA_CODES = ("limit", "budget", "guarantee-of-others")
NO_FIX: SuggestedFix = ("", ())


class _ProvenRequests(NamedTuple):
    """What could run on a fleet, by queue and shape."""

    facts: tuple[list[Node], list[Any]]
    asked: set[tuple[str, JobShape]]


_PROVEN = [_ProvenRequests(([], []), set())]
"""The last fleet that was asked of."""


def explain_wait(
    source_state: SchedulerSnapshot | Scheduler, job_id: str, closed: Mapping[str, Sequence[str]] | None = None
) -> WaitReason:
    """Why a job waits, when it will start, and what would start it now.

    `closed` are the nodes and clusters that somebody closed and can open again, with the nodes that take work then.
    """
    facts = source_state if isinstance(source_state, SchedulerSnapshot) else source_state.snapshot(source_state.now)
    job = next((candidate for candidate in facts.jobs if candidate.id == job_id), None)
    if job is None:
        raise NotFound(f"there is no job {job_id}", "it is over, or was never submitted", job_id)
    if job.spots:
        state_text = "it is being stopped, and waits again when it is gone" if job.stopping else "it runs"
        return WaitReason("stopping" if job.stopping else "held", state_text, starts=facts.now)
    impossible = find_impossible_reason(facts.nodes, facts.queues, job)
    if impossible is not None:
        return impossible
    probe = _ProbeScheduler(facts)
    probe.cycle(facts.now)
    if job_id in probe.running:
        return WaitReason("capacity", STARTS_NOW_TEXT, starts=facts.now)
    reason = probe.reason(job)
    text, change = _FixSearch(facts, probe, job).best(reason.code, closed or {})
    return replace(reason, fix=text, change=change)


def explain_waits(facts: SchedulerSnapshot, job_ids: Collection[str]) -> dict[str, WaitReason]:
    """Why these jobs wait, without what would help: one decision for all of them, however many are asked about."""
    waiting = [job for job in facts.jobs if job.id in job_ids and not job.spots]
    if not waiting:
        return {}
    empty_fleet = _build_empty_fleet(facts.nodes, facts.queues)
    probe = _ProbeScheduler(facts)
    probe.cycle(facts.now)
    reason_by_job: dict[str, WaitReason] = {}
    for job in waiting:
        problem = _find_shape_problem(job.shape) or _explain_never(*empty_fleet, job)
        if problem:
            reason_by_job[job.id] = WaitReason("impossible", problem)
        elif job.id in probe.running:
            reason_by_job[job.id] = WaitReason("capacity", STARTS_NOW_TEXT, starts=facts.now)
        else:
            reason_by_job[job.id] = probe.reason(job)
    return reason_by_job


def can_start(facts: SchedulerSnapshot, job_id: str) -> bool:
    """Does a job start, given these facts, or is room made for it?"""
    return _is_start_planned(Scheduler(facts), job_id)


def find_impossible_reason(nodes: Sequence[Node], queues: Sequence[Queue], job: Job) -> WaitReason | None:
    """None when a job could run if nothing else did; else why it never can, and the nearest request that could."""
    problem = _find_shape_problem(job.shape)
    if problem:
        return WaitReason("impossible", problem)
    # Most jobs ask for what others asked for before, of the same fleet: that it can be is worth remembering.
    facts = list(nodes), [(queue.name, queue.limit, queue.guarantee, queue.lend) for queue in queues]
    request = job.queue, job.shape
    proven = _PROVEN[0]
    if request in proven.asked and proven.facts == facts:
        return None
    cluster_state, tree = _build_empty_fleet(nodes, queues)
    text = _explain_never(cluster_state, tree, job)
    if not text:
        if proven.facts != facts or len(proven.asked) >= _MAX_PROVEN:
            proven = _PROVEN[0] = _ProvenRequests(facts, set())
        proven.asked.add(request)
        return None

    def would_help(change: RequestChange) -> bool:
        return not _explain_never(cluster_state, tree, alter_job(job, change))

    # First with less of something, then without it, then with less of several things.
    singles = (
        relaxation
        for allow_removal in (False, True)
        for relaxation in iter_relaxations(job.shape, allow_removal=allow_removal)
    )
    fix = next(
        (nearest for relaxation in singles if (nearest := relaxation.nearest(would_help)) is not None), None
    ) or find_combined_relaxation(job, would_help)
    return WaitReason("impossible", text, f"ask for {fix[0]}", fix[1]) if fix else WaitReason("impossible", text)


# reasons


class _ProbeScheduler(Scheduler):
    """A scheduler of one's own, to be asked about its jobs."""

    def __init__(self, facts: SchedulerSnapshot) -> None:
        super().__init__(facts)
        self._admitted_at_cache: dict[tuple[str, int], int] = {}
        """By leaf and shape, when quotas let one more of it in."""

    def reason(self, job: Job) -> WaitReason:
        """The one word that says most."""
        if job.id in self.lines.resting:
            return WaitReason("backing-off", "its cluster refused it; it is tried again later", starts=job.not_before)
        starts_at, _ = self._find_expected_start(job)
        fits, refusal = self.look(job)
        if refusal is not None:
            return replace(
                explain_refusal(job.queue, refusal), starts=max(starts_at, self._find_allowed_at(job, refusal))
            )
        if self.waited_for(job.id):
            return WaitReason("stopping", "others are being stopped to make room for it", starts=starts_at)
        if fits:
            return WaitReason(
                "reservation", "the places it fits in are held for jobs that come before it", starts=starts_at
            )
        lent_ids = self.turns.lend(0)
        room_reason = self._explain_no_room(job)
        self.turns.take_back(lent_ids)
        return replace(room_reason, starts=starts_at)

    def look(self, job: Job) -> tuple[bool, Refusal | None]:
        """Would it fit if nothing were held for others, and the quota or budget that refuses it."""
        refusal = self.tree.refusal(job.queue, self.amount(self.lines.numbers[job.id]))
        if refusal is not None:
            return False, refusal
        lent_ids = self.turns.lend(0)
        choice, refusal = self._find_placement(job)
        self.turns.take_back(lent_ids)
        if choice is None and refusal is None and (spots := self._find_expected_start(job)[1]):
            refusal = self._check_budgets(job, spots)[1]  # who has no room yet may not be able to pay for it, either
        return choice is not None, refusal

    def _find_expected_start(self, job: Job) -> tuple[int, tuple[SlotPlacement, ...]]:
        """When and where there is room for it; never, where that is not known."""
        reservation = self.turns.of.get(job.id)
        if reservation is not None and reservation.spots:
            return reservation.at, reservation.spots
        return self.profile.earliest(job.shape, job.shape.least, self.now) or (NEVER, ())

    def _find_allowed_at(self, job: Job, refusal: Refusal) -> int:
        """When what refuses it lets it in: as what runs ends, or when a budget's window is over."""
        if refusal[1].startswith(BUDGET_PREFIX):
            unit = refusal[1].removeprefix(BUDGET_PREFIX)
            budgets = [budget for budget in self.budgets.of(refusal[0]) if budget.unit == unit]
            # What it costs is what is missing and what is left.
            ends = [budget.ends for budget in budgets if refusal[2] <= budget.spent + budget.held]
            return max(ends) if ends else NEVER
        line_key = job.queue, self.lines.numbers[job.id]
        if line_key not in self._admitted_at_cache:
            self._admitted_at_cache[line_key] = self._find_admitted_at(job.queue, self.amount(line_key[1]))
        return self._admitted_at_cache[line_key]

    def _find_admitted_at(self, queue: str, amount: list[int]) -> int:
        """When quotas let a leaf have so much more, if what runs ends as expected and nobody else takes it."""
        ends = sorted((self.profile.end(entry.id), entry.id) for entry in self.running.values())
        ended_ids = list[str]()
        admitted_at = NEVER
        for end, entry in ends:
            ended_ids.append(entry)
            self.tree.charge(self.running[entry].queue, self._charged_amounts[entry], -1)
            if self.tree.refusal(queue, amount) is None:
                admitted_at = end
                break
        for entry in ended_ids:
            self.tree.charge(self.running[entry].queue, self._charged_amounts[entry])
        return admitted_at

    def _explain_no_room(self, job: Job) -> WaitReason:
        """No place has room for all of it, too little is free, or in too small pieces, or nothing of it is open."""
        shape, staying_nodes = job.shape, self._list_nodes_outlasting(job)
        if (
            shape.required
            and find_placement(self.world, replace(shape, required=False), shape.least, staying_nodes) is not None
        ):
            return WaitReason("topology", f"no {shape.level} has room for all of it, though the whole has")
        request = shape.roles[0].ask
        suitable = self.profile.suiting(request)
        rows = [row for row in np.flatnonzero(suitable.any(axis=1)).tolist() if self.world.nodes[row].open]
        if not rows:
            return WaitReason("place", "every node it could run on is closed, ill or does not answer")
        rows = [row for row in rows if staying_nodes is None or staying_nodes[row]]
        if not rows:
            return WaitReason("place", "every node it could run on goes before it would be over")
        slot_milli = request.gpus * MILLI_PER_UNIT or request.milli
        if not slot_milli:
            return WaitReason("capacity", "too little is free")
        needed_milli, free = shape.least * slot_milli, int(self.world.dev[rows].clip(0)[suitable[rows]].sum())
        verb = "is" if free == MILLI_PER_UNIT else "are"
        if free >= needed_milli:
            text = (
                f"{describe_amount(GPU, free)} {verb} free for its "
                f"{needed_milli / MILLI_PER_UNIT:g}, in pieces that are too small"
            )
            return WaitReason("fragmented", text)
        return WaitReason(
            "capacity", f"it needs {describe_amount(GPU, needed_milli)} where {free / MILLI_PER_UNIT:g} {verb} free"
        )


def _is_start_planned(probe: Scheduler, job_id: str) -> bool:
    plan = probe.cycle(probe.now)
    beneficiaries = [change.wanted_by for change in plan.evictions] + [change.wanted_by for change in plan.resizes]
    return job_id in beneficiaries or any(start.job == job_id for start in plan.starts)


# changes


class _FixSearch:
    """Changes that may start a job, each tried on a copy of the facts."""

    def __init__(self, facts: SchedulerSnapshot, probe: _ProbeScheduler, job: Job) -> None:
        self._facts, self._probe, self._job = facts, probe, job
        self._tried_changes: dict[RequestChange, bool] = {}
        self._tries_left = 0

    def best(self, code: str, closed: Mapping[str, Sequence[str]]) -> SuggestedFix:
        """The smallest change that starts it; nothing where none was found."""
        if code == "backing-off":
            return self._retry_fix(closed)
        return next(filter(None, self._iter_fixes(code, closed)), NO_FIX)

    def _retry_fix(self, closed: Mapping[str, Sequence[str]]) -> SuggestedFix:
        """Try it again at once; and whatever else it takes then."""
        text, change = fix = "try it again at once", (("not_before", "0"),)
        if self._check_fix(fix) is not None:
            return fix
        rest_reason = explain_wait(apply_change(self._facts, self._job.id, change), self._job.id, closed)
        return (
            (f"{text}, and {rest_reason.fix}", merge_changes(change, rest_reason.change))
            if rest_reason.change
            else NO_FIX
        )

    def _iter_fixes(self, code: str, closed: Mapping[str, Sequence[str]]) -> Iterator[SuggestedFix | None]:
        raise_fix = self._raise_quotas() if code in _QUOTA_CODES else NO_FIX
        ask_less_first = code != "guarantee-of-others"  # to ask for less is gentler than to take what somebody keeps
        if raise_fix[1] and ask_less_first:
            yield self._check_fix(raise_fix)
        if code == "place":
            open_fixes = [(f"open {name}", ((f"open:{name}", ",".join(nodes)),)) for name, nodes in closed.items()]
            yield from map(self._check_fix, open_fixes[:MAX_TRIES])
            yield self._check_fix(
                (f"open {', '.join(closed)}", tuple(pair for _, change in open_fixes for pair in change))
            )
        yield self._relax_request(NO_FIX, code)
        if raise_fix[1]:
            yield self._check_fix(raise_fix)
            yield self._relax_request(raise_fix, code)
        yield self._wait_for_ends(raise_fix)

    def _is_helpful(self, change: RequestChange) -> bool:
        """Does it start then? Every kind of change has its own share of tries."""
        if change not in self._tried_changes and self._tries_left > 0:
            self._tries_left -= 1
            self._tried_changes[change] = can_start(apply_change(self._facts, self._job.id, change), self._job.id)
        return self._tried_changes.get(change, False)

    def _check_fix(self, fix: SuggestedFix) -> SuggestedFix | None:
        self._tries_left += 1
        return fix if self._is_helpful(fix[1]) else None

    def _relax_request(self, base: SuggestedFix, code: str) -> SuggestedFix | None:
        """Ask for less, or stand in another band."""
        prefix = f"{base[0]}, and " if base[0] else ""
        for relaxation in iter_relaxations(self._job.shape, allow_removal=False):
            self._tries_left = MAX_TRIES
            nearest = relaxation.nearest(lambda change: self._is_helpful(merge_changes(base[1], change)))
            if nearest is not None:
                return f"{prefix}ask for {nearest[0]}", merge_changes(base[1], nearest[1])
        tree, band = self._probe.tree, self._job.shape.band
        queues = [tree.queues[row] for row in tree.paths[tree.index[self._job.queue]]]
        top = min(min(queue.top_band, queue.ask_band) for queue in queues)
        # What is best effort is not charged.
        for other_band in (*range(band + 1, top + 1), *((BEST_EFFORT,) if code == "budget" and band else ())):
            verb = "raise" if other_band > band else "lower"
            fix = (
                f"{prefix}{verb} it to the band {BANDS[other_band]}",
                merge_changes(base[1], (("band", str(other_band)),)),
            )
            if self._check_fix(fix) is not None:
                return fix
        return None

    def _raise_quotas(self) -> SuggestedFix:
        """What refuses it raised, one quota or budget after the other, until nothing does; nothing where that cannot
        be."""
        probe, texts, change = self._probe, dict[str, str](), RequestChange()
        raise_counts = Counter[tuple[str, str]]()
        for _ in range(_MAX_RAISED):
            _, refusal = probe.look(self._job)
            if refusal is None:
                break
            step = _raise_step(probe.tree, self._job.queue, refusal, raise_counts[refusal[:2]])
            if step is None:
                break
            raise_counts[refusal[:2]] += 1
            key, value, text = step
            if key.startswith("budget:"):
                value += int(dict(change).get(key, "0"))
            texts[key] = text(value)
            change = merge_changes(change, ((key, str(value)),))
            probe = _ProbeScheduler(apply_change(self._facts, self._job.id, change))
            if _is_start_planned(probe, self._job.id):
                self._tried_changes[change] = True
                break
        return " and ".join(texts.values()), change

    def _wait_for_ends(self, base: SuggestedFix) -> SuggestedFix | None:
        """Wait for the end of as few jobs as it takes: of those that run, the soonest first; of those that come before
        it, too, at last."""
        probe, job = self._probe, self._job
        ends = sorted((probe.profile.end(pending_job.id), pending_job.id) for pending_job in probe.running.values())
        earlier = sorted(
            (pending_job.submitted, pending_job.id)
            for pending_job in probe.lines.jobs.values()
            if pending_job.id != job.id
        )
        job_ids = [name for _, name in (*ends, *earlier)]
        self._tries_left = MAX_TRIES

        def wait_fix(count: int) -> SuggestedFix:
            text = f"{job_ids[0]} ends" if count == 1 else f"{count} jobs are over, {job_ids[count - 1]} the last"
            text = f"{base[0]}, and wait until {text}" if base[0] else f"wait until {text}"
            return text, merge_changes(base[1], (("after", ",".join(job_ids[:count])),))

        low, high = 0, 1
        while high < len(job_ids) and not self._is_helpful(wait_fix(high)[1]):
            low, high = high, 4 * high
        high = min(high, len(job_ids))
        if not high or not self._is_helpful(wait_fix(high)[1]):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_helpful(wait_fix(middle)[1]) else (middle, high)
        return wait_fix(high)


def _raise_step(
    tree: ShareTree, queue: str, refusal: Refusal, times_raised: int
) -> tuple[str, int, Callable[[int], str]] | None:
    """What to raise to how much, and how that is said. Others may take what is raised: the next time it is more."""
    name, quota, missing = refusal
    if quota.startswith(BUDGET_PREFIX):
        unit = quota.removeprefix(BUDGET_PREFIX)
        unit_text = BUDGET_UNITS[unit][0]
        return (
            f"budget:{name}:{unit}",
            missing,
            lambda raised_by: f"raise the budget of {name} by {format_budget_amount(unit, raised_by)} {unit_text}",
        )
    row = tree.index[name]
    if queue == name or queue.startswith(name + "/"):
        limit = tree.limit[row][tree.quotas.index(quota)] + (missing << times_raised)
        return (
            f"limit:{name}:{quota}",
            limit,
            lambda raised_to: f"raise the limit of {name} to {describe_amount(quota, raised_to)}",
        )
    keeping_queue = tree.queues[row]
    promised = keeping_queue.guarantee.get(quota, 0)
    lent = keeping_queue.lend.get(quota, promised)
    raised_by = min(lent + (missing << times_raised), promised)
    return (
        (f"lend:{name}:{quota}", raised_by, lambda raised_to: f"let {name} lend {describe_amount(quota, raised_to)}")
        if raised_by > lent
        else None
    )


# what can never be


def _build_empty_fleet(nodes: Sequence[Node], queues: Sequence[Queue]) -> tuple[ClusterState, ShareTree]:
    """The fleet as it is when nothing runs and nothing is closed."""
    cluster_state = ClusterState([replace(each_node, open=True, leaving=NEVER) for each_node in nodes])
    return cluster_state, ShareTree(queues, cluster_state.pools())


def _explain_never(cluster_state: ClusterState, tree: ShareTree, job: Job) -> str:
    """Why it could not even run alone; empty when it could."""
    if job.queue not in tree.index or tree.children[tree.index[job.queue]]:
        return f"{job.queue} is no queue that jobs wait in"
    amount = cluster_state.quota(job.shape, None, job.shape.least).tolist()
    for row in tree.paths[tree.index[job.queue]]:
        for quota, needed, limit in zip(tree.quotas, amount, tree.limit[row], strict=False):
            if needed > limit:
                limit_text = describe_amount(quota, limit)
                return (
                    f"it needs {describe_amount(quota, needed)}, and {tree.names[row]} "
                    f"may never have more than {limit_text}"
                )
    if find_placement(cluster_state, job.shape, job.shape.least) is None:
        return "no set of nodes could hold it, even if nothing else ran"
    return ""


def _find_shape_problem(shape: JobShape) -> str:
    if not shape.roles or any(role.count < 1 for role in shape.roles):
        return "every role of it must have at least one slot, and it at least one role"
    if shape.low > shape.high or shape.low < 0:
        return f"its least width {shape.low} is more than its greatest, {shape.high}"
    if any(_is_malformed(role.ask) for role in shape.roles):
        return (
            f"a slot asks for whole {GPU}s, or for 1 to {MILLI_PER_UNIT - 1} "
            "thousandths of one, and for nothing below 0"
        )
    return ""


def _is_malformed(request: SlotRequest) -> bool:
    return (
        bool(request.gpus and request.milli)
        or not 0 <= request.milli < MILLI_PER_UNIT
        or min((request.gpus, *dict(request.amounts).values())) < 0
    )
