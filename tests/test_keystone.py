"""The keystone: whatever is kept, the bits are those of keeping everything; the predicted peak is the measured one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastbp.check.gradient_error import gradient_error
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.cost import COSTS
from fastbp.policy.optimal import Planner
from fastbp.policy.rotor import Rotor
from fastbp.run.decoder import Decoder
from fastbp.schedule.plan import Plan, Slices, head_rows
from fastbp.schedule.reversal import Reversal, Split

BACKENDS = ("numpy", "numba", "cython")
POLICIES = (
    "save_all", "full", "every(1)", "every(2)", "sqrt",
    "selective(layernorm)", "selective(gelu)", "selective(core_attn)", "selective(mlp)",
    "selective(layernorm, gelu, core_attn, mlp)", "save_only(qkv, mid)", "save_only(u)", "revolve(1)", "revolve(2)",
    "rotor(10MiB)",
)  # fmt: skip
BATCHES = {"seed": 2, "small": 3}

Bits = tuple[float, bytes, bytes]
"""The loss, every row's loss and every gradient."""


@pytest.fixture(autouse=True, scope="module")
def _cores() -> Iterator[None]:
    """As many workers as a test wants, on any machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastbp.run.workers.physical_cores", lambda: 4)
        yield


def filled(decoder: Decoder) -> Decoder:
    """Parameters, tokens and row weights without a zero, a one or a symmetry to hide behind."""
    random = np.random.default_rng(7)
    for name, values in decoder.parameters.items():
        values[...] = 0.3 * random.standard_normal(values.shape) + name.endswith(
            ("ln1.weight", "ln2.weight", "ln.weight")
        )
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, decoder.config.vocab, ids.shape)
    decoder.row_weights[:] = random.uniform(0.5, 1.5, decoder.row_weights.shape) / decoder.row_weights.size
    return decoder


def bits(decoder: Decoder) -> Bits:
    decoder.zero_gradients()
    decoder.forward_backward()
    return decoder.loss, decoder.losses.tobytes(), decoder.gradients.flat.tobytes()


def assert_peak(decoder: Decoder) -> None:
    """Equal integers: predicted, measured, and the size of the layout."""
    assert decoder.measure_peak_bytes() == decoder.peak_bytes_predicted == decoder.layout.size_bytes


@cache
def reference(preset: str, batch: int, backend: str) -> Bits:
    """save_all with one worker."""
    return bits(filled(Decoder(DecoderConfig.preset(preset), batch, policy="save_all", backend=backend, workers=1)))


def assert_keystone(preset: str, batch: int, policy: str, backend: str, workers: int) -> None:
    decoder = filled(Decoder(DecoderConfig.preset(preset), batch, policy=policy, backend=backend, workers=workers))
    found, expected = bits(decoder), reference(preset, batch, backend)
    assert np.isfinite(found[0])
    assert found == expected
    assert_peak(decoder)
    assert decoder.layout.fragmentation_bytes == 0
    assert decoder.simulation.peak_bytes == decoder.peak_bytes_predicted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("preset", BATCHES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_bits_of_save_all(preset: str, policy: str, workers: int, backend: str) -> None:
    assert_keystone(preset, BATCHES[preset], policy, backend, workers)


@cache
def tiled(policy: str, backend: str, workers: int) -> tuple[Bits, Decoder]:
    """A decoder whose attention saves one number a head and token, over two bands of queries."""
    config = DecoderConfig.preset("seed", attention="tiled", context=70)
    decoder = filled(Decoder(config, 3, policy=policy, backend=backend, workers=workers))
    return bits(decoder), decoder


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "policy", ["save_all", "full", "every(2)", "selective(layernorm, gelu, mlp)", "save_only(lse)"]
)
def test_tiled_attention_keeps_the_law(policy: str, workers: int, backend: str) -> None:
    found, decoder = tiled(policy, backend, workers)
    assert found == tiled("save_all", backend, 1)[0]
    assert_peak(decoder)


@cache
def longer(backend: str, attention: str, batch: int, dropout: float = 0.0) -> tuple[DecoderConfig, Bits]:
    """A decoder whose sequences are cut into rows, and what keeping everything gives."""
    config = DecoderConfig.preset("seed", attention=attention, context=40, dropout=dropout)
    return config, bits(filled(Decoder(config, batch, backend=backend, workers=1)))


@pytest.mark.parametrize("backend", ["numba", "cython"])
@settings(max_examples=60, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(st.data())
def test_slices_give_the_bits_of_whole_blocks(backend: str, data: st.DataObject) -> None:
    attention, batch = data.draw(st.sampled_from(["tiled", "materialised"])), data.draw(st.integers(1, 3))
    config, expected = longer(backend, attention, batch, data.draw(st.sampled_from([0.0, 0.2])))
    names = sorted(decoder_graph(config, batch).read_by_backward)
    one = st.one_of(st.none(), st.builds(Slices, st.integers(1, batch), st.sampled_from([3, 8, 16, 64])))
    plan = Plan(
        "drawn",
        data.draw(st.frozensets(st.sampled_from(names))),
        data.draw(st.sampled_from([5, 16, 1000])),
        tuple(data.draw(one) for _ in range(config.blocks)),
    )
    decoder = filled(Decoder(config, batch, plan=plan, backend=backend, workers=data.draw(st.integers(1, 3))))
    assert bits(decoder) == expected
    assert_peak(decoder)


def reversals(start: int, stop: int) -> st.SearchStrategy[Reversal]:
    """Any order in which blocks may be walked backward."""

    def cut_at(cut: int) -> st.SearchStrategy[Reversal]:
        whole = st.booleans() if cut == start + 1 else st.just(False)
        return st.builds(Split, reversals(start, cut), reversals(cut, stop), whole)

    return st.integers(start + 1, stop - 1).flatmap(cut_at) if stop - start > 1 else st.just(start)


@pytest.mark.parametrize("backend", ["numba", "cython"])
@settings(max_examples=25, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(reversal=reversals(0, 4), data=st.data())
def test_any_reversal_gives_the_bits_of_save_all(backend: str, reversal: Reversal, data: st.DataObject) -> None:
    config = DecoderConfig.preset("seed", blocks=4, attention="tiled")
    names = sorted(decoder_graph(config, 2).read_by_backward)
    one = st.one_of(st.none(), st.just(Slices(1, 3)))
    keep = data.draw(st.frozensets(st.sampled_from(names), max_size=8))
    plan = Plan("drawn", keep, 16, tuple(data.draw(one) for _ in range(4)), reversal=reversal)
    decoder = filled(Decoder(config, 2, plan=plan, backend=backend, workers=2))
    assert bits(decoder) == bits(filled(Decoder(config, 2, backend=backend, workers=1)))
    assert_peak(decoder)


@pytest.mark.parametrize("backend", ["numba", "cython"])
def test_every_budget_of_rotor_gives_the_bits_of_save_all(backend: str) -> None:
    config = DecoderConfig.preset("seed", blocks=5)
    expected = bits(filled(Decoder(config, 3, backend=backend, workers=1)))
    rotor = Rotor(decoder_graph(config, 3, workers=2), COSTS["flops"])
    plans = {rotor.search(units): units * rotor.unit for units in range(rotor.most, 0, -1)}
    assert len(plans) > 6
    for plan, budget in plans.items():
        if plan:
            decoder = filled(Decoder(config, 3, plan=plan, backend=backend, workers=2))
            assert bits(decoder) == expected
            assert_peak(decoder)
            assert decoder.peak_bytes_predicted <= budget


@pytest.mark.parametrize("backend", ["numba", "cython"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(("attention", "batch"), [("tiled", 1), ("tiled", 3), ("materialised", 2)])
def test_every_budget_gives_the_bits_of_save_all(attention: str, batch: int, dropout: float, backend: str) -> None:
    config, expected = longer(backend, attention, batch, dropout)
    planner = Planner(decoder_graph(config, batch, workers=2))
    low, high = planner.smallest_bytes, planner.largest_bytes
    for budget in range(low, high + 1, (high - low) // 9):
        decoder = filled(Decoder(config, batch, policy=f"optimal({budget})", backend=backend, workers=2))
        assert bits(decoder) == expected
        assert_peak(decoder)
        assert decoder.peak_bytes_predicted <= budget


def test_the_numpy_definition_agrees_in_slices_up_to_rounding() -> None:
    # Its products are BLAS's, which sums a slice in another order than the whole.
    config, (loss, _, gradients) = longer("numpy", "tiled", 2)
    plan = Plan("drawn", frozenset({"final.x"}), 16, (Slices(1, 8), Slices(2, 16)))
    found = bits(filled(Decoder(config, 2, plan=plan, backend="numpy")))
    np.testing.assert_allclose(found[0], loss, rtol=1e-6)
    expected = np.frombuffer(gradients, np.float32)
    np.testing.assert_allclose(
        np.frombuffer(found[2], np.float32), expected, rtol=1e-4, atol=1e-5 * abs(expected).max()
    )


@cache
def dropping(attention: str, policy: str, backend: str, workers: int, **masks: int) -> tuple[Bits, Decoder]:
    """A decoder with dropout, its masks those of a seed, an update and a micro-batch."""
    config = DecoderConfig.preset("seed", attention=attention, context=70, dropout=0.2)
    decoder = filled(Decoder(config, 3, policy=policy, backend=backend, workers=workers))
    decoder.choose_masks(**({"seed": 1, "update": 2, "micro": 3} | masks))
    return bits(decoder), decoder


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("attention", ["tiled", "materialised"])
@pytest.mark.parametrize("policy", POLICIES)
def test_dropout_keeps_the_law(policy: str, attention: str, workers: int, backend: str) -> None:
    found, decoder = dropping(attention, policy, backend, workers)
    assert found == dropping(attention, "save_all", backend, 1)[0]
    assert_peak(decoder)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_masks_give_other_bits(backend: str) -> None:
    others = [{}, {"seed": 4}, {"update": 4}, {"micro": 4}]
    assert len({dropping("tiled", "save_all", backend, 1, **masks)[0] for masks in others}) == len(others)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_bits_of_save_all_at_batch_12(policy: str, workers: int, backend: str) -> None:
    assert_keystone("small", 12, policy, backend, workers)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("preset", BATCHES)
def test_every_gradient_is_there(preset: str, backend: str) -> None:
    decoder = filled(Decoder(DecoderConfig.preset(preset), BATCHES[preset], policy="full", backend=backend, workers=1))
    decoder.forward_backward()
    for name, gradient in decoder.gradients.items():
        assert np.isfinite(gradient).all()
        assert gradient.any(), f"{name} has no gradient"


@st.composite
def shapes(draw: st.DrawFn) -> DecoderConfig:
    """Odd shapes: one of anything, primes, just above a vector, a head wider than a tile."""
    heads = draw(st.sampled_from([1, 2, 3]))
    width = heads * draw(st.sampled_from([1, 2, 5, 16, 33]))
    return DecoderConfig(
        blocks=draw(st.integers(1, 4)),
        width=width,
        heads=heads,
        feed_forward=draw(st.sampled_from([1, 7, 32, 65])),
        context=draw(st.sampled_from([1, 2, 9, 33, 65])),
        vocab=draw(st.sampled_from([1, 3, 31, 257])),
        positions="learned" if width % 2 else draw(st.sampled_from(["learned", "sinusoidal"])),
        attention_bias=draw(st.booleans()),
        feed_forward_bias=draw(st.booleans()),
        gelu=draw(st.sampled_from(["tanh", "erf"])),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=12, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(config=shapes(), batch=st.integers(1, 5), dtype=st.sampled_from(["float32", "float64"]), data=st.data())
def test_odd_shapes_and_any_plan_give_the_bits_of_save_all(
    backend: str, config: DecoderConfig, batch: int, dtype: str, data: st.DataObject
) -> None:
    graph = decoder_graph(config, batch, dtype=dtype)
    expected = bits(filled(Decoder(config, batch, backend=backend, workers=1, dtype=dtype)))
    for workers in (1, 2, 3):
        keep = data.draw(st.frozensets(st.sampled_from(sorted(graph.read_by_backward))))
        plan = Plan("drawn", keep, head_rows(graph))
        decoder = filled(Decoder(config, batch, plan=plan, backend=backend, workers=workers, dtype=dtype))
        assert bits(decoder) == expected
        assert_peak(decoder)


@pytest.mark.parametrize("backend", ["numba", "cython"])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_the_heads_slices_leave_the_bits_alone(rows: int, backend: str) -> None:
    # Compiled kernels add the rows of a weight's gradient in one chain; NumPy's products have an order of their own.
    config = DecoderConfig.preset("small")
    plain = filled(Decoder(config, 2, policy="full", backend=backend, workers=2))
    sliced = filled(Decoder(config, 2, plan=replace(plain.plan, head_rows=rows), backend=backend, workers=2))
    assert len(sliced.schedule.actions) > len(plain.schedule.actions)
    assert bits(sliced) == bits(plain)
    assert_peak(sliced)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_evaluation_between_leaves_the_bits_alone(backend: str) -> None:
    decoder = filled(Decoder(DecoderConfig.preset("seed"), 2, policy="full", backend=backend, workers=2))
    decoder.evaluate()
    assert bits(decoder) == reference("seed", 2, backend)


# --- lossy plans: every law but that of the bits --------------------------------------------------------------------


def lossy(preset: str, share: float, backend: str, workers: int = 2) -> Decoder:
    """The lossy planner's decoder at a share of the way from its smallest budget to that of the cheapest exact plan."""
    config, batch = DecoderConfig.preset(preset), BATCHES[preset]
    planner = Planner(decoder_graph(config, batch, workers=0 if backend == "numpy" else workers), lossy=True)
    low, high = planner.smallest_bytes, planner.largest_bytes
    plan = planner.plan(low + int(share * (high - low)))
    return Decoder(config, batch, plan=plan, backend=backend, workers=workers)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("preset", "share"), [("seed", 0.05), ("small", 0.1), ("small", 0.25), ("small", 0.4)])
def test_a_lossy_plan_has_its_peak_and_gradients_within_two_percent(preset: str, share: float, backend: str) -> None:
    decoder = filled(lossy(preset, share, backend))
    decoder.initialise(0)
    error = gradient_error(decoder)
    assert_peak(decoder)
    assert decoder.plan.packed
    assert 0 < error.relative < 0.02
    assert error.worst_relative >= error.relative


@pytest.mark.parametrize("backend", ["numba", "cython"])
def test_a_lossy_plans_bits_know_neither_workers_nor_slices(backend: str) -> None:
    expected = bits(filled(lossy("small", 0.25, backend)))
    assert bits(filled(lossy("small", 0.25, backend))) == expected
    plan = lossy("small", 0.25, backend).plan
    config, batch = DecoderConfig.preset("small"), BATCHES["small"]
    for workers in (1, 3):
        assert bits(filled(Decoder(config, batch, plan=plan, backend=backend, workers=workers))) == expected
    for slices in ((), (Slices(1, 16),) * config.blocks, (None, Slices(2, 64), Slices(3, 192), None)):
        other = replace(plan, slices=slices)
        assert bits(filled(Decoder(config, batch, plan=other, backend=backend, workers=2))) == expected


@pytest.mark.parametrize("backend", ["numba", "cython"])
def test_a_lossy_plans_losses_are_exact(backend: str) -> None:
    decoder = filled(lossy("small", 0.25, backend))
    exact = filled(Decoder(decoder.config, decoder.batch, backend=decoder.backend.name, workers=2))
    decoder.forward_backward()
    exact.forward_backward()
    assert decoder.losses.tobytes() == exact.losses.tobytes()
    decoder.evaluate()
    assert decoder.losses.tobytes() == exact.losses.tobytes()


@pytest.mark.parametrize("backend", ["numba", "cython"])
def test_where_nothing_is_packed_a_lossy_planners_bits_are_exact(backend: str) -> None:
    decoder = filled(lossy("seed", 1.0, backend))
    assert not decoder.plan.packed
    assert bits(decoder) == reference("seed", 2, backend)
    assert gradient_error(decoder).relative == gradient_error(decoder).worst_relative == 0


@pytest.mark.parametrize("backend", ["numba", "cython"])
@settings(max_examples=40, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(st.data())
def test_any_plan_with_any_tensors_packed_has_its_peak(backend: str, data: st.DataObject) -> None:
    config, batch = DecoderConfig.preset("seed", attention="tiled", context=40), data.draw(st.integers(1, 3))
    names = sorted(decoder_graph(config, batch).read_by_backward)
    keep = data.draw(st.frozensets(st.sampled_from(names)))
    packed = frozenset(name for name in keep if name.startswith("blocks.") and data.draw(st.booleans()))
    one = st.one_of(st.none(), st.builds(Slices, st.integers(1, batch), st.sampled_from([3, 8, 16, 64])))
    plan = Plan("drawn", keep, 16, tuple(data.draw(one) for _ in range(config.blocks)), packed=packed)
    decoder = filled(Decoder(config, batch, plan=plan, backend=backend, workers=data.draw(st.integers(1, 3))))
    assert np.isfinite(bits(decoder)[0])
    assert np.isfinite(decoder.gradients.flat).all()
    assert_peak(decoder)
