"""Budgets: what a queue may spend in a window. Charged when a job is admitted, settled when its attempt ends.

What is held is the sum over live jobs (each keeps its own charge); what is spent is one derived record a queue.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from falaj.core.errors import Invalid
from falaj.fleet.fleet_use import iter_records, make_system_key, sum_amounts
from falaj.fleet.records import BudgetRule
from falaj.schedule.amount_text import BUDGET_UNITS
from falaj.schedule.model import QueueBudget
from falaj.store.ledger import LedgerReader, LedgerWriter

MOST_DIGITS = 15
UNITS: Mapping[str, tuple[str, int]] = {word: (unit, scale) for unit, (word, scale) in BUDGET_UNITS.items()}
"""As people say it: what the scheduler calls it, and how many of its units one is."""
_RULE = re.compile(
    r"(gpu-hours|cpu-hours|money)=([0-9]+(?:\.[0-9]+)?)/(day|week|month|[1-9][0-9]{0,3}d)(?::(stop|best-effort))?"
)
_WINDOWS_KEPT = 24


def read_budget(text: str) -> BudgetRule:
    """A budget as people write it: gpu-hours=500/month:stop."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise Invalid(f"{text[:80]!r} is no budget", "for example gpu-hours=500/month:stop or money=1000/30d")
    unit, number, window, action = match.groups()
    if len(number) > MOST_DIGITS:
        raise Invalid(f"{text[:80]!r} is no budget", f"numbers have at most {MOST_DIGITS} digits")
    return BudgetRule(unit, round(float(number) * UNITS[unit][1]), window, action == "stop")


def format_window_start(window: str, now: float) -> str:
    """The window a moment lies in, by the day it began."""
    return _find_window_start(window, now).strftime("%Y-%m-%d")


def find_window_end(window: str, now: float) -> int:
    """When the window is over that a moment lies in."""
    day = _find_window_start(window, now)
    if window == "month":
        return int((day + timedelta(days=31)).replace(day=1).timestamp())
    days = {"day": 1, "week": 7}.get(window) or int(window[:-1])
    return int((day + timedelta(days=days)).timestamp())


def _find_window_start(window: str, now: float) -> datetime:
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if window == "month":
        return day.replace(day=1)
    if window == "week":
        return day - timedelta(days=day.weekday())
    return day if window == "day" else day - timedelta(days=(int(now) // 86_400) % int(window[:-1]))


def to_scheduler_budgets(
    rules: Iterable[BudgetRule], spent: Mapping[str, int], reserved: Mapping[str, int], now: float
) -> tuple[QueueBudget, ...]:
    """The budgets of a queue as the scheduler counts them."""
    return tuple(
        QueueBudget(
            UNITS[rule.unit][0],
            rule.amount,
            spent.get(_make_window_key(rule, now), 0),
            reserved.get(UNITS[rule.unit][0], 0),
            rule.stops,
            find_window_end(rule.window, now),
        )
        for rule in rules
    )


def read_spent(tx: LedgerReader) -> dict[str, dict[str, int]]:
    """What every queue has spent, by queue, then by window and unit."""
    return {record.body["queue"]: record.body["spent"] for record in iter_records(tx, "budget", "house")}


def settle_budgets(
    tx: LedgerWriter, rules: Mapping[str, tuple[BudgetRule, ...]], cost: Mapping[str, int], now: float
) -> None:
    """Write down what an attempt cost, in every budget on its queue's way to the root."""
    for queue, budgets in rules.items():
        spent_by_window = {_make_window_key(rule, now): cost.get(UNITS[rule.unit][0], 0) for rule in budgets}
        spent_by_window = {window_key: value for window_key, value in spent_by_window.items() if value}
        if spent_by_window:
            key = make_system_key("budget", queue.replace("/", "."))
            previous = tx.key(key)
            spent = sum_amounts(previous.body["spent"] if previous else {}, spent_by_window)
            recent_windows = dict(sorted(spent.items(), key=lambda item: item[0].rpartition("@")[2])[-_WINDOWS_KEPT:])
            tx.put(key, {"queue": queue, "spent": recent_windows}, rev=previous.rev if previous else None)


def _make_window_key(rule: BudgetRule, now: float) -> str:
    return f"{UNITS[rule.unit][0]}/{rule.window}@{format_window_start(rule.window, now)}"
