"""The site builds without a warning, and needs nothing that is not in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import DOCS, ROOT

needs_mkdocs = pytest.mark.skipif(find_spec("material") is None, reason="the extra docs is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@needs_mkdocs
def test_every_page_and_picture_is_in_it(site: Path) -> None:
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.png"), *DOCS.rglob("*.csv")]:
        name = path.relative_to(DOCS)
        assert (site / name.with_suffix(".html" if path.suffix == ".md" else path.suffix)).is_file()
    assert not list(site.rglob("*.py"))


@needs_mkdocs
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'(?:src=|<link[^>]*href=)"?(?:https?:)?//', text), path
