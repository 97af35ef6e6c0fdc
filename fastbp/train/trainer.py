"""The trainer: batches in, updates out. Holds the decoder, the optimiser and the count of updates; reads no files.

An update is a function of (parameters, moments, seed, number of the update): nothing else is state, so a run that stops
and resumes gives the same bits as one that never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastbp.base.errors import InputError, NonFinite
from fastbp.base.shown import Fact, Shown
from fastbp.base.units import format_count
from fastbp.data import Batches, CharTokenizer, EvaluationWindows, Split, require_ids_below, split
from fastbp.graph.config import BATCH, DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.program import Program
from fastbp.train.learning_rate import LearningRate, usual_rate
from fastbp.train.optimiser import AdamW, AdamWSettings


@dataclass(frozen=True)
class UpdateRecord:
    """One update: its number (from 0), mean training loss, learning rate and the gradients' norm before clipping."""

    update: int
    loss: float
    learning_rate: float
    norm: float


class Trainer(Shown):
    """Trains a decoder on a split text. `update_count` updates are done.

    An update takes `accumulate` batches; each token weighs the same in it. Raises InputError for a text with ids
    outside the decoder's vocabulary or shorter than a window, and for counts below 1.
    """

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
        if accumulate < 1:
            raise InputError(f"accumulate is {accumulate}: an update takes at least 1 batch")
        parts = {"training": data.train, "validation": data.valid}
        for name, tokens in parts.items():
            # A kernel looks up whatever it is given, also beyond the table's end.
            require_ids_below(tokens, decoder.config.vocab, f"the {name} part")
        self.decoder, self.data, self.learning_rate, self.accumulate = decoder, data, learning_rate, accumulate
        self.optimiser = AdamW(decoder, settings or AdamWSettings(), progress)
        context, batch = decoder.config.context, decoder.batch
        self.batches = Batches(data.train, batch, context, seed, name="the training part")
        self.windows = {
            name: EvaluationWindows(tokens, batch, context, evaluation_windows, name=f"the {name} part")
            for name, tokens in parts.items()
        }
        decoder.row_weights[:] = 1 / (accumulate * decoder.tokens.size)
        self._seed = seed
        self._update_program = decoder.gradients_program.then(self.optimiser.program)
        self.update_count = 0

    def facts(self) -> list[Fact]:
        tokens = format_count(self.update_count * self.tokens_per_update)
        return [
            *self.decoder.facts(),
            ("data", f"{format_count(self.data.train.size)} tokens to train on,"
             f" {format_count(self.data.valid.size)} to validate on"),
            ("done", f"{self.update_count} updates of {self.tokens_per_update} tokens: {tokens} tokens"),
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"<Trainer: {self.update_count} updates done of {self.decoder!r}>"

    @classmethod
    def of_text(
        cls, text: str, preset: str = "small", *, updates: int = 2000, learning_rate: float = 1e-3,
        batch: int | None = None, policy: str = "save_all", seed: int = 0,
    ) -> Trainer:  # fmt: skip
        """A trainer of a preset's decoder on the characters of a text, before its first update. Weights, batches and
        rates are those of `fastbp train`. Raises InputError for a text that is too short.
        """
        tokenizer = CharTokenizer.from_text(text)
        config = DecoderConfig.preset(preset, vocab=tokenizer.vocab)
        decoder = Decoder(config, BATCH[preset] if batch is None else batch, policy=policy)
        decoder.initialise(seed)
        data = split(tokenizer.encode(text), config.context)
        return cls(decoder, data, usual_rate(learning_rate, updates), seed=seed)

    def restore(
        self,
        update_count: int,
        parameters: Mapping[str, np.ndarray],
        first_moments: Mapping[str, np.ndarray],
        second_moments: Mapping[str, np.ndarray],
    ) -> None:
        """Takes over a snapshot's state. Raises InputError, with nothing changed, for a tensor missing or misshapen."""
        groups = (
            (self.decoder.parameters, parameters),
            (self.optimiser.first_moments, first_moments),
            (self.optimiser.second_moments, second_moments),
        )
        for target, source in groups:
            for name, values in target.items():
                if name not in source or source[name].shape != values.shape:
                    found = source[name].shape if name in source else "missing"
                    raise InputError(f"tensor {name} is {found} in what is restored, but {values.shape} here")
        for target, source in groups:
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
        """One update. Raises NonFinite where the loss or a gradient is not finite; `update_count` stays as it was then.

        So do the parameters and moments where it is a gradient. A loss that overflows where no gradient does is seen
        only behind the step, since both are one program: go back to a snapshot.
        """
        decoder, loss = self.decoder, 0.0
        rate = self.learning_rate.at(self.update_count)
        self.optimiser.prepare(self.update_count, rate)
        for micro in range(self.accumulate):
            self._begin_pass(micro)
            last = micro == self.accumulate - 1
            decoder.runner.run(self._update_program if last else decoder.gradients_program)
            loss += decoder.loss
        record = UpdateRecord(self.update_count, loss, rate, self.optimiser.norm)
        if not (math.isfinite(loss) and math.isfinite(record.norm)):
            raise NonFinite(self._update_failure(record))
        self.update_count += 1
        return record

    def _begin_pass(self, micro: int) -> None:
        """Fills the decoder with a batch of this update and chooses its masks."""
        self.batches.fill(self.update_count, micro, self.decoder.tokens, self.decoder.targets)
        self.decoder.choose_masks(self._seed, self.update_count, micro)

    def evaluate(self, part: str = "validation", poll: Callable[[], None] = lambda: None) -> float:
        """The mean loss on fixed windows of a part ("training" or "validation"). It draws no random number.

        `poll` is called between batches and may raise. Raises NonFinite where the loss is not finite.
        """
        windows, decoder = self.windows[part], self.decoder
        total = 0.0
        for k in range(windows.batches):
            rows = windows.fill(k, decoder.tokens, decoder.targets)
            decoder.evaluate()
            total += float(decoder.losses[:rows].sum(dtype=np.float64))
            if not math.isfinite(total):
                culprit = self._first_not_finite(decoder.evaluation_program) or "the sum of the losses"
                raise NonFinite(
                    f"evaluation after {self.update_count} updates: not finite first in {culprit}: {self._advice()}"
                )
            poll()
        return total / windows.target_tokens

    def _update_failure(self, record: UpdateRecord) -> str:
        """What went wrong in an update, found by running its batches again, one kernel at a time."""
        decoder, culprit = self.decoder, None
        decoder.zero_gradients()
        for micro in range(self.accumulate):
            if culprit is None:
                self._begin_pass(micro)
                culprit = self._first_not_finite(decoder.gradients_program)
        decoder.zero_gradients()
        fallback = "the gradients' norm" if math.isfinite(record.loss) else "the loss"
        return (
            f"update {record.update + 1}: not finite first in {culprit or fallback}"
            f" (loss {record.loss:g}, gradient norm {record.norm:g}): {self._advice()}"
        )

    def _first_not_finite(self, program: Program) -> str | None:
        """The first parameter, or tensor that the program writes, with NaN or infinity in it, and its op. The arena is
        marked first: a tensor that is written in phases holds what lay there until the last.
        """
        for name, values in self.decoder.parameters.items():
            if not np.isfinite(values).all():
                return f"parameter {name}"
        found: list[str] = []

        def watch(instruction: Instruction) -> bool:
            for name, array in instruction.outputs:
                if not np.isfinite(array).all():
                    found.append(f"{name}, written by {instruction.op} {instruction.direction} ({instruction.node})")
            return not found

        self.decoder.mark_arena()
        self.decoder.runner.run_watched(program, watch)
        return found[0] if found else None

    def _advice(self) -> str:
        return "lower --lr" if self.optimiser.settings.clip > 0 else "lower --lr, or clip with --clip 1"
