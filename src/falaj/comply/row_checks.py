"""What findings and measures both count from rows: late clocks, old keys, open access reviews, self-approvals."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from falaj.comply.platform_snapshot import RowList

DAY_S = 86_400.0
HOUSE_RULES_FILE = Path(__file__).with_name("house_rules.toml")


@cache
def load_product_limits() -> dict[str, Any]:
    """The product's own limits, as data."""
    return tomllib.loads(HOUSE_RULES_FILE.read_text(encoding="utf-8"))


def find_self_approvals(approvals: RowList, promotions: RowList) -> list[str]:
    """Yes said by whoever asked or wrote it, and promotions whose asker is among those who approved."""
    violations = [
        f"{row['ref']}: {vote['actor']}"
        for row in approvals
        for vote in row["voices"]
        if vote["says"] == "give" and {vote["person"], vote["actor"]} & {row["asker"], *row["barred"]}
    ]
    promotions_with_approvers = [(row, str(row["body"].get("people", "")).split(",")) for row in promotions]
    return violations + [
        f"{row['subject']}: {row['body']['asker']}"
        for row, approvers in promotions_with_approvers
        if row["body"].get("asker") in approvers
    ]


def find_unreviewed(people: RowList, answers: RowList, until: float) -> list[str]:
    """Accounts nobody answered for lately, or whose roles changed since."""
    earliest_at = until - float(load_product_limits()["review_days"]) * DAY_S
    reviewed_roles = {row["person"]: sorted(row["roles"]) for row in answers if earliest_at <= row["at"]}
    return [
        row["name"]
        for row in people
        if not row["suspended"] and reviewed_roles.get(row["name"]) != sorted(row["roles"])
    ]


def find_old_keys(keys: RowList, until: float) -> RowList:
    """Keys that seal today and were made too long ago. What only names things or signs models is not rotated by age."""
    earliest_at = until - float(load_product_limits()["key_age_days"]) * DAY_S
    return [row for row in find_rotated_keys(keys) if row["made"] < earliest_at]


def find_rotated_keys(keys: RowList) -> RowList:
    """Return the keys that seal today and are rotated by age."""
    purposes = ("zone", "tenant", "meta", "secret", "log")
    return [row for row in keys if row["purpose"] in purposes and not row["destroyed"]]


def find_overdue(rows: RowList, until: float) -> RowList:
    """Return requests and breaches of which a running clock ended before its duty was done."""
    return [row for row in rows if find_late_clocks(row, until)]


def find_late_clocks(row: Mapping[str, Any], until: float) -> list[str]:
    """Return the regimes whose clock ran out before the duty was done. A duty that is due at once has no such end."""
    late_regimes = {
        clock["regime"]
        for clock in row["clocks"]
        if clock["state"] == "running"
        and not clock["waived"]
        and 0 < clock["due"] < (clock["done_at"] or row["closed_at"] or until)
    }
    return sorted(late_regimes)
