"""Nodes of a Kubernetes cluster as the scheduler sees them: amounts, devices, labels, what others use, who leaves."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from falaj.core.execute import Device, NodeFacts

OURS = "app.kubernetes.io/managed-by"
DEVICES = "falaj.dev/devices"
"""Annotation of our pods: the indexes of the devices that the scheduler counts as theirs."""
_SUFFIX: dict[str, int | Decimal] = {
    "": 1,
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
}
_SUFFIX |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")
_ACCELERATORS = {
    "nvidia.com/gpu": ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"),
    "amd.com/gpu": ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
    "google.com/tpu": ("cloud.google.com/gke-tpu-accelerator",),
}
_MIG = "nvidia.com/mig-"
_SHORT = {
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    "region": ("topology.kubernetes.io/region",),
    "rack": (
        "topology.kubernetes.io/rack",
        "cloud.google.com/gce-topology-subblock",
        "topology.k8s.aws/network-node-layer-3",
    ),
    "island": ("nvidia.com/gpu.clique",),
    "instance": ("node.kubernetes.io/instance-type",),
}
_SPOT = {
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
_LEAVING_S = {
    "aws-node-termination-handler/spot-itn": 120,
    "aws-node-termination-handler/scheduled-maintenance": 120,
    "cloud.google.com/impending-node-termination": 30,
    "karpenter.sh/disrupted": 60,
    "karpenter.sh/disruption": 60,
    "ToBeDeletedByClusterAutoscaler": 60,
    "node.cloudprovider.kubernetes.io/shutdown": 0,
    "node.kubernetes.io/out-of-service": 0,
}
"""Taints that say a node goes, and how long after."""


def facts(
    node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], tolerated: Sequence[str], namespace: str
) -> NodeFacts:
    """One node, with the pods that are bound to it."""
    about, status = node["metadata"], node.get("status") or {}
    labels: Mapping[str, str] = about.get("labels") or {}
    others, held = [], set()
    for pod in pods:
        if _ours(pod, namespace):
            words = (pod["metadata"].get("annotations") or {}).get(DEVICES, "")
            held |= {int(word) for word in words.split(",") if word.isdigit()}
        else:
            others.append(requests(pod))
    known = devices(node)
    return NodeFacts(
        about["name"],
        _amounts(status.get("allocatable") or {}, known.values()),
        tuple(known),
        _labels(labels),
        _ready(node, tolerated),
        _amounts(_sum(others), known.values()),
        _taken(known, _sum(others), held),
        _leaving(node),
    )


def devices(node: Mapping[str, Any]) -> dict[Device, str]:
    """Its devices, each with the resource that a pod asks for to have one. Kubernetes chooses which one it is."""
    labels = node["metadata"].get("labels") or {}
    found: dict[Device, str] = {}
    for resource, count in sorted(((node.get("status") or {}).get("allocatable") or {}).items()):
        if resource not in _ACCELERATORS and not resource.startswith(_MIG):
            continue
        model, memory = _model(resource, labels)
        for _ in range(int(quantity(count))):
            found[Device(len(found), model, memory)] = resource
    return found


def requests(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """What a pod holds: its containers together, or its largest step before them."""
    spec = pod.get("spec") or {}
    steps = spec.get("initContainers") or ()
    beside = [one for one in steps if one.get("restartPolicy") == "Always"]
    whole = _sum(_asked(one) for one in (*(spec.get("containers") or ()), *beside))
    for step in steps:
        for name, value in _asked(step).items():
            whole[name] = max(whole.get(name, value), value)
    return _sum((whole, _read(spec.get("overhead") or {})))


def quantity(text: object) -> Decimal:
    """A quantity as Kubernetes writes it: 500m, 16Gi, 1e3."""
    match = _QUANTITY.fullmatch(str(text))
    try:
        return Decimal(match[1]) * _SUFFIX[match[2]] if match else Decimal(0)
    except (InvalidOperation, KeyError):
        return Decimal(0)


def instant(text: object) -> float:
    """Seconds since the epoch of a time as Kubernetes writes it; 0 when there is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def tolerations(keys: Sequence[str]) -> list[dict[str, Any]]:
    """Kubernetes forgives a silent node five minutes; a gang that waits for it does not want to."""
    soon = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
        for what in ("not-ready", "unreachable")
    ]
    return [*soon, *({"key": key, "operator": "Exists"} for key in keys)]


def _ours(pod: Mapping[str, Any], namespace: str) -> bool:
    about = pod["metadata"]
    return about.get("namespace") == namespace and (about.get("labels") or {}).get(OURS) == "falaj"


def _asked(container: Mapping[str, Any]) -> dict[str, Decimal]:
    asked = container.get("resources") or {}
    return _read({**(asked.get("limits") or {}), **(asked.get("requests") or {})})


def _read(said: Mapping[str, Any]) -> dict[str, Decimal]:
    return {name: quantity(value) for name, value in said.items()}


def _sum(many: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for one in many:
        for name, value in one.items():
            found[name] = found.get(name, Decimal(0)) + value
    return found


def _amounts(said: Mapping[str, Any], accelerators: Iterable[str]) -> dict[str, int]:
    """CPU in thousandths, memory in MiB, other extended resources by their own names."""
    left, known = _read(said), {*accelerators, *_ACCELERATORS}
    whole = {"cpu": int(left.get("cpu", 0) * 1000), "memory": int(left.get("memory", 0)) >> 20}
    return whole | {name: int(value) for name, value in left.items() if "/" in name and name not in known}


def _model(resource: str, labels: Mapping[str, str]) -> tuple[str, int]:
    if resource.startswith(_MIG):
        slice_ = resource.removeprefix(_MIG)
        product = labels.get("nvidia.com/gpu.product", "")
        memory = labels.get(f"{resource}.memory", "") or str(1024 * int((re.findall(r"\.(\d+)gb", slice_) or [0])[0]))
        return f"{product}-MIG-{slice_}" if product else f"MIG-{slice_}", int(memory)
    names = _ACCELERATORS[resource]
    model = next((labels[name] for name in names if name in labels), resource.rpartition("/")[2])
    memory = labels.get("nvidia.com/gpu.memory", "0") if resource.startswith("nvidia") else "0"
    return model, int(memory) if memory.isdigit() else 0


def _taken(known: Mapping[Device, str], used: Mapping[str, Decimal], held: set[int]) -> tuple[int, ...]:
    """As many devices of a kind as others have: which ones, nobody knows; so the last of those that are not ours."""
    left = {resource: int(used.get(resource, 0)) for resource in set(known.values())}
    found = []
    for device in sorted(known, key=lambda one: (one.index in held, -one.index)):
        if left[known[device]] > 0:
            left[known[device]] -= 1
            found.append(device.index)
    return tuple(sorted(found))


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The cluster's own, and those the scheduler knows under short names."""
    short = {name: labels[key] for name, keys in _SHORT.items() for key in reversed(keys) if key in labels}
    spot = {"spot": "true"} if any(labels.get(key) == value for key, value in _SPOT.items()) else {}
    return {key: value for key, value in labels.items() if not key.startswith("feature.node.")} | short | spot


def _ready(node: Mapping[str, Any], tolerated: Sequence[str]) -> bool:
    spec, conditions = node.get("spec") or {}, (node.get("status") or {}).get("conditions") or ()
    closed = [one for one in spec.get("taints") or () if one.get("effect") in ("NoSchedule", "NoExecute")]
    up = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return up and not spec.get("unschedulable") and all(one.get("key") in tolerated for one in closed)


def _leaving(node: Mapping[str, Any]) -> float:
    about = node["metadata"]
    found = [instant(about["deletionTimestamp"])] if about.get("deletionTimestamp") else []
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("key") in _LEAVING_S:
            value = str(taint.get("value", ""))
            since = instant(taint.get("timeAdded")) or (float(value) if value.isdigit() else 0.0)
            found.append(max(1.0, since + _LEAVING_S[taint["key"]]))
    return min(found, default=0.0)
