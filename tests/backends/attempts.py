"""Attempts for the tests of executors: real launchers around small Python programs."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from falaj.core.executor import FINISHED_PHASES, Attempt, AttemptStatus, Executor, Slot
from falaj.worker.attempt_context import build_document
from falaj.worker.launcher_archive import get_launcher_archive

# Says that it is there, saves when asked, ends when told: with 3, after having said so.
PATIENT = """
import os, signal, sys, time
def say(word): print(word, os.environ["FALAJ_SLOT"], flush=True)
def end(*_): say("ending"); sys.exit(3)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, lambda *_: say("saved"))
say("here")
while True: time.sleep(0.05)
"""


def slots(*nodes: str, cpu: int = 1000, memory: int = 1024) -> tuple[Slot, ...]:
    return tuple(Slot(index, node, amounts={"cpu": cpu, "memory": memory}) for index, node in enumerate(nodes))


def attempt(places: Sequence[Slot], program: str, folder: Path | None = None, **more: object) -> Attempt:
    """An attempt that runs a Python program in every slot."""
    made = Attempt(
        id=f"try-{uuid.uuid4().hex[:12]}",
        job="job:fraud/train",
        tenant="bank",
        project="fraud",
        slots=tuple(places),
        command=("python3", "-c", program),
        folder=str(folder or ""),
        grace_s=5,
        launcher=get_launcher_archive(),
        **more,  # type: ignore[arg-type]
    )
    outbox = {"outbox": str(folder / "outbox")} if folder else {}
    return replace(made, context=build_document(made, telemetry_s=60, **outbox))


def wait_for(
    executor: Executor, handle: str, reached: Callable[[AttemptStatus], bool], deadline_s: float = 60
) -> AttemptStatus:
    """Poll until it is as wanted; fails with the last answer."""
    end = time.monotonic() + deadline_s
    while not reached(status := executor.poll([handle])[0]):
        assert time.monotonic() < end, status
        time.sleep(0.1)
    return status


def over(executor: Executor, handle: str, deadline_s: float = 60) -> AttemptStatus:
    return wait_for(executor, handle, lambda status: status.phase in FINISHED_PHASES, deadline_s)


def wait_for_line(executor: Executor, handle: str, slot: int, line: str, deadline_s: float = 60) -> None:
    """Read a slot's log until a line is there."""
    end, cursor, seen = time.monotonic() + deadline_s, "", []
    while line not in seen:
        chunk = executor.logs(handle, slot, cursor)
        cursor = chunk.cursor
        seen += chunk.lines
        assert time.monotonic() < end, (seen, executor.poll([handle]))
        time.sleep(0.1)
