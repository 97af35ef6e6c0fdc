"""Identities that the backward pass must keep whatever the weights are, each on the kernels of one backend.

    softmax    dS is exactly 0 where the key lies in the query's future
    layernorm  dx ⊥ 1 and dx ⊥ x̂, row by row
    residual   y = x + f copies dy into x and into f: both gradients are dy's buffer
    linear     y = x·wᵀ without bias, L = mean(y): the seed's 3×3 input and 2×3 weight against `torch.nn.Linear`

They see what a gradient that is nearly right hides: a mask that leaks 1e-20, a projection that leaves out one mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.base.rng import stream
from fastbp.check.finite_difference import derivative
from fastbp.graph.graph import Node
from fastbp.memory.arena import aligned_bytes
from fastbp.ops.registry import OPS
from fastbp.run.apply import bind_op
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.run.program import Program
from fastbp.run.runner import Runner
from fastbp.schedule.actions import Backward
from fastbp.schedule.effects import Effects, gradient

Array = NDArray[np.float64]

FUTURE_LIMIT = 0.0
PROJECTION_LIMIT = 1e-15
RESIDUAL_LIMIT = 1e-10
LINEAR_LIMIT = 1.5e-16

ROWS = 64
PLACES = 8
"""Elements of every residual's y and f whose derivative is taken."""


@dataclass(frozen=True)
class FutureScores:
    """max |dS| over the future, and over past and present: 0 there too would mean that nothing was tried."""

    max_abs: float
    past_max_abs: float


@dataclass(frozen=True)
class Orthogonality:
    """The largest |cos| of the angle between a row's dx and 1, and dx and x̂."""

    ones: float
    x_hat: float


@dataclass(frozen=True)
class Residual:
    """`shared` of the `nodes` residuals have one gradient buffer for x, f and y; `max_error` of it against differences
    of the loss by elements of f (x held) and of y (which is x with f held)."""

    nodes: int
    shared: int
    max_error: float


@dataclass(frozen=True)
class Linear:
    """max |Δ| of dx and dw, and what they were compared with."""

    dx_max_error: float
    dw_max_error: float
    against: str


def future_scores(decoder: Decoder, seed: int) -> FutureScores:
    """The softmax kernel's backward, on the P of its forward and a dP that is as large in the future as in the past.

    The attention kernel's own softmax shows the same from outside: without a gradient for the rows from t on, keys
    and values from t on, which only those rows see, get exactly 0.
    """
    H, T = decoder.config.heads, decoder.config.context
    draw = stream(seed, "future scores")
    s, dp = _filled(draw.standard_normal((H * T, T))), _filled(draw.standard_normal((H * T, T)))
    p, ds = _filled(np.full((H * T, T), np.nan)), _filled(np.full((H * T, T), np.nan))
    scale = {"scale": decoder.config.head_width**-0.5}
    sizes = {"N": H * T, "T": T}
    _run(decoder, "softmax", "forward", sizes, {"s": s, "p": p}, scale)
    _run(decoder, "softmax", "backward", sizes, {"d:p": dp, "p": p, "d:s": ds}, scale)
    future = np.arange(T) > (np.arange(H * T) % T)[:, None]
    leaks = [np.abs(ds[future]).max(), *_leaks(decoder, draw)]
    return FutureScores(float(np.max(leaks)), float(np.abs(ds[~future]).max()))


def _leaks(decoder: Decoder, draw: np.random.Generator) -> list[float]:
    """What the attention kernel's backward gives to rows t … T of q, k and v when dO is 0 there, for every t."""
    T, C = decoder.config.context, decoder.config.width
    sizes = {"B": 1, "T": T, "C": C, "H": decoder.config.heads}
    qkv, o = _filled(draw.standard_normal((1, T, 3 * C))), _filled(np.empty((1, T, C)))
    p = _filled(np.empty((1, decoder.config.heads, T, T)))
    _run(decoder, "attention", "forward", sizes, {"qkv": qkv, "o": o, "p": p})
    leaks = []
    for t in range(1, T):
        do, dqkv = _filled(draw.standard_normal((1, T, C))), _filled(np.full(qkv.shape, np.nan))
        do[:, t:] = 0
        _run(decoder, "attention", "backward", sizes, {"d:o": do, "qkv": qkv, "p": p, "d:qkv": dqkv})
        leaks.append(float(np.abs(dqkv[:, t:]).max()))
    return leaks


def layernorm_projection(decoder: Decoder, seed: int) -> Orthogonality:
    """LayerNorm's dx for random rows, dy and weight 1. eps is 0 here: with it x̂ is shorter than √C, and a share of
    eps/(σ² + eps) of what lies along x̂ rightly stays in dx."""
    C = decoder.config.width
    draw = stream(seed, "layernorm projection")
    x, dy = _filled(draw.normal(0.5, 1, (ROWS, C))), _filled(draw.standard_normal((ROWS, C)))
    weight, bias = _filled(np.ones(C)), _filled(np.zeros(C))
    mean, rstd, y, dx = (_filled(np.full(shape, np.nan)) for shape in (ROWS, ROWS, (ROWS, C), (ROWS, C)))
    sizes, eps = {"N": ROWS, "C": C}, {"eps": 0.0}
    saved = {"mean": mean, "rstd": rstd}
    _run(decoder, "layernorm", "forward", sizes, {"x": x, "weight": weight, "bias": bias, "y": y, **saved}, eps)
    out = {"d:x": dx, "d:weight": _filled(np.zeros(C)), "d:bias": _filled(np.zeros(C))}
    _run(decoder, "layernorm", "backward", sizes, {"d:y": dy, "x": x, "weight": weight, **saved, **out}, eps)
    centred = x - x.mean(axis=1, keepdims=True)
    return Orthogonality(_largest_cosine(dx, np.ones_like(x)), _largest_cosine(dx, centred))


def _largest_cosine(a: Array, b: Array) -> float:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):  # a dx of nothing but 0 is a failure too: NaN
        return float(np.max(np.abs((a * b).sum(axis=1)) / lengths))


def residual_copies(decoder: Decoder, seed: int) -> Residual:
    """Every residual of the decoder: in the schedule, and in numbers on the decoder's window."""
    effects = Effects(decoder.graph)
    nodes = [node for node in decoder.graph.nodes if node.op_name == "residual"]
    shared = sum(_is_shared(decoder, effects, node) for node in nodes)
    buffers = _buffers_of_dy(decoder, effects, nodes)
    errors = []
    for node in nodes:
        dy = buffers[node.name]
        for place in stream(seed, f"residual {node.name}").choice(dy.size, min(PLACES, dy.size), replace=False):
            errors += [abs(_by_element(decoder, node.ports[port], int(place)) - dy.flat[place]) for port in ("f", "y")]
    return Residual(len(nodes), shared, float(np.max(errors)))


def _is_shared(decoder: Decoder, effects: Effects, node: Node) -> bool:
    """One buffer for the gradients of x, f and y, and no backward that would write it again."""
    buffers = {effects.buffer(gradient(node.ports[port])) for port in ("x", "f", "y")}
    backward = {action.node for action in decoder.schedule.actions if isinstance(action, Backward)}
    return len(buffers) == 1 and node.name not in backward


def _buffers_of_dy(decoder: Decoder, effects: Effects, nodes: list[Node]) -> dict[str, Array]:
    """For every residual, what its gradient buffer holds when the sublayer that made f begins its backward."""
    program = decoder.gradients_program
    begins = {_first(program, decoder.graph.producer[node.ports["f"]].name): node for node in nodes}
    latest: dict[str, NDArray[Any]] = {}
    found: dict[str, Array] = {}
    done = 0

    def watch(instruction: Instruction) -> bool:
        nonlocal done
        done += 1
        latest.update(instruction.outputs)
        if done in begins:
            node = begins[done]
            found[node.name] = latest[effects.buffer(gradient(node.ports["f"]))].copy()
        return True

    decoder.zero_gradients()
    decoder.runner.run_watched(program, watch)
    decoder.zero_gradients()
    return found


def _first(program: Program, node: str) -> int:
    """The index of a node's first backward instruction."""
    return [(instruction.node, instruction.direction) for instruction in program.instructions].index((node, "backward"))


def _by_element(decoder: Decoder, tensor: str, place: int) -> float:
    """The derivative of the loss by one element of an activation, changed as soon as it is there."""
    program = decoder.evaluation_program
    writer = [instruction for instruction in program.instructions if tensor in dict(instruction.outputs)][-1]
    array = dict(writer.outputs)[tensor]
    kept = 0.0

    def read(instruction: Instruction) -> bool:
        nonlocal kept
        if instruction is writer:
            kept = float(array.flat[place])
        return instruction is not writer

    def losses(value: float) -> NDArray[Any]:
        def change(instruction: Instruction) -> bool:
            if instruction is writer:
                array.flat[place] = value
            return True

        decoder.runner.run_watched(program, change)
        return decoder.losses

    decoder.runner.run_watched(program, read)
    return derivative(losses, decoder.row_weights, kept)


def seed_linear(decoder: Decoder, seed: int, twin: Any | None) -> Linear:
    """The `linear` op without bias on a 3×3 input, for L = mean(y), against torch; against exact fractions without it.

    torch stores the weight (out, in) = 2×3, the op (in, out): one is the other transposed, and so are the gradients.
    """
    draw = stream(seed, "seed linear")
    x, w = draw.random((3, 3)), draw.random((2, 3))
    dx, dweight = _filled(np.full((3, 3), np.nan)), _filled(np.zeros((3, 2)))
    arrays = {"x": _filled(x), "weight": _filled(w.T), "d:x": dx, "d:weight": dweight}
    _run(decoder, "linear", "backward", {"N": 3, "I": 3, "O": 2}, {"d:y": _filled(np.full((3, 2), 1 / 6)), **arrays})
    expected = twin.linear_gradients(x, w) if twin else _exact_linear(x, w)
    errors = [float(np.abs(got - due).max()) for got, due in zip((dx, dweight.T), expected, strict=True)]
    return Linear(errors[0], errors[1], "torch.nn.Linear" if twin else "exact fractions")


def _exact_linear(x: Array, w: Array) -> tuple[Array, Array]:
    """dx[n] = Σ_o w[o] / 6 and dw[o] = Σ_n x[n] / 6, rounded once."""

    def means(rows: Array) -> list[float]:
        return [float(sum(map(Fraction, column)) / 6) for column in rows.T.tolist()]

    return np.array([means(w)] * len(x)), np.array([means(x)] * len(w))


def _filled(values: Array) -> Array:
    """A copy that begins on a cache line, as a decoder's buffers do."""
    array = aligned_bytes(values.size * 8).view(np.float64).reshape(values.shape)
    array[...] = values
    return array


def _run(
    decoder: Decoder, op: str, direction: str, sizes: Mapping[str, int], arrays: Mapping[str, Array],
    attributes: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """One kernel of the decoder's backend on arrays, one worker."""
    name = decoder.backend.name
    Runner(1).run(bind_op(OPS[op], direction, sizes, arrays, attributes=attributes, backend=name))
