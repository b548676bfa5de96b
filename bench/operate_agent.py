"""What a zone's agent adds to the launch of an attempt: a part of bench/operate.py, or `python bench/operate_agent.py`.

From the call of `launch` to the first line of the program, by turns: through `agent:ZONE`, with a real agent process on
the other end of TLS 1.3 where both show certificates, and on `process:` of this process, each with the same options.
"""

import contextlib
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bars import bar, told
from scratch import ahead, folder

from falaj.api.http_server import create_http_server
from falaj.backends.agent_zone import AgentExecutor
from falaj.backends.process import ProcessExecutor
from falaj.core.agent_relay import get_relay
from falaj.core.executor import FINISHED_PHASES, Attempt, Executor, Slot
from falaj.server import LocalClient, Server, load_settings
from falaj.worker.attempt_context import build_document
from falaj.worker.launcher_archive import get_launcher_archive

ROUNDS = int(os.environ.get("ROUNDS", "40"))
WARM = 5
ZONE = "ae-onprem"
LOCAL = "process:?nodes=1&sandbox=off"


def agent() -> None:
    """`agent_launch_ms`: the median of what is added."""
    with folder() as home, ahead(), _joined(home):
        kinds: dict[str, Executor] = {
            "direct": ProcessExecutor(LOCAL, {"folder": str(home / "direct")}),
            "agent": AgentExecutor(f"agent:{ZONE}", {}),
        }
        took: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(ROUNDS + WARM):
            for kind, executor in kinds.items():
                found = _launch(executor, home / kind, f"{kind}-{number}")
                took[kind] += [found] if number >= WARM else []
        for executor in kinds.values():
            executor.close()
    middle = {kind: 1000 * statistics.median(values) for kind, values in took.items()}
    note = f"{middle['direct']:.1f} ms without, {middle['agent']:.1f} ms through the agent"
    bar("agent_launch_ms", middle["agent"] - middle["direct"], "<=", 2.0, note)


@contextlib.contextmanager
def _joined(home: Path) -> Iterator[None]:
    """A platform on loopback, and an agent that joined it."""
    house = Server(load_settings(str(home / "house"), {"zone": "ae-dubai", "drain_s": 0.0}))
    admin = LocalClient(house, house.authenticate(str(house.bootstrap())))
    admin.zones.add(ZONE, "AE-DU", "AE", regimes=("AE-PDPL",), max_class=3, store=f"agent:{ZONE}")
    server, renew = create_http_server(house, listen="127.0.0.1:0", own_ca=True)
    thread = threading.Thread(target=server.go, kwargs={"renew": renew}, daemon=True)
    thread.start()
    words = ["agent", "--join", server.url, "--ca", str(home / "house/tls/ca.pem"), "--zone", ZONE, "--door", "0"]
    words += ["--home", str(home / "agent"), "--executor", LOCAL]
    env = {**os.environ, "FALAJ_JOIN": admin.agents.invite(ZONE).token, "FALAJ_TOKEN": ""}
    with (home / "agent.log").open("wb") as log:
        joined = subprocess.Popen([sys.executable, "-m", "falaj", *words], env=env, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while not get_relay(ZONE).connected:
            if time.monotonic() > end or joined.poll() is not None:
                raise SystemExit(f"the agent did not join: {(home / 'agent.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        joined.terminate()
        joined.wait(30)
        server.should_exit = True
        thread.join(30)
        house.close()


def _launch(executor: Executor, root: Path, name: str) -> float:
    command = ("/bin/sh", "-c", "date +%s.%N")
    made = Attempt(name, "job:bench/j", "bank", "bench", (Slot(0, "node-1"),), command, launcher=get_launcher_archive())
    made = replace(made, folder=str(root / name), secret_env={"FALAJ_TOKEN": "a.e30.b"})
    made = replace(made, context=build_document(made, telemetry_s=60, code="", outbox=str(root / name / "outbox")))
    began = time.time()
    executor.launch(made)
    while executor.poll([name])[0].phase not in FINISHED_PHASES:
        time.sleep(0.01)
    lines = executor.logs(name, 0).lines
    if not lines or not re.fullmatch(r"\d+\.\d+", lines[0]):
        raise SystemExit(f"the program said {lines}")
    executor.forget(name)
    return float(lines[0]) - began


if __name__ == "__main__":
    told("operate_agent", [agent])
