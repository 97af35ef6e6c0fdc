"""Trains a decoder on text files, or without any on the Python language reference
that ships inside CPython, and prints the losses, the memory and a sample."""

from __future__ import annotations

import argparse
import math
import os
import re
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fastbp.base.errors import CheckFailed, DoesNotFit, InputError, NonFinite, Stopped
from fastbp.base.units import format_count
from fastbp.check.audit import audit
from fastbp.check.gradient_error import gradient_error
from fastbp.commands.options import (
    add_model_options,
    add_run_options,
    asked_policy,
    chosen_batch,
    chosen_config,
    chosen_cost,
    whole,
)
from fastbp.commands.resume import require_same_run, resumed_folder, resumed_snapshot
from fastbp.commands.terminal import compiling, say, training_progress, warn
from fastbp.data import Corpus, Split, Tokenizer, embedded_corpus, load_corpus, make_tokenizer, split
from fastbp.report.audit import audit_line
from fastbp.report.picture import draw, redrawing
from fastbp.report.training import training_json, training_lines
from fastbp.run.decoder import Decoder
from fastbp.train.interruption import Interruption, interruptible
from fastbp.train.learning_rate import SCHEDULES, LearningRate, usual_minimum, usual_warmup
from fastbp.train.loop import Cadence, Outcome, TrainingLoop
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.sample import sample_text
from fastbp.train.snapshot import Snapshot, list_snapshots
from fastbp.train.trainer import Trainer, UpdateRecord

DEFAULTS: dict[str, tuple[Any, Any, str]] = {
    "steps": (whole(), 2000, "updates to train"),
    "lr": (float, 1e-3, "peak learning rate"),
    "min_lr": (float, None, "learning rate at the end (default: a tenth of --lr)"),
    "warmup": (whole(0), None, "updates of warm-up (default: 100, or a tenth of --steps where that is less)"),
    "schedule": (str, "cosine", ", ".join(SCHEDULES)),
    "weight_decay": (float, 0.1, "decay of tensors of two or more dimensions"),
    "beta1": (float, 0.9, "AdamW's beta1, 0 up to 1"),
    "beta2": (float, 0.99, "AdamW's beta2, 0 up to 1"),
    "clip": (float, 1.0, "largest global norm of the gradients; 0: no clipping"),
    "grad_accum": (whole(), 1, "batches in an update"),
    "tokenizer": (str, "char", "char or byte"),
    "eval_every": (whole(), 250, "updates between evaluations"),
    "eval_windows": (whole(), 240, "windows in an evaluation"),
    "save_every": (whole(0), 500, "updates between snapshots; 0: at the end only"),
    "keep_last": (whole(), 2, "snapshots that are kept"),
    "log_every": (whole(), 10, "updates between lines in metrics.jsonl"),
    "seed": (whole(0), 0, "seed of weights and batches"),
}
"""Option: type, default, help. On --resume the snapshot's settings take the place of the defaults."""

SHARED_DEFAULTS = {
    "preset": "small", "dtype": "float32", "backend": "auto", "policy": "save_all", "lossy": False,
    "tensorboard": False,
}  # fmt: skip
"""The same for options that other commands have too, and for switches."""

SAMPLE_TOKENS = 300


@dataclass(frozen=True)
class Run:
    """A run that is ready to train."""

    trainer: Trainer
    tokenizer: Tokenizer
    settings: dict[str, Any]
    folder: Path


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", metavar="TEXT", help="text files, UTF-8 (default: the language reference)")
    training = parser.add_argument_group("training")
    for name, (kind, default, what) in DEFAULTS.items():
        shown = what if default is None else f"{what} (default {default})"
        metavar = {float: "X", str: "NAME"}.get(kind, "N")
        training.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=shown)
    training.add_argument(
        "--audit", action="store_true",
        help="before the first update, compare every recomputed tensor's bits with forward's (default: off)",
    )  # fmt: skip
    training.add_argument(
        "--tensorboard", action=argparse.BooleanOptionalAction,
        help="write the record as events for TensorBoard too, into the run's folder (default: off)",
    )  # fmt: skip
    training.add_argument("--out", metavar="DIR", help="folder of the run (default: the next free runs/N)")
    training.add_argument("--resume", metavar="DIR", help="go on with the run in this folder, with its settings")
    add_model_options(parser)
    add_run_options(parser)
    # What was not asked for is known by None: on --resume the snapshot says it.
    parser.set_defaults(**dict.fromkeys(SHARED_DEFAULTS))


def run(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    with interruptible() as interruption:
        prepared = _prepare(options, interruption)
        audited = _audit(prepared.trainer) if options.audit else None
        try:
            outcome = _train(prepared, interruption)
        except (NonFinite, Stopped):
            _draw(prepared.folder)
            raise
    result = training_json(prepared.trainer, outcome) | {"gradient_error": _gradient_error(prepared)}
    if audited:
        result["audit"] = audited
    picture = _draw(prepared.folder)
    shared = prepared.trainer.data.shared
    return result, [*training_lines(result, picture, shared), "", _sample(prepared)], 0


def _draw(folder: Path) -> Path | None:
    """The run's picture; None where it cannot be written, which is no reason to lose the rest."""
    try:
        return draw(folder)
    except OSError as error:
        warn(f"the picture was not drawn: {error}")
        return None


def _prepare(options: argparse.Namespace, interruption: Interruption) -> Run:
    resumed = resumed_snapshot(options)
    settings = _settings(options, resumed)
    rate = LearningRate(
        settings["schedule"], settings["lr"], settings["min_lr"], warmup=settings["warmup"], updates=settings["steps"]
    )
    optimiser = AdamWSettings(
        settings["beta1"], settings["beta2"], weight_decay=settings["weight_decay"], clip=settings["clip"]
    )
    folder = _folder(options)
    if settings["tensorboard"]:
        _events()
    corpus = load_corpus(settings["text"]) if settings["text"] else embedded_corpus()
    settings["corpus_sha256"] = corpus.sha256
    if resumed:
        require_same_run(options, resumed, corpus)
        _require_updates_left(resumed, settings["steps"])
    tokenizer = resumed.tokenizer if resumed else make_tokenizer(settings["tokenizer"], corpus.text)
    config = resumed.config if resumed else chosen_config(options, tokenizer.vocab)
    data = split(tokenizer.encode(corpus.text), config.context, name=corpus.name)
    _introduce(corpus, tokenizer, data)
    try:
        with compiling(interruption.poll) as progress:
            options.backend, options.dtype = settings["backend"], settings["dtype"]
            cost = chosen_cost(options, settings["policy"], config, settings["batch"], settings["lossy"], progress)
            decoder = Decoder(
                config, settings["batch"], policy=settings["policy"], cost=cost, lossy=settings["lossy"],
                backend=settings["backend"], workers=options.workers, dtype=settings["dtype"], progress=progress,
            )  # fmt: skip
            trainer = Trainer(
                decoder, data, rate, optimiser, seed=settings["seed"], accumulate=settings["grad_accum"],
                evaluation_windows=settings["eval_windows"], progress=progress,
            )  # fmt: skip
            _ = decoder.evaluation_program
    except Stopped as stopped:
        raise Stopped(f"{stopped} before the first update: there was nothing to save", stopped.exit_code) from None
    # auto may choose another backend elsewhere, and with it other bits.
    settings["backend"] = decoder.backend.name
    if resumed:
        trainer.restore(resumed.update, resumed.parameters, resumed.first_moments or {}, resumed.second_moments or {})
    else:
        decoder.initialise(settings["seed"])
    return Run(trainer, tokenizer, settings, folder)


def _settings(options: argparse.Namespace, resumed: Snapshot | None) -> dict[str, Any]:
    """What was asked for, else what the snapshot says, else the defaults."""
    before: dict[str, Any] = resumed.settings if resumed else {}
    defaults = {name: default for name, (_, default, _) in DEFAULTS.items()} | SHARED_DEFAULTS
    settings: dict[str, Any] = {}
    for name, default in defaults.items():
        asked = asked_policy(options) if name == "policy" else getattr(options, name)
        settings[name] = asked if asked is not None else before.get(name, default)
    if settings["min_lr"] is None:
        settings["min_lr"] = usual_minimum(settings["lr"])
    if settings["warmup"] is None:
        settings["warmup"] = usual_warmup(settings["steps"])
    if resumed is None:
        options.preset = settings["preset"]
    asked_batch = options.batch is not None or "batch" not in before
    settings["batch"] = chosen_batch(options) if asked_batch else before["batch"]
    settings["text"] = [os.path.abspath(path) for path in options.text] or before.get("text", [])
    if resumed and settings["steps"] != before.get("steps") and settings["schedule"] != "constant":
        say(
            f"the learning rate follows a run of {settings['steps']} updates from here on, not of {before.get('steps')}"
        )
    return settings


def _require_updates_left(resumed: Snapshot, steps: int) -> None:
    """A run that is whole may be resumed: it has nothing left to do but to say so again."""
    if resumed.update > steps:
        raise InputError(f"--steps {steps}: the run has done {resumed.update} updates already: give more")


def _folder(options: argparse.Namespace) -> Path:
    if options.resume is not None:
        return resumed_folder(options.resume)
    if options.out is None:
        taken = [int(path.name) for path in Path("runs").glob("*") if re.fullmatch("[0-9]+", path.name)]
        return Path("runs") / str(max(taken, default=0) + 1)
    folder = Path(options.out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: give a folder")
    if list_snapshots(folder):
        raise InputError(f"--out {folder} holds a run already: go on with --resume {folder}, or choose another folder")
    return folder


def _introduce(corpus: Corpus, tokenizer: Tokenizer, data: Split) -> None:
    say(f"{corpus.name}: {format_count(len(corpus.text))} characters, {tokenizer.vocab} different tokens")
    if data.shared:
        say(f"{corpus.name} is too short for a validation part of its own: the training part serves for both")


def _train(run: Run, interruption: Interruption) -> Outcome:
    settings, trainer = run.settings, run.trainer
    cadence = Cadence(
        settings["steps"], settings["eval_every"], settings["save_every"], settings["keep_last"], settings["log_every"]
    )
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {run.folder} cannot be made: {error.strerror}") from error
    with (
        training_progress(trainer.update_count, cadence.updates, trainer.tokens_per_update) as bar,
        redrawing(run.folder) as redraw,
        closing(_events().Events(run.folder)) if settings["tensorboard"] else nullcontext() as events,
    ):

        def report(record: UpdateRecord, seconds: float) -> None:
            bar(trainer.update_count, record.loss, seconds)
            redraw()

        return TrainingLoop(
            trainer, run.tokenizer, settings, cadence, run.folder, interruption.poll, report, say,
            mirror=events.add if events else None,
        ).run()  # fmt: skip


def _events() -> Any:
    """The module that writes TensorBoard's files: imported where that is asked for, since it is an extra and slow."""
    try:
        return import_module("fastbp.train.events")
    except ImportError as error:
        raise InputError(
            "--tensorboard needs a package that is not installed: pip install tensorboard, or go on with"
            f" --no-tensorboard ({error})"
        ) from error


def _audit(trainer: Trainer) -> dict[str, Any]:
    """Audits the batches of the next update, which trains on them afterwards. Raises CheckFailed for a difference."""
    decoder, nbytes = trainer.decoder, 0
    found: dict[str, Any] = {}
    for micro in range(trainer.accumulate):
        trainer.batches.fill(trainer.update_count, micro, decoder.tokens, decoder.targets)
        found = audit(decoder).to_json()
        if found["difference"]:
            raise CheckFailed(f"audit of update {trainer.update_count + 1}: {audit_line(found)}")
        nbytes += found["bytes"]
    return found | {"bytes": nbytes}


def _gradient_error(run: Run) -> dict[str, Any] | None:
    """How exact a lossy run's gradients are at its end; None for an exact run, where they are not finite, and where the
    memory does not suffice.
    """
    decoder = run.trainer.decoder
    if run.settings["lossy"] or decoder.plan.packed:
        with suppress(DoesNotFit):
            error = gradient_error(decoder)
            return asdict(error) if math.isfinite(error.relative + error.worst_relative) else None
    return None


def _sample(run: Run) -> str:
    """A taste of what the decoder writes now."""
    config = run.trainer.decoder.config
    tokens = min(SAMPLE_TOKENS, 4 * config.context)
    parameters = run.trainer.decoder.parameters
    return sample_text(config, parameters, run.tokenizer, "", tokens, seed=run.settings["seed"])
