"""Filters, orders and pages over what the caller may see anyway, in the language of the search of runs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from falaj.core.errors import Invalid
from falaj.track.where import Words, arrange, read_order, read_where, select

T = TypeVar("T")
MOST = 50_000
_TIMES = frozenset({"creation_timestamp", "last_updated_timestamp"})
MODELS = Words(frozenset({"name"}) | _TIMES, _TIMES, (("timestamp", "last_updated_timestamp"),))
VERSIONS = Words(
    frozenset({"name", "run_id", "source_path", "version_number", "version"}) | _TIMES, _TIMES | {"version_number"}
)
OUTPUTS = Words(
    frozenset({"name", "model_id", "model_type", "status", "source_run_id", "creation_time", "last_updated_time"}),
    frozenset({"creation_time", "last_updated_time"}),
    (("creation_timestamp", "creation_time"), ("last_updated_timestamp", "last_updated_time")),
    frozenset({"metrics", "params", "tags", "attributes"}),
)
_MOMENTS = frozenset({"timestamp_ms", "timestamp", "execution_time_ms", "end_time_ms"})
TRACES = Words(
    frozenset({"name", "status", "request_id", "run_id", "client_request_id"}) | _MOMENTS,
    _MOMENTS,
    (
        ("end_time", "end_time_ms"),
        ("state", "status"), ("request_time", "timestamp_ms"), ("execution_time", "execution_time_ms"),
        ("execution_duration", "execution_time_ms"), ("trace_id", "request_id"), ("id", "request_id"),
        ("trace.", "attributes"), ("metadata.", "params"), ("request_metadata.", "params"),
        ("feedback.", "datasets"), ("expectation.", "datasets"),
    ),
    frozenset({"tags", "params", "attributes"}),
)  # fmt: skip


class Sight(NamedTuple):
    """What a filter sees of a thing, and the thing."""

    thing: Any
    attributes: Mapping[str, Any]
    tags: Mapping[str, str]
    metrics: Mapping[str, float] = {}
    params: Mapping[str, str] = {}
    datasets: tuple[Mapping[str, str], ...] = ()


class Asking(Protocol):
    """What a request for a page says."""

    @property
    def max_results(self) -> int: ...
    @property
    def page_token(self) -> str: ...


class Page(NamedTuple, Generic[T]):
    """Some of them, and the token of the next page."""

    items: list[T]
    next: str


def chosen(sights: Iterable[Sight], words: Words, where: str, order: Iterable[str]) -> list[Any]:
    """The things for which the filter holds, in order."""
    found = arrange(select(list(sights), read_where(where, words)), read_order(tuple(order), words))
    return [sight.thing for sight in found]


def page_of(things: list[T], asked: Asking) -> Page[T]:
    """The page that was asked for; its token is how many came before."""
    if not 0 < asked.max_results <= MOST or not re.fullmatch(r"[0-9]{0,9}", asked.page_token, re.ASCII):
        raise Invalid(f"a page of {asked.max_results} after {asked.page_token[:20]!r}", "follow next_page_token")
    start = int(asked.page_token or 0)
    stop = start + asked.max_results
    return Page(things[start:stop], str(stop) if stop < len(things) else "")
