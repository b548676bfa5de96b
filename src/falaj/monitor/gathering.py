"""Gathering: everything that was counted of one revision in some time, read from where gateways keep it.

Deltas of replicas come late, out of order, and from clocks that are wrong. Each is counted once, by its number: in the
window it belongs to, or, when that is closed, in the next one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.core.context import Context
from falaj.core.errors import Corrupt, Invalid
from falaj.core.ref import Ref
from falaj.drift.packing import joined, unpacked
from falaj.drift.records import ODD, PREDICTION, Profile
from falaj.drift.season import together
from falaj.drift.tally import Tally
from falaj.jobs import views
from falaj.monitor.baselines import Baselines
from falaj.monitor.windows import LATE_S, SKEW_S, Cut, Part, is_marked, slot_of
from falaj.serve.counts import Counted, Sum
from falaj.serve.sketches import Sketched
from falaj.store.ledger import Ledger
from falaj.store.records import Record

GLANCE_S = 60.0
MOST_JOBS = 1_000


class Glance(NamedTuple):
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


class Came(NamedTuple):
    """What was not counted yet and counts in one slot of time."""

    tally: Tally | None
    counted: tuple[tuple[str, int, float], ...]
    """Replica, number and end of every delta in it."""
    late: int = 0
    """Rows from before the window that they should have been in was closed."""
    ahead: tuple[str, ...] = ()
    """Replicas whose clock is ahead."""


class Stretch(NamedTuple):
    """What came of one revision in one window."""

    tally: Tally | None
    counted: tuple[tuple[str, int, float], ...]
    """Replica, number and end of every delta in it."""
    requests: int
    errors: int
    p95_ms: float
    notes: tuple[str, ...]


class Gathering:
    """Reads what belongs to a watch."""

    def __init__(self, ledger: Ledger, serve: Any, baselines: Baselines) -> None:
        self._ledger, self._serve, self._baselines = ledger, serve, baselines

    def came(
        self, watch: Record, ref: Ref, revision: int, since: float, every_s: float, now: float
    ) -> dict[float, Came]:
        """All that was not counted yet of a revision, slot by slot: late things, and those of clocks that are ahead,
        in the first one. A clock that is ahead says nothing of when; what it sent is here, so it came before now."""
        profile, digest = self._based(watch.key.tenant, ref, revision)
        if profile is None:
            return {}
        slots: dict[float, list[Sketched]] = {}
        for row in self._serve.sketches.read(watch.key.tenant, ref, since - LATE_S):
            known = row.until <= since if not row.replica else is_marked(watch.body["counted"], row.replica, row.number)
            if row.revision == revision and row.profile == digest and not known:
                at = since if row.until > now + SKEW_S else min(max(row.until, since), now)
                slots.setdefault(slot_of(at, every_s), []).append(row)
        return {slot: _came(rows, profile, since, now) for slot, rows in slots.items()}

    def counts(self, watch: Record, ref: Ref, revision: int, since: float) -> list[Counted]:
        """What gateways counted of a revision from a moment on."""
        rows: Sequence[Counted] = self._serve.counts.rows(watch.key.tenant, ref, since)
        return [row for row in rows if row.revision == revision]

    def stretch(self, came: Mapping[float, Came], counts: Iterable[Counted], cut: Cut) -> Stretch:
        """What is in a window, summed up, with what is odd about it."""
        mine = [one for slot, one in sorted(came.items()) if slot < cut.until]
        whole, sums = together(one.tally for one in mine if one.tally is not None), Sum("", 0)
        for row in counts:
            if cut.since <= row.at < cut.until:
                sums.add(row)
        late, ahead = sum(one.late for one in mine), sorted({name for one in mine for name in one.ahead})
        notes = [f"{late:,} rows came late, from before"] if late else []
        notes += [f"the clock of {', '.join(ahead)[:200]} is ahead"] if ahead else []
        if whole is not None and whole.seen > whole.rows:
            notes.append(f"{whole.rows:,} of {whole.seen:,} rows were counted")
        return Stretch(
            whole, tuple(row for one in mine for row in one.counted), sums.requests, sums.errors,
            sums.quantile_us(0.95) / 1000, tuple(notes),
        )  # fmt: skip

    def between(self, tenant: str, ref: Ref, revision: int, since: float, until: float) -> Tally | None:
        """All that was counted of a revision in some time, whether a window saw it or not."""
        profile, digest = self._based(tenant, ref, revision)
        # Old ones are joined by the hour: what reaches into this time belongs to it.
        rows = [row for row in self._serve.sketches.read(tenant, ref, since) if row.at < until and row.until > since]
        mine = [row.data for row in rows if row.revision == revision and row.profile == digest]
        return _opened(mine, profile) if profile is not None else None

    def cost(self, ctx: Context, ref: Ref, revision: int, since: float, until: float) -> float:
        """Slot seconds of a revision's replicas."""
        with self._ledger.read(ctx) as tx:
            prefix = f"{ref.name}-r{revision}-"
            jobs = tx.find("job", project=ref.project, prefix=prefix, limit=MOST_JOBS).records
        total = 0.0
        for job in jobs:
            for one in views.attempts(job.body):
                slots = max(1, int(one.get("slots", 0) or len(one.get("spots", ()))))
                lasted = min(one["ended"] or until, until) - max(one["started"] or until, since)
                total += slots * max(0.0, lasted)
        return total

    def glance(self, served: Record, watch: Record, now: float) -> tuple[Glance, ...]:
        """How each revision did in the last minute, or since it began."""
        tenant, ref = watch.key.tenant, served.ref.bare
        begun = {one["number"]: float(one["made_at"]) for one in served.body["revisions"]}
        rows: Sequence[Counted] = self._serve.counts.rows(tenant, ref, now - GLANCE_S)
        recent = self._serve.sketches.read(tenant, ref, now - GLANCE_S, float("inf")) if rows else []
        made = []
        for revision in sorted({row.revision for row in rows} & begun.keys()):
            since, sums = max(now - GLANCE_S, begun[revision]), Sum("", revision)
            for row in rows:
                if row.revision == revision and row.at >= since - 1.0:
                    sums.add(row)
            count, odd, same = self._answers(tenant, ref, revision, recent)
            figures = (sums.requests, sums.errors, sums.quantile_us(0.95) / 1000, count, odd, same)
            made.append(Glance(revision, since, now, *figures))
        return tuple(made)

    def _based(self, tenant: str, ref: Ref, revision: int) -> tuple[Profile | None, str]:
        return self._baselines.profile(tenant, ref, revision), self._baselines.digest(tenant, ref, revision)

    def _answers(self, tenant: str, ref: Ref, revision: int, rows: Sequence[Sketched]) -> tuple[int, int, float]:
        profile, digest = self._based(tenant, ref, revision)
        mine = [row.data for row in rows if row.revision == revision and row.profile == digest]
        whole = _opened(mine, profile) if profile is not None else None
        if profile is None or whole is None:
            return 0, 0, 0.0
        axes = [at for at, axis in enumerate(profile.axes) if axis.role == PREDICTION]
        if not axes:
            return 0, 0, 0.0
        counts = whole.of(axes[0])
        total, odds = int(counts.sum()), counts[-len(ODD) :]
        # Beyond what the reference had is no less a number; missing and infinite are none.
        return total, int(odds[0] + odds[1]), float(max(counts.max() / total, 0.0)) if total else 0.0


def parts_of(came: Mapping[float, Came], counts: Iterable[Counted], since: float, every_s: float) -> dict[float, Part]:
    """How much came in every slot."""
    parts = {slot: Part(one.tally.rows) for slot, one in came.items() if one.tally is not None}
    for row in counts:
        slot = slot_of(max(row.at, since), every_s)
        old = parts.get(slot, Part())
        parts[slot] = Part(old.rows, old.requests + row.requests, old.errors + row.errors)
    return parts


def _came(rows: Sequence[Sketched], profile: Profile, since: float, now: float) -> Came:
    late = _opened([row.data for row in rows if row.until < since], profile)
    ahead = {row.replica for row in rows if row.until > now + SKEW_S}
    marks = tuple((row.replica, row.number, row.until) for row in rows if row.replica)
    return Came(_opened([row.data for row in rows], profile), marks, late.rows if late else 0, tuple(sorted(ahead)))


def _opened(many: Sequence[bytes], profile: Profile) -> Tally | None:
    """Deltas as one tally; without those that are damaged, which must not hide the others."""
    try:
        return unpacked(joined(many) if len(many) > 1 else many[0], profile) if many else None
    except (Corrupt, Invalid):
        half = len(many) // 2
        read = [_opened(some, profile) for some in (many[:half], many[half:]) if half]
        return together(one for one in read if one is not None)
