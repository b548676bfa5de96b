"""What belongs to the state of a training, by name: tensors that are saved as pieces, and small facts.

Names are those of the user's own module, whatever was put around it, so that a checkpoint of any plan loads into any
other. What an optimizer makes at its first step is described in the facts, and made anew before it is loaded.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.plans import plain


class Thing(Protocol):
    """Something small with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Its state: JSON values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


class Keeping:
    """Everything that must be saved; registered once, before the first step."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._things: dict[str, Thing] = {}
        self._made: dict[str, dict[str, torch.Tensor]] = {}

    def module(self, module: nn.Module) -> None:
        """Its parameters and buffers."""
        self.modules.append(module)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Its moments, under the names of the parameters they belong to."""
        self._optimizers.append(optimizer)

    def thing(self, name: str, thing: Thing) -> None:
        """Something with state_dict and load_state_dict."""
        if name in self._things:
            raise Invalid(f"two things are kept as {name!r}", "give each a name of its own")
        self._things[name] = thing

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, the live ones: filling them in place restores the state."""
        found = dict(self._weights())
        for prefix, _, name, held in self._moments():
            found |= {f"{prefix}.{name}.{key}": one for key, one in held.items() if isinstance(one, torch.Tensor)}
        for name, thing in self._things.items():
            state = self._made.get(name) or thing.state_dict()
            found |= {f"kept.{name}.{key}": one for key, one in state.items() if isinstance(one, torch.Tensor)}
        return {name: tensor.detach() for name, tensor in found.items()}

    def steady(self) -> list[str]:
        """The names of tensors that change only when parameters move: what may be copied while the next step begins."""
        found = [
            f"{prefix}.{plain(name)}"
            for prefix, module in self._numbered("model", self.modules)
            for name, _ in module.named_parameters()
        ]
        return found + [f"{prefix}.{name}.{key}" for prefix, _, name, held in self._moments() for key in held]

    def meta(self) -> dict[str, Any]:
        """Everything else, as JSON values."""
        shapes: dict[str, dict[str, dict[str, Any]]] = {}
        for prefix, _, name, held in self._moments():
            shapes.setdefault(prefix, {})[name] = {key: _described(one) for key, one in held.items()}
        groups = {prefix: _groups(one) for prefix, one in self._numbered("optimizer", self._optimizers)}
        things = {
            name: {key: _described(one) for key, one in thing.state_dict().items()}
            for name, thing in self._things.items()
        }
        return {"groups": groups, "moments": shapes, "things": things}

    def prepare(self, meta: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Make what the saved state has and this one not yet; gives the tensors to fill."""
        if "groups" not in meta or "things" not in meta:
            raise Invalid("this is no checkpoint of a training run", "give another folder for checkpoints")
        known = {prefix: meta["moments"].get(prefix, {}) for prefix in meta["groups"]}
        for prefix, optimizer in self._numbered("optimizer", self._optimizers):
            if len(meta["groups"].get(prefix, ())) != len(optimizer.param_groups):
                raise Invalid("the checkpoint has other optimizers or groups", "resume with those it was made with")
            for group, param, name in self._named(optimizer):
                held = optimizer.state[param] if name in known[prefix] else {}
                for key, made in known[prefix].get(name, {}).items():
                    if not isinstance(held.get(key), torch.Tensor):
                        held[key] = _made(made, param, group)
        if missing := sorted(set(self._things) - set(meta["things"])):
            raise Invalid(f"the checkpoint has no {', '.join(missing)}", "leave it out, or begin in another folder")
        for name, thing in self._things.items():
            live = thing.state_dict()
            self._made[name] = {key: _place(one, live.get(key)) for key, one in meta["things"][name].items()}
        return self.tensors()

    def load_meta(self, meta: Mapping[str, Any]) -> None:
        """Take back what `meta` gave, once the tensors are filled."""
        for prefix, optimizer in self._numbered("optimizer", self._optimizers):
            for group, saved in zip(optimizer.param_groups, meta["groups"][prefix], strict=True):
                _set_group(group, saved)
        for name, thing in self._things.items():
            thing.load_state_dict(self._made.pop(name))
        self._made.clear()

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for prefix, module in self._numbered("model", self.modules):
            seen: set[int] = set()
            for name, tensor in module.state_dict(keep_vars=True).items():
                if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:  # tied weights are one
                    seen.add(id(tensor))
                    yield f"{prefix}.{plain(name)}", tensor

    def _moments(self) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
        for prefix, optimizer in self._numbered("optimizer", self._optimizers):
            for group, param, name in self._named(optimizer):
                if param in optimizer.state:
                    yield prefix, group, name, optimizer.state[param]

    def _named(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor, str]]:
        names = {
            id(param): f"{prefix}.{plain(name)}"
            for prefix, module in self._numbered("model", self.modules)
            for name, param in module.named_parameters()
        }
        for number, group in enumerate(optimizer.param_groups):
            for place, param in enumerate(group["params"]):
                yield group, param, names.get(id(param), f"group{number}.{place}")

    @staticmethod
    def _numbered(word: str, things: list[Any]) -> Iterator[tuple[str, Any]]:
        for number, thing in enumerate(things):
            yield (f"{word}{number}" if number else word), thing


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    return {"value": value}


def _made(described: Mapping[str, Any], like: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """A place for what was described, cut as the parameter is when it has its shape."""
    if "value" in described:
        return described["value"]
    dtype, shape = getattr(torch, described["dtype"]), described["shape"]
    if shape == list(like.shape) and shape:
        return torch.zeros_like(like, dtype=dtype, requires_grad=False)
    own = bool(shape) or group.get("fused") or group.get("capturable")
    return torch.zeros(shape, dtype=dtype, device=like.device if own else "cpu")


def _place(described: Mapping[str, Any], live: Any) -> Any:
    """Where a part of a thing's state goes: into the very tensor it has, if it has one."""
    if isinstance(live, torch.Tensor) and list(live.shape) == described.get("shape"):
        return live
    return _made(described, torch.zeros(()), {})


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {key: _value(one) for key, one in group.items() if key != "params" and _is_plain(_value(one))}
        for group in optimizer.param_groups
    ]


def _set_group(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for key, value in saved.items():
        if isinstance(group.get(key), torch.Tensor):
            group[key].fill_(value)
        elif key not in ("fused", "foreach", "capturable"):  # how it computes is this machine's business
            group[key] = tuple(value) if isinstance(value, list) else value


def _value(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, int | float | str)
