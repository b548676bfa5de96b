"""Policies that papers publish: at every arrival and end all jobs are planned anew, in one order, first fit.

They know what no platform knows (the oracles `srtf` and `srsf`), or nothing (`fifo`, `las`); they stand here to be
compared with. A job of at most a node's devices (cores, where there are none) sits in one node; a larger one takes
whole free nodes; what else a job asks for, queues and clusters they do not know. Moving costs the restart.
"""

from collections.abc import Callable
from dataclasses import dataclass

from falaj.schedule.model import CPU, WHOLE
from falaj.simulator.outcome import Fate, Outcome, gpus_of, measure
from falaj.simulator.trace import Load, Trace


@dataclass(slots=True)
class Life:
    """A job on its way."""

    load: Load
    size: int
    """Thousandths of devices, or of cores."""
    left: float
    debt: float = 0.0
    """What is left to pay of a restart."""
    ran: float = 0.0
    started: float = -1.0
    moved: int = 0


Order = Callable[[Life], tuple[float, ...]]
POLICIES: dict[str, Order] = {
    "fifo": lambda life: (life.load.job.submitted,),
    "srtf": lambda life: (life.left,),
    "srsf": lambda life: (life.left * life.size,),
    "las": lambda life: (life.ran * life.size,),
}


def replan(trace: Trace, policy: str) -> Outcome:
    """Run a trace under one of POLICIES."""
    order, devices = POLICIES[policy], trace.gpus > 0
    room = [len(node.devices) * WHOLE if devices else node.amounts.get(CPU, 0) for node in trace.nodes]
    coming = [Life(load, _size(load, devices), load.work_s) for load in trace.loads][::-1]
    active: list[Life] = []
    running: list[Life] = []
    fates: list[Fate] = []
    now = 0.0
    while coming or active:
        end = min((now + life.debt + life.left for life in running), default=float("inf"))
        arrival = coming[-1].load.job.submitted if coming else float("inf")
        now = _advance(running, now, min(end, arrival))
        while coming and coming[-1].load.job.submitted <= now:
            active.append(coming.pop())
        fates += [_fate(life, now) for life in running if life.left <= 1e-6]
        active = sorted((life for life in active if life.left > 1e-6), key=order)
        chosen = _fit(active, room)
        _start(chosen, running, now)
        running = chosen
        if not running and not coming:
            break  # what is left fits nowhere
    return measure(policy, trace, fates)


def _advance(running: list[Life], now: float, until: float) -> float:
    for life in running:
        passed = until - now
        paid = min(life.debt, passed)
        life.debt -= paid
        life.left -= passed - paid
        life.ran += passed
    return until


def _size(load: Load, devices: bool) -> int:
    asks = [(role.count, role.ask) for role in load.job.shape.roles]
    if devices:
        return sum(count * (ask.gpus * WHOLE + ask.milli) for count, ask in asks)
    return sum(count * dict(ask.amounts).get(CPU, 0) for count, ask in asks)


def _fit(active: list[Life], room: list[int]) -> list[Life]:
    free, idle, chosen, largest = list(room), sum(room), list[Life](), max(room, default=0)
    for life in active:
        if life.size > idle:
            continue
        places = list[int]()
        if life.size <= largest:
            places = [next((n for n, left in enumerate(free) if left >= life.size), -1)]
        else:
            missing = life.size
            for n, left in enumerate(free):
                if missing > 0 and left == room[n]:
                    places.append(n)
                    missing -= left
            places = places if missing <= 0 else []
        if places and places[0] >= 0:
            for place in places:
                taken = min(life.size, free[place])
                free[place] -= taken
                idle -= taken
            chosen.append(life)
    return chosen


def _start(chosen: list[Life], before: list[Life], now: float) -> None:
    ran = {id(life) for life in before}
    for life in chosen:
        if id(life) not in ran:
            life.debt = life.load.job.restart_s
            life.moved += life.started >= 0
            life.started = now if life.started < 0 else life.started


def _fate(life: Life, now: float) -> Fate:
    job = life.load.job
    whose = life.load.whose or job.queue
    return Fate(job.id, whose, job.submitted, life.started, now, life.ran, life.moved, gpus_of(life.load))
