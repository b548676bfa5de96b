"""Findings: what is not as it should be, whose it is, since when, and what to do. Looked for, never remembered."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime

from falaj.comply.figures import DAY_S, house_rules, old_keys, overdue, self_approvals, unreviewed
from falaj.comply.gather import Ground, Rows
from falaj.comply.mapping import control_maps
from falaj.comply.records import Access, Finding, Findings
from falaj.comply.reviewing import accounts
from falaj.core.errand import Here

ORDER = ("high", "medium", "low")


class _Look:
    """One look at the platform; what cannot be read is remembered in `ground.missing`."""

    def __init__(self, here: Here, now: float) -> None:
        self.here, self.now, self.ground = here, now, Ground(here)

    def rows(self, name: str) -> Rows:
        return self.ground.rows(name) or []


def look(here: Here, now: float = 0.0) -> Findings:
    """Everything, the worst first."""
    at = _Look(here, now or time.time())
    found = [finding for rule in RULES for finding in rule(at)]
    found.sort(key=lambda one: (ORDER.index(one.severity), one.rule, one.about))
    counts = {severity: sum(one.severity == severity for one in found) for severity in ORDER}
    missing = tuple(f"{name}: {why}" for name, why in sorted(at.ground.missing.items()))
    return Findings(not counts["high"], counts["high"], counts["medium"], counts["low"], tuple(found), missing)


def _access(at: _Look) -> Iterator[Finding]:
    for one in accounts(at.here, at.ground, at.now):
        yield from _account(one)


def _account(one: Access) -> Iterator[Finding]:
    owner = "security-officer"
    fix = f"falaj people suspend {one.name}, or revoke its tokens (falaj people show person:people/{one.name})"
    if "stale" in one.look:
        what = f"{one.tokens} living tokens and nothing done for {house_rules()['stale_days']} days"
        yield Finding(
            "medium", "stale-token", f"person:people/{one.name}", what, owner, one.last_used or one.since, fix
        )
    if "removed" in one.look:
        done = f"falaj people remove {one.name}"
        what = "an access review said removed, and the account is still there"
        yield Finding("high", "review-not-done", f"person:people/{one.name}", what, owner, one.since, done)


def _unreviewed(at: _Look) -> Iterator[Finding]:
    people, answers = at.rows("people.jsonl"), at.rows("answers.jsonl")
    told = {row["person"]: float(row["at"]) for row in answers}
    since = {row["name"]: float(row["since"]) for row in people}
    for name in unreviewed(people, answers, at.now):
        what = f"nobody reviewed this access in {house_rules()['review_days']} days, or its roles changed since"
        fix = f"falaj audit answer {name} kept --reason … (or removed)"
        start = told.get(name, since[name])
        yield Finding("medium", "unreviewed-account", f"person:people/{name}", what, "auditor", start, fix)


def _unsigned(at: _Look) -> Iterator[Finding]:
    for row in at.rows("cards.jsonl"):
        if not row["signed"]:
            fix = f"publish it again and promote that: falaj catalog promote {row['ref']} …"
            what = "a model in production carries no signature"
            yield Finding("high", "unsigned-model", row["ref"], what, row["owner"], row["made_at"], fix)


def _approvals(at: _Look) -> Iterator[Finding]:
    rows = at.rows("approvals.jsonl")
    for row in rows:
        given = sum(voice["says"] == "give" for voice in row["voices"])
        refused = any(voice["says"] == "refuse" for voice in row["voices"])
        if row["expires"] < at.now and given < row["needs"] and not refused:
            what = f"the question for {row['action']} ended with {given} of {row['needs']} answers"
            fix = "ask again, or let it rest: falaj approvals list --state expired"
            yield Finding("low", "expired-approval", row["ref"], what, row["asker"], row["expires"], fix)
    for text in self_approvals(rows, []):
        yield Finding(
            "high", "self-approval", text, "whoever asked also said yes", "auditor", 0.0, "undo what it allowed"
        )


def _requests(at: _Look) -> Iterator[Finding]:
    for file, rule, verb in (
        ("requests.jsonl", "overdue-request", "privacy answer"),
        ("breaches.jsonl", "overdue-breach", "privacy notify"),
    ):
        for row in overdue(at.rows(file), at.now):
            if not row["closed_at"]:
                fix = f"falaj {verb} {row['ref']} …"
                yield Finding("high", rule, row["ref"], "its time is over and it is open", "dpo", row["due"], fix)
    for row in at.rows("breaches.jsonl"):
        if row["due_now"] and not row["closed_at"]:
            what = f"the law wants a notice at once, and none is recorded: {', '.join(row['due_now'])}"
            fix = f"falaj privacy notify {row['ref']} …"
            yield Finding("high", "notice-due-now", row["ref"], what, "dpo", row["found_at"], fix)


def _keys(at: _Look) -> Iterator[Finding]:
    for row in old_keys(at.rows("keys.jsonl"), at.now):
        days = (at.now - row["made"]) / DAY_S
        what = f"it seals since {days:.0f} days; the house rule is {house_rules()['key_age_days']}"
        fix = f"falaj keys rotate {row['purpose']} --zone {row['zone']}"
        yield Finding("medium", "old-key", row["key"], what, "security-officer", row["made"], fix)


def _law(at: _Look) -> Iterator[Finding]:
    """Profiles and control maps that nobody looked at since the day they name."""
    today = datetime.fromtimestamp(at.now, UTC).date()
    due = [(f"regime {row['id']}", str(row["review_by"])) for row in at.rows("regimes.json")]
    due += [(f"control map {one.id}", one.review_by) for one in control_maps().values()]
    due.append(("house rules", str(house_rules()["review_by"])))
    for about, day in due:
        if day and date.fromisoformat(day) < today:
            since = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
            what = f"somebody must look at it again since {day}: laws change"
            yield Finding(
                "medium", "law-past-review", about, what, "dpo", since, "read the source, then change the file"
            )


def _placement(at: _Look) -> Iterator[Finding]:
    for row in at.rows("census.json"):
        for one in row["misplaced"]:
            fix = "delete that copy, or have a grant approved: falaj audit census"
            about = f"{one['thing']} in {one['zone']}"
            severity = "low" if set(one["rules"]) == {"unaccounted"} else "high"
            yield Finding(severity, "misplaced-copy", about, one["why"], "data-steward", 0.0, fix)


def _drills(at: _Look) -> Iterator[Finding]:
    """The newest drill went well, and is not too long ago."""
    days, fix = float(house_rules()["drill_days"]), "falaj restore --drill"
    seen = [one for one in at.here.audit.log(verb="store.drill", limit=50).entries if _told(one.body or {})]
    if not seen or seen[0].at < at.now - days * DAY_S:
        since = seen[0].at if seen else 0.0
        what = f"no restore drill in {days:.0f} days"
        yield Finding("medium", "no-drill", "backups", what, "operator", since, fix)
    elif str(seen[0].body.get("ok", "1")).lower() not in ("1", "true"):
        yield Finding("high", "failed-drill", "backups", "the newest restore drill failed", "operator", seen[0].at, fix)


def _told(body: dict[str, str]) -> bool:
    return "phase" not in body


RULES: tuple[Callable[[_Look], Iterator[Finding]], ...] = (
    *(_access, _unreviewed, _unsigned, _approvals, _requests, _keys, _law, _placement, _drills),
)
