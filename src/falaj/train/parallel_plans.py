"""Plans: how many processes copy, shard, split and chain a model, from a word or from sizes. Pure functions."""

import difflib
import re
from typing import Any, NamedTuple

from torch import nn

from falaj.core.errors import Invalid

PLAN_NAMES = ("auto", "none", "ddp", "fsdp", "hsdp")
_WRAPPERS = re.compile(r"(^|\.)(?:module|_orig_mod|_checkpoint_wrapped_module)(?=\.)")
_USABLE_MEMORY_SHARE = 0.7


class MeshSizes(NamedTuple):
    """A plan of a world; the innermost, whose processes speak the most, stands last."""

    pipeline: int = 1
    data: int = 1
    shard: int = 1
    tensor: int = 1
    copies: bool = False
    """Replicas whose gradients nobody but the loop adds."""

    @property
    def readers(self) -> int:
        """How many read different data."""
        return self.data * self.shard

    @property
    def sharded(self) -> bool:
        """Whether parameters are held by fully_shard, which also copies what tensor and pipeline plans have cut."""
        return self.shard > 1 or (self.data > 1 and (self.tensor > 1 or self.pipeline > 1))

    @property
    def dimensions(self) -> dict[str, int]:
        """Those of the device mesh: what is larger than one, and something in any case."""
        dimension_sizes = {name: size for name, size in zip(self._fields[:4], self[:4], strict=True) if size > 1}
        if self.sharded:
            dimension_sizes = {
                name: getattr(self, name) for name in self._fields[:4] if name in dimension_sizes or name == "shard"
            }
        return dimension_sizes or {"data": 1}


def resolve_sizes(plan: Any, world: int, local_world: int = 0, *, fits: bool = True) -> MeshSizes:
    """What a plan means for a world of which `local_world` processes share a node."""
    if isinstance(plan, dict):
        return _resolve_product(plan, world)
    if plan not in PLAN_NAMES:
        closest = difflib.get_close_matches(str(plan), PLAN_NAMES, 1, 0.0)[0]
        raise Invalid(f"there is no plan {plan!r}", f"{closest!r} is near; or one of {', '.join(PLAN_NAMES)}, or sizes")
    nodes = world // local_world if local_world and world % local_world == 0 else 1
    if plan == "auto":
        large = "hsdp" if nodes > 1 else "fsdp"
        plan = "none" if world == 1 else "ddp" if fits else large
    if plan == "none":
        return MeshSizes(data=world, copies=True)
    if plan == "hsdp":
        return MeshSizes(data=nodes, shard=world // nodes)
    return MeshSizes(shard=world) if plan == "fsdp" else MeshSizes(data=world)


def fits_in_memory(module: nn.Module, memory_bytes: int) -> bool:
    """Whether parameters, gradients and two moments leave a device room to work; 0 bytes: nobody knows, so it does."""
    needed_bytes = sum(param.numel() * (2 * param.element_size() + 8) for param in module.parameters())
    return not memory_bytes or needed_bytes <= _USABLE_MEMORY_SHARE * memory_bytes


def strip_wrapper_names(name: str) -> str:
    """A parameter's name as the user's module has it, whatever was put around it."""
    return _WRAPPERS.sub("", name).lstrip(".")


def _resolve_product(plan: dict[str, Any], world: int) -> MeshSizes:
    names = MeshSizes._fields[:4]
    if unknown := sorted(set(plan) - set(names)):
        closest = difflib.get_close_matches(unknown[0], names, 1, 0.0)[0]
        raise Invalid(f"a plan has no size {unknown[0]!r}", f"{closest!r} is near; there are {', '.join(names)}")
    requested: dict[str, Any] = {"data": -1, **plan} if -1 not in plan.values() else dict(plan)
    open_names, product = [name for name, size in requested.items() if size == -1], 1
    for name, size in requested.items():
        if not isinstance(size, int) or (size < 1 and size != -1) or len(open_names) > 1:
            raise Invalid(f"{name}={size!r} is no size in {plan}", "sizes are whole numbers; one of them may be -1")
        product *= max(size, 1)
    if world % product or (not open_names and product != world):
        near_world = _find_nearest_sizes({name: size for name, size in requested.items() if size > 1}, world)
        raise Invalid(
            f"{_format_sizes(requested)} = {product} processes, and there are {world}", f"{near_world} would do"
        )
    resolved: dict[str, Any] = {name: world // product if size == -1 else size for name, size in requested.items()}
    return MeshSizes(**resolved)


def _find_nearest_sizes(requested: dict[str, Any], world: int) -> dict[str, int]:
    """The sizes asked for, each made as large as the world lets it be; data takes the rest."""
    nearest: dict[str, int] = {}
    for name in ("tensor", "pipeline", "shard"):
        size = max((n for n in range(1, requested.get(name, 1) + 1) if world % n == 0), default=1)
        if size > 1:
            nearest[name], world = size, world // size
    return nearest | {"data": world}


def _format_sizes(requested: dict[str, Any]) -> str:
    return " x ".join(f"{name} {size}" for name, size in requested.items() if size > 0)
