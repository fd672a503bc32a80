"""Map a traced function call to an operator of ``kinds``: one reader per function.

A reader takes an Event and the batch size and returns a stand-alone operator (with a ``shape``
where its kind has no sizes that determine it), or None for a view that no kind describes. Functions
without a reader are classified by what they run: matrix products with a weight are ``linear``,
without one ``matmul``, and all others ``elementwise``.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from joulecast.records import Op
from joulecast.runtimes.torch import compute_readers, index_readers, memory_readers
from joulecast.runtimes.torch.event_arguments import function_name
from joulecast.runtimes.torch.modules import PackedSdpa
from joulecast.runtimes.torch.trace_events import Event

OpReader = Callable[[Event, int], Op | None]

PACKED_SDPA = "packed_sdpa"
_RMS_NORM_CLASSES = ("rmsnorm", "t5layernorm")


def read_op(event: Event, batch: int) -> Op | None:
    """Return the operator that an event runs; None for a view that no kind describes."""
    reader = OP_READERS.get(function_name(event))
    if reader is not None:
        return reader(event, batch)
    if event.matmuls:
        return compute_readers.read_matmul(event, batch)
    if not event.forward.launches:
        return memory_readers.read_view(event, batch)
    return memory_readers.read_elementwise(event, batch)


def name_leaf_module(module: nn.Module) -> str:
    """Return the name under which a module is traced as one call; empty for most modules."""
    for cls, name in LEAF_MODULES.items():
        if isinstance(module, cls):
            return name
    if isinstance(module, nn.RMSNorm):
        return ""
    weights = list(module.parameters(recurse=False))
    is_rms_norm = any(name in type(module).__name__.lower() for name in _RMS_NORM_CLASSES)
    return "rms_norm_module" if is_rms_norm and len(weights) <= 1 else ""


LEAF_MODULES: dict[type[nn.Module], str] = {
    nn.MultiheadAttention: "attention",
    PackedSdpa: PACKED_SDPA,
}
"""Modules that are traced as one call, with the name of their reader in ``OP_READERS``."""

_ELEMENTWISE = (
    "relu",
    "relu6",
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "softplus",
    "softmax",
    "log_softmax",
    "mish",
    "logsigmoid",
    "prelu",
    "add",
    "mul",
    "sub",
    "div",
    "concat",
)

OP_READERS: dict[str, OpReader] = {
    **{f"conv{dims}d": compute_readers.read_conv for dims in (1, 2, 3)},
    **{f"conv_transpose{dims}d": compute_readers.read_conv for dims in (1, 2, 3)},
    "linear": compute_readers.read_linear,
    "bilinear": compute_readers.read_bilinear,
    "grouped_mm": compute_readers.read_grouped_linear,
    "_grouped_mm": compute_readers.read_grouped_linear,
    "grouped_mm_fallback": compute_readers.read_grouped_linear,
    "embedding": compute_readers.read_embedding,
    "embedding_bag": compute_readers.read_embedding_bag,
    "lstm": compute_readers.read_recurrent,
    "gru": compute_readers.read_recurrent,
    "rnn_tanh": compute_readers.read_recurrent,
    "rnn_relu": compute_readers.read_recurrent,
    "rnn_tanh_cell": compute_readers.read_recurrent_cell,
    "rnn_relu_cell": compute_readers.read_recurrent_cell,
    "lstm_cell": compute_readers.read_recurrent_cell,
    "gru_cell": compute_readers.read_recurrent_cell,
    "attention": compute_readers.read_attention,
    "scaled_dot_product_attention": compute_readers.read_sdpa,
    PACKED_SDPA: compute_readers.read_packed_sdpa,
    "batch_norm": memory_readers.read_batch_norm,
    "layer_norm": memory_readers.read_layer_norm,
    "group_norm": memory_readers.read_group_norm,
    "instance_norm": memory_readers.read_instance_norm,
    "rms_norm": memory_readers.read_rms_norm,
    "rms_norm_module": memory_readers.read_decomposed_rms_norm,
    **{
        f"{adaptive}{fn}_pool{dims}d": memory_readers.read_pool
        for adaptive in ("", "adaptive_")
        for fn in ("max", "avg")
        for dims in (1, 2, 3)
    },
    **dict.fromkeys(
        ("dropout", "dropout1d", "dropout2d", "dropout3d"), memory_readers.read_dropout
    ),
    "flatten": memory_readers.read_flatten,
    "permute": memory_readers.read_permute,
    "transpose": memory_readers.read_permute,
    "getitem": memory_readers.read_getitem,
    "mean": memory_readers.read_mean,
    "index_select": index_readers.read_index,
    **dict.fromkeys(("gather", "take_along_dim", "take"), index_readers.read_gather),
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put"),
        index_readers.read_scatter,
    ),
    **dict.fromkeys(("sort", "argsort", "topk", "kthvalue"), index_readers.read_sort),
    **dict.fromkeys(_ELEMENTWISE, memory_readers.read_elementwise),
}
