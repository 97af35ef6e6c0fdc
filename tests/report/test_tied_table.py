"""The token table's two gradients."""

from __future__ import annotations

import numpy as np
import pytest

from fastbp.check.seed_window import seed_decoder
from fastbp.report.tied_table import tied_table
from fastbp.run.recorded import record


@pytest.mark.parametrize("backend", ["numpy", "cython"])
def test_head_and_lookup_add_up(backend: str) -> None:
    decoder = seed_decoder(backend)
    found = record(decoder)
    table = tied_table(decoder, found)
    np.testing.assert_array_equal(table.whole, decoder.gradients["wte"])
    np.testing.assert_allclose(table.head + table.lookup, table.whole, rtol=0, atol=1e-16)
    x, dx = found.value("final.ln"), found.gradient("blocks.0.x")
    logits = x @ decoder.parameters["wte"].T
    dz = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    dz[np.arange(8), decoder.targets[0]] -= 1
    np.testing.assert_allclose(table.head, (dz / 8).T @ x, rtol=0, atol=1e-15)
    for token in range(64):
        expected = dx[decoder.tokens[0] == token].sum(axis=0)
        np.testing.assert_allclose(table.lookup[token], expected, rtol=0, atol=1e-16)


def test_the_head_reaches_every_row_and_the_lookup_the_window_s() -> None:
    decoder = seed_decoder()
    table = tied_table(decoder, record(decoder))
    assert table.head.any(axis=1).all()
    assert set(np.flatnonzero(table.lookup.any(axis=1))) == set(decoder.tokens[0].tolist())
