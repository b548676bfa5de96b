"""Threat: variables that a submitter names reach the launcher, or the site's own commands, on Slurm, Ray or Kubernetes.
What leaves the platform for a launcher has names of the platform alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.backends import kubernetes_manifests, ray, slurm_script
from falaj.backends.kubernetes_options import KubernetesOptions
from falaj.core.executor import Attempt, build_launcher_environment
from tests.backends.attempts import attempt, slots

HOSTILE = {"LD_PRELOAD": "code/evil.so", "PYTHONPATH": "code", "PATH": "code", "BASH_ENV": "code/evil.sh"}
SECRETS = {"PYTHONSTARTUP": "code/evil.py", "KEY": "hushhush"}


def hostile(**more: Any) -> Attempt:
    """An attempt whose submitter names what programs listen to."""
    platform = {"FALAJ_URL": "https://falaj.bank.ae", "FALAJ_TOKEN": "token"}
    return replace(attempt(slots("n1"), "pass", **more), env=HOSTILE, secret_env=SECRETS, platform_env=platform)


def test_launcher_is_given_names_of_the_platform_alone() -> None:
    assert sorted(build_launcher_environment(hostile())) == ["FALAJ_SECRET_ENV", "FALAJ_TOKEN", "FALAJ_URL"]
    assert json.loads(build_launcher_environment(hostile())["FALAJ_SECRET_ENV"]) == SECRETS


def test_slurm_exports_names_of_the_platform_alone(tmp_path: Path) -> None:
    words = slurm_script.make_sbatch_options(hostile(folder=tmp_path), {})
    (exported,) = (word for word in words if word.startswith("--export="))
    names = set(exported.removeprefix("--export=").split(","))
    assert names == {*slurm_script.DEFAULT_VARIABLES, "FALAJ_URL", "FALAJ_TOKEN", "FALAJ_SECRET_ENV"}


def test_ray_is_sent_names_of_the_platform_alone() -> None:
    assert set(ray._make_orders(hostile())["env"]) == {"FALAJ_URL", "FALAJ_TOKEN", "FALAJ_SECRET_ENV"}


def test_kubernetes_pod_has_names_of_the_platform_alone() -> None:
    objects = kubernetes_manifests.make_owned_objects(
        hostile(user="alice"), KubernetesOptions("falaj", image="python:3.11"), "uid", {}, ()
    )
    text = json.dumps([item for item in objects if item["kind"] != "Secret"])
    assert not [name for name in (*HOSTILE, *SECRETS) if f'"name": "{name}"' in text]
    assert '"FALAJ_SECRET_ENV"' in text
    assert '"-I"' in text, "the launcher's interpreter is isolated"
