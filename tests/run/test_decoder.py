"""A decoder that is ready to run: what it refuses, how it begins, and what its runs leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from fastbp.base.errors import DoesNotFit, InputError
from fastbp.base.rng import stream
from fastbp.graph.config import DecoderConfig
from fastbp.memory.layout import Layout, lay_out
from fastbp.run.decoder import Decoder
from fastbp.run.program import Program
from fastbp.schedule.plan import Plan
from fastbp.schedule.simulate import Simulation

BACKENDS = ("numpy", "numba", "cython")
SEED = DecoderConfig.preset("seed")
BIASED = DecoderConfig(2, 12, 3, 20, 7, 11, gelu="erf")


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("fastbp.run.workers.physical_cores", lambda: 4)
    yield


def ready(config: DecoderConfig = SEED, batch: int = 3, policy: str = "full", backend: str = "numpy",
          workers: int = 1, dtype: str = "float32") -> Decoder:  # fmt: skip
    decoder = Decoder(config, batch, policy=policy, backend=backend, workers=workers, dtype=dtype)
    random = np.random.default_rng(11)
    for values in decoder.parameters.values():
        values[...] = 0.4 * random.standard_normal(values.shape)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, config.vocab, ids.shape)
    return decoder


# --- made -----------------------------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"^batch is 0: give at least 1 sequence$"):
        Decoder(SEED, 0)
    with pytest.raises(InputError, match=r"^dtype 'float16' is unknown: choose float32 or float64$"):
        Decoder(SEED, 1, dtype="float16")
    with pytest.raises(InputError, match="backend 'nump' is unknown"):
        Decoder(SEED, 1, backend="nump")
    with pytest.raises(InputError, match="policy 'half' is unknown"):
        Decoder(SEED, 1, policy="half")


def test_what_does_not_fit_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ready(policy="save_all")._needed_bytes(ready(policy="save_all").layout.size_bytes)
    taken: list[int] = []
    monkeypatch.setattr("fastbp.run.decoder.Arena", lambda size: taken.append(size))
    monkeypatch.setattr("fastbp.run.fit.available_bytes", lambda: needed - 1)
    with pytest.raises(DoesNotFit, match="batch 3"):
        ready(policy="save_all")
    assert not taken


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_have_the_promised_shapes(dtype: str) -> None:
    decoder = Decoder(SEED, 3, backend="numpy", dtype=dtype)
    for ids in (decoder.tokens, decoder.targets):
        assert ids.shape == (3, 8)
        assert ids.dtype == "int32"
    for reals in (decoder.losses, decoder.row_weights):
        assert reals.shape == (3, 8)
        assert reals.dtype == dtype
    assert (decoder.row_weights == np.array(1 / 24, dtype)).all()
    assert list(decoder.parameters) == list(decoder.gradients)
    assert len(decoder.parameters) == 27


def test_a_plan_is_taken_instead_of_a_policy() -> None:
    plan = Plan("mine", frozenset({"blocks.1.x"}), 24)
    assert Decoder(SEED, 3, policy="full", plan=plan, backend="numpy").plan is plan


@pytest.mark.parametrize("backend", ["cython", "numpy"])
def test_another_plan_runs_in_the_same_memory_to_the_same_bits(backend: str) -> None:
    decoder, full = (ready(BIASED, policy=policy, backend=backend) for policy in ("save_all", "full"))
    decoder.forward_backward()
    expected = decoder.gradients.flat.copy()
    schedule, program = decoder.under(full.plan)
    assert (schedule.plan, len(program.instructions)) == (full.plan, len(full.gradients_program.instructions))
    decoder.zero_gradients()
    decoder.mark_arena()
    decoder.runner.run(program)
    assert decoder.gradients.flat.tobytes() == expected.tobytes()
    assert decoder.arena.last_touched() <= full.peak_bytes_predicted < decoder.peak_bytes_predicted
    with pytest.raises(ValueError, match="save_all takes"):
        full.under(decoder.plan)


def test_scattered_buffers_lie_elsewhere_and_give_the_same_bits() -> None:
    decoder, full = (
        ready(replace(BIASED, blocks=6), policy=policy, backend="cython") for policy in ("save_all", "full")
    )
    decoder.forward_backward()
    expected = decoder.gradients.flat.copy()
    programs = [decoder.under(full.plan, scattered)[1] for scattered in (False, True)]
    assert addresses(programs[0]) != addresses(programs[1])
    decoder.zero_gradients()
    decoder.runner.run(programs[1])
    assert decoder.gradients.flat.tobytes() == expected.tobytes()


def test_what_leaves_no_room_is_not_scattered() -> None:
    decoder = ready(BIASED, policy="full", backend="numpy")
    _, program = decoder.under(decoder.plan, scattered=True)
    assert addresses(program) == addresses(decoder.gradients_program)


def addresses(program: Program) -> list[int]:
    return [array.ctypes.data for each in program.instructions for _, array in each.outputs]


def test_numpy_has_no_scratch_for_workers() -> None:
    peaks = {workers: ready(workers=workers).peak_bytes_predicted for workers in (1, 2, 4)}
    assert len(set(peaks.values())) == 1
    compiled = [ready(workers=workers, backend="numba").peak_bytes_predicted for workers in (1, 2, 4)]
    assert peaks[1] < compiled[0] < compiled[1] < compiled[2]


# --- begun ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "scaled"), [(SEED, 1.0), (BIASED, 0.5)])
def test_weights_are_a_function_of_seed_and_name(config: DecoderConfig, scaled: float) -> None:
    decoder = Decoder(config, 1, backend="numpy", dtype="float64")
    decoder.initialise(5)
    for name, values in decoder.parameters.items():
        if values.ndim < 2:
            assert (values == name.endswith("weight")).all(), name
            continue
        spread = 0.02 * (scaled if name.endswith(("wo", "w2")) else 1)
        expected = spread * stream(5, f"init {name}").standard_normal(values.shape)
        np.testing.assert_allclose(values, expected, rtol=1e-15)


def test_another_seed_gives_other_weights_and_the_same_one_the_same() -> None:
    decoder = Decoder(SEED, 1, backend="numpy")
    seen = []
    for seed in (1, 2, 1):
        decoder.initialise(seed)
        seen.append(decoder.parameters.flat.tobytes())
    assert seen[0] == seen[2] != seen[1]


# --- run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decoder_that_knows_nothing_loses_the_logarithm_of_its_vocabulary(backend: str) -> None:
    decoder = ready(backend=backend)
    decoder.parameters["final.ln.weight"][:] = 0
    decoder.parameters["final.ln.bias"][:] = 0
    decoder.forward_backward()
    np.testing.assert_allclose(decoder.losses, np.log(64), rtol=1e-6)
    assert decoder.loss == pytest.approx(np.log(64), rel=1e-6)


def test_the_loss_weighs_the_rows() -> None:
    decoder = ready()
    decoder.row_weights[:] = 0
    decoder.row_weights[1, 3], decoder.row_weights[2, 0] = 2, 0.5
    decoder.forward_backward()
    assert decoder.loss == 2 * float(decoder.losses[1, 3]) + 0.5 * float(decoder.losses[2, 0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_without_weight_leaves_no_gradient(backend: str) -> None:
    decoder = ready(backend=backend)
    decoder.row_weights[:] = 0
    decoder.forward_backward()
    assert not decoder.gradients.flat.any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", [SEED, BIASED], ids=["seed", "biased"])
def test_gradients_are_slopes_of_the_loss(config: DecoderConfig, backend: str) -> None:
    # Along one random direction through all parameters at once; every tensor by itself is the checks' work.
    decoder = ready(config, backend=backend, dtype="float64")
    decoder.forward_backward()
    direction = np.random.default_rng(1).standard_normal(decoder.parameters.flat.size)
    slope, start, losses = float(direction @ decoder.gradients.flat), decoder.parameters.flat.copy(), []
    for step in (1e-5, -1e-5):
        decoder.parameters.flat[:] = start + step * direction
        decoder.evaluate()
        losses.append(decoder.loss)
    assert abs(slope) > 0.01
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attention", ["tiled", "materialised"])
def test_with_dropout_gradients_are_slopes_of_the_loss_under_one_mask(attention: str, backend: str) -> None:
    config = replace(BIASED, dropout=0.3, attention=attention)
    decoder = ready(config, backend=backend, dtype="float64")
    decoder.choose_masks(1, 2, 3)
    decoder.forward_backward()
    direction = np.random.default_rng(1).standard_normal(decoder.parameters.flat.size)
    slope, start, losses = float(direction @ decoder.gradients.flat), decoder.parameters.flat.copy(), []
    for step in (1e-5, -1e-5):
        decoder.parameters.flat[:] = start + step * direction
        decoder.forward_backward()
        losses.append(decoder.loss)
    assert abs(slope) > 0.01
    assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attention", ["tiled", "materialised"])
def test_evaluation_leaves_nothing_out(attention: str, backend: str) -> None:
    config = replace(BIASED, attention=attention)
    plain, dropping = (ready(replace(config, dropout=p), backend=backend, workers=2) for p in (0.0, 0.4))
    plain.evaluate()
    for update in range(2):
        dropping.choose_masks(1, update)
        dropping.forward_backward()
        assert dropping.losses.tobytes() != plain.losses.tobytes()
        dropping.evaluate()
        assert dropping.losses.tobytes() == plain.losses.tobytes()


def test_masks_are_a_function_of_seed_update_and_micro_batch() -> None:
    decoder, other = (ready(replace(SEED, dropout=0.1)) for _ in range(2))
    keys = set()
    for counter in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64 - 1, 10**6, 99)):
        decoder.choose_masks(*counter)
        keys.add(decoder.dropout_state.tobytes())
        other.choose_masks(*counter)
        assert np.array_equal(decoder.dropout_state, other.dropout_state)
    assert len(keys) == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_add_up_until_they_are_cleared(backend: str) -> None:
    decoder = ready(backend=backend, dtype="float64")
    decoder.forward_backward()
    once = decoder.gradients.flat.copy()
    decoder.forward_backward()
    np.testing.assert_allclose(decoder.gradients.flat, 2 * once, rtol=1e-12, atol=1e-16)
    decoder.zero_gradients()
    assert not decoder.gradients.flat.any()
    decoder.forward_backward()
    assert decoder.gradients.flat.tobytes() == once.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("policy", ["save_all", "full", "save_only(u)"])
@pytest.mark.parametrize("config", [SEED, BIASED], ids=["seed", "biased"])
def test_evaluation_gives_the_bits_of_trainings_losses_and_touches_no_gradient(
    config: DecoderConfig, policy: str, workers: int, backend: str
) -> None:
    decoder = ready(config, policy=policy, backend=backend, workers=workers)
    decoder.forward_backward()
    losses, gradients = decoder.losses.tobytes(), decoder.gradients.flat.tobytes()
    parameters = decoder.parameters.flat.tobytes()
    decoder.losses[:] = np.nan
    decoder.evaluate()
    assert decoder.losses.tobytes() == losses
    assert decoder.gradients.flat.tobytes() == gradients
    assert decoder.parameters.flat.tobytes() == parameters


def test_evaluation_needs_no_room_that_training_does_not_have() -> None:
    decoder = ready(policy="save_only()")
    evaluation = decoder._evaluation[2].size_bytes
    assert decoder.arena.size_bytes == max(decoder.layout.size_bytes, evaluation)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("policy", ["save_all", "full"])
def test_the_measured_peak_is_what_the_run_touched(policy: str, backend: str) -> None:
    decoder = ready(policy=policy, backend=backend)
    assert decoder.peak_bytes_measured() == 0
    assert decoder.measure_peak_bytes() == decoder.peak_bytes_predicted == decoder.layout.size_bytes
    assert not decoder.gradients.flat.any()
    decoder.mark_arena()
    assert decoder.peak_bytes_measured() == 0
    decoder.forward_backward()
    assert decoder.peak_bytes_measured() == decoder.peak_bytes_predicted
    assert decoder.gradients.flat.any()


def test_a_kernel_that_writes_past_the_arena_is_measured_above_the_prediction() -> None:
    decoder = ready()
    decoder.mark_arena()
    decoder.forward_backward()
    decoder.arena.view(decoder.arena.size_bytes, (4,), "uint8")[:] = 1
    assert decoder.peak_bytes_measured() > decoder.peak_bytes_predicted


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_peak_is_predicted_where_lifetimes_do_not_pack(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The arena is then larger than what is ever live at once, and it is the arena that is touched.
    def gappy(simulation: Simulation) -> Layout:
        layout = lay_out(simulation)
        offsets = tuple(offset + 128 for offset in layout.offsets)
        return replace(layout, offsets=offsets, size_bytes=layout.size_bytes + 128)

    monkeypatch.setattr("fastbp.run.decoder.lay_out", gappy)
    decoder = ready(backend=backend)
    assert decoder.layout.fragmentation_bytes >= 128
    assert decoder.measure_peak_bytes() == decoder.peak_bytes_predicted == decoder.layout.size_bytes


def test_a_later_token_does_not_change_an_earlier_loss() -> None:
    decoder = ready(backend="numba")
    decoder.evaluate()
    before = decoder.losses.copy()
    decoder.tokens[1, 5] = (decoder.tokens[1, 5] + 1) % 64
    decoder.evaluate()
    same = decoder.losses == before
    assert same[0].all()
    assert same[2].all()
    assert same[1, :5].all()
    assert not same[1, 5:].any()
