"""Memory is asked for before it is taken, and what a control group leaves counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fastbp.base.errors import DoesNotFit
from fastbp.graph.config import DecoderConfig
from fastbp.graph.graph import Graph
from fastbp.run import fit
from fastbp.run.decoder import Decoder
from fastbp.run.fit import Smaller, available_bytes, require_memory
from fastbp.schedule.plan import Plan
from fastbp.schedule.schedule import Schedule, training_schedule

FREE = 1 << 30
UNLIMITED = 9223372036854771712
"""What version 1 says where there is no limit."""


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=FREE))


class Groups:
    """A tree of control groups."""

    def __init__(self, folder: Path, membership: str) -> None:
        self.root, self.membership = folder / "cgroup", folder / "membership"
        self.membership.write_text(membership)

    def add(self, path: str, limit: object, used: int, cached: int = 0, version: int = 2) -> Groups:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        prefix = "" if version == 2 else "total_"
        for name, value in zip(names, (limit, used), strict=True):
            (folder / name).write_text(f"{value}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{prefix}inactive_file {cached}\n{prefix}active_file 7\n")
        return self

    def left(self) -> int:
        return available_bytes(self.root, self.membership)


def test_without_control_groups_the_systems_memory_counts(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "nothing") == FREE
    assert Groups(tmp_path, "0::/\n").left() == FREE
    assert Groups(tmp_path, "0::/\n").add("", "max", 10).left() == FREE


def test_a_limit_less_what_is_used_counts(tmp_path: Path) -> None:
    assert Groups(tmp_path, "0::/\n").add("", 1000, 400).left() == 1000 - 400 + 7
    assert Groups(tmp_path, "0::/\n").add("", 2 * FREE, 400).left() == FREE
    assert Groups(tmp_path, "0::/\n").add("", 1000, 5000).left() == 0


def test_cached_files_are_not_used_memory(tmp_path: Path) -> None:
    # Docker counts the page cache: a container that has read a large file looks full and is not.
    assert Groups(tmp_path, "0::/\n").add("", 1000, 990, cached=600).left() == 1000 - 990 + 600 + 7


def test_every_group_up_to_the_root_counts(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/user.slice/session\n")
    groups.add("user.slice/session", "max", 10).add("user.slice", 5000, 1000).add("", 9000, 1000)
    groups.add("other.slice", 1, 0).add("..", 1, 0)
    assert groups.left() == 4000 + 7


def test_version_one(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n0::/\n")
    # A container sees its own group as the root, under the path that the host knows it by.
    groups.add("memory", 1000, 400, cached=50, version=1)
    assert groups.left() == 1000 - 400 + 50 + 7
    groups.add("memory/docker/abc", 800, 700, version=1)
    assert groups.left() == 800 - 700 + 7
    unlimited = Groups(tmp_path, "4:memory:/\n").add("memory", UNLIMITED, 400, version=1)
    assert unlimited.left() == FREE


def test_unreadable_numbers_are_no_limit(tmp_path: Path) -> None:
    assert Groups(tmp_path, "0::/\n").add("", "many", 0).left() == FREE


def test_this_machine_has_memory() -> None:
    assert 0 < available_bytes() <= FREE


def test_what_fits_is_let_through() -> None:
    require_memory(0, "nothing")
    require_memory(available_bytes(), "all")


def test_what_does_not_fit_is_refused_with_the_first_that_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "available_bytes", lambda: 1 << 20)

    def unasked() -> int:
        pytest.fail("its least is too much already")

    smaller = {"--batch 8": unasked, "--batch 6": lambda: 2 << 20, "--batch 4": lambda: 1 << 20, "--batch 2": unasked}
    asked = iter(Smaller(name, (2 << 20) * (name == "--batch 8"), exact) for name, exact in smaller.items())
    message = r"^it needs 3\.0 MiB, but 1\.0 MiB are free: --batch 4 would fit, with 1\.0 MiB$"
    with pytest.raises(DoesNotFit, match=message) as caught:
        require_memory(3 << 20, "it", asked)
    assert caught.value.exit_code == 3
    assert [other.option for other in asked] == ["--batch 2"]
    with pytest.raises(DoesNotFit, match=r"are free: take a smaller --batch, --context or decoder$"):
        require_memory(3 << 20, "it", [Smaller("--batch 1", 0, lambda: 2 << 20)])


def test_a_decoder_asks_before_it_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DecoderConfig.preset("seed")
    whole, full = (Decoder(config, 8, policy=policy, workers=1) for policy in ("save_all", "full"))
    fixed = 4 * whole.parameters.flat.nbytes
    needed, less = (fixed + decoder.layout.size_bytes for decoder in (whole, full))
    assert less < needed
    monkeypatch.setattr(fit, "available_bytes", lambda: needed)
    Decoder(config, 8, workers=1)
    monkeypatch.setattr(fit, "available_bytes", lambda: needed - 1)
    monkeypatch.setattr("fastbp.run.decoder.Flat", lambda *arguments: pytest.fail("allocated"))
    with pytest.raises(
        DoesNotFit, match=r"--policy 'save_all' --batch 8 at context 8 .*: --policy full --batch 8 would"
    ):
        Decoder(config, 8, workers=1)
    monkeypatch.setattr(fit, "available_bytes", lambda: less - 1)
    with pytest.raises(DoesNotFit, match=r": --policy full --batch 4 would fit"):
        Decoder(config, 8, workers=1)


def test_a_billion_sequences_are_refused_before_they_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DecoderConfig.preset("seed")

    def scheduled(graph: Graph, plan: Plan) -> Schedule:
        assert graph.nodes[0].dims.B < 10**9, "planned"
        return training_schedule(graph, plan)

    monkeypatch.setattr("fastbp.run.decoder.training_schedule", scheduled)
    message = r"^--batch 1000000000 at context 8 needs .* --policy full --batch \d{5,6} would"
    with pytest.raises(DoesNotFit, match=message):
        Decoder(config, 10**9, workers=1)
