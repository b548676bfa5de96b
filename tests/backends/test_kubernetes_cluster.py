"""The executor on a real control plane with hollow GPU nodes, and its objects before the real API server of CRDs."""

from collections.abc import Iterator

import pytest

from falaj.backends.kubernetes import KubernetesExecutor
from falaj.backends.kubernetes_manifests import make_owned_objects
from falaj.backends.kubernetes_options import KubernetesOptions
from falaj.core.errors import Invalid
from falaj.core.executor import FAILED, LOST, RUNNING, SUCCEEDED, UNKNOWN, WAITING, Slot
from tests.backends.attempts import attempt, slots, wait_for
from tests.servers.kube_schemas import crd
from tests.servers.kubernetes import NODES, ControlPlane, CrdServer
from tests.servers.process import Missing, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EIGHT = tuple(
    Slot(at, name, amounts={"cpu": 500, "memory": 64}, devices=tuple(range(8))) for at, name in enumerate(NODES)
)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    try:
        made = ControlPlane()
    except Missing as missing:
        pytest.skip(str(missing))
    with made as running:
        yield running


@pytest.fixture
def kube(plane: ControlPlane) -> Iterator[KubernetesExecutor]:
    token = plane.folder / "token"
    token.write_text(plane.token)
    known = {"token": f"file:{token}", "ca": str(plane.ca), "image": "python:3.11", "service_account": "default"}
    made = KubernetesExecutor(f"kubernetes:https://127.0.0.1:{plane.port}?namespace=default", known)
    yield made
    made.close()


def _end(plane: ControlPlane, handle: str, slot: int, code: int) -> None:
    """Say of a pod what its kubelet would, had it run anything; the kubelet must be silent, or it says otherwise."""
    found = plane.call(
        "GET", f"/api/v1/namespaces/default/pods?labelSelector=falaj.dev/attempt={handle},falaj.dev/slot={slot}"
    )
    (pod,) = found["items"]
    end = {
        "exitCode": code,
        "startedAt": "2027-01-15T08:00:00Z",
        "finishedAt": "2027-01-15T08:00:09Z",
        "reason": "Error" if code else "Completed",
    }
    container = {
        "name": "slot",
        "ready": False,
        "restartCount": 0,
        "image": "i",
        "imageID": "i",
        "state": {"terminated": end},
    }
    status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
    plane.call("PATCH", path, {"status": status}, "application/merge-patch+json")


def test_two_nodes_of_eight_gpus_are_taken_and_given_back(plane: ControlPlane, kube: KubernetesExecutor) -> None:
    nodes = {node.name: node for node in kube.capacity()}
    assert set(nodes) == set(NODES)
    assert all(node.ready and len(node.devices) == 8 and not node.taken_devices for node in nodes.values())
    one = attempt(EIGHT, "pass", secret_env={"TOKEN": "seventeen"})
    handle = kube.launch(one)
    assert kube.launch(one) == handle
    wait_for(kube, handle, lambda status: status.phase == RUNNING)
    found = plane.call("GET", f"/api/v1/namespaces/default/pods?labelSelector=falaj.dev/attempt={handle}")["items"]
    placed = {pod["metadata"]["labels"]["falaj.dev/slot"]: pod["spec"]["nodeName"] for pod in found}
    assert placed == {"0": "gpu-0", "1": "gpu-1"}
    assert "seventeen" not in str(found)
    assert [node.taken_devices for node in kube.capacity()] == [(), ()]

    crowd = kube.launch(attempt(EIGHT[:1], "pass"))
    status = wait_for(kube, crowd, lambda status: bool(status.reason))
    assert (status.phase, "Insufficient nvidia.com/gpu" in status.reason or "nodes are available" in status.reason) == (
        WAITING,
        True,
    )
    kube.stop(crowd, 5)
    assert wait_for(kube, crowd, lambda status: status.phase == FAILED).exits[0].code == 143

    plane.restart()
    kube.checkpoint(handle)
    with plane.silent(*NODES):
        _end(plane, handle, 0, 0)
        _end(plane, handle, 1, 0)
        done = wait_for(kube, handle, lambda status: status.phase == SUCCEEDED)
    assert ([one.code for one in done.exits], done.ended - done.started) == ([0, 0], 9)
    for each in (handle, crowd):
        kube.forget(each)
        assert kube.poll([each])[0].phase == UNKNOWN
    kinds = (
        "api/v1/namespaces/default/pods",
        "apis/batch/v1/namespaces/default/jobs",
        "api/v1/namespaces/default/services",
        "apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
    )
    wait_until(
        lambda: not any(plane.call("GET", f"/{kind}?labelSelector=falaj.dev/attempt")["items"] for kind in kinds), 120
    )


def test_a_failed_slot_ends_its_gang_and_a_deleted_job_is_lost(plane: ControlPlane, kube: KubernetesExecutor) -> None:
    bad = kube.launch(attempt(slots(*NODES, cpu=100), "pass"))
    wait_for(kube, bad, lambda status: status.phase == RUNNING)
    wait_until(lambda: len(_pods(plane, bad)) == 2, 60)
    gone = kube.launch(attempt(slots("gpu-1", cpu=100), "pass"))
    wait_for(kube, gone, lambda status: status.phase == RUNNING)
    with plane.silent(NODES[1]):
        _end(plane, bad, 1, 9)
        # No launcher is there to obey: it is deleted when its grace is over.
        done = wait_for(kube, bad, lambda status: status.phase == FAILED, 120)
    assert {one.index: one.code for one in done.exits}[1] == 9
    plane.call("DELETE", f"/apis/batch/v1/namespaces/default/jobs/{gone}-0", {"propagationPolicy": "Background"})
    assert "deleted" in wait_for(kube, gone, lambda status: status.phase == LOST, 120).reason


def _pods(plane: ControlPlane, handle: str) -> list[str]:
    found = plane.call("GET", f"/api/v1/namespaces/default/pods?labelSelector=falaj.dev/attempt={handle}")["items"]
    return [pod["metadata"]["name"] for pod in found]


def test_what_the_server_does_not_take_leaves_nothing(plane: ControlPlane, kube: KubernetesExecutor) -> None:
    wrong = attempt((Slot(0, "gpu-0", amounts={"cpu": 100, "no such resource/x": 1}),), "pass")
    with pytest.raises(Invalid, match="refuses"):
        kube.launch(wrong)
    wait_until(lambda: kube.poll([wrong.id])[0].phase == UNKNOWN, 60)


def test_a_full_namespace_says_so(plane: ControlPlane, kube: KubernetesExecutor) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    path = "/api/v1/namespaces/default/resourcequotas"
    plane.call("POST", path, quota)
    wait_until(lambda: bool(plane.call("GET", f"{path}/none").get("status", {}).get("hard")), 60)
    handle = kube.launch(attempt(slots("gpu-0", cpu=100), "pass"))
    assert "exceeded quota" in wait_for(kube, handle, lambda status: bool(status.reason)).reason
    plane.call("DELETE", f"{path}/none")
    kube.stop(handle, 1)
    assert wait_for(kube, handle, lambda status: status.phase == FAILED).exits[0].code == 143


@pytest.fixture(scope="module")
def crds() -> Iterator[CrdServer]:
    try:
        made = CrdServer()
        known = [crd(kind) for kind in ("JobSet", "TrainJob")]
    except Missing as missing:
        pytest.skip(str(missing))
    with made as running:
        for one in known:
            running.define(one)
        yield running


@pytest.mark.parametrize("queue", ["", "team"])
@pytest.mark.parametrize(("kind", "path"), [
    ("jobset", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"),
    ("trainjob", "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs"),
])  # fmt: skip
def test_the_operators_take_our_objects(crds: CrdServer, kind: str, path: str, queue: str) -> None:
    site = KubernetesOptions("default", object=kind, queue=queue, image="python:3.11", tolerations=("nvidia.com/gpu",))
    one = make_owned_objects(
        attempt(EIGHT, "pass", user="alice"), site, "u-1", {key: {"nvidia.com/gpu": 8} for key in (0, 1)}, []
    )[-1]
    made = crds.call("POST", f"{path}?fieldValidation=Strict", one)
    assert made["metadata"]["labels"].get("kueue.x-k8s.io/queue-name", "") == queue
    again = crds.ask("POST", f"{path}?fieldValidation=Strict", one)
    assert (again.status_code, again.json()["reason"]) == (409, "AlreadyExists")
    one["metadata"]["name"] = "other"
    one["spec"]["replicas"] = 1
    wrong = crds.ask("POST", f"{path}?fieldValidation=Strict", one)
    assert (wrong.status_code, "replicas" in wrong.text) == (400, True)
