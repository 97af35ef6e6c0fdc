"""A whole training run beside a torch twin: same text, same batches, same weights to begin with, same settings. Prints
both validation losses on the same windows, the time of all updates, and the ratio.

    python benchmarks/bench_training.py [--steps 2000] [--preset small] [--batch 12]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from peers.torch_decoder import TorchTrainer

from fastbp.data import CharTokenizer, embedded_corpus, split
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.workers import physical_cores
from fastbp.train.learning_rate import LearningRate
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.trainer import Trainer


def torch_loss(peer: TorchTrainer, trainer: Trainer) -> float:
    """The peer's mean loss on the trainer's validation windows."""
    windows = trainer.windows["validation"]
    inputs, targets = np.empty((2, *trainer.decoder.tokens.shape), np.int32)
    total = tokens = 0.0
    for k in range(windows.batches):
        rows = windows.fill(k, inputs, targets)
        total += peer.evaluate(inputs[:rows], targets[:rows]) * rows
        tokens += rows
    return total / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--batch", type=int, default=12)
    options = parser.parse_args()
    text = embedded_corpus().text
    tokenizer = CharTokenizer.from_text(text)
    config = DecoderConfig.preset(options.preset, vocab=tokenizer.vocab)
    rate = LearningRate("cosine", 1e-3, 1e-4, warmup=min(100, options.steps // 10), updates=options.steps)
    settings = AdamWSettings()
    decoder = Decoder(config, options.batch)
    decoder.initialise(0)
    data = split(tokenizer.encode(text), config.context)
    trainer = Trainer(decoder, data, rate, settings, evaluation_windows=240)
    peer = TorchTrainer(
        config, options.batch, physical_cores(), "eager", parameters=dict(decoder.parameters),
        betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay, clip=settings.clip,
    )  # fmt: skip
    inputs, targets = np.empty((2, *decoder.tokens.shape), np.int32)
    seconds = {"fastbp": 0.0, "torch": 0.0}
    for update in range(options.steps):
        start = time.perf_counter()
        trainer.update()
        middle = time.perf_counter()
        trainer.batches.fill(update, 0, inputs, targets)
        peer.update(inputs, targets, rate.at(update))
        seconds["fastbp"] += middle - start
        seconds["torch"] += time.perf_counter() - middle
    losses = {"fastbp": trainer.evaluate(), "torch": torch_loss(peer, trainer)}
    print(f"{options.preset}, batch {options.batch}, {options.steps} updates, {physical_cores()} cores, taking turns")
    for name in losses:
        print(f"  {name:<8} {seconds[name]:7.1f} s   validation loss {losses[name]:.4f}")
    print(
        f"  loss ratio {losses['fastbp'] / losses['torch']:.4f},"
        f" torch takes {seconds['torch'] / seconds['fastbp']:.2f}x the time"
    )


if __name__ == "__main__":
    main()
