"""The language model that training is measured with: GPT-2's shape, without biases, its head tied to the embedding."""

import torch
from torch import nn
from torch.nn import functional

SIZES = {  # layers, width, heads, context, micro-batch
    "tiny": (2, 64, 4, 32, 8),
    "82M": (6, 768, 12, 1024, 64),
    "124M": (12, 768, 12, 1024, 64),
    "350M": (24, 1024, 16, 1024, 48),
    "1.3B": (24, 2048, 16, 2048, 16),
}
VOCABULARY = 50304


class Block(nn.Module):
    """Attention and a two-layer network, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Gives the hidden states under the head, or logits when asked."""

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.layers, self.width, self.context = layers, width, context
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        for param in self.parameters():
            if param.ndim > 1:
                nn.init.normal_(param, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    @property
    def flops_per_token(self) -> float:
        """PaLM's count: six for every weight that multiplies (the head once), and attention over the whole square."""
        weights = self.layers * 12 * self.width**2 + self.words.num_embeddings * self.width
        return 6 * weights + 12 * self.layers * self.width * self.context
