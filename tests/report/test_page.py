"""The page of a profile: what it says is what its JSON says, in Chromium; it asks for nothing from anywhere."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.memory.layout import lay_out
from fastbp.memory.timeline import STAGES, timeline
from fastbp.policy.named import make_plan
from fastbp.report.colours import CATEGORIES
from fastbp.report.colours import STAGES as STAGE_COLOURS
from fastbp.report.page import page, write_page
from fastbp.report.template import HTML, embedded
from fastbp.schedule import simulate as simulation
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate
from tests.chromium import opened, overflowing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

GRAPH = decoder_graph(DecoderConfig(3, 16, 2, 64, 64, 512), 4, workers=2)
NAMES = ("linear", "tiled_attention_dropout", "layernorm", "gelu", "linear_cross_entropy", "residual", "embedding")
OPS = [
    {
        "op": op, "direction": direction, "calls": 1000 * len(op), "seconds": 0.37 / len(op) / len(direction),
        "share": 1 / len(op) / 4, "product_flops": 817_359_296_000 if op == "linear" else 0, "moved_bytes": 12_582_912,
        "gflops": 171.25 if op == "linear" else None, "gb_per_s": 9.5, "share_of_limit": 0.81,
        "limit": "FMA peak" if op == "linear" else "memory bandwidth",
    }
    for op in NAMES
    for direction in ("forward", "recompute", "backward")
]  # fmt: skip
BLOCKS = [
    {
        "block": block, "forward_seconds": 0.0123 * i, "recompute_seconds": 0.004, "backward_seconds": 0.031,
        "kept_bytes": 1_234_944 * (i + 1), "recomputed_bytes": 29_360_128,
    }
    for i, block in enumerate([*range(12), "embedding and head"])
]  # fmt: skip


def profile(policy: str, **others: Any) -> dict[str, Any]:
    """What `fastbp profile --json` gives, times made up."""
    found = simulate(training_schedule(GRAPH, make_plan(GRAPH, policy)))
    memory = timeline(found, lay_out(found))
    beside = {"parameters": 200_704, "parameter gradients": 200_704, "optimiser state": 401_408}
    return {
        "title": "3 blocks of width 16", "policy": policy, "budget_bytes": memory.budget_bytes,
        "extra_flops_share": found.extra_flops_share,
        "update": {"seconds": {"median": 0.0211, "min": 0.0205, "max": 0.0298}, "share_of_peak": 0.771},
        "ops": OPS, "blocks": BLOCKS, "categories": beside | found.bytes_by_category(found.peak_tick),
        "peak": memory.peak.to_json(), "timeline": memory.to_json(),
    } | others  # fmt: skip


POLICIES = ("save_all", "optimal(240000)")
PROFILES = {policy: profile(policy) for policy in POLICIES}


@pytest.fixture(params=POLICIES)
def shown(request: pytest.FixtureRequest, chromium: Browser, tmp_path: Path) -> Iterator[tuple[Page, dict[str, Any]]]:
    """A profile's page in a window, and its JSON."""
    value = PROFILES[request.param]
    write_page(tmp_path / "profile.html", value)
    with opened(chromium, tmp_path / "profile.html") as window:
        yield window, value


def live(memory: dict[str, Any], tick: int) -> list[tuple[str, str]]:
    """Tensors and bytes at a tick as the page writes them, from the JSON alone."""
    held, buffers = memory["held"], memory["buffers"]
    names = {}
    for name, buffer, born, dies in zip(*(held[key] for key in ("tensor", "buffer", "born", "dies")), strict=True):
        if born <= tick < dies:
            names[buffer] = name
    return [(name, f"{buffers['bytes'][buffer]:,}") for buffer, name in names.items()]


def list_beside(window: Page) -> list[tuple[str, str]]:
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    rows = window.eval_on_selector_all("#live tr", script)
    return [(name.strip(), size.strip()) for name, size in rows]


def move_to(window: Page, chart: str, share: float, height: float = 0.5) -> None:
    """The mouse to a place between the axes of a chart."""
    window.locator(chart).scroll_into_view_if_needed()
    box = window.locator(f"{chart} .over").bounding_box()
    assert box is not None
    left, right, top, below = 74, 12, 6, 24
    x = left + share * (box["width"] - left - right)
    window.mouse.move(box["x"] + x, box["y"] + top + height * (box["height"] - top - below))
    settle(window)


def settle(window: Page) -> None:
    """Waits for what is due before the next frame."""
    window.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def told_tick(window: Page) -> int:
    return int(window.locator("#hover").get_attribute("data-tick") or -1)


def assert_told(window: Page, memory: dict[str, Any], tick: int) -> None:
    """All that the page says of a tick."""
    panel = window.locator("#hover").inner_text()
    assert told_tick(window) == tick
    assert f"tick {tick:,} of {len(memory['actions']):,}" in panel
    assert window.locator("#action").inner_text() == memory["actions"][tick]
    assert next(name for start, name in reversed(memory["stages"]) if start <= tick) in panel
    total = sum(column[tick] for column in memory["live_bytes"].values())
    assert window.locator("#total").inner_text() == f"{total:,} bytes"
    for category, column in memory["live_bytes"].items():
        assert (f"{category}\t{column[tick]:,}" in panel) == (column[tick] > 0)
    assert sorted(list_beside(window)) == sorted(live(memory, tick))
    assert f"in {len(live(memory, tick))} tensor" in panel


def test_the_mouse_over_a_tick_tells_what_is_live_there(shown: tuple[Page, dict[str, Any]]) -> None:
    window, value = shown
    memory = value["timeline"]
    assert_told(window, memory, value["peak"]["tick"])
    ticks = len(memory["actions"])
    for chart in ("#stack", "#arena"):
        for share in (0.0001, 0.23, 0.5, 0.77, 0.9999):
            move_to(window, chart, share)
            assert_told(window, memory, int(share * ticks))


def test_arrows_walk_and_choose(shown: tuple[Page, dict[str, Any]]) -> None:
    window, value = shown
    memory, tick = value["timeline"], value["peak"]["tick"]
    window.locator("#charts").focus()
    for key, by in (("ArrowLeft", -1), ("ArrowRight", 1), ("Shift+ArrowLeft", -10), ("Shift+ArrowRight", 10)):
        window.keyboard.press(key)
        settle(window)
        tick += by
        assert_told(window, memory, tick)
    last, peak = len(memory["actions"]) - 1, value["peak"]["tick"]
    for key, there in (("Home", 0), ("ArrowLeft", 0), ("End", last), ("ArrowRight", last), ("p", peak)):
        window.keyboard.press(key)
        settle(window)
        assert_told(window, memory, there)
    largest = value["peak"]["live"][0]
    window.keyboard.press("ArrowDown")
    settle(window)
    assert window.locator("#pointed").inner_text() == list_beside(window)[0][0]
    assert list_beside(window)[0][1] == f"{largest['bytes']:,}"


def test_a_tensor_in_the_arena_tells_its_life(shown: tuple[Page, dict[str, Any]]) -> None:
    window, value = shown
    memory = value["timeline"]
    buffers, held, tick = memory["buffers"], memory["held"], value["peak"]["tick"]
    for index, (offset, size) in enumerate(zip(buffers["offset"], buffers["bytes"], strict=True)):
        if not buffers["born"][index] <= tick < buffers["dies"][index] or size * 20 < memory["arena_bytes"]:
            continue
        height = 1 - (offset + size / 2) / memory["arena_bytes"]
        move_to(window, "#arena", (tick + 0.5) / len(memory["actions"]), height)
        lives = [i for i, each in enumerate(held["buffer"]) if each == index and held["born"][i] <= tick]
        card = window.locator(".card", has=window.locator("#pointed")).inner_text()
        assert window.locator("#pointed").inner_text() == held["tensor"][lives[-1]]
        assert f"{size:,} bytes" in card
        assert f"written first\ttick {held['born'][lives[-1]]:,}: " in card
        last = held["last_read"][lives[-1]]
        assert ("read last\tnever" if last is None else f"read last\ttick {last:,}: {memory['actions'][last]}") in card


def test_a_closer_look_shows_the_same_ticks(shown: tuple[Page, dict[str, Any]]) -> None:
    window, value = shown
    memory = value["timeline"]
    ticks = len(memory["actions"])
    move_to(window, "#stack", 0.25)
    window.mouse.down()
    move_to(window, "#stack", 0.5)
    window.mouse.up()
    settle(window)
    first, last = int(0.25 * ticks), int(0.5 * ticks)
    assert window.locator("#range").inner_text() == f"ticks {first:,} to {last:,} of {ticks:,}"
    move_to(window, "#arena", 0.6)
    assert_told(window, memory, int(first + 0.6 * (last + 1 - first)))
    window.get_by_role("button", name="all ticks").click()
    settle(window)
    assert window.locator("#range").inner_text() == f"ticks 0 to {ticks - 1:,} of {ticks:,}"


def test_a_click_holds_the_tick(shown: tuple[Page, dict[str, Any]]) -> None:
    window, _ = shown
    move_to(window, "#stack", 0.3)
    window.mouse.down()
    window.mouse.up()
    held = told_tick(window)
    move_to(window, "#stack", 0.8)
    assert told_tick(window) == held
    window.mouse.down()
    window.mouse.up()
    settle(window)
    assert told_tick(window) > held


def column(found: Locator, number: int) -> list[str]:
    texts: list[str] = found.locator(f"tbody td:nth-child({number})").all_inner_texts()
    return texts


def test_a_heading_sorts_by_click_and_by_key(shown: tuple[Page, dict[str, Any]]) -> None:
    window, _ = shown
    table = window.locator("#ops .table")
    seconds = [each["seconds"] for each in sorted(OPS, key=lambda each: -each["seconds"])]
    assert column(table, 1)[0] == max(OPS, key=lambda each: each["seconds"])["op"]
    assert table.locator("th[aria-sort=descending]").inner_text().startswith("time")
    table.get_by_role("button", name="op", exact=True).click()
    assert column(table, 1) == sorted(each["op"] for each in OPS)
    window.keyboard.press("Enter")  # the heading still has the focus
    assert column(table, 1) == sorted((each["op"] for each in OPS), reverse=True)
    table.get_by_role("button", name="calls").focus()
    window.keyboard.press("Enter")
    assert column(table, 3) == [f"{each:,}" for each in sorted((each["calls"] for each in OPS), reverse=True)]
    assert len(column(table, 1)) == len(seconds)
    blocks = window.locator("#blocks .table")
    assert column(blocks, 1) == [*map(str, range(12)), "embedding and head"]
    blocks.get_by_role("button", name="block", exact=True).click()
    blocks.get_by_role("button", name="block", exact=True).click()
    assert column(blocks, 1) == ["embedding and head", *map(str, reversed(range(12)))]
    blocks.get_by_role("button", name="bytes kept").click()
    kept = [int(text.split(" ")[0].replace(",", "")) for text in column(blocks, 5)]
    assert kept == sorted(kept, reverse=True)


def test_the_filter_leaves_the_tensors_with_a_name(shown: tuple[Page, dict[str, Any]]) -> None:
    window, value = shown
    table, memory = window.locator("#tensors .table"), value["timeline"]
    names = {name.partition("[")[0] for name in memory["held"]["tensor"]}
    assert len(column(table, 1)) == 25
    table.get_by_role("button", name="show all").click()
    assert set(column(table, 1)) == names
    window.locator("#filter").fill("BLOCKS.1.")
    assert set(column(table, 1)) == {name for name in names if "blocks.1." in name}
    window.locator("#filter").fill("no such tensor")
    assert column(table, 1) == []
    window.locator("#filter").fill("blocks.1.u")


def test_a_tensor_that_is_chosen_is_marked_in_the_arena_and_brought_into_sight(
    chromium: Browser, tmp_path: Path
) -> None:
    write_page(tmp_path / "profile.html", PROFILES["save_all"])
    with opened(chromium, tmp_path / "profile.html") as window:
        window.locator("#charts").focus()
        for key in ("End", "+", "+", "+", "+"):
            window.keyboard.press(key)
        settle(window)
        near, pictures = window.locator("#range").inner_text(), []
        window.locator("#filter").fill("blocks.1.u")
        for chosen in (["blocks.1.u"], [], ["blocks.1.u"]):
            window.locator("#tensors").get_by_role("button", name="blocks.1.u", exact=True).click()
            assert window.locator("#tensors [aria-pressed=true]").all_inner_texts() == chosen
            pictures.append(window.locator("#arena").screenshot())
        assert window.locator("#range").inner_text() != near
        assert pictures[0] == pictures[2] != pictures[1]


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_is_wider_than_what_it_stands_in(width: int, chromium: Browser, tmp_path: Path) -> None:
    for policy, value in PROFILES.items():
        write_page(tmp_path / "profile.html", value)
        with opened(chromium, tmp_path / "profile.html", width) as window:
            assert overflowing(window) == [], policy
            window.locator("#charts").focus()
            window.keyboard.press("ArrowDown")
            settle(window)
            assert overflowing(window) == [], policy


COLOURS_DRAWN = """name => {
  const canvas = document.querySelector(`${name} canvas`), found = {};
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < pixels.length; i += 4) {
    const colour = "#" + [0, 1, 2].map(j => pixels[i + j].toString(16).padStart(2, "0")).join("");
    if (pixels[i + 3] === 255) found[colour] = (found[colour] ?? 0) + 1;
  }
  return found;
}"""


def test_both_charts_draw_every_category_that_is_live(shown: tuple[Page, dict[str, Any]]) -> None:
    window, value = shown
    for chart in ("#stack", "#arena"):
        drawn = window.evaluate(COLOURS_DRAWN, chart)
        for category, sizes in value["timeline"]["live_bytes"].items():
            assert (drawn.get(CATEGORIES[category], 0) > 20) == any(sizes), (chart, category)


COLUMNS_DRAWN = """shares => {
  const canvas = document.querySelector("#stack canvas"), {width, height} = canvas, ys = [...Array(height - 24).keys()];
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const hex = (place) => pixels[place].toString(16).padStart(2, "0");
  const colour = (x, y) => "#" + [0, 1, 2].map(j => hex(4 * (y * width + x) + j)).join("");
  return shares.map(share => ys.map(y => colour(Math.floor(74 + share * (width - 74 - 12)), y)).reverse());
}"""


def test_the_stack_has_the_heights_of_its_bytes_one_category_on_another(chromium: Browser, tmp_path: Path) -> None:
    value = PROFILES["save_all"]
    write_page(tmp_path / "profile.html", value)
    live_bytes, peak = value["timeline"]["live_bytes"], value["peak"]["tick"]
    count = len(value["timeline"]["actions"])
    ticks = [*range(0, count, 7), peak]
    with opened(chromium, tmp_path / "profile.html") as window:
        columns = window.evaluate(COLUMNS_DRAWN, [(tick + 0.5) / count for tick in ticks])
    whole = sum(column[peak] for column in live_bytes.values())
    pixels = sum(columns[-1].count(CATEGORIES[category]) for category in live_bytes)
    assert pixels > 150
    near = 5  # pixels that the peak's mark covers, and rounding
    for tick, column in zip(ticks, columns, strict=True):
        below = 0.0
        for category, sizes in live_bytes.items():
            above = below + sizes[tick] / whole * pixels
            found = [y for y, colour in enumerate(column) if colour == CATEGORIES[category]]
            assert len(found) == pytest.approx(above - below, abs=near)
            assert all(below - near < y < above + near for y in found)
            below = above


def test_dark_and_light_differ(chromium: Browser, tmp_path: Path) -> None:
    write_page(tmp_path / "profile.html", PROFILES["save_all"])
    paper = []
    for dark in (False, True):
        with opened(chromium, tmp_path / "profile.html", dark=dark) as window:
            paper.append(window.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert paper == ["rgb(255, 255, 255)", "rgb(21, 23, 27)"]


def test_a_profile_without_times_has_its_page(chromium: Browser, tmp_path: Path) -> None:
    value = profile("full", ops=[], blocks=[], update={"seconds": None, "share_of_peak": None}, budget_bytes=1 << 30)
    value["timeline"]["budget_bytes"] = 1 << 30
    write_page(tmp_path / "profile.html", value)
    with opened(chromium, tmp_path / "profile.html", 800) as window:
        assert "1,073,741,824 bytes" in window.locator("#headline").inner_text()
        assert "an update" not in window.locator("#headline").inner_text()
        assert overflowing(window) == []


# --- without a browser ----------------------------------------------------------------------------------------------


def test_the_json_stands_in_the_page_and_cannot_end_its_element() -> None:
    title = "</script><b>&amp; $policy"
    text = page(profile("full", title=title))
    assert text.count("</script>") == 2
    found = text.partition('<script type="application/json" id="profile">')[2].partition("</script>")[0]
    assert json.loads(found) == profile("full", title=title)
    assert "<title>&lt;/script&gt;&lt;b&gt;&amp;amp; $policy</title>" in text


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        embedded({"seconds": float("nan")})


def test_every_category_and_stage_has_a_colour_of_its_own() -> None:
    assert set(simulation.CATEGORIES) < set(CATEGORIES)
    assert tuple(STAGE_COLOURS) == STAGES
    colours = [*CATEGORIES.values(), *STAGE_COLOURS.values()]
    assert len(set(colours)) == len(colours)


def test_what_the_page_is_made_of_is_installed_with_the_package() -> None:
    root = Path(__file__).parents[2]
    found = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fastbp.report"]
    for path in HTML.iterdir():
        assert any(path.relative_to(HTML.parent).match(pattern) for pattern in found), path
