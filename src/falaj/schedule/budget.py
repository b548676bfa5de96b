"""What queues may spend: charged when a job starts, for as long as it is expected to run, and settled when it ends.

A charge counts in every budget along the path to the root. It stays open until it is settled, so a burst cannot outrun
the accounts, and all that was ever charged is what was settled and what is open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from falaj.core.errors import CorruptData
from falaj.schedule.model import (
    BEST_EFFORT,
    CPU,
    GPU,
    MILLI_PER_UNIT,
    NEVER,
    Job,
    JobShape,
    Node,
    Queue,
    QueueBudget,
    Role,
    SlotPlacement,
)  # fmt: skip

Charge = tuple[tuple[str, int], ...]
"""Amounts by unit, sorted: cpu_s and gpu_s in thousandths of a second of one, money in micro-units."""

HOUR_S = 3600
BUDGET_PREFIX = "budget:"
"""How the name of a quota begins that is a budget, before its unit."""
MONEY_UNIT = "money"


def iter_queue_path(queue: str) -> Iterator[str]:
    """A queue and all above it."""
    while queue:
        yield queue
        queue = queue.rpartition("/")[0]


def compute_charge(
    nodes: Mapping[str, Node], roles: Sequence[Role], spots: Iterable[SlotPlacement], seconds: int
) -> Charge:
    """What these places cost for so long. A slot pays its part of a node's price: of the devices, else of the cores."""
    milli_cores = devices = money = 0
    for spot in spots:
        cpu = dict(roles[spot.role].ask.amounts).get(CPU, 0)
        milli = len(spot.devices) * spot.milli
        milli_cores, devices = milli_cores + cpu, devices + milli
        node = nodes.get(spot.node)
        if node is not None and node.price:
            used_units, total_units = (
                (milli, len(node.devices) * MILLI_PER_UNIT) if node.devices else (cpu, node.amounts.get(CPU, 0))
            )
            money += node.price * used_units * seconds // max(total_units * HOUR_S, 1)
    amounts = {"cpu_s": milli_cores * seconds, f"{GPU}_s": devices * seconds, MONEY_UNIT: money}
    return tuple(sorted((unit, amount) for unit, amount in amounts.items() if amount))


def compute_unit_price(node: Node, has_devices: bool) -> int:
    """What an hour of one of its devices costs a job that has some, or of one of its cores where it has none."""
    if node.devices:
        return node.price // len(node.devices) if has_devices else 0
    return node.price * MILLI_PER_UNIT // max(node.amounts.get(CPU, 0), 1)


def compute_charge_rates(shape: JobShape) -> Charge:
    """What a second of a shape costs at its smallest width, wherever it is: devices and cores. Not what is paid."""
    counts = [shape.least, *(role.count for role in shape.roles[1:])]
    requests = list(zip(counts, (role.ask for role in shape.roles), strict=True))
    cores = sum(count * dict(request.amounts).get(CPU, 0) for count, request in requests)
    devices = sum(count * (request.gpus * MILLI_PER_UNIT or request.milli) for count, request in requests)
    return tuple((unit, rate) for unit, rate in (("cpu_s", cores), (f"{GPU}_s", devices)) if rate)


def find_insufficient_budget(queues: Iterable[Queue], job: Job) -> tuple[str, str, int] | None:
    """The budget that would not even cover a job's limit if all of it were left; its unit, and the seconds it covers.

    None where one may: where it has no limit it costs what others like it will run; and money depends on the place."""
    queues_above = [candidate for candidate in queues if f"{job.queue}/".startswith(f"{candidate.name}/")]
    if min([job.shape.band, *(candidate.top_band for candidate in queues_above)]) == BEST_EFFORT:
        return None  # nobody pays for it
    rate = dict(compute_charge_rates(job.shape))
    stopping_budgets = [
        (queue.name, candidate)
        for queue in queues_above
        for candidate in queue.budgets
        if candidate.stops and candidate.unit in rate
    ]
    coverages = [
        (candidate.amount // rate[candidate.unit], name, candidate.unit) for name, candidate in stopping_budgets
    ]
    covered_s, name, unit = min(coverages, default=(job.limit_s, "", ""))
    return (name, unit, covered_s) if covered_s < job.limit_s else None


@dataclass(frozen=True, slots=True)
class ExhaustedBudget:
    """A budget that does not cover a charge."""

    queue: str
    unit: str
    missing: int
    stops: bool
    """True: jobs wait for it; False: they go on as best effort, and are not charged."""


class BudgetTracker:
    """The budgets of all queues in their current window."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._budgets = {queue.name: list(queue.budgets) for queue in queues if queue.budgets}

    def exhausted(self, queue: str, costs: Charge) -> ExhaustedBudget | None:
        """The budget that does not cover so much more; one that stops before one that does not."""
        charge_by_unit = dict(costs)
        exhausted = None
        for name, _, budget in self._list_budgets_above(queue):
            extra = charge_by_unit.get(budget.unit, 0)
            missing = budget.spent + budget.held + extra - budget.amount
            if extra and missing > 0 and (exhausted is None or (budget.stops and not exhausted.stops)):
                exhausted = ExhaustedBudget(name, budget.unit, missing, budget.stops)
        return exhausted

    def covers(self, queue: str, per_second: Charge) -> int:
        """For how many seconds all budgets that stop cover such costs a second; those that count money aside."""
        rate, covered_s = dict(per_second), NEVER
        for _, _, budget in self._list_budgets_above(queue):
            if budget.stops and budget.unit in rate:
                covered_s = min(covered_s, max(budget.amount - budget.spent - budget.held, 0) // rate[budget.unit])
        return covered_s

    def hold(self, queue: str, costs: Charge) -> None:
        """A job starts: so much is charged, and open."""
        if costs:
            self._apply_changes(queue, dict(costs), {})

    def settle(self, queue: str, reserved: Charge, costs: Charge) -> None:
        """It ended: what was held for it is given up, what it cost is spent, be it more or less."""
        if reserved or costs:
            self._apply_changes(queue, {unit: -amount for unit, amount in reserved}, dict(costs))

    def of(self, queue: str) -> tuple[QueueBudget, ...]:
        """The budgets of a queue as they stand."""
        return tuple(self._budgets.get(queue, ()))

    def _apply_changes(self, queue: str, reserved_change: Mapping[str, int], spent_change: Mapping[str, int]) -> None:
        updates = []
        for name, position, budget in self._list_budgets_above(queue):
            updated = replace(
                budget,
                held=budget.held + reserved_change.get(budget.unit, 0),
                spent=budget.spent + spent_change.get(budget.unit, 0),
            )
            if updated.held < 0:
                raise CorruptData(f"{name} settles more {budget.unit} than it holds", "build the budgets anew")
            updates.append((name, position, updated))
        for name, position, updated in updates:
            self._budgets[name][position] = updated

    def _list_budgets_above(self, queue: str) -> list[tuple[str, int, QueueBudget]]:
        """The budgets of a queue and of all above it."""
        return [
            (name, position, budget)
            for name in iter_queue_path(queue)
            for position, budget in enumerate(self._budgets.get(name, ()))
        ]
