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
from falaj.schedule.model import CPU, GPU, MEMORY, Ask, Job, Node, Queue, Role, Shape, Snapshot
from falaj.schedule.words import counted

Change = tuple[tuple[str, str], ...]
Fix = tuple[str, Change]
_MEMORY = "device_mib"


class Steps(NamedTuple):
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
class Way:
    """One thing of which a request could have less."""

    steps: Steps
    """What it may be instead, the least first."""
    fix: Callable[[int], Fix]

    def nearest(self, helps: Callable[[Change], bool]) -> Fix | None:
        """The most that helps, if the least does."""
        low, high = 0, self.steps.many - 1
        if high < 0 or not helps(self.fix(self.steps.at(0))[1]):
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if helps(self.fix(self.steps.at(middle))[1]):
                low = middle
            else:
                high = middle - 1
        return self.fix(self.steps.at(low))


def ways(shape: Shape, *, whole: bool) -> Iterator[Way]:
    """How a request can be less or freer, the gentlest first; `whole`: also without a thing that it asks for."""
    if shape.required:
        yield _one(f"any {shape.level} instead of one", "level")
    for number, role in enumerate(shape.roles):
        yield from _of_role(shape, number, role, whole)
    labels = shape.roles[0].ask.labels if whole else ()
    for name, value in labels:
        yield _one(f"no label {name}={value} of its nodes", f"label:{name}")
    if len(labels) > 1:
        yield _one("no labels of its nodes", "label:")


def less(job: Job, helps: Callable[[Change], bool]) -> Fix | None:
    """The nearest request that helps where no single change of it does: all it can do without, then all it may keep."""
    left, change = list(ways(job.shape, whole=True)), Change()
    taken = list[Way]()
    while left and not helps(change):
        taken.append(left.pop(0))
        change = merged(change, taken[-1].fix(taken[-1].steps.at(0))[1]) if taken[-1].steps.many else change
    if not helps(change):
        return None
    texts = list[str]()
    for way in [one for one in taken if one.steps.many]:
        mine = {name for name, _ in way.fix(way.steps.at(0))[1]}
        rest = tuple(pair for pair in change if pair[0] not in mine)
        if helps(rest):
            change = rest
            continue
        kept = way.nearest(partial(_with, helps, rest))
        if kept is not None:
            texts, change = [*texts, kept[0]], merged(rest, kept[1])
    return " and ".join(texts), change


def merged(change: Change, more: Change) -> Change:
    """Both, the second over the first."""
    return tuple((dict(change) | dict(more)).items())


def _with(helps: Callable[[Change], bool], rest: Change, more: Change) -> bool:
    return helps(merged(rest, more))


def changed(facts: Snapshot, job_id: str, change: Change) -> Snapshot:
    """The facts after a change that a reason told of."""
    for name, value in change:
        kind, _, rest = name.partition(":")
        if kind in ("limit", "lend", "budget"):
            queues = tuple(_queue(one, kind, rest, int(value)) for one in facts.queues)
            facts = replace(facts, queues=queues)
        elif kind == "open":
            facts = replace(facts, nodes=tuple(_opened(one, value.split(",")) for one in facts.nodes))
        elif kind == "after":
            gone = set(value.split(","))
            facts = replace(facts, jobs=tuple(one for one in facts.jobs if one.id not in gone))
        else:
            jobs = [altered(one, ((name, value),)) if one.id == job_id else one for one in facts.jobs]
            facts = replace(facts, jobs=tuple(jobs))
    return facts


def altered(job: Job, change: Change) -> Job:
    """A job that asks for something else."""
    for name, value in change:
        kind, _, role = name.partition("@")
        if kind == "not_before":
            job = replace(job, not_before=int(value))
        else:
            job = replace(job, shape=_reshaped(job.shape, kind, role, value))
    return job


def _reshaped(shape: Shape, kind: str, role: str, value: str) -> Shape:
    if kind == "level":
        return replace(shape, level=value, required=False)
    if kind == "band":
        return replace(shape, band=int(value))
    if kind.startswith("label:"):
        kept = tuple(pair for pair in shape.roles[0].ask.labels if kind[6:] and pair[0] != kind[6:])
        return replace(
            shape, roles=tuple(replace(one, ask=replace(one.ask, labels=kept)) for one in shape.roles)
        )  # fmt: skip
    at = next((number for number, one in enumerate(shape.roles) if one.name == role), 0)
    if kind == "width":
        made = replace(shape.roles[at], count=int(value))
        shape = shape if at else replace(shape, low=0, high=0)
    else:
        made = replace(shape.roles[at], ask=_asking(shape.roles[at].ask, kind, value))
    return replace(shape, roles=(*shape.roles[:at], made, *shape.roles[at + 1 :]))


def _asking(ask: Ask, kind: str, value: str) -> Ask:
    if kind in (GPU + "s", "milli"):
        bare: dict[str, Any] = {} if int(value) else {"models": (), _MEMORY: 0}
        return replace(ask, **{kind: int(value)} | bare)
    if kind == "models":
        return replace(ask, models=())
    if kind == _MEMORY:
        return replace(ask, device_mib=int(value))
    amounts = ((name, int(value) if name == kind else amount) for name, amount in ask.amounts)
    return replace(ask, amounts=tuple((name, amount) for name, amount in amounts if amount))


def _queue(queue: Queue, kind: str, which: str, value: int) -> Queue:
    name, _, what = which.partition(":")
    if queue.name != name:
        return queue
    if kind == "limit":
        return replace(queue, limit={**queue.limit, what: value})
    if kind == "lend":
        return replace(queue, lend={**queue.lend, what: value})
    budgets = (replace(one, amount=one.amount + value) if one.unit == what else one for one in queue.budgets)
    return replace(queue, budgets=tuple(budgets))


def _opened(node: Node, names: Sequence[str]) -> Node:
    return replace(node, open=True) if node.name in names else node


def _of_role(shape: Shape, number: int, role: Role, whole: bool) -> Iterator[Way]:
    """What a role may have less of; `@` names one that is not the first."""
    at, slot = (f"@{role.name}", f"a slot of {role.name}") if number else ("", "a slot")
    ask, count = role.ask, role.count if number else shape.least

    def less_of(kind: str, steps: Steps, words: Callable[[int], str]) -> Way:
        return Way(steps, lambda worth: (words(worth), ((f"{kind}{at}", str(worth)),)))

    least = 0 if whole else 1
    yield less_of("width", Steps(range(1, count)), lambda worth: f"{worth} of {count} {role.name} slots")
    yield less_of(f"{GPU}s", Steps(range(least, ask.gpus)), partial(_gpus, slot, ask.gpus))
    yield less_of("milli", Steps(range(0 if whole else 50, ask.milli, 50)), partial(_amount, GPU, slot))
    if ask.models:
        yield _one("any model of GPU", f"models{at}")
    gib = Steps(range(1 if whole and ask.device_mib else 0), range(1024, ask.device_mib, 1024))
    yield less_of(
        _MEMORY, gib, lambda worth: f"{counted(MEMORY, worth)} on each GPU" if worth else "any memory of GPUs"
    )
    for name, amount in ask.amounts:
        yield less_of(name, _steps(name, amount, whole), partial(_amount, name, slot))


def _one(text: str, key: str) -> Way:
    return Way(Steps(range(1)), lambda _: (text, ((key, ""),)))


def _steps(name: str, amount: int, whole: bool) -> Steps:
    """Tenths below one CPU, then whole ones; of memory 64 MiB below a GiB, then whole ones."""
    if name not in (CPU, MEMORY):
        return Steps(range(0 if whole else 1, amount))
    step, large = (100, 1000) if name == CPU else (64, 1024)
    return Steps(range(step, min(amount, large), step), range(large, amount, large))


def _gpus(slot: str, of: int, worth: int) -> str:
    return f"{worth} of {of} GPUs {slot}" if worth else f"no GPU {slot}"


def _amount(name: str, slot: str, worth: int) -> str:
    return f"{counted(name, worth)} {slot}" if worth else f"no {name.upper() if name == GPU else name} {slot}"
