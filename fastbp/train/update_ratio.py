"""How large an update was beside the weights, ‖Δp‖ / ‖p‖, over all parameters and over each kind of them.

Nothing needs to be kept from before: the moments and the parameters still tell what the step was. With
b = m / (√v + eps·√c2), c1 = 1 − β1^t and c2 = 1 − β2^t it took a = (lr·√c2/c1)·b, and the decay δ = lr·decay, from p:

    Δp = −(δ·p_before + a) = −(δ·p + a) / (1 − δ),     since p = (1 − δ)·p_before − a
    ‖Δp‖² = (δ²·Σp² + 2δ·Σp·a + Σa²) / (1 − δ)²

up to the rounding of p. Around 1e-3 is usual; far above it the learning rate is too high.
"""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np

from fastbp.memory.flat import Flat
from fastbp.train.optimiser import AdamW

KINDS = ("embedding", "attention", "mlp", "layernorm")
"""What parameters are there for. The head is the token table's, an embedding."""
_KIND_OF_PART = {"attn": "attention", "mlp": "mlp", "ln1": "layernorm", "ln2": "layernorm", "ln": "layernorm"}
CHUNK = 1 << 15
"""Elements that are worked on at a time: four arrays of them stay in L2."""

Piece = tuple[str, bool, int, int]
"""A kind, whether weight decay applies, and the elements [start, stop) of the flat buffer."""


def kind_of(parameter: str) -> str:
    """One of KINDS: "attention" for "blocks.3.attn.wq"."""
    return next((_KIND_OF_PART[part] for part in parameter.split(".") if part in _KIND_OF_PART), "embedding")


class UpdateRatio:
    """Measures an optimiser's last step. Reads the state and changes nothing of it; takes CHUNK elements of memory."""

    def __init__(self, parameters: Flat, optimiser: AdamW) -> None:
        self._parameters, self._optimiser = parameters, optimiser
        self._pieces = pieces(parameters)

    def measure(self) -> dict[str, float | None]:
        """The ratio under "all" and under each of KINDS. None where it is no finite number."""
        lr, _, _, eps, decay, correction1, correction2, _ = self._optimiser.hyper.tolist()
        scale, squares = lr * math.sqrt(correction2) / correction1, dict.fromkeys(("all", *KINDS), (0.0, 0.0))
        for (kind, decays), sums in self._sums(eps * math.sqrt(correction2)).items():
            update, weights = _squares(*sums, scale, lr * decay if decays else 0.0)
            for name in ("all", kind):
                squares[name] = squares[name][0] + update, squares[name][1] + weights
        return {kind: _ratio(*pair) for kind, pair in squares.items()}

    def _sums(self, eps: float) -> dict[tuple[str, bool], tuple[float, float, float]]:
        """Σp², Σp·b and Σb² of every kind, by whether it decays."""
        p, m, v = (of.flat for of in (self._parameters, self._optimiser.first_moments, self._optimiser.second_moments))
        spare, begin = np.empty(CHUNK, p.dtype), -1
        found: dict[tuple[str, bool], tuple[float, float, float]] = {}
        with np.errstate(all="ignore"):
            for kind, decays, start, stop in self._pieces:
                if begin != start - start % CHUNK:
                    begin = start - start % CHUNK
                    chunk = slice(begin, begin + CHUNK)
                    steps = np.sqrt(v[chunk], out=spare[: p.size - begin])
                    steps += eps
                    np.divide(m[chunk], steps, out=steps)
                weights, b = p[start:stop], steps[start - begin : stop - begin]
                pp, pb, bb = found.get((kind, decays), (0.0, 0.0, 0.0))
                found[kind, decays] = pp + float(weights @ weights), pb + float(weights @ b), bb + float(b @ b)
        return found


def pieces(parameters: Flat) -> list[Piece]:
    """The flat buffer in order, cut where the kind changes, where the decay ends, and at multiples of CHUNK."""
    offsets, decayed, size = parameters.shapes.offsets, parameters.shapes.decayed, parameters.shapes.size
    runs = groupby(offsets, key=lambda name: (kind_of(name), offsets[name] < decayed))
    begins = [(*key, offsets[next(names)]) for key, names in runs]
    ends = [start for _, _, start in begins[1:]] + [size]
    return [
        (kind, decays, max(start, edge), min(stop, edge + CHUNK))
        for (kind, decays, start), stop in zip(begins, ends, strict=True)
        for edge in range(start - start % CHUNK, stop, CHUNK)
    ]


def _squares(pp: float, pb: float, bb: float, scale: float, decay: float) -> tuple[float, float]:
    """‖Δp‖² and ‖p‖². NaN for the first where the decay left nothing of p from which it could be told."""
    left = (1 - decay) ** 2
    update = decay**2 * pp + 2 * decay * scale * pb + scale**2 * bb
    return update / left if left else math.nan, pp


def _ratio(update: float, weights: float) -> float | None:
    ratio = math.sqrt(max(update, 0.0) / weights) if weights else math.nan
    return ratio if math.isfinite(ratio) else None
