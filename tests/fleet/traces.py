"""Figures of nodes and runs as they really look: noise, days and nights, jobs that come and go, save and evaluate."""

import math
from collections.abc import Iterator
from random import Random

STEP_S = 30
MINUTE, HOUR, DAY = 60, 3600, 86_400
Rows = Iterator[tuple[int, dict[str, float]]]


def normal_node(random: Random, days: float, start: int = 0) -> Rows:
    """A node whose one GPU trains one job after another; `held` says whether it is held."""
    at, end, disk = start, start + int(days * DAY), 200_000.0
    while at < end:
        length = random.choice((1, 3, 8, 20)) * HOUR
        for age, figures in _job(random, length, at):
            disk += random.uniform(-1, 1.35) * STEP_S / 60  # MiB: logs and checkpoints grow it
            disk -= disk * 0.2 if random.random() < STEP_S / (3 * DAY) else 0  # and somebody cleans up
            yield at + age, {**figures, "disk": 1_000_000 - disk, "disk_total": 1_000_000}
        at += length
        for age in range(0, random.choice((1, 20, 90)) * MINUTE, STEP_S):
            yield at + age, {"held": 0, **_gpu(random, at + age, 0, 500)}
        at += age + STEP_S


def _job(random: Random, length: int, at: int) -> Rows:
    level, noise = random.uniform(35, 97), random.uniform(1, 12)
    warm, save, evaluate = random.uniform(1, 8) * MINUTE, random.uniform(15, 70) * MINUTE, random.uniform(1, 4) * HOUR
    memory = random.uniform(10_000, 75_000)
    for age in range(0, length, STEP_S):
        busy = random.gauss(level, noise)
        if age < warm or age % save > save - random.uniform(20, 180):
            busy = random.choice((0.0, 0.0, 3.0))
        elif age % evaluate > evaluate - 8 * MINUTE:
            busy = random.gauss(level / 3, noise)
        used = memory * min(1.0, 0.5 + age / (25 * MINUTE)) * random.uniform(0.97, 1.0)
        yield age, {"held": 1, **_gpu(random, at + age, busy, used)}


def _gpu(random: Random, at: int, busy: float, memory: float) -> dict[str, float]:
    busy = min(100.0, max(0.0, busy))
    room = 22 + 4 * math.sin(at / DAY * 2 * math.pi)
    heat = room + 12 + busy * 0.5 + random.gauss(0, 1)
    # As an H200 does it: at its power limit the clock falls to four fifths, and that is no fault.
    clock = random.gauss(1580, 25) if busy > 90 else random.gauss(1900, 20) if busy > 5 else 345
    return {
        "0.busy": busy, "0.memory": memory, "0.memory_total": 81_559, "0.temperature": heat,
        "0.power": 90 + busy * 5.5, "0.clock": clock, "0.clock_most": 1980, "0.throttled": 0, "0.xid": 0, "0.ecc": 0,
    }  # fmt: skip


def normal_run(random: Random, hours: float, members: int, start: int = 0) -> Rows:
    """A gang that trains together: some load data with many CPUs, memory fills and stays, rank 0 evaluates."""
    pace, level = random.uniform(0.5, 20), random.uniform(40, 98)
    full, cpu = random.uniform(8_000, 50_000), random.uniform(1, 7)
    for age in range(0, int(hours * HOUR), STEP_S):
        figures: dict[str, float] = {}
        stop = age % (50 * MINUTE) > 48 * MINUTE
        for slot in range(members):
            alone = slot == 0 and age % (2 * HOUR) > 2 * HOUR - 4 * MINUTE
            busy = 0.0 if stop or age < 3 * MINUTE else level / 2 if alone else random.gauss(level, 4)
            figures[f"{slot}.busy"] = min(100.0, max(0.0, busy))
            figures[f"{slot}.power"] = 90 + figures[f"{slot}.busy"] * 5.5 * random.uniform(0.96, 1.04)
            figures[f"{slot}.cpu"] = max(0.0, random.gauss(cpu, 0.4))
            filled = 1 - math.exp(-age / (12 * MINUTE)) + 0.02 * math.sin(age / (7 * MINUTE))
            figures[f"{slot}.rss"] = full * min(1.0, filled) * random.uniform(0.99, 1.0) + 500
            figures[f"r{slot}.pace"] = 0.0 if stop else pace * random.uniform(0.97, 1.03)
        yield start + age, figures
