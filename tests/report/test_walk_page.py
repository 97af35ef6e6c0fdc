"""The page of a walk: in headless Chromium it steps through the stops, fits its window and asks for nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastbp.report.walk import walk
from fastbp.report.walk_page import walk_page
from tests.chromium import opened, overflowing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OVERLAPPING = """() => {
  const boxes = [...document.querySelectorAll("h1, h2, h3, p, button, input, .row, .need, .weight, svg")]
    .filter((each) => each.offsetParent || each.tagName === "svg")
    .map((each) => [each, each.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  const beside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1;
  const above = (a, b) => a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
  const name = (each) => `${each.tagName} "${each.textContent.slice(0, 20)}"`;
  const found = [];
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    const nested = one.contains(other) || other.contains(one);
    if (!nested && !beside(a, b) && !above(a, b)) found.push(`${name(one)} and ${name(other)}`);
  }));
  return found;
}"""
"""Pairs of elements of which neither is in the other, and that cover each other."""


def written(tmp_path: Path, *arguments: Any, **options: Any) -> Path:
    path = tmp_path / "walk.html"
    path.write_text(walk_page(walk(*arguments, **options).to_json()), encoding="utf-8")
    return path


def here(page: Page) -> str:
    return page.locator("#where").inner_text()


def test_its_data_is_the_walk_s_json() -> None:
    result = walk("a<b</script>").to_json()
    page = walk_page(result)
    data = re.search(r'<script type="application/json" id="walk">(.*?)</script>', page, re.S)
    assert data
    assert json.loads(data[1]) == result
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, which nobody fetches
    assert "https://" not in page
    assert page.count("</script>") == 2


def test_buttons_and_keys_step_through_the_stops(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, written(tmp_path)) as page:
        assert here(page).startswith("stop 1 of 27")
        assert page.locator("#back").is_disabled()
        page.locator("#on").click()
        assert here(page).startswith("stop 2 of 27")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert here(page).startswith("stop 4 of 27, block 1")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        page.locator("#back").click()
        assert here(page).startswith("stop 1 of 27")
        page.keyboard.press("ArrowLeft")
        assert here(page).startswith("stop 1 of 27")
        page.keyboard.press("End")
        assert here(page).startswith("stop 27 of 27")
        assert page.locator("#on").is_disabled()
        page.locator("#model button", has_text="attention").first.click()
        assert page.locator("#title").inner_text() == "attention: blocks.1.o"
        lit = page.locator("#model button[aria-current=step]")
        assert lit.count() == 1
        assert lit.inner_text() == "attention"
        page.locator("#slider").fill("5")
        assert page.locator("#title").inner_text() == "gelu: blocks.1.g"


def test_every_stop_shows_its_formula_needs_shapes_and_rows(chromium: Browser, tmp_path: Path) -> None:
    path = written(tmp_path, policy="full")
    result = walk(policy="full").to_json()
    with opened(chromium, path) as page:
        for stop in result["stops"]:
            text = page.locator("section").inner_text()
            assert here(page).startswith(f"stop {stop['stop']} of 27")
            for part in (*stop["formula"], stop["words"], stop["incoming"]["gradient"]):
                assert part in text
            for need in stop["needs"]:
                assert need["tensor"] in text
                for run in need["runs"]:
                    assert f"at tick {run['tick']} by {run['action']}" in text
            for weight in stop["weights"]:
                assert f"d:{weight['name']}" in text
            assert ("recomputed" in text) == any(need["how"] == "recomputed" for need in stop["needs"])
            widths = [bar.bounding_box()["width"] for bar in page.locator(".bar").all()]
            assert len(widths) == 8
            order = sorted(range(8), key=lambda i: stop["rows"][i])
            assert [widths[i] for i in order] == pytest.approx(sorted(widths), abs=1.5)
            page.keyboard.press("ArrowRight")


def test_ds_is_a_lower_triangle(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, written(tmp_path)) as page:
        page.locator("#model button", has_text="attention").last.click()
        assert page.locator("svg rect.cell").count() == 8 * 9 / 2
        assert page.locator("svg rect.future").count() == 8 * 7 / 2
        cells = page.locator("svg rect.cell").evaluate_all(
            "all => all.map(each => [each.x.baseVal.value, each.y.baseVal.value])"
        )
        assert all(x <= y for x, y in cells)
        assert "dS·K is the program's dQ" in page.locator("#right").inner_text()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 800, 480])
def test_nothing_overlaps_or_is_cut_off(chromium: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    with opened(chromium, written(tmp_path, policy="full"), width, dark=dark) as page:
        page.locator("nav").evaluate("each => each.style.maxHeight = 'none'")  # its own scrolling hides what is below
        for _ in range(27):
            assert overflowing(page) == []
            assert page.evaluate(OVERLAPPING) == []
            page.keyboard.press("ArrowRight")


def contrast(page: Page, selector: str) -> float:
    """Of a text's colour and the nearest background behind it, as WCAG counts it."""
    found: float = page.locator(selector).first.evaluate("""each => {
      const light = (colour) => {
        const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
          .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      };
      let behind = each;
      while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
      const pair = [light(getComputedStyle(each).color), light(getComputedStyle(behind).backgroundColor)];
      pair.sort((a, b) => b - a);
      return (pair[0] + 0.05) / (pair[1] + 0.05);
    }""")
    return found


@pytest.mark.parametrize("dark", [False, True])
def test_words_can_be_read_by_day_and_by_night(chromium: Browser, tmp_path: Path, dark: bool) -> None:
    with opened(chromium, written(tmp_path, policy="full"), dark=dark) as page:
        page.locator("#model button").nth(16).click()
        for selector in (
            "#about",
            "#where",
            "h2",
            "h3",
            ".formula",
            ".recomputed",
            ".when",
            "nav .here",
            "nav .behind",
        ):
            assert contrast(page, selector) >= 4.5, selector
        page.locator("#model button").nth(1).click()
        assert contrast(page, ".kept") >= 4.5


@pytest.mark.parametrize("text", ["ab", "x y\n" * 32])
def test_windows_of_any_length(chromium: Browser, tmp_path: Path, text: str) -> None:
    with opened(chromium, written(tmp_path, text), 800) as page:
        for _ in range(12):
            page.keyboard.press("ArrowRight")
            assert overflowing(page) == []


def test_one_block_alone(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "walk.html"
    path.write_text(walk_page(walk().to_json(block=0, head=1)), encoding="utf-8")
    with opened(chromium, path) as page:
        assert here(page).startswith("stop 15 of 27")
        assert page.locator("#model button").count() == 12
        page.locator("#model button", has_text="attention").click()
        assert "dS of head 1" in page.locator("#right").inner_text()
