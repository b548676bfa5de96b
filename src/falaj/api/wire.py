"""Arguments on the wire: a JSON object becomes exactly what a verb's signature asks for, or Invalid says why not."""

import base64
import re
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any

import msgspec

from falaj.core.bind import options
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import Verb
from falaj.store.codec import from_plain

ELSEWHERE = ": elsewhere"
"""The last word of an event stream whose replica goes."""
ARGS_HEADER = "falaj-args"
ARGS_BYTES = 16_384
_INT = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_LABEL = str | dict[str, Any]
_FIELD = re.compile(r"field `([^`]*)`")
# Strings leave first (they may hold brackets), then everything that is no bracket; what is left is the nesting alone.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# Which kind of bracket closes which is the parser's business; for depth all are square.
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Arguments:
    """The arguments of one verb: decoder made once, used by every request."""

    def __init__(self, desk: str, verb: Verb) -> None:
        self.action = f"{desk}.{verb.name}"
        self.stream = next((p.name for p in verb.params if Stream in options(p.type)), "")
        self.gives_stream = Stream in options(verb.result)
        self._named = [p for p in verb.params if p.name != self.stream]
        self._fits = tuple((p.name, _fit_of(p.type)) for p in self._named)
        shape = [
            (p.name, _strict(p.type)) if p.required else (p.name, _strict(p.type) | msgspec.UnsetType, msgspec.UNSET)
            for p in self._named
        ]
        struct = msgspec.defstruct("Arguments", shape, forbid_unknown_fields=True, kw_only=True)
        self._decoder = msgspec.json.Decoder(struct, dec_hook=_typed)

    def decode(self, body: bytes) -> dict[str, Any]:
        """The arguments by name; what was not given is not in it."""
        try:
            found = self._decoder.decode(body or b"{}")
        except msgspec.MsgspecError as error:
            raise self._explained(str(error)) from None
        except UnicodeDecodeError:
            raise Invalid("the body is not UTF-8", "write JSON in UTF-8") from None
        except RecursionError:
            raise Invalid("the body is nested too deep", "flatten it") from None
        given: dict[str, Any] = {}
        for name, fit in self._fits:
            value = getattr(found, name)
            if value is not msgspec.UNSET:
                given[name] = value if fit is None else fit(value)
        return given

    def decode_header(self, text: str) -> dict[str, Any]:
        """The same from the header that carries them when the body is a stream."""
        if len(text) > ARGS_BYTES:
            raise Invalid(
                f"the {ARGS_HEADER} header is longer than {ARGS_BYTES} bytes", "large values belong into the body"
            )
        try:
            return self.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        except ValueError:  # not base64, or not even ASCII
            raise Invalid(
                f"the {ARGS_HEADER} header is not base64url", f"write the JSON arguments of {self.action} in base64url"
            ) from None

    def _explained(self, problem: str) -> Invalid:
        names = ", ".join(p.name for p in self._named) or "none"
        named = _FIELD.search(problem)
        if named and "missing" in problem and "$." not in problem:
            return Invalid(f"{self.action} needs the argument {named[1]!r}", f"its arguments are: {names}")
        if named and "unknown" in problem and "$." not in problem:
            return Invalid(f"{self.action} has no argument {named[1][:80]!r}", f"its arguments are: {names}")
        return Invalid(
            f"the arguments of {self.action} do not fit: {problem[:300]}", "the schema is in /v1/openapi.json"
        )


def encode_header(arguments: bytes) -> str:
    """JSON arguments as the header carries them."""
    return base64.urlsafe_b64encode(arguments).decode().rstrip("=")


def check_depth(body: bytes, limit: int) -> None:
    """Refuse nesting beyond `limit` before any parser sees it.

    Almost every body has fewer brackets than the limit and passes after two counts. The others lose their innermost
    pairs `limit` times, each time in one sweep; brackets that remain are deeper, or not balanced.
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return
    rest = _STRINGS.sub(b"", body).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(limit):
        shorter = rest.replace(b"[]", b"")
        if len(shorter) == len(rest):
            break
        rest = shorter
    if rest:
        raise Invalid(f"the body is nested deeper than {limit} or its brackets do not match", "flatten it")


def _typed(kind: type, value: Any) -> Any:
    if kind is Ref and isinstance(value, str):
        return Ref.parse(value)
    raise Invalid(f"a reference is a text, not {type(value).__name__}", "for example dataset:fraud/transactions@v3")


@cache
def _strict(kind: Any) -> Any:
    """The type as msgspec should read it: numbers that stores hold, labels as people write them, no stray fields."""
    if kind is int:
        return _INT
    if kind is Label:
        return _LABEL
    if is_dataclass(kind) and isinstance(kind, type):
        return _mirror(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_strict(arg) for arg in args)]  # noqa: UP007 - built at run time
    if origin is tuple:
        return tuple[tuple(a if a is Ellipsis else _strict(a) for a in args)]  # type: ignore[misc]
    if origin is dict:
        return dict[args[0], _strict(args[1])]  # type: ignore[misc,valid-type]
    return kind


def _mirror(kind: type) -> Any:
    hints = typing.get_type_hints(kind)
    shape = []
    for item in fields(kind):
        has_default = item.default is not item.default_factory  # both are MISSING when there is none
        field = (
            (item.name, _strict(hints[item.name]) | msgspec.UnsetType, msgspec.UNSET)
            if has_default
            else (item.name, _strict(hints[item.name]))
        )
        shape.append(field)
    return msgspec.defstruct(kind.__name__, shape, forbid_unknown_fields=True, kw_only=True)


def _fit_of(kind: Any) -> Callable[[Any], Any] | None:
    """What is left to do after decoding: None for almost everything."""
    if Label in options(kind):
        return lambda value: None if value is None else Label.parse(value)
    if _holds_record(kind):
        return lambda value: from_plain(kind, msgspec.to_builtins(value, enc_hook=str))
    return None


def _holds_record(kind: Any) -> bool:
    return is_dataclass(kind) or any(_holds_record(arg) for arg in typing.get_args(kind))
