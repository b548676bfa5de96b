"""The models that the bench of optimising makes smaller: a CNN for digits and an encoder of five million parameters."""

import torch
from torch import nn
from torch.nn import functional


class Digits(nn.Module):
    """8x8 images to ten classes; 0.39 million parameters at width 1."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        a, b, c = (max(4, round(size * width)) for size in (64, 128, 80))
        self.first, self.second = nn.Conv2d(1, a, 3, padding=1), nn.Conv2d(a, b, 3, padding=1)
        self.third = nn.Conv2d(b, b, 3, padding=1)
        self.inner, self.last = nn.Linear(b * 16, c), nn.Linear(c, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits."""
        made = functional.relu(self.second(functional.relu(self.first(image))))
        made = functional.relu(self.third(functional.max_pool2d(made, 2))).flatten(1)
        return self.last(functional.relu(self.inner(made)))


class Block(nn.Module):
    """Attention, then two layers."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(size), nn.LayerNorm(size)
        self.three, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        """One block further."""
        rows, words, size = flow.shape
        parts = self.three(self.before(flow)).reshape(rows, words, 3, self.heads, size // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        flow = flow + self.out(seen.transpose(1, 2).reshape(rows, words, size))
        return flow + self.down(functional.gelu(self.up(self.between(flow))))


class Encoder(nn.Module):
    """32 tokens to eight classes; five million parameters at width 1."""

    def __init__(self, width: float = 1.0, layers: int = 6, words: int = 1024) -> None:
        super().__init__()
        size = max(32, round(256 * width) // 32 * 32)
        self.table, self.places = nn.Embedding(words, size), nn.Parameter(0.02 * torch.randn(32, size))
        self.blocks = nn.Sequential(*(Block(size, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.norm(self.blocks(self.table(tokens) + self.places)).mean(1))
