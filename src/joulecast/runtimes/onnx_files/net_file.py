"""Read a Network from an ONNX file.

The first axis of the first input holds the samples. Sizes that the file leaves open have to be
given; the batch is not needed, because records describe one sample.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from joulecast.errors import FileError, InputError, NetError
from joulecast.kinds import Shape, check_network, network_work
from joulecast.records import INT8_PRECISIONS, Network, Setup, StepTotals
from joulecast.records.network import MOST_LAYERS
from joulecast.runtimes.onnx_files.call_patterns import fuse_patterns
from joulecast.runtimes.onnx_files.fused_operators import split_fused
from joulecast.runtimes.onnx_files.graph_reader import ReadGraph, read_graph
from joulecast.runtimes.onnx_files.input_shapes import GraphInput, bind_shapes, list_inputs
from joulecast.runtimes.onnx_files.layer_assembly import assemble_layers
from joulecast.runtimes.onnx_files.memory_order import insert_copies
from joulecast.runtimes.onnx_files.model_file import (
    GraphError,
    parse_model,
    read_model,
    shorten,
)
from joulecast.runtimes.onnx_files.node_counts import (
    ITEM_BYTES,
    count_bytes,
    count_calls,
    list_weights,
)
from joulecast.runtimes.onnx_files.node_readers import SLICING, has_reader
from joulecast.runtimes.onnx_files.split_slices import merge_slices

# No usual size is a multiple of it, so the axis of the samples cannot be mistaken for another.
_READING_BATCH = 13
# Slices are layers where their gradients move this share of the bytes of a step, whose three passes
# are forward and the gradients of inputs and weights.
_MIN_VIEW_SHARE, _PASSES = 0.01, 3.0
# A buildable network may leave at most this share of FLOPs and parameters to no layer.
_MAX_UNATTRIBUTED_SHARE = 0.01
_HALF_TYPES = {10: "fp16", 16: "bf16"}


@dataclass(frozen=True)
class OnnxNet:
    """A network that was read from an ONNX file.

    Attributes:
        batch: The batch size that was asked for, else the one that the file fixes, else the usual.
        precision: The precision that it is stored in, as a Setup names it.
        fixed_batch: The batch size that the file fixes; 0 if it leaves it open.
    """

    network: Network
    batch: int
    precision: str
    fixed_batch: int = 0


def read_onnx_net(
    path: str | Path,
    sample: Shape | None = None,
    batch: int | None = None,
    usual_batch: int = 1,
) -> OnnxNet:
    """Return the network in an ONNX file. No other file is opened, and no weight is needed.

    Args:
        path: The file.
        sample: Shape of one sample of the first input, where the file leaves sizes open.
        batch: Batch size of the step that is counted; by default the one that the file fixes.
        usual_batch: Batch size where the file leaves it open.

    Raises:
        FileError: The file is missing, damaged, inconsistent, or not an ONNX model.
        NetError: Sizes are missing, or differ from those in the file.
    """
    path = Path(path)
    request = _NetRequest(sample, batch, usual_batch)
    return _read_net(read_model(path), path.stem, str(path), request)


def read_onnx_content(content: bytes, name: str, sample: Shape | None = None) -> OnnxNet:
    """Return the network in the content of an ONNX file; no file is opened.

    Args:
        content: The whole file.
        name: Name of the network, which messages show as well.
        sample: Shape of one sample of the first input, where the file leaves sizes open.

    Raises:
        FileError: The content is damaged, inconsistent, or not an ONNX model.
        NetError: Sizes are missing, or differ from those in the file.
    """
    request = _NetRequest(sample, None, 1)
    return _read_net(parse_model(content, name), name, name, request)


@dataclass(frozen=True)
class _NetRequest:
    """What a caller says about a net that a file leaves open."""

    sample: Shape | None
    batch: int | None
    usual_batch: int


def _read_net(model: onnx.ModelProto, name: str, place: str, request: _NetRequest) -> OnnxNet:
    try:
        inputs = list_inputs(model.graph)
        graph, read_batch = _read_with_batch(model.graph, inputs, request.sample)
        batch = request.batch or inputs[0].batch or request.usual_batch
        network = _Reading(graph, read_batch, batch).make_network(name)
    except GraphError as error:
        raise FileError(f"{place}: {error}: export the net again") from error
    except NetError as error:
        raise NetError(f"{place}: {error}") from error
    except InputError as error:
        raise FileError(f"{place}: {error}") from error
    return OnnxNet(network, batch, find_precision(graph), inputs[0].batch or 0)


def _read_with_batch(
    graph: onnx.GraphProto, inputs: list[GraphInput], sample: Shape | None
) -> tuple[ReadGraph, int]:
    """Return the graph, and the batch size that it was read with: the file's if it fixes one.

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


class _Reading:
    """A graph that becomes a network.

    Attributes:
        calls: Its calls, with patterns replaced by single ones.
        batch: Samples that the graph was read with.
        counted_batch: Samples that a step is counted for.
    """

    def __init__(self, graph: ReadGraph, batch: int, counted_batch: int) -> None:
        if not graph.calls:
            raise GraphError("its outputs do not depend on its inputs")
        self.graph = graph
        calls = merge_slices(split_fused(graph.calls))
        self.calls = insert_copies(fuse_patterns(calls, graph.outputs))
        self.batch = batch
        self.counted_batch = counted_batch

    def make_network(self, name: str) -> Network:
        """Return the network, with counts of a step."""
        costly = self._find_costly()
        try:
            assembled = assemble_layers(self.graph, self.calls, self.batch, costly, name)
        except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise GraphError(f"it uses an operator in an unsupported way ({error})") from error
        network = assembled.network
        if not network.layers:
            raise NetError(self._explain_no_layers())
        if len(network.layers) > MOST_LAYERS:
            raise GraphError(f"it has {len(network.layers):,} layers, more than {MOST_LAYERS:,}")
        check_network(replace(network, buildable=False))
        totals = replace(self._count_step(network), between=assembled.calls_between)
        missing = max(totals.unattributed_flops_share, totals.unattributed_params_share)
        buildable = network.buildable and missing < _MAX_UNATTRIBUTED_SHARE
        return replace(network, totals=totals, buildable=buildable)

    def _explain_no_layers(self) -> str:
        unknown = Counter(call.op for call in self.calls if not has_reader(call.op))
        if not unknown:
            return "its operators only reshape their inputs, so it computes nothing: give another"
        named = ", ".join(f"{shorten(op)} ({count})" for op, count in unknown.most_common(3))
        return (
            "none of its operators can be counted, because others that are not known come first, "
            f"{named}: export the net again"
        )

    def _find_costly(self) -> frozenset[str]:
        """Return the slicing operators whose gradients move a share of the bytes of a step."""
        total = _PASSES * sum(map(count_bytes, self.calls))
        moved: Counter[str] = Counter()
        for call in self.calls:
            if call.op in SLICING and call.read(0).shape is not None:
                sizes = sum(value.elements for value in call.outputs) + 4 * call.read(0).elements
                moved[call.op] += ITEM_BYTES * sizes
        return frozenset(op for op, size in moved.items() if size > _MIN_VIEW_SHARE * total)

    def _count_step(self, network: Network) -> StepTotals:
        """Return counts of a step from the shapes of the calls, and what the layers leave.

        A file describes the forward pass alone. Of the backward pass the layers say how much more
        work it is.
        """
        work = network_work(network, Setup(batch=self.counted_batch))
        share = self.counted_batch / self.batch
        flops, size_bytes = count_calls(self.calls, share)
        unknown = [call for call in self.calls if not has_reader(call.op)]
        unknown_bytes = sum(count_bytes(call, share) for call in unknown)
        unsized = sum(self.graph.unsized.values())
        used = {name for one in self.calls for value in list_weights(one) for name in value.weights}
        params = sum(self.graph.weights[name] for name in used)
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
                1.0, max(_divide(unknown_bytes, size_bytes), unsized / len(self.calls))
            ),
            notes=_list_notes(self.graph),
        )


def _list_notes(graph: ReadGraph) -> tuple[str, ...]:
    notes = []
    count = sum(graph.unsized.values())
    if count:
        notes.append(
            f"The sizes of {count} operator{'s' if count > 1 else ''} depend on the data, so they "
            "are not counted."
        )
    precision = find_precision(graph)
    if precision in INT8_PRECISIONS:
        notes.append(
            "The file computes in 8 bits and is read as the network in floating point: ask about "
            f"it with --inference --precision {precision}."
        )
    elif precision != "fp32":
        notes.append(f"The file stores its weights in {precision}: add --precision {precision}.")
    return tuple(notes)


def find_precision(graph: ReadGraph) -> str:
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


def _divide(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
