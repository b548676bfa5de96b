"""What became of an attempt, read from its service, Jobs and pods: pure functions of what the cluster said."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from falaj.backends.kubernetes_manifests import CONTAINER_BY_OBJECT, SLOT_LABEL, SLOTS_ANNOTATION, STOP_ANNOTATION
from falaj.backends.kubernetes_nodes import parse_time
from falaj.core.executor import FAILED, LOST, RUNNING, SUCCEEDED, WAITING, AttemptStatus, SlotExitStatus

JsonObject = Mapping[str, Any]
ENDED_ANNOTATION = "falaj.dev/ended"
"""Annotation of the service: how slots ended whose pods we deleted."""
EXIT_CANNOT_START = 125
_IMAGE_PULL_TIMEOUT_S, _VANISHED_AFTER_S = 600.0, 60.0
_PULLING_REASONS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
_FATAL_REASONS = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_OWN_FAULT_TEXTS = ("exceeds the limit", "DeadlineExceeded")


class SlotState(NamedTuple):
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


def read_slot_states(
    service: JsonObject, jobs: Iterable[JsonObject], pods: Iterable[JsonObject], now: float
) -> list[SlotState]:
    """Every slot of an attempt."""
    pod_by_slot: dict[int, JsonObject] = {}
    for each_pod in sorted(pods, key=lambda each_pod: str(each_pod["metadata"].get("creationTimestamp"))):
        pod_by_slot[get_slot_index(each_pod)] = each_pod
    job_by_slot = {get_slot_index(job): job for job in jobs}
    row_by_slot = {int(row[0]): row for row in read_json_annotation(service, ENDED_ANNOTATION).get("exits", ())}
    slot_states = []
    for index in range(int((service["metadata"].get("annotations") or {}).get(SLOTS_ANNOTATION, "1"))):
        pod: JsonObject | None = pod_by_slot.get(index)
        row = row_by_slot.get(index)
        if pod is not None and (row is None or not _has_vanished(pod, now)):
            slot_states.append(_read_pod_state(pod, now))
        elif row is not None:
            slot_states.append(SlotState(str(row[1]), int(row[2]), str(row[3]), ended=float(row[4])))
        else:
            slot_states.append(
                _read_job_state(
                    job_by_slot.get(index, job_by_slot.get(-1)), bool(read_json_annotation(service, STOP_ANNOTATION))
                )
            )
    return slot_states


def summarize_status(handle: str, slots: Sequence[SlotState]) -> AttemptStatus:
    """What the whole is: over when every slot is."""
    final_phases = (SUCCEEDED, FAILED, LOST)
    exits = tuple(
        SlotExitStatus(slot_index, slot_state.code, slot_state.reason)
        for slot_index, slot_state in enumerate(slots)
        if slot_state.phase in (SUCCEEDED, FAILED)
    )
    started = min((slot_state.started for slot_state in slots if slot_state.started), default=0.0)
    worst_state = next((slot_state for slot_state in slots if slot_state.phase == LOST), None) or next(
        (slot_state for slot_state in slots if slot_state.bad), None
    )
    if all(slot_state.phase in final_phases for slot_state in slots):
        phase = worst_state.phase if worst_state else SUCCEEDED
        reason = worst_state.reason if worst_state else ""
        return AttemptStatus(
            handle, phase, exits, started, max((slot_state.ended for slot_state in slots), default=0.0), reason
        )
    if any(slot_state.phase != WAITING for slot_state in slots):
        return AttemptStatus(handle, RUNNING, exits, started, reason=worst_state.reason if worst_state else "")
    return AttemptStatus(
        handle, WAITING, reason=next((slot_state.reason for slot_state in slots if slot_state.reason), "")
    )


def read_json_annotation(kube_object: JsonObject, key: str) -> dict[str, Any]:
    """What an annotation of ours says; nothing when it is not there."""
    try:
        value = json.loads((kube_object["metadata"].get("annotations") or {}).get(key) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def get_slot_index(kube_object: JsonObject) -> int:
    """By our label, or by the index that an Indexed Job gives its pods (a TrainJob's)."""
    labels, annotations = kube_object["metadata"].get("labels") or {}, kube_object["metadata"].get("annotations") or {}
    key = "batch.kubernetes.io/job-completion-index"
    text = labels.get(SLOT_LABEL) or labels.get(key) or annotations.get(key) or "-1"
    return int(text) if text.isdigit() else -1


def _has_vanished(pod: JsonObject, now: float) -> bool:
    """Whether it should have been gone for a while: the node that would say so does not."""
    deleted_at = parse_time(pod["metadata"].get("deletionTimestamp"))
    return (
        bool(deleted_at)
        and now > deleted_at + _VANISHED_AFTER_S
        and pod["status"].get("phase") not in ("Succeeded", "Failed")
    )


def _read_pod_state(pod: JsonObject, now: float) -> SlotState:
    state = _read_container_state(pod, now)
    is_alive = pod["status"].get("phase") not in ("Succeeded", "Failed") and state.phase != LOST
    return state._replace(pod=pod["metadata"]["name"], live=is_alive and not pod["metadata"].get("deletionTimestamp"))


def _read_container_state(pod: JsonObject, now: float) -> SlotState:
    pod_status = pod["status"]
    # Clusters put containers of their own beside ours.
    container_statuses = pod_status.get("containerStatuses") or [{}]
    container = (
        next(
            (
                container_status
                for container_status in container_statuses
                if container_status.get("name") in CONTAINER_BY_OBJECT.values()
            ),
            container_statuses[0],
        ).get("state")
        or {}
    )
    started_at = parse_time((container.get("running") or container.get("terminated") or {}).get("startedAt"))
    disrupted = _read_condition(pod, "DisruptionTarget")
    message = " ".join(filter(None, (pod_status.get("reason"), pod_status.get("message")))) or disrupted
    if terminated := container.get("terminated"):
        return _read_terminated_state(
            terminated, started_at, "" if disrupted else message, disrupted or _get_eviction_reason(pod_status)
        )
    is_evicting = "Taint" in disrupted and pod["metadata"].get("deletionTimestamp")
    if (
        is_evicting
        or pod_status.get("phase") == "Unknown"
        or pod_status.get("reason") == "NodeLost"
        or _has_vanished(pod, now)
    ):
        return SlotState(LOST, reason=message or "its node is lost", ended=now)
    if pod_status.get("phase") in ("Failed", "Succeeded"):
        # It ended without ever having run, or with nobody to say how.
        is_lost = _get_eviction_reason(pod_status) or disrupted or not message
        return SlotState(
            LOST if is_lost else FAILED, 0 if is_lost else EXIT_CANNOT_START, message or "its pod ended", ended=now
        )
    return (
        SlotState(RUNNING, started=started_at) if container.get("running") else _read_waiting_state(pod, container, now)
    )


def _read_terminated_state(terminated: JsonObject, started_at: float, message: str, lost_reason: str) -> SlotState:
    """How the container ended; the launcher's last words say more than the cluster does."""
    exit_code, ended_at = int(terminated.get("exitCode", 0)), parse_time(terminated.get("finishedAt"))
    if terminated.get("signal") and exit_code < 128:
        exit_code = 128 + int(terminated["signal"])
    try:
        launcher_reason = str(json.loads(terminated.get("message") or "{}").get("reason", ""))
    except (ValueError, AttributeError):
        launcher_reason = ""
    if terminated.get("reason") == "OOMKilled":
        return SlotState(FAILED, 137, "ran out of memory", started_at, ended_at)
    if lost_reason and exit_code:
        return SlotState(LOST, exit_code, lost_reason, started_at, ended_at)
    return SlotState(
        FAILED if exit_code else SUCCEEDED,
        exit_code,
        (launcher_reason or message) if exit_code else "",
        started_at,
        ended_at,
    )


def _get_eviction_reason(pod_status: JsonObject) -> str:
    """Why its node sent it away, where that was no fault of its own."""
    message = str(pod_status.get("message", ""))
    was_evicted = pod_status.get("reason") in (
        "Evicted",
        "Preempting",
        "NodeShutdown",
        "Shutdown",
        "Terminated",
        "NodeAffinity",
    )
    return (
        f"{pod_status['reason']}: {message}"
        if was_evicted and not any(fault_text in message for fault_text in _OWN_FAULT_TEXTS)
        else ""
    )


def _read_waiting_state(pod: JsonObject, container: JsonObject, now: float) -> SlotState:
    waiting = container.get("waiting") or {}
    reason = str(waiting.get("reason", ""))
    message = f"{reason}: {waiting.get('message', '')}".strip(": ")
    age_s = now - (parse_time(pod["metadata"].get("creationTimestamp")) or now)
    if reason in _FATAL_REASONS or (reason in _PULLING_REASONS and age_s > _IMAGE_PULL_TIMEOUT_S):
        return SlotState(FAILED, EXIT_CANNOT_START, message, ended=now)
    if not message and (scheduling_message := _read_condition(pod, "PodScheduled", "False")):
        message = scheduling_message
    return SlotState(WAITING, reason=message)


def _read_job_state(job: JsonObject | None, stopped: bool) -> SlotState:
    """A slot without a pod: not begun, or over and swept away."""
    if job is None:
        return SlotState(WAITING)
    ended_at = parse_time(job["status"].get("completionTime"))
    if _read_condition(job, "Complete") or job["status"].get("succeeded"):
        return SlotState(SUCCEEDED, ended=ended_at)
    if failure := _read_condition(job, "Failed"):
        if stopped:
            return SlotState(FAILED, 143, "stopped", ended=ended_at)
        return SlotState(LOST, reason=f"its pod is gone: {failure}", ended=ended_at)
    return SlotState(WAITING, reason="suspended" if job["spec"].get("suspend") else "")


def _read_condition(kube_object: JsonObject, kind: str, value: str = "True") -> str:
    for condition in kube_object["status"].get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == value:
            reason_and_message = (condition.get("reason"), condition.get("message"))
            return ": ".join(str(text) for text in reason_and_message if text) or kind
    return ""
