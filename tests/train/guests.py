"""Scripts of other libraries as real jobs: in environments of their own without Falaj, on real processes, killed."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.process import ProcessExecutor
from falaj.core.executor import AttemptStatus
from tests.conformance.executors import Lab
from tests.servers.peers import peer
from tests.servers.process import Missing

SOURCE = Path(__file__).parents[2] / "src"
TRAINERS = ("lightning==2.6.6", "accelerate==1.15.0", "torch==2.13.0", "numpy==2.4.6")


def programs(name: str, *requirements: str) -> Path:
    """The programs of an environment; skipped where it cannot be had, unless this is CI."""
    try:
        return peer(name, *requirements)
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def lab(tmp_path: Path) -> Iterator[Lab]:
    """Two nodes of processes."""
    executor = ProcessExecutor(f"process:{tmp_path}/attempts?nodes=2&cpus=2000", {})
    (tmp_path / "checkpoints").mkdir()
    yield Lab(
        executor,
        tuple(node.name for node in executor.capacity()),
        lambda name: str(tmp_path / name),
        patience_s=280.0,
        amounts={"cpu": 500, "memory": 4096},
    )
    executor.close()


def run(
    lab: Lab, tmp_path: Path, where: Path, *command: str, **more: Any
) -> tuple[AttemptStatus, str, list[dict[str, Any]]]:
    """How a job of this command in these programs ended, what it wrote, and the facts it told."""
    env = {"PATH": f"{where}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCE)} | more.pop("env", {})
    attempt = lab.attempt("python", *command, env=env, grace_s=5, **more)
    paths = {"checkpoints": str(tmp_path / "checkpoints"), "outputs": {"model": str(tmp_path / "model")}}
    (tmp_path / "model").mkdir(exist_ok=True)
    handle = lab.executor.launch(replace(attempt, context=dict(attempt.context) | paths))
    status = lab.until(handle)
    facts, _ = lab.executor.outbox(handle)  # type: ignore[attr-defined]
    logs = "".join(path.read_text() for path in sorted(Path(attempt.folder).glob("slot-*.log")))
    return status, logs, list(facts)
