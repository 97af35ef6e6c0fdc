"""The stops of the seed's window: their order, and every norm against autograd."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fastbp.check.seed_window import gradients_of, seed_decoder, spread_vectors
from fastbp.graph.config import DecoderConfig
from fastbp.report.derivatives import DERIVATIVES, SUM
from fastbp.report.stops import Stop, stops_of
from fastbp.run.decoder import Decoder
from fastbp.run.recorded import record

BLOCK = ["copy", "z", "g", "u", "ln2", "sum", "copy", "proj", "o", "qkv", "ln1", "sum"]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    found = seed_decoder()
    spread_vectors(found, 0)
    return found


@pytest.fixture(scope="module")
def stops(decoder: Decoder) -> tuple[Stop, ...]:
    return stops_of(decoder, record(decoder))


def test_the_way_leads_from_the_loss_through_both_blocks_to_the_embedding(stops: tuple[Stop, ...]) -> None:
    assert [stop.stop for stop in stops] == list(range(1, 28))
    names = [stop.role if stop.role != "op" else stop.node.removeprefix(f"blocks.{stop.block}.") for stop in stops]
    assert names == ["losses", "final.ln", *BLOCK, *BLOCK, "blocks.0.x"]
    assert [stop.block for stop in stops] == [None, None, *[1] * 12, *[0] * 12, None]


def test_every_stop_has_its_op_s_derivative_and_its_kernel_s_ticks(decoder: Decoder, stops: tuple[Stop, ...]) -> None:
    for stop in stops:
        assert stop.derivative is (SUM if stop.role == "sum" else DERIVATIVES[stop.op])
        assert bool(stop.ticks) == (stop.role != "copy")
    ticks = [tick for stop in stops for tick in stop.ticks]
    assert ticks == sorted(set(ticks))
    assert [type(decoder.schedule.actions[tick]).__name__ for tick in stops[7].ticks] == ["Reduce"]


def test_what_goes_out_comes_in_at_the_next_stop(stops: tuple[Stop, ...]) -> None:
    for one, following in itertools.pairwise(stops):
        assert one.outgoing is not None
        if following.role == "sum":
            assert following.added == one.outgoing
            assert "+" in one.outgoing.gradient
        elif one.role != "sum" or following.block == one.block:
            assert following.incoming.norm == one.outgoing.norm
            assert following.incoming.rows == one.outgoing.rows
    assert stops[-1].outgoing is None
    assert stops[-1].shown is stops[-1].incoming


def test_a_copy_changes_nothing_and_a_sum_adds(stops: tuple[Stop, ...]) -> None:
    for stop in stops:
        if stop.role == "copy":
            assert stop.outgoing is not None
            assert stop.outgoing.rows == stop.incoming.rows
        if stop.role == "sum":
            assert stop.outgoing is not None
            assert stop.added is not None
            for before, added, after in zip(stop.incoming.rows, stop.added.rows, stop.outgoing.rows, strict=True):
                assert 0 < abs(after - before) <= added * (1 + 1e-12)


def test_rows_do_not_shrink_down_the_stream(stops: tuple[Stop, ...]) -> None:
    """The seed's "watch the size of each row"."""
    top = np.array(stops[2].incoming.rows)
    for stop in stops:
        if stop.op == "residual":
            assert (np.array(stop.shown.rows) > 0.98 * top).all(), stop.node
    assert np.array(stops[3].shown.rows).max() < 0.2 * top.min()  # in a sublayer they do


def test_norms_are_of_the_rows(stops: tuple[Stop, ...]) -> None:
    for stop in stops:
        assert len(stop.shown.rows) == 8
        assert math.hypot(*stop.shown.rows) == pytest.approx(stop.shown.norm, rel=1e-14)


def test_every_weight_is_finished_once_with_the_norm_that_check_finds(
    decoder: Decoder, stops: tuple[Stop, ...]
) -> None:
    gradients = gradients_of(decoder)
    finished = {weight.name: weight for stop in stops for weight in stop.weights if weight.finished}
    assert set(finished) == set(gradients)
    assert sum(len(stop.weights) for stop in stops) == 28  # the token table twice
    for name, weight in finished.items():
        assert weight.shape == gradients[name].shape
        assert weight.norm == np.linalg.norm(gradients[name])
    first, last = stops[0].weights[0], stops[-1].weights[0]
    assert (first.name, first.finished, last.name, last.finished) == ("wte", False, "wte", True)


def torch_gradients(decoder: Decoder) -> dict[str, np.ndarray]:
    """The gradient of every activation by autograd, through a decoder that is spelled out here; "blocks.1.s" are the
    scores before the scale.
    """
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    config, H = decoder.config, decoder.config.heads
    w = {name: torch.from_numpy(values.copy()) for name, values in decoder.parameters.items()}
    tokens, targets = (torch.from_numpy(ids[0].astype(np.int64)) for ids in (decoder.tokens, decoder.targets))
    T, C = len(tokens), config.width
    kept = {}

    def keep(name: str, value: object) -> object:
        value.retain_grad()  # type: ignore[attr-defined]
        kept[name] = value
        return value

    def norm(name: str, x: object) -> object:
        return functional.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], config.eps)

    w["wte"].requires_grad_()
    x = keep("blocks.0.x", w["wte"][tokens] + torch.from_numpy(decoder._constants["positions"]))
    for i in range(config.blocks):
        at = f"blocks.{i}."
        ln1 = keep(at + "ln1", norm(at + "ln1", x))
        qkv = keep(at + "qkv", torch.cat([ln1 @ w[f"{at}attn.w{part}"] for part in "qkv"], dim=1))
        q, k, v = qkv.view(T, 3, H, C // H).permute(1, 2, 0, 3)
        s = keep(at + "s", q @ k.transpose(1, 2))
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        p = torch.softmax((s / (C // H) ** 0.5).masked_fill(future, -torch.inf), dim=-1)
        o = keep(at + "o", (p @ v).transpose(0, 1).reshape(T, C))
        mid = keep(at + "mid", x + keep(at + "proj", o @ w[at + "attn.wo"]))
        u = keep(at + "u", keep(at + "ln2", norm(at + "ln2", mid)) @ w[at + "mlp.w1"] + w[at + "mlp.b1"])
        g = keep(at + "g", functional.gelu(u, approximate="tanh"))
        z = keep(at + "z", g @ w[at + "mlp.w2"] + w[at + "mlp.b2"])
        x = keep(f"blocks.{i + 1}.x" if i + 1 < config.blocks else "final.x", mid + z)
    logits = keep("final.ln", norm("final.ln", x)) @ w["wte"].T
    functional.cross_entropy(logits, targets).backward()
    return {name: value.grad.numpy() for name, value in kept.items()}


def test_every_row_is_as_long_as_autograd_s(decoder: Decoder, stops: tuple[Stop, ...]) -> None:
    expected = torch_gradients(decoder)
    compared = set()
    for stop in stops:
        for flow in (stop.incoming, stop.outgoing):
            if flow and flow.gradient != "d:losses" and "+" not in flow.gradient:
                name = flow.gradient.removeprefix("d:")
                rows = np.linalg.norm(expected[name].reshape(8, -1), axis=1)
                np.testing.assert_allclose(flow.rows, rows, rtol=1e-10, err_msg=name)
                compared.add(name)
    assert compared == {name for name in expected if not name.endswith(".s")}


def test_dropout_has_stops_of_its_own() -> None:
    config = DecoderConfig.preset("seed", dropout=0.25)
    decoder = Decoder(config, 1, dtype="float64", workers=1)
    decoder.initialise(0)
    decoder.choose_masks(0, 0)
    ops = [stop.op for stop in stops_of(decoder, record(decoder))]
    assert len(ops) == 27 + 4
    assert (ops.count("dropout"), ops.count("attention_dropout")) == (4, 2)
