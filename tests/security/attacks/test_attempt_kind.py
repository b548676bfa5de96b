"""Threat: a job calls itself a replica to get a replica's network and online store. What an attempt is follows from a
field of its record that only services of the platform set, never from what its submitter writes."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from falaj.api.http_server import create_http_server
from falaj.core.errors import Invalid
from tests.infer import models
from tests.jobs.lab import Lab
from tests.town import Town, refusal

JOB, REPLICA, FEATURE_REPLICA = "job", "replica", "feature-replica"
SMALL = {"command": ["true"], "roles": [{"cpus": 0.1, "memory": "100MiB"}]}
PLATFORM_ONLY = ("SERVE", "HOP_KEY", "HOP_CERT", "HOP_PRIVATE", "ONLINE_PASSWORD", "BULK")
PROBE = """
import json, os, socket

def tried(act):
    try:
        return repr(act())[:80]
    except OSError as error:
        return f"refused: {error.strerror}"

print(json.dumps({
    "program": __file__,
    "network": os.readlink("/proc/self/ns/net"),
    "online store": tried(lambda: os.listdir(ONLINE)),
    "egress": tried(lambda: socket.create_connection(("127.0.0.1", PORT), 3)),
}))
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    prepared = Town(tmp_path_factory.mktemp("kinds") / "town")
    prepared.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
    for tenant in ("bank", "clinic"):
        prepared.house.online(tenant)  # their stores are there
    with prepared.house.working():
        yield prepared
    prepared.close()


def test_job_that_calls_itself_a_replica_gets_the_sandbox_of_a_job(town: Town, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "falaj/infer").mkdir(parents=True)
    for name in ("falaj/__init__.py", "falaj/infer/__init__.py"):
        (code / name).touch()
    online = f"{town.house.settings.home}/online/bank"
    assert Path(online).is_dir()
    with socket.create_server(("127.0.0.1", 0)) as outside:
        program = PROBE.replace("ONLINE", repr(online)).replace("PORT", str(outside.getsockname()[1]))
        (code / "falaj/infer/__main__.py").write_text(program)
        spec = {
            "command": "python -m falaj.infer", "cpus": 0.1, "memory": "256MiB", "labels": {}, "folder": str(code),
            "env": {"FALAJ_PARAM_KIND": REPLICA, "FALAJ_PARAM_FEATURES": '{"features": {}}'},
        }  # fmt: skip
        lab = Lab(tmp_path, town.as_("amal"))
        published = lab.here.catalog.publish("code:fraud/fake", str(code)).ref
        (tmp_path / "job.json").write_text(json.dumps({**spec, "code": str(published)}))
        job = lab.done(lab.here.jobs.submit(str(tmp_path / "job.json"), project="fraud"))
        assert job.state == "succeeded", (job.note, lab.lines(job))
        came = json.loads(lab.lines(job)[-1])
        outside.setblocking(False)
        with pytest.raises(BlockingIOError):
            outside.accept()
    assert came["program"].endswith("code/falaj/infer/__main__.py"), "its own program may run, with the rights of a job"
    assert came["network"] != str(Path("/proc/self/ns/net").readlink())
    assert came["online store"].startswith("refused")
    assert came["egress"].startswith("refused")


@pytest.mark.parametrize("name", PLATFORM_ONLY)
def test_variable_that_the_platform_sets_is_refused_from_a_submitter(town: Town, name: str) -> None:
    variable = f"FALAJ_PARAM_{name}"
    amal = town.as_("amal")
    for more in ({"env": {variable: '{"features": {}}'}}, {"secrets": {variable: "secret:fraud/x"}}):
        error = refusal(lambda more=more: amal.jobs.add("job:fraud/fake", {**SMALL, **more}))  # type: ignore[misc]
        assert isinstance(error, Invalid)
        assert f"{variable} is reserved" in error.message


@pytest.mark.parametrize("name", ["URL", "TOKEN", "CGROUP", "CONTEXT", "SECRET_ENV", "SANDBOX", "INPUT_DATA", "KIND"])
def test_variable_that_the_launcher_sets_is_refused_from_a_submitter(town: Town, name: str) -> None:
    amal = town.as_("amal")
    error = refusal(lambda: amal.jobs.add("job:fraud/fake", {**SMALL, "env": {f"FALAJ_{name}": "x"}}))
    assert "is reserved" in error.message


def test_no_argument_of_the_api_sets_the_kind_of_a_job(town: Town) -> None:
    server, _ = create_http_server(town.house, listen="127.0.0.1:0")
    ready, url = threading.Event(), [""]

    def started(address: str) -> None:
        url[0] = address
        ready.set()

    thread = threading.Thread(target=server.go, args=(started,), daemon=True)
    thread.start()
    assert ready.wait(30)
    bearer = {"authorization": f"Bearer {town.tokens['amal']}", "falaj-attempt-kind": REPLICA}
    try:
        with httpx.Client(base_url=url[0], headers=bearer) as client:
            for body in (
                {"job": "job:fraud/k1", "spec": SMALL, "attempt_kind": REPLICA},
                {"job": "job:fraud/k2", "spec": SMALL, "kind": REPLICA},
                {"job": "job:fraud/k3", "spec": {**SMALL, "kind": REPLICA}},
                {"job": "job:fraud/k4", "spec": {**SMALL, "by_owner": True}},
            ):
                assert client.post("/v1/jobs/add", json=body).status_code in (400, 422), body
            assert client.post("/v1/jobs/add", json={"job": "job:fraud/plain", "spec": SMALL}).status_code == 200
    finally:
        server.should_exit = True
        thread.join(30)
    assert _record(town, "job:fraud/plain").body["kind"] == JOB


def test_replica_of_an_endpoint_cannot_be_given_the_platforms_variables(town: Town, tmp_path: Path) -> None:
    mona = town.as_("mona")
    model = mona.catalog.publish("model:fraud/scorer", str(models.mlp(tmp_path / "scorer"))).ref
    needs = {"cpus": 0.1, "memory": "256MiB", "env": {"FALAJ_PARAM_HOP_CERT": "mine"}}
    error = refusal(lambda: mona.serve.add("endpoint:fraud/fake", model, {"needs": needs}))
    assert "FALAJ_PARAM_HOP_CERT is reserved" in error.message


def test_only_a_service_of_the_platform_can_add_a_replica(town: Town) -> None:
    from falaj.server import LocalClient

    for kind in (REPLICA, FEATURE_REPLICA):
        served = {**SMALL, "env": {"FALAJ_PARAM_SERVE": "{}"}}
        service = LocalClient(town.house, town.actor("mona"), "fraud", kind)
        assert service.jobs.add(f"job:fraud/{kind}", served, dry=True).state == "waiting"


def _record(town: Town, ref: str) -> Any:
    from falaj.core.ref import Ref

    ctx = town.house.context(town.actor("amal"))
    with town.house.ledger.read(ctx) as tx:
        return tx.need(Ref.parse(ref))
