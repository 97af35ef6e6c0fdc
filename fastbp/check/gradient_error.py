"""How far the gradients of a lossy plan are from exact ones.

    relative        ‖Δ‖ / ‖g‖ over all elements of all tensors together
    worst_relative  the same of the tensor where it is largest, `worst`; the bias of the keys aside, whose gradient is
                    rounding alone, since softmax knows no shift

Δ = gradient − g on one batch and the same parameters. g comes from the policy `full`, whose bits are those of save_all
in a fraction of its memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastbp.run.decoder import Decoder


@dataclass(frozen=True)
class GradientError:
    """Both are 0 where the plan is exact."""

    relative: float
    worst_relative: float
    worst: str


def gradient_error(decoder: Decoder) -> GradientError:
    """The error on the batch that a decoder holds; its gradients are cleared. Raises DoesNotFit where a second decoder
    has no room.
    """
    exact = Decoder(
        decoder.config, decoder.batch, policy="full", backend=decoder.backend.name, workers=decoder.workers,
        dtype=decoder.dtype,
    )  # fmt: skip
    exact.parameters.flat[:] = decoder.parameters.flat
    for here, there in zip(_batch(exact), _batch(decoder), strict=True):
        here[...] = there
    for each in (exact, decoder):
        each.zero_gradients()
        each.forward_backward()
    shares = {
        name: _share(decoder.gradients[name], values)
        for name, values in exact.gradients.items()
        if not name.endswith("attn.bk")
    }
    worst = max(shares, key=shares.__getitem__)
    error = GradientError(_share(decoder.gradients.flat, exact.gradients.flat), shares[worst], worst)
    decoder.zero_gradients()
    return error


def _batch(decoder: Decoder) -> tuple[np.ndarray, ...]:
    return decoder.tokens, decoder.targets, decoder.row_weights


def _share(found: np.ndarray, expected: np.ndarray) -> float:
    """‖found − expected‖ / ‖expected‖ in float64."""
    whole = float(np.linalg.norm(expected.astype(np.float64)))
    apart = float(np.linalg.norm(found - expected.astype(np.float64)))
    return apart / whole if whole else math.inf if apart else 0.0
