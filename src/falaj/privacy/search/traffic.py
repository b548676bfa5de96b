"""Searches what endpoints kept of requests (journals, labels, tallies) and what programs of jobs printed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from falaj.core.errors import FalajError
from falaj.jobs.views import attempts
from falaj.privacy.search.estate import Estate
from falaj.privacy.search.feature_rows import names_in_bytes
from falaj.privacy.search.isolated_files import CLEAR, FOUND, MAX_ROWS, UNREAD
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep
from falaj.serve.journal import Logged
from falaj.store.records import Record

_LINES = 1000
MAX_BODY = 64 << 10  # bytes of one request or answer that an answer carries


def search_journals(estate: Estate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search the requests, answers, labels and tallies that each endpoint keeps."""
    for record, _ in estate.records(case.ctx, "endpoint", after):
        rows: list[dict[str, Any]] = []
        where = ""
        for place, row in _endpoint_matches(estate, case, record):
            where = where or place
            rows.append(row)
            if not case.wants_rows or len(rows) > MAX_ROWS:
                break
        state, cut = (FOUND if where else CLEAR), len(rows) > MAX_ROWS
        ref = str(record.ref.bare)
        yield (SearchOutcome(ref, state, where, tuple(rows[:MAX_ROWS]), record.label, record.zone, cut),), "+"
    yield (), ""


def search_job_logs(estate: Estate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search the output of every slot of every attempt that is still kept."""
    if not case.pattern.is_distinctive:
        yield (), ""
        return
    jobs = estate.service("jobs")
    count, cursor = 0, ""
    outcomes: list[SearchOutcome] = []
    for record, behind in estate.records(case.ctx, "job", after):
        if count and behind != cursor:
            yield tuple(outcomes), cursor
            outcomes = []
        count, cursor = count + 1, behind
        outcomes += _search_job(jobs, case, record)
    yield tuple(outcomes), ""


def _endpoint_matches(estate: Estate, case: SearchCase, record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    serve, tenant, ref = estate.service("serve"), case.ctx.tenant, record.ref.bare
    for line in serve.journal.read(tenant, ref):
        if _names(case, line):
            yield "a request that the endpoint kept", _row_of(line)
    for label in serve.labels.read(tenant, ref):
        if label.key == case.subject or case.pattern.is_in(label.key):
            yield "a label that the endpoint kept", {"at": _moment(label.at), "label": label.value}
    for tally in serve.sketches.read(tenant, ref):
        if not case.wants_rows and names_in_bytes(case, tally.data):
            yield "a tally of the watch", {}


def _names(case: SearchCase, line: Logged) -> bool:
    if case.subject in (line.key, line.caller):
        return True
    texts = (line.id, line.key, line.caller, _text(line.request), _text(line.response))
    return any(map(case.pattern.is_in, texts)) or any(
        names_in_bytes(case, body) for body in (line.request, line.response)
    )


def _row_of(line: Logged) -> dict[str, Any]:
    return {
        "at": _moment(line.at), "request_id": line.id, "key": line.key, "revision": line.revision,
        "status": line.status, "request": _text(line.request), "response": _text(line.response),
    }  # fmt: skip


def _text(body: bytes) -> str:
    return body[:MAX_BODY].decode("utf-8", "replace") if len(body) <= MAX_BODY else body.decode("utf-8", "replace")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _search_job(jobs: Any, case: SearchCase, record: Record) -> Iterator[SearchOutcome]:
    ref = f"log of {record.ref.bare}"
    live = record.body["attempt"] or {"number": 0}
    for attempt in attempts(record.body):
        if attempt.get("deleted"):  # an erasure deleted its folder
            continue
        for slot in range(int(attempt.get("slots") or len(attempt.get("spots", ())) or 1)):
            try:
                lines = list(_log_matches(jobs, case, record, slot, int(attempt["number"])))
            except FalajError as error:
                yield SearchOutcome(ref, UNREAD, error.message, (), record.label, record.zone)
                continue
            if lines:
                rows = tuple({"line": line} for line in lines[:MAX_ROWS])
                runs = ", and this attempt runs" if attempt["number"] == live["number"] else ""
                reason = f"a line of the job's log{runs}"
                yield SearchOutcome(ref, FOUND, reason, rows, record.label, record.zone)


def _log_matches(jobs: Any, case: SearchCase, record: Record, slot: int, attempt: int) -> Iterator[str]:
    after, before = "", None
    while after != before:
        page = jobs.logs(case.ctx, record.ref.bare, slot, attempt, after, _LINES)
        yield from filter(case.pattern.is_in, page.lines)
        before, after = after, page.next
        if not page.lines:
            return
