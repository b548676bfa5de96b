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

from falaj.backends import kubernetes_objects as objects
from falaj.backends import kubernetes_status as read
from falaj.backends.kubernetes_api import Json, KubeApi, Mirror
from falaj.backends.kubernetes_logs import read_log, since
from falaj.backends.kubernetes_nodes import OURS, devices, facts, instant
from falaj.backends.kubernetes_reach import reach_of
from falaj.backends.kubernetes_scale import KubeScaling, machine_kinds
from falaj.backends.kubernetes_site import KINDS, KNOWN, NAME, account, asked_of, platform_of, site_of
from falaj.backends.node_kinds import with_kind
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.execute import END, FAILED, LOST, OVER, UNKNOWN, WAITING, Attempt, LogChunk, NodeFacts, Slot, Status

_FORCE_AFTER_S = 15.0
_GANG_GRACE_S = 10.0
_BEGIN_S = 5.0
_FORCED = "ended by force"
_LAUNCHED = "falaj.dev/launched"
_GROUPS = {
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
}


class KubernetesExecutor(KubeScaling):
    """The executor port over the REST API of one cluster, in one namespace."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        place, _, query = url.removeprefix("kubernetes:").partition("?")
        written = dict(parse_qsl(query))
        given = written | {name: str(value) for name, value in options.items()}
        if strange := sorted(set(given) - {*KNOWN, "folder", "kinds"}):
            raise Invalid(f"kubernetes: does not know {', '.join(strange)}", f"it knows {', '.join(KNOWN)}")
        if not written.get("token", "env:").startswith(("env:", "file:")):
            raise Invalid("the token is written into an address", "point at it: token=env:NAME or token=file:/path")
        reach = reach_of(place, given)
        self._site = site_of(reach.namespace, given)
        self._kinds = machine_kinds(given.get("kinds", ""))
        self._api = KubeApi(reach)
        ours = {"labelSelector": f"{OURS}=falaj,{objects.ATTEMPT}"}
        self._services, self._jobs, self._pods = (
            Mirror(self._api, self._path(kind), **ours) for kind in ("Service", "Job", "Pod")
        )
        self._nodes: dict[str, Json] = {}
        self._sent: set[str] = set()

    def capacity(self) -> Sequence[NodeFacts]:
        """Every node, with what pods that are not ours ask for on it."""
        self._list_nodes()
        alive = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        pods, _ = self._api.list("/api/v1/pods", fieldSelector=alive)
        bound: dict[str, list[Json]] = {}
        for pod in pods:
            bound.setdefault((pod.get("spec") or {}).get("nodeName", ""), []).append(pod)
        known = self._site.tolerations, self._site.namespace
        return [
            with_kind(facts(node, bound.get(name, ()), *known), self._kinds, self._kind_of(node))
            for name, node in sorted(self._nodes.items())
        ]

    def launch(self, attempt: Attempt) -> str:
        """Make its objects, the service first. What is there already is ours, or a Conflict."""
        site = asked_of(attempt, self._site)
        handle = objects.name_of(attempt.id)
        asked = {slot.index: self._devices(slot) for slot in attempt.slots}
        self._check_account(account(attempt, site))
        claim = self._make(objects.service(attempt, site), attempt.id)
        about = claim["metadata"]
        if about.get("deletionTimestamp"):
            raise Conflict(f"the attempt {handle} is being forgotten", "its objects go in a moment")
        if {read.ENDED, objects.STOP, _LAUNCHED} & set(_notes(claim)):
            return handle
        try:
            self._send_launcher(attempt)
            for one in objects.belongings(attempt, site, about["uid"], asked, platform_of(attempt)):
                made = self._make(one)
                if one["kind"] == "Job":
                    self._jobs.put(made)
        except (Invalid, Conflict):
            self._remove(handle)
            raise
        self._services.put(self._annotate("Service", handle, {_LAUNCHED: "true"}))
        return handle

    def poll(self, handles: Sequence[str]) -> Sequence[Status]:
        """What became of each. What outlived its grace, or its gang, is ended here."""
        if not handles:
            return []
        known = self._seen(handles)
        for handle, (service, slots) in known.items():
            with contextlib.suppress(NotFound):
                self._enforce(handle, service, slots)
        return [read.status(h, known[h][1]) if h in known else Status(h, UNKNOWN) for h in handles]

    def checkpoint(self, handle: str) -> None:
        """Annotate the pods, whose launchers see it."""
        for _, slots in self._seen([handle]).values():
            for slot in slots:
                if slot.live and slot.started:
                    self._annotate("Pod", slot.pod, {objects.CHECKPOINT: str(time.time())})

    def stop(self, handle: str, grace_s: float) -> None:
        """Annotate the pods, whose launchers end; where none has begun, delete at once."""
        for service, slots in self._seen([handle]).values():
            if read.status(handle, slots).phase not in OVER:
                self._stop(handle, service, slots, grace_s)

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Lines of a slot's container; the cursor is the time of the last one, and how many had that very time."""
        known = self._seen([handle]).get(handle)
        if known is None or not 0 <= slot < len(known[1]):
            raise NotFound(
                f"Kubernetes ran no slot {slot} of {handle[:80]!r} for us", "it was forgotten, or is elsewhere"
            )
        pod, over = known[1][slot].pod, known[1][slot].phase in OVER
        params = {"container": objects.CONTAINER[_notes(known[0]).get(objects.OBJECT, "job")], "timestamps": "true"}
        if after == END:
            after, params = "", {**params, "tailLines": str(limit)}
        params |= {"sinceTime": start} if (start := since(after)) else {}

        def fetch(most: int) -> bytes:
            return self._api.text(f"{self._path('Pod')}/{pod}/log", limitBytes=str(most), **params)

        try:
            return read_log(fetch, after, limit, over) if pod else LogChunk((), after, over)
        except (Invalid, NotFound):
            # Its container has not begun, or its node is gone.
            return LogChunk((), after, over)

    def forget(self, handle: str) -> None:
        """Delete the service, and with it all that belongs to it."""
        for _, slots in self._seen([handle]).values():
            if read.status(handle, slots).phase not in OVER:
                raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
            self._remove(handle)

    def close(self) -> None:
        """End the watches; attempts run on."""
        for mirror in (self._services, self._jobs, self._pods):
            mirror.close()
        self._api.close()

    def _seen(self, handles: Iterable[str]) -> dict[str, tuple[Json, list[read.Seen]]]:
        """Those of the handles that are ours, with their slots."""
        services, jobs, pods = self._services.all(), _grouped(self._jobs.all()), _grouped(self._pods.all())
        found, now = {}, time.time()
        for handle in handles:
            service = services.get(handle) or self._late(handle)
            if service is None or service["metadata"].get("deletionTimestamp"):
                continue
            slots = read.look(service, jobs.get(handle, ()), pods.get(handle, ()), now)
            if handle not in pods and all(one.phase == WAITING for one in slots):
                slots = self._without_pods(handle, service, slots, handle in jobs)
            found[handle] = (service, slots)
        return found

    def _late(self, handle: str) -> Json | None:
        """A service that the watch has not told us of: made by another platform a moment ago."""
        if not NAME.fullmatch(handle):
            return None
        try:
            found = self._api.get(f"{self._path('Service')}/{handle}")
        except NotFound:
            return None
        return found if _labels(found).get(objects.ATTEMPT) == handle else None

    def _without_pods(self, handle: str, service: Json, slots: list[read.Seen], begun: bool) -> list[read.Seen]:
        """Nothing runs of it: not yet, not any more, or never. Its object says which, and events say why."""
        notes = _notes(service)
        if _LAUNCHED not in notes or any(one.reason for one in slots):
            return slots
        kind = KINDS[notes.get(objects.OBJECT, "job")]
        name = f"{handle}-0" if kind == "Job" else handle
        try:
            begun or self._api.get(f"{self._path(kind)}/{name}")
        except NotFound:
            return [read.Seen(LOST, reason="somebody deleted it", ended=time.time()) for _ in slots]
        if time.time() < instant(service["metadata"].get("creationTimestamp")) + _BEGIN_S:
            return slots
        about = f"involvedObject.name={name},type=Warning"
        events, _ = self._api.list(self._path("Event"), fieldSelector=about)
        return [one._replace(reason=str(events[-1].get("message", ""))) for one in slots] if events else slots

    def _enforce(self, handle: str, service: Json, slots: list[read.Seen]) -> None:
        """A gang ends together, and what was told to end does."""
        told, alive = read.note(service, objects.STOP), any(one.live for one in slots)
        if alive and read.ENDED in _notes(service):
            # A platform wrote that down and died before it deleted anything.
            self._delete(handle, service)
        elif all(one.phase in OVER for one in slots):
            if alive:
                self._force(handle, slots, "")
        elif told and time.time() > _due(told) + _FORCE_AFTER_S:
            self._force(handle, slots, _FORCED)
        elif not told and any(one.bad for one in slots):
            self._stop(handle, service, slots, _GANG_GRACE_S)

    def _stop(self, handle: str, service: Json, slots: list[read.Seen], grace_s: float) -> None:
        told = read.note(service, objects.STOP)
        if not told or time.time() + grace_s < _due(told):
            words = json.dumps({"grace_s": grace_s, "at": time.time()})
            self._services.put(self._annotate("Service", handle, {objects.STOP: words}))
            for slot in slots:
                if slot.live:
                    self._annotate("Pod", slot.pod, {objects.STOP: words})
        if not any(slot.live and slot.started for slot in slots):
            bad = any(slot.bad for slot in slots)
            self._force(handle, slots, "ended with its gang" if bad else "stopped before it began")

    def _force(self, handle: str, slots: list[read.Seen], why: str) -> None:
        """Write down how it ended, then delete the Jobs and pods; the service stays until it is forgotten."""
        now = time.time()
        code = 137 if why == _FORCED else 143
        over = [one if one.phase in OVER else read.Seen(FAILED, code, why, ended=now) for one in slots]
        rows = [[at, one.phase, one.code, one.reason, one.ended or now] for at, one in enumerate(over)]
        made = self._annotate("Service", handle, {read.ENDED: json.dumps({"exits": rows})})
        self._services.put(made)
        self._delete(handle, made)

    def _delete(self, handle: str, service: Json) -> None:
        whose = {"labelSelector": f"{OURS}=falaj,{objects.ATTEMPT}={handle}"}
        kind = KINDS[_notes(service).get(objects.OBJECT, "job")]
        self._api.delete(self._path(kind), {"propagationPolicy": "Foreground"}, **whose)
        self._api.delete(self._path("Pod"), {"gracePeriodSeconds": 1}, **whose)

    def _remove(self, handle: str) -> None:
        self._api.delete(f"{self._path('Service')}/{handle}", {"propagationPolicy": "Foreground"})
        service = self._late(handle)
        if service is not None:
            self._services.put(service)

    def _make(self, one: Json, attempt: str = "") -> Json:
        """Create it, or find it and see that it is ours."""
        path, about = self._path(one["kind"]), one["metadata"]
        try:
            return self._api.create(path, one)
        except Conflict:
            found = self._api.get(f"{path}/{about['name']}")
        owners = {owner.get("uid") for owner in found["metadata"].get("ownerReferences") or ()}
        wanted = {owner["uid"] for owner in about.get("ownerReferences") or ()}
        named = not attempt or _notes(found).get(objects.ID) == attempt
        if not wanted <= owners or not named or _labels(found).get(OURS) != "falaj":
            raise Conflict(f"the {one['kind']} {about['name']} is there and is not ours", "rename or remove it")
        return found

    def _send_launcher(self, attempt: Attempt) -> None:
        one = objects.launcher(attempt)
        name = one["metadata"]["name"]
        if name in self._sent:
            return
        if self._make(one).get("binaryData") != one["binaryData"]:
            raise Conflict(f"the ConfigMap {name} does not hold what its name says", "delete it: it is made anew")
        self._sent.add(name)

    def _annotate(self, kind: str, name: str, notes: Mapping[str, str]) -> Json:
        """Say it; a pod that is gone needs not hear it."""
        try:
            return self._api.patch(f"{self._path(kind)}/{name}", {"metadata": {"annotations": notes}})
        except NotFound:
            if kind != "Pod":
                raise
            return {}

    def _check_account(self, name: str) -> None:
        try:
            self._api.get(f"{self._path('ServiceAccount')}/{name}")
        except NotFound:
            where = self._site.namespace
            hint = f"kubectl create serviceaccount {name} -n {where}"
            raise Invalid(f"the namespace {where} has no service account {name!r}", hint) from None

    def _devices(self, slot: Slot) -> dict[str, int]:
        """What a slot asks for by the resources' own names."""
        if slot.node not in self._nodes:
            self._list_nodes()
        if slot.node not in self._nodes:
            raise Conflict(f"Kubernetes has no node {slot.node[:80]!r}", "it may have left; look at capacity")
        known = {device.index: resource for device, resource in devices(self._nodes[slot.node]).items()}
        asked: dict[str, int] = {}
        for index in slot.devices:
            if index not in known:
                raise Invalid(f"the node {slot.node} has no device {index}", f"it has {len(known)}")
            asked[known[index]] = asked.get(known[index], 0) + 1
        return asked

    def _list_nodes(self) -> None:
        nodes, _ = self._api.list("/api/v1/nodes")
        self._nodes = {node["metadata"]["name"]: node for node in nodes}

    def _path(self, kind: str) -> str:
        return _GROUPS.get(kind, f"/api/v1/namespaces/{{}}/{kind.lower()}s").format(self._site.namespace)


def _due(told: Mapping[str, Any]) -> float:
    return float(told.get("at", 0)) + float(told.get("grace_s", 0))


def _labels(one: Json) -> dict[str, str]:
    return one["metadata"].get("labels") or {}


def _notes(one: Json) -> dict[str, str]:
    return one["metadata"].get("annotations") or {}


def _grouped(many: Mapping[str, Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for one in many.values():
        found.setdefault(_labels(one).get(objects.ATTEMPT, ""), []).append(one)
    return found
