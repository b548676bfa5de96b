"""Lines: a call as somebody would type it at a terminal, and as a program would write it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import Param, Verb, verb_of
from falaj.desks import desk_class


@dataclass(frozen=True, slots=True)
class Line:
    """One call of a verb."""

    desk: str
    verb: str
    arguments: Mapping[str, Any]

    def shell(self) -> str:
        """`falaj jobs list --state running`."""
        words = ["falaj", self.desk, self.verb.replace("_", "-")]
        given = [(param, self.arguments[param.name]) for param in self._mark().params if self._said(param)]
        placed = sorted((one for one in given if _is_placed(*one)), key=lambda one: _place(one[1]))
        words += [shlex.quote(_plain(value)) for _, value in placed]
        for param, value in given:
            if not _is_placed(param, value):
                words += _flag(param.name.replace("_", "-"), value)
        return " ".join(words)

    def python(self) -> str:
        """`here.jobs.list(state="running")`."""
        given = [(param, self.arguments[param.name]) for param in self._mark().params if self._said(param)]
        said = [_literal(value) for param, value in given if param.required]
        said += [f"{param.name}={_literal(value)}" for param, value in given if not param.required]
        return f"here.{self.desk}.{self.verb}({', '.join(said)})"

    def _mark(self) -> Verb:
        return verb_of(desk_class(self.desk), self.verb)

    def _said(self, param: Param) -> bool:
        if param.name not in self.arguments or isinstance(self.arguments[param.name], Stream):
            return False
        return param.required or self.arguments[param.name] != param.default


def _is_placed(param: Param, value: Any) -> bool:
    return param.required and not isinstance(value, (bool, Mapping))


def _place(value: Any) -> int:
    """As the command line takes them: references first, lists last."""
    return 0 if isinstance(value, Ref) else 2 if isinstance(value, (tuple, list)) else 1


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}"] if value else [f"--no-{name}"]
    if isinstance(value, Mapping):
        return [word for key, one in value.items() for word in (f"--{name}", shlex.quote(f"{key}={_plain(one)}"))]
    return [f"--{name}", shlex.quote(_plain(value))]


def _plain(value: Any) -> str:
    if isinstance(value, (tuple, list)) and all(isinstance(one, (str, int, float, Ref)) for one in value):
        return ",".join(map(str, value))
    if is_dataclass(value) and not isinstance(value, type):
        return json.dumps(asdict(value), default=str, ensure_ascii=False)
    return (
        json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, (Mapping, list, tuple)) else str(value)
    )


def _literal(value: Any) -> str:
    if isinstance(value, (bool, int, float)) or value is None:
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, (Mapping, tuple, list)):
        return json.dumps(list(value) if isinstance(value, tuple) else value, default=str, ensure_ascii=False)
    return json.dumps(str(value), ensure_ascii=False)
