"""The training loop: updates, and between them evaluation, the record and snapshots; a signal ends it whole."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fastbp.base.errors import NonFinite, Stopped
from fastbp.data import Tokenizer
from fastbp.train.metrics import Metrics, Mirror
from fastbp.train.snapshot import Snapshot, list_snapshots, rotate, save_snapshot
from fastbp.train.trainer import Trainer, UpdateRecord
from fastbp.train.update_ratio import UpdateRatio

RATIO_EVERY = 20
"""Updates between two measurements of the update-to-weight ratio at least: one takes a twentieth of an update."""


@dataclass(frozen=True)
class Cadence:
    """How often things happen, in updates; `save_every` 0 saves at the end only."""

    updates: int
    eval_every: int
    save_every: int
    keep_last: int
    log_every: int

    def tells_ratio(self, update: int) -> bool:
        """Whether the log line after so many updates has the ratio: the first, and those RATIO_EVERY updates on."""
        return (update // self.log_every - 1) % -(-RATIO_EVERY // self.log_every) == 0


@dataclass
class Outcome:
    """What a run came to."""

    train_loss: float = float("nan")
    valid_loss: float = float("nan")
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    """What the first update touched of the arena; None where no update was left to do."""
    snapshot: Path | None = None


@dataclass
class TrainingLoop:
    """One run of a trainer in a folder. `report` hears every update, `announce` what a person may read meanwhile,
    `mirror` every line of the record.
    """

    trainer: Trainer
    tokenizer: Tokenizer
    settings: dict[str, Any]
    cadence: Cadence
    folder: Path
    poll: Callable[[], None]
    report: Callable[[UpdateRecord, float], None]
    announce: Callable[[str], None]
    mirror: Mirror | None = None
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> Outcome:
        """Trains to the end and saves. Saves before Stopped leaves it; NonFinite leaves the last good snapshot
        alone.
        """
        try:
            try:
                self._train()
            except Stopped as stopped:
                self._save()
                raise Stopped(self._stopped(stopped), stopped.exit_code) from None
            self._save()
        except NonFinite as error:
            raise NonFinite(f"{error}; {self._last_good()}") from error
        return self.outcome

    def _train(self) -> None:
        """What is due after an update is done before the next one: a resumed run then finds it due too."""
        trainer, cadence = self.trainer, self.cadence
        metrics, start = Metrics(self.folder, trainer.update_count, self.mirror), trainer.update_count
        while True:
            done = trainer.update_count
            if done % cadence.eval_every == 0 or done >= cadence.updates:
                self._evaluate(metrics)
            if done >= cadence.updates:
                return
            if cadence.save_every and done % cadence.save_every == 0 and done > start:
                self._save()
            self._update(metrics)
            self.poll()

    def _update(self, metrics: Metrics) -> None:
        decoder = self.trainer.decoder
        if self.outcome.peak_bytes is None:
            decoder.mark_arena()
        start = time.perf_counter()
        record = self.trainer.update()
        seconds = time.perf_counter() - start
        if self.outcome.peak_bytes is None:
            self.outcome.peak_bytes = decoder.peak_bytes_measured()
        self.outcome.seconds.append(seconds)
        done = self.trainer.update_count
        if done % self.cadence.log_every == 0:
            ratio = {"update_ratio": self._update_ratio.measure()} if self.cadence.tells_ratio(done) else {}
            metrics.add(
                update=done, loss=record.loss, learning_rate=record.learning_rate, norm=record.norm, seconds=seconds,
                tokens=self.trainer.tokens_per_update, **ratio,
            )  # fmt: skip
        self.report(record, seconds)

    @cached_property
    def _update_ratio(self) -> UpdateRatio:
        return UpdateRatio(self.trainer.decoder.parameters, self.trainer.optimiser)

    def _evaluate(self, metrics: Metrics) -> None:
        done = self.trainer.update_count
        known = metrics.evaluation(done)
        if known is None:
            train, valid = (self.trainer.evaluate(part, self.poll) for part in ("training", "validation"))
            metrics.add(update=done, train_loss=train, valid_loss=valid)
        else:
            train, valid = known["train_loss"], known["valid_loss"]
        self.outcome.train_loss, self.outcome.valid_loss = train, valid
        self.announce(f"update {done:>6}: training loss {train:.4f}, validation loss {valid:.4f}")

    def _save(self) -> None:
        trainer = self.trainer
        snapshot = Snapshot(
            config=trainer.decoder.config,
            tokenizer=self.tokenizer,
            update=trainer.update_count,
            settings=self.settings,
            metrics={"train_loss": self.outcome.train_loss, "valid_loss": self.outcome.valid_loss},
            parameters=trainer.decoder.parameters,
            first_moments=trainer.optimiser.first_moments,
            second_moments=trainer.optimiser.second_moments,
        )
        self.outcome.snapshot = save_snapshot(self.folder, snapshot)
        rotate(self.folder, self.cadence.keep_last, self.outcome.snapshot)

    def _stopped(self, stopped: Stopped) -> str:
        saved = self.outcome.snapshot
        assert saved is not None
        # Beside snapshots of later updates, from a run that went on before, the folder would stand for those.
        resume = self.folder if list_snapshots(self.folder)[-1] == saved else saved
        return (
            f"{stopped} after {self.trainer.update_count} updates; saved in {saved}:"
            f" go on with fastbp train --resume {shlex.quote(str(resume))}"
        )

    def _last_good(self) -> str:
        saved = self.outcome.snapshot or next(reversed(list_snapshots(self.folder)), None)
        return f"the last good snapshot is {saved}" if saved else "no snapshot was saved before"
