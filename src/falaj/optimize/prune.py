"""Pruning: single weights, which makes a file smaller when it is packed; whole units, which makes a model faster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.optimize.graphs import load, save
from falaj.optimize.modules import traced

_LAYERS = ("linear.default", "conv2d.default", "conv1d.default")
_NORMS = ("batch_norm.default",)
_THROUGH = (
    "relu.default", "relu_.default", "gelu.default", "silu.default", "tanh.default", "sigmoid.default",
    "leaky_relu.default", "elu.default", "hardswish.default", "dropout.default", "max_pool2d.default",
    "max_pool1d.default", "avg_pool2d.default", "adaptive_avg_pool2d.default", "flatten.using_ints",
    "contiguous.default",
)  # fmt: skip
"""What may stand between two layers: it treats every unit by itself."""
_LEAST = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """Units that one layer makes and only another one takes, with the parameters that go with them, by name."""

    maker: str
    """Its rows are the units."""
    beside: tuple[str, ...]
    """Biases and norms: one value a unit."""
    taker: str
    """Its columns are the units, each as many times as `fold` says."""


def sparse_weights(file: Path, out: Path, share: float) -> Path:
    """Set the smallest of each matrix's weights to zero. No faster: zeros are multiplied like other numbers."""
    from onnx import numpy_helper

    model = load(file)
    for one in model.graph.initializer:
        values = numpy_helper.to_array(one)
        if values.ndim >= 2 and values.dtype == np.float32:
            one.CopyFrom(numpy_helper.from_array(np.where(masked(values, share), values, np.float32(0)), one.name))
    return save(model, out)


def masked(values: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """True for the weights that stay: all but the smallest `share`."""
    size = np.abs(values)
    bound = np.partition(size.ravel(), int(size.size * share))[int(size.size * share)]
    return np.asarray(size >= bound)


def pairs(module: Any, example: Sequence[NDArray[Any]]) -> list[Pair]:
    """Every place in a module where whole units can be taken out without anyone else noticing."""
    program = traced(module, example)
    names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    used = [str(one) for node in program.graph.nodes for one in node.args]
    found = [_pair(node, names, used) for node in program.graph.nodes if _kind(node) in _LAYERS]
    return [pair for pair in found if pair]


def take_units(module: Any, found: Sequence[Pair], share: float) -> dict[str, int]:
    """Take the units of least norm out of a module, in place; how many each layer lost."""
    import torch

    lost: dict[str, int] = {}
    for pair in found:
        maker, taker = (module.get_parameter(name).detach() for name in (pair.maker, pair.taker))
        units = len(maker)
        fold = taker.shape[1] // units
        inward = maker.flatten(1).norm(dim=1)
        outward = taker.reshape(taker.shape[0], units, -1).norm(dim=(0, 2))
        stay = max(_LEAST, units - int(units * share))
        kept = (inward * outward).topk(stay).indices.sort().values
        _put(module, pair.maker, maker[kept])
        columns = (kept[:, None] * fold + torch.arange(fold)).flatten()
        _put(module, pair.taker, taker[:, columns])
        for name in pair.beside:
            _put(module, name, _held(module, name)[kept])
        lost[pair.maker] = units - stay
    return lost


def _pair(node: Any, names: Mapping[str, str], used: Sequence[str]) -> Pair | None:
    """Follow what a layer makes to the one layer that takes it."""
    maker = names.get(str(node.args[1]))
    beside = [names.get(str(one)) for one in node.args[2:3] if one is not None]
    at = node
    while len(at.users) == 1:
        at = next(iter(at.users))
        if _kind(at) in _NORMS:
            beside += [names.get(str(one)) for one in at.args[1:5] if one is not None]
        elif _kind(at) in _LAYERS:
            break
        elif _kind(at) not in _THROUGH:
            return None
    else:
        return None
    taker = names.get(str(at.args[1]))
    ours = [str(node.args[1]), str(at.args[1])]
    plain = _groups(node) == _groups(at) == 1 and all(used.count(one) == 1 for one in ours)
    flat = _kind(node) != "linear.default" or _kind(at) == "linear.default"
    if not maker or not taker or not all(beside) or not plain or not flat:
        return None
    return Pair(maker, tuple(one for one in beside if one), taker)


def _kind(node: Any) -> str:
    return str(node.target).removeprefix("aten.") if node.op == "call_function" else ""


def _groups(node: Any) -> int:
    return int(node.args[6]) if _kind(node).startswith("conv") and len(node.args) > 6 else 1


def _held(module: Any, name: str) -> Any:
    owner, _, last = name.rpartition(".")
    return getattr(module.get_submodule(owner), last).detach()


def _put(module: Any, name: str, values: Any) -> None:
    import torch

    owner, _, last = name.rpartition(".")
    holder = module.get_submodule(owner)
    held = getattr(holder, last)
    if isinstance(held, torch.nn.Parameter):
        setattr(holder, last, torch.nn.Parameter(values.clone()))
    else:
        setattr(holder, last, values.clone())


def need(found: Sequence[Pair]) -> Sequence[Pair]:
    """Invalid where there is nothing to take."""
    if not found:
        raise Invalid("no two layers follow one another with nothing but an activation between", "")
    return found
