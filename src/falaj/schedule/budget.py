"""What queues may spend: charged when a job starts, for as long as it is expected to run, and settled when it ends.

A charge counts in every budget along the path to the root. It stays open until it is settled, so a burst cannot outrun
the accounts, and all that was ever charged is what was settled and what is open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from falaj.core.errors import Corrupt
from falaj.schedule.model import (
    BEST_EFFORT,
    CPU,
    GPU,
    NEVER,
    WHOLE,
    Budget,
    Job,
    Node,
    Queue,
    Role,
    Shape,
    Spot,
)  # fmt: skip

Charge = tuple[tuple[str, int], ...]
"""Amounts by unit, sorted: cpu_s and gpu_s in thousandths of a second of one, money in micro-units."""

HOUR = 3600
BUDGET = "budget:"
"""How the name of a quota begins that is a budget, before its unit."""
MONEY = "money"


def way(queue: str) -> Iterator[str]:
    """A queue and all above it."""
    while queue:
        yield queue
        queue = queue.rpartition("/")[0]


def charge(nodes: Mapping[str, Node], roles: Sequence[Role], spots: Iterable[Spot], seconds: int) -> Charge:
    """What these places cost for so long. A slot pays its part of a node's price: of the devices, else of the cores."""
    cores = devices = money = 0
    for spot in spots:
        cpu = dict(roles[spot.role].ask.amounts).get(CPU, 0)
        milli = len(spot.devices) * spot.milli
        cores, devices = cores + cpu, devices + milli
        node = nodes.get(spot.node)
        if node is not None and node.price:
            part, whole = (milli, len(node.devices) * WHOLE) if node.devices else (cpu, node.amounts.get(CPU, 0))
            money += node.price * part * seconds // max(whole * HOUR, 1)
    amounts = {"cpu_s": cores * seconds, f"{GPU}_s": devices * seconds, MONEY: money}
    return tuple(sorted((unit, amount) for unit, amount in amounts.items() if amount))


def price(node: Node, devices: bool) -> int:
    """What an hour of one of its devices costs a job that has some, or of one of its cores where it has none."""
    if node.devices:
        return node.price // len(node.devices) if devices else 0
    return node.price * WHOLE // max(node.amounts.get(CPU, 0), 1)


def rates(shape: Shape) -> Charge:
    """What a second of a shape costs at its smallest width, wherever it is: devices and cores. Not what is paid."""
    counts = [shape.least, *(role.count for role in shape.roles[1:])]
    asks = list(zip(counts, (role.ask for role in shape.roles), strict=True))
    cores = sum(count * dict(ask.amounts).get(CPU, 0) for count, ask in asks)
    devices = sum(count * (ask.gpus * WHOLE or ask.milli) for count, ask in asks)
    return tuple((unit, rate) for unit, rate in (("cpu_s", cores), (f"{GPU}_s", devices)) if rate)


def beyond(queues: Iterable[Queue], job: Job) -> tuple[str, str, int] | None:
    """The budget that would not even cover a job's limit if all of it were left; its unit, and the seconds it covers.

    None where one may: where it has no limit it costs what others like it will run; and money depends on the place."""
    above = [one for one in queues if f"{job.queue}/".startswith(f"{one.name}/")]
    if min([job.shape.band, *(one.top_band for one in above)]) == BEST_EFFORT:
        return None  # nobody pays for it
    rate = dict(rates(job.shape))
    stops = [(queue.name, one) for queue in above for one in queue.budgets if one.stops and one.unit in rate]
    found = [(one.amount // rate[one.unit], name, one.unit) for name, one in stops]
    most, name, unit = min(found, default=(job.limit_s, "", ""))
    return (name, unit, most) if most < job.limit_s else None


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A budget that does not cover a charge."""

    queue: str
    unit: str
    missing: int
    stops: bool
    """True: jobs wait for it; False: they go on as best effort, and are not charged."""


class Budgets:
    """The budgets of all queues in their current window."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._budgets = {queue.name: list(queue.budgets) for queue in queues if queue.budgets}

    def exhausted(self, queue: str, costs: Charge) -> Exhausted | None:
        """The budget that does not cover so much more; one that stops before one that does not."""
        wanted = dict(costs)
        found = None
        for name, _, budget in self._above(queue):
            more = wanted.get(budget.unit, 0)
            missing = budget.spent + budget.held + more - budget.amount
            if more and missing > 0 and (found is None or (budget.stops and not found.stops)):
                found = Exhausted(name, budget.unit, missing, budget.stops)
        return found

    def covers(self, queue: str, each: Charge) -> int:
        """For how many seconds all budgets that stop cover such costs a second; those that count money aside."""
        rate, most = dict(each), NEVER
        for _, _, budget in self._above(queue):
            if budget.stops and budget.unit in rate:
                most = min(most, max(budget.amount - budget.spent - budget.held, 0) // rate[budget.unit])
        return most

    def hold(self, queue: str, costs: Charge) -> None:
        """A job starts: so much is charged, and open."""
        if costs:
            self._move(queue, dict(costs), {})

    def settle(self, queue: str, held: Charge, costs: Charge) -> None:
        """It ended: what was held for it is given up, what it cost is spent, be it more or less."""
        if held or costs:
            self._move(queue, {unit: -amount for unit, amount in held}, dict(costs))

    def of(self, queue: str) -> tuple[Budget, ...]:
        """The budgets of a queue as they stand."""
        return tuple(self._budgets.get(queue, ()))

    def _move(self, queue: str, held: Mapping[str, int], spent: Mapping[str, int]) -> None:
        moved = []
        for name, at, budget in self._above(queue):
            now = replace(
                budget,
                held=budget.held + held.get(budget.unit, 0),
                spent=budget.spent + spent.get(budget.unit, 0),
            )
            if now.held < 0:
                raise Corrupt(f"{name} settles more {budget.unit} than it holds", "build the budgets anew")
            moved.append((name, at, now))
        for name, at, now in moved:
            self._budgets[name][at] = now

    def _above(self, queue: str) -> list[tuple[str, int, Budget]]:
        """The budgets of a queue and of all above it."""
        return [(name, at, one) for name in way(queue) for at, one in enumerate(self._budgets.get(name, ()))]
