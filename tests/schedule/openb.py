"""The openb traces: 1,213 GPU nodes and lists of pods that come and never go, to measure how well pods are packed.

Besides our own placement there are two published ones to compare with: FGD and Best-fit, as their authors ran them.
"""

import csv
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from falaj.core.executor import Device
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import CPU, MEMORY, MILLI_PER_UNIT, JobShape, Node, Role, SlotRequest
from falaj.schedule.placement import find_placement

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "openb"

MULTI_GPU = Path(__file__).with_name("openb_multigpu.csv")
"""Lists of multi-GPU pods (hkust-adsl/kubernetes-scheduler-simulator, Apache-2.0), equal pods as one row: lists are
shuffled, so the order of their pods does not count."""
PUBLISHED = {
    "default": 95.39, "cpu050": 95.21, "cpu100": 95.35, "cpu200": 95.05, "cpu250": 93.41,
    "gpushare40": 94.15, "gpushare60": 91.40, "gpushare80": 89.31, "gpushare100": 86.90,
    "gpuspec10": 94.95, "gpuspec20": 94.84, "gpuspec25": 94.74, "gpuspec33": 94.55,
    "multigpu20": 95.65, "multigpu30": 96.46, "multigpu40": 96.99, "multigpu50": 97.18,
}  # fmt: skip
"""FGD's allocation in percent by pod list, mean of ten seeds, as its authors published it."""

State = tuple[int, int, tuple[int, ...]]
"""Free CPU, free memory, what is left on each device."""
Choice = tuple[int, tuple[int, ...]]
"""A score and the devices it was given for."""


def nodes() -> list[Node]:
    with (TRACES / "openb_node_list_gpu_node.csv").open() as file:
        return [_node(row) for row in csv.DictReader(file)]


def _node(row: dict[str, str]) -> Node:
    devices = tuple(Device(number, row["model"]) for number in range(int(row["gpu"])))
    return Node(row["sn"], "openb", "z", {CPU: int(row["cpu_milli"]), MEMORY: int(row["memory_mib"])}, devices)


def pods(name: str) -> list[SlotRequest]:
    """The pods of a list that is beside the repository; else of a list of multi-GPU pods, by how often each occurs."""
    file = TRACES / f"openb_pod_list_{name}.csv"
    if file.exists():
        return [_ask(row) for row in csv.DictReader(file.read_text().splitlines())]
    rows = csv.DictReader(MULTI_GPU.read_text().splitlines())
    return [ask for row in rows if row["list"] == name for ask in [_ask(row)] * int(row["pods"])]


def pod_lists() -> list[str]:
    """The pod lists that can be read and have a published allocation."""
    return [name for name in PUBLISHED if "multigpu" in name or (TRACES / f"openb_pod_list_{name}.csv").exists()]


def _ask(row: dict[str, str]) -> SlotRequest:
    amounts = ((CPU, int(row["cpu_milli"])), (MEMORY, int(row["memory_mib"])))
    count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    spec = row.get("gpu_spec", "")  # the lists of multi-GPU pods have no such column
    models = tuple(sorted(spec.split("|"))) if spec else ()
    shared = count == 1 and milli < MILLI_PER_UNIT
    return SlotRequest(amounts, 0 if shared else count, milli if shared else 0, models=models)


def demand(ask: SlotRequest) -> int:
    return ask.milli or ask.gpus * MILLI_PER_UNIT


def arrivals(asks: list[SlotRequest], capacity: int, seed: int) -> list[SlotRequest]:
    """The list in a shuffled order: pods are drawn from it, or left out, until 130 % of the capacity is asked for."""
    chance = random.Random(seed)
    order = asks.copy()
    chance.shuffle(order)
    total = sum(map(demand, order))
    if total > capacity * 13 // 10:
        while total > capacity * 13 // 10:
            total -= demand(order.pop())
        return order
    while total < capacity * 13 // 10:
        order.append(chance.choice(asks))
        total += demand(order[-1])
    return order


def replay(
    name: str, seed: int, start: Callable[[list[Node], list[SlotRequest]], Callable[[SlotRequest], bool]]
) -> float:
    """Percent of the devices that are in use after 130 % of them were asked for."""
    fleet, asks = nodes(), pods(name)
    capacity = sum(len(node.devices) for node in fleet) * MILLI_PER_UNIT
    put = start(fleet, asks)
    return 100 * sum(demand(ask) for ask in arrivals(asks, capacity, seed) if put(ask)) / capacity


def ours(fleet: list[Node], asks: list[SlotRequest]) -> Callable[[SlotRequest], bool]:
    """Our placement; the list is the mix it knows of."""
    world, shapes = ClusterState(fleet), {ask: JobShape((Role("pod", ask),)) for ask in asks}
    for ask, count in Counter(asks).items():
        world.mix(shapes[ask], count)

    def put(ask: SlotRequest) -> bool:
        spots = find_placement(world, shapes[ask], 1)
        if spots:
            world.take(spots, shapes[ask].roles)
        return spots is not None

    return put


def fgd(fleet: list[Node], asks: list[SlotRequest]) -> Callable[[SlotRequest], bool]:
    """Fragmentation gradient descent: the fall of the expected fragment, cut to an integer of 0 to 100."""
    shapes = Counter((dict(ask.amounts)[CPU], ask.gpus, ask.milli) for ask in asks)
    targets, covered = [], 0
    for shape, count in shapes.most_common():
        if covered < 0.95 * len(asks):
            targets.append((*shape, count))
            covered += count
    cpus, gpus, parts, counts = np.array(targets).T
    known: dict[tuple[int, tuple[int, ...]], float] = {}

    def fragment(cpu: int, dev: tuple[int, ...]) -> float:
        key = (cpu, tuple(sorted(dev)))
        if key not in known:
            left = np.array(dev)
            idle, full = left.sum(), (left == MILLI_PER_UNIT).sum()
            size = np.where(parts, parts, MILLI_PER_UNIT)
            small = (left * (left < size[:, None])).sum(axis=1)
            able = (
                (cpus <= cpu) & np.where(parts, (left >= size[:, None]).any(axis=1), full >= gpus) & (gpus + parts > 0)
            )
            known[key] = float((np.where(able, small, idle) * counts).sum() / covered)
        return known[key]

    def score(before: State, after: State) -> int:
        fall = fragment(before[0], before[2]) - fragment(after[0], after[2])
        return int(100 / (1 + math.exp(-fall / 1000)))

    return _greedy(fleet, asks, score)


def best_fit(fleet: list[Node], asks: list[SlotRequest]) -> Callable[[SlotRequest], bool]:
    """The node, and the device, that would have least left."""
    most = max(node.amounts[CPU] for node in fleet)

    def score(before: State, after: State) -> int:
        left = after[0] / most + sum(after[2]) / (8 * MILLI_PER_UNIT)
        return int(1000000 * (1 - left / 2)) * 1000 - min(
            (now for was, now in zip(before[2], after[2], strict=True) if was != now), default=0
        )

    return _greedy(fleet, asks, score)


def _greedy(
    fleet: list[Node], asks: list[SlotRequest], score: Callable[[State, State], int]
) -> Callable[[SlotRequest], bool]:
    """Every pod goes where the score is highest; then to the first node, and its first device."""
    states: list[State] = [(n.amounts[CPU], n.amounts[MEMORY], (MILLI_PER_UNIT,) * len(n.devices)) for n in fleet]
    kinds = list(dict.fromkeys(asks))
    number = {ask: row for row, ask in enumerate(kinds)}
    known: dict[State, list[Choice]] = {}
    table = np.full((len(kinds), len(fleet)), -1, np.int64)

    def note(row: int) -> None:
        state = states[row]
        if state not in known:
            known[state] = [_best(state, ask, score) for ask in kinds]
        table[:, row] = [choice[0] for choice in known[state]]

    def put(ask: SlotRequest) -> bool:
        row = int(table[number[ask]].argmax())
        value, devices = known[states[row]][number[ask]]
        if value < 0:
            return False
        states[row] = _after(states[row], ask, devices)
        note(row)
        return True

    for row in range(len(fleet)):
        note(row)
    return put


def _after(state: State, ask: SlotRequest, devices: tuple[int, ...]) -> State:
    amounts = dict(ask.amounts)
    cut = ask.milli or MILLI_PER_UNIT
    left = tuple(some - cut if place in devices else some for place, some in enumerate(state[2]))
    return state[0] - amounts[CPU], state[1] - amounts[MEMORY], left


def _best(state: State, ask: SlotRequest, score: Callable[[State, State], int]) -> Choice:
    large = [place for place, some in enumerate(state[2]) if some >= (ask.milli or MILLI_PER_UNIT)]
    count = ask.gpus or (1 if ask.milli else 0)
    options = [(place,) for place in large] if ask.milli else [tuple(large[:count])]
    best: Choice = (-1, ())
    for devices in options:
        after = _after(state, ask, devices)
        if len(devices) == count and min(after[0], after[1]) >= 0:
            best = max(best, (score(state, after), devices), key=lambda choice: choice[0])
    return best
