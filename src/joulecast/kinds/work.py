"""Represent the work of operators: FLOPs, bytes, kernel launches and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joulecast.records import Sizes

Shape = tuple[int, ...]

WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """The work of one operator, or of several together.

    Attributes:
        flops: Floating-point operations of contractions, two per multiply-add.
        size_bytes: Bytes read plus bytes written.
        launches: Kernels that a GPU framework starts.
        memory_bytes: Bytes that stay allocated: activations kept for the backward pass, or
            weights, gradients and optimizer state.
    """

    flops: float = 0.0
    size_bytes: float = 0.0
    launches: int = 0
    memory_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.size_bytes + other.size_bytes,
            self.launches + other.launches,
            self.memory_bytes + other.memory_bytes,
        )

    def times(self, calls: int) -> Work:
        """Return the work of this many calls."""
        return Work(
            self.flops * calls,
            self.size_bytes * calls,
            self.launches * calls,
            self.memory_bytes * calls,
        )


NO_WORK = Work()


@dataclass(frozen=True)
class StepWork:
    """The work of a layer or a network in one training step, and its number of parameters."""

    forward: Work = NO_WORK
    backward: Work = NO_WORK
    update: Work = NO_WORK
    params: int = 0

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(
            self.forward + other.forward,
            self.backward + other.backward,
            self.update + other.update,
            self.params + other.params,
        )

    @property
    def total(self) -> Work:
        """The work of all three stages."""
        return self.forward + self.backward + self.update


@dataclass(frozen=True)
class WorkContext:
    """The conditions under which an operator runs, besides its sizes.

    Attributes:
        batch: Samples in a batch.
        item_bytes: Bytes of one element of an activation.
        trains: Its weights get a gradient.
        input_grad: Its input gets a gradient.
    """

    batch: int
    item_bytes: int
    trains: bool
    input_grad: bool


WorkRule = Callable[[Sizes, Shape, WorkContext], Work]
"""A function from sizes, input shape and context to the work of one pass."""
