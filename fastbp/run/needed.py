"""What a decoder needs before it is planned: bytes outside the arena, bytes that no plan goes below, and the graph as
this machine runs it.
"""

from __future__ import annotations

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import ITEMSIZE, decoder_graph, parameter_shapes
from fastbp.graph.graph import Graph
from fastbp.memory.flat import FlatShapes
from fastbp.run.backend import Backend
from fastbp.run.workers import choose_parts, choose_workers


def state_bytes(config: DecoderConfig, dtype: str) -> int:
    """Parameters, their gradients and the two moments of training."""
    return 4 * FlatShapes(parameter_shapes(config)).size * ITEMSIZE[dtype]


def least_bytes(config: DecoderConfig, batch: int, dtype: str) -> int:
    """No plan needs less: the state, the stream and its gradient."""
    return state_bytes(config, dtype) + 2 * batch * config.context * config.width * ITEMSIZE[dtype]


def graph_to_run(config: DecoderConfig, batch: int, backend: Backend, workers: int | None, dtype: str) -> Graph:
    """The graph with the scratch of as many parts as this machine cuts a kernel into. Raises InputError for a number of
    workers that it does not have.
    """
    count = choose_workers(workers, decoder_graph(config, batch).products_per_pass)
    return decoder_graph(config, batch, workers=choose_parts(count) if backend.compiled else 0, dtype=dtype)
