"""What always returns is no drift: the same hour of the day or of the week before as a second reference.

A difference from the training data is an alarm only where it is one from the same time of earlier seasons as well.
Seasons do not stand in for the training data: what has drifted for a season would be called the rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from falaj.drift.compare import compare
from falaj.drift.records import Finding, Profile, Rules
from falaj.drift.tally import Tally

DAY_S, WEEK_S = 86_400.0, 604_800.0
_SEASONS = 4


class Moment(NamedTuple):
    """A window that was."""

    since: float
    until: float
    rows: int
    spoiled: bool = False
    """Broken data, or a fault: no example for later."""


def seasonal(
    moments: Sequence[Moment], at: tuple[float, float], *, season_s: float = WEEK_S, least_rows: int = 500
) -> tuple[int, ...]:
    """Which of the past windows serve as reference for the one from `at[0]` to `at[1]`; none where there are too few.

    Those that share at least half of their time with the same stretch of one of the last four seasons.
    """
    since, until = at
    if season_s <= 0 or until <= since or until - since > season_s:
        return ()
    found = [place for place, one in enumerate(moments) if _returns(one, since, until, season_s)]
    return tuple(found) if sum(moments[place].rows for place in found) >= least_rows else ()


def _returns(one: Moment, since: float, until: float, season_s: float) -> bool:
    if one.spoiled or one.until > since or one.until <= one.since:
        return False
    back = round((since + until - one.since - one.until) / 2 / season_s)
    if not 1 <= back <= _SEASONS:
        return False
    shared = min(until, one.until + back * season_s) - max(since, one.since + back * season_s)
    return shared >= min(one.until - one.since, until - since) / 2


def together(tallies: Iterable[Tally]) -> Tally | None:
    """Past windows as one reference."""
    every = list(tallies)
    return reduce(lambda one, other: one.merged(other), every) if every else None


def compare_seasonal(profile: Profile, tally: Tally, rules: Rules, season: Tally | None) -> tuple[Finding, ...]:
    """As `compare`; what the season explains is found and said, and is no alarm."""
    found = compare(profile, tally, rules)
    if season is None or not any(one.alarm for one in found):
        return found
    again = {_key(one) for one in compare(profile, tally, rules, reference=season) if one.alarm}
    return tuple(
        replace(one, alarm=False, said=f"{one.said}; as at this time in seasons before")
        if one.alarm and _key(one) not in again
        else one
        for one in found
    )


def _key(found: Finding) -> tuple[str, str, str, str]:
    return found.what, found.column, found.segment, found.measure
