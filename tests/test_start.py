"""What a start imports: each of these libraries costs a tenth of a second or more, and torch seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SLOW = {"matplotlib", "scipy.special", "torch", "IPython", "pandas", "tensorboard"}

TRAINING = """
import numpy as np, fastbp
from fastbp.commands import train
from fastbp.data import Split
from fastbp.train.learning_rate import LearningRate
decoder = fastbp.Decoder(fastbp.DecoderConfig.preset("seed"), 2, backend="cython")
decoder.initialise(0)
tokens = np.arange(200, dtype=np.int32) % 64
trainer = fastbp.Trainer(decoder, Split(tokens, tokens, shared=True), LearningRate("constant", 1e-3, 1e-4, 0, 2))
trainer.update()
trainer.evaluate()
"""


def imported_by(code: str) -> set[str]:
    """The modules that are loaded after some code ran in a fresh interpreter."""
    report = "\nimport sys; print(*sys.modules)"
    command = [sys.executable, "-c", code + report]
    root = Path(__file__).parents[1]
    found = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True, timeout=120)
    return set(found.stdout.split())


def test_the_package_alone_imports_no_library() -> None:
    found = imported_by("import fastbp")
    assert "fastbp" in found
    assert not found & {*SLOW, "numpy", "scipy", "numba", "llvmlite", "rich", "psutil"}


def test_training_up_to_an_update_imports_no_slow_library() -> None:
    found = imported_by(TRAINING)
    assert "numpy" in found
    assert not found & {*SLOW, "numba", "llvmlite", "scipy"}


def test_numba_is_imported_where_it_is_asked_for() -> None:
    assert "numba" in imported_by(TRAINING.replace("cython", "numba"))


def test_the_report_sees_what_is_imported() -> None:
    assert "scipy.special" in imported_by("import scipy.special")
