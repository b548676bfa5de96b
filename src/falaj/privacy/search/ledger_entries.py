"""Searches the texts of the ledger: the records of the tenant, of every kind but those excluded below, and the log."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from falaj.privacy.search.data_estate import PAGE_SIZE, DataEstate
from falaj.privacy.search.isolated_files import STATE_FOUND, STATE_UNREAD
from falaj.privacy.search.records import STATE_KEPT, SearchCase, SearchOutcome, SearchStep
from falaj.store.codec import to_json, to_plain
from falaj.store.records import LedgerRecord

EXCLUDED_KINDS: Mapping[str, str] = {
    "key": "wrapped keys, under pseudonyms; they hold no text",
    "object": "digests and storage names of bytes, which are searched below what keeps them",
}
"""Kinds of records that are not searched, and why. Every other kind is, whichever component or plugin writes it."""
LISTING_FIELDS: Mapping[str, frozenset[str]] = {
    "person-search": frozenset({"matches", "unread"}),
    "erasure-plan": frozenset({"items"}),
    "subject-request": frozenset({"derived", "held", "steps"}),
    "certificate": frozenset({"statement"}),
}
"""Fields in which records of erasures list sources by name; one that is named after the person stays listed there."""
MAX_TEXT_CHARS = 64 << 10  # characters of one text that an answer carries


def search_records(estate: DataEstate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search the records of every kind for texts that name the person."""
    first_kind, _, position = after.partition(" ")
    present_kinds = estate.list_kinds(case.ctx) if case.pattern.is_distinctive else []
    kinds = [kind for kind in present_kinds if kind not in EXCLUDED_KINDS and kind >= first_kind]
    for number, kind in enumerate(kinds, 1):
        next_cursor = f"{kinds[number]} " if number < len(kinds) else ""
        for outcomes, cursor in _search_kind(estate, case, kind, position if kind == first_kind else ""):
            yield outcomes, f"{kind} {cursor}" if cursor else next_cursor
    if not kinds:
        yield (), ""


def _search_kind(estate: DataEstate, case: SearchCase, kind: str, after: str) -> Iterator[SearchStep]:
    outcomes: list[SearchOutcome] = []
    count, cursor = 0, ""
    for record, page_cursor in estate.records(case.ctx, kind, after):
        if count and page_cursor != cursor:
            yield tuple(outcomes), cursor
            outcomes = []
        count, cursor = count + 1, page_cursor
        outcomes += _search_record(case, record)
    yield tuple(outcomes), ""


def _search_record(case: SearchCase, record: LedgerRecord) -> Iterator[SearchOutcome]:
    record_marks = {"terms": dict(record.terms), "holds": list(record.kept)}
    if not any(map(case.pattern.is_in, (str(record.ref), to_json([record.body, record_marks]).decode()))):
        return
    listing_fields = LISTING_FIELDS.get(record.key.kind, frozenset())
    searched_fields = {name: value for name, value in record.body.items() if name not in listing_fields}
    texts = tuple(_find_texts(searched_fields, case)) or tuple(_find_texts(record_marks, case))
    rows = tuple({"field": path, "value": text} for path, text in texts)
    is_listing = not rows and not case.pattern.is_in(str(record.ref))
    reason = (
        "it lists a source that is named after the person" if is_listing else "a text of the record names the person"
    )
    ref = f"record {record.ref if record.key.version else record.ref.bare}"
    yield SearchOutcome(ref, STATE_KEPT if is_listing else STATE_FOUND, reason, rows, record.label, record.zone)


def report_short_identifier(case: SearchCase) -> tuple[SearchOutcome, ...]:
    """What is said of all that has no declared columns, where the identifier is too short to be recognised there."""
    if case.pattern.is_distinctive:
        return ()
    reason = "the identifier is too short to be told from other values, so only declared columns and keys were searched"
    return (SearchOutcome("texts, undeclared columns and logs", STATE_UNREAD, reason),)


def search_log(estate: DataEstate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search the events of the audit log, which can only be added to."""
    while case.pattern.is_distinctive:
        logged_events = estate.ledger.tail(after, tenant=case.ctx.tenant, limit=PAGE_SIZE)
        outcomes = []
        for logged_event in logged_events:
            text = to_json(to_plain(logged_event.event)).decode()
            if case.pattern.is_in(text):
                event_time = datetime.fromtimestamp(logged_event.event.at, UTC).isoformat()
                row = {"event": logged_event.event.id, "at": event_time, "what": logged_event.event.verb}
                reason = "the audit log can only be added to; this event names the person"
                outcomes.append(SearchOutcome(f"event {logged_event.event.id}", STATE_KEPT, reason, (row,), None, ""))
        after = logged_events[-1].pos if len(logged_events) == PAGE_SIZE else ""
        yield tuple(outcomes), after
        if not after:
            return
    yield (), ""


def _find_texts(value: Any, case: SearchCase, path: str = "") -> Iterator[tuple[str, str]]:
    """The values below a value that name the person, by where they stand; nothing of what stands beside them."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _find_texts(item, case, f"{path}.{name}" if path else str(name))
            if case.pattern.is_in(str(name)):
                yield f"{path}.{name}" if path else str(name), str(name)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _find_texts(item, case, f"{path}[{number}]")
    elif value is not None and case.pattern.is_in(str(value)):
        yield path, str(value)[:MAX_TEXT_CHARS]
