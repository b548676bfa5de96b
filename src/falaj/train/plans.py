"""Plans: how many processes copy, shard, split and chain a model, from a word or from sizes. Pure functions."""

import difflib
import re
from typing import Any, NamedTuple

from torch import nn

from falaj.core.errors import Invalid

WORDS = ("auto", "none", "ddp", "fsdp", "hsdp")
_WRAPPERS = re.compile(r"(^|\.)(?:module|_orig_mod|_checkpoint_wrapped_module)(?=\.)")
_FULL = 0.7


class Sizes(NamedTuple):
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
        found = {name: size for name, size in zip(self._fields[:4], self[:4], strict=True) if size > 1}
        if self.sharded:
            found = {name: getattr(self, name) for name in self._fields[:4] if name in found or name == "shard"}
        return found or {"data": 1}


def sizes(plan: Any, world: int, local: int = 0, *, fits: bool = True) -> Sizes:
    """What a plan means for a world of which `local` processes share a node."""
    if isinstance(plan, dict):
        return _product(plan, world)
    if plan not in WORDS:
        near = difflib.get_close_matches(str(plan), WORDS, 1, 0.0)[0]
        raise Invalid(f"there is no plan {plan!r}", f"{near!r} is near; or one of {', '.join(WORDS)}, or sizes")
    nodes = world // local if local and world % local == 0 else 1
    if plan == "auto":
        large = "hsdp" if nodes > 1 else "fsdp"
        plan = "none" if world == 1 else "ddp" if fits else large
    if plan == "none":
        return Sizes(data=world, copies=True)
    if plan == "hsdp":
        return Sizes(data=nodes, shard=world // nodes)
    return Sizes(shard=world) if plan == "fsdp" else Sizes(data=world)


def fits(module: nn.Module, memory_bytes: int) -> bool:
    """Whether parameters, gradients and two moments leave a device room to work; 0 bytes: nobody knows, so it does."""
    needed = sum(param.numel() * (2 * param.element_size() + 8) for param in module.parameters())
    return not memory_bytes or needed <= _FULL * memory_bytes


def plain(name: str) -> str:
    """A parameter's name as the user's module has it, whatever was put around it."""
    return _WRAPPERS.sub("", name).lstrip(".")


def _product(plan: dict[str, Any], world: int) -> Sizes:
    names = Sizes._fields[:4]
    if unknown := sorted(set(plan) - set(names)):
        near = difflib.get_close_matches(unknown[0], names, 1, 0.0)[0]
        raise Invalid(f"a plan has no size {unknown[0]!r}", f"{near!r} is near; there are {', '.join(names)}")
    given: dict[str, Any] = {"data": -1, **plan} if -1 not in plan.values() else dict(plan)
    open_, known = [name for name, size in given.items() if size == -1], 1
    for name, size in given.items():
        if not isinstance(size, int) or (size < 1 and size != -1) or len(open_) > 1:
            raise Invalid(f"{name}={size!r} is no size in {plan}", "sizes are whole numbers; one of them may be -1")
        known *= max(size, 1)
    if world % known or (not open_ and known != world):
        near_world = _near({name: size for name, size in given.items() if size > 1}, world)
        raise Invalid(f"{_said(given)} = {known} processes, and there are {world}", f"{near_world} would do")
    found: dict[str, Any] = {name: world // known if size == -1 else size for name, size in given.items()}
    return Sizes(**found)


def _near(given: dict[str, Any], world: int) -> dict[str, int]:
    """The sizes asked for, each made as large as the world lets it be; data takes the rest."""
    found: dict[str, int] = {}
    for name in ("tensor", "pipeline", "shard"):
        size = max((n for n in range(1, given.get(name, 1) + 1) if world % n == 0), default=1)
        if size > 1:
            found[name], world = size, world // size
    return found | {"data": world}


def _said(given: dict[str, Any]) -> str:
    return " x ".join(f"{name} {size}" for name, size in given.items() if size > 0)
