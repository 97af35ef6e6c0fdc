"""A trainer for measuring: tokens without meaning, since time does not depend on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fastbp.data import Split
from fastbp.graph.config import DecoderConfig
from fastbp.policy.cost import COSTS, Cost
from fastbp.run.decoder import Decoder
from fastbp.train.learning_rate import LearningRate
from fastbp.train.trainer import Trainer


def synthetic_trainer(
    config: DecoderConfig,
    batch: int,
    *,
    backend: str = "auto",
    workers: int | None = None,
    policy: str = "save_all",
    cost: Cost = COSTS["roofline"],
    lossy: bool = False,
    dtype: str = "float32",
    progress: Callable[[str], None] | None = None,
) -> Trainer:
    """A trainer with initial weights, a constant learning rate and random token ids."""
    decoder = Decoder(
        config, batch, backend=backend, workers=workers, policy=policy, cost=cost, lossy=lossy, dtype=dtype,
        progress=progress,
    )  # fmt: skip
    decoder.initialise(0)
    count = 20 * batch * config.context + 2
    tokens = np.random.default_rng(0).integers(0, config.vocab, count).astype(np.int32)
    rate = LearningRate("constant", 1e-3, 1e-4, warmup=0, updates=10**9)
    return Trainer(decoder, Split(tokens, tokens, shared=True), rate, progress=progress)
