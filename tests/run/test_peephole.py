"""Peepholes: pairs are fused where that is safe, and nowhere else; the bits are those of two calls."""

from dataclasses import replace

import numpy as np
import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Argument, Instruction
from fastbp.run.peephole import PEEPHOLES, Peephole, fuse

ODD = DecoderConfig(blocks=2, width=42, heads=3, feed_forward=77, context=19, vocab=23)


def ready(config: DecoderConfig, batch: int, **options: object) -> Decoder:
    decoder = Decoder(config, batch, backend="cython", **options)  # type: ignore[arg-type]
    decoder.initialise(3)
    numbers = np.random.default_rng(5)
    decoder.tokens[:] = numbers.integers(0, config.vocab, decoder.tokens.shape)
    decoder.targets[:] = numbers.integers(0, config.vocab, decoder.tokens.shape)
    return decoder


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_fused_calls_have_the_bits_of_two(gelu: str, dtype: str, workers: int) -> None:
    decoder = ready(replace(ODD, gelu=gelu), 7, workers=workers, dtype=dtype)
    program = decoder.gradients_program
    assert len(fuse(program.instructions)) < len(program.instructions)
    decoder.forward_backward()
    losses, gradients = decoder.losses.copy(), decoder.gradients.flat.copy()
    decoder.zero_gradients()
    assert decoder.runner.run_watched(program, lambda instruction: True)
    np.testing.assert_array_equal(decoder.losses, losses)
    np.testing.assert_array_equal(decoder.gradients.flat, gradients)


@pytest.mark.parametrize("peephole", PEEPHOLES, ids=lambda each: each.kernel)
def test_every_peephole_is_used(peephole: Peephole) -> None:
    names = set()
    for policy in ("save_all", "full"):
        for instruction in fuse(ready(ODD, 7, policy=policy).gradients_program.instructions):
            names.add((instruction.op, instruction.direction))
    assert (f"{peephole.first[0]}+{peephole.second[0]}", peephole.first[1]) in names


# --- which pairs ----------------------------------------------------------------------------------------------------


def call(op: str, direction: str, kernel: int = 1, **places: int) -> Instruction:
    """A call of arrays of 64 bytes; a trailing underscore says written, d_ gradient."""
    arguments = []
    for name, address in places.items():
        port = name.rstrip("_")
        role = "gradient" if port.startswith("d_") else "value"
        arguments.append(Argument(role, port.removeprefix("d_"), address, 64, name.endswith("_")))
    return Instruction(0, op, op, direction, (), 7, (0, 1), None, tuple(arguments), lambda name: kernel)


LINEAR = {"x": 0, "weight": 100, "y_": 200, "panel": 300}


def test_a_pair_becomes_one_call_with_both_rows() -> None:
    (fused,) = fuse((call("linear", "forward", **LINEAR), call("gelu", "forward", x=200, y_=400)))
    assert (fused.op, fused.row, fused.address) == ("linear+gelu", (0, 1, 0, 1), 1)


def test_in_place_is_allowed() -> None:
    assert len(fuse((call("linear", "forward", **LINEAR), call("residual", "forward", x=400, f=200, y_=200)))) == 1


def test_a_call_that_reads_something_else_is_not_fused() -> None:
    assert len(fuse((call("linear", "forward", **LINEAR), call("gelu", "forward", x=264, y_=400)))) == 2


@pytest.mark.parametrize("at", [36, 63, 100, 240 + 60, 363])
def test_a_call_that_writes_where_the_first_still_works_is_not_fused(at: int) -> None:
    assert len(fuse((call("linear", "forward", **LINEAR), call("gelu", "forward", x=200, y_=at)))) == 2


def test_other_ops_and_directions_are_not_fused() -> None:
    assert len(fuse((call("linear", "forward", **LINEAR), call("gelu", "backward", x=200, y_=400)))) == 2


def test_a_backend_without_the_kernel_keeps_two_calls() -> None:
    assert len(fuse((call("linear", "forward", kernel=0, **LINEAR), call("gelu", "forward", x=200, y_=400)))) == 2


def test_numpy_runs_its_own_calls() -> None:
    decoder = Decoder(ODD, 2, backend="numpy")
    assert decoder.gradients_program.fused is None
