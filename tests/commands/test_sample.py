"""`fastbp sample`: reproducible texts, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbp.train.sample import sample_text
from fastbp.train.snapshot import load_snapshot

RunCommand = Callable[..., Any]
RunOf = Callable[[int], Path]


def test_samples_in_json(fastbp: RunCommand, trained: Path) -> None:
    result = fastbp("sample", trained, "--tokens", 20, "--samples", 3, "--prompt", "7 t", "--seed", 4, "--json").json
    assert set(result) == {"samples"}
    assert len(set(result["samples"])) == 3
    assert all(len(text) == 23 and text.startswith("7 t") for text in result["samples"])
    one = fastbp("sample", trained, "--tokens", 20, "--prompt", "7 t", "--seed", 5, "--json").json["samples"]
    assert one == result["samples"][1:2]  # sample i has seed + i
    snapshot = load_snapshot(trained)
    expected = sample_text(snapshot.config, snapshot.parameters, snapshot.tokenizer, "7 t", 20, seed=5)
    assert one == [expected]


def test_samples_for_people(fastbp: RunCommand, trained: Path) -> None:
    one = fastbp("sample", trained, "--tokens", 9)
    assert (one.code, one.err, len(one.out)) == (0, "", 9 + 1)
    two = fastbp("sample", trained, "--tokens", 9, "--samples", 2)
    assert two.out.startswith(f"--- 1\n{one.out}--- 2\n")


def test_the_options_reach_the_choice(fastbp: RunCommand, trained: Path) -> None:
    likeliest = fastbp("sample", trained, "--temperature", 0).out
    assert fastbp("sample", trained, "--temperature", 0, "--seed", 9).out == likeliest
    for option in (("--top-k", 1), ("--top-p", 0), ("--temperature", 1e-30)):
        assert fastbp("sample", trained, *option).out == likeliest
    for option in (("--top-k", 10**6), ("--top-p", 1)):
        assert fastbp("sample", trained, *option).out == fastbp("sample", trained).out != likeliest


def test_any_snapshot_may_be_named(fastbp: RunCommand, trained: Path) -> None:
    texts = {fastbp("sample", trained / f"snapshot-{update:08d}").out for update in (3, 12)}
    assert len(texts) == 2
    assert fastbp("sample", trained).out in texts


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--prompt", "7 time?"], ["'?' (U+003F) at position 6", "--tokenizer byte"]),
        (["--prompt", "😀"], ["'😀' (U+1F600) at position 0"]),
        (["--temperature", "-1"], ["temperature is -1"]),
        (["--temperature", "nan"], ["temperature is nan"]),
        (["--temperature", "hot"], ["--temperature", "'hot'"]),
        (["--top-k", "0"], ["--top-k", "give at least 1"]),
        (["--top-p", "1.5"], ["top-p is 1.5"]),
        (["--top-p", "nan"], ["top-p is nan"]),
        (["--tokens", "0"], ["--tokens", "give at least 1"]),
        (["--samples", "0"], ["--samples", "give at least 1"]),
        (["--seed", "-1"], ["--seed", "give at least 0"]),
        (["--seed", str(2**64)], ["seed"]),
        (["--tokns", "5"], ["unknown argument --tokns (did you mean '--tokens'?)"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_options_that_are_refused(fastbp: RunCommand, trained: Path, options: list[str], parts: list[str]) -> None:
    fastbp("sample", trained, *options).refused(*parts)


def test_folders_that_are_refused(fastbp: RunCommand, tmp_path: Path) -> None:
    fastbp("sample", tmp_path / "missing").refused("missing is missing")
    fastbp("sample", tmp_path).refused("holds no snapshot", "--out")
    file = tmp_path / "file"
    file.write_text("")
    fastbp("sample", file).refused("not a folder")


def test_another_runs_tokenizer_is_noticed(fastbp: RunCommand, run_of: RunOf) -> None:
    """nanoGPT #169: the wrong tokenizer beside a snapshot gave "KeyError: 271"."""
    path = run_of(3) / "snapshot-00000003" / "snapshot.json"
    text = path.read_text()
    assert "0123456789" in text
    path.write_text(text.replace("0123456789", "0123456798"))
    fastbp("sample", path.parent).refused("cannot be used")


def test_a_damaged_snapshot_is_passed_over_and_said_to_be(fastbp: RunCommand, run_of: RunOf) -> None:
    folder = run_of(6)
    expected = fastbp("sample", folder / "snapshot-00000003").out
    (folder / "snapshot-00000006" / "tensors.safetensors").unlink()
    ran = fastbp("sample", folder)
    assert (ran.code, ran.out) == (0, expected)
    assert "falling back to snapshot-00000003" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_weights_that_overflow_are_named(fastbp: RunCommand, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = load_snapshot(trained)
    snapshot.parameters["wte"][:] = np.float32(3e38)
    monkeypatch.setattr("fastbp.commands.sample.load_snapshot", lambda path, warn: snapshot)
    fastbp("sample", trained).refused("a logit after 1 tokens is not finite", code=1)
