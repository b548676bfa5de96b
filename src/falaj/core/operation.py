"""verb: the one mark on a method that gives route, remote client, CLI command, OpenAPI entry and permission check."""

import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from falaj.core.context import CallContext
from falaj.core.data import dataclass

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
_NO_DEFAULT = object()

PERMISSION_GROUPS = ("see", "read", "write", "control", "move", "approve", "govern", "operate", "audit", "erase")
"""What roles are granted: see = metadata, read = the bytes, control = stop, hold and requeue work without seeing its
data, move = copy or carry out, operate = run the machine."""


@dataclass(frozen=True, slots=True)
class OperationParam:
    """One argument of a verb, as routes, clients and the CLI see it."""

    name: str
    type: Any
    help: str
    required: bool
    default: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What the mark said, and what the signature and docstring say."""

    name: str
    group: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    into: str
    purpose: str
    outside: bool
    once: bool
    heads: tuple[str, ...]
    often: bool
    summary: str
    doc: str
    params: tuple[OperationParam, ...]
    result: Any

    @property
    def reading(self) -> bool:
        """True when it only looks: at what is known, and not at bytes."""
        return self.group in ("see", "audit") and not self.writes and not self.outside


def operation(
    *,
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    group: str = "",
    zone_param: str = "",
    purpose_param: str = "",
    has_outside_effects: bool = False,
    returns_secret: bool = False,
    unpinned_params: tuple[str, ...] = (),
    is_high_rate: bool = False,
) -> Callable[[FunctionT], FunctionT]:
    """Mark a room's method `def name(self, ctx: Context, ...)` as reachable, and say what it touches.

    reads, writes: the parameters that hold a Ref (or a tuple or dict of them) which it reads or writes.
    group: what a role must be granted (one of GROUPS); "write" when it writes, else "see".
    into: the parameter that names the zone where what it writes will lie; the caller's own zone when empty.
    purpose: the parameter that says what for; checked against the label's purposes.
    outside: it acts outside the ledger (bytes, other systems), so it manages its own transactions: intent first.
    heads: those of `reads` that are about the name itself, whatever its versions: they are given as asked, not pinned.
    often: it is called thousands of times a second; a judgement is good for a quarter of a second unless something
        is changed here, and it is recorded once a minute, with how often.
    once: what it gives holds a secret, shown this once: it is never kept, not even for a repeat of the same request.
    """
    chosen_group = group or ("write" if writes else "see")
    if chosen_group not in PERMISSION_GROUPS:
        raise ValueError(f"{chosen_group!r} is no group of verbs: {', '.join(PERMISSION_GROUPS)}")

    def mark_operation(function: FunctionT) -> FunctionT:
        function.__verb_mark__ = (  # type: ignore[attr-defined]
            chosen_group,
            reads,
            writes,
            zone_param,
            purpose_param,
            has_outside_effects,
            returns_secret,
            unpinned_params,
            is_high_rate,
        )
        return function

    return mark_operation


@cache
def list_operations(service_class: type) -> dict[str, Operation]:
    """Every verb of a room class by name, in the order they are written."""
    return {name: get_operation(service_class, name) for name in list_operation_groups(service_class)}


@cache
def get_operation(service_class: type, name: str) -> Operation:
    """One verb of a room class; reading a signature takes a while, and most callers say one word."""
    for base_class in service_class.__mro__:
        function: Any = vars(base_class).get(name)
        if hasattr(function, "__verb_mark__"):
            return describe_operation(name, function, function.__verb_mark__)
    raise KeyError(name)


@cache
def list_operation_groups(service_class: type) -> dict[str, str]:
    """The name and group of every verb of a room class."""
    groups_by_name: dict[str, str] = {}
    # A desk may be written in several classes, one idea each; the first one named comes first.
    for base_class in service_class.__mro__:
        for name, function in vars(base_class).items():
            mark = getattr(function, "__verb_mark__", None)
            if mark is not None:
                groups_by_name.setdefault(name, mark[0])
    return groups_by_name


def describe_operation(name: str, function: Callable[..., Any], mark: tuple[Any, ...]) -> Operation:
    """What a mark, a signature and a docstring say together."""
    (
        group,
        reads,
        writes,
        zone_param,
        purpose_param,
        has_outside_effects,
        returns_secret,
        unpinned_params,
        is_high_rate,
    ) = mark
    hints = typing.get_type_hints(function, include_extras=True)
    operation_params = []
    for param_name, default in _list_parameters(function):
        if hints.get(param_name) is CallContext:
            continue
        param_type, help_text = _split_annotation(hints[param_name])
        required = default is _NO_DEFAULT
        operation_params.append(
            OperationParam(param_name, param_type, help_text, required, None if required else default)
        )
    doc = _clean_docstring(function)
    return Operation(
        name,
        group,
        reads,
        writes,
        zone_param,
        purpose_param,
        has_outside_effects,
        returns_secret,
        unpinned_params,
        is_high_rate,
        doc.partition("\n")[0],
        doc,
        tuple(operation_params),
        hints.get("return"),
    )


def _list_parameters(function: Any) -> list[tuple[str, Any]]:
    """The parameters after the first with their defaults, as they are written or as the function says itself."""
    # Every start of a command asks, and `inspect` takes longer to load than four verbs to read.
    signature = getattr(function, "__signature__", None)
    if signature is not None:
        parameters = list(signature.parameters.values())[1:]
        return [
            (parameter.name, _NO_DEFAULT if parameter.default is parameter.empty else parameter.default)
            for parameter in parameters
        ]
    code = function.__code__
    positional_names = code.co_varnames[: code.co_argcount]
    keyword_names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = dict(zip(reversed(positional_names), reversed(function.__defaults__ or ()), strict=False))
    defaults |= function.__kwdefaults__ or {}
    return [(name, defaults.get(name, _NO_DEFAULT)) for name in (*positional_names, *keyword_names)[1:]]


def _clean_docstring(function: Any) -> str:
    """A docstring without the indent that its lines share."""
    first, *rest = (function.__doc__ or "").strip().expandtabs().splitlines() or [""]
    indent = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join([first, *(line[indent:] for line in rest)])


def _split_annotation(annotation: Any) -> tuple[Any, str]:
    if typing.get_origin(annotation) is typing.Annotated:
        annotated_type, *metadata = typing.get_args(annotation)
        return annotated_type, next((note for note in metadata if isinstance(note, str)), "")
    return annotation, ""
