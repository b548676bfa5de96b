"""A real API server takes every overlay, and its controllers and scheduler make of it what is meant.

The server is the one that can be built here (1.20), so what is younger is told to it in the words of its time; strict
validation against today's schemas is in test_kubernetes.py. It knows no pod security admission.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from falaj.deploy.rendering import write_rendering
from falaj.deploy.site import DeploymentSite
from tests.servers.kubernetes import ControlPlane
from tests.servers.process import Missing, wait_until

ZONE = "ae-dxb-1"
CUSTOM = ("ResourceFlavor", "ClusterQueue", "LocalQueue", "PrometheusRule", "ServiceMonitor", "RayCluster")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    try:
        made = ControlPlane()
    except Missing as missing:
        pytest.skip(str(missing))
    with made:
        yield made


def kubectl(plane: ControlPlane, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    command = ["kubectl", f"--kubeconfig={plane.folder / 'kubeconfig'}", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, input=given)


def built(folder: Path) -> list[dict[str, Any]]:
    """What an overlay holds of Kubernetes itself; kinds of operators need their operators."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True)
    found = yaml.load_all(done.stdout, yaml.CSafeLoader)
    return [_in_old_words(one) for one in found if one["kind"] not in CUSTOM]


def _in_old_words(one: dict[str, Any]) -> dict[str, Any]:
    """As 1.20 had it; and with wishes that a hollow node of one CPU can meet."""
    one["apiVersion"] = {"CronJob": "batch/v1beta1", "PodDisruptionBudget": "policy/v1beta1"}.get(
        one["kind"], one["apiVersion"]
    )
    spec = one.get("spec", {})
    spec.pop("timeZone", None)
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    pod = spec.get("template", {}).get("spec", {})
    pod.get("securityContext", {}).pop("sysctls", None)  # allowed without asking since 1.22
    for container in pod.get("containers", []):
        container.pop("lifecycle", None)
        container["resources"] = {"requests": {"cpu": "50m", "memory": "32Mi"}}
    return one


def test_an_api_server_takes_everything(plane: ControlPlane, tmp_path: Path) -> None:
    write_rendering(DeploymentSite.of("enterprise", ZONE, {}), tmp_path / "out")
    for overlay in (f"overlays/{ZONE}-in-cluster", "agent"):
        found = built(tmp_path / "out/kubernetes" / overlay)
        text = yaml.safe_dump_all(found)
        done = kubectl(plane, "apply", "--validate=true", "-f", "-", given=text)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("created") == len(found)
        # Amounts are kept in the server's own spelling (1024Gi is 1Ti), so some count as configured; none is new.
        again = kubectl(plane, "apply", "-f", "-", given=text)
        assert (again.returncode, again.stdout.count("created")) == (0, 0), again.stderr


def test_its_controllers_make_pods_that_admission_lets_in(plane: ControlPlane) -> None:
    """Two replicas of the control plane on two nodes: kept apart, though each would have room for both."""

    def nodes() -> list[str]:
        asked = ["get", "pods", "-n", "falaj", "-l", "app.kubernetes.io/name=falaj", "-o", "json"]
        pods = json.loads(kubectl(plane, *asked).stdout)["items"]
        return sorted(pod["spec"].get("nodeName", "") for pod in pods)

    wait_until(lambda: nodes() == ["gpu-0", "gpu-1"], 90)
    told = json.loads(kubectl(plane, "get", "events", "-A", "-o", "json").stdout)["items"]
    forbidden = [event["message"] for event in told if "forbidden" in event.get("message", "")]
    assert forbidden == []
