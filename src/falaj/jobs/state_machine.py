"""The life of a job as changes of its record's body: pure functions, so that every path through it can be tried.

waiting -> starting -> running -> (stopping) -> succeeded | failed | cancelled, and back to waiting from anywhere but
the end. `held` is waiting for something that is not capacity: another job.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from falaj.core.executor import EXIT_TRY_AGAIN, EXIT_YIELDED, LOST, AttemptStatus
from falaj.core.executor import SUCCEEDED as ENDED_WELL
from falaj.jobs.records import (
    CANCELLED,
    ENDED_STATES,
    FAILED,
    ON_HOLD,
    RUNNING,
    STARTING,
    STOPPING,
    SUCCEEDED,
    WAITING,
    JobBody,
    JobSpec,
)
from falaj.schedule.model import SlotPlacement

MAX_ATTEMPTS_KEPT = 20
GRACE_S = 30  # beyond what saving takes
MAX_LOSSES = 50
"""A job that is lost so often in a row without getting further is not unlucky."""
LONGEST_BACKOFF_S = 300
MIN_USEFUL_RUN_S = 60
"""Who gives a place up sooner than this, and got no further, may do so for ever: it waits longer each time."""
CANCEL, EVICT, RESIZE, LIMIT, ORPHAN = "cancelled", "evicted", "resized", "time limit", "superseded"
SUSPEND, HOLD, REQUEUE = "suspended", "held", "requeued"
SAVING = frozenset({EVICT, RESIZE, SUSPEND, HOLD, REQUEUE})
"""Reasons for which an attempt is asked to save before it is stopped: its job goes on later."""
_GANG_STOP_REASONS = ("stopped", "ended with its gang")
"""What slots say whose gang was ended: it is another that says why."""
_END_STATES = {CANCEL: CANCELLED, LIMIT: FAILED}


def build_index_terms(body: JobBody) -> dict[str, str]:
    """What lists can ask for. Folders of attempts are named by the end of the job's id."""
    live = {} if body["state"] in ENDED_STATES else {"live": "1"}
    job_id, person = body["id"], body["who"]["id"]
    return {"state": body["state"], "queue": body["queue"], "id": job_id, "id_end": job_id[-12:], "by": person, **live}


def admit_attempt(body: JobBody, spots: Sequence[SlotPlacement], attempt: str, band: int, now: float) -> JobBody:
    """It has places: an attempt begins. Who writes this down has the right to launch it, once."""
    number = body["number"] + 1
    attempt_body = {
        "id": f"{attempt}-{number}", "number": number, "cluster": spots[0].node.partition("/")[0], "handle": "",
        "spots": [[spot.node, spot.role, list(spot.devices), spot.milli] for spot in spots], "band": band,
        "admitted": now, "started": 0.0, "stop": None, "cursor": "",
    }  # fmt: skip
    return {**body, "state": STARTING, "number": number, "attempt": attempt_body, "note": "", "saved": 0}


def mark_launched(body: JobBody, handle: str, now: float) -> JobBody:
    """Its cluster has it."""
    attempt = {**body["attempt"], "handle": handle, "started": body["attempt"]["started"] or now}
    state = STOPPING if attempt["stop"] else RUNNING
    return {**body, "state": state, "attempt": attempt, "refusals": 0, "avoid": ""}


def mark_stopping(
    body: JobBody, reason: str, now: float, *, grace_s: int, wanted_by: str = "", spots: Sequence[SlotPlacement] = ()
) -> JobBody:
    """It is asked to end; a cancellation outdoes every other reason, and of several resizes the last one counts."""
    previous = body["attempt"]["stop"]
    is_resized_again = previous is not None and previous["why"] == reason == RESIZE
    if previous is not None and not is_resized_again and (previous["why"] == CANCEL or reason != CANCEL):
        return body
    stop = {
        "why": reason, "since": previous["since"] if is_resized_again else now, "grace_s": grace_s, "for": wanted_by,
        "spots": [[spot.node, spot.role, list(spot.devices), spot.milli] for spot in spots],
    }  # fmt: skip
    return {**body, "state": STOPPING, "attempt": {**body["attempt"], "stop": stop}}


def compute_saving_grace_s(body: JobBody, spec: JobSpec) -> int:
    """Seconds that an attempt has to end in whose job goes on later: as when it makes room for another job."""
    saves = spec.resumes or body["saved"]
    return int(body["save_s"] or spec.save_s) + GRACE_S if saves else max(1, spec.grace_s)


def choose_standing_stop(body: JobBody, *, removed: bool) -> str:
    """What is due for a live job whose submitter lost the standing: CANCEL, SUSPEND, or nothing (any more)."""
    stop_reason = ((body["attempt"] or {}).get("stop") or {}).get("why", "")
    if removed:
        return "" if stop_reason == CANCEL else CANCEL
    return SUSPEND if body["attempt"] and not stop_reason else ""


def explain_eviction(body: JobBody, cause: str, lost: int) -> JobBody:
    """An eviction says why, and how many device-seconds of work go with it."""
    stop = body["attempt"]["stop"]
    if stop["why"] != EVICT:
        return body
    return {**body, "attempt": {**body["attempt"], "stop": {**stop, "cause": cause, "lost": lost}}}


def mark_refused(body: JobBody, reason: str, now: float) -> JobBody:
    """Its cluster did not take it: back in line, alone, and later each time."""
    refusals = body["refusals"] + 1
    wait_s = min(LONGEST_BACKOFF_S, 2**refusals)
    cluster = body["attempt"]["cluster"]
    body = _close_attempt(body, "refused", reason, 0, now)
    if body["attempt_stop"] in _END_STATES:
        return _finish_job(body, _END_STATES[body["attempt_stop"]], body["attempt_stop"], now)
    if body["attempt_stop"] in (
        SUSPEND,
        HOLD,
        REQUEUE,
    ):  # the cluster did nothing wrong: no other one is tried first, and no wait
        return _queue_again(body, f"{body['attempt_stop']}, and queued again", 0)
    return _queue_again(body, f"refused: {reason}", now + wait_s) | {"refusals": refusals, "avoid": cluster}


def refused_person(body: JobBody, reason: str, now: float) -> JobBody:
    """Its cluster runs nothing of its submitter: that cluster is no candidate any more, and others are tried now."""
    cluster = body["attempt"]["cluster"]
    body = _close_attempt(body, "refused", reason, 0, now)
    body = {**body, "refused_by": sorted({*body.get("refused_by", ()), cluster})}
    return _queue_again(body, f"{cluster} refuses its submitter: {reason}; queued for other clusters", 0)


def end_attempt(body: JobBody, status: AttemptStatus, now: float) -> JobBody:
    """The attempt is over; the job may be, or is queued again."""
    failed_exits = sorted(
        (slot_exit for slot_exit in status.exits if slot_exit.code),
        key=lambda slot_exit: slot_exit.reason.startswith(_GANG_STOP_REASONS),
    )
    code = failed_exits[0].code if failed_exits else 0
    is_brief = now - body["attempt"]["started"] < MIN_USEFUL_RUN_S
    reason = next((slot_exit.reason for slot_exit in failed_exits if slot_exit.reason), "") or status.reason
    if status.phase == LOST:
        reason = status.reason or reason
    stop_reason = (body["attempt"]["stop"] or {}).get("why", "")
    if status.phase == ENDED_WELL and stop_reason not in _END_STATES:
        return _finish_job(_close_attempt(body, "succeeded", "", 0, now), SUCCEEDED, "", now)
    outcome = stop_reason or ("lost" if status.phase == LOST else "failed")
    body = _close_attempt(body, outcome, reason, code, now)
    if stop_reason in _END_STATES:
        return _finish_job(body, _END_STATES[stop_reason], stop_reason, now)
    if stop_reason:
        return _queue_again(
            body, _format_eviction_note(body["attempts"][-1]) or f"{stop_reason}, and queued again", 0
        ) | {"evictions": body["evictions"] + (stop_reason == EVICT)}
    if code == EXIT_YIELDED and not is_brief:
        return _queue_again(body, "it gave its place up, and is queued again", 0) | {"losses": 0}
    if LIMIT in reason:
        return _finish_job(body, FAILED, reason, now)
    if status.phase == LOST or code in (EXIT_TRY_AGAIN, EXIT_YIELDED):
        outcome_text = (
            "gave its place up"
            if code == EXIT_YIELDED
            else "lost"
            if status.phase == LOST
            else "asked to be tried again"
        )
        return _requeue_lost(body, outcome_text, reason or f"exit code {code}", now)
    return _retry_or_fail(body, code, reason, now)


def cancel_job(body: JobBody, reason: str, now: float) -> JobBody:
    """It ends before it ever ran again."""
    return _finish_job(body, CANCELLED, reason, now)


def hold_job(body: JobBody, person: str, reason: str, now: float, grace_s: int) -> JobBody:
    """Held by a person: it does not start before it is released; a running attempt saves and stops."""
    hold = {"by": person, "reason": reason[:400], "at": now}
    body = {**body, "hold": hold}
    if body["attempt"] is not None:
        return mark_stopping(body, HOLD, now, grace_s=grace_s)
    return {**body, "state": ON_HOLD, "note": format_hold_note(hold)}


def release_job(body: JobBody) -> JobBody:
    """No longer held by a person; it may still wait for other jobs."""
    body = {**body, "hold": None}
    if body["attempt"] is not None:
        return body
    return {**body, "state": ON_HOLD if body["after"] else WAITING, "note": ""}


def format_hold_note(hold: Mapping[str, Any]) -> str:
    """Who holds a job, and why."""
    return f"held by {hold['by']}" + (f": {hold['reason']}" if hold["reason"] else "")


def fail_job(body: JobBody, reason: str, now: float) -> JobBody:
    """It cannot go on, whatever is tried."""
    body = _close_attempt(body, "failed", reason, 0, now) if body["attempt"] else body
    return _finish_job(body, FAILED, reason, now)


def retry_job(body: JobBody) -> JobBody:
    """A job that is over is asked for once more."""
    return {
        **body, "state": ON_HOLD if body["after"] else WAITING, "failures": 0, "losses": 0, "refusals": 0,
        "not_before": 0, "note": "", "ended": 0.0, "hold": None, "refused_by": [],
    }  # fmt: skip


def absorb_facts(body: JobBody, facts: Iterable[Mapping[str, Any]]) -> JobBody:
    """Progress and checkpoints that its processes told."""
    body = dict(body)
    for fact in facts:
        kind, at = fact.get("kind"), _to_number(fact.get("at"))
        step = int(_to_number(fact.get("step")))
        # The first that an attempt tells may be less than the last one told: it begins where it saved, or anew.
        if kind == "progress" and (step >= body["step"] or not body["step_at"]):
            if body["step_at"] and step > body["step"]:
                body["step_us"] = max(1, int((at - body["step_at"]) * 1e6 / (step - body["step"])))
            furthest = int(body.get("furthest", body["step"]) or 0)
            body |= {"furthest": max(step, furthest), "losses": 0 if step > furthest else body["losses"]}
            body |= {"step": step, "step_at": at}
            body["steps"] = int(_to_number(fact.get("steps"))) or body["steps"]
        elif kind == "checkpoint":
            body["saved"] = max(at, body["saved"])
            body["save_s"] = max(1, round(_to_number(fact.get("save_s")))) if fact.get("save_s") else body["save_s"]
    return body


def newest_facts(facts: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The last progress and the last checkpoint among facts."""
    fact_by_kind = {str(fact.get("kind")): fact for fact in facts if fact.get("kind") in ("progress", "checkpoint")}
    return tuple(fact_by_kind.values())


def parse_spots(rows: Iterable[Sequence[Any]]) -> tuple[SlotPlacement, ...]:
    """Places as the scheduler has them."""
    return tuple(SlotPlacement(node, role, tuple(devices), milli) for node, role, devices, milli in rows)


def _close_attempt(body: JobBody, outcome: str, reason: str, code: int, now: float) -> JobBody:
    attempt, stop = body["attempt"], body["attempt"]["stop"] or {}
    ran_s = max(0.0, now - attempt["started"]) if attempt["started"] else 0.0
    attempt_summary = {
        "number": attempt["number"], "id": attempt["id"], "cluster": attempt["cluster"], "handle": attempt["handle"],
        "nodes": sorted({row[0] for row in attempt["spots"]}), "code": code,
        "width": len(attempt["spots"]), "started": attempt["started"], "ended": now,
        "admitted": attempt["admitted"],
        "outcome": f"{outcome}: {reason}"[:500] if reason else outcome, "slots": len(attempt["spots"]),
        "for": stop.get("for", "") if outcome == stop.get("why") else "",
        **(_describe_eviction_loss(attempt) if outcome == EVICT and "cause" in stop else {}),
    }  # fmt: skip
    use = {**body["use"], "nodes": {}, "charge": {}}
    return {
        **body, "attempt": None, "attempts": [*body["attempts"], attempt_summary][-MAX_ATTEMPTS_KEPT:], "use": use,
        "ran_s": body["ran_s"] + round(ran_s), "served": body["served"] + round(ran_s * body["use"].get("size", 0)),
        "attempt_stop": stop.get("why", ""), "step_at": 0.0,
    }  # fmt: skip


def _queue_again(body: JobBody, note: str, not_before: float) -> JobBody:
    hold = body.get("hold")
    state, note = (ON_HOLD, format_hold_note(hold)) if hold else (WAITING, note)
    return {**body, "state": state, "note": note[:500], "not_before": round(not_before)}


def _finish_job(body: JobBody, state: str, note: str, now: float) -> JobBody:
    return {**body, "state": state, "note": note[:500], "ended": now}


def _describe_eviction_loss(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """Why an attempt was evicted, and the device-seconds that went with it."""
    stop = attempt["stop"]
    return {"cause": stop["cause"], "lost": stop["lost"], "gpus": any(devices for _, _, devices, _ in attempt["spots"])}


def _format_eviction_note(attempt: Mapping[str, Any]) -> str:
    if "cause" not in attempt:
        return ""
    return f"evicted: {attempt['cause']}; {describe_lost_work(attempt)}; queued again"


def describe_lost_work(attempt: Mapping[str, Any]) -> str:
    """How much work went with an evicted attempt."""
    unit, lost = "GPU" if attempt["gpus"] else "core", attempt["lost"]
    if not lost:
        return "no work is lost"
    return f"{lost / 3600:.3g} {unit}-hours of work are lost" if lost >= 3600 else f"{lost} {unit}-seconds are lost"


def _requeue_lost(body: JobBody, outcome_text: str, reason: str, now: float) -> JobBody:
    losses = body["losses"] + 1
    if losses > MAX_LOSSES:
        return _finish_job(body, FAILED, f"{outcome_text} {losses} times without getting further: {reason}", now)
    wait_s = 0 if losses == 1 else min(LONGEST_BACKOFF_S, 2**losses)
    return _queue_again(body, f"{outcome_text}, and queued again: {reason}", now + wait_s) | {"losses": losses}


def _retry_or_fail(body: JobBody, code: int, reason: str, now: float) -> JobBody:
    failures, spec = body["failures"] + 1, body["spec"]
    outcome_text = f"exit code {code}" + (f": {reason}" if reason else "")
    body = {**body, "failures": failures}
    if failures > spec["retries"] or (spec["retry_on"] and code not in spec["retry_on"]):
        return _finish_job(body, FAILED, outcome_text, now)
    return _queue_again(
        body, f"failed ({outcome_text}), and tried again", now + min(LONGEST_BACKOFF_S, 2 ** (failures - 1))
    )


def _to_number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and value == value and abs(value) < 1e18 else 0.0
