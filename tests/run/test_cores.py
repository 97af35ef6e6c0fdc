"""Cores that this process may keep busy: topology, affinity, quotas, and whether they are alike."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from fastbp.run.cores import cores_are_alike, physical_cores


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def membership(folder: Path, *lines: str) -> Path:
    write(folder / "membership", "".join(f"{line}\n" for line in lines))
    return folder / "membership"


@pytest.mark.parametrize(
    ("siblings", "cores"),
    [(["0", "1", "2", "3"], 4), (["0-1", "0-1", "2-3", "2-3"], 2), (["0,4", "1,5", "2,6", "3,7"], 4), (["0-3"] * 4, 1)],
)
def test_hyperthreads_of_a_core_count_once(siblings: list[str], cores: int, tmp_path: Path) -> None:
    for cpu, text in enumerate(siblings):
        write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", f"{text}\n")
    assert physical_cores(tmp_path, tmp_path, tmp_path / "none") == cores


@pytest.mark.parametrize(("physical", "cores"), [(2, 2), (8, 4), (None, 4)])
def test_without_topology_there_are_no_more_than_the_system_has(
    physical: int | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    assert physical_cores(tmp_path, tmp_path, tmp_path / "none") == cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 4), ("200000 100000", 2), ("350000 100000", 3), ("50000 100000", 1), ("900000 100000", 4)],
)
def test_a_quota_of_cpu_time_limits_them(quota: str, cores: int, tmp_path: Path) -> None:
    write(tmp_path / "user/app/cpu.max", "max 100000\n")
    write(tmp_path / "user/cpu.max", f"{quota}\n")  # the strictest of all groups up to the root counts
    assert physical_cores(tmp_path / "none", tmp_path, membership(tmp_path, "0::/user/app")) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("250000", 2), ("30000", 1)])
def test_so_does_one_of_the_first_version(quota: str, cores: int, tmp_path: Path) -> None:
    write(tmp_path / "cpu,cpuacct/app/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path / "cpu,cpuacct/app/cpu.cfs_period_us", "100000\n")
    lines = ("5:memory:/app", "4:cpu,cpuacct:/app")
    assert physical_cores(tmp_path / "none", tmp_path, membership(tmp_path, *lines)) == cores


@pytest.mark.parametrize("measure", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
@pytest.mark.parametrize(
    ("speeds", "alike"), [([1024] * 4, True), ([5400, 5400, 5100, 5000], True), ([5000, 5000, 3800, 3800], False)]
)
def test_fast_and_small_cores_are_told_apart(measure: str, speeds: list[int], alike: bool, tmp_path: Path) -> None:
    for cpu, speed in enumerate(speeds):
        write(tmp_path / f"cpu{cpu}" / measure, f"{speed}\n")
    assert cores_are_alike(tmp_path) is alike


def test_cores_that_nothing_is_said_about_are_alike(tmp_path: Path) -> None:
    write(tmp_path / "cpu0/cpu_capacity", "1024\n")
    assert cores_are_alike(tmp_path)


def test_cores_that_are_not_allowed_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, speed in enumerate([1024, 1024, 400, 400]):
        write(tmp_path / f"cpu{cpu}/cpu_capacity", f"{speed}\n")
    assert not cores_are_alike(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert cores_are_alike(tmp_path)
