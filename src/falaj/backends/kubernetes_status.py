"""What became of an attempt, read from its service, Jobs and pods: pure functions of what the cluster said."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.backends.kubernetes_nodes import instant
from falaj.backends.kubernetes_objects import CONTAINER, SLOT, SLOTS, STOP
from falaj.core.execute import FAILED, LOST, RUNNING, SUCCEEDED, WAITING, SlotExit, Status

Json = Mapping[str, Any]
ENDED = "falaj.dev/ended"
"""Annotation of the service: how slots ended whose pods we deleted."""
CANNOT_START = 125
_PULL_S, _GONE_S = 600.0, 60.0
_PULLING = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
_NEVER = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_OWN_FAULT = ("exceeds the limit", "DeadlineExceeded")


class Seen(NamedTuple):
    """One slot. An exit has a code; `lost` says that nobody knows how it ended."""

    phase: str
    code: int = 0
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    pod: str = ""
    live: bool = False
    """Whether the pod may still do something, and nobody has deleted it."""

    @property
    def bad(self) -> bool:
        """Whether its gang has to end."""
        return self.phase == LOST or bool(self.code)


def look(service: Json, jobs: Iterable[Json], pods: Iterable[Json], now: float) -> list[Seen]:
    """Every slot of an attempt."""
    by_slot: dict[int, Json] = {}
    for one in sorted(pods, key=lambda one: str(one["metadata"].get("creationTimestamp"))):
        by_slot[slot_of(one)] = one
    ours = {slot_of(job): job for job in jobs}
    recorded = {int(row[0]): row for row in note(service, ENDED).get("exits", ())}
    found = []
    for index in range(int((service["metadata"].get("annotations") or {}).get(SLOTS, "1"))):
        pod: Json | None = by_slot.get(index)
        row = recorded.get(index)
        if pod is not None and (row is None or not _vanished(pod, now)):
            found.append(_of_pod(pod, now))
        elif row is not None:
            found.append(Seen(str(row[1]), int(row[2]), str(row[3]), ended=float(row[4])))
        else:
            found.append(_of_job(ours.get(index, ours.get(-1)), bool(note(service, STOP))))
    return found


def status(handle: str, slots: Sequence[Seen]) -> Status:
    """What the whole is: over when every slot is."""
    over = (SUCCEEDED, FAILED, LOST)
    exits = tuple(
        SlotExit(at, one.code, one.reason) for at, one in enumerate(slots) if one.phase in (SUCCEEDED, FAILED)
    )
    started = min((one.started for one in slots if one.started), default=0.0)
    worst = next((one for one in slots if one.phase == LOST), None) or next((one for one in slots if one.bad), None)
    if all(one.phase in over for one in slots):
        phase = worst.phase if worst else SUCCEEDED
        reason = worst.reason if worst else ""
        return Status(handle, phase, exits, started, max((one.ended for one in slots), default=0.0), reason)
    if any(one.phase != WAITING for one in slots):
        return Status(handle, RUNNING, exits, started, reason=worst.reason if worst else "")
    return Status(handle, WAITING, reason=next((one.reason for one in slots if one.reason), ""))


def note(one: Json, key: str) -> dict[str, Any]:
    """What an annotation of ours says; nothing when it is not there."""
    try:
        found = json.loads((one["metadata"].get("annotations") or {}).get(key) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def slot_of(one: Json) -> int:
    """By our label, or by the index that an Indexed Job gives its pods (a TrainJob's)."""
    labels, notes = one["metadata"].get("labels") or {}, one["metadata"].get("annotations") or {}
    key = "batch.kubernetes.io/job-completion-index"
    text = labels.get(SLOT) or labels.get(key) or notes.get(key) or "-1"
    return int(text) if text.isdigit() else -1


def _vanished(pod: Json, now: float) -> bool:
    """Whether it should have been gone for a while: the node that would say so does not."""
    due = instant(pod["metadata"].get("deletionTimestamp"))
    return bool(due) and now > due + _GONE_S and pod["status"].get("phase") not in ("Succeeded", "Failed")


def _of_pod(pod: Json, now: float) -> Seen:
    seen = _state(pod, now)
    alive = pod["status"].get("phase") not in ("Succeeded", "Failed") and seen.phase != LOST
    return seen._replace(pod=pod["metadata"]["name"], live=alive and not pod["metadata"].get("deletionTimestamp"))


def _state(pod: Json, now: float) -> Seen:
    state = pod["status"]
    # Clusters put containers of their own beside ours.
    every = state.get("containerStatuses") or [{}]
    container = next((one for one in every if one.get("name") in CONTAINER.values()), every[0]).get("state") or {}
    started = instant((container.get("running") or container.get("terminated") or {}).get("startedAt"))
    disrupted = _condition(pod, "DisruptionTarget")
    message = " ".join(filter(None, (state.get("reason"), state.get("message")))) or disrupted
    if end := container.get("terminated"):
        return _ended(end, started, "" if disrupted else message, disrupted or _evicted(state))
    evicting = "Taint" in disrupted and pod["metadata"].get("deletionTimestamp")
    if evicting or state.get("phase") == "Unknown" or state.get("reason") == "NodeLost" or _vanished(pod, now):
        return Seen(LOST, reason=message or "its node is lost", ended=now)
    if state.get("phase") in ("Failed", "Succeeded"):
        # It ended without ever having run, or with nobody to say how.
        lost = _evicted(state) or disrupted or not message
        return Seen(LOST if lost else FAILED, 0 if lost else CANNOT_START, message or "its pod ended", ended=now)
    return Seen(RUNNING, started=started) if container.get("running") else _waiting(pod, container, now)


def _ended(end: Json, started: float, message: str, lost: str) -> Seen:
    """How the container ended; the launcher's last words say more than the cluster does."""
    code, ended = int(end.get("exitCode", 0)), instant(end.get("finishedAt"))
    if end.get("signal") and code < 128:
        code = 128 + int(end["signal"])
    try:
        said = str(json.loads(end.get("message") or "{}").get("reason", ""))
    except (ValueError, AttributeError):
        said = ""
    if end.get("reason") == "OOMKilled":
        return Seen(FAILED, 137, "ran out of memory", started, ended)
    if lost and code:
        return Seen(LOST, code, lost, started, ended)
    return Seen(FAILED if code else SUCCEEDED, code, (said or message) if code else "", started, ended)


def _evicted(state: Json) -> str:
    """Why its node sent it away, where that was no fault of its own."""
    message = str(state.get("message", ""))
    away = state.get("reason") in ("Evicted", "Preempting", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity")
    return f"{state['reason']}: {message}" if away and not any(word in message for word in _OWN_FAULT) else ""


def _waiting(pod: Json, container: Json, now: float) -> Seen:
    said = container.get("waiting") or {}
    why = str(said.get("reason", ""))
    message = f"{why}: {said.get('message', '')}".strip(": ")
    age = now - (instant(pod["metadata"].get("creationTimestamp")) or now)
    if why in _NEVER or (why in _PULLING and age > _PULL_S):
        return Seen(FAILED, CANNOT_START, message, ended=now)
    if not message and (unplaced := _condition(pod, "PodScheduled", "False")):
        message = unplaced
    return Seen(WAITING, reason=message)


def _of_job(job: Json | None, stopped: bool) -> Seen:
    """A slot without a pod: not begun, or over and swept away."""
    if job is None:
        return Seen(WAITING)
    ended = instant(job["status"].get("completionTime"))
    if _condition(job, "Complete") or job["status"].get("succeeded"):
        return Seen(SUCCEEDED, ended=ended)
    if failure := _condition(job, "Failed"):
        if stopped:
            return Seen(FAILED, 143, "stopped", ended=ended)
        return Seen(LOST, reason=f"its pod is gone: {failure}", ended=ended)
    return Seen(WAITING, reason="suspended" if job["spec"].get("suspend") else "")


def _condition(one: Json, kind: str, value: str = "True") -> str:
    for condition in one["status"].get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == value:
            said = (condition.get("reason"), condition.get("message"))
            return ": ".join(str(word) for word in said if word) or kind
    return ""
