"""A contender is a process that answers, and whose end is told."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fastbp.base.errors import InputError
from fastbp.run import contender
from fastbp.run.contender import SERVER, Contender, ContenderFailed, Memory, installed, require_server

ANSWERS = """
import json, sys
print(json.loads(sys.argv[1]), file=sys.stderr)
print("[0.1]", flush=True)
for line in sys.stdin:
    print(json.dumps([float(i) for i in range(int(line))]), flush=True)
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "serve.py"
    monkeypatch.setattr(contender, "SERVER", path)
    return path


def test_the_first_of_several_updates_is_not_counted(server: Path) -> None:
    server.write_text(ANSWERS)
    with Contender("a name", {"batch": 3}) as found:
        found.wait()
        assert found.turn() == [1.0, 2.0, 3.0]  # 0.3 s at 0.1 s each, behind one that is not counted
        assert found.rss_peak_bytes() > 1 << 20


@pytest.mark.parametrize(("seconds", "counted"), [(1.9, 2), (5.0, 1)])
def test_slow_updates_have_short_turns(server: Path, seconds: float, counted: int) -> None:
    server.write_text(ANSWERS.replace("[0.1]", f"[{seconds}]"))
    with Contender("a name", {}) as found:
        found.wait()
        assert found.turn() == [1.0, 2.0][:counted]


def test_memory_is_asked_for_by_name(server: Path) -> None:
    server.write_text(
        "import json\nprint('[0.1]', flush=True)\nassert input() == 'memory'\nkept = bytearray(b'1' * (32 << 20))\n"
        "print(json.dumps({'activation_peak_bytes': 7, 'step_rss_bytes': None}), flush=True)\ninput()"
    )
    with Contender("a name", {}) as found:
        found.wait()
        assert found.memory() == Memory(activation_peak_bytes=7)
        assert found.rss_peak_bytes() < 32 << 20  # as it was before the question


def test_a_process_that_fails_says_why(server: Path) -> None:
    server.write_text("raise SystemExit('no such mode\\n')")
    with Contender("a name", {}) as found, pytest.raises(ContenderFailed, match=r"^no such mode$"):
        found.wait()


def test_a_process_that_dies_later_says_how(server: Path) -> None:
    server.write_text("import os; print('[0.1]', flush=True); input(); os.kill(os.getpid(), 9)")
    with Contender("a name", {}) as found:
        found.wait()
        with pytest.raises(ContenderFailed, match="exit code -9"):
            found.turn()
        with pytest.raises(ContenderFailed, match="exit code -9"):
            found.turn()


def test_the_process_ends_with_its_context(server: Path) -> None:
    server.write_text("import time; time.sleep(600)")
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Contender("a name", {}) as found:
        raise KeyboardInterrupt
    assert time.monotonic() - begin < 60
    with pytest.raises(ProcessLookupError):
        os.kill(found._process.pid, 0)


def test_a_package_without_the_peers_says_so(server: Path) -> None:
    with pytest.raises(InputError, match="checkout"):
        require_server()


def test_a_checkout_has_them() -> None:
    require_server()
    assert SERVER.parent.name == "peers"


def test_what_is_installed() -> None:
    assert installed("numpy")
    assert not installed("no_such_library")
