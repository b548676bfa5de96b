"""suspended_tenant_stops: a suspended tenant computes and serves nothing; resumed, it goes on where it stood."""

import http.client
import json
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import falaj
from falaj.core.errors import FalajError
from tests.infer import models
from tests.jobs.lab import Lab, until
from tests.people import enroll
from tests.stories.serving_ground import SCORE, SMALL, Platform, up

TRAINING = """
import os, pathlib, time
from falaj import worker
here = worker.attempt()
saved = pathlib.Path(os.environ["FALAJ_CHECKPOINTS"]) / "state"
step, total = map(int, saved.read_text().split()) if saved.exists() else (0, 0)
print("begins at", step, flush=True)
pause_s = 0.01 if saved.exists() else 0.3
while step < 200:
    total, step = total + step * step, step + 1
    here.progress(step, 200)
    if here.asked():
        saved.write_text(f"{step} {total}")
        here.checkpointed(step)
        if here.asked() == "stop":
            here.yield_place()
    time.sleep(pause_s)
print("total", total, flush=True)
"""
FLOW = """
import time
from falaj import flow, step

SMALL = {"cpus": 0.1, "memory": "32MiB", "cache": False}

@step(**SMALL)
def first():
    time.sleep(5)
    return 20

@step(**SMALL)
def second(value):
    return value + 22

@flow("fraud/pauses")
def pauses():
    second(first())
"""
EVERY_START = "jobs.admit"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_suspended_tenant_stops(tmp_path: Path) -> None:
    with up(tmp_path) as running, ExitStack() as clients:

        def connect(token: str) -> Any:
            return clients.enter_context(falaj.connect(running.there.here.address, token=token))

        admin, fatima = connect(running.tokens["admin"]), connect(running.tokens["fatima"])
        auditors = [connect(enroll(boss, "auditor", ("auditor",))) for boss in (admin, fatima)]
        _story(tmp_path, running.there, admin)
        _check_log(*auditors)


def _story(home: Path, bank: Platform, admin: Any) -> None:
    mona = bank.here
    admin.queues.add("root/narrow", limit={"cpu": "0.1"}, projects=("bank/narrow",))
    lab, x = Lab(home, mona), np.random.default_rng(5).standard_normal((4, 32)).astype(np.float32)

    mona.serve.deploy(SCORE, bank.model(), **SMALL)
    (replica,) = [one.name for one in bank.until(lambda view: view.state == "ready" and view.url).replicas]
    door = bank.door()
    assert _call(door, bank.token, x)[0] == 200
    words = {"project": "narrow", "checkpoint": "every=1s,save=1s,restart=1s"}
    training = lab.submit(TRAINING, "training", **words)
    lab.until(training, lambda view: view.step > 2)
    waiting = lab.submit("print('waited')", "waiting", project="narrow")
    script = home / "flow" / "pauses.py"
    script.parent.mkdir()
    script.write_text(FLOW)
    flow_run = mona.flows.run(str(script), follow=False).ref
    jobs = [str(training.ref), f"job:fraud/{replica}"]
    assert _running(jobs, home) == set(jobs)
    assert mona.jobs.show(waiting.ref).state == "waiting"

    admin.people.suspend_tenant("bank")
    until(lambda: _running(jobs, home), lambda names: not names)
    status, text = until(lambda: _call(door, bank.token, x), lambda answer: answer[0] != 200)
    assert (status, "the tenant bank is suspended" in text or "the tenant is suspended" in text) == (403, True), text
    assert _refused(mona.jobs.list)

    admin.people.resume_tenant("bank")
    done = {job.ref.name: lab.done(job) for job in (training, waiting)}
    assert {name: job.state for name, job in done.items()} == {"training": "succeeded", "waiting": "succeeded"}
    assert [one.outcome.partition(":")[0] for one in done["training"].attempts] == ["suspended", "succeeded"]
    assert len(done["waiting"].attempts) == 1
    began, total = lab.lines(training)[0], lab.lines(training)[-1]
    assert int(began.split()[2]) > 0, "it goes on from its checkpoint"
    assert total == f"total {sum(step * step for step in range(200))}"
    ended_flow = until(lambda: mona.flows.look(flow_run), lambda view: view.state not in ("waiting", "running"))
    assert ended_flow.state == "succeeded", ended_flow
    status, text = until(lambda: _call(door, bank.token, x), lambda answer: answer[0] == 200)
    np.testing.assert_allclose(json.loads(text)["outputs"][0]["data"], models.mlp_of(x).ravel(), rtol=1e-4, atol=1e-5)


def _check_log(platform_auditor: Any, auditor: Any) -> None:
    """From the suspension to its end nothing of the tenant was started."""
    times = {event.verb: event.at for event in _log(platform_auditor, "people.suspend-tenant people.resume-tenant")}
    suspended, resumed = times["people.suspend-tenant"], times["people.resume-tenant"]
    starts = [event.at for event in _log(auditor, EVERY_START)]
    assert not [at for at in starts if suspended + 2.0 < at < resumed], "held within two seconds"
    assert any(at > resumed for at in starts)


def _log(client: Any, verbs: str) -> list[Any]:
    return list(client.audit.log(verb=verbs, limit=1000).entries)


def _call(door: str, token: str, x: Any) -> tuple[int, str]:
    """The status and body of one inference."""
    row = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    address = urlsplit(door)
    with closing(http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)) as connection:
        body = json.dumps({"inputs": [row]})
        connection.request("POST", address.path, body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def _running(jobs: list[str], home: Path) -> set[str]:
    """Those of these jobs that have processes with a folder below `home`: other tests have jobs of the same names."""
    names = set()
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            text = (process / "environ").read_text(errors="replace")
            names |= {job for job in jobs if str(home) in text and f"FALAJ_JOB={job}" in text.split("\0")}
    return names


def _refused(act: Any) -> bool:
    try:
        act()
    except FalajError:
        return True
    return False
