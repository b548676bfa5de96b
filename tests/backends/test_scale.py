"""Clusters whose own means make nodes: Ray's autoscaler, and the Cluster API of Kubernetes."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from falaj.backends.kubernetes import KubernetesExecutor
from falaj.backends.node_kinds import read_node_kinds
from falaj.backends.ray import RayExecutor
from falaj.core.errors import Invalid
from falaj.core.executor import SupportsScaling
from tests.servers.kube_cluster import KubeCluster, node
from tests.servers.process import Missing, wait_until
from tests.servers.ray import RayServer
from tests.town import refusal

OWNER = "apis/cluster.x-k8s.io/v1beta1/namespaces/capi/machinedeployments"
GPU = f"gpu:cpus=16000,memory=65536,gpus=8,model=A100,most=4,price=3000000,label=pool=gpu,object={OWNER}/gpu"


def test_kinds_are_read_as_they_are_written() -> None:
    kinds = read_node_kinds(f"{GPU}; tpu:cpus=8000,most=2,resource.tpu=4,spot=1")
    gpu, tpu = kinds["gpu"], kinds["tpu"]
    assert (gpu.amounts, [one.model for one in gpu.devices]) == ({"cpu": 16000, "memory": 65536}, ["A100"] * 8)
    assert (gpu.labels["label"], gpu.labels["template"], gpu.labels["price"]) == ("pool=gpu", "gpu", "3000000")
    assert (tpu.amounts["tpu"], tpu.devices, tpu.labels["spot"]) == (4, (), "1")
    assert read_node_kinds("") == {}
    for wrong in ("gpu", "gpu:cpus=1", "gpu:cpus=x,most=1", "a b:cpus=1,most=1", "gpu:cpus=1,most=-1"):
        assert isinstance(refusal(lambda text=wrong: read_node_kinds(text)), Invalid)


@pytest.fixture
def still() -> Iterator[KubeCluster]:
    try:
        made = KubeCluster(run=False)
    except Missing as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


def machine(still: KubeCluster, name: str, **notes: str) -> None:
    one: dict[str, Any] = node(name)
    one["metadata"]["labels"]["pool"] = "gpu"
    one["metadata"]["annotations"] = notes
    still.add("/api/v1/nodes", "", one)


def test_a_machine_deployment_grows_and_says_which_node_goes_first(still: KubeCluster) -> None:
    still.add(f"/{OWNER}".replace("/namespaces/capi", ""), "capi", {"metadata": {"name": "gpu"}, "spec": {}})
    machines = "/apis/cluster.x-k8s.io/v1beta1/machines"
    still.add(machines, "capi", {"metadata": {"name": "gpu-abc"}, "spec": {}})
    notes = {"cluster.x-k8s.io/machine": "gpu-abc", "cluster.x-k8s.io/cluster-namespace": "capi"}
    machine(still, "g1", **notes)
    machine(still, "g2")
    kube = still.executor(kinds=GPU)
    assert isinstance(kube, SupportsScaling)
    assert [kind.name for kind in kube.templates()] == ["gpu"]
    assert {one.name: one.labels.get("template") for one in kube.capacity()} == {
        "g1": "gpu", "g2": "gpu", "n1": None, "n2": None,
    }  # fmt: skip
    assert kube.capacity()[0].labels["price"] == "3000000"
    kube.scale("gpu", 3)
    (owner,) = still.objects("machinedeployments")
    assert owner["spec"] == {"replicas": 3}
    kube.retire(["g1"])
    (going,) = still.objects("machines")
    assert going["metadata"]["annotations"] == {"cluster.x-k8s.io/delete-machine": "yes"}
    # One whose machine is not known may not go: another would, with what runs on it.
    assert isinstance(refusal(lambda: kube.retire(["g2"])), Invalid)
    assert isinstance(refusal(lambda: kube.scale("gpu", 5)), Invalid)
    assert isinstance(refusal(lambda: kube.scale("cpu", 1)), Invalid)
    kube.close()


def test_a_kind_needs_its_object_and_label(still: KubeCluster) -> None:
    assert isinstance(refusal(lambda: still.executor(kinds="gpu:cpus=1000,most=1")), Invalid)
    plain = still.executor()
    assert isinstance(plain, KubernetesExecutor)
    assert plain.templates() == []
    plain.close()


# Ray's autoscaler listens when it comes round to it: on a busy machine that takes longer than the normal tier has.
@pytest.mark.slow
def test_rays_own_autoscaler_hears_what_is_wanted(ray_server: RayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_RAY_TOKEN", ray_server.token)
    kinds = "small:cpus=2000,most=9;big:cpus=4000,gpus=1,memory=1024,most=3"
    ray = RayExecutor(f"{ray_server.address}?token=env:A_RAY_TOKEN", {"kinds": kinds})

    def wanted() -> set[tuple[Any, ...]]:
        address = f"http://127.0.0.1:{ray_server.port}/api/cluster_status"
        headers = {"Authorization": f"Bearer {ray_server.token}"}
        told = httpx.get(address, params={"format": "1"}, headers=headers, trust_env=False, timeout=30).text
        lines = [line.strip() for line in told.split("\\n") if "from request_resources()" in line]
        # What one node has comes in any order.
        return {(*sorted(re.findall(r"'(\w+)': ([\d.]+)", line)), line.split("}: ")[1]) for line in lines}

    assert isinstance(ray, SupportsScaling)
    ray.scale("small", 1)
    ray.scale("big", 2)
    big = (("CPU", "4.0"), ("GPU", "1.0"), "2 from request_resources()")
    both = {big, (("CPU", "2.0"), "1 from request_resources()")}
    wait_until(lambda: wanted() == both, 60)
    ray.scale("big", 2)
    ray.scale("big", 0)
    ray.scale("small", 0)
    wait_until(lambda: wanted() == set(), 60)
    assert isinstance(refusal(lambda: ray.scale("big", 4)), Invalid)
    ray.close()
