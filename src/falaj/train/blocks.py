"""The blocks of a model, found by its structure: what is sharded, recomputed and compiled piece by piece."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from falaj.core.errors import Invalid

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "blocks")
_LARGE = 3_000_000_000
"""Parameters above which a model is compiled by blocks, since compiling it whole takes too long."""
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def blocks(module: nn.Module) -> dict[str, nn.Module]:
    """Modules of a class that comes again in one list, by name; the outermost of them."""
    return dict(_blocks(module, ""))


def _blocks(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    classes = Counter(type(child) for child in module.children()) if isinstance(module, _CONTAINERS) else Counter()
    for name, child in module.named_children():
        if classes[type(child)] > 1 and _is_large(child):
            yield prefix + name, child
        else:
            yield from _blocks(child, f"{prefix}{name}.")


def _is_large(module: nn.Module) -> bool:
    """Made of other modules, and with something to learn: a lone layer is no block."""
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


class Recomputed(nn.Module):
    """A block whose inside is computed again in the backward pass instead of being kept."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = block

    def forward(self, *given: Any, **named: Any) -> Any:
        return checkpoint(self._checkpoint_wrapped_module, *given, use_reentrant=False, **named)

    def __getattr__(self, name: str) -> Any:
        # Models look into their blocks (model.layers[0].attention): what is not ours is the block's.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_checkpoint_wrapped_module"), name)


def spare(module: nn.Module, activation: str | float, *, compiled: bool) -> None:
    """Keep fewer activations, as asked; changes the module's blocks in place."""
    if activation == "none":
        return
    if activation == "blocks":
        found = blocks(module)
        if not found:
            raise Invalid(f"{type(module).__name__} has no blocks to compute again", "activation='none'")
        for name, block in found.items():
            module.set_submodule(name, Recomputed(block))
    elif isinstance(activation, str) or not 0 <= activation <= 1:
        raise Invalid(f"activation={activation!r} is not known", "none, blocks, or a budget of 0..1")
    elif not compiled:
        raise Invalid("a budget of activations is kept by the compiler", "compile=True, or activation='blocks'")
    else:
        _budget(activation)


def _budget(share: float) -> None:
    try:
        from torch._functorch import config
    except ImportError:
        raise Invalid("this torch knows no budget of activations", "activation='blocks'") from None
    if not hasattr(config, "activation_memory_budget"):
        raise Invalid("this torch knows no budget of activations", "activation='blocks'")
    config.activation_memory_budget = share


def compiled(module: nn.Module, how: bool | str, *, pieces: bool) -> bool:
    """Compile the blocks in place, where it is better by pieces; says whether that was done."""
    _mode(how)
    large = sum(param.numel() for param in module.parameters()) > _LARGE
    found = blocks(module).values() if pieces or how == "blocks" or large else ()
    for block in found if how else ():
        block.compile(**_mode(how))
    return bool(found)


def whole(module: nn.Module, how: bool | str) -> None:
    """Compile the module as one, in place: names stay as they are."""
    if how:
        module.compile(**_mode(how))


def _mode(how: bool | str) -> dict[str, Any]:
    if isinstance(how, str) and how not in MODES:
        raise Invalid(f"there is no way to compile called {how!r}", f"True, or one of {', '.join(MODES)}")
    return {"mode": how} if isinstance(how, str) and how != "blocks" else {}
