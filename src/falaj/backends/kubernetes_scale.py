"""Elastic capacity of a Kubernetes cluster: objects that own machines, and have the subresource `scale`.

That is the Cluster API's MachineDeployment or MachineSet, or anything that behaves as they do. Which node goes first
is said to it in its own way: by the annotation `cluster.x-k8s.io/delete-machine` on the node's Machine. Where a cloud
scales node pools by pods that wait, there is nothing to ask here: our pods are bound to nodes and never wait for one.

    kinds=gpu:cpus=16000,memory=65536,gpus=8,model=A100,most=4,label=pool=gpu,
          object=apis/cluster.x-k8s.io/v1beta1/namespaces/capi/machinedeployments/gpu
"""

import re
from collections.abc import Mapping, Sequence

from falaj.backends.kubernetes_api import Json, KubeApi
from falaj.backends.node_kinds import read_kinds
from falaj.core.errors import Invalid
from falaj.core.execute import NodeFacts

_OBJECT = re.compile(r"(apis/[a-z0-9.-]+/v[a-z0-9]+)/namespaces/[a-z0-9-]+/[a-z]+/[a-z0-9.-]+")
_MACHINE, _NAMESPACE = "cluster.x-k8s.io/machine", "cluster.x-k8s.io/cluster-namespace"
_FIRST = "cluster.x-k8s.io/delete-machine"


def machine_kinds(text: str) -> dict[str, NodeFacts]:
    """The kinds that were declared, each with the object that makes it and the label of its nodes."""
    kinds = read_kinds(text)
    for name, kind in kinds.items():
        if not _OBJECT.fullmatch(kind.labels.get("object", "")) or "=" not in kind.labels.get("label", ""):
            raise Invalid(
                f"the kind {name} does not say its object and its nodes' label", "object=apis/…,label=pool=gpu"
            )
    return kinds


class KubeScaling:
    """A part of the executor."""

    _api: KubeApi
    _kinds: Mapping[str, NodeFacts]

    def templates(self) -> Sequence[NodeFacts]:
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
        found = [self._api.get(f"/api/v1/nodes/{name}") for name in nodes]
        for path in [self._machine(node) for node in found]:
            self._api.patch(path, {"metadata": {"annotations": {_FIRST: "yes"}}})

    def _machine(self, node: Json) -> str:
        about = node["metadata"]
        notes = about.get("annotations") or {}
        kind = self._kinds.get(self._kind_of(node))
        owner = _OBJECT.fullmatch(kind.labels["object"]) if kind is not None else None
        if owner is None or _MACHINE not in notes or _NAMESPACE not in notes:
            # Another would go in its place, and with it what runs there.
            raise Invalid(f"the node {about['name']} has no machine", "the Cluster API annotates nodes with theirs")
        return f"/{owner[1]}/namespaces/{notes[_NAMESPACE]}/machines/{notes[_MACHINE]}"

    def _kind_of(self, node: Json) -> str:
        """The kind a node is of, by its label; empty when it is of none."""
        labels = node["metadata"].get("labels") or {}
        words = {name: kind.labels["label"].partition("=") for name, kind in self._kinds.items()}
        return next((name for name, (key, _, value) in words.items() if labels.get(key) == value), "")
