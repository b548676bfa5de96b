"""What code sees of the attempt it runs in. Standard library and falaj.core only.

    from falaj import worker

    here = worker.attempt()
    for step in range(first, steps):
        ...
        here.progress(step, steps)
        here.metric("loss", loss, step)
        if here.asked():                # "save": somebody wants a checkpoint; "stop": save it, then end
            save(...)
            here.checkpointed(step, path)
            if here.asked() == "stop":
                here.yield_place()
    with here.span("evaluate"):         # in the trace of whoever asked for the job, where it has one
        ...

The same code runs outside any attempt: then nobody is told, and nothing is asked.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from falaj.worker.outbox import Outbox, finite

__all__ = ["Here", "attempt"]

_YIELDED = 85
_LOCAL_RANKS = ("FALAJ_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_RANKS = ("FALAJ_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


@cache
def attempt() -> "Here":
    """The attempt this process belongs to."""
    return Here()


class Here:
    """One process of an attempt, or a process that belongs to none."""

    def __init__(self) -> None:
        known = os.environ
        self.id = known.get("FALAJ_ATTEMPT", "")
        self.job, self.run = known.get("FALAJ_JOB", ""), known.get("FALAJ_RUN", "")
        self.slot = int(known.get("FALAJ_SLOT") or 0)
        self.rank = next((int(known[name]) for name in _RANKS if known.get(name)), 0) if self.id else 0
        self.world = int(known.get("FALAJ_WORLD") or 1)
        self.local_rank = next((int(known[name]) for name in _LOCAL_RANKS if known.get(name)), 0) if self.id else 0
        self.inputs, self.outputs = _named("FALAJ_INPUT_"), _named("FALAJ_OUTPUT_")
        self.checkpoints = Path(known["FALAJ_CHECKPOINTS"]) if known.get("FALAJ_CHECKPOINTS") else None
        outbox = known.get("FALAJ_OUTBOX", "")
        self._outbox = Outbox(outbox, f"rank-{self.rank}") if self.id and outbox else None
        trace = known.get("FALAJ_TRACEPARENT", "")
        self._followed = len(trace) == 55 and trace[-1] in "13579bdf"
        self._above = ""
        """The span we are in; of one thread, which is what most programs trace."""
        self._asked = ""
        self._listening = False

    def progress(self, step: int, steps: int = 0) -> None:
        """Say how far we are: `step` of `steps` done. The scheduler learns from it how long we will take."""
        self._tell("progress", step=step, steps=steps)

    def checkpointed(self, step: int, path: str = "", save_s: float = 0.0) -> None:
        """Say that a checkpoint is saved and whole: from here an interrupted attempt goes on."""
        if self._asked == "save":
            self._asked = ""
        self._tell("checkpoint", step=step, path=str(path), save_s=round(save_s, 3))

    def metric(self, key: str, value: float, step: int = 0) -> None:
        """Write one measurement of the run."""
        self._tell("metric", key=key, value=finite(float(value)), step=step)

    def note(self, text: str) -> None:
        """Say something in words."""
        self._tell("note", text=text[:4000])

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what is done inside, in the trace that the job was asked for in; nothing where there is none."""
        if not self._followed:
            yield
            return
        above, mine, began = self._above, os.urandom(8).hex(), time.time()
        self._above, failed = mine, ""
        try:
            yield
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            self._above = above
            self._tell("span", name=name[:80], span=mine, parent=above, began=began, ended=time.time(), failed=failed)

    def asked(self) -> str:
        """What somebody wants of us: "save" a checkpoint, or "stop" after saving one; else nothing.

        From the first call on, TERM no longer ends this process: ask often, and end soon when told to.
        """
        if not self._listening and self.id:
            with contextlib.suppress(ValueError):  # only the main thread may listen
                signal.signal(signal.SIGUSR1, self._hear)
                signal.signal(signal.SIGTERM, self._hear)
                self._listening = True
        return self._asked

    def join_jax(self) -> None:
        """Join the other processes of the attempt; nothing to do where there are none."""
        if "JAX_PROCESS_ID" in os.environ:
            given = (os.environ[f"JAX_{name}"] for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"))
            address, num, rank = given
            import_module("jax").distributed.initialize(address, int(num), int(rank))

    def yield_place(self) -> NoReturn:
        """End now, saved: the job is queued again and goes on from its checkpoint."""
        sys.exit(_YIELDED)

    def _hear(self, number: int, frame: object) -> None:
        del frame
        self._asked = "stop" if number == signal.SIGTERM or self._asked == "stop" else "save"

    def _tell(self, kind: str, **fact: object) -> None:
        if self._outbox is not None:
            self._outbox.tell(kind, rank=self.rank, **fact)


def _named(prefix: str) -> dict[str, str]:
    return {name[len(prefix) :].lower(): path for name, path in os.environ.items() if name.startswith(prefix)}
