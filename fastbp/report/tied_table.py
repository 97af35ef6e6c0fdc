"""The token table's gradient, which comes twice: first from the head, which is the table too, and last from the lookup.

dE = dzᵀ·x  (the head's: every row)  +  Σ dx[n] into row token[n]  (the lookup's: the window's tokens alone)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.memory.arena import aligned_bytes
from fastbp.run.apply import bind_op
from fastbp.run.decoder import Decoder
from fastbp.run.recorded import Recorded
from fastbp.run.runner import Runner

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TiedTable:
    """Both contributions and the whole gradient of the table, (V, C) each."""

    name: str
    head: Array
    lookup: Array
    whole: Array


def tied_table(decoder: Decoder, recorded: Recorded) -> TiedTable:
    """What a recorded pass gave to the token table. The head's is what stood there behind it; the lookup's is what the
    program's kernel adds to zeros.
    """
    head, embedding = decoder.graph.nodes[-1], decoder.graph.nodes[0]
    name = embedding.ports["table"]
    whole = decoder.gradients[name]
    lookup = _aligned(np.zeros_like(whole))
    arrays = {"tokens": decoder.tokens.ravel(), "d:x": _aligned(recorded.gradient(embedding.outputs[0]))}
    program = bind_op(
        embedding.op, "backward", embedding.dims, arrays | {"d:table": lookup}, backend=decoder.backend.name
    )
    Runner(1).run(program)
    return TiedTable(name, recorded.arrays[f"d:{name}+{head.name}"], lookup, whole.copy())


def _aligned(values: Array) -> Array:
    """A copy that begins on a cache line, as a decoder's buffers do."""
    array = aligned_bytes(values.nbytes).view(values.dtype).reshape(values.shape)
    array[...] = values
    return array
