"""Threat: a pod on Kubernetes has more rights than an unprivileged process with a network policy around it.

The checks are those of the Pod Security Standard `restricted`, over every object that an attempt becomes, and of
what that standard leaves open: tokens of the account, host aliases, and rules of the network without a destination.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from falaj.backends.kubernetes_manifests import make_launcher_config, make_owned_objects, make_service
from falaj.backends.kubernetes_options import ATTEMPT_OPTIONS, KubernetesOptions, apply_attempt_options
from falaj.core.errors import Invalid
from tests.backends.attempts import attempt, slots

ALLOWED_VOLUMES = {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret", "name"}
HOST_FIELDS = {"hostNetwork", "hostPID", "hostIPC", "hostUsers", "hostAliases"}
SITE = KubernetesOptions("falaj", image="python:3.11", claims=(("data", "/data"),), egress=("192.168.0.0/16",))
Json = dict[str, Any]


def build_objects(kind: str, **more: Any) -> list[Json]:
    hostile = attempt(slots("n1"), "pass", user="alice", env={"LD_PRELOAD": "code/evil.so"}, **more)
    site = apply_attempt_options(hostile, SITE._replace(object=kind))
    return [
        make_service(hostile, site),
        make_launcher_config(hostile),
        *make_owned_objects(hostile, site, "uid", {}, ["10.1.2.3"]),
    ]


def find_pod_specs(node: Any) -> Iterator[Json]:
    """Everything that has containers, wherever it lies in an object."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for part in node.values():
            yield from find_pod_specs(part)
    elif isinstance(node, list):
        for part in node:
            yield from find_pod_specs(part)


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_every_pod_meets_the_restricted_standard(kind: str) -> None:
    pods = list(find_pod_specs(build_objects(kind)))
    assert len(pods) == 1
    for pod in pods:
        user = pod["securityContext"]
        assert user["runAsNonRoot"] is True
        assert min(user["runAsUser"], user["runAsGroup"], user["fsGroup"]) > 0
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not HOST_FIELDS & set(pod)
        assert not {"initContainers", "ephemeralContainers"} & set(pod)
        assert {key for volume in pod["volumes"] for key in volume} <= ALLOWED_VOLUMES
        assert not [volume for volume in pod["volumes"] if "serviceAccountToken" in str(volume)]
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert (rights["allowPrivilegeEscalation"], rights["privileged"]) == (False, False)
            assert rights["readOnlyRootFilesystem"] is True
            assert "hostPort" not in str(container.get("ports"))


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_every_rule_of_the_network_names_a_destination(kind: str) -> None:
    (policy,) = (found["spec"] for found in build_objects(kind) if found["kind"] == "NetworkPolicy")
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    for rule in (*policy["ingress"], *policy["egress"]):
        peers = rule.get("to", []) + rule.get("from", [])
        assert peers
        assert all(peer for peer in peers), "an empty peer is any host"
        assert all(peer["podSelector"].get("matchLabels") for peer in peers if "podSelector" in peer)


@pytest.mark.parametrize("option", sorted({*KubernetesOptions._fields} - {*ATTEMPT_OPTIONS}))
def test_submitter_sets_nothing_that_belongs_to_the_operator(option: str) -> None:
    with pytest.raises(Invalid, match="does not know the option"):
        build_objects("job", options={option: "open"})


@pytest.mark.parametrize("user", ["../kube-system", "Alice", "alice/../admin", "system:admin", ""])
def test_submitters_name_is_a_service_account_or_refused(user: str) -> None:
    hostile = attempt(slots("n1"), "pass", user=user)
    with pytest.raises(Invalid, match="service account"):
        apply_attempt_options(hostile, SITE)
