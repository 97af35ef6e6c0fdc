"""What `train --resume` takes over from a snapshot, and what it refuses to change."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastbp.base.errors import InputError
from fastbp.commands.options import chosen_config
from fastbp.commands.terminal import warn
from fastbp.data import Corpus, make_tokenizer
from fastbp.graph.config import DecoderConfig
from fastbp.train.snapshot import MANIFEST, Snapshot, load_snapshot, require_same_shape, require_same_tokenizer

SHAPE = {
    "blocks": "blocks", "width": "width", "heads": "heads", "feed_forward": "ffn", "context": "context",
    "vocab": "vocab", "positions": "positions", "dropout": "dropout",
}  # fmt: skip
"""Field of a configuration: its option."""


def resumed_snapshot(options: argparse.Namespace) -> Snapshot | None:
    """The snapshot that --resume names, if it is given. Raises InputError for one that cannot be gone on with."""
    if options.resume is None:
        return None
    if options.out is not None:
        raise InputError("--resume goes on in its own folder: leave out --out")
    snapshot = load_snapshot(Path(options.resume), warn=warn)
    if snapshot.first_moments is None or snapshot.second_moments is None:
        raise InputError(f"{options.resume}: the snapshot has no optimiser state: it can be sampled from, not resumed")
    return snapshot


def resumed_folder(resume: str) -> Path:
    """The run's folder, where --resume names it or one of its snapshots."""
    path = Path(resume)
    return path.resolve().parent if (path / MANIFEST).exists() else path


def require_same_run(options: argparse.Namespace, snapshot: Snapshot, corpus: Corpus) -> None:
    """Raises InputError where the options beside --resume, or the text, are not those of the snapshot's run."""
    if corpus.sha256 != snapshot.settings.get("corpus_sha256"):
        raise InputError(f"{corpus.name} is not the text that the run was trained on: give the same files to --resume")
    if options.tokenizer is not None:
        require_same_tokenizer(snapshot, make_tokenizer(options.tokenizer, corpus.text))
    require_same_shape(snapshot, _asked_config(options, snapshot))


def _asked_config(options: argparse.Namespace, snapshot: Snapshot) -> DecoderConfig:
    """The decoder that the options describe; the snapshot's where they say nothing."""
    if options.preset is not None:
        return chosen_config(options, snapshot.config.vocab)
    asked = {field: getattr(options, option) for field, option in SHAPE.items()}
    fields = snapshot.config.to_json() | {field: value for field, value in asked.items() if value is not None}
    return DecoderConfig.from_json(fields)
