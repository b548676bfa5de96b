"""A message from outside begins one run and its end is told outside, though the platform is killed in between."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from falaj.flows.records import STEP_JOB, FlowPlan, StepPlan
from falaj.flows.webhook_signatures import STYLE_STANDARD, sign_message, verify_webhook_signature
from falaj.jobs.records import JobSpec, RoleSpec
from falaj.server import connect
from tests.flows.receiver import free_port, receiving

STEP = StepPlan("one", STEP_JOB, spec=JobSpec(("python3", "-c", "pass"), (RoleSpec(cpus=0.1, memory="256MiB"),)))


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.slow
def test_a_knock_begins_one_run_whoever_dies(tmp_path: Path) -> None:
    home, port = str(tmp_path / "home"), free_port()
    said = {"FALAJ_HOME": home, "FALAJ_LISTEN": f"127.0.0.1:{port}", "FALAJ_GATEWAY": "127.0.0.1:0"}
    env = {**os.environ, **said, "FALAJ_GATEWAY_GRPC": "", "FALAJ_HOOKS_PRIVATE": "127.0.0.0/8"}

    def up() -> "subprocess.Popen[bytes]":
        platform = subprocess.Popen([sys.executable, "-m", "falaj", "up"], env=env, stdout=subprocess.DEVNULL)
        until(lambda: _healthy(port), "the platform is not up")
        return platform

    platform = up()
    here = connect(home, **{"hooks.private": ("127.0.0.0/8",)})
    try:
        with receiving() as receiver:
            here.flows.add("flow:fraud/retrain", FlowPlan((STEP,), {"branch": ""}))
            hook = here.flows.hook("hook:fraud/ci", receiver.url(), ("flows.end",))
            knock = here.flows.listen("knock:fraud/ci", {"branch": "ref"})
            here.flows.on("flow:fraud/retrain", ("flows.knock",), params={"branch": "{branch}"})
            body = b'{"ref": "main"}'
            signed = sign_message([knock.secret.encode()], "msg_1", int(time.time()), body)
            headers = {"content-type": "application/json", **signed}
            assert httpx.post(f"http://127.0.0.1:{port}{knock.path}", content=body, headers=headers).status_code == 200
            for _ in range(2):
                platform.send_signal(signal.SIGKILL)
                platform.wait()
                platform = up()
            until(lambda: len(receiver.got) > 0, "nobody was told")
            got, told, _ = receiver.got[0]
            verify_webhook_signature(STYLE_STANDARD, [hook.secret.encode()], got, told, time.time())
            assert json.loads(told)["data"]["state"] == "succeeded"
            (run,) = here.flows.runs("flow:fraud/retrain").runs
            assert run.params == {"branch": "main"}
            again = httpx.post(f"http://127.0.0.1:{port}{knock.path}", content=body, headers=headers)
            assert again.status_code == 409
    finally:
        platform.terminate()
        platform.wait()
        here.close()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
