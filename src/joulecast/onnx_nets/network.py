"""Read a Network from the content of an ONNX file, by the rules of ``operators.assembly``.

The first axis of the first input holds the samples. Sizes that the file leaves open have to be
given; the batch is not needed, because records describe one sample.

Blocks are found from the names of modules.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import onnx

from joulecast.onnx_nets.graph import GraphCall, ReadGraph
from joulecast.onnx_nets.model_file import (
    GraphError,
    GraphInput,
    bind_shapes,
    list_inputs,
    parse_model,
    shorten,
)
from joulecast.onnx_nets.net_file import OnnxNet
from joulecast.onnx_nets.operators import (
    ITEM_BYTES,
    SLICING,
    count_bytes,
    count_flops,
    find_out_shape,
    has_reader,
    list_weights,
    read_call,
)
from joulecast.onnx_nets.patterns import fuse_patterns, insert_copies, merge_slices
from joulecast.operators import Shape, check_network, find_kind, make_op, network_work
from joulecast.operators.assembly import Call, LayerAssembler, Value, append_op
from joulecast.operators.building import with_size
from joulecast.records import (
    INT8_PRECISIONS,
    Input,
    Layer,
    Network,
    Op,
    Setup,
    Sizes,
    StepTotals,
)
from joulecast.records.network import MOST_LAYERS
from joulecast.system.errors import FileError, InputError, NetError

# No usual size is a multiple of it, so the axis of the samples cannot be mistaken for another.
_READING_BATCH = 13
# Slices are layers where their gradients move this share of the bytes of a step, whose three passes
# are forward and the gradients of inputs and weights.
_MIN_VIEW_SHARE, _PASSES = 0.01, 3.0
# A buildable network may leave at most this share of FLOPs and parameters to no layer.
_MAX_UNATTRIBUTED_SHARE = 0.01
_HALF_TYPES = {10: "fp16", 16: "bf16"}
# A file of 1 GiB is in memory three times: as it was read, as it was sent, and parsed.
_MOST_MEMORY_BYTES = 6 * 2**30


def read_network(
    content: bytes,
    name: str,
    place: str,
    sample: Shape | None = None,
    batch: int | None = None,
    usual_batch: int = 1,
) -> OnnxNet:
    """Return the network in the content of an ONNX file, as ``net_file.read_onnx_net`` does.

    No file is opened; ``place`` is what messages call the file.
    """
    model = parse_model(content, place)
    try:
        inputs = list_inputs(model.graph)
        graph = _read_with_batch(model, inputs, sample)
        batch = batch or inputs[0].batch or usual_batch
        network = _make_network(graph, batch, name)
    except GraphError as error:
        raise FileError(f"{place}: {error}: export the net again") from error
    except NetError as error:
        raise NetError(f"{place}: {error}") from error
    except InputError as error:
        raise FileError(f"{place}: {error}") from error
    return OnnxNet(network, batch, _find_precision(graph), inputs[0].batch or 0)


def _read_with_batch(
    model: onnx.ModelProto, inputs: list[GraphInput], sample: Shape | None
) -> ReadGraph:
    """Return the graph, read with the batch size of the file if it fixes one.

    A graph that leaves the batch open may still contain the one that it was exported with.
    """
    first: GraphError | None = None
    for batch in (inputs[0].batch,) if inputs[0].batch else (_READING_BATCH, 1):
        shapes, sizes = bind_shapes(inputs, batch, sample)
        try:
            return ReadGraph(model, inputs, shapes, sizes)
        except GraphError as error:
            first = first or error
    assert first is not None
    raise first


def _make_network(graph: ReadGraph, batch: int, name: str) -> Network:
    """Return the network of a graph, with counts of a step of ``batch`` samples."""
    if not graph.calls:
        raise GraphError("its outputs do not depend on its inputs")
    try:
        calls = merge_slices(graph.calls)
        calls = insert_copies(fuse_patterns(calls, graph.outputs))
        assembler = _GraphAssembler(graph, calls)
        network = assembler.assemble(name)
    except (GraphError, InputError):
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise GraphError(f"it uses an operator in an unsupported way ({error})") from error
    if not network.layers:
        raise NetError(_explain_no_layers(calls))
    if len(network.layers) > MOST_LAYERS:
        raise GraphError(f"it has {len(network.layers):,} layers, more than {MOST_LAYERS:,}")
    check_network(replace(network, buildable=False))
    totals = _count_step(graph, calls, network, batch)
    missing = max(totals.unattributed_flops_share, totals.unattributed_params_share)
    buildable = network.buildable and missing < _MAX_UNATTRIBUTED_SHARE
    return replace(
        network, totals=replace(totals, between=assembler.calls_between), buildable=buildable
    )


def _explain_no_layers(calls: Sequence[GraphCall]) -> str:
    unknown = Counter(call.op for call in calls if not has_reader(call.op))
    if not unknown:
        return "its operators only reshape their inputs, so it computes nothing: give another"
    named = ", ".join(f"{shorten(op)} ({count})" for op, count in unknown.most_common(3))
    return (
        "none of its operators can be counted, because others that are not known come first, "
        f"{named}: export the net again"
    )


def _find_costly(calls: Sequence[GraphCall]) -> frozenset[str]:
    """Return the slicing operators whose gradients move a share of the bytes of a step."""
    total = _PASSES * sum(map(count_bytes, calls))
    moved: Counter[str] = Counter()
    for call in calls:
        if call.op in SLICING and call.read(0).shape is not None:
            sizes = sum(value.elements for value in call.outputs) + 4 * call.read(0).elements
            moved[call.op] += ITEM_BYTES * sizes
    return frozenset(op for op, size in moved.items() if size > _MIN_VIEW_SHARE * total)


def _count_step(
    graph: ReadGraph, calls: Sequence[GraphCall], network: Network, batch: int
) -> StepTotals:
    """Return counts of a step from the shapes of the calls, and what the layers leave.

    A file describes the forward pass alone. Of the backward pass the layers say how much more work
    it is.
    """
    # The batch that is counted in proportion to the one that was read.
    share = batch / graph.batch
    work = network_work(network, Setup(batch=batch))
    flops = share * sum(map(count_flops, calls))
    size_bytes = sum(count_bytes(call, share) for call in calls)
    unknown = [call for call in calls if not has_reader(call.op)]
    unknown_bytes = sum(count_bytes(call, share) for call in unknown)
    unsized = sum(map(_is_unsized, graph.calls))
    used = {name for call in calls for name in list_weights(call)}
    params = sum(graph.weights[name] for name in used)
    forward, backward = work.forward, work.backward
    return StepTotals(
        flops=flops * (1.0 + _divide(backward.flops, forward.flops)),
        size_bytes=size_bytes * (1.0 + _divide(backward.size_bytes, forward.size_bytes)),
        params=params,
        unattributed_flops_share=max(0.0, _divide(flops - forward.flops, flops)),
        unattributed_params_share=max(0.0, _divide(params - work.params, params)),
        overcounted_flops_share=max(0.0, _divide(forward.flops - flops, flops)),
        ops_without_rule=tuple(sorted(Counter(call.op for call in unknown).items())),
        uncounted_bytes_share=min(
            1.0, max(_divide(unknown_bytes, size_bytes), unsized / len(calls))
        ),
        notes=_list_notes(graph, unsized),
    )


def _is_unsized(call: GraphCall) -> bool:
    """Return whether a call works on sizes that depend on the data."""
    given = [value for _, value in call.named_inputs]
    given += call.outputs[:1] if has_reader(call.op) else ()
    return any(value.shape is None for value in given)


def _list_notes(graph: ReadGraph, unsized: int) -> tuple[str, ...]:
    plural = "s" if unsized > 1 else ""
    note = f"The sizes of {unsized} operator{plural} depend on the data, so they are not counted."
    notes = [note] if unsized else []
    precision = _find_precision(graph)
    if precision in INT8_PRECISIONS:
        notes.append(
            "The file computes in 8 bits and is read as the network in floating point: ask about "
            f"it with --inference --precision {precision}."
        )
    elif precision != "fp32":
        notes.append(f"The file stores its weights in {precision}: add --precision {precision}.")
    return tuple(notes)


def _find_precision(graph: ReadGraph) -> str:
    """Return the precision of the weights, or of the numbers that a quantised graph computes."""
    if graph.quantisers:
        is_dynamic = any("DynamicQuantize" in op for op in graph.quantisers)
        return "int8_dynamic" if is_dynamic else "int8"
    sizes: Counter[int] = Counter()
    for name, count in graph.weights.items():
        sizes[graph.values[name].type] += count
    most = sizes.most_common(1)
    return _HALF_TYPES.get(most[0][0], "fp32") if most else "fp32"


def _divide(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


# -- layers -------------------------------------------------------------------------------------

# Functions whose other operand may be a tensor that no layer computes.
_ARITHMETIC = ("add", "sub", "mul", "div", "pow", "where", "minimum", "maximum")
_LONGEST_NAME = 200
# Networks have tails of a few operators; more of them start a layer.
_LONGEST_TAIL = 100
# Layers of a recurrent stack have the same sizes but for their inputs.
_STACKED = ("hidden", "tokens", "bidirectional", "bias")


class _GraphAssembler(LayerAssembler):
    """Makes a Network of the calls of a graph, with patterns replaced by single ones."""

    def __init__(self, graph: ReadGraph, calls: Sequence[GraphCall]) -> None:
        readers = Counter[Value](name for call in calls for name in set(call.reads) if name)
        readers.update(graph.outputs)
        super().__init__(graph.inputs, graph.outputs[0], readers)
        self.graph, self.nodes, self.costly = graph, calls, _find_costly(calls)
        is_heavy = [count_flops(call) > 0 for call in calls]
        self.block_of_node = [-1] * len(calls)
        for block, (start, stop) in enumerate(
            find_path_blocks([*map(_find_path, calls)], is_heavy)
        ):
            self.block_of_node[start:stop] = [block] * (stop - start)

    def assemble(self, name: str) -> Network:
        """Return the network, under this name."""
        for node, block in zip(self.nodes, self.block_of_node, strict=True):
            inputs = [(name, value.is_float) for name, value in node.named_inputs]
            weights = {name: self.graph.weights.get(name, 0) for name in list_weights(node)}
            self._add_node(node, Call(inputs, node.makes, weights, block))
        self._find_gradients()
        first, vocabulary = self.graph.values[self.graph.inputs[0]], 0
        for index, layer in enumerate(self.layers) if not first.is_float else ():
            if find_kind(layer.kind).reads_tokens and index + 1 in layer.reads:
                vocabulary = layer.sizes["vocabulary"]
                break
        return self.make_network(Input(first.dims[1:], vocabulary), name)

    def drop_views(self, layers: Sequence[Layer]) -> Iterable[Layer]:
        """Return layers without views at their end, and without those that nothing depends on."""
        return map(_drop_views, layers)

    # -- calls -----------------------------------------------------------------------------

    def _add_node(self, node: GraphCall, call: Call) -> None:
        given = [value for _, value in node.named_inputs]
        if not node.outputs or any(one.shape is None for one in (node.outputs[0], *given)):
            self.buildable = False
            self.skip_call(call)
            return
        op = read_call(node)
        self.buildable = self.buildable and has_reader(node.op)
        op = None if op is None else _add_constant(op, node)
        # What reads a value twice, as a square does, may follow it.
        index = self.find_growing_layer(replace(call, inputs=[*dict.fromkeys(call.inputs)]))
        if op is None or (find_kind(op.kind).is_view and index < 0):
            changes = op is None or not _changes_nothing(op)
            self.buildable = self.buildable and not changes
            if changes and node.op in self.costly:
                shape, out = node.sample(0) or (1,), node.result or (1,)
                kind = "slice" if len(node.makes) == 1 else "gradient_copy"
                self._start(make_op(kind, out=out, shape=shape), node, call)
            else:
                self.skip_call(call)
        elif not self._append(op, call, index) and not self._deepen(op, call):
            self._start(op, node, call)

    def _start(self, op: Op, node: GraphCall, call: Call) -> None:
        fn = str(op.sizes.get("fn", "")).split(" ")[0]
        self.start_layer(Layer(op.kind, op.sizes, name=_name_layer(op, node)), call, fn)

    def _append(self, op: Op, call: Call, index: int) -> bool:
        """Add an operator to the tail of a layer, if it belongs there; return whether it does."""
        kind = find_kind(op.kind)
        has_own_weights = kind.counts_params and call.weights
        if index < 0 or not kind.can_be_in_tail or has_own_weights:
            return False
        layer = self.layers[index]
        if len(layer.tail) >= _LONGEST_TAIL:
            return False
        moves = kind.permutes_axes or kind.selects_elements
        # A view may only say what the operators before it say already.
        if kind.is_view and (
            _changes_nothing(op)
            if moves
            else _find_shape(layer) == find_out_shape(op, op.sizes["shape"])
        ):
            self.calls_between += 1
        else:
            layer = append_op(layer, op)
        self.grow_layer(index, layer, call)
        return True

    def _deepen(self, op: Op, call: Call) -> bool:
        """Add a recurrent layer to the one below it, as one stack; return whether it is one."""
        values = self.list_operands(op, call)
        if not find_kind(op.kind).is_recurrent or not values or self.readers[values[0]] != 1:
            return False
        index = self.layer_of_value[values[0]]
        if index < 0 or self.layers[index].kind != op.kind:
            return False
        layer, sizes = self.layers[index], self.layers[index].sizes
        is_alike = all(sizes[name] == op.sizes[name] for name in _STACKED)
        fits = op.sizes["cin"] == sizes["hidden"] * (1 + sizes["bidirectional"])
        if not is_alike or not fits or not all(find_kind(one.kind).is_view for one in layer.tail):
            return False
        sizes = Sizes({**sizes, "depth": sizes["depth"] + 1})
        self.grow_layer(index, replace(layer, sizes=sizes, tail=()), call)
        return True

    def _find_gradients(self) -> None:
        """Say of every layer whether its input gets a gradient: only if weights come before it."""
        # Whether the result of each layer depends on weights.
        depends: list[bool] = []
        for index, layer in enumerate(self.layers):
            has_gradient = any(depends[index - back] for back in layer.reads if back <= index)
            has_norm = any(op.sizes.get("affine", 0) for op in layer.tail)
            depends.append(has_gradient or has_norm or bool(self.calls[index].weights))
            self.layers[index] = replace(layer, input_grad=has_gradient)


def _find_shape(layer: Layer) -> Shape | None:
    """Return the shape of its result, as the operators say; None if they do not fit together."""
    shape: Shape | None = find_kind(layer.kind).in_shape(layer.sizes)
    for op in (layer, *layer.tail):
        shape = find_out_shape(op, shape)
    return shape


def _add_constant(op: Op, call: GraphCall) -> Op:
    """Return an operator with the size of a tensor operand that no layer computes."""
    if not find_kind(op.kind).combines_inputs or op.sizes["fn"] not in _ARITHMETIC:
        return op
    others = [value for _, value in call.named_inputs if value.is_constant]
    size = max((one.elements for one in others if one.is_float and not one.weights), default=0)
    if size <= 1 or any(value.weights for value in others):
        return op
    return with_size(op, "constant", size)


def _changes_nothing(op: Op) -> bool:
    """Return whether a view is its input."""
    kind = find_kind(op.kind)
    if kind.permutes_axes:
        return tuple(op.sizes["order"]) == tuple(range(len(op.sizes["order"])))
    shape = tuple(op.sizes["shape"])
    return not kind.selects_elements and kind.out_shape(op.sizes, shape) == shape


def _drop_views(layer: Layer) -> Layer:
    """Return a layer without views at its end, and without those that nothing depends on."""

    def only_reshapes(op: Op) -> bool:
        kind = find_kind(op.kind)
        return kind.is_view and not kind.selects_elements

    kept = list(layer.tail)
    while kept and only_reshapes(kept[-1]):
        kept.pop()
    if not any(op.sizes.get("affine", 0) for op in kept):
        kept = [op for op in kept if not only_reshapes(op)]
    return replace(layer, tail=tuple(kept))


# -- names and blocks --------------------------------------------------------------------------

# A weight whose name an exporter kept.
_NAMED_WEIGHT = re.compile(r"((?!.*::).*)\.(weight|bias|kernel)")
# A name that covers this share of the heavy calls of the best one competes with it.
_COVERAGE_SHARE = 0.9
_NUMBERS = re.compile(r"\d+")

Range = tuple[int, int]


def _find_path(call: GraphCall) -> str:
    """Return the module of a call, which may be known from the name of a weight."""
    if call.path:
        return call.path
    found = filter(None, map(_NAMED_WEIGHT.fullmatch, list_weights(call)))
    return next((one[1][:_LONGEST_NAME] for one in found if one[1]), "")


def _name_layer(op: Op, call: GraphCall) -> str:
    path, kind, label = _find_path(call), op.kind, call.label
    function = str(op.sizes.get("fn", kind)) if find_kind(kind).is_function else kind
    if not path:
        # PyTorch names what its outermost module does after the operator alone: /Add_3.
        return function if not label or label.startswith("/") else label[:_LONGEST_NAME]
    if find_kind(kind).is_function and kind not in path.rsplit(".", 1)[-1]:
        return f"{path}.{function}"
    return path


def find_path_blocks(paths: Sequence[str], is_heavy: Sequence[bool]) -> list[Range]:
    """Return the half-open ranges of calls that the network repeats.

    Candidates are modules with at least two heavy calls whose names differ only in numbers. Of
    those that cover nearly as many heavy calls as the best ones, the most often repeated win.
    A path is empty where the module of a call is not known.
    """
    ranges: dict[str, dict[str, Range]] = {}
    for place, path in enumerate(paths):
        parts = path.split(".") if path else []
        for size in range(1, len(parts) + 1):
            name = ".".join(parts[:size])
            alike = ranges.setdefault(_NUMBERS.sub("#", name), {})
            start, _ = alike.get(name, (place, place))
            alike[name] = (start, place + 1)
    repeated: dict[str, list[Range]] = {}
    coverage: dict[str, int] = {}
    for key, alike in ranges.items():
        large = sorted(one for one in alike.values() if sum(is_heavy[slice(*one)]) > 1)
        if len(large) > 1 and not any(one[1] > two[0] for one, two in pairwise(large)):
            repeated[key] = large
            coverage[key] = sum(sum(is_heavy[slice(*one)]) for one in large)
    least = _COVERAGE_SHARE * max(coverage.values(), default=0)
    rivals = [key for key in repeated if coverage[key] >= least]
    # Of names that cover the same, the outermost is the block.
    best = max(rivals, key=lambda key: (len(repeated[key]), coverage[key], -len(key)), default="")
    return repeated.get(best, [])


# -- the process that reads ------------------------------------------------------------


def main() -> None:
    """Read one file for another process, which sends options and the content (``net_file``)."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    name, place, sample, *batches = json.loads(sys.stdin.buffer.readline())
    sample = None if sample is None else tuple(sample)
    answer: dict[str, Any]
    try:
        found = read_network(sys.stdin.buffer.read(), name, place, sample, *batches)
        answer = {**vars(found), "network": found.network.to_dict()}
    except (FileError, NetError) as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        limit = f"{_MOST_MEMORY_BYTES / 2**30:.0f} GiB"
        message = f"{place} needs more than {limit} to be read: export the net again"
        answer = {"error": "FileError", "message": message}
    sys.stdout.write(f"\n{json.dumps(answer)}")


if __name__ == "__main__":
    main()
