"""Hold the table of kinds, one row each."""

from __future__ import annotations

from joulecast.errors import InputError
from joulecast.kinds.contractions import (
    define_convolution,
    define_grouped_linear,
    define_linear,
    define_matmul,
)
from joulecast.kinds.elementwise import (
    define_batch_norm,
    define_dropout,
    define_elementwise,
    define_flatten,
    define_group_norm,
    define_last,
    define_layer_norm,
    define_permute,
    define_pool,
    define_rms_norm,
    define_view,
)
from joulecast.kinds.indexing import (
    define_gradient_copy,
    define_index,
    define_scatter,
    define_slice,
    define_sort,
)
from joulecast.kinds.kind import Kind
from joulecast.kinds.sequences import (
    define_attention,
    define_embedding,
    define_embedding_bag,
    define_recurrent,
    define_sdpa,
)

KINDS: dict[str, Kind] = {
    "conv1d": define_convolution(1),
    "conv2d": define_convolution(2),
    "conv3d": define_convolution(3),
    "conv_transpose1d": define_convolution(1, transposed=True),
    "conv_transpose2d": define_convolution(2, transposed=True),
    "conv_transpose3d": define_convolution(3, transposed=True),
    "linear": define_linear(),
    "grouped_linear": define_grouped_linear(),
    "embedding": define_embedding(),
    "embedding_bag": define_embedding_bag(),
    "lstm": define_recurrent(4),
    "gru": define_recurrent(3),
    "rnn": define_recurrent(1),
    "attention": define_attention(),
    "sdpa": define_sdpa(),
    "matmul": define_matmul(),
    "batch_norm": define_batch_norm(),
    "group_norm": define_group_norm(),
    "layer_norm": define_layer_norm(),
    "rms_norm": define_rms_norm(),
    "elementwise": define_elementwise(),
    "index": define_index(),
    "scatter": define_scatter(),
    "sort": define_sort(),
    "slice": define_slice(),
    "gradient_copy": define_gradient_copy(),
    "pool": define_pool(),
    "dropout": define_dropout(),
    "flatten": define_flatten(),
    "view": define_view(),
    "permute": define_permute(),
    "last": define_last(),
}


def find_kind(name: str) -> Kind:
    """Return the row of a kind.

    Raises:
        InputError: There is no kind of that name.
    """
    try:
        return KINDS[name]
    except KeyError:
        known = ", ".join(sorted(KINDS))
        raise InputError(f"unknown kind {name!r}; known kinds: {known}") from None
