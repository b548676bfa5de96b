"""An Accelerate script as a real job of two processes: killed, asked for its place, resumed to the same weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.executor import FAILED, SUCCEEDED
from tests.conformance.executors import Lab
from tests.train import guests

TRAIN = """
import hashlib, os, signal, torch
from accelerate import Accelerator
from falaj import worker
from falaj.train import accelerate as falaj
torch.set_num_threads(1)
here, die = worker.attempt(), os.environ.get("DIE", "")
accelerator = Accelerator(cpu=True, log_with=falaj.tracker())
accelerator.init_trackers("toy", config={"lr": 0.05})
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
data = [torch.randn(3, generator=torch.Generator().manual_seed(at)) for at in range(160)]
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
steps = len(loader)
watch = falaj.watch(accelerator, steps, save_s=0, every=2)
first = falaj.resume(accelerator)
for step, batch in enumerate(accelerator.skip_first_batches(loader, first), first + 1):
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.log({"loss": loss.item()}, step=step)
    if step == 9 and die == "kill" and here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 12 and die == "ask" and here.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    watch.step(step)
weights = b"".join(value.detach().numpy().tobytes() for value in accelerator.unwrap_model(model).state_dict().values())
print("rank", here.rank, "from", first, "to", step, hashlib.sha256(weights).hexdigest(), flush=True)
accelerator.end_training()
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield from guests.lab(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first installs it
def test_killed_and_asked_two_processes_end_with_the_weights_of_an_easy_life(lab: Lab, tmp_path: Path) -> None:
    where = guests.programs("lightning", *guests.TRAINERS)
    (tmp_path / "train.py").write_text(TRAIN)
    logs, ends, steps = [], [], []
    for die in ("kill", "ask", "", "easy"):
        if die == "easy":
            for one in (tmp_path / "checkpoints/watched").iterdir():
                one.rename(tmp_path / one.name)
        status, log, facts = guests.run(
            lab, tmp_path, where, str(tmp_path / "train.py"), framework="torch", processes=2, env={"DIE": die}
        )
        logs.append(log)
        ends.append((status.phase, status.exits[0].code))
        steps.append([fact["step"] for fact in facts if fact["kind"] == "checkpoint"])
        assert {fact["key"] for fact in facts if fact["kind"] == "metric"} <= {"loss"}
    assert [phase for phase, _ in ends] == [FAILED, FAILED, SUCCEEDED, SUCCEEDED], logs
    assert ends[1][1] == 85
    # What one process was asked, both did at the same step.
    assert (steps[0], steps[1], steps[2][0]) == ([2, 4, 6, 8], [10, 12], 14)
    words = [line.split() for log in logs[2:] for line in log.splitlines() if line.startswith("rank")]
    assert [word[3] for word in words] == ["12", "12", "0", "0"]
    assert len({tuple(word[4:]) for word in words}) == 1, words
    assert words[0][5] == "20"
