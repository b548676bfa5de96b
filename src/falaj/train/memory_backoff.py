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
from falaj.train.weights import publish_file

if TYPE_CHECKING:
    from falaj.train.run import Run

RETRY_EXIT_CODE = 75
"""The exit code of an attempt that is to be tried again, and does not count."""
_MICRO_FILE = "micro.json"
_CPU_ERROR_TEXT = "can't allocate memory"


class CarriedState(NamedTuple):
    """The state of a training in host memory."""

    step: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory is used up, on a device or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _CPU_ERROR_TEXT in str(error)
    )


def back_off(run: "Run", error: BaseException) -> tuple[int, CarriedState | None]:
    """The next smaller micro-batch, and the state to go on from; what the error held in memory is free after this."""
    micro = _smaller_micro(run, error)
    carried = _copy_state(run) if run.mesh.world == 1 else None
    traceback.clear_frames(error.__traceback__)
    run.let_go()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    run.here.note(f"out of memory: on with micro-batches of {micro}")
    if run.mesh.world > 1:
        if run.folder is None:
            raise UserCodeFailed(f"memory ran out: {error}", f"micro={micro} may fit") from error
        publish_file(run.folder / _MICRO_FILE, (json.dumps({"micro": micro}).encode(),))
        raise SystemExit(RETRY_EXIT_CODE)
    return micro, carried


def read_micro_limit(folder: Path | None) -> int:
    """The micro-batch that earlier attempts found to be too large already is above this; 0: none was."""
    try:
        return int(json.loads((folder / _MICRO_FILE).read_bytes())["micro"]) if folder else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _smaller_micro(run: "Run", error: BaseException) -> int:
    from falaj.train.run import find_largest_divisor

    plan = run.plan
    if plan is None:
        raise UserCodeFailed(
            f"memory ran out before the first step: {error}", "the model itself does not fit"
        ) from error
    if run.strict is not None:
        raise UserCodeFailed(
            f"memory ran out with micro-batches of {plan.micro}, and strict cannot change them: bits would",
            f"begin anew with micro={find_largest_divisor(plan.batch, plan.micro // 2)}, or use reproducible='order'",
        ) from error
    if plan.micro == 1:
        raise UserCodeFailed(
            f"memory ran out though samples come one at a time: {error}", "activation='blocks', parallel='fsdp'"
        ) from error
    return find_largest_divisor(plan.batch, plan.micro // 2)


def _copy_state(run: "Run") -> CarriedState | None:
    """The state between two steps, unless it broke while parameters moved."""
    if not run.whole:
        return None
    tensors = {name: tensor.to("cpu", copy=True) for name, tensor in run.keeping.tensors().items()}
    return CarriedState(run.done, tensors, run.meta())
