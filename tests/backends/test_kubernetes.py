"""The executor against a strict server of our own: what is said on the wire, and what servers may answer."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.kubernetes import KubernetesExecutor
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.core.executor import FAILED, LOST, RUNNING, SUCCEEDED, UNKNOWN, WAITING, Attempt, Slot
from tests.backends.attempts import PATIENT, attempt, over, slots, wait_for_line
from tests.servers.kube_cluster import NAMESPACE, KubeCluster, node
from tests.servers.kube_kubelet import JOBS, PODS
from tests.servers.kube_protocol import Refusal
from tests.servers.kube_schemas import crd
from tests.servers.process import Missing, wait_until

SERVICES = "/api/v1/services"


@pytest.fixture
def still() -> Iterator[KubeCluster]:
    """A cluster that stores and runs nothing."""
    yield from _cluster(run=False)


@pytest.fixture
def cluster() -> Iterator[KubeCluster]:
    yield from _cluster(run=True)


@pytest.fixture
def kube(still: KubeCluster) -> Iterator[KubernetesExecutor]:
    executor = still.executor(service_account="{user}")
    yield executor
    executor.close()


def _cluster(run: bool) -> Iterator[KubeCluster]:
    try:
        made = KubeCluster(run)
    except Missing as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


def asked(*nodes: str, **more: object) -> Attempt:
    return attempt(slots(*(nodes or ("n1",))), "pass", user="alice", **more)


def settled(check: Callable[[], bool]) -> None:
    wait_until(check, 20)


def test_a_jobset_and_gpus_run_through(cluster: KubeCluster) -> None:
    try:
        crd("JobSet")
    except Missing as missing:
        pytest.skip(str(missing))
    kube = cluster.executor(object="jobset")
    gang = (Slot(0, "n1", devices=(0, 1)), Slot(1, "n2", devices=(8,)))
    handle = kube.launch(attempt(gang, PATIENT, user="alice"))
    for slot in (0, 1):
        wait_for_line(kube, handle, slot, f"here {slot}")
    held = {one.name: (one.taken, one.taken_devices) for one in kube.capacity()}
    assert held == {name: ({"cpu": 0, "memory": 0}, ()) for name in ("n1", "n2")}, "what we hold is not taken by others"
    asked_for = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in cluster.objects("pods")]
    assert sorted(map(str, asked_for)) == ["{'nvidia.com/gpu': '2'}", "{'nvidia.com/mig-1g.5gb': '1'}"]
    kube.checkpoint(handle)
    wait_for_line(kube, handle, 1, "saved 1")
    kube.stop(handle, 5)
    done = over(kube, handle)
    assert (done.phase, [one.code for one in done.exits]) == (FAILED, [3, 3])
    assert done.exits[1].reason == "stopped", "as the launcher says"
    kube.forget(handle)
    settled(lambda: not any(cluster.objects(kind) for kind in ("pods", "jobs", "jobsets", "secrets", "services")))
    kube.close()


def test_what_never_began_is_deleted_when_stopped_and_remembered(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked("n1", "n2"))
    assert kube.poll([handle])[0].phase == WAITING
    kube.stop(handle, 30)
    assert not still.objects("jobs")
    again = still.executor()
    for executor in (kube, again):
        status = executor.poll([handle])[0]
        assert (status.phase, [one.code for one in status.exits]) == (FAILED, [143, 143])
        assert executor.launch(replace(asked("n1", "n2"), id=_id_of(still))) == handle
    assert not still.objects("jobs"), "what was stopped does not begin again"
    again.close()


def _id_of(cluster: KubeCluster) -> str:
    return str(cluster.objects("services")[0]["metadata"]["annotations"]["falaj.dev/id"])


def _bind(cluster: KubeCluster, handle: str, slot: int = 0, **state: Any) -> str:
    """A pod of a slot as a kubelet would tell of it."""
    name = f"{handle}-{slot}-abcde"
    labels = {"app.kubernetes.io/managed-by": "falaj", "falaj.dev/attempt": handle, "falaj.dev/slot": str(slot)}
    status = {"phase": "Running", "containerStatuses": [{"name": "slot", "state": state}]}
    cluster.add(PODS, NAMESPACE, {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status})
    return name


def test_what_does_not_obey_is_deleted_after_its_grace(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked())
    pod = _bind(still, handle, running={"startedAt": "2027-01-15T08:00:00Z"})
    settled(lambda: kube.poll([handle])[0].phase == RUNNING)
    kube.stop(handle, 5)
    notes = still.kube.store.get(PODS, f"{NAMESPACE}/{pod}")["metadata"]["annotations"]
    assert json.loads(notes["falaj.dev/stop"])["grace_s"] == 5
    assert kube.poll([handle])[0].phase == RUNNING
    long_ago = json.dumps({"grace_s": 5, "at": time.time() - 60})
    told = {"falaj.dev/stop": long_ago}
    still.kube.store.change(SERVICES, f"{NAMESPACE}/{handle}", lambda one: one["metadata"]["annotations"].update(told))
    settled(lambda: kube.poll([handle]) and not still.objects("jobs"))
    assert still.objects("pods")[0]["metadata"]["deletionTimestamp"]
    still.kube.store.remove(PODS, f"{NAMESPACE}/{pod}")
    settled(lambda: kube.poll([handle])[0].phase == FAILED)
    (only,) = kube.poll([handle])[0].exits
    assert (only.code, only.reason) == (137, "ended by force")


def test_a_slot_that_cannot_start_ends_its_gang(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked("n1", "n2"))
    _bind(still, handle, 0, waiting={"reason": "InvalidImageName", "message": "no"})
    settled(lambda: kube.poll([handle]) and not still.objects("jobs"))
    still.kube.store.remove(PODS, f"{NAMESPACE}/{handle}-0-abcde")
    settled(lambda: kube.poll([handle])[0].phase == FAILED)
    assert [(one.code, one.reason) for one in kube.poll([handle])[0].exits] == [
        (125, "InvalidImageName: no"),
        (143, "ended with its gang"),
    ]


def test_what_somebody_else_deleted_is_lost(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked())
    assert kube.poll([handle])[0].phase == WAITING
    still.kube.store.delete(JOBS, f"{NAMESPACE}/{handle}-0")
    settled(lambda: kube.poll([handle])[0].phase == LOST)


def test_why_no_pod_is_made_is_told(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked())
    about = {"name": f"{handle}-0", "kind": "Job"}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "type": "Warning", "message": "violates PodSecurity"}
    still.add("/api/v1/events", NAMESPACE, event)
    assert kube.poll([handle])[0].reason == "", "it may begin in a moment"
    early = {"creationTimestamp": "2020-01-01T00:00:00Z"}
    still.kube.store.change(SERVICES, f"{NAMESPACE}/{handle}", lambda one: one["metadata"].update(early))
    settled(lambda: kube.poll([handle])[0].reason == "violates PodSecurity")
    assert kube.poll([handle])[0].phase == WAITING


def test_what_was_written_down_and_not_deleted_is_deleted_later(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked())
    _bind(still, handle, running={"startedAt": "2027-01-15T08:00:00Z"})
    settled(lambda: kube.poll([handle])[0].phase == RUNNING)
    ended = {"falaj.dev/ended": '{"exits": [[0, "failed", 137, "ended by force", 1]]}'}
    still.kube.store.change(SERVICES, f"{NAMESPACE}/{handle}", lambda one: one["metadata"]["annotations"].update(ended))
    settled(lambda: bool(kube.poll([handle])) and not still.objects("jobs"))
    assert still.objects("pods")[0]["metadata"]["deletionTimestamp"]


def test_a_launch_that_was_torn_goes_on(still: KubeCluster, kube: KubernetesExecutor) -> None:
    one = asked("n1", "n2")
    still.kube.inject("POST", "/jobs", Refusal(500, "InternalError"))
    with pytest.raises(Unavailable):
        kube.launch(one)
    (claim,) = still.objects("services")
    handle = claim["metadata"]["name"]
    assert kube.poll([handle])[0].phase == WAITING, "not lost: it is being made"
    assert kube.launch(one) == handle
    assert len(still.objects("jobs")) == 2


HOOK = 'admission webhook "policy" denied the request: no latest tags'
REFUSALS = {
    "admission": (Refusal(403, "Forbidden", HOOK), Invalid, "no latest tags"),
    "quota": (Refusal(403, "Forbidden", "jobs is forbidden: exceeded quota: gpus"), Unavailable, "exceeded quota"),
    "rights": (Refusal(403, "Forbidden", 'User "falaj" cannot create resource "jobs"'), Denied, "cannot create"),
    "schema": (Refusal(422, "Invalid", "spec.template: Invalid value"), Invalid, "Invalid value"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_says_why(still: KubeCluster, kube: KubernetesExecutor, name: str) -> None:
    refusal, error, words = REFUSALS[name]
    still.kube.inject("POST", "/jobs", refusal)
    with pytest.raises(error, match=words):
        kube.launch(asked())
    if error is Invalid:
        assert not still.objects("services"), "nothing is left of what cannot be"
        assert not still.objects("secrets")


def test_bad_moments_pass(still: KubeCluster, kube: KubernetesExecutor) -> None:
    server = still.kube
    server.inject("POST", "/services", Refusal(429, "TooManyRequests", Retry_After="0"))
    server.inject("POST", "/secrets", Refusal(503, "ServiceUnavailable"))
    server.inject("POST", "/networkpolicies")
    server.inject("POST", "/jobs", Refusal(409, "Conflict", "the object has been modified"))
    server.inject("PATCH", "/services", Refusal(500, "InternalError", Retry_After="0"))
    handle = kube.launch(asked())
    assert not server.injected
    assert kube.poll([handle])[0].phase == WAITING
    fresh = "renewed"
    server.token = fresh
    with pytest.raises(Unauthenticated):
        kube.capacity()
    still.token.write_text(fresh)
    assert len(kube.capacity()) == 2, "the token is read anew"


def test_a_taken_name_is_no_attempt_of_ours(still: KubeCluster, kube: KubernetesExecutor) -> None:
    one = asked()
    still.add(SERVICES, NAMESPACE, {"metadata": {"name": one.id}})
    with pytest.raises(Conflict, match="not ours"):
        kube.launch(one)
    assert kube.poll([one.id])[0].phase == UNKNOWN
    other = asked()
    name = next(call for call in [_launcher_name(other)])
    still.add(
        "/api/v1/configmaps",
        NAMESPACE,
        {"metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "falaj"}}, "binaryData": {}},
    )
    with pytest.raises(Conflict, match="does not hold"):
        kube.launch(other)


def _launcher_name(one: Attempt) -> str:
    from falaj.backends.kubernetes_manifests import make_launcher_config

    return str(make_launcher_config(one)["metadata"]["name"])


def test_a_watch_goes_on_where_it_was_dropped(still: KubeCluster, kube: KubernetesExecutor) -> None:
    server = still.kube
    handle = kube.launch(asked())
    assert kube.poll([handle])[0].phase == WAITING
    settled(lambda: sum("watch=1" in call and "/pods" in call for call in server.asked) == 1)
    lists = _lists(server.asked)
    server.inject("WATCH", "/pods")
    _bind(still, handle, running={"startedAt": "2027-01-15T08:00:00Z"})
    settled(lambda: kube.poll([handle])[0].phase == RUNNING)
    assert not server.injected
    assert _lists(server.asked) == lists, "dropped, it asks for no list"
    server.store.compact()
    ended = {"terminated": {"exitCode": 0, "finishedAt": "2027-01-15T08:00:01Z"}}
    key = f"{NAMESPACE}/{handle}-0-abcde"
    server.store.change(PODS, key, lambda one: one["status"]["containerStatuses"][0].update(state=ended))
    settled(lambda: kube.poll([handle])[0].phase == SUCCEEDED)
    settled(lambda: _lists(server.asked) > lists)


def test_a_watch_that_never_says_a_word_is_not_believed(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked())
    assert kube.poll([handle])[0].phase == WAITING
    lists = _lists(still.kube.asked)
    for _ in range(2):
        still.kube.inject("GET", "/pods?watch")
        still.kube.inject("WATCH", "/pods")
    _bind(still, handle, running={"startedAt": "2027-01-15T08:00:00Z"})
    settled(lambda: _lists(still.kube.asked) > lists)
    settled(lambda: kube.poll([handle])[0].phase == RUNNING)


def _lists(calls: list[str]) -> int:
    return sum("/pods?" in call and "watch" not in call for call in calls)


def test_a_silent_server_is_said_and_comes_back(still: KubeCluster, kube: KubernetesExecutor) -> None:
    handle = kube.launch(asked())
    assert kube.poll([handle])[0].phase == WAITING
    for _ in range(60):
        still.kube.inject("GET", "/pods", Refusal(500, "InternalError", "etcd is down"))
    still.kube.store.compact()

    def said() -> bool:
        try:
            kube.poll([handle])
        except Unavailable as error:
            return "etcd is down" in error.message
        return False

    settled(said)
    still.kube.injected.clear()
    settled(lambda: not said() and kube.poll([handle])[0].phase == WAITING)


def test_pages_are_read_to_the_end_and_begun_again(still: KubeCluster, kube: KubernetesExecutor) -> None:
    for at in range(1100):
        still.kube.store.objects["/api/v1/nodes"][f"/m{at:04}"] = node(f"m{at:04}")
    still.kube.inject("GET", "continue=", Refusal(410, "Expired"))
    assert len(kube.capacity()) == 1102


ADDRESSES = {
    "plain http": ("kubernetes:http://cluster.example:6443", {}, "https"),
    "a password": ("kubernetes:https://u:p@cluster.example", {}, "https"),
    "a token": ("kubernetes:https://cluster.example?token=abc", {}, "written into an address"),
    "a strange word": ("kubernetes:https://cluster.example?namspace=x", {}, "namspace"),
    "no cluster": ("kubernetes:", {}, "inside a cluster"),
    "no file": ("kubernetes:kubeconfig?path=/nowhere", {}, "cannot be read"),
    "no certificate": ("kubernetes:https://cluster.example", {"ca": "/nowhere"}, "certificate"),
    "root": ("kubernetes:https://cluster.example", {"uid": "0"}, "root"),
    "no block": ("kubernetes:https://cluster.example", {"egress": "everywhere"}, "everywhere"),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_bad_address_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    address, options, words = ADDRESSES[name]
    with pytest.raises(Invalid, match=words):
        KubernetesExecutor(address, options)


def test_certificates_are_verified(still: KubeCluster) -> None:
    kube = KubernetesExecutor(f"kubernetes:{still.kube.url}", {"token": f"file:{still.token}"})
    with pytest.raises(Unavailable, match="certificate"):
        kube.capacity()
    kube.close()


def test_inside_a_cluster_the_pod_says_who_we_are(
    still: KubeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("token", still.kube.token), ("namespace", NAMESPACE), ("ca.crt", still.kube.ca.read_text())):
        (tmp_path / name).write_text(text)
    host, _, port = still.kube.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("falaj.backends.kubernetes_connection._SERVICE_ACCOUNT_FOLDER", tmp_path)
    kube = KubernetesExecutor("kubernetes:", {"image": "i"})
    assert kube.poll([kube.launch(asked())])[0].phase == WAITING
    kube.close()


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_a_kubeconfig_is_read(still: KubeCluster, tmp_path: Path) -> None:
    import yaml

    whole: dict[str, Any] = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        "clusters": [
            {"name": "c", "cluster": {"server": still.kube.url, "certificate-authority-data": _data(still.kube.ca)}}
        ],
        "users": [{"name": "u", "user": {"token": still.kube.token, "client-certificate": str(still.kube.ca)}}],
    }
    whole["users"][0]["user"]["client-key-data"] = _data(still.kube.ca.with_suffix(".key"))
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(whole))
    kube = KubernetesExecutor(f"kubernetes:kubeconfig?path={path}", {"image": "i"})
    assert kube.poll([kube.launch(asked())])[0].phase == WAITING
    kube.close()
    with pytest.raises(Invalid, match="no context"):
        KubernetesExecutor(f"kubernetes:kubeconfig?path={path}&context=other", {})
    whole["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    path.write_text(json.dumps(whole))
    with pytest.raises(Invalid, match="skips TLS"):
        KubernetesExecutor(f"kubernetes:kubeconfig?path={path}", {})


REQUESTS = {
    "a stranger's option": ({"options": {"namespace": "kube-system"}}, "namespace"),
    "a strange object": ({"options": {"object": "pod"}}, "object"),
    "a person who is no account": ({"user": "Alice@bank"}, "service account"),
    "an account that is not there": ({"user": "bob"}, "no service account 'bob'"),
    "half a device": ({"slots": (Slot(0, "n1", devices=(0,), milli=500),)}, "whole devices"),
    "a device that is not there": ({"slots": (Slot(0, "n1", devices=(99,)),)}, "no device 99"),
    "a folder": ({"folder": "/x"}, "shares no folder"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_cannot_run_is_refused_before_anything_is_made(
    still: KubeCluster, kube: KubernetesExecutor, name: str
) -> None:
    change, words = REQUESTS[name]
    with pytest.raises(Invalid, match=words):
        kube.launch(replace(asked(), **change))
    assert not still.objects("services")
    with pytest.raises(NotFound):
        kube.logs("a/../b", 0)
