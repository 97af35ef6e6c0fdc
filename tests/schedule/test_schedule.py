"""Plan → schedule: golden schedules as words, early stop, and when the last block is kept.

A word is an action: F forward, R recompute, B backward, + reduce, - free; "(a<b)" says that a is written over b.
Blocks go by their number: "F0.qkv" is "F blocks.0.qkv".
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.policy.named import make_plan
from fastbp.schedule.actions import Action, Backward, Forward, Free, Recompute, written
from fastbp.schedule.effects import Effects
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.schedule import Schedule, evaluation_schedule, training_schedule
from fastbp.schedule.simulate import simulate


def graph(blocks: int, vocab: int = 16) -> Graph:
    """A small vocabulary makes the block the peak, a large one the head."""
    return decoder_graph(DecoderConfig(blocks, 16, 2, 64, 16, vocab, attention="materialised"), 1, workers=0)


def short(name: str) -> str:
    return name.replace("blocks.", "").replace(" ", "")


def words(schedule: Schedule, frees: bool = True) -> list[str]:
    def word(action: Action) -> str:
        takes = action.takes if frees and isinstance(action, Forward | Backward) else ()
        return short(written(action)) + "".join(f"({short(new)}<{short(old)})" for new, old in takes)

    return [word(action) for action in schedule.actions if frees or not isinstance(action, Free)]


def schedule_of(policy: str, blocks: int, vocab: int = 16) -> Schedule:
    found = graph(blocks, vocab)
    return training_schedule(found, make_plan(found, policy))


SAVE_ALL_1 = """
F0.x F0.ln1 F0.qkv F0.o F0.proj F0.mid(0.mid<0.proj) F0.ln2 F0.u F0.g F0.z Ffinal.x(final.x<0.z) Ffinal.ln
Blosses -final.ln Bfinal.ln -d:final.ln -final.x -final.mean -final.rstd
B0.z -0.g B0.g(d:0.u<d:0.g) -0.u B0.u -d:0.u -0.ln2 B0.ln2 -d:0.ln2 -0.mid -0.ln2.mean -0.ln2.rstd
+d:final.x -d:0.mid+0.ln2
B0.proj -0.o B0.o -d:0.o -0.qkv -0.p B0.qkv -d:0.qkv -0.ln1 B0.ln1 -d:0.ln1 -0.x -0.ln1.mean -0.ln1.rstd
+d:final.x -d:0.x+0.ln1
B0.x -d:final.x
"""

FULL_1 = """
F0.x F0.ln1 -0.ln1.mean -0.ln1.rstd F0.qkv -0.ln1 F0.o -0.qkv -0.p F0.proj -0.o F0.mid(0.mid<0.proj)
F0.ln2 -0.ln2.mean -0.ln2.rstd F0.u -0.ln2 F0.g(0.g<0.u) F0.z -0.g Ffinal.x(final.x<0.z) -0.mid Ffinal.ln
Blosses -final.ln Bfinal.ln -d:final.ln -final.x -final.mean -final.rstd
R0.ln1 R0.qkv R0.o R0.proj R0.mid(0.mid<0.proj) R0.ln2 R0.u R0.g
B0.z -0.g B0.g(d:0.u<d:0.g) -0.u B0.u -d:0.u -0.ln2 B0.ln2 -d:0.ln2 -0.mid -0.ln2.mean -0.ln2.rstd
+d:final.x -d:0.mid+0.ln2
B0.proj -0.o B0.o -d:0.o -0.qkv -0.p B0.qkv -d:0.qkv -0.ln1 B0.ln1 -d:0.ln1 -0.x -0.ln1.mean -0.ln1.rstd
+d:final.x -d:0.x+0.ln1
B0.x -d:final.x
"""

FORWARD_2 = """
F0.x F0.ln1 F0.qkv F0.o F0.proj F0.mid F0.ln2 F0.u F0.g F0.z F1.x
F1.ln1 F1.qkv F1.o F1.proj F1.mid F1.ln2 F1.u F1.g F1.z Ffinal.x Ffinal.ln
"""
HEAD = " Blosses Bfinal.ln "
BLOCK_1 = " B1.z B1.g B1.u B1.ln2 +d:final.x B1.proj B1.o B1.qkv B1.ln1 +d:final.x "
BLOCK_0 = " B0.z B0.g B0.u B0.ln2 +d:final.x B0.proj B0.o B0.qkv B0.ln1 +d:final.x B0.x "
AGAIN_0 = " R0.ln1 R0.qkv R0.o R0.proj R0.mid R0.ln2 R0.u R0.g "
AGAIN_1 = AGAIN_0.replace("0.", "1.")


@pytest.mark.parametrize(
    ("policy", "vocab", "golden"),
    [
        ("save_all", 16, SAVE_ALL_1),
        ("save_all", 256, SAVE_ALL_1),
        ("full", 256, FULL_1),
        ("every(2)", 256, FULL_1),
        ("full", 16, SAVE_ALL_1),  # the block is the peak: bringing it back would not lower it
        ("every(2)", 16, SAVE_ALL_1),
    ],
)
def test_golden_schedules_of_one_block_with_every_buffer(policy: str, vocab: int, golden: str) -> None:
    assert words(schedule_of(policy, 1, vocab)) == golden.split()


@pytest.mark.parametrize(
    ("policy", "vocab", "golden"),
    [
        ("save_all", 16, FORWARD_2 + HEAD + BLOCK_1 + BLOCK_0),
        ("full", 16, FORWARD_2 + HEAD + BLOCK_1 + AGAIN_0 + BLOCK_0),
        ("full", 256, FORWARD_2 + HEAD + AGAIN_1 + BLOCK_1 + AGAIN_0 + BLOCK_0),
        ("every(2)", 16, FORWARD_2 + HEAD + BLOCK_1 + AGAIN_0 + BLOCK_0),
    ],
)
def test_golden_schedules_of_two_blocks(policy: str, vocab: int, golden: str) -> None:
    assert words(schedule_of(policy, 2, vocab), frees=False) == golden.split()


def test_a_segment_of_two_blocks_is_brought_back_at_once_and_its_second_input_with_it() -> None:
    found = graph(2)
    final = frozenset(name for name in found.read_by_backward if name.startswith("final"))
    schedule = training_schedule(found, Plan("every(2)", final | {"blocks.0.x"}, head_rows(found)))
    again = AGAIN_0 + " R0.z R1.x " + AGAIN_1
    assert words(schedule, frees=False) == (FORWARD_2 + HEAD + again + BLOCK_1 + BLOCK_0).split()


def test_evaluation_runs_forward_to_the_losses_and_keeps_nothing() -> None:
    found = graph(1)
    schedule = evaluation_schedule(found, make_plan(found, "save_all"))
    forward = FULL_1.split("Blosses")[0].replace("Ffinal.ln", "-0.x -final.x")
    head = "-final.x -final.mean -final.rstd Flosses -final.ln"
    assert words(schedule)[-5:] == head.split()
    assert [word for word in words(schedule) if word[0] == "F"] == [
        word for word in [*forward.split(), "Ffinal.ln", "Flosses"] if word[0] == "F"
    ]
    assert schedule.plan.policy == "evaluation"
    assert not schedule.plan.keep


@pytest.mark.parametrize("rows", [1, 5, 8, 15, 16, 99])
def test_the_head_runs_in_slices_that_cover_every_row_once(rows: int) -> None:
    found = graph(1)
    plan = Plan("save_all", found.read_by_backward, rows)
    for schedule, kind in ((training_schedule(found, plan), Backward), (evaluation_schedule(found, plan), Forward)):
        slices = [action.rows for action in schedule.actions if isinstance(action, kind) and action.node == "losses"]
        if rows >= 16:
            assert slices == [None]
            continue
        assert [start for start, _ in slices] == list(range(0, 16, rows))  # type: ignore[misc]
        assert [stop for _, stop in slices] == [*range(rows, 16, rows), 16]  # type: ignore[misc]


def keeps() -> st.SearchStrategy[tuple[int, frozenset[str]]]:
    """Any subset of what backward reads, in a decoder of up to three blocks."""
    return st.integers(1, 3).flatmap(
        lambda blocks: st.tuples(
            st.just(blocks), st.frozensets(st.sampled_from(sorted(graph(blocks).read_by_backward)))
        )
    )


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(keeps())
def test_nothing_is_recomputed_that_nobody_reads(drawn: tuple[int, frozenset[str]]) -> None:
    blocks, keep = drawn
    found = graph(blocks)
    schedule = training_schedule(found, Plan("drawn", keep, head_rows(found)))
    effects = Effects(found)
    recomputed = [action.node for action in schedule.actions if isinstance(action, Recompute)]
    assert len(recomputed) == len(set(recomputed))
    for tick, action in enumerate(schedule.actions):
        if isinstance(action, Recompute):
            outputs = set(effects.of(action).writes) - keep
            assert outputs, f"{written(action)} brings back what was kept"
            readers = [later for later in schedule.actions[tick + 1 :] if outputs & set(effects.of(later).reads)]
            assert readers, f"nobody reads what {written(action)} brings back"


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(keeps())
def test_what_is_kept_stays_from_its_forward_to_its_last_reader(drawn: tuple[int, frozenset[str]]) -> None:
    blocks, keep = drawn
    found = graph(blocks)
    buffers = simulate(training_schedule(found, Plan("drawn", keep, head_rows(found)))).buffers
    for name in keep:
        assert len([buffer for buffer in buffers if name in buffer.names]) == 1


@pytest.mark.parametrize("policy", ["full", "every(1)", "selective(layernorm, gelu, core_attn, mlp)", "save_only(u)"])
def test_early_stop_leaves_out_a_blocks_last_product(policy: str) -> None:
    # Its output is read by the sum behind it alone, and that one is the next block's kept input or comes from it.
    schedule = schedule_of(policy, 3, 256)
    last = [f"{i}.z" for i in range(3)] if policy != "save_only(u)" else ["2.z"]
    recomputed = [word[1:] for word in words(schedule, frees=False) if word[0] == "R"]
    assert recomputed
    assert not set(last) & set(recomputed)


@pytest.mark.parametrize(("vocab", "recomputed"), [(16, False), (256, True)])
@pytest.mark.parametrize("policy", ["full", "selective(gelu)"])
def test_the_last_block_is_recomputed_only_where_that_lowers_the_peak(
    policy: str, vocab: int, recomputed: bool
) -> None:
    found = graph(2, vocab)
    plan = make_plan(found, policy)
    assert any(word.startswith("R1.") for word in words(training_schedule(found, plan))) == recomputed
    dropped = {name.replace("blocks.0.", "blocks.1.") for name in found.read_by_backward - plan.keep}
    last = frozenset(name for name in found.read_by_backward if name.startswith("blocks.1."))
    whole = simulate(training_schedule(found, plan.keeping(last))).peak_bytes
    without = simulate(training_schedule(found, Plan("", plan.keep - dropped, plan.head_rows))).peak_bytes
    assert (without < whole) == recomputed


def test_the_same_plan_gives_the_same_schedule() -> None:
    assert schedule_of("every(2)", 3).actions == schedule_of("every(2)", 3).actions
