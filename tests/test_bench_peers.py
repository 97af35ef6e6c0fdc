"""The JAX peer trains the same decoder as we do."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fastbp.data import Split
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.train.learning_rate import LearningRate
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.trainer import Trainer

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
MODES = ("unrolled", "scan-dots")
CONFIGS = {
    "seed": DecoderConfig.preset("seed"),
    "biases": DecoderConfig(3, 16, 4, 40, 8, 33, gelu="erf"),
}

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    sys.path.insert(0, str(PEERS))
    try:
        import jax_decoder
    finally:
        sys.path.remove(str(PEERS))
    return jax_decoder


def decoder_of(config: DecoderConfig, dtype: str) -> Decoder:
    """Weights large enough for every gradient to show; the same in both dtypes, but for rounding."""
    decoder = Decoder(config, 3, backend="numpy", dtype=dtype)
    decoder.initialise(0)
    random = np.random.default_rng(0)
    for values in decoder.parameters.values():
        values += random.standard_normal(values.shape) * 0.2
    for array in (decoder.tokens, decoder.targets):
        array[:] = random.integers(0, config.vocab, array.shape)
    return decoder


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_are_ours(peer: ModuleType, name: str, mode: str) -> None:
    decoder = decoder_of(CONFIGS[name], "float64")
    decoder.forward_backward()
    trainer = peer.JaxTrainer(CONFIGS[name], 3, mode, parameters=dict(decoder.parameters))
    loss, gradients = trainer.gradients(decoder.tokens, decoder.targets)
    assert loss == pytest.approx(decoder.loss, rel=1e-5)
    assert gradients.keys() == decoder.gradients.keys()
    for parameter, expected in decoder.gradients.items():
        np.testing.assert_allclose(gradients[parameter], expected, rtol=0, atol=1e-5, err_msg=parameter)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_an_update_is_ours(peer: ModuleType, mode: str, clip: float) -> None:
    config = CONFIGS["biases"]
    decoder = decoder_of(config, "float64")
    start = {name: values.astype(np.float32) for name, values in decoder.parameters.items()}
    tokens = np.random.default_rng(0).integers(0, config.vocab, 400).astype(np.int32)
    settings = AdamWSettings(weight_decay=0.5, clip=clip)
    rate = LearningRate("constant", 1e-2, 1e-3, warmup=0, updates=100)
    ours = Trainer(decoder, Split(tokens, tokens, shared=True), rate, settings)
    theirs = peer.JaxTrainer(config, 3, mode, parameters=start, lr=1e-2, weight_decay=0.5, clip=clip)
    for _ in range(3):
        record = ours.update()
        assert theirs.update(decoder.tokens, decoder.targets) == pytest.approx(record.loss, rel=1e-4)
    after = theirs.parameters()
    for name, expected in decoder.parameters.items():
        # Where a gradient is 0 but for rounding, its sign, and with it AdamW's step, is noise.
        close = np.isclose(after[name], expected, rtol=0, atol=2e-4)
        assert close.mean() > 0.98 or name.endswith("bk"), name
        assert not np.array_equal(after[name], start[name])


def test_other_shapes_and_modes_are_refused(peer: ModuleType) -> None:
    config = CONFIGS["seed"]
    parameters = dict(decoder_of(config, "float32").parameters)
    with pytest.raises(ValueError, match="'unrolled' or 'scan-dots'"):
        peer.JaxTrainer(config, 3, "eager", parameters=parameters)
    trainer = peer.JaxTrainer(config, 3, parameters=parameters)
    with pytest.raises(ValueError, match=r"\(2, 8\).*\(3, 8\)"):
        trainer.update(np.zeros((2, 8), np.int32), np.zeros((2, 8), np.int32))
