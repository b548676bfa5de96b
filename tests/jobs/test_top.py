"""top: one frame of everything, for whoever asks, near and far; and keys."""

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

from falaj.fleet.telemetry_targets import make_node_target
from tests.jobs.lab import Lab, until
from tests.town import refusal


def test_one_frame_shows_clusters_queues_nodes_and_gpus(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.one_node(gpus=2)
        job = lab.submit("import time; time.sleep(600)", gpus=1)
        lab.until(job, lambda one: one.state == "running")
        house = lab.here.house
        telemetry, now = house.desks["clusters"].telemetry, house.system().now()
        told = {"load": 1.5, "0.busy": 87.0, "0.memory": 40_000.0, "0.memory_total": 80_000.0, "0.temperature": 64.0}
        telemetry.put(make_node_target("local/node-1", house.settings.zone), now, told, now)
        telemetry.flush()
        shown = lab.here.jobs.top(once=True)
        frame = "\n".join(shown.lines)
        assert "1 clusters, 1 nodes, 2 GPUs" in frame
        for said in ("root/default", "local/node-1", "gpu=1", "87%", "39GiB", "64°C"):
            assert said in frame, frame
        assert [node.node for node in shown.nodes] == ["local/node-1"]
        assert shown.figures["local/node-1"]["0.temperature"] == 64.0
        assert "every" in str(refusal(lambda: lab.here.jobs.top(every_s=0)))
        lab.here.jobs.cancel(job.ref)
        lab.done(job)


def test_what_a_job_did_can_be_looked_at(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        script = "import time\nfrom falaj import worker\nhere = worker.attempt()\n"
        script += "for step in range(8): here.progress(step, 8); time.sleep(1)"
        job = lab.done(lab.submit(script))
        lab.here.house.desks["clusters"].telemetry.flush()
        names = {figure.name: figure for figure in lab.here.jobs.figures(job.ref)}
        assert {"0.rss", "r0.pace"} <= set(names)
        assert 0.2 < names["r0.pace"].highest < 2


def test_q_ends_it(tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "falaj", "--at", str(tmp_path / "house"), "jobs", "top", "--every-s", "0.3"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=env) as process:
        os.close(inside)
        seen = bytearray()
        threading.Thread(target=_read, args=(terminal, seen), daemon=True).start()
        until(lambda: bytes(seen), lambda text: b"clusters" in text)
        os.write(terminal, b"q")
        assert process.wait(60) == 0
    os.close(terminal)


def _read(terminal: int, seen: bytearray) -> None:
    try:
        while data := os.read(terminal, 4096):
            seen += data
    except OSError:
        return
