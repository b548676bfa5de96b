"""Access reviews: who has what, when they last used it, what they never used, and what a reviewer said."""

from datetime import UTC, datetime

from falaj.comply.figures import DAY_S, house_rules, unreviewed
from falaj.comply.gather import Ground
from falaj.comply.records import Access
from falaj.core.errand import Here
from falaj.core.errors import NotFound

MOST_EVENTS = 1000
"""So many of an account's newest acts are looked at for the roles it used."""


def accounts(here: Here, ground: Ground, now: float) -> list[Access]:
    """Every account that can act, with why somebody should look at it."""
    people, answers = ground.rows("people.jsonl") or [], ground.rows("answers.jsonl") or []
    told = {row["person"]: row for row in answers}
    open_ = set(unreviewed(people, answers, now))
    found = []
    for row in people:
        name = row["name"]
        tokens = _tokens(here, name)
        if tokens is None:
            continue
        last, used = _use(here, name)
        answer = told.get(name)
        stale = tokens and max(last, row["since"]) < now - float(house_rules()["stale_days"]) * DAY_S
        unused = tuple(sorted(set(row["roles"]) - used))
        removed = answer is not None and answer["decision"] == "removed" and not row["suspended"]
        reasons = {"stale": stale, "removed": removed, "unused-roles": unused, "unreviewed": name in open_}
        said = f"{answer['decision']} by {answer['by']} on {_day(answer['at'])}" if answer else ""
        found.append(
            Access(
                name=name,
                kind=row["kind"],
                roles=tuple(row["roles"]),
                projects=tuple(row["projects"]),
                suspended=row["suspended"],
                since=row["since"],
                last_used=last,
                tokens=tokens,
                unused_roles=unused,
                answer=said,
                look=tuple(reason for reason, holds in reasons.items() if holds),
            )
        )
    return found


def _tokens(here: Here, name: str) -> int | None:
    """How many of its tokens live; None when it was removed, for its name stays on the list and is given to nobody."""
    try:
        return len(here.people.show(f"person:people/{name}").tokens)
    except NotFound:
        return None


def _use(here: Here, name: str) -> tuple[float, set[str]]:
    """When the account last did something, and the roles that opened doors for it lately."""
    entries = here.audit.log(actor=name, limit=MOST_EVENTS).entries
    used = {rule.removeprefix("role-").rpartition("-")[0] for entry in entries for rule in entry.rules}
    return (entries[0].at if entries else 0.0), used


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
