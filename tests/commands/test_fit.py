"""`fastbp fit`: what it finds fits, one more does not, and what cannot fit is one line."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.backend import choose_backend
from fastbp.run.decoder import Decoder
from fastbp.run.fitting import Candidate, most

RunCommand = Callable[..., Any]
TINY = ("fit", "--preset", "seed", "--backend", "numpy", "--workers", 1)
KEYS = {
    "what", "batch", "context", "policy", "budget_bytes", "peak_bytes", "memory_bytes", "state_bytes", "total_bytes",
    "kept_bytes", "extra_flops_share", "search_ended",
}  # fmt: skip


def candidate(batch: int, context: int) -> Candidate:
    config = DecoderConfig.preset("seed", context=context)
    return Candidate(config, batch, choose_backend("numpy"), 1, "float32")


@pytest.mark.parametrize(
    ("what", "given", "memory"),
    [("batch", (), "200KiB"), ("context", ("--batch", 3), "150KiB"), ("batch", (), "0.2MB")],
)
def test_what_is_found_fits_and_one_more_does_not(
    fastbp: RunCommand, what: str, given: tuple[Any, ...], memory: str
) -> None:
    result = fastbp(*TINY, *given, "--what", what, "--memory", memory, "--json").json
    assert set(result) == KEYS
    assert result["what"] == what
    assert result[what] > 1
    assert not result["search_ended"]
    assert result["total_bytes"] == result["state_bytes"] + result["peak_bytes"] <= result["memory_bytes"]
    config = DecoderConfig.preset("seed", context=result["context"])
    decoder = Decoder(config, result["batch"], policy=result["policy"], backend="numpy", workers=1)
    assert decoder.peak_bytes_predicted == result["peak_bytes"] == decoder.arena.size_bytes
    assert decoder.measure_peak_bytes() == result["peak_bytes"]
    assert 4 * decoder.parameters.flat.nbytes == result["state_bytes"]
    assert decoder.simulation.extra_flops_share == result["extra_flops_share"]
    found = candidate(result["batch"], result["context"])
    assert found.smallest_bytes <= result["memory_bytes"]
    assert found.sized(what, result[what] + 1).smallest_bytes > result["memory_bytes"]


def test_the_smallest_that_fits_is_named_and_fits(fastbp: RunCommand) -> None:
    for what, least in (("batch", candidate(1, 8)), ("context", candidate(1, 1))):
        size = least.smallest_bytes
        options = (*TINY, "--what", what, "--memory")
        fastbp(*options, size - 1).refused(f"{what} 1 takes {size} bytes", code=3)
        fastbp(*options, 0).refused(f"{what} 1 takes {size} bytes", code=3)
        result = fastbp(*options, size, "--json").json
        assert (result[what], result["total_bytes"]) == (1, size)


def test_the_search_ends(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbp.run.fitting.MOST_TOKENS", 40)
    result = fastbp(*TINY, "--memory", "1GiB", "--json").json
    assert (result["batch"], result["search_ended"], result["extra_flops_share"]) == (5, True, 0)
    assert most(candidate(7, 8), "context") == 5
    assert most(candidate(70, 8), "context") == 1
    assert "the search ends here" in " ".join(fastbp(*TINY, "--memory", "1GiB").out.split())


def test_the_result_for_people(fastbp: RunCommand) -> None:
    options = ("--memory", "300KiB", "--heads", 4)
    ran = fastbp(*TINY, *options)
    result = fastbp(*TINY, *options, "--json").json
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(ran.out.split())
    assert f"batch {result['batch']} at context 8 in 300.0 KiB" in text
    assert f"({result['total_bytes']} bytes); the process itself, code and libraries, comes on top" in text
    assert tried(ran.out) == [
        "fastbp", "train", "--preset", "seed", "--heads", "4", "--backend", "numpy", "--workers", "1",
        "--batch", str(result["batch"]), "--context", "8", "--memory-budget", str(result["budget_bytes"]),
    ]  # fmt: skip


def tried(out: str) -> list[str]:
    """The command at the end, as a shell takes it."""
    return shlex.split(out[out.index("\ntry ") :].replace("\\\n", ""))[1:]


def test_the_command_has_all_that_was_asked_for_and_runs(fastbp: RunCommand, tmp_path: Path) -> None:
    asked = ["--blocks", "1", "--ffn", "16", "--dropout", "0.2", "--dtype", "float64"]
    command = tried(fastbp(*TINY, *asked, "--memory", "300KiB").out)
    assert " ".join(asked) in " ".join(command)
    text = tmp_path / "a.txt"
    text.write_text("To be, or not to be. " * 400)
    assert fastbp(*command[1:], text, "--steps", 1, "--out", tmp_path / "run").code == 0


def test_the_default_is_what_is_free(fastbp: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbp.commands.fit.available_bytes", lambda: 123_456)
    assert fastbp(*TINY, "--json").json["memory_bytes"] == 123_456


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--memory", "much"], ["size 'much'", "64MiB"]),
        (["--memory", "-4GiB"], ["--memory"]),
        (["--memory", "1M"], ["unknown unit 'M'"]),
        (["--what", "width"], ["'width' is unknown", "batch, context"]),
        (["--workers", "999"], ["--workers 999"]),
        (["--backend", "cuda"], ["backend 'cuda' is unknown"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line(fastbp: RunCommand, options: list[str], parts: list[str]) -> None:
    fastbp("fit", "--preset", "seed", *options).refused(*parts)
