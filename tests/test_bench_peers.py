"""The peers train the same decoder as we do, in every mode, and say how much memory that takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fastbp.check.torch_available import torch_version
from fastbp.data import Split
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.train.learning_rate import LearningRate
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.trainer import Trainer

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
MODES = ("unrolled", "scan-dots", "scan-remat")
TORCH_MODES = ("checkpoint", "selective", "chunked")
MIB = 1 << 20
CONFIGS = {
    "seed": DecoderConfig.preset("seed"),
    "biases": DecoderConfig(3, 16, 4, 40, 8, 33, gelu="erf"),
}

needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
needs_torch = pytest.mark.skipif(torch_version() is None, reason="torch is not installed")


@contextmanager
def beside_the_peers() -> Iterator[None]:
    """What is in benchmarks/peers can be imported, as its server does it."""
    sys.path.insert(0, str(PEERS))
    try:
        yield
    finally:
        sys.path.remove(str(PEERS))


@pytest.fixture(scope="module")
def jax_peer() -> ModuleType:
    with beside_the_peers():
        import jax_decoder
    return jax_decoder


@pytest.fixture(scope="module")
def torch_peer() -> Iterator[ModuleType]:
    import torch

    threads = torch.get_num_threads()
    with beside_the_peers():
        import torch_decoder
    yield torch_decoder
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def torch_memory() -> ModuleType:
    with beside_the_peers():
        import torch_memory
    return torch_memory


@pytest.fixture(scope="module")
def resident_step() -> ModuleType:
    with beside_the_peers():
        import resident_step
    return resident_step


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


@needs_jax
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_are_ours(jax_peer: ModuleType, name: str, mode: str) -> None:
    decoder = decoder_of(CONFIGS[name], "float64")
    decoder.forward_backward()
    trainer = jax_peer.JaxTrainer(CONFIGS[name], 3, mode, parameters=dict(decoder.parameters))
    loss, gradients = trainer.gradients(decoder.tokens, decoder.targets)
    assert loss == pytest.approx(decoder.loss, rel=1e-5)
    assert gradients.keys() == decoder.gradients.keys()
    for parameter, expected in decoder.gradients.items():
        np.testing.assert_allclose(gradients[parameter], expected, rtol=0, atol=1e-5, err_msg=parameter)


@needs_jax
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_an_update_is_ours(jax_peer: ModuleType, mode: str, clip: float) -> None:
    config = CONFIGS["biases"]
    decoder = decoder_of(config, "float64")
    start = {name: values.astype(np.float32) for name, values in decoder.parameters.items()}
    tokens = np.random.default_rng(0).integers(0, config.vocab, 400).astype(np.int32)
    settings = AdamWSettings(weight_decay=0.5, clip=clip)
    rate = LearningRate("constant", 1e-2, 1e-3, warmup=0, updates=100)
    ours = Trainer(decoder, Split(tokens, tokens, shared=True), rate, settings)
    theirs = jax_peer.JaxTrainer(config, 3, mode, parameters=start, lr=1e-2, weight_decay=0.5, clip=clip)
    for _ in range(3):
        record = ours.update()
        assert theirs.update(decoder.tokens, decoder.targets) == pytest.approx(record.loss, rel=1e-4)
    after = theirs.parameters()
    for name, expected in decoder.parameters.items():
        # Where a gradient is 0 but for rounding, its sign, and with it AdamW's step, is noise.
        close = np.isclose(after[name], expected, rtol=0, atol=2e-4)
        assert close.mean() > 0.98 or name.endswith("bk"), name
        assert not np.array_equal(after[name], start[name])


@needs_jax
def test_other_shapes_and_modes_are_refused(jax_peer: ModuleType) -> None:
    config = CONFIGS["seed"]
    parameters = dict(decoder_of(config, "float32").parameters)
    with pytest.raises(ValueError, match="'unrolled' or 'scan-dots' or 'scan-remat'"):
        jax_peer.JaxTrainer(config, 3, "eager", parameters=parameters)
    trainer = jax_peer.JaxTrainer(config, 3, parameters=parameters)
    with pytest.raises(ValueError, match=r"\(2, 8\).*\(3, 8\)"):
        trainer.update(np.zeros((2, 8), np.int32), np.zeros((2, 8), np.int32))


WIDE = DecoderConfig(4, 32, 4, 128, 32, 500)
"""Four blocks whose activations outweigh those of one alone, and more logits than anything else."""


@needs_jax
def test_jax_holds_less_where_it_recomputes(jax_peer: ModuleType) -> None:
    parameters = dict(decoder_of(WIDE, "float32").parameters)
    config = replace(WIDE, vocab=33)
    parameters["wte"] = parameters["wte"][:33]
    dots, remat = (
        jax_peer.JaxTrainer(config, 3, mode, parameters=parameters).activation_peak_bytes() for mode in MODES[1:]
    )
    assert dots > remat > 3 * 32 * 4 * 33


def torch_trainer(torch_peer: ModuleType, config: DecoderConfig, mode: str, budget: float = 1.0) -> Any:
    parameters = dict(decoder_of(config, "float32").parameters)
    return torch_peer.TorchTrainer(config, 3, 1, mode, parameters=parameters, clip=0, activation_budget=budget)


def assert_alike(torch_peer: ModuleType, config: DecoderConfig, mode: str, budget: float = 1.0) -> None:
    """A mode's loss and gradients are eager's."""
    decoder = decoder_of(config, "float32")
    eager, other = (torch_trainer(torch_peer, config, *each) for each in (("eager",), (mode, budget)))
    losses = [each.update(decoder.tokens, decoder.targets, 0.0) for each in (eager, other)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    for (name, wanted), got in zip(eager.model.named_parameters(), other.model.parameters(), strict=True):
        np.testing.assert_allclose(got.grad, wanted.grad, rtol=0, atol=2e-6, err_msg=name)
        assert wanted.grad.any(), name


@needs_torch
@pytest.mark.parametrize("mode", TORCH_MODES)
@pytest.mark.parametrize("name", CONFIGS)
def test_torch_recomputes_the_same(
    torch_peer: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, mode: str
) -> None:
    monkeypatch.setattr(torch_peer, "CHUNK_ROWS", 5)  # 24 rows: the last chunk is shorter
    assert_alike(torch_peer, CONFIGS[name], mode)


@needs_torch
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler makes use of what torch deprecates
@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_compiled_torch_recomputes_the_same(torch_peer: ModuleType, budget: float) -> None:
    assert_alike(torch_peer, CONFIGS["biases"], "compile", budget)


@needs_torch
@pytest.mark.parametrize(
    ("mode", "budget", "message"),
    [("keep", 1.0, "'eager' or 'checkpoint'"), ("compile", 1.5, r"1\.5"), ("eager", 0.5, "'eager'.*'compile'")],
)
def test_torch_refuses_other_modes(torch_peer: ModuleType, mode: str, budget: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        torch_trainer(torch_peer, CONFIGS["seed"], mode, budget)


@needs_torch
def test_torch_holds_less_where_it_recomputes(
    torch_peer: ModuleType, torch_memory: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_peer, "CHUNK_ROWS", 24)
    decoder, peaks = decoder_of(WIDE, "float32"), {}
    for mode in ("eager", *TORCH_MODES):
        trainer = torch_trainer(torch_peer, WIDE, mode)
        update = partial(trainer.update, decoder.tokens, decoder.targets)
        update()
        peaks[mode] = torch_memory.activation_peak_bytes(update, trainer.model.parameters())
        assert torch_memory.activation_peak_bytes(update, trainer.model.parameters()) == peaks[mode]
    assert peaks["checkpoint"] < peaks["selective"] < peaks["eager"]
    logits_bytes = decoder.tokens.size * WIDE.vocab * 4
    assert peaks["chunked"] < peaks["eager"] - logits_bytes / 2


@needs_torch
@pytest.mark.parametrize("name", CONFIGS)
def test_selective_runs_no_product_and_no_attention_twice(torch_peer: ModuleType, name: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counts[mode] += bool(re.match("aten.(addmm|mm|bmm|_scaled_dot_product_.*)[.]", str(op)))
            return op(*args, **(kwargs or {}))

    decoder, counts = decoder_of(CONFIGS[name], "float32"), dict.fromkeys(("eager", "selective", "checkpoint"), 0)
    for mode in counts:
        trainer = torch_trainer(torch_peer, CONFIGS[name], mode)
        with Counter():
            trainer.update(decoder.tokens, decoder.targets)
    assert 0 < counts["eager"] == counts["selective"] < counts["checkpoint"]


@needs_torch
def test_a_peak_is_what_is_out_at_once(torch_memory: ModuleType) -> None:
    import torch

    before = torch.empty(MIB, dtype=torch.uint8)
    weight = torch.nn.Parameter(torch.ones(MIB))

    def update() -> None:
        nonlocal before
        before = torch.empty(3 * MIB, dtype=torch.uint8)  # outlives the update; what it replaces was there before
        first = torch.empty(5 * MIB, dtype=torch.uint8)
        del first
        second = torch.empty(4 * MIB, dtype=torch.uint8)
        weight.grad = torch.empty(MIB)
        del second

    assert torch_memory.activation_peak_bytes(update, []) == (3 + 4 + 4) * MIB
    assert torch_memory.activation_peak_bytes(update, [weight]) == (3 + 5) * MIB


@needs_torch
def test_only_the_last_use_of_a_gradients_address_is_left_out(torch_memory: ModuleType) -> None:
    events = [torch_memory.Event(*each) for each in ((1, 5), (1, -5), (2, 2), (1, 9), (2, -2), (3, 1))]
    assert torch_memory.peak_bytes(events, []) == 11
    assert torch_memory.peak_bytes(events, [1, 7]) == 5
    assert torch_memory.peak_bytes(events, [1, 2]) == 5
    assert torch_memory.peak_bytes([torch_memory.Event(4, -8), *events], []) == 11  # of what was there before
    assert torch_memory.peak_bytes([], [1]) == 0


def test_what_an_update_adds_is_resident_at_its_peak(resident_step: ModuleType) -> None:
    kept = np.ones(64 * MIB, np.uint8)

    def update() -> None:
        np.ones(96 * MIB, np.uint8).sum()

    added = resident_step.step_rss_bytes(update, [])
    if added is None:
        pytest.skip("this system does not tell")
    assert 95 * MIB < added < 112 * MIB
    pin = [b""]

    def update_in_pieces() -> None:
        pieces = [bytes(2000) for _ in range(48 * MIB // 2000)]
        pin[0] = bytes(2000)  # lies above them: what they leave free is not at the heap's end
        pieces.clear()

    update_in_pieces()
    assert 40 * MIB < resident_step.step_rss_bytes(update_in_pieces, []) < 64 * MIB
    assert resident_step.step_rss_bytes(lambda: kept.fill(2), []) < 8 * MIB
    assert 63 * MIB < resident_step.step_rss_bytes(lambda: kept.fill(3), [kept]) < 80 * MIB
