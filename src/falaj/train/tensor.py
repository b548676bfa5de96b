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
from falaj.train.blocks import blocks

WORDS = ("column", "row", "sequence", "embedding", "head", "query")
_QKV = re.compile(r"(?:to_|w)?(q|k|v|query|key|value)(?:_?(?:proj|lin|linear))?")
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead")
_POINTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Softplus),
    *(nn.Sigmoid, nn.Tanh, nn.Dropout, nn.Identity),
)


def chosen(module: nn.Module, ways: int, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How each layer is split: as asked (or as `module.parallel_plan` says), or by the default plan."""
    asked = asked or getattr(module, "parallel_plan", None)
    plan = matched(module, asked) if asked else default(module, ways)
    if not plan:
        raise Invalid(
            f"no layer of {type(module).__name__} can be split into {ways} surely",
            f"{{'shard': {ways}}} works for any; or module.parallel_plan says which layers are {WORDS[:3]}",
        )
    return plan


def split(module: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Any], within: nn.Module) -> None:
    """Split layers over the mesh, in place; only those of a stage of the module."""
    inside = set(within.modules())
    layers = {name: module.get_submodule(name) for name in plan}
    mine = [name for name, layer in layers.items() if layer in inside]
    for name in mine:
        parallelize_module(layers[name], mesh, _style(plan[name]))
    for parent in {name.rpartition(".")[0] for name in mine if plan[name] == "query"}:
        _lift(module.get_submodule(parent), mesh)
    made: dict[int, nn.Parameter] = {}
    for unit in (*blocks(within).values(), within):
        _share(unit, mesh, made)


def default(module: nn.Module, ways: int) -> dict[str, str]:
    """How each layer that can be split into so many `ways` is."""
    plan: dict[str, str] = {}
    for name, parent in module.named_modules():
        prefix = f"{name}." if name else ""
        linears = {child: layer for child, layer in parent.named_children() if type(layer) is nn.Linear}
        queries = {found[1][0]: child for child in linears if (found := _QKV.fullmatch(child))}
        if isinstance(parent, nn.Sequential):
            roles = dict(_chain(parent, ways))
        elif len(queries) == 3:
            roles = _attention(parent, linears, queries, ways)
        else:
            roles = _expansion(parent, linears, ways)
        plan |= {prefix + child: role for child, role in roles.items()}
    return plan | _ends(module, ways) if plan else plan


def matched(module: nn.Module, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A plan that names layers by patterns, as one that names each."""
    names = [name for name, _ in module.named_modules() if name]
    plan: dict[str, Any] = {}
    for pattern, how in asked.items():
        if not isinstance(how, ParallelStyle) and how not in WORDS:
            raise Invalid(f"{pattern!r} cannot be split by {how!r}", f"one of {', '.join(WORDS)}, or a ParallelStyle")
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            near = difflib.get_close_matches(pattern, names, 1, 0.0)
            raise Invalid(f"the model has no layer {pattern!r}", f"{near} is near")
        plan |= dict.fromkeys(found, how)
    return plan


def _attention(parent: Any, linears: dict[str, Any], queries: dict[str, str], ways: int) -> dict[str, str]:
    """Split by heads, if queries, keys and values have a number of heads that can be shared evenly."""
    query, key, value = (linears[queries[letter]] for letter in "qkv")
    outs = [name for name, layer in linears.items() if name not in queries.values()]
    width = _head_width(parent, query.out_features)
    if len(outs) != 1 or not width or linears[outs[0]].in_features != query.out_features:
        return {}
    if any(layer.out_features % (width * ways) for layer in (query, key, value)):
        return {}
    return dict.fromkeys(queries.values(), "query") | {outs[0]: "row"}


def _head_width(parent: Any, width: int) -> int:
    known = getattr(parent, "head_dim", None)
    if isinstance(known, int):
        return known
    for holder in (parent, getattr(parent, "config", None)):
        for name in _HEADS:
            heads = getattr(holder, name, None)
            if isinstance(heads, int) and heads > 0 and width % heads == 0:
                return width // heads
    return 0


def _expansion(parent: nn.Module, linears: dict[str, Any], ways: int) -> dict[str, str]:
    """Layers from a width to a larger one (two when gated) and one back, with nothing of the larger width between."""
    shapes = {(layer.in_features, layer.out_features) for layer in linears.values()}
    down = [name for name, layer in linears.items() if layer.in_features > layer.out_features]
    if len(down) != 1 or len(linears) < 2:
        return {}
    wide, narrow = linears[down[0]].in_features, linears[down[0]].out_features
    others = [layer for layer in parent.children() if layer not in linears.values()]
    inside = any(wide in param.shape for layer in others for param in layer.parameters(recurse=False))
    if shapes != {(narrow, wide), (wide, narrow)} or inside or wide % ways:
        return {}
    return dict.fromkeys(linears, "column") | {down[0]: "row"}


def _chain(parent: nn.Sequential, ways: int) -> Iterator[tuple[str, str]]:
    """Linears that follow each other with only pointwise layers between, two by two."""
    before: tuple[str, nn.Linear] | None = None
    for name, layer in parent.named_children():
        if type(layer) is not nn.Linear:
            before = before if isinstance(layer, _POINTWISE) else None
        elif before and before[1].out_features == layer.in_features and layer.in_features % ways == 0:
            yield before[0], "column"
            yield name, "row"
            before = None
        else:
            before = (name, layer)


def _ends(module: nn.Module, ways: int) -> dict[str, str]:
    """The table of tokens and the layer back to them, unless they share their weights."""
    inner = tuple(f"{name}." for name in blocks(module))
    outer = {name: layer for name, layer in module.named_modules() if not name.startswith(inner)}
    tables = {name: layer for name, layer in outer.items() if type(layer) is nn.Embedding and layer.max_norm is None}
    if not tables:
        return {}
    first = max(tables, key=lambda name: tables[name].num_embeddings)
    table = tables[first]
    heads = [name for name, layer in outer.items() if isinstance(layer, nn.Linear) and _out(layer, table)]
    tied = any(layer.weight is table.weight for layer in outer.values() if isinstance(layer, nn.Linear))
    if tied or len(heads) != 1 or table.num_embeddings % ways:
        return {}
    return {first: "embedding", heads[0]: "head"}


def _out(layer: nn.Linear, table: nn.Embedding) -> bool:
    return type(layer) is nn.Linear and layer.out_features == table.num_embeddings


def _style(how: Any) -> ParallelStyle:
    if isinstance(how, ParallelStyle):
        return how
    made: dict[str, ParallelStyle] = {
        "column": ColwiseParallel(),
        "row": RowwiseParallel(),
        "sequence": SequenceParallel(),
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
        # Attention reshapes by widths of the whole: it sees tensors that know the whole, though each holds a part.
        "query": ColwiseParallel(use_local_output=False),
    }
    return made[how]


class _Lifted(TorchFunctionMode):
    """Inside it, plain tensors join distributed ones as replicas, and attention runs on this process's own heads."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(leaf, DTensor) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        args, kwargs = tree_map(self._join, (args, kwargs))
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        # Kernels of attention differ from device to device, and not all know of distributed tensors.
        args, kwargs = tree_map(self._heads, (args, kwargs))
        return DTensor.from_local(func(*args, **kwargs), self._mesh, [Shard(1)], run_check=False)

    def _heads(self, leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        shared = leaf.ndim < 4 or leaf.shape[1] == 1  # a mask for all heads
        return leaf.redistribute(placements=[Replicate() if shared else Shard(1)]).to_local()

    def _join(self, leaf: Any) -> Any:
        alone = isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor)
        return DTensor.from_local(leaf, self._mesh, [Replicate()], run_check=False) if alone else leaf


def _lift(module: nn.Module, mesh: DeviceMesh) -> None:
    inner = module.forward

    def forward(*given: Any, **named: Any) -> Any:
        with _Lifted(mesh):
            return inner(*given, **named)

    module.forward = forward


def _share(unit: nn.Module, mesh: DeviceMesh, made: dict[int, nn.Parameter]) -> None:
    """Parameters that stay whole become replicas over the mesh: optimizers, shards and checkpoints find one kind only.
    While their block or model computes, they are plain."""
    places = []
    for owner in unit.modules():
        for name, param in list(owner.named_parameters(recurse=False)):
            if not isinstance(param, DTensor):
                whole = DTensor.from_local(param.detach(), mesh, [Replicate()], run_check=False)
                # Tied parameters stay tied.
                shared = made.setdefault(id(param), nn.Parameter(whole, requires_grad=param.requires_grad))
                owner.register_parameter(name, shared)
                places.append((owner, name))
    inner = unit.forward

    def forward(*given: Any, **named: Any) -> Any:
        for owner, name in places:
            # What an object has itself is found before what the module keeps.
            object.__setattr__(owner, name, getattr(owner, name).to_local())
        try:
            return inner(*given, **named)
        finally:
            for owner, name in places:
                object.__delattr__(owner, name)

    if places:
        unit.forward = forward
