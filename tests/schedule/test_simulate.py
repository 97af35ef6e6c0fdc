"""simulate against a naive count of bytes and hand formulas, and the cheating schedules that it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph, Node
from fastbp.policy.named import make_plan
from fastbp.schedule.actions import Action, Backward, Forward, Free, Recompute, Reduce, written
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.schedule import Schedule, evaluation_schedule, training_schedule
from fastbp.schedule.simulate import CATEGORIES, IllegalSchedule, padded, simulate

POLICIES = ("save_all", "full", "every(2)", "selective(core_attn, gelu)", "save_only(qkv, mid)", "save_only(u)")


def graph(blocks: int = 2, vocab: int = 256, batch: int = 1, workers: int = 0) -> Graph:
    return decoder_graph(DecoderConfig(blocks, 16, 2, 64, 16, vocab, attention="materialised"), batch, workers=workers)


def schedule_of(policy: str, found: Graph) -> Schedule:
    return training_schedule(found, make_plan(found, policy))


# --- bytes, counted once more ---------------------------------------------------------------------------------------


class Naive:
    """Names that are live, nothing else. Knows the decoder's residual stream, and none of the code under test."""

    def __init__(self, found: Graph) -> None:
        self.graph = found
        self.live: dict[str, int] = {}
        self.home: dict[tuple[str, str], str] = {}
        owner: dict[str, str] = {}
        for node in reversed(found.nodes):
            for port in node.op.inputs:
                tensor = node.ports[port]
                if found.tensors[tensor].kind != "activation":
                    continue
                if tensor in owner:
                    self.home[node.name, port] = f"d:{tensor}+{node.name}"
                elif node.op_name == "residual":
                    owner[tensor] = owner[node.ports["y"]]
                else:
                    owner[tensor] = self.home[node.name, port] = f"d:{tensor}"

    def hold(self, action: Forward | Backward, name: str, tensor: str) -> None:
        """The tensor's bytes under a name, or those of a slice under the slice's."""
        rows, tokens = dict(action.local).get(name), self.graph.nodes[0].dims["N"]
        size = prod(self.graph.tensors[tensor].shape) * self.graph.itemsize
        if rows:
            name, size = f"{name}[{rows[0]}:{rows[1]}]", size * (rows[1] - rows[0]) // tokens
        self.live[name] = -(-size // 64) * 64

    def step(self, action: Action) -> int:
        if isinstance(action, Free):
            del self.live[action.tensor]
        elif not isinstance(action, Reduce):
            for _, old in action.takes:
                del self.live[old]
            node = self.graph.by_name[action.node]
            if isinstance(action, Backward):
                for port in node.op.inputs:
                    if (node.name, port) in self.home:
                        self.hold(action, self.home[node.name, port], node.ports[port])
            else:
                for port in (*node.op.outputs, *node.op.saved):
                    if node.ports[port] != "losses":
                        self.hold(action, node.ports[port], node.ports[port])
            return sum(self.live.values()) + self.scratch(node, action)
        return sum(self.live.values())

    def scratch(self, node: Node, action: Forward | Backward) -> int:
        dims = dict(node.dims)
        if action.rows:
            dims = dict(node.op.extended({**dims, node.op.independent_along: action.rows[1] - action.rows[0]}))
        shapes = node.op.scratch if isinstance(action, Backward) else node.op.forward_scratch
        return sum(
            -(-prod(dims[letter] for letter in shape.split()) * self.graph.itemsize // 64) * 64
            for shape in shapes.values()
        )


def assert_bytes_agree(schedule: Schedule) -> None:
    simulation = simulate(schedule)
    naive = Naive(schedule.graph)
    counted = [naive.step(action) for action in schedule.actions]
    assert list(simulation.live_bytes) == counted
    assert simulation.peak_bytes == max(counted)
    assert simulation.peak_tick == counted.index(max(counted))
    by_lifetime = [
        sum(buffer.nbytes for buffer in simulation.buffers if buffer.born <= tick < buffer.dies)
        for tick in range(len(schedule.actions))
    ]
    assert by_lifetime == counted


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rows", [5, 16])
def test_live_bytes_agree_with_a_naive_count(policy: str, workers: int, rows: int) -> None:
    found = graph(workers=workers)
    plan = replace(make_plan(found, policy), head_rows=rows)
    assert_bytes_agree(training_schedule(found, plan))
    assert_bytes_agree(evaluation_schedule(found, plan))


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(st.frozensets(st.sampled_from(sorted(graph(3).read_by_backward))), st.integers(1, 3))
def test_live_bytes_agree_with_a_naive_count_for_any_plan(keep: frozenset[str], batch: int) -> None:
    found = graph(3, vocab=19, batch=batch)
    assert_bytes_agree(training_schedule(found, Plan("drawn", keep, head_rows(found))))


def test_save_all_keeps_what_the_formula_says() -> None:
    # Per token and block, float32, F = 4C: 64C + 4HT + 16. Behind the last block: final.x, mean, rstd, ln.
    C, H, T, B, L = 16, 2, 16, 3, 2
    found = graph(L, batch=B)
    per_token = L * (64 * C + 4 * H * T + 16) + 4 * C + 8 + 4 * C
    assert simulate(schedule_of("save_all", found)).kept_bytes == B * T * per_token


def test_full_keeps_the_blocks_inputs() -> None:
    found = graph(3, batch=3)
    assert simulate(schedule_of("full", found)).kept_bytes == 3 * 16 * (3 * 64 + 64 + 8 + 64)


@pytest.mark.parametrize(("nbytes", "padded_bytes"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_a_buffer_takes_whole_cache_lines(nbytes: int, padded_bytes: int) -> None:
    assert padded(nbytes) == padded_bytes


def test_categories_add_up_to_the_live_bytes() -> None:
    simulation = simulate(schedule_of("full", graph(workers=2)))
    for tick, live in enumerate(simulation.live_bytes):
        parts = simulation.bytes_by_category(tick)
        assert tuple(parts) == CATEGORIES
        assert sum(parts.values()) == live
    head = next(t for t, action in enumerate(simulation.schedule.actions) if written(action) == "B losses")
    parts = simulation.bytes_by_category(head)
    assert parts["logits"] == 16 * 256 * 4
    assert parts["gradients"] == 16 * 16 * 4
    assert parts["kept"] == 16 * (3 * 64 + 8 + 64)
    assert parts["scratch"] > 0
    assert parts["working"] == 0


def test_live_at_lists_the_largest_first() -> None:
    simulation = simulate(schedule_of("save_all", graph()))
    live = simulation.live_at(simulation.peak_tick)
    assert sum(buffer.nbytes for buffer in live) == simulation.peak_bytes
    assert [buffer.nbytes for buffer in live] == sorted((buffer.nbytes for buffer in live), reverse=True)


def test_a_buffer_that_is_taken_over_is_one_buffer_with_two_names() -> None:
    simulation = simulate(schedule_of("save_all", graph(1)))
    (middle,) = [buffer for buffer in simulation.buffers if "blocks.0.mid" in buffer.names]
    assert middle.names == ("blocks.0.proj", "blocks.0.mid")
    assert middle.category == "kept"


# --- FLOPs ----------------------------------------------------------------------------------------------------------


def test_save_all_recomputes_nothing() -> None:
    simulation = simulate(schedule_of("save_all", graph()))
    assert (simulation.recomputed_flops, simulation.extra_flops_share) == (0, 0.0)


def test_extra_flops_of_full_follow_the_formula() -> None:
    B, T, C, H, F, V, L = 2, 16, 16, 2, 64, 5, 3
    N = B * T
    found = graph(L, vocab=V, batch=B)
    products = 6 * N * C * C + 2 * B * T * T * C + 2 * N * C * C + 2 * N * C * F  # qkv, attention, proj, u; not z
    norms, biases, adds = 2 * 8 * N * C, 3 * N * C + N * C + N * F, N * C
    block = products + norms + biases + adds + 3 * B * H * T * T + 12 * N * F
    simulation = simulate(schedule_of("full", found))
    assert simulation.recomputed_flops == (L - 1) * block  # the last block stays whole: the head is no peak
    assert simulation.extra_flops_share == (L - 1) * block / found.flops_per_pass
    assert 0.1 < simulation.extra_flops_share < 1 / 3


# --- cheating -------------------------------------------------------------------------------------------------------

Edit = Callable[[list[Action]], list[Action]]


def at(actions: list[Action], word: str, after: int = 0) -> int:
    return next(i for i, action in enumerate(actions) if i >= after and written(action) == word)


def move(word: str, before: str) -> Edit:
    def edit(actions: list[Action]) -> list[Action]:
        actions.insert(at(actions, before), actions.pop(at(actions, word)))
        return actions

    return edit


def drop(word: str) -> Edit:
    def edit(actions: list[Action]) -> list[Action]:
        del actions[at(actions, word)]
        return actions

    return edit


def add(action: Action, before: str) -> Edit:
    def edit(actions: list[Action]) -> list[Action]:
        actions.insert(at(actions, before), action)
        return actions

    return edit


def replaced(word: str, action: Action) -> Edit:
    def edit(actions: list[Action]) -> list[Action]:
        actions[at(actions, word)] = action
        return actions

    return edit


def take(word: str, new: str, old: str, without_free: bool = True) -> Edit:
    """The action writes `new` over `old`."""

    def edit(actions: list[Action]) -> list[Action]:
        i = at(actions, word)
        action = actions[i]
        assert isinstance(action, Forward | Backward)
        actions[i] = replace(action, takes=((new, old),))
        if without_free:
            del actions[at(actions, f"- {old}", i)]
        return actions

    return edit


STREAM = "d:final.x"
CHEATS: dict[str, tuple[str, Edit, str]] = {
    "frees before forward reads": (
        "save_all", move("- blocks.0.x", "F blocks.0.ln1"),
        "F blocks.0.ln1: it reads blocks.0.x, which is not live",
    ),
    "frees before backward reads": (
        "save_all", move("- blocks.1.p", "B blocks.1.o"),
        "B blocks.1.o: it reads blocks.1.p, which is not live",
    ),
    "frees a gradient before it is read": (
        "save_all", move("- d:blocks.1.qkv", "B blocks.1.qkv"),
        "B blocks.1.qkv: it reads d:blocks.1.qkv, which is not live",
    ),
    "frees twice": (
        "save_all", add(Free("blocks.1.g"), "B blocks.1.u"),
        "- blocks.1.g: it is not live",
    ),
    "frees what never was": (
        "save_all", add(Free("blocks.9.g"), "B losses"),
        "- blocks.9.g: it is not live",
    ),
    "leaves a tensor live": (
        "save_all", drop("- blocks.0.qkv"),
        "at the end blocks.0.qkv is still live",
    ),
    "leaves the stream's gradient live": (
        "full", drop(f"- {STREAM}"),
        "at the end d:final.x is still live",
    ),
    "recomputes from a freed input": (
        "full", move("- blocks.0.x", "R blocks.0.ln1"),
        "R blocks.0.ln1: it reads blocks.0.x, which is not live",
    ),
    "does not recompute": (
        "full", drop("R blocks.0.g"),
        "B blocks.0.z: it reads blocks.0.g, which is not live",
    ),
    "recomputes too late": (
        "full", move("R blocks.0.g", "B blocks.0.g"),
        "B blocks.0.z: it reads blocks.0.g, which is not live",
    ),
    "skips a forward": (
        "save_all", drop("F blocks.1.o"),
        "F blocks.1.proj: it reads blocks.1.o, which is not live",
    ),
    "writes over what is read later": (
        "save_all", take("F blocks.1.g", "blocks.1.g", "blocks.1.u"),
        "B blocks.1.g: it reads blocks.1.u, which is not live",
    ),
    "takes the buffer of what the action does not read": (
        "save_all", take("F blocks.1.mid", "blocks.1.mid", "blocks.0.mid"),
        "F blocks.1.mid: blocks.1.mid takes the buffer of blocks.0.mid, which it does not read",
    ),
    "takes a buffer of another size": (
        "save_all", take("B blocks.1.z", "d:blocks.1.g", STREAM, without_free=False),
        "B blocks.1.z: d:blocks.1.g takes the buffer of d:final.x, which has another size",
    ),
    "writes over its input where the op cannot": (
        "save_all", take("B blocks.1.z", "d:blocks.1.g", "blocks.1.g"),
        "B blocks.1.z: d:blocks.1.g takes the buffer of blocks.1.g, over which its op cannot write it",
    ),
    "takes a buffer for what is live": (
        "save_all", add(Recompute("blocks.1.g", None, (("blocks.1.g", "blocks.1.u"),)), "B blocks.1.z"),
        "R blocks.1.g: blocks.1.g is live already",
    ),
    "runs a backward twice": (
        "save_all", add(Backward("blocks.1.z"), "- blocks.1.g"),
        "B blocks.1.z: it begins at row 0, 16 is due",
    ),
    "skips rows": (
        "save_all", replaced("B losses", Backward("losses", (8, 16))),
        "B losses[8:16]: it begins at row 8, 0 is due",
    ),
    "stops before the last row": (
        "save_all", replaced("B losses", Backward("losses", (0, 8))),
        "B final.ln: it reads rows (0, 16) of d:final.ln, which has (0, 8)",
    ),
    "leaves out the embedding's gradient": (
        "save_all", drop("B blocks.0.x"),
        "at the end B blocks.0.x has walked 0 of 16 rows",
    ),
    "frees what was taken over": (
        "save_all", add(Free("blocks.1.proj"), "F blocks.1.ln2"),
        "- blocks.1.proj: it is not live",
    ),
    "adds a part before it exists": (
        "save_all", move(f"+ {STREAM}", "B blocks.1.ln2"),
        "+ d:final.x: it reads d:blocks.1.mid+blocks.1.ln2, which is not live",
    ),
    "adds a part too early": (
        "save_all", add(Reduce(STREAM, STREAM), "B blocks.1.proj"),
        "B blocks.1.proj: 2 parts were added to d:final.x, 1 are due",
    ),
    "adds a part too late": (
        "save_all", move("B blocks.1.proj", f"+ {STREAM}"),
        "B blocks.1.proj: 0 parts were added to d:final.x, 1 are due",
    ),
    "forgets a part": (
        "save_all", drop(f"+ {STREAM}"),
        "B blocks.1.proj: 0 parts were added to d:final.x, 1 are due",
    ),
    "reads a gradient before it exists": (
        "save_all", move("B blocks.1.u", "B blocks.1.g"),
        "B blocks.1.u: it reads d:blocks.1.u, which is not live",
    ),
    "reads the stream's gradient before the head": (
        "save_all", move("B blocks.1.z", "B losses"),
        "B blocks.1.z: it reads d:final.x, which is not live",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheating_schedule_is_refused_and_told_where(name: str) -> None:
    policy, edit, message = CHEATS[name]
    schedule = schedule_of(policy, graph())
    cheat = Schedule(schedule.graph, schedule.plan, tuple(edit(list(schedule.actions))))
    assert cheat.actions != schedule.actions
    with pytest.raises(IllegalSchedule) as caught:
        simulate(cheat)
    if message.startswith("at the end"):
        assert str(caught.value) == message
        return
    found = re.fullmatch(r"tick (\d+), (.*)", str(caught.value))
    assert found
    assert found[2] == message
    assert written(cheat.actions[int(found[1])]) == message.split(": ")[0]


def test_a_recompute_may_repeat_what_is_still_there() -> None:
    # Wasteful, not wrong: the same values are written again.
    schedule = schedule_of("save_all", graph())
    actions = list(schedule.actions)
    for _ in range(2):
        actions = add(Recompute("blocks.1.g"), "B blocks.1.z")(actions)
    simulation = simulate(Schedule(schedule.graph, schedule.plan, tuple(actions)))
    assert simulation.peak_bytes == simulate(schedule).peak_bytes
    assert simulation.recomputed_flops == 2 * 12 * 16 * 64
