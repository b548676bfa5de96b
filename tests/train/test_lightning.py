"""A LightningModule and its Trainer as a real job: killed, asked for its place, resumed to the same weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.executor import FAILED, SUCCEEDED
from tests.conformance.executors import Lab
from tests.train import guests

TRAIN = """
import hashlib, os, signal, torch, warnings
from lightning.pytorch import LightningModule, Trainer
from falaj import worker
from falaj.train import lightning as falaj
torch.set_num_threads(1)
here, die = worker.attempt(), os.environ.get("DIE", "")

class Loader:
    # A loader that knows where it is, as Lightning asks of those that are to resume inside an epoch.
    at = 0
    def __len__(self):
        return 8
    def __iter__(self):
        while self.at < 8:
            self.at += 1
            generator = torch.Generator().manual_seed(self.at)
            yield torch.randn(4, 3, generator=generator)
        self.at = 0
    def state_dict(self):
        return {"at": self.at}
    def load_state_dict(self, state):
        self.at = state["at"]

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 1)
    def training_step(self, batch, number):
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss)
        if self.global_step == 13 and die == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.global_step == 15 and die == "ask":
            os.kill(os.getpid(), signal.SIGTERM)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)

quiet = dict(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=2)
trainer = Trainer(max_steps=20, callbacks=[falaj.Falaj(save_s=0)], **quiet, **falaj.places())
model = Net()
path = falaj.resume()
trainer.fit(model, Loader(), ckpt_path=path)
weights = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
print("from", path and path.split("/")[-2], "to", trainer.global_step, hashlib.sha256(weights).hexdigest(), flush=True)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield from guests.lab(tmp_path)


@pytest.mark.timeout(900)  # the first installs it
@pytest.mark.slow
def test_killed_and_asked_it_ends_with_the_weights_of_an_easy_life(lab: Lab, tmp_path: Path) -> None:
    where = guests.programs("lightning", *guests.TRAINERS)
    (tmp_path / "train.py").write_text(TRAIN)
    logs, ends, steps = [], [], []
    for die in ("kill", "ask", "", "easy"):
        if die == "easy":
            for one in (tmp_path / "checkpoints/watched").iterdir():
                one.rename(tmp_path / one.name)
        status, log, facts = guests.run(
            lab, tmp_path, where, str(tmp_path / "train.py"), framework="torch", env={"DIE": die}
        )
        logs.append(log)
        ends.append((status.phase, status.exits[0].code))
        steps.append([fact["step"] for fact in facts if fact["kind"] == "checkpoint"])
        assert {fact["key"] for fact in facts if fact["kind"] == "metric"} <= {"loss"}
    assert [phase for phase, _ in ends] == [FAILED, FAILED, SUCCEEDED, SUCCEEDED], logs
    assert ends[1][1] == 85
    assert (steps[0], steps[1], steps[2][0]) == (list(range(1, 14)), [14, 15, 16], 17)
    words = [line.split() for log in logs[2:] for line in log.splitlines() if line.startswith("from")]
    assert [word[1] for word in words] == ["step-000000016", "None"]
    assert words[0][3:] == words[1][3:] == ["20", words[1][4]]
