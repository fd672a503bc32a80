"""Provide one layer or more of every kind, and strategies for setups and networks."""

from dataclasses import replace

from hypothesis import strategies as st

from joulecast.families import FAMILIES, make_family
from joulecast.operators import free_widths, layer_work, make_layer, make_op
from joulecast.records import Setup

TOKENS = {"tokens": 7, "kv_tokens": 9}
POOL = {"fn": "max", "kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "shape": (6, 8, 8)}
LAYERS = {
    "conv1d": make_layer("conv1d", cin=4, cout=6, space=16, kernel=3, padding=1),
    "conv2d": make_layer("conv2d", cin=4, cout=6, space=16, kernel=3, stride=2, dilation=2),
    "conv2d grouped": make_layer("conv2d", cin=4, cout=8, space=8, kernel=3, groups=2),
    "conv2d depthwise": make_layer("conv2d", cin=6, cout=12, space=8, kernel=3, groups=6, bias=0),
    "conv2d narrowing": make_layer("conv2d", cin=12, cout=4, space=8, kernel=3, groups=2),
    "conv3d": make_layer("conv3d", cin=2, cout=3, space=5, kernel=(1, 2, 3)),
    "conv_transpose1d": make_layer("conv_transpose1d", cin=4, cout=6, space=5, kernel=3, stride=2),
    "conv_transpose2d": make_layer(
        "conv_transpose2d", cin=4, cout=6, space=5, kernel=3, stride=2, output_padding=1
    ),
    "conv_transpose3d": make_layer("conv_transpose3d", cin=2, cout=3, space=4, kernel=2),
    "linear": make_layer("linear", cin=12, cout=5),
    "linear on tokens": make_layer("linear", cin=12, cout=5, lead=(7,), bias=0),
    "embedding": make_layer("embedding", vocabulary=100, width=8, lead=(7,)),
    "embedding_bag": make_layer("embedding_bag", vocabulary=100, width=8, lead=(6,), bags=2),
    "grouped_linear": make_layer("grouped_linear", cin=12, cout=5, lead=(7,), experts=3),
    "index": make_layer("index", fn="index", axes=(0, 1), shape=(7, 7, 8), out=(21, 8)),
    "index of a table": make_layer("index", fn="index", params=80, shape=(40,), out=(7, 8)),
    "gather": make_layer("index", fn="gather", shape=(7, 8), out=(7, 3)),
    "scatter": make_layer("scatter", fn="index_add", shape=(7, 8), source=(9, 8)),
    "sort": make_layer("sort", fn="sort", shape=(7, 8), out=(7, 8)),
    "topk": make_layer("sort", fn="topk", shape=(7, 8), out=(7, 2)),
    "slice": make_layer("slice", shape=(16, 8), out=(8,)),
    "gradient_copy": make_layer("gradient_copy", shape=(7, 24), out=(7, 8)),
    "lstm": make_layer("lstm", cin=5, hidden=6, tokens=7),
    "lstm bidirectional": make_layer("lstm", cin=5, hidden=6, tokens=7, depth=2, bidirectional=1),
    "gru": make_layer("gru", cin=5, hidden=6, tokens=7, bias=0),
    "rnn": make_layer("rnn", cin=5, hidden=6, tokens=7),
    "attention": make_layer("attention", width=8, heads=2, **TOKENS),
    "sdpa": make_layer("sdpa", heads=4, kv_heads=2, head_dim=8, **TOKENS),
    "sdpa in windows": make_layer("sdpa", heads=4, kv_heads=4, head_dim=8, windows=3, **TOKENS),
    "matmul": make_layer("matmul", count=3, m=4, k=5, n=6),
    "batch_norm": make_layer("batch_norm", shape=(6, 8, 8)),
    "group_norm": make_layer("group_norm", groups=2, shape=(6, 8, 8)),
    "layer_norm": make_layer("layer_norm", shape=(7, 8)),
    "rms_norm": make_layer("rms_norm", shape=(7, 8)),
    "elementwise": make_layer("elementwise", fn="relu", shape=(6, 8, 8)),
    "pool": make_layer("pool", **POOL),
    "dropout": make_layer("dropout", p=0.5, shape=(7, 8)),
    "flatten": make_layer("flatten", shape=(6, 8, 8)),
    "view": make_layer("view", out=(48, 8), shape=(6, 8, 8)),
    "permute": make_layer("permute", order=(1, 0), shape=(7, 8)),
    "last": make_layer("last", shape=(7, 8)),
}
WITH_WEIGHTS = [name for name, layer in LAYERS.items() if layer_work(layer, Setup()).params]
WITH_WIDTHS = [name for name, layer in LAYERS.items() if free_widths(layer)]

SETUPS = st.builds(
    Setup,
    batch=st.integers(1, 64),
    precision=st.sampled_from(["fp32", "bf16"]),
    optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
)
NETWORKS = st.sampled_from([make_family(name) for name in FAMILIES])


def conv(cin, cout, tail=(), space=(6, 8), reads=(1,), join="none", **sizes):
    """Return a convolution, of one pixel unless a kernel is given."""
    layer = make_layer("conv2d", tail, cin=cin, cout=cout, space=space, **{"kernel": 1, **sizes})
    return replace(layer, reads=reads, join=join)


def join(fn, reads, tail=(), shape=(8, 6, 6)):
    """Return a function of the results of earlier layers."""
    inputs = 1 if fn == "concat" else len(reads)
    layer = make_layer("elementwise", tail, fn=fn, inputs=inputs, shape=shape)
    return replace(layer, reads=reads, join=fn)


def make_pool(fn, *kernel, **sizes):
    return make_op("pool", fn=fn, kernel=kernel, **sizes)


POOLS = (
    make_pool("max", 2, 2, stride=(2, 2), padding=(0, 0)),
    make_pool("avg", 2, 4, stride=(2, 3), padding=(0, 0)),
    make_pool("max", 3, 3, stride=(1, 1), padding=(1, 1)),
    make_pool("max", 3, 3, stride=(2, 2), padding=(1, 1)),
    make_pool("max", 3, 3, stride=(2, 2), padding=(0, 0), ceil=1),
    make_pool("avg", 3, 2, stride=(2, 2), padding=(1, 1)),
    make_pool("adaptive_avg", 1, 1),
    make_pool("adaptive_max", 3, 2),
)
