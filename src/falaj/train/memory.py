"""When memory runs out in a step: smaller micro-batches, the same batch and samples, from the state that is there.

Alone, a process takes its state to the host, lets everything go, and runs the script again from that state. Of several,
one cannot go back alone: it writes the smaller size beside the checkpoints and ends, to be tried again.
"""

import gc
import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from falaj.core.errors import UserCodeFailed
from falaj.train.weights import publish

if TYPE_CHECKING:
    from falaj.train.run import Run

AGAIN = 75
"""The exit code of an attempt that is to be tried again, and does not count."""
_FILE = "micro.json"
_CPU = "can't allocate memory"


class Carried(NamedTuple):
    """The state of a training in host memory."""

    step: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]


def ran_out(error: BaseException) -> bool:
    """Whether this error says that memory is used up, on a device or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and _CPU in str(error))


def back_off(run: "Run", error: BaseException) -> tuple[int, Carried | None]:
    """The next smaller micro-batch, and the state to go on from; what the error held in memory is free after this."""
    micro = _smaller(run, error)
    carried = _carry(run) if run.mesh.world == 1 else None
    traceback.clear_frames(error.__traceback__)
    run.let_go()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    run.here.note(f"out of memory: on with micro-batches of {micro}")
    if run.mesh.world > 1:
        if run.folder is None:
            raise UserCodeFailed(f"memory ran out: {error}", f"micro={micro} may fit") from error
        publish(run.folder / _FILE, (json.dumps({"micro": micro}).encode(),))
        raise SystemExit(AGAIN)
    return micro, carried


def limit(folder: Path | None) -> int:
    """The micro-batch that earlier attempts found to be too large already is above this; 0: none was."""
    try:
        return int(json.loads((folder / _FILE).read_bytes())["micro"]) if folder else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _smaller(run: "Run", error: BaseException) -> int:
    from falaj.train.run import divisor

    plan = run.plan
    if plan is None:
        raise UserCodeFailed(
            f"memory ran out before the first step: {error}", "the model itself does not fit"
        ) from error
    if run.strict is not None:
        raise UserCodeFailed(
            f"memory ran out with micro-batches of {plan.micro}, and strict cannot change them: bits would",
            f"begin anew with micro={divisor(plan.batch, plan.micro // 2)}, or use reproducible='order'",
        ) from error
    if plan.micro == 1:
        raise UserCodeFailed(
            f"memory ran out though samples come one at a time: {error}", "activation='blocks', parallel='fsdp'"
        ) from error
    return divisor(plan.batch, plan.micro // 2)


def _carry(run: "Run") -> Carried | None:
    """The state between two steps, unless it broke while parameters moved."""
    if not run.whole:
        return None
    tensors = {name: tensor.to("cpu", copy=True) for name, tensor in run.keeping.tensors().items()}
    return Carried(run.done, tensors, run.meta())
