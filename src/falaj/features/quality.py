"""Quality: how a view's rows are, how they came in, how old they are, and how far they are from what models learned.

Pure: of records and statistics come records that a terminal shows as tables. Whoever calls brings the statistics of
those columns only that the reader may see; the numbers of a column are as much its values as its rows are.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar

from falaj.asof.drift import MOVED, compare
from falaj.asof.moments import say_span, span_us
from falaj.asof.stats import ColumnStats, measured_table, merged_tables
from falaj.core.data import dataclass
from falaj.core.label import SENSITIVE
from falaj.core.ref import Ref
from falaj.features.drawing import shape, trend
from falaj.features.records import ViewDef
from falaj.features.stream import Chapter, Stream

WELL, WATCH, ILL = "well", "watch", "ill"
SOME, MANY = 0.01, 0.1
"""Shares of an arrival kept apart that are worth a look, or an alarm."""
GONE, NEW = "gone", "new"
_SHOWN = 10
_SECOND = 1_000_000

Stats = Mapping[str, ColumnStats]


@dataclass(frozen=True, slots=True)
class ColumnQuality:
    """The values of one column, as they stand. Of a personal one only what shows nobody."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("feature", "rows", "nulls", "distinct", "mean", "std", "low", "median", "high", "shape", "trend", "drift"),
    )

    feature: str
    rows: int
    nulls: float
    """A share."""
    nan: int
    distinct: int | None
    mean: float | None
    std: float | None
    low: float | None
    """Of texts, bytes and lists: the least length."""
    median: float | None
    high: float | None
    shape: str
    trend: str
    """The mean (of texts and personal columns the share of nulls) from arrival to arrival."""
    drift: str = ""
    """Of the last arrival against the training set, where there is one."""


@dataclass(frozen=True, slots=True)
class ColumnDrift:
    """One column now and in a reference."""

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("feature", "verdict", "psi", "noise", "ks", "distance", "nulls", "nulls_then", "now", "then"),
    )

    feature: str
    verdict: str
    """same, watch, drift, too few rows, other type, new or gone"""
    psi: float | None = None
    noise: float | None = None
    """What the index reaches by chance with so many rows."""
    ks: float | None = None
    distance: float | None = None
    js: float | None = None
    nulls: float | None = None
    nulls_then: float | None = None
    rows: int = 0
    rows_then: int = 0
    now: str = ""
    then: str = ""


@dataclass(frozen=True, slots=True)
class Arrived:
    """One arrival of rows and what rules said of it."""

    at: float
    how: str
    rows: int
    quarantined: int
    share: float
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """How a view is."""

    view: Ref
    verdict: str
    """well, watch or ill"""
    why: tuple[str, ...]
    rows: int
    newest_at: float
    age: str
    quarantined: float
    """The share kept apart, of all arrivals shown."""
    rows_trend: str
    columns: tuple[ColumnQuality, ...]
    arrivals: tuple[Arrived, ...]
    """The last ones, newest first."""


def quality(
    definition: ViewDef, stream: Stream, now_s: float, stats: Sequence[Stats] = (), training: Stats | None = None
) -> Quality:
    """What `falaj features quality` shows. `stats` are those of each arrival, oldest first."""
    arrivals = [_arrived(one) for one in sorted(stream.chapters, key=lambda one: one.generation)]
    moved = drift(stats[-1], training) if stats and training is not None else ()
    age_us = max(0, round(now_s * _SECOND) - stream.newest_us)
    why = [*_stale(definition, stream, age_us), *_apart(arrivals), *_drifted(moved)]
    rows, apart = sum(one.rows for one in arrivals), sum(one.quarantined for one in arrivals)
    return Quality(
        view=stream.view,
        verdict=ILL if any(level == ILL for level, _ in why) else WATCH if why else WELL,
        why=tuple(text for _, text in why),
        rows=rows + sum(one.num_rows for one in stream.tail),
        newest_at=stream.newest_us / _SECOND,
        age=_said(age_us) if stream.newest_us else "",
        quarantined=_share(apart, rows + apart),
        rows_trend=trend([float(one.rows) for one in arrivals]),
        columns=_columns(stats, {one.feature: one.verdict for one in moved}),
        arrivals=tuple(arrivals[: -_SHOWN - 1 : -1]),
    )


def drift(now: Stats, then: Stats) -> tuple[ColumnDrift, ...]:
    """Columns against those of a reference, the furthest first; a column that only one has is said."""
    found = [_moved(name, now[name], then[name]) for name in now if name in then]
    found.sort(key=lambda one: -(one.psi or 0.0))
    new = [ColumnDrift(name, NEW, rows=now[name].rows) for name in now if name not in then]
    return (*found, *new, *(ColumnDrift(name, GONE, rows_then=then[name].rows) for name in then if name not in now))


def stats_of(tables: Iterable[Any], personal: frozenset[str] = frozenset()) -> dict[str, ColumnStats]:
    """The statistics of rows that come in several pyarrow tables."""
    found: dict[str, ColumnStats] = {}
    for table in tables:
        found = merged_tables(found, measured_table(table, personal))
    return found


def personal_columns(definition: ViewDef) -> frozenset[str]:
    """The features whose numbers can show a person: sealed, sensitive, or of a category that the law names."""
    labels = {one.name: definition.label.join(one.label or definition.label) for one in definition.features}
    shows = {name for name, label in labels.items() if label.classification >= SENSITIVE or label.categories}
    return frozenset(labels if definition.sealed else shows)


def _stale(definition: ViewDef, stream: Stream, age_us: int) -> Iterable[tuple[str, str]]:
    if not stream.newest_us:
        yield WATCH, "no row came in yet"
        return
    if 0 < definition.ttl_us <= age_us:
        yield (
            ILL,
            f"every value has expired: the newest row is {_said(age_us)} old, ttl is {say_span(definition.ttl_us)}",
        )
    spans = [span_us(rule.limits["within"]) for rule in definition.rules if rule.kind == "fresh"]
    if spans and age_us > min(spans):
        yield WATCH, f"not fresh: the newest row is {_said(age_us)} old, and should be at most {say_span(min(spans))}"
    if definition.online and stream.filled < stream.generation:
        yield WATCH, f"the online store lacks what came after generation {stream.filled} of {stream.generation}"


def _apart(arrivals: Sequence[Arrived]) -> Iterable[tuple[str, str]]:
    """How much of the last arrival broke rules, and whether that is usual."""
    if not arrivals or arrivals[-1].share < SOME:
        return
    last, before = arrivals[-1], sorted(one.share for one in arrivals[:-1])
    usual = f", usually {before[len(before) // 2]:.1%}" if before else ""
    yield ILL if last.share >= MANY else WATCH, f"{last.share:.1%} of the last arrival was kept apart{usual}"


def _drifted(moved: Sequence[ColumnDrift]) -> Iterable[tuple[str, str]]:
    names = [one.feature for one in moved if one.verdict == MOVED]
    if names:
        yield WATCH, f"moved from the training set: {', '.join(names)}"


def _columns(stats: Sequence[Stats], verdicts: Mapping[str, str]) -> tuple[ColumnQuality, ...]:
    whole: dict[str, ColumnStats] = {}
    for one in stats:
        # A column that changed its kind begins anew.
        same = {name: kept for name, kept in whole.items() if name not in one or kept.kind == one[name].kind}
        whole = merged_tables(same, one)
    return tuple(_column(name, one, stats, verdicts.get(name, "")) for name, one in whole.items())


def _column(name: str, one: ColumnStats, stats: Sequence[Stats], verdict: str) -> ColumnQuality:
    course = [each[name] for each in stats if name in each]
    plain = one.kind == "number" and not one.personal
    return ColumnQuality(
        feature=name,
        rows=one.rows,
        nulls=_share(one.nulls, one.rows),
        nan=one.nan,
        distinct=one.distinct,
        mean=_short(one.mean),
        std=_short(one.std),
        low=_short(one.low),
        median=_short(one.at(0.5)),
        high=_short(one.high),
        shape=shape(one),
        trend=trend([each.mean if plain else each.nulls / max(1, each.rows) for each in course]),
        drift=verdict,
    )


def _moved(name: str, now: ColumnStats, then: ColumnStats) -> ColumnDrift:
    found = compare(now, then)
    return ColumnDrift(
        feature=name,
        verdict=found.verdict,
        psi=_short(found.psi),
        noise=_short(found.noise),
        ks=_short(found.ks),
        distance=_short(found.distance),
        js=_short(found.js),
        nulls=_share(now.nulls, now.rows),
        nulls_then=_share(then.nulls, then.rows),
        rows=now.rows,
        rows_then=then.rows,
        now=shape(now),
        then=shape(then),
    )


def _arrived(chapter: Chapter) -> Arrived:
    whole = chapter.num_rows + chapter.quarantined
    share = _share(chapter.quarantined, whole)
    return Arrived(chapter.at, chapter.how, chapter.num_rows, chapter.quarantined, share, chapter.findings)


def _said(age_us: int) -> str:
    """An age to two figures of its largest units, not to the microsecond."""
    unit = next((unit for unit in (86_400, 3_600, 60) if age_us >= 10 * unit * _SECOND), 1) * _SECOND
    return say_span(age_us // unit * unit)


def _share(part: int, whole: int) -> float:
    return _short(part / whole) or 0.0 if whole else 0.0


def _short(value: float | None) -> float | None:
    """Four figures: what a table has room for; JSON has none for infinity."""
    return None if value is None or not isfinite(value) else float(f"{value:.4g}")
