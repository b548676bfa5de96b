"""What belongs to the state of a training, by name: tensors that are saved as pieces, and small facts.

Names are those of the user's own module, whatever was put around it, so that a checkpoint of any plan loads into any
other. What an optimizer makes at its first step is described in the facts, and made anew before it is loaded.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from falaj.core.errors import Invalid
from falaj.train.parallel_plans import strip_wrapper_names


class Stateful(Protocol):
    """Something small with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Its state: JSON values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take it back."""


class TrainingState:
    """Everything that must be saved; registered once, before the first step."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._stateful_parts: dict[str, Stateful] = {}
        self._prepared: dict[str, dict[str, torch.Tensor]] = {}

    def module(self, module: nn.Module) -> None:
        """Its parameters and buffers."""
        self.modules.append(module)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Its moments, under the names of the parameters they belong to."""
        self._optimizers.append(optimizer)

    def thing(self, name: str, part: Stateful) -> None:
        """Something with state_dict and load_state_dict."""
        if name in self._stateful_parts:
            raise Invalid(f"two things are kept as {name!r}", "give each a name of its own")
        self._stateful_parts[name] = part

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, the live ones: filling them in place restores the state."""
        tensors_by_name = dict(self._iter_weights())
        for prefix, _, name, moments in self._iter_moments():
            tensors_by_name |= {
                f"{prefix}.{name}.{key}": value for key, value in moments.items() if isinstance(value, torch.Tensor)
            }
        for name, part in self._stateful_parts.items():
            state = self._prepared.get(name) or part.state_dict()
            tensors_by_name |= {
                f"kept.{name}.{key}": value for key, value in state.items() if isinstance(value, torch.Tensor)
            }
        return {name: tensor.detach() for name, tensor in tensors_by_name.items()}

    def steady(self) -> list[str]:
        """The names of tensors that change only when parameters move: what may be copied while the next step begins."""
        names = [
            f"{prefix}.{strip_wrapper_names(name)}"
            for prefix, module in self._number_items("model", self.modules)
            for name, _ in module.named_parameters()
        ]
        return names + [
            f"{prefix}.{name}.{key}" for prefix, _, name, moments in self._iter_moments() for key in moments
        ]

    def meta(self) -> dict[str, Any]:
        """Everything else, as JSON values."""
        shapes: dict[str, dict[str, dict[str, Any]]] = {}
        for prefix, _, name, moments in self._iter_moments():
            shapes.setdefault(prefix, {})[name] = {key: _describe_value(value) for key, value in moments.items()}
        groups = {prefix: _plain_groups(value) for prefix, value in self._number_items("optimizer", self._optimizers)}
        part_states = {
            name: {key: _describe_value(value) for key, value in part.state_dict().items()}
            for name, part in self._stateful_parts.items()
        }
        return {"groups": groups, "moments": shapes, "things": part_states}

    def prepare(self, meta: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Make what the saved state has and this one not yet; gives the tensors to fill."""
        if "groups" not in meta or "things" not in meta:
            raise Invalid("this is no checkpoint of a training run", "give another folder for checkpoints")
        saved_moments = {prefix: meta["moments"].get(prefix, {}) for prefix in meta["groups"]}
        for prefix, optimizer in self._number_items("optimizer", self._optimizers):
            if len(meta["groups"].get(prefix, ())) != len(optimizer.param_groups):
                raise Invalid("the checkpoint has other optimizers or groups", "resume with those it was made with")
            for group, param, name in self._iter_named_params(optimizer):
                state = optimizer.state[param] if name in saved_moments[prefix] else {}
                for key, moment in saved_moments[prefix].get(name, {}).items():
                    if not isinstance(state.get(key), torch.Tensor):
                        state[key] = _build_tensor(moment, param, group)
        if missing := sorted(set(self._stateful_parts) - set(meta["things"])):
            raise Invalid(f"the checkpoint has no {', '.join(missing)}", "leave it out, or begin in another folder")
        for name, part in self._stateful_parts.items():
            live_state = part.state_dict()
            self._prepared[name] = {
                key: _find_target(description, live_state.get(key)) for key, description in meta["things"][name].items()
            }
        return self.tensors()

    def load_meta(self, meta: Mapping[str, Any]) -> None:
        """Take back what `meta` gave, once the tensors are filled."""
        for prefix, optimizer in self._number_items("optimizer", self._optimizers):
            for group, saved in zip(optimizer.param_groups, meta["groups"][prefix], strict=True):
                _set_group(group, saved)
        for name, part in self._stateful_parts.items():
            part.load_state_dict(self._prepared.pop(name))
        self._prepared.clear()

    def _iter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for prefix, module in self._number_items("model", self.modules):
            seen_ids: set[int] = set()
            for name, tensor in module.state_dict(keep_vars=True).items():
                if isinstance(tensor, torch.Tensor) and id(tensor) not in seen_ids:  # tied weights are one
                    seen_ids.add(id(tensor))
                    yield f"{prefix}.{strip_wrapper_names(name)}", tensor

    def _iter_moments(self) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
        for prefix, optimizer in self._number_items("optimizer", self._optimizers):
            for group, param, name in self._iter_named_params(optimizer):
                if param in optimizer.state:
                    yield prefix, group, name, optimizer.state[param]

    def _iter_named_params(
        self, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[dict[str, Any], torch.Tensor, str]]:
        names = {
            id(param): f"{prefix}.{strip_wrapper_names(name)}"
            for prefix, module in self._number_items("model", self.modules)
            for name, param in module.named_parameters()
        }
        for number, group in enumerate(optimizer.param_groups):
            for index, param in enumerate(group["params"]):
                yield group, param, names.get(id(param), f"group{number}.{index}")

    @staticmethod
    def _number_items(prefix: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
        for number, item in enumerate(items):
            yield (f"{prefix}{number}" if number else prefix), item


def _describe_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    return {"value": value}


def _build_tensor(described: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """A place for what was described, cut as the parameter is when it has its shape."""
    if "value" in described:
        return described["value"]
    dtype, shape = getattr(torch, described["dtype"]), described["shape"]
    if shape == list(param.shape) and shape:
        return torch.zeros_like(param, dtype=dtype, requires_grad=False)
    on_device = bool(shape) or group.get("fused") or group.get("capturable")
    return torch.zeros(shape, dtype=dtype, device=param.device if on_device else "cpu")


def _find_target(described: Mapping[str, Any], live_value: Any) -> Any:
    """Where a part of a thing's state goes: into the very tensor it has, if it has one."""
    if isinstance(live_value, torch.Tensor) and list(live_value.shape) == described.get("shape"):
        return live_value
    return _build_tensor(described, torch.zeros(()), {})


def _plain_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [
        {
            key: _unwrap_scalar(value)
            for key, value in group.items()
            if key != "params" and _is_plain_value(_unwrap_scalar(value))
        }
        for group in optimizer.param_groups
    ]


def _set_group(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for key, value in saved.items():
        if isinstance(group.get(key), torch.Tensor):
            group[key].fill_(value)
        elif key not in ("fused", "foreach", "capturable"):  # how it computes is this machine's business
            group[key] = tuple(value) if isinstance(value, list) else value


def _unwrap_scalar(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _is_plain_value(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain_value(item) for item in value)
    return value is None or isinstance(value, int | float | str)
