"""Checkpoints: how long training stands still for one, and how soon it is back, against torch's own ways.

Run by `python bench/train_state.py`, or as a part of `make bench NAME=train`; with `gpu GB` on a machine with CUDA. All
save the same state to the same disk, take turns in every round, and wait until the last save is durable before the next
one begins. The first save of each is not counted: it gets memory and starts processes. Of stalls the best of the warm
ones is told, since others on the machine only add to them; of all else the median. ROUNDS and
MEGABYTES make it smaller.
"""

import contextlib
import json
import logging
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from scratch import folder

from falaj.state.checkpoints import CheckpointStore

ROUNDS = int(os.environ.get("ROUNDS", "5"))
MEGABYTES = int(os.environ.get("MEGABYTES", "400"))
AGAIN = "a stager whose buffers are used again"
Bar = tuple[float, float, bool, str]
State = dict[str, torch.Tensor]
Save = Callable[[int], tuple[float, float]]
"""Gives for how long it blocked and after how long the state was durable."""


def bars() -> dict[str, Bar]:
    """Name: value, bar, whether it must be at least that, and in words."""
    stalls, loads = on_cpu()
    asynchronous = min(stalls["dcp.async_save, thread"][0], stalls["dcp.async_save, process"][0])
    ours, durable = stalls["falaj"]
    told = ", ".join(f"{name} {stall * 1e3:.1f} ({there:.2f} s)" for name, (stall, there) in stalls.items())
    checked = ", ".join(f"{name} {took * 1e3:.0f}" for name, took in loads.items())
    return {
        "checkpoint stall / DCP async": (
            ours / asynchronous,
            0.2,
            False,
            f"{ours * 1e3:.0f} ms of {MEGABYTES} MB (durable {durable:.2f} s) against {told}",
        ),
        "the same behind the next step / best DCP": (
            stalls["falaj, copied behind the next step"][0] / min(asynchronous, stalls[AGAIN][0]),
            0.2,
            False,
            f"with `later` and `fence`, against DCP with {AGAIN}, too",
        ),
        "checkpoint load / dcp.load": (
            loads["falaj"] / loads["dcp.load"],
            1.5,
            False,
            f"ours with every digest checked, theirs without; ms: {checked}",
        ),
    }


def on_cpu() -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    """Stalls and durability of every way to save, and times of every way to load."""
    _quiet()
    state = made(MEGABYTES * 10**6, "cpu")
    with folder() as place, group():
        saves = CheckpointStore(place / "falaj", keep=1)
        saves.warm(state)
        ways: dict[str, Save] = {
            "torch.save + fsync": lambda n: _plain(state, place / "plain.bin"),
            "dcp.save": lambda n: _dcp(state, place / f"dcp{n}"),
            "dcp.async_save, thread": lambda n: _dcp_async(state, place / f"thread{n}", "thread"),
            AGAIN: lambda n: _dcp_async(state, place / f"thread{n}", "again"),
            "dcp.async_save, process": lambda n: _dcp_async(state, place / f"process{n}", "process"),
            "falaj": lambda n: _ours(saves, 2 * n, state),
            "falaj, copied behind the next step": lambda n: _ours(saves, 2 * n + 1, state, later=True),
        }
        stalls = _turns(ways, state, place)
        loads = _loads(saves, state, place)
        saves.close()
    return stalls, loads


def gpu(state_bytes: int = 15_600_000_000) -> dict[str, dict[str, float]]:
    """The same of a state on a CUDA device, in milliseconds: `host` until the call returned, `device` what a save adds
    to a second or so of work that follows it, `durable` until it was. What ours kept is compared bit by bit.

    Writes six times the state, and needs room for three on the disk."""
    _quiet()
    state = made(state_bytes, "cuda")
    with folder() as place, group("cpu:gloo,cuda:nccl"):
        saves = CheckpointStore(place / "falaj", keep=1)
        began = time.perf_counter()
        saves.warm(state)
        told = {"falaj: memory before the first step": {"host": (time.perf_counter() - began) * 1e3}}
        bare = min(_worked(state, lambda: None, lambda: None)[1] for _ in range(3))
        for number in range(2):  # the first of each is to get warm
            theirs = _Theirs(state, place / f"pinned{number}")
            told["dcp.async_save, pinned staging"] = _told(state, bare, theirs.save, lambda: None, theirs.settle)
            shutil.rmtree(place / f"pinned{number}")
            for name, later in (("falaj", False), ("falaj, copied behind the next step", True)):
                wanted = {name: tensor.clone() for name, tensor in state.items()} if number and later else {}
                begin = partial(saves.save, 2 * number + later, state, {}, late_names=state.keys() if later else ())
                told[name] = _told(state, bare, begin, saves.fence, saves.settle)
        assert saves.problems() == []
        for tensor in state.values():
            tensor.zero_()
        torch.cuda.synchronize()
        began = time.perf_counter()
        fresh = CheckpointStore(place / "falaj")  # which has to check the digests
        assert fresh.restore(state) is not None
        torch.cuda.synchronize()
        told["falaj: load"] = {"host": (time.perf_counter() - began) * 1e3}
        assert wanted.keys() == state.keys()
        assert all(torch.equal(state[name], wanted[name]) for name in wanted), "what was loaded is not what was saved"
        fresh.close()
        saves.close()
    return told


def made(size_bytes: int, device: str) -> State:
    """Parameters and moments of blocks, large and small ones, as a transformer of that size has them."""
    state: State = {}
    width = 1024 if size_bytes < 2e9 else 2048
    block = 0
    while sum(tensor.nbytes for tensor in state.values()) < size_bytes - 12 * width * width * 12:
        for kind in ("parameter", "first", "second"):
            for name, shape in (
                ("attention", (4 * width, width)),
                ("up", (4 * width, width)),
                ("down", (width, 4 * width)),
                ("norm", (width,)),
            ):
                state[f"{kind}.{block}.{name}"] = torch.randn(shape, device=device)
        block += 1
    rest = max(1, (size_bytes - sum(tensor.nbytes for tensor in state.values())) // 4)
    return state | {"table": torch.randn(rest, device=device)}


@contextlib.contextmanager
def group(backend: str = "gloo") -> Iterator[None]:
    """DCP wants to be one of a group."""
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    if alone:
        dist.destroy_process_group()


def _turns(ways: dict[str, Save], state: State, place: Path) -> dict[str, tuple[float, float]]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, save in ways.items():
            for tensor in state.values():
                tensor.add_(1)  # a step changes everything
            taken[name].append(save(number))
            for old in [*place.glob("thread*"), *place.glob("process*"), *place.glob("dcp*")]:
                if number < ROUNDS or not old.name.startswith("dcp"):
                    shutil.rmtree(old)
    # The first of each is to get warm.
    return {
        name: (min(one for one, _ in times[1:]), statistics.median(one for _, one in times[1:]))
        for name, times in taken.items()
    }


def _quiet() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger().setLevel(logging.WARNING)


def _plain(state: State, path: Path) -> tuple[float, float]:
    began = time.perf_counter()
    with path.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    return (time.perf_counter() - began,) * 2


def _dcp(state: State, path: Path) -> tuple[float, float]:
    began = time.perf_counter()
    dcp.save(state, checkpoint_id=path)
    return (time.perf_counter() - began,) * 2


_STAGER: list[Any] = []


def _dcp_async(state: State, path: Path, kind: str) -> tuple[float, float]:
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    how: dict[str, Any] = {}
    if kind == "process":
        how["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
    if kind == "again":
        how["async_stager"] = _stager(pinned=False)
    began = time.perf_counter()
    answer = dcp.async_save(state, checkpoint_id=path, **how)
    if hasattr(answer, "staging_completion"):
        answer.staging_completion.result()  # only then may the tensors change
        answer = answer.upload_completion
    stalled = time.perf_counter() - began
    answer.result()
    return stalled, time.perf_counter() - began


def _stager(*, pinned: bool) -> Any:
    """DCP's own copy to memory that it uses again."""
    if not _STAGER:
        from torch.distributed.checkpoint import staging

        try:
            options = staging.StagingOptions(pinned, False, False, pinned)
            _STAGER.append(staging.DefaultStager(options))
        except (AttributeError, TypeError):
            _STAGER.append(staging.BlockingAsyncStager(cache_staged_state_dict=True))
    return _STAGER[0]


def _ours(saves: CheckpointStore, step: int, state: State, *, later: bool = False) -> tuple[float, float]:
    began = time.perf_counter()
    saves.save(step, state, {"step": step}, late_names=state.keys() if later else ())
    stalled = time.perf_counter() - began
    if later:
        _step()
        fenced = time.perf_counter()
        saves.fence()
        stalled += time.perf_counter() - fenced
    saves.settle()
    assert saves.problems() == []
    return stalled, time.perf_counter() - began


def _step() -> None:
    """Forward and backward of the next step, which read the state: half a second of them."""
    a, until = torch.randn(512, 512), time.perf_counter() + 0.5
    while time.perf_counter() < until:
        a = torch.nn.functional.normalize(a @ a)


class _Theirs:
    """One save of DCP."""

    def __init__(self, state: State, path: Path) -> None:
        self._state, self._path = state, path
        self._answer: Any = None

    def save(self) -> None:
        answer = dcp.async_save(self._state, checkpoint_id=self._path, async_stager=_stager(pinned=True))
        if hasattr(answer, "staging_completion"):
            answer.staging_completion.result()
        self._answer = getattr(answer, "upload_completion", answer)

    def settle(self) -> None:
        self._answer.result()


def _told(state: State, bare: float, save: Any, fence: Any, settle: Any) -> dict[str, float]:
    began = time.perf_counter()
    host, took = _worked(state, save, fence)
    settle()
    return {"host": host * 1e3, "device": (took - bare) * 1e3, "durable": (time.perf_counter() - began) * 1e3}


def _worked(state: State, save: Callable[[], Any], fence: Callable[[], Any]) -> tuple[float, float]:
    """How long a save blocked, and how long it and the products after it took, at whose end the state changes."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch.cuda.synchronize()
    began = time.perf_counter()
    save()
    blocked = time.perf_counter() - began
    for _ in range(600):
        torch.mm(a, a, out=b)
    fence()
    for tensor in state.values():
        tensor.add_(1)
    torch.cuda.synchronize()
    return blocked, time.perf_counter() - began


def _loads(saves: CheckpointStore, state: State, place: Path) -> dict[str, float]:
    taken: dict[str, list[float]] = {"raw read": [], "digests": [], "falaj": [], "dcp.load": []}
    pieces = sorted((place / "falaj" / "pieces").iterdir())
    buffer = bytearray(64 << 20)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for path in pieces:
            with path.open("rb", buffering=0) as file:
                file.readinto(buffer)
        taken["raw read"].append(time.perf_counter() - began)
        fresh = CheckpointStore(place / "falaj", rank=1, world=2, attempt="reads")
        found = fresh.newest(verify=False)
        assert found is not None
        began = time.perf_counter()
        assert fresh.check(found, state)
        taken["digests"].append(time.perf_counter() - began)
        fresh.load(found, state)
        taken["falaj"].append(time.perf_counter() - began)
        fresh.close(0)
        began = time.perf_counter()
        dcp.load(state, checkpoint_id=next(place.glob("dcp*")))
        taken["dcp.load"].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    if sys.argv[1:2] == ["gpu"]:
        told = gpu(int(float(sys.argv[2]) * 1e9) if len(sys.argv) > 2 else 15_600_000_000)
        for name, times in told.items():
            print(f"{name:40}", "  ".join(f"{what} {value:9.1f} ms" for what, value in times.items()))
        print(json.dumps(told))
        return
    known = bars()
    for name, (value, bar, at_least, note) in known.items():
        met = value >= bar if at_least else value <= bar
        print(f"{'ok  ' if met else 'MISS'} {name:32} {value:8.3f}  bar {'>=' if at_least else '<='} {bar:g}  {note}")
    print(json.dumps(known))


if __name__ == "__main__":
    main()
