"""A page in headless Chromium, which a test may click about in. Tests that ask for it are skipped where there is no
Chromium, or no playwright to drive it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def launched() -> Iterator[Browser]:
    """The machine's own Chromium; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        # Root has no sandbox, and a container little shared memory.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Page]:
    """A page's file in a window. Fails where it asks for anything but itself, or where it reports an error or a
    warning on the console, or raises anything, by the end.
    """
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB")
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url) if not request.url.startswith("data:") else None)
    page.goto(path.as_uri())
    yield page
    assert said == []
    assert asked == [path.as_uri()]
    context.close()


OVERFLOWING = """() => [...document.querySelectorAll("body, body *")]
  .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
  .map((each) => `${each.tagName}#${each.id}.${each.className} ${each.scrollWidth} > ${each.clientWidth}`)
  .concat(document.documentElement.scrollWidth > window.innerWidth ? ["the page"] : [])"""


def overflowing(page: Page) -> list[str]:
    """Elements that are wider inside than they are, the page itself among them."""
    found: list[str] = page.evaluate(OVERFLOWING)
    return found
