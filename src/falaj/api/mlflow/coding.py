"""Coding: what MLflow's clients say as typed questions, and our records and errors in the JSON they expect."""

import math
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from falaj.api.answers import Answer, Refusal, render
from falaj.core.context import Context
from falaj.core.errors import (
    Conflict,
    Corrupt,
    Denied,
    FalajError,
    Invalid,
    NotFound,
    QuotaExceeded,
    Stale,
    Unauthenticated,
    Unavailable,
)
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.platform import House

BASE = "/api/"
FIELDS = 1000
"""How many parameters a query may have."""
CODES: dict[type[FalajError], str] = {
    Invalid: "INVALID_PARAMETER_VALUE",
    Unauthenticated: "UNAUTHENTICATED",
    Denied: "PERMISSION_DENIED",
    NotFound: "RESOURCE_DOES_NOT_EXIST",
    Conflict: "RESOURCE_ALREADY_EXISTS",
    QuotaExceeded: "REQUEST_LIMIT_EXCEEDED",
    Unavailable: "TEMPORARILY_UNAVAILABLE",
    Corrupt: "DATA_LOSS",
}
_encode = msgspec.json.encode
Q = TypeVar("Q", bound=msgspec.Struct)
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of 64 bits, as MLflow's are."""


class Question(msgspec.Struct, kw_only=True):
    """What every request of MLflow's is; unknown fields are those of a newer client, and left out."""


class Pair(msgspec.Struct):
    """A tag or a parameter."""

    key: str
    value: str = ""


class Visit:
    """One call of a client on its way through our verbs: who asks, and which project plain names mean."""

    __slots__ = ("ctx", "found", "house", "named", "places", "workspace")

    def __init__(
        self,
        house: "House",
        ctx: Context,
        workspace: str,
        named: Mapping[str, str],
        places: Mapping[tuple[str, str], Ref] = MappingProxyType({}),
    ) -> None:
        """`places`: ids that were looked up before, by tenant; what is looked up now is in `found`."""
        self.house = house
        self.ctx = ctx
        self.workspace = workspace
        self.named = named
        self.places = places
        self.found: dict[tuple[str, str], Ref] = {}

    def call(self, desk: str, verb: str, **arguments: Any) -> Any:
        """One verb, through the guard like any other."""
        return self.house.call(desk, verb, self.ctx, arguments)

    def do(self, desk: str, verb: str, **arguments: Any) -> dict[str, Any]:
        """The same for an act that MLflow answers with nothing."""
        self.call(desk, verb, **arguments)
        return {}

    def all(self, desk: str, verb: str, field: str, **arguments: Any) -> list[Any]:
        """Everything a listing verb gives, page after page."""
        found, after = list[Any](), ""
        while True:
            page = self.call(desk, verb, after=after, limit=1000, **arguments)
            found += getattr(page, field)
            if not (after := page.next):
                return found

    def look(self, desk: str, verb: str, **arguments: Any) -> Any:
        """The same, or None where there is no such thing for this caller."""
        try:
            return self.call(desk, verb, **arguments)
        except NotFound:
            return None


class Endpoint(NamedTuple):
    """`METHOD version path`, the verb it comes down to, how its question is read, and what answers."""

    where: str
    action: str
    shape: type[msgspec.Struct]
    answer: Callable[[Visit, Any], Any]
    light: Callable[[Any], bool] = lambda asked: False
    """Whether a question means that something is told of one run, and no record but that changed."""

    @property
    def method(self) -> str:
        """How it is asked."""
        return self.where.partition(" ")[0]

    @property
    def path(self) -> str:
        """Where it is asked."""
        _, version, rest = self.where.split(" ")
        return f"{BASE}{version}/mlflow/{rest}"


def read_query(shape: type[Q], query: bytes) -> Q:
    """A question asked in the address. A name given twice is a list, or a mistake."""
    lists = {f.name for f in msgspec.structs.fields(shape) if typing.get_origin(f.type) is list}
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS, errors="strict")
    except ValueError:
        raise Invalid("the query cannot be read", f"at most {FIELDS} parameters, escaped as UTF-8") from None
    for key, value in pairs:
        if key in lists:
            found.setdefault(key, []).append(value)
        elif found.setdefault(key, value) is not value:
            raise Invalid(f"{key[:80]!r} is given twice", "give it once")
    try:
        return msgspec.convert(found, shape, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"the query does not fit: {str(error)[:300]}", "see MLflow's REST API") from None


def reader_of(shape: type[Q]) -> Callable[[bytes], Q]:
    """How a body of that shape is read; numbers may come as texts, as some clients write 64-bit ones."""
    decoder = msgspec.json.Decoder(shape, strict=False)

    def read(body: bytes) -> Q:
        try:
            return decoder.decode(body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Invalid(f"the body does not fit: {str(error)[:300]}", "see MLflow's REST API") from None
        except RecursionError:
            raise Invalid("the body is nested too deep", "flatten it") from None

    return read


def said(error: BaseException, request: str = "", *, routed: bool = True) -> Answer:
    """An error as MLflow's clients read it; status, headers and what is hidden are those of every other answer."""
    if isinstance(error, Stale):
        error = Unavailable(error.message, error.hint)  # of this status clients ask again by themselves
    answer = render(error, request)
    told = error.error if isinstance(error, Refusal) else error
    if not isinstance(told, FalajError) or told.code == FalajError.code:
        body = {"error_code": "INTERNAL_ERROR", "message": f"something broke on our side; its id is {answer.request}"}
    elif not routed and answer.status in (404, 405):
        body = {"error_code": "ENDPOINT_NOT_FOUND", "message": "this server has no such endpoint"}
    else:
        code = next((CODES[kind] for kind in type(told).__mro__ if kind in CODES), "INTERNAL_ERROR")
        body = {"error_code": code, "message": str(told)}
    return answer._replace(body=_encode(body))


def number(value: float) -> float | str:
    """A float that JSON can hold."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def millis(at: float) -> int:
    """A moment as MLflow counts."""
    return round(at * 1000)


def seconds(at: int) -> float:
    """A moment as we count."""
    return at / 1000


def pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags and parameters as lists of pairs."""
    return [{"key": key, "value": value} for key, value in values.items()]


def mapping(given: Iterable[Pair], longest: int = 8_000) -> dict[str, str]:
    """And back. Longer values are cut, as MLflow's server does and its autologging counts on."""
    return {pair.key: pair.value[:longest] for pair in given}
