"""A small GPT over bytes: a decoder-only transformer as it is usually written, after "Attention is
all you need" and GPT-2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The size of a GPT. `width` is a multiple of `heads`; `context` is the longest sequence, in
    tokens.
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 64
    vocabulary: int = 256


class Attention(nn.Module):
    """Causal self-attention: each position sees itself and those before it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.split = nn.Linear(shape.width, 3 * shape.width)
        self.join = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.split(x).chunk(3, dim=2)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.join(seen.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """One layer: attention, then two linear layers, each added to what came in (normalised before,
    as in GPT-2).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.before_attention = nn.LayerNorm(shape.width)
        self.before_mlp = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """Tokens (batch, length) in, logits of each next token (batch, length, vocabulary) out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            # GPT-2: what is added to the residual stream starts smaller in deeper models
            if parameter.dim() == 2:
                scale = (
                    1 / math.sqrt(2 * shape.layers)
                    if name.endswith(("join.weight", "mlp.2.weight"))
                    else 1.0
                )
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        return self.logits(self.last(x))
