"""Every gradient of a pass as it was written, under every plan and in every slice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fastbp.check.properties import _by_element
from fastbp.check.seed_window import gradients_of, seed_decoder, spread_vectors
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.recorded import Recorded, record
from fastbp.schedule.plan import Plan, Slices

LONGER = DecoderConfig(2, 16, 2, 32, 32, 40)
SLICED = Plan("drawn", frozenset({"final.x"}), 24, (Slices(1, 8), Slices(2, 16)))


def ready(plan: Plan | None, attention: str, dropout: float = 0.0, backend: str = "cython") -> Decoder:
    """Two sequences of 32 tokens."""
    config = replace(LONGER, attention=attention, dropout=dropout)
    decoder = Decoder(config, 2, plan=plan, backend=backend, workers=1)
    decoder.initialise(5)
    random = np.random.default_rng(5)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, config.vocab, ids.shape)
    decoder.choose_masks(1, 0)
    return decoder


def whole_gradients(found: Recorded) -> dict[str, np.ndarray]:
    """The gradients of all activations that have one, by tensor."""
    ports = [(node, port) for node in found.graph.nodes for port in node.op.differentiable]
    return {name: found.gradient(name) for name in (node.ports[port] for node, port in ports)}


def test_gradients_are_those_of_central_differences() -> None:
    """An element of an activation is changed as soon as it is there, and the loss with it."""
    decoder = seed_decoder("numpy")
    spread_vectors(decoder, 0)
    found = whole_gradients(record(decoder))
    assert len(found) == 2 * 10 + 2
    random = np.random.default_rng(0)
    for name, values in found.items():
        for place in random.choice(values.size, 3, replace=False):
            assert _by_element(decoder, name, int(place)) == pytest.approx(values.flat[place], abs=1e-10), name


def test_parameters_end_with_the_gradients_that_check_judges() -> None:
    decoder = seed_decoder("cython")
    expected = gradients_of(decoder)
    found = record(decoder)  # once more: nothing piles up
    for name, values in expected.items():
        np.testing.assert_array_equal(decoder.gradients[name], values)
    for block in range(2):
        at = f"blocks.{block}."
        for source, made, weight in (("o", "proj", "attn.wo"), ("ln2", "u", "mlp.w1"), ("g", "z", "mlp.w2")):
            product = found.value(at + source).reshape(8, -1).T @ found.gradient(at + made)
            np.testing.assert_allclose(product, expected[at + weight], rtol=1e-9, atol=1e-16)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("attention", ["tiled", "materialised"])
def test_slices_are_put_together(attention: str, dropout: float) -> None:
    whole, sliced = (record(ready(plan, attention, dropout)) for plan in (None, SLICED))
    expected, found = whole_gradients(whole), whole_gradients(sliced)
    assert len(found) == len(expected) > 20
    for name, values in expected.items():
        assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    for name in ("blocks.1.qkv", "blocks.0.o", "losses"):
        np.testing.assert_array_equal(sliced.value(name), whole.value(name))


def test_a_stream_s_gradient_is_what_came_down_and_what_the_sublayer_adds() -> None:
    found = record(ready(SLICED, "tiled"))
    for block, below in ((1, "final.x"), (0, "blocks.1.x")):
        norm = found.graph.by_name[f"blocks.{block}.ln2"]
        part = found.part(norm, f"blocks.{block}.mid")
        total = found.gradient(f"blocks.{block}.mid")
        assert part.any()
        np.testing.assert_array_equal(total, found.gradient(below) + part)
        np.testing.assert_array_equal(found.gradient(f"blocks.{block}.z"), found.gradient(below))


def test_the_token_table_is_seen_on_the_way_too() -> None:
    decoder = ready(None, "tiled")
    found = record(decoder)
    dz = np.array(found.arrays["d:wte+losses"])
    np.testing.assert_array_equal(found.arrays["d:wte+blocks.0.x"], decoder.gradients["wte"])
    assert not np.array_equal(dz, decoder.gradients["wte"])
    untouched = np.setdiff1d(np.arange(LONGER.vocab), decoder.tokens)
    assert untouched.size
    np.testing.assert_array_equal(dz[untouched], decoder.gradients["wte"][untouched])


def test_copies_outlive_the_next_run() -> None:
    decoder = ready(None, "tiled")
    found = record(decoder)
    before = {name: values.copy() for name, values in found.arrays.items()}
    decoder.tokens[:] = decoder.tokens[:, ::-1].copy()
    decoder.forward_backward()
    for name, values in before.items():
        np.testing.assert_array_equal(found.arrays[name], values)
