"""Pruning: single weights, which makes a file smaller when it is packed; whole units, which makes a model faster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.optimize.onnx_files import load_model, save_model
from falaj.optimize.torch_modules import trace_module

_LAYERS = ("linear.default", "conv2d.default", "conv1d.default")
_NORMS = ("batch_norm.default",)
_UNITWISE_OPS = (
    "relu.default", "relu_.default", "gelu.default", "silu.default", "tanh.default", "sigmoid.default",
    "leaky_relu.default", "elu.default", "hardswish.default", "dropout.default", "max_pool2d.default",
    "max_pool1d.default", "avg_pool2d.default", "adaptive_avg_pool2d.default", "flatten.using_ints",
    "contiguous.default",
)  # fmt: skip
"""What may stand between two layers: it treats every unit by itself."""
_MIN_UNITS = 2


@dataclass(frozen=True, slots=True)
class LayerPair:
    """Units that one layer makes and only another one takes, with the parameters that go with them, by name."""

    maker: str
    """Its rows are the units."""
    beside: tuple[str, ...]
    """Biases and norms: one value a unit."""
    taker: str
    """Its columns are the units, each as many times as `fold` says."""


def sparsify_weights(file: Path, out: Path, share: float) -> Path:
    """Set the smallest of each matrix's weights to zero. No faster: zeros are multiplied like other numbers."""
    from onnx import numpy_helper

    model = load_model(file)
    for initializer in model.graph.initializer:
        values = numpy_helper.to_array(initializer)
        if values.ndim >= 2 and values.dtype == np.float32:
            initializer.CopyFrom(
                numpy_helper.from_array(
                    np.where(build_keep_mask(values, share), values, np.float32(0)), initializer.name
                )
            )
    return save_model(model, out)


def build_keep_mask(values: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """True for the weights that stay: all but the smallest `share`."""
    size = np.abs(values)
    bound = np.partition(size.ravel(), int(size.size * share))[int(size.size * share)]
    return np.asarray(size >= bound)


def find_layer_pairs(module: Any, example: Sequence[NDArray[Any]]) -> list[LayerPair]:
    """Every place in a module where whole units can be taken out without anyone else noticing."""
    program = trace_module(module, example)
    names = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    used_names = [str(argument) for node in program.graph.nodes for argument in node.args]
    candidates = [_find_pair(node, names, used_names) for node in program.graph.nodes if _get_op_name(node) in _LAYERS]
    return [pair for pair in candidates if pair]


def remove_units(module: Any, layer_pairs: Sequence[LayerPair], share: float) -> dict[str, int]:
    """Take the units of least norm out of a module, in place; how many each layer lost."""
    import torch

    removed_by_layer: dict[str, int] = {}
    for pair in layer_pairs:
        producer, consumer = (module.get_parameter(name).detach() for name in (pair.maker, pair.taker))
        units = len(producer)
        fold = consumer.shape[1] // units
        inward = producer.flatten(1).norm(dim=1)
        outward = consumer.reshape(consumer.shape[0], units, -1).norm(dim=(0, 2))
        keep_count = max(_MIN_UNITS, units - int(units * share))
        kept_units = (inward * outward).topk(keep_count).indices.sort().values
        _replace_tensor(module, pair.maker, producer[kept_units])
        columns = (kept_units[:, None] * fold + torch.arange(fold)).flatten()
        _replace_tensor(module, pair.taker, consumer[:, columns])
        for name in pair.beside:
            _replace_tensor(module, name, _get_tensor(module, name)[kept_units])
        removed_by_layer[pair.maker] = units - keep_count
    return removed_by_layer


def _find_pair(node: Any, names: Mapping[str, str], used_names: Sequence[str]) -> LayerPair | None:
    """Follow what a layer makes to the one layer that takes it."""
    producer = names.get(str(node.args[1]))
    companions = [names.get(str(argument)) for argument in node.args[2:3] if argument is not None]
    consumer_node = node
    while len(consumer_node.users) == 1:
        consumer_node = next(iter(consumer_node.users))
        if _get_op_name(consumer_node) in _NORMS:
            companions += [names.get(str(argument)) for argument in consumer_node.args[1:5] if argument is not None]
        elif _get_op_name(consumer_node) in _LAYERS:
            break
        elif _get_op_name(consumer_node) not in _UNITWISE_OPS:
            return None
    else:
        return None
    consumer = names.get(str(consumer_node.args[1]))
    weight_names = [str(node.args[1]), str(consumer_node.args[1])]
    is_plain = _count_groups(node) == _count_groups(consumer_node) == 1 and all(
        used_names.count(argument) == 1 for argument in weight_names
    )
    is_flat = _get_op_name(node) != "linear.default" or _get_op_name(consumer_node) == "linear.default"
    if not producer or not consumer or not all(companions) or not is_plain or not is_flat:
        return None
    return LayerPair(producer, tuple(argument for argument in companions if argument), consumer)


def _get_op_name(node: Any) -> str:
    return str(node.target).removeprefix("aten.") if node.op == "call_function" else ""


def _count_groups(node: Any) -> int:
    return int(node.args[6]) if _get_op_name(node).startswith("conv") and len(node.args) > 6 else 1


def _get_tensor(module: Any, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return getattr(module.get_submodule(owner), attribute).detach()


def _replace_tensor(module: Any, name: str, values: Any) -> None:
    import torch

    owner, _, attribute = name.rpartition(".")
    holder = module.get_submodule(owner)
    current = getattr(holder, attribute)
    if isinstance(current, torch.nn.Parameter):
        setattr(holder, attribute, torch.nn.Parameter(values.clone()))
    else:
        setattr(holder, attribute, values.clone())


def require_pairs(layer_pairs: Sequence[LayerPair]) -> Sequence[LayerPair]:
    """Invalid where there is nothing to take."""
    if not layer_pairs:
        raise Invalid("no two layers follow one another with nothing but an activation between", "")
    return layer_pairs
