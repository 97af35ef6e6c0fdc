"""One contender of a benchmark in a process of its own. `fastbp bench --peers` and the benchmarks beside this folder
start it; see fastbp/run/contender.py for what is said between them.

    serve.py '{"contender": "torch eager", "config": {...}, "batch": 12, "workers": 2, "shapes": {...}}'

Only what the contender needs is imported, so that the process's memory is the contender's.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


class Initial(Mapping[str, np.ndarray]):
    """Parameters as training begins with them, made when they are asked for so that no second set is ever held."""

    def __init__(self, shapes: Mapping[str, list[int]]) -> None:
        self.shapes = shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, name: str) -> np.ndarray:
        shape = self.shapes[name]
        if len(shape) < 2:
            return np.full(shape, float(name.endswith("weight")), np.float32)
        random = np.random.default_rng(zlib.crc32(name.encode()))
        return np.float32(0.02) * random.standard_normal(shape, np.float32)


def batches(vocab: int, batch: int, context: int) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Windows of token ids without meaning: time does not depend on them."""
    random = np.random.default_rng(0)

    def draw() -> tuple[np.ndarray, np.ndarray]:
        ids = random.integers(0, vocab, (batch, context + 1)).astype(np.int32)
        return ids[:, :-1], ids[:, 1:]

    return draw


def cores(workers: int) -> set[int]:
    """Logical CPUs on `workers` different cores, of those that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    chosen: dict[str, int] = {}
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        chosen.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    return set(list(chosen.values())[:workers]) or set(allowed)


def fastbp_update(wish: SimpleNamespace, backend: str) -> Callable[[], object]:
    from fastbp.graph.config import DecoderConfig
    from fastbp.train.synthetic import synthetic_trainer

    config = DecoderConfig.from_json(wish.config)
    return synthetic_trainer(config, wish.batch, backend=backend, workers=wish.workers, policy=wish.policy).update


def peer_update(wish: SimpleNamespace, library: str, mode: str) -> Callable[[], object]:
    """An update of torch's or JAX's twin with the hyperparameters of `fastbp train`."""
    config = SimpleNamespace(**wish.config)
    common = {"parameters": Initial(wish.shapes), "betas": (0.9, 0.99), "weight_decay": 0.1, "clip": 1.0}
    trainer: Any
    if library == "torch":
        from torch_decoder import TorchTrainer

        kind, _, budget = mode.partition("@")
        trainer = TorchTrainer(config, wish.batch, wish.workers, kind, activation_budget=float(budget or 1), **common)
    else:
        # XLA asks the system for the number of its threads, when it is loaded.
        os.sched_setaffinity(0, cores(wish.workers))
        from jax_decoder import JaxTrainer

        trainer = JaxTrainer(config, wish.batch, mode, **common)
    draw = batches(config.vocab, wish.batch, config.context)
    return lambda: trainer.update(*draw())


def timed(update: Callable[[], object]) -> float:
    start = time.perf_counter()
    update()
    return time.perf_counter() - start


def main() -> None:
    # What a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    wish = SimpleNamespace(**json.loads(sys.argv[1]))
    library, _, mode = wish.contender.partition(" ")
    update = fastbp_update(wish, mode) if library == "fastbp" else peer_update(wish, library, mode)
    update()  # compiles, and takes the memory that later updates keep
    print(json.dumps([timed(update)]), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps([timed(update) for _ in range(int(line))]), file=answers, flush=True)


if __name__ == "__main__":
    main()
