"""Processes of a training, forked from this one: torch is imported once, and ranks meet in a file."""

import faulthandler
import os
import pickle
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist

from falaj import worker

DEADLINE_S = 110.0


def world(size: int, folder: Path, work: Callable[[], Any], *, fine: bool = True) -> list[Any]:
    """What `work` gives in each of so many processes, or its exit code. `fine`: all must end well."""
    meeting = folder / f"meeting-{uuid.uuid4().hex[:8]}"
    children = [begin(rank, size, meeting, work) for rank in range(size)]
    codes = join(children)
    found = []
    for rank, code in enumerate(codes):
        told = Path(f"{meeting}.{rank}")
        found.append(pickle.loads(told.read_bytes()) if told.exists() else code)  # noqa: S301 - our own child's
    if fine:
        assert codes == [0] * size, (codes, found)
    return found


def begin(rank: int, size: int, meeting: Path, work: Callable[[], Any]) -> int:
    """Fork one rank; gives its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        faulthandler.enable()
        torch.set_num_threads(1)
        worker.attempt.cache_clear()
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        if size > 1:
            store = dist.FileStore(str(meeting), size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        told = work()
        draft = Path(f"{meeting}.{rank}.draft")
        draft.write_bytes(pickle.dumps(told))
        draft.rename(f"{meeting}.{rank}")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:  # noqa: BLE001 - a child has no other way to say what happened
        traceback.print_exc()
        Path(f"{meeting}.{rank}").write_bytes(pickle.dumps(f"{type(error).__name__}: {error}"))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def join(children: list[int], *, limit_s: float = DEADLINE_S, grace_s: float = 2.0) -> list[int]:
    """The exit codes; once one fails the others are ended, as a launcher does."""
    codes: dict[int, int] = {}
    until = time.monotonic() + limit_s
    while len(codes) < len(children):
        for pid in children:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > until or any(codes.values()):
            grace = time.monotonic() + (grace_s if time.monotonic() <= until else 0.0)
            _end([pid for pid in children if pid not in codes], grace, codes)
        time.sleep(0.002)
    return [codes[pid] for pid in children]


def _end(children: list[int], until: float, codes: dict[int, int]) -> None:
    """Those who end by themselves, with an answer, may; the others are killed."""
    while children:
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
                children.remove(pid)
        if children and time.monotonic() > until:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
