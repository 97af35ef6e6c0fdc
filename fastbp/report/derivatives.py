"""The local derivative of every op, as a learner reads it: what it does to the gradient, in words and as a formula.

Letters are those of the op's own file: the gradient of `x` is `dx`, ᵀ transposes, ∘ multiplies element by element.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Derivative:
    """`formula` has a line an equation; `words` are a sentence or two."""

    formula: tuple[str, ...]
    words: str


ATTENTION = (
    "S = Q·Kᵀ;  P = softmax(S/√D);  O = P·V",
    "dV = Pᵀ·dO;  dP = dO·Vᵀ",
    "dS = P ∘ (dP − Σ dP∘P)/√D",
    "dQ = dS·K;  dK = dSᵀ·Q",
)
SCORE = (
    "A score's gradient is its weight times how much better than average its value would have been. Future positions"
    " have weight 0 and get exactly 0 back: the causal mask holds on the way back too."
)
AGAIN = " Backward works P out again from the scores and the logarithm of their sum, lse."
MASKED = " M is the dropout's mask, drawn again from its counter."
DROPPED = (
    "S = Q·Kᵀ;  P = softmax(S/√D);  O = (P∘M)·V",
    "dV = (P∘M)ᵀ·dO;  dP = M ∘ (dO·Vᵀ)",
    *ATTENTION[2:],
)

DERIVATIVES = {
    "linear_cross_entropy": Derivative(
        (
            "z = x·Eᵀ;  loss = log Σ exp z − z[target]",
            "dz = (softmax(z) − onehot(target)) · dloss",
            "dx = dz·E;  dE += dzᵀ·x",
        ),
        "A logit's gradient is the probability that it got, less 1 for the right token, times the row's share of the"
        " mean. The head is the embedding table E: half of E's gradient begins here.",
    ),
    "layernorm": Derivative(
        (
            "x̂ = (x − μ)·r with r = 1/√(σ² + ε);  y = γ∘x̂ + β",
            "g = γ∘dy;  dx = r·(g − mean(g) − x̂·mean(g∘x̂))",
            "dγ += Σ dy∘x̂;  dβ += Σ dy",
        ),
        "The gradient is projected: shifting or scaling a row does not change its norm's output, so those two"
        " directions are taken out of it.",
    ),
    "residual": Derivative(
        ("y = x + f", "dx = dy;  df = dy"),
        "The gradient is copied, unchanged, straight down the residual stream and into the sublayer that made f. No"
        " kernel runs.",
    ),
    "linear": Derivative(
        ("y = x·W + b", "dx = dy·Wᵀ", "dW += xᵀ·dy;  db += Σ dy"),
        "The weight's gradient is the input that the map saw times the gradient of what it produced; what goes on is"
        " the gradient times the weight transposed. Two products, where forward has one.",
    ),
    "gelu": Derivative(
        ("y = GELU(x) = x·s(x)", "dx = dy ∘ GELU′(x)", "GELU′(x) = s(x) + x·s′(x)"),
        "Each element is multiplied by the slope of GELU at the value that the neuron saw: neurons far below zero pass"
        " almost nothing back.",
    ),
    "attention": Derivative(ATTENTION, SCORE),
    "tiled_attention": Derivative(ATTENTION, SCORE + AGAIN),
    "attention_dropout": Derivative(DROPPED, SCORE + MASKED),
    "tiled_attention_dropout": Derivative(DROPPED, SCORE + AGAIN + MASKED),
    "qkv": Derivative(
        (
            "Q = x·Wq;  K = x·Wk;  V = x·Wv",
            "dx = dQ·Wqᵀ + dK·Wkᵀ + dV·Wvᵀ",
            "dWq += xᵀ·dQ;  dWk += xᵀ·dK;  dWv += xᵀ·dV",
        ),
        "Three linear maps of one input: what they send back to it is added up.",
    ),
    "dropout": Derivative(
        ("y = x∘M with M = 0 or 1/(1 − p)", "dx = dy∘M"),
        "What was left out gets no gradient, the rest as much more as it was scaled up. M is drawn again from its"
        " counter: nothing is saved for it.",
    ),
    "embedding": Derivative(
        ("x[n] = E[token[n]] + positions[n]", "dE[v] += Σ dx[n] over all n whose token is v"),
        "The end of the way: each row's gradient is added to the row of E that was looked up. A token that occurs twice"
        " adds twice.",
    ),
}  # fmt: skip

SUM = Derivative(
    ("x is read twice: y = x + f(x)", "dx = dy + (what came back through f)"),
    "The two ways meet: what the sublayer sends back is added to what came straight down. Nothing multiplies the"
    " latter, so the rows do not shrink from block to block.",
)
"""The residual once more, on the far side of its sublayer."""
