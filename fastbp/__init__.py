"""fastbp trains small GPT-style decoders on a laptop CPU and decides exactly which activations to keep.

Names are loaded when they are first used, so that `import fastbp` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fastbp.graph.config import DecoderConfig
    from fastbp.graph.decoder import decoder_graph
    from fastbp.policy.named import POLICIES as policies
    from fastbp.policy.named import make_plan
    from fastbp.report.comparison_view import compare
    from fastbp.report.frontier_view import frontier
    from fastbp.report.plan_view import plan
    from fastbp.report.profile import profile
    from fastbp.report.walk import walk
    from fastbp.run.decoder import Decoder
    from fastbp.schedule.schedule import training_schedule
    from fastbp.schedule.simulate import simulate
    from fastbp.train.trainer import Trainer

_HOMES = {
    "DecoderConfig": ("fastbp.graph.config", "DecoderConfig"),
    "decoder_graph": ("fastbp.graph.decoder", "decoder_graph"),
    "policies": ("fastbp.policy.named", "POLICIES"),
    "make_plan": ("fastbp.policy.named", "make_plan"),
    "profile": ("fastbp.report.profile", "profile"),
    "Decoder": ("fastbp.run.decoder", "Decoder"),
    "training_schedule": ("fastbp.schedule.schedule", "training_schedule"),
    "plan": ("fastbp.report.plan_view", "plan"),
    "frontier": ("fastbp.report.frontier_view", "frontier"),
    "compare": ("fastbp.report.comparison_view", "compare"),
    "simulate": ("fastbp.schedule.simulate", "simulate"),
    "walk": ("fastbp.report.walk", "walk"),
    "Trainer": ("fastbp.train.trainer", "Trainer"),
}

__all__ = [
    "Decoder", "DecoderConfig", "Trainer", "compare", "decoder_graph", "frontier", "make_plan", "plan", "policies",
    "profile", "simulate", "training_schedule", "walk",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module fastbp has no attribute {name}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
