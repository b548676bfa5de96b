"""Nodes of a Kubernetes cluster as the scheduler sees them: amounts, devices, labels, what others use, who leaves."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from falaj.core.executor import Device, NodeInfo

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
DEVICES_ANNOTATION = "falaj.dev/devices"
"""Annotation of our pods: the indexes of the devices that the scheduler counts as theirs."""
_QUANTITY_FACTORS: dict[str, int | Decimal] = {
    "": 1,
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
}
_QUANTITY_FACTORS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_QUANTITY_PATTERN = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")
_ACCELERATOR_LABELS = {
    "nvidia.com/gpu": ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"),
    "amd.com/gpu": ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
    "google.com/tpu": ("cloud.google.com/gke-tpu-accelerator",),
}
_MIG_PREFIX = "nvidia.com/mig-"
_SHORT_LABELS = {
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
_SPOT_LABELS = {
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
_LEAVE_DELAY_BY_TAINT = {
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


def read_node(
    node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], tolerated_taints: Sequence[str], namespace: str
) -> NodeInfo:
    """One node, with the pods that are bound to it."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels: Mapping[str, str] = metadata.get("labels") or {}
    other_requests, own_device_indexes = [], set()
    for pod in pods:
        if _is_own_pod(pod, namespace):
            index_text = (pod["metadata"].get("annotations") or {}).get(DEVICES_ANNOTATION, "")
            own_device_indexes |= {int(index) for index in index_text.split(",") if index.isdigit()}
        else:
            other_requests.append(sum_requests(pod))
    resource_by_device = list_devices(node)
    return NodeInfo(
        metadata["name"],
        _to_amounts(status.get("allocatable") or {}, resource_by_device.values()),
        tuple(resource_by_device),
        _read_labels(labels),
        _is_ready(node, tolerated_taints),
        _to_amounts(_sum_amounts(other_requests), resource_by_device.values()),
        _choose_taken_devices(resource_by_device, _sum_amounts(other_requests), own_device_indexes),
        _read_leave_time(node),
    )


def list_devices(node: Mapping[str, Any]) -> dict[Device, str]:
    """Its devices, each with the resource that a pod asks for to have one. Kubernetes chooses which one it is."""
    labels = node["metadata"].get("labels") or {}
    resource_by_device: dict[Device, str] = {}
    for resource, count in sorted(((node.get("status") or {}).get("allocatable") or {}).items()):
        if resource not in _ACCELERATOR_LABELS and not resource.startswith(_MIG_PREFIX):
            continue
        model, memory = _read_device_model(resource, labels)
        for _ in range(int(parse_quantity(count))):
            resource_by_device[Device(len(resource_by_device), model, memory)] = resource
    return resource_by_device


def sum_requests(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """What a pod holds: its containers together, or its largest step before them."""
    spec = pod.get("spec") or {}
    init_containers = spec.get("initContainers") or ()
    sidecars = [container for container in init_containers if container.get("restartPolicy") == "Always"]
    total = _sum_amounts(_read_requests(container) for container in (*(spec.get("containers") or ()), *sidecars))
    for init_container in init_containers:
        for name, value in _read_requests(init_container).items():
            total[name] = max(total.get(name, value), value)
    return _sum_amounts((total, _read_quantities(spec.get("overhead") or {})))


def parse_quantity(text: object) -> Decimal:
    """A quantity as Kubernetes writes it: 500m, 16Gi, 1e3."""
    match = _QUANTITY_PATTERN.fullmatch(str(text))
    try:
        return Decimal(match[1]) * _QUANTITY_FACTORS[match[2]] if match else Decimal(0)
    except (InvalidOperation, KeyError):
        return Decimal(0)


def parse_time(text: object) -> float:
    """Seconds since the epoch of a time as Kubernetes writes it; 0 when there is none."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def make_tolerations(keys: Sequence[str]) -> list[dict[str, Any]]:
    """Kubernetes forgives a silent node five minutes; a gang that waits for it does not want to."""
    default_tolerations = [
        {"key": f"node.kubernetes.io/{condition}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
        for condition in ("not-ready", "unreachable")
    ]
    return [*default_tolerations, *({"key": key, "operator": "Exists"} for key in keys)]


def _is_own_pod(pod: Mapping[str, Any], namespace: str) -> bool:
    metadata = pod["metadata"]
    return metadata.get("namespace") == namespace and (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) == "falaj"


def _read_requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    return _read_quantities({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _read_quantities(quantity_texts: Mapping[str, Any]) -> dict[str, Decimal]:
    return {name: parse_quantity(value) for name, value in quantity_texts.items()}


def _sum_amounts(amount_maps: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for amounts in amount_maps:
        for name, value in amounts.items():
            total[name] = total.get(name, Decimal(0)) + value
    return total


def _to_amounts(quantity_texts: Mapping[str, Any], accelerators: Iterable[str]) -> dict[str, int]:
    """CPU in thousandths, memory in MiB, other extended resources by their own names."""
    quantities, accelerator_names = _read_quantities(quantity_texts), {*accelerators, *_ACCELERATOR_LABELS}
    amounts = {"cpu": int(quantities.get("cpu", 0) * 1000), "memory": int(quantities.get("memory", 0)) >> 20}
    return amounts | {
        name: int(value) for name, value in quantities.items() if "/" in name and name not in accelerator_names
    }


def _read_device_model(resource: str, labels: Mapping[str, str]) -> tuple[str, int]:
    if resource.startswith(_MIG_PREFIX):
        slice_ = resource.removeprefix(_MIG_PREFIX)
        product = labels.get("nvidia.com/gpu.product", "")
        memory = labels.get(f"{resource}.memory", "") or str(1024 * int((re.findall(r"\.(\d+)gb", slice_) or [0])[0]))
        return f"{product}-MIG-{slice_}" if product else f"MIG-{slice_}", int(memory)
    names = _ACCELERATOR_LABELS[resource]
    model = next((labels[name] for name in names if name in labels), resource.rpartition("/")[2])
    memory = labels.get("nvidia.com/gpu.memory", "0") if resource.startswith("nvidia") else "0"
    return model, int(memory) if memory.isdigit() else 0


def _choose_taken_devices(
    resource_by_device: Mapping[Device, str], used: Mapping[str, Decimal], own_device_indexes: set[int]
) -> tuple[int, ...]:
    """As many devices of a kind as others have: which ones, nobody knows; so the last of those that are not ours."""
    remaining = {resource: int(used.get(resource, 0)) for resource in set(resource_by_device.values())}
    taken_indexes = []
    for device in sorted(
        resource_by_device, key=lambda candidate: (candidate.index in own_device_indexes, -candidate.index)
    ):
        if remaining[resource_by_device[device]] > 0:
            remaining[resource_by_device[device]] -= 1
            taken_indexes.append(device.index)
    return tuple(sorted(taken_indexes))


def _read_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The cluster's own, and those the scheduler knows under short names."""
    short_labels = {
        name: labels[key] for name, keys in _SHORT_LABELS.items() for key in reversed(keys) if key in labels
    }
    spot_label = {"spot": "true"} if any(labels.get(key) == value for key, value in _SPOT_LABELS.items()) else {}
    return (
        {key: value for key, value in labels.items() if not key.startswith("feature.node.")} | short_labels | spot_label
    )


def _is_ready(node: Mapping[str, Any], tolerated_taints: Sequence[str]) -> bool:
    spec, conditions = node.get("spec") or {}, (node.get("status") or {}).get("conditions") or ()
    blocking_taints = [
        taint_or_condition
        for taint_or_condition in spec.get("taints") or ()
        if taint_or_condition.get("effect") in ("NoSchedule", "NoExecute")
    ]
    is_up = any(
        taint_or_condition.get("type") == "Ready" and taint_or_condition.get("status") == "True"
        for taint_or_condition in conditions
    )
    return (
        is_up
        and not spec.get("unschedulable")
        and all(taint_or_condition.get("key") in tolerated_taints for taint_or_condition in blocking_taints)
    )


def _read_leave_time(node: Mapping[str, Any]) -> float:
    metadata = node["metadata"]
    leave_times = [parse_time(metadata["deletionTimestamp"])] if metadata.get("deletionTimestamp") else []
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("key") in _LEAVE_DELAY_BY_TAINT:
            value = str(taint.get("value", ""))
            tainted_at = parse_time(taint.get("timeAdded")) or (float(value) if value.isdigit() else 0.0)
            leave_times.append(max(1.0, tainted_at + _LEAVE_DELAY_BY_TAINT[taint["key"]]))
    return min(leave_times, default=0.0)
