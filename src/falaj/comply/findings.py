"""Findings: what is not as it should be, whose it is, since when, and what to do. Looked for, never remembered."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime

from falaj.comply.access_reviews import list_account_accesses
from falaj.comply.control_maps import load_control_maps
from falaj.comply.platform_snapshot import PlatformSnapshot, RowList
from falaj.comply.records import AccountAccess, ComplianceFinding, FindingsReport
from falaj.comply.row_checks import (
    DAY_S,
    find_old_keys,
    find_overdue,
    find_self_approvals,
    find_unreviewed,
    load_product_limits,
)
from falaj.core.client_command import Client

SEVERITY_ORDER = ("high", "medium", "low")


class _Inspection:
    """One look at the platform; what cannot be read is remembered in `ground.missing`."""

    def __init__(self, _client: Client, now: float) -> None:
        self.here, self.now, self.ground = _client, now, PlatformSnapshot(_client)

    def rows(self, name: str) -> RowList:
        return self.ground.rows(name) or []


def collect_findings(client: Client, now: float = 0.0) -> FindingsReport:
    """Everything, the worst first."""
    inspection = _Inspection(client, now or time.time())
    sorted_findings = [finding for rule in FINDING_RULES for finding in rule(inspection)]
    sorted_findings.sort(
        key=lambda listed_finding: (
            SEVERITY_ORDER.index(listed_finding.severity),
            listed_finding.rule,
            listed_finding.about,
        )
    )
    counts = {
        severity: sum(listed_finding.severity == severity for listed_finding in sorted_findings)
        for severity in SEVERITY_ORDER
    }
    missing = tuple(f"{name}: {reason}" for name, reason in sorted(inspection.ground.missing.items()))
    return FindingsReport(
        not counts["high"], counts["high"], counts["medium"], counts["low"], tuple(sorted_findings), missing
    )


def _check_access(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    for account_access in list_account_accesses(inspection.here, inspection.ground, inspection.now):
        yield from _check_account(account_access)


def _check_account(account_access: AccountAccess) -> Iterator[ComplianceFinding]:
    owner = "security-officer"
    fix = (
        f"falaj people suspend {account_access.name}, or revoke its tokens "
        f"(falaj people show person:people/{account_access.name})"
    )
    if "stale" in account_access.look:
        description = (
            f"{account_access.tokens} living tokens and nothing done for {load_product_limits()['stale_days']} days"
        )
        yield ComplianceFinding(
            "medium",
            "stale-token",
            f"person:people/{account_access.name}",
            description,
            owner,
            account_access.last_used or account_access.since,
            fix,
        )
    if "removed" in account_access.look:
        removal_fix = f"falaj people remove {account_access.name}"
        description = "an access review said removed, and the account is still there"
        yield ComplianceFinding(
            "high",
            "review-not-done",
            f"person:people/{account_access.name}",
            description,
            owner,
            account_access.since,
            removal_fix,
        )


def _check_unreviewed(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    people, answers = inspection.rows("people.jsonl"), inspection.rows("answers.jsonl")
    answered_at_by_person = {row["person"]: float(row["at"]) for row in answers}
    created_at_by_person = {row["name"]: float(row["since"]) for row in people}
    for name in find_unreviewed(people, answers, inspection.now):
        description = (
            f"nobody reviewed this access in {load_product_limits()['review_days']} days, or its roles changed since"
        )
        fix = f"falaj audit answer {name} kept --reason … (or removed)"
        since_at = answered_at_by_person.get(name, created_at_by_person[name])
        yield ComplianceFinding(
            "medium", "unreviewed-account", f"person:people/{name}", description, "auditor", since_at, fix
        )


def _check_unsigned(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    for row in inspection.rows("cards.jsonl"):
        if not row["signed"]:
            fix = f"publish it again and promote that: falaj catalog promote {row['ref']} …"
            description = "a model in production carries no signature"
            yield ComplianceFinding(
                "high", "unsigned-model", row["ref"], description, row["owner"], row["made_at"], fix
            )


def _check_approvals(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    rows = inspection.rows("approvals.jsonl")
    for row in rows:
        vote_count = sum(vote["says"] == "give" for vote in row["voices"])
        is_refused = any(vote["says"] == "refuse" for vote in row["voices"])
        if row["expires"] < inspection.now and vote_count < row["needs"] and not is_refused:
            description = f"the question for {row['action']} ended with {vote_count} of {row['needs']} answers"
            fix = "ask again, or let it rest: falaj approvals list --state expired"
            yield ComplianceFinding(
                "low", "expired-approval", row["ref"], description, row["asker"], row["expires"], fix
            )
    for text in find_self_approvals(rows, []):
        yield ComplianceFinding(
            "high", "self-approval", text, "whoever asked also said yes", "auditor", 0.0, "undo what it allowed"
        )


def _check_requests(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    for file, rule, operation in (
        ("requests.jsonl", "overdue-request", "privacy answer"),
        ("breaches.jsonl", "overdue-breach", "privacy notify"),
    ):
        for row in find_overdue(inspection.rows(file), inspection.now):
            if not row["closed_at"]:
                fix = f"falaj {operation} {row['ref']} …"
                yield ComplianceFinding(
                    "high", rule, row["ref"], "its time is over and it is open", "dpo", row["due"], fix
                )
    for row in inspection.rows("breaches.jsonl"):
        if row["due_now"] and not row["closed_at"]:
            description = f"the law wants a notice at once, and none is recorded: {', '.join(row['due_now'])}"
            fix = f"falaj privacy notify {row['ref']} …"
            yield ComplianceFinding("high", "notice-due-now", row["ref"], description, "dpo", row["found_at"], fix)


def _check_keys(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    for row in find_old_keys(inspection.rows("keys.jsonl"), inspection.now):
        days = (inspection.now - row["made"]) / DAY_S
        description = f"it seals since {days:.0f} days; the house rule is {load_product_limits()['key_age_days']}"
        fix = f"falaj keys rotate {row['purpose']} --zone {row['zone']}"
        yield ComplianceFinding("medium", "old-key", row["key"], description, "security-officer", row["made"], fix)


def _check_legal_reviews(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    """Profiles and control maps that nobody looked at since the day they name."""
    today = datetime.fromtimestamp(inspection.now, UTC).date()
    review_days = [(f"regime {row['id']}", str(row["review_by"])) for row in inspection.rows("regimes.json")]
    review_days += [
        (f"control map {reviewed_map.id}", reviewed_map.review_by) for reviewed_map in load_control_maps().values()
    ]
    review_days.append(("house rules", str(load_product_limits()["review_by"])))
    for subject, review_day in review_days:
        if review_day and date.fromisoformat(review_day) < today:
            since = datetime.fromisoformat(review_day).replace(tzinfo=UTC).timestamp()
            description = f"somebody must look at it again since {review_day}: laws change"
            yield ComplianceFinding(
                "medium", "law-past-review", subject, description, "dpo", since, "read the source, then change the file"
            )


def _check_placement(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    for row in inspection.rows("census.json"):
        for misplaced_copy in row["misplaced"]:
            fix = "delete that copy, or have a grant approved: falaj audit census"
            subject = f"{misplaced_copy['thing']} in {misplaced_copy['zone']}"
            severity = "low" if set(misplaced_copy["rules"]) == {"unaccounted"} else "high"
            yield ComplianceFinding(
                severity, "misplaced-copy", subject, misplaced_copy["why"], "data-steward", 0.0, fix
            )


def _check_drills(inspection: _Inspection) -> Iterator[ComplianceFinding]:
    """The newest drill went well, and is not too long ago."""
    max_days, fix = float(load_product_limits()["drill_days"]), "falaj restore --drill"
    finished_drills = [
        drill_entry
        for drill_entry in inspection.here.audit.log(verb="store.drill", limit=50).entries
        if _is_outcome_event(drill_entry.body or {})
    ]
    if not finished_drills or finished_drills[0].at < inspection.now - max_days * DAY_S:
        since = finished_drills[0].at if finished_drills else 0.0
        description = f"no restore drill in {max_days:.0f} days"
        yield ComplianceFinding("medium", "no-drill", "backups", description, "operator", since, fix)
    elif str(finished_drills[0].body.get("ok", "1")).lower() not in ("1", "true"):
        yield ComplianceFinding(
            "high", "failed-drill", "backups", "the newest restore drill failed", "operator", finished_drills[0].at, fix
        )


def _is_outcome_event(body: dict[str, str]) -> bool:
    return "phase" not in body


FINDING_RULES: tuple[Callable[[_Inspection], Iterator[ComplianceFinding]], ...] = (
    *(
        _check_access,
        _check_unreviewed,
        _check_unsigned,
        _check_approvals,
        _check_requests,
        _check_keys,
        _check_legal_reviews,
        _check_placement,
        _check_drills,
    ),
)
