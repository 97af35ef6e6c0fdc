"""The peak of activation memory in one update of a torch model, in bytes.

torch's profiler records every allocation and release of its CPU allocator, with the address: of operators, of what they
take for themselves while they run, and of compiled code alike. What is out at once that the update itself has
allocated is summed event by event. Left out is the memory that holds the parameters' gradients when the update is
over; gradients that are added to another and then dropped count, and so does the batch. Scratch that MKL and oneDNN
take from the system behind torch's back is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


class Event(NamedTuple):
    """Bytes at an address: allocated where positive, released where negative."""

    address: int
    nbytes: int


def activation_peak_bytes(update: Callable[[], object], parameters: Iterable[nn.Parameter]) -> int:
    """The most bytes that one `update` has out at once, the gradients that it leaves in `parameters` left out.

    What outlives an update must be there already: run one before this one.
    """
    events = recorded(update)
    gradients = {each.grad.untyped_storage().data_ptr() for each in parameters if each.grad is not None}
    return peak_bytes(events, gradients)


def recorded(run: Callable[[], object]) -> list[Event]:
    """What `run` allocates and releases, in order, and of what was there before the releases that torch knows of: it
    remembers what an earlier recording has seen.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    tree = profiler.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    found = sorted((node for node in walk(tree) if node.tag == _EventType.Allocation), key=lambda n: n.start_time_ns)
    return [Event(node.extra_fields.ptr, node.extra_fields.alloc_size) for node in found]


def walk(nodes: Iterable[Any]) -> Iterator[Any]:
    """All events of a profiler's tree."""
    for node in nodes:
        yield node
        yield from walk(node.children)


def peak_bytes(events: Sequence[Event], excluded: Collection[int]) -> int:
    """The largest running sum of what the events allocate, but for the last time at an `excluded` address."""
    last = {event.address: i for i, event in enumerate(events) if event.nbytes > 0}
    skipped = {i for address, i in last.items() if address in excluded}
    live: dict[int, int] = {}
    peak = total = 0
    for i, event in enumerate(events):
        if event.nbytes > 0 and i not in skipped:
            live[event.address] = event.nbytes
            total += event.nbytes
        elif event.nbytes < 0:
            total -= live.pop(event.address, 0)
        peak = max(peak, total)
    return peak
