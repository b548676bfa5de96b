"""A small transformer that learns to write sums: alone, or on several processes as copies (ddp) or cut (fsdp).

python examples/language_model.py
torchrun --nproc-per-node 2 examples/language_model.py --parallel fsdp
falaj jobs submit "python examples/language_model.py --parallel ddp" --framework torch --workers 2
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody names it

from falaj import train

LETTERS = "0123456789+=;"
LENGTH, WIDTH, DEPTH, HEADS = 24, 48, 2, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.asked, self.told = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape
        parts = self.asked(self.first(x)).view(*size[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.told(seen.transpose(1, 2).reshape(size))
        return x + self.inner(self.second(x))


class Writer(nn.Module):
    """Letters in, chances of the next letter out."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.letters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def sums(number: int) -> dict[str, torch.Tensor]:
    """Texts such as `3+4=7;5+1=6;`, cut to one length."""
    chance = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, 10, (number, 6, 2), generator=chance).tolist()
    texts = ["".join(f"{a}+{b}={a + b};" for a, b in row)[: LENGTH + 1] for row in pairs]
    return {"text": torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])}


def main(run: train.Run) -> float:
    data, model, loss = run.data(sums(4000), batch=64), run.parallel(Writer()), 0.0
    optimizer = run.adamw(model, lr=3e-3)
    run.schedule(optimizer, "cosine", steps=120, warmup=10)
    for step in run.steps(120, data):
        for batch in step.micro():
            said = model(batch["text"][:, :-1])
            losses = F.cross_entropy(said.flatten(0, 1), batch["text"][:, 1:].flatten(), reduction="none")
            loss = float(losses.detach().mean()) if step.number == 119 else loss
            step.backward(losses)
        step.apply(optimizer, clip=1.0)
    run.save_model(model, loss=loss)
    return loss


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--parallel", default="auto")
    last = train.start(main, parallel=asked.parse_args().parallel)
    print(f"loss {last:.3f}")
    assert last < 1.5
