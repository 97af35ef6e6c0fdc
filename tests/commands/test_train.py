"""`fastbp train`: its result, resuming, and every input that it refuses."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastbp.commands.train import DEFAULTS
from fastbp.run.backend import choose_backend
from fastbp.train.metrics import read_metrics
from fastbp.train.snapshot import list_snapshots, load_snapshot, save_snapshot
from fastbp.train.trainer import Trainer
from fastbp.train.update_ratio import KINDS

RunCommand = Callable[..., Any]
RunOf = Callable[[int], Path]
TINY = ("--preset", "seed", "--eval-windows", "2", "--batch", "2")
KEYS = {
    "updates", "train_loss", "valid_loss", "tokens_per_second", "seconds_per_update", "flops_per_update",
    "peak_bytes_predicted", "peak_bytes_measured", "rss_peak_bytes", "policy", "backend", "workers", "snapshot",
    "gradient_error",
}  # fmt: skip


def bits(folder: Path) -> tuple[int, list[bytes], list[dict[str, Any]]]:
    """The newest snapshot's tensors, and the record without its seconds."""
    snapshot = load_snapshot(folder)
    groups = (snapshot.parameters, snapshot.first_moments or {}, snapshot.second_moments or {})
    lines = [{key: value for key, value in line.items() if key != "seconds"} for line in read_metrics(folder)]
    return snapshot.update, [a.tobytes() for group in groups for a in group.values()], lines


def test_the_result_in_json(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    out = tmp_path / "run"
    result = fastbp("train", *TINY, "--steps", 4, "--workers", 1, "--out", out, "--json", text).json
    assert set(result) == KEYS
    assert (result["updates"], result["policy"], result["workers"]) == (4, "save_all", 1)
    assert result["gradient_error"] is None
    assert result["backend"] == choose_backend("auto").name
    assert result["peak_bytes_predicted"] == result["peak_bytes_measured"] > 0
    assert set(result["seconds_per_update"]) == {"median", "min", "max"}
    assert result["seconds_per_update"]["min"] <= result["seconds_per_update"]["median"]
    assert result["tokens_per_second"] == pytest.approx(16 / result["seconds_per_update"]["median"])
    assert result["rss_peak_bytes"] > 1 << 26
    assert Path(result["snapshot"]) == out / "snapshot-00000004"
    assert load_snapshot(out).metrics == {"train_loss": result["train_loss"], "valid_loss": result["valid_loss"]}
    assert sorted(path.name for path in out.iterdir()) == ["curves.png", "metrics.jsonl", "snapshot-00000004"]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_lossy_run_tells_its_gradient_error_and_stays_lossy(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    options = ("--memory-budget", "16KiB", "--cost", "flops", "--eval-every", 2)
    out = tmp_path / "run"
    result = fastbp("train", *TINY, *options, "--lossy", "--steps", 4, "--out", out, "--json", text).json
    assert set(result["gradient_error"]) == {"relative", "worst_relative", "worst"}
    assert 0 < result["gradient_error"]["relative"] <= result["gradient_error"]["worst_relative"] < 0.02
    assert result["peak_bytes_predicted"] == result["peak_bytes_measured"] <= 16 << 10
    ran = fastbp("train", "--resume", out, "--steps", 6, "--cost", "flops")
    assert ran.code == 0
    (line,) = (line for line in ran.out.splitlines() if line.startswith("gradient error   "))
    assert len(line) <= 80
    fastbp("train", *TINY, "--lossy", "--steps", 1, text).refused("--lossy and --policy save_all")


def test_the_result_for_people(fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy = "selective(layernorm, gelu, core_attn, mlp)"
    ran = fastbp("train", *TINY, "--steps", 4, "--policy", policy, "--out", "run", text)
    assert (ran.code, ran.err) == (0, "")
    report, _, sample = ran.out.partition("\n\n")
    assert max(map(len, report.splitlines())) <= 80
    for part in ("updates          4", "validation loss", "tokens/s", "predicted", "measured", policy, "curves.png"):
        assert part in report
    assert len(sample) == 4 * 8 + 1
    assert set(sample) <= set(text.read_text())


def test_a_text_too_short_for_two_parts_is_said_to_be(fastbp: RunCommand, tmp_path: Path) -> None:
    text = tmp_path / "nine"
    text.write_text("abcabcabc")
    ran = fastbp("train", *TINY, "--steps", 2, "--out", tmp_path / "run", text)
    assert (ran.code, ran.err) == (0, "")
    assert "on the training text: it is too short" in ran.out


def test_training_lowers_the_loss(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    options = ("--steps", 200, "--lr", "1e-2", "--batch", 4)
    result = fastbp("train", *TINY, *options, "--out", tmp_path / "run", "--json", text).json
    assert result["train_loss"] < 0.85 * read_metrics(tmp_path / "run")[0]["train_loss"]


@pytest.mark.parametrize("backend", ["numpy", "cython"])
@pytest.mark.parametrize("policy", ["full", "every(1)", "save_only(qkv, u)"])
def test_policies_and_backends(fastbp: RunCommand, tmp_path: Path, text: Path, backend: str, policy: str) -> None:
    options = ("--steps", 3, "--backend", backend, "--policy", policy, "--grad-accum", 2, "--tokenizer", "byte")
    result = fastbp("train", *TINY, *options, "--out", tmp_path / "run", "--json", text).json
    assert (result["backend"], result["policy"]) == (backend, policy)
    assert result["peak_bytes_predicted"] == result["peak_bytes_measured"]
    assert load_snapshot(tmp_path / "run").tokenizer.kind == "byte"


def test_the_next_free_folder(fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("2", "11", "²", "notes", "x3"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    for number in (12, 13):
        result = fastbp("train", *TINY, "--steps", 1, "--json", text).json
        assert result["snapshot"] == f"runs/{number}/snapshot-00000001"


def test_options_stand_anywhere_between_the_files(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("and more")
    assert fastbp("train", text, *TINY, "--steps", 1, other, "--out", tmp_path / "run", "--json").json
    assert load_snapshot(tmp_path / "run").settings["text"] == [str(text), str(other)]


def test_the_preset_is_small_unless_asked_otherwise(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    options = ("--width", 8, "--heads", 2, "--context", 8, "--eval-windows", 2, "--steps", 1)
    assert fastbp("train", *options, "--out", tmp_path / "run", "--json", text).json
    snapshot = load_snapshot(tmp_path / "run")
    assert (snapshot.config.blocks, snapshot.config.positions, snapshot.settings["batch"]) == (4, "learned", 12)


def test_ffn_follows_a_width_that_is_given_alone(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    assert fastbp("train", *TINY, "--width", 8, "--steps", 1, "--out", tmp_path / "run", "--json", text).json
    config = load_snapshot(tmp_path / "run").config
    assert (config.width, config.feed_forward) == (8, 32)


def test_the_record_has_what_the_picture_shows(trained: Path) -> None:
    lines = [line for line in read_metrics(trained) if "loss" in line]
    assert [line["update"] for line in lines] == list(range(1, 13))
    for line in lines:
        assert set(line) - {"update_ratio"} == {"update", "loss", "learning_rate", "norm", "seconds", "tokens"}
        assert line["tokens"] == 16
    assert [line["update"] for line in lines if "update_ratio" in line] == [1]
    assert set(lines[0]["update_ratio"]) == {"all", *KINDS}
    assert all(0 < ratio < 1 for ratio in lines[0]["update_ratio"].values())


def test_a_picture_that_cannot_be_drawn_costs_nothing_else(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    (tmp_path / "run" / "curves.png" / "mine").mkdir(parents=True)
    ran = fastbp("train", *TINY, "--steps", 1, "--out", tmp_path / "run", text)
    assert ran.code == 0
    assert ran.err.startswith("fastbp: the picture was not drawn: ")
    assert len(ran.err.splitlines()) == 1
    assert "updates          1\n" in ran.out
    assert "curves.png" not in ran.out


def test_a_run_that_is_stopped_leaves_its_picture(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Trainer.update

    def interrupted(trainer: Trainer) -> object:
        if trainer.update_count == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return update(trainer)

    folder = tmp_path / "run"
    monkeypatch.setattr(Trainer, "update", interrupted)
    ran = fastbp("train", *TINY, "--steps", 12, "--log-every", 1, "--out", folder, text)
    assert ran.code == 130
    monkeypatch.undo()
    stopped = (folder / "curves.png").read_bytes()
    assert [line["update"] for line in read_metrics(folder) if "loss" in line] == [1, 2, 3, 4]
    assert fastbp("train", "--resume", folder, "--json").json["updates"] == 12
    assert (folder / "curves.png").read_bytes() != stopped
    assert [line["update"] for line in read_metrics(folder) if "loss" in line] == list(range(1, 13))
    assert not list(folder.glob(".*"))


def test_the_picture_is_drawn_while_the_run_trains(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, update = tmp_path / "run", Trainer.update
    found: list[bool] = []

    def waits(trainer: Trainer) -> object:
        """The last update comes when there is a picture."""
        while trainer.update_count == 9 and not (folder / "curves.png").exists():
            time.sleep(0.01)
        found.append((folder / "curves.png").exists())
        return update(trainer)

    monkeypatch.setattr(Trainer, "update", waits)
    monkeypatch.setattr("fastbp.report.picture.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("fastbp.report.picture._give_way", lambda process: None)  # the machine may be busy
    assert fastbp("train", *TINY, "--steps", 10, "--log-every", 1, "--out", folder, "--json", text).json
    assert found[-1] is True
    assert found[0] is False


# --- TensorBoard ----------------------------------------------------------------------------------------------------


def test_events_stand_beside_the_record(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    folder = tmp_path / "run"

    def updates() -> list[int]:
        (path,) = folder.glob("events.out.tfevents.*")
        return [event.step for event in loader.LegacyEventFileLoader(str(path)).Load()][1:]

    options = ("--log-every", 1, "--schedule", "constant", "--warmup", 1, "--eval-every", 100, "--save-every", 2)
    assert fastbp("train", *TINY, *options, "--steps", 5, "--tensorboard", "--out", folder, "--json", text).json
    assert updates() == [line["update"] for line in read_metrics(folder)] == [0, 1, 2, 3, 4, 5, 5]
    # It goes on with events without being asked, from an earlier snapshot too, until it is told to stop.
    assert fastbp("train", "--resume", folder / "snapshot-00000004", "--steps", 6, "--json").json
    assert updates() == [line["update"] for line in read_metrics(folder)] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert fastbp("train", "--resume", folder, "--steps", 7, "--no-tensorboard", "--json").json
    assert updates()[-1] == 6


def test_without_tensorboard_the_way_to_it_is_said(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastbp.train.events", None)
    fastbp("train", *TINY, "--tensorboard", "--out", tmp_path / "run", text).refused(
        "--tensorboard needs a package that is not installed: pip install tensorboard, or go on with --no-tensorboard"
    )
    assert not (tmp_path / "run").exists()


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("updates", [3, 6, 9, 12])
def test_a_resumed_run_ends_with_the_bits_of_the_straight_one(
    fastbp: RunCommand, trained: Path, run_of: RunOf, updates: int
) -> None:
    folder = run_of(updates)
    result = fastbp("train", "--resume", folder, "--json").json
    assert result["updates"] == 12
    assert result["snapshot"] == str(folder / "snapshot-00000012")
    assert bits(folder) == bits(trained)
    assert (result["peak_bytes_measured"] is None) == (result["seconds_per_update"] is None) == (updates == 12)


def test_a_resumed_run_has_the_dropout_of_the_straight_one(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    options = (*TINY, "--dropout", "0.1", "--schedule", "constant", "--warmup", 2, "--eval-every", 5, "--log-every", 1)
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    assert fastbp("train", *options, "--steps", 6, "--out", straight, "--json", text).json
    assert fastbp("train", *options, "--steps", 3, "--out", parts, "--json", text).json
    assert load_snapshot(parts).config.dropout == 0.1
    assert fastbp("train", "--resume", parts, "--steps", 6, "--json").json
    assert bits(parts)[:2] == bits(straight)[:2]
    assert fastbp("sample", parts, "--tokens", 8).code == 0


def test_ten_updates_and_ten_more_are_twenty(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    """transformers #11323, #33336, sentence-transformers #3756: the loss jumped after resuming."""
    options = (
        *TINY,
        "--schedule",
        "constant",
        "--warmup",
        2,
        "--eval-every",
        5,
        "--log-every",
        1,
        "--dtype",
        "float32",
    )
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    whole = fastbp("train", *options, "--steps", 20, "--out", straight, "--json", text).json
    assert fastbp("train", *options, "--steps", 10, "--out", parts, "--json", text).json
    result = fastbp("train", "--resume", parts, "--steps", 20, "--json").json
    assert bits(parts) == bits(straight)
    same = KEYS - {"snapshot", "rss_peak_bytes", "tokens_per_second", "seconds_per_update"}
    assert {key: result[key] for key in same} == {key: whole[key] for key in same}


def test_a_run_goes_on_from_one_of_its_snapshots(fastbp: RunCommand, trained: Path, run_of: RunOf) -> None:
    folder = run_of(9)
    result = fastbp("train", "--resume", folder / "snapshot-00000003", "--json").json
    assert result["snapshot"] == str(folder / "snapshot-00000012")
    assert bits(folder) == bits(trained)


def test_the_folder_may_be_the_current_one(
    fastbp: RunCommand, trained: Path, run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_of(6)
    monkeypatch.chdir(folder / "snapshot-00000006")
    assert fastbp("train", "--resume", ".", "--json").json["updates"] == 12
    assert bits(folder) == bits(trained)
    monkeypatch.chdir(folder)
    assert fastbp("train", "--resume", ".", "--json").json["updates"] == 12


def test_the_same_options_may_stand_beside_resume(fastbp: RunCommand, trained: Path, run_of: RunOf, text: Path) -> None:
    folder = run_of(6)
    assert fastbp("train", "--resume", folder, *TINY, "--tokenizer", "char", "--heads", 2, "--json", text).json
    assert bits(folder) == bits(trained)


def test_settings_are_taken_over_and_may_be_changed(fastbp: RunCommand, run_of: RunOf) -> None:
    folder = run_of(6)
    assert fastbp("train", "--resume", folder, "--steps", 13, "--keep-last", 1, "--lr", 2e-3, "--json").json
    settings = load_snapshot(folder).settings
    assert (settings["steps"], settings["keep_last"], settings["lr"]) == (13, 1, 2e-3)
    assert (settings["eval_every"], settings["batch"], settings["preset"]) == (3, 2, "seed")
    assert (settings["min_lr"], settings["warmup"], settings["backend"]) == (1e-4, 1, choose_backend("auto").name)
    assert [path.name for path in list_snapshots(folder)] == ["snapshot-00000013"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--width", "32"], ["width is 16 in the snapshot of update 6 and 32 here"]),
        (["--blocks", "1"], ["blocks is 2", "1 here"]),
        (["--ffn", "8"], ["feed_forward is 32", "8 here"]),
        (["--positions", "learned"], ["positions is sinusoidal"]),
        (["--context", "16"], ["context is 8"]),
        (["--vocab", "200"], ["vocab is"]),
        (["--preset", "small"], ["blocks is 2 in the snapshot", "4 here"]),
        (["--preset", "tiny"], ["preset 'tiny' is unknown"]),
        (["--tokenizer", "byte"], ["another tokenizer"]),
        (["--steps", "5"], ["--steps 5: the run has done 6 updates already"]),
        (["--out", "elsewhere"], ["leave out --out"]),
        (["--min-lr", "1"], ["--min-lr"]),
        (["--batch", "0"], ["--batch"]),
        (["--dropout", "0.1"], ["dropout is 0.0 in the snapshot", "0.1 here"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_resume_refuses(fastbp: RunCommand, run_of: RunOf, options: list[str], parts: list[str]) -> None:
    folder = run_of(6)
    before = bits(folder)
    fastbp("train", "--resume", folder, *options).refused(*parts)
    assert bits(folder) == before


def test_another_text_is_refused(fastbp: RunCommand, run_of: RunOf, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("another text, long enough for a window")
    fastbp("train", "--resume", run_of(6), other).refused("other.txt is not the text that the run was trained on")


def test_a_text_that_went_away_is_named(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    moved, folder = tmp_path / "moved.txt", tmp_path / "run"
    moved.write_text(text.read_text())
    assert fastbp("train", *TINY, "--steps", 1, "--out", folder, "--json", moved).json
    moved.rename(tmp_path / "here.txt")
    fastbp("train", "--resume", folder, "--steps", 2).refused("moved.txt' does not exist")
    assert fastbp("train", "--resume", folder, "--steps", 2, "--json", tmp_path / "here.txt").json["updates"] == 2


def test_a_relative_text_is_found_from_anywhere(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text.parent)
    assert fastbp("train", *TINY, "--steps", 1, "--out", tmp_path / "run", "--json", text.name).json
    monkeypatch.chdir(tmp_path)
    assert fastbp("train", "--resume", "run", "--steps", 2, "--json").json["updates"] == 2


def test_what_is_no_run_is_not_resumed(fastbp: RunCommand, tmp_path: Path, run_of: RunOf) -> None:
    fastbp("train", "--resume", tmp_path / "missing").refused("missing is missing")
    fastbp("train", "--resume", tmp_path).refused("holds no snapshot")
    file = tmp_path / "file"
    file.write_text("")
    fastbp("train", "--resume", file).refused("not a folder")
    folder = run_of(3)
    (folder / "snapshot-00000003" / "snapshot.json").write_text("{}")
    fastbp("train", "--resume", folder).refused("snapshot-00000003 cannot be used")


def test_a_damaged_snapshot_is_passed_over_and_said_to_be(fastbp: RunCommand, trained: Path, run_of: RunOf) -> None:
    folder = run_of(6)
    tensors = folder / "snapshot-00000006" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    ran = fastbp("train", "--resume", folder, "--json")
    assert ran.code == 0
    assert ran.err.startswith("fastbp: snapshot")
    assert "falling back to snapshot-00000003" in ran.err
    assert len(ran.err.splitlines()) == 1  # standard error counts for scripts too: a run may have lost updates
    assert bits(folder) == bits(trained)


def test_a_snapshot_without_moments_is_not_resumed(fastbp: RunCommand, trained: Path, tmp_path: Path) -> None:
    snapshot = replace(load_snapshot(trained), first_moments=None, second_moments=None)
    save_snapshot(tmp_path / "bare", snapshot)
    fastbp("train", "--resume", tmp_path / "bare").refused("no optimiser state")


# --- bad input ------------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[bytes | None, list[str]]] = {
    "empty": (b"", ["empty (0 bytes)"]),
    "one byte": (b"a", ["holds 1 tokens", "context 8 needs at least 9"]),
    "a window less one": (b"abcdefgh", ["holds 8 tokens", "context 8 needs at least 9", "--context 7"]),
    "not UTF-8": (b"0123456789\xff", ["not UTF-8", "0xff at offset 10"]),
    "missing": (None, ["does not exist"]),
}


@pytest.mark.parametrize("name", FILES)
def test_texts_that_are_refused(fastbp: RunCommand, tmp_path: Path, name: str) -> None:
    content, parts = FILES[name]
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    line = fastbp("train", *TINY, "--out", tmp_path / "run", path).refused(*parts)
    assert str(path) in line
    assert not (tmp_path / "run").exists()


def test_a_text_of_exactly_one_window_is_taken(fastbp: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghi")
    result = fastbp("train", *TINY, "--steps", 1, "--out", tmp_path / "run", "--json", path).json
    assert result["updates"] == 1


def test_a_directory_is_no_text(fastbp: RunCommand, tmp_path: Path) -> None:
    fastbp("train", *TINY, tmp_path).refused("is a directory")


def test_a_text_that_may_not_be_read(fastbp: RunCommand, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")  # chmod does not stop root

    monkeypatch.setattr(Path, "read_bytes", refuse)
    fastbp("train", *TINY, text).refused("times.txt", "Permission denied")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--width", "10", "--heads", "4"], ["width 10 is not divisible by 4 heads"]),
        *[([f"--{name}", value], [f"--{name}", "give at least 1"])
          for name in ("blocks", "width", "heads", "ffn", "context", "vocab", "batch", "steps", "workers",
                       "grad-accum", "eval-every", "eval-windows", "keep-last", "log-every")
          for value in ("0", "-1")],
        *[([f"--{name}", "-1"], [f"--{name}", "give at least 0"]) for name in ("warmup", "save-every", "seed")],
        (["--blocks", "two"], ["--blocks", "'two' is not a whole number"]),
        (["--blocks", "1.5"], ["--blocks", "'1.5' is not a whole number"]),
        *[(["--dropout", value], ["--dropout", "0 up to but not including 1"]) for value in ("1", "-0.1", "nan")],
        (["--dropout", "half"], ["--dropout", "'half' is not a number"]),
        (["--steps", "5", "--warmup", "6"], ["warm-up of 6", "--warmup"]),
        (["--policy", "ful"], ["policy 'ful' is unknown (did you mean 'full'?)", "save_all", "every(k)", "selective"]),
        (["--policy", "every(0)"], ["every(0)"]),
        (["--policy", "selective(gelo)"], ["gelo", "gelu"]),
        (["--preset", "smal"], ["preset 'smal' is unknown (did you mean 'small'?)", "gpt2"]),
        (["--backend", "numbra"], ["backend 'numbra' is unknown (did you mean 'numba'?)", "cython"]),
        (["--dtype", "float16"], ["'float16' is unknown", "float64"]),
        (["--positions", "lerned"], ["'lerned'", "(did you mean 'learned'?)"]),
        (["--schedule", "cosin"], ["'cosin' is unknown (did you mean 'cosine'?)", "wsd"]),
        (["--tokenizer", "chars"], ["'chars' (did you mean 'char'?)", "byte"]),
        (["--stesp", "5"], ["--stesp (did you mean '--steps'?)"]),
        (["--workers", "9999"], ["--workers 9999", "physical cores"]),
        (["--vocab", "3"], ["--vocab 3 is smaller than the text's"]),
        (["--seed", str(2**64)], ["seed"]),
        *[([f"--{name}", "nan"], ["is nan"]) for name in ("lr", "min-lr", "weight-decay", "clip", "beta1", "beta2")],
        (["--lr", "inf"], ["learning rate is inf"]),
        (["--lr", "-1"], ["learning rate is -1"]),
        (["--lr", "much"], ["--lr", "'much'"]),
        (["--lr", "1e-4", "--min-lr", "1e-3"], ["--min-lr"]),
        (["--beta1", "1"], ["--beta1 is 1.0"]),
    ],
    ids=lambda value: " ".join(value),
)  # fmt: skip
def test_options_that_are_refused(
    fastbp: RunCommand, tmp_path: Path, text: Path, options: list[str], parts: list[str]
) -> None:
    basis = () if options[0] in ("--preset", "--batch") else TINY
    fastbp("train", *basis, "--eval-windows", 2, *options, "--out", tmp_path / "run", text).refused(*parts)
    assert not (tmp_path / "run").exists()


def test_out_is_a_folder_of_its_own(fastbp: RunCommand, tmp_path: Path, trained: Path, text: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    fastbp("train", *TINY, "--out", file, text).refused("is a file: give a folder")
    fastbp("train", *TINY, "--out", file / "below", text).refused("Not a directory")
    fastbp("train", *TINY, "--out", trained, text).refused("holds a run already", f"--resume {trained}")
    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_made(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    fastbp("train", *TINY, "--out", tmp_path / "run", text).refused("run cannot be made: Permission denied")


def test_a_full_disk_leaves_the_old_snapshot(
    fastbp: RunCommand, run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_of(6)
    before = load_snapshot(folder).update
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=1 << 30, used=1 << 30, free=0))
    fastbp("train", "--resume", folder).refused("snapshot-00000009 was not saved", "available", "free some space")
    assert before == load_snapshot(folder).update == 6
    assert not list(folder.glob(".*"))


def test_a_full_disk_under_the_record(fastbp: RunCommand, run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_of(6)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastbp.train.metrics.Metrics.add", full)
    fastbp("train", "--resume", folder).refused("No space left on device")
    assert load_snapshot(folder).update == 6


def test_a_run_that_does_not_fit_is_refused_with_what_would(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastbp.run.fit.available_bytes", lambda: 400_000)
    line = fastbp("train", *TINY, "--batch", 64, "--out", tmp_path / "run", text).refused(
        "--policy 'save_all' --batch 64 at context 8 needs", "but 390.6 KiB are free", code=3
    )
    batch = int(line.partition("--policy full --batch ")[2].split()[0])
    assert 2 <= batch < 64
    assert not (tmp_path / "run").exists()
    fits = fastbp("train", *TINY, "--steps", 1, "--policy", "full", "--batch", batch, "--out", tmp_path / "run", text)
    assert fits.code == 0
    monkeypatch.setattr("fastbp.run.fit.available_bytes", lambda: 1000)
    nothing = fastbp("train", *TINY, "--out", tmp_path / "none", text)
    nothing.refused("--batch 2 at context 8 needs", "take a smaller --batch, --context or decoder", code=3)


def test_divergence_is_named(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "run"
    options = ("--steps", 60, "--lr", "1e3", "--warmup", 0, "--save-every", 1, "--schedule", "constant")
    fastbp("train", *TINY, *options, "--out", folder, text).refused(
        "not finite first in ", f"lower --lr; the last good snapshot is {folder}/snapshot-", code=1
    )
    snapshot = load_snapshot(folder)
    assert all(np.isfinite(values).all() for values in snapshot.parameters.values())
    assert f"{folder}/snapshot-{snapshot.update:08d}" == str(list_snapshots(folder)[-1])


def test_every_option_has_a_default_of_its_type(text: Path) -> None:
    for name, (kind, default, words) in DEFAULTS.items():
        if default is None:
            assert "default" in words, name
        else:
            assert kind(str(default)) == default, name
