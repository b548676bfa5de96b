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

from falaj.backends.kubernetes_nodes import DEVICES_ANNOTATION, MANAGED_BY_LABEL, make_tolerations
from falaj.backends.kubernetes_options import KubernetesOptions, get_service_account
from falaj.core.errors import Invalid
from falaj.core.executor import Attempt, Slot, build_launcher_environment

JsonObject = dict[str, Any]
ATTEMPT_LABEL, SLOT_LABEL, STOP_ANNOTATION, CHECKPOINT_ANNOTATION = (
    "falaj.dev/attempt",
    "falaj.dev/slot",
    "falaj.dev/stop",
    "falaj.dev/checkpoint",
)
ID_ANNOTATION, SLOTS_ANNOTATION, OBJECT_ANNOTATION = "falaj.dev/id", "falaj.dev/slots", "falaj.dev/object"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
RENDEZVOUS_PORT = 29500
"""Where rank 0 listens when nobody said: a pod has all ports to itself."""
CONTAINER_BY_OBJECT = {"job": "slot", "jobset": "slot", "trainjob": "node"}
_LAUNCHER_FOLDER, _WORK_FOLDER = "/falaj", "/scratch"
_TERMINATION_MESSAGE_PATH = "/dev/termination-log"
_MAX_CONFIG_MAP_BYTES = 900_000
_CLUSTER_DNS_PEER: JsonObject = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}
"""The DNS servers of a cluster: kube-dns and CoreDNS both carry this label, in this namespace."""


def make_object_name(attempt_id: str) -> str:
    """A name for an attempt's objects: of small letters, begins with one, leaves room for what controllers append."""
    sanitized_id = re.sub(r"[^a-z0-9]+", "-", attempt_id.lower()).strip("-")
    if sanitized_id == attempt_id and len(sanitized_id) <= 45 and sanitized_id[:1].isalpha():
        return sanitized_id
    return f"f-{sanitized_id[:34].strip('-')}-{hashlib.sha256(attempt_id.encode()).hexdigest()[:8]}"


def make_launcher_config(attempt: Attempt) -> JsonObject:
    """The launcher and what starts it, under a name that says what it holds."""
    content_by_name = {"falaj-worker.pyz": attempt.launcher, "pod.py": _read_pod_launcher()}
    if sum(map(len, content_by_name.values())) > _MAX_CONFIG_MAP_BYTES:
        raise Invalid("the launcher is too large for a ConfigMap", "install falaj in the image instead")
    metadata = {"name": _make_launcher_name(attempt), "labels": {MANAGED_BY_LABEL: "falaj"}}
    data = {name: _to_base64(content) for name, content in content_by_name.items()}
    return _make_object("v1", "ConfigMap", metadata, immutable=True, binaryData=data)


def make_service(attempt: Attempt, options: KubernetesOptions) -> JsonObject:
    """The headless service that all else belongs to."""
    name = make_object_name(attempt.id)
    annotations = {
        ID_ANNOTATION: attempt.id,
        SLOTS_ANNOTATION: str(len(attempt.slots)),
        OBJECT_ANNOTATION: options.object,
        "falaj.dev/job": attempt.job,
    }
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {ATTEMPT_LABEL: name}}
    ports = [{"name": "rendezvous", "port": RENDEZVOUS_PORT}]
    metadata = {"name": name, "labels": _make_labels(attempt), "annotations": annotations}
    return _make_object("v1", "Service", metadata, spec=spec | {"ports": ports})


def make_owned_objects(
    attempt: Attempt,
    options: KubernetesOptions,
    owner_uid: str,
    devices: Mapping[int, Mapping[str, int]],
    platform_addresses: Sequence[str],
) -> list[JsonObject]:
    """All that belongs to the service with the uid `owner_uid`; each slot with its devices, and where it may call."""
    name = make_object_name(attempt.id)
    owner_references = [{"apiVersion": "v1", "kind": "Service", "name": name, "uid": owner_uid}]
    metadata: JsonObject = {"name": name, "labels": _make_labels(attempt), "ownerReferences": owner_references}
    data = {"context.json": json.dumps(_make_context_document(attempt, options)).encode()}
    data |= {f"env.{key}": value.encode() for key, value in build_launcher_environment(attempt).items()}
    secret = _make_object(
        "v1",
        "Secret",
        metadata,
        type="Opaque",
        immutable=True,
        data={variable_name: _to_base64(variable_value) for variable_name, variable_value in data.items()},
    )
    rules = {
        "podSelector": {"matchLabels": {ATTEMPT_LABEL: name}},
        **_make_network_policy(name, options, platform_addresses),
    }
    policy = _make_object("networking.k8s.io/v1", "NetworkPolicy", metadata, spec=rules)
    return [secret, policy, *_make_workload(attempt, options, metadata, devices)]


def _make_launcher_name(attempt: Attempt) -> str:
    return f"falaj-launcher-{hashlib.sha256(attempt.launcher + _read_pod_launcher()).hexdigest()[:20]}"


@cache
def _read_pod_launcher() -> bytes:
    return (files("falaj.backends") / "kubernetes_pod.py").read_bytes()


def _make_workload(
    attempt: Attempt, options: KubernetesOptions, metadata: JsonObject, devices: Mapping[int, Mapping[str, int]]
) -> list[JsonObject]:
    workload_metadata = {
        **metadata,
        "labels": metadata["labels"] | ({QUEUE_LABEL: options.queue} if options.queue else {}),
    }
    suspend_field = {"suspend": True} if options.queue else {}
    if options.object == "trainjob":
        return [_make_train_job(attempt, options, workload_metadata, devices)]
    jobs = [(slot, _make_job_spec(attempt, options, slot, devices.get(slot.index, {}))) for slot in attempt.slots]
    if options.object == "jobset":
        slot_metadata = [{"labels": _make_labels(attempt, slot)} for slot, _ in jobs]
        replicated_jobs = [
            {"name": f"slot-{slot.index}", "replicas": 1, "template": {"metadata": job_metadata, "spec": spec}}
            for job_metadata, (slot, spec) in zip(slot_metadata, jobs, strict=True)
        ]
        spec = {
            "replicatedJobs": replicated_jobs,
            "network": {"enableDNSHostnames": False},
            "failurePolicy": {"maxRestarts": 0},
        }
        return [_make_object("jobset.x-k8s.io/v1alpha2", "JobSet", workload_metadata, spec=spec | suspend_field)]
    if options.queue and len(jobs) > 1:
        raise Invalid(
            "Kueue would admit the slots of this job one by one", "ask for object=jobset: it admits that whole"
        )
    return [
        _make_object(
            "batch/v1", "Job", _make_slot_metadata(attempt, slot, workload_metadata), spec=spec | suspend_field
        )
        for slot, spec in jobs
    ]


def _make_job_spec(attempt: Attempt, options: KubernetesOptions, slot: Slot, devices: Mapping[str, int]) -> JsonObject:
    """One pod, tried once: what comes after a failure is the platform's to decide."""
    name = make_object_name(attempt.id)
    annotations = {"falaj.dev/job": attempt.job, "falaj.dev/role": slot.role}
    annotations |= {DEVICES_ANNOTATION: ",".join(map(str, slot.devices))} if slot.devices else {}
    pod = _make_pod_spec(attempt, options) | {
        "hostname": f"slot-{slot.index}",
        "subdomain": name,
        "affinity": _make_node_affinity([slot.node]),
    }
    pod["containers"] = [_make_container(attempt, options, str(slot.index), _make_resources(slot, devices))]
    disruption_rule = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "completions": 1,
        "parallelism": 1,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [disruption_rule]},
        "template": {"metadata": {"labels": _make_labels(attempt, slot), "annotations": annotations}, "spec": pod},
    }


def _make_train_job(
    attempt: Attempt, options: KubernetesOptions, metadata: JsonObject, devices: Mapping[int, Mapping[str, int]]
) -> JsonObject:
    """Kubeflow's: equal slots, somewhere on the nodes that were chosen; its runtime makes the pods."""
    nodes = sorted({slot.node for slot in attempt.slots})
    slot_resources = [_make_resources(slot, devices.get(slot.index, {})) for slot in attempt.slots]
    if any(resources != slot_resources[0] for resources in slot_resources) or len(nodes) not in (
        1,
        len(slot_resources),
    ):
        raise Invalid("slots of a TrainJob are equal, on one node or each on its own", "ask for object=jobset")
    container = _make_container(attempt, options, "$(JOB_COMPLETION_INDEX)", slot_resources[0])
    pod = _make_pod_spec(attempt, options)
    affinity = _make_node_affinity(nodes) | (
        _make_pod_anti_affinity(make_object_name(attempt.id)) if len(nodes) > 1 else {}
    )
    copied_fields = (
        "securityContext",
        "serviceAccountName",
        "terminationGracePeriodSeconds",
        "tolerations",
        "volumes",
        "imagePullSecrets",
    )
    pod_patch = {name: pod[name] for name in copied_fields if name in pod} | {"affinity": affinity}
    pod_patch["containers"] = [{"name": "node", **{key: container[key] for key in ("securityContext", "volumeMounts")}}]
    labels = {"metadata": {"labels": _make_labels(attempt)}}
    replicated_job = {"name": "node", "template": labels | {"spec": {"template": labels | {"spec": pod_patch}}}}
    patches = {
        "manager": "falaj.dev/executor",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated_job]}}},
    }
    trainer = {key: container[key] for key in ("image", "command", "env")} | {"numNodes": len(attempt.slots)}
    spec = {"runtimeRef": {"name": options.runtime}, "trainer": trainer | {"resourcesPerNode": slot_resources[0]}}
    suspend_field = {"suspend": True} if options.queue else {}
    deadline_field = {"activeDeadlineSeconds": attempt.limit_s + attempt.grace_s + 600} if attempt.limit_s else {}
    full_spec = spec | suspend_field | deadline_field | {"runtimePatches": [patches]}
    return _make_object("trainer.kubeflow.org/v1alpha1", "TrainJob", metadata, spec=full_spec)


def _make_pod_spec(attempt: Attempt, options: KubernetesOptions) -> JsonObject:
    security_context = {
        "runAsNonRoot": True,
        "runAsUser": options.uid,
        "runAsGroup": options.uid,
        "fsGroup": options.uid,
    }
    pod: JsonObject = {
        "restartPolicy": "Never",
        "serviceAccountName": get_service_account(attempt, options),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": attempt.grace_s + 5,
        "securityContext": security_context | {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": make_tolerations(options.tolerations),
        "volumes": _make_volumes(attempt, options),
    }
    optional_fields = {"priorityClassName": options.priority_class, "runtimeClassName": options.runtime_class}
    pod |= {name: value for name, value in optional_fields.items() if value}
    if attempt.limit_s:
        # The launcher ends the slot at the limit itself; this is for one that hangs.
        pod["activeDeadlineSeconds"] = attempt.limit_s + attempt.grace_s + 600
    return pod | ({"imagePullSecrets": [{"name": options.pull_secret}]} if options.pull_secret else {})


def _make_volumes(attempt: Attempt, options: KubernetesOptions) -> list[JsonObject]:
    name = make_object_name(attempt.id)
    signal_items = [
        {"path": f"signals/{key.partition('/')[2]}", "fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
        for key in (STOP_ANNOTATION, CHECKPOINT_ANNOTATION)
    ]
    sources: list[JsonObject] = [
        {"secret": {"name": name, "items": [{"key": "context.json", "path": "context.json"}]}},
        {"configMap": {"name": _make_launcher_name(attempt)}},
        {"downwardAPI": {"items": signal_items}},
    ]
    own_volumes = [
        {"name": "falaj", "projected": {"sources": sources}},
        {"name": "work", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    shm_volume = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    claims = [
        {"name": f"claim-{claim_index}", "persistentVolumeClaim": {"claimName": claim}}
        for claim_index, (claim, _) in enumerate(options.claims)
    ]
    return [*own_volumes, shm_volume, *claims]


def _make_container(attempt: Attempt, options: KubernetesOptions, slot: str, resources: JsonObject) -> JsonObject:
    name = make_object_name(attempt.id)
    env: list[JsonObject] = [
        {"name": "HOME", "value": _WORK_FOLDER},
        {"name": "FALAJ_HOST", "value": _make_slot_host(name, options, 0)},
    ]
    env += [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": f"env.{key}"}}}
        for key in build_launcher_environment(attempt)
    ]
    claims = [
        {"name": f"claim-{claim_index}", "mountPath": path} for claim_index, (_, path) in enumerate(options.claims)
    ]
    return {
        "name": CONTAINER_BY_OBJECT[options.object],
        "image": attempt.image or options.image,
        "command": [options.python, "-I", f"{_LAUNCHER_FOLDER}/pod.py", slot, _TERMINATION_MESSAGE_PATH],
        "workingDir": _WORK_FOLDER,
        "env": env,
        "resources": resources,
        "terminationMessagePath": _TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "falaj", "mountPath": _LAUNCHER_FOLDER, "readOnly": True},
            {"name": "work", "mountPath": _WORK_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # nosec B108 - a volume of the pod's own
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # nosec B108 - a volume of the pod's own
            *claims,
        ],
    }


def _make_resources(slot: Slot, devices: Mapping[str, int]) -> JsonObject:
    cpu, memory = slot.amounts.get("cpu", 0), slot.amounts.get("memory", 0)
    amounts = ({"cpu": f"{cpu}m"} if cpu else {}) | ({"memory": f"{memory}Mi"} if memory else {})
    amounts |= {name: str(value) for name, value in slot.amounts.items() if name not in ("cpu", "memory") and value}
    amounts |= {name: str(count) for name, count in devices.items()}
    return {"requests": amounts, "limits": amounts}


def _make_node_affinity(nodes: Sequence[str]) -> JsonObject:
    """By the node's own name: a label that says the same is missing on some clusters."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _make_pod_anti_affinity(name: str) -> JsonObject:
    affinity_term = {"labelSelector": {"matchLabels": {ATTEMPT_LABEL: name}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [affinity_term]}}


def _make_network_policy(name: str, options: KubernetesOptions, platform_addresses: Iterable[str]) -> JsonObject:
    attempt_peers = [{"podSelector": {"matchLabels": {ATTEMPT_LABEL: name}}}]
    if "open" in options.egress:
        return {"policyTypes": ["Ingress"], "ingress": [{"from": attempt_peers}]}
    dns_peers = [{"ipBlock": {"cidr": block}} for block in _to_cidr_blocks(options.dns)] or [_CLUSTER_DNS_PEER]
    dns_rule = {"to": dns_peers, "ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]}
    blocks = _to_cidr_blocks((*options.egress, *platform_addresses))
    outside_rules = [{"to": [{"ipBlock": {"cidr": block}} for block in blocks]}] if blocks else []
    return {
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": attempt_peers}],
        "egress": [{"to": attempt_peers}, dns_rule, *outside_rules],
    }


def _to_cidr_blocks(addresses: Iterable[str]) -> list[str]:
    return sorted({str(ipaddress.ip_network(address)) for address in addresses})


def _make_context_document(attempt: Attempt, options: KubernetesOptions) -> JsonObject:
    """The document, with where each slot is reached and a port. Its devices are numbered as its pod sees them."""
    name = make_object_name(attempt.id)
    slot_documents: Any = attempt.context.get("slots") or ()
    slots = [
        {**slot, "host": _make_slot_host(name, options, slot["index"]), "devices": list(range(len(slot["devices"])))}
        for slot in slot_documents
    ]
    rendezvous: Any = attempt.context.get("rendezvous") or {}
    return {
        **attempt.context,
        "slots": slots,
        "rendezvous": {"host": "", **rendezvous, "port": rendezvous.get("port") or RENDEZVOUS_PORT},
    }


def _make_slot_host(name: str, options: KubernetesOptions, index: int) -> str:
    pod = f"{name}-node-0-{index}" if options.object == "trainjob" else f"slot-{index}"
    return f"{pod}.{name}.{options.namespace}.svc"


def _make_slot_metadata(attempt: Attempt, slot: Slot, metadata: JsonObject) -> JsonObject:
    labels = metadata["labels"] | _make_labels(attempt, slot)
    return {**metadata, "name": f"{metadata['name']}-{slot.index}", "labels": labels}


def _make_labels(attempt: Attempt, slot: Slot | None = None) -> dict[str, str]:
    labels = {MANAGED_BY_LABEL: "falaj", ATTEMPT_LABEL: make_object_name(attempt.id)}
    labels |= {
        "falaj.dev/project": _sanitize_label(attempt.project),
        "falaj.dev/tenant": _sanitize_label(attempt.tenant),
    }
    return labels | ({SLOT_LABEL: str(slot.index)} if slot else {})


def _sanitize_label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("-_.")


def _make_object(version: str, kind: str, metadata: JsonObject, **other_fields: Any) -> JsonObject:
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **other_fields}


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
