"""What is special about tiled attention: the same as attention, with one number saved a head and token, in tiles of
every shape: heads that fill no vector, blocks and chunks that end in the middle of one, shares that cut a head."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import Trial, distance, outcome, same_bits

from fastbp.base.dims import Dims, shape_of
from fastbp.kernels.tiled_attention import IN_PLACE
from fastbp.ops.tiled_attention import CHUNK, OP

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_compiled = pytest.mark.parametrize("backend", BACKENDS[1:])
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
B, T, C, H = 2, 70, 22, 2
SIZES = Dims({"B": B, "T": T, "C": C, "H": H})
SAMPLE, WHOLE = Sample("tiled_attention", SIZES), Sample("attention", SIZES)
QKV, DO = SAMPLE.values["value", "qkv"], SAMPLE.values["gradient", "o"]


SHAPES = [
    *((1, 8), (2, 33), (15, 12), (17, 128), (31, 20), (47, 64), (48, 8), (63, 33), (64, 128), (65, 16), (95, 12)),
    *(
        (CHUNK, 64),
        (CHUNK + 1, 33),
        (IN_PLACE, 32),
        (IN_PLACE + 1, 32),
        (193, 8),
        (2 * CHUNK, 20),
        (257, 64),
        (257, 128),
    ),
]
"""(T, D): around vectors of 2 to 16, blocks of 1 to 3 of them, chunks, and the tokens from which on rows are copied."""


def sample_of(T: int, D: int, B: int = 1, H: int = 2) -> Sample:
    return Sample("tiled_attention", Dims({"B": B, "T": T, "C": H * D, "H": H}))


@each_compiled
@each_dtype
@pytest.mark.parametrize(("T", "D"), SHAPES)
def test_every_shape_agrees_with_the_definition(
    backend: str, dtype: str, T: int, D: int, tolerance: dict[str, float]
) -> None:
    sample = sample_of(T, D)
    for way in ("forward", "backward"):
        expected = Trial(sample, way, "numpy", "float64").run().results()
        trial = Trial(sample, way, backend, dtype).run()
        apart = {port: distance(array, expected[role, port]) for (role, port), array in trial.results().items()}
        assert all(share <= tolerance[dtype] for share in apart.values()), (way, apart)
        assert trial.fence.intact()


@each_compiled
@each_dtype
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("workers", [2, 3, 7])
def test_workers_that_share_a_head_give_the_same_bits(backend: str, dtype: str, way: str, workers: int) -> None:
    """One head of many blocks, so that a forward share ends in its middle; then more heads than workers."""
    for sample in (sample_of(193, 12, H=1), sample_of(130, 8, B=3, H=3)):
        shared = Trial(sample, way, backend, dtype, workers=workers).run()
        assert same_bits(shared.results(), Trial(sample, way, backend, dtype).run().results())
        assert shared.fence.intact()


@each_backend
@each_dtype
def test_scores_that_grow_from_chunk_to_chunk(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    """Score j is j/2: what the first chunks gave is scaled down to almost nothing."""
    T, D = 3 * CHUNK + 5, 16
    sample = sample_of(T, D, H=1)
    qkv = np.array(sample.values["value", "qkv"])
    qkv[..., : 2 * D] = 0
    qkv[..., 0] = np.sqrt(D)
    qkv[..., D] = np.arange(T) / 2
    made = outcome(sample, "forward", backend, dtype, qkv=qkv)
    scores = np.where(np.tri(T, dtype=bool), np.arange(T) / 2, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    lse = scores.max(axis=-1) + np.log(weights.sum(axis=-1))
    weights /= weights.sum(axis=-1, keepdims=True)
    assert distance(made["lse"][0, 0], lse) <= tolerance[dtype]
    assert distance(made["o"][0], weights @ qkv[0, :, 2 * D :]) <= 20 * tolerance[dtype]  # scores of 140 are coarser


@each_compiled
@each_dtype
def test_the_first_token_gets_its_own_value(backend: str, dtype: str) -> None:
    made = outcome(SAMPLE, "forward", backend, dtype)
    assert np.array_equal(made["o"][:, 0], QKV[:, 0, 2 * C :].astype(dtype))


@each_compiled
def test_nan_stays_where_it_is_seen(backend: str) -> None:
    changed = QKV.copy()
    changed[0, 40, : 2 * C] = np.nan
    made = outcome(SAMPLE, "forward", backend, "float32", qkv=changed)
    assert np.isnan(made["o"][0, 40:]).all()
    assert np.isnan(made["lse"][0, :, 40:]).all()
    assert np.isfinite(made["o"][0, :40]).all()
    assert np.isfinite(made["o"][1]).all()


@pytest.mark.parametrize("D", [8, 33, 128])
def test_scratch_grows_with_the_tokens_and_not_with_their_square(D: int) -> None:
    """Elements of a worker's scratch, forward and backward, and of what is saved."""

    def elements(T: int) -> list[int]:
        dims = OP.extended({"B": 1, "T": T, "C": D, "H": 1, "W": 1})
        shapes = (*OP.forward_scratch.values(), *OP.scratch.values(), *OP.saved.values())
        return [int(np.prod(shape_of(shape, dims))) for shape in shapes]

    one, two, three = (np.array(elements(T)) for T in (1000, 2000, 3000))
    assert (three - two == two - one).all()
    assert (two - one <= 1000 * np.array([2, 4, 1]) * (D + 15)).all()
    assert elements(1000)[-1] == 1000


@each_backend
@each_dtype
def test_it_is_attention(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    tiled, whole = (outcome(sample, "forward", backend, dtype, qkv=QKV) for sample in (SAMPLE, WHOLE))
    assert distance(tiled["o"], whole["o"]) <= tolerance[dtype]


@each_backend
@each_dtype
def test_what_is_saved_is_the_logarithm_of_the_sum(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    q, k, _ = QKV.reshape(B, T, 3, H, -1).transpose(2, 0, 3, 1, 4)
    scores = np.where(np.tri(T, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(C / H), -np.inf)
    expected = np.log(np.exp(scores).sum(axis=-1))
    assert distance(outcome(SAMPLE, "forward", backend, dtype)["lse"], expected) <= tolerance[dtype]


@each_backend
@each_dtype
@pytest.mark.parametrize("t", [1, 63, 64, 69])
def test_a_token_changes_nothing_before_it(backend: str, dtype: str, t: int) -> None:
    changed = QKV.copy()
    changed[:, t:] += 1
    before, after = (outcome(SAMPLE, "forward", backend, dtype, qkv=qkv) for qkv in (QKV, changed))
    assert np.array_equal(before["o"][:, :t], after["o"][:, :t])
    assert np.array_equal(before["lse"][..., :t], after["lse"][..., :t])
    assert not np.array_equal(before["o"][:, t], after["o"][:, t])


@each_backend
@each_dtype
@pytest.mark.parametrize("t", [0, 63, 64])
def test_gradients_reach_no_later_token(backend: str, dtype: str, t: int) -> None:
    do = np.zeros_like(DO)
    do[:, t] = DO[:, t]
    dqkv = outcome(SAMPLE, "backward", backend, dtype, do=do)["dqkv"]
    assert (dqkv[:, t + 1 :] == 0).all()
    assert (dqkv[:, : t + 1, 2 * C :] != 0).all()
