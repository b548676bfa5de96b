"""Every overlay is built by kubectl itself, and every object of it is held to a strict schema and to our own rules.

Custom resources are held to their operators' definitions (Kueue, KubeRay); those of the Prometheus operator to a schema
written here, since its definitions are not at hand. The slow test lets a real API server judge the whole.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from falaj.deploy.rendering import write_rendering
from falaj.deploy.site import DeploymentSite
from falaj.deploy.site_settings import DRAIN_TIMEOUT_S
from tests.servers import kube_schemas
from tests.servers.kube_protocol import Refusal
from tests.servers.process import Missing

Json = dict[str, Any]
ZONE = "ae-dxb-1"
OVERLAYS = (f"overlays/{ZONE}", f"overlays/{ZONE}-in-cluster", "agent", "ray")
PROFILES = ("enterprise", "air-gapped")
EVERY = [(profile, overlay) for profile in PROFILES for overlay in OVERLAYS]
_TEXT, _NAME = {"type": "string"}, {"type": "object", "required": ["name"]}


def _closed(required: list[str], **properties: Json) -> Json:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


_SELECTED = _closed(["name", "key"], name=_TEXT, key=_TEXT)
_OPERATOR = {
    "PrometheusRule": _closed(
        ["groups"],
        groups={
            "type": "array",
            "items": _closed(
                ["name", "rules"],
                name=_TEXT,
                rules={
                    "type": "array",
                    "items": {
                        **_closed(["expr"]),
                        "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                        "properties": {
                            **dict.fromkeys(("alert", "record", "expr", "for"), _TEXT),
                            **{word: {"additionalProperties": _TEXT} for word in ("labels", "annotations")},
                        },
                    },
                },
            ),
        },
    ),
    "ServiceMonitor": _closed(
        ["selector", "endpoints"],
        selector={"type": "object"},
        endpoints={
            "type": "array",
            "items": _closed(
                ["port"],
                **dict.fromkeys(("port", "scheme", "path", "interval"), _TEXT),
                authorization=_closed(["credentials"], type=_TEXT, credentials=_SELECTED),
                tlsConfig=_closed(["ca"], serverName=_TEXT, ca=_closed(["secret"], secret=_SELECTED)),
            ),
        },
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing: apt-get install kubernetes-client")
    made = tmp_path_factory.mktemp("rendered")
    for profile in PROFILES:
        write_rendering(
            DeploymentSite.of(profile, ZONE, {"host": "ml.bank.example", "replicas": "3", "namespace": "ml"}),
            made / profile,
        )
    return made


@cache
def objects(folder: Path, profile: str, overlay: str) -> list[Json]:
    if overlay == "ray":
        text = (folder / profile / "ray/raycluster.yaml").read_text()
    else:
        built = ["kubectl", "kustomize", str(folder / profile / "kubernetes" / overlay)]
        done = subprocess.run(built, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "deprecated" not in done.stderr
        text = done.stdout
    return list(yaml.load_all(text, yaml.CSafeLoader))


def of_kind(found: list[Json], kind: str) -> dict[str, Json]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def pods(found: list[Json]) -> Iterator[tuple[str, Json, Json]]:
    """Everything that becomes pods: its name, the pods' labels, their spec."""
    for one in found:
        spec = one.get("spec", {})
        if one["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        templates = [spec["template"]] if "template" in spec else []
        if one["kind"] == "RayCluster":
            templates = [spec["headGroupSpec"]["template"], *(g["template"] for g in spec["workerGroupSpecs"])]
        for template in templates:
            yield one["metadata"]["name"], template.get("metadata", {}).get("labels", {}), template["spec"]


@pytest.mark.parametrize(
    ("profile", "overlay"),
    # Schemas are large: what differs by the names of its images only is judged again in the slow tier.
    [
        pytest.param(*row, marks=[pytest.mark.slow] if row[1] == "ray" or row[0] == "air-gapped" else [])
        for row in EVERY
    ],
)
def test_every_object_is_valid(folder: Path, profile: str, overlay: str) -> None:
    found = objects(folder, profile, overlay)
    assert len(found) >= 4
    assert len({(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in found}) == len(found)
    for one in found:
        if one["kind"] in _OPERATOR:
            assert one["apiVersion"] == "monitoring.coreos.com/v1"
            jsonschema.validate(one["spec"], _OPERATOR[one["kind"]])
            continue
        try:
            kube_schemas.check(one)
        except Missing as missing:
            pytest.skip(str(missing))


def test_a_field_that_nobody_knows_would_be_seen(folder: Path) -> None:
    one = json.loads(json.dumps(of_kind(objects(folder, "enterprise", OVERLAYS[0]), "Deployment")["falaj"]))
    one["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(Refusal):
        kube_schemas.check(one)


@pytest.mark.parametrize(("profile", "overlay"), EVERY)
def test_pods_pass_the_restricted_standard(folder: Path, profile: str, overlay: str) -> None:
    for name, _, spec in pods(objects(folder, profile, overlay)):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        whole = spec["securityContext"]
        assert whole["runAsNonRoot"] is True, name
        assert whole["runAsUser"] > 0, name
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert {s["name"] for s in whole.get("sysctls", [])} <= {"net.ipv4.ip_unprivileged_port_start"}, name
        kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}, name
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            # Ray's own image writes where it lies; everything else runs with a read-only root.
            assert own.get("readOnlyRootFilesystem") is True or container["name"].startswith("ray-"), name
            assert container["resources"]["limits"]["memory"], name
            assert ":" in container["image"].rpartition("/")[2], name
            assert not container["image"].endswith(":latest"), name


@pytest.mark.parametrize(("profile", "overlay"), [row for row in EVERY if row[1] != "ray"])
def test_namespaces_are_restricted_and_closed(folder: Path, profile: str, overlay: str) -> None:
    found = objects(folder, profile, overlay)
    closed = {
        one["metadata"]["namespace"]
        for one in found
        if one["kind"] == "NetworkPolicy" and one["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    }
    for name, one in of_kind(found, "Namespace").items():
        assert one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
        assert name in closed
    assert {one["metadata"]["namespace"] for one in found if "namespace" in one["metadata"]} <= closed


@pytest.mark.parametrize("profile", PROFILES)
def test_only_a_site_with_a_network_has_a_way_out(folder: Path, profile: str) -> None:
    blocks = [
        to["ipBlock"]["cidr"]
        for one in objects(folder, profile, OVERLAYS[0])
        if one["kind"] == "NetworkPolicy"
        for rule in one["spec"].get("egress", [])
        for to in rule["to"]
        if "ipBlock" in to
    ]
    assert ("0.0.0.0/0" in blocks) == (profile == "enterprise")
    assert "10.0.0.0/8" in blocks


@pytest.mark.parametrize("overlay", OVERLAYS[:2])
def test_replicas_are_kept_apart_and_never_all_away(folder: Path, overlay: str) -> None:
    found = objects(folder, "enterprise", overlay)
    budgets = {n: one["spec"] for n, one in of_kind(found, "PodDisruptionBudget").items()}
    for name, one in of_kind(found, "Deployment").items():
        spec = one["spec"]
        assert spec["replicas"] == 3
        assert budgets[name]["maxUnavailable"] == 1
        assert budgets[name]["selector"] == spec["selector"]
        pod = spec["template"]["spec"]
        (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert apart["labelSelector"] == spec["selector"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(pod["containers"][0])
        assert pod["containers"][0]["readinessProbe"]["httpGet"]["path"] in ("/ready", "/v2/health/ready")
        # Time to be left by callers, a minute for what they asked, and some.
        assert pod["terminationGracePeriodSeconds"] >= DRAIN_TIMEOUT_S + 70
        assert pod["priorityClassName"] in of_kind(found, "PriorityClass")


@pytest.mark.parametrize("overlay", OVERLAYS[:3])
def test_names_that_are_meant_are_there(folder: Path, overlay: str) -> None:
    """Services select pods, pods find their settings and accounts; secrets are those that the page names."""
    found = objects(folder, "enterprise", overlay)
    labelled = list(pods(found))
    for name, one in of_kind(found, "Service").items():
        wanted = one["spec"]["selector"].items()
        assert any(wanted <= labels.items() for _, labels, _ in labelled), name
    maps, accounts = of_kind(found, "ConfigMap"), of_kind(found, "ServiceAccount")
    claims = of_kind(found, "PersistentVolumeClaim")
    page = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
    for name, _, spec in labelled:
        assert spec.get("serviceAccountName", "default") in {*accounts, "default"}, name
        assert spec["automountServiceAccountToken"] is (name == "falaj"), name
        for volume in spec["volumes"]:
            assert volume.get("configMap", {"name": next(iter(maps), "")})["name"] in {*maps, ""}, name
            assert volume.get("persistentVolumeClaim", {"claimName": ""})["claimName"] in {*claims, ""}, name
            secrets = [volume["secret"]["secretName"]] if "secret" in volume else []
            assert [one for one in secrets if f"`{one}`" not in page] == [], name
        for variable in spec["containers"][0].get("env", []):
            if "valueFrom" in variable:
                assert f"`{variable['valueFrom']['secretKeyRef']['name']}`" in page, name


def test_alerts_are_those_of_the_repository(folder: Path) -> None:
    (rule,) = of_kind(objects(folder, "enterprise", OVERLAYS[0]), "PrometheusRule").values()
    alerts = yaml.safe_load((Path(__file__).parents[2] / "deploy/prometheus/alerts.yml").read_text())
    assert rule["spec"] == alerts


def test_the_executor_may_do_what_it_does_and_nothing_everywhere(folder: Path) -> None:
    found = objects(folder, "enterprise", OVERLAYS[0])
    (whole,) = of_kind(found, "ClusterRole").values()
    assert whole["rules"] == [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]
    (role,) = of_kind(found, "Role").values()
    assert role["metadata"]["namespace"] == "ml-work"
    assert not [rule for rule in role["rules"] if "*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])]
    secrets = [rule["verbs"] for rule in role["rules"] if "secrets" in rule["resources"]]
    assert secrets == [["get", "create"]]
