"""What a training run came to, as people read it, and as JSON."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from fastbp.base.units import format_bytes, format_count, format_seconds
from fastbp.report.audit import audit_line
from fastbp.report.columns import wrapped
from fastbp.run.resident import rss_peak_bytes
from fastbp.run.workers import physical_cores
from fastbp.train.loop import Outcome
from fastbp.train.trainer import Trainer

INDENT = 17
"""Columns of a line's name."""


def training_json(trainer: Trainer, outcome: Outcome) -> dict[str, Any]:
    """The keys of `fastbp train --json`. What takes an update to measure is None where none was left to do."""
    seconds = outcome.seconds
    median = statistics.median(seconds) if seconds else None
    return {
        "updates": trainer.update_count,
        "train_loss": outcome.train_loss,
        "valid_loss": outcome.valid_loss,
        "tokens_per_second": trainer.tokens_per_update / median if median else None,
        "seconds_per_update": {"median": median, "min": min(seconds), "max": max(seconds)} if seconds else None,
        "flops_per_update": trainer.flops_per_update,
        "peak_bytes_predicted": trainer.decoder.peak_bytes_predicted,
        "peak_bytes_measured": outcome.peak_bytes,
        "rss_peak_bytes": rss_peak_bytes(),
        "policy": trainer.decoder.plan.policy,
        "backend": trainer.decoder.backend.name,
        "workers": trainer.decoder.workers,
        "snapshot": str(outcome.snapshot),
    }


def training_lines(result: dict[str, Any], picture: Path | None, shared: bool) -> list[str]:
    """The result in at most 80 columns. `shared`: the text was too short for a validation part of its own."""
    caveat = " (on the training text: it is too short to spare a part)" if shared else ""
    lines = [
        f"updates          {result['updates']}",
        f"training loss    {result['train_loss']:.4f}",
        f"validation loss  {result['valid_loss']:.4f}{caveat}",
    ]
    seconds = result["seconds_per_update"]
    if seconds:
        speed = result["flops_per_update"] / seconds["median"] / 1e9
        lines += [
            f"speed            {format_count(result['tokens_per_second'])} tokens/s,"
            f" {format_seconds(seconds['median'])} an update, {speed:.3g} GFLOP/s",
            f"peak memory      {format_bytes(result['peak_bytes_predicted'])}: {result['peak_bytes_predicted']} bytes"
            f" of activations predicted, {result['peak_bytes_measured']} measured",
        ]
    error = result.get("gradient_error")
    if error:
        lines.append(
            f"gradient error   {100 * error['relative']:.2g} % of the norm, against exact gradients on one batch;"
            f" {100 * error['worst_relative']:.2g} % of that of {error['worst']}, the worst"
        )
    lines += [
        f"policy           {result['policy']}",
        f"ran on           {result['backend']}, {result['workers']} of {physical_cores()} cores,"
        f" {format_bytes(result['rss_peak_bytes'])} resident at most",
        *([f"audit            {audit_line(result['audit'])}"] if "audit" in result else []),
        f"snapshot         {result['snapshot']}",
        *([f"curves           {picture}"] if picture else []),
    ]
    return [part for line in lines for part in wrapped(line, INDENT)]
