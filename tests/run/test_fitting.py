"""Candidates of a fit, and the search over them."""

from __future__ import annotations

import pytest

from fastbp.base.errors import DoesNotFit
from fastbp.graph.config import DecoderConfig
from fastbp.policy.optimal import Planner
from fastbp.run.backend import choose_backend
from fastbp.run.fitting import Candidate, fitted
from fastbp.schedule.plan import Plan

SEED = Candidate(DecoderConfig.preset("seed"), 1, choose_backend("numpy"), 1, "float32")


def silent(what: str) -> None:
    pass


def test_a_candidate_fits_exactly_from_its_smallest_on() -> None:
    for batch in (1, 5):
        found = SEED.sized("batch", batch)
        size = found.smallest_bytes
        assert found.fits(size)
        assert not found.fits(size - 1)
        assert found.plan(size).budget_bytes == size - found.state_bytes


def test_the_positions_of_a_longer_context_are_state() -> None:
    learned = Candidate(DecoderConfig.preset("small", vocab=20), 1, choose_backend("numpy"), 1, "float32")
    assert learned.sized("context", 128).state_bytes - learned.state_bytes == 4 * 64 * 128 * 4
    assert SEED.sized("context", 128).state_bytes == SEED.state_bytes
    assert SEED.sized("context", 128).graph.tokens == 128


def test_what_is_beyond_all_plans_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planner, "search", None)
    assert not SEED.sized("batch", 1 << 40).fits(1 << 30)


def test_where_live_bytes_fit_and_no_layout_does_one_less_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SEED.sized("batch", 6).smallest_bytes
    assert fitted(SEED, "batch", memory, silent)[0].batch == 6
    plan = Planner.plan

    def fragmented(planner: Planner, budget_bytes: int) -> Plan:
        if planner.graph.tokens > 5 * 8:
            raise DoesNotFit("gaps")
        return plan(planner, budget_bytes)

    monkeypatch.setattr(Planner, "plan", fragmented)
    found, taken = fitted(SEED, "batch", memory, silent)
    assert (found.batch, taken.budget_bytes) == (5, memory - SEED.state_bytes)


def test_progress_names_every_size() -> None:
    said: list[str] = []
    fitted(SEED, "batch", SEED.sized("batch", 3).smallest_bytes, said.append)
    assert said == ["batch 1", "batch 2", "batch 4", "batch 3", "the plan for batch 3"]
