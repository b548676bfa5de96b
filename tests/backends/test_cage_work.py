"""Honest work in a cage: training, ranks that find each other, and the real MLflow client that reports to us."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import pytest

from falaj.backends.process_sandbox import probe_isolation
from falaj.worker.attempt_context import build_document
from tests.api.mlflow.conftest import SCRIPTS, Place, mlflow_bin, place
from tests.backends.cages import Caged, caged

__all__ = ["mlflow_bin", "place"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(probe_isolation(gettempdir()).missing), reason="this machine cannot enforce a whole cage"),
]

TRAIN = """
import os, tempfile, torch
from falaj import worker
here = worker.attempt()
rows = torch.tensor([[float(word) for word in line.split(",")] for line in open(here.inputs["rows"] + "/rows.csv")])
model = torch.nn.Linear(1, 1)
steps = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows[:, :1], rows[:, 1:]), 4, num_workers=2)
for step in range(60):
    for x, y in loader if step % 20 == 0 else [(rows[:, :1], rows[:, 1:])]:
        loss = ((model(x) - y) ** 2).mean()
        steps.zero_grad(); loss.backward(); steps.step()
    here.metric("loss", loss.item(), step)
torch.save(model.state_dict(), here.checkpoints / "last.pt")
with tempfile.NamedTemporaryFile() as file:
    file.write(b"scratch")
with open(here.outputs["model"] + "/weight.txt", "w") as file:
    file.write(str(model.weight.item()))
print("trained", round(model.weight.item(), 1))
"""

TOGETHER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
box = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(box)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4)).sum().backward()
print("sum", int(box.item()), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Caged]:
    with caged(tmp_path / "house") as made:
        yield made


def test_a_training_script_reads_trains_and_leaves_its_model(house: Caged, tmp_path: Path) -> None:
    rows, model, state = tmp_path / "rows", tmp_path / "model", tmp_path / "state"
    rows.mkdir()
    (rows / "rows.csv").write_text("\n".join(f"{x / 10},{x / 5}" for x in range(1, 17)))
    given = {"inputs": {"rows": str(rows)}, "outputs": {"model": str(model)}, "checkpoints": str(state)}
    made = house.made(TRAIN, **given)
    status, lines = house.run(replace(made, command=(sys.executable, *made.command[1:])), 120)
    assert status.phase == "succeeded", lines
    assert lines[-1].startswith("trained 1.") or lines[-1].startswith("trained 2.")
    assert (model / "weight.txt").read_text()
    assert (state / "last.pt").stat().st_size
    kinds = [fact["kind"] for fact in house.executor.outbox(made.id)[0]]
    assert kinds.count("metric") == 60


@pytest.mark.parametrize("nodes", [("node-1",), ("node-1", "node-2")])
def test_ranks_of_torch_meet_over_gloo(house: Caged, nodes: tuple[str, ...]) -> None:
    made = house.made(TOGETHER, *nodes, framework="torch")
    if len(nodes) == 1:
        made = replace(made, slots=(replace(made.slots[0], processes=2),))
    code, outbox = str(made.context["code"]), str(made.context["outbox"])
    made = replace(made, command=(sys.executable, *made.command[1:]))
    made = replace(made, context=build_document(made, telemetry_s=60, outbox=outbox, code=code))
    status, lines = house.run(made, 120)
    assert status.phase == "succeeded", (status, lines)
    assert "sum 3 of 2" in lines


def test_the_mlflow_client_reports_to_the_platform(tmp_path: Path, place: Place, mlflow_bin: Path) -> None:
    env = {"MLFLOW_TRACKING_URI": place.url, "MLFLOW_DISABLE_TELEMETRY": "true"}
    env["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "1"
    with caged(tmp_path / "house", platform=place.url) as house:
        made = house.made("", env=env, secret_env={"MLFLOW_TRACKING_TOKEN": place.tokens["amal"]})
        folder = Path(str(made.context["code"]))
        for script in SCRIPTS.glob("*.py"):
            (folder / script.name).write_bytes(script.read_bytes())
        made = replace(made, command=(str(mlflow_bin / "python"), "tracking.py"))
        made = replace(made, context={**made.context, "command": list(made.command)})
        status, lines = house.run(made, 240)
    assert status.phase == "succeeded", lines[-20:]
