"""What is special about tiled attention with dropout: its mask is that of attention with dropout, in tiles of every
shape, and what it saves is what it saves without."""

from __future__ import annotations

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import Trial, distance, outcome, same_bits

from fastbp.base.dims import Dims
from fastbp.kernels.tiled_attention import IN_PLACE
from fastbp.ops.tiled_attention import CHUNK

each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_compiled = pytest.mark.parametrize("backend", BACKENDS[1:])
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
SHAPES = [(1, 8), (3, 12), (17, 20), (47, 8), (65, 16), (CHUNK + 1, 33), (IN_PLACE + 1, 32), (2 * CHUNK + 5, 20)]
"""(T, D): around vectors, blocks, chunks and the four keys that share a counter."""
ATTRIBUTES = {"rate": 0.25, "place": 3.0}


def sample_of(T: int, D: int, B: int = 1, H: int = 2, name: str = "tiled_attention_dropout") -> Sample:
    return Sample(name, Dims({"B": B, "T": T, "C": H * D, "H": H, "S": 2}), ATTRIBUTES)


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
def test_workers_that_share_a_head_give_the_same_bits(backend: str, dtype: str, way: str) -> None:
    sample = sample_of(2 * CHUNK + 1, 12, H=1)
    alone = Trial(sample, way, backend, dtype).run().results()
    for workers in (2, 3, 7):
        assert same_bits(Trial(sample, way, backend, dtype, workers=workers).run().results(), alone)


@each_backend
@each_dtype
def test_it_is_attention_with_the_same_mask(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    tiled, whole = sample_of(70, 11, B=2), sample_of(70, 11, B=2, name="attention_dropout")
    given = {port: tiled.values["value", port] for port in ("qkv", "state")}
    one, other = (outcome(sample, "forward", backend, dtype, **given) for sample in (tiled, whole))
    assert distance(one["o"], other["o"]) <= tolerance[dtype]


@each_backend
@each_dtype
def test_lse_is_that_of_all_weights(backend: str, dtype: str) -> None:
    sample = sample_of(70, 11)
    plain = Sample("tiled_attention", Dims({letter: sample.sizes[letter] for letter in "BTCH"}))
    qkv = sample.values["value", "qkv"]
    dropped, whole = (outcome(each, "forward", backend, dtype, qkv=qkv) for each in (sample, plain))
    assert np.array_equal(dropped["lse"], whole["lse"])
