"""Resolve kernels, strides and padding of convolutions and pooling in ONNX graphs."""

from __future__ import annotations

from joulecast.kinds import Shape
from joulecast.runtimes.onnx_files.graph_values import GraphCall
from joulecast.runtimes.onnx_files.model_file import GraphError


def list_spatial(call: GraphCall, name: str, axes: int, default: int = 1) -> Shape:
    """Return an attribute with one number for each spatial axis."""
    found = tuple(call.attribute(name, (default,) * axes))
    least = 0 if default == 0 else 1
    if len(found) != axes or min(found, default=least) < least:
        raise GraphError(f"has {name} {list(found)} for {axes} spatial axes")
    return found


def find_padding(call: GraphCall, space: Shape, kernel: Shape) -> tuple[Shape, Shape]:
    """Return the padding before and after each spatial axis, whatever way it is given."""
    axes = len(space)
    mode = call.attribute("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        strides = list_spatial(call, "strides", axes)
        dilations = list_spatial(call, "dilations", axes)
        totals = [
            max(0, (-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size)
            for size, stride, dilation, k in zip(space, strides, dilations, kernel, strict=True)
        ]
        small = tuple(total // 2 for total in totals)
        large = tuple(total - total // 2 for total in totals)
        return (small, large) if mode == "SAME_UPPER" else (large, small)
    if mode == "VALID":
        return (0,) * axes, (0,) * axes
    pads = tuple(call.attribute("pads", (0,) * (2 * axes)))
    if len(pads) != 2 * axes:
        raise GraphError(f"has pads {list(pads)} for {axes} spatial axes")
    return pads[:axes], pads[axes:]


def count_windows(call: GraphCall, space: Shape, kernel: Shape) -> Shape:
    """Return the spatial sizes after a convolution or pooling.

    Raises:
        GraphError: The kernel does not fit.
    """
    axes = len(space)
    before, after = find_padding(call, space, kernel)
    strides = list_spatial(call, "strides", axes)
    dilations = list_spatial(call, "dilations", axes)
    found = []
    for axis in range(axes):
        padded = space[axis] + before[axis] + after[axis]
        reach = padded - dilations[axis] * (kernel[axis] - 1) - 1
        count = reach // strides[axis] + 1
        if call.attribute("ceil_mode", 0):
            count = -(-reach // strides[axis]) + 1
            # A window that would begin in the padding behind the input is left out.
            count -= int((count - 1) * strides[axis] >= space[axis] + before[axis])
        found.append(count)
    if min(found, default=1) < 1 or min(kernel, default=1) < 1:
        raise GraphError(f"has a kernel of {list(kernel)} that does not fit on {list(space)}")
    return tuple(found)


def count_transposed_space(call: GraphCall, space: Shape, kernel: Shape) -> Shape:
    """Return the spatial sizes after a transposed convolution."""
    axes = len(space)
    given = call.attribute("output_shape")
    if given:
        return tuple(given)[-axes:]
    strides = list_spatial(call, "strides", axes)
    if call.attribute("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return tuple(size * stride for size, stride in zip(space, strides, strict=True))
    before, after = find_padding(call, space, kernel)
    dilations = list_spatial(call, "dilations", axes)
    extras = list_spatial(call, "output_padding", axes, default=0)
    found = tuple(
        (space[i] - 1) * strides[i]
        + dilations[i] * (kernel[i] - 1)
        + 1
        + extras[i]
        - before[i]
        - after[i]
        for i in range(axes)
    )
    if min(found, default=1) < 1:
        raise GraphError(f"has a kernel of {list(kernel)} that does not fit on {list(space)}")
    return found
