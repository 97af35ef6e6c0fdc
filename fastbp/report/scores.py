"""The gradient of attention's scores, head by head: the one stop inside a kernel, which keeps no T × T array.

    P as forward saved it, or exp(S − lse) where it saved lse;  dP = dO·Vᵀ;  dS = P ∘ (dP − Σ dP∘P)/√D

It is computed with the op's own definitions from what the program recorded: qkv, P and dO. That it is the program's dS
shows in what the program made of its own: `disagreement` compares dS·K with dQ and dSᵀ·Q with dK.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbp.graph.graph import Node
from fastbp.ops import softmax
from fastbp.ops.attention import heads_of, scaled
from fastbp.ops.attention_dropout import weight_factors
from fastbp.ops.tiled_attention import masked_scores
from fastbp.run.recorded import Recorded

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Scores:
    """P and dS of one attention: (H, T, T) each, a row a query, a column a key. `disagreement` is the largest |Δ| of
    dQ and dK as a share of the largest of either.
    """

    node: str
    weights: Array
    gradient: Array
    disagreement: float


def scores_of(node: Node, recorded: Recorded, state: Array) -> Scores:
    """P and dS of an attention node, for its first sequence. `state` is the key of the dropout's masks."""
    d, qkv = node.dims, recorded.value(node.ports["qkv"])
    q, k, v = heads_of(d, qkv)
    if "p" in node.ports:
        p = recorded.value(node.ports["p"])
    else:
        p = np.exp(masked_scores(d, q, k) - recorded.value(node.ports["lse"])[..., None])
    do = recorded.gradient(node.ports["o"]).reshape(d.B, d.T, d.H, -1).transpose(0, 2, 1, 3)
    dp = do @ v.swapaxes(-1, -2)
    if "state" in node.ports:
        dp = dp * weight_factors(SimpleNamespace(**d, **node.attributes), state, p.dtype)
    ds = np.empty_like(p)
    softmax.backward(scaled(d), dp, p, ds)
    dq, dk, _ = heads_of(d, recorded.gradient(node.ports["qkv"]))
    pairs = ((ds @ k, dq), (ds.swapaxes(-1, -2) @ q, dk))
    furthest = max(float(np.abs(one - other).max()) for one, other in pairs)
    largest = max(float(np.abs(other).max()) for _, other in pairs)
    return Scores(node.name, p[0], ds[0], furthest / largest if largest else furthest)
