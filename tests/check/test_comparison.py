"""Policies side by side: turns, rows, and that one decoder's memory alone is held at a time."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from fastbp.base.errors import DoesNotFit, InputError
from fastbp.check import comparison
from fastbp.check.comparison import LEAST_ROUNDS, MOST_ROUNDS, ROUNDS, Comparison, Measured, Model, passed
from fastbp.graph.config import DecoderConfig
from fastbp.policy.cost import AGAIN
from fastbp.policy.cost import Measured as CallCosts
from fastbp.run.decoder import Decoder
from fastbp.run.places import APART, NEAR, Moved
from fastbp.run.seconds import seconds_of_calls

MODEL = Model(DecoderConfig.preset("seed"), 2, "cython", 1, "float32", seed=5)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "TURN_SECONDS", 0.0)


def compared(*policies: str, rounds: int = 1, audited: bool = False) -> Comparison:
    found = Comparison(MODEL, rounds, audited, lambda what: None)
    found.run(policies)
    return found


def test_rows_by_their_peak() -> None:
    found = compared("full", "save_all", "selective(mlp)", rounds=3)
    rows = found.rows()
    assert [row["policy"] for row in rows] == ["full", "selective(mlp)", "save_all"]
    assert (found.backend, found.workers, found.reference.policy) == ("cython", 1, "save_all")
    assert all(map(passed, rows))
    for row in rows:
        decoder = Decoder(MODEL.config, 2, policy=row["policy"], backend="cython", workers=1)
        assert row["peak_bytes_predicted"] == row["peak_bytes_measured"] == decoder.peak_bytes_predicted
        assert row["kept_bytes"] == decoder.simulation.kept_bytes
        assert row["extra_flops_share"] == decoder.simulation.extra_flops_share
        assert row["gradients_bit_equal"] is True
        assert row["passes"] >= 3 * 2
        assert (row["times_reference"] == 1) == (row["policy"] == "save_all")
        assert 0 < row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert row["rss_peak_bytes"] > 1 << 24


def measured(policy: str, **seconds: list[float]) -> Measured:
    return Measured(policy, seconds=defaultdict(list, seconds), gradients={b""}, rss_peak_bytes=1)


def test_times_are_of_one_place_and_of_undisturbed_passes() -> None:
    mark = measured("save_all", near=[1.0, 1.0, 1.0, 9.0], apart=[2.0])
    other = measured("full", near=[3.0, 1.5, 7.0, 1.5], apart=[2.0])
    row = other.row(mark, NEAR)
    assert (row["times_reference"], row["passes"]) == (1.5, 4)
    assert row["seconds"] == {"median": 2.25, "min": 1.5, "max": 7.0}
    assert other.row(mark, APART)["times_reference"] == 1
    assert other.row(mark, None)["passes"] == 5
    assert (other.undisturbed_passes(NEAR), other.undisturbed_passes("moved")) == (2, 0)


def test_every_other_round_runs_backwards_and_the_reference_in_between() -> None:
    said: list[str] = []
    Comparison(MODEL, 3, False, said.append).run(["full", "sqrt", "dots", "every(2)"])
    turns = [line for line in said if line.startswith("round")]
    mark, order = "save_all", ["full", "sqrt", "dots", "every(2)"]
    there, back = ([mark, *each[:3], mark, each[3]] for each in (order, order[::-1]))
    expected = [f"round {i} of 3: {policy}" for i, each in ((1, there), (2, back), (3, there)) for policy in each]
    assert turns == expected


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, LEAST_ROUNDS), (1e9, ROUNDS)])
def test_rounds_that_are_not_asked_for_fill_a_while(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: int
) -> None:
    monkeypatch.setattr(comparison, "ALL_SECONDS", seconds)
    said: list[str] = []
    found = Comparison(MODEL, 0, False, said.append)
    found.run(["full"])
    assert found.rounds == rounds
    assert f"round {rounds} of {rounds}: full" in said


class Somewhere:
    """The cores are where it is told, look by look."""

    def __init__(self, *places: str) -> None:
        self._places, self.meetings = cycle(places), [1e-7]

    def look(self) -> str:
        return next(self._places)


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def moved(*places: str) -> None:
        monkeypatch.setattr(comparison, "Places", lambda *_: Somewhere(*places))
        monkeypatch.setattr(comparison, "DISTURBED", 1e9)

    return moved


def test_predictions_are_for_where_the_cores_were(moving: Callable[..., None]) -> None:
    near = seconds_of_calls(MODEL.config, 2, backend="cython", workers=1)
    slower = {key: 9 * took if key[1] == AGAIN else took for key, took in near.nanoseconds.items()}
    apart = replace(near, nanoseconds=slower, place=APART)
    asked: list[str | None] = []

    def costs(place: str | None) -> CallCosts:
        asked.append(place)
        return apart

    times = []
    for place, expected in ((NEAR, []), (APART, [APART])):
        moving(place)
        found = Comparison(MODEL, 2, False, lambda what: None, near, costs)
        found.run(["full"])
        assert (found.place, asked, found.passes_elsewhere) == (place, expected, 0)
        times += [row["times_predicted"] for row in found.rows() if row["policy"] == "full"]
    assert 1 < times[0] < times[1]


def test_what_cannot_be_foretold_is_left_open(moving: Callable[..., None]) -> None:
    def nowhere(place: str | None) -> CallCosts:
        raise Moved

    moving(APART)
    found = Comparison(MODEL, 1, False, lambda what: None, CallCosts({}), nowhere)
    found.run(["full"])
    assert [row["times_predicted"] for row in found.rows()] == [None, None]
    assert all(map(passed, found.rows()))


def test_passes_under_which_cores_were_moved_count_where_there_are_no_others(moving: Callable[..., None]) -> None:
    moving(NEAR, APART)
    found = compared("full", rounds=2)
    assert (found.place, found.passes_elsewhere) == (None, 0)
    assert [row["passes"] for row in found.rows()] == [4, 4]


def test_where_cores_are_moved_there_are_more_rounds_unless_their_number_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, moving: Callable[..., None]
) -> None:
    monkeypatch.setattr(comparison, "ALL_SECONDS", 0.0)
    moving(NEAR, APART)
    turns = {}
    for asked in (2, 0):
        said: list[str] = []
        Comparison(MODEL, asked, False, said.append).run(["full"])
        turns[asked] = sum(what.startswith("round") and what.endswith(": full") for what in said)
    assert turns == {2: 2, 0: MOST_ROUNDS * LEAST_ROUNDS}


def test_the_memory_of_one_decoder_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Any] = []
    build = Model.decoder

    def counted(model: Model, *arguments: Any) -> Decoder:
        assert [each() for each in alive] == [None] * len(alive)
        decoder = build(model, *arguments)
        alive.extend(map(weakref.ref, (decoder, decoder.arena, decoder.parameters)))
        return decoder

    monkeypatch.setattr(Model, "decoder", counted)
    compared("full", "every(2)", rounds=2, audited=True)
    assert len(alive) == 3 * (3 + 1)  # the last for all turns


def test_weights_and_tokens_are_the_same_for_all() -> None:
    plans = [Decoder(MODEL.config, 2, policy=policy).plan for policy in ("save_all", "full")]
    first, second = (MODEL.decoder(plan, None) for plan in plans)
    for name in ("tokens", "targets"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
        assert len(np.unique(getattr(first, name))) > 3
    assert first.parameters.flat.tobytes() == second.parameters.flat.tobytes()
    other = Model(MODEL.config, 2, "cython", 1, "float32", seed=6).decoder(plans[0], None)
    assert other.parameters.flat.tobytes() != first.parameters.flat.tobytes()


def test_what_does_not_fit_is_a_row() -> None:
    found = compared("optimal(64)", "full")
    last = found.rows()[-1]
    assert last["policy"] == "optimal(64)"
    assert "the smallest needs" in last["failed"]
    assert passed(last)


def test_a_decoder_that_does_not_fit_is_a_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Model.decoder

    def short_of_memory(model: Model, plan: Any, progress: Any) -> Decoder:
        if plan.policy in ("save_all", "sqrt"):
            raise MemoryError if plan.policy == "sqrt" else DoesNotFit("save_all is too large")
        return build(model, plan, progress)

    monkeypatch.setattr(Model, "decoder", short_of_memory)
    found = compared("sqrt", "every(2)", "full", rounds=2)
    assert found.reference.policy == "every(2)"
    rows = {row["policy"]: row for row in found.rows()}
    assert rows["save_all"]["failed"] == "save_all is too large"
    assert rows["sqrt"]["failed"] == "out of memory"
    assert rows["full"]["gradients_bit_equal"]
    monkeypatch.setattr("fastbp.run.fit.available_bytes", lambda: 1000)
    with pytest.raises(DoesNotFit, match="--batch 2 at context 8 needs"):
        compared("full")


def test_where_none_fits_there_is_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(model: Model, *arguments: Any) -> Decoder:
        raise DoesNotFit("too large")

    monkeypatch.setattr(Model, "decoder", nothing)
    with pytest.raises(DoesNotFit, match="too large"):
        compared("full")


def test_a_policy_that_is_none_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "decoder", None)
    with pytest.raises(InputError, match="did you mean 'full'"):
        compared("ful")


def test_gradients_that_differ_in_a_bit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forward_backward = Decoder.forward_backward

    def wrong(decoder: Decoder) -> None:
        forward_backward(decoder)
        if decoder.plan.policy == "full":
            decoder.gradients["wte"].view(np.uint32)[3, 1] ^= 1

    monkeypatch.setattr(Decoder, "forward_backward", wrong)
    equal = {row["policy"]: row["gradients_bit_equal"] for row in compared("full", "every(2)").rows()}
    assert equal == {"save_all": True, "every(2)": True, "full": False}


def test_gradients_that_change_from_round_to_round_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter([b"a", b"a", b"a", b"b"])
    monkeypatch.setattr(comparison, "digest", lambda gradients: next(hashes, b"a"))
    equal = {row["policy"]: row["gradients_bit_equal"] for row in compared("full", rounds=2).rows()}
    assert equal == {"save_all": True, "full": False}
    hashes = iter([b"a", b"a", b"b", b"a"])
    assert not any(row["gradients_bit_equal"] for row in compared("full", rounds=2).rows())


def test_what_passes() -> None:
    good = {"peak_bytes_measured": 1, "peak_bytes_predicted": 1, "gradients_bit_equal": True}
    assert passed(good)
    assert passed(good | {"audit": {"difference": None}})
    for wrong in ({"peak_bytes_measured": 2}, {"gradients_bit_equal": False}, {"audit": {"difference": {"rows": []}}}):
        assert not passed(good | wrong)
