"""Read compute-bound operators from traced calls: convolutions, products and attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from joulecast.kinds import make_op
from joulecast.records import Op
from joulecast.runtimes.torch.event_arguments import (
    Shape,
    bind_arguments,
    expand_size,
    function_name,
    sample_shape,
)
from joulecast.runtimes.torch.modules import PackedSdpa
from joulecast.runtimes.torch.trace_events import Event

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def read_conv(event: Event, batch: int) -> Op:
    """Read a convolution or a transposed convolution."""
    is_transposed = "transpose" in event.name
    names = ["input", "weight", "bias", "stride", "padding"]
    names += ["output_padding", "groups", "dilation"] if is_transposed else ["dilation", "groups"]
    given = bind_arguments(event, *names)
    x, weight = given["input"], given["weight"]
    dims = weight.dim() - 2
    dilation = expand_size(given.get("dilation", 1), dims)
    groups = given.get("groups", 1)
    sizes = {
        "cin": weight.shape[0] if is_transposed else weight.shape[1] * groups,
        "cout": weight.shape[1] * groups if is_transposed else weight.shape[0],
        "space": _stack_images(x, batch),
        "kernel": tuple(weight.shape[2:]),
        "stride": expand_size(given.get("stride", 1), dims),
        "padding": _resolve_padding(given.get("padding", 0), weight.shape[2:], dilation),
        "dilation": dilation,
        "groups": groups,
        "bias": int(given.get("bias") is not None),
    }
    if is_transposed:
        sizes["output_padding"] = expand_size(given.get("output_padding", 0), dims)
    return make_op(function_name(event), **sizes)


def _stack_images(x: torch.Tensor, batch: int) -> Shape:
    """Return the spatial sizes; images of a sample, such as frames, are one tall image.

    Their convolution is one call with the same work, up to the padding between them.
    """
    first, *rest = x.shape[2:]
    images = x.shape[0] // batch if x.shape[0] % batch == 0 else 1
    return (first * images, *rest)


def _resolve_padding(padding: Any, kernel: Any, dilation: Shape) -> Shape:
    if padding == "valid":
        return (0,) * len(dilation)
    if padding == "same":
        return tuple(d * (int(k) - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return expand_size(padding, len(dilation))


def read_linear(event: Event, batch: int) -> Op:
    """Read ``F.linear``."""
    given = bind_arguments(event, "input", "weight", "bias")
    cout, cin = given["weight"].shape
    lead = _lead_shape(given["input"], batch)
    return make_op("linear", cin=cin, cout=cout, lead=lead, bias=int(given.get("bias") is not None))


def read_bilinear(event: Event, batch: int) -> Op:
    """Read ``F.bilinear`` as a linear layer on all products of two features."""
    given = bind_arguments(event, "input1", "input2", "weight", "bias")
    cout, *widths = given["weight"].shape
    lead, bias = _lead_shape(given["input1"], batch), int(given.get("bias") is not None)
    return make_op("linear", cin=math.prod(widths), cout=cout, lead=lead, bias=bias)


def _lead_shape(x: torch.Tensor, batch: int) -> Shape:
    """Return the axes of a sample before the last one.

    Rows that are not a multiple of the batch, such as positions or the tokens of one expert, are
    spread over the samples.
    """
    shape = sample_shape(x.shape, batch)
    if x.dim() > 1 and len(shape) == 1 and x.shape[0] != batch:
        rows = max(1, round(x.numel() / x.shape[-1] / batch))
        return (rows,) if rows > 1 else ()
    return shape[:-1]


def read_grouped_linear(event: Event, batch: int) -> Op:
    """Read ``F.grouped_mm`` of rows with a weight for each expert; any other as a product."""
    x, weight = event.args[:2]
    if (x.dim(), weight.dim()) != (2, 3):
        return read_matmul(event, batch)
    experts, cin, cout = weight.shape
    rows = max(1, round(x.shape[0] / batch))
    half = int(weight.dtype in (torch.bfloat16, torch.float16))
    return make_op("grouped_linear", cin=cin, cout=cout, lead=(rows,), experts=experts, half=half)


def read_embedding(event: Event, batch: int) -> Op:
    """Read ``F.embedding``."""
    given = bind_arguments(event, "input", "weight")
    vocabulary, width = given["weight"].shape
    lead = sample_shape(given["input"].shape, batch)
    return make_op("embedding", vocabulary=vocabulary, width=width, lead=lead)


def read_embedding_bag(event: Event, batch: int) -> Op:
    """Read ``F.embedding_bag`` of bags of equal length, or of one list with offsets."""
    given = bind_arguments(event, "input", "weight", "offsets")
    tokens, table = given["input"], given["weight"]
    if tokens.is_floating_point():  # the old order of arguments
        tokens, table = table, tokens
    vocabulary, width = table.shape
    return make_op(
        "embedding_bag",
        vocabulary=vocabulary,
        width=width,
        lead=(max(1, round(tokens.numel() / batch)),),
        bags=max(1, round(event.outputs[0].shape[0] / batch)),
    )


def read_recurrent(event: Event, batch: int) -> Op:
    """Read an LSTM, a GRU or an RNN on a padded or a packed sequence."""
    x, second, *rest = event.args
    kind = event.name.split("_")[0]
    is_packed = isinstance(second, torch.Tensor) and not second.is_floating_point()
    if is_packed:  # the tokens of all samples on one axis
        _, weights, bias, depth, _, _, bidirectional = rest[:7]
        tokens = -(-x.shape[0] // batch)
    else:
        weights, bias, depth, _, _, bidirectional, *batch_first = rest
        tokens = x.shape[1] if batch_first and batch_first[0] else x.shape[0]
    return make_op(
        kind,
        cin=x.shape[-1],
        hidden=weights[0].shape[0] // _GATES[kind],
        tokens=tokens,
        depth=depth,
        bidirectional=int(bidirectional),
        bias=int(bias),
    )


def read_recurrent_cell(event: Event, batch: int) -> Op:
    """Read one step of an LSTM, a GRU or an RNN cell."""
    x, _, weight, *_ = event.args
    kind = event.name.split("_")[0]
    return make_op(kind, cin=x.shape[-1], hidden=weight.shape[0] // _GATES[kind], tokens=1)


def read_attention(event: Event, batch: int) -> Op:
    """Read ``nn.MultiheadAttention``, traced as one call."""
    module = event.leaf_module
    assert isinstance(module, nn.MultiheadAttention)
    given = bind_arguments(event, "query", "key", "value")
    query, key = given["query"], given["key"]
    axis = 1 if module.batch_first else 0
    sequences = query.shape[1 - axis] if query.dim() > 2 else 1
    windows = sequences // batch if sequences % batch == 0 else 1
    return make_op(
        "attention",
        **({"windows": windows} if windows > 1 else {}),
        width=module.embed_dim,
        heads=module.num_heads,
        tokens=query.shape[axis],
        kv_tokens=key.shape[axis],
        bias=int(module.in_proj_bias is not None),
    )


def read_sdpa(event: Event, batch: int) -> Op:
    """Read ``F.scaled_dot_product_attention``."""
    given = bind_arguments(event, "query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    query, key = given["query"], given["key"]
    sequences = math.prod(query.shape[:-3]) if query.dim() > 3 else query.shape[0]
    windows = sequences // batch if sequences % batch == 0 else 1
    return make_op(
        "sdpa",
        **({"windows": windows} if windows > 1 else {}),
        heads=query.shape[-3] if query.dim() > 3 else 1,
        kv_heads=key.shape[-3] if key.dim() > 3 else 1,
        head_dim=query.shape[-1],
        tokens=query.shape[-2],
        kv_tokens=key.shape[-2],
        causal=int(bool(given.get("is_causal"))),
    )


def read_packed_sdpa(event: Event, batch: int) -> Op:
    """Return the operator that a ``PackedSdpa`` was built from."""
    assert isinstance(event.leaf_module, PackedSdpa)
    return event.leaf_module.op


def read_matmul(event: Event, batch: int) -> Op:
    """Read any function that runs matrix products: with a weight as linear, else as matmul."""
    count, m, k, n = event.matmuls[0]
    # Several products in one function count as more rows of the first.
    rows = sum(c * a * b * d for c, a, b, d in event.matmuls) / (k * n)
    if event.param_names or find_shared_operand(event) is not None:
        lead = max(1, round(rows / batch))
        bias = int(len(event.param_names) > 1 or event.name == "addmm")
        return make_op("linear", cin=k, cout=n, lead=(lead,) if lead > 1 else (), bias=bias)
    if count % batch == 0:
        return make_op("matmul", count=max(1, round(rows / (m * batch))), m=m, k=k, n=n)
    return make_op("matmul", count=1, m=max(1, round(rows / batch)), k=k, n=n)


def find_shared_operand(event: Event) -> torch.Tensor | None:
    """Return the matrix that all samples are multiplied by, if a layer computed it.

    In-batch similarities multiply every sample by the features of all: the matrix is a weight that
    is not updated.
    """
    if event.param_names or function_name(event) not in ("matmul", "mm") or len(event.args) < 2:
        return None
    left, right = event.args[:2]
    is_product = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
    return right if is_product and left.dim() >= 2 and right.dim() == 2 else None
