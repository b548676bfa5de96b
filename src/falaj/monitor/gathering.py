"""Gathering: everything that was counted of one revision in some time, read from where gateways keep it.

Deltas of replicas come late, out of order, and from clocks that are wrong. Each is counted once, by its number: in the
window it belongs to, or, when that is closed, in the next one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from falaj.core.context import Context
from falaj.core.errors import Corrupt, Invalid
from falaj.core.ref import Ref
from falaj.drift.packing import unpacked
from falaj.drift.records import ODD, PREDICTION, Profile
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
    """One delta that was not counted yet, and when it counts."""

    at: float
    row: Sketched
    tally: Tally


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

    def came(self, watch: Record, ref: Ref, revision: int, since: float, now: float) -> list[Came]:
        """All deltas of a revision that were not counted yet, each with the moment it counts at."""
        tenant, done = watch.key.tenant, watch.body["counted"]
        profile = self._baselines.profile(tenant, ref, revision)
        if profile is None:
            return []
        digest = self._baselines.digest(tenant, ref, revision)
        found = []
        for row in self._serve.sketches.read(tenant, ref, since - LATE_S, float("inf")):
            joined = not row.replica
            if row.revision != revision or row.profile != digest or (joined and row.until <= since):
                continue
            if joined or not is_marked(done, row.replica, row.number):
                tally = _opened(row.data, profile)
                if tally is not None:
                    found.append(Came(min(max(row.until, since), now), row, tally))
        return found

    def counts(self, watch: Record, ref: Ref, revision: int, since: float) -> list[Counted]:
        """What gateways counted of a revision from a moment on."""
        rows: Sequence[Counted] = self._serve.counts.rows(watch.key.tenant, ref, since)
        return [row for row in rows if row.revision == revision]

    def stretch(self, came: Iterable[Came], counts: Iterable[Counted], cut: Cut, now: float) -> Stretch:
        """What is in a window, summed up, with what is odd about it."""
        since, until = cut.since, cut.until
        # A clock that is ahead says nothing of when: what it sent is here, so it came before now.
        mine = [one for one in came if one.at < until or one.row.until > now + SKEW_S]
        whole, sums = summed([one.tally for one in mine]), Sum("", 0)
        for row in counts:
            if since <= row.at < until:
                sums.add(row)
        late = sum(one.tally.rows for one in mine if one.row.until < since)
        ahead = sorted({one.row.replica for one in mine if one.row.until > now + SKEW_S})
        notes = [f"{late:,} rows came late, from before"] if late else []
        notes += [f"the clock of {', '.join(ahead)[:200]} is ahead"] if ahead else []
        if whole is not None and whole.seen > whole.rows:
            notes.append(f"{whole.rows:,} of {whole.seen:,} rows were counted")
        return Stretch(
            whole, tuple((one.row.replica, one.row.number, one.row.until) for one in mine if one.row.replica),
            sums.requests, sums.errors, sums.quantile_us(0.95) / 1000, tuple(notes),
        )  # fmt: skip

    def between(self, tenant: str, ref: Ref, revision: int, since: float, until: float) -> Tally | None:
        """All that was counted of a revision in some time, whether a window saw it or not."""
        profile, digest = self._baselines.profile(tenant, ref, revision), self._baselines.digest(tenant, ref, revision)
        if profile is None:
            return None
        # Old ones are joined by the hour: what reaches into this time belongs to it.
        rows = [row for row in self._serve.sketches.read(tenant, ref, since) if row.at < until and row.until > since]
        read = (_opened(row.data, profile) for row in rows if row.revision == revision and row.profile == digest)
        return summed([one for one in read if one is not None])

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

    def _answers(self, tenant: str, ref: Ref, revision: int, rows: Sequence[Sketched]) -> tuple[int, int, float]:
        profile, digest = self._baselines.profile(tenant, ref, revision), self._baselines.digest(tenant, ref, revision)
        mine = [row for row in rows if row.revision == revision and row.profile == digest]
        if profile is None or not mine:
            return 0, 0, 0.0
        whole = summed([one for row in mine if (one := _opened(row.data, profile)) is not None])
        axes = [at for at, axis in enumerate(profile.axes) if axis.role == PREDICTION]
        if whole is None or not axes:
            return 0, 0, 0.0
        counts = whole.of(axes[0])
        total, odds = int(counts.sum()), counts[-len(ODD) :]
        # Beyond what the reference had is no less a number; missing and infinite are none.
        return total, int(odds[0] + odds[1]), float(max(counts.max() / total, 0.0)) if total else 0.0


def summed(tallies: Sequence[Tally]) -> Tally | None:
    """All of them together."""
    whole: Tally | None = None
    for one in tallies:
        whole = one if whole is None else whole.merged(one)
    return whole


def parts_of(
    came: Iterable[Came], counts: Iterable[Counted], since: float, every_s: float, now: float
) -> dict[float, Part]:
    """How much came in every slot."""
    parts: dict[float, Part] = {}

    def add(at: float, rows: int, requests: int) -> None:
        slot = slot_of(max(at, since), every_s)
        old = parts.get(slot, Part())
        parts[slot] = Part(old.rows + rows, old.requests + requests)

    for one in came:
        add(since if one.row.until > now + SKEW_S else one.at, one.tally.rows, 0)
    for row in counts:
        add(row.at, 0, row.requests)
    return parts


def _opened(data: bytes, profile: Profile) -> Tally | None:
    """A delta that was read; None for a damaged one, which must not hide the others."""
    try:
        return unpacked(data, profile)
    except (Corrupt, Invalid):
        return None
