"""What a decoder needs before it is planned is what it takes once it is there."""

from __future__ import annotations

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.run.backend import choose_backend
from fastbp.run.decoder import Decoder
from fastbp.run.needed import graph_to_run, least_bytes, state_bytes


@pytest.mark.parametrize("backend", ["numpy", "cython"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_a_decoder_takes_it(backend: str, dtype: str) -> None:
    config = DecoderConfig.preset("seed")
    decoder = Decoder(config, 2, policy="full", backend=backend, dtype=dtype)
    assert state_bytes(config, dtype) == 4 * decoder.parameters.flat.nbytes
    stream = 2 * decoder.graph.bytes_of("blocks.0.x")
    assert state_bytes(config, dtype) + stream == least_bytes(config, 2, dtype)
    assert stream <= decoder.peak_bytes_predicted
    assert graph_to_run(config, 2, choose_backend(backend), None, dtype) == decoder.graph
