"""Filters, orders and pages over what the caller may see anyway, in the language of the search of runs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from falaj.core.errors import Invalid
from falaj.track.search_language import SearchVocabulary, apply_filters, parse_filter, parse_order, sort_items

ItemT = TypeVar("ItemT")
MAX_PAGE_ITEMS = 50_000
_TIME_FIELDS = frozenset({"creation_timestamp", "last_updated_timestamp"})
MODEL_FIELDS = SearchVocabulary(
    frozenset({"name"}) | _TIME_FIELDS, _TIME_FIELDS, (("timestamp", "last_updated_timestamp"),)
)
VERSION_FIELDS = SearchVocabulary(
    frozenset({"name", "run_id", "source_path", "version_number", "version"}) | _TIME_FIELDS,
    _TIME_FIELDS | {"version_number"},
)
LOGGED_MODEL_FIELDS = SearchVocabulary(
    frozenset({"name", "model_id", "model_type", "status", "source_run_id", "creation_time", "last_updated_time"}),
    frozenset({"creation_time", "last_updated_time"}),
    (("creation_timestamp", "creation_time"), ("last_updated_timestamp", "last_updated_time")),
    frozenset({"metrics", "params", "tags", "attributes"}),
)
_TRACE_TIME_FIELDS = frozenset({"timestamp_ms", "timestamp", "execution_time_ms", "end_time_ms"})
TRACE_FIELDS = SearchVocabulary(
    frozenset({"name", "status", "request_id", "run_id", "client_request_id"}) | _TRACE_TIME_FIELDS,
    _TRACE_TIME_FIELDS,
    (
        ("end_time", "end_time_ms"),
        ("state", "status"), ("request_time", "timestamp_ms"), ("execution_time", "execution_time_ms"),
        ("execution_duration", "execution_time_ms"), ("trace_id", "request_id"), ("id", "request_id"),
        ("trace.", "attributes"), ("metadata.", "params"), ("request_metadata.", "params"),
        ("feedback.", "datasets"), ("expectation.", "datasets"),
    ),
    frozenset({"tags", "params", "attributes"}),
)  # fmt: skip


class FilterRow(NamedTuple):
    """What a filter sees of a thing, and the thing."""

    thing: Any
    attributes: Mapping[str, Any]
    tags: Mapping[str, str]
    metrics: Mapping[str, float] = {}
    params: Mapping[str, str] = {}
    datasets: tuple[Mapping[str, str], ...] = ()


class PageRequest(Protocol):
    """What a request for a page says."""

    @property
    def max_results(self) -> int: ...
    @property
    def page_token(self) -> str: ...


class ItemPage(NamedTuple, Generic[ItemT]):
    """Some of them, and the token of the next page."""

    items: list[ItemT]
    next: str


def filter_items(
    rows: Iterable[FilterRow], field_vocabulary: SearchVocabulary, filter_text: str, order: Iterable[str]
) -> list[Any]:
    """The things for which the filter holds, in order."""
    matching_rows = sort_items(
        apply_filters(list(rows), parse_filter(filter_text, field_vocabulary)),
        parse_order(tuple(order), field_vocabulary),
    )
    return [row.thing for row in matching_rows]


def cut_page(items: list[ItemT], request: PageRequest) -> ItemPage[ItemT]:
    """The page that was asked for; its token is how many came before."""
    if not 0 < request.max_results <= MAX_PAGE_ITEMS or not re.fullmatch(r"[0-9]{0,9}", request.page_token, re.ASCII):
        raise Invalid(f"a page of {request.max_results} after {request.page_token[:20]!r}", "follow next_page_token")
    start = int(request.page_token or 0)
    stop = start + request.max_results
    return ItemPage(items[start:stop], str(stop) if stop < len(items) else "")
