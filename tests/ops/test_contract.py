"""The contract of every op, generated over op × backend × dtype × sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from samples import ADAMW, BACKENDS, DTYPES, SAMPLES, Sample, forward
from trial import Trial, distance, same_bits

from fastbp.base.dims import letters
from fastbp.ops.op import Op
from fastbp.ops.registry import OPS

COMPILED = tuple(name for name in BACKENDS if name != "numpy")
CALLS = [(s, way) for s in SAMPLES for way in ("forward", "backward") if s.op.numpy_kernel(way)]
BACKWARDS = [sample for sample, way in CALLS if way == "backward"]


def over_calls(backends: tuple[str, ...] = BACKENDS, chosen: Callable[[Sample, str], bool] = lambda s, way: True):
    """A test for every backend, dtype and call of a sample; it makes its trials with `trial(...)`."""
    cases = [
        pytest.param(sample, way, backend, dtype, id=f"{sample}-{way}-{backend}-{dtype}")
        for sample, way in CALLS if chosen(sample, way) for backend in backends for dtype in DTYPES
    ]  # fmt: skip
    return pytest.mark.parametrize("case", [pytest.param(param.values, id=param.id) for param in cases])


def over_backwards(*backends: str):
    return over_calls(backends or BACKENDS, lambda s, way: way == "backward")


# ---- the argument law ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_definition_names_its_arguments_in_the_declared_order(op: Op, direction: str) -> None:
    kernel = op.numpy_kernel(direction)
    if kernel is None:
        assert op.name == "adamw" or op.passes_gradient == tuple(op.inputs)
        return
    arguments = op.forward_arguments() if direction == "forward" else op.backward_arguments()
    shapes = op.forward_scratch if direction == "forward" else op.scratch
    names = [
        "d" + port if role == "gradient" else port
        for role, port in arguments
        if role != "scratch" or "W" not in letters(shapes[port])  # NumPy has no workers and takes none of their scratch
    ]
    assert list(inspect.signature(kernel).parameters) == ["d", *names]


@pytest.mark.parametrize(
    ("name", "forward_law", "backward_law"),
    [
        ("embedding", "tokens table positions x", "dx tokens dtable dpositions"),
        ("layernorm", "x weight bias y mean rstd", "dy x weight mean rstd dx dweight dbias"),
        ("linear", "x weight bias y panel", "dy x weight dx dweight dbias panel"),
        ("qkv", "x wq wk wv bq bk bv y panel", "dy x wq wk wv dx dwq dwk dwv dbq dbk dbv panel"),
        ("attention", "qkv o p panel", "do qkv p dqkv ds panel"),
        ("attention_dropout", "qkv state o p kept panel", "do qkv state p dqkv ds panel"),
        ("tiled_attention_dropout", "qkv state o lse tiles", "do qkv state o lse dqkv tiles"),
        ("dropout", "x state y", "dy state dx"),
        ("softmax", "s p", "dp p ds"),
        ("gelu", "x y", "dy x dx"),
        ("residual", "x f y", "dy dx df"),
        (
            "linear_cross_entropy",
            "x targets weight losses z panel",
            "dlosses x targets weight dx dweight z panel losses",
        ),
        ("adamw", "hyper p g m v partials norm", "dnorm dhyper dp dg dm dv dpartials"),
    ],
)
def test_the_order_of_arguments_is_as_written(name: str, forward_law: str, backward_law: str) -> None:
    op = OPS[name]
    assert [port for _, port in op.forward_arguments()] == forward_law.split()
    assert ["d" * (role == "gradient") + port for role, port in op.backward_arguments()] == backward_law.split()


FIRSTS = {sample.name: sample for sample in SAMPLES if not sample.without + sample.constant}.values()
over_ops_both_ways = pytest.mark.parametrize(
    ("sample", "way"),
    [
        pytest.param(sample, way, id=f"{sample.name}-{way}")
        for sample in (*FIRSTS, ADAMW) for way in ("forward", "backward") if sample.op.numpy_kernel(way)
    ],
)  # fmt: skip
"""Every op, with all its params."""


def _trial(sample: Sample, way: str) -> Trial:
    """In float32 and on one worker's scratch."""
    ones = {("value", port): 1.0 for port in sample.op.ports()}
    return Trial(sample, way, "numba", "float32", values=ones if sample is ADAMW else None)


@over_ops_both_ways
def test_a_row_holds_phase_dims_attributes_and_addresses_in_order(sample: Sample, way: str) -> None:
    trial = _trial(sample, way)
    call = trial.call()
    phase, *rest = call.row(1)
    dims, rest = rest[: len(trial.op.dims)], rest[len(trial.op.dims) :]
    attributes, addresses = rest[: len(trial.op.attributes)], rest[len(trial.op.attributes) :]
    assert phase == 1
    assert dims == [trial.dims[letter] for letter in trial.op.dims]
    assert [float(np.int64(bits).view(np.float64)) for bits in attributes] == list(trial.sample.attributes.values())
    assert addresses == [0 if array is None else array.ctypes.data for array in call.arrays]
    assert len(addresses) == len(trial.arguments)


def _spoilt(array: np.ndarray) -> dict[str, np.ndarray]:
    size, kind = array.size, array.dtype
    return {
        "too long": np.zeros(size + 1, kind),
        "too short": np.zeros(size - 1, kind),
        "of another kind": np.zeros(size, "int32" if kind != "int32" else "float32"),
        "of another width": np.zeros(size, "float64" if kind != "float64" else "float32"),
        **({"with gaps": np.zeros(2 * size, kind)[::2]} if size > 1 else {}),
    }


@over_ops_both_ways
def test_check_refuses_every_wrong_array(sample: Sample, way: str) -> None:
    trial = _trial(sample, way)
    call = trial.call()
    call.check("float32")
    for i, (role, port) in enumerate(trial.arguments):
        for how, wrong in _spoilt(call.arrays[i]).items():
            spoilt = replace(call, arrays=(*call.arrays[:i], wrong, *call.arrays[i + 1 :]))
            with pytest.raises(ValueError, match=f"^{trial.op.name} {trial.direction}, {port}: .* is due"):
                spoilt.check("float32")
                pytest.fail(f"{port}, {how}, was let through")
        if role == "value" and port not in trial.op.optional:
            with pytest.raises(ValueError, match=f"{port} is missing"):
                replace(call, arrays=(*call.arrays[:i], None, *call.arrays[i + 1 :])).check("float32")
    with pytest.raises(ValueError, match=r"takes \d+ arrays, not"):
        replace(call, arrays=call.arrays[:-1]).check("float32")
    with pytest.raises(ValueError, match="is due"):
        call.check("float64")


# ---- values ----------------------------------------------------------------------------------------------------------


@over_calls()
def test_a_backend_agrees_with_the_definition(case: tuple, tolerance: dict[str, float]) -> None:
    """NumPy itself runs in the dtype here, and is compared with what it says in float64."""
    sample, way, _, dtype = case
    expected = Trial(sample, way, "numpy", "float64").run().results()
    results = Trial(*case).run().results()
    assert results.keys() == expected.keys()
    apart = {port: distance(array, expected[role, port]) for (role, port), array in results.items()}
    assert all(share <= tolerance[dtype] for share in apart.values()), apart


def _slope(sample: Sample, port: str, direction: np.ndarray) -> float:
    """d Σ (d output · output) / d port along a direction, by a central difference of the definition."""
    step = 1e-5
    values = sample.values

    def weighted(distance_from_here: float) -> float:
        moved = values | {("value", port): values["value", port] + distance_from_here * direction}
        outputs = forward(sample, moved)
        return sum(float((values["gradient", name] * outputs[name]).sum()) for name in sample.op.outputs)

    return (weighted(step) - weighted(-step)) / (2 * step)


def _gradients(sample: Sample) -> dict[str, np.ndarray]:
    """Every gradient of the definition in float64, params' from zero; where an op passes it on, that of the output."""
    if sample.op.passes_gradient:
        return dict.fromkeys(sample.op.passes_gradient, sample.values["gradient", "y"])
    trial = Trial(sample, "backward", "numpy", "float64")
    for port in sample.op.params:
        if trial.arrays["gradient", port] is not None:
            trial.arrays["gradient", port][...] = 0
    return {port: array for (role, port), array in trial.run().results().items() if role == "gradient"}


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_backward_is_the_central_difference_of_forward(sample: Sample) -> None:
    random = np.random.default_rng(3)
    gradients = _gradients(sample)
    params = [port for port in sample.op.params if not sample.lacks("gradient", port)]
    assert list(gradients) == [*sample.op.differentiable, *params]
    for port, gradient in gradients.items():
        direction = random.normal(size=gradient.shape)
        length = max(1.0, float(np.linalg.norm(gradient)))
        assert abs(_slope(sample, port, direction) - float((gradient * direction).sum())) <= 5e-9 * length, port


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_agrees(sample: Sample, backend: str, dtype: str, tolerance: dict[str, float]) -> None:
    pytest.importorskip("torch")
    from formulas import torch_gradients

    output, expected = torch_gradients(sample)
    first = next(iter(sample.op.outputs))
    made = Trial(sample, "forward", backend, dtype).run().arrays["value", first]
    assert distance(made, output.numpy()) <= tolerance[dtype]
    if sample.op.passes_gradient:
        gradients = dict.fromkeys(sample.op.passes_gradient, sample.values["gradient", first])
    else:
        trial = Trial(sample, "backward", backend, dtype).run()
        gradients = {port: array for (role, port), array in trial.results().items() if role == "gradient"}
    assert gradients.keys() == expected.keys()
    for port, gradient in gradients.items():
        start = sample.values["gradient", port] if port in sample.op.params else 0
        assert distance(gradient, expected[port].numpy() + start) <= tolerance[dtype], port


# ---- what a kernel reads and writes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", BACKWARDS, ids=str)
def test_a_backward_call_is_given_only_what_it_declares(sample: Sample) -> None:
    """Poison in every tensor outside backward_reads changes nothing, because no address of theirs is handed over."""
    op = sample.op
    clean = Trial(sample, "backward", "numpy", "float64").run().results()
    poison = {("value", port): np.nan for port in op.ports() if port not in op.backward_reads}
    trial = Trial(sample, "backward", "numpy", "float64", values=sample.values | poison)
    given = {port for role, port in trial.arguments if role == "value" and not np.isnan(trial.arrays[role, port]).any()}
    assert given == set(op.backward_reads)
    assert same_bits(trial.run().results(), clean)


@over_calls()
def test_scratch_may_hold_anything(case: tuple) -> None:
    poisoned, clean = Trial(*case), Trial(*case)
    clean.scratch_value = 0.0
    assert same_bits(poisoned.run().results(), clean.run().results())


@over_calls(chosen=lambda sample, way: way == "forward" or bool(sample.op.differentiable))
def test_what_is_filled_is_filled_whole(case: tuple) -> None:
    trial = Trial(*case)
    assert trial.overwritten
    assert all(np.isnan(trial.arrays[key]).all() for key in trial.overwritten)
    trial.run()
    assert all(np.isfinite(trial.arrays[key]).all() for key in trial.overwritten)


@over_backwards()
def test_gradients_of_params_accumulate(case: tuple, tolerance: dict[str, float]) -> None:
    """Twice from a start is the start and twice once from zero."""
    sample, *_, dtype = case
    keys = [("gradient", port) for port in sample.op.params if not sample.lacks("gradient", port)]
    once, twice = Trial(*case), Trial(*case)
    for key in keys:
        once.arrays[key][...] = 0
    once.run()
    twice.run().run()
    for key in keys:
        expected = sample.values[key] + 2 * once.arrays[key].astype(np.float64)
        assert np.abs(once.arrays[key]).max() > 0 or sample.sizes.get("V") == 1
        assert distance(twice.arrays[key], expected) <= tolerance[dtype], key


@over_calls()
def test_inputs_stay_untouched(case: tuple) -> None:
    trial = Trial(*case)
    before = {key: a.copy() for key, a in trial.arrays.items() if a is not None and key not in trial.written}
    assert before
    trial.run()
    assert same_bits({key: trial.arrays[key] for key in before}, before)


@over_calls()
@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_is_written_outside(case: tuple, workers: int) -> None:
    trial = Trial(*case, workers=workers)
    trial.run()
    assert trial.fence.intact()


# ---- bits ------------------------------------------------------------------------------------------------------------


@over_calls()
def test_two_runs_give_the_same_bits(case: tuple) -> None:
    assert same_bits(Trial(*case).run().results(), Trial(*case).run().results())


@over_calls(COMPILED)
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_give_the_same_bits(case: tuple, workers: int) -> None:
    assert same_bits(Trial(*case, workers=workers).run().results(), Trial(*case).run().results())


def _units(sample: Sample) -> tuple[int, int]:
    """How many units the independent dimension has, and a unit's rows: where the op sees T, a whole sequence."""
    along = sample.op.independent_along
    unit = sample.sizes.T if along == "N" and "T" in sample.op.dims else 1
    return sample.sizes[along] // unit, unit


@over_calls(COMPILED, lambda sample, way: _units(sample)[0] > 1)
def test_slices_give_the_same_bits(case: tuple) -> None:
    """Slices of different lengths, one after the other; gradients of params run on from slice to slice."""
    units, unit = _units(case[0])
    cuts = sorted({0, 1, units // 2, units})
    trial = Trial(*case)
    for start, stop in pairwise(cuts):
        trial.run(rows=(start * unit, stop * unit))
    assert same_bits(trial.results(), Trial(*case).run().results())


@over_calls(chosen=lambda sample, way: bool(getattr(sample.op, f"{way}_in_place")))
def test_in_place_gives_the_same_bits(case: tuple) -> None:
    apart, together = Trial(*case).run(), Trial(*case, in_place=True)
    distinct = {array.ctypes.data for array in together.arrays.values() if array is not None}
    assert len(distinct) < len(together.arrays)
    assert same_bits(together.run().results(), apart.results())
    assert together.fence.intact()
