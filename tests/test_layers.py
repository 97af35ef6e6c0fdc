"""Imports go down the layers, never sideways between packages, never up, never at call time."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

LAYERS = (
    "__main__|cli|commands|report|train check|run|policy|memory|schedule|graph|kernels|"
    "ops data parallel|simd _kernels|base"
)
HEIGHT = {package: -i for i, packages in enumerate(LAYERS.split("|")) for package in packages.split()}
ROOT = Path(__file__).parents[1] / "fastbp"
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def imported(tree: ast.AST) -> set[str]:
    """Modules by their full names, "fastbp.graph.config"."""
    nodes = list(ast.walk(tree))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes), "a relative import"
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return plain | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_go_down(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text())
    package = path.parts[0].removesuffix(".py")
    for name in imported(tree):
        above, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if above == "fastbp" and target not in (package, "__version__") and package != "__init__":
            assert HEIGHT[target] < HEIGHT[package], f"{path} imports {name}"
    inner = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    assert not any(imported(node) for node in inner), f"{path} imports inside a function"


def users_of(library: str) -> list[Path]:
    trees = {path: ast.parse((ROOT / path).read_text()) for path in FILES}
    return [path for path, tree in trees.items() if library in {name.split(".")[0] for name in imported(tree)}]


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("torch", "check/torch_twin.py"),
        ("mpi4py", "parallel/*.py"),
        ("tensorboard", "train/events.py"),
        ("memory_profiler", "train/resident_update.py"),
    ],
)
def test_heavy_libraries_live_in_one_file_each(library: str, home: str) -> None:
    users = users_of(library)
    assert len(users) <= 1
    assert all(path.match(home) for path in users)


def test_pictures_live_in_files_of_their_own() -> None:
    assert all(path.match("report/*plot.py") for path in users_of("matplotlib"))


def test_the_facade_loads_nothing_when_it_is_imported() -> None:
    body = ast.parse((ROOT / "__init__.py").read_text()).body
    loaded = {
        name.split(".")[0] for node in body if isinstance(node, ast.Import | ast.ImportFrom) for name in imported(node)
    }
    assert loaded <= {"__future__", "importlib", "typing"}
