"""The figures that controls are judged by: counted from rows, never typed by anyone. None is what nobody knows."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from falaj.comply.gather import Rows
from falaj.comply.tally import Tally

DAY_S = 86_400.0
RULES = Path(__file__).with_name("house_rules.toml")
Files = Mapping[str, Rows | None]


@cache
def house_rules() -> dict[str, Any]:
    """The product's own limits, as data."""
    return tomllib.loads(RULES.read_text(encoding="utf-8"))


def figures_of(files: Files, tally: Tally, checkpoints: int, enclosed: Iterable[str], until: float) -> dict[str, Any]:
    """Every figure the catalogue of controls names."""
    named = list(enclosed)
    found: dict[str, int | None] = {
        "events": tally.events,
        "checkpoints": checkpoints,
        "transfers": len(files["transfers.jsonl"] or ()),
        "promotions": len(files["promotions.jsonl"] or ()),
        "drills": len(files["drills.jsonl"] or ()) + sum("drill" in one.lower() for one in named),
        "failed_drills": sum(not _went_well(row) for row in files["drills.jsonl"] or ()),
        "column_policies": None,
        "ropa": _size(files, "ropa.json"),
    }
    for name, word in (("sbom", "sbom"), ("scans", "scan"), ("network", "network"), ("exit", "exit")):
        found[f"enclosed_{name}"] = sum(word in one.lower() for one in named)
    for name, (file, count) in _COUNTS.items():
        rows = files.get(file)
        found[name] = None if rows is None else count(rows, until)
    return found | _joined(files, until)


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
    rotated = ("zone", "tenant", "meta", "secret", "log")
    return [row for row in keys if row["purpose"] in rotated and not row["destroyed"] and row["made"] < least]


def overdue(rows: Rows, until: float) -> Rows:
    """Requests and breaches whose time ran out before they were closed."""
    return [row for row in rows if 0 < row["due"] < (row["closed_at"] or until)]


def _went_well(row: Mapping[str, Any]) -> bool:
    body = row["body"]
    return str(body.get("ok", body.get("result", 1))).lower() in ("1", "true", "ok", "done")


def _size(files: Files, name: str) -> int | None:
    rows = files.get(name)
    return None if rows is None else len(rows)


def _joined(files: Files, until: float) -> dict[str, int | None]:
    approvals, people, answers = (files.get(name) for name in ("approvals.jsonl", "people.jsonl", "answers.jsonl"))
    both = people is not None and answers is not None
    return {
        "self_approvals": None
        if approvals is None
        else len(self_approvals(approvals, list(files["promotions.jsonl"] or ()))),
        "unreviewed_accounts": len(unreviewed(people or [], answers or [], until)) if both else None,
    }


def _all(rows: Rows, until: float) -> int:
    del until
    return len(rows)


def _if(test: Callable[[dict[str, Any]], object]) -> Callable[[Rows, float], int]:
    return lambda rows, _: sum(bool(test(row)) for row in rows)


_COUNTS: dict[str, tuple[str, Callable[[Rows, float], int]]] = {
    "inventory": ("inventory.jsonl", _all),
    "endpoints": ("inventory.jsonl", _if(lambda row: row["kind"] == "endpoint")),
    "unlabelled": ("labels.jsonl", _if(lambda row: not row["regimes"])),
    "regulated_things": ("labels.jsonl", _if(lambda row: set(row["regimes"]) - {"NONE"})),
    "people": ("people.jsonl", _all),
    "roles": ("policy.json", _if(lambda row: "role" in row)),
    "approvals": ("approvals.jsonl", _all),
    "gates": ("gates.jsonl", _all),
    "zones": ("zones.json", _all),
    "copies": ("census.json", lambda rows, _: sum(row["copies"] for row in rows)),
    "misplaced_copies": ("census.json", lambda rows, _: sum(len(row["misplaced"]) for row in rows)),
    "keys": ("keys.jsonl", _all),
    "keys_past_age": ("keys.jsonl", lambda rows, until: len(old_keys(rows, until))),
    "queues": ("queues.jsonl", _all),
    "production_models": ("cards.jsonl", _all),
    "unsigned_production_models": ("cards.jsonl", _if(lambda row: not row["signed"])),
    "model_boms": ("boms.jsonl", _all),
    "bias_tests": ("attestations.jsonl", _if(lambda row: row["kind"] == "bias" and row["passed"])),
    "watches": ("watches.jsonl", _all),
    "incidents": ("incidents.jsonl", _all),
    "purposes": ("purposes.jsonl", _all),
    "notices": ("purposes.jsonl", _if(lambda row: {"ar", "en"} <= set(row["text"]))),
    "consents": ("consents.jsonl", _all),
    "requests": ("requests.jsonl", _all),
    "overdue_requests": ("requests.jsonl", lambda rows, until: len(overdue(rows, until))),
    "erasure_requests": ("requests.jsonl", _if(lambda row: row["type"] == "erasure")),
    "certificates": ("certificates.jsonl", _all),
    "breaches": ("breaches.jsonl", _all),
    "overdue_breaches": ("breaches.jsonl", lambda rows, until: len(overdue(rows, until))),
    "approved_assessments": ("assessments.jsonl", _if(lambda row: row["state"] == "approved")),
}
"""Figure: the file it is counted from, and how."""


def sources() -> dict[str, str]:
    """The file behind each figure, to say why one is not known."""
    both = {"self_approvals": "approvals.jsonl", "unreviewed_accounts": "answers.jsonl", "ropa": "ropa.json"}
    return {name: file for name, (file, _) in _COUNTS.items()} | both
