"""One window of one revision: gathered, compared, judged, and written with the cursor that passes it."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from falaj.core.context import Context
from falaj.core.errors import Corrupt, Invalid
from falaj.core.ref import Ref
from falaj.drift.records import Finding, Profile
from falaj.drift.season import Moment, seasonal, together
from falaj.drift.tally import Tally
from falaj.monitor import findings, labelled
from falaj.monitor.gathering import Stretch, parts_of
from falaj.monitor.labelled import Truth
from falaj.monitor.plans import plan_in
from falaj.monitor.records import WatchPlan, Window
from falaj.monitor.windows import LATE_S, Cut, Part, cut, last_end, marked
from falaj.serve import books
from falaj.serve.blocks import Whose
from falaj.store.ledger import Ledger
from falaj.store.records import Record

if TYPE_CHECKING:
    from falaj.monitor.service import Monitor

log = logging.getLogger(__name__)
Body = dict[str, Any]
SEASONS = 4.5
"""So many are looked back to."""


def new_entry(since: float) -> Body:
    """What a watch remembers of one revision: how far its windows are, and where its baseline is from."""
    return {
        "number": 0, "until": since, "labels": since, "waits": 0, "evidence": [], "profile": "", "baseline": "",
        "job": "", "tried": False, "bare": False, "bad": "", "unfit": "", "trouble": "", "note": "",
    }  # fmt: skip


def live_in(body: Body) -> set[int]:
    """The revisions of an endpoint that answer somebody, or are asked beside."""
    found = {revision for revision, share in books.shares_in(body).values() if share}
    shadow = books.shadow_in(body)
    known = {one["number"] for one in body["revisions"]}
    return (found | ({shadow[0]} if shadow else set())) & known


class Judging:
    """Makes windows and has them judged."""

    def __init__(self, ledger: Ledger, desk: "Monitor") -> None:
        self._ledger, self._desk = ledger, desk

    def turn(self, ctx: Context, served: Record, record: Record) -> Record | None:
        """The next window that is due, of whichever revision; the watch after it. None: there is none."""
        plan, now = plan_in(record.body), ctx.now()
        end, live = last_end(plan.every_s, now), live_in(served.body)
        for name, entry in record.body["revisions"].items():
            if entry["until"] < end and (int(name) in live or end - served.body["switched"] <= LATE_S + plan.every_s):
                made = self._next(ctx, served, record, int(name), (end, now))
                if made is not None:
                    return self._judged(ctx, served, record, *made)
        return None

    def _next(
        self, ctx: Context, served: Record, record: Record, revision: int, times: tuple[float, float]
    ) -> tuple[Window, Stretch, Body] | None:
        """A window, what is in it, and how far the revision is then."""
        (end, now), plan, ref = times, plan_in(record.body), served.ref.bare
        entry, gathering = record.body["revisions"][str(revision)], self._desk.gathering
        since = entry["until"]
        came = gathering.came(record, ref, revision, since, plan.every_s, now)
        counts = gathering.counts(record, ref, revision, since)
        parts = parts_of(came, counts, since, plan.every_s)
        least, cutting = plan.rules.least_rows, bool(entry["profile"])

        def enough(part: Part) -> bool:
            # A service that fails is told of at once, however few rows there are to compare.
            failing = bool(plan.errors) and findings.fails(part.errors, part.requests, plan.errors)
            return failing or (part.rows if cutting and part.rows else part.requests) >= least

        by_rows = cut(since, plan.every_s, end, parts, enough)
        if by_rows is None and (parts or not self._labels_wait(ctx, ref, entry, end)):
            return None
        found = by_rows or Cut(since, end)
        stretch = gathering.stretch(came, counts, found)
        profile, span = self._desk.baselines.profile(ctx.tenant, ref, revision), (entry["labels"], found.until)
        truth = labelled.joined(self._desk.serve, ctx.tenant, ref, revision, span, profile, plan.segment)
        if by_rows is None and len(truth.label) < labelled.LEAST:
            return None  # they are of other revisions
        before = self._before(ctx.tenant, ref, revision, found, plan)
        said, evidence = compared(profile, (stretch, truth), plan, before, entry["evidence"])
        window = self._window(ctx, served, (revision, entry), found, (stretch, truth, said), plan)
        return window, stretch, {**_after(entry, window, truth), "evidence": list(evidence)}

    def _labels_wait(self, ctx: Context, ref: Ref, entry: Body, end: float) -> bool:
        """Nobody asked, and yet there are labels enough to say something of those who asked before."""
        rows = self._desk.serve.labels.read(ctx.tenant, ref, entry["labels"])
        return len([row for row in rows if row.at < end]) >= labelled.LEAST

    def _window(
        self,
        ctx: Context,
        served: Record,
        of: tuple[int, Body],
        found: Cut,
        what: tuple[Stretch, Truth, Sequence[Finding]],
        plan: WatchPlan,
    ) -> Window:
        (revision, entry), (stretch, truth, said), ref = of, what, served.ref.bare
        rows = stretch.tally.rows if stretch.tally else 0
        notes = [*stretch.notes, *labelled.notes(truth, entry["waits"])]
        if found.few:
            notes.append(f"too few rows to compare: {rows:,} of {plan.rules.least_rows:,}")
        return Window(
            since=found.since, until=found.until, revision=revision, rows=rows, findings=findings.bounded(said),
            requests=stretch.requests, number=entry["number"] + 1, errors=stretch.errors,
            cost=self._desk.gathering.cost(ctx, ref, revision, found.since, found.until),
            p95_ms=round(stretch.p95_ms, 3), labels=len(truth.label), note="; ".join(notes)[:500],
        )  # fmt: skip

    def _before(self, tenant: str, ref: Ref, revision: int, found: Cut, plan: WatchPlan) -> Tally | None:
        """What came at this time in seasons before, where the plan says that there are any."""
        if not plan.season_s:
            return None
        back = found.since - SEASONS * plan.season_s
        past = [one for one in self._desk.windows_of(tenant, ref, back, found.until) if one.revision == revision]
        moments = [Moment(one.since, one.until, one.rows, _spoiled(one)) for one in past]
        span, least = (found.since, found.until), plan.rules.least_rows
        chosen = seasonal(moments, span, season_s=plan.season_s, least_rows=least)
        between = self._desk.gathering.between
        read = [between(tenant, ref, revision, past[at].since, past[at].until) for at in chosen]
        return together(one for one in read if one is not None)

    def _judged(
        self, ctx: Context, served: Record, record: Record, window: Window, stretch: Stretch, entry: Body
    ) -> Record:
        """The verdict and the cursor in one transaction. The window is kept just before that ends: killed in between,
        it is made and judged anew, and replaced."""
        body = {
            **record.body,
            "revisions": {**record.body["revisions"], str(window.revision): entry},
            "counted": marked(record.body["counted"], stretch.counted, window.since - LATE_S),
            "windows": record.body["windows"] + 1,
            "alarms": record.body["alarms"] + (window.alarms > 0),
        }
        with self._ledger.write(ctx) as tx:
            kept = tx.put(record.key, body, rev=record.rev)
            tx.emit(
                "monitor.judge", kept.ref, (served.ref,), revision=window.revision, number=window.number,
                rows=window.rows, alarms=window.alarms,
            )  # fmt: skip
            after = self._desk.judged(ctx, kept, window)
            whose = Whose(served.key.tenant, served.ref.bare, served.body["zone"])
            self._desk.kept.append(whose, replace(window, state=after.body["state"]))
        return after


def compared(
    profile: Profile | None,
    what: tuple[Stretch, Truth],
    plan: WatchPlan,
    before: Tally | None,
    evidence: Sequence[float],
) -> tuple[list[Finding], Sequence[float]]:
    """Everything that is found. Profiles and rows come from strangers: should one of them break the arithmetic, that is
    said of this window, and the watches of others go on."""
    stretch, truth = what
    try:
        told, state = labelled.judged(truth, profile, plan.rules, evidence)
        return [*findings.found(profile, stretch, plan, before), *told], state
    except (ArithmeticError, LookupError, TypeError, ValueError, Corrupt, Invalid) as error:
        log.warning("a window cannot be compared", exc_info=True)
        said = f"the window cannot be compared: {error!s:.200}"
        return [Finding("quality", measure="broken", said=said), *findings.served(stretch, plan)], evidence


def _spoiled(window: Window) -> bool:
    """Broken data, or a service that failed: no example for later."""
    return any(one.alarm and one.what in ("quality", "errors") for one in window.findings)


def _after(entry: Body, window: Window, truth: Truth) -> Body:
    """Few labels wait for more; those that were measured, or waited long enough, are passed."""
    waits = 0 < len(truth.label) < labelled.LEAST and entry["waits"] < labelled.MOST_WAIT
    labels = {"waits": entry["waits"] + 1} if waits else {"waits": 0, "labels": truth.until}
    return {**entry, **labels, "number": window.number, "until": window.until}
