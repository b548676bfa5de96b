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

from falaj.audit.service import Audit
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid
from falaj.core.ports import Online
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.approvals import Approvals
from falaj.govern.keys import Keyring
from falaj.govern.records import KeepingDuty, Move
from falaj.govern.zones import Zones
from falaj.privacy.asking import keep, read
from falaj.privacy.plan_objects import find_record, is_kept_by
from falaj.privacy.plan_records import EXECUTING
from falaj.privacy.records import ACCESS, ERASURE, OPEN, PORTABILITY, Derived, Request
from falaj.privacy.refusing import Refusing, keys_of
from falaj.privacy.search.estate import Estate
from falaj.privacy.search.isolated_files import CLEAR, FOUND, UNREAD
from falaj.privacy.search.origins import Origin, read_origin
from falaj.privacy.search.records import KEPT, SearchCase, SearchOutcome
from falaj.privacy.search.walk import walk
from falaj.privacy.shelf import check_state, named
from falaj.store import requests
from falaj.store.ledger import Ledger, Reader, Writer

KIND = "person-search"
KEPT_ANSWER = f"record {requests.KIND}:"
"""How matches are called that are answers kept for repeated requests."""
SLICE_S = 15.0  # a call ends at the first place after this time at which the search can be resumed
MAX_LISTED = 2000  # sources of each state that a search lists by name; the others are counted
MAX_SUBJECT = 200  # characters of an identifier
MAX_CASES = 8  # people for whom the findings of files are remembered
SEARCHED, GONE = "searched", "gone"
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
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class DisclosurePage:
    """What some sources hold of the person, and the cursor of the next page, empty at the end."""

    sources: tuple[DisclosedSource, ...]
    searched: int
    next: str = ""


class Searching(Refusing):
    """Searches for one person."""

    def __init__(
        self,
        ledger: Ledger,
        keyring: Keyring,
        zones: Zones,
        audit: Audit,
        online: Callable[[str], Online],
        approvals: Approvals,
        estate: Estate,
    ) -> None:
        super().__init__(ledger, keyring, zones, audit, online, approvals)
        self._estate = estate
        self._seen: OrderedDict[tuple[str, str], dict[tuple[str, tuple[str, ...]], Any]] = OrderedDict()

    @verb(reads=("request",), group="erase", outside=True)
    def search(
        self,
        ctx: Context,
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
            subject_request = self._open_request(tx, ctx, request, subject, ERASURE)
            record = tx.get(search_ref(request))
        page = _page_of(request, record.body) if record is not None and after else SearchPage(request.bare, 0)
        outcomes, following = self._search_slice(self.search_case(ctx, subject_request, subject), after)
        page = joined_page(replace(page, next=following), outcomes)
        with self._ledger.write(ctx) as tx:
            if not following:
                page = forget_answers(tx, page)
                self._settle_derived(tx, request, page)
            save_search(tx, page)
        return page

    @verb(reads=("request",), group="erase", outside=True)
    def disclose(
        self,
        ctx: Context,
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
            subject_request = self._open_request(tx, ctx, request, subject, ACCESS, PORTABILITY)
        case = replace(self.search_case(ctx, subject_request, subject), wants_rows=True)
        outcomes, following = self._search_slice(case, after)
        sources = tuple(self._disclosed(ctx, outcome) for outcome in outcomes if outcome.state != CLEAR)
        with self._ledger.write(ctx) as tx:
            count = sum(len(source.rows) for source in sources)
            tx.emit("privacy.disclose", read(tx, request)[1].ref, sources=len(sources), rows=count)
        return DisclosurePage(sources, len(outcomes), following)

    def search_case(self, ctx: Context, subject_request: Request, subject: str) -> SearchCase:
        """One search for a person, with what earlier searches for them learned of files."""
        key = (ctx.tenant, subject_request.person)
        seen = self._seen.setdefault(key, {})
        self._seen.move_to_end(key)
        while len(self._seen) > MAX_CASES:
            self._seen.popitem(last=False)
        learned = frozenset(each.ref for each in subject_request.derived if each.ref.startswith("model:"))
        texts = {subject, *(key.hex() for key in keys_of(subject).values())}
        pseudonyms = frozenset(
            (zone, self._keyring.subjects.pseudonym(ctx.tenant, zone, text))
            for zone in self._zones.view(ctx).zones
            for text in texts
        )
        return SearchCase(ctx, subject, subject_request.person, False, learned, pseudonyms, seen)

    def search_all(self, case: SearchCase, request: Ref) -> SearchPage:
        """Search everything in one go."""
        page = SearchPage(request.bare, 0)
        for step in walk(self._estate, case):
            page = joined_page(page, step.outcomes)
        return page

    def _search_slice(self, case: SearchCase, after: str) -> tuple[list[SearchOutcome], str]:
        outcomes: list[SearchOutcome] = []
        began = time.monotonic()
        for step in walk(self._estate, case, after):
            outcomes += step.outcomes
            if step.cursor and time.monotonic() - began > SLICE_S:
                return outcomes, step.cursor
        return outcomes, ""

    def _open_request(self, tx: Reader, ctx: Context, request: Ref, subject: str, *types: str) -> Request:
        subject_request, _ = read(tx, request)
        check_state(request, subject_request.state, OPEN)
        if not 0 < len(subject) <= MAX_SUBJECT:
            raise Invalid(f"an identifier of {len(subject)} characters", f"expected 1 to {MAX_SUBJECT}", request)
        if subject_request.type not in types:
            raise Invalid(
                f"{request} asks for {subject_request.type}", f"this needs a request for {' or '.join(types)}", request
            )
        if "*" not in ctx.actor.projects:
            raise Denied("you see only some projects", "this needs somebody who sees all of them", request)
        if subject_request.person != self._person(ctx, subject):
            raise Denied("this is not the person who asked", "check the identifier, letter by letter", request)
        return subject_request

    def _disclosed(self, ctx: Context, outcome: SearchOutcome) -> DisclosedSource:
        label = outcome.label
        if outcome.state == UNREAD or label is None:
            reason = outcome.reason if outcome.state == UNREAD else ""
            return DisclosedSource(outcome.ref, reason, tuple(map(dict, outcome.rows)), outcome.zone)
        purpose = min(label.purposes, default="")
        zone = outcome.zone.partition(",")[0]
        move = Move(
            op="view", label=label, thing=outcome.ref, tenant=ctx.tenant, src=zone, dst="", purpose=purpose,
            jurisdiction=ctx.actor.jurisdiction,
        )  # fmt: skip
        verdict = self._zones.verdict(move, ctx.now())
        if not verdict.allowed:
            return DisclosedSource(outcome.ref, "; ".join(verdict.reasons), (), outcome.zone)
        until = ctx.now() + label.max_retain_s if label.max_retain_s is not None else 0.0
        purposes, regimes = tuple(sorted(label.purposes)), tuple(sorted(label.regimes))
        rows, origin = tuple(map(dict, outcome.rows)), read_origin(self._ledger, ctx, outcome.ref)
        return DisclosedSource(
            outcome.ref, "", rows, outcome.zone, purposes, regimes, until, self._list_duties(ctx, outcome.ref),
            outcome.is_cut, origin,
        )  # fmt: skip

    def _list_duties(self, ctx: Context, name: str) -> tuple[KeepingDuty, ...]:
        """What keeps a source, if it is a version or another record of its own."""
        with self._ledger.read(ctx) as tx:
            record = find_record(tx, name.removeprefix("record "))
        duties = self._zones.find_duties(ctx, (record,))[record.ref] if record is not None else ()
        return tuple(duty for duty in duties if is_kept_by(name, duty))

    def _settle_derived(self, tx: Writer, request: Ref, page: SearchPage) -> None:
        """Decide what a search decides: a table that is clear, or is gone, needs no person's decision."""
        old, record = read(tx, request)
        listed = {finding.ref for finding in (*page.matches, *page.unread)}
        settled = tuple(_settled(tx, each, listed) for each in old.derived) if not page.unlisted else old.derived
        if settled != old.derived:
            keep(tx, replace(old, derived=settled), record)


def search_ref(request: Ref) -> Ref:
    """Where the newest search for an erasure is kept."""
    return named(KIND, request.name)


def read_search(tx: Reader, request: Ref) -> SearchPage | None:
    """The newest search for an erasure; None where there was none, or it has not come to its end."""
    record = tx.get(search_ref(request))
    page = _page_of(request, record.body) if record is not None else None
    return page if page is not None and not page.next else None


def save_search(tx: Writer, page: SearchPage) -> None:
    """Keep what a search found so far, and say so in the log."""
    ref = search_ref(page.request)
    old = tx.get(ref)
    matches, unread = ([[each.ref, each.reason] for each in part] for part in (page.matches, page.unread))
    body = {
        "searched": page.searched,
        "matches": matches,
        "unread": unread,
        "unlisted": page.unlisted,
        "next": page.next,
    }
    tx.put(ref, body, rev=old.rev if old else None)
    about = read(tx, page.request)[1].ref
    tx.emit("privacy.search", about, searched=page.searched, found=len(matches), unread=len(unread))


def forget_answers(tx: Writer, page: SearchPage) -> SearchPage:
    """Delete answers kept for repeated requests that name the person, if their erasure is being executed."""
    plan = tx.get(named("erasure-plan", page.request.name))
    if plan is None or plan.body["state"] != EXECUTING:
        return page
    answers = [match.ref for match in page.matches if match.ref.startswith(KEPT_ANSWER)]
    for name in answers:
        record = tx.get(Ref.parse(name.removeprefix("record ")))
        if record is not None:
            tx.delete(record.key, record.rev)
    return replace(page, matches=tuple(match for match in page.matches if match.ref not in answers))


def joined_page(page: SearchPage, outcomes: Iterable[SearchOutcome]) -> SearchPage:
    """The same with more outcomes; a source that was searched in pieces is listed once."""
    matches = {each.ref: each for each in page.matches}
    unread = {each.ref: each for each in page.unread}
    count, unlisted = page.searched, page.unlisted
    for outcome in outcomes:
        count += 1
        if outcome.state == CLEAR:
            continue
        part = matches if outcome.state == FOUND else unread
        if len(part) >= MAX_LISTED and outcome.ref not in part:
            unlisted += 1
        else:
            part.setdefault(outcome.ref, SourceFinding(outcome.ref, outcome.reason))
    unread = {ref: each for ref, each in unread.items() if ref not in matches}
    return replace(
        page, searched=count, matches=tuple(matches.values()), unread=tuple(unread.values()), unlisted=unlisted
    )


def _page_of(request: Ref, body: Mapping[str, Any]) -> SearchPage:
    matches, unread = (tuple(SourceFinding(*each) for each in body[part]) for part in ("matches", "unread"))
    return SearchPage(request.bare, body["searched"], matches, unread, body["unlisted"], body["next"])


def _settled(tx: Reader, derived: Derived, listed: set[str]) -> Derived:
    if derived.decision not in ("", SEARCHED, GONE) or not derived.ref.startswith(("dataset:", "code:")):
        return derived
    record = tx.get(Ref.parse(derived.ref))
    if record is None or record.body.get("state") != "live":
        return replace(derived, decision=GONE, reason="the version was deleted", by="falaj")
    if derived.ref not in listed:
        return replace(derived, decision=SEARCHED, reason="it was searched, and the person is not in it", by="falaj")
    return replace(derived, decision="", reason="", by="")


__all__ = ["KEPT", "DisclosedSource", "DisclosurePage", "SearchPage", "Searching", "SourceFinding"]
