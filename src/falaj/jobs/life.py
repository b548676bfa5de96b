"""The life of a job as changes of its record's body: pure functions, so that every path through it can be tried.

waiting -> starting -> running -> (stopping) -> succeeded | failed | cancelled, and back to waiting from anywhere but
the end. `held` is waiting for something that is not capacity: another job.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from falaj.core.execute import LOST, TRY_AGAIN, YIELDED, Status
from falaj.core.execute import SUCCEEDED as ENDED_WELL
from falaj.jobs.records import (
    CANCELLED,
    FAILED,
    HELD,
    OVER,
    RUNNING,
    STARTING,
    STOPPING,
    SUCCEEDED,
    WAITING,
    Body,
    JobSpec,
)
from falaj.schedule.model import Spot

KEPT_ATTEMPTS = 20
GRACE_S = 30  # beyond what saving takes
MOST_LOSSES = 50
"""A job that is lost so often in a row without getting further is not unlucky."""
LONGEST_BACKOFF_S = 300
BRIEF_S = 60
"""Who gives a place up sooner than this, and got no further, may do so for ever: it waits longer each time."""
CANCEL, EVICT, RESIZE, LIMIT, ORPHAN = "cancelled", "evicted", "resized", "time limit", "superseded"
SUSPEND, HOLD, REQUEUE = "suspended", "held", "requeued"
SAVING = frozenset({EVICT, RESIZE, SUSPEND, HOLD, REQUEUE})
"""Reasons for which an attempt is asked to save before it is stopped: its job goes on later."""
_ALONG = ("stopped", "ended with its gang")
"""What slots say whose gang was ended: it is another that says why."""
_ENDS = {CANCEL: CANCELLED, LIMIT: FAILED}


def terms_of(body: Body) -> dict[str, str]:
    """What lists can ask for. Folders of attempts are named by the end of the job's id."""
    live = {} if body["state"] in OVER else {"live": "1"}
    job_id, person = body["id"], body["who"]["id"]
    return {"state": body["state"], "queue": body["queue"], "id": job_id, "id_end": job_id[-12:], "by": person, **live}


def admitted(body: Body, spots: Sequence[Spot], attempt: str, band: int, now: float) -> Body:
    """It has places: an attempt begins. Who writes this down has the right to launch it, once."""
    number = body["number"] + 1
    place = {
        "id": f"{attempt}-{number}", "number": number, "cluster": spots[0].node.partition("/")[0], "handle": "",
        "spots": [[spot.node, spot.role, list(spot.devices), spot.milli] for spot in spots], "band": band,
        "admitted": now, "started": 0.0, "stop": None, "cursor": "",
    }  # fmt: skip
    return {**body, "state": STARTING, "number": number, "attempt": place, "note": "", "saved": 0}


def launched(body: Body, handle: str, now: float) -> Body:
    """Its cluster has it."""
    attempt = {**body["attempt"], "handle": handle, "started": body["attempt"]["started"] or now}
    state = STOPPING if attempt["stop"] else RUNNING
    return {**body, "state": state, "attempt": attempt, "refusals": 0, "avoid": ""}


def stopping(
    body: Body, why: str, now: float, *, grace_s: int, wanted_by: str = "", spots: Sequence[Spot] = ()
) -> Body:
    """It is asked to end; a cancellation outdoes every other reason, and of several resizes the last one counts."""
    old = body["attempt"]["stop"]
    anew = old is not None and old["why"] == why == RESIZE
    if old is not None and not anew and (old["why"] == CANCEL or why != CANCEL):
        return body
    stop = {
        "why": why, "since": old["since"] if anew else now, "grace_s": grace_s, "for": wanted_by,
        "spots": [[spot.node, spot.role, list(spot.devices), spot.milli] for spot in spots],
    }  # fmt: skip
    return {**body, "state": STOPPING, "attempt": {**body["attempt"], "stop": stop}}


def saving_grace_s(body: Body, spec: JobSpec) -> int:
    """Seconds that an attempt has to end in whose job goes on later: as when it makes room for another job."""
    saves = spec.resumes or body["saved"]
    return int(body["save_s"] or spec.save_s) + GRACE_S if saves else max(1, spec.grace_s)


def stop_for_standing(body: Body, *, removed: bool) -> str:
    """What is due for a live job whose submitter lost the standing: CANCEL, SUSPEND, or nothing (any more)."""
    stop = ((body["attempt"] or {}).get("stop") or {}).get("why", "")
    if removed:
        return "" if stop == CANCEL else CANCEL
    return SUSPEND if body["attempt"] and not stop else ""


def explained(body: Body, cause: str, lost: int) -> Body:
    """An eviction says why, and how many device-seconds of work go with it."""
    stop = body["attempt"]["stop"]
    if stop["why"] != EVICT:
        return body
    return {**body, "attempt": {**body["attempt"], "stop": {**stop, "cause": cause, "lost": lost}}}


def refused(body: Body, reason: str, now: float) -> Body:
    """Its cluster did not take it: back in line, alone, and later each time."""
    refusals = body["refusals"] + 1
    wait = min(LONGEST_BACKOFF_S, 2**refusals)
    cluster = body["attempt"]["cluster"]
    body = _ended(body, "refused", reason, 0, now)
    if body["attempt_stop"] in _ENDS:
        return _finish(body, _ENDS[body["attempt_stop"]], body["attempt_stop"], now)
    if body["attempt_stop"] in (
        SUSPEND,
        HOLD,
        REQUEUE,
    ):  # the cluster did nothing wrong: no other one is tried first, and no wait
        return _waiting(body, f"{body['attempt_stop']}, and queued again", 0)
    return _waiting(body, f"refused: {reason}", now + wait) | {"refusals": refusals, "avoid": cluster}


def refused_person(body: Body, reason: str, now: float) -> Body:
    """Its cluster runs nothing of its submitter: that cluster is no candidate any more, and others are tried now."""
    cluster = body["attempt"]["cluster"]
    body = _ended(body, "refused", reason, 0, now)
    body = {**body, "refused_by": sorted({*body.get("refused_by", ()), cluster})}
    return _waiting(body, f"{cluster} refuses its submitter: {reason}; queued for other clusters", 0)


def ended(body: Body, status: Status, now: float) -> Body:
    """The attempt is over; the job may be, or is queued again."""
    bad = sorted((one for one in status.exits if one.code), key=lambda one: one.reason.startswith(_ALONG))
    code = bad[0].code if bad else 0
    brief = now - body["attempt"]["started"] < BRIEF_S
    why = next((one.reason for one in bad if one.reason), "") or status.reason
    if status.phase == LOST:
        why = status.reason or why
    stop = (body["attempt"]["stop"] or {}).get("why", "")
    if status.phase == ENDED_WELL and stop not in _ENDS:
        return _finish(_ended(body, "succeeded", "", 0, now), SUCCEEDED, "", now)
    outcome = stop or ("lost" if status.phase == LOST else "failed")
    body = _ended(body, outcome, why, code, now)
    if stop in _ENDS:
        return _finish(body, _ENDS[stop], stop, now)
    if stop:
        return _waiting(body, _eviction_note(body["attempts"][-1]) or f"{stop}, and queued again", 0) | {
            "evictions": body["evictions"] + (stop == EVICT)
        }
    if code == YIELDED and not brief:
        return _waiting(body, "it gave its place up, and is queued again", 0) | {"losses": 0}
    if LIMIT in why:
        return _finish(body, FAILED, why, now)
    if status.phase == LOST or code in (TRY_AGAIN, YIELDED):
        said = "gave its place up" if code == YIELDED else "lost" if status.phase == LOST else "asked to be tried again"
        return _lost(body, said, why or f"exit code {code}", now)
    return _failed(body, code, why, now)


def cancelled(body: Body, why: str, now: float) -> Body:
    """It ends before it ever ran again."""
    return _finish(body, CANCELLED, why, now)


def hold_job(body: Body, person: str, reason: str, now: float, grace_s: int) -> Body:
    """Held by a person: it does not start before it is released; a running attempt saves and stops."""
    hold = {"by": person, "reason": reason[:400], "at": now}
    body = {**body, "hold": hold}
    if body["attempt"] is not None:
        return stopping(body, HOLD, now, grace_s=grace_s)
    return {**body, "state": HELD, "note": hold_note(hold)}


def release_job(body: Body) -> Body:
    """No longer held by a person; it may still wait for other jobs."""
    body = {**body, "hold": None}
    if body["attempt"] is not None:
        return body
    return {**body, "state": HELD if body["after"] else WAITING, "note": ""}


def hold_note(hold: Mapping[str, Any]) -> str:
    """Who holds a job, and why."""
    return f"held by {hold['by']}" + (f": {hold['reason']}" if hold["reason"] else "")


def failed(body: Body, why: str, now: float) -> Body:
    """It cannot go on, whatever is tried."""
    body = _ended(body, "failed", why, 0, now) if body["attempt"] else body
    return _finish(body, FAILED, why, now)


def again(body: Body) -> Body:
    """A job that is over is asked for once more."""
    return {
        **body, "state": HELD if body["after"] else WAITING, "failures": 0, "losses": 0, "refusals": 0,
        "not_before": 0, "note": "", "ended": 0.0, "hold": None, "refused_by": [],
    }  # fmt: skip


def absorbed(body: Body, facts: Iterable[Mapping[str, Any]]) -> Body:
    """Progress and checkpoints that its processes told."""
    body = dict(body)
    for fact in facts:
        kind, at = fact.get("kind"), _number(fact.get("at"))
        step = int(_number(fact.get("step")))
        # The first that an attempt tells may be less than the last one told: it begins where it saved, or anew.
        if kind == "progress" and (step >= body["step"] or not body["step_at"]):
            if body["step_at"] and step > body["step"]:
                body["step_us"] = max(1, int((at - body["step_at"]) * 1e6 / (step - body["step"])))
            furthest = int(body.get("furthest", body["step"]) or 0)
            body |= {"furthest": max(step, furthest), "losses": 0 if step > furthest else body["losses"]}
            body |= {"step": step, "step_at": at}
            body["steps"] = int(_number(fact.get("steps"))) or body["steps"]
        elif kind == "checkpoint":
            body["saved"] = max(at, body["saved"])
            body["save_s"] = max(1, round(_number(fact.get("save_s")))) if fact.get("save_s") else body["save_s"]
    return body


def newest(facts: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The last progress and the last checkpoint among facts."""
    found = {str(fact.get("kind")): fact for fact in facts if fact.get("kind") in ("progress", "checkpoint")}
    return tuple(found.values())


def spots_of(rows: Iterable[Sequence[Any]]) -> tuple[Spot, ...]:
    """Places as the scheduler has them."""
    return tuple(Spot(node, role, tuple(devices), milli) for node, role, devices, milli in rows)


def _ended(body: Body, outcome: str, why: str, code: int, now: float) -> Body:
    attempt, stop = body["attempt"], body["attempt"]["stop"] or {}
    ran = max(0.0, now - attempt["started"]) if attempt["started"] else 0.0
    tried = {
        "number": attempt["number"], "id": attempt["id"], "cluster": attempt["cluster"], "handle": attempt["handle"],
        "nodes": sorted({row[0] for row in attempt["spots"]}), "code": code,
        "width": len(attempt["spots"]), "started": attempt["started"], "ended": now,
        "admitted": attempt["admitted"],
        "outcome": f"{outcome}: {why}"[:500] if why else outcome, "slots": len(attempt["spots"]),
        "for": stop.get("for", "") if outcome == stop.get("why") else "",
        **(_loss(attempt) if outcome == EVICT and "cause" in stop else {}),
    }  # fmt: skip
    use = {**body["use"], "nodes": {}, "charge": {}}
    return {
        **body, "attempt": None, "attempts": [*body["attempts"], tried][-KEPT_ATTEMPTS:], "use": use,
        "ran_s": body["ran_s"] + round(ran), "served": body["served"] + round(ran * body["use"].get("size", 0)),
        "attempt_stop": stop.get("why", ""), "step_at": 0.0,
    }  # fmt: skip


def _waiting(body: Body, note: str, not_before: float) -> Body:
    hold = body.get("hold")
    state, note = (HELD, hold_note(hold)) if hold else (WAITING, note)
    return {**body, "state": state, "note": note[:500], "not_before": round(not_before)}


def _finish(body: Body, state: str, note: str, now: float) -> Body:
    return {**body, "state": state, "note": note[:500], "ended": now}


def _loss(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Why an attempt was evicted, and the device-seconds that went with it."""
    stop = attempt["stop"]
    return {"cause": stop["cause"], "lost": stop["lost"], "gpus": any(devices for _, _, devices, _ in attempt["spots"])}


def _eviction_note(attempt: Mapping[str, Any]) -> str:
    if "cause" not in attempt:
        return ""
    return f"evicted: {attempt['cause']}; {work_lost(attempt)}; queued again"


def work_lost(attempt: Mapping[str, Any]) -> str:
    """How much work went with an evicted attempt."""
    unit, lost = "GPU" if attempt["gpus"] else "core", attempt["lost"]
    if not lost:
        return "no work is lost"
    return f"{lost / 3600:.3g} {unit}-hours of work are lost" if lost >= 3600 else f"{lost} {unit}-seconds are lost"


def _lost(body: Body, said: str, why: str, now: float) -> Body:
    losses = body["losses"] + 1
    if losses > MOST_LOSSES:
        return _finish(body, FAILED, f"{said} {losses} times without getting further: {why}", now)
    wait = 0 if losses == 1 else min(LONGEST_BACKOFF_S, 2**losses)
    return _waiting(body, f"{said}, and queued again: {why}", now + wait) | {"losses": losses}


def _failed(body: Body, code: int, why: str, now: float) -> Body:
    failures, spec = body["failures"] + 1, body["spec"]
    said = f"exit code {code}" + (f": {why}" if why else "")
    body = {**body, "failures": failures}
    if failures > spec["retries"] or (spec["retry_on"] and code not in spec["retry_on"]):
        return _finish(body, FAILED, said, now)
    return _waiting(body, f"failed ({said}), and tried again", now + min(LONGEST_BACKOFF_S, 2 ** (failures - 1)))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and value == value and abs(value) < 1e18 else 0.0
