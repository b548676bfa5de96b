"""Searches what endpoints kept of requests (journals, labels, tallies) and what programs of jobs printed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from falaj.core.errors import FalajError
from falaj.jobs.views import list_attempts
from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.feature_rows import occurs_in_bytes
from falaj.privacy.search.isolated_files import MAX_ROWS, STATE_CLEAR, STATE_FOUND, STATE_UNREAD
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep
from falaj.serve.request_journal import JournalRow
from falaj.store.records import LedgerRecord

_LOG_PAGE_LINES = 1000
MAX_BODY_BYTES = 64 << 10  # bytes of one request or answer that an answer carries


def search_journals(estate: DataEstate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search the requests, answers, labels and tallies that each endpoint keeps."""
    for record, _ in estate.records(case.ctx, "endpoint", after):
        rows: list[dict[str, Any]] = []
        match_place = ""
        for row_place, row in _find_endpoint_matches(estate, case, record):
            match_place = match_place or row_place
            rows.append(row)
            if not case.wants_rows or len(rows) > MAX_ROWS:
                break
        state, is_cut = (STATE_FOUND if match_place else STATE_CLEAR), len(rows) > MAX_ROWS
        ref = str(record.ref.bare)
        yield (SearchOutcome(ref, state, match_place, tuple(rows[:MAX_ROWS]), record.label, record.zone, is_cut),), "+"
    yield (), ""


def search_job_logs(estate: DataEstate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search the output of every slot of every attempt that is still kept."""
    if not case.pattern.is_distinctive:
        yield (), ""
        return
    jobs = estate.service("jobs")
    count, cursor = 0, ""
    outcomes: list[SearchOutcome] = []
    for record, page_cursor in estate.records(case.ctx, "job", after):
        if count and page_cursor != cursor:
            yield tuple(outcomes), cursor
            outcomes = []
        count, cursor = count + 1, page_cursor
        outcomes += _search_job(jobs, case, record)
    yield tuple(outcomes), ""


def _find_endpoint_matches(
    estate: DataEstate, case: SearchCase, record: LedgerRecord
) -> Iterator[tuple[str, dict[str, Any]]]:
    serve, tenant, ref = estate.service("serve"), case.ctx.tenant, record.ref.bare
    for journal_entry in serve.journal.read(tenant, ref):
        if _names_person(case, journal_entry):
            yield "a request that the endpoint kept", _to_row(journal_entry)
    for label in serve.labels.read(tenant, ref):
        if label.key == case.subject or case.pattern.is_in(label.key):
            yield "a label that the endpoint kept", {"at": _format_time(label.at), "label": label.value}
    for drift_tally in serve.sketches.read(tenant, ref):
        if not case.wants_rows and occurs_in_bytes(case, drift_tally.data):
            yield "a tally of the watch", {}


def _names_person(case: SearchCase, journal_entry: JournalRow) -> bool:
    if case.subject in (journal_entry.key, journal_entry.caller):
        return True
    texts = (
        journal_entry.id,
        journal_entry.key,
        journal_entry.caller,
        _decode_body(journal_entry.request),
        _decode_body(journal_entry.response),
    )
    return any(map(case.pattern.is_in, texts)) or any(
        occurs_in_bytes(case, message_body) for message_body in (journal_entry.request, journal_entry.response)
    )


def _to_row(journal_entry: JournalRow) -> dict[str, Any]:
    return {
        "at": _format_time(journal_entry.at),
        "request_id": journal_entry.id,
        "key": journal_entry.key,
        "revision": journal_entry.revision,
        "status": journal_entry.status,
        "request": _decode_body(journal_entry.request),
        "response": _decode_body(journal_entry.response),
    }


def _decode_body(body: bytes) -> str:
    return (
        body[:MAX_BODY_BYTES].decode("utf-8", "replace")
        if len(body) <= MAX_BODY_BYTES
        else body.decode("utf-8", "replace")
    )


def _format_time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def _search_job(jobs: Any, case: SearchCase, record: LedgerRecord) -> Iterator[SearchOutcome]:
    ref = f"log of {record.ref.bare}"
    live = record.body["attempt"] or {"number": 0}
    for attempt in list_attempts(record.body):
        if attempt.get("deleted"):  # an erasure deleted its folder
            continue
        for slot in range(int(attempt.get("slots") or len(attempt.get("spots", ())) or 1)):
            try:
                lines = list(_find_log_matches(jobs, case, record, slot, int(attempt["number"])))
            except FalajError as error:
                yield SearchOutcome(ref, STATE_UNREAD, error.message, (), record.label, record.zone)
                continue
            if lines:
                rows = tuple({"line": line} for line in lines[:MAX_ROWS])
                runs = ", and this attempt runs" if attempt["number"] == live["number"] else ""
                reason = f"a line of the job's log{runs}"
                yield SearchOutcome(ref, STATE_FOUND, reason, rows, record.label, record.zone)


def _find_log_matches(jobs: Any, case: SearchCase, record: LedgerRecord, slot: int, attempt: int) -> Iterator[str]:
    cursor, earlier_cursor = "", None
    while cursor != earlier_cursor:
        page = jobs.logs(case.ctx, record.ref.bare, slot, attempt, cursor, _LOG_PAGE_LINES)
        yield from filter(case.pattern.is_in, page.lines)
        earlier_cursor, cursor = cursor, page.next
        if not page.lines:
            return
