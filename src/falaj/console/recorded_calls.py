"""Lines: a call as somebody would type it at a terminal, and as a program would write it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from falaj.core.byte_stream import ByteStream
from falaj.core.operation import Operation, OperationParam, get_operation
from falaj.core.ref import Ref
from falaj.services import load_service_class


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a verb."""

    desk: str
    verb: str
    arguments: Mapping[str, Any]

    def shell(self) -> str:
        """`falaj jobs list --state running`."""
        words = ["falaj", self.desk, self.verb.replace("_", "-")]
        explicit_arguments = [
            (param, self.arguments[param.name]) for param in self._get_operation().params if self._is_explicit(param)
        ]
        positional_arguments = sorted(
            (param_and_value for param_and_value in explicit_arguments if _is_positional(*param_and_value)),
            key=lambda param_and_value: _get_positional_rank(param_and_value[1]),
        )
        words += [shlex.quote(_format_shell_value(value)) for _, value in positional_arguments]
        for param, value in explicit_arguments:
            if not _is_positional(param, value):
                words += _format_flag(param.name.replace("_", "-"), value)
        return " ".join(words)

    def python(self) -> str:
        """`here.jobs.list(state="running")`."""
        explicit_arguments = [
            (param, self.arguments[param.name]) for param in self._get_operation().params if self._is_explicit(param)
        ]
        written_arguments = [_format_literal(value) for param, value in explicit_arguments if param.required]
        written_arguments += [
            f"{param.name}={_format_literal(value)}" for param, value in explicit_arguments if not param.required
        ]
        return f"here.{self.desk}.{self.verb}({', '.join(written_arguments)})"

    def _get_operation(self) -> Operation:
        return get_operation(load_service_class(self.desk), self.verb)

    def _is_explicit(self, param: OperationParam) -> bool:
        if param.name not in self.arguments or isinstance(self.arguments[param.name], ByteStream):
            return False
        return param.required or self.arguments[param.name] != param.default


def _is_positional(param: OperationParam, value: Any) -> bool:
    return param.required and not isinstance(value, (bool, Mapping))


def _get_positional_rank(value: Any) -> int:
    """As the command line takes them: references first, lists last."""
    return 0 if isinstance(value, Ref) else 2 if isinstance(value, (tuple, list)) else 1


def _format_flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else [f"--no-{name}"]
    if isinstance(value, Mapping):
        return [
            word
            for key, item_value in value.items()
            for word in (f"--{name}", shlex.quote(f"{key}={_format_shell_value(item_value)}"))
        ]
    return [f"--{name}", shlex.quote(_format_shell_value(value))]


def _format_shell_value(value: Any) -> str:
    if isinstance(value, (tuple, list)) and all(isinstance(item, (str, int, float, Ref)) for item in value):
        return ",".join(map(str, value))
    if is_dataclass(value) and not isinstance(value, type):
        return json.dumps(asdict(value), default=str, ensure_ascii=False)
    return (
        json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, (Mapping, list, tuple)) else str(value)
    )


def _format_literal(value: Any) -> str:
    if isinstance(value, (bool, int, float)) or value is None:
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, (Mapping, tuple, list)):
        return json.dumps(list(value) if isinstance(value, tuple) else value, default=str, ensure_ascii=False)
    return json.dumps(str(value), ensure_ascii=False)
