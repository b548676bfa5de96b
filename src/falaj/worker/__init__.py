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

from falaj.worker.outbox import Outbox, to_json_number

__all__ = ["CurrentAttempt", "attempt"]

_EXIT_YIELDED = 85
_LOCAL_RANK_VARIABLES = ("FALAJ_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_RANK_VARIABLES = ("FALAJ_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


@cache
def attempt() -> "CurrentAttempt":
    """The attempt this process belongs to."""
    return CurrentAttempt()


class CurrentAttempt:
    """One process of an attempt, or a process that belongs to none."""

    def __init__(self) -> None:
        environ = os.environ
        self.id = environ.get("FALAJ_ATTEMPT", "")
        self.job, self.run = environ.get("FALAJ_JOB", ""), environ.get("FALAJ_RUN", "")
        self.slot = int(environ.get("FALAJ_SLOT") or 0)
        self.rank = next((int(environ[name]) for name in _RANK_VARIABLES if environ.get(name)), 0) if self.id else 0
        self.world = int(environ.get("FALAJ_WORLD") or 1)
        self.local_rank = (
            next((int(environ[name]) for name in _LOCAL_RANK_VARIABLES if environ.get(name)), 0) if self.id else 0
        )
        self.inputs, self.outputs = _read_paths("FALAJ_INPUT_"), _read_paths("FALAJ_OUTPUT_")
        self.checkpoints = Path(environ["FALAJ_CHECKPOINTS"]) if environ.get("FALAJ_CHECKPOINTS") else None
        outbox = environ.get("FALAJ_OUTBOX", "")
        self._outbox = Outbox(outbox, f"rank-{self.rank}") if self.id and outbox else None
        traceparent = environ.get("FALAJ_TRACEPARENT", "")
        self._is_traced = len(traceparent) == 55 and traceparent[-1] in "13579bdf"
        self._current_span_id = ""
        """The span we are in; of one thread, which is what most programs trace."""
        self._requested_action = ""
        self._handles_signals = False

    def progress(self, step: int, steps: int = 0) -> None:
        """Say how far we are: `step` of `steps` done. The scheduler learns from it how long we will take."""
        self._write_fact("progress", step=step, steps=steps)

    def checkpointed(self, step: int, path: str = "", save_s: float = 0.0) -> None:
        """Say that a checkpoint is saved and whole: from here an interrupted attempt goes on."""
        if self._requested_action == "save":
            self._requested_action = ""
        self._write_fact("checkpoint", step=step, path=str(path), save_s=round(save_s, 3))

    def metric(self, key: str, value: float, step: int = 0) -> None:
        """Write one measurement of the run."""
        self._write_fact("metric", key=key, value=to_json_number(float(value)), step=step)

    def note(self, text: str) -> None:
        """Say something in words."""
        self._write_fact("note", text=text[:4000])

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time what is done inside, in the trace that the job was asked for in; nothing where there is none."""
        if not self._is_traced:
            yield
            return
        parent_span_id, span_id, started_at = self._current_span_id, os.urandom(8).hex(), time.time()
        self._current_span_id, error_name = span_id, ""
        try:
            yield
        except BaseException as error:
            error_name = type(error).__name__
            raise
        finally:
            self._current_span_id = parent_span_id
            self._write_fact(
                "span",
                name=name[:80],
                span=span_id,
                parent=parent_span_id,
                began=started_at,
                ended=time.time(),
                failed=error_name,
            )

    def asked(self) -> str:
        """What somebody wants of us: "save" a checkpoint, or "stop" after saving one; else nothing.

        From the first call on, TERM no longer ends this process: ask often, and end soon when told to.
        """
        if not self._handles_signals and self.id:
            with contextlib.suppress(ValueError):  # only the main thread may listen
                signal.signal(signal.SIGUSR1, self._on_signal)
                signal.signal(signal.SIGTERM, self._on_signal)
                self._handles_signals = True
        return self._requested_action

    def join_jax(self) -> None:
        """Join the other processes of the attempt; nothing to do where there are none."""
        if "JAX_PROCESS_ID" in os.environ:
            settings = (os.environ[f"JAX_{name}"] for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"))
            address, process_count, rank = settings
            import_module("jax").distributed.initialize(address, int(process_count), int(rank))

    def yield_place(self) -> NoReturn:
        """End now, saved: the job is queued again and goes on from its checkpoint."""
        sys.exit(_EXIT_YIELDED)

    def _on_signal(self, signal_number: int, frame: object) -> None:
        del frame
        self._requested_action = (
            "stop" if signal_number == signal.SIGTERM or self._requested_action == "stop" else "save"
        )

    def _write_fact(self, kind: str, **fact: object) -> None:
        if self._outbox is not None:
            self._outbox.tell(kind, rank=self.rank, **fact)


def _read_paths(prefix: str) -> dict[str, str]:
    return {name[len(prefix) :].lower(): path for name, path in os.environ.items() if name.startswith(prefix)}
