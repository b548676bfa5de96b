"""Elastic capacity of a Kubernetes cluster: objects that own machines, and have the subresource `scale`.

That is the Cluster API's MachineDeployment or MachineSet, or anything that behaves as they do. Which node goes first
is said to it in its own way: by the annotation `cluster.x-k8s.io/delete-machine` on the node's Machine. Where a cloud
scales node pools by pods that wait, there is nothing to ask here: our pods are bound to nodes and never wait for one.

    kinds=gpu:cpus=16000,memory=65536,gpus=8,model=A100,most=4,label=pool=gpu,
          object=apis/cluster.x-k8s.io/v1beta1/namespaces/capi/machinedeployments/gpu
"""

import re
from collections.abc import Mapping, Sequence

from falaj.backends.kubernetes_api import JsonObject, KubernetesApi
from falaj.backends.node_kinds import read_node_kinds
from falaj.core.errors import Invalid
from falaj.core.executor import NodeInfo

_OBJECT_PATTERN = re.compile(r"(apis/[a-z0-9.-]+/v[a-z0-9]+)/namespaces/[a-z0-9-]+/[a-z]+/[a-z0-9.-]+")
_MACHINE_ANNOTATION, _NAMESPACE_ANNOTATION = "cluster.x-k8s.io/machine", "cluster.x-k8s.io/cluster-namespace"
_DELETE_FIRST_ANNOTATION = "cluster.x-k8s.io/delete-machine"


def read_machine_kinds(text: str) -> dict[str, NodeInfo]:
    """The kinds that were declared, each with the object that makes it and the label of its nodes."""
    kinds = read_node_kinds(text)
    for name, kind in kinds.items():
        if not _OBJECT_PATTERN.fullmatch(kind.labels.get("object", "")) or "=" not in kind.labels.get("label", ""):
            raise Invalid(
                f"the kind {name} does not say its object and its nodes' label", "object=apis/…,label=pool=gpu"
            )
    return kinds


class KubernetesScaling:
    """A part of the executor."""

    _api: KubernetesApi
    _kinds: Mapping[str, NodeInfo]

    def templates(self) -> Sequence[NodeInfo]:
        """The kinds that were declared."""
        return list(self._kinds.values())

    def scale(self, template: str, count: int) -> None:
        """Have so many."""
        kind = self._kinds.get(template)
        if kind is None or not 0 <= count <= int(kind.labels["most"]):
            raise Invalid(f"there cannot be {count} nodes {template!r} here", "the option `kinds` says how many")
        self._api.patch(f"/{kind.labels['object']}/scale", {"spec": {"replicas": count}})

    def retire(self, nodes: Sequence[str]) -> None:
        """Let these be the first to go when there are to be fewer. Nothing is done unless that holds for all."""
        node_objects = [self._api.get(f"/api/v1/nodes/{name}") for name in nodes]
        for path in [self._get_machine_path(node) for node in node_objects]:
            self._api.patch(path, {"metadata": {"annotations": {_DELETE_FIRST_ANNOTATION: "yes"}}})

    def _get_machine_path(self, node: JsonObject) -> str:
        metadata = node["metadata"]
        annotations = metadata.get("annotations") or {}
        kind = self._kinds.get(self._find_kind_name(node))
        object_match = _OBJECT_PATTERN.fullmatch(kind.labels["object"]) if kind is not None else None
        if object_match is None or _MACHINE_ANNOTATION not in annotations or _NAMESPACE_ANNOTATION not in annotations:
            # Another would go in its place, and with it what runs there.
            raise Invalid(f"the node {metadata['name']} has no machine", "the Cluster API annotates nodes with theirs")
        namespace, machine = annotations[_NAMESPACE_ANNOTATION], annotations[_MACHINE_ANNOTATION]
        return f"/{object_match[1]}/namespaces/{namespace}/machines/{machine}"

    def _find_kind_name(self, node: JsonObject) -> str:
        """The kind a node is of, by its label; empty when it is of none."""
        labels = node["metadata"].get("labels") or {}
        label_parts = {name: kind.labels["label"].partition("=") for name, kind in self._kinds.items()}
        return next((name for name, (key, _, value) in label_parts.items() if labels.get(key) == value), "")
