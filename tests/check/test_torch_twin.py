"""The twin against central differences, and against the peer of the benchmarks."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

torch_twin = importlib.import_module("fastbp.check.torch_twin")  # it imports torch

PEER = Path(__file__).parents[2] / "benchmarks" / "peers" / "torch_decoder.py"


@dataclass(frozen=True)
class Config:
    """The fields of a DecoderConfig; the defaults are the seed preset."""

    blocks: int = 2
    width: int = 16
    heads: int = 2
    feed_forward: int = 32
    context: int = 8
    vocab: int = 64
    positions: str = "sinusoidal"
    attention_bias: bool = False
    feed_forward_bias: bool = True
    eps: float = 1e-5
    gelu: str = "tanh"


SEED = Config()
BIASES = Config(width=12, heads=3, feed_forward=40, vocab=20, positions="learned", attention_bias=True)
ERF = Config(blocks=1, feed_forward_bias=False, gelu="erf")
CONFIGS = pytest.mark.parametrize("config", [SEED, BIASES, ERF], ids=["seed", "biases", "erf"])


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    C, F = config.width, config.feed_forward
    found: dict[str, tuple[int, ...]] = {"wte": (config.vocab, C)}
    if config.positions == "learned":
        found["wpe"] = (config.context, C)
    for i in range(config.blocks):
        b = f"blocks.{i}."
        found |= {b + "ln1.weight": (C,), b + "ln1.bias": (C,)}
        found |= {f"{b}attn.w{letter}": (C, C) for letter in "qkv"}
        if config.attention_bias:
            found |= {f"{b}attn.b{letter}": (C,) for letter in "qkv"}
        found[b + "attn.wo"] = (C, C)
        if config.attention_bias:
            found[b + "attn.bo"] = (C,)
        found |= {b + "ln2.weight": (C,), b + "ln2.bias": (C,), b + "mlp.w1": (C, F)}
        if config.feed_forward_bias:
            found[b + "mlp.b1"] = (F,)
        found[b + "mlp.w2"] = (F, C)
        if config.feed_forward_bias:
            found[b + "mlp.b2"] = (C,)
    return found | {"final.ln.weight": (C,), "final.ln.bias": (C,)}


def draw(config: Config, dtype: type[np.floating]) -> dict[str, np.ndarray]:
    """Weights large enough that no part of the model is near the identity."""
    random = np.random.default_rng(5)
    return {
        name: (random.normal(0, 0.3, shape) + name.endswith("weight")).astype(dtype)
        for name, shape in shapes(config).items()
    }


def windows(config: Config, B: int = 3) -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(7).integers(0, config.vocab, (B, config.context + 1))
    return ids[:, :-1], ids[:, 1:]


@pytest.fixture(scope="module")
def peer() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("torch_decoder", PEER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    threads = torch.get_num_threads()
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(threads)
    del sys.modules[spec.name]


def test_the_seed_has_27_tensors_and_5376_parameters() -> None:
    sizes = [array.size for array in draw(SEED, np.float64).values()]
    assert (len(sizes), sum(sizes)) == (27, 5376)


@CONFIGS
def test_gradients_equal_central_differences(config: Config) -> None:
    parameters, (tokens, targets) = draw(config, np.float64), windows(config)
    _, derived = torch_twin.gradients(config, parameters, tokens, targets)
    ids, wanted = torch.from_numpy(tokens), torch.from_numpy(targets)

    def loss() -> float:
        tensors = {name: torch.from_numpy(array) for name, array in parameters.items()}
        return float(torch_twin.decoder_loss(config, tensors, ids, wanted))

    random, step = np.random.default_rng(11), 1e-5
    for name, array in parameters.items():
        for index in random.integers(0, array.size, 2):
            at, kept = np.unravel_index(index, array.shape), array.flat[index]
            array[at] = kept + step
            above = loss()
            array[at] = kept - step
            below = loss()
            array[at] = kept
            assert derived[name][at] == pytest.approx((above - below) / (2 * step), abs=1e-9), name


@CONFIGS
def test_gradients_have_the_shapes_and_dtype_of_the_parameters(config: Config) -> None:
    for dtype in (np.float32, np.float64):
        parameters = draw(config, dtype)
        _, derived = torch_twin.gradients(config, parameters, *windows(config))
        assert list(derived) == list(parameters)
        for name, array in parameters.items():
            assert (derived[name].shape, derived[name].dtype) == (array.shape, array.dtype)


def test_sinusoidal_positions_follow_the_formula() -> None:
    C, T = SEED.width, SEED.context
    wte = torch.zeros(1, C, dtype=torch.float64)
    table = torch_twin._positions(SEED, {"wte": wte}, T).numpy()
    for t in range(T):
        for i in range(C // 2):
            angle = t / 10000 ** (2 * i / C)
            assert table[t, 2 * i] == pytest.approx(np.sin(angle), abs=1e-15)
            assert table[t, 2 * i + 1] == pytest.approx(np.cos(angle), abs=1e-15)


def test_loss_of_equal_logits_is_log_vocab() -> None:
    parameters = draw(SEED, np.float64)
    parameters["final.ln.weight"][:] = 0
    parameters["final.ln.bias"][:] = 0
    loss, _ = torch_twin.gradients(SEED, parameters, *windows(SEED))
    assert loss == pytest.approx(np.log(SEED.vocab), rel=1e-14)


@CONFIGS
def test_a_later_token_leaves_earlier_logits_alone(config: Config) -> None:
    parameters = {name: torch.from_numpy(a) for name, a in draw(config, np.float64).items()}
    tokens = torch.from_numpy(windows(config)[0])
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % config.vocab
    before = torch_twin.decoder_logits(config, parameters, tokens)
    after = torch_twin.decoder_logits(config, parameters, changed)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_the_first_token_reaches_the_last_logits() -> None:
    parameters = {name: torch.from_numpy(a) for name, a in draw(SEED, np.float64).items()}
    tokens = torch.from_numpy(windows(SEED)[0])
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % SEED.vocab
    before = torch_twin.decoder_logits(SEED, parameters, tokens)
    after = torch_twin.decoder_logits(SEED, parameters, changed)
    assert not torch.equal(before[:, -1], after[:, -1])


def test_a_shorter_window_leaves_later_positions_without_gradient() -> None:
    tokens, targets = windows(BIASES)
    _, derived = torch_twin.gradients(BIASES, draw(BIASES, np.float64), tokens[:, :5], targets[:, :5])
    assert np.all(derived["wpe"][5:] == 0)
    assert np.all(np.any(derived["wpe"][:5] != 0, axis=1))


def test_gradients_repeat_to_the_bit_and_give_the_threads_back() -> None:
    threads = torch.get_num_threads()
    parameters, (tokens, targets) = draw(SEED, np.float32), windows(SEED)
    try:
        torch.set_num_threads(2)
        loss, derived = torch_twin.gradients(SEED, parameters, tokens, targets)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(3)
        again, derived_again = torch_twin.gradients(SEED, parameters, tokens, targets)
        assert torch.get_num_threads() == 3
        with pytest.raises(KeyError):
            torch_twin.gradients(SEED, {}, tokens, targets)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert loss == again
    for name in derived:
        assert np.array_equal(derived[name], derived_again[name]), name


def test_a_missing_and_a_superfluous_parameter_are_refused() -> None:
    parameters, (tokens, targets) = draw(BIASES, np.float64), windows(BIASES)
    without = {name: a for name, a in parameters.items() if name != "blocks.0.attn.bq"}
    with pytest.raises(KeyError, match=r"blocks\.0\.attn\.bq"):
        torch_twin.gradients(BIASES, without, tokens, targets)
    with pytest.raises(RuntimeError):
        torch_twin.gradients(BIASES, parameters | {"more": np.ones(3)}, tokens, targets)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linear_gradients_are_those_of_the_mean(dtype: type[np.floating]) -> None:
    random = np.random.default_rng(3)
    x, w = random.random((3, 3)).astype(dtype), random.random((2, 3)).astype(dtype)
    state = torch.get_rng_state()
    dx, dw = torch_twin.linear_gradients(x, w)
    assert torch.equal(torch.get_rng_state(), state)
    assert dx.dtype == dw.dtype == dtype
    np.testing.assert_allclose(dx, np.full((3, 2), 1 / 6) @ w, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(dw, np.full((2, 3), 1 / 6) @ x, rtol=4 * np.finfo(dtype).eps)


@CONFIGS
def test_the_peer_has_the_same_loss(config: Config, peer: ModuleType) -> None:
    parameters, (tokens, targets) = draw(config, np.float32), windows(config)
    loss, _ = torch_twin.gradients(config, parameters, tokens, targets)
    trainer = peer.TorchTrainer(config, 3, 1, parameters=parameters)
    assert trainer.evaluate(tokens, targets) == pytest.approx(loss, rel=1e-5)
    for name, array in trainer.parameters().items():
        assert np.array_equal(array, parameters[name]), name
    assert trainer.update(tokens, targets, 1e-2) == pytest.approx(loss, rel=1e-5)
    assert trainer.evaluate(tokens, targets) < loss


@CONFIGS
@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_the_first_update_of_the_peer_is_adamw(config: Config, peer: ModuleType, clip: float) -> None:
    """At the first update both moments equal the gradient: p (1 - lr decay) - lr g / (|g| + eps).

    The clipped gradients are small enough for eps to show.
    """
    lr, decay, eps = 1e-2, 0.5, 1e-8
    parameters, (tokens, targets) = draw(config, np.float32), windows(config)
    _, derived = torch_twin.gradients(config, parameters, tokens, targets)
    norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in derived.values()))
    scale = min(1.0, clip / norm) if clip else 1.0
    trainer = peer.TorchTrainer(config, 3, 1, parameters=parameters, weight_decay=decay, clip=clip)
    trainer.update(tokens, targets, lr)
    for name, after in trainer.parameters().items():
        p, g = parameters[name].astype(np.float64), derived[name].astype(np.float64) * scale
        # Where float32 cannot tell the gradient from 0 its sign, and so the step, is noise.
        sure = np.abs(g) > 1e-5 * scale
        kept = p * (1 - lr * decay * (p.ndim >= 2))
        wanted = kept - lr * g / (np.abs(g) + eps)
        np.testing.assert_allclose(after[sure], wanted[sure], rtol=0, atol=3e-6, err_msg=name)


def test_the_peer_refuses_other_shapes_and_names(peer: ModuleType) -> None:
    parameters, (tokens, targets) = draw(SEED, np.float32), windows(SEED)
    trainer = peer.TorchTrainer(SEED, 3, 1, parameters=parameters)
    with pytest.raises(ValueError, match=r"\(2, 8\).*\(3, 8\)"):
        trainer.update(tokens[:2], targets[:2], 1e-3)
    with pytest.raises(ValueError, match="wpe"):
        peer.TorchTrainer(SEED, 3, 1, parameters=parameters | {"wpe": np.ones((8, 16))})
    with pytest.raises(ValueError, match=r"final\.ln\.bias"):
        peer.TorchTrainer(SEED, 3, 1, parameters=parameters | {"final.ln.bias": np.ones(1)})
