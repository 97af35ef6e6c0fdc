"""No link is dead: every relative link, picture and anchor leads somewhere, and every file that is named exists."""

from __future__ import annotations

import re
import unicodedata

import pytest
from pages import DOCS, PAGES, ROOT, Page, code

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
TOP = ("fastbp", "tests", "docs", "examples", "benchmarks")
every_page = pytest.mark.parametrize("page", PAGES, ids=str)


def headings(page: Page) -> list[str]:
    """Headings without their marks."""
    return [line.lstrip("#").strip().replace("`", "") for line in page.prose.splitlines() if re.match("#+ ", line)]


def github_anchor(heading: str) -> str:
    """GitHub's: letters, digits, underscores and hyphens stay, spaces become hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_anchor(heading: str) -> str:
    """That of Python-Markdown, which the site has: ASCII alone, runs of spaces and hyphens become one."""
    ascii_only = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def links(page: Page) -> list[str]:
    """Targets that lead to a file or within the page, code left out."""
    found = LINK.findall(re.sub(r"`[^`]*`", "", page.prose))
    return [target for target in found if not re.match("[a-z]+:", target)]


@every_page
def test_links_lead_somewhere(page: Page) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path
        assert path.exists(), target
        if anchor:
            found = headings(Page(path))
            assert anchor in map(github_anchor, found), target
            assert anchor in map(site_anchor, found), target


@every_page
def test_a_page_of_the_site_leads_to_pages_of_the_site(page: Page) -> None:
    if page.path.is_relative_to(DOCS):
        for target in links(page):
            assert (page.path.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS), target


@every_page
def test_files_that_are_named_exist(page: Page) -> None:
    """Below a folder of the top level, or of the package; a name in capitals stands for one of yours."""
    for name in code(page.prose):
        path = re.fullmatch(r"([\w.-]+)/[\w./-]*", name)
        if path and "NAME" not in name and (path[1] in TOP or name.endswith((".py", ".h", ".pyx", ".md"))):
            assert any((folder / name).exists() for folder in (ROOT, ROOT / "fastbp", page.path.parent)), name


def test_every_page_is_reached_from_the_start() -> None:
    """By links alone; decisions are listed beside the pages, which the site's build asks for."""
    reached, new = set(), {DOCS / "index.md"}
    while new:
        reached |= new
        targets = {(path.parent / target.partition("#")[0]).resolve() for path in new for target in links(Page(path))}
        new = {path for path in targets if path.suffix == ".md"} - reached
    pages = {page.path for page in PAGES if page.path.is_relative_to(DOCS)}
    assert {path.name for path in pages - reached if path.parent.name != "decisions"} == set()


def test_the_anchors_of_both_are_told_apart() -> None:
    assert github_anchor("What it's for: α & β") == "what-its-for-α--β"
    assert site_anchor("What it's for: α & β") == "what-its-for"
    assert site_anchor("One block, one token") == github_anchor("One block, one token") == "one-block-one-token"
