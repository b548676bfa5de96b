"""Plans of watches: what may stand in one, and how it is said word by word. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.drift.records import DriftRules
from falaj.monitor.records import ActionPlan, WatchPlan
from falaj.store.codec import from_plain

DAY_S = 86400.0
MIN_WINDOW_S, MAX_WINDOW_S = 1.0, 31 * DAY_S
MAX_SEASON_S = 366 * DAY_S
MAX_NAME_CHARS = 200
_NESTED_PLANS: dict[str, type] = {"rules": DriftRules, "acting": ActionPlan}
_DOCS_HINT = "see docs/monitor.md"


def check_watch_plan(plan: WatchPlan) -> WatchPlan:
    """The plan, if every value in it can be; Invalid names the first that cannot."""
    rules, acting = plan.rules, plan.acting
    hit_count, window_count = rules.persist
    for name, holds, hint in (
        (
            "every_s",
            _is_within(plan.every_s, MIN_WINDOW_S, MAX_WINDOW_S),
            f"{MIN_WINDOW_S:g} s to {MAX_WINDOW_S / DAY_S:g} days",
        ),
        ("season_s", plan.season_s == 0 or _is_within(plan.season_s, plan.every_s, MAX_SEASON_S), "a day or a week"),
        ("latency_ms", _is_within(plan.latency_ms, 0, 1e7), "0 or more"),
        ("errors", _is_within(plan.errors, 0, 1), "a share from 0 to 1"),
        ("segment", len(plan.segment) <= MAX_NAME_CHARS, f"{MAX_NAME_CHARS} characters at most"),
        ("target", len(plan.target) <= MAX_NAME_CHARS, f"{MAX_NAME_CHARS} characters at most"),
        ("alpha", _is_within(rules.alpha, 1e-9, 0.5), "a share up to 0.5"),
        ("least_rows", 1 <= rules.least_rows <= 10_000_000, "1 to 10000000"),
        ("least_step", _is_within(rules.least_step, 0, 1), "0 to 1"),
        ("least_drop", _is_within(rules.least_drop, 0, 1), "0 to 1"),
        ("persist", 1 <= hit_count <= window_count <= 20, "so many of so many windows: 2,3"),
        ("cool_s", _is_within(acting.cool_s, 0, MAX_WINDOW_S), f"up to {MAX_WINDOW_S / DAY_S:g} days"),
        ("most_a_day", 0 <= acting.most_a_day <= 100, "0 to 100"),
        ("retrain", acting.retrain is None or acting.retrain.kind == "flow", "a flow: flow:fraud/retrain"),
    ):
        if not holds:
            raise Invalid(f"{name} of a watch cannot be {_format_value(plan, name)}", hint)
    return plan


def apply_options(plan: WatchPlan, option_texts: Mapping[str, str]) -> WatchPlan:
    """The plan with words put in: every_s=600, rollback=true, persist=2,3, retrain=flow:fraud/retrain."""
    for name, text in option_texts.items():
        part_name = next((item for item, kind in _NESTED_PLANS.items() if name in _list_field_names(kind)), "")
        if (not part_name and name not in _list_field_names(WatchPlan)) or name in _NESTED_PLANS:
            all_names = [
                *_list_field_names(WatchPlan),
                *(field_name for kind in _NESTED_PLANS.values() for field_name in _list_field_names(kind)),
            ]
            raise Invalid(
                f"a watch has no {name[:40]!r}",
                f"it has: {', '.join(item for item in all_names if item not in _NESTED_PLANS)}",
            )
        nested_plan: Any = getattr(plan, part_name) if part_name else plan
        changed_plan = replace(nested_plan, **{name: _parse_option(type(nested_plan), name, text)})
        plan = replace(plan, **{part_name: changed_plan}) if part_name else changed_plan
    return check_watch_plan(plan)


def read_plan(body: Mapping[str, Any]) -> WatchPlan:
    """The plan of a watch, from its record."""
    parsed: WatchPlan = from_plain(WatchPlan, body["plan"])
    return parsed


def _parse_option(plan_type: type, name: str, text: str) -> Any:
    """A word as its field wants it."""
    default_value: Any = next(plan_field.default for plan_field in fields(plan_type) if plan_field.name == name)
    try:
        if name == "retrain":
            return Ref.parse(text) if text else None
        if name == "params":
            parsed = json.loads(text)
            return {str(key): str(value) for key, value in dict(parsed).items()}
        if name == "persist":
            hit_count_text, window_count_text = text.split(",")
            return int(hit_count_text), int(window_count_text)
        if isinstance(default_value, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        return type(default_value)(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Invalid(f"{name} of a watch cannot be {text[:60]!r}", _DOCS_HINT) from None


def _format_value(plan: WatchPlan, name: str) -> str:
    nested_plan = next(
        (nested for nested in (plan, plan.rules, plan.acting) if name in _list_field_names(type(nested))), plan
    )
    return str(getattr(nested_plan, name))[:60]


def _list_field_names(kind: Any) -> list[str]:
    return [plan_field.name for plan_field in fields(kind)]


def _is_within(value: float, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high
