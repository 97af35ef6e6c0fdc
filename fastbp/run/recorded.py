"""Every gradient and activation of one pass, whole, for looking at.

A program's buffers are sliced, shared and written over, so each is copied right behind the instruction that writes it,
row by row, while the program runs watched: one kernel after the other, unfused. The bits are those of any run.
The trap: the gradient of a residual's inputs is its output's, for which no kernel runs, and what a sublayer adds to it
is written under the name of the shared buffer; here each stands under its tensor's own name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.graph.graph import Graph, Node
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.schedule.actions import Action, Pack, Reduce, Unpack
from fastbp.schedule.effects import Effects, gradient
from fastbp.schedule.local import tensor_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Recorded:
    """Arrays by name: activations "blocks.0.p", gradients "d:blocks.0.o", what a node adds to a tensor's gradient
    "d:blocks.0.mid+blocks.0.ln2", and a parameter's gradient as it stood behind a node, "d:wte+losses".
    """

    graph: Graph
    arrays: dict[str, Array] = field(default_factory=dict)

    def value(self, tensor: str) -> Array:
        """An activation, in its shape."""
        return self.arrays[tensor].reshape(self.graph.tensors[tensor].shape)

    def gradient(self, tensor: str) -> Array:
        """The whole gradient of an activation, in its shape."""
        while gradient(tensor) not in self.arrays:
            passing = next(node for node in self.graph.nodes if tensor in node.inputs and node.op.passes_gradient)
            tensor = passing.outputs[0]
        return self.arrays[gradient(tensor)].reshape(self.graph.tensors[tensor].shape)

    def part(self, node: Node, tensor: str) -> Array:
        """What a node's backward gives to a tensor's gradient."""
        name = f"{gradient(tensor)}+{node.name}"
        if name in self.arrays:
            return self.arrays[name].reshape(self.graph.tensors[tensor].shape)
        return self.gradient(node.outputs[0] if node.op.passes_gradient else tensor)


def record(decoder: Decoder) -> Recorded:
    """Runs forward and backward of `decoder.tokens` in this thread, from gradients of 0; those of the parameters are
    the decoder's own afterwards.
    """
    recorder = _Recorder(decoder)
    decoder.zero_gradients()
    decoder.runner.run_watched(decoder.gradients_program, recorder.watch)
    return recorder.found


class _Recorder:
    """Hears of every instruction, in order."""

    def __init__(self, decoder: Decoder) -> None:
        self.actions, self.graph = decoder.schedule.actions, decoder.graph
        self.effects = Effects(self.graph)
        self.found = Recorded(self.graph, {"d:losses": decoder.row_weights.copy()})

    def watch(self, instruction: Instruction) -> bool:
        """Copies what was written; an op of several phases has written all only behind its last."""
        action = self.actions[instruction.tick]
        for name, array in instruction.outputs if not isinstance(action, Pack) else ():
            tensor = self.graph.tensors[tensor_of(name)]
            if tensor.kind == "parameter":
                if sum(tensor.name in node.ports.values() for node in self.graph.nodes) > 1:
                    self.found.arrays[f"{name}+{instruction.node}"] = array.copy()
            else:
                self._store(_own_name(action, name), array, tensor.size // self.graph.tokens, action)
        return True

    def _store(self, name: str, array: Array, size: int, action: Action) -> None:
        """Rows of `size` numbers a token."""
        start, stop = self.effects.token_rows(action) or (0, self.graph.tokens)
        whole = self.found.arrays.setdefault(name, np.full((self.graph.tokens, size), np.nan, array.dtype))
        whole[start:stop] = array.reshape(stop - start, size)


def _own_name(action: Action, name: str) -> str:
    """The name of what an action wrote; `name` where that is not a buffer's."""
    if isinstance(action, Reduce):
        return gradient(tensor_of(action.source))
    return action.tensor if isinstance(action, Unpack) else name
