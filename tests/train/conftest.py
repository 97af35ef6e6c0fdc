"""A trainer so small that twelve updates take a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fastbp.data import CharTokenizer, Split, split
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.train.learning_rate import LearningRate
from fastbp.train.optimiser import AdamWSettings
from fastbp.train.trainer import Trainer

TEXT = "".join(f"{i} times {j} is {i * j}.\n" for i in range(12) for j in range(12))
UPDATES = 12


@pytest.fixture(scope="session")
def tokenizer() -> CharTokenizer:
    return CharTokenizer.from_text(TEXT)


@pytest.fixture(scope="session")
def config(tokenizer: CharTokenizer) -> DecoderConfig:
    return DecoderConfig.preset("seed", vocab=tokenizer.vocab)


@pytest.fixture(scope="session")
def data(tokenizer: CharTokenizer, config: DecoderConfig) -> Split:
    return split(tokenizer.encode(TEXT), config.context)


@pytest.fixture
def make_trainer(config: DecoderConfig, data: Split) -> Callable[..., Trainer]:
    """A fresh trainer of the seed's decoder; of a `backend`, `policy`, `batch`, `optimiser` and `dropout`."""

    def make(
        backend: str = "numba",
        policy: str = "save_all",
        batch: int = 2,
        optimiser: AdamWSettings | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> Trainer:
        decoder = Decoder(replace(config, dropout=dropout), batch, policy=policy, backend=backend, workers=1)
        decoder.initialise(3)
        rate = LearningRate("cosine", 1e-2, 1e-3, warmup=3, updates=UPDATES)
        return Trainer(decoder, data, rate, optimiser, **{"seed": 5, "evaluation_windows": 4} | options)

    return make
