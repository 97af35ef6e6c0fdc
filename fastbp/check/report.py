"""Everything that `check` finds out about one backend, each figure beside its limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fastbp.check.against_torch import (
    ABSOLUTE_LIMIT,
    RELATIVE_LIMIT,
    TENSOR_LIMIT,
    TENSORS,
    Autograd,
    against_torch,
    torch_twin,
)
from fastbp.check.finite_difference import ERROR_LIMIT, WEIGHTS, FiniteDifference, finite_difference
from fastbp.check.properties import (
    FUTURE_LIMIT,
    LINEAR_LIMIT,
    PROJECTION_LIMIT,
    RESIDUAL_LIMIT,
    FutureScores,
    Linear,
    Orthogonality,
    Residual,
    future_scores,
    layernorm_projection,
    residual_copies,
    seed_linear,
)
from fastbp.check.seed_window import gradients_of, seed_decoder, spread_vectors
from fastbp.check.torch_available import torch_version


@dataclass(frozen=True)
class Figure:
    """A number, and what it may be: at most its limit (≤), exactly it (=), or above it (>). NaN is never admitted."""

    part: str
    what: str
    value: float
    relation: str
    limit: float

    @property
    def passed(self) -> bool:
        if self.relation == "≤":
            return self.value <= self.limit
        return self.value == self.limit if self.relation == "=" else self.limit < self.value < math.inf

    def line(self) -> str:
        """The figure for people, at most 80 columns wide."""
        mark = "✓" if self.passed else "✗"
        bound = f"{self.relation} {_number(self.limit)}"
        return f"{mark} {self.part:<18} {self.what:<36} {_number(self.value):>9} {bound}"


@dataclass(frozen=True)
class CheckReport:
    """The findings on one backend. `autograd` is None where torch cannot be asked, and `autograd_reason` says why."""

    backend: str
    seed: int
    autograd: Autograd | None
    autograd_reason: str | None
    finite_difference: FiniteDifference
    future_scores: FutureScores
    layernorm: Orthogonality
    residual: Residual
    linear: Linear

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every number that is judged."""
        return (*self._gradient_figures(), *self._property_figures())

    def _gradient_figures(self) -> list[Figure]:
        figures = []
        if self.autograd is not None:
            figures = [
                Figure("autograd", "‖Δ‖ / ‖g‖ over all gradients", self.autograd.relative, "≤", RELATIVE_LIMIT),
                Figure("autograd", "max |Δ|", self.autograd.max_absolute, "≤", ABSOLUTE_LIMIT),
                Figure("autograd", "max|Δ| / max|g|, worst tensor", self.autograd.max_relative, "≤", TENSOR_LIMIT),
                Figure("autograd", "tensors", self.autograd.tensors, "=", TENSORS),
            ]
        found = self.finite_difference
        return [
            *figures,
            Figure("finite difference", "max |difference − gradient|", found.max_error, "≤", ERROR_LIMIT),
            Figure("finite difference", "weights", found.weights, "=", WEIGHTS),
        ]

    def _property_figures(self) -> list[Figure]:
        residual, linear = self.residual, self.linear
        return [
            Figure("softmax", "max |dS| over future positions", self.future_scores.max_abs, "=", FUTURE_LIMIT),
            Figure("softmax", "max |dS| over the others", self.future_scores.past_max_abs, ">", 0),
            Figure("layernorm", "|cos| of dx and 1", self.layernorm.ones, "≤", PROJECTION_LIMIT),
            Figure("layernorm", "|cos| of dx and x − mean", self.layernorm.x_hat, "≤", PROJECTION_LIMIT),
            Figure("residual", "that share dy's buffer with both", residual.shared, "=", residual.nodes),
            Figure("residual", "max |difference − dy|", residual.max_error, "≤", RESIDUAL_LIMIT),
            Figure("linear", f"max |Δ| of dx, {linear.against}", linear.dx_max_error, "≤", LINEAR_LIMIT),
            Figure("linear", f"max |Δ| of dw, {linear.against}", linear.dw_max_error, "≤", LINEAR_LIMIT),
        ]

    @property
    def passed(self) -> bool:
        """Whether every figure keeps its limit; without torch, every other figure."""
        return all(figure.passed for figure in self.figures)

    def to_json(self) -> dict[str, Any]:
        """Plain values under the fields' names, and `passed`. A number that is not finite becomes null."""
        found: dict[str, Any] = _finite(asdict(self))
        return {**found, "passed": self.passed}

    def lines(self) -> list[str]:
        """The table for people, at most 80 columns wide."""
        head = f"fastbp check: backend {self.backend}, seed {self.seed}, the window 'alice was' in float64"
        missing = [] if self.autograd_reason is None else [f"- {'autograd':<18} skipped: {self.autograd_reason}"]
        failed = sum(not figure.passed for figure in self.figures)
        return [head, *missing, *(figure.line() for figure in self.figures), *self._worst(), _verdict(failed)]

    def _worst(self) -> list[str]:
        """Where the gradients are worst, if they fail."""
        lines = []
        failed = {figure.part for figure in self.figures if not figure.passed}
        if self.autograd is not None and "autograd" in failed:
            lines.append(f"  autograd is worst at {self.autograd.worst}")
        if "finite difference" in failed:
            lines.append(f"  the finite differences are worst at {self.finite_difference.worst}")
        return lines


def check(
    backend: str = "auto",
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> CheckReport:
    """Checks one backend. `progress` hears the name of each kernel that is compiled or loaded.

    Raises InputError for an unknown backend or a seed outside 64 bits. A failed check raises nothing: see `passed`.
    """
    decoder = seed_decoder(backend, seed, workers=workers, progress=progress)
    twin = torch_twin()
    autograd = against_torch(decoder, gradients_of(decoder), twin) if twin else None
    residual = residual_copies(decoder, seed)
    spread_vectors(decoder, seed)
    return CheckReport(
        backend=decoder.backend.name,
        seed=seed,
        autograd=autograd,
        autograd_reason=None if twin else _why_no_torch(),
        finite_difference=finite_difference(decoder, gradients_of(decoder), seed),
        future_scores=future_scores(decoder, seed),
        layernorm=layernorm_projection(decoder, seed),
        residual=residual,
        linear=seed_linear(decoder, seed, twin),
    )


def _why_no_torch() -> str:
    version = torch_version()
    return "torch is not installed" if version is None else f"torch {version} is installed but does not load"


def _verdict(failed: int) -> str:
    return "all passed" if failed == 0 else f"{failed} FAILED"


def _number(value: float) -> str:
    """Counts in full, the rest with two digits."""
    return f"{value:g}" if float(value).is_integer() else f"{value:.1e}"


def _finite(value: Any) -> Any:
    """`value` with None for every float that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
