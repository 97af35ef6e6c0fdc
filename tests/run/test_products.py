"""The products of a schedule: all of them, once each, and each what it says it is."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.ops.registry import OPS
from fastbp.policy.named import make_plan
from fastbp.run.backend import choose_backend
from fastbp.run.products import KINDS, PRODUCTS, Product, ProductBench, products_of
from fastbp.run.runner import Runner
from fastbp.schedule.schedule import Schedule, training_schedule

CASES = [
    Product("forward", 21, 35, 17, (17, 1), (35, 1), 35),
    Product("forward", 21, 17, 19, (19, 1), (17, 1), 51),  # a third of a row, as in qkv
    Product("forward", 65, 13, 40, (40, 1), (1, 40), 13),  # the head, and its two others
    Product("dX", 13, 40, 65, (1, 13), (40, 1), 40),
    Product("dW", 65, 40, 13, (13, 1), (40, 1), 40, accumulates=True),
    Product("dX", 21, 17, 35, (105, 1), (1, 35), 17, accumulates=True),
    Product("dW", 17, 35, 400, (1, 17), (35, 1), 35, accumulates=True),
]


def schedule_of(config: DecoderConfig, batch: int, policy: str = "save_all") -> Schedule:
    graph = decoder_graph(config, batch)
    return training_schedule(graph, make_plan(graph, policy))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("backend", ["numpy", "numba", "cython"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_is_the_product(backend: str, dtype: str, workers: int) -> None:
    bench = ProductBench(CASES, choose_backend(backend), dtype, workers)
    runner = Runner(workers)
    for case in CASES:
        a, b, c = bench.operands(case)
        start = np.random.default_rng(1).standard_normal(c.shape)
        bench.c[:] = np.nan
        c[:] = start
        expected = a.astype(np.float64) @ b
        total = expected + start if case.accumulates else expected
        runner.run(bench.program(case))
        np.testing.assert_allclose(c, total, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)
        assert np.isfinite(bench.c).sum() == c.size  # nothing else was written


def test_repeats_repeat() -> None:
    bench = ProductBench(CASES, choose_backend("cython"), "float32", 1)
    case = CASES[-1]
    a, b, c = bench.operands(case)
    c[:] = 0
    Runner(1).run(bench.program(case, repeats=3))
    np.testing.assert_allclose(c, 3.0 * (a @ b), atol=1e-4)


@pytest.mark.parametrize(("preset", "batch"), [("seed", 1), ("small", 12), ("medium", 8), ("gpt2", 1)])
def test_all_products_of_an_update_are_there_once(preset: str, batch: int) -> None:
    schedule = schedule_of(DecoderConfig.preset(preset), batch)
    products = products_of(schedule)
    keys = Counter((each.kind, each.M, each.N, each.K) for each in products)
    assert set(keys.values()) == {1}
    assert {each.kind for each in products} == set(KINDS)
    inside = {name for name in OPS if "attention" in name}
    expected = sum(sum(node.op.products(node.dims)) for node in schedule.graph.nodes if node.op_name not in inside)
    assert sum(each.uses * each.flops for each in products) == expected


def test_who_uses_a_product() -> None:
    products = products_of(schedule_of(DecoderConfig.preset("small"), 12))
    found = {(each.kind, each.N, each.K): (each.where, each.uses) for each in products}
    assert found["forward", 128, 128] == (("qkv", "proj"), 16)
    assert found["forward", 768, 128] == (("losses",), 1)
    assert [each.kind for each in products] == sorted((each.kind for each in products), key=KINDS.index)


def test_recomputed_products_count() -> None:
    config = DecoderConfig.preset("small")
    kept, full = (products_of(schedule_of(config, 2, policy)) for policy in ("save_all", "full"))
    assert sum(each.uses for each in full) > sum(each.uses for each in kept)


def test_a_head_in_slices_is_measured_in_slices() -> None:
    products = products_of(schedule_of(DecoderConfig.preset("gpt2"), 1))
    heads = [each for each in products if each.where == ("losses",) and each.kind == "forward"]
    assert all(each.N < 1024 for each in heads)
    assert sum(each.N * each.uses for each in heads) == 1024


def test_every_op_with_products_is_known() -> None:
    inside = {name for name in OPS if "attention" in name}
    sizes = {letter: 8 for letter in "NBTCHIOFVWZKQRPS"}
    with_products = {op.name for op in OPS.values() if any(op.products(op.extended(sizes)))}
    assert with_products - inside == set(PRODUCTS)
