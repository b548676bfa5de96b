"""verb: the one mark on a method that gives route, remote client, CLI command, OpenAPI entry and permission check."""

import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from falaj.core.context import Context
from falaj.core.data import dataclass

F = TypeVar("F", bound=Callable[..., Any])
_REQUIRED = object()

GROUPS = ("see", "read", "write", "control", "move", "approve", "govern", "operate", "audit", "erase")
"""What roles are granted: see = metadata, read = the bytes, control = stop, hold and requeue work without seeing its
data, move = copy or carry out, operate = run the machine."""


@dataclass(frozen=True, slots=True)
class Param:
    """One argument of a verb, as routes, clients and the CLI see it."""

    name: str
    type: Any
    help: str
    required: bool
    default: Any = None


@dataclass(frozen=True, slots=True)
class Verb:
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
    params: tuple[Param, ...]
    result: Any

    @property
    def reading(self) -> bool:
        """True when it only looks: at what is known, and not at bytes."""
        return self.group in ("see", "audit") and not self.writes and not self.outside


def verb(
    *,
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    group: str = "",
    into: str = "",
    purpose: str = "",
    outside: bool = False,
    once: bool = False,
    heads: tuple[str, ...] = (),
    often: bool = False,
) -> Callable[[F], F]:
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
    chosen = group or ("write" if writes else "see")
    if chosen not in GROUPS:
        raise ValueError(f"{chosen!r} is no group of verbs: {', '.join(GROUPS)}")

    def mark(function: F) -> F:
        function.__verb_mark__ = (chosen, reads, writes, into, purpose, outside, once, heads, often)  # type: ignore[attr-defined]
        return function

    return mark


@cache
def verbs_of(room: type) -> dict[str, Verb]:
    """Every verb of a room class by name, in the order they are written."""
    return {name: verb_of(room, name) for name in groups_of(room)}


@cache
def verb_of(room: type, name: str) -> Verb:
    """One verb of a room class; reading a signature takes a while, and most callers say one word."""
    for part in room.__mro__:
        function: Any = vars(part).get(name)
        if hasattr(function, "__verb_mark__"):
            return read_verb(name, function, function.__verb_mark__)
    raise KeyError(name)


@cache
def groups_of(room: type) -> dict[str, str]:
    """The name and group of every verb of a room class."""
    found: dict[str, str] = {}
    # A desk may be written in several classes, one idea each; the first one named comes first.
    for part in room.__mro__:
        for name, function in vars(part).items():
            mark = getattr(function, "__verb_mark__", None)
            if mark is not None:
                found.setdefault(name, mark[0])
    return found


def read_verb(name: str, function: Callable[..., Any], mark: tuple[Any, ...]) -> Verb:
    """What a mark, a signature and a docstring say together."""
    group, reads, writes, into, purpose, outside, once, heads, often = mark
    hints = typing.get_type_hints(function, include_extras=True)
    params = []
    for given, default in _parameters(function):
        if hints.get(given) is Context:
            continue
        kind, help_text = _split(hints[given])
        required = default is _REQUIRED
        params.append(Param(given, kind, help_text, required, None if required else default))
    doc = _doc(function)
    return Verb(
        name,
        group,
        reads,
        writes,
        into,
        purpose,
        outside,
        once,
        heads,
        often,
        doc.partition("\n")[0],
        doc,
        tuple(params),
        hints.get("return"),
    )


def _parameters(function: Any) -> list[tuple[str, Any]]:
    """The parameters after the first with their defaults, as they are written or as the function says itself."""
    # Every start of a command asks, and `inspect` takes longer to load than four verbs to read.
    said = getattr(function, "__signature__", None)
    if said is not None:
        written = list(said.parameters.values())[1:]
        return [(each.name, _REQUIRED if each.default is each.empty else each.default) for each in written]
    code = function.__code__
    named = code.co_varnames[: code.co_argcount]
    others = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = dict(zip(reversed(named), reversed(function.__defaults__ or ()), strict=False))
    defaults |= function.__kwdefaults__ or {}
    return [(name, defaults.get(name, _REQUIRED)) for name in (*named, *others)[1:]]


def _doc(function: Any) -> str:
    """A docstring without the indent that its lines share."""
    first, *rest = (function.__doc__ or "").strip().expandtabs().splitlines() or [""]
    indent = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join([first, *(line[indent:] for line in rest)])


def _split(annotation: Any) -> tuple[Any, str]:
    if typing.get_origin(annotation) is typing.Annotated:
        kind, *notes = typing.get_args(annotation)
        return kind, next((note for note in notes if isinstance(note, str)), "")
    return annotation, ""
