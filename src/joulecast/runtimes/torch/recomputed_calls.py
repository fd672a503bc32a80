"""Find which calls of a traced step activation checkpointing runs again during backward.

A checkpoint calls the same functions on the same parameters in the same order once more, while
autograd runs one node: PyTorch's node of the checkpoint, or the node that needs the first result.
Such a run is recorded and then compared with the calls of the forward pass. Runs that are found
nowhere are no checkpoints: backward passes that are written in Python call functions, too.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from joulecast.kinds import Work
from joulecast.runtimes.torch.trace_events import Event

# What adds up the gradients of weights has no number of its own.
_NO_SEQUENCE_NUMBER = 2**64 - 1


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


class RecomputeLog:
    """Records calls during backward, which may be calls of the forward pass that run again."""

    def __init__(self) -> None:
        self.runs: list[RecomputedRun] = []
        self.calls: list[Event] = []
        self.first_numbers: list[int] = []

    def open_call(self, event: Event, weights: Collection[int]) -> None:
        """Record a call.

        Args:
            event: The call.
            weights: Identities of parameters and buffers, which are no inputs.
        """
        node: Any = torch._C._current_autograd_node()
        number = node._sequence_nr()
        if not self.runs or self.runs[-1].sequence_number != number:
            self.runs.append(RecomputedRun(number))
        self.runs[-1].calls.append(event)
        self.calls.append(event)
        self.first_numbers.append(next_sequence_number())
        event.needs_input_grad = any(
            value.requires_grad
            for value in pytree.tree_leaves((event.args, event.kwargs))
            if isinstance(value, torch.Tensor) and id(value) not in weights
        )

    def close_call(self, event: Event, has_result: bool) -> None:
        """Forget a call that neither computed nor returned anything."""
        calls = self.runs[-1].calls
        if not has_result and not event.forward.launches and calls[-1] is event:
            calls.pop()

    def find_call(self, sequence_number: int) -> Event | None:
        """Return the recorded call that created a node of autograd, by the node's number."""
        index = bisect.bisect_right(self.first_numbers, sequence_number) - 1
        is_numbered = sequence_number < _NO_SEQUENCE_NUMBER
        return self.calls[index] if index >= 0 and is_numbered else None


def next_sequence_number() -> int:
    """Return the number that autograd gives to the next node it creates."""
    number: int = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    return number


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
