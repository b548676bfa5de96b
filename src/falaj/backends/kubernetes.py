"""Attempts as Jobs of a Kubernetes cluster: `kubernetes:https://host:6443?namespace=falaj&token=env:KUBE_TOKEN`.

Also `kubernetes:kubeconfig?context=NAME`, and `kubernetes:` inside a cluster. `object=job|jobset|trainjob` says what an
attempt becomes. Everything of an attempt belongs to one headless service, made first and deleted last: it is the claim
that makes a second launch find the first, and it remembers what we were told to stop.

Pods are told to save or to end by annotations, which they see as files: that needs no right to run commands in them,
and they end by themselves, with an exit code and a log that stay. Only what does not obey is deleted.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from falaj.backends import kubernetes_manifests as objects
from falaj.backends import kubernetes_status as read
from falaj.backends.kubernetes_api import JsonObject, KubernetesApi, ObjectMirror
from falaj.backends.kubernetes_connection import resolve_connection
from falaj.backends.kubernetes_logs import get_since_time, read_log
from falaj.backends.kubernetes_nodes import MANAGED_BY_LABEL, list_devices, parse_time, read_node
from falaj.backends.kubernetes_options import (
    KIND_BY_OBJECT,
    KNOWN_OPTIONS,
    NAME_PATTERN,
    apply_attempt_options,
    get_service_account,
    read_options,
    resolve_platform_addresses,
)
from falaj.backends.kubernetes_scaling import KubernetesScaling, read_machine_kinds
from falaj.backends.node_kinds import add_kind_labels
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.executor import (
    FAILED,
    FINISHED_PHASES,
    LOG_END,
    LOST,
    UNKNOWN,
    WAITING,
    Attempt,
    AttemptStatus,
    LogChunk,
    NodeInfo,
    Slot,
)

_FORCE_KILL_DELAY_S = 15.0
_GANG_GRACE_S = 10.0
_POD_CREATION_GRACE_S = 5.0
_FORCED_REASON = "ended by force"
_LAUNCHED_ANNOTATION = "falaj.dev/launched"
_API_PATH_BY_KIND = {
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
}


class KubernetesExecutor(KubernetesScaling):
    """The executor port over the REST API of one cluster, in one namespace."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        address, _, query = url.removeprefix("kubernetes:").partition("?")
        query_options = dict(parse_qsl(query))
        all_options = query_options | {name: str(value) for name, value in options.items()}
        if unknown_names := sorted(set(all_options) - {*KNOWN_OPTIONS, "folder", "kinds"}):
            raise Invalid(
                f"kubernetes: does not know {', '.join(unknown_names)}", f"it knows {', '.join(KNOWN_OPTIONS)}"
            )
        if not query_options.get("token", "env:").startswith(("env:", "file:")):
            raise Invalid("the token is written into an address", "point at it: token=env:NAME or token=file:/path")
        connection = resolve_connection(address, all_options)
        self._options = read_options(connection.namespace, all_options)
        self._kinds = read_machine_kinds(all_options.get("kinds", ""))
        self._api = KubernetesApi(connection)
        own_selector = {"labelSelector": f"{MANAGED_BY_LABEL}=falaj,{objects.ATTEMPT_LABEL}"}
        self._service_mirror, self._job_mirror, self._pod_mirror = (
            ObjectMirror(self._api, self._api_path(kind), **own_selector) for kind in ("Service", "Job", "Pod")
        )
        self._node_by_name: dict[str, JsonObject] = {}
        self._sent_launchers: set[str] = set()

    def capacity(self) -> Sequence[NodeInfo]:
        """Every node, with what pods that are not ours ask for on it."""
        self._list_nodes()
        running_selector = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        pods, _ = self._api.list("/api/v1/pods", fieldSelector=running_selector)
        pods_by_node: dict[str, list[JsonObject]] = {}
        for pod in pods:
            pods_by_node.setdefault((pod.get("spec") or {}).get("nodeName", ""), []).append(pod)
        option_arguments = self._options.tolerations, self._options.namespace
        return [
            add_kind_labels(
                read_node(node, pods_by_node.get(name, ()), *option_arguments), self._kinds, self._find_kind_name(node)
            )
            for name, node in sorted(self._node_by_name.items())
        ]

    def launch(self, attempt: Attempt) -> str:
        """Make its objects, the service first. What is there already is ours, or a Conflict."""
        options = apply_attempt_options(attempt, self._options)
        handle = objects.make_object_name(attempt.id)
        devices_by_slot = {slot.index: self._count_devices(slot) for slot in attempt.slots}
        self._check_account(get_service_account(attempt, options))
        service_object = self._create_object(objects.make_service(attempt, options), attempt.id)
        metadata = service_object["metadata"]
        if metadata.get("deletionTimestamp"):
            raise Conflict(f"the attempt {handle} is being forgotten", "its objects go in a moment")
        if {read.ENDED_ANNOTATION, objects.STOP_ANNOTATION, _LAUNCHED_ANNOTATION} & set(
            _get_annotations(service_object)
        ):
            return handle
        try:
            self._send_launcher(attempt)
            for manifest in objects.make_owned_objects(
                attempt, options, metadata["uid"], devices_by_slot, resolve_platform_addresses(attempt)
            ):
                created = self._create_object(manifest)
                if manifest["kind"] == "Job":
                    self._job_mirror.put(created)
        except (Invalid, Conflict):
            self._delete_service(handle)
            raise
        self._service_mirror.put(self._annotate_object("Service", handle, {_LAUNCHED_ANNOTATION: "true"}))
        return handle

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        """What became of each. What outlived its grace, or its gang, is ended here."""
        if not handles:
            return []
        states = self._read_states(handles)
        for handle, (service, slots) in states.items():
            with contextlib.suppress(NotFound):
                self._enforce_end(handle, service, slots)
        return [
            read.summarize_status(requested_handle, states[requested_handle][1])
            if requested_handle in states
            else AttemptStatus(requested_handle, UNKNOWN)
            for requested_handle in handles
        ]

    def checkpoint(self, handle: str) -> None:
        """Annotate the pods, whose launchers see it."""
        for _, slots in self._read_states([handle]).values():
            for slot in slots:
                if slot.live and slot.started:
                    self._annotate_object("Pod", slot.pod, {objects.CHECKPOINT_ANNOTATION: str(time.time())})

    def stop(self, handle: str, grace_s: float) -> None:
        """Annotate the pods, whose launchers end; where none has begun, delete at once."""
        for service, slots in self._read_states([handle]).values():
            if read.summarize_status(handle, slots).phase not in FINISHED_PHASES:
                self._stop_slots(handle, service, slots, grace_s)

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Lines of a slot's container; the cursor is the time of the last one, and how many had that very time."""
        states = self._read_states([handle]).get(handle)
        if states is None or not 0 <= slot < len(states[1]):
            raise NotFound(
                f"Kubernetes ran no slot {slot} of {handle[:80]!r} for us", "it was forgotten, or is elsewhere"
            )
        pod, is_over = states[1][slot].pod, states[1][slot].phase in FINISHED_PHASES
        query_params = {
            "container": objects.CONTAINER_BY_OBJECT[_get_annotations(states[0]).get(objects.OBJECT_ANNOTATION, "job")],
            "timestamps": "true",
        }
        if after == LOG_END:
            after, query_params = "", {**query_params, "tailLines": str(limit)}
        query_params |= {"sinceTime": since_time} if (since_time := get_since_time(after)) else {}

        def fetch_log(max_bytes: int) -> bytes:
            return self._api.text(f"{self._api_path('Pod')}/{pod}/log", limitBytes=str(max_bytes), **query_params)

        try:
            return read_log(fetch_log, after, limit, is_over) if pod else LogChunk((), after, is_over)
        except (Invalid, NotFound):
            # Its container has not begun, or its node is gone.
            return LogChunk((), after, is_over)

    def forget(self, handle: str) -> None:
        """Delete the service, and with it all that belongs to it."""
        for _, slots in self._read_states([handle]).values():
            if read.summarize_status(handle, slots).phase not in FINISHED_PHASES:
                raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
            self._delete_service(handle)

    def close(self) -> None:
        """End the watches; attempts run on."""
        for mirror in (self._service_mirror, self._job_mirror, self._pod_mirror):
            mirror.close()
        self._api.close()

    def _read_states(self, handles: Iterable[str]) -> dict[str, tuple[JsonObject, list[read.SlotState]]]:
        """Those of the handles that are ours, with their slots."""
        services, jobs, pods = (
            self._service_mirror.all(),
            _group_by_attempt(self._job_mirror.all()),
            _group_by_attempt(self._pod_mirror.all()),
        )
        states, now = {}, time.time()
        for handle in handles:
            service = services.get(handle) or self._fetch_service(handle)
            if service is None or service["metadata"].get("deletionTimestamp"):
                continue
            slots = read.read_slot_states(service, jobs.get(handle, ()), pods.get(handle, ()), now)
            if handle not in pods and all(slot_state.phase == WAITING for slot_state in slots):
                slots = self._explain_missing_pods(handle, service, slots, handle in jobs)
            states[handle] = (service, slots)
        return states

    def _fetch_service(self, handle: str) -> JsonObject | None:
        """A service that the watch has not told us of: made by another platform a moment ago."""
        if not NAME_PATTERN.fullmatch(handle):
            return None
        try:
            service = self._api.get(f"{self._api_path('Service')}/{handle}")
        except NotFound:
            return None
        return service if _get_labels(service).get(objects.ATTEMPT_LABEL) == handle else None

    def _explain_missing_pods(
        self, handle: str, service: JsonObject, slots: list[read.SlotState], has_job: bool
    ) -> list[read.SlotState]:
        """Nothing runs of it: not yet, not any more, or never. Its object says which, and events say why."""
        annotations = _get_annotations(service)
        if _LAUNCHED_ANNOTATION not in annotations or any(slot_state.reason for slot_state in slots):
            return slots
        kind = KIND_BY_OBJECT[annotations.get(objects.OBJECT_ANNOTATION, "job")]
        name = f"{handle}-0" if kind == "Job" else handle
        try:
            has_job or self._api.get(f"{self._api_path(kind)}/{name}")
        except NotFound:
            return [read.SlotState(LOST, reason="somebody deleted it", ended=time.time()) for _ in slots]
        if time.time() < parse_time(service["metadata"].get("creationTimestamp")) + _POD_CREATION_GRACE_S:
            return slots
        event_selector = f"involvedObject.name={name},type=Warning"
        events, _ = self._api.list(self._api_path("Event"), fieldSelector=event_selector)
        return (
            [slot_state._replace(reason=str(events[-1].get("message", ""))) for slot_state in slots]
            if events
            else slots
        )

    def _enforce_end(self, handle: str, service: JsonObject, slots: list[read.SlotState]) -> None:
        """A gang ends together, and what was told to end does."""
        stop_note, has_live_pods = (
            read.read_json_annotation(service, objects.STOP_ANNOTATION),
            any(slot_state.live for slot_state in slots),
        )
        if has_live_pods and read.ENDED_ANNOTATION in _get_annotations(service):
            # A platform wrote that down and died before it deleted anything.
            self._delete_workload(handle, service)
        elif all(slot_state.phase in FINISHED_PHASES for slot_state in slots):
            if has_live_pods:
                self._force_end(handle, slots, "")
        elif stop_note and time.time() > _get_stop_deadline(stop_note) + _FORCE_KILL_DELAY_S:
            self._force_end(handle, slots, _FORCED_REASON)
        elif not stop_note and any(slot_state.bad for slot_state in slots):
            self._stop_slots(handle, service, slots, _GANG_GRACE_S)

    def _stop_slots(self, handle: str, service: JsonObject, slots: list[read.SlotState], grace_s: float) -> None:
        stop_note = read.read_json_annotation(service, objects.STOP_ANNOTATION)
        if not stop_note or time.time() + grace_s < _get_stop_deadline(stop_note):
            note_text = json.dumps({"grace_s": grace_s, "at": time.time()})
            self._service_mirror.put(self._annotate_object("Service", handle, {objects.STOP_ANNOTATION: note_text}))
            for slot in slots:
                if slot.live:
                    self._annotate_object("Pod", slot.pod, {objects.STOP_ANNOTATION: note_text})
        if not any(slot.live and slot.started for slot in slots):
            has_failed = any(slot.bad for slot in slots)
            self._force_end(handle, slots, "ended with its gang" if has_failed else "stopped before it began")

    def _force_end(self, handle: str, slots: list[read.SlotState], reason: str) -> None:
        """Write down how it ended, then delete the Jobs and pods; the service stays until it is forgotten."""
        now = time.time()
        exit_code = 137 if reason == _FORCED_REASON else 143
        final_states = [
            slot_state if slot_state.phase in FINISHED_PHASES else read.SlotState(FAILED, exit_code, reason, ended=now)
            for slot_state in slots
        ]
        rows = [
            [slot_index, slot_state.phase, slot_state.code, slot_state.reason, slot_state.ended or now]
            for slot_index, slot_state in enumerate(final_states)
        ]
        service = self._annotate_object("Service", handle, {read.ENDED_ANNOTATION: json.dumps({"exits": rows})})
        self._service_mirror.put(service)
        self._delete_workload(handle, service)

    def _delete_workload(self, handle: str, service: JsonObject) -> None:
        attempt_selector = {"labelSelector": f"{MANAGED_BY_LABEL}=falaj,{objects.ATTEMPT_LABEL}={handle}"}
        kind = KIND_BY_OBJECT[_get_annotations(service).get(objects.OBJECT_ANNOTATION, "job")]
        self._api.delete(self._api_path(kind), {"propagationPolicy": "Foreground"}, **attempt_selector)
        self._api.delete(self._api_path("Pod"), {"gracePeriodSeconds": 1}, **attempt_selector)

    def _delete_service(self, handle: str) -> None:
        self._api.delete(f"{self._api_path('Service')}/{handle}", {"propagationPolicy": "Foreground"})
        service = self._fetch_service(handle)
        if service is not None:
            self._service_mirror.put(service)

    def _create_object(self, manifest: JsonObject, attempt_id: str = "") -> JsonObject:
        """Create it, or find it and see that it is ours."""
        path, metadata = self._api_path(manifest["kind"]), manifest["metadata"]
        try:
            return self._api.create(path, manifest)
        except Conflict:
            existing = self._api.get(f"{path}/{metadata['name']}")
        owners = {owner.get("uid") for owner in existing["metadata"].get("ownerReferences") or ()}
        required_owners = {owner["uid"] for owner in metadata.get("ownerReferences") or ()}
        has_attempt_id = not attempt_id or _get_annotations(existing).get(objects.ID_ANNOTATION) == attempt_id
        if (
            not required_owners <= owners
            or not has_attempt_id
            or _get_labels(existing).get(MANAGED_BY_LABEL) != "falaj"
        ):
            raise Conflict(f"the {manifest['kind']} {metadata['name']} is there and is not ours", "rename or remove it")
        return existing

    def _send_launcher(self, attempt: Attempt) -> None:
        config_map = objects.make_launcher_config(attempt)
        name = config_map["metadata"]["name"]
        if name in self._sent_launchers:
            return
        if self._create_object(config_map).get("binaryData") != config_map["binaryData"]:
            raise Conflict(f"the ConfigMap {name} does not hold what its name says", "delete it: it is made anew")
        self._sent_launchers.add(name)

    def _annotate_object(self, kind: str, name: str, annotations: Mapping[str, str]) -> JsonObject:
        """Say it; a pod that is gone needs not hear it."""
        try:
            return self._api.patch(f"{self._api_path(kind)}/{name}", {"metadata": {"annotations": annotations}})
        except NotFound:
            if kind != "Pod":
                raise
            return {}

    def _check_account(self, name: str) -> None:
        try:
            self._api.get(f"{self._api_path('ServiceAccount')}/{name}")
        except NotFound:
            namespace = self._options.namespace
            hint = f"kubectl create serviceaccount {name} -n {namespace}"
            raise Invalid(f"the namespace {namespace} has no service account {name!r}", hint) from None

    def _count_devices(self, slot: Slot) -> dict[str, int]:
        """What a slot asks for by the resources' own names."""
        if slot.node not in self._node_by_name:
            self._list_nodes()
        if slot.node not in self._node_by_name:
            raise Conflict(f"Kubernetes has no node {slot.node[:80]!r}", "it may have left; look at capacity")
        resource_by_index = {
            device.index: resource for device, resource in list_devices(self._node_by_name[slot.node]).items()
        }
        count_by_resource: dict[str, int] = {}
        for index in slot.devices:
            if index not in resource_by_index:
                raise Invalid(f"the node {slot.node} has no device {index}", f"it has {len(resource_by_index)}")
            count_by_resource[resource_by_index[index]] = count_by_resource.get(resource_by_index[index], 0) + 1
        return count_by_resource

    def _list_nodes(self) -> None:
        nodes, _ = self._api.list("/api/v1/nodes")
        self._node_by_name = {node["metadata"]["name"]: node for node in nodes}

    def _api_path(self, kind: str) -> str:
        return _API_PATH_BY_KIND.get(kind, f"/api/v1/namespaces/{{}}/{kind.lower()}s").format(self._options.namespace)


def _get_stop_deadline(stop_note: Mapping[str, Any]) -> float:
    return float(stop_note.get("at", 0)) + float(stop_note.get("grace_s", 0))


def _get_labels(kube_object: JsonObject) -> dict[str, str]:
    return kube_object["metadata"].get("labels") or {}


def _get_annotations(kube_object: JsonObject) -> dict[str, str]:
    return kube_object["metadata"].get("annotations") or {}


def _group_by_attempt(objects_by_name: Mapping[str, JsonObject]) -> dict[str, list[JsonObject]]:
    objects_by_attempt: dict[str, list[JsonObject]] = {}
    for kube_object in objects_by_name.values():
        objects_by_attempt.setdefault(_get_labels(kube_object).get(objects.ATTEMPT_LABEL, ""), []).append(kube_object)
    return objects_by_attempt
