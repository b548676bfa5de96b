"""Policies that papers publish: at every arrival and end all jobs are planned anew, in one order, first fit.

They know what no platform knows (the oracles `srtf` and `srsf`), or nothing (`fifo`, `las`); they stand here to be
compared with. A job of at most a node's devices sits in one node; a larger one takes whole free nodes. Moving costs
the restart.
"""

from collections.abc import Callable
from dataclasses import dataclass

from falaj.simulator.outcome import Fate, Outcome, gpus_of, measure
from falaj.simulator.trace import Load, Trace


@dataclass(slots=True)
class Life:
    """A job on its way."""

    load: Load
    gpus: int
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
    "srsf": lambda life: (life.left * life.gpus,),
    "las": lambda life: (life.ran * life.gpus,),
}


def replan(trace: Trace, policy: str) -> Outcome:
    """Run a trace under one of POLICIES."""
    order = POLICIES[policy]
    per_node = len(trace.nodes[0].devices)
    coming = [Life(load, gpus_of(load), load.work_s) for load in trace.loads][::-1]
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
        chosen = _fit(active, len(trace.nodes), per_node)
        _start(chosen, running, now)
        running = chosen
    return measure(policy, trace, fates)


def _advance(running: list[Life], now: float, until: float) -> float:
    for life in running:
        passed = until - now
        paid = min(life.debt, passed)
        life.debt -= paid
        life.left -= passed - paid
        life.ran += passed
    return until


def _fit(active: list[Life], nodes: int, per_node: int) -> list[Life]:
    free, idle, chosen = [per_node] * nodes, nodes * per_node, []
    for life in active:
        if not idle:
            break
        if life.gpus <= per_node:
            place = next((n for n, left in enumerate(free) if left >= life.gpus), None)
            places = [] if place is None else [place]
        else:
            places = [n for n, left in enumerate(free) if left == per_node][: life.gpus // per_node]
            places = places if len(places) * per_node >= life.gpus else []
        for place in places:
            free[place] -= min(life.gpus, per_node)
        if places:
            idle -= life.gpus
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
    return Fate(job.id, job.queue, job.submitted, life.started, now, life.ran, life.moved, life.gpus)
