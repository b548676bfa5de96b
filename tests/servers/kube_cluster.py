"""A small cluster in this process: the protocol server with kubelets, and two nodes of GPUs, some in slices."""

import shutil
from pathlib import Path
from typing import Any

from falaj.backends.kubernetes import KubernetesExecutor
from tests.servers.kube_kubelet import Kubelets
from tests.servers.kube_protocol import KubeProtocol
from tests.servers.kube_schemas import check

NAMESPACE = "falaj"


class KubeCluster:
    """`kube` is the server, `kubelets` run its pods; `executor()` opens an executor of ours on it."""

    def __init__(self, run: bool = True) -> None:
        check({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self.kube = KubeProtocol(check)
        self.kubelets = Kubelets(self.kube) if run else None
        self.token = self.kube.folder / "token"
        self.token.write_text(self.kube.token)
        self.add("/api/v1/serviceaccounts", NAMESPACE, {"metadata": {"name": "alice"}})
        for name in ("n1", "n2"):
            self.add("/api/v1/nodes", "", node(name))

    def add(self, place: str, namespace: str, one: dict[str, Any]) -> None:
        self.kube.store.create(place, namespace, one)

    def executor(self, **options: str) -> KubernetesExecutor:
        known = {
            "token": f"file:{self.token}",
            "ca": str(self.kube.ca),
            "image": "python:3.11",
            "service_account": "alice",
        }
        return KubernetesExecutor(f"kubernetes:{self.kube.url}?namespace={NAMESPACE}", known | options)

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All of one kind, by the last word of its path."""
        found = [mine for place, mine in self.kube.store.objects.items() if place.endswith(f"/{kind}")]
        return [one for mine in found for one in mine.values()]

    def close(self) -> None:
        self.kube.close()
        if self.kubelets is not None:
            self.kubelets.close()
        shutil.rmtree(Path(self.kube.folder), ignore_errors=True)


def node(name: str, **allocatable: str) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb": "2"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", **gpus, **allocatable},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
