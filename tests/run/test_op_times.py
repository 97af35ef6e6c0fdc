"""An update in pieces: the same update, and all of its work accounted for."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.op_times import SHORTEST, OpTimes, Work, op_and_direction, work_of
from fastbp.run.peephole import fuse
from fastbp.train.synthetic import synthetic_trainer
from fastbp.train.trainer import Trainer

SEED = DecoderConfig.preset("seed")


def trainer_of(backend: str = "cython", **options: object) -> Trainer:
    return synthetic_trainer(SEED, 2, backend=backend, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["cython", "numpy"])
def test_the_pieces_are_the_update(backend: str) -> None:
    whole, pieces = trainer_of(backend), trainer_of(backend)
    whole.update()
    decoder, optimiser = pieces.decoder, pieces.optimiser
    optimiser.prepare(0, 1e-3)
    pieces.batches.fill(0, 0, decoder.tokens, decoder.targets)
    seconds = OpTimes(decoder, decoder.gradients_program.then(optimiser.program), op_and_direction).run()
    assert np.array_equal(decoder.parameters.flat, whole.decoder.parameters.flat)
    assert seconds.keys() == work_of(decoder, op_and_direction).keys()
    assert all(taken > 0 for taken in seconds.values())


def test_the_products_of_all_ops_are_those_of_the_update() -> None:
    decoder = trainer_of().decoder
    assert (
        sum(work.product_flops for work in work_of(decoder, op_and_direction).values())
        == decoder.graph.products_per_pass
    )


def test_recomputed_work_counts() -> None:
    kept, full = (
        sum(w.product_flops for w in work_of(trainer_of(policy=p).decoder, op_and_direction).values())
        for p in ("save_all", "full")
    )
    assert full > kept


def test_bytes_of_some_ops() -> None:
    N, C, B, T = 16, 16, 2, 8
    work = work_of(trainer_of("numpy").decoder, op_and_direction)
    assert work["embedding", "forward"] == Work(0, 4 * 3 * N * C)
    # Five norms: x, y, a weight and a bias, mean and rstd.
    assert work["layernorm", "forward"] == Work(0, 5 * 4 * (2 * N * C + 2 * C + 2 * N))
    # dy, x, weight, mean, rstd, dx; dweight and dbias are read and written.
    assert work["layernorm", "backward"] == Work(0, 5 * 4 * (3 * N * C + C + 2 * N + 4 * C))
    assert work["gelu", "forward"] == Work(0, 2 * 4 * 2 * N * 32)
    assert work["attention", "forward"].product_flops == 2 * 2 * B * T * T * C
    assert work["adamw", "forward"].moved_bytes == 36 * trainer_of().decoder.parameters.shapes.size


def test_a_fused_pair_does_the_work_of_both() -> None:
    apart, fused = (work_of(trainer_of(backend).decoder, op_and_direction) for backend in ("numpy", "cython"))
    pairs = [key for key in fused if "+" in key[0]]
    assert ("linear+residual", "forward") in pairs
    N, C, F = 16, 16, 32
    assert fused["linear+residual", "forward"].product_flops == 2 * 2 * N * C * (C + F)
    for attribute in ("product_flops", "moved_bytes"):
        assert sum(getattr(w, attribute) for w in apart.values()) == sum(getattr(w, attribute) for w in fused.values())


def test_a_wake_up_is_taken_off_each_piece() -> None:
    decoder = trainer_of().decoder
    program = decoder.gradients_program
    pieces = len({call.tick for call in fuse(program.instructions)})
    more, nothing = (
        sum(OpTimes(decoder, program, lambda call: call.tick, wake_up).run().values()) for wake_up in (-1.0, 99.0)
    )
    assert more > pieces
    assert nothing == pytest.approx(pieces * SHORTEST)
