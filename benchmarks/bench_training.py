"""A whole training run beside a torch twin where torch is installed: same text, same batches, same weights to begin
with, same settings. Prints both validation losses on the same windows, the time of all updates, and the ratio.

    python benchmarks/bench_training.py [--steps 2000] [--preset small] [--batch 12] [--eval-windows 240]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fastbp.check.torch_available import torch_version
from fastbp.data import CharTokenizer, embedded_corpus, split
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.workers import physical_cores
from fastbp.train.learning_rate import LearningRate
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.trainer import Trainer


def prepared(options: argparse.Namespace) -> Trainer:
    text = embedded_corpus().text
    tokenizer = CharTokenizer.from_text(text)
    config = DecoderConfig.preset(options.preset, vocab=tokenizer.vocab)
    rate = LearningRate("cosine", 1e-3, 1e-4, warmup=min(100, options.steps // 10), updates=options.steps)
    decoder = Decoder(config, options.batch)
    decoder.initialise(0)
    data = split(tokenizer.encode(text), config.context)
    return Trainer(decoder, data, rate, AdamWSettings(), evaluation_windows=options.eval_windows)


def torch_twin(trainer: Trainer) -> Any:
    """A torch trainer with the same weights and settings, or None where torch is not installed."""
    if torch_version() is None:
        return None
    from peers.torch_decoder import TorchTrainer

    decoder, settings = trainer.decoder, trainer.optimiser.settings
    return TorchTrainer(
        decoder.config, decoder.batch, physical_cores(), "eager", parameters=dict(decoder.parameters),
        betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay, clip=settings.clip,
    )  # fmt: skip


def torch_loss(peer: Any, trainer: Trainer) -> float:
    """The peer's mean loss on the trainer's validation windows."""
    windows = trainer.windows["validation"]
    inputs, targets = np.empty((2, *trainer.decoder.tokens.shape), np.int32)
    total = tokens = 0.0
    for k in range(windows.batches):
        rows = windows.fill(k, inputs, targets)
        total += peer.evaluate(inputs[:rows], targets[:rows]) * rows
        tokens += rows
    return total / tokens


def train(trainer: Trainer, peer: Any, steps: int) -> dict[str, float]:
    """Seconds of all updates of each, which take turns."""
    inputs, targets = np.empty((2, *trainer.decoder.tokens.shape), np.int32)
    seconds = {"fastbp": 0.0} | ({"torch": 0.0} if peer else {})
    for update in range(steps):
        start = time.perf_counter()
        trainer.update()
        middle = time.perf_counter()
        seconds["fastbp"] += middle - start
        if peer:
            trainer.batches.fill(update, 0, inputs, targets)
            peer.update(inputs, targets, trainer.learning_rate.at(update))
            seconds["torch"] += time.perf_counter() - middle
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="updates")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--batch", type=int, default=12, help="sequences")
    parser.add_argument("--eval-windows", type=int, default=240, help="windows of the validation loss")
    options = parser.parse_args()
    trainer = prepared(options)
    peer = torch_twin(trainer)
    seconds = train(trainer, peer, options.steps)
    losses = {"fastbp": trainer.evaluate()} | ({"torch": torch_loss(peer, trainer)} if peer else {})
    print(f"{options.preset}, batch {options.batch}, {options.steps} updates, {physical_cores()} cores, taking turns")
    for name in losses:
        print(f"  {name:<8} {seconds[name]:7.1f} s   validation loss {losses[name]:.4f}")
    if peer:
        print(
            f"  loss ratio {losses['fastbp'] / losses['torch']:.4f},"
            f" torch takes {seconds['torch'] / seconds['fastbp']:.2f}x the time"
        )


if __name__ == "__main__":
    main()
