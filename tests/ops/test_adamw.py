"""AdamW: five updates against the algorithm and against torch, and what must not happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from samples import BACKENDS, DTYPES, Sample
from trial import Trial, distance

from fastbp.base.dims import Dims
from fastbp.ops.adamw import PART

over_backends = pytest.mark.parametrize("backend", BACKENDS)
over_dtypes = pytest.mark.parametrize("dtype", DTYPES)
Z, K = 2 * PART + 177, PART + 33
STATE = ("p", "g", "m", "v")
HYPER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "decay": 0.1, "clip": 0.0}


def gradient(t: int, size: int = Z) -> np.ndarray:
    return np.random.default_rng(t).normal(size=size)


@dataclass
class Adamw:
    """One parameter buffer and its optimiser, run by a backend."""

    backend: str
    dtype: str
    K: int = K
    workers: int = 1
    hyper: dict[str, float] = field(default_factory=lambda: dict(HYPER))
    size: int = Z

    def __post_init__(self) -> None:
        self.state = {"p": gradient(0, self.size), "m": np.zeros(self.size), "v": np.zeros(self.size)}

    def update(self, t: int, g: np.ndarray) -> float:
        """One update, the t-th; returns the norm. The state is read back from the arrays that the kernel wrote."""
        h = self.hyper
        hyper = [
            h["lr"],
            h["beta1"],
            h["beta2"],
            h["eps"],
            h["decay"],
            1 - h["beta1"] ** t,
            1 - h["beta2"] ** t,
            h["clip"],
        ]
        sample = Sample("adamw", Dims({"Z": self.size, "K": self.K}))
        values = {**self.state, "g": g, "hyper": hyper, "partials": np.nan}
        values = {("value", port): value for port, value in values.items()}
        trial = Trial(sample, "forward", self.backend, self.dtype, workers=self.workers, values=values).run()
        assert trial.fence.intact()
        assert np.array_equal(trial.arrays["value", "hyper"], hyper)
        self.state = {port: trial.arrays["value", port] for port in STATE}
        return float(trial.arrays["value", "norm"][0])


def algorithm(t: int, K: int, h: dict[str, float], p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray) -> float:
    """Loshchilov and Hutter's algorithm 2 in place, in float64; returns the norm."""
    norm = float(np.linalg.norm(g))
    if h["clip"]:
        g = g * min(1, h["clip"] / (norm + 1e-6))
    m[:] = h["beta1"] * m + (1 - h["beta1"]) * g
    v[:] = h["beta2"] * v + (1 - h["beta2"]) * g**2
    p[:K] *= 1 - h["lr"] * h["decay"]
    p -= h["lr"] * (m / (1 - h["beta1"] ** t)) / (np.sqrt(v / (1 - h["beta2"] ** t)) + h["eps"])
    return norm


@over_backends
@over_dtypes
@pytest.mark.parametrize("clip", [0.0, 3.0, 1e9])
@pytest.mark.parametrize("decaying", [0, 1, K, Z])
def test_five_updates_are_the_algorithms(
    backend: str, dtype: str, clip: float, decaying: int, tolerance: dict[str, float]
) -> None:
    adamw = Adamw(backend, dtype, decaying, hyper={**HYPER, "clip": clip})
    expected = {port: array.copy() for port, array in adamw.state.items()}
    for t in range(1, 6):
        norm = algorithm(t, decaying, adamw.hyper, g=gradient(t), **expected)
        assert abs(adamw.update(t, gradient(t)) / norm - 1) <= tolerance[dtype]
        for port, array in expected.items():
            assert distance(adamw.state[port], array) <= tolerance[dtype], (t, port)
        assert not adamw.state["g"].any()


@over_backends
@over_dtypes
def test_five_updates_are_torchs(backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    torch = pytest.importorskip("torch")
    adamw = Adamw(backend, dtype, hyper={**HYPER, "clip": 3.0})
    start = torch.from_numpy(adamw.state["p"].copy())
    decaying, others = start[:K].clone().requires_grad_(), start[K:].clone().requires_grad_()
    groups = [{"params": [decaying], "weight_decay": HYPER["decay"]}, {"params": [others], "weight_decay": 0.0}]
    peer = torch.optim.AdamW(groups, lr=HYPER["lr"], betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["eps"])
    for t in range(1, 6):
        decaying.grad, others.grad = torch.from_numpy(gradient(t)[:K].copy()), torch.from_numpy(gradient(t)[K:].copy())
        norm = float(torch.nn.utils.clip_grad_norm_([decaying, others], 3.0))
        peer.step()
        assert abs(adamw.update(t, gradient(t)) / norm - 1) <= tolerance[dtype]
    assert distance(adamw.state["p"], torch.cat([decaying, others]).detach().numpy()) <= tolerance[dtype]


@over_backends
@over_dtypes
def test_only_the_first_k_decay(backend: str, dtype: str) -> None:
    """Where every gradient is zero nothing else moves a weight."""
    adamw = Adamw(backend, dtype)
    before = adamw.state["p"].astype(dtype)
    adamw.update(1, np.zeros(Z))
    assert np.array_equal(adamw.state["p"][K:], before[K:])
    assert distance(adamw.state["p"][:K], before[:K] * (1 - 1e-3)) < 1e-6
    assert (adamw.state["p"][:K] != before[:K]).all()


@over_backends
@over_dtypes
def test_clipping_is_by_the_norm_of_all(backend: str, dtype: str) -> None:
    """A gradient ten times as large makes the same update once both are clipped; below the limit nothing is clipped."""
    small, large = (Adamw(backend, dtype, hyper={**HYPER, "clip": 1.0}) for _ in range(2))
    norms = small.update(1, gradient(1)), large.update(1, 10 * gradient(1))
    assert abs(norms[1] / norms[0] - 10) < 1e-5
    assert distance(large.state["m"], small.state["m"]) <= 1e-9  # 1e-6 is added to the norm
    assert abs(np.linalg.norm(small.state["m"] / (1 - HYPER["beta1"])) - 1) < 1e-5
    unclipped, loose = Adamw(backend, dtype), Adamw(backend, dtype, hyper={**HYPER, "clip": 1e6})
    unclipped.update(1, gradient(1))
    loose.update(1, gradient(1))
    assert all(np.array_equal(unclipped.state[port], loose.state[port]) for port in STATE)


@over_backends
@over_dtypes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, PART, Z - 1])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_gradient_that_is_not_finite_changes_nothing(
    backend: str, dtype: str, bad: float, place: int, workers: int
) -> None:
    adamw = Adamw(backend, dtype, workers=workers, hyper={**HYPER, "clip": 1.0})
    adamw.update(1, gradient(1))
    before = {port: array.copy() for port, array in adamw.state.items()}
    g = gradient(2)
    g[place] = bad
    assert not np.isfinite(adamw.update(2, g))
    assert all(adamw.state[port].tobytes() == before[port].tobytes() for port in ("p", "m", "v"))
    assert adamw.state["g"].tobytes() == g.astype(dtype).tobytes()


@over_backends
def test_the_norm_of_huge_gradients_does_not_overflow(backend: str) -> None:
    """10²⁰ squared is beyond float32."""
    adamw = Adamw(backend, "float32", hyper={**HYPER, "clip": 1.0})
    norm = adamw.update(1, np.full(Z, 1e20))
    assert abs(norm / (1e20 * Z**0.5) - 1) < 1e-6
    assert np.isfinite(adamw.state["p"]).all()
    assert distance(adamw.state["m"], np.full(Z, (1 - HYPER["beta1"]) * Z**-0.5)) < 1e-6


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "numpy"])
@over_dtypes
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(("size", "decaying"), [(Z, K), (17, 5), (1, 1), (3 * PART, PART)])
def test_workers_give_the_same_bits(backend: str, dtype: str, workers: int, size: int, decaying: int) -> None:
    """The norm too: its sum's parts do not depend on the workers."""
    runs = [Adamw(backend, dtype, decaying, count, size=size, hyper={**HYPER, "clip": 1.0}) for count in (1, workers)]
    for t in (1, 2):
        assert len({run.update(t, gradient(t, size)) for run in runs}) == 1
        assert all(runs[0].state[port].tobytes() == runs[1].state[port].tobytes() for port in STATE)


def test_parts_cover_every_element() -> None:
    parts: Callable[[int], int] = lambda size: Sample("adamw", Dims({"Z": size, "K": 0})).dims(1).Q  # noqa: E731
    assert [parts(size) for size in (1, PART, PART + 1, 2 * PART)] == [1, 1, 2, 2]
