"""node_lost_on_ray: the node under a job loses its power; the job goes on from its checkpoint on those that are left.

Platform and nodes share no folder: code and inputs are fetched, and metrics and outputs sent, over HTTP with the
attempt's own token. Checkpoints lie on what all nodes reach.
"""

import os
import site
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import falaj
from tests.jobs.lab import Lab
from tests.servers.process import wait_until
from tests.servers.ray import NODES, RayServer
from tests.stories.rays import bank_on_ray
from tests.town import LABEL

TRAIN = """
import pathlib, time
from falaj import worker
here = worker.attempt()
rows = (pathlib.Path(here.inputs["data"]) / "tx.csv").read_text().split()
mark = pathlib.Path(here.checkpoints) / f"rank-{here.rank}"
first = int(mark.read_text()) if mark.exists() else 0
print("rank", here.rank, "of", here.world, "from", first, flush=True)
for step in range(first + 1, 41):
    here.progress(step, 40)
    here.metric("loss", 1 / step, step)
    if step % 10 == 0:
        mark.write_text(str(step))
        here.checkpointed(step)
    while step == 25 and here.id.endswith("-1"):
        time.sleep(1)
if here.rank == 0:
    (pathlib.Path(here.outputs["model"]) / "model.txt").write_text(f"{len(rows)} rows")
print("done", flush=True)
"""


@pytest.fixture
def lab(tmp_path: Path, ray_server: RayServer) -> Iterator[Lab]:
    """Somebody of a bank, at a server that may run the bank's jobs on Ray."""
    with bank_on_ray(tmp_path, ray_server) as made:
        yield made


@pytest.fixture
def kill(ray_server: RayServer) -> Iterator[Callable[[str], None]]:
    """Ends nodes as a power cut would; they come back afterwards."""
    killed: list[str] = []

    def end(node: str) -> None:
        killed.append(node)
        ray_server.tell("kill", node)

    yield end
    for node in killed:
        ray_server.tell("add", node)
    wait_until(ray_server.ready, ray_server.ready_s)


@pytest.mark.slow  # Ray alone takes half a minute to start three nodes, and to bring a dead one back
def test_node_lost_on_ray(lab: Lab, kill: Callable[[str], None], tmp_path: Path) -> None:
    (tmp_path / "tx").mkdir()
    (tmp_path / "tx" / "tx.csv").write_text("1\n2\n3\n")
    data = lab.here.catalog.publish("dataset:fraud/tx", str(tmp_path / "tx"), label=LABEL)
    # The nodes' Python has ray; where it finds Falaj, too, is said here.
    python_path = os.pathsep.join((str(Path(falaj.__file__).parents[1]), *site.getsitepackages()))
    job = lab.submit(
        TRAIN, project="fraud", cluster="rays", workers=2, cpus=1.5, memory="64MiB", steps=40,
        checkpoint="every=1s,save=1s,restart=1s", env={"PYTHONPATH": python_path},
        inputs={"data": data.ref}, outputs={"model": "model:fraud/scorer"},
    )  # fmt: skip
    job = lab.until(job, lambda one: one.over or one.step >= 20)
    assert job.state == "running", (job.note, lab.lines(job), lab.lines(job, slot=1))
    assert lab.lines(job) == ("rank 0 of 2 from 0",)
    nodes = {node.partition("/")[2] for node in job.attempts[0].nodes}
    assert len(nodes) == 2
    lost = max(nodes - {NODES[0]})  # the drivers run there
    kill(lost)
    done = lab.done(job)
    assert (done.state, done.progress, len(done.attempts)) == ("succeeded", "40/40", 2), (done, lab.lines(done))
    assert done.attempts[0].outcome.startswith("lost")
    assert f"rays/{lost}" not in done.attempts[1].nodes
    assert (lab.lines(done), lab.lines(done, slot=1)) == tuple((f"rank {n} of 2 from 20", "done") for n in (0, 1))
    assert lab.here.track.show(job.run).metrics["loss"].value == pytest.approx(1 / 40)
    made = lab.here.catalog.show(done.outputs["model"])
    assert (made.inputs["data"], made.inputs["run"].bare, made.inputs["code"]) == (data.ref, job.run, done.code)
    assert b"".join(lab.here.catalog.cat(made.ref, "model.txt")) == b"3 rows"
    assert made.label == lab.here.catalog.show(data.ref).label
