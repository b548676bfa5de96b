"""Traces: what a program did, call by call, as its tracing client recorded it. The spans are a file of the trace."""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.destruction import DestructionChecks
from falaj.store.ledger import Ledger
from falaj.store.records import Record
from falaj.track.notebook import check_texts
from falaj.track.reading import need

KIND = "trace"
MOST_NOTES = 1_000
_ID = re.compile(r"tr-[0-9a-f]{32}")
_STATES = ("ok", "error", "running")
_LONGEST = 65_536


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


class Traces:
    """What programs did, call by call. The spans of a trace are its file, kept by `track`."""

    def __init__(self, ledger: Ledger, destruction: DestructionChecks) -> None:
        self._ledger, self._destruction = ledger, destruction

    @verb(writes=("experiment",))
    def record(
        self,
        ctx: Context,
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
        if not _ID.fullmatch(trace) or status not in _STATES:
            raise Invalid(f"{trace[:60]!r} {status[:20]!r} is no trace", f"tr- and 32 hex digits; {', '.join(_STATES)}")
        said = check_texts("fact", facts, _LONGEST)
        with self._ledger.write(ctx) as tx:
            place = need(tx, experiment, "experiment")
            known = tx.find(KIND, terms={"id": trace}, limit=1).records
            if known and known[0].body["experiment"] != str(experiment.bare):
                raise Conflict("a trace with this id is in another experiment", "choose another id")
            body: dict[str, Any] = {
                "notes": {}, "tags": {}, **(known[0].body if known else {}), "id": trace, "status": status,
                "experiment": str(experiment.bare), "experiment_id": place.body["id"],
                "started": started or ctx.now(), "lasted_s": lasted_s, "facts": said,
            }  # fmt: skip
            body["tags"] = {**body["tags"], **check_texts("tag", tags)}
            made = tx.put(
                Ref(KIND, experiment.project, trace), body, rev=known[0].rev if known else None, terms=_terms(body)
            )
            tx.emit("traces.record", made.ref)
        return as_trace(made)

    @verb(reads=("trace",), group="read")
    def show(self, ctx: Context, trace: Annotated[Ref, "which trace"]) -> Trace:
        """Show a trace; `falaj track fetch` gives its spans.

        Example:
            falaj traces show trace:fraud/tr-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.read(ctx) as tx:
            return as_trace(need(tx, trace, KIND))

    @verb(reads=("experiment",), group="read")
    def list(
        self,
        ctx: Context,
        experiment: Annotated[Ref, "of which experiment"],
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> TracePage:
        """List the traces of an experiment, the newest first.

        Example:
            falaj traces list experiment:fraud/scoring
        """
        with self._ledger.read(ctx) as tx:
            terms = {"experiment": str(experiment.bare)}
            page = tx.find(KIND, terms=terms, cells=ctx.cells(KIND), newest=True, after=after, limit=limit)
        return TracePage(tuple(map(as_trace, page.records)), page.next)

    @verb(writes=("trace",))
    def change(
        self,
        ctx: Context,
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
        with self._ledger.write(ctx) as tx:
            old = need(tx, trace, KIND)
            kept = {**old.body["tags"], **check_texts("tag", tags)}
            thought = {**old.body["notes"], **check_texts("assessment", notes, _LONGEST)}
            body = {
                **old.body, "tags": {key: value for key, value in kept.items() if key not in drop},
                "notes": {key: value for key, value in thought.items() if value},
            }  # fmt: skip
            if max(len(kept), len(thought)) > MOST_NOTES:
                raise Invalid(f"{trace.bare} has too much said of it", f"at most {MOST_NOTES} of each", trace)
            made = tx.put(old.key, body, rev=old.rev, terms=_terms(body))
            tx.emit("traces.change", made.ref)
        return as_trace(made)

    @verb(writes=("trace",))
    def delete(self, ctx: Context, trace: Annotated[Ref, "which trace"]) -> Ref:
        """Delete a trace for good. That it was, and who deleted it, stays in the log.

        Refused while a law of its label, a legal hold, a contract or an open breach keeps it.

        Example:
            falaj traces delete trace:fraud/tr-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, trace, KIND)
            self._destruction.check_duties(ctx, old)
            tx.delete(old.key, old.rev)
            tx.emit("traces.delete", old.ref)
        return trace.bare


def as_trace(record: Record) -> Trace:
    """A record as its readers see it."""
    body = record.body
    said = dict(body["facts"])
    request, response, client = (said.pop(key, "") for key in ("request", "response", "client"))
    return Trace(
        record.ref.bare, Ref.parse(body["experiment"]), body["experiment_id"], body["status"], body["started"],
        body["lasted_s"], request, response, client, said, body["tags"], body["notes"], record.author,
    )  # fmt: skip


def _terms(body: Mapping[str, Any]) -> dict[str, str]:
    return {"id": body["id"], "experiment": body["experiment"]}
