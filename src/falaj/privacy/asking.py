"""What people ask for: requests with the clock of every regime their data stands under, until they are answered."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from falaj.core.cell import Cell
from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.applicability import LabelFacts, controller_of, decide_applicability
from falaj.govern.legal_periods import REQUEST as REQUEST_DUTY
from falaj.govern.legal_periods import STOP_REASONS
from falaj.privacy import decide
from falaj.privacy.clocks import (
    STOPPED,
    exempt_clocks,
    extend_clocks,
    first_due,
    open_clocks,
    resume_clocks,
    stop_clocks,
)
from falaj.privacy.records import ANSWERED, CLOSED, ERASURE, OPEN, REFUSED, STATES, TYPES, Clock, Page, Request
from falaj.privacy.shelf import MOST_PAGE, Shelf, check_state, check_text, load, named, same, save
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

REQUEST = "subject-request"
_ABOUT = ("view", "entity", "endpoint", "dataset")
"""Kinds whose labels tell which regimes people's data stands under."""


class Asking(Shelf):
    """Requests of data subjects."""

    @verb(group="write")
    def ask(
        self,
        ctx: Context,
        type: Annotated[str, f"one of {', '.join(TYPES)}"],  # noqa: A002 - the word of the law and of the command line
        subject: Annotated[str, "who asks, by the identifier that the data carries; it is not written down"],
        regimes: Annotated[tuple[str, ...], "the regimes that apply; decided from each label when empty"] = (),
        received: Annotated[str, "when it came in, with offset: 2026-11-01T09:00:00+04:00; now when empty"] = "",
    ) -> Request:
        """Open a request. It is due by the earliest clock of the regimes that apply to people's data.

        Without `regimes`, each label decides by itself which of its regimes apply; one that applies to no label is
        shown as not applicable, with the reason.

        Example:
            falaj privacy ask erasure 784-1990-1234567-1 --received 2026-11-01T09:00:00+04:00
        """
        if type not in TYPES:
            raise Invalid(f"{type[:40]!r} is no request", f"one of {', '.join(TYPES)}")
        since, person = decide.moment_of(received, ctx.now()), self._person(ctx, subject)
        with self._ledger.write(ctx) as tx:
            clocks = self._request_clocks(ctx, tx, regimes, since)
            request = Request(named(REQUEST), type, OPEN, person, since, first_due(clocks), clocks)
            record = keep(tx, request)
            tx.emit("privacy.ask", record.ref, type=type, person=person, due=request.due)
        return shown(request, ctx.now())

    @verb()
    def requests(
        self,
        ctx: Context,
        state: Annotated[str, f"one of {', '.join(STATES)}"] = "",
        type: Annotated[str, f"one of {', '.join(TYPES)}"] = "",  # noqa: A002 - the word of the law
        overdue: Annotated[bool, "only those whose time is over"] = False,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> Page:
        """List requests, newest first, with when each is due.

        Example:
            falaj privacy requests --state open --overdue
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} requests", f"ask for 1 to {MOST_PAGE} and follow `next`")
        terms = {name: value for name, value in {"state": state, "type": type}.items() if value}
        with self._ledger.read(ctx) as tx:
            page = tx.find(REQUEST, terms=terms, cells=ctx.cells(REQUEST), newest=True, after=after, limit=limit)
        found = tuple(shown(load(Request, one), ctx.now()) for one in page.records)
        return Page(tuple(one for one in found if one.overdue or not overdue), page.next)

    @verb(reads=("request",))
    def request(self, ctx: Context, request: Annotated[Ref, "which request"]) -> Request:
        """Show a request: each regime's clock, what was done, what waits for a decision.

        Example:
            falaj privacy request subject-request:privacy/0199d2f0
        """
        with self._ledger.read(ctx) as tx:
            return shown(read(tx, request)[0], ctx.now())

    @verb(reads=("request",), group="write")
    def extend(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        reason: Annotated[str, "why it takes longer, as the person is told"],
    ) -> Request:
        """Extend a request once, as far as the regimes allow; refused when the earliest clock allows none.

        Example:
            falaj privacy extend subject-request:privacy/0199d2f0 --reason "many systems"
        """
        check_text("the reason", reason)
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, OPEN)
            if old.extended or (old.due and ctx.now() > old.due):
                raise Conflict(f"{request} was extended already, or is overdue", "answer it now", request)
            if any(clock.state == STOPPED for clock in old.clocks):
                raise Conflict(f"a clock of {request} is stopped", "falaj privacy resume-clock first", request)
            clocks = extend_clocks(old.clocks)
            extended = replace(old, clocks=clocks, due=first_due(clocks), extended=reason)
            tx.emit("privacy.extend", keep(tx, extended, record).ref, due=extended.due, reason=reason[:500])
        return shown(extended, ctx.now())

    @verb(reads=("request",), group="write")
    def stop_clock(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        waits_for: Annotated[str, f"what you asked the person for: {', '.join(STOP_REASONS)}"],
        at: Annotated[str, "when you asked, with offset; now when empty"] = "",
    ) -> Request:
        """Stop the clocks that the law lets stand while you wait for the person; the others go on running.

        Example:
            falaj privacy stop-clock subject-request:privacy/0199d2f0 identification
        """
        if waits_for not in STOP_REASONS:
            raise Invalid(f"waits_for {waits_for[:40]!r}: expected one of {', '.join(STOP_REASONS)}", "name one")
        since = decide.moment_of(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, OPEN)
            if since < old.received or (old.due and since > old.due):
                raise Conflict(
                    f"{request} came in later, or was overdue by then", "name a moment while the clock ran", request
                )
            clocks = stop_clocks(old.clocks, waits_for, since)
            stopped = replace(old, clocks=clocks, due=first_due(clocks))
            tx.emit("privacy.stop_clock", keep(tx, stopped, record).ref, waits_for=waits_for, at=since)
        return shown(stopped, ctx.now())

    @verb(reads=("request",), group="write")
    def resume_clock(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        at: Annotated[str, "when the person answered you, with offset; now when empty"] = "",
    ) -> Request:
        """Let stopped clocks run again; the days they were stopped are added to their end.

        Example:
            falaj privacy resume-clock subject-request:privacy/0199d2f0
        """
        until = decide.moment_of(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, OPEN)
            if any(stop.since > until for clock in old.clocks for stop in clock.stops):
                raise Conflict(f"{request} was stopped after that moment", "name a later one", request)
            clocks = resume_clocks(old.clocks, until)
            resumed = replace(old, clocks=clocks, due=first_due(clocks))
            tx.emit("privacy.resume_clock", keep(tx, resumed, record).ref, due=resumed.due, at=until)
        return shown(resumed, ctx.now())

    @verb(reads=("request",), group="write")
    def answer(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        answer: Annotated[str, "what was done, or the digest of what was handed over"],
    ) -> Request:
        """Record what a person was answered. An erasure is answered by its certificate: falaj privacy erase.

        Example:
            falaj privacy answer subject-request:privacy/0199d2f0 --answer sha256:9f…
        """
        return self._answered(ctx, request, ANSWERED, answer)

    @verb(reads=("request",), group="write")
    def refuse(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        rule: Annotated[str, "which rule stands against it, as the person is told"],
    ) -> Request:
        """Refuse a request, naming the rule that stands against it.

        Example:
            falaj privacy refuse subject-request:privacy/0199d2f0 --rule "kept for claims, case 2027-114"
        """
        return self._answered(ctx, request, REFUSED, rule)

    @verb(reads=("request",), group="write")
    def close(
        self,
        ctx: Context,
        request: Annotated[Ref, "which request"],
        note: Annotated[str, "what shall be remembered"] = "",
    ) -> Request:
        """Close a request that was answered or refused.

        Example:
            falaj privacy close subject-request:privacy/0199d2f0
        """
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, ANSWERED, REFUSED)
            made = replace(old, state=CLOSED, closed_at=ctx.now())
            tx.emit("privacy.close", keep(tx, made, record).ref, after=old.state, note=note[:500])
        return shown(made, ctx.now())

    @verb(group="read")
    def pseudonym(
        self,
        ctx: Context,
        subject: Annotated[str, "who, by the identifier that the data carries"],
        zone: Annotated[str, "in which zone; your own when empty"] = "",
    ) -> str:
        """Say what the platform calls a person in a zone: a text that nobody can turn back into who they are.

        Example:
            falaj privacy pseudonym 784-1990-1234567-1
        """
        return self._person(ctx, subject, zone)

    def _request_clocks(self, ctx: Context, tx: Reader, regimes: tuple[str, ...], received: float) -> tuple[Clock, ...]:
        """Open the clocks of the named regimes, or of those that apply to a label of data that may be about people."""
        places = self._zones.view(ctx)
        if regimes:
            return open_clocks(REQUEST_DUTY, self._regimes(ctx, regimes), received, self._calendar_of(ctx))
        labels = [
            LabelFacts(frozenset(cell.regimes), frozenset(cell.categories), controller_of(places.zones.get(cell.zone)))
            for cell in _cells_about_people(tx)
        ]
        self._regimes(ctx, {name for label in labels for name in label.regimes})  # Invalid for one without a profile
        applying, exempt = decide_applicability(labels, places.regimes)
        clocks = open_clocks(REQUEST_DUTY, applying, received, self._calendar_of(ctx))
        return (*clocks, *exempt_clocks(REQUEST_DUTY, exempt, places.regimes))

    def _answered(self, ctx: Context, request: Ref, state: str, said: str) -> Request:
        check_text("the answer", said)
        with self._ledger.write(ctx) as tx:
            old, record = read(tx, request)
            check_state(request, old.state, OPEN)
            if state == ANSWERED and old.type == ERASURE:
                raise Denied("an erasure ends in a certificate", f"falaj privacy erase {request}", request)
            made = replace(old, state=state, answer=said, closed_at=ctx.now())
            tx.emit(f"privacy.{'answer' if state == ANSWERED else 'refuse'}", keep(tx, made, record).ref)
        return shown(made, ctx.now())


def read(tx: Reader, request: Ref) -> tuple[Request, Record]:
    """A request and the record it stands in."""
    record = tx.need(same(request, REQUEST))
    return load(Request, record), record


def keep(tx: Writer, made: Request, old: Record | None = None) -> Record:
    """Write a request, so that lists find it."""
    return save(tx, made.ref, made, old, state=made.state, type=made.type, person=made.person)


def shown(found: Request, now: float) -> Request:
    """A request as it stands now: overdue is never written down, since nobody writes when time passes."""
    return replace(found, overdue=bool(found.due) and (found.closed_at or now) > found.due)


def _cells_about_people(tx: Reader) -> Iterator[Cell]:
    """Yield the distinct labels of everything that may be about people: too many rather than too few."""
    for kind in _ABOUT:
        for text in tx.cells(kind):
            yield Cell.decode(text)
