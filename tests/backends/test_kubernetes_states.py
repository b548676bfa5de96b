"""What pods, Jobs, nodes and logs say, and what we make of it: tables of what real clusters answer."""

from typing import Any

import pytest

from falaj.backends.kubernetes_logs import get_since_time, read_log
from falaj.backends.kubernetes_nodes import parse_quantity, parse_time, read_node
from falaj.backends.kubernetes_status import read_slot_states, summarize_status
from falaj.core.errors import Invalid
from falaj.core.executor import FAILED, LOST, RUNNING, SUCCEEDED, WAITING
from tests.servers.kube_cluster import node

Json = dict[str, Any]
NOW = 1_800_000_000.0
MADE = "2027-01-15T07:55:00Z"
BEGAN = {"startedAt": MADE}


def pod(
    slot: int = 0, state: Json | None = None, phase: str = "Running", about: Json | None = None, **more: Any
) -> Json:
    labels = {"falaj.dev/slot": str(slot)}
    containers = [{"name": "istio-proxy", "state": {"running": BEGAN}}, {"name": "slot", "state": state or {}}]
    metadata = {"name": f"p-{slot}", "labels": labels, "creationTimestamp": MADE, **(about or {})}
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": containers, **more}}


def service(slots: int = 1, **notes: str) -> Json:
    said = {f"falaj.dev/{name}": text for name, text in notes.items()}
    return {"metadata": {"name": "a", "annotations": {"falaj.dev/slots": str(slots), **said}}, "status": {}}


def job(slot: int, *conditions: Json, **spec: Any) -> Json:
    metadata = {"name": f"j-{slot}", "labels": {"falaj.dev/slot": str(slot)}}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}, "spec": spec}


def done(code: int, **more: Any) -> Json:
    return {"terminated": {**BEGAN, "exitCode": code, "finishedAt": "2027-01-15T08:00:00Z", **more}}


def waits(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


TAINTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "node gone"}
DRAINED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
LATE, SOON = ({"deletionTimestamp": f"2027-01-15T{at}Z"} for at in ("07:58:00", "08:00:30"))
LONG_AGO = {"creationTimestamp": "2027-01-15T07:40:00Z"}
FULL = "Usage of EmptyDir volume exceeds the limit"
WORDS = '{"code": 9, "reason": "rank 0 ended with code 9"}'
STATES = {
    "runs": (pod(0, {"running": BEGAN}), RUNNING, None, ""),
    "pulls": (pod(0, waits("ImagePullBackOff", "no"), "Pending"), WAITING, None, "ImagePullBackOff: no"),
    "pulled too long": (pod(0, waits("ErrImagePull"), "Pending", LONG_AGO), FAILED, 125, "ErrImagePull"),
    "no such name": (pod(0, waits("InvalidImageName"), "Pending"), FAILED, 125, "InvalidImageName"),
    "unplaced": (pod(phase="Pending", conditions=[UNPLACED]), WAITING, None, "Unschedulable: 0/2 nodes"),
    "good": (pod(0, done(0), "Succeeded"), SUCCEEDED, 0, ""),
    "own words": (pod(0, done(9, message=WORDS), "Failed"), FAILED, 9, "rank 0 ended with code 9"),
    "strange words": (pod(0, done(9, message="[1]"), "Failed"), FAILED, 9, ""),
    "memory": (pod(0, done(137, reason="OOMKilled"), "Failed"), FAILED, 137, "ran out of memory"),
    "signal": (pod(0, done(0, signal=9), "Failed"), FAILED, 137, ""),
    "drained": (pod(0, done(143), "Failed", conditions=[DRAINED]), LOST, None, "EvictionByEvictionAPI"),
    "drained when done": (pod(0, done(0), "Succeeded", conditions=[DRAINED]), SUCCEEDED, 0, ""),
    "evicted": (pod(phase="Failed", reason="Evicted", message="The node was low on memory"), LOST, None, "Evicted"),
    "own eviction": (pod(0, done(137), "Failed", reason="Evicted", message=FULL), FAILED, 137, "exceeds the limit"),
    "node dead": (pod(0, {"running": BEGAN}, about=SOON, conditions=[TAINTED]), LOST, None, "node gone"),
    "node lost": (pod(0, {"running": BEGAN}, reason="NodeLost"), LOST, None, "NodeLost"),
    "nobody confirms": (pod(0, {"running": BEGAN}, about=LATE), LOST, None, "lost"),
    "hangs": (pod(phase="Failed", reason="DeadlineExceeded", message="too long"), FAILED, 125, "DeadlineExceeded"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_pod_is_understood(name: str) -> None:
    told, phase, code, reason = STATES[name]
    found = summarize_status("a", read_slot_states(service(), [job(0)], [told], NOW))
    assert (found.phase, found.exits[0].code if found.exits else None) == (phase, code), found
    assert reason in (found.exits[0].reason if found.exits else found.reason)


FAILURE = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}
JOBS = {
    "not begun": ([job(0)], WAITING, ""),
    "suspended": ([job(0, suspend=True)], WAITING, "suspended"),
    "swept": ([job(0, {"type": "Complete", "status": "True"})], SUCCEEDED, ""),
    "gone": ([job(0, FAILURE)], LOST, "its pod is gone: PodFailurePolicy"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_slot_without_a_pod_is_understood(name: str) -> None:
    told, phase, reason = JOBS[name]
    found = summarize_status("a", read_slot_states(service(), told, [], NOW))
    assert (found.phase, found.reason) == (phase, reason)


def test_a_gang_is_over_when_all_are() -> None:
    bad, runs, good = pod(0, done(9), "Failed"), pod(1, {"running": BEGAN}), pod(1, done(0), "Succeeded")
    assert summarize_status("a", read_slot_states(service(2), [], [bad, runs], NOW)).phase == RUNNING
    over = summarize_status("a", read_slot_states(service(2), [], [bad, good], NOW))
    assert (over.phase, [(one.index, one.code) for one in over.exits]) == (FAILED, [(0, 9), (1, 0)])
    lost = pod(1, {"running": BEGAN}, reason="NodeLost")
    assert summarize_status("a", read_slot_states(service(2), [], [bad, lost], NOW)).phase == LOST
    told = service(2, ended='{"exits": [[0, "failed", 9, "its own", 5], [1, "failed", 137, "ended by force", 6]]}')
    swept = summarize_status("a", read_slot_states(told, [], [], NOW))
    assert (swept.phase, swept.ended, [one.code for one in swept.exits]) == (FAILED, 6, [9, 137])
    assert summarize_status("a", read_slot_states(service(2, ended="no json"), [], [bad, good], NOW)).phase == FAILED


def test_a_node_is_understood() -> None:
    one = node("g1", **{"rdma/hca": "2", "hugepages-2Mi": "0", "ephemeral-storage": "10Gi"})
    one["metadata"]["labels"] |= {
        "topology.kubernetes.io/zone": "z1",
        "cloud.google.com/gke-spot": "true",
        "nvidia.com/gpu.memory": "81559",
        "feature.node.kubernetes.io/cpu-x": "true",
    }
    one["spec"]["taints"] = [
        {"key": "cloud.google.com/impending-node-termination", "effect": "PreferNoSchedule", "timeAdded": MADE}
    ]
    own = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "2"}}
    beside = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}}
    before = {"resources": {"requests": {"cpu": "2"}}}
    other: Json = {
        "containers": [{"resources": own}],
        "initContainers": [before, beside],
        "overhead": {"memory": "16Mi"},
    }
    ours = {
        "metadata": {
            "namespace": "falaj",
            "labels": {"app.kubernetes.io/managed-by": "falaj"},
            "annotations": {"falaj.dev/devices": "6,7"},
        }
    }
    found = read_node(one, [{"metadata": {"namespace": "x"}, "spec": other}, ours], (), "falaj")
    assert found.amounts == {"cpu": 16000, "memory": 65536, "rdma/hca": 2}
    assert found.taken == {"cpu": 2000, "memory": 1040}
    whole, part = found.devices[0], found.devices[8]
    assert (whole.model, whole.memory_mib) == ("NVIDIA-H100", 81559)
    assert (part.model, part.memory_mib) == ("NVIDIA-H100-MIG-1g.5gb", 5120)
    assert found.taken_devices == (4, 5), "what others have is none of ours"
    assert (found.labels["zone"], found.labels["spot"], found.leaving) == ("z1", "true", parse_time(MADE) + 30)
    assert found.ready
    assert "feature.node.kubernetes.io/cpu-x" not in found.labels
    closed = {"unschedulable": True}, {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}
    open_ = {"taints": [{"key": "ok", "effect": "NoSchedule"}, {"key": "soft", "effect": "PreferNoSchedule"}]}
    ready = [read_node(node("n") | {"spec": spec}, [], ("ok",), "falaj").ready for spec in (*closed, open_)]
    assert ready == [False, False, True]
    deleted = node("n")
    deleted["metadata"]["deletionTimestamp"] = MADE
    assert read_node(deleted, [], (), "falaj").leaving == parse_time(MADE)


@pytest.mark.parametrize(
    ("text", "value"), [("500m", "0.5"), ("16Gi", str(16 << 30)), ("1e3", "1000"), ("2", "2"), ("x", "0"), ("1Zi", "0")]
)
def test_quantities(text: str, value: str) -> None:
    assert parse_quantity(text) == parse_quantity(value)


def test_a_log_goes_on_within_a_second() -> None:
    whole = b"".join(
        f"2027-01-15T08:00:{stamp}Z {text}\n".encode()
        for stamp, text in (("00.1", "a"), ("00.12", "b"), ("00.12", "c"), ("00.12", "d"), ("01.000000001", "e"))
    )
    cursor, lines = "", []
    for _ in range(6):
        chunk = read_log(lambda most: whole[:most], cursor, 1, is_over=True)
        lines += chunk.lines
        cursor = chunk.cursor
    assert (lines, chunk.over, get_since_time(cursor)) == (["a", "b", "c", "d", "e"], True, "2027-01-15T08:00:01Z")
    torn = whole + b"2027-01-15T08:00:02Z half"
    assert read_log(lambda _: torn, cursor, 9, is_over=False).lines == ()
    assert read_log(lambda _: torn, cursor, 9, is_over=True).lines == ("half",)
    rotated = b"2027-01-15T08:00:09Z new\n"
    assert read_log(lambda _: rotated, cursor, 9, is_over=False).lines == ("new",)
    with pytest.raises(Invalid, match="cursor"):
        get_since_time("nonsense")


def test_a_second_with_more_than_a_page_is_read_to_its_end() -> None:
    whole = b"".join(b"2027-01-15T08:00:00Z %07d %s\n" % (at, b"x" * 200) for at in range(20_000))
    cursor, total = "", 0
    while chunk := read_log(lambda most: whole[:most], cursor, 100_000, is_over=True):
        cursor, total = chunk.cursor, total + len(chunk.lines)
        if chunk.over:
            break
    assert total == 20_000
