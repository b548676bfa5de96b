"""Clusters: declared by operators, told of by themselves, drained and opened again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.errors import Conflict, Invalid, NotFound
from tests.jobs.lab import Lab, until
from tests.town import refusal


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Any]:
    with falaj.connect(str(tmp_path / "house")) as made:
        yield made


def test_a_fresh_house_has_its_own_processes(here: Any) -> None:
    (local,) = here.clusters.list()
    assert (local.name, local.address, local.zone, local.tenants) == ("local", "process:", "home", ("house",))
    checked = here.clusters.check("local")
    assert (checked.ok, checked.nodes) == (True, 1)
    here.clusters.add("two", "process:?nodes=2&cpus=4000&memory=1024", more={"folder": "/tmp/falaj-two"})
    assert [one.name for one in here.clusters.list()] == ["local", "two"]
    here.clusters.remove("local")
    assert [one.name for one in here.clusters.list()] == ["two"]


@pytest.mark.parametrize(
    ("name", "address", "more"),
    [
        ("Two", "process:", {}),
        ("two", "not an address", {}),
        ("two", "ray:https://me:secret@head:1", {}),  # pragma: allowlist secret
        ("two", "ray:https://head:1", {"token": "AKIAABCDEFGHIJKLMNOP"}),  # pragma: allowlist secret
        ("two", "process:", {"state": "sleepy"}),
        ("two", "process:", {"folder": "attempts"}),
        ("two", "process:", {"checkpoints": "shared/saved"}),
        ("two", "process:", {"cgroup": "falaj"}),
        ("two", "process:?labels=rack", {}),
        ("two", "process:?processes=many", {}),
        ("two", "agent:elsewhere", {}),
        ("two", "ray:https://head:1", {"token": "secret://ray"}),
        ("two", "ray:https://head:1", {"token": "secret://house/elsewhere/ops/ray"}),
        ("two", "ray:https://head:1", {"token": "secret://house/home/ops/ray", "insecure": "maybe"}),
        ("two", "ray:https://head:1", {"token": "secret://house/home/ops/ray", "ca": "/nowhere/ca.pem"}),
        ("two", "kubernetes:https://head:1", {"token": "secret://house/home/ops/ray", "object": "podset"}),
    ],
)
def test_what_cannot_be_is_refused(here: Any, name: str, address: str, more: dict[str, str]) -> None:
    assert isinstance(refusal(lambda: here.clusters.add(name, address, more=more)), Invalid)
    assert len(here.clusters.list()) == 1


def test_a_zone_and_a_cluster_must_be_there(here: Any) -> None:
    assert isinstance(refusal(lambda: here.clusters.add("two", "process:", "moon")), NotFound)
    assert isinstance(refusal(lambda: here.clusters.show("two")), NotFound)
    assert isinstance(refusal(lambda: here.clusters.add("local", "process:")), Conflict)


def test_tenants_and_nodes_must_be_there(here: Any) -> None:
    for act in (
        lambda: here.clusters.change("local", {"tenants": "house,bank"}),
        lambda: here.clusters.add("two", "process:", more={"tenants": "bank"}),
        lambda: here.clusters.open("local/nobody"),
    ):
        assert isinstance(refusal(act), NotFound)
    here.people.add_tenant("bank", "fatima")
    assert here.clusters.change("local", {"tenants": "house,bank"}).tenants == ("bank", "house")
    assert here.clusters.change("local", {"tenants": "*"}).tenants == ("*",)


def test_a_cluster_that_does_not_answer_is_told_of(here: Any) -> None:
    here.clusters.add("far", "ray:http://127.0.0.1:1", more={"insecure": "loopback"})
    checked = here.clusters.check("far")
    assert (checked.ok, "does not answer" in checked.problem) == (False, True), checked


def test_a_drained_node_takes_nothing_new(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here, here.working():
        lab.one_node()
        (node,) = until(here.clusters.nodes, lambda nodes: len(nodes) == 1 and nodes[0].cpu == "1")
        running = lab.submit("import time; time.sleep(600)", "runs", cpus=0.5)
        lab.until(running, lambda job: job.state == "running")
        assert here.clusters.nodes()[0].used == {"cpu": "0.5", "memory": "100MiB"}
        assert isinstance(refusal(lambda: here.clusters.remove("local")), Conflict)
        here.clusters.drain(node.node)
        assert here.clusters.nodes()[0].state == "drained"
        waiting = lab.submit("print(1)", "waits", cpus=0.5)
        lab.until(running, lambda job: job.state == "running")
        assert lab.show(waiting).state == "waiting"
        here.clusters.open(node.node)
        assert lab.done(waiting).state == "succeeded"
        here.jobs.cancel(running.ref)
        lab.done(running)


@pytest.mark.parametrize(
    ("address", "more"),
    [
        ("foo:bar", {}),
        ("ray:http://1.2.3.4:8265", {"token": "secret://house/home/ops/ray"}),
        ("ray:https://head:8265", {}),
        ("slurm:", {}),
        ("process:?nodes=-3", {}),
    ],
)
def test_an_address_under_which_nothing_can_run_is_refused_at_once(
    here: Any, address: str, more: dict[str, str]
) -> None:
    assert isinstance(refusal(lambda: here.clusters.add("two", address, more=more)), Invalid)
    assert isinstance(
        refusal(lambda: here.clusters.change("local", {"address": address, "folder": "", **more})), Invalid
    )
    assert [one.address for one in here.clusters.list()] == ["process:"]


def test_what_a_cluster_that_does_not_answer_says_is_shown_and_blamed(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here as here, here.working():
        lab.one_node()
        until(here.clusters.nodes, lambda nodes: len(nodes) == 1)
        here.clusters.add("far", "ray:http://127.0.0.1:1", more={"insecure": "loopback"})
        (far,) = until(lambda: [one for one in here.clusters.list() if one.trouble], lambda found: len(found) == 1)
        assert far.name == "far"
        job = lab.submit("print(1)", cluster="far")
        why = here.jobs.why(job.ref)
        assert (why.reason, why.commands) == ("place", ("falaj clusters check far",))
        assert "far does not answer" in why.text
        assert far.trouble.split()[0] in "\n".join(here.jobs.top(once=True).lines)
        here.clusters.change("far", {"address": "process:?nodes=1&cpus=1000&memory=512", "insecure": ""})
        assert lab.done(job).state == "succeeded"
        assert [one.trouble for one in here.clusters.list()] == ["", ""]
