"""The rows of the benchmark. The figures are not judged, only that they are made of what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.contender import ContenderFailed
from fastbp.run.limits import Limits
from fastbp.run.products import products_of
from fastbp.run.workers import Workers
from fastbp.train import benchmark
from fastbp.train.benchmark import (
    Samples,
    description,
    measure_contenders,
    measure_ops,
    measure_products,
    measure_update,
)
from fastbp.train.synthetic import synthetic_trainer

pytestmark = pytest.mark.usefixtures("small_triad")
SEED = DecoderConfig.preset("seed")


def silent(what: str) -> None:
    """Progress for nobody."""


def test_a_share_is_of_the_limit_beside() -> None:
    samples = Samples()
    samples.add([1.0, 2.0], limit=10.0)
    samples.add([1.0], limit=20.0)
    share = samples.share(10.0)
    assert (share.low, share.median, share.high) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("workers", [1, 2])
def test_products_by_one_worker_and_by_all(workers: int) -> None:
    decoder = synthetic_trainer(SEED, 1, backend="cython", workers=workers).decoder
    products = products_of(decoder.schedule)
    limits = Limits(Workers(workers))
    rows = measure_products(products, decoder, limits, 0, silent)
    assert [(r["kind"], r["m"], r["n"], r["k"]) for r in rows] == [(p.kind, p.M, p.N, p.K) for p in products]
    for row in rows:
        low, high = row["share_range"]
        assert 0 < low <= row["share_of_peak"] <= high
        assert row["gflops"] > 0
        assert (row["one_worker"] == {key: row[key] for key in row["one_worker"]}) == (workers == 1)
    assert set(limits.gflops) == {1, workers}


def test_ops_are_judged_by_what_binds_them() -> None:
    trainer = synthetic_trainer(SEED, 1, backend="numpy")
    rows = measure_ops(trainer, Limits(Workers(1)), 0)
    limits = {(row["op"], row["direction"]): row["limit"] for row in rows}
    assert limits["linear", "backward"] == limits["attention", "forward"] == "peak"
    assert limits["gelu", "forward"] == limits["adamw", "forward"] == "memory"
    assert all((row["gflops"] is None) == (row["limit"] == "memory") for row in rows)
    assert all((row["gb_per_second"] is None) == (row["limit"] == "peak") for row in rows)
    assert [row["seconds"] for row in rows] == sorted((row["seconds"] for row in rows), reverse=True)


def test_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = synthetic_trainer(SEED, 3, backend="cython")
    monkeypatch.setattr(benchmark, "seconds_of", lambda run: 0.1)
    monkeypatch.setattr(benchmark, "one_turn", lambda run, last: [0.25, 0.5, 1.0])
    limits = Limits(Workers(1))
    monkeypatch.setattr(limits, "peak", lambda: 2.0)
    row = measure_update(trainer, limits, 0)
    assert (row["seconds"], row["seconds_range"], row["runs"]) == (0.5, [0.25, 1.0], 15)
    assert row["share_of_peak"] == pytest.approx(trainer.flops_per_update / 0.5 / 2e9)
    assert row["tokens_per_second"] == 3 * 8 / 0.5


class FakeContender:
    """Takes as many seconds as its name says; one of them fails at its start, one in its second turn."""

    alive: list[str]

    def __init__(self, name: str, what: Any) -> None:
        self.name, self.turns = name, 0

    def __enter__(self) -> FakeContender:
        FakeContender.alive.append(self.name)
        assert len(FakeContender.alive) <= 2
        return self

    def __exit__(self, *error: object) -> None:
        FakeContender.alive.remove(self.name)

    def wait(self) -> None:
        if self.name == "broken":
            raise ContenderFailed("no compiler")

    def turn(self) -> list[float]:
        self.turns += 1
        if self.name == "dies" and self.turns == 2:
            raise ContenderFailed("exit code -9")
        return [float(self.name)] if self.name != "dies" else [1.0]

    def rss_peak_bytes(self) -> int:
        return 1000 * int(self.name)


def contend(names: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(benchmark, "Contender", FakeContender)
    FakeContender.alive = []
    rows = measure_contenders(names, {}, 4_000_000_000, Limits(Workers(1)), 0, silent)
    assert FakeContender.alive == []
    return rows


def test_contenders_take_turns_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = contend(["2", "3", "broken", "dies", "4"], monkeypatch)
    assert list(rows) == ["2", "3", "broken", "dies", "4"]
    assert {name: row.get("ratio") for name, row in rows.items()} == {
        "2": 1,
        "3": 1.5,
        "broken": None,
        "dies": None,
        "4": 2,
    }
    assert rows["broken"] == {"failed": "no compiler"}
    assert rows["dies"] == {"failed": "exit code -9"}
    assert rows["2"]["rss_peak_bytes"] == 2000
    assert (rows["2"]["runs"], rows["3"]["runs"]) == (6, 3)


def test_the_first_runs_alone_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contend(["2", "broken"], monkeypatch)["2"]["runs"] == 3
    assert contend(["2"], monkeypatch)["2"]["seconds"] == 2.0


def test_the_first_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContenderFailed):
        contend(["broken", "2"], monkeypatch)


def test_a_description_is_all_that_a_process_needs() -> None:
    what = description(SEED, 3, 2, "full")
    assert (what["batch"], what["workers"], what["policy"]) == (3, 2, "full")
    assert DecoderConfig.from_json(what["config"]) == SEED
    assert what["shapes"]["wte"] == [64, 16]
