"""Text from a decoder, one token after the other.

    logits of the last token → temperature → top-k → top-p → one draw, or the highest at temperature 0

The keys and values of earlier tokens are kept, so a token costs one row through the decoder. Positions count from the
start of the window, so once the context is full the window slides by one token and everything in it is new: it is
computed whole for each token, as nanoGPT does. NumPy alone: no arena, no compilation, no targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.base.errors import InputError, NonFinite
from fastbp.base.rng import stream
from fastbp.data.tokenizer import AnyIds, Ids, Tokenizer, require_ids_below
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import sinusoidal_positions
from fastbp.ops import gelu, layernorm

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
    """`count` ids that go on after `prompt_ids`, each computed when it is asked for; the parameters must not change meanwhile.

    Only ids below `vocab` are drawn (default: all), for a decoder with more rows than its tokenizer has ids. `cache=False`
    computes every window whole; the logits are then the same up to rounding. Of a long prompt the last context counts.

    Raises InputError, at once, for an empty prompt, ids outside the vocabulary, or a temperature, top-k or top-p out of
    range, and NonFinite while drawing where a logit is NaN or infinite.
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
