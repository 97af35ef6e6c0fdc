"""What is special about the projections: they are three linear maps that share their input."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import distance, outcome

from fastbp.base.dims import Dims

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.parametrize("dtype", DTYPES)]
QKV = Sample("qkv", Dims({"N": 11, "C": 19}))
LINEAR = Sample("linear", Dims({"N": 11, "I": 19, "O": 19}))


def _part(i: int) -> dict[str, np.ndarray]:
    """The linear map that part i of QKV is."""
    letter = "qkv"[i]
    values = {"x": QKV.values["value", "x"], "weight": QKV.values["value", f"w{letter}"]}
    values |= {"bias": QKV.values["value", f"b{letter}"], "dy": QKV.values["gradient", "y"][:, i * 19 : (i + 1) * 19]}
    return values | {f"d{full}": QKV.values["gradient", f"{full[0]}{letter}"] for full in ("weight", "bias")}


def test_forward_is_three_linear_maps_side_by_side(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    parts = [outcome(LINEAR, "forward", backend, dtype, **_part(i))["y"] for i in range(3)]
    assert distance(outcome(QKV, "forward", backend, dtype)["y"], np.concatenate(parts, axis=1)) <= tolerance[dtype]


def test_backward_is_three_linear_maps_and_dx_their_sum(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    parts = [outcome(LINEAR, "backward", backend, dtype, **_part(i)) for i in range(3)]
    made = outcome(QKV, "backward", backend, dtype)
    assert distance(made["dx"], sum(part["dx"].astype(np.float64) for part in parts)) <= tolerance[dtype]
    for letter, part in zip("qkv", parts, strict=True):
        assert distance(made[f"dw{letter}"], part["dweight"]) <= tolerance[dtype]
        assert distance(made[f"db{letter}"], part["dbias"]) <= tolerance[dtype]
