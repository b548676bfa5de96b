"""The life of an endpoint as changes of its record's body: pure functions, so that every path through it can be tried.

`current` has the traffic, `wanted` shall have it once it is ready, `before` had it last and is kept for a while.
`trail` are the revisions one goes back to, the nearest last.
"""

from collections.abc import Mapping
from typing import Any

RecordFields = dict[str, Any]
MAX_REVISIONS = 100
"""So many revisions are remembered; those that nothing refers to go first."""
MAX_FAILED_REPLICAS = 3
"""A revision that never was ready is given up after so many replicas of it failed."""
MAX_RETRY_PAUSE_S = 300.0
MAX_NOTE_CHARS = 600


def next_revision_number(body: RecordFields) -> int:
    """The number of the next revision."""
    return 1 + max((int(revision_fields["number"]) for revision_fields in body["revisions"]), default=0)


def add_revision(body: RecordFields, revision: RecordFields) -> RecordFields:
    """With one revision more."""
    revisions = [*body["revisions"], revision]
    referenced = {body["current"], body["wanted"], body["before"], *body["trail"], *_rollout_revisions(body)}
    unreferenced = [
        revision_fields for revision_fields in revisions[:-1] if revision_fields["number"] not in referenced
    ]
    removed_numbers = {
        revision_fields["number"] for revision_fields in unreferenced[: max(0, len(revisions) - MAX_REVISIONS)]
    }
    return {
        **body,
        "revisions": [
            revision_fields for revision_fields in revisions if revision_fields["number"] not in removed_numbers
        ],
    }


def set_target(body: RecordFields, number: int) -> RecordFields:
    """A revision shall get the traffic as soon as it is ready."""
    return _drop_trouble({**body, "wanted": number, "stopped": False, "note": ""}, number)


def switch_traffic(body: RecordFields, new_revision: int, now: float) -> RecordFields:
    """The traffic goes to another revision. Going back to where one was forgets what was left."""
    old_revision, trail = body["current"], list(body["trail"])
    if new_revision == old_revision:
        return {**body, "wanted": new_revision}
    if new_revision in trail:
        trail = trail[: trail.index(new_revision)]
    elif old_revision:
        trail = [*trail, old_revision][-MAX_REVISIONS:]
    traffic_fields = {
        "current": new_revision,
        "wanted": new_revision,
        "before": old_revision,
        "switched": now,
        "trail": trail,
        "woken": now,
    }
    return _drop_trouble({**body, **traffic_fields}, new_revision)


def record_trouble(body: RecordFields, number: int, reason: str, now: float) -> RecordFields:
    """A replica of a revision failed, or could not be asked for. One that never worked is given up in the end."""
    old_trouble = body["trouble"].get(str(number), {"fails": 0})
    new_trouble = {"fails": old_trouble["fails"] + 1, "at": now, "why": reason[-MAX_NOTE_CHARS:]}
    body = {**body, "trouble": {**body["trouble"], str(number): new_trouble}}
    if number == body["wanted"] != body["current"] and body["current"] and new_trouble["fails"] >= MAX_FAILED_REPLICAS:
        note = f"revision {number} never became ready, and {body['current']} goes on"
        return {**body, "wanted": body["current"], "note": note}
    return body


def clear_trouble(body: RecordFields, number: int) -> RecordFields:
    """A replica of a revision works: what was wrong with others before is over."""
    return _drop_trouble(body, number)


def next_try_at(trouble: Mapping[str, Any] | None) -> float:
    """When the next replica of a revision is tried: at once, and later each time it fails."""
    if not trouble:
        return 0.0
    failure_count = int(trouble["fails"])
    return float(trouble["at"]) + (min(MAX_RETRY_PAUSE_S, 2.0 ** (failure_count - 1)) if failure_count > 1 else 0.0)


def _drop_trouble(body: RecordFields, number: int) -> RecordFields:
    if str(number) not in body["trouble"]:
        return body
    return {**body, "trouble": {name: trouble for name, trouble in body["trouble"].items() if name != str(number)}}


def _rollout_revisions(body: RecordFields) -> list[int]:
    return list((body["rollout"] or {}).get("arms", {}).values())
