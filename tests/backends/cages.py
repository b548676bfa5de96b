"""Attempts in a cage, really tried: an executor that must enforce everything, on this machine."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.backends.process import ProcessExecutor
from falaj.core.executor import Attempt, AttemptStatus
from falaj.worker.attempt_context import build_document
from tests.backends.attempts import attempt, over, slots

# Each line of the answer is one trial: its name and what came of it. Nothing that a trial raises ends the others.
HOSTILE = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, trial):
    try:
        print(json.dumps([name, "done", repr(trial())[:200]]), flush=True)
    except Exception as error:
        print(json.dumps([name, "refused", repr(error)[:200]]), flush=True)
def call(number, *values):
    if libc.syscall(number, *values) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "went through"
def connect(host, port):
    with socket.create_connection((host, port), 3):
        return "connected"
def write(path):
    with open(path, "w") as file:
        file.write("x")
    return "written"
"""


class Caged:
    """`caged.tried(program)` runs one attempt and gives what came of each trial."""

    def __init__(self, home: Path, **options: str) -> None:
        self.home = home
        self.root = home / "attempts"
        told = {"folder": str(self.root), "sandbox": "required", "hidden": str(home)} | options
        self.executor = ProcessExecutor("process:?nodes=2&cpus=2000&memory=2048", told)

    def made(self, program: str, *nodes: str, **more: Any) -> Attempt:
        """An attempt in a folder of its own, as the platform lays it out."""
        given = {name: more.pop(name) for name in ("inputs", "outputs", "checkpoints") if name in more}
        bare = attempt(slots(*(nodes or ("node-1",)), memory=512), program, **more)
        folder = self.root / bare.id
        (folder / "code").mkdir(parents=True, mode=0o700)
        placed = replace(bare, folder=str(folder))
        whole = build_document(
            placed, telemetry_s=60, outbox=str(folder / "outbox"), code=str(folder / "code"), **given
        )
        return replace(placed, context=whole)

    def run(self, made: Attempt, deadline_s: float = 60) -> tuple[AttemptStatus, list[str]]:
        """How it ended, and what its first slot wrote."""
        status = over(self.executor, self.executor.launch(made), deadline_s)
        return status, list(self.executor.logs(made.id, 0).lines)

    def tried(self, program: str, **more: Any) -> dict[str, tuple[str, str]]:
        """By the name of a trial: "done" or "refused", and what it gave."""
        status, lines = self.run(self.made(HOSTILE + program, **more))
        assert status.phase == "succeeded", (status, lines)
        return {name: (came, what) for name, came, what in map(json.loads, lines)}


@contextlib.contextmanager
def caged(home: Path, **options: str) -> Iterator[Caged]:
    home.mkdir(exist_ok=True)
    made = Caged(home, **options)
    try:
        yield made
    finally:
        made.executor.close()
