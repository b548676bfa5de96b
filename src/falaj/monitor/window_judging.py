"""One window of one revision: gathered, compared, judged, and written with the cursor that passes it."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from falaj.core.context import CallContext
from falaj.core.errors import CorruptData, Invalid
from falaj.core.ref import Ref
from falaj.drift.records import DataProfile, DriftFinding
from falaj.drift.seasonality import PastWindow, merge_tallies, select_seasonal
from falaj.drift.tally import DataTally
from falaj.monitor import late_labels, window_findings
from falaj.monitor.gathering import WindowCounts, count_by_slot
from falaj.monitor.late_labels import LabelledRows
from falaj.monitor.plans import read_plan
from falaj.monitor.records import MonitorWindow, WatchPlan
from falaj.monitor.windows import MAX_LATE_S, SlotPart, WindowCut, cut_window, find_last_closed_end, mark_counted
from falaj.serve import endpoint_repository
from falaj.serve.sealed_blocks import RowOwner
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

if TYPE_CHECKING:
    from falaj.monitor.service import MonitorService

log = logging.getLogger(__name__)
Body = dict[str, Any]
MAX_SEASONS = 4.5
"""So many are looked back to."""


def make_revision_entry(since: float) -> Body:
    """What a watch remembers of one revision: how far its windows are, and where its baseline is from."""
    return {
        "number": 0,
        "until": since,
        "labels": since,
        "waits": 0,
        "evidence": [],
        "profile": "",
        "baseline": "",
        "job": "",
        "tried": False,
        "bare": False,
        "bad": "",
        "unfit": "",
        "trouble": "",
        "note": "",
    }


def list_live_revisions(body: Body) -> set[int]:
    """The revisions of an endpoint that answer somebody, or are asked beside."""
    live_revisions = {revision for revision, share in endpoint_repository.read_shares(body).values() if share}
    shadow = endpoint_repository.read_shadow(body)
    known_revisions = {revision_body["number"] for revision_body in body["revisions"]}
    return (live_revisions | ({shadow[0]} if shadow else set())) & known_revisions


class WindowJudge:
    """Makes windows and has them judged."""

    def __init__(self, ledger: Ledger, service: "MonitorService") -> None:
        self._ledger, self._service = ledger, service

    def turn(self, ctx: CallContext, endpoint_record: LedgerRecord, watch_record: LedgerRecord) -> LedgerRecord | None:
        """The next window that is due, of whichever revision; the watch after it. None: there is none."""
        plan, now = read_plan(watch_record.body), ctx.now()
        end, live_revisions = find_last_closed_end(plan.every_s, now), list_live_revisions(endpoint_record.body)
        for name, entry in watch_record.body["revisions"].items():
            if entry["until"] < end and (
                int(name) in live_revisions or end - endpoint_record.body["switched"] <= MAX_LATE_S + plan.every_s
            ):
                built = self._build_next_window(ctx, endpoint_record, watch_record, int(name), (end, now))
                if built is not None:
                    return self._save_verdict(ctx, endpoint_record, watch_record, *built)
        return None

    def _build_next_window(
        self,
        ctx: CallContext,
        endpoint_record: LedgerRecord,
        watch_record: LedgerRecord,
        revision: int,
        end_and_now: tuple[float, float],
    ) -> tuple[MonitorWindow, WindowCounts, Body] | None:
        """A window, what is in it, and how far the revision is then."""
        (end, now), plan, ref = end_and_now, read_plan(watch_record.body), endpoint_record.ref.bare
        entry, gathering = watch_record.body["revisions"][str(revision)], self._service.gathering
        since = entry["until"]
        slots = gathering.came(watch_record, ref, revision, since, plan.every_s, now)
        counts = gathering.counts(watch_record, ref, revision, since)
        part_by_slot = count_by_slot(slots, counts, since, plan.every_s)
        min_rows, has_profile = plan.rules.least_rows, bool(entry["profile"])

        def has_enough(slot_part: SlotPart) -> bool:
            # A service that fails is told of at once, however few rows there are to compare.
            is_failing = bool(plan.errors) and window_findings.has_too_many_failures(
                slot_part.errors, slot_part.requests, plan.errors
            )
            return is_failing or (slot_part.rows if has_profile and slot_part.rows else slot_part.requests) >= min_rows

        row_cut = cut_window(since, plan.every_s, end, part_by_slot, has_enough)
        if row_cut is None and (part_by_slot or not self._has_waiting_labels(ctx, ref, entry, end)):
            return None
        window_cut = row_cut or WindowCut(since, end)
        stretch = gathering.stretch(slots, counts, window_cut)
        profile, span = self._service.baselines.profile(ctx.tenant, ref, revision), (entry["labels"], window_cut.until)
        truth = late_labels.join_labels(self._service.serve, ctx.tenant, ref, revision, span, profile, plan.segment)
        if row_cut is None and len(truth.label) < late_labels.MIN_LABELS:
            return None  # they are of other revisions
        seasonal_tally = self._read_seasonal_tally(ctx.tenant, ref, revision, window_cut, plan)
        all_findings, evidence = compare_window(profile, (stretch, truth), plan, seasonal_tally, entry["evidence"])
        window = self._make_window(
            ctx, endpoint_record, (revision, entry), window_cut, (stretch, truth, all_findings), plan
        )
        return window, stretch, {**_advance_entry(entry, window, truth), "evidence": list(evidence)}

    def _has_waiting_labels(self, ctx: CallContext, ref: Ref, entry: Body, end: float) -> bool:
        """Nobody asked, and yet there are labels enough to say something of those who asked before."""
        rows = self._service.serve.labels.read(ctx.tenant, ref, entry["labels"])
        return len([row for row in rows if row.at < end]) >= late_labels.MIN_LABELS

    def _make_window(
        self,
        ctx: CallContext,
        endpoint_record: LedgerRecord,
        revision_and_entry: tuple[int, Body],
        window_cut: WindowCut,
        window_inputs: tuple[WindowCounts, LabelledRows, Sequence[DriftFinding]],
        plan: WatchPlan,
    ) -> MonitorWindow:
        (revision, entry), (stretch, truth, all_findings), ref = (
            revision_and_entry,
            window_inputs,
            endpoint_record.ref.bare,
        )
        rows = stretch.tally.rows if stretch.tally else 0
        notes = [*stretch.notes, *late_labels.describe_labels(truth, entry["waits"])]
        if window_cut.few:
            notes.append(f"too few rows to compare: {rows:,} of {plan.rules.least_rows:,}")
        return MonitorWindow(
            since=window_cut.since,
            until=window_cut.until,
            revision=revision,
            rows=rows,
            findings=window_findings.limit_findings(all_findings),
            requests=stretch.requests,
            number=entry["number"] + 1,
            errors=stretch.errors,
            cost=self._service.gathering.cost(ctx, ref, revision, window_cut.since, window_cut.until),
            p95_ms=round(stretch.p95_ms, 3),
            labels=len(truth.label),
            note="; ".join(notes)[:500],
        )

    def _read_seasonal_tally(
        self, tenant: str, ref: Ref, revision: int, window_cut: WindowCut, plan: WatchPlan
    ) -> DataTally | None:
        """What came at this time in seasons before, where the plan says that there are any."""
        if not plan.season_s:
            return None
        lookback_start = window_cut.since - MAX_SEASONS * plan.season_s
        past_windows = [
            item
            for item in self._service.windows_of(tenant, ref, lookback_start, window_cut.until)
            if item.revision == revision
        ]
        moments = [PastWindow(item.since, item.until, item.rows, _is_spoiled(item)) for item in past_windows]
        span, min_rows = (window_cut.since, window_cut.until), plan.rules.least_rows
        chosen_windows = select_seasonal(moments, span, season_s=plan.season_s, least_rows=min_rows)
        read_tally = self._service.gathering.between
        tallies = [
            read_tally(tenant, ref, revision, past_windows[window_number].since, past_windows[window_number].until)
            for window_number in chosen_windows
        ]
        return merge_tallies(item for item in tallies if item is not None)

    def _save_verdict(
        self,
        ctx: CallContext,
        endpoint_record: LedgerRecord,
        watch_record: LedgerRecord,
        window: MonitorWindow,
        stretch: WindowCounts,
        entry: Body,
    ) -> LedgerRecord:
        """The verdict and the cursor in one transaction. The window is kept just before that ends: killed in between,
        it is made and judged anew, and replaced."""
        body = {
            **watch_record.body,
            "revisions": {**watch_record.body["revisions"], str(window.revision): entry},
            "counted": mark_counted(watch_record.body["counted"], stretch.counted, window.since - MAX_LATE_S),
            "windows": watch_record.body["windows"] + 1,
            "alarms": watch_record.body["alarms"] + (window.alarms > 0),
        }
        with self._ledger.write(ctx) as tx:
            saved = tx.put(watch_record.key, body, rev=watch_record.rev)
            tx.emit(
                "monitor.judge",
                saved.ref,
                (endpoint_record.ref,),
                revision=window.revision,
                number=window.number,
                rows=window.rows,
                alarms=window.alarms,
            )
            judged_record = self._service.judged(ctx, saved, window)
            owner_key = RowOwner(endpoint_record.key.tenant, endpoint_record.ref.bare, endpoint_record.body["zone"])
            self._service.kept.append(owner_key, replace(window, state=judged_record.body["state"]))
        return judged_record


def compare_window(
    profile: DataProfile | None,
    counts_and_truth: tuple[WindowCounts, LabelledRows],
    plan: WatchPlan,
    seasonal_tally: DataTally | None,
    evidence: Sequence[float],
) -> tuple[list[DriftFinding], Sequence[float]]:
    """Everything that is found. Profiles and rows come from strangers: should one of them break the arithmetic, that is
    said of this window, and the watches of others go on."""
    stretch, truth = counts_and_truth
    try:
        label_findings, new_evidence = late_labels.judge_labels(truth, profile, plan.rules, evidence)
        return [*window_findings.find_all(profile, stretch, plan, seasonal_tally), *label_findings], new_evidence
    except (ArithmeticError, LookupError, TypeError, ValueError, CorruptData, Invalid) as error:
        log.warning("a window cannot be compared", exc_info=True)
        message = f"the window cannot be compared: {error!s:.200}"
        return [
            DriftFinding("quality", measure="broken", said=message),
            *window_findings.find_service_faults(stretch, plan),
        ], evidence


def _is_spoiled(window: MonitorWindow) -> bool:
    """Broken data, or a service that failed: no example for later."""
    return any(finding.alarm and finding.what in ("quality", "errors") for finding in window.findings)


def _advance_entry(entry: Body, window: MonitorWindow, truth: LabelledRows) -> Body:
    """Few labels wait for more; those that were measured, or waited long enough, are passed."""
    is_waiting = 0 < len(truth.label) < late_labels.MIN_LABELS and entry["waits"] < late_labels.MAX_WAIT_WINDOWS
    labels = {"waits": entry["waits"] + 1} if is_waiting else {"waits": 0, "labels": truth.until}
    return {**entry, **labels, "number": window.number, "until": window.until}
