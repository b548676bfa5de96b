"""Budgets: what a queue may spend in a window. Charged when a job is admitted, settled when its attempt ends.

What is held is the sum over live jobs (each keeps its own charge); what is spent is one derived record a queue.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from falaj.core.errors import Invalid
from falaj.fleet.records import BudgetRule
from falaj.fleet.use import added, every, house_key
from falaj.schedule.model import Budget
from falaj.schedule.words import BUDGETS
from falaj.store.ledger import Reader, Writer

MOST_DIGITS = 15
UNITS: Mapping[str, tuple[str, int]] = {word: (unit, scale) for unit, (word, scale) in BUDGETS.items()}
"""As people say it: what the scheduler calls it, and how many of its units one is."""
_RULE = re.compile(
    r"(gpu-hours|cpu-hours|money)=([0-9]+(?:\.[0-9]+)?)/(day|week|month|[1-9][0-9]{0,3}d)(?::(stop|best-effort))?"
)
_KEPT = 24


def read_budget(text: str) -> BudgetRule:
    """A budget as people write it: gpu-hours=500/month:stop."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise Invalid(f"{text[:80]!r} is no budget", "for example gpu-hours=500/month:stop or money=1000/30d")
    unit, number, window, then = found.groups()
    if len(number) > MOST_DIGITS:
        raise Invalid(f"{text[:80]!r} is no budget", f"numbers have at most {MOST_DIGITS} digits")
    return BudgetRule(unit, round(float(number) * UNITS[unit][1]), window, then == "stop")


def window_of(window: str, now: float) -> str:
    """The window a moment lies in, by the day it began."""
    return _began(window, now).strftime("%Y-%m-%d")


def window_end(window: str, now: float) -> int:
    """When the window is over that a moment lies in."""
    day = _began(window, now)
    if window == "month":
        return int((day + timedelta(days=31)).replace(day=1).timestamp())
    days = {"day": 1, "week": 7}.get(window) or int(window[:-1])
    return int((day + timedelta(days=days)).timestamp())


def _began(window: str, now: float) -> datetime:
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if window == "month":
        return day.replace(day=1)
    if window == "week":
        return day - timedelta(days=day.weekday())
    return day if window == "day" else day - timedelta(days=(int(now) // 86_400) % int(window[:-1]))


def standing(
    rules: Iterable[BudgetRule], spent: Mapping[str, int], held: Mapping[str, int], now: float
) -> tuple[Budget, ...]:
    """The budgets of a queue as the scheduler counts them."""
    return tuple(
        Budget(
            UNITS[rule.unit][0],
            rule.amount,
            spent.get(_slot(rule, now), 0),
            held.get(UNITS[rule.unit][0], 0),
            rule.stops,
            window_end(rule.window, now),
        )
        for rule in rules
    )


def read_spent(tx: Reader) -> dict[str, dict[str, int]]:
    """What every queue has spent, by queue, then by window and unit."""
    return {record.body["queue"]: record.body["spent"] for record in every(tx, "budget", "house")}


def settle(tx: Writer, rules: Mapping[str, tuple[BudgetRule, ...]], cost: Mapping[str, int], now: float) -> None:
    """Write down what an attempt cost, in every budget on its queue's way to the root."""
    for queue, budgets in rules.items():
        more = {_slot(rule, now): cost.get(UNITS[rule.unit][0], 0) for rule in budgets}
        more = {slot: value for slot, value in more.items() if value}
        if more:
            key = house_key("budget", queue.replace("/", "."))
            old = tx.key(key)
            spent = added(old.body["spent"] if old else {}, more)
            kept = dict(sorted(spent.items(), key=lambda item: item[0].rpartition("@")[2])[-_KEPT:])
            tx.put(key, {"queue": queue, "spent": kept}, rev=old.rev if old else None)


def _slot(rule: BudgetRule, now: float) -> str:
    return f"{UNITS[rule.unit][0]}/{rule.window}@{window_of(rule.window, now)}"
