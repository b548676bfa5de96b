"""Traces: what a program did, call by call, as its tracing client recorded it. The spans are a file of the trace."""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.destruction_checks import DestructionChecks
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord
from falaj.track.record_views import require_record
from falaj.track.tracking_base import check_texts

TRACE_KIND = "trace"
MAX_NOTES = 1_000
_TRACE_ID_PATTERN = re.compile(r"tr-[0-9a-f]{32}")
_TRACE_STATES = ("ok", "error", "running")
_MAX_FACT_CHARS = 65_536


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace: when, how long, how it went, what came in and out in short, and what people think of it."""

    STRUCTURE: ClassVar = ("ref", "experiment", "experiment_id", "status", "started", "lasted_s", "author")
    MARKER: ClassVar = "request"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "status", "started", "lasted_s", "request", "response")

    ref: Ref
    experiment: Ref
    experiment_id: str
    status: str
    """ok, error or running."""
    started: float
    lasted_s: float
    request: str = ""
    response: str = ""
    client: str = ""
    """What the program itself calls this request."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What its client said of it, once."""
    tags: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    """Assessments by id, each as JSON."""
    author: str = ""


@dataclass(frozen=True, slots=True)
class TracePage:
    """Some traces and the cursor of the next page, empty at the end."""

    traces: tuple[Trace, ...]
    next: str = ""


class TracesService:
    """What programs did, call by call. The spans of a trace are its file, kept by `track`."""

    def __init__(self, ledger: Ledger, destruction: DestructionChecks) -> None:
        self._ledger, self._destruction = ledger, destruction

    @operation(writes=("experiment",))
    def record(
        self,
        ctx: CallContext,
        experiment: Annotated[Ref, "of which experiment"],
        trace: Annotated[str, "its id: tr- and 32 hexadecimal digits"],
        status: Annotated[str, "ok, error or running"] = "ok",
        started: Annotated[float, "when it began, in seconds since the epoch"] = 0.0,
        lasted_s: Annotated[float, "how long it took"] = 0.0,
        facts: Annotated[
            dict[str, str] | None, "what its client says of it; request, response and client among it"
        ] = None,
        tags: Annotated[dict[str, str] | None, "tags, by name"] = None,
    ) -> Trace:
        """Record a trace. The same id again writes over what its author recorded before.

        Example:
            falaj traces record experiment:fraud/scoring tr-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        if not _TRACE_ID_PATTERN.fullmatch(trace) or status not in _TRACE_STATES:
            raise Invalid(
                f"{trace[:60]!r} {status[:20]!r} is no trace", f"tr- and 32 hex digits; {', '.join(_TRACE_STATES)}"
            )
        checked_facts = check_texts("fact", facts, _MAX_FACT_CHARS)
        with self._ledger.write(ctx) as writer:
            experiment_record = require_record(writer, experiment, "experiment")
            existing = writer.find(TRACE_KIND, terms={"id": trace}, limit=1).records
            if existing and existing[0].body["experiment"] != str(experiment.bare):
                raise Conflict("a trace with this id is in another experiment", "choose another id")
            body: dict[str, Any] = {
                "notes": {}, "tags": {}, **(existing[0].body if existing else {}), "id": trace, "status": status,
                "experiment": str(experiment.bare), "experiment_id": experiment_record.body["id"],
                "started": started or ctx.now(), "lasted_s": lasted_s, "facts": checked_facts,
            }  # fmt: skip
            body["tags"] = {**body["tags"], **check_texts("tag", tags)}
            trace_record = writer.put(
                Ref(TRACE_KIND, experiment.project, trace),
                body,
                rev=existing[0].rev if existing else None,
                terms=_trace_terms(body),
            )
            writer.emit("traces.record", trace_record.ref)
        return to_trace(trace_record)

    @operation(reads=("trace",), group="read")
    def show(self, ctx: CallContext, trace: Annotated[Ref, "which trace"]) -> Trace:
        """Show a trace; `falaj track fetch` gives its spans.

        Example:
            falaj traces show trace:fraud/tr-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.read(ctx) as reader:
            return to_trace(require_record(reader, trace, TRACE_KIND))

    @operation(reads=("experiment",), group="read")
    def list(
        self,
        ctx: CallContext,
        experiment: Annotated[Ref, "of which experiment"],
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> TracePage:
        """List the traces of an experiment, the newest first.

        Example:
            falaj traces list experiment:fraud/scoring
        """
        with self._ledger.read(ctx) as reader:
            terms = {"experiment": str(experiment.bare)}
            page = reader.find(
                TRACE_KIND, terms=terms, scopes=ctx.cells(TRACE_KIND), newest_first=True, after=after, limit=limit
            )
        return TracePage(tuple(map(to_trace, page.records)), page.next)

    @operation(writes=("trace",))
    def change(
        self,
        ctx: CallContext,
        trace: Annotated[Ref, "which trace"],
        tags: Annotated[dict[str, str] | None, "tags to set"] = None,
        drop: Annotated[tuple[str, ...], "tags to take off"] = (),
        notes: Annotated[
            dict[str, str] | None, "assessments to set, by id, each as JSON; an empty one is removed"
        ] = None,
    ) -> Trace:
        """Change the tags of a trace, or what people think of it.

        Example:
            falaj traces change trace:fraud/tr-0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --tags seen=yes
        """
        with self._ledger.write(ctx) as writer:
            old_record = require_record(writer, trace, TRACE_KIND)
            merged_tags = {**old_record.body["tags"], **check_texts("tag", tags)}
            merged_notes = {**old_record.body["notes"], **check_texts("assessment", notes, _MAX_FACT_CHARS)}
            body = {
                **old_record.body, "tags": {key: value for key, value in merged_tags.items() if key not in drop},
                "notes": {key: value for key, value in merged_notes.items() if value},
            }  # fmt: skip
            if max(len(merged_tags), len(merged_notes)) > MAX_NOTES:
                raise Invalid(f"{trace.bare} has too much said of it", f"at most {MAX_NOTES} of each", trace)
            trace_record = writer.put(old_record.key, body, rev=old_record.rev, terms=_trace_terms(body))
            writer.emit("traces.change", trace_record.ref)
        return to_trace(trace_record)

    @operation(writes=("trace",))
    def delete(self, ctx: CallContext, trace: Annotated[Ref, "which trace"]) -> Ref:
        """Delete a trace for good. That it was, and who deleted it, stays in the log.

        Refused while a law of its label, a legal hold, a contract or an open breach keeps it.

        Example:
            falaj traces delete trace:fraud/tr-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.write(ctx) as writer:
            old_record = require_record(writer, trace, TRACE_KIND)
            self._destruction.check_duties(ctx, old_record)
            writer.delete(old_record.key, old_record.rev)
            writer.emit("traces.delete", old_record.ref)
        return trace.bare


def to_trace(record: LedgerRecord) -> Trace:
    """A record as its readers see it."""
    body = record.body
    trace_facts = dict(body["facts"])
    request, response, client = (trace_facts.pop(key, "") for key in ("request", "response", "client"))
    return Trace(
        record.ref.bare, Ref.parse(body["experiment"]), body["experiment_id"], body["status"], body["started"],
        body["lasted_s"], request, response, client, trace_facts, body["tags"], body["notes"], record.author,
    )  # fmt: skip


def _trace_terms(body: Mapping[str, Any]) -> dict[str, str]:
    return {"id": body["id"], "experiment": body["experiment"]}
