"""Quality: how a view's rows are, how they came in, how old they are, and how far they are from what models learned.

Pure: of records and statistics come records that a terminal shows as tables. Whoever calls brings the statistics of
those columns only that the reader may see; the numbers of a column are as much its values as its rows are.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar

from falaj.asof.column_drift import VERDICT_DRIFT, compare_stats
from falaj.asof.column_stats import ColumnStats, measure_table, merge_table_stats
from falaj.asof.moments import format_span, parse_span
from falaj.core.data import dataclass
from falaj.core.label import CLASS_SENSITIVE
from falaj.core.ref import Ref
from falaj.features.records import ViewDef
from falaj.features.row_stream import RowSegment, RowStream
from falaj.features.text_charts import draw_sparkline, draw_trend

VERDICT_WELL, VERDICT_WATCH, VERDICT_ILL = "well", "watch", "ill"
WATCH_SHARE, ALARM_SHARE = 0.01, 0.1
"""Shares of an arrival kept apart that are worth a look, or an alarm."""
VERDICT_GONE, VERDICT_NEW = "gone", "new"
_MAX_ARRIVALS = 10
_SECOND_US = 1_000_000

StatsByColumn = Mapping[str, ColumnStats]


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
class ArrivalQuality:
    """One arrival of rows and what rules said of it."""

    at: float
    how: str
    rows: int
    quarantined: int
    share: float
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ViewQuality:
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
    arrivals: tuple[ArrivalQuality, ...]
    """The last ones, newest first."""


def compute_quality(
    definition: ViewDef,
    stream: RowStream,
    now_s: float,
    stats: Sequence[StatsByColumn] = (),
    training: StatsByColumn | None = None,
) -> ViewQuality:
    """What `falaj features quality` shows. `stats` are those of each arrival, oldest first."""
    arrivals = [
        _summarize_arrival(arrival) for arrival in sorted(stream.chapters, key=lambda arrival: arrival.generation)
    ]
    drifts = compute_drift(stats[-1], training) if stats and training is not None else ()
    age_us = max(0, round(now_s * _SECOND_US) - stream.newest_us)
    reasons = [*_check_freshness(definition, stream, age_us), *_check_quarantine(arrivals), *_check_drift(drifts)]
    rows, quarantined_rows = sum(arrival.rows for arrival in arrivals), sum(arrival.quarantined for arrival in arrivals)
    return ViewQuality(
        view=stream.view,
        verdict=VERDICT_ILL
        if any(level == VERDICT_ILL for level, _ in reasons)
        else VERDICT_WATCH
        if reasons
        else VERDICT_WELL,
        why=tuple(text for _, text in reasons),
        rows=rows + sum(arrival.num_rows for arrival in stream.tail),
        newest_at=stream.newest_us / _SECOND_US,
        age=_format_age(age_us) if stream.newest_us else "",
        quarantined=_compute_share(quarantined_rows, rows + quarantined_rows),
        rows_trend=draw_trend([float(arrival.rows) for arrival in arrivals]),
        columns=_summarize_columns(stats, {arrival.feature: arrival.verdict for arrival in drifts}),
        arrivals=tuple(arrivals[: -_MAX_ARRIVALS - 1 : -1]),
    )


def compute_drift(current: StatsByColumn, reference: StatsByColumn) -> tuple[ColumnDrift, ...]:
    """Columns against those of a reference, the furthest first; a column that only one has is said."""
    drifts = [_compute_column_drift(name, current[name], reference[name]) for name in current if name in reference]
    drifts.sort(key=lambda column_drift: -(column_drift.psi or 0.0))
    new_columns = [ColumnDrift(name, VERDICT_NEW, rows=current[name].rows) for name in current if name not in reference]
    return (
        *drifts,
        *new_columns,
        *(ColumnDrift(name, VERDICT_GONE, rows_then=reference[name].rows) for name in reference if name not in current),
    )


def collect_stats(tables: Iterable[Any], personal: frozenset[str] = frozenset()) -> dict[str, ColumnStats]:
    """The statistics of rows that come in several pyarrow tables."""
    stats_by_column: dict[str, ColumnStats] = {}
    for table in tables:
        stats_by_column = merge_table_stats(stats_by_column, measure_table(table, personal))
    return stats_by_column


def list_personal_columns(definition: ViewDef) -> frozenset[str]:
    """The features whose numbers can show a person: sealed, sensitive, or of a category that the law names."""
    labels = {feature.name: definition.label.join(feature.label or definition.label) for feature in definition.features}
    personal_names = {
        name for name, label in labels.items() if label.classification >= CLASS_SENSITIVE or label.categories
    }
    return frozenset(labels if definition.sealed else personal_names)


def _check_freshness(definition: ViewDef, stream: RowStream, age_us: int) -> Iterable[tuple[str, str]]:
    if not stream.newest_us:
        yield VERDICT_WATCH, "no row came in yet"
        return
    if 0 < definition.ttl_us <= age_us:
        yield (
            VERDICT_ILL,
            (
                f"every value has expired: the newest row is {_format_age(age_us)} old, "
                f"ttl is {format_span(definition.ttl_us)}"
            ),
        )
    spans = [parse_span(rule.limits["within"]) for rule in definition.rules if rule.kind == "fresh"]
    if spans and age_us > min(spans):
        yield (
            VERDICT_WATCH,
            f"not fresh: the newest row is {_format_age(age_us)} old, and should be at most {format_span(min(spans))}",
        )
    if definition.online and stream.filled < stream.generation:
        yield VERDICT_WATCH, f"the online store lacks what came after generation {stream.filled} of {stream.generation}"


def _check_quarantine(arrivals: Sequence[ArrivalQuality]) -> Iterable[tuple[str, str]]:
    """How much of the last arrival broke rules, and whether that is usual."""
    if not arrivals or arrivals[-1].share < WATCH_SHARE:
        return
    last, earlier_shares = arrivals[-1], sorted(arrival.share for arrival in arrivals[:-1])
    usual_text = f", usually {earlier_shares[len(earlier_shares) // 2]:.1%}" if earlier_shares else ""
    yield (
        VERDICT_ILL if last.share >= ALARM_SHARE else VERDICT_WATCH,
        f"{last.share:.1%} of the last arrival was kept apart{usual_text}",
    )


def _check_drift(drifts: Sequence[ColumnDrift]) -> Iterable[tuple[str, str]]:
    names = [column_drift.feature for column_drift in drifts if column_drift.verdict == VERDICT_DRIFT]
    if names:
        yield VERDICT_WATCH, f"moved from the training set: {', '.join(names)}"


def _summarize_columns(stats: Sequence[StatsByColumn], verdicts: Mapping[str, str]) -> tuple[ColumnQuality, ...]:
    merged_stats: dict[str, ColumnStats] = {}
    for arrival_stats in stats:
        # A column that changed its kind begins anew.
        comparable = {
            name: earlier_stats
            for name, earlier_stats in merged_stats.items()
            if name not in arrival_stats or earlier_stats.kind == arrival_stats[name].kind
        }
        merged_stats = merge_table_stats(comparable, arrival_stats)
    return tuple(
        _summarize_column(name, arrival_stats, stats, verdicts.get(name, ""))
        for name, arrival_stats in merged_stats.items()
    )


def _summarize_column(
    name: str, column_stats: ColumnStats, stats: Sequence[StatsByColumn], verdict: str
) -> ColumnQuality:
    history = [arrival_stats[name] for arrival_stats in stats if name in arrival_stats]
    is_plain_number = column_stats.kind == "number" and not column_stats.personal
    return ColumnQuality(
        feature=name,
        rows=column_stats.rows,
        nulls=_compute_share(column_stats.nulls, column_stats.rows),
        nan=column_stats.nan,
        distinct=column_stats.distinct,
        mean=_round_figure(column_stats.mean),
        std=_round_figure(column_stats.std),
        low=_round_figure(column_stats.low),
        median=_round_figure(column_stats.at(0.5)),
        high=_round_figure(column_stats.high),
        shape=draw_sparkline(column_stats),
        trend=draw_trend(
            [
                arrival_stats.mean if is_plain_number else arrival_stats.nulls / max(1, arrival_stats.rows)
                for arrival_stats in history
            ]
        ),
        drift=verdict,
    )


def _compute_column_drift(name: str, current: ColumnStats, reference: ColumnStats) -> ColumnDrift:
    compared = compare_stats(current, reference)
    return ColumnDrift(
        feature=name,
        verdict=compared.verdict,
        psi=_round_figure(compared.psi),
        noise=_round_figure(compared.noise),
        ks=_round_figure(compared.ks),
        distance=_round_figure(compared.distance),
        js=_round_figure(compared.js),
        nulls=_compute_share(current.nulls, current.rows),
        nulls_then=_compute_share(reference.nulls, reference.rows),
        rows=current.rows,
        rows_then=reference.rows,
        now=draw_sparkline(current),
        then=draw_sparkline(reference),
    )


def _summarize_arrival(segment: RowSegment) -> ArrivalQuality:
    total_rows = segment.num_rows + segment.quarantined
    share = _compute_share(segment.quarantined, total_rows)
    return ArrivalQuality(segment.at, segment.how, segment.num_rows, segment.quarantined, share, segment.findings)


def _format_age(age_us: int) -> str:
    """An age to two figures of its largest units, not to the microsecond."""
    unit = next((unit for unit in (86_400, 3_600, 60) if age_us >= 10 * unit * _SECOND_US), 1) * _SECOND_US
    return format_span(age_us // unit * unit)


def _compute_share(part: int, total: int) -> float:
    return _round_figure(part / total) or 0.0 if total else 0.0


def _round_figure(value: float | None) -> float | None:
    """Four figures: what a table has room for; JSON has none for infinity."""
    return None if value is None or not isfinite(value) else float(f"{value:.4g}")
