"""Every op is registered, and every declaration is sound in itself."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from samples import ADAMW, CONVERSIONS, SAMPLES, Sample

import fastbp.ops
from fastbp.base.dims import letters
from fastbp.ops.op import Op
from fastbp.ops.registry import OPS

MODULES = sorted({path.stem for path in Path(fastbp.ops.__path__[0]).glob("*.py")} - {"__init__", "op", "registry"})
over_ops = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


def test_every_module_is_registered_under_its_name() -> None:
    assert sorted(OPS) == MODULES
    assert all(OPS[name] is importlib.import_module(f"fastbp.ops.{name}").OP for name in MODULES)
    assert all(op.name == name for name, op in OPS.items())


def test_every_op_is_tested() -> None:
    assert {sample.name for sample in SAMPLES} | {ADAMW.name, *CONVERSIONS} == set(OPS)
    assert all((Path(__file__).parent / f"test_{name}.py").exists() for name in OPS)


@over_ops
def test_shapes_use_the_dimensions_that_kernels_get(op: Op) -> None:
    shapes = [*op.ports().values(), *op.forward_scratch.values(), *op.scratch.values()]
    assert {letter for shape in shapes for letter in letters(shape)} <= {*op.dims, "W"}
    assert op.independent_along in op.dims or op.name == "adamw"


@over_ops
def test_lists_of_ports_name_ports(op: Op) -> None:
    assert set(op.optional) <= set(op.params)
    assert {*op.integers, *op.doubles, *op.halves} <= set(op.ports())
    assert set(op.passes_gradient) <= set(op.inputs)
    sizes = [len(part) for part in (op.inputs, op.params, op.outputs, op.saved)]
    assert len(op.ports()) == sum(sizes), "a name stands for two ports"


@over_ops
def test_what_may_share_a_buffer_has_one_shape(op: Op) -> None:
    shapes = op.ports()
    for out, source in op.forward_in_place.items():
        assert out in op.outputs
        assert source in op.inputs
        assert shapes[out] == shapes[source]
    for source, out in op.backward_in_place.items():
        assert out in op.outputs
        assert source in op.differentiable
        assert shapes[out] == shapes[source]
    assert all(shapes[port] == shapes[out] for port in op.passes_gradient for out in op.outputs)


@over_ops
def test_both_backends_have_the_same_directions(op: Op) -> None:
    assert op.numpy_kernel("forward")
    assert op.numba_kernel("forward")
    assert (op.numpy_kernel("backward") is None) == (op.numba_kernel("backward") is None)
    assert op.numpy_kernel("backward") or not op.backward_in_place


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_the_flops_of_slices_add_up(sample: Sample) -> None:
    """Twice the rows are twice the work, forward and backward, and something is always done."""
    op, along = sample.op, sample.op.independent_along
    dims = sample.dims(1)
    double = op.extended(dims.but(**{along: 2 * dims[along]}))
    for count in (op.products, op.pointwise):
        assert count(double) == tuple(2 * flops for flops in count(dims))
    assert min(op.pointwise(dims)) > 0


@pytest.mark.parametrize(
    ("name", "sizes", "forward", "backward"),
    [
        ("linear", {"N": 2, "I": 3, "O": 5}, 60, 120),
        ("qkv", {"N": 2, "C": 3}, 108, 216),
        ("attention", {"B": 2, "T": 5, "C": 6, "H": 2}, 600, 1200),
        ("linear_cross_entropy", {"N": 2, "C": 3, "V": 7}, 84, 168),
    ],
)
def test_products_count_two_flops_a_term(name: str, sizes: dict[str, int], forward: int, backward: int) -> None:
    """Attention's are those of half the square: 2·B·T·T·C forward for two products."""
    op = OPS[name]
    assert op.products(op.extended({**sizes, "W": 1})) == (forward, backward)
