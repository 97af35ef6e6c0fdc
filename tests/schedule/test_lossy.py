"""Packed tensors in a schedule: golden schedules, every plan's bytes, and the cheats that are refused.

Words are those of tests/schedule/test_schedule.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbp.base.errors import InputError
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.graph.graph import Graph
from fastbp.schedule.actions import Action, Free, Pack, Unpack, written
from fastbp.schedule.local import packed
from fastbp.schedule.plan import Plan, Slices, head_rows
from fastbp.schedule.schedule import Schedule, evaluation_schedule, training_schedule
from fastbp.schedule.simulate import IllegalSchedule, simulate


def graph(blocks: int = 1, batch: int = 1, dtype: str = "float32") -> Graph:
    config = DecoderConfig(blocks, 16, 2, 64, 16, 16, attention="materialised")
    return decoder_graph(config, batch, workers=0, dtype=dtype)


def plan_of(found: Graph, *short: str, slices: tuple[Slices | None, ...] = ()) -> Plan:
    """All is kept, and these are packed."""
    names = frozenset(f"blocks.{i}.{name}" for i in range(found.blocks) for name in short)
    return Plan("lossy", found.read_by_backward, head_rows(found), slices, packed=names)


def words(schedule: Schedule, frees: bool = True) -> list[str]:
    return [
        written(action).replace("blocks.", "").replace(" ", "")
        for action in schedule.actions
        if frees or not isinstance(action, Free)
    ]


WHOLE = """
F0.x F0.ln1 F0.qkv F0.o F0.proj F0.mid F0.ln2 F0.u P0.u F0.g F0.z Ffinal.x Ffinal.ln
Blosses -final.ln Bfinal.ln -d:final.ln -final.x -final.mean -final.rstd
B0.z -0.g U0.u -bf16:0.u B0.g -0.u B0.u -d:0.u -0.ln2 B0.ln2 -d:0.ln2 -0.mid -0.ln2.mean -0.ln2.rstd
+d:final.x -d:0.mid+0.ln2
B0.proj -0.o B0.o -d:0.o -0.qkv -0.p B0.qkv -d:0.qkv -0.ln1 B0.ln1 -d:0.ln1 -0.x -0.ln1.mean -0.ln1.rstd
+d:final.x -d:0.x+0.ln1
B0.x -d:final.x
"""

SLICED = """
F0.x F0.ln1[0:8] F0.qkv[0:8] F0.ln1[8:16] F0.qkv[8:16] F0.o
F0.proj[0:8] F0.mid[0:8] -0.proj[0:8] F0.ln2[0:8] F0.u[0:8] P0.u[0:8] F0.g[0:8] -0.u[0:8]
F0.z[0:8] Ffinal.x[0:8] -0.z[0:8]
F0.proj[8:16] F0.mid[8:16] -0.proj[8:16] F0.ln2[8:16] F0.u[8:16] P0.u[8:16] F0.g[8:16] -0.u[8:16]
F0.z[8:16] Ffinal.x[8:16] -0.z[8:16] Ffinal.ln
Blosses -final.ln Bfinal.ln -d:final.ln -final.x -final.mean -final.rstd
U0.u[0:8] B0.z[0:8] B0.g[0:8] -0.u[0:8] B0.u[0:8] -d:0.u[0:8] B0.ln2[0:8] -d:0.ln2[0:8]
+d:final.x[0:8] -d:0.mid+0.ln2[0:8] B0.proj[0:8]
U0.u[8:16] -bf16:0.u B0.z[8:16] -0.g B0.g[8:16] -0.u[8:16] B0.u[8:16] -d:0.u[8:16] -0.ln2 B0.ln2[8:16]
-d:0.ln2[8:16] -0.mid -0.ln2.mean -0.ln2.rstd +d:final.x[8:16] -d:0.mid+0.ln2[8:16] B0.proj[8:16] -0.o
B0.o -d:0.o -0.qkv -0.p
B0.qkv[0:8] B0.ln1[0:8] -d:0.ln1[0:8] +d:final.x[0:8] -d:0.x+0.ln1[0:8]
B0.qkv[8:16] -d:0.qkv -0.ln1 B0.ln1[8:16] -d:0.ln1[8:16] -0.x -0.ln1.mean -0.ln1.rstd
+d:final.x[8:16] -d:0.x+0.ln1[8:16]
B0.x -d:final.x
"""


@pytest.mark.parametrize(("slices", "golden"), [((), WHOLE), ((Slices(1, 8),), SLICED)])
def test_golden_schedules_of_one_packed_tensor(slices: tuple[Slices, ...], golden: str) -> None:
    found = graph()
    assert words(training_schedule(found, plan_of(found, "u", slices=slices))) == golden.split()


def test_a_blocks_input_is_packed_behind_what_makes_it_and_comes_back_whole() -> None:
    found = graph(2)
    for slices in ((), (Slices(1, 8), Slices(1, 8)), (None, Slices(1, 4))):
        found_words = words(training_schedule(found, plan_of(found, "x", slices=slices)), frees=False)
        assert [word for word in found_words if word[0] in "PU"] == ["P0.x", "P1.x", "U1.x", "U0.x"]
        assert found_words[found_words.index("P1.x") - 1].startswith("F1.x")


def test_what_a_later_stage_reads_is_unpacked_for_the_sequence_as_its_stage_makes_it() -> None:
    found = graph(1, batch=2)
    schedule = training_schedule(found, plan_of(found, "qkv", "o", slices=(Slices(1, 8),)))
    assert [word for word in words(schedule, frees=False) if word[0] == "U"] == [
        "U0.o[0:16]", "U0.qkv[0:8]", "U0.qkv[8:16]", "U0.o[16:32]", "U0.qkv[16:24]", "U0.qkv[24:32]",
    ]  # fmt: skip
    whole = {name for buffer in simulate(schedule).buffers for name in buffer.names}
    assert not {"blocks.0.qkv", "blocks.0.o"} & whole


def test_nothing_packed_is_todays_schedule_and_an_evaluation_packs_nothing() -> None:
    found = graph(2)
    for slices in ((), (Slices(1, 8), None)):
        lossy = plan_of(found, "u", "x", slices=slices)
        plain = training_schedule(found, replace(lossy, packed=frozenset())).actions
        assert not any(isinstance(action, Pack | Unpack) for action in plain)
        evaluated = evaluation_schedule(found, lossy)
        assert evaluated.actions == evaluation_schedule(found, replace(lossy, packed=frozenset())).actions


ONE = st.one_of(st.none(), st.builds(Slices, st.integers(1, 3), st.sampled_from([3, 8, 16, 48])))


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_any_plan_with_any_tensors_packed_holds_together(data: st.DataObject) -> None:
    found = graph(3, batch=3)
    names = sorted(found.read_by_backward)
    keep = data.draw(st.frozensets(st.sampled_from(names)))
    halves = frozenset(name for name in keep if name.startswith("blocks.") and data.draw(st.booleans()))
    slices = data.draw(st.tuples(ONE, ONE, ONE))
    simulation = simulate(training_schedule(found, Plan("drawn", keep, 16, slices, packed=halves)))
    lives = {name: buffer for buffer in simulation.buffers for name in buffer.names if name.startswith("bf16:")}
    for name in halves:
        buffer = lives[packed(name)]
        assert (buffer.category, buffer.nbytes) == ("kept", -(-found.bytes_of(name) // 2 // 64) * 64)


def test_kept_bytes_are_halved() -> None:
    found = graph(1, batch=3)
    plain = simulate(training_schedule(found, plan_of(found))).kept_bytes
    lossy = simulate(training_schedule(found, plan_of(found, "u", "g"))).kept_bytes
    assert plain - lossy == found.bytes_of("blocks.0.u")


def moved(actions: list[Action], word: str, before: str) -> list[Action]:
    """With one action in front of another."""
    at = [written(action) for action in actions]
    one = actions[at.index(word)]
    rest = [action for action in actions if action is not one]
    place = [written(action) for action in rest].index(before)
    return [*rest[:place], one, *rest[place:]]


def rows(word: str, start: int, stop: int) -> Callable[[list[Action]], list[Action]]:
    def edit(actions: list[Action]) -> list[Action]:
        return [replace(a, rows=(start, stop)) if written(a) == word else a for a in actions]  # type: ignore[call-arg]

    return edit


CHEATS: dict[str, tuple[Callable[[list[Action]], list[Action]], str]] = {
    "unpacks before it packs": (
        lambda found: moved(found, "U blocks.0.u", "P blocks.0.u"), "reads bf16:blocks.0.u, which is not live",
    ),
    "frees what is packed too early": (
        lambda found: moved(found, "- bf16:blocks.0.u", "U blocks.0.u"), "reads bf16:blocks.0.u, which is not live",
    ),
    "frees before it packs": (
        lambda found: moved(found, "- blocks.0.u", "P blocks.0.u"), "reads blocks.0.u, which is not live",
    ),
    "does not unpack": (
        lambda found: [action for action in found if not isinstance(action, Unpack)], "reads blocks.0.u, which",
    ),
    "packs some rows": (rows("P blocks.0.u", 0, 8), r"reads rows \(0, 16\) of bf16:blocks.0.u, which has \(0, 8\)"),
    "packs from the middle": (rows("P blocks.0.u", 8, 16), r"writes rows \(8, 16\) of bf16:blocks.0.u"),
    "unpacks some rows": (rows("U blocks.0.u", 0, 8), r"reads rows \(0, 16\) of blocks.0.u, which has \(0, 8\)"),
    "packs what the plan does not": (
        lambda found: [part for a in found for part in (a, Pack("blocks.0.g"))[: 1 + (written(a) == "F blocks.0.g")]],
        "P blocks.0.g: its plan does not pack it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheating_schedule_is_refused(name: str) -> None:
    edit, message = CHEATS[name]
    found = graph()
    schedule = training_schedule(found, plan_of(found, "u"))
    actions = list(schedule.actions)
    cheat = Schedule(found, schedule.plan, tuple(edit(actions)))
    assert cheat.actions != schedule.actions
    with pytest.raises(IllegalSchedule, match=message):
        simulate(cheat)


def test_what_cannot_be_packed_is_refused() -> None:
    found = graph()
    with pytest.raises(ValueError, match=r"packed, but not kept: blocks\.0\.u"):
        Plan("", frozenset(), 16, packed=frozenset({"blocks.0.u"}))
    with pytest.raises(ValueError, match=r"outside the blocks: final\.x"):
        training_schedule(found, replace(plan_of(found), packed=frozenset({"final.x"})))
    double = graph(dtype="float64")
    with pytest.raises(InputError, match="take --dtype float32, or no --lossy"):
        training_schedule(double, plan_of(double, "u"))
