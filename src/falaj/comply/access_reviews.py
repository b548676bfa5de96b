"""Access reviews: who has what, when they last used it, what they never used, and what a reviewer said."""

from datetime import UTC, datetime

from falaj.comply.platform_snapshot import PlatformSnapshot
from falaj.comply.records import AccountAccess
from falaj.comply.row_checks import DAY_S, find_unreviewed, load_product_limits
from falaj.core.client_command import Client
from falaj.core.errors import NotFound

MAX_EVENTS = 1000
"""So many of an account's newest acts are looked at for the roles it used."""


def list_account_accesses(client: Client, snapshot: PlatformSnapshot, now: float) -> list[AccountAccess]:
    """Every account that can act, with why somebody should look at it."""
    people, answers = snapshot.rows("people.jsonl") or [], snapshot.rows("answers.jsonl") or []
    answers_by_person = {row["person"]: row for row in answers}
    unreviewed_names = set(find_unreviewed(people, answers, now))
    accesses = []
    for row in people:
        name = row["name"]
        token_count = _count_live_tokens(client, name)
        if token_count is None:
            continue
        last_used, used_roles = _read_usage(client, name)
        answer = answers_by_person.get(name)
        is_stale = (
            token_count and max(last_used, row["since"]) < now - float(load_product_limits()["stale_days"]) * DAY_S
        )
        unused_roles = tuple(sorted(set(row["roles"]) - used_roles))
        is_removed = answer is not None and answer["decision"] == "removed" and not row["suspended"]
        reasons = {
            "stale": is_stale,
            "removed": is_removed,
            "unused-roles": unused_roles,
            "unreviewed": name in unreviewed_names,
        }
        answer_text = f"{answer['decision']} by {answer['by']} on {_format_day(answer['at'])}" if answer else ""
        accesses.append(
            AccountAccess(
                name=name,
                kind=row["kind"],
                roles=tuple(row["roles"]),
                projects=tuple(row["projects"]),
                suspended=row["suspended"],
                since=row["since"],
                last_used=last_used,
                tokens=token_count,
                unused_roles=unused_roles,
                answer=answer_text,
                look=tuple(reason for reason, is_true in reasons.items() if is_true),
            )
        )
    return accesses


def _count_live_tokens(client: Client, name: str) -> int | None:
    """How many of its tokens live; None when it was removed, for its name stays on the list and is given to nobody."""
    try:
        return len(client.people.show(f"person:people/{name}").tokens)
    except NotFound:
        return None


def _read_usage(client: Client, name: str) -> tuple[float, set[str]]:
    """When the account last did something, and the roles that opened doors for it lately."""
    entries = client.audit.log(actor=name, limit=MAX_EVENTS).entries
    used_roles = {rule.removeprefix("role-").rpartition("-")[0] for entry in entries for rule in entry.rules}
    return (entries[0].at if entries else 0.0), used_roles


def _format_day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
