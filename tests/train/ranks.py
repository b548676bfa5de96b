"""Processes that train together: forked from one that has torch already, so that each costs milliseconds."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.pipelining
import torch.distributed.tensor.parallel

torch.set_num_threads(1)
DEADLINE_S = 110.0


def together(
    world: int, work: Callable[..., Any], folder: Path, *given: Any, deadline_s: float = DEADLINE_S
) -> list[Any]:
    """What `work(*given)` returns on each of `world` processes that have met by a file."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    pids, pipes = zip(*[_fork(rank, world, meeting, work, given) for rank in range(world)], strict=True)
    try:
        return _gather(list(pipes), deadline_s)
    finally:
        for pid, pipe in zip(pids, pipes, strict=True):
            pipe.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _gather(pipes: list[Connection], deadline_s: float) -> list[Any]:
    said: dict[int, Any] = {}
    deadline = time.monotonic() + deadline_s
    while len(said) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in said], deadline - time.monotonic())
        assert ready, f"only {sorted(said)} of {len(pipes)} processes came to an end in {deadline_s} s"
        for pipe in ready:
            rank = pipes.index(pipe)
            fine, said[rank] = pipe.recv()
            assert fine, f"process {rank} failed:\n{said[rank]}"
    return [said[rank] for rank in range(len(pipes))]


def _fork(
    rank: int, world: int, meeting: Path, work: Callable[..., Any], given: tuple[Any, ...]
) -> tuple[int, Connection]:
    mine, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, mine
    try:
        if world > 1:
            dist.init_process_group("gloo", store=dist.FileStore(str(meeting), world), rank=rank, world_size=world)
        theirs.send((True, work(*given)))
    except BaseException:  # noqa: BLE001 - whatever it was, the parent shows it
        theirs.send((False, traceback.format_exc()))
    finally:
        sys.stdout.flush()
        signal.pause()  # a process that ends early may take its connections from those that still need them
        os._exit(0)
