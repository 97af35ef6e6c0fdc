"""Colours that pictures and pages share, as "#rrggbb"."""

from __future__ import annotations

INK, BLUE, RED, GREEN = "#222222", "#4477aa", "#cc5533", "#228833"

CATEGORIES = {
    "kept": BLUE, "working": "#ddaa33", "gradients": RED, "logits": "#aa3377", "scratch": "#8a8f98",
    "parameters": GREEN, "parameter gradients": "#66aa77", "optimiser state": "#a3c9ad",
}  # fmt: skip
"""Of bytes by what they are for: those in the arena, then those that stand beside it."""
STAGES = {"forward": "#b8bec8", "recompute": "#2f9e8f", "backward": "#5d6675"}
