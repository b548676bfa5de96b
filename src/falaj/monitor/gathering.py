"""Gathering: everything that was counted of one revision in some time, read from where gateways keep it.

Deltas of replicas come late, out of order, and from clocks that are wrong. Each is counted once, by its number: in the
window it belongs to, or, when that is closed, in the next one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.core.context import CallContext
from falaj.core.errors import CorruptData, Invalid
from falaj.core.ref import Ref
from falaj.drift.records import ROLE_PREDICTION, SPECIAL_BINS, DataProfile
from falaj.drift.seasonality import merge_tallies
from falaj.drift.tally import DataTally
from falaj.drift.tally_encoding import decode_tally, join_encoded
from falaj.jobs import views
from falaj.monitor.baselines import BaselineStore
from falaj.monitor.windows import MAX_CLOCK_SKEW_S, MAX_LATE_S, SlotPart, WindowCut, find_slot_start, is_counted
from falaj.serve.drift_counts import DriftCountRow
from falaj.serve.request_counts import ArmSum, CountRow
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

GLANCE_WINDOW_S = 60.0
MAX_JOBS = 1_000


class RevisionGlance(NamedTuple):
    """How one revision did just now."""

    revision: int
    since: float
    until: float
    requests: int
    errors: int
    p95_ms: float
    rows: int
    """Answers that were counted."""
    odd: int
    """Of them, those that are no number."""
    same: float
    """The share of the most frequent answer's bin; 0: not known."""


class SlotCounts(NamedTuple):
    """What was not counted yet and counts in one slot of time."""

    tally: DataTally | None
    counted: tuple[tuple[str, int, float], ...]
    """Replica, number and end of every delta in it."""
    late: int = 0
    """Rows from before the window that they should have been in was closed."""
    ahead: tuple[str, ...] = ()
    """Replicas whose clock is ahead."""


class WindowCounts(NamedTuple):
    """What came of one revision in one window."""

    tally: DataTally | None
    counted: tuple[tuple[str, int, float], ...]
    """Replica, number and end of every delta in it."""
    requests: int
    errors: int
    p95_ms: float
    notes: tuple[str, ...]


class CountGatherer:
    """Reads what belongs to a watch."""

    def __init__(self, ledger: Ledger, serve: Any, baselines: BaselineStore) -> None:
        self._ledger, self._serve, self._baselines = ledger, serve, baselines

    def came(
        self, watch: LedgerRecord, ref: Ref, revision: int, since: float, every_s: float, now: float
    ) -> dict[float, SlotCounts]:
        """All that was not counted yet of a revision, slot by slot: late things, and those of clocks that are ahead,
        in the first one. A clock that is ahead says nothing of when; what it sent is here, so it came before now."""
        profile, digest = self._get_baseline(watch.key.tenant, ref, revision)
        if profile is None:
            return {}
        rows_by_slot: dict[float, list[DriftCountRow]] = {}
        for row in self._serve.sketches.read(watch.key.tenant, ref, since - MAX_LATE_S):
            was_counted = (
                row.until <= since if not row.replica else is_counted(watch.body["counted"], row.replica, row.number)
            )
            if row.revision == revision and row.profile == digest and not was_counted:
                counted_at = since if row.until > now + MAX_CLOCK_SKEW_S else min(max(row.until, since), now)
                rows_by_slot.setdefault(find_slot_start(counted_at, every_s), []).append(row)
        return {slot: _make_slot_counts(rows, profile, since, now) for slot, rows in rows_by_slot.items()}

    def counts(self, watch: LedgerRecord, ref: Ref, revision: int, since: float) -> list[CountRow]:
        """What gateways counted of a revision from a moment on."""
        rows: Sequence[CountRow] = self._serve.counts.rows(watch.key.tenant, ref, since)
        return [row for row in rows if row.revision == revision]

    def stretch(
        self, slot_counts_by_time: Mapping[float, SlotCounts], counts: Iterable[CountRow], window_cut: WindowCut
    ) -> WindowCounts:
        """What is in a window, summed up, with what is odd about it."""
        window_slots = [
            slot_counts for slot, slot_counts in sorted(slot_counts_by_time.items()) if slot < window_cut.until
        ]
        joined_tally, sums = (
            merge_tallies(slot_counts.tally for slot_counts in window_slots if slot_counts.tally is not None),
            ArmSum("", 0),
        )
        for row in counts:
            if window_cut.since <= row.at < window_cut.until:
                sums.add(row)
        late_rows, fast_clocks = (
            sum(slot_counts.late for slot_counts in window_slots),
            sorted({name for slot_counts in window_slots for name in slot_counts.ahead}),
        )
        notes = [f"{late_rows:,} rows came late, from before"] if late_rows else []
        notes += [f"the clock of {', '.join(fast_clocks)[:200]} is ahead"] if fast_clocks else []
        if joined_tally is not None and joined_tally.seen > joined_tally.rows:
            notes.append(f"{joined_tally.rows:,} of {joined_tally.seen:,} rows were counted")
        return WindowCounts(
            joined_tally,
            tuple(row for slot_counts in window_slots for row in slot_counts.counted),
            sums.requests,
            sums.errors,
            sums.quantile_us(0.95) / 1000,
            tuple(notes),
        )

    def between(self, tenant: str, ref: Ref, revision: int, since: float, until: float) -> DataTally | None:
        """All that was counted of a revision in some time, whether a window saw it or not."""
        profile, digest = self._get_baseline(tenant, ref, revision)
        # Old ones are joined by the hour: what reaches into this time belongs to it.
        rows = [row for row in self._serve.sketches.read(tenant, ref, since) if row.at < until and row.until > since]
        encoded_tallies = [row.data for row in rows if row.revision == revision and row.profile == digest]
        return _decode_tallies(encoded_tallies, profile) if profile is not None else None

    def cost(self, ctx: CallContext, ref: Ref, revision: int, since: float, until: float) -> float:
        """Slot seconds of a revision's replicas."""
        with self._ledger.read(ctx) as tx:
            prefix = f"{ref.name}-r{revision}-"
            jobs = tx.find("job", project=ref.project, prefix=prefix, limit=MAX_JOBS).records
        total = 0.0
        for job in jobs:
            for attempt in views.list_attempts(job.body):
                slots = max(1, int(attempt.get("slots", 0) or len(attempt.get("spots", ()))))
                lasted_s = min(attempt["ended"] or until, until) - max(attempt["started"] or until, since)
                total += slots * max(0.0, lasted_s)
        return total

    def glance(self, endpoint_record: LedgerRecord, watch: LedgerRecord, now: float) -> tuple[RevisionGlance, ...]:
        """How each revision did in the last minute, or since it began."""
        tenant, ref = watch.key.tenant, endpoint_record.ref.bare
        began_by_revision = {
            revision_body["number"]: float(revision_body["made_at"])
            for revision_body in endpoint_record.body["revisions"]
        }
        rows: Sequence[CountRow] = self._serve.counts.rows(tenant, ref, now - GLANCE_WINDOW_S)
        recent = self._serve.sketches.read(tenant, ref, now - GLANCE_WINDOW_S, float("inf")) if rows else []
        glances = []
        for revision in sorted({row.revision for row in rows} & began_by_revision.keys()):
            since, sums = max(now - GLANCE_WINDOW_S, began_by_revision[revision]), ArmSum("", revision)
            for row in rows:
                if row.revision == revision and row.at >= since - 1.0:
                    sums.add(row)
            count, non_number_count, most_common_share = self._count_answers(tenant, ref, revision, recent)
            figures = (
                sums.requests,
                sums.errors,
                sums.quantile_us(0.95) / 1000,
                count,
                non_number_count,
                most_common_share,
            )
            glances.append(RevisionGlance(revision, since, now, *figures))
        return tuple(glances)

    def _get_baseline(self, tenant: str, ref: Ref, revision: int) -> tuple[DataProfile | None, str]:
        return self._baselines.profile(tenant, ref, revision), self._baselines.digest(tenant, ref, revision)

    def _count_answers(
        self, tenant: str, ref: Ref, revision: int, rows: Sequence[DriftCountRow]
    ) -> tuple[int, int, float]:
        profile, digest = self._get_baseline(tenant, ref, revision)
        encoded_tallies = [row.data for row in rows if row.revision == revision and row.profile == digest]
        joined_tally = _decode_tallies(encoded_tallies, profile) if profile is not None else None
        if profile is None or joined_tally is None:
            return 0, 0, 0.0
        axes = [axis_number for axis_number, axis in enumerate(profile.axes) if axis.role == ROLE_PREDICTION]
        if not axes:
            return 0, 0, 0.0
        counts = joined_tally.of(axes[0])
        total, special_counts = int(counts.sum()), counts[-len(SPECIAL_BINS) :]
        # Beyond what the reference had is no less a number; missing and infinite are none.
        return (
            total,
            int(special_counts[0] + special_counts[1]),
            float(max(counts.max() / total, 0.0)) if total else 0.0,
        )


def count_by_slot(
    counts_by_slot: Mapping[float, SlotCounts], counts: Iterable[CountRow], since: float, every_s: float
) -> dict[float, SlotPart]:
    """How much came in every slot."""
    part_by_slot = {
        slot: SlotPart(slot_counts.tally.rows)
        for slot, slot_counts in counts_by_slot.items()
        if slot_counts.tally is not None
    }
    for row in counts:
        slot = find_slot_start(max(row.at, since), every_s)
        previous_part = part_by_slot.get(slot, SlotPart())
        part_by_slot[slot] = SlotPart(
            previous_part.rows, previous_part.requests + row.requests, previous_part.errors + row.errors
        )
    return part_by_slot


def _make_slot_counts(rows: Sequence[DriftCountRow], profile: DataProfile, since: float, now: float) -> SlotCounts:
    late_tally = _decode_tallies([row.data for row in rows if row.until < since], profile)
    fast_clocks = {row.replica for row in rows if row.until > now + MAX_CLOCK_SKEW_S}
    delta_marks = tuple((row.replica, row.number, row.until) for row in rows if row.replica)
    return SlotCounts(
        _decode_tallies([row.data for row in rows], profile),
        delta_marks,
        late_tally.rows if late_tally else 0,
        tuple(sorted(fast_clocks)),
    )


def _decode_tallies(encoded_tallies: Sequence[bytes], profile: DataProfile) -> DataTally | None:
    """Deltas as one tally; without those that are damaged, which must not hide the others."""
    try:
        return (
            decode_tally(join_encoded(encoded_tallies) if len(encoded_tallies) > 1 else encoded_tallies[0], profile)
            if encoded_tallies
            else None
        )
    except (CorruptData, Invalid):
        half_count = len(encoded_tallies) // 2
        halves = [
            _decode_tallies(encoded_half, profile)
            for encoded_half in (encoded_tallies[:half_count], encoded_tallies[half_count:])
            if half_count
        ]
        return merge_tallies(decoded for decoded in halves if decoded is not None)
