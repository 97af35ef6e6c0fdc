"""`fastbp compare`, on the smallest decoder: what it prints and when it fails, not how fast anything is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbp.base.units import parse_bytes
from fastbp.check import comparison
from fastbp.commands.compare import BUDGETS, POLICIES, budgets_between
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.optimal import Planner
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.program import Program
from fastbp.run.runner import Runner

RunCommand = Callable[..., Any]
TINY = ("compare", "--preset", "seed", "--backend", "cython", "--workers", 1, "--repeat", 1)
KEYS = {
    "policy", "peak_bytes_predicted", "peak_bytes_measured", "kept_bytes", "rss_peak_bytes", "extra_flops_share",
    "seconds", "passes", "times_reference", "times_predicted", "gradients_bit_equal",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "TURN_SECONDS", 0.0)


def test_the_rows_in_json(fastbp: RunCommand) -> None:
    options = ("--policies", "full,selective(gelu, layernorm)", "--budgets", "32KiB,40000", "--seed", 4)
    result = fastbp(*TINY, *options, "--json").json
    assert (result["reference"], result["rounds"], result["backend"]) == ("save_all", 1, "cython")
    assert result["rss_of"] in ("policy", "process")
    assert {row["policy"] for row in result["rows"]} == {
        "save_all", "full", "selective(gelu, layernorm)", "optimal(32KiB)", "optimal(40000)",
    }  # fmt: skip
    peaks = [row["peak_bytes_measured"] for row in result["rows"]]
    assert peaks == sorted(peaks)
    for row in result["rows"]:
        assert set(row) == KEYS
        assert set(row["seconds"]) == {"median", "min", "max"}
        assert row["peak_bytes_predicted"] == row["peak_bytes_measured"]
        assert row["gradients_bit_equal"] is True
        if row["policy"].startswith("optimal"):
            assert row["peak_bytes_measured"] <= parse_bytes(row["policy"][8:-1])


def test_the_default_is_named_policies_and_the_planner(fastbp: RunCommand) -> None:
    rows = fastbp(*TINY, "--batch", 3, "--json").json["rows"]
    planned = [row["policy"] for row in rows if row["policy"].startswith("optimal(")]
    assert {row["policy"] for row in rows} - set(planned) == set(POLICIES)
    assert 2 < len(planned) <= BUDGETS
    assert not any("failed" in row for row in rows)


def test_only_what_is_asked_for_is_compared(fastbp: RunCommand) -> None:
    for option, given, expected in (("--policies", "full", "full"), ("--budgets", "1MiB", "optimal(1MiB)")):
        rows = fastbp(*TINY, option, given, "--json").json["rows"]
        assert {row["policy"] for row in rows} == {"save_all", expected}


def test_as_many_budgets_as_are_asked_for(fastbp: RunCommand) -> None:
    rows = fastbp(*TINY, "--batch", 3, "--budget-count", 4, "--json").json["rows"]
    planned = [row for row in rows if row["policy"].startswith("optimal(")]
    assert (len(rows), len(planned)) == (len(POLICIES) + 4, 4)
    both = fastbp(*TINY, "--batch", 3, "--budget-count", 2, "--budgets", "2MiB", "--policies", "full", "--json").json
    assert len(both["rows"]) == 5  # save_all, full, 2 MiB, the smallest and what save_all needs


def test_budgets_reach_from_the_smallest_to_save_all() -> None:
    graph = decoder_graph(DecoderConfig.preset("small"), 12)
    budgets = budgets_between(graph, BUDGETS)
    assert len(budgets) == BUDGETS
    assert budgets[0] == Planner(graph).smallest_bytes
    assert budgets[-1] == 27 << 20  # save_all needs 26.75 MiB
    ratios = [after / before for before, after in pairwise(budgets)]
    assert max(ratios) < 1.2 * min(ratios)


def test_the_table_fits_a_terminal(fastbp: RunCommand) -> None:
    policies = "full,selective(gelu, layernorm),optimal(1)"
    ran = fastbp(*TINY, "--policies", policies, "--audit")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    table = [line.split()[0] for line in lines if line.startswith(("full ", "selective", "save_all ", "optimal(1) "))]
    assert table[:4] == ["full", "selective(gelu,", "save_all", "optimal(1)"]
    text = " ".join(ran.out.split())
    assert "optimal(1) no fit" in text
    assert "optimal(1) did not fit: no plan fits into 1 B" in text
    assert "measured as predicted, to the byte" in text
    assert "the same bits as save_all's under all 3" in text
    assert "audit of all 3: every bit as in forward" in text


def test_the_picture(fastbp: RunCommand, tmp_path: Path) -> None:
    picture = tmp_path / "policies.png"
    ran = fastbp(*TINY, "--policies", "full", "--budgets", "30KiB,35KiB,1", "--plot", picture)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == f"picture: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_gradients_that_differ_fail(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = iter([b"one", b"another"])
    monkeypatch.setattr(comparison, "digest", lambda gradients: next(hashes, b"one"))
    ran = fastbp(*TINY, "--policies", "full")
    assert (ran.code, ran.err) == (1, "")
    assert "FAILED: gradients are not save_all's under full" in ran.out


def test_memory_that_was_not_predicted_fails(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "measure_peak_bytes", lambda decoder: 7)
    ran = fastbp(*TINY, "--policies", "full")
    assert (ran.code, ran.err) == (1, "")
    assert "and peaked at 7" in ran.out


def change_a_bit(monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    """The second time that a node runs forward under watch, it leaves another bit."""
    run_watched = Runner.run_watched

    def run(runner: Runner, program: Program, watch: Callable[[Instruction], bool]) -> bool:
        seen = 0

        def changed(instruction: Instruction) -> bool:
            nonlocal seen
            if (instruction.node, instruction.direction) == (node, "forward"):
                seen += 1
                if seen == 2:
                    instruction.outputs[0][1].reshape(-1).view(np.uint32)[0] ^= 1
            return watch(instruction)

        return run_watched(runner, program, changed)

    monkeypatch.setattr(Runner, "run_watched", run)


def test_an_audit_names_what_came_back_otherwise(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    change_a_bit(monkeypatch, "blocks.0.u")
    ran = fastbp(*TINY, "--policies", "full,every(2)", "--audit")
    assert (ran.code, ran.err) == (1, "")
    text = " ".join(ran.out.split())
    assert "FAILED: audit of full: blocks.0.u, rows 0 to 0, is not what it was in forward: recomputed by linear" in text
    assert "audit of all" not in text


def test_an_audit_before_training(
    fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: Path
) -> None:
    options = ("train", "--preset", "seed", "--eval-windows", 2, "--steps", 2, "--policy", "full", "--grad-accum", 2)
    plain = fastbp(*options, "--out", tmp_path / "plain", "--json", text).json
    result = fastbp(*options, "--audit", "--out", tmp_path / "audited", "--json", text).json
    assert result["audit"]["difference"] is None
    assert result["audit"]["tensors"] > 5
    assert result["train_loss"] == plain["train_loss"]
    ran = fastbp(*options, "--audit", "--out", tmp_path / "again", text)
    assert "audit            every bit as in forward" in ran.out
    change_a_bit(monkeypatch, "blocks.0.u")
    out = tmp_path / "broken"
    fastbp(*options, "--audit", "--out", out, text).refused("audit of update 1: blocks.0.u, rows 0 to 0", code=1)
    assert not list(out.glob("snapshot-*"))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--policies", "ful"], ["policy 'ful' is unknown (did you mean 'full'?)"]),
        (["--policies", "every(2"], ["parenthesis"]),
        (["--budgets", "400XiB"], ["'400XiB'", "KiB"]),
        (["--repeat", "0"], ["--repeat", "give at least 1"]),
        (["--plot", "picture.pdf"], ["--plot picture.pdf", "PNG"]),
        (["--plot", "no/such/folder/p.png"], ["--plot no/such/folder/p.png", "no folder"]),
        (["--workers", "999"], ["--workers 999"]),
        (["--memory-budget", "1MiB"], ["unknown argument --memory-budget"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line(fastbp: RunCommand, options: list[str], parts: list[str]) -> None:
    fastbp("compare", "--preset", "seed", *options).refused(*parts)


def test_a_model_beyond_the_machine_is_one_line(fastbp: RunCommand) -> None:
    fastbp("compare", "--batch", 10**9).refused("--batch 1000000000 at context 64 needs", code=3)
