"""The gradients against finite differences of the loss, weight by weight.

    d(h) = (L(w + h) − L(w − h)) / 2h
    dL/dw ≈ (4 d(h) − d(2h)) / 3            four points, an error of h⁴ L⁽⁵⁾/30

Why four points: the two of d(h) err by h² L‴/6, so h has to be as small as 1e-5, and then the rounding of L, some
4e-16, divided by h leaves 2e-11. With four points h = 2⁻¹⁰ is small enough and the rounding weighs a hundred times
less: about 4e-13 in all. Three more habits keep it there: the rows' losses are subtracted one by one, which is exact
for numbers this close, before anything is added; the sum is exact (fsum); h is what w really moved by, after rounding.

The norms and biases are moved off 1 and 0 first (`spread_vectors`), or a backward that forgets them would pass.
Source: Richardson 1911, the extrapolation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.base.rng import stream
from fastbp.run.decoder import Decoder

STEP = 2.0**-10
PER_TENSOR = 24
WEIGHTS = 552
ERROR_LIMIT = 1e-10

Losses = Callable[[float], NDArray[Any]]


@dataclass(frozen=True)
class FiniteDifference:
    """`max_error` = max |difference − gradient| over `weights` weights; `worst` is where, as "tensor[flat index]"."""

    weights: int
    max_error: float
    worst: str


def derivative(losses: Losses, row_weights: NDArray[Any], at: float) -> float:
    """Σ row_weights · d losses/dv at v = `at`; `losses(v)` returns the rows' losses, an array that may be reused."""

    def slope(step: float) -> float:
        above, below = at + step, at - step
        rise = losses(above).astype(np.float64)
        rise -= losses(below)
        return math.fsum((rise * row_weights).ravel()) / (above - below)

    return (4 * slope(STEP) - slope(2 * STEP)) / 3


def chosen(seed: int, name: str, size: int) -> list[int]:
    """Which weights of a tensor are tried: min(24, size) flat indices, a function of seed and name."""
    picks = stream(seed, f"finite differences {name}").choice(size, min(PER_TENSOR, size), replace=False)
    return sorted(int(index) for index in picks)


def finite_difference(decoder: Decoder, gradients: Mapping[str, NDArray[Any]], seed: int) -> FiniteDifference:
    """`gradients` of the decoder's window against differences of its loss, in min(24, size) weights of every tensor."""
    places, errors = [], []
    for name, values in decoder.parameters.items():
        for index in chosen(seed, name, values.size):
            places.append(f"{name}[{index}]")
            errors.append(abs(_by_weight(decoder, values, index) - float(gradients[name].flat[index])))
    worst = int(np.argmax(errors))  # of NaN and numbers it is the NaN
    return FiniteDifference(len(errors), errors[worst], places[worst])


def _by_weight(decoder: Decoder, values: NDArray[Any], index: int) -> float:
    """The derivative of the loss by one weight, which is put back."""
    kept = float(values.flat[index])

    def losses(value: float) -> NDArray[Any]:
        values.flat[index] = value
        decoder.evaluate()
        return decoder.losses

    try:
        return derivative(losses, decoder.row_weights, kept)
    finally:
        values.flat[index] = kept
