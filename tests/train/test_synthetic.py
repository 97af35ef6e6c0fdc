"""A trainer for measuring trains like any other."""

from __future__ import annotations

import numpy as np

from fastbp.graph.config import DecoderConfig
from fastbp.train.synthetic import synthetic_trainer


def test_it_trains_as_it_was_asked_to() -> None:
    trainer = synthetic_trainer(DecoderConfig.preset("seed"), 2, backend="numpy", policy="full", dtype="float64")
    first = trainer.update()
    assert np.isfinite(first.loss)
    assert trainer.update().update == 1
    decoder = trainer.decoder
    assert (decoder.backend.name, decoder.plan.policy, decoder.dtype, decoder.batch) == ("numpy", "full", "float64", 2)
    assert len(np.unique(decoder.tokens)) > 4
