"""What people ask for: requests with the clock of every regime their data stands under, until they are answered."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.operation import operation
from falaj.core.policy_scope import PolicyScope
from falaj.core.ref import Ref
from falaj.govern.applicability import LabelFacts, decide_applicability, find_controller_jurisdiction
from falaj.govern.legal_periods import REQUEST as REQUEST_DUTY
from falaj.govern.legal_periods import STOP_REASONS
from falaj.privacy import input_checks
from falaj.privacy.duty_clocks import (
    STOPPED,
    extend_clocks,
    find_first_due,
    make_exempt_clocks,
    open_clocks,
    resume_clocks,
    stop_clocks,
)
from falaj.privacy.records import (
    ANSWERED,
    CLOSED,
    ERASURE,
    OPEN,
    REFUSED,
    STATES,
    TYPES,
    DutyClock,
    RequestPage,
    SubjectRequest,
)
from falaj.privacy.service_base import (
    MAX_PAGE_SIZE,
    PrivacyServiceBase,
    load_record,
    make_ref,
    require_kind,
    require_state,
    require_text,
    save_record,
)
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

REQUEST_KIND = "subject-request"
_PERSONAL_KINDS = ("view", "entity", "endpoint", "dataset")
"""Kinds whose labels tell which regimes people's data stands under."""


class RequestOperations(PrivacyServiceBase):
    """Requests of data subjects."""

    @operation(group="write")
    def ask(
        self,
        ctx: CallContext,
        type: Annotated[str, f"one of {', '.join(TYPES)}"],  # noqa: A002 - the word of the law and of the command line
        subject: Annotated[str, "who asks, by the identifier that the data carries; it is not written down"],
        regimes: Annotated[tuple[str, ...], "the regimes that apply; decided from each label when empty"] = (),
        received: Annotated[str, "when it came in, with offset: 2026-11-01T09:00:00+04:00; now when empty"] = "",
    ) -> SubjectRequest:
        """Open a request. It is due by the earliest clock of the regimes that apply to people's data.

        Without `regimes`, each label decides by itself which of its regimes apply; one that applies to no label is
        shown as not applicable, with the reason.

        Example:
            falaj privacy ask erasure 784-1990-1234567-1 --received 2026-11-01T09:00:00+04:00
        """
        if type not in TYPES:
            raise Invalid(f"{type[:40]!r} is no request", f"one of {', '.join(TYPES)}")
        received_at, person = input_checks.parse_moment(received, ctx.now()), self.compute_pseudonym(ctx, subject)
        with self._ledger.write(ctx) as tx:
            clocks = self.open_request_clocks(ctx, tx, regimes, received_at)
            request = SubjectRequest(
                make_ref(REQUEST_KIND), type, OPEN, person, received_at, find_first_due(clocks), clocks
            )
            record = save_request(tx, request)
            tx.emit("privacy.ask", record.ref, type=type, person=person, due=request.due)
        return with_overdue(request, ctx.now())

    @operation()
    def requests(
        self,
        ctx: CallContext,
        state: Annotated[str, f"one of {', '.join(STATES)}"] = "",
        type: Annotated[str, f"one of {', '.join(TYPES)}"] = "",  # noqa: A002 - the word of the law
        overdue: Annotated[bool, "only those whose time is over"] = False,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> RequestPage:
        """List requests, newest first, with when each is due.

        Example:
            falaj privacy requests --state open --overdue
        """
        if not 0 < limit <= MAX_PAGE_SIZE:
            raise Invalid(f"a page of {limit} requests", f"ask for 1 to {MAX_PAGE_SIZE} and follow `next`")
        terms = {name: value for name, value in {"state": state, "type": type}.items() if value}
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                REQUEST_KIND, terms=terms, scopes=ctx.cells(REQUEST_KIND), newest_first=True, after=after, limit=limit
            )
        listed = tuple(
            with_overdue(load_record(SubjectRequest, listed_request), ctx.now()) for listed_request in page.records
        )
        return RequestPage(
            tuple(listed_request for listed_request in listed if listed_request.overdue or not overdue), page.next
        )

    @operation(reads=("request",))
    def request(self, ctx: CallContext, request: Annotated[Ref, "which request"]) -> SubjectRequest:
        """Show a request: each regime's clock, what was done, what waits for a decision.

        Example:
            falaj privacy request subject-request:privacy/0199d2f0
        """
        with self._ledger.read(ctx) as tx:
            return with_overdue(read_request(tx, request)[0], ctx.now())

    @operation(reads=("request",), group="write")
    def extend(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request"],
        reason: Annotated[str, "why it takes longer, as the person is told"],
    ) -> SubjectRequest:
        """Extend a request once, as far as the regimes allow; refused when the earliest clock allows none.

        Example:
            falaj privacy extend subject-request:privacy/0199d2f0 --reason "many systems"
        """
        require_text("the reason", reason)
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN)
            if current_request.extended or (current_request.due and ctx.now() > current_request.due):
                raise Conflict(f"{request} was extended already, or is overdue", "answer it now", request)
            if any(clock.state == STOPPED for clock in current_request.clocks):
                raise Conflict(f"a clock of {request} is stopped", "falaj privacy resume-clock first", request)
            clocks = extend_clocks(current_request.clocks)
            extended_request = replace(current_request, clocks=clocks, due=find_first_due(clocks), extended=reason)
            tx.emit(
                "privacy.extend",
                save_request(tx, extended_request, record).ref,
                due=extended_request.due,
                reason=reason[:500],
            )
        return with_overdue(extended_request, ctx.now())

    @operation(reads=("request",), group="write")
    def stop_clock(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request"],
        waits_for: Annotated[str, f"what you asked the person for: {', '.join(STOP_REASONS)}"],
        at: Annotated[str, "when you asked, with offset; now when empty"] = "",
    ) -> SubjectRequest:
        """Stop the clocks that the law lets stand while you wait for the person; the others go on running.

        Example:
            falaj privacy stop-clock subject-request:privacy/0199d2f0 identification
        """
        if waits_for not in STOP_REASONS:
            raise Invalid(f"waits_for {waits_for[:40]!r}: expected one of {', '.join(STOP_REASONS)}", "name one")
        stopped_at = input_checks.parse_moment(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN)
            if stopped_at < current_request.received or (current_request.due and stopped_at > current_request.due):
                raise Conflict(
                    f"{request} came in later, or was overdue by then", "name a moment while the clock ran", request
                )
            clocks = stop_clocks(current_request.clocks, waits_for, stopped_at)
            stopped_request = replace(current_request, clocks=clocks, due=find_first_due(clocks))
            tx.emit(
                "privacy.stop_clock", save_request(tx, stopped_request, record).ref, waits_for=waits_for, at=stopped_at
            )
        return with_overdue(stopped_request, ctx.now())

    @operation(reads=("request",), group="write")
    def resume_clock(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request"],
        at: Annotated[str, "when the person answered you, with offset; now when empty"] = "",
    ) -> SubjectRequest:
        """Let stopped clocks run again; the days they were stopped are added to their end.

        Example:
            falaj privacy resume-clock subject-request:privacy/0199d2f0
        """
        resumed_at = input_checks.parse_moment(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN)
            if any(stop.since > resumed_at for clock in current_request.clocks for stop in clock.stops):
                raise Conflict(f"{request} was stopped after that moment", "name a later one", request)
            clocks = resume_clocks(current_request.clocks, resumed_at)
            resumed_request = replace(current_request, clocks=clocks, due=find_first_due(clocks))
            tx.emit(
                "privacy.resume_clock",
                save_request(tx, resumed_request, record).ref,
                due=resumed_request.due,
                at=resumed_at,
            )
        return with_overdue(resumed_request, ctx.now())

    @operation(reads=("request",), group="write")
    def answer(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request"],
        answer: Annotated[str, "what was done, or the digest of what was handed over"],
    ) -> SubjectRequest:
        """Record what a person was answered. An erasure is answered by its certificate: falaj privacy erase.

        Example:
            falaj privacy answer subject-request:privacy/0199d2f0 --answer sha256:9f…
        """
        return self.record_answer(ctx, request, ANSWERED, answer)

    @operation(reads=("request",), group="write")
    def refuse(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request"],
        rule: Annotated[str, "which rule stands against it, as the person is told"],
    ) -> SubjectRequest:
        """Refuse a request, naming the rule that stands against it.

        Example:
            falaj privacy refuse subject-request:privacy/0199d2f0 --rule "kept for claims, case 2027-114"
        """
        return self.record_answer(ctx, request, REFUSED, rule)

    @operation(reads=("request",), group="write")
    def close(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request"],
        note: Annotated[str, "what shall be remembered"] = "",
    ) -> SubjectRequest:
        """Close a request that was answered or refused.

        Example:
            falaj privacy close subject-request:privacy/0199d2f0
        """
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, ANSWERED, REFUSED)
            closed_request = replace(current_request, state=CLOSED, closed_at=ctx.now())
            tx.emit(
                "privacy.close",
                save_request(tx, closed_request, record).ref,
                after=current_request.state,
                note=note[:500],
            )
        return with_overdue(closed_request, ctx.now())

    @operation(group="read")
    def pseudonym(
        self,
        ctx: CallContext,
        subject: Annotated[str, "who, by the identifier that the data carries"],
        zone: Annotated[str, "in which zone; your own when empty"] = "",
    ) -> str:
        """Say what the platform calls a person in a zone: a text that nobody can turn back into who they are.

        Example:
            falaj privacy pseudonym 784-1990-1234567-1
        """
        return self.compute_pseudonym(ctx, subject, zone)

    def open_request_clocks(
        self, ctx: CallContext, tx: LedgerReader, regimes: tuple[str, ...], received: float
    ) -> tuple[DutyClock, ...]:
        """Open the clocks of the named regimes, or of those that apply to a label of data that may be about people."""
        residency = self._zones.view(ctx)
        if regimes:
            return open_clocks(
                REQUEST_DUTY, self.resolve_regimes(ctx, regimes), received, self.create_calendar_finder(ctx)
            )
        labels = [
            LabelFacts(
                frozenset(scope.regimes),
                frozenset(scope.categories),
                find_controller_jurisdiction(residency.zones.get(scope.zone)),
            )
            for scope in _list_personal_scopes(tx)
        ]
        self.resolve_regimes(
            ctx, {name for label in labels for name in label.regimes}
        )  # Invalid for one without a profile
        applying, exemptions = decide_applicability(labels, residency.regimes)
        clocks = open_clocks(REQUEST_DUTY, applying, received, self.create_calendar_finder(ctx))
        return (*clocks, *make_exempt_clocks(REQUEST_DUTY, exemptions, residency.regimes))

    def record_answer(self, ctx: CallContext, request: Ref, state: str, answer_text: str) -> SubjectRequest:
        require_text("the answer", answer_text)
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN)
            if state == ANSWERED and current_request.type == ERASURE:
                raise Denied("an erasure ends in a certificate", f"falaj privacy erase {request}", request)
            answered_request = replace(current_request, state=state, answer=answer_text, closed_at=ctx.now())
            tx.emit(
                f"privacy.{'answer' if state == ANSWERED else 'refuse'}", save_request(tx, answered_request, record).ref
            )
        return with_overdue(answered_request, ctx.now())


def read_request(tx: LedgerReader, request: Ref) -> tuple[SubjectRequest, LedgerRecord]:
    """A request and the record it stands in."""
    record = tx.need(require_kind(request, REQUEST_KIND))
    return load_record(SubjectRequest, record), record


def save_request(tx: LedgerWriter, request: SubjectRequest, earlier_record: LedgerRecord | None = None) -> LedgerRecord:
    """Write a request, so that lists find it."""
    return save_record(
        tx, request.ref, request, earlier_record, state=request.state, type=request.type, person=request.person
    )


def with_overdue(request: SubjectRequest, now: float) -> SubjectRequest:
    """A request as it stands now: overdue is never written down, since nobody writes when time passes."""
    return replace(request, overdue=bool(request.due) and (request.closed_at or now) > request.due)


def _list_personal_scopes(tx: LedgerReader) -> Iterator[PolicyScope]:
    """Yield the distinct labels of everything that may be about people: too many rather than too few."""
    for kind in _PERSONAL_KINDS:
        for text in tx.cells(kind):
            yield PolicyScope.decode(text)
