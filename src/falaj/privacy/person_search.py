"""Operations that search everything a tenant keeps for one person: for an erasure, and for the answer a person gets.

The platform searches with its own authority and tells only what is about this one person, to whoever carries out an
open request of theirs. Each call is recorded in the log under the request. A long search goes on with the cursor of the
call before.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar

from falaj.audit.service import AuditService
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.operation import operation
from falaj.core.ports import OnlineStore
from falaj.core.ref import Ref
from falaj.govern.approvals import ApprovalService
from falaj.govern.keyring import Keyring
from falaj.govern.records import DataMovement, KeepingDuty
from falaj.govern.zones import ZoneService
from falaj.privacy.plan_objects import find_record, is_kept_by
from falaj.privacy.plan_records import EXECUTING
from falaj.privacy.records import ACCESS, ERASURE, OPEN, PORTABILITY, DerivedItem, SubjectRequest
from falaj.privacy.refusing import RefusalOperations, encode_subject_keys
from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.isolated_files import STATE_CLEAR, STATE_FOUND, STATE_UNREAD
from falaj.privacy.search.origins import SourceOrigin, read_origin
from falaj.privacy.search.records import STATE_KEPT, SearchCase, SearchOutcome
from falaj.privacy.search.search_walk import walk_searches
from falaj.privacy.service_base import make_ref, require_state
from falaj.privacy.subject_requests import read_request, save_request
from falaj.store import request_outcomes
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter

SEARCH_KIND = "person-search"
KEPT_ANSWER = f"record {request_outcomes.OUTCOME_KIND}:"
"""How matches are called that are answers kept for repeated requests."""
MAX_CALL_S = 15.0  # a call ends at the first place after this time at which the search can be resumed
MAX_LISTED_SOURCES = 2000  # sources of each state that a search lists by name; the others are counted
MAX_SUBJECT_CHARS = 200  # characters of an identifier
MAX_REMEMBERED_CASES = 8  # people for whom the findings of files are remembered
DECISION_SEARCHED, DECISION_GONE = "searched", "gone"
"""What the platform itself decides about a table that waits for a decision: it was searched and is clear, or gone."""


@dataclass(frozen=True, slots=True)
class SourceFinding:
    """A source in which the person was found, or which could not be searched, and why."""

    ref: str
    reason: str


@dataclass(frozen=True, slots=True)
class SearchPage:
    """How far a search for a person is, and what it has found so far."""

    COLUMNS: ClassVar = ("request", "searched", "matches", "unread", "next")

    request: Ref
    searched: int
    """How many sources were searched."""
    matches: tuple[SourceFinding, ...] = ()
    unread: tuple[SourceFinding, ...] = ()
    """What cannot be searched, or keeps the person and cannot be changed."""
    unlisted: int = 0
    """How many more there are than are listed."""
    next: str = ""
    """The cursor with which the search goes on; empty when everything was searched."""


@dataclass(frozen=True, slots=True)
class DisclosedSource:
    """What one source holds of the person, as rows."""

    ref: str
    reason: str = ""
    """Why it is missing, where it is."""
    rows: tuple[dict[str, Any], ...] = ()
    zone: str = ""
    purposes: tuple[str, ...] = ()
    regimes: tuple[str, ...] = ()
    keep_until: float = 0.0
    """When it is kept until at most, by its label; 0 where the label does not say."""
    duties: tuple[KeepingDuty, ...] = ()
    """What keeps it at least, by which law, until when."""
    is_cut: bool = False
    """True when the source holds more rows than these."""
    origin: SourceOrigin = field(default_factory=SourceOrigin)


@dataclass(frozen=True, slots=True)
class DisclosurePage:
    """What some sources hold of the person, and the cursor of the next page, empty at the end."""

    sources: tuple[DisclosedSource, ...]
    searched: int
    next: str = ""


class PersonSearchOperations(RefusalOperations):
    """Searches for one person."""

    def __init__(
        self,
        ledger: Ledger,
        keyring: Keyring,
        zones: ZoneService,
        audit: AuditService,
        open_online_store: Callable[[str], OnlineStore],
        approvals: ApprovalService,
        estate: DataEstate,
    ) -> None:
        super().__init__(ledger, keyring, zones, audit, open_online_store, approvals)
        self._estate = estate
        self.findings_by_case: OrderedDict[tuple[str, str], dict[tuple[str, tuple[str, ...]], Any]] = OrderedDict()

    @operation(reads=("request",), group="erase", has_outside_effects=True)
    def search(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
        after: Annotated[str, "where the call before ended"] = "",
    ) -> SearchPage:
        """Search everything that is kept for a person whose erasure is under way: versions, rows, records, logs.

        Nothing is changed, but that the bytes of deleted versions are collected first, and that answers kept for
        repeated requests go once the approved plan is executed. `falaj privacy erase` calls it.

        Example:
            falaj privacy search subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.read(ctx) as tx:
            subject_request = self.require_open_request(tx, ctx, request, subject, ERASURE)
            record = tx.get(make_search_ref(request))
        page = _read_page(request, record.body) if record is not None and after else SearchPage(request.bare, 0)
        outcomes, next_cursor = self._search_slice(self.search_case(ctx, subject_request, subject), after)
        page = extend_page(replace(page, next=next_cursor), outcomes)
        with self._ledger.write(ctx) as tx:
            if not next_cursor:
                page = forget_answers(tx, page)
                self.settle_derived_items(tx, request, page)
            save_search(tx, page)
        return page

    @operation(reads=("request",), group="erase", has_outside_effects=True)
    def disclose(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which request, of type access or portability"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
        after: Annotated[str, "where the page before ended"] = "",
    ) -> DisclosurePage:
        """Give a person's own data out of everything that is kept, for the answer to their open request.

        The platform reads with its own authority, for all purposes; nothing of anybody else is in it. The law of the
        data must let it be shown where the caller is. `falaj privacy access` calls it.

        Example:
            falaj privacy disclose subject-request:privacy/0199d2f0 784-1990-1234567-1 --json
        """
        with self._ledger.read(ctx) as tx:
            subject_request = self.require_open_request(tx, ctx, request, subject, ACCESS, PORTABILITY)
        case = replace(self.search_case(ctx, subject_request, subject), wants_rows=True)
        outcomes, next_cursor = self._search_slice(case, after)
        sources = tuple(self.to_disclosed_source(ctx, outcome) for outcome in outcomes if outcome.state != STATE_CLEAR)
        with self._ledger.write(ctx) as tx:
            count = sum(len(source.rows) for source in sources)
            tx.emit("privacy.disclose", read_request(tx, request)[1].ref, sources=len(sources), rows=count)
        return DisclosurePage(sources, len(outcomes), next_cursor)

    def search_case(self, ctx: CallContext, subject_request: SubjectRequest, subject: str) -> SearchCase:
        """One search for a person, with what earlier searches for them learned of files."""
        key = (ctx.tenant, subject_request.person)
        known_findings = self.findings_by_case.setdefault(key, {})
        self.findings_by_case.move_to_end(key)
        while len(self.findings_by_case) > MAX_REMEMBERED_CASES:
            self.findings_by_case.popitem(last=False)
        learned_models = frozenset(
            derived_item.ref for derived_item in subject_request.derived if derived_item.ref.startswith("model:")
        )
        texts = {subject, *(key.hex() for key in encode_subject_keys(subject).values())}
        pseudonyms = frozenset(
            (zone, self._keyring.subjects.pseudonym(ctx.tenant, zone, text))
            for zone in self._zones.view(ctx).zones
            for text in texts
        )
        return SearchCase(ctx, subject, subject_request.person, False, learned_models, pseudonyms, known_findings)

    def search_all(self, case: SearchCase, request: Ref) -> SearchPage:
        """Search everything in one go."""
        page = SearchPage(request.bare, 0)
        for walk_step in walk_searches(self._estate, case):
            page = extend_page(page, walk_step.outcomes)
        return page

    def _search_slice(self, case: SearchCase, after: str) -> tuple[list[SearchOutcome], str]:
        outcomes: list[SearchOutcome] = []
        started_at = time.monotonic()
        for walk_step in walk_searches(self._estate, case, after):
            outcomes += walk_step.outcomes
            if walk_step.cursor and time.monotonic() - started_at > MAX_CALL_S:
                return outcomes, walk_step.cursor
        return outcomes, ""

    def require_open_request(
        self, tx: LedgerReader, ctx: CallContext, request: Ref, subject: str, *request_types: str
    ) -> SubjectRequest:
        subject_request, _ = read_request(tx, request)
        require_state(request, subject_request.state, OPEN)
        if not 0 < len(subject) <= MAX_SUBJECT_CHARS:
            raise Invalid(f"an identifier of {len(subject)} characters", f"expected 1 to {MAX_SUBJECT_CHARS}", request)
        if subject_request.type not in request_types:
            raise Invalid(
                f"{request} asks for {subject_request.type}",
                f"this needs a request for {' or '.join(request_types)}",
                request,
            )
        if "*" not in ctx.actor.projects:
            raise Denied("you see only some projects", "this needs somebody who sees all of them", request)
        if subject_request.person != self.compute_pseudonym(ctx, subject):
            raise Denied("this is not the person who asked", "check the identifier, letter by letter", request)
        return subject_request

    def to_disclosed_source(self, ctx: CallContext, outcome: SearchOutcome) -> DisclosedSource:
        label = outcome.label
        if outcome.state == STATE_UNREAD or label is None:
            reason = outcome.reason if outcome.state == STATE_UNREAD else ""
            return DisclosedSource(outcome.ref, reason, tuple(map(dict, outcome.rows)), outcome.zone)
        purpose = min(label.purposes, default="")
        zone = outcome.zone.partition(",")[0]
        movement = DataMovement(
            op="view", label=label, thing=outcome.ref, tenant=ctx.tenant, src=zone, dst="", purpose=purpose,
            jurisdiction=ctx.actor.jurisdiction,
        )  # fmt: skip
        verdict = self._zones.verdict(movement, ctx.now())
        if not verdict.allowed:
            return DisclosedSource(outcome.ref, "; ".join(verdict.reasons), (), outcome.zone)
        keep_until = ctx.now() + label.max_retain_s if label.max_retain_s is not None else 0.0
        purposes, regimes = tuple(sorted(label.purposes)), tuple(sorted(label.regimes))
        rows, origin = tuple(map(dict, outcome.rows)), read_origin(self._ledger, ctx, outcome.ref)
        return DisclosedSource(
            outcome.ref, "", rows, outcome.zone, purposes, regimes, keep_until, self._list_duties(ctx, outcome.ref),
            outcome.is_cut, origin,
        )  # fmt: skip

    def _list_duties(self, ctx: CallContext, name: str) -> tuple[KeepingDuty, ...]:
        """What keeps a source, if it is a version or another record of its own."""
        with self._ledger.read(ctx) as tx:
            record = find_record(tx, name.removeprefix("record "))
        duties = self._zones.find_duties(ctx, (record,))[record.ref] if record is not None else ()
        return tuple(duty for duty in duties if is_kept_by(name, duty))

    def settle_derived_items(self, tx: LedgerWriter, request: Ref, page: SearchPage) -> None:
        """Decide what a search decides: a table that is clear, or is gone, needs no person's decision."""
        current_request, record = read_request(tx, request)
        listed_refs = {finding.ref for finding in (*page.matches, *page.unread)}
        settled_items = (
            tuple(_settle_derived_item(tx, derived_item, listed_refs) for derived_item in current_request.derived)
            if not page.unlisted
            else current_request.derived
        )
        if settled_items != current_request.derived:
            save_request(tx, replace(current_request, derived=settled_items), record)


def make_search_ref(request: Ref) -> Ref:
    """Where the newest search for an erasure is kept."""
    return make_ref(SEARCH_KIND, request.name)


def read_search(tx: LedgerReader, request: Ref) -> SearchPage | None:
    """The newest search for an erasure; None where there was none, or it has not come to its end."""
    record = tx.get(make_search_ref(request))
    page = _read_page(request, record.body) if record is not None else None
    return page if page is not None and not page.next else None


def save_search(tx: LedgerWriter, page: SearchPage) -> None:
    """Keep what a search found so far, and say so in the log."""
    ref = make_search_ref(page.request)
    earlier_record = tx.get(ref)
    matches, unread = (
        [[source_finding.ref, source_finding.reason] for source_finding in finding_list]
        for finding_list in (page.matches, page.unread)
    )
    body = {
        "searched": page.searched,
        "matches": matches,
        "unread": unread,
        "unlisted": page.unlisted,
        "next": page.next,
    }
    tx.put(ref, body, rev=earlier_record.rev if earlier_record else None)
    request_ref = read_request(tx, page.request)[1].ref
    tx.emit("privacy.search", request_ref, searched=page.searched, found=len(matches), unread=len(unread))


def forget_answers(tx: LedgerWriter, page: SearchPage) -> SearchPage:
    """Delete answers kept for repeated requests that name the person, if their erasure is being executed."""
    plan = tx.get(make_ref("erasure-plan", page.request.name))
    if plan is None or plan.body["state"] != EXECUTING:
        return page
    answers = [match.ref for match in page.matches if match.ref.startswith(KEPT_ANSWER)]
    for name in answers:
        record = tx.get(Ref.parse(name.removeprefix("record ")))
        if record is not None:
            tx.delete(record.key, record.rev)
    return replace(page, matches=tuple(match for match in page.matches if match.ref not in answers))


def extend_page(page: SearchPage, outcomes: Iterable[SearchOutcome]) -> SearchPage:
    """The same with more outcomes; a source that was searched in pieces is listed once."""
    matches = {source_finding.ref: source_finding for source_finding in page.matches}
    unread = {source_finding.ref: source_finding for source_finding in page.unread}
    searched_count, unlisted = page.searched, page.unlisted
    for outcome in outcomes:
        searched_count += 1
        if outcome.state == STATE_CLEAR:
            continue
        findings_by_ref = matches if outcome.state == STATE_FOUND else unread
        if len(findings_by_ref) >= MAX_LISTED_SOURCES and outcome.ref not in findings_by_ref:
            unlisted += 1
        else:
            findings_by_ref.setdefault(outcome.ref, SourceFinding(outcome.ref, outcome.reason))
    unread = {ref: source_finding for ref, source_finding in unread.items() if ref not in matches}
    return replace(
        page, searched=searched_count, matches=tuple(matches.values()), unread=tuple(unread.values()), unlisted=unlisted
    )


def _read_page(request: Ref, body: Mapping[str, Any]) -> SearchPage:
    matches, unread = (
        tuple(SourceFinding(*finding_fields) for finding_fields in body[list_name])
        for list_name in ("matches", "unread")
    )
    return SearchPage(request.bare, body["searched"], matches, unread, body["unlisted"], body["next"])


def _settle_derived_item(tx: LedgerReader, derived: DerivedItem, listed_refs: set[str]) -> DerivedItem:
    if derived.decision not in ("", DECISION_SEARCHED, DECISION_GONE) or not derived.ref.startswith(
        ("dataset:", "code:")
    ):
        return derived
    record = tx.get(Ref.parse(derived.ref))
    if record is None or record.body.get("state") != "live":
        return replace(derived, decision=DECISION_GONE, reason="the version was deleted", by="falaj")
    if derived.ref not in listed_refs:
        return replace(
            derived, decision=DECISION_SEARCHED, reason="it was searched, and the person is not in it", by="falaj"
        )
    return replace(derived, decision="", reason="", by="")


__all__ = ["STATE_KEPT", "DisclosedSource", "DisclosurePage", "PersonSearchOperations", "SearchPage", "SourceFinding"]
