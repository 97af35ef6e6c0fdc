"""What each named policy keeps, how it is written, and what is refused."""

from __future__ import annotations

import pytest

from fastbp.base.errors import InputError
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.policy.named import SELECTIVE, make_plan, policy_names, short_name, without_useless_recompute
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate

BLOCK = "x ln1 ln1.mean ln1.rstd qkv p o mid ln2 ln2.mean ln2.rstd u g"
FINAL = {"final.x", "final.ln", "final.mean", "final.rstd"}


def graph(blocks: int, vocab: int = 2048) -> Graph:
    """A large vocabulary makes the head the peak, so that policies recompute the last block too."""
    return decoder_graph(DecoderConfig(blocks, 16, 2, 64, 16, vocab, attention="materialised"), 1, workers=0)


def kept(policy: str, blocks: int, vocab: int = 2048) -> list[set[str]]:
    """The tensors kept in each block, by their short names; what lies behind the blocks is always kept."""
    plan = make_plan(graph(blocks, vocab), policy)
    assert plan.keep >= FINAL
    of_block: list[set[str]] = [set() for _ in range(blocks)]
    for name in plan.keep - FINAL:
        of_block[int(name.split(".")[1])].add(short_name(name))
    return of_block


def everything_but(*names: str) -> set[str]:
    return set(BLOCK.split()) - set(names)


@pytest.mark.parametrize(
    ("policy", "each_block"),
    [
        ("save_all", everything_but()),
        ("full", {"x"}),
        ("every(1)", {"x"}),
        ("selective(layernorm)", everything_but("ln1", "ln2")),
        ("selective(gelu)", everything_but("g")),
        ("selective(core_attn)", everything_but("p")),
        ("selective(mlp)", everything_but("ln2", "u", "g")),
        ("selective(layernorm, gelu, core_attn, mlp)", everything_but("ln1", "ln2", "u", "g", "p")),
        ("dots", {"x", "qkv", "mid", "u"}),
        ("save_only(qkv, mid)", {"qkv", "mid"}),
        ("save_only(u)", {"u"}),
        ("save_only(ln1.mean, x)", {"ln1.mean", "x"}),
        ("save_only()", set()),
    ],
)
def test_what_is_kept_in_every_block(policy: str, each_block: set[str]) -> None:
    assert kept(policy, 3) == [each_block] * 3


@pytest.mark.parametrize(
    ("policy", "blocks", "inputs"),
    [
        ("every(2)", 5, [0, 2, 4]),
        ("every(3)", 5, [0, 3]),
        ("every(9)", 5, [0]),
        ("sqrt", 1, [0]),
        ("sqrt", 4, [0, 2]),
        ("sqrt", 5, [0, 3]),
        ("sqrt", 9, [0, 3, 6]),
        ("sqrt", 10, [0, 4, 8]),
    ],
)
def test_segments_keep_the_input_of_their_first_block(policy: str, blocks: int, inputs: list[int]) -> None:
    assert kept(policy, blocks) == [{"x"} if i in inputs else set() for i in range(blocks)]


def test_one_tensor_of_one_block_can_be_named() -> None:
    assert kept("save_only(blocks.1.qkv, mid)", 3) == [{"mid"}, {"mid", "qkv"}, {"mid"}]


def test_the_policy_of_a_plan_is_written_in_one_way() -> None:
    found = graph(2)
    for given, written in {
        "full": "full",
        " full ( ) ": "full",
        "every( 2 )": "every(2)",
        "selective(gelu,core_attn)": "selective(gelu, core_attn)",
        "save_only(qkv ,, mid)": "save_only(qkv, mid)",
    }.items():
        plan = make_plan(found, given)
        assert plan.policy == written
        assert make_plan(found, written) == plan
        assert plan.head_rows == head_rows(found)


def test_names_as_they_are_written() -> None:
    assert policy_names() == (
        "save_all", "full", "full_last", "every(k)", "sqrt", "selective(parts)", "dots", "save_only(names)",
        "revolve(slots)", "optimal(SIZE)", "saved(FILE)", "rotor(SIZE)", "greedy(SIZE)", "knapsack(SIZE)",
    )  # fmt: skip


def test_a_short_name_is_the_name_within_a_block() -> None:
    assert short_name("blocks.13.ln1.mean") == "ln1.mean"
    assert short_name("final.ln") == "final.ln"


def test_every_part_of_a_block_names_tensors_that_backward_reads() -> None:
    names = {short_name(name) for name in graph(1).read_by_backward}
    for tensors in SELECTIVE.values():
        assert set(tensors) <= names


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "ful",
            r"policy 'ful' is unknown \(did you mean 'full'\?\): choose save_all, full, full_last, every\(k\), sqrt, ",
        ),
        ("Full", r"policy 'Full' is unknown \(did you mean 'full'\?\)"),
        ("selectiv(gelu)", r"policy 'selectiv\(gelu\)' is unknown \(did you mean 'selective'\?\)"),
        ("every(2", r"policy 'every\(2' is unknown"),
        ("", "policy '' is unknown: choose save_all"),
        ("full\nfull", r"policy 'full\\nfull' is unknown"),
        ("full(2)", r"policy full takes no argument, but 'full\(2\)' gives one: write full"),
        ("sqrt(4)", "policy sqrt takes no argument"),
        ("every", r"policy every\(\): give one whole number of blocks of at least 1, as in every\(2\)"),
        ("every(0)", r"policy every\(0\): give one whole number"),
        ("every(-1)", r"policy every\(-1\): give one whole number"),
        ("every(1.5)", r"policy every\(1.5\): give one whole number"),
        ("every(1, 2)", r"policy every\(1, 2\): give one whole number"),
        ("every(²)", r"policy every\(²\): give one whole number"),
        (f"every({'9' * 5000})", r"policy every\(9+\): give one whole number"),
        ("revolve", r"policy revolve\(\): give one whole number of inputs of at least 1, as in revolve\(2\)"),
        ("revolve(0)", r"policy revolve\(0\): give one whole number"),
        ("rotor", r"policy rotor\(\): give one size, as in rotor\(64MiB\)"),
        ("selective()", r"policy selective\(\) names no part: give some of layernorm, gelu, core_attn, mlp"),
        (
            "selective(core_atn)",
            r"selective\(core_atn\): there is no such part \(did you mean 'core_attn'\?\): choose layer",
        ),
        (
            "save_only(qkw)",
            r"save_only\(qkw\): backward reads no such tensor \(did you mean 'qkv'\?\): choose g, ln1, ln1.mean",
        ),
        ("save_only(blocks.7.qkv)", r"save_only\(blocks.7.qkv\): backward reads no such tensor"),
        ("save_only(z)", r"save_only\(z\): backward reads no such tensor"),
    ],
)
def test_what_is_refused(policy: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}") as caught:
        make_plan(graph(2), policy)
    assert "\n" not in str(caught.value)


def test_the_last_block_stays_whole_where_the_block_is_the_peak() -> None:
    assert kept("full", 3, vocab=16) == [{"x"}, {"x"}, everything_but()]
    assert kept("full_last", 3, vocab=16) == [{"x"}] * 3
    assert kept("selective(gelu)", 2, vocab=16) == [everything_but("g"), everything_but()]


def test_the_last_block_is_given_up_where_the_head_is_the_peak() -> None:
    assert kept("full", 3, vocab=2048) == [{"x"}] * 3


@pytest.mark.parametrize("vocab", [16, 2048])
def test_keeping_the_last_block_never_raises_the_peak(vocab: int) -> None:
    found = graph(3, vocab)
    asked = Plan("full", frozenset(FINAL | {f"blocks.{i}.x" for i in range(3)}), head_rows(found))
    peak = simulate(training_schedule(found, asked)).peak_bytes
    given = simulate(training_schedule(found, without_useless_recompute(found, asked)))
    assert given.peak_bytes == peak
    whole = simulate(training_schedule(found, make_plan(found, "save_all")))
    assert (given.recomputed_flops < simulate(training_schedule(found, asked)).recomputed_flops) == (vocab == 16)
    assert whole.peak_bytes > peak


def test_a_plan_that_recomputes_nothing_comes_back_as_it_is() -> None:
    found = graph(2)
    plan = Plan("save_all", found.read_by_backward, 16)
    assert without_useless_recompute(found, plan) is plan


@pytest.mark.parametrize("preset", ["small", "gpt2"])
def test_keeping_less_takes_less_and_costs_more(preset: str) -> None:
    found = decoder_graph(DecoderConfig.preset(preset, attention="materialised"), 1)
    ladder = ("save_all", "selective(core_attn)", "selective(layernorm, gelu, core_attn, mlp)", "full")
    run = [simulate(training_schedule(found, make_plan(found, policy))) for policy in ladder]
    peaks, costs = [each.peak_bytes for each in run], [each.recomputed_flops for each in run]
    assert peaks == sorted(peaks, reverse=True)
    assert costs == sorted(costs)
    assert len(set(peaks)) == len(set(costs)) == len(ladder)
