"""What always returns is no drift: the same hour of the day or of the week before as a second reference.

A difference from the training data is an alarm only where it is one from the same time of earlier seasons as well.
Seasons do not stand in for the training data: what has drifted for a season would be called the rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from falaj.drift.drift_tests import compare_tally
from falaj.drift.records import DataProfile, DriftFinding, DriftRules
from falaj.drift.tally import DataTally

DAY_S, WEEK_S = 86_400.0, 604_800.0
_MAX_SEASONS = 4


class PastWindow(NamedTuple):
    """A window that was."""

    since: float
    until: float
    rows: int
    spoiled: bool = False
    """Broken data, or a fault: no example for later."""


def select_seasonal(
    moments: Sequence[PastWindow], time_range: tuple[float, float], *, season_s: float = WEEK_S, least_rows: int = 500
) -> tuple[int, ...]:
    """Which of the past windows serve as reference for the one from `at[0]` to `at[1]`; none where there are too few.

    Those that share at least half of their time with the same stretch of one of the last four seasons.
    """
    since, until = time_range
    if season_s <= 0 or until <= since or until - since > season_s:
        return ()
    positions = [position for position, moment in enumerate(moments) if _is_same_season(moment, since, until, season_s)]
    return tuple(positions) if sum(moments[position].rows for position in positions) >= least_rows else ()


def _is_same_season(moment: PastWindow, since: float, until: float, season_s: float) -> bool:
    if moment.spoiled or moment.until > since or moment.until <= moment.since:
        return False
    season_count = round((since + until - moment.since - moment.until) / 2 / season_s)
    if not 1 <= season_count <= _MAX_SEASONS:
        return False
    overlap_s = min(until, moment.until + season_count * season_s) - max(since, moment.since + season_count * season_s)
    return overlap_s >= min(moment.until - moment.since, until - since) / 2


def merge_tallies(tallies: Iterable[DataTally]) -> DataTally | None:
    """Past windows as one reference."""
    tally_list = list(tallies)
    return (
        reduce(lambda merged_so_far, next_tally: merged_so_far.merged(next_tally), tally_list) if tally_list else None
    )


def compare_seasonal(
    profile: DataProfile, tally: DataTally, rules: DriftRules, season: DataTally | None
) -> tuple[DriftFinding, ...]:
    """As `compare`; what the season explains is found and said, and is no alarm."""
    findings = compare_tally(profile, tally, rules)
    if season is None or not any(finding.alarm for finding in findings):
        return findings
    seasonal_alarms = {
        _get_finding_key(finding) for finding in compare_tally(profile, tally, rules, reference=season) if finding.alarm
    }
    return tuple(
        replace(finding, alarm=False, said=f"{finding.said}; as at this time in seasons before")
        if finding.alarm and _get_finding_key(finding) not in seasonal_alarms
        else finding
        for finding in findings
    )


def _get_finding_key(finding: DriftFinding) -> tuple[str, str, str, str]:
    return finding.what, finding.column, finding.segment, finding.measure
