"""Attempts as Kubernetes objects: what the real schemas say of them, and what must never be in them."""

import base64
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.backends.kubernetes_manifests import (
    RENDEZVOUS_PORT,
    make_launcher_config,
    make_object_name,
    make_owned_objects,
    make_service,
)
from falaj.backends.kubernetes_options import KubernetesOptions, read_options
from falaj.core.errors import Invalid
from falaj.core.executor import Attempt, Slot
from tests.backends.attempts import attempt, slots
from tests.servers.kube_protocol import Refusal
from tests.servers.kube_schemas import check
from tests.servers.process import Missing

SITE = KubernetesOptions(
    "falaj", image="python:3.11", claims=(("data", "/data"),), tolerations=("nvidia.com/gpu",), pull_secret="pull"
)
GANG = (
    Slot(0, "n1", "chief", {"cpu": 1500, "memory": 64, "rdma/hca": 1}, (0, 1)),
    Slot(1, "n2", "worker", {"cpu": 1000, "memory": 64}, (0, 1)),
)
GPUS = {0: {"nvidia.com/gpu": 2}, 1: {"nvidia.com/mig-1g.5gb": 2}}
Json = dict[str, Any]


def asked(places: tuple[Slot, ...] = GANG, **more: object) -> Attempt:
    return attempt(places, "pass", user="alice", secret_env={"TOKEN": "seventeen"}, limit_s=60, **more)


def made(one: Attempt, site: KubernetesOptions = SITE, gpus: dict[int, dict[str, int]] | None = None) -> list[Json]:
    rest = make_owned_objects(one, site, "u-1", GPUS if gpus is None else gpus, ["10.1.2.3"])
    return [make_service(one, site), make_launcher_config(one), *rest]


def pods(objects: list[Json]) -> list[Json]:
    return [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Job"]


def strictly(one: Json) -> None:
    try:
        check(one)
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
@pytest.mark.parametrize("queue", ["", "team"])
def test_every_object_is_what_the_schemas_know(kind: str, queue: str) -> None:
    gang = slots("n1", "n2") if kind == "trainjob" or (queue and kind == "job") else GANG
    one = asked(gang[:1] if queue and kind == "job" else gang)
    site = SITE._replace(object=kind, queue=queue, priority_class="high", runtime_class="gvisor")
    objects = made(one, site, {} if gang is not GANG else None)
    for found in objects:
        strictly(found)
    work = objects[-1]
    assert work["kind"] == {"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}[kind]
    assert work["metadata"]["labels"].get("kueue.x-k8s.io/queue-name", "") == queue
    assert work["spec"].get("suspend", False) == bool(queue)
    for found in objects[2:]:
        assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == ["u-1"]


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_a_field_that_nobody_knows_is_refused(kind: str) -> None:
    """The check has teeth."""
    wrong = copy.deepcopy(made(asked(slots("n1")), SITE._replace(object=kind), {})[-1])
    wrong["spec"]["backofLimit"] = 0
    with pytest.raises(Refusal, match="backofLimit"):
        strictly(wrong)


def test_each_slot_is_on_its_node_with_its_devices() -> None:
    first, second = pods(made(asked()))
    for pod, node in ((first, "n1"), (second, "n2")):
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    amounts = first["containers"][0]["resources"]
    assert amounts["limits"] == {"cpu": "1500m", "memory": "64Mi", "rdma/hca": "1", "nvidia.com/gpu": "2"}
    assert amounts["requests"] == amounts["limits"]
    assert second["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.5gb"] == "2"
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in first["tolerations"]


def test_secrets_are_in_the_secret_and_nowhere_else() -> None:
    objects = made(asked())
    (secret,) = (one for one in objects if one["kind"] == "Secret")
    assert json.loads(base64.b64decode(secret["data"]["env.FALAJ_SECRET_ENV"])) == {"TOKEN": "seventeen"}
    variables = {one["name"] for pod in pods(objects) for one in pod["containers"][0]["env"]}
    assert variables == {"HOME", "FALAJ_HOST", "FALAJ_SECRET_ENV"}, "none whose name the submitter chose"
    rest = json.dumps([one for one in objects if one["kind"] != "Secret"])
    assert "seventeen" not in rest
    assert base64.b64encode(b"seventeen").decode() not in rest


@pytest.mark.parametrize("pod", pods(made(asked())))
def test_a_pod_can_do_little(pod: Json) -> None:
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == "alice"
    inside = container["securityContext"]
    assert inside["readOnlyRootFilesystem"]
    assert not inside["allowPrivilegeEscalation"]
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_a_pod_may_call_its_gang_dns_and_the_platform() -> None:
    one = asked()
    (policy,) = (
        found["spec"]
        for found in made(one, SITE._replace(egress=("192.168.0.0/16",)))
        if found["kind"] == "NetworkPolicy"
    )
    mine = [{"podSelector": {"matchLabels": {"falaj.dev/attempt": make_object_name(one.id)}}}]
    gang, dns, outside = policy["egress"]
    assert (policy["ingress"], gang) == ([{"from": mine}], {"to": mine})
    kube_dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    assert dns == {"to": [kube_dns], "ports": [{"port": 53, "protocol": kind} for kind in ("UDP", "TCP")]}
    assert [to["ipBlock"]["cidr"] for to in outside["to"]] == ["10.1.2.3/32", "192.168.0.0/16"]
    (free,) = (
        found["spec"] for found in made(one, SITE._replace(egress=("open",))) if found["kind"] == "NetworkPolicy"
    )
    assert free["policyTypes"] == ["Ingress"]


def test_pods_ask_only_the_dns_servers_that_the_cluster_names() -> None:
    site = read_options("falaj", {"dns": "169.254.20.10,10.96.0.10/32", "image": "python:3.11"})
    (policy,) = (found for found in made(asked(), site) if found["kind"] == "NetworkPolicy")
    strictly(policy)
    _, dns, _ = policy["spec"]["egress"]
    assert dns["to"] == [{"ipBlock": {"cidr": block}} for block in ("10.96.0.10/32", "169.254.20.10/32")]
    assert not [rule for rule in policy["spec"]["egress"] if not rule.get("to")], "a rule without `to` is any host"
    with pytest.raises(Invalid, match="dns"):
        read_options("falaj", {"dns": "open"})


def test_the_context_says_where_each_slot_is() -> None:
    one = asked()
    (secret,) = (found for found in made(one) if found["kind"] == "Secret")
    context = json.loads(base64.b64decode(secret["data"]["context.json"]))
    name = make_object_name(one.id)
    assert [slot["host"] for slot in context["slots"]] == [f"slot-{at}.{name}.falaj.svc" for at in (0, 1)]
    assert [slot["devices"] for slot in context["slots"]] == [[0, 1], [0, 1]]
    assert context["rendezvous"]["port"] == RENDEZVOUS_PORT
    kept = replace(one, context={**one.context, "rendezvous": {"host": "h", "port": 7}})
    (secret,) = (found for found in made(kept) if found["kind"] == "Secret")
    assert json.loads(base64.b64decode(secret["data"]["context.json"]))["rendezvous"] == {"host": "h", "port": 7}


def test_what_cannot_be_such_an_object_is_refused() -> None:
    with pytest.raises(Invalid, match="one by one"):
        made(asked(), SITE._replace(queue="team"))
    with pytest.raises(Invalid, match="equal"):
        made(asked(), SITE._replace(object="trainjob"))
    with pytest.raises(Invalid, match="too large"):
        make_launcher_config(replace(asked(), launcher=b"x" * 1_000_000))


@given(st.text("abcXYZ019-", min_size=1, max_size=50))
def test_names_are_safe_and_different(text: str) -> None:
    name = make_object_name(text)
    assert len(f"{name}-slot-9999-0-0") <= 63
    assert name[0].isalpha()
    assert name[-1] != "-"
    assert name == name.lower()
    assert make_object_name(text) == name
    assert name == text or name != make_object_name(text.lower()) or text == text.lower()
