"""Define ``Kind``, everything the package knows about one kind of operator, and ``Work``.

Rules for shapes and work that several kinds share are at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from joulecast.records import Sizes
from joulecast.system.errors import InputError

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

OutputPrecision = Literal["half", "full", "input"]
"""The precision of an output under autocast: half, full, or that of the input."""

REQUIRED = object()
"""The default of a size that has none."""


@dataclass(frozen=True)
class Kind:
    """A row of ``KINDS``.

    No module outside the table, the reader and the builder of a runtime asks for a kind by its
    name: it reads one of these attributes.

    Attributes:
        sizes: Names of its sizes with their defaults; ``REQUIRED`` for a size without a default,
            None for one that may be missing.
        in_shape: Shape of one input sample, from the sizes.
        out_shape: Shape of one output sample, from the sizes and the input shape.
        forward: Work of the forward pass.
        backward: Work of the gradients that are needed.
        params: Number of parameters of each weight tensor.
        fill_sizes: Complete the sizes that a caller gave, such as one int for all axes.
        widths: Sizes that a curve runs over; a change of any other size is another curve.
        input_widths: Those of ``widths`` that the data or the layer before it determines.
        width_divisor: The size whose value divides every width: groups or heads.
        least_width: The smallest width at which its output still depends on its input.
        channel_axis: The axis of a sample that holds the channels, 0 or -1; None if it depends on
            the sample: last for tokens (two axes), first otherwise.
        spatial_dims: How many spatial axes a convolution has; 0 for all other kinds.
        inner_width: The size that its matrix products sum over.
        outer_width: The size that is the number of columns of its matrix products.
        aligned_widths: Widths that run faster in multiples of the device's tile size.
        pads_widths: Its kernels pad odd widths themselves, so alignment does not matter.
        product_calls: How many matrix products the host sets up in one call.
        is_recurrent: It runs token by token, but the host issues all tokens with one call.
        reads_tokens: Its input is token numbers, which have no gradient.
        second_shape: Shape of a sample of its second input, if that differs from the first.
        packs_inputs: It reads several inputs side by side, such as queries, keys and values.
        autocast: The precision of its output under autocast.
        operators: Kinds and sizes of the operators that it runs one after the other; none if it
            is one operator.
        gradient_products: Matrix products of the backward pass, as operators of the same kind on a
            whole batch: whether of the ``input`` or the ``weight``, and their sizes. None if its
            gradients are no such products.
        copy_transposed: Extra work of the forward pass where its input is transposed in memory.
        can_be_in_tail: It may follow another operator inside a layer.
        is_function: Networks call it as a function, so a layer is named after the function.
        only_trains: It does nothing at inference.
        is_view: It only describes the same memory differently; nothing runs.
        selects_elements: It is a view that leaves out elements.
        flattens: It is a view that turns all axes into channels.
        permutes_axes: It is a view that reorders axes, as its size ``order`` says.
        reduces_positions: Whether it averages or pools positions, as before a classifier.
    """

    sizes: Mapping[str, Any]
    in_shape: Callable[[Sizes], Shape]
    out_shape: Callable[[Sizes, Shape], Shape]
    forward: WorkRule
    backward: WorkRule
    params: Callable[[Sizes, Shape], tuple[int, ...]] = field(default=lambda s, shape: ())
    fill_sizes: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda sizes: sizes)
    widths: tuple[str, ...] = ()
    input_widths: tuple[str, ...] = ()
    width_divisor: str = ""
    least_width: int = 1
    channel_axis: int | None = None
    spatial_dims: int = 0
    inner_width: str = ""
    outer_width: str = ""
    aligned_widths: tuple[str, ...] = ()
    pads_widths: bool = False
    product_calls: int = 1
    is_recurrent: bool = False
    reads_tokens: bool = False
    second_shape: Callable[[Sizes], Shape] | None = None
    packs_inputs: bool = False
    autocast: Callable[[Sizes], OutputPrecision] = field(default=lambda s: "input")
    operators: Callable[[Sizes], tuple[tuple[str, Mapping[str, Any]], ...]] = field(
        default=lambda s: ()
    )
    gradient_products: Callable[[Sizes, int], tuple[tuple[str, Mapping[str, Any]], ...]] = field(
        default=lambda s, batch: ()
    )
    copy_transposed: WorkRule = field(default=lambda s, shape, c: NO_WORK)
    can_be_in_tail: bool = False
    is_function: bool = False
    only_trains: bool = False
    is_view: bool = False
    selects_elements: bool = False
    flattens: bool = False
    permutes_axes: bool = False
    reduces_positions: Callable[[Sizes], bool] = field(default=lambda s: False)

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution, transposed or not."""
        return self.spatial_dims > 0

    @property
    def operator_class(self) -> str:
        """The class of operators that use a device alike: what bounds them, how they saturate."""
        if self.is_recurrent:
            return "recurrent"
        if self.is_convolution:
            return "convolution"
        if self.packs_inputs or "heads" in self.sizes:
            return "attention"
        if self.reads_tokens:
            return "embedding"
        return "matmul" if self.inner_width else "elementwise"

    @property
    def has_head_dim(self) -> bool:
        """Whether its sizes give the dimension of attention heads."""
        return "head_dim" in self.sizes

    @property
    def combines_inputs(self) -> bool:
        """Whether it combines any number of inputs element by element."""
        return "inputs" in self.sizes

    @property
    def counts_params(self) -> bool:
        """Whether the number of its parameters is one of its sizes."""
        return "params" in self.sizes


def gives_half(sizes: Sizes) -> OutputPrecision:
    """Return the output precision of a contraction, which autocast runs in half precision."""
    return "half"


def gives_full(sizes: Sizes) -> OutputPrecision:
    """Return the output precision of an operator that autocast runs in full precision."""
    return "full"


def make_contraction_rules(
    flops: Callable[[int, Shape, Shape], float],
    out_shape: Callable[[Sizes, Shape], Shape],
    params: Callable[[Sizes, Shape], tuple[int, ...]],
) -> tuple[WorkRule, WorkRule]:
    """Return forward and backward rules of an operator that multiplies its input by a weight.

    ``flops`` counts one sample, from the weight's elements and both shapes; each of the two
    gradients takes as many again.
    """

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        result, weights = out_shape(s, shape), params(s, shape)
        input_bytes = c.batch * math.prod(shape) * c.item_bytes
        output_bytes = c.batch * math.prod(result) * c.item_bytes
        moved = input_bytes + output_bytes + sum(weights) * c.item_bytes
        return Work(c.batch * flops(weights[0], shape, result), moved, 1, input_bytes)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        result = out_shape(s, shape)
        weight, *rest = params(s, shape)
        input_bytes = c.batch * math.prod(shape) * c.item_bytes
        output_bytes = c.batch * math.prod(result) * c.item_bytes
        gradients = c.input_grad + c.trains
        biases = rest[:1] if c.trains else []
        return Work(
            gradients * c.batch * flops(weight, shape, result),
            gradients * (input_bytes + output_bytes + weight * c.item_bytes)
            + sum(output_bytes + bias * c.item_bytes for bias in biases),
            gradients + len(biases),
        )

    return forward, backward


def make_elementwise_rules(
    forward_moves: float, backward_moves: float, kept: float
) -> tuple[WorkRule, WorkRule]:
    """Return forward and backward rules of an operator that passes over its input.

    Args:
        forward_moves: Elements read and written per input element in the forward pass.
        backward_moves: The same in the backward pass.
        kept: Elements kept for the backward pass per input element.
    """

    def forward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * forward_moves, 1, size * kept)

    def backward(s: Sizes, shape: Shape, c: WorkContext) -> Work:
        size = c.batch * math.prod(shape) * c.item_bytes
        return Work(0.0, size * backward_moves, 1) if c.input_grad or c.trains else NO_WORK

    return forward, backward


def do_no_work(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    """Return the work of a view: none."""
    return NO_WORK


def copy_input(s: Sizes, shape: Shape, c: WorkContext) -> Work:
    """Return the work of copying the input, which is then kept in its place."""
    return Work(0.0, 2.0 * c.batch * math.prod(shape) * c.item_bytes, 1)


def keep_shape(sizes: Sizes, shape: Shape) -> Shape:
    """Return the input shape, or the size ``out`` if there is one."""
    return tuple(sizes["out"]) if "out" in sizes else shape


def read_shape(sizes: Sizes) -> Shape:
    """Return the size ``shape``, which only an operator that begins a layer has.

    Raises:
        InputError: The size is missing.
    """
    try:
        return tuple(sizes["shape"])
    except KeyError:
        raise InputError("an operator that begins a layer needs the size 'shape'") from None
