"""AdamW as bound to a decoder: which tensors decay, what is clipped, which settings are refused."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.base.errors import InputError
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.train.optimiser import AdamW, AdamWSettings

RATE = 0.01
BACKENDS = ("numpy", "numba", "cython")


def prepared(backend: str) -> Decoder:
    decoder = Decoder(DecoderConfig.preset("seed"), 1, backend=backend, workers=1)
    random = np.random.default_rng(1)
    for values in decoder.parameters.values():
        values[...] = random.standard_normal(values.shape)
    return decoder


def fill_gradients(decoder: Decoder, step: int, scale: float = 1.0) -> None:
    random = np.random.default_rng(step)
    for gradient in decoder.gradients.values():
        gradient[...] = scale * random.standard_normal(gradient.shape)


def reference(decoder: Decoder, settings: AdamWSettings, steps: int) -> dict[str, np.ndarray]:
    """Loshchilov and Hutter, algorithm 2, tensor by tensor in float64."""
    values = {name: array.astype(np.float64) for name, array in decoder.parameters.items()}
    first = {name: np.zeros_like(array) for name, array in values.items()}
    second = {name: np.zeros_like(array) for name, array in values.items()}
    for step in range(1, steps + 1):
        fill_gradients(decoder, step)
        gradients = {name: array.astype(np.float64) for name, array in decoder.gradients.items()}
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
        scale = min(1.0, settings.clip / norm) if settings.clip else 1.0
        for name, g in gradients.items():
            g = g * scale
            first[name] = settings.beta1 * first[name] + (1 - settings.beta1) * g
            second[name] = settings.beta2 * second[name] + (1 - settings.beta2) * g**2
            mean = first[name] / (1 - settings.beta1**step)
            spread = np.sqrt(second[name] / (1 - settings.beta2**step))
            decay = settings.weight_decay if values[name].ndim >= 2 else 0.0
            values[name] = values[name] - RATE * decay * values[name] - RATE * mean / (spread + settings.eps)
    return values


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("clip", [0.0, 3.0])
def test_three_steps_are_those_of_the_paper(backend: str, clip: float) -> None:
    decoder, settings = prepared(backend), AdamWSettings(weight_decay=0.5, clip=clip)
    expected = reference(prepared(backend), settings, 3)
    optimiser = AdamW(decoder, settings)
    for step in range(3):
        fill_gradients(decoder, step + 1)
        norm = float(np.sqrt((decoder.gradients.flat.astype(np.float64) ** 2).sum()))
        optimiser.prepare(step, RATE)
        decoder.runner.run(optimiser.program)
        assert optimiser.norm == pytest.approx(norm, rel=1e-6)
        assert not decoder.gradients.flat.any()
    for name, values in decoder.parameters.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(backend: str, value: float) -> None:
    decoder = prepared(backend)
    optimiser = AdamW(decoder, AdamWSettings())
    fill_gradients(decoder, 1)
    decoder.gradients["final.ln.bias"][3] = value
    before = decoder.parameters.flat.copy()
    optimiser.prepare(0, RATE)
    decoder.runner.run(optimiser.program)
    assert not np.isfinite(optimiser.norm)
    np.testing.assert_array_equal(decoder.parameters.flat, before)
    for moments in (optimiser.first_moments, optimiser.second_moments):
        assert not moments.flat.any()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("beta1", 1.0, "--beta1 is 1.0"),
        ("beta1", -0.1, "--beta1 is -0.1"),
        ("beta2", float("nan"), "--beta2 is nan"),
        ("weight_decay", -1.0, "--weight-decay is -1.0"),
        ("weight_decay", float("inf"), "--weight-decay is inf"),
        ("clip", float("nan"), "--clip is nan"),
        ("clip", -1.0, "--clip is -1.0"),
        ("eps", 0.0, "eps is 0.0"),
        ("eps", float("nan"), "eps is nan"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: float, shown: str) -> None:
    with pytest.raises(InputError, match=shown):
        AdamWSettings(**{name: value})


def test_the_ends_of_the_ranges_are_allowed() -> None:
    AdamWSettings(beta1=0.0, beta2=0.0, weight_decay=0.0, clip=0.0)
