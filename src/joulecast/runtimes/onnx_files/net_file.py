"""Read a Network from an ONNX file.

The first axis of the first input holds the samples. Sizes that the file leaves open have to be
given; the batch is not needed, because records describe one sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from joulecast.errors import FileError, InputError, NetError
from joulecast.kinds import Shape, check_network, network_work
from joulecast.records import Network, Setup, StepTotals
from joulecast.runtimes.onnx_files.call_patterns import fuse_patterns
from joulecast.runtimes.onnx_files.graph_reader import ReadGraph, read_graph
from joulecast.runtimes.onnx_files.graph_values import GraphCall, GraphError
from joulecast.runtimes.onnx_files.input_shapes import GraphInput, bind_shapes, list_inputs
from joulecast.runtimes.onnx_files.layer_assembly import assemble_layers
from joulecast.runtimes.onnx_files.model_file import read_model
from joulecast.runtimes.onnx_files.node_counts import ITEM_BYTES, count_bytes, count_calls
from joulecast.runtimes.onnx_files.node_readers import SLICING, has_reader

# No usual size is a multiple of it, so the axis of the samples cannot be mistaken for another.
_READING_BATCH = 13
_MIN_VIEW_SHARE = 0.01
_MAX_UNATTRIBUTED_SHARE = 0.01
_HALF_TYPES = {10: "fp16", 16: "bf16"}


@dataclass(frozen=True)
class OnnxNet:
    """A network that was read from an ONNX file.

    Attributes:
        batch: The batch size that the file fixes; 0 if it is left open.
        precision: The precision that it is stored in, as a Setup names it.
    """

    network: Network
    batch: int
    precision: str


def read_onnx_net(path: str | Path, sample: Shape | None = None) -> OnnxNet:
    """Return the network in an ONNX file. No other file is opened, and no weight is needed.

    Args:
        path: The file.
        sample: Shape of one sample of the first input, where the file leaves sizes open.

    Raises:
        FileError: The file is missing, damaged, inconsistent, or not an ONNX model.
        NetError: Sizes are missing, or differ from those in the file.
    """
    path = Path(path)
    model = read_model(path)
    try:
        inputs = list_inputs(model.graph)
        graph, batch = _read_with_batch(model.graph, inputs, sample)
        network = _make_network(graph, batch, path.stem)
    except GraphError as error:
        raise FileError(f"{path}: {error}: export the net again") from error
    except NetError as error:
        raise NetError(f"{path}: {error}") from error
    except InputError as error:
        raise FileError(f"{path}: {error}") from error
    return OnnxNet(network, inputs[0].batch, _find_precision(graph))


def _read_with_batch(
    graph: onnx.GraphProto, inputs: list[GraphInput], sample: Shape | None
) -> tuple[ReadGraph, int]:
    """Return the graph, read with the batch of the file, and that batch.

    A graph that leaves the batch open may still contain the one that it was exported with.
    """
    fixed = inputs[0].batch
    if fixed:
        return read_graph(graph, inputs, *bind_shapes(inputs, fixed, sample)), fixed
    first: GraphError | None = None
    for batch in (_READING_BATCH, 1):
        try:
            found = read_graph(graph, inputs, *bind_shapes(inputs, batch, sample))
        except GraphError as error:
            first = first or error
        else:
            return found, batch
    assert first is not None
    raise first


def _make_network(graph: ReadGraph, batch: int, name: str) -> Network:
    if not graph.calls:
        raise GraphError("its outputs do not depend on its inputs")
    calls = fuse_patterns(graph.calls, graph.outputs)
    try:
        assembled = assemble_layers(graph, calls, batch, _find_costly(graph), name)
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise GraphError(f"it uses an operator in an unsupported way ({error})") from error
    network = assembled.network
    check_network(replace(network, buildable=False))
    totals = _count_totals(graph, calls, network, batch)
    totals = replace(totals, between=assembled.calls_between)
    is_complete = max(totals.unattributed_flops_share, totals.unattributed_params_share)
    buildable = network.buildable and is_complete < _MAX_UNATTRIBUTED_SHARE
    return replace(network, totals=totals, buildable=buildable)


def _find_costly(graph: ReadGraph) -> frozenset[str]:
    """Return the slicing operators whose gradients move a share of the bytes of a step."""
    total = 3.0 * sum(map(count_bytes, graph.calls))
    moved: Counter[str] = Counter()
    for call in graph.calls:
        if call.op in SLICING:
            sizes = sum(value.elements for value in call.outputs) + 4 * call.read(0).elements
            moved[call.op] += ITEM_BYTES * sizes
    return frozenset(op for op, size in moved.items() if size > _MIN_VIEW_SHARE * total)


def _count_totals(
    graph: ReadGraph, calls: Sequence[GraphCall], network: Network, batch: int
) -> StepTotals:
    """Return counts of a step from the shapes of the calls, and what no layer accounts for.

    A file describes the forward pass; the backward pass is in proportion to it, as in the layers.
    """
    work = network_work(network, Setup(batch=batch))
    flops, size_bytes = count_calls(calls)
    unknown = Counter(call.op for call in calls if not has_reader(call.op))
    unknown_bytes = sum(count_bytes(call) for call in calls if not has_reader(call.op))
    unsized = sum(graph.unsized.values())
    share = unknown_bytes / size_bytes if size_bytes else 0.0
    share = max(share, unsized / len(calls))
    params = sum(graph.weights[name] for name in _list_used_weights(calls))
    missing = max(0.0, 1.0 - work.forward.flops / flops) if flops else 0.0
    scale = work.total.flops / work.forward.flops if work.forward.flops else 1.0
    moved = work.backward.size_bytes / work.forward.size_bytes if work.forward.size_bytes else 0.0
    return StepTotals(
        flops=flops * scale,
        size_bytes=size_bytes * (1.0 + moved),
        params=params,
        unattributed_flops_share=missing,
        unattributed_params_share=max(0.0, 1.0 - work.params / params) if params else 0.0,
        overcounted_flops_share=max(0.0, work.forward.flops / flops - 1.0) if flops else 0.0,
        ops_without_rule=tuple(sorted(unknown.items())),
        uncounted_bytes_share=min(1.0, share),
        notes=_list_notes(graph),
    )


def _list_used_weights(calls: Sequence[GraphCall]) -> set[str]:
    """Return the names of the weights that calls read, without statistics of batch norms."""
    found: set[str] = set()
    for call in calls:
        values = call.inputs[:3] if call.op == "BatchNormalization" else call.inputs
        for value in values:
            if value is not None and value.is_constant and not value.is_scale:
                found.update(value.weights)
    return found


def _list_notes(graph: ReadGraph) -> tuple[str, ...]:
    if not graph.unsized:
        return ()
    count = sum(graph.unsized.values())
    return (
        f"The sizes of {count} operator{'s' if count > 1 else ''} depend on the data, so they are "
        "not counted.",
    )


def _find_precision(graph: ReadGraph) -> str:
    """Return the precision of the weights, or of the numbers that a quantised graph computes."""
    ops = {call.op for call in graph.calls}
    if "DynamicQuantizeLinear" in graph.quantisers or any("DynamicQuantize" in op for op in ops):
        return "int8_dynamic"
    if graph.quantisers or any("QLinear" in op or "Integer" in op for op in ops):
        return "int8"
    sizes: Counter[int] = Counter()
    for name, count in graph.weights.items():
        sizes[graph.values[name].type] += count
    most = sizes.most_common(1)
    return _HALF_TYPES.get(most[0][0], "fp32") if most else "fp32"
