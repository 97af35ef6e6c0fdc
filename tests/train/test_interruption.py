"""The first signal asks, the second insists, and afterwards everything is as before."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from fastbp.base.errors import Stopped
from fastbp.train.interruption import Interruption, interruptible

SIGNALS = [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]


@pytest.mark.parametrize(("number", "exit_code", "name"), SIGNALS)
def test_the_first_signal_is_heard_at_the_next_poll(number: signal.Signals, exit_code: int, name: str) -> None:
    with interruptible() as interruption:
        interruption.poll()
        os.kill(os.getpid(), number)
        with pytest.raises(Stopped, match=f"stopped by {name}") as caught:
            interruption.poll()
    assert caught.value.exit_code == exit_code


@pytest.mark.parametrize(("number", "exit_code", "name"), SIGNALS)
def test_the_second_signal_ends_at_once(number: signal.Signals, exit_code: int, name: str) -> None:
    with interruptible(), pytest.raises(KeyboardInterrupt) as caught:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), number)
        pytest.fail("the second signal was swallowed")
    assert caught.value.args == (exit_code,)


def test_the_handlers_from_before_come_back() -> None:
    before = [signal.getsignal(number) for number, _, _ in SIGNALS]
    with pytest.raises(RuntimeError), interruptible() as interruption:
        assert [signal.getsignal(number) for number, _, _ in SIGNALS] == [interruption.handle] * 2
        raise RuntimeError
    assert [signal.getsignal(number) for number, _, _ in SIGNALS] == before


def test_outside_the_main_thread_nothing_is_touched() -> None:
    found: list[object] = []

    def work() -> None:
        with interruptible() as interruption:
            found.append(isinstance(interruption, Interruption))
            found.append(signal.getsignal(signal.SIGTERM))
            interruption.poll()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, signal.getsignal(signal.SIGTERM)]
