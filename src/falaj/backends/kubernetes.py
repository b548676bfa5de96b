"""Attempts as Jobs of a Kubernetes cluster: `kubernetes:https://host:6443?namespace=falaj&token=env:KUBE_TOKEN`.

Also `kubernetes:kubeconfig?context=NAME`, and `kubernetes:` inside a cluster. `object=job|jobset|trainjob` says what an
attempt becomes. Everything of an attempt belongs to one headless service, made first and deleted last: it is the claim
that makes a second launch find the first, and it remembers what we were told to stop.

Pods are told to save or to end by annotations, which they see as files: that needs no right to run commands in them,
and they end by themselves, with an exit code and a log that stay. Only what does not obey is deleted.
"""

import ipaddress
import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from falaj.backends import kubernetes_objects as objects
from falaj.backends import kubernetes_status as read
from falaj.backends.kubernetes_api import Json, KubeApi, Mirror
from falaj.backends.kubernetes_logs import read_log, since
from falaj.backends.kubernetes_nodes import OURS, devices, facts
from falaj.backends.kubernetes_objects import Site
from falaj.backends.kubernetes_reach import reach_of
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.execute import FAILED, LOST, OVER, UNKNOWN, WAITING, Attempt, LogChunk, NodeFacts, Slot, Status

_CONNECT = ("token", "ca", "cert", "key", "namespace", "path", "context")
_KNOWN = (*_CONNECT, *(name for name in Site._fields if name != "namespace"))
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_TOLERATED = ("nvidia.com/gpu", "amd.com/gpu", "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority")
_FORCE_AFTER_S = 15.0
_GANG_GRACE_S = 10.0
_FORCED = "ended by force"
_LAUNCHED = "falaj.dev/launched"
_WHERE = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
}
_KINDS = {"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}


class KubernetesExecutor:
    """The executor port over the REST API of one cluster, in one namespace."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        place, _, query = url.removeprefix("kubernetes:").partition("?")
        written = dict(parse_qsl(query))
        given = written | {name: str(value) for name, value in options.items()}
        if strange := sorted(set(given) - {*_KNOWN, "folder"}):
            raise Invalid(f"kubernetes: does not know {', '.join(strange)}", f"it knows {', '.join(_KNOWN)}")
        if not written.get("token", "env:").startswith(("env:", "file:")):
            raise Invalid("the token is written into an address", "point at it: token=env:NAME or token=file:/path")
        reach = reach_of(place, given)
        self._site = _site(reach.namespace, given)
        self._api = KubeApi(reach)
        ours = {"labelSelector": f"{OURS}=falaj,{objects.ATTEMPT}"}
        self._services, self._jobs, self._pods = (
            Mirror(self._api, self._path(kind), **ours) for kind in ("Service", "Job", "Pod")
        )
        self._nodes: dict[str, Json] = {}
        self._sent: set[str] = set()
        self._lock = threading.Lock()

    def capacity(self) -> Sequence[NodeFacts]:
        """Every node, with what pods that are not ours ask for on it."""
        nodes, _ = self._api.list("/api/v1/nodes")
        alive = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
        pods, _ = self._api.list("/api/v1/pods", fieldSelector=alive)
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        bound: dict[str, list[Json]] = {}
        for pod in pods:
            bound.setdefault((pod.get("spec") or {}).get("nodeName", ""), []).append(pod)
        site = self._site
        return [
            facts(node, bound.get(name, ()), site.tolerations, site.namespace)
            for name, node in sorted(self._nodes.items())
        ]

    def launch(self, attempt: Attempt) -> str:
        """Make its objects, the service first. What is there already is ours, or a Conflict."""
        site = self._check(attempt)
        handle = objects.name_of(attempt.id)
        asked = {slot.index: self._devices(slot) for slot in attempt.slots}
        self._check_account(attempt.user or site.service_account)
        claim = self._make(objects.service(attempt, site), attempt.id)
        about = claim["metadata"]
        if about.get("deletionTimestamp"):
            raise Conflict(f"the attempt {handle} is being forgotten", "its objects go in a moment")
        if {read.ENDED, objects.STOP, _LAUNCHED} & set(_notes(claim)):
            return handle
        try:
            self._send_launcher(attempt)
            for one in objects.belongings(attempt, site, about["uid"], asked, _platform(attempt)):
                made = self._make(one)
                if one["kind"] == "Job":
                    self._jobs.put(made)
        except Invalid:
            self._remove(handle)
            raise
        self._services.put(self._annotate("Service", handle, {_LAUNCHED: "true"}))
        return handle

    def poll(self, handles: Sequence[str]) -> Sequence[Status]:
        """What became of each. What outlived its grace, or its gang, is ended here."""
        if not handles:
            return []
        known = self._seen(handles)
        found = []
        for handle in handles:
            if handle not in known:
                found.append(Status(handle, UNKNOWN))
                continue
            service, slots = known[handle]
            status = read.status(handle, slots)
            if any(slot.pod or slot.phase not in OVER for slot in slots):
                self._enforce(handle, service, slots)
            found.append(status)
        return found

    def checkpoint(self, handle: str) -> None:
        """Annotate the pods, whose launchers see it."""
        for _, slots in self._seen([handle]).values():
            for slot in slots:
                if slot.pod and slot.started:
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
                f"Kubernetes ran no slot {slot} of {handle[:80]!r} for us", "it was forgotten, or ran elsewhere"
            )
        pod, over = self._pod_of(handle, slot), known[1][slot].phase in OVER
        params = {"container": objects.CONTAINER[_notes(known[0]).get(objects.OBJECT, "job")], "timestamps": "true"}
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
            if handle not in jobs and handle not in pods and all(one.phase == WAITING for one in slots):
                slots = self._without_jobs(handle, service, slots)
            found[handle] = (service, slots)
        return found

    def _late(self, handle: str) -> Json | None:
        """A service that the watch has not told us of: made by another platform a moment ago."""
        if not _NAME.fullmatch(handle):
            return None
        try:
            found = self._api.get(f"{self._path('Service')}/{handle}")
        except NotFound:
            return None
        return found if _labels(found).get(objects.ATTEMPT) == handle else None

    def _without_jobs(self, handle: str, service: Json, slots: list[read.Seen]) -> list[read.Seen]:
        """Nothing of it is there yet, or nothing any more: only its object says which."""
        notes = _notes(service)
        if _LAUNCHED not in notes:
            return slots
        kind = _KINDS[notes.get(objects.OBJECT, "job")]
        try:
            self._api.get(f"{self._path(kind)}/{handle}{'-0' if kind == 'Job' else ''}")
        except NotFound:
            return [read.Seen(LOST, reason="somebody deleted it", ended=time.time()) for _ in slots]
        return slots

    def _enforce(self, handle: str, service: Json, slots: list[read.Seen]) -> None:
        """A gang ends together, and what was told to end does."""
        told = read.note(service, objects.STOP)
        if read.ENDED in _notes(service):
            return
        if all(one.phase in OVER for one in slots):
            self._force(handle, slots, "")
        elif told and time.time() > float(told.get("at", 0)) + float(told.get("grace_s", 0)) + _FORCE_AFTER_S:
            self._force(handle, slots, _FORCED)
        elif not told and any(one.bad for one in slots):
            self._stop(handle, service, slots, _GANG_GRACE_S)

    def _stop(self, handle: str, service: Json, slots: list[read.Seen], grace_s: float) -> None:
        told = read.note(service, objects.STOP)
        due = float(told.get("at", 0)) + float(told.get("grace_s", 0)) if told else float("inf")
        if time.time() + grace_s < due:
            words = json.dumps({"grace_s": grace_s, "at": time.time()})
            self._services.put(self._annotate("Service", handle, {objects.STOP: words}))
            for slot in slots:
                if slot.pod:
                    self._annotate("Pod", slot.pod, {objects.STOP: words})
        if not any(slot.pod and slot.started for slot in slots):
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
        whose = {"labelSelector": f"{OURS}=falaj,{objects.ATTEMPT}={handle}"}
        kind = _KINDS[_notes(made).get(objects.OBJECT, "job")]
        self._api.delete(self._path(kind), {"propagationPolicy": "Foreground"}, **whose)
        self._api.delete(self._path("Pod"), {"gracePeriodSeconds": 1}, **whose)

    def _remove(self, handle: str) -> None:
        self._api.delete(f"{self._path('Service')}/{handle}", {"propagationPolicy": "Foreground"})
        service = self._late(handle)
        if service is not None:
            self._services.put(service)

    def _pod_of(self, handle: str, slot: int) -> str | None:
        pods = _grouped(self._pods.all()).get(handle, ())
        mine = [pod for pod in pods if read.slot_of(pod) == slot]
        return (
            max(mine, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))["metadata"]["name"]
            if mine
            else None
        )

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

    def _check(self, attempt: Attempt) -> Site:
        """What was asked as this cluster understands it; Invalid when it cannot be."""
        if strange := sorted(set(attempt.options) - set(objects.OPEN)):
            raise Invalid(f"kubernetes: does not know the option {strange[0]}", f"it knows {', '.join(objects.OPEN)}")
        site = self._site._replace(**dict[str, Any](attempt.options))
        if site.object not in _KINDS:
            raise Invalid(f"{site.object[:40]!r} is no object that runs attempts", f"one of {', '.join(_KINDS)}")
        if attempt.folder or not attempt.launcher or not attempt.slots:
            raise Invalid("kubernetes: needs slots and the launcher, and shares no folder", "leave the folder empty")
        if not (attempt.image or site.image):
            raise Invalid("the job names no image", "name one with python3 in it, or give the cluster the option image")
        if not _NAME.fullmatch(attempt.user or site.service_account):
            raise Invalid(
                f"{attempt.user[:60]!r} is no name of a service account",
                "map the person to one: small letters, digits, dashes and dots",
            )
        if any(slot.devices and slot.milli != 1000 for slot in attempt.slots):
            raise Invalid("Kubernetes gives out whole devices", "ask for whole GPUs, or for a MIG model")
        return site

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
            if not _NAME.fullmatch(slot.node):
                raise Invalid(f"{slot.node[:60]!r} is no name of a node", "capacity lists them")
            try:
                self._nodes[slot.node] = self._api.get(f"/api/v1/nodes/{slot.node}")
            except NotFound:
                raise Invalid(f"Kubernetes has no node {slot.node}", "it may have left; look at capacity") from None
        known = {device.index: resource for device, resource in devices(self._nodes[slot.node]).items()}
        asked: dict[str, int] = {}
        for index in slot.devices:
            if index not in known:
                raise Invalid(f"the node {slot.node} has no device {index}", f"it has {len(known)}")
            asked[known[index]] = asked.get(known[index], 0) + 1
        return asked

    def _path(self, kind: str) -> str:
        return _WHERE[kind].format(self._site.namespace)


def _site(namespace: str, given: Mapping[str, str]) -> Site:
    words = {name: tuple(filter(None, given.get(name, "").split(","))) for name in ("tolerations", "egress", "claims")}
    plain = {name: given[name] for name in Site._fields if name in given and name not in (*words, "uid", "namespace")}
    claims = tuple((claim, path) for claim, _, path in (word.partition(":") for word in words["claims"]))
    try:
        for block in words["egress"]:
            block == "open" or ipaddress.ip_network(block)
        uid = int(given.get("uid", "10001"))
    except ValueError as error:
        raise Invalid(f"kubernetes: {error}", "egress=10.0.0.0/8,open or uid=10001") from None
    if not _NAME.fullmatch(namespace) or uid <= 0 or any(not path.startswith("/") for _, path in claims):
        raise Invalid(
            "kubernetes: the namespace is no name, the uid is root, or a claim has no path",
            "namespace=falaj&uid=10001&claims=data:/data",
        )
    return Site(
        namespace,
        uid=uid,
        tolerations=(*_TOLERATED, *words["tolerations"]),
        egress=words["egress"],
        claims=claims,
        **plain,
    )


def _platform(attempt: Attempt) -> list[str]:
    """The addresses of the platform, which launchers call. A policy knows no names, so they are looked up here."""
    host = urlsplit(str(attempt.context.get("address") or "")).hostname
    if not host:
        return []
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError:
        raise Invalid(
            f"the platform's address {host!r} is not known to DNS", "its launchers could not call it"
        ) from None


def _labels(one: Json) -> dict[str, str]:
    return one["metadata"].get("labels") or {}


def _notes(one: Json) -> dict[str, str]:
    return one["metadata"].get("annotations") or {}


def _grouped(many: Mapping[str, Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for one in many.values():
        found.setdefault(_labels(one).get(objects.ATTEMPT, ""), []).append(one)
    return found
