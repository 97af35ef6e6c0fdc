"""AdamW bound to a decoder: its moments, its scalars and its program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fastbp.base.errors import InputError
from fastbp.memory.flat import Flat
from fastbp.ops.adamw import OP as ADAMW
from fastbp.run.bind import Call, call_instructions
from fastbp.run.decoder import Decoder
from fastbp.run.program import Program


@dataclass(frozen=True)
class AdamWSettings:
    """β1, β2, eps, the decay of tensors of two or more dimensions, and the norm to clip gradients to (0: do not)."""

    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise InputError(f"--{name} is {value}: give a number from 0 up to, but not, 1")
        for name in ("weight_decay", "clip"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise InputError(f"--{name.replace('_', '-')} is {value}: give 0 or a positive number")
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise InputError(f"eps is {self.eps}: give a positive number, such as 1e-8")


class AdamW:
    """The optimiser of one decoder. Its program clips, steps and clears the gradients."""

    def __init__(
        self, decoder: Decoder, settings: AdamWSettings, progress: Callable[[str], None] | None = None
    ) -> None:
        self.settings = settings
        shapes = decoder.parameters.shapes
        self.first_moments, self.second_moments = Flat(shapes, decoder.dtype), Flat(shapes, decoder.dtype)
        self.hyper = np.zeros(8)
        """The scalars of the last step, as ops/adamw.py has them."""
        dims = ADAMW.extended({"Z": shapes.size, "K": shapes.decayed})
        self._partials, self._norm = np.zeros(dims.Q), np.zeros(1)
        flats = (decoder.parameters.flat, decoder.gradients.flat, self.first_moments.flat, self.second_moments.flat)
        call = Call(ADAMW, "forward", dims, {}, (self.hyper, *flats, self._partials, self._norm))
        outputs = (("gradient norm", self._norm),)
        instructions = call_instructions(0, "adamw", call, outputs, decoder.backend, decoder.dtype, progress)
        self.program = decoder.in_parts(Program(tuple(instructions)))

    def prepare(self, update: int, learning_rate: float) -> None:
        """Sets the scalars of update number `update`, counted from 0."""
        s = self.settings
        self.hyper[:] = (
            learning_rate, s.beta1, s.beta2, s.eps, s.weight_decay,
            1 - s.beta1 ** (update + 1), 1 - s.beta2 ** (update + 1), s.clip,
        )  # fmt: skip

    @property
    def norm(self) -> float:
        """The gradients' global norm at the last step, before clipping. Not finite: the step changed nothing."""
        return float(self._norm[0])
