"""One whole update (forward, backward, clipping, AdamW) of each preset, as a share of the FMA peak measured in the same
run, with torch beside it where it is installed. Contenders take turns; medians, with the fastest and the slowest.

    python benchmarks/bench_update.py [--presets seed,small,medium] [--backends numba,cython] [--torch eager,compile]
    [--seconds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from timing import interleave

from fastbp.check.torch_available import torch_version
from fastbp.commands.options import BATCH
from fastbp.data import Split
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.run.fma_peak import FmaPeak
from fastbp.run.workers import physical_cores
from fastbp.train.learning_rate import LearningRate
from fastbp.train.trainer import Trainer


def random_data(config: DecoderConfig, batch: int) -> Split:
    """Token ids without meaning: time does not depend on them."""
    tokens = np.random.default_rng(0).integers(0, config.vocab, 20 * batch * config.context + 2).astype(np.int32)
    return Split(tokens, tokens, shared=True)


def trainer_of(config: DecoderConfig, batch: int, backend: str) -> Trainer:
    decoder = Decoder(config, batch, backend=backend)
    decoder.initialise(0)
    rate = LearningRate("constant", 1e-3, 1e-4, warmup=0, updates=10**6)
    return Trainer(decoder, random_data(config, batch), rate)


def torch_update(config: DecoderConfig, batch: int, mode: str, like: Trainer) -> Callable[[], object]:
    """An update of the torch peer on the same batches, from the same weights."""
    from peers.torch_decoder import TorchTrainer

    kind, _, budget = mode.partition("@")
    peer = TorchTrainer(
        config, batch, physical_cores(), kind, parameters=dict(like.decoder.parameters),
        activation_budget=float(budget or 1.0),
    )  # fmt: skip
    inputs, targets = np.empty((2, batch, config.context), np.int32)
    counter = iter(range(10**9))

    def update() -> object:
        like.batches.fill(next(counter), 0, inputs, targets)
        return peer.update(inputs, targets)

    return update


def bench(preset: str, options: argparse.Namespace) -> None:
    config, batch = DecoderConfig.preset(preset), BATCH[preset]
    trainers = {name: trainer_of(config, batch, name) for name in options.backends.split(",")}
    contenders: dict[str, Callable[[], object]] = {f"fastbp {name}": each.update for name, each in trainers.items()}
    first = next(iter(trainers.values()))
    if torch_version():
        for mode in filter(None, options.torch.split(",")):
            contenders[f"torch {mode}"] = torch_update(config, batch, mode, first)
    peak = FmaPeak(physical_cores())
    before = peak.measure()
    times = interleave(contenders, options.seconds)
    limit = max(before, peak.measure())
    print(f"\n{preset}: batch {batch}, context {config.context}, {first.flops_per_update / 1e9:.4g} GFLOP an update,"
          f" FMA peak {limit:.0f} GFLOP/s on {physical_cores()} cores")  # fmt: skip
    mine = times[next(iter(contenders))].median
    for name, each in times.items():
        share = first.flops_per_update / each.median / 1e9 / limit
        print(
            f"  {name:<18} {each!s:<32} {share:6.1%} of peak   {each.median / mine:5.2f}x the first"
            f"   {len(each.seconds)} runs"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="seed,small,medium")
    parser.add_argument("--backends", default="numba,cython")
    parser.add_argument("--torch", default="eager", help="modes, such as eager,compile,compile@0.75")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each contender")
    options = parser.parse_args()
    for preset in options.presets.split(","):
        bench(preset, options)


if __name__ == "__main__":
    main()
