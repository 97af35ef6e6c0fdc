"""What follows from a declaration: arguments in order, shapes, slices."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from fastbp.ops.op import FIRST, Op


def _kernel(*arguments: object) -> None:
    raise AssertionError("declarations run nothing")


def _compiled(args: int, worker: int, workers: int) -> None:
    raise AssertionError("declarations run nothing")


TOY = Op(
    name="toy",
    dims=("N", "C", "P"),
    inputs={"x": "N C", "ids": "N"},
    integers=("ids",),
    params={"w": "C", "b": "C"},
    optional=("b",),
    outputs={"y": "N 3C", "losses": "N"},
    saved={"r": "N"},
    backward_reads=("x", "w", "r"),
    forward_scratch={"panel": "W P"},
    scratch={"z": "N 2C", "panel": "W P"},
    derive=lambda d: {"P": 2 * d.C},
    forward_phases=2,
    backward_phases=3,
    forward=_kernel,
    backward=None,
    numba_forward=_compiled,
    numba_backward=None,
    pointwise=lambda d: (d.N, 2 * d.N),
)


def test_forward_takes_inputs_params_outputs_saved_and_scratch() -> None:
    values = [("value", port) for port in ("x", "ids", "w", "b", "y", "losses", "r")]
    assert TOY.forward_arguments() == (*values, ("scratch", "panel"))


def test_backward_takes_d_outputs_reads_d_inputs_d_params_and_scratch() -> None:
    assert TOY.backward_arguments() == (
        *(("gradient", "y"), ("gradient", "losses"), ("value", "x"), ("value", "w"), ("value", "r")),
        *(("gradient", "x"), ("gradient", "w"), ("gradient", "b"), ("scratch", "z"), ("scratch", "panel")),
    )


def test_outputs_come_last_where_backward_yields_them() -> None:
    yielding = replace(TOY, backward_yields_outputs=True)
    assert yielding.backward_arguments() == (*TOY.backward_arguments(), ("value", "y"), ("value", "losses"))


def test_integers_have_no_gradient() -> None:
    assert TOY.differentiable == ("x",)


def test_a_read_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"op toy: backward reads \['z', 'q'\]"):
        replace(TOY, backward_reads=("x", "z", "q"))


def test_a_declaration_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        TOY.name = "other"  # type: ignore[misc]


def test_derived_dimensions_are_added() -> None:
    dims = TOY.extended({"N": 5, "C": 4, "W": 2})
    assert dict(dims) == {"N": 5, "C": 4, "W": 2, "P": 8}
    assert TOY.extended(dims.but(C=7)).P == 14


@pytest.mark.parametrize(
    ("port", "shape"),
    [
        ("x", (5, 4)),
        ("ids", (5,)),
        ("b", (4,)),
        ("y", (5, 12)),
        ("r", (5,)),
        ("scratch:panel", (2, 8)),
        ("scratch:z", (5, 8)),
    ],
)
def test_shapes(port: str, shape: tuple[int, ...]) -> None:
    assert TOY.shape(port, TOY.extended({"N": 5, "C": 4, "W": 2})) == shape


def test_an_unknown_port_has_no_shape() -> None:
    with pytest.raises(KeyError):
        TOY.shape("q", {"N": 5, "C": 4})


def test_a_slice_cuts_what_begins_with_the_independent_dimension() -> None:
    assert [port for port in [*TOY.ports(), "q"] if TOY.sliced(port)] == ["x", "ids", "y", "losses", "r"]
    other = replace(TOY, independent_along="C")
    assert [port for port in other.ports() if other.sliced(port)] == ["w", "b"]


def test_a_cut_tells_where_it_begins_to_an_op_that_asks() -> None:
    dims = TOY.extended({"N": 50, "C": 4, "W": 2})
    assert TOY.cut(dims, 20, 30) == TOY.extended(dims.but(N=10))
    asking = replace(TOY, dims=(*TOY.dims, FIRST))
    dims = asking.extended({**dims, FIRST: 100})
    assert asking.cut(dims, 20, 30) == asking.extended(dims.but(N=10, **{FIRST: 120}))


def test_kernels_and_phases_by_direction() -> None:
    assert (TOY.numpy_kernel("forward"), TOY.numpy_kernel("backward")) == (_kernel, None)
    assert (TOY.numba_kernel("forward"), TOY.numba_kernel("backward")) == (_compiled, None)
    assert (TOY.phases("forward"), TOY.phases("backward")) == (2, 3)


def test_an_op_without_matrix_products_has_no_flops_there() -> None:
    assert TOY.products(TOY.extended({"N": 5, "C": 4})) == (0, 0)
