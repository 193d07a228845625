"""Small real models and seeded synthetic data they can learn from, so that a falling loss means the
gradients were right.
"""

from __future__ import annotations

import itertools
from typing import Any

MODELS = ("mlp", "cnn", "transformer")
WIDTH = {"mlp": 1024, "cnn": 256, "transformer": 256}
# samples per rank and iteration, learning rate
USUAL = {"mlp": (8, 0.01), "cnn": (8, 0.03), "transformer": (2, 0.1)}
NOISE = {"mlp": 4.0, "cnn": 1.0}  # of the data, against centres of unit variance
CLASSES = 10
VOCABULARY = 64
CONTEXT = 32


def model(name: str, torch: Any, seed: int, hidden: int) -> Any:
    """Return a model with weights drawn from `seed`; `hidden` is its width (0: the usual one)."""
    nn, width = torch.nn, hidden or WIDTH[name]
    torch.manual_seed(seed)
    if name == "mlp":
        first, second = nn.Linear(256, width), nn.Linear(width, width)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, CLASSES))
    if name == "cnn":
        channels = (1, width // 8, width // 4, width // 2, width)
        layers: list[Any] = []
        for wide, (before, after) in zip((1, 1, 2, 2), itertools.pairwise(channels), strict=True):
            layers += [
                nn.Conv2d(before, after, 3, stride=wide, padding=1),
                nn.GroupNorm(4, after),
                nn.ReLU(),
            ]
        head = [
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, CLASSES),
        ]
        return nn.Sequential(*layers, *head)
    return _transformer(torch, width)


def parameters(name: str, hidden: int) -> int:
    """How many numbers `model` has; each is summed over all ranks in an iteration.

    >>> [parameters(name, 0) for name in MODELS]
    [1323018, 525514, 3200576]
    """
    w = hidden or WIDTH[name]
    if name == "mlp":
        return 257 * w + (w + 1) * w + (w + 1) * CLASSES
    if name == "cnn":
        channels = (1, w // 8, w // 4, w // 2, w)
        layers = sum((9 * before + 3) * after for before, after in itertools.pairwise(channels))
        return layers + (w + 1) * 2 * w + (2 * w + 1) * CLASSES
    return 4 * (12 * w + 13) * w + (2 * VOCABULARY + CONTEXT + 2) * w + VOCABULARY


def _transformer(torch: Any, width: int) -> Any:
    """Return a pre-norm decoder of four blocks: embedding, causal attention, feed-forward,
    next-token logits.
    """
    nn, functional = torch.nn, torch.nn.functional
    Module: Any = nn.Module

    class Block(Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.feed = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            heads = (
                self.query_key_value(self.before(x))
                .view(batch, length, 3, 4, width // 4)
                .permute(2, 0, 3, 1, 4)
            )
            mixed = functional.scaled_dot_product_attention(
                heads[0], heads[1], heads[2], is_causal=True
            )
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.feed(self.between(x))

    class Decoder(Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(4)))
            self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

        def forward(self, tokens: Any) -> Any:
            x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
            return self.logits(self.norm(self.blocks(x))).flatten(0, 1)

    return Decoder()


class Data:
    """An endless synthetic data set: a batch is a function of seed, iteration and rank, so a
    resumed run sees the same ones.
    """

    def __init__(self, name: str, torch: Any, seed: int, rank: int, world: int, batch: int) -> None:
        self._name, self._torch, self._batch = name, torch, batch
        self._seed, self._rank, self._world = seed, rank, world
        self._generator = torch.Generator().manual_seed(seed + 1)
        # what there is to learn: a centre for each class, or which token follows which
        self._centres = torch.randn(CLASSES, 256, generator=self._generator)
        self._follows = torch.randperm(VOCABULARY, generator=self._generator)

    def batch(self, iteration: int) -> tuple[Any, Any]:
        """Return (inputs, targets) of this rank for `iteration`."""
        torch, draw = self._torch, self._generator
        draw.manual_seed((self._seed + 2) * 1_000_003 + iteration * self._world + self._rank)
        if self._name == "transformer":
            return self._sequences()
        target = torch.randint(CLASSES, (self._batch,), generator=draw)
        x = self._centres[target] + NOISE[self._name] * torch.randn(
            self._batch, 256, generator=draw
        )
        return (x.view(self._batch, 1, 16, 16) if self._name == "cnn" else x), target

    def _sequences(self) -> tuple[Any, Any]:
        torch, draw = self._torch, self._generator
        tokens = torch.empty(self._batch, CONTEXT + 1, dtype=torch.long)
        tokens[:, 0] = torch.randint(VOCABULARY, (self._batch,), generator=draw)
        stray = torch.randint(VOCABULARY, (self._batch, CONTEXT), generator=draw)
        strays = torch.rand(self._batch, CONTEXT, generator=draw) < 0.05
        for t in range(CONTEXT):
            tokens[:, t + 1] = torch.where(strays[:, t], stray[:, t], self._follows[tokens[:, t]])
        return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
