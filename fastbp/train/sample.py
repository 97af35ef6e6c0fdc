"""Text from a decoder, one token after the other.

    logits of the last token → temperature → top-k → top-p → one draw, or the highest at temperature 0

The keys and values of earlier tokens are kept, so a token costs one row through the decoder. Positions count from the
start of the window, so once the context is full the window slides by one token and everything in it is new: it is
computed whole for each token, as nanoGPT does. NumPy alone: no arena, no compilation, no targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.base.errors import InputError, NonFinite
from fastbp.base.rng import stream
from fastbp.data.tokenizer import AnyIds, Ids, Tokenizer, require_ids_below
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import sinusoidal_positions
from fastbp.ops.gelu import OP as GELU
from fastbp.ops.layernorm import OP as LAYERNORM

Array = NDArray[Any]


def sample_text(
    config: DecoderConfig,
    parameters: Mapping[str, Array],
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    cache: bool = True,
) -> str:
    """`prompt` and `tokens` more tokens. The same arguments give the same text, on one machine.

    Raises InputError for a character of the prompt that has no id (which, where), and for what `generate` refuses.
    """
    unknown = tokenizer.unknown(prompt)
    if unknown is not None:
        raise InputError(
            f"prompt: character {unknown[0]!r} (U+{ord(unknown[0]):04X}) at position {unknown[1]} is not in the "
            f"vocabulary of {tokenizer.vocab} ids: leave it out, or train with --tokenizer byte, which takes any text"
        )
    ids = tokenizer.encode(prompt)
    drawn = generate(
        config, parameters, ids if len(ids) else start_ids(tokenizer), tokens,
        temperature=temperature, top_k=top_k, top_p=top_p, rng=stream(seed, "sample"),
        vocab=tokenizer.vocab, cache=cache,
    )  # fmt: skip
    return tokenizer.decode(np.array([*ids, *drawn], dtype=np.int32))


def start_ids(tokenizer: Tokenizer) -> Ids:
    """What stands in for an empty prompt: a newline, so that a line begins; id 0 where the vocabulary has none."""
    return tokenizer.encode("\n") if tokenizer.unknown("\n") is None else np.zeros(1, np.int32)


def generate(
    config: DecoderConfig,
    parameters: Mapping[str, Array],
    prompt_ids: AnyIds,
    count: int,
    *,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    rng: np.random.Generator,
    vocab: int | None = None,
    cache: bool = True,
) -> Iterator[int]:
    """`count` ids that go on after `prompt_ids`, each computed when asked for; parameters must not change meanwhile.

    Only ids below `vocab` are drawn (default: all), for a decoder with more rows than its tokenizer has ids. Without
    `cache` every window is computed whole; the logits are then the same up to rounding. Of a prompt longer than the
    context its end counts.

    Raises InputError, at once, for an empty prompt, ids outside the vocabulary, or a temperature, top-k or top-p out
    of range, and NonFinite while drawing where a logit is NaN or infinite.
    """
    ids = np.asarray(prompt_ids)
    if ids.size == 0:
        raise InputError("the prompt has no tokens: start from a newline, or from any id")
    require_ids_below(ids, config.vocab, "prompt")
    if count < 0:
        raise InputError(f"tokens are {count}: give at least 0")
    _require_choice(temperature, top_k, top_p)
    window = [int(i) for i in ids[-config.context :]]
    return _tokens(_Forward(config, parameters), window, count, _Choice(temperature, top_k, top_p, vocab), rng, cache)


def logits(config: DecoderConfig, parameters: Mapping[str, Array], ids: AnyIds) -> Array:
    """(n, V): the logits after each of `ids`, n of them from 1 up to the context."""
    require_ids_below(np.asarray(ids), config.vocab, "ids")
    if not 1 <= len(ids) <= config.context:
        raise InputError(f"{len(ids)} ids do not fit the context: give 1 to {config.context}")
    return _Forward(config, parameters).run(ids, 0, every_row=True)


def _tokens(
    forward: _Forward, window: list[int], count: int, choice: _Choice, rng: np.random.Generator, cache: bool
) -> Iterator[int]:
    known = 0  # rows of the window whose keys and values are there
    for _ in range(count):
        if len(window) > forward.context:
            del window[0]
            known = 0
        last = forward.run(np.array(window[known:]), known)[0]
        if not np.isfinite(last).all():
            raise NonFinite(f"a logit after {len(window)} tokens is not finite: the weights are damaged or diverged")
        known = len(window) if cache else 0
        window.append(choice.draw(last, rng))
        yield window[-1]


def _require_choice(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not temperature >= 0:
        raise InputError(f"temperature is {temperature}: give 0 for the likeliest token, or a positive number")
    if top_k is not None and top_k < 1:
        raise InputError(f"top-k is {top_k}: give at least 1, or leave it out to draw from all tokens")
    if top_p is not None and not 0 <= top_p <= 1:
        raise InputError(f"top-p is {top_p}: give a share of the probability from 0 to 1")


@dataclass(frozen=True)
class _Choice:
    """Which tokens may be drawn, and how; see `generate`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    vocab: int | None

    def draw(self, logits: Array, rng: np.random.Generator) -> int:
        """One id after a row of finite logits. Of equal logits the lower id comes first."""
        logits = logits[: self.vocab].astype(np.float64)
        if self.temperature == 0:
            return int(np.argmax(logits))
        # Ranked before the temperature, which may flatten all differences or overflow.
        ranked = np.argsort(-logits, kind="stable")[: self.top_k]
        with np.errstate(over="ignore"):
            odds = np.exp((logits[ranked] - logits[ranked[0]]) / self.temperature)
        reached = np.cumsum(odds)
        if self.top_p is not None and self.top_p < 1:
            # A token stays where those before it have not reached top-p; the likeliest always does.
            before = np.concatenate(([0.0], reached[:-1]))
            reached = reached[: max(1, int(np.count_nonzero(before < self.top_p * reached[-1])))]
        # A draw is at most 1 − 2⁻⁵³: the product never rounds up to the sum, where tokens without any odds would begin.
        return int(ranked[np.searchsorted(reached, rng.random() * reached[-1], side="right")])


class _Forward:
    """The decoder's forward pass over one sequence, with the keys and values (L, H, T, D) of the rows behind it."""

    def __init__(self, config: DecoderConfig, parameters: Mapping[str, Array]) -> None:
        self._config, self._parameters = config, parameters
        self.context = config.context
        self._table = parameters["wte"]
        real = self._table.dtype
        shape = (config.blocks, config.heads, config.context, config.head_width)
        self._keys, self._values = np.empty(shape, real), np.empty(shape, real)
        self._attributes = SimpleNamespace(eps=config.eps, tanh=config.gelu == "tanh")
        if config.positions == "learned":
            self._positions = parameters["wpe"]
        else:
            self._positions = sinusoidal_positions(config.context, config.width).astype(real)
        self._qkv = [self._fused(f"blocks.{i}.attn.") for i in range(config.blocks)]

    def run(self, tokens: AnyIds, first: int, *, every_row: bool = False) -> Array:
        """Logits (n, V) of `tokens` at positions first, first + 1, …, or (1, V) of the last one alone.

        Keys and values of positions 0 … first − 1 are those of earlier runs; those of `tokens` are added.
        """
        x: Array = self._table[tokens] + self._positions[first : first + len(tokens)]
        # Overflow becomes NaN or infinity, which the caller looks for.
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(self._config.blocks):
                only_last = i == self._config.blocks - 1 and not every_row
                x = self._block(i, x, first, only_last)
            return self._norm(x, "final.ln") @ self._table.T

    def _block(self, i: int, x: Array, first: int, only_last: bool) -> Array:
        """Block i; of its last row alone where no other is read, though all leave their keys and values."""
        block, (weight, bias) = f"blocks.{i}.", self._qkv[i]
        stop = first + len(x)
        qkv = self._norm(x, block + "ln1") @ weight
        if bias is not None:
            qkv += bias
        q, k, v = self._heads(qkv)
        self._keys[i, :, first:stop], self._values[i, :, first:stop] = k, v
        if only_last:
            x, q = x[-1:], q[:, -1:]
        x = x + self._linear(self._attend(i, q, stop), block + "attn.", "o")
        u = self._linear(self._norm(x, block + "ln2"), block + "mlp.", "1")
        GELU.forward(self._attributes, u, u)
        x += self._linear(u, block + "mlp.", "2")
        return x

    def _attend(self, i: int, q: Array, stop: int) -> Array:
        """Attention (n, C) of the n last rows before position `stop`, each to itself and what comes before it."""
        H, n, D = q.shape
        scores = (q * q.dtype.type(D**-0.5)) @ self._keys[i, :, :stop].swapaxes(1, 2)
        if n > 1:
            scores[:, np.arange(stop) > np.arange(stop - n, stop)[:, None]] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        out: Array = scores @ self._values[i, :, :stop]
        return out.transpose(1, 0, 2).reshape(n, H * D)

    def _heads(self, qkv: Array) -> Array:
        """(n, 3C) as q, k and v: (3, H, n, D)."""
        return qkv.reshape(len(qkv), 3, self._config.heads, -1).transpose(1, 2, 0, 3)

    def _fused(self, prefix: str) -> tuple[Array, Array | None]:
        """The weights (C, 3C) and, if any, biases (3C) of q, k and v side by side: one product in place of three."""
        p = self._parameters
        bias = np.concatenate([p[f"{prefix}b{part}"] for part in "qkv"]) if self._config.attention_bias else None
        return np.concatenate([p[f"{prefix}w{part}"] for part in "qkv"], axis=1), bias

    def _linear(self, x: Array, prefix: str, letter: str) -> Array:
        y: Array = x @ self._parameters[f"{prefix}w{letter}"]
        bias = self._parameters.get(f"{prefix}b{letter}")
        if bias is not None:
            y += bias
        return y

    def _norm(self, x: Array, name: str) -> Array:
        y, mean, rstd = np.empty_like(x), np.empty(len(x), x.dtype), np.empty(len(x), x.dtype)
        weight, bias = self._parameters[name + ".weight"], self._parameters[name + ".bias"]
        LAYERNORM.forward(self._attributes, x, weight, bias, y, mean, rstd)
        return y
