"""List the kernels that a runtime runs for a network, by its fusion table, and describe each.

PyTorch in eager mode runs one kernel for each operator; other runtimes fold a batch norm into its
convolution, or compute an activation in the kernel before it. Operators are named as in kernel
datasets: ``conv``, ``dwconv``, ``fc``, ``bn``, ``relu`` ...

A rule is a pattern of operator names, one word for each operator in a chain: ``conv|dwconv bn?
relu?``. A word may be optional (``?``), or match any number (``*``) or at least one (``+``) of
operators; ``@pointwise`` stands for all pointwise operators. A chain ends where a result has a
second reader, except at its end. ``se = ...`` names the kernel; without a name it is called after
its operators. Where several patterns match, the longest chain is taken, then the first pattern.

A kernel is also a network, so that it can be built and measured alone. Its features are those of
DeepEn2023 for the kernels of that dataset, and similar ones for others:

HW          side of the image; the root of the number of positions where it is not square
C_in, C_out channels in and out
KS, S       kernel size and stride, geometric means over the axes
FLOPs       two per multiply-add, of the whole batch
params      number of weights
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from joulecast.operators import (
    Shape,
    find_kind,
    input_shape,
    is_half_precision,
    layer_work,
    output_shape,
)
from joulecast.operators.building import plan_input_fits, plan_wiring
from joulecast.records import Input, Layer, Network, Op, Setup, Sizes
from joulecast.variants import REPEATED, Block, match_phase, unfold_blocks
from joulecast.variants.blocks import single_input_shape

_CONVOLUTION = "|".join(
    f"{prefix}conv{dims}" for dims in ("", "1d", "3d") for prefix in ("", "dw", "grouped-")
)
_TRANSPOSED = "conv-transpose|conv1d-transpose|conv3d-transpose"
_SQUEEZE_EXCITE = "se = global-avgpool conv|fc relu|silu|hswish conv|fc sigmoid|hsigmoid mul"
_SHUFFLES = ("shuffle = view transpose copy? view", "shuffle = view transpose reshape")
_FUSED_REDUCTIONS = ("ln", "rms-norm", "gn", "softmax")
_SPELLED_ATTENTION = "attention = matmul mul|div|add* softmax matmul"


@dataclass(frozen=True)
class FusionTable:
    """The rules of a runtime.

    Attributes:
        name: Names the table in a fit.
        patterns: Chains that run as one kernel, as the module's docstring says.
        free: Names of operators that run no kernel in inference.
    """

    name: str
    patterns: tuple[str, ...]
    free: frozenset[str]

    @cached_property
    def rules(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        """The name of each pattern's kernels, or an empty one, and its regular expression."""
        return tuple(map(_compile_rule, self.patterns))


_ACTIVATIONS = "relu|sigmoid|tanh|leaky-relu"
_FREE_IN_TORCH = frozenset({"view", "transpose", "split", "dropout"})
_FREE_ON_PHONES = frozenset({"view", "copy", "reshape", "dropout"})

FUSION_TABLES: dict[str, FusionTable] = {
    table.name: table
    for table in (
        # PyTorch in eager mode fuses nothing; a shuffle is one copy of a transposed view.
        FusionTable("torch", _SHUFFLES, _FREE_IN_TORCH),
        # TorchInductor calls libraries for convolutions and matrix products; a chain of pointwise
        # operators is one kernel, together with a reduction inside it. Profiles of earlier versions
        # name torch.compile as a runtime.
        FusionTable("torch_compile", (
            *_SHUFFLES, _SPELLED_ATTENTION, "bn relu", "add relu",
            *(f"{one} = @pointwise* {one} @pointwise*" for one in _FUSED_REDUCTIONS),
            "embedding = embedding @pointwise*", "pointwise = @pointwise @pointwise+",
        ), _FREE_IN_TORCH),
        # ONNX Runtime 1.31, CPU execution provider, all optimisations: batch norms and padding
        # folded, FusedConv with sum and activation, FusedGemm, SkipLayerNormalization.
        FusionTable("onnxruntime", (
            *_SHUFFLES, _SPELLED_ATTENTION,
            f"{_CONVOLUTION} bn? add? {_ACTIVATIONS}|hsigmoid?", f"{_TRANSPOSED} bn?",
            f"fc {_ACTIVATIONS}?", "add ln",
        ), _FREE_ON_PHONES | {"pad"}),
        # nn-Meter's rules of TensorFlow Lite on phones (Zhang et al., MobiSys 2021).
        FusionTable("tflite", (
            *_SHUFFLES, _SQUEEZE_EXCITE, f"{_CONVOLUTION} bn? relu?", f"{_TRANSPOSED} bn? relu?",
            "fc relu?", "bn relu?", "add relu?",
        ), _FREE_ON_PHONES),
    )
}  # fmt: skip
"""Fusion tables by name."""


def find_fusion_table(runtime: str, setup: Setup) -> FusionTable:
    """Return the table of a runtime, such as ``onnxruntime-1.31.1``; PyTorch's if it has none.

    What PyTorch compiles, as the setup says, has a table of its own.
    """
    name = "torch_compile" if setup.compiled else runtime.split("-", 1)[0]
    return FUSION_TABLES.get("tflite" if name == "mnn" else name, FUSION_TABLES["torch"])


# -- operators ---------------------------------------------------------------------------------

DATA = -1
"""The source of operators that read the network's input."""
# Operators that describe the same memory differently; some runtimes copy it all the same.
_VIEWS = frozenset({"view", "transpose", "split"})

_NAMES = {
    "linear": "fc", "grouped_linear": "grouped-fc", "batch_norm": "bn", "layer_norm": "ln",
    "rms_norm": "rms-norm", "group_norm": "gn", "sdpa": "attention", "permute": "transpose",
    "flatten": "view", "slice": "split", "gradient_copy": "split", "last": "split",
    "index": "gather", "embedding_bag": "embedding-bag",
}  # fmt: skip
# ReLU6 costs what ReLU costs, and datasets do not tell them apart.
_FUNCTIONS = {"relu6": "relu", "hardtanh": "relu", "hardswish": "hswish", "hardsigmoid": "hsigmoid"}
_POOLS = {"max": "maxpool", "avg": "avgpool", "adaptive_max": "maxpool", "adaptive_avg": "avgpool"}
# Functions that read more than one element of an input for each element of the output.
_NOT_POINTWISE = (
    "softmax", "log_softmax", "cross_entropy", "cumsum", "pad", "roll", "interpolate", "concat",
    "stack", "sum", "mean", "repeat", "flip",
)  # fmt: skip
# Samples of at least so many axes are images; others are sequences of tokens.
_IMAGE_AXES = 3


@dataclass(frozen=True)
class OpNode:
    """An operator of a network.

    Attributes:
        name: Its name in kernel datasets.
        layer_index: Position of its layer, with blocks unfolded.
        begins_layer: It is the layer's first operator, not one of its tail.
        sources: Numbers of the operators whose results it reads; ``DATA`` for the network's input.
    """

    op: Op
    name: str
    layer: Layer
    layer_index: int
    begins_layer: bool
    sources: tuple[int, ...]
    in_shape: Shape
    out_shape: Shape


def list_op_nodes(network: Network) -> tuple[OpNode, ...]:
    """Return the operators of a network in call order."""
    nodes: list[OpNode] = []
    last_nodes: list[int] = []
    for index, layer in enumerate(unfold_blocks(network.layers)):
        sources = tuple(last_nodes[index - back] if back <= index else DATA for back in layer.reads)
        shape = input_shape(layer)
        for number, op in enumerate((Op(layer.kind, layer.sizes), *layer.tail)):
            out_shape = find_kind(op.kind).out_shape(op.sizes, shape)
            own_sources = (len(nodes) - 1,) if number else sources or (DATA,)
            name = name_op(op, shape)
            nodes.append(OpNode(op, name, layer, index, not number, own_sources, shape, out_shape))
            shape = out_shape
        last_nodes.append(len(nodes) - 1)
    return tuple(nodes)


def name_op(op: Op, shape: Shape) -> str:
    """Return the name of an operator on samples of this shape."""
    kind, fn = find_kind(op.kind), str(op.sizes.get("fn", ""))
    if kind.is_convolution:
        groups = op.sizes["groups"]
        name = "conv" if kind.spatial_dims == 2 else f"conv{kind.spatial_dims}d"
        if "output_padding" in op.sizes:  # only transposed ones have it
            return f"{name}-transpose"
        if groups == 1:
            return name
        return f"dw{name}" if groups == op.sizes["cin"] else f"grouped-{name}"
    if kind.combines_inputs:
        if fn.startswith("concat"):
            return "concat"
        # An average over all positions of an image; one over tokens is a reduction like others.
        is_global = op.sizes["axes"] == (*range(1, len(shape)),) and len(shape) >= _IMAGE_AXES
        if fn == "mean" and is_global:
            return "global-avgpool"
        return _FUNCTIONS.get(fn, fn.replace("_", "-").replace(" ", "-"))
    if fn in _POOLS and "kernel" in op.sizes:
        is_global = fn == "adaptive_avg" and math.prod(op.sizes["kernel"]) == 1
        return "global-avgpool" if is_global else _POOLS[fn]
    return _NAMES.get(op.kind, op.kind)


def is_pointwise(op: Op) -> bool:
    """Return whether each output element depends on one element of every input.

    So does a batch norm in inference, whose statistics are constants.
    """
    if not find_kind(op.kind).combines_inputs:
        return _NAMES.get(op.kind) == "bn"
    if op.sizes["axes"] or "out" in op.sizes:
        return False
    return not str(op.sizes["fn"]).startswith(_NOT_POINTWISE)


# -- groups of operators ----------------------------------------------------------------------

# A chain is matched as a text: each operator is its name and a semicolon, with a full stop before
# the names of free ones and a tilde behind those of pointwise ones.
_MARKS = re.compile("[;.~]")
# Longer chains are several kernels.
_LONGEST_CHAIN = 200


@dataclass(frozen=True)
class OpGroup:
    """The operators of one kernel: their numbers in call order, views between them included."""

    kind: str
    members: tuple[int, ...]


def group_ops(nodes: Sequence[OpNode], table: FusionTable, is_training: bool) -> list[OpGroup]:
    """Return the kernels of a network in the order in which they finish.

    In training, dropout runs, and gradients of slices move elements: only views are free.
    """
    is_free = [
        find_kind(node.op.kind).is_view if is_training else node.name in table.free
        for node in nodes
    ]
    words = [
        "." * free + _MARKS.sub("_", node.name) + "~" * is_pointwise(node.op) + ";"
        for free, node in zip(is_free, nodes, strict=True)
    ]
    readers: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for source in {*node.sources} - {DATA}:
            readers[source].append(number)
    taken: set[int] = set()
    groups: list[OpGroup] = []
    for start in range(len(nodes)):
        if start in taken:
            continue
        chain = [start]
        while len(chain) < _LONGEST_CHAIN and len(readers[chain[-1]]) == 1:
            (at,) = readers[chain[-1]]
            # It is called as often, and has weights of its own as the first has.
            first, other = nodes[start].layer, nodes[at].layer
            if at in taken or (first.calls, first.tied) != (other.calls, other.tied):
                break
            chain.append(at)
        text = "".join(words[at] for at in chain)
        ends = [*accumulate(len(words[at]) for at in chain)]
        counts = [*accumulate(not is_free[at] for at in chain)]
        # How many of its operators run, how many there are, and what they are called.
        best: tuple[int, int, str] | None = None
        for kind, pattern in table.rules:
            if not pattern.match(text):
                continue
            for end, count, size in zip(ends, counts, range(1, len(chain) + 1), strict=True):
                is_longer = best is None or count > best[0]
                if is_longer and pattern.fullmatch(text, 0, end):
                    best = (count, size, kind)
        if best is None and is_free[start]:
            continue
        members = tuple(chain[: best[1] if best else 1])
        names = "+".join(nodes[at].name for at in members if not is_free[at])
        groups.append(OpGroup((best and best[2]) or names, members))
        taken.update(members)
    return sorted(groups, key=lambda group: group.members[-1])


def _compile_rule(pattern: str) -> tuple[str, re.Pattern[str]]:
    kind, equals, words = pattern.rpartition("=")
    blocks, lead, is_open = "", list[str](), True
    for word in words.split():
        names = word.rstrip("?*+")
        one = r"\.?[^;~]+~;" if names == "@pointwise" else rf"\.?(?:{names})~?;"
        many = word[len(names) :]
        # Free operators may lie between the others, and not before the first.
        blocks += rf"(?:(?:(?!{one})\.[^;]+;)*{one}){many}"
        lead += [one] if is_open else []
        is_open = is_open and many in {"?", "*"}
    return kind.strip() if equals else "", re.compile(f"(?={'|'.join(lead)}){blocks}")


# -- kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedKernel:
    """Operators that run as one kernel.

    Two kernels are equal if they do the same work: names and positions take no block in it.

    Attributes:
        kind: Names of its operators, such as ``conv+bn+relu``.
        network: The kernel as a network, to build and measure it alone.
        features: What its cost depends on, by name.
        flops: Floating-point operations of contractions, two per multiply-add.
        size_bytes: Bytes read plus bytes written; results that stay inside the kernel are not.
        params: Weights that it has, those of folded norms included; 0 for shared weights.
        count: How often one step runs it.
        layers: Positions of the layers in the network that it does work of, and the share of its
            own work that each has.
    """

    kind: str
    network: Network
    batch: int
    features: Sizes
    flops: float = field(compare=False)
    size_bytes: float = field(compare=False)
    params: int = field(compare=False)
    count: int = field(default=1, compare=False)
    layers: tuple[tuple[int, float], ...] = field(default=(), compare=False)


def list_kernels(network: Network, setup: Setup, table: FusionTable) -> tuple[FusedKernel, ...]:
    """Return the kernels of a network in the order in which they run.

    In training, a kernel includes its gradients and its update, and nothing is assumed to be fused
    in them.
    """
    nodes = list_op_nodes(network)
    groups = group_ops(nodes, table, setup.phase == "train")
    return tuple(_make_kernel(nodes, group, setup, table) for group in groups)


def merge_kernels(kernels: Iterable[FusedKernel]) -> tuple[FusedKernel, ...]:
    """Return distinct kernels in order of appearance, each with the count of all equal ones."""
    counts: dict[FusedKernel, int] = {}
    for kernel in kernels:
        counts[kernel] = counts.get(kernel, 0) + kernel.count
    return tuple(replace(kernel, count=count) for kernel, count in counts.items())


def _make_kernel(
    nodes: Sequence[OpNode], group: OpGroup, setup: Setup, table: FusionTable
) -> FusedKernel:
    network = _make_network(nodes, group.members)
    block = match_phase(Block(REPEATED, network.layers), setup)
    network = replace(network, layers=block.layers)
    works = [layer_work(layer, setup) for layer in network.layers]
    flops = sum(work.total.flops for work in works)
    params = sum(work.params for work in works)
    size_bytes = sum(work.total.size_bytes for work in works)
    alone = [_count_op_bytes(nodes[number], setup) for number in group.members]
    if setup.phase != "train":
        size_bytes = sum(
            _count_moved_bytes(nodes, number, moved, group.members, setup)
            for number, moved in zip(group.members, alone, strict=True)
        )
    # A kernel's cost is divided among its layers by the bytes that each moves.
    moved: dict[int, float] = {}
    for number, own in zip(group.members, alone, strict=True):
        index = nodes[number].layer_index
        moved[index] = moved.get(index, 0.0) + (own if len(alone) > 1 else 1.0)
    total = sum(moved.values())
    first = nodes[group.members[0]].layer
    return FusedKernel(
        group.kind,
        network,
        setup.batch,
        Sizes(_describe_kernel(nodes, group.members, flops, params, setup.batch)),
        flops,
        size_bytes,
        0 if first.tied else params,
        first.calls,
        tuple((at, own / total if total else 1.0 / len(moved)) for at, own in moved.items()),
    )


def _count_moved_bytes(
    nodes: Sequence[OpNode], number: int, alone: float, members: Sequence[int], setup: Setup
) -> float:
    """Return the bytes that an operator of a kernel moves in inference, given those it moves alone.

    Results that only the kernel reads are not moved.
    """
    if len(members) == 1:
        return max(0.0, alone)
    node = nodes[number]
    inside = [nodes[one].out_shape for one in node.sources if one in members]
    inside += [node.out_shape] if number != members[-1] else []
    kept = setup.batch * _find_item_bytes(setup) * sum(map(math.prod, inside))
    # Passes of an operator that is spelled out become one.
    return max(0.0, alone / float(node.op.sizes.get("passes", 1)) - kept)


def _find_item_bytes(setup: Setup) -> int:
    """Return the bytes of an element of an activation."""
    if setup.precision == "int8":
        return 1
    return 2 if is_half_precision(setup) else 4


def _count_op_bytes(node: OpNode, setup: Setup) -> float:
    """Return the bytes that an operator moves alone in inference."""
    if node.name in _VIEWS:
        # Counted as free, but a runtime that has a kernel for it copies the result.
        return 2.0 * setup.batch * _find_item_bytes(setup) * math.prod(node.out_shape)
    if find_kind(node.op.kind).is_view:
        return 0.0
    layer = _make_network((replace(node, sources=(-1,) * len(node.sources)),), (0,)).layers[0]
    return layer_work(replace(layer, transposed=()), setup).forward.size_bytes


# -- features ----------------------------------------------------------------------------------

Features = dict[str, float]

_MOST_CONCATENATED = 4
# Features that are sizes of the operator, as far as it has them.
_SIZES = {
    **dict.fromkeys(("linear", "grouped_linear"), ("cin", "cout")),
    **dict.fromkeys(
        ("attention", "sdpa"),
        ("heads", "kv_heads", "head_dim", "width", "tokens", "kv_tokens", "causal"),
    ),
    "matmul": ("count", "m", "k", "n"),
    **dict.fromkeys(("embedding", "embedding_bag"), ("vocabulary", "width")),
    **dict.fromkeys(("lstm", "gru", "rnn"), ("cin", "hidden", "tokens", "depth")),
}
_LINEAR_NAMES = {"cin": "C_in", "cout": "C_out"}


def _describe_kernel(
    nodes: Sequence[OpNode], members: Sequence[int], flops: float, params: int, batch: int
) -> Features:
    """Return the features of a kernel: those of its first operator with weights, else the first."""
    kinds = [find_kind(nodes[number].op.kind) for number in members]
    heavy = (at for at, kind in enumerate(kinds) if kind.operator_class != "elementwise")
    main = next(heavy, 0)
    node, sizes = nodes[members[main]], nodes[members[main]].op.sizes
    shape, out = node.in_shape, node.out_shape
    whole = {"batch": float(batch)}
    work = {"FLOPs": flops, "params": float(params), **whole}
    image = {"HW": math.sqrt(_count_positions(shape)), "C_in": float(_count_channels(shape))}
    if kinds[main].is_convolution or "kernel" in sizes:
        kernel = sizes["kernel"]
        if str(sizes.get("fn", "")).startswith("adaptive"):
            kernel = tuple(-(-a // b) for a, b in zip(shape[1:], out[1:], strict=True))
        stride = _geometric_mean(sizes["stride"] or kernel)
        groups = {"groups": float(sizes["groups"])} if "groups" in sizes else {}
        cout = sizes.get("cout", _count_channels(out))
        image.update(C_out=float(cout), KS=_geometric_mean(kernel), S=stride)
        return {**image, **groups, **work}
    if node.name == "concat":
        return {"HW": image["HW"], **_list_concatenated(nodes, node), **whole}
    if names := _SIZES.get(node.op.kind):
        rows = {"rows": float(math.prod(sizes["lead"]))} if "lead" in sizes else {}
        titles = _LINEAR_NAMES if "cout" in names else {}
        own = {titles.get(one, one): float(sizes[one]) for one in names if one in sizes}
        return {**rows, **own, **work}
    changed = {"out": float(math.prod(out))} if math.prod(out) != math.prod(shape) else {}
    return {**image, **changed, **whole}


def _list_concatenated(nodes: Sequence[OpNode], node: OpNode) -> Features:
    """Return the channels of up to four inputs, the widest first; the rest count as one."""
    widths = [_count_channels(nodes[one].out_shape) for one in node.sources if one != DATA]
    if missing := len(node.sources) - len(widths):
        left = max(0, _count_channels(node.in_shape) - sum(widths))
        widths += [left // missing] * missing
    widths = sorted(widths, reverse=True)
    last = _MOST_CONCATENATED - 1
    kept = [*widths[:last], *[0] * (last - len(widths)), sum(widths[last:])]
    return {f"C{number}": float(width) for number, width in enumerate(kept, start=1)}


def _count_positions(shape: Shape) -> int:
    """Return the positions of a sample: pixels of an image, tokens of a sequence."""
    return math.prod(shape[1:] if len(shape) >= _IMAGE_AXES else shape[:-1])


def _count_channels(shape: Shape) -> int:
    """Return the channels of a sample: the first axis of images, the last one of sequences."""
    if not shape:
        return 1
    return shape[0] if len(shape) >= _IMAGE_AXES else shape[-1]


def _geometric_mean(sizes: Sequence[int]) -> float:
    return float(math.prod(sizes) ** (1.0 / len(sizes)))


# -- a kernel as a network -----------------------------------------------------------------------


def _make_network(nodes: Sequence[OpNode], members: Sequence[int]) -> Network:
    """Return the network of these operators; its input takes the place of all other results.

    It is marked as not buildable where those have different shapes, so that it would run other
    kernels too. Concatenated results have equal widths.
    """
    layers: list[Layer] = []
    places: dict[int, int] = {}
    for number in members:
        node = nodes[number]
        if layers and _joins_tail(layers[-1], node, places, len(layers) - 1):
            # In a tail the shape follows from the operators before.
            sizes = {name: size for name, size in node.op.sizes.items() if name != "shape"}
            op = Op(node.op.kind, Sizes(sizes))
            layers[-1] = replace(layers[-1], tail=(*layers[-1].tail, op))
        else:
            layers.append(_make_layer(node, places, len(layers)))
        places[number] = len(layers) - 1
    first = layers[0]
    vocabulary = int(first.sizes.get("vocabulary", 0))
    network = Network(tuple(layers), Input(single_input_shape(first), vocabulary))
    # A runtime would have to fit results to layers, which runs other kernels.
    shapes = [network.input.shape, *map(output_shape, network.layers)]
    needs_fits = any(
        plan_input_fits(layer, [shapes[read] for read in wiring.reads])
        for layer, wiring in zip(network.layers, plan_wiring(network), strict=True)
    )
    return replace(network, buildable=not needs_fits)


def _joins_tail(layer: Layer, node: OpNode, places: dict[int, int], last: int) -> bool:
    """Return whether an operator reads the last layer alone and may be in its tail."""
    reads_last = [places.get(source) for source in node.sources] == [last]
    # Reading loses some views: a result may have another shape than what reads it.
    is_same_shape = output_shape(layer) == node.in_shape
    return reads_last and is_same_shape and find_kind(node.op.kind).can_be_in_tail


def _make_layer(node: OpNode, places: dict[int, int], index: int) -> Layer:
    """Return the layer that an operator begins, with the flags of its layer in the network."""
    own = node.layer
    sizes = node.op.sizes
    if not node.begins_layer:
        sizes = Sizes({**sizes, "shape": node.in_shape})
    elif own.join == "concat" and "shape" in sizes:
        pairs = zip(node.in_shape, single_input_shape(own), strict=True)
        equal = tuple(one if one == full else one * len(own.reads) for full, one in pairs)
        sizes = Sizes({**sizes, "shape": equal})
    sources = node.sources if node.begins_layer and own.join != "none" else node.sources[:1]
    reads = tuple(index - places[one] if one in places else index + 1 for one in sources)
    if not node.begins_layer:
        own = replace(
            own, join="none", channels_last=False, channels_last_weights=False, transposed=()
        )
    kind = node.op.kind
    return replace(own, kind=kind, sizes=sizes, tail=(), reads=reads, calls=1, tied=False)
