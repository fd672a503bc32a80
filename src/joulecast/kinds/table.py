"""The table itself: one row per kind."""

from __future__ import annotations

import math

from joulecast.errors import InputError
from joulecast.kinds.heavy import (
    make_attention,
    make_conv,
    make_embedding,
    make_linear,
    make_matmul,
    make_recurrent,
    make_sdpa,
)
from joulecast.kinds.light import (
    channel_params,
    layer_norm_params,
    make_dropout,
    make_elementwise,
    make_norm,
    make_pool,
    make_rms_norm,
    make_view,
)
from joulecast.kinds.work import REQUIRED, Kind

KINDS: dict[str, Kind] = {
    "conv1d": make_conv(1, transposed=False),
    "conv2d": make_conv(2, transposed=False),
    "conv3d": make_conv(3, transposed=False),
    "conv_transpose1d": make_conv(1, transposed=True),
    "conv_transpose2d": make_conv(2, transposed=True),
    "conv_transpose3d": make_conv(3, transposed=True),
    "linear": make_linear(),
    "embedding": make_embedding(),
    "lstm": make_recurrent(4),
    "gru": make_recurrent(3),
    "rnn": make_recurrent(1),
    "attention": make_attention(),
    "sdpa": make_sdpa(),
    "matmul": make_matmul(),
    "batch_norm": make_norm({"affine": 1}, channel_params),
    "group_norm": make_norm({"groups": REQUIRED, "affine": 1}, channel_params),
    "layer_norm": make_norm({"dims": 1, "affine": 1, "bias": 1}, layer_norm_params),
    "rms_norm": make_rms_norm(),
    "elementwise": make_elementwise(),
    "pool": make_pool(),
    "dropout": make_dropout(),
    "flatten": make_view(lambda s, shape: (math.prod(shape),), {}),
    "view": make_view(lambda s, shape: tuple(s["out"]), {"out": REQUIRED}),
    "permute": make_view(lambda s, shape: tuple(shape[i] for i in s["order"]), {"order": REQUIRED}),
    "last": make_view(lambda s, shape: shape[1:], {}),
}

# Kinds that only look at data in another way: none of it moves.
VIEWS = frozenset(("flatten", "view", "permute", "last"))


def find_kind(name: str) -> Kind:
    """The row of a kind."""
    try:
        return KINDS[name]
    except KeyError:
        known = ", ".join(sorted(KINDS))
        raise InputError(f"there is no kind {name!r}; known are {known}") from None
