"""Schedule + layout + backend → program: every action becomes kernel calls with addresses.

All checks happen here, once: that every array has the size and alignment that its op declares. Nothing is checked
again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np

from fastbp.base.dims import Dims, shape_of
from fastbp.graph.graph import Node
from fastbp.graph.tensor import Tensor
from fastbp.memory.arena import Arena
from fastbp.memory.layout import Layout
from fastbp.ops.op import Op
from fastbp.ops.registry import OPS
from fastbp.run.backend import Backend
from fastbp.run.instruction import Argument, Instruction
from fastbp.run.program import Program
from fastbp.schedule.actions import Action, Backward, Converts, Free, Pack, Reduce, RunsNode, written
from fastbp.schedule.effects import Effects, placed, sliced_dims
from fastbp.schedule.local import Rows, packed, parted, tensor_of
from fastbp.schedule.schedule import Schedule

Arrays = Mapping[str, np.ndarray]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Binder:
    """Everything that an address comes from. `values` and `gradients` hold what does not lie in the arena:
    parameters, constants and host tensors, and the gradients of parameters and losses."""

    schedule: Schedule
    layout: Layout
    arena: Arena
    values: Arrays
    gradients: Arrays
    dtype: str
    backend: Backend
    progress: Progress | None = None
    _offsets: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for buffer, offset in zip(self.layout.buffers, self.layout.offsets, strict=True):
            for name, start, stop in buffer.holds():
                self._offsets.setdefault(name, []).append((start, stop, offset))

    def in_arena(self, tick: int, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """The view of a buffer that is live at a tick."""
        for born, dies, offset in self._offsets[name]:
            if born <= tick < dies:
                return self.arena.view(offset, shape, dtype)
        raise KeyError(f"tick {tick}: {name} has no buffer")

    def program(self) -> Program:
        """All instructions of the schedule."""
        conversions = {"pack", "unpack"} if self.schedule.plan.packed else set()
        names = {node.op_name for node in self.schedule.graph.nodes}
        self.backend.prepare(names | conversions, self.dtype, self.progress)
        instructions: list[Instruction] = []
        effects = Effects(self.schedule.graph)
        for tick, action in enumerate(self.schedule.actions):
            if not isinstance(action, Free):
                instructions += self._bind(effects, tick, action)
        return Program(tuple(instructions))

    def _bind(self, effects: Effects, tick: int, action: RunsNode | Reduce | Converts) -> Iterator[Instruction]:
        if isinstance(action, Reduce):
            return self._reduce(tick, action)
        if isinstance(action, Converts):
            return self._convert(tick, action)
        node = self.schedule.graph.by_name[action.node]
        dims = sliced_dims(node, action.rows)
        direction = "backward" if isinstance(action, Backward) else "forward"
        arguments = node.op.arguments(direction)
        arrays: list[tuple[str, np.ndarray | None]] = []
        for role, port in arguments:
            if role == "scratch":
                arrays.append((f"{port} of {written(action)}", self._scratch(tick, action, node.op, port, dims)))
            else:
                arrays.append(self._tensor(effects, tick, action, node, role, port))
        outputs = tuple(
            (name, array)
            for (name, array), (role, port) in zip(arrays, arguments, strict=True)
            if array is not None and node.op.writes(direction, role, port)
        )
        call = Call(node.op, direction, dims, node.attributes, tuple(array for _, array in arrays))
        return call_instructions(tick, node.name, call, outputs, self.backend, self.dtype, self.progress)

    def _reduce(self, tick: int, action: Reduce) -> Iterator[Instruction]:
        op, tensor = OPS["residual"], self.schedule.graph.tensors[tensor_of(action.source)]
        total = self._rows_in_arena(tick, action.into, tensor, action.rows)
        part = self._rows_in_arena(tick, action.source, tensor, action.rows)
        call = Call(op, "forward", Dims({"N": 1, "C": total.size}), {}, (total, part, total))
        outputs = ((action.into, total),)
        return call_instructions(tick, written(action), call, outputs, self.backend, self.dtype, self.progress)

    def _convert(self, tick: int, action: Converts) -> Iterator[Instruction]:
        op, tensor = OPS["pack" if isinstance(action, Pack) else "unpack"], self.schedule.graph.tensors[action.tensor]
        names = {"float32": placed(action, action.tensor), "uint16": packed(action.tensor)}
        found = {kind: self._rows_in_arena(tick, name, tensor, action.rows, kind) for kind, name in names.items()}
        source, target = (op.dtype_of(port, self.dtype) for port in "xy")
        call = Call(op, "forward", Dims({"N": 1, "C": found[source].size}), {}, (found[source], found[target]))
        outputs = ((names[target], found[target]),)
        return call_instructions(tick, written(action), call, outputs, self.backend, self.dtype, self.progress)

    def _rows_in_arena(
        self, tick: int, name: str, tensor: Tensor, rows: Rows | None, dtype: str | None = None
    ) -> np.ndarray:
        """Some rows of a buffer, which may itself hold a slice of its tensor alone; flat."""
        dtype = dtype or self.dtype
        begin, end = parted(name)[1] or (0, self.schedule.graph.tokens)
        start, stop = rows or (begin, end)
        size = tensor.size // self.schedule.graph.tokens
        if rows is None and (begin, end) == (0, self.schedule.graph.tokens):
            return self.in_arena(tick, name, (tensor.size,), dtype)
        return self.in_arena(tick, name, ((end - begin) * size,), dtype)[(start - begin) * size : (stop - begin) * size]

    def _scratch(self, tick: int, action: Action, op: Op, port: str, dims: Dims) -> np.ndarray:
        shapes = op.scratch if isinstance(action, Backward) else op.forward_scratch
        shape = shape_of(shapes[port], dims)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        return self.in_arena(tick, f"{port} of {written(action)}", shape, self.dtype)

    def _tensor(
        self, effects: Effects, tick: int, action: RunsNode, node: Node, role: str, port: str
    ) -> tuple[str, np.ndarray | None]:
        if port not in node.ports:
            return port, None
        tensor = self.schedule.graph.tensors[node.ports[port]]
        name = f"d:{tensor.name}" if role == "gradient" else tensor.name
        if tensor.kind == "activation":
            if role == "gradient" and port in node.op.inputs:
                name = effects.contribution(node, tensor.name)
            buffer = placed(action, effects.buffer(name) if role == "gradient" else name)
            flat = self._rows_in_arena(tick, buffer, tensor, effects.token_rows(action))
            return name, np.reshape(flat, node.op.shape(port, sliced_dims(node, action.rows)))
        source = self.gradients if role == "gradient" else self.values
        if tensor.name not in source:
            return name, None
        array = source[tensor.name].reshape(node.op.shape(port, node.dims))
        return name, array[slice(*action.rows)] if action.rows and node.op.sliced(port) else array


def call_instructions(
    tick: int,
    node: str,
    call: Call,
    outputs: tuple[tuple[str, np.ndarray], ...],
    backend: Backend,
    dtype: str,
    progress: Progress | None = None,
) -> Iterator[Instruction]:
    """The instructions of one kernel call, one a phase, after its arrays were checked."""
    call.check(dtype)
    if not backend.compiled:
        yield Instruction(tick, node, call.op.name, call.direction, outputs, call=call.numpy())
        return
    address = backend.address(call.op.name, call.direction, dtype, progress)
    by_name = partial(backend.fused_address, dtype=dtype)
    for phase in range(call.op.phases(call.direction)):
        yield Instruction(
            tick, node, call.op.name, call.direction, outputs, address, call.row(phase), None, call.places(), by_name
        )


@dataclass(frozen=True)
class Call:
    """One call of an op's kernel with its arrays, in the order that the op declares."""

    op: Op
    direction: str
    dims: Dims
    attributes: Mapping[str, float]
    arrays: tuple[np.ndarray | None, ...]

    def check(self, dtype: str) -> None:
        """Raises ValueError unless every array has the size that the op declares, is contiguous and of the right
        dtype.
        """
        backward, arguments = self.direction == "backward", self.op.arguments(self.direction)
        if len(arguments) != len(self.arrays):
            raise ValueError(f"{self.op.name} {self.direction} takes {len(arguments)} arrays, not {len(self.arrays)}")
        for (role, port), array in zip(arguments, self.arrays, strict=True):
            what = f"{self.op.name} {self.direction}, {port}"
            if array is None:
                if role == "value" and port not in self.op.optional:
                    raise ValueError(f"{what} is missing")
                continue
            if role == "scratch":
                shape = shape_of((self.op.scratch if backward else self.op.forward_scratch)[port], self.dims)
            else:
                shape = self.op.shape(port, self.dims)
            expected = self.op.dtype_of(port, dtype)
            if array.size != int(np.prod(shape)) or array.dtype != expected or not array.flags.c_contiguous:
                raise ValueError(f"{what}: {array.dtype} {array.shape} where {expected} {shape} is due, contiguous")

    def places(self) -> tuple[Argument, ...]:
        """Where every array lies, absent ones left out."""
        named = zip(self.op.arguments(self.direction), self.arrays, strict=True)
        return tuple(
            Argument(role, port, array.ctypes.data, array.nbytes, self.op.writes(self.direction, role, port))
            for (role, port), array in named
            if array is not None
        )

    def row(self, phase: int) -> tuple[int, ...]:
        """The argument row of a compiled kernel."""
        sizes = (self.dims[letter] for letter in self.op.dims)
        attributes = (_bits(self.attributes[name]) for name in self.op.attributes)
        return (phase, *sizes, *attributes, *(0 if a is None else int(a.ctypes.data) for a in self.arrays))

    def numpy(self) -> Callable[[], None]:
        """The call of the NumPy definition, with arrays in the shapes that the op declares."""
        kernel = self.op.numpy_kernel(self.direction)
        assert kernel is not None
        known = SimpleNamespace(**self.dims, **self.attributes)
        shaped = []
        for (role, port), array in zip(self.op.arguments(self.direction), self.arrays, strict=True):
            if role == "scratch" and (array is None or not array.size):
                continue
            shaped.append(
                array if array is None or role == "scratch" else array.reshape(self.op.shape(port, self.dims))
            )
        return partial(kernel, known, *shaped)


def _bits(value: float) -> int:
    """A float64's bits as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])
