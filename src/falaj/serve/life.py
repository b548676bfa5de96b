"""The life of an endpoint as changes of its record's body: pure functions, so that every path through it can be tried.

`current` has the traffic, `wanted` shall have it once it is ready, `before` had it last and is kept for a while.
`trail` are the revisions one goes back to, the nearest last.
"""

from collections.abc import Mapping
from typing import Any

Body = dict[str, Any]
MOST_REVISIONS = 100
"""So many revisions are remembered; those that nothing refers to go first."""
GIVE_UP = 3
"""A revision that never was ready is given up after so many replicas of it failed."""
LONGEST_REST_S = 300.0
LONGEST_NOTE = 600


def next_number(body: Body) -> int:
    """The number of the next revision."""
    return 1 + max((int(one["number"]) for one in body["revisions"]), default=0)


def revised(body: Body, revision: Body) -> Body:
    """With one revision more."""
    known = [*body["revisions"], revision]
    held = {body["current"], body["wanted"], body["before"], *body["trail"], *_arms(body)}
    spare = [one for one in known[:-1] if one["number"] not in held]
    gone = {one["number"] for one in spare[: max(0, len(known) - MOST_REVISIONS)]}
    return {**body, "revisions": [one for one in known if one["number"] not in gone]}


def heading(body: Body, number: int) -> Body:
    """A revision shall get the traffic as soon as it is ready."""
    return _calm({**body, "wanted": number, "stopped": False, "note": ""}, number)


def switched(body: Body, to: int, now: float) -> Body:
    """The traffic goes to another revision. Going back to where one was forgets what was left."""
    left, trail = body["current"], list(body["trail"])
    if to == left:
        return {**body, "wanted": to}
    if to in trail:
        trail = trail[: trail.index(to)]
    elif left:
        trail = [*trail, left][-MOST_REVISIONS:]
    moved = {"current": to, "wanted": to, "before": left, "switched": now, "trail": trail, "woken": now}
    return _calm({**body, **moved}, to)


def troubled(body: Body, number: int, why: str, now: float) -> Body:
    """A replica of a revision failed, or could not be asked for. One that never worked is given up in the end."""
    old = body["trouble"].get(str(number), {"fails": 0})
    told = {"fails": old["fails"] + 1, "at": now, "why": why[-LONGEST_NOTE:]}
    body = {**body, "trouble": {**body["trouble"], str(number): told}}
    if number == body["wanted"] != body["current"] and body["current"] and told["fails"] >= GIVE_UP:
        note = f"revision {number} never became ready, and {body['current']} goes on"
        return {**body, "wanted": body["current"], "note": note}
    return body


def calmed(body: Body, number: int) -> Body:
    """A replica of a revision works: what was wrong with others before is over."""
    return _calm(body, number)


def rests_until(trouble: Mapping[str, Any] | None) -> float:
    """When the next replica of a revision is tried: at once, and later each time it fails."""
    if not trouble:
        return 0.0
    fails = int(trouble["fails"])
    return float(trouble["at"]) + (min(LONGEST_REST_S, 2.0 ** (fails - 1)) if fails > 1 else 0.0)


def _calm(body: Body, number: int) -> Body:
    if str(number) not in body["trouble"]:
        return body
    return {**body, "trouble": {name: one for name, one in body["trouble"].items() if name != str(number)}}


def _arms(body: Body) -> list[int]:
    return list((body["rollout"] or {}).get("arms", {}).values())
