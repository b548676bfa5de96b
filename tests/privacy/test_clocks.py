"""Legal deadlines against a table of dates: months, weekends, holidays, leap years, zones, extensions, stops."""

from dataclasses import replace
from datetime import datetime

import pytest

from falaj.core.errors import Conflict, Invalid
from falaj.govern.legal_calendars import Calendar, load_calendars
from falaj.govern.legal_periods import BREACH, BREACH_PEOPLE, DAYS, REQUEST, WORKING_DAYS, DutyDeadline, LegalCitation
from falaj.govern.records import LegalRegime
from falaj.govern.regimes import load_regimes
from falaj.privacy.duty_clocks import (
    DUE_NOW,
    NO_DEADLINE,
    STOPPED,
    extend_clocks,
    find_first_due,
    is_overdue,
    list_due_at_once,
    open_clocks,
    resume_clocks,
    stop_clocks,
)
from falaj.privacy.records import DutyClock

LAWS = load_regimes()
CALENDARS = load_calendars()
AE, EU = CALENDARS["AE"], CALENDARS["EU"]
IRELAND = Calendar("IE", "Europe/Dublin", holidays=("01-01", "03-17", "12-25", "12-26", "2027-03-29"))
EID = replace(AE, holidays=(*AE.holidays, "2027-03-09", "2027-03-10", "2027-03-11"))


def law_with(deadline: DutyDeadline) -> LegalRegime:
    return replace(LAWS["EU-GDPR"], id="XX", deadlines={REQUEST: deadline})


def days_law(unit: str, count: int, *, moves: bool = False) -> LegalRegime:
    return law_with(DutyDeadline(unit, LegalCitation(), count, ends_on_working_day=moves))


WORK_10, DAYS_30, DAYS_30_MOVES = days_law(WORKING_DAYS, 10), days_law(DAYS, 30), days_law(DAYS, 30, moves=True)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


TABLE = [
    # GDPR Art. 12(3), Regulation 1182/71: one month, moved to the next working day
    ("EU-GDPR", None, REQUEST, "2027-01-31T10:00:00+01:00", "2027-03-01T23:59:59+01:00"),  # 28 Feb 2027 is a Sunday
    ("EU-GDPR", None, REQUEST, "2026-11-02T09:00:00+01:00", "2026-12-02T23:59:59+01:00"),
    ("EU-GDPR", None, REQUEST, "2024-01-31T09:00:00+01:00", "2024-02-29T23:59:59+01:00"),  # leap year
    ("EU-GDPR", None, REQUEST, "2024-01-29T09:00:00+01:00", "2024-02-29T23:59:59+01:00"),
    ("EU-GDPR", None, REQUEST, "2025-01-29T09:00:00+01:00", "2025-02-28T23:59:59+01:00"),
    ("EU-GDPR", None, REQUEST, "2026-03-31T09:00:00+02:00", "2026-04-30T23:59:59+02:00"),
    ("EU-GDPR", None, REQUEST, "2026-05-31T09:00:00+02:00", "2026-06-30T23:59:59+02:00"),
    ("EU-GDPR", None, REQUEST, "2026-11-25T09:00:00+01:00", "2026-12-28T23:59:59+01:00"),  # 25 Dec, then a weekend
    ("EU-GDPR", None, REQUEST, "2026-12-01T09:00:00+01:00", "2027-01-04T23:59:59+01:00"),  # 1 Jan, then a weekend
    ("EU-GDPR", None, REQUEST, "2026-03-05T09:00:00+01:00", "2026-04-07T23:59:59+02:00", "EASTER"),
    ("EU-GDPR", None, REQUEST, "2026-02-28T09:00:00+01:00", "2026-03-30T23:59:59+02:00"),  # over a change of the clocks
    ("EU-GDPR", None, REQUEST, "2026-10-01T23:30:00+02:00", "2026-11-02T23:59:59+01:00"),  # 1 Nov is a Sunday
    ("EU-GDPR", None, REQUEST, "2026-06-30T22:30:00+00:00", "2026-08-03T23:59:59+02:00"),  # 1 July in Brussels
    ("EU-GDPR", IRELAND, REQUEST, "2026-06-30T22:30:00+00:00", "2026-07-30T23:59:59+01:00"),  # 30 June in Dublin
    ("EU-GDPR", IRELAND, REQUEST, "2026-02-17T09:00:00+00:00", "2026-03-18T23:59:59+00:00"),  # St Patrick's Day
    ("EU-GDPR", IRELAND, REQUEST, "2026-11-26T09:00:00+00:00", "2026-12-28T23:59:59+00:00"),
    ("EU-GDPR", IRELAND, REQUEST, "2027-02-27T09:00:00+00:00", "2027-03-30T23:59:59+01:00"),  # Easter Monday listed
    ("EU-GDPR", None, BREACH, "2026-12-24T20:00:00+01:00", "2026-12-27T20:00:00+01:00"),  # hours do not move
    ("EU-GDPR", None, BREACH, "2026-03-28T02:30:00+01:00", "2026-03-31T03:30:00+02:00"),  # 72 real hours
    ("EU-GDPR", None, BREACH_PEOPLE, "2026-12-24T20:00:00+01:00", "2026-12-24T20:00:00+01:00"),
    # DIFC, Schedule 1: a month is 30 days, and what falls on a closed day is due on the next business day
    ("AE-DIFC", None, REQUEST, "2027-01-31T10:00:00+04:00", "2027-03-02T23:59:59+04:00"),
    ("AE-DIFC", None, REQUEST, "2027-03-01T10:00:00+04:00", "2027-03-31T23:59:59+04:00"),  # not 1 April
    ("AE-DIFC", None, REQUEST, "2026-10-31T10:00:00+04:00", "2026-11-30T23:59:59+04:00"),
    ("AE-DIFC", None, REQUEST, "2026-11-03T10:00:00+04:00", "2026-12-04T23:59:59+04:00"),  # off National Day
    ("AE-DIFC", None, REQUEST, "2026-12-31T21:00:00+00:00", "2027-02-01T23:59:59+04:00"),  # 31 January is a Sunday
    ("AE-DIFC", None, BREACH, "2026-12-31T21:00:00+00:00", "2026-12-31T21:00:00+00:00"),
    # ADGM: two months
    ("AE-ADGM", None, REQUEST, "2026-01-01T09:00:00+04:00", "2026-03-01T23:59:59+04:00"),
    ("AE-ADGM", None, REQUEST, "2026-12-31T09:00:00+04:00", "2027-02-28T23:59:59+04:00"),
    ("AE-ADGM", None, REQUEST, "2027-12-31T09:00:00+04:00", "2028-02-29T23:59:59+04:00"),  # leap year
    ("AE-ADGM", None, REQUEST, "2026-06-30T09:00:00+04:00", "2026-08-30T23:59:59+04:00"),
    ("AE-ADGM", None, BREACH, "2026-11-18T09:15:00+04:00", "2026-11-21T09:15:00+04:00"),
    # PDPL, CBUAE, health: at once is due now
    ("AE-PDPL", None, BREACH, "2026-11-20T23:59:00+04:00", "2026-11-20T23:59:00+04:00"),
    ("AE-CBUAE", None, BREACH, "2026-11-21T10:00:00+04:00", "2026-11-21T10:00:00+04:00"),
    ("AE-HEALTH", None, BREACH, "2026-11-22T10:00:00+04:00", "2026-11-22T10:00:00+04:00"),
    ("AE-PDPL", None, REQUEST, "2027-01-31T10:00:00+04:00", "2027-02-28T23:59:59+04:00"),
    ("AE-PDPL", None, REQUEST, "2026-08-31T10:00:00+04:00", "2026-09-30T23:59:59+04:00"),
    ("AE-PDPL", None, REQUEST, "2026-12-02T10:00:00+04:00", "2027-01-02T23:59:59+04:00"),  # a Saturday stays
    # Days and working days in the UAE calendar: Saturday and Sunday rest, Friday works
    (WORK_10, AE, REQUEST, "2026-11-18T10:00:00+04:00", "2026-12-04T23:59:59+04:00"),  # National Day, 2 and 3 Dec
    (WORK_10, AE, REQUEST, "2026-11-20T10:00:00+04:00", "2026-12-08T23:59:59+04:00"),
    (WORK_10, AE, REQUEST, "2026-11-21T10:00:00+04:00", "2026-12-08T23:59:59+04:00"),  # a Saturday counts for nothing
    (WORK_10, AE, REQUEST, "2026-12-24T10:00:00+04:00", "2027-01-08T23:59:59+04:00"),  # New Year's Day is a Friday
    (WORK_10, EID, REQUEST, "2027-03-01T10:00:00+04:00", "2027-03-18T23:59:59+04:00"),  # an Eid the operator listed
    (WORK_10, EU, REQUEST, "2026-12-15T10:00:00+01:00", "2026-12-30T23:59:59+01:00"),
    (DAYS_30, AE, REQUEST, "2026-11-12T10:00:00+04:00", "2026-12-12T23:59:59+04:00"),  # a Saturday stays
    (DAYS_30_MOVES, AE, REQUEST, "2026-11-12T10:00:00+04:00", "2026-12-14T23:59:59+04:00"),
    (DAYS_30_MOVES, AE, REQUEST, "2026-11-02T10:00:00+04:00", "2026-12-04T23:59:59+04:00"),  # off National Day
    (DAYS_30_MOVES, EID, REQUEST, "2027-02-07T10:00:00+04:00", "2027-03-12T23:59:59+04:00"),
]


def open_one(law: str | LegalRegime, calendar: Calendar | None, duty: str, received: str) -> tuple[DutyClock, ...]:
    regime = LAWS[law] if isinstance(law, str) else law
    return open_clocks(duty, [regime], moment(received), lambda regime: calendar or regime.calendar)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{getattr(row[0], 'id', row[0])}-{row[2]}-{row[3]}")
def test_a_deadline_ends_when_the_law_says(row: tuple[object, ...]) -> None:
    law, calendar, duty, received, expected = row[:5]
    if len(row) > 5:  # 5 April 2026 is Easter Sunday; an operator lists Good Friday and Easter Monday
        calendar = replace(EU, holidays=(*EU.holidays, "2026-04-03", "2026-04-06"))
    (clock,) = open_one(law, calendar, duty, received)  # type: ignore[arg-type]
    assert datetime.fromtimestamp(clock.due).astimezone() == datetime.fromisoformat(str(expected))


@pytest.mark.parametrize(
    ("law", "received", "expected"),
    [
        ("EU-GDPR", "2027-01-31T10:00:00+01:00", "2027-04-30T23:59:59+02:00"),  # three months of the day of receipt
        ("EU-GDPR", "2026-11-30T10:00:00+01:00", "2027-03-01T23:59:59+01:00"),  # 28 February is a Sunday
        ("EU-GDPR", "2027-11-30T10:00:00+01:00", "2028-02-29T23:59:59+01:00"),
        ("AE-DIFC", "2026-11-30T10:00:00+04:00", "2027-03-01T23:59:59+04:00"),  # 90 days end on a Sunday
        ("AE-ADGM", "2026-11-30T10:00:00+04:00", "2027-02-28T23:59:59+04:00"),
        ("AE-ADGM", "2026-12-31T10:00:00+04:00", "2027-03-31T23:59:59+04:00"),
    ],
)
def test_an_extension_counts_from_the_same_start(law: str, received: str, expected: str) -> None:
    clocks = open_one(law, None, REQUEST, received)
    assert clocks[0].latest_at == moment(expected)
    (extended,) = extend_clocks(clocks)
    assert (extended.due, extended.latest_at, extended.extended) == (moment(expected), 0.0, True)
    with pytest.raises(Invalid, match="allows no extension"):
        extend_clocks((replace(extended, rule=replace(extended.rule, extension=0)),))  # type: ignore[arg-type,type-var]


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        ([("2026-11-04T10:00:00+01:00", "2026-11-04T18:00:00+01:00")], "2026-12-02T23:59:59+01:00"),
        ([("2026-11-04T10:00:00+01:00", "2026-11-09T10:00:00+01:00")], "2026-12-07T23:59:59+01:00"),
        ([("2026-11-04T10:00:00+01:00", "2026-11-07T10:00:00+01:00")], "2026-12-07T23:59:59+01:00"),  # off a Saturday
        (
            [
                ("2026-11-04T10:00:00+01:00", "2026-11-06T10:00:00+01:00"),
                ("2026-11-10T10:00:00+01:00", "2026-11-16T10:00:00+01:00"),
            ],
            "2026-12-10T23:59:59+01:00",
        ),
    ],
)
def test_a_stopped_clock_ends_later_by_the_days_it_stood(stops: list[tuple[str, str]], expected: str) -> None:
    clocks = open_one("EU-GDPR", None, REQUEST, "2026-11-02T09:00:00+01:00")
    for since, to in stops:
        clocks = stop_clocks(clocks, "identification", moment(since))
        assert (clocks[0].state, clocks[0].due, find_first_due(clocks)) == (STOPPED, 0.0, 0.0)
        clocks = resume_clocks(clocks, moment(to))
    assert clocks[0].due == moment(expected)
    with pytest.raises(Conflict, match="no clock of this request is stopped"):
        resume_clocks(clocks, moment(expected))


def test_a_clock_whose_law_knows_no_stop_runs_on() -> None:
    received = moment("2026-11-02T09:00:00+01:00")
    both = open_clocks(REQUEST, [LAWS["EU-GDPR"], LAWS["AE-ADGM"]], received, lambda regime: regime.calendar)
    stopped = stop_clocks(both, "clarification", received + 3600)
    assert {clock.regime: bool(clock.due) for clock in stopped} == {"AE-ADGM": True, "EU-GDPR": False}
    with pytest.raises(Invalid, match="no clock stops for clarification: AE-ADGM"):
        stop_clocks(stopped[:1], "clarification", received + 3600)


def test_working_days_do_not_count_a_stop_over_a_weekend() -> None:
    rule = DutyDeadline(WORKING_DAYS, LegalCitation(), 10, stops_for=("fee",))
    clocks = open_one(law_with(rule), AE, REQUEST, "2026-11-09T10:00:00+04:00")
    stopped = stop_clocks(clocks, "fee", moment("2026-11-13T10:00:00+04:00"))  # a Friday
    (clock,) = resume_clocks(stopped, moment("2026-11-16T10:00:00+04:00"))  # the Monday after
    assert clock.due == moment("2026-11-24T23:59:59+04:00")


def test_at_once_is_due_now_and_never_overdue() -> None:
    (clock,) = open_one("AE-PDPL", None, BREACH, "2026-11-20T10:00:00+04:00")
    assert (clock.state, clock.due) == (DUE_NOW, clock.received)
    assert not is_overdue(clock, clock.due + 1e6)
    assert list_due_at_once([clock]) == ("AE-PDPL",)
    assert (
        list_due_at_once([replace(clock, done_at=clock.due + 60)])
        == list_due_at_once([replace(clock, waived=True)])
        == ()
    )


def test_a_running_clock_is_overdue_after_its_last_second() -> None:
    (clock,) = open_one("AE-DIFC", None, REQUEST, "2026-10-31T10:00:00+04:00")
    assert [is_overdue(clock, clock.due + extra) for extra in (-1, 0, 1)] == [False, False, True]
    assert is_overdue(replace(clock, done_at=clock.due + 1), clock.due + 5)
    assert not is_overdue(replace(clock, done_at=clock.due - 1), clock.due + 5)


def test_a_regime_without_a_deadline_says_so_and_sets_nothing() -> None:
    (clock,) = open_one("AE-HEALTH", None, REQUEST, "2026-10-31T10:00:00+04:00")
    assert (clock.state, clock.due, find_first_due((clock,))) == (NO_DEADLINE, 0.0, 0.0)


def test_an_open_clock_keeps_its_rule_when_the_profile_changes() -> None:
    (before,) = open_one("AE-ADGM", None, BREACH, "2026-11-18T09:15:00+04:00")
    rule = replace(LAWS["AE-ADGM"].deadlines[BREACH], count=24)
    newer = replace(LAWS["AE-ADGM"], version=9, deadlines={BREACH: rule})
    (after,) = open_one(newer, None, BREACH, "2026-11-18T09:15:00+04:00")
    assert (before.version, after.version, before.due - after.due) == (2, 9, 48 * 3600)
    assert before.rule is not None
    assert before.rule.count == 72
