"""Tensor plans: which layers are split over processes, and along which side, for models that say nothing of it.

A layer split by columns gives a part of its outputs, one split by rows takes a part of its inputs and sums: the pair
needs one sum over processes. What is not surely right to split is left whole.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from falaj.core.errors import Invalid
from falaj.train.blocks import find_blocks

LAYER_STYLES = ("column", "row", "sequence", "embedding", "head", "query")
_QKV = re.compile(r"(?:to_|w)?(q|k|v|query|key|value)(?:_?(?:proj|lin|linear))?")
_HEAD_COUNT_NAMES = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead")
_POINTWISE_LAYERS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Softplus),
    *(nn.Sigmoid, nn.Tanh, nn.Dropout, nn.Identity),
)


def choose_plan(module: nn.Module, split_count: int, requested: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How each layer is split: as asked (or as `module.parallel_plan` says), or by the default plan."""
    requested = requested or getattr(module, "parallel_plan", None)
    plan = match_plan(module, requested) if requested else build_default_plan(module, split_count)
    if not plan:
        raise Invalid(
            f"no layer of {type(module).__name__} can be split into {split_count} surely",
            f"{{'shard': {split_count}}} works for any; or module.parallel_plan "
            f"says which layers are {LAYER_STYLES[:3]}",
        )
    return plan


def split_layers(module: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Any], within: nn.Module) -> None:
    """Split layers over the mesh, in place; only those of a stage of the module."""
    stage_modules = set(within.modules())
    layers = {name: module.get_submodule(name) for name in plan}
    own_layers = [name for name, layer in layers.items() if layer in stage_modules]
    for name in own_layers:
        parallelize_module(layers[name], mesh, _to_parallel_style(plan[name]))
    for parent in {name.rpartition(".")[0] for name in own_layers if plan[name] == "query"}:
        _lift_forward(module.get_submodule(parent), mesh)
    shared_params: dict[int, nn.Parameter] = {}
    for unit in (*find_blocks(within).values(), within):
        _replicate_params(unit, mesh, shared_params)


def build_default_plan(module: nn.Module, split_count: int) -> dict[str, str]:
    """How each layer that can be split into so many `split_count` is."""
    plan: dict[str, str] = {}
    for name, parent in module.named_modules():
        prefix = f"{name}." if name else ""
        linears = {child: layer for child, layer in parent.named_children() if type(layer) is nn.Linear}
        queries = {match[1][0]: child for child in linears if (match := _QKV.fullmatch(child))}
        if isinstance(parent, nn.Sequential):
            roles = dict(_split_chain(parent, split_count))
        elif len(queries) == 3:
            roles = _split_attention(parent, linears, queries, split_count)
        else:
            roles = _split_expansion(parent, linears, split_count)
        plan |= {prefix + child: role for child, role in roles.items()}
    return plan | _split_ends(module, split_count) if plan else plan


def match_plan(module: nn.Module, requested: Mapping[str, Any]) -> dict[str, Any]:
    """A plan that names layers by patterns, as one that names each."""
    names = [name for name, _ in module.named_modules() if name]
    plan: dict[str, Any] = {}
    for pattern, style in requested.items():
        if not isinstance(style, ParallelStyle) and style not in LAYER_STYLES:
            raise Invalid(
                f"{pattern!r} cannot be split by {style!r}", f"one of {', '.join(LAYER_STYLES)}, or a ParallelStyle"
            )
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            closest = difflib.get_close_matches(pattern, names, 1, 0.0)
            raise Invalid(f"the model has no layer {pattern!r}", f"{closest} is near")
        plan |= dict.fromkeys(matches, style)
    return plan


def _split_attention(parent: Any, linears: dict[str, Any], queries: dict[str, str], split_count: int) -> dict[str, str]:
    """Split by heads, if queries, keys and values have a number of heads that can be shared evenly."""
    query, key, value = (linears[queries[letter]] for letter in "qkv")
    output_layers = [name for name, layer in linears.items() if name not in queries.values()]
    width = _find_head_width(parent, query.out_features)
    if len(output_layers) != 1 or not width or linears[output_layers[0]].in_features != query.out_features:
        return {}
    if any(layer.out_features % (width * split_count) for layer in (query, key, value)):
        return {}
    return dict.fromkeys(queries.values(), "query") | {output_layers[0]: "row"}


def _find_head_width(parent: Any, width: int) -> int:
    head_dim = getattr(parent, "head_dim", None)
    if isinstance(head_dim, int):
        return head_dim
    for holder in (parent, getattr(parent, "config", None)):
        for name in _HEAD_COUNT_NAMES:
            heads = getattr(holder, name, None)
            if isinstance(heads, int) and heads > 0 and width % heads == 0:
                return width // heads
    return 0


def _split_expansion(parent: nn.Module, linears: dict[str, Any], split_count: int) -> dict[str, str]:
    """Layers from a width to a larger one (two when gated) and one back, with nothing of the larger width between."""
    shapes = {(layer.in_features, layer.out_features) for layer in linears.values()}
    down = [name for name, layer in linears.items() if layer.in_features > layer.out_features]
    if len(down) != 1 or len(linears) < 2:
        return {}
    wide_width, narrow_width = linears[down[0]].in_features, linears[down[0]].out_features
    others = [layer for layer in parent.children() if layer not in linears.values()]
    is_used_inside = any(wide_width in param.shape for layer in others for param in layer.parameters(recurse=False))
    if shapes != {(narrow_width, wide_width), (wide_width, narrow_width)} or is_used_inside or wide_width % split_count:
        return {}
    return dict.fromkeys(linears, "column") | {down[0]: "row"}


def _split_chain(parent: nn.Sequential, split_count: int) -> Iterator[tuple[str, str]]:
    """Linears that follow each other with only pointwise layers between, two by two."""
    previous: tuple[str, nn.Linear] | None = None
    for name, layer in parent.named_children():
        if type(layer) is not nn.Linear:
            previous = previous if isinstance(layer, _POINTWISE_LAYERS) else None
        elif previous and previous[1].out_features == layer.in_features and layer.in_features % split_count == 0:
            yield previous[0], "column"
            yield name, "row"
            previous = None
        else:
            previous = (name, layer)


def _split_ends(module: nn.Module, split_count: int) -> dict[str, str]:
    """The table of tokens and the layer back to them, unless they share their weights."""
    inner = tuple(f"{name}." for name in find_blocks(module))
    outer = {name: layer for name, layer in module.named_modules() if not name.startswith(inner)}
    tables = {name: layer for name, layer in outer.items() if type(layer) is nn.Embedding and layer.max_norm is None}
    if not tables:
        return {}
    table_name = max(tables, key=lambda name: tables[name].num_embeddings)
    table = tables[table_name]
    heads = [name for name, layer in outer.items() if isinstance(layer, nn.Linear) and _is_output_layer(layer, table)]
    tied = any(layer.weight is table.weight for layer in outer.values() if isinstance(layer, nn.Linear))
    if tied or len(heads) != 1 or table.num_embeddings % split_count:
        return {}
    return {table_name: "embedding", heads[0]: "head"}


def _is_output_layer(layer: nn.Linear, table: nn.Embedding) -> bool:
    return type(layer) is nn.Linear and layer.out_features == table.num_embeddings


def _to_parallel_style(style: Any) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    styles: dict[str, ParallelStyle] = {
        "column": ColwiseParallel(),
        "row": RowwiseParallel(),
        "sequence": SequenceParallel(),
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
        # Attention reshapes by widths of the whole: it sees tensors that know the whole, though each holds a part.
        "query": ColwiseParallel(use_local_output=False),
    }
    return styles[style]


class _LiftedTensors(TorchFunctionMode):
    """Inside it, plain tensors join distributed ones as replicas, and attention runs on this process's own heads."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(leaf, DTensor) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        args, kwargs = tree_map(self._to_replica, (args, kwargs))
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        # Kernels of attention differ from device to device, and not all know of distributed tensors.
        args, kwargs = tree_map(self._take_own_heads, (args, kwargs))
        return DTensor.from_local(func(*args, **kwargs), self._mesh, [Shard(1)], run_check=False)

    def _take_own_heads(self, leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        shared = leaf.ndim < 4 or leaf.shape[1] == 1  # a mask for all heads
        return leaf.redistribute(placements=[Replicate() if shared else Shard(1)]).to_local()

    def _to_replica(self, leaf: Any) -> Any:
        is_plain = isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor)
        return DTensor.from_local(leaf, self._mesh, [Replicate()], run_check=False) if is_plain else leaf


def _lift_forward(module: nn.Module, mesh: DeviceMesh) -> None:
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _LiftedTensors(mesh):
            return inner(*args, **kwargs)

    module.forward = forward


def _replicate_params(unit: nn.Module, mesh: DeviceMesh, shared_params: dict[int, nn.Parameter]) -> None:
    """Parameters that stay whole become replicas over the mesh: optimizers, shards and checkpoints find one kind only.
    While their block or model computes, they are plain."""
    replaced = []
    for owner in unit.modules():
        for name, param in list(owner.named_parameters(recurse=False)):
            if not isinstance(param, DTensor):
                replica = DTensor.from_local(param.detach(), mesh, [Replicate()], run_check=False)
                # Tied parameters stay tied.
                shared = shared_params.setdefault(id(param), nn.Parameter(replica, requires_grad=param.requires_grad))
                owner.register_parameter(name, shared)
                replaced.append((owner, name))
    inner = unit.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        for owner, name in replaced:
            # What an object has itself is found before what the module keeps.
            object.__setattr__(owner, name, getattr(owner, name).to_local())
        try:
            return inner(*args, **kwargs)
        finally:
            for owner, name in replaced:
                object.__delattr__(owner, name)

    if replaced:
        unit.forward = forward
