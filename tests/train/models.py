"""Two small models for tests of training: a GPT of four blocks and a convolutional net."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH = 96, 64, 16


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_head = heads
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.n_head, width // self.n_head)
        query, key, value = (layer(x).view(shape).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        # A tensor made on the way, as rotary embeddings are.
        turn = torch.linspace(0, 1, length, device=x.device).cos().view(1, 1, length, 1)
        found = functional.scaled_dot_product_attention(query * turn, key * turn, value, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Tokens(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) + self.places[: ids.shape[1]]


class Gpt(nn.Module):
    def __init__(self, width: int = WIDTH, heads: int = 4, layers: int = 4, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.tokens = Tokens(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def pipeline_parts(self) -> list[nn.Module]:
        return [self.tokens, *self.blocks, self.norm, self.head]


class Stage(nn.Module):
    """Two convolutions around what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def cnn() -> nn.Sequential:
    """Of images of 3 x 8 x 8, ten classes."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), Stage(8), Stage(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
