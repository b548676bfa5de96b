"""What findings and measures both count from rows: late clocks, old keys, open access reviews, self-approvals."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from falaj.comply.gather import Rows

DAY_S = 86_400.0
RULES = Path(__file__).with_name("house_rules.toml")


@cache
def house_rules() -> dict[str, Any]:
    """The product's own limits, as data."""
    return tomllib.loads(RULES.read_text(encoding="utf-8"))


def self_approvals(approvals: Rows, promotions: Rows) -> list[str]:
    """Yes said by whoever asked or wrote it, and promotions whose asker is among those who approved."""
    wrong = [
        f"{row['ref']}: {voice['actor']}"
        for row in approvals
        for voice in row["voices"]
        if voice["says"] == "give" and {voice["person"], voice["actor"]} & {row["asker"], *row["barred"]}
    ]
    told = [(row, str(row["body"].get("people", "")).split(",")) for row in promotions]
    return wrong + [f"{row['subject']}: {row['body']['asker']}" for row, who in told if row["body"].get("asker") in who]


def unreviewed(people: Rows, answers: Rows, until: float) -> list[str]:
    """Accounts nobody answered for lately, or whose roles changed since."""
    least = until - float(house_rules()["review_days"]) * DAY_S
    fresh = {row["person"]: sorted(row["roles"]) for row in answers if least <= row["at"]}
    return [row["name"] for row in people if not row["suspended"] and fresh.get(row["name"]) != sorted(row["roles"])]


def old_keys(keys: Rows, until: float) -> Rows:
    """Keys that seal today and were made too long ago. What only names things or signs models is not rotated by age."""
    least = until - float(house_rules()["key_age_days"]) * DAY_S
    return [row for row in rotated_keys(keys) if row["made"] < least]


def rotated_keys(keys: Rows) -> Rows:
    """Return the keys that seal today and are rotated by age."""
    purposes = ("zone", "tenant", "meta", "secret", "log")
    return [row for row in keys if row["purpose"] in purposes and not row["destroyed"]]


def overdue(rows: Rows, until: float) -> Rows:
    """Return requests and breaches of which a running clock ended before its duty was done."""
    return [row for row in rows if late_clocks(row, until)]


def late_clocks(row: Mapping[str, Any], until: float) -> list[str]:
    """Return the regimes whose clock ran out before the duty was done. A duty that is due at once has no such end."""
    late = {
        clock["regime"]
        for clock in row["clocks"]
        if clock["state"] == "running"
        and not clock["waived"]
        and 0 < clock["due"] < (clock["done_at"] or row["closed_at"] or until)
    }
    return sorted(late)
