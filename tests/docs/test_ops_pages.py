"""The pages on ops say of every op what it declares."""

from __future__ import annotations

import re
from math import prod

import pytest
from pages import DOCS, Page, code, rows

from fastbp.base.dims import Dims
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.ops.op import Op
from fastbp.ops.registry import OPS
from fastbp.policy.named import short_name

SHIPPED = {name: op for name, op in OPS.items() if op.forward.__module__.startswith("fastbp.")}
SECTIONS = [
    (heading, text) for path in sorted((DOCS / "ops").glob("*.md")) for heading, text in Page(path).sections().items()
]
SIZES = Dims({letter: 3 + 2 * i for i, letter in enumerate("BTCHFVIOZKQ")})
TABLE_OF_A_BLOCK = "One block, one token"
every_op = pytest.mark.parametrize("op", SHIPPED.values(), ids=lambda op: op.name)


def value(formula: str, dims: Dims) -> int:
    """A formula of dimensions, as "2·N·C"."""
    assert re.fullmatch(r"[A-Z0-9·+() ]+", formula), formula
    return int(eval(formula.replace("·", "*"), {}, dict(dims)))


def declared(op: Op) -> dict[str, str]:
    """The table in an op's section."""
    (text,) = [text for heading, text in SECTIONS if heading == op.name]
    return {name: what for name, what in rows(text)}


def sizes(op: Op) -> Dims:
    dims = SIZES.but(N=SIZES.B * SIZES.T)
    return Dims({**dims, **{letter: 1 for letter in op.dims if letter not in dims}})


def test_every_op_has_a_section_and_only_one() -> None:
    found = [heading for heading, _ in SECTIONS]
    assert sorted(name for name in found if name in SHIPPED) == sorted(SHIPPED)


@every_op
def test_a_section_has_its_formulas(op: Op) -> None:
    (text,) = [text for heading, text in SECTIONS if heading == op.name]
    assert "```text\n" in text
    if op.backward:
        assert re.search(r"^backward ", text, re.MULTILINE)


@every_op
def test_what_is_saved_and_what_backward_reads(op: Op) -> None:
    table = declared(op)
    for name, ports in (("saves", tuple(op.saved)), ("backward reads", op.backward_reads)):
        assert tuple(code(table[name])) == ports
        assert ports or table[name] == "nothing"


@every_op
def test_bytes_a_token(op: Op) -> None:
    dims = sizes(op)
    saved = 4 * sum(prod(op.shape(port, dims)) for port in op.saved)
    written = declared(op).get("bytes a token", "`0`")
    assert value(*code(written), dims) * dims.N == saved


@every_op
@pytest.mark.parametrize(("row", "field"), [("products", "products"), ("other FLOPs", "pointwise")])
def test_flops(op: Op, row: str, field: str) -> None:
    dims = sizes(op)
    assert tuple(value(formula, dims) for formula in code(declared(op)[row])) == getattr(op, field)(dims)


@every_op
def test_what_is_written_over_what(op: Op) -> None:
    pairs = [pair for out, into in op.forward_in_place.items() for pair in (out, into)]
    pairs += [pair for port, out in op.backward_in_place.items() for pair in (f"d{port}", f"d{out}")]
    assert code(declared(op).get("in place", "")) == pairs


def test_no_table_says_more_than_these() -> None:
    known = {"saves", "backward reads", "bytes a token", "products", "other FLOPs", "in place"}
    assert all(declared(op).keys() <= known for op in SHIPPED.values())


def block_table() -> list[list[str]]:
    return rows(Page(DOCS / "ops/index.md").sections()[TABLE_OF_A_BLOCK])


def test_the_table_of_a_block_has_what_backward_reads() -> None:
    """Every tensor of a block, in the order of the graph, with its bytes."""
    config = DecoderConfig.preset("small", width=96, heads=3, feed_forward=160, context=32)
    graph = decoder_graph(config, batch=2)
    dims = Dims({"C": 96, "H": 3, "F": 160, "T": 32})
    found = {short_name(name): graph.bytes_of(name) // graph.tokens for name in graph.tensors
             if name.startswith("blocks.1.") and name in graph.read_by_backward}  # fmt: skip
    written = {code(name)[0]: value(code(nbytes)[0], dims) for name, _, _, nbytes in block_table()}
    assert written == found


def test_the_sum_of_a_block() -> None:
    dims = Dims({"C": 96, "H": 3, "F": 4 * 96})
    text = Page(DOCS / "ops/index.md").sections()[TABLE_OF_A_BLOCK]
    (total,) = re.findall(r"it comes to `([^`]+)` bytes", text)
    assert value(total, dims) == sum(value(code(nbytes)[0], dims) for *_, nbytes in block_table())
