"""Read operators that multiply from ONNX calls: convolutions, products, recurrence, attention."""

from __future__ import annotations

import math

from joulecast.kinds import Shape, find_kind, make_op
from joulecast.records import Op
from joulecast.runtimes.onnx_files.batch_axes import take_sample
from joulecast.runtimes.onnx_files.graph_values import GraphCall, GraphValue
from joulecast.runtimes.onnx_files.model_file import GraphError
from joulecast.runtimes.onnx_files.shape_rules import find_hidden_size
from joulecast.runtimes.onnx_files.window_shapes import find_padding, list_spatial


def read_conv(call: GraphCall, batch: int) -> Op:
    """Read a convolution, also of quantised numbers."""
    place = 3 if call.op == "QLinearConv" else 1
    image, weight = call.shape(0), call.shape(place)
    bias = call.get(8 if place == 3 else 2) if call.op != "ConvInteger" else None
    groups = call.attribute("group", 1)
    space, kernel = image[2:], weight[2:]
    padding, space = _make_symmetric(call, space, kernel)
    return make_op(
        f"conv{len(kernel)}d",
        cin=weight[1] * groups,
        cout=weight[0],
        space=_stack_images(space, image[0], batch),
        kernel=kernel,
        stride=list_spatial(call, "strides", len(kernel)),
        padding=padding,
        dilation=list_spatial(call, "dilations", len(kernel)),
        groups=groups,
        bias=int(bias is not None),
    )


def read_conv_transpose(call: GraphCall, batch: int) -> Op:
    """Read a transposed convolution."""
    image, weight = call.shape(0), call.shape(1)
    groups, axes = call.attribute("group", 1), len(weight) - 2
    stride = list_spatial(call, "strides", axes)
    dilation = list_spatial(call, "dilations", axes)
    out = call.outputs[0].dims[2:]
    padding, extra = [], []
    for i in range(axes):
        full = (image[2 + i] - 1) * stride[i] + dilation[i] * (weight[2 + i] - 1) + 1
        # What is cut on both sides, and what is added to the end.
        padding.append(max(0, -(-(full - out[i]) // 2)))
        extra.append(out[i] - full + 2 * padding[i])
    return make_op(
        f"conv_transpose{axes}d",
        cin=weight[0],
        cout=weight[1] * groups,
        space=_stack_images(image[2:], image[0], batch),
        kernel=weight[2:],
        stride=stride,
        padding=tuple(padding),
        dilation=dilation,
        groups=groups,
        bias=int(call.get(2) is not None),
        output_padding=tuple(extra),
    )


def read_gemm(call: GraphCall, batch: int) -> Op:
    """Read ``Gemm``: a linear layer, or a product of two computed matrices."""
    place = 3 if call.op.endswith("QGemm") else 1
    left, right = call.read(0), call.read(place)
    bias = call.get(6 if place == 3 else 2)
    cout, cin = right.dims if call.attribute("transB", 0) else right.dims[::-1]
    if right.is_constant:
        return _make_linear(left, cin, cout, bias is not None, batch)
    return make_op("matmul", count=1, m=max(1, round(left.dims[0] / batch)), k=cin, n=cout)


def read_linear(call: GraphCall, batch: int) -> Op:
    """Read a product with a weight and the bias that is added to it."""
    cin, cout = call.shape(1)
    return _make_linear(call.read(0), cin, cout, True, batch)


def read_matmul(call: GraphCall, batch: int) -> Op:
    """Read ``MatMul``: linear with one weight, ``grouped_linear`` with several, else ``matmul``."""
    place = 3 if call.op == "QLinearMatMul" else 1
    left, right = call.read(0), call.read(place)
    if right.is_constant and len(right.dims) == 2:
        return _make_linear(left, *right.dims, False, batch)
    if left.is_constant and len(left.dims) == 2:
        columns = max(1, round(right.elements / left.dims[1] / batch))
        return make_op("linear", cin=left.dims[1], cout=left.dims[0], lead=(columns,), bias=0)
    if right.is_constant and len(right.dims) == 3:
        experts, cin, cout = right.dims
        rows = max(1, round(call.outputs[0].elements / cout / batch))
        return make_op("grouped_linear", cin=cin, cout=cout, lead=(rows,), experts=experts)
    return _read_product(left.dims, right.dims, call.outputs[0], batch)


def read_fused_matmul(call: GraphCall, batch: int) -> Op:
    """Read ONNX Runtime's product of matrices that are transposed on the way."""
    left, right = call.read(0), call.read(1)
    a, b = left.dims, right.dims
    a = (*a[:-2], a[-1], a[-2]) if call.attribute("transA", 0) else a
    b = (*b[:-2], b[-1], b[-2]) if call.attribute("transB", 0) else b
    if right.is_constant and len(b) == 2:
        return _make_linear(left, *b, False, batch)
    return _read_product(a, b, call.outputs[0], batch)


def read_quantised_matmul(call: GraphCall, batch: int) -> Op:
    """Read a product of quantised numbers with their scales, and perhaps a bias."""
    bias = call.get(4 if call.op.endswith("DynamicQuantizeMatMul") else 6)
    cin, cout = call.shape(1)
    return _make_linear(call.read(0), cin, cout, bias is not None, batch)


def read_einsum(call: GraphCall, batch: int) -> Op | None:
    """Read an ``Einsum`` of two values as a product; None for any other."""
    left, _, right = call.attribute("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != 2 or call.outputs[0].shape is None:
        return None
    summed = (set(terms[0]) & set(terms[1])) - set(right)
    sizes = dict(zip(terms[0], call.shape(0), strict=True))
    inner = math.prod(sizes[letter] for letter in summed)
    second = call.read(1)
    if second.is_constant:
        cout = max(1, second.elements // max(1, inner))
        return _make_linear_rows(inner, cout, call.outputs[0].elements / cout, batch)
    shared = math.prod(sizes[letter] for letter in set(terms[0]) & set(terms[1]) & set(right))
    columns = max(1, second.elements // max(1, inner * shared))
    rows = max(1, call.read(0).elements // max(1, inner * shared))
    count = max(1, round(shared / batch))
    return make_op("matmul", count=count, m=rows, k=max(1, inner), n=columns)


def read_embedding(call: GraphCall, batch: int) -> Op:
    """Read a ``Gather`` of rows of a table by computed indices."""
    vocabulary, *rest = call.shape(0)
    lead = take_sample(call.read(1), batch)
    return make_op("embedding", vocabulary=vocabulary, width=math.prod(rest), lead=lead)


def read_recurrent(call: GraphCall, batch: int) -> Op:
    """Read one layer of an LSTM, a GRU or an RNN."""
    first, second, cin = call.shape(0)
    bias = call.get(3)
    return make_op(
        "lstm" if call.op.endswith("LSTM") else call.op.lower(),
        cin=cin,
        hidden=find_hidden_size(call),
        tokens=second if call.attribute("layout", 0) else first,
        bidirectional=int(call.shape(1)[0] == 2),
        bias=int(bias is not None),
    )


def read_sdpa(call: GraphCall, batch: int) -> Op:
    """Read attention that was spelled out: queries, transposed keys, values."""
    query, key = call.shape(0), call.shape(1)
    sequences = math.prod(query[:-3]) if len(query) > 3 else query[0]
    windows = sequences // batch if sequences % batch == 0 else 1
    return make_op(
        "sdpa",
        **({"windows": windows} if windows > 1 else {}),
        heads=query[-3] if len(query) > 3 else 1,
        kv_heads=key[-3] if len(key) > 3 else 1,
        head_dim=query[-1],
        tokens=query[-2],
        kv_tokens=key[-1],
        causal=call.attribute("causal", 0),
    )


def read_packed_attention(call: GraphCall, batch: int) -> Op:
    """Read attention on queries, keys and values side by side."""
    *_, tokens, width = call.shape(0)
    heads = call.attribute("num_heads", 1)
    return make_op(
        "sdpa",
        heads=heads,
        kv_heads=heads,
        head_dim=width // (3 * heads),
        tokens=tokens,
        kv_tokens=tokens,
        causal=int(bool(call.attribute("unidirectional", 0))),
    )


def read_packed_matmul(call: GraphCall, batch: int) -> Op:
    """Read a product with a weight of a few bits an element."""
    cin, cout = call.attribute("K"), call.attribute("N")
    return _make_linear(call.read(0), cin, cout, call.get(5) is not None, batch)


def read_attention(call: GraphCall, batch: int) -> Op:
    """Read the operators ``Attention`` of ONNX and ``MultiHeadAttention`` of ONNX Runtime."""
    query, key = call.shape(0), call.shape(1)
    heads = call.attribute("q_num_heads") or call.attribute("num_heads") or query[1]
    kv_heads = call.attribute("kv_num_heads") or (key[1] if len(key) == 4 else heads)
    is_split = len(query) == 4
    return make_op(
        "sdpa",
        heads=heads,
        kv_heads=kv_heads,
        head_dim=query[-1] if is_split else query[-1] // heads,
        tokens=query[-2],
        kv_tokens=key[-2],
        causal=int(bool(call.attribute("is_causal", call.attribute("unidirectional", 0)))),
    )


def _make_linear(value: GraphValue, cin: int, cout: int, has_bias: bool, batch: int) -> Op:
    sample = take_sample(value, batch)
    if not sample or sample[-1] != cin:
        return _make_linear_rows(cin, cout, value.elements / max(1, cin), batch, has_bias)
    return make_op("linear", cin=cin, cout=cout, lead=sample[:-1], bias=int(has_bias))


def _make_linear_rows(cin: int, cout: int, rows: float, batch: int, has_bias: bool = False) -> Op:
    """Return a linear layer on rows that are spread over the samples."""
    lead = max(1, round(rows / batch))
    sizes = (lead,) if lead > 1 else ()
    return make_op("linear", cin=cin, cout=cout, lead=sizes, bias=int(has_bias))


def _read_product(left: Shape, right: Shape, out: GraphValue, batch: int) -> Op:
    if len(left) < 2 or len(right) < 2:
        raise GraphError("multiplies a vector, which is not supported")
    m, k, n = left[-2], left[-1], right[-1]
    count = out.elements // max(1, m * n)
    if count % batch == 0:
        return make_op("matmul", count=max(1, count // batch), m=m, k=k, n=n)
    return make_op("matmul", count=1, m=max(1, round(count * m / batch)), k=k, n=n)


def _stack_images(space: Shape, images: int, batch: int) -> Shape:
    """Return the spatial sizes; images of a sample, such as frames, are one tall image."""
    first, *rest = space
    return (first * (images // batch if images % batch == 0 else 1), *rest)


def _make_symmetric(call: GraphCall, space: Shape, kernel: Shape) -> tuple[Shape, Shape]:
    """Return padding that is equal on both sides, and the spatial sizes that it is applied to.

    Where no such padding gives the same result, the input counts as padded before.
    """
    before, after = find_padding(call, space, kernel)
    if before == after:
        return before, space
    wanted = call.outputs[0].dims[2:]
    stride = list_spatial(call, "strides", len(kernel))
    dilation = list_spatial(call, "dilations", len(kernel))
    conv = find_kind(f"conv{len(kernel)}d")
    for padding in (before, after):
        op = make_op(
            f"conv{len(kernel)}d", cin=1, cout=1, space=space, kernel=kernel, stride=stride,
            padding=padding, dilation=dilation,
        )  # fmt: skip
        if conv.out_shape(op.sizes, (1, *space))[1:] == wanted:
            return padding, space
    padded = tuple(sum(sizes) for sizes in zip(space, before, after, strict=True))
    return (0,) * len(space), padded
