"""Trains a decoder on text files, or without any on the Python language reference
that ships inside CPython, and prints the losses, the memory and a sample."""

from __future__ import annotations

import argparse
import math
import os
import statistics
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from fastbp.base.errors import InputError
from fastbp.base.units import format_bytes, format_count, format_seconds
from fastbp.commands.options import add_model_options, add_policy, add_run_options, chosen_batch, chosen_config, whole
from fastbp.commands.terminal import compiling, say, training_progress
from fastbp.data import Corpus, Split, Tokenizer, embedded_corpus, load_corpus, make_tokenizer, split
from fastbp.run.decoder import Decoder
from fastbp.run.workers import physical_cores
from fastbp.train.interruption import Interruption, interruptible
from fastbp.train.learning_rate import LearningRate
from fastbp.train.loop import Cadence, Outcome, TrainingLoop
from fastbp.train.metrics import read_metrics
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.sample import sample_text
from fastbp.train.snapshot import Snapshot, list_snapshots, load_snapshot, require_same_shape
from fastbp.train.trainer import Trainer, UpdateRecord

DEFAULTS: dict[str, tuple[Any, Any, str]] = {
    "steps": (whole(), 2000, "updates to train"),
    "lr": (float, 1e-3, "peak learning rate"),
    "min_lr": (float, None, "learning rate at the end (default: a tenth of --lr)"),
    "warmup": (whole(0), None, "updates of warm-up (default: 100, or a tenth of --steps where that is less)"),
    "schedule": (str, "cosine", "cosine, linear, constant or wsd"),
    "weight_decay": (float, 0.1, "decay of tensors of two or more dimensions"),
    "beta1": (float, 0.9, "AdamW's beta1"),
    "beta2": (float, 0.99, "AdamW's beta2"),
    "clip": (float, 1.0, "largest global norm of the gradients; 0: no clipping"),
    "grad_accum": (whole(), 1, "batches in an update"),
    "tokenizer": (str, "char", "char or byte"),
    "eval_every": (whole(), 250, "updates between evaluations"),
    "eval_windows": (whole(), 240, "windows in an evaluation"),
    "save_every": (whole(0), 500, "updates between snapshots; 0: at the end only"),
    "keep_last": (whole(), 2, "snapshots that are kept"),
    "log_every": (whole(), 10, "updates between lines in metrics.jsonl"),
}
"""Option: type, default, help. On --resume the snapshot's settings take the place of the defaults."""

SAMPLE_TOKENS = 300


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", metavar="TEXT", help="text files, UTF-8 (default: the language reference)")
    training = parser.add_argument_group("training")
    for name, (kind, default, what) in DEFAULTS.items():
        shown = what if default is None else f"{what} (default {default})"
        training.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=shown)
    training.add_argument("--seed", type=whole(0), metavar="N", help="seed of weights and batches (default 0)")
    training.add_argument("--out", metavar="DIR", help="folder of the run (default: the next free runs/N)")
    training.add_argument("--resume", metavar="DIR", help="go on with the run in this folder, with its settings")
    add_model_options(parser)
    add_run_options(parser)
    parser.set_defaults(dtype=None, backend=None)
    add_policy(parser)
    parser.set_defaults(policy=None)


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    with interruptible() as interruption:
        resumed = _resumed(options)
        settings = _settings(options, resumed)
        corpus = _corpus(settings, resumed)
        tokenizer = resumed.tokenizer if resumed else make_tokenizer(settings["tokenizer"], corpus.text)
        folder = _folder(options)
        say(f"{corpus.name}: {format_count(len(corpus.text))} characters, {tokenizer.vocab} different tokens")
        trainer = _trainer(options, settings, corpus, tokenizer, resumed, interruption)
        folder.mkdir(parents=True, exist_ok=True)
        outcome = _train(trainer, tokenizer, settings, folder, interruption)
        result = _result(trainer, outcome)
        import_module("fastbp.report.plot").loss_curve(read_metrics(folder), folder / "loss.png")
        parameters = dict(trainer.decoder.parameters)
        tokens = min(SAMPLE_TOKENS, 4 * trainer.decoder.config.context)
        sample = sample_text(trainer.decoder.config, parameters, tokenizer, "", tokens, seed=settings["seed"])
        return result, _lines(trainer, result, folder, sample), 0


def _resumed(options: argparse.Namespace) -> Snapshot | None:
    if options.resume is None:
        return None
    if options.out is not None:
        raise InputError("--resume goes on in its own folder: leave out --out")
    snapshot = load_snapshot(Path(options.resume), warn=say)
    if snapshot.first_moments is None or snapshot.second_moments is None:
        raise InputError(f"{options.resume}: the snapshot has no optimiser state: it can be sampled from, not resumed")
    return snapshot


def _settings(options: argparse.Namespace, resumed: Snapshot | None) -> dict[str, Any]:
    """What was asked for, else what the snapshot says, else the defaults."""
    before: dict[str, Any] = resumed.settings if resumed else {}
    defaults = {name: default for name, (_, default, _) in DEFAULTS.items()}
    defaults |= {"seed": 0, "dtype": "float32", "backend": "auto", "policy": "save_all"}
    settings = {}
    for name, default in defaults.items():
        asked = getattr(options, name)
        settings[name] = asked if asked is not None else before.get(name, default)
    if settings["min_lr"] is None:
        settings["min_lr"] = settings["lr"] / 10
    if settings["warmup"] is None:
        settings["warmup"] = min(100, settings["steps"] // 10)
    settings["batch"] = before["batch"] if resumed and options.batch is None else chosen_batch(options)
    settings["text"] = [os.path.abspath(path) for path in options.text] or before.get("text", [])
    return settings


def _corpus(settings: dict[str, Any], resumed: Snapshot | None) -> Corpus:
    corpus = load_corpus(settings["text"]) if settings["text"] else embedded_corpus()
    if resumed and corpus.sha256 != resumed.settings["corpus_sha256"]:
        raise InputError(f"{corpus.name} is not the text that the run was trained on: give the same files to --resume")
    settings["corpus_sha256"] = corpus.sha256
    return corpus


def _folder(options: argparse.Namespace) -> Path:
    if options.resume is not None:
        path = Path(options.resume)
        return path.parent if path.name.startswith("snapshot-") else path
    if options.out is None:
        taken = [int(path.name) for path in Path("runs").glob("*") if path.name.isdigit()]
        return Path("runs") / str(max(taken, default=0) + 1)
    folder = Path(options.out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: give a folder")
    if folder.is_dir() and list_snapshots(folder):
        raise InputError(f"--out {folder} holds a run already: go on with --resume {folder}, or choose another folder")
    return folder


def _trainer(
    options: argparse.Namespace,
    settings: dict[str, Any],
    corpus: Corpus,
    tokenizer: Tokenizer,
    resumed: Snapshot | None,
    interruption: Interruption,
) -> Trainer:
    config = resumed.config if resumed else chosen_config(options, tokenizer.vocab)
    if resumed:
        require_same_shape(resumed, _asked_config(options, resumed, tokenizer))
    rate = LearningRate(
        settings["schedule"], settings["lr"], settings["min_lr"], warmup=settings["warmup"], updates=settings["steps"]
    )
    optimiser = AdamWSettings(
        settings["beta1"], settings["beta2"], weight_decay=settings["weight_decay"], clip=settings["clip"]
    )
    data: Split = split(tokenizer.encode(corpus.text), config.context, name=corpus.name)
    if data.shared:
        say(f"{corpus.name} is too short for a validation part of its own: the training part serves for both")
    with compiling(interruption.poll) as progress:
        decoder = Decoder(
            config, settings["batch"], policy=settings["policy"], backend=settings["backend"],
            workers=options.workers, dtype=settings["dtype"], progress=progress,
        )  # fmt: skip
        settings["backend"] = decoder.backend.name
        trainer = Trainer(
            decoder, data, rate, optimiser, seed=settings["seed"], accumulate=settings["grad_accum"],
            evaluation_windows=settings["eval_windows"], progress=progress,
        )  # fmt: skip
        _ = decoder.evaluation_program
    if resumed:
        trainer.restore(resumed.update, resumed.parameters, resumed.first_moments or {}, resumed.second_moments or {})
    else:
        decoder.initialise(settings["seed"])
    return trainer


def _asked_config(options: argparse.Namespace, resumed: Snapshot, tokenizer: Tokenizer) -> Any:
    """The snapshot's configuration with whatever shape options were given beside --resume."""
    asked = {
        "blocks": options.blocks, "width": options.width, "heads": options.heads, "feed_forward": options.ffn,
        "context": options.context, "vocab": options.vocab, "positions": options.positions,
    }  # fmt: skip
    fields = resumed.config.to_json() | {name: value for name, value in asked.items() if value is not None}
    return type(resumed.config).from_json(fields)


def _train(
    trainer: Trainer, tokenizer: Tokenizer, settings: dict[str, Any], folder: Path, interruption: Interruption
) -> Outcome:
    cadence = Cadence(
        settings["steps"], settings["eval_every"], settings["save_every"], settings["keep_last"], settings["log_every"]
    )
    if trainer.update_count > cadence.updates:
        raise InputError(f"--steps {cadence.updates}: the run has done {trainer.update_count} updates already: give more")
    with training_progress(trainer.update_count, cadence.updates) as bar:

        def report(record: UpdateRecord, seconds: float) -> None:
            bar(trainer.update_count, record.loss, f"{format_count(trainer.tokens_per_update / seconds)} tokens/s")

        return TrainingLoop(trainer, tokenizer, settings, cadence, folder, interruption.poll, report, say).run()


def _result(trainer: Trainer, outcome: Outcome) -> dict[str, Any]:
    seconds = outcome.seconds or [math.nan]
    median = statistics.median(seconds)
    return {
        "updates": trainer.update_count,
        "train_loss": outcome.train_loss,
        "valid_loss": outcome.valid_loss,
        "tokens_per_second": trainer.tokens_per_update / median if outcome.seconds else None,
        "seconds_per_update": (
            {"median": median, "min": min(seconds), "max": max(seconds)} if outcome.seconds else None
        ),
        "flops_per_update": trainer.flops_per_update,
        "peak_bytes_predicted": trainer.decoder.peak_bytes_predicted,
        "peak_bytes_measured": outcome.peak_bytes,
        "rss_peak_bytes": _rss_peak_bytes(),
        "policy": trainer.decoder.plan.policy,
        "backend": trainer.decoder.backend.name,
        "workers": trainer.decoder.workers,
        "snapshot": str(outcome.snapshot),
    }  # fmt: skip


def _rss_peak_bytes() -> int:
    """The most resident memory that the process has had."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def _lines(trainer: Trainer, result: dict[str, Any], folder: Path, sample: str) -> list[str]:
    seconds = result["seconds_per_update"]
    lines = [
        f"updates          {result['updates']}",
        f"training loss    {result['train_loss']:.4f}",
        f"validation loss  {result['valid_loss']:.4f}",
    ]
    if seconds:
        speed = trainer.flops_per_update / seconds["median"] / 1e9
        lines += [
            f"speed            {format_count(result['tokens_per_second'])} tokens/s,"
            f" {format_seconds(seconds['median'])} an update, {speed:.0f} GFLOP/s",
            f"peak memory      {format_bytes(result['peak_bytes_predicted'])} predicted,"
            f" {result['peak_bytes_predicted']} = {result['peak_bytes_measured']} bytes measured ({result['policy']})",
        ]
    workers = f"{result['workers']} of {physical_cores()} cores"
    return [
        *lines,
        f"ran on           {result['backend']}, {workers}, {format_bytes(result['rss_peak_bytes'])} resident at most",
        f"snapshot         {result['snapshot']}",
        f"loss curve       {folder / 'loss.png'}",
        "",
        sample,
    ]
