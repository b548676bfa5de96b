"""Nodes, shapes and jobs in short, for the tests of this room."""

from typing import Any

from falaj.core.executor import Device
from falaj.schedule.model import Job, JobShape, Node, Queue, Role, SchedulerOptions, SchedulerSnapshot, SlotRequest


def node(name: str, gpus: int = 8, model: str = "H100", **facts: Any) -> Node:
    devices = tuple(Device(one, model, 80_000) for one in range(gpus))
    cluster = facts.pop("cluster", "c")
    amounts = facts.pop("amounts", {"cpu": 64_000, "memory": 512_000})
    return Node(f"{cluster}/{name}", cluster, facts.pop("zone", "z"), amounts, devices, **facts)


def ask(gpus: int = 1, cpu: int = 1000, **facts: Any) -> SlotRequest:
    return SlotRequest((("cpu", cpu), ("memory", 1000)), gpus=0 if "milli" in facts else gpus, **facts)


def shape(gpus: int = 1, count: int = 1, **facts: Any) -> JobShape:
    asks = {name: facts.pop(name) for name in list(facts) if name in (*SlotRequest.__slots__, "cpu")}
    return JobShape((Role("worker", ask(gpus, **asks), count),), **facts)


def job(name: str, queue: str = "root/a", gpus: int = 1, count: int = 1, **facts: Any) -> Job:
    mine = {one: facts.pop(one) for one in list(facts) if one in Job.__slots__ and one != "shape"}
    return Job(name, queue, facts.pop("shape", None) or shape(gpus, count, **facts), mine.pop("submitted", 0), **mine)


def snapshot(
    nodes: int | list[Node], jobs: list[Job], queues: tuple[Queue, ...] = (), **facts: Any
) -> SchedulerSnapshot:
    made = [node(f"n{one}") for one in range(nodes)] if isinstance(nodes, int) else nodes
    known = {queue.name for queue in queues}
    facts.setdefault("knobs", SchedulerOptions(patience=0))
    rest = tuple(Queue(name) for name in sorted({one.queue for one in jobs}) if name not in known)
    return SchedulerSnapshot(facts.pop("now", 0), tuple(made), queues + rest, tuple(jobs), **facts)
