"""An attempt as Kubernetes objects: pure functions from what is asked to manifests.

Service        headless; names the slots for each other, and owns all the rest: while it is there, we know the attempt
Secret         the context document and the secrets; never in a pod's spec
NetworkPolicy  slots talk to each other, to the platform and to the cluster's DNS servers
Job            one for each slot, since each has a node that the scheduler chose and an Indexed Job has one template
               for all its pods; or a JobSet with a replicated Job for each slot; or a TrainJob, on a set of nodes
ConfigMap      the launcher, shared by all attempts that use the same
"""

import base64
import hashlib
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from falaj.backends.kubernetes_nodes import DEVICES, OURS, tolerations
from falaj.backends.kubernetes_site import Site, account
from falaj.core.errors import Invalid
from falaj.core.execute import Attempt, Slot, launcher_environment

Json = dict[str, Any]
ATTEMPT, SLOT, STOP, CHECKPOINT = "falaj.dev/attempt", "falaj.dev/slot", "falaj.dev/stop", "falaj.dev/checkpoint"
ID, SLOTS, OBJECT = "falaj.dev/id", "falaj.dev/slots", "falaj.dev/object"
QUEUE = "kueue.x-k8s.io/queue-name"
PORT = 29500
"""Where rank 0 listens when nobody said: a pod has all ports to itself."""
CONTAINER = {"job": "slot", "jobset": "slot", "trainjob": "node"}
_HOME, _WORK = "/falaj", "/scratch"
_LAST_WORDS = "/dev/termination-log"
_MOST_CONFIG = 900_000
_CLUSTER_DNS: Json = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}
"""The DNS servers of a cluster: kube-dns and CoreDNS both carry this label, in this namespace."""


def name_of(attempt_id: str) -> str:
    """A name for an attempt's objects: of small letters, begins with one, leaves room for what controllers append."""
    clean = re.sub(r"[^a-z0-9]+", "-", attempt_id.lower()).strip("-")
    if clean == attempt_id and len(clean) <= 45 and clean[:1].isalpha():
        return clean
    return f"f-{clean[:34].strip('-')}-{hashlib.sha256(attempt_id.encode()).hexdigest()[:8]}"


def launcher(attempt: Attempt) -> Json:
    """The launcher and what starts it, under a name that says what it holds."""
    held = {"falaj-worker.pyz": attempt.launcher, "pod.py": _first()}
    if sum(map(len, held.values())) > _MOST_CONFIG:
        raise Invalid("the launcher is too large for a ConfigMap", "install falaj in the image instead")
    about = {"name": _launcher_name(attempt), "labels": {OURS: "falaj"}}
    data = {name: _b64(content) for name, content in held.items()}
    return _object("v1", "ConfigMap", about, immutable=True, binaryData=data)


def service(attempt: Attempt, site: Site) -> Json:
    """The headless service that all else belongs to."""
    name = name_of(attempt.id)
    notes = {ID: attempt.id, SLOTS: str(len(attempt.slots)), OBJECT: site.object, "falaj.dev/job": attempt.job}
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {ATTEMPT: name}}
    ports = [{"name": "rendezvous", "port": PORT}]
    about = {"name": name, "labels": _labels(attempt), "annotations": notes}
    return _object("v1", "Service", about, spec=spec | {"ports": ports})


def belongings(
    attempt: Attempt, site: Site, owner: str, devices: Mapping[int, Mapping[str, int]], reach: Sequence[str]
) -> list[Json]:
    """All that belongs to the service with the uid `owner`; each slot with its devices, and where it may call."""
    name = name_of(attempt.id)
    belongs = [{"apiVersion": "v1", "kind": "Service", "name": name, "uid": owner}]
    about: Json = {"name": name, "labels": _labels(attempt), "ownerReferences": belongs}
    data = {"context.json": json.dumps(_context(attempt, site)).encode()}
    data |= {f"env.{key}": value.encode() for key, value in launcher_environment(attempt).items()}
    secret = _object("v1", "Secret", about, type="Opaque", immutable=True, data={k: _b64(v) for k, v in data.items()})
    rules = {"podSelector": {"matchLabels": {ATTEMPT: name}}, **_network(name, site, reach)}
    policy = _object("networking.k8s.io/v1", "NetworkPolicy", about, spec=rules)
    return [secret, policy, *_work(attempt, site, about, devices)]


def _launcher_name(attempt: Attempt) -> str:
    return f"falaj-launcher-{hashlib.sha256(attempt.launcher + _first()).hexdigest()[:20]}"


@cache
def _first() -> bytes:
    return (files("falaj.backends") / "kubernetes_pod.py").read_bytes()


def _work(attempt: Attempt, site: Site, about: Json, devices: Mapping[int, Mapping[str, int]]) -> list[Json]:
    outer = {**about, "labels": about["labels"] | ({QUEUE: site.queue} if site.queue else {})}
    wait = {"suspend": True} if site.queue else {}
    if site.object == "trainjob":
        return [_trainjob(attempt, site, outer, devices)]
    jobs = [(slot, _job(attempt, site, slot, devices.get(slot.index, {}))) for slot in attempt.slots]
    if site.object == "jobset":
        metas = [{"labels": _labels(attempt, slot)} for slot, _ in jobs]
        parts = [
            {"name": f"slot-{slot.index}", "replicas": 1, "template": {"metadata": meta, "spec": spec}}
            for meta, (slot, spec) in zip(metas, jobs, strict=True)
        ]
        spec = {"replicatedJobs": parts, "network": {"enableDNSHostnames": False}, "failurePolicy": {"maxRestarts": 0}}
        return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", outer, spec=spec | wait)]
    if site.queue and len(jobs) > 1:
        raise Invalid(
            "Kueue would admit the slots of this job one by one", "ask for object=jobset: it admits that whole"
        )
    return [_object("batch/v1", "Job", _slot_meta(attempt, slot, outer), spec=spec | wait) for slot, spec in jobs]


def _job(attempt: Attempt, site: Site, slot: Slot, devices: Mapping[str, int]) -> Json:
    """One pod, tried once: what comes after a failure is the platform's to decide."""
    name = name_of(attempt.id)
    notes = {"falaj.dev/job": attempt.job, "falaj.dev/role": slot.role}
    notes |= {DEVICES: ",".join(map(str, slot.devices))} if slot.devices else {}
    pod = _pod(attempt, site) | {"hostname": f"slot-{slot.index}", "subdomain": name, "affinity": _on([slot.node])}
    pod["containers"] = [_container(attempt, site, str(slot.index), _resources(slot, devices))]
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [disrupted]},
        "template": {"metadata": {"labels": _labels(attempt, slot), "annotations": notes}, "spec": pod},
    }


def _trainjob(attempt: Attempt, site: Site, about: Json, devices: Mapping[int, Mapping[str, int]]) -> Json:
    """Kubeflow's: equal slots, somewhere on the nodes that were chosen; its runtime makes the pods."""
    nodes = sorted({slot.node for slot in attempt.slots})
    asked = [_resources(slot, devices.get(slot.index, {})) for slot in attempt.slots]
    if any(one != asked[0] for one in asked) or len(nodes) not in (1, len(asked)):
        raise Invalid("slots of a TrainJob are equal, on one node or each on its own", "ask for object=jobset")
    node = _container(attempt, site, "$(JOB_COMPLETION_INDEX)", asked[0])
    pod = _pod(attempt, site)
    affinity = _on(nodes) | (_apart(name_of(attempt.id)) if len(nodes) > 1 else {})
    kept = (
        "securityContext",
        "serviceAccountName",
        "terminationGracePeriodSeconds",
        "tolerations",
        "volumes",
        "imagePullSecrets",
    )
    patch = {name: pod[name] for name in kept if name in pod} | {"affinity": affinity}
    patch["containers"] = [{"name": "node", **{key: node[key] for key in ("securityContext", "volumeMounts")}}]
    labels = {"metadata": {"labels": _labels(attempt)}}
    part = {"name": "node", "template": labels | {"spec": {"template": labels | {"spec": patch}}}}
    patches = {
        "manager": "falaj.dev/executor",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [part]}}},
    }
    trainer = {key: node[key] for key in ("image", "command", "env")} | {"numNodes": len(attempt.slots)}
    spec = {"runtimeRef": {"name": site.runtime}, "trainer": trainer | {"resourcesPerNode": asked[0]}}
    suspend = {"suspend": True} if site.queue else {}
    more = {"activeDeadlineSeconds": attempt.limit_s + attempt.grace_s + 600} if attempt.limit_s else {}
    whole = spec | suspend | more | {"runtimePatches": [patches]}
    return _object("trainer.kubeflow.org/v1alpha1", "TrainJob", about, spec=whole)


def _pod(attempt: Attempt, site: Site) -> Json:
    user = {"runAsNonRoot": True, "runAsUser": site.uid, "runAsGroup": site.uid, "fsGroup": site.uid}
    pod: Json = {
        "restartPolicy": "Never",
        "serviceAccountName": account(attempt, site),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": attempt.grace_s + 5,
        "securityContext": user | {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": tolerations(site.tolerations),
        "volumes": _volumes(attempt, site),
    }
    given = {"priorityClassName": site.priority_class, "runtimeClassName": site.runtime_class}
    pod |= {name: value for name, value in given.items() if value}
    if attempt.limit_s:
        # The launcher ends the slot at the limit itself; this is for one that hangs.
        pod["activeDeadlineSeconds"] = attempt.limit_s + attempt.grace_s + 600
    return pod | ({"imagePullSecrets": [{"name": site.pull_secret}]} if site.pull_secret else {})


def _volumes(attempt: Attempt, site: Site) -> list[Json]:
    name = name_of(attempt.id)
    said = [
        {"path": f"signals/{key.partition('/')[2]}", "fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
        for key in (STOP, CHECKPOINT)
    ]
    sources: list[Json] = [
        {"secret": {"name": name, "items": [{"key": "context.json", "path": "context.json"}]}},
        {"configMap": {"name": _launcher_name(attempt)}},
        {"downwardAPI": {"items": said}},
    ]
    own = [
        {"name": "falaj", "projected": {"sources": sources}},
        {"name": "work", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    shm = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    claims = [
        {"name": f"claim-{at}", "persistentVolumeClaim": {"claimName": claim}}
        for at, (claim, _) in enumerate(site.claims)
    ]
    return [*own, shm, *claims]


def _container(attempt: Attempt, site: Site, slot: str, resources: Json) -> Json:
    name = name_of(attempt.id)
    env: list[Json] = [{"name": "HOME", "value": _WORK}, {"name": "FALAJ_HOST", "value": _host(name, site, 0)}]
    env += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": f"env.{key}"}}}
        for key in launcher_environment(attempt)
    ]
    claims = [{"name": f"claim-{at}", "mountPath": path} for at, (_, path) in enumerate(site.claims)]
    return {
        "name": CONTAINER[site.object],
        "image": attempt.image or site.image,
        "command": [site.python, "-I", f"{_HOME}/pod.py", slot, _LAST_WORDS],
        "workingDir": _WORK,
        "env": env,
        "resources": resources,
        "terminationMessagePath": _LAST_WORDS,
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "falaj", "mountPath": _HOME, "readOnly": True},
            {"name": "work", "mountPath": _WORK},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # nosec B108 - a volume of the pod's own
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # nosec B108 - a volume of the pod's own
            *claims,
        ],
    }


def _resources(slot: Slot, devices: Mapping[str, int]) -> Json:
    cpu, memory = slot.amounts.get("cpu", 0), slot.amounts.get("memory", 0)
    asked = ({"cpu": f"{cpu}m"} if cpu else {}) | ({"memory": f"{memory}Mi"} if memory else {})
    asked |= {name: str(value) for name, value in slot.amounts.items() if name not in ("cpu", "memory") and value}
    asked |= {name: str(count) for name, count in devices.items()}
    return {"requests": asked, "limits": asked}


def _on(nodes: Sequence[str]) -> Json:
    """By the node's own name: a label that says the same is missing on some clusters."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _apart(name: str) -> Json:
    other = {"labelSelector": {"matchLabels": {ATTEMPT: name}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [other]}}


def _network(name: str, site: Site, reach: Iterable[str]) -> Json:
    peers = [{"podSelector": {"matchLabels": {ATTEMPT: name}}}]
    if "open" in site.egress:
        return {"policyTypes": ["Ingress"], "ingress": [{"from": peers}]}
    servers = [{"ipBlock": {"cidr": block}} for block in _as_blocks(site.dns)] or [_CLUSTER_DNS]
    dns = {"to": servers, "ports": [{"port": 53, "protocol": kind} for kind in ("UDP", "TCP")]}
    blocks = _as_blocks((*site.egress, *reach))
    outside = [{"to": [{"ipBlock": {"cidr": block}} for block in blocks]}] if blocks else []
    return {
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": peers}],
        "egress": [{"to": peers}, dns, *outside],
    }


def _as_blocks(addresses: Iterable[str]) -> list[str]:
    return sorted({str(ipaddress.ip_network(address)) for address in addresses})


def _context(attempt: Attempt, site: Site) -> Json:
    """The document, with where each slot is reached and a port. Its devices are numbered as its pod sees them."""
    name = name_of(attempt.id)
    places: Any = attempt.context.get("slots") or ()
    slots = [
        {**slot, "host": _host(name, site, slot["index"]), "devices": list(range(len(slot["devices"])))}
        for slot in places
    ]
    said: Any = attempt.context.get("rendezvous") or {}
    return {**attempt.context, "slots": slots, "rendezvous": {"host": "", **said, "port": said.get("port") or PORT}}


def _host(name: str, site: Site, index: int) -> str:
    pod = f"{name}-node-0-{index}" if site.object == "trainjob" else f"slot-{index}"
    return f"{pod}.{name}.{site.namespace}.svc"


def _slot_meta(attempt: Attempt, slot: Slot, about: Json) -> Json:
    labels = about["labels"] | _labels(attempt, slot)
    return {**about, "name": f"{about['name']}-{slot.index}", "labels": labels}


def _labels(attempt: Attempt, slot: Slot | None = None) -> dict[str, str]:
    known = {OURS: "falaj", ATTEMPT: name_of(attempt.id)}
    known |= {"falaj.dev/project": _label(attempt.project), "falaj.dev/tenant": _label(attempt.tenant)}
    return known | ({SLOT: str(slot.index)} if slot else {})


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def _object(version: str, kind: str, about: Json, **rest: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": about, **rest}


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
