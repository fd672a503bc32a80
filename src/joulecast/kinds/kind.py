"""Define ``Kind``: everything the package knows about one kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from joulecast.kinds.work import NO_WORK, Shape, WorkRule
from joulecast.records import Sizes

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
