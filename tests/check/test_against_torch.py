from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from fastbp.check import against_torch as module
from fastbp.check.against_torch import ABSOLUTE_LIMIT, RELATIVE_LIMIT, TENSOR_LIMIT, against_torch, compare, torch_twin
from fastbp.check.seed_window import gradients_of, seed_decoder

BACKENDS = pytest.mark.parametrize("backend", ["numpy", "numba", "cython"])

Gradients = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def gradients() -> Gradients:
    return gradients_of(seed_decoder("numpy"))


@pytest.fixture
def twin() -> ModuleType:
    pytest.importorskip("torch")
    found = torch_twin()
    assert isinstance(found, ModuleType)
    return found


@BACKENDS
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_agree_with_autograd(backend: str, seed: int, twin: ModuleType) -> None:
    decoder = seed_decoder(backend, seed)
    found = against_torch(decoder, gradients_of(decoder), twin)
    assert found.tensors == 27
    assert found.relative <= RELATIVE_LIMIT
    assert found.max_absolute <= ABSOLUTE_LIMIT
    assert found.max_relative <= TENSOR_LIMIT


def test_gradients_of_other_weights_do_not_agree(twin: ModuleType) -> None:
    decoder = seed_decoder("numpy")
    before = gradients_of(decoder)
    decoder.parameters["blocks.0.attn.wv"][3, 5] += 1e-9
    assert against_torch(decoder, before, twin).relative > RELATIVE_LIMIT


def test_equal_gradients_differ_by_nothing(gradients: Gradients) -> None:
    found = compare(gradients, gradients)
    assert (found.relative, found.max_absolute, found.max_relative, found.tensors) == (0, 0, 0, 27)


def test_a_gradient_scaled_by_a_trillionth_fails_every_limit(gradients: Gradients) -> None:
    scaled = {name: values * (1 + 1e-12) for name, values in gradients.items()}
    found = compare(scaled, gradients)
    assert found.relative == pytest.approx(1e-12, rel=1e-3)
    assert found.max_relative == pytest.approx(1e-12, rel=1e-3)
    assert found.max_absolute > ABSOLUTE_LIMIT


def test_the_smallest_tensor_is_judged_by_its_own_measure(gradients: Gradients) -> None:
    scaled = gradients | {"blocks.0.attn.wq": gradients["blocks.0.attn.wq"] * (1 + 1e-12)}
    found = compare(scaled, gradients)
    assert found.relative <= RELATIVE_LIMIT
    assert found.max_absolute <= ABSOLUTE_LIMIT
    assert found.max_relative > TENSOR_LIMIT
    assert found.worst == "blocks.0.attn.wq"


@pytest.mark.parametrize(
    ("one", "other"), [("attn.wq", "attn.wk"), ("ln1.weight", "ln2.weight"), ("ln1.bias", "mlp.b2")]
)
def test_two_tensors_swapped_are_found(one: str, other: str, gradients: Gradients) -> None:
    a, b = f"blocks.1.{one}", f"blocks.1.{other}"
    swapped = gradients | {a: gradients[b], b: gradients[a]}
    found = compare(swapped, gradients)
    assert found.max_relative > TENSOR_LIMIT
    assert found.worst in (a, b)


def test_a_nan_keeps_no_limit(gradients: Gradients) -> None:
    spoilt = gradients | {"blocks.1.mlp.b1": np.full(32, np.nan)}
    found = compare(spoilt, gradients)
    assert not found.relative <= RELATIVE_LIMIT
    assert not found.max_absolute <= ABSOLUTE_LIMIT
    assert not found.max_relative <= TENSOR_LIMIT
    assert found.worst == "blocks.1.mlp.b1"


def test_a_tensor_that_should_be_zero_and_is_not_is_infinitely_wrong() -> None:
    zero, one = {"a": np.zeros(2)}, {"a": np.ones(2)}
    assert compare(zero, zero).max_relative == 0
    assert compare(one, zero).max_relative == np.inf
    assert compare(one, zero).relative == np.inf


def test_another_set_of_tensors_is_refused(gradients: Gradients) -> None:
    fewer = {name: values for name, values in gradients.items() if name != "blocks.0.mlp.w2"}
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp\.w2"):
        compare(fewer, gradients)
    with pytest.raises(ValueError, match="wte"):
        compare(gradients | {"wte": gradients["wte"].T}, gradients)


def test_no_twin_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "torch_version", lambda: None)
    assert torch_twin() is None


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_no_twin_where_torch_does_not_load(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise error("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr(module, "torch_version", lambda: "2.0")
    monkeypatch.setattr("importlib.import_module", broken)
    assert torch_twin() is None


def test_importing_does_not_import_torch() -> None:
    code = "import sys; import fastbp.check.against_torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
