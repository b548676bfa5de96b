"""Coding: what MLflow's clients say as typed questions, and our records and errors in the JSON they expect."""

import math
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from falaj.api.responses import HttpError, HttpResponse, render_error
from falaj.core.context import CallContext
from falaj.core.errors import (
    Conflict,
    CorruptData,
    Denied,
    FalajError,
    Invalid,
    NotFound,
    QuotaExceeded,
    StaleRevision,
    Unauthenticated,
    Unavailable,
)
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.server import Server

API_BASE = "/api/"
MAX_QUERY_PARAMETERS = 1000
"""How many parameters a query may have."""
ERROR_CODES: dict[type[FalajError], str] = {
    Invalid: "INVALID_PARAMETER_VALUE",
    Unauthenticated: "UNAUTHENTICATED",
    Denied: "PERMISSION_DENIED",
    NotFound: "RESOURCE_DOES_NOT_EXIST",
    Conflict: "RESOURCE_ALREADY_EXISTS",
    QuotaExceeded: "REQUEST_LIMIT_EXCEEDED",
    Unavailable: "TEMPORARILY_UNAVAILABLE",
    CorruptData: "DATA_LOSS",
}
_encode = msgspec.json.encode
RequestT = TypeVar("RequestT", bound=msgspec.Struct)
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of 64 bits, as MLflow's are."""


class MlflowRequest(msgspec.Struct, kw_only=True):
    """What every request of MLflow's is; unknown fields are those of a newer client, and left out."""


class KeyValue(msgspec.Struct):
    """A tag or a parameter."""

    key: str
    value: str = ""


class MlflowContext:
    """One call of a client on its way through our verbs: who asks, and which project plain names mean."""

    __slots__ = ("ctx", "found", "house", "named", "places", "workspace")

    def __init__(
        self,
        server: "Server",
        ctx: CallContext,
        workspace: str,
        path_parameters: Mapping[str, str],
        cached_refs: Mapping[tuple[str, str], Ref] = MappingProxyType({}),
    ) -> None:
        """`cached_refs`: ids that were looked up before, by tenant; what is looked up now is in `found`."""
        self.house = server
        self.ctx = ctx
        self.workspace = workspace
        self.named = path_parameters
        self.places = cached_refs
        self.found: dict[tuple[str, str], Ref] = {}

    def call(self, service_name: str, operation_name: str, **arguments: Any) -> Any:
        """One verb, through the guard like any other."""
        return self.house.call(service_name, operation_name, self.ctx, arguments)

    def do(self, service_name: str, operation_name: str, **arguments: Any) -> dict[str, Any]:
        """The same for an act that MLflow answers with nothing."""
        self.call(service_name, operation_name, **arguments)
        return {}

    def all(self, service_name: str, operation_name: str, field_name: str, **arguments: Any) -> list[Any]:
        """Everything a listing verb gives, page after page."""
        items, after = list[Any](), ""
        while True:
            page = self.call(service_name, operation_name, after=after, limit=1000, **arguments)
            items += getattr(page, field_name)
            if not (after := page.next):
                return items

    def look(self, service_name: str, operation_name: str, **arguments: Any) -> Any:
        """The same, or None where there is no such thing for this caller."""
        try:
            return self.call(service_name, operation_name, **arguments)
        except NotFound:
            return None


class MlflowEndpoint(NamedTuple):
    """`METHOD version path`, the verb it comes down to, how its question is read, and what answers."""

    where: str
    action: str
    shape: type[msgspec.Struct]
    answer: Callable[[MlflowContext, Any], Any]
    light: Callable[[Any], bool] = lambda request: False
    """Whether a question means that something is told of one run, and no record but that changed."""

    @property
    def method(self) -> str:
        """How it is asked."""
        return self.where.partition(" ")[0]

    @property
    def path(self) -> str:
        """Where it is asked."""
        _, version, endpoint_path = self.where.split(" ")
        return f"{API_BASE}{version}/mlflow/{endpoint_path}"


def decode_query(request_type: type[RequestT], query: bytes) -> RequestT:
    """A question asked in the address. A name given twice is a list, or a mistake."""
    list_fields = {
        field.name for field in msgspec.structs.fields(request_type) if typing.get_origin(field.type) is list
    }
    values: dict[str, Any] = {}
    try:
        query_pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_QUERY_PARAMETERS, errors="strict"
        )
    except ValueError:
        raise Invalid(
            "the query cannot be read", f"at most {MAX_QUERY_PARAMETERS} parameters, escaped as UTF-8"
        ) from None
    for key, value in query_pairs:
        if key in list_fields:
            values.setdefault(key, []).append(value)
        elif values.setdefault(key, value) is not value:
            raise Invalid(f"{key[:80]!r} is given twice", "give it once")
    try:
        return msgspec.convert(values, request_type, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"the query does not fit: {str(error)[:300]}", "see MLflow's REST API") from None


def create_body_decoder(request_type: type[RequestT]) -> Callable[[bytes], RequestT]:
    """How a body of that shape is read; numbers may come as texts, as some clients write 64-bit ones."""
    decoder = msgspec.json.Decoder(request_type, strict=False)

    def decode_body(body: bytes) -> RequestT:
        try:
            return decoder.decode(body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Invalid(f"the body does not fit: {str(error)[:300]}", "see MLflow's REST API") from None
        except RecursionError:
            raise Invalid("the body is nested too deep", "flatten it") from None

    return decode_body


def render_mlflow_error(error: BaseException, request_id: str = "", *, is_routed: bool = True) -> HttpResponse:
    """An error as MLflow's clients read it; status, headers and what is hidden are those of every other answer."""
    if isinstance(error, StaleRevision):
        error = Unavailable(error.message, error.hint)  # of this status clients ask again by themselves
    response = render_error(error, request_id)
    reported_error = error.error if isinstance(error, HttpError) else error
    if not isinstance(reported_error, FalajError) or reported_error.code == FalajError.code:
        body = {"error_code": "INTERNAL_ERROR", "message": f"something broke on our side; its id is {response.request}"}
    elif not is_routed and response.status in (404, 405):
        body = {"error_code": "ENDPOINT_NOT_FOUND", "message": "this server has no such endpoint"}
    else:
        code = next(
            (ERROR_CODES[error_class] for error_class in type(reported_error).__mro__ if error_class in ERROR_CODES),
            "INTERNAL_ERROR",
        )
        body = {"error_code": code, "message": str(reported_error)}
    return response._replace(body=_encode(body))


def to_json_number(value: float) -> float | str:
    """A float that JSON can hold."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def to_milliseconds(unix_time: float) -> int:
    """A moment as MLflow counts."""
    return round(unix_time * 1000)


def from_milliseconds(milliseconds: int) -> float:
    """A moment as we count."""
    return milliseconds / 1000


def to_key_values(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags and parameters as lists of pairs."""
    return [{"key": key, "value": value} for key, value in values.items()]


def from_key_values(key_values: Iterable[KeyValue], max_value_chars: int = 8_000) -> dict[str, str]:
    """And back. Longer values are cut, as MLflow's server does and its autologging counts on."""
    return {pair.key: pair.value[:max_value_chars] for pair in key_values}
