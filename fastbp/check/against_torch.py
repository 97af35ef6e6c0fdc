"""The gradients against torch's autograd on the same weights and window.

    relative      ‖Δ‖ / ‖g‖ over all elements of all tensors together
    max_absolute  the largest |Δ| of any element
    max_relative  max|Δ| / max|g| of the tensor where that is worst

Δ = gradient − autograd's g. In float64 both sides round: on the seed's window torch itself is about 9e-17 (absolute)
from what 80-bit arithmetic gives, as every backend here is, so the limits stand just above that floor: of a hundred
seeds (0 to 9 not among them) up to three come out at 1.7e-16, three units in the last place of the largest gradients.
The trap: the attention's dwq and dwk are five orders smaller than the largest gradient, so that an error of a part in
1e11 there shows in neither of the first two; `max_relative` looks at every tensor by its own measure.
torch is found, not required: its twin is loaded by name, so this file imports without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.check.torch_available import torch_version
from fastbp.run.decoder import Decoder

Arrays = Mapping[str, NDArray[Any]]

RELATIVE_LIMIT = 3e-16
ABSOLUTE_LIMIT = 1.5e-16
TENSOR_LIMIT = 5e-15
TENSORS = 27


@dataclass(frozen=True)
class Autograd:
    """How far the gradients are from autograd's; `worst` names the tensor that `max_relative` is of."""

    relative: float
    max_absolute: float
    max_relative: float
    tensors: int
    worst: str


def torch_twin() -> Any | None:
    """The module `fastbp.check.torch_twin`, or None where torch is not installed or does not load."""
    if torch_version() is None:
        return None
    try:
        return importlib.import_module("fastbp.check.torch_twin")
    except (ImportError, OSError):  # what a broken install raises
        return None


def compare(gradients: Arrays, expected: Arrays) -> Autograd:
    """The figures of one set of gradients against another. Raises ValueError where names or shapes differ.

    A NaN on either side makes the figures that it belongs to NaN, which no limit admits.
    """
    shapes = {name: values.shape for name, values in gradients.items()}
    if shapes != {name: values.shape for name, values in expected.items()}:
        differ = sorted(set(shapes) ^ set(expected)) or [n for n in shapes if shapes[n] != expected[n].shape]
        raise ValueError(f"gradient {differ[0]} is not the same tensor on both sides")
    names = list(shapes)
    differences = [np.abs(gradients[name] - expected[name]) for name in names]
    largest = np.array([values.max(initial=0) for values in differences])
    scales = np.array([np.abs(expected[name]).max(initial=0) for name in names])
    shares = [_share(float(part), float(whole)) for part, whole in zip(largest, scales, strict=True)]
    worst = int(np.argmax(shares))  # of NaN and numbers it is the NaN
    return Autograd(
        _share(_norm(differences), _norm([expected[name] for name in names])),
        float(largest.max()),
        shares[worst],
        len(names),
        names[worst],
    )


def against_torch(decoder: Decoder, gradients: Arrays, twin: Any) -> Autograd:
    """`gradients` of the decoder's window against those that `twin` derives."""
    _, expected = twin.gradients(decoder.config, dict(decoder.parameters), decoder.tokens, decoder.targets)
    return compare(gradients, expected)


def _norm(tensors: list[NDArray[Any]]) -> float:
    return float(np.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in tensors)))


def _share(part: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if part == 0 else float("inf") if part > 0 else float("nan")
    return part / whole
