"""The trainer: batches in, updates out. Holds the decoder, the optimiser and the count of updates; does no input or output.

An update is a function of (parameters, moments, seed, number of the update): nothing else is state, so a run that stops
and resumes gives the same bits as one that never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastbp.base.errors import NonFinite
from fastbp.data import Batches, EvaluationWindows, Split
from fastbp.run.decoder import Decoder
from fastbp.run.program import Instruction
from fastbp.train.learning_rate import LearningRate
from fastbp.train.optimiser import AdamW, AdamWSettings


@dataclass(frozen=True)
class UpdateRecord:
    """One update: its number (from 0), mean training loss, learning rate and the gradients' norm before clipping."""

    update: int
    loss: float
    learning_rate: float
    norm: float


class Trainer:
    """Trains a decoder on a split text. `update_count` updates are done."""

    def __init__(
        self,
        decoder: Decoder,
        data: Split,
        learning_rate: LearningRate,
        settings: AdamWSettings | None = None,
        *,
        seed: int = 0,
        accumulate: int = 1,
        evaluation_windows: int = 64,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.decoder, self.learning_rate, self.accumulate = decoder, learning_rate, accumulate
        self.optimiser = AdamW(decoder, settings or AdamWSettings(), progress)
        context, batch = decoder.config.context, decoder.batch
        self.batches = Batches(data.train, batch, context, seed, name="the training part")
        self.windows = {
            name: EvaluationWindows(tokens, batch, context, evaluation_windows, name=f"the {name} part")
            for name, tokens in (("training", data.train), ("validation", data.valid))
        }
        decoder.row_weights[:] = 1 / (accumulate * decoder.tokens.size)
        self._update_program = decoder.gradients_program.then(self.optimiser.program)
        self.update_count = 0

    def restore(
        self,
        update_count: int,
        parameters: Mapping[str, np.ndarray],
        first_moments: Mapping[str, np.ndarray],
        second_moments: Mapping[str, np.ndarray],
    ) -> None:
        """Takes over a snapshot's state."""
        for target, source in (
            (self.decoder.parameters, parameters),
            (self.optimiser.first_moments, first_moments),
            (self.optimiser.second_moments, second_moments),
        ):
            for name, values in target.items():
                values[:] = source[name]
        self.update_count = update_count

    @property
    def tokens_per_update(self) -> int:
        return self.accumulate * self.decoder.tokens.size

    @cached_property
    def flops_per_update(self) -> int:
        """Matrix products forward and backward, the optimiser and recomputation left out."""
        return self.accumulate * self.decoder.graph.products_per_pass

    def update(self) -> UpdateRecord:
        """One update. Raises NonFinite, with the parameters as they were, where the loss or a gradient is not finite."""
        decoder, loss = self.decoder, 0.0
        rate = self.learning_rate.at(self.update_count)
        self.optimiser.prepare(self.update_count, rate)
        for micro in range(self.accumulate):
            self.batches.fill(self.update_count, micro, decoder.tokens, decoder.targets)
            last = micro == self.accumulate - 1
            decoder.runner.run(self._update_program if last else decoder.gradients_program)
            loss += decoder.loss
        record = UpdateRecord(self.update_count, loss, rate, self.optimiser.norm)
        if not (math.isfinite(loss) and math.isfinite(record.norm)):
            raise NonFinite(self._culprit(record))
        self.update_count += 1
        return record

    def evaluate(self, part: str = "validation", poll: Callable[[], None] = lambda: None) -> float:
        """The mean loss on fixed windows of a part ("training" or "validation"). It draws no random number."""
        windows, decoder = self.windows[part], self.decoder
        total, tokens = 0.0, 0
        for k in range(windows.batches):
            rows = windows.fill(k, decoder.tokens, decoder.targets)
            decoder.evaluate()
            losses = decoder.losses[:rows]
            total += float(losses.sum(dtype=np.float64))
            tokens += losses.size
            poll()
        return total / tokens

    def _culprit(self, record: UpdateRecord) -> str:
        """Runs the update's batches again, one kernel at a time, and names the first tensor that is not finite."""
        found: list[str] = []

        def watch(instruction: Instruction) -> bool:
            for name, array in instruction.outputs:
                if not np.isfinite(array).all():
                    found.append(f"{name}, written by {instruction.op} {instruction.direction} ({instruction.node})")
            return not found

        decoder = self.decoder
        decoder.zero_gradients()
        for name, values in decoder.parameters.items():
            if not np.isfinite(values).all():
                found.append(f"parameter {name}")
        for micro in range(self.accumulate):
            if not found:
                self.batches.fill(self.update_count, micro, decoder.tokens, decoder.targets)
                decoder.runner.run_watched(decoder.gradients_program, watch)
        decoder.zero_gradients()
        what = found[0] if found else "the gradients' norm"
        return (
            f"update {record.update}: not finite first in {what}"
            f" (loss {record.loss:g}, gradient norm {record.norm:g}): lower --lr, or clip with --clip 1"
        )
