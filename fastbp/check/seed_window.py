"""The case that every check runs on: the seed's decoder and its window "alice was", in float64.

    inputs   a l i c e _ w a        targets   l i c e _ w a s        (_ is the space)

Eight characters and the eight that follow, one sequence. An id is a character's place in `ALPHABET`.
The trap: LayerNorm weights of exactly 1 and biases of exactly 0, as training starts with, hide a backward that forgets
them; `spread_vectors` moves them away from there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fastbp.base.errors import InputError
from fastbp.base.rng import stream
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import INIT_SPREAD, Decoder

ALPHABET = "\n !\"#$%&'()*+,-./0123456789:;<=>?[]_abcdefghijklmnopqrstuvwxyz{}"
"""64 characters without upper case, in the order of their code points: the line end, the space, digits, a to z, and the
punctuation of ASCII but for @ \\ ^ ` | ~."""

TEXT = "alice was"


def encode(text: str) -> NDArray[np.int32]:
    """The ids of a text. Raises InputError for a character that `ALPHABET` lacks."""
    for place, character in enumerate(text):
        if character not in ALPHABET:
            raise InputError(
                f"character {character!r} at {place} is not among the {len(ALPHABET)} of the seed's alphabet:"
                " write lower case, digits and plain punctuation"
            )
    return np.array([ALPHABET.index(character) for character in text], np.int32)


def seed_decoder(
    backend: str = "auto",
    seed: int = 0,
    *,
    text: str = TEXT,
    policy: str = "save_all",
    workers: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Decoder:
    """The seed's decoder and a window, its own unless another is given: 27 tensors, 5,376 parameters; weights
    N(0, 0.02), norms 1, biases 0.
    """
    config = DecoderConfig.preset("seed", vocab=len(ALPHABET), context=len(text) - 1)
    decoder = Decoder(config, 1, policy=policy, backend=backend, workers=workers, dtype="float64", progress=progress)
    ids = encode(text)
    decoder.tokens[0], decoder.targets[0] = ids[:-1], ids[1:]
    decoder.initialise(seed)
    return decoder


def spread_vectors(decoder: Decoder, seed: int) -> None:
    """Makes every LayerNorm weight N(1, 0.02) and every bias N(0, 0.02)."""
    for name, values in decoder.parameters.items():
        if values.ndim < 2:
            centre = 1 if name.endswith("weight") else 0
            values[:] = centre + INIT_SPREAD * stream(seed, f"spread {name}").standard_normal(values.shape)


def gradients_of(decoder: Decoder) -> dict[str, NDArray[np.float64]]:
    """Copies of the gradients of the decoder's window, by name."""
    decoder.zero_gradients()
    decoder.forward_backward()
    return {name: values.copy() for name, values in decoder.gradients.items()}
