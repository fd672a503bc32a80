"""Find which calls of a traced step activation checkpointing runs again during backward.

A checkpoint calls the same functions on the same parameters in the same order once more, while
autograd runs one node: PyTorch's node of the checkpoint, or the node that needs the first result.
Such a run is recorded and then compared with the calls of the forward pass. Runs that are found
nowhere are no checkpoints: backward passes that are written in Python call functions, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from joulecast.kinds import Work
from joulecast.runtimes.torch.trace_events import Event


@dataclass
class RecomputedRun:
    """Calls while autograd ran one node.

    Attributes:
        sequence_number: Number that autograd gave the node.
    """

    sequence_number: int
    calls: list[Event] = field(default_factory=list)

    @property
    def work(self) -> Work:
        """Return the cost of all calls."""
        return sum((call.forward for call in self.calls), Work())


def assign_run(run: RecomputedRun, events: list[Event]) -> bool:
    """Add the cost of a run to the calls that it repeats; return whether they were found.

    The last ones that are not repeated yet are taken, because backward starts at the end.
    """
    for calls in _list_trimmed(run.calls):
        for start in range(len(events) - len(calls), -1, -1):
            repeated = events[start : start + len(calls)]
            if all(map(_repeats, calls, repeated)):
                for call, event in zip(calls, repeated, strict=True):
                    _assign_call(call, event)
                return True
    return False


def _list_trimmed(calls: list[Event]) -> Iterator[list[Event]]:
    """Yield the calls, and without views at either end: PyTorch itself makes some of them."""
    computing = [at for at, call in enumerate(calls) if call.forward.launches]
    if not computing:
        return
    for start in range(computing[0] + 1):
        for stop in range(len(calls), computing[-1], -1):
            yield calls[start:stop]


def _repeats(call: Event, event: Event) -> bool:
    is_same = (call.name, call.param_names) == (event.name, event.param_names)
    return is_same and not event.is_recomputed


def _assign_call(call: Event, event: Event) -> None:
    event.recomputed += call.forward
    event.backward += call.backward
    event.needs_input_grad |= call.needs_input_grad
    # The last call of a run may be stopped before it computes anything.
    event.is_recomputed = call.forward.launches > 0 or not event.forward.launches
