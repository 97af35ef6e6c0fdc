"""Schedule + layout + backend → program: every check, every address, and that a kernel writes only what is its own."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from fastbp.base.dims import Dims
from fastbp.graph.config import DecoderConfig
from fastbp.ops.registry import OPS
from fastbp.run.backend import choose_backend
from fastbp.run.bind import Binder, Call
from fastbp.run.decoder import Decoder
from fastbp.run.instruction import Instruction
from fastbp.schedule.actions import Free, Reduce, written
from fastbp.schedule.plan import Slices

BACKENDS = ("numpy", "numba", "cython")
SEED = DecoderConfig.preset("seed")
BIASED = DecoderConfig(2, 6, 2, 10, 4, 9)


def ready(backend: str, config: DecoderConfig = BIASED, policy: str = "full", rows: int | None = None) -> Decoder:
    decoder = Decoder(config, 3, policy=policy, backend=backend, workers=1)
    if rows:
        decoder = Decoder(config, 3, plan=replace(decoder.plan, head_rows=rows), backend=backend, workers=1)
    random = np.random.default_rng(5)
    for values in decoder.parameters.values():
        values[...] = random.standard_normal(values.shape)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, config.vocab, ids.shape)
    return decoder


def binder(decoder: Decoder, backend: str = "numpy") -> Binder:
    host = {"tokens": decoder.tokens, "targets": decoder.targets, "losses": decoder.losses}
    values = {**decoder.parameters, **host}
    gradients = {**decoder.gradients, "losses": decoder.row_weights}
    chosen = choose_backend(backend)
    return Binder(decoder.schedule, decoder.layout, decoder.arena, values, gradients, decoder.dtype, chosen)


# --- one call -------------------------------------------------------------------------------------------------------

LINEAR = OPS["linear"].extended({"N": 2, "I": 3, "O": 4, "W": 1})


def linear(dtype: str = "float32", bias: bool = True) -> list[np.ndarray | None]:
    shapes = [(2, 3), (3, 4), (4,), (2, 4), (1, LINEAR.P)]
    arrays: list[np.ndarray | None] = [np.ones(shape, dtype) for shape in shapes]
    return arrays if bias else [*arrays[:2], None, *arrays[3:]]


def call(arrays: list[np.ndarray | None], direction: str = "forward") -> Call:
    return Call(OPS["linear"], direction, LINEAR, {}, tuple(arrays))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", [True, False])
def test_what_is_declared_passes(dtype: str, bias: bool) -> None:
    call(linear(dtype, bias)).check(dtype)


@pytest.mark.parametrize(
    ("slot", "wrong", "message"),
    [
        (0, np.ones((2, 4), "float32"), r"linear forward, x: float32 \(2, 4\) where float32 \(2, 3\) is due"),
        (1, np.ones((3, 4), "float64"), r"linear forward, weight: float64 \(3, 4\) where float32 \(3, 4\) is due"),
        (1, np.ones((4, 3), "float32").T, r"linear forward, weight: float32 \(3, 4\) where .* is due, contiguous"),
        (3, np.ones((2, 8), "float32")[:, ::2], "linear forward, y: .* is due, contiguous"),
        (4, np.ones((1, 7), "float32"), r"linear forward, panel: float32 \(1, 7\) where"),
        (0, None, "linear forward, x is missing"),
        (3, None, "linear forward, y is missing"),
    ],
)
def test_what_is_not_declared_is_refused(slot: int, wrong: np.ndarray | None, message: str) -> None:
    arrays = linear()
    arrays[slot] = wrong
    with pytest.raises(ValueError, match=message):
        call(arrays).check("float32")


def test_a_call_with_too_few_arrays_is_refused() -> None:
    with pytest.raises(ValueError, match="linear forward takes 5 arrays, not 4"):
        call(linear()[:4]).check("float32")
    with pytest.raises(ValueError, match="linear backward takes 7 arrays, not 5"):
        call(linear(), "backward").check("float32")


def test_token_ids_are_int32() -> None:
    op, dims = OPS["embedding"], Dims({"N": 4, "T": 2, "C": 3, "V": 5})
    arrays = [
        np.zeros(4, np.int32),
        np.zeros((5, 3), "float32"),
        np.zeros((2, 3), "float32"),
        np.zeros((4, 3), "float32"),
    ]
    Call(op, "forward", dims, {}, tuple(arrays)).check("float32")
    arrays[0] = np.zeros(4, np.int64)
    with pytest.raises(ValueError, match=r"embedding forward, tokens: int64 \(4,\) where int32"):
        Call(op, "forward", dims, {}, tuple(arrays)).check("float32")


def test_a_row_is_phase_dims_attributes_addresses() -> None:
    arrays = linear(bias=False)
    row = call(arrays).row(2)
    addresses = [0 if array is None else array.ctypes.data for array in arrays]
    assert row == (2, 2, 3, 4, LINEAR.P, *addresses)
    assert row[7] == 0
    x, y = np.ones((2, 3), "float32"), np.ones((2, 3), "float32")
    gelu = Call(OPS["gelu"], "forward", Dims({"N": 2, "F": 3}), {"tanh": 1.0}, (x, y)).row(0)
    assert gelu == (0, 2, 3, struct.unpack("<q", struct.pack("<d", 1.0))[0], x.ctypes.data, y.ctypes.data)


def test_a_negative_attribute_keeps_its_bits() -> None:
    arrays = (np.ones((2, 3), "float32"), np.ones((2, 3), "float32"))
    row = Call(OPS["gelu"], "forward", Dims({"N": 2, "F": 3}), {"tanh": -0.5}, arrays).row(0)
    assert struct.unpack("<d", struct.pack("<q", row[3]))[0] == -0.5


def test_the_numpy_call_sees_the_declared_shapes() -> None:
    qkv, o, p = np.ones(2 * 3 * 12, "float32"), np.zeros(2 * 3 * 4, "float32"), np.zeros(2 * 2 * 9, "float32")
    dims = OPS["attention"].extended({"B": 2, "T": 3, "C": 4, "H": 2, "W": 0})
    none = np.empty((0, dims.P), "float32")
    Call(OPS["attention"], "forward", dims, {}, (qkv, o, p, none)).numpy()()
    np.testing.assert_allclose(
        p.reshape(2, 2, 3, 3)[1, 1], np.tril(np.ones((3, 3))) / np.array([[1], [2], [3]]), rtol=1e-6
    )
    np.testing.assert_allclose(o, 1, rtol=1e-6)


# --- the program ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [None, 5])
def test_every_action_but_free_is_called_once_in_order_and_once_a_phase(rows: int | None, backend: str) -> None:
    decoder = ready(backend, rows=rows)
    expected = []
    for tick, action in enumerate(decoder.schedule.actions):
        if isinstance(action, Free):
            continue
        node = None if isinstance(action, Reduce) else decoder.graph.by_name[action.node]
        direction = "backward" if action.letter == "B" else "forward"
        phases = node.op.phases(direction) if node and decoder.backend.compiled else 1
        name = node.name if node else written(action)
        expected += [(tick, name, direction)] * phases
    found = decoder.gradients_program.instructions
    assert [(each.tick, each.node, each.direction) for each in found] == expected
    head = [each for each in found if each.node == "losses"]
    if decoder.backend.compiled:
        assert [each.row[0] for each in head] == [0, 1, 2] * (len(head) // 3)
        assert all(each.address and not each.call for each in found)
    else:
        assert all(each.call and not each.address for each in found)


def test_a_tensor_is_found_where_it_is_live() -> None:
    decoder = ready("numpy")
    bound = binder(decoder)
    # Under full, block 0's qkv lives twice: when it is computed, and when it is brought back.
    lives = [
        (buffer, offset)
        for buffer, offset in zip(decoder.layout.buffers, decoder.layout.offsets, strict=True)
        if "blocks.0.qkv" in buffer.names
    ]
    assert len(lives) == 2
    for buffer, offset in lives:
        for tick in (buffer.born, buffer.dies - 1):
            view = bound.in_arena(tick, "blocks.0.qkv", (12, 18), "float32")
            assert view.ctypes.data == decoder.arena.address + offset
        with pytest.raises(KeyError, match=f"tick {buffer.dies}: blocks.0.qkv has no buffer"):
            bound.in_arena(buffer.dies, "blocks.0.qkv", (12, 18), "float32")


def test_a_reduce_adds_in_place() -> None:
    decoder = ready("numba")
    reduces = [each for each in decoder.gradients_program.instructions if each.node.startswith("+ ")]
    assert [each.node for each in reduces] == ["+ d:final.x"] * 4
    for each in reduces:
        _, one, size, total, part, into = each.row
        assert (one, size) == (1, 12 * 6)
        assert total == into != part
        assert each.outputs[0][0] == "d:final.x"


@pytest.mark.parametrize("slices", [(), (Slices(1, 2),) * 2])
def test_a_packed_slice_lies_where_its_rows_do(slices: tuple[Slices, ...]) -> None:
    plan = replace(ready("numba", policy="save_all").plan, slices=slices, packed=frozenset({"blocks.1.u"}))
    decoder = Decoder(BIASED, 3, plan=plan, backend="numba", workers=1)
    packs, unpacks = ([i for i in decoder.gradients_program.instructions if i.op == op] for op in ("pack", "unpack"))
    rows = [(start, start + 2) for start in range(0, 12, 2)] if slices else [None]
    assert [each.node for each in packs] == ["P blocks.1.u" + (f"[{r[0]}:{r[1]}]" if r else "") for r in rows]
    assert [each.node.replace("U", "P") for each in unpacks] == [each.node for each in packs]
    for one, other in zip(packs, unpacks, strict=True):
        assert one.row[1:3] == other.row[1:3] == (1, 12 * 10 // len(rows))
        assert one.row[4] == other.row[3] == packs[0].row[4] + 2 * 10 * (packs.index(one) * 2)
        assert one.outputs[0][0] == "bf16:blocks.1.u"
        assert one.outputs[0][1].dtype == np.uint16


def test_a_slice_of_the_head_begins_at_its_rows() -> None:
    decoder = ready("cython", rows=5)
    phases = [each for each in decoder.gradients_program.instructions if each.node == "losses"]
    firsts = phases[::3]
    assert [each.row[1] for each in firsts] == [5, 5, 2]
    addresses = decoder.row_weights.ctypes.data, decoder.targets.ctypes.data, decoder.losses.ctypes.data
    for each, start in zip(firsts, (0, 5, 10), strict=True):
        assert (each.row[5], each.row[7], each.row[13]) == tuple(address + 4 * start for address in addresses)
        assert each.row[8] == decoder.parameters["wte"].ctypes.data
        assert each.row[10] == decoder.gradients["wte"].ctypes.data
        assert each.row[9] - firsts[0].row[9] == 4 * 6 * start


def test_an_absent_bias_and_a_constants_gradient_have_no_address() -> None:
    decoder = ready("numba", SEED)
    by_node = {(each.node, each.direction): each for each in decoder.gradients_program.instructions}
    assert by_node["blocks.0.proj", "forward"].row[7] == 0
    assert by_node["blocks.0.proj", "backward"].row[10] == 0
    assert by_node["blocks.0.qkv", "forward"].row[8:11] == (0, 0, 0)
    assert by_node["blocks.0.x", "backward"].row[8] == 0
    assert by_node["blocks.0.u", "forward"].row[7] == decoder.parameters["blocks.0.mlp.b1"].ctypes.data


def test_a_kernel_is_announced_before_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def address(op: str, direction: str, dtype: str, progress: Callable[[str], None]) -> int:
        progress(f"{op} {direction}")
        return 1

    monkeypatch.setattr("fastbp.run.backend.numba_address", address)
    decoder = Decoder(BIASED, 3, backend="numba", workers=1, progress=heard.append)
    assert heard[0] == "embedding forward"
    heard.clear()
    replace(binder(decoder, "numba"), progress=heard.append, _offsets={}).program()
    assert "tiled_attention backward" in heard
    assert "residual forward" in heard


def test_parameters_of_another_shape_are_refused() -> None:
    decoder = ready("numpy")
    bound = binder(decoder)
    wrong = replace(bound, values={**bound.values, "blocks.0.mlp.w1": np.ones((6, 11), "float32")}, _offsets={})
    with pytest.raises(ValueError, match="cannot reshape array of size 66"):
        wrong.program()
    double = replace(bound, values={**bound.values, "wte": np.ones((9, 6), "float64")}, _offsets={})
    with pytest.raises(ValueError, match="embedding forward, table: float64"):
        double.program()


# --- nobody writes elsewhere ----------------------------------------------------------------------------------------


def memory(decoder: Decoder) -> dict[str, np.ndarray]:
    """Everything that a kernel could reach, as bytes."""
    flat = {"parameters": decoder.parameters.flat, "gradients": decoder.gradients.flat}
    host = {
        "tokens": decoder.tokens,
        "targets": decoder.targets,
        "losses": decoder.losses,
        "weights": decoder.row_weights,
    }
    whole = decoder.arena.view(0, (decoder.arena.size_bytes + 4096,), "uint8")
    return {"arena": whole} | {name: array.reshape(-1).view("uint8") for name, array in {**flat, **host}.items()}


def allowed(decoder: Decoder, instruction: Instruction, where: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Which bytes an instruction may write: its outputs and its scratch."""
    masks = {name: np.zeros(array.size, bool) for name, array in where.items()}
    for _, output in instruction.outputs:
        for name, array in where.items():
            start = output.ctypes.data - array.ctypes.data
            if 0 <= start < array.size:
                masks[name][start : start + output.nbytes] = True
    for buffer, offset in zip(decoder.layout.buffers, decoder.layout.offsets, strict=True):
        if buffer.category in ("scratch", "logits") and buffer.born == instruction.tick:
            masks["arena"][offset : offset + buffer.nbytes] = True
    return masks


def steps(decoder: Decoder) -> Iterator[tuple[Instruction, dict[str, np.ndarray]]]:
    """Runs the program one instruction at a time; yields each with the bytes that it changed."""
    where = memory(decoder)
    program = decoder.gradients_program.compiled
    for i, instruction in enumerate(decoder.gradients_program.instructions):
        before = {name: array.copy() for name, array in where.items()}
        if program is None:
            assert instruction.call
            instruction.call()
        else:
            program.run_alone(i, i + 1, decoder.workers)
        yield instruction, {name: array != before[name] for name, array in where.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("policy", ["save_all", "full", "save_only(u)"])
@pytest.mark.parametrize("rows", [None, 5])
def test_an_instruction_writes_its_outputs_and_its_scratch_alone(rows: int | None, policy: str, backend: str) -> None:
    decoder = ready(backend, policy=policy, rows=rows)
    for instruction, changed in steps(decoder):
        mask = allowed(decoder, instruction, memory(decoder))
        for name, bytes_changed in changed.items():
            stray = np.flatnonzero(bytes_changed & ~mask[name])
            assert not stray.size, f"{instruction.node} {instruction.direction} wrote to {name} at byte {stray[0]}"
