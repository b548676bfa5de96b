"""Processes that run together as ranks, forked from one that has torch already; they meet by a file."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

LIMIT_S = 100.0
torch.set_num_threads(1)


def fork(work: Callable[[], None]) -> int:
    """Another process that does this and ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - told, and the process ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end(children: Sequence[int]) -> list[int]:
    """How they ended: 0 well, negative by which signal. Those that take too long are killed."""
    until, codes = time.monotonic() + LIMIT_S, dict[int, int]()
    while len(codes) < len(children):
        for child in set(children) - set(codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[child] for child in children]


def together(world: int, work: Callable[[int], None], meet: Path) -> None:
    """Run as so many ranks of one gloo group; all end well."""
    meet.unlink(missing_ok=True)
    assert end([fork(lambda rank=rank: joined(rank, world, work, meet)) for rank in range(world)]) == [0] * world


def joined(rank: int, world: int, work: Callable[[int], None], meet: Path) -> None:
    """Be one of so many ranks."""
    store = dist.FileStore(str(meet), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    work(rank)
    dist.barrier()
    dist.destroy_process_group()
