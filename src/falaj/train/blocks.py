"""The blocks of a model, found by its structure: what is sharded, recomputed and compiled piece by piece."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from falaj.core.errors import Invalid

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "blocks")
_LARGE_PARAMETERS = 3_000_000_000
"""Parameters above which a model is compiled by blocks, since compiling it whole takes too long."""
_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def find_blocks(module: nn.Module) -> dict[str, nn.Module]:
    """Modules of a class that comes again in one list, by name; the outermost of them."""
    return dict(_iter_blocks(module, ""))


def _iter_blocks(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    classes = Counter(type(child) for child in module.children()) if isinstance(module, _CONTAINERS) else Counter()
    for name, child in module.named_children():
        if classes[type(child)] > 1 and _has_submodules(child):
            yield prefix + name, child
        else:
            yield from _iter_blocks(child, f"{prefix}{name}.")


def _has_submodules(module: nn.Module) -> bool:
    """Made of other modules, and with something to learn: a lone layer is no block."""
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


class RecomputedBlock(nn.Module):
    """A block whose inside is computed again in the backward pass instead of being kept."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self._checkpoint_wrapped_module, *args, use_reentrant=False, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Models look into their blocks (model.layers[0].attention): what is not ours is the block's.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_checkpoint_wrapped_module"), name)


def reduce_activations(module: nn.Module, activation: str | float, *, is_compiled: bool) -> None:
    """Keep fewer activations, as asked; changes the module's blocks in place."""
    if activation == "none":
        return
    if activation == "blocks":
        blocks_by_name = find_blocks(module)
        if not blocks_by_name:
            raise Invalid(f"{type(module).__name__} has no blocks to compute again", "activation='none'")
        for name, block in blocks_by_name.items():
            module.set_submodule(name, RecomputedBlock(block))
    elif isinstance(activation, str) or not 0 <= activation <= 1:
        raise Invalid(f"activation={activation!r} is not known", "none, blocks, or a budget of 0..1")
    elif not is_compiled:
        raise Invalid("a budget of activations is kept by the compiler", "compile=True, or activation='blocks'")
    else:
        _set_memory_budget(activation)


def _set_memory_budget(share: float) -> None:
    try:
        from torch._functorch import config
    except ImportError:
        raise Invalid("this torch knows no budget of activations", "activation='blocks'") from None
    if not hasattr(config, "activation_memory_budget"):
        raise Invalid("this torch knows no budget of activations", "activation='blocks'")
    config.activation_memory_budget = share


def compile_blocks(module: nn.Module, mode: bool | str, *, by_blocks: bool) -> bool:
    """Compile the blocks in place, where it is better by pieces; says whether that was done."""
    _compile_options(mode)
    large = sum(param.numel() for param in module.parameters()) > _LARGE_PARAMETERS
    repeated_blocks = find_blocks(module).values() if by_blocks or mode == "blocks" or large else ()
    for block in repeated_blocks if mode else ():
        block.compile(**_compile_options(mode))
    return bool(repeated_blocks)


def compile_module(module: nn.Module, mode: bool | str) -> None:
    """Compile the module as one, in place: names stay as they are."""
    if mode:
        module.compile(**_compile_options(mode))


def _compile_options(mode: bool | str) -> dict[str, Any]:
    if isinstance(mode, str) and mode not in COMPILE_MODES:
        raise Invalid(f"there is no way to compile called {mode!r}", f"True, or one of {', '.join(COMPILE_MODES)}")
    return {"mode": mode} if isinstance(mode, str) and mode != "blocks" else {}
