"""What a row of the table is made of: work, what it depends on, and the row itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecast.records import Sizes

Shape = tuple[int, ...]

WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """What running something takes."""

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
        return Work(
            self.flops * calls,
            self.size_bytes * calls,
            self.launches * calls,
            self.memory_bytes * calls,
        )


NO_WORK = Work()


@dataclass(frozen=True)
class StepWork:
    """The work of a layer or a network in one training step, and its parameters."""

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
        return self.forward + self.backward + self.update


@dataclass(frozen=True)
class Context:
    """What an operator's work depends on besides its sizes."""

    batch: int
    item_bytes: int
    trains: bool
    input_grad: bool


WorkRule = Callable[[Sizes, Shape, Context], Work]


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    Attributes:
        sizes: Names of the sizes it needs, with the default of those that have one.
        widths: Sizes that the paper's method varies; all others make another curve.
        in_shape: Shape of one sample that it takes, from its sizes.
        out_shape: Shape of one sample that it gives.
        params: Number of parameters, by tensor.
        forward: Work of forward; ``backward`` of both gradients, as far as they are needed.
        tailable: It may follow another operator inside a layer.
    """

    sizes: Mapping[str, Any]
    in_shape: Callable[[Sizes], Shape]
    out_shape: Callable[[Sizes, Shape], Shape]
    forward: WorkRule
    backward: WorkRule
    widths: tuple[str, ...] = ()
    params: Callable[[Sizes, Shape], tuple[int, ...]] = field(default=lambda s, shape: ())
    tailable: bool = False


REQUIRED = object()
