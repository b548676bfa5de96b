"""Plans of watches: what may stand in one, and how it is said word by word. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.drift.records import Rules
from falaj.monitor.records import Acting, WatchPlan
from falaj.store.codec import from_plain

DAY_S = 86400.0
LEAST_S, MOST_S = 1.0, 31 * DAY_S
MOST_SEASON_S = 366 * DAY_S
LONGEST = 200
_PARTS: dict[str, type] = {"rules": Rules, "acting": Acting}
_HINT = "see docs/monitor.md"


def checked(plan: WatchPlan) -> WatchPlan:
    """The plan, if every value in it can be; Invalid names the first that cannot."""
    rules, acting = plan.rules, plan.acting
    first, of = rules.persist
    for name, holds, hint in (
        ("every_s", _within(plan.every_s, LEAST_S, MOST_S), f"{LEAST_S:g} s to {MOST_S / DAY_S:g} days"),
        ("season_s", plan.season_s == 0 or _within(plan.season_s, plan.every_s, MOST_SEASON_S), "a day or a week"),
        ("latency_ms", _within(plan.latency_ms, 0, 1e7), "0 or more"),
        ("errors", _within(plan.errors, 0, 1), "a share from 0 to 1"),
        ("segment", len(plan.segment) <= LONGEST, f"{LONGEST} characters at most"),
        ("target", len(plan.target) <= LONGEST, f"{LONGEST} characters at most"),
        ("alpha", _within(rules.alpha, 1e-9, 0.5), "a share up to 0.5"),
        ("least_rows", 1 <= rules.least_rows <= 10_000_000, "1 to 10000000"),
        ("least_step", _within(rules.least_step, 0, 1), "0 to 1"),
        ("least_drop", _within(rules.least_drop, 0, 1), "0 to 1"),
        ("persist", 1 <= first <= of <= 20, "so many of so many windows: 2,3"),
        ("cool_s", _within(acting.cool_s, 0, MOST_S), f"up to {MOST_S / DAY_S:g} days"),
        ("most_a_day", 0 <= acting.most_a_day <= 100, "0 to 100"),
        ("retrain", acting.retrain is None or acting.retrain.kind == "flow", "a flow: flow:fraud/retrain"),
    ):
        if not holds:
            raise Invalid(f"{name} of a watch cannot be {_given(plan, name)}", hint)
    return plan


def worded(plan: WatchPlan, more: Mapping[str, str]) -> WatchPlan:
    """The plan with words put in: every_s=600, rollback=true, persist=2,3, retrain=flow:fraud/retrain."""
    for name, text in more.items():
        part = next((one for one, kind in _PARTS.items() if name in _names(kind)), "")
        if (not part and name not in _names(WatchPlan)) or name in _PARTS:
            known = [*_names(WatchPlan), *(word for kind in _PARTS.values() for word in _names(kind))]
            raise Invalid(
                f"a watch has no {name[:40]!r}", f"it has: {', '.join(one for one in known if one not in _PARTS)}"
            )
        whole: Any = getattr(plan, part) if part else plan
        made = replace(whole, **{name: _word(type(whole), name, text)})
        plan = replace(plan, **{part: made}) if part else made
    return checked(plan)


def plan_in(body: Mapping[str, Any]) -> WatchPlan:
    """The plan of a watch, from its record."""
    made: WatchPlan = from_plain(WatchPlan, body["plan"])
    return made


def _word(kind: type, name: str, text: str) -> Any:
    """A word as its field wants it."""
    now: Any = next(one.default for one in fields(kind) if one.name == name)
    try:
        if name == "retrain":
            return Ref.parse(text) if text else None
        if name == "params":
            found = json.loads(text)
            return {str(key): str(value) for key, value in dict(found).items()}
        if name == "persist":
            first, of = text.split(",")
            return int(first), int(of)
        if isinstance(now, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        return type(now)(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Invalid(f"{name} of a watch cannot be {text[:60]!r}", _HINT) from None


def _given(plan: WatchPlan, name: str) -> str:
    whole = next((one for one in (plan, plan.rules, plan.acting) if name in _names(type(one))), plan)
    return str(getattr(whole, name))[:60]


def _names(kind: Any) -> list[str]:
    return [one.name for one in fields(kind)]


def _within(value: float, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high
