"""A LightningModule and its Trainer as they are, with a callback and two words more.

python examples/lightning_module.py
falaj jobs submit examples/lightning_module.py --framework torch --checkpoint every=1m
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody names it
from torch.utils.data import DataLoader, TensorDataset

from falaj.train import lightning as falaj


class Rings(LightningModule):
    """Tells points inside a ring from those outside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        del number
        loss = F.binary_cross_entropy_with_logits(self.net(batch[0]).squeeze(1), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.02)


if __name__ == "__main__":
    torch.manual_seed(0)
    points = torch.randn(2048, 2)
    inside = (points.norm(dim=1) < 1.0).float()
    trainer = Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        log_every_n_steps=10, callbacks=[falaj.Falaj()], **falaj.places(),
    )  # fmt: skip
    trainer.fit(Rings(), DataLoader(TensorDataset(points, inside), batch_size=64), ckpt_path=falaj.resume())
    print(f"loss {float(trainer.callback_metrics['loss']):.3f} after {trainer.global_step} steps")
    assert trainer.callback_metrics["loss"] < 0.3
