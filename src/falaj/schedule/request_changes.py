"""Changes that may start a job: what they are called, the facts after them, and the ways in which it can ask for less.

A change is pairs for machines: (`width`, `2`), (`gpus@worker`, `1`) of another role than the first, (`band`, `3`),
(`limit:root/bank:gpu`, `6000`), (`lend:root/bank:gpu`, `2000`), (`budget:root/bank:gpu_s`, how much more),
(`open:hall`, the nodes of a cluster or the one node that take work then), (`after`, jobs that are over).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from falaj.core.data import dataclass
from falaj.schedule.amount_text import describe_amount
from falaj.schedule.model import CPU, GPU, MEMORY, Job, JobShape, Node, Queue, Role, SchedulerSnapshot, SlotRequest

RequestChange = tuple[tuple[str, str], ...]
SuggestedFix = tuple[str, RequestChange]
_MEMORY = "device_mib"


class StepRange(NamedTuple):
    """Whole numbers, small ones fine and large ones coarse; never as a list, for they may be many."""

    fine: range
    coarse: range = range(0)

    @property
    def many(self) -> int:
        """How many there are."""
        return len(self.fine) + len(self.coarse)

    def at(self, index: int) -> int:
        """One of them."""
        return self.fine[index] if index < len(self.fine) else self.coarse[index - len(self.fine)]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One thing of which a request could have less."""

    steps: StepRange
    """What it may be instead, the least first."""
    fix: Callable[[int], SuggestedFix]

    def nearest(self, is_helpful: Callable[[RequestChange], bool]) -> SuggestedFix | None:
        """The most that helps, if the least does."""
        low, high = 0, self.steps.many - 1
        if high < 0 or not is_helpful(self.fix(self.steps.at(0))[1]):
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if is_helpful(self.fix(self.steps.at(middle))[1]):
                low = middle
            else:
                high = middle - 1
        return self.fix(self.steps.at(low))


def iter_relaxations(shape: JobShape, *, allow_removal: bool) -> Iterator[Relaxation]:
    """How a request can be less or freer, the gentlest first; `allow_removal`: also without a thing that it asks
    for."""
    if shape.required:
        yield _drop_demand(f"any {shape.level} instead of one", "level")
    for number, role in enumerate(shape.roles):
        yield from _iter_role_relaxations(shape, number, role, allow_removal)
    labels = shape.roles[0].ask.labels if allow_removal else ()
    for name, value in labels:
        yield _drop_demand(f"no label {name}={value} of its nodes", f"label:{name}")
    if len(labels) > 1:
        yield _drop_demand("no labels of its nodes", "label:")


def find_combined_relaxation(job: Job, is_helpful: Callable[[RequestChange], bool]) -> SuggestedFix | None:
    """The nearest request that helps where no single change of it does: all it can do without, then all it may keep."""
    remaining, change = list(iter_relaxations(job.shape, allow_removal=True)), RequestChange()
    taken = list[Relaxation]()
    while remaining and not is_helpful(change):
        taken.append(remaining.pop(0))
        change = merge_changes(change, taken[-1].fix(taken[-1].steps.at(0))[1]) if taken[-1].steps.many else change
    if not is_helpful(change):
        return None
    texts = list[str]()
    for relaxation in [candidate for candidate in taken if candidate.steps.many]:
        own_names = {name for name, _ in relaxation.fix(relaxation.steps.at(0))[1]}
        other_changes = tuple(pair for pair in change if pair[0] not in own_names)
        if is_helpful(other_changes):
            change = other_changes
            continue
        smaller_fix = relaxation.nearest(partial(_helps_with, is_helpful, other_changes))
        if smaller_fix is not None:
            texts, change = [*texts, smaller_fix[0]], merge_changes(other_changes, smaller_fix[1])
    return " and ".join(texts), change


def merge_changes(change: RequestChange, overriding: RequestChange) -> RequestChange:
    """Both, the second over the first."""
    return tuple((dict(change) | dict(overriding)).items())


def _helps_with(is_helpful: Callable[[RequestChange], bool], base: RequestChange, overriding: RequestChange) -> bool:
    return is_helpful(merge_changes(base, overriding))


def apply_change(facts: SchedulerSnapshot, job_id: str, change: RequestChange) -> SchedulerSnapshot:
    """The facts after a change that a reason told of."""
    for name, value in change:
        kind, _, target = name.partition(":")
        if kind in ("limit", "lend", "budget"):
            queues = tuple(_alter_queue(item, kind, target, int(value)) for item in facts.queues)
            facts = replace(facts, queues=queues)
        elif kind == "open":
            facts = replace(facts, nodes=tuple(_open_node(item, value.split(",")) for item in facts.nodes))
        elif kind == "after":
            ended_ids = set(value.split(","))
            facts = replace(facts, jobs=tuple(item for item in facts.jobs if item.id not in ended_ids))
        else:
            jobs = [alter_job(item, ((name, value),)) if item.id == job_id else item for item in facts.jobs]
            facts = replace(facts, jobs=tuple(jobs))
    return facts


def alter_job(job: Job, change: RequestChange) -> Job:
    """A job that asks for something else."""
    for name, value in change:
        kind, _, role = name.partition("@")
        if kind == "not_before":
            job = replace(job, not_before=int(value))
        else:
            job = replace(job, shape=_alter_shape(job.shape, kind, role, value))
    return job


def _alter_shape(shape: JobShape, kind: str, role: str, value: str) -> JobShape:
    if kind == "level":
        return replace(shape, level=value, required=False)
    if kind == "band":
        return replace(shape, band=int(value))
    if kind.startswith("label:"):
        kept_labels = tuple(pair for pair in shape.roles[0].ask.labels if kind[6:] and pair[0] != kind[6:])
        return replace(
            shape,
            roles=tuple(
                replace(shape_role, ask=replace(shape_role.ask, labels=kept_labels)) for shape_role in shape.roles
            ),
        )
    position = next((number for number, shape_role in enumerate(shape.roles) if shape_role.name == role), 0)
    if kind == "width":
        changed_role = replace(shape.roles[position], count=int(value))
        shape = shape if position else replace(shape, low=0, high=0)
    else:
        changed_role = replace(shape.roles[position], ask=_alter_request(shape.roles[position].ask, kind, value))
    return replace(shape, roles=(*shape.roles[:position], changed_role, *shape.roles[position + 1 :]))


def _alter_request(request: SlotRequest, kind: str, value: str) -> SlotRequest:
    if kind in (GPU + "s", "milli"):
        cleared: dict[str, Any] = {} if int(value) else {"models": (), _MEMORY: 0}
        return replace(request, **{kind: int(value)} | cleared)
    if kind == "models":
        return replace(request, models=())
    if kind == _MEMORY:
        return replace(request, device_mib=int(value))
    amounts = ((name, int(value) if name == kind else amount) for name, amount in request.amounts)
    return replace(request, amounts=tuple((name, amount) for name, amount in amounts if amount))


def _alter_queue(queue: Queue, kind: str, target: str, value: int) -> Queue:
    name, _, quota = target.partition(":")
    if queue.name != name:
        return queue
    if kind == "limit":
        return replace(queue, limit={**queue.limit, quota: value})
    if kind == "lend":
        return replace(queue, lend={**queue.lend, quota: value})
    budgets = (
        replace(budget, amount=budget.amount + value) if budget.unit == quota else budget for budget in queue.budgets
    )
    return replace(queue, budgets=tuple(budgets))


def _open_node(node: Node, names: Sequence[str]) -> Node:
    return replace(node, open=True) if node.name in names else node


def _iter_role_relaxations(shape: JobShape, number: int, role: Role, allow_removal: bool) -> Iterator[Relaxation]:
    """What a role may have less of; `@` names one that is not the first."""
    suffix, slot = (f"@{role.name}", f"a slot of {role.name}") if number else ("", "a slot")
    request, count = role.ask, role.count if number else shape.least

    def relax_amount(kind: str, steps: StepRange, describe: Callable[[int], str]) -> Relaxation:
        return Relaxation(steps, lambda value: (describe(value), ((f"{kind}{suffix}", str(value)),)))

    min_gpus = 0 if allow_removal else 1
    yield relax_amount("width", StepRange(range(1, count)), lambda value: f"{value} of {count} {role.name} slots")
    yield relax_amount(f"{GPU}s", StepRange(range(min_gpus, request.gpus)), partial(_describe_gpus, slot, request.gpus))
    yield relax_amount(
        "milli", StepRange(range(0 if allow_removal else 50, request.milli, 50)), partial(_describe_amount, GPU, slot)
    )
    if request.models:
        yield _drop_demand("any model of GPU", f"models{suffix}")
    memory_steps = StepRange(
        range(1 if allow_removal and request.device_mib else 0), range(1024, request.device_mib, 1024)
    )
    yield relax_amount(
        _MEMORY,
        memory_steps,
        lambda value: f"{describe_amount(MEMORY, value)} on each GPU" if value else "any memory of GPUs",
    )
    for name, amount in request.amounts:
        yield relax_amount(name, _build_steps(name, amount, allow_removal), partial(_describe_amount, name, slot))


def _drop_demand(text: str, key: str) -> Relaxation:
    return Relaxation(StepRange(range(1)), lambda _: (text, ((key, ""),)))


def _build_steps(name: str, amount: int, allow_removal: bool) -> StepRange:
    """Tenths below one CPU, then whole ones; of memory 64 MiB below a GiB, then whole ones."""
    if name not in (CPU, MEMORY):
        return StepRange(range(0 if allow_removal else 1, amount))
    step, coarse_step = (100, 1000) if name == CPU else (64, 1024)
    return StepRange(range(step, min(amount, coarse_step), step), range(coarse_step, amount, coarse_step))


def _describe_gpus(slot: str, total: int, count: int) -> str:
    return f"{count} of {total} GPUs {slot}" if count else f"no GPU {slot}"


def _describe_amount(name: str, slot: str, value: int) -> str:
    return f"{describe_amount(name, value)} {slot}" if value else f"no {name.upper() if name == GPU else name} {slot}"
