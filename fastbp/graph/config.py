"""The decoder's shape: every number that decides the graph, and the presets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from fastbp.base.errors import InputError, nearest
from fastbp.base.shown import Fact, Shown
from fastbp.base.units import format_count

POSITIONS = ("learned", "sinusoidal")
GELUS = ("tanh", "erf")
ATTENTIONS = ("materialised", "tiled")
ADDED_LATER = {"dropout": 0.0}
"""Fields that snapshots of earlier versions lack, and what they mean by it."""


@dataclass(frozen=True)
class DecoderConfig(Shown):
    """A GPT-2 style decoder: pre-norm blocks, a head tied to the token table, weights stored (in, out)."""

    blocks: int
    width: int
    heads: int
    feed_forward: int
    context: int
    vocab: int
    positions: str = "learned"
    attention_bias: bool = True
    feed_forward_bias: bool = True
    eps: float = 1e-5
    gelu: str = "tanh"
    attention: str = "tiled"
    """tiled: one number a head and token is saved. materialised: the weights P are, T numbers a head and token."""
    scaled_init: bool = True
    """Divide the initial spread of what writes to the residual stream by √(2·blocks), as GPT-2 does."""
    dropout: float = 0.0
    """The share of attention weights, and of what each sublayer adds to the stream, that training leaves out."""

    def __post_init__(self) -> None:
        for name in ("blocks", "width", "heads", "feed_forward", "context", "vocab"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value}: give a whole number of at least 1")
        if self.width % self.heads:
            raise InputError(
                f"width {self.width} is not divisible by {self.heads} heads:"
                " choose a width that is a multiple of the heads"
            )
        if self.positions not in POSITIONS:
            raise InputError(
                f"positions '{self.positions}' are unknown{nearest(self.positions, POSITIONS)}: {_or(POSITIONS)}"
            )
        if self.attention not in ATTENTIONS:
            near = nearest(self.attention, ATTENTIONS)
            raise InputError(f"attention '{self.attention}' is unknown{near}: {_or(ATTENTIONS)}")
        if self.gelu not in GELUS:
            raise InputError(f"gelu '{self.gelu}' is unknown{nearest(self.gelu, GELUS)}: {_or(GELUS)}")
        if self.positions == "sinusoidal" and self.width % 2:
            raise InputError(f"width {self.width} is odd: sinusoidal positions need an even width")
        if not self.eps > 0:
            raise InputError(f"eps is {self.eps}: LayerNorm needs a positive one, such as 1e-5")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}: give a share from 0 up to but not including 1, such as 0.1")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def parameter_count(self) -> int:
        """Trained numbers. The head has none of its own: its weights are the token table."""
        C, F = self.width, self.feed_forward
        tables = (self.vocab + (self.context if self.positions == "learned" else 0)) * C
        attention = 4 * C * C + (4 * C if self.attention_bias else 0)
        feed_forward = 2 * C * F + (C + F if self.feed_forward_bias else 0)
        return tables + self.blocks * (attention + feed_forward + 4 * C) + 2 * C

    def facts(self) -> list[Fact]:
        biases = {"attention": self.attention_bias, "feed-forward": self.feed_forward_bias}
        without = "".join(f", {name} without biases" for name, there in biases.items() if not there)
        return [
            ("decoder", f"{self.blocks} blocks of width {self.width}, {self.heads} heads of {self.head_width},"
             f" feed-forward {self.feed_forward}"),
            ("parameters", format_count(self.parameter_count)),
            ("text", f"{self.context} tokens of context, {self.positions} positions, a vocabulary of {self.vocab}"),
            ("details", f"{self.attention} attention, GELU {self.gelu}, LayerNorm eps {self.eps:g},"
             f" dropout {self.dropout:g}{without}"),
        ]  # fmt: skip

    @staticmethod
    def preset(name: str, vocab: int | None = None, **overrides: Any) -> DecoderConfig:
        """A named preset; `vocab` is needed where the preset takes it from the data. Overrides that are None are
        ignored.
        """
        if name not in PRESETS:
            raise InputError(f"preset '{name}' is unknown{nearest(name, PRESETS)}: {_or(tuple(PRESETS))}")
        config = PRESETS[name]
        changes = {key: value for key, value in overrides.items() if value is not None}
        if vocab is not None:
            changes["vocab"] = vocab
        unknown = sorted(set(changes) - {field.name for field in fields(DecoderConfig)})
        if unknown:
            raise InputError(
                f"a decoder has no {unknown[0]}{nearest(unknown[0], [f.name for f in fields(DecoderConfig)])}"
            )
        return replace(config, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> DecoderConfig:
        """The inverse of `to_json`; every field must be there, but for what older snapshots lack, and no other."""
        names = {field.name for field in fields(DecoderConfig)}
        values = {**ADDED_LATER, **values}
        wrong = sorted(names ^ set(values))
        if wrong:
            raise InputError(
                f"a decoder's configuration has a missing or unknown field '{wrong[0]}' in {json.dumps(values)}"
            )
        return DecoderConfig(**values)


def _or(words: tuple[str, ...]) -> str:
    return "choose " + ", ".join(words[:-1]) + " or " + words[-1]


DATA_VOCAB = 65
"""The vocabulary of presets that take it from the data, where no data is at hand (a plan, a benchmark)."""

PRESETS: dict[str, DecoderConfig] = {
    "seed": DecoderConfig(
        2, 16, 2, 32, 8, 64, positions="sinusoidal", attention_bias=False, attention="materialised", scaled_init=False
    ),
    "small": DecoderConfig(4, 128, 4, 512, 64, DATA_VOCAB),
    "medium": DecoderConfig(6, 384, 6, 1536, 256, 256),
    "gpt2": DecoderConfig(12, 768, 12, 3072, 1024, 50257),
}  # fmt: skip

BATCH = {"seed": 1, "small": 12, "medium": 8, "gpt2": 1}
"""Sequences in a batch of a preset where none are asked for."""
