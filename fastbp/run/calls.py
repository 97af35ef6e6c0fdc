"""What a kernel call is counted under in a profile: its op, what it is for, and its block."""

from __future__ import annotations

from typing import NamedTuple

from fastbp.graph.graph import Graph
from fastbp.memory.timeline import STAGE_OF
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.op_times import ADAMW, Keyed
from fastbp.schedule.actions import Action, Converts, Free, Reduce
from fastbp.schedule.local import parted


class CallKey(NamedTuple):
    """Calls of one op in one block (None: embedding, final norm, head and optimiser) and in one of STAGES."""

    op: str
    direction: str
    block: int | None


def by_block(decoder: Decoder) -> Keyed[CallKey]:
    """The key of a call of the decoder's program, or of AdamW behind it."""
    actions, graph = decoder.schedule.actions, decoder.graph

    def keyed(instruction: Instruction) -> CallKey:
        if instruction.op == ADAMW.op:
            return CallKey(instruction.op, "forward", None)
        action = actions[instruction.tick]
        return CallKey(instruction.op, STAGE_OF[type(action)], block_of(graph, action))

    return keyed


def block_of(graph: Graph, action: Action) -> int | None:
    """The block whose work an action is."""
    if isinstance(action, Converts):
        return graph.producer[action.tensor].block
    if isinstance(action, Reduce):  # "d:blocks.1.x+blocks.1.ln1[0:64]": the part that a node's backward made
        return graph.by_name[parted(action.source)[0].partition("+")[2]].block
    return None if isinstance(action, Free) else graph.by_name[action.node].block
