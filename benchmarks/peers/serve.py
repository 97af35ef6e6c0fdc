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
from dataclasses import dataclass
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


Draw = Callable[[], tuple[np.ndarray, np.ndarray]]


def batches(vocab: int, batch: int, context: int) -> Draw:
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


@dataclass(frozen=True)
class Served:
    """A contender: an update, what tells of its activation memory, and what lets go of all that an update makes anew:
    it returns the arrays that it can not free, but whose contents nobody needs.
    """

    update: Callable[[], object]
    activations: Callable[[], dict[str, Any]]
    let_go: Callable[[], list[np.ndarray]] = list


def serve_fastbp(wish: SimpleNamespace, backend: str) -> Served:
    """Its figures are the arena's: gradients of parameters lie elsewhere."""
    from fastbp.graph.config import DecoderConfig
    from fastbp.policy.cost import COSTS
    from fastbp.run.seconds import seconds_of_calls
    from fastbp.train.synthetic import synthetic_trainer

    config = DecoderConfig.from_json(wish.config)
    how = {"backend": backend, "workers": wish.workers}
    cost = seconds_of_calls(config, wish.batch, **how) if wish.policy.startswith("optimal(") else COSTS["roofline"]
    trainer = synthetic_trainer(config, wish.batch, policy=wish.policy, cost=cost, **how)
    decoder = trainer.decoder

    def activations() -> dict[str, Any]:
        decoder.mark_arena()
        trainer.update()
        return {
            "activation_peak_bytes": decoder.peak_bytes_measured(),
            "predicted_peak_bytes": decoder.peak_bytes_predicted,
            "kept_bytes": decoder.simulation.kept_bytes,
            "extra_flops_share": decoder.simulation.extra_flops_share,
        }

    whole = decoder.arena.view(0, (decoder.arena.size_bytes,), "uint8")
    return Served(trainer.update, activations, lambda: [whole])


def serve_peer(wish: SimpleNamespace, library: str, mode: str) -> Served:
    """torch's or JAX's twin with the hyperparameters of `fastbp train`."""
    config = SimpleNamespace(**wish.config)
    common = {"parameters": Initial(wish.shapes), "betas": (0.9, 0.99), "weight_decay": 0.1, "clip": 1.0}
    draw = batches(config.vocab, wish.batch, config.context)
    return (serve_torch if library == "torch" else serve_jax)(wish, config, mode, draw, common)


def serve_torch(
    wish: SimpleNamespace, config: SimpleNamespace, mode: str, draw: Draw, common: Mapping[str, Any]
) -> Served:
    from torch_decoder import TorchTrainer

    kind, _, budget = mode.partition("@")
    trainer = TorchTrainer(config, wish.batch, wish.workers, kind, activation_budget=float(budget or 1), **common)

    def update() -> object:
        return trainer.update(*draw())

    def activations() -> dict[str, Any]:
        from torch_memory import activation_peak_bytes

        return {"activation_peak_bytes": activation_peak_bytes(update, trainer.model.parameters())}

    def let_go() -> list[np.ndarray]:
        trainer.optimiser.zero_grad(set_to_none=True)
        return []

    return Served(update, activations, let_go)


def serve_jax(
    wish: SimpleNamespace, config: SimpleNamespace, mode: str, draw: Draw, common: Mapping[str, Any]
) -> Served:
    # XLA asks the system for the number of its threads, when it is loaded.
    os.sched_setaffinity(0, cores(wish.workers))
    from jax_decoder import JaxTrainer

    trainer = JaxTrainer(config, wish.batch, mode, **common)
    return Served(lambda: trainer.update(*draw()), lambda: {"activation_peak_bytes": trainer.activation_peak_bytes()})


def memory(served: Served) -> dict[str, Any]:
    """The fields of `Memory` in fastbp/run/contender.py, as far as the contender can say."""
    from resident_step import step_rss_bytes

    # First, since what looks into a library keeps memory of its own.
    added = step_rss_bytes(served.update, served.let_go())
    return {"step_rss_bytes": added, **served.activations()}


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
    served = serve_fastbp(wish, mode) if library == "fastbp" else serve_peer(wish, library, mode)
    served.update()  # compiles, and takes the memory that later updates keep
    print(json.dumps([timed(served.update)]), file=answers, flush=True)
    for line in sys.stdin:
        question = line.strip()
        answer = memory(served) if question == "memory" else [timed(served.update) for _ in range(int(question))]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
