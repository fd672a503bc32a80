"""Read a Network from the content of an ONNX file.

The first axis of the first input holds the samples. Sizes that the file leaves open have to be
given; the batch is not needed, because records describe one sample.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx

from joulecast.onnx_nets.graph import GraphCall, ReadGraph
from joulecast.onnx_nets.layers import LayerAssembler
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
    has_reader,
    list_weights,
)
from joulecast.onnx_nets.patterns import fuse_patterns, insert_copies, merge_slices
from joulecast.operators import Shape, check_network, network_work
from joulecast.records import INT8_PRECISIONS, Network, Setup, StepTotals
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
        graph, read_batch = _read_with_batch(model, inputs, sample)
        batch = batch or inputs[0].batch or usual_batch
        network = _make_network(graph, read_batch, batch, name)
    except GraphError as error:
        raise FileError(f"{place}: {error}: export the net again") from error
    except NetError as error:
        raise NetError(f"{place}: {error}") from error
    except InputError as error:
        raise FileError(f"{place}: {error}") from error
    return OnnxNet(network, batch, _find_precision(graph), inputs[0].batch or 0)


def _read_with_batch(
    model: onnx.ModelProto, inputs: list[GraphInput], sample: Shape | None
) -> tuple[ReadGraph, int]:
    """Return the graph, and the batch size that it was read with: the file's if it fixes one.

    A graph that leaves the batch open may still contain the one that it was exported with.
    """
    first: GraphError | None = None
    for batch in (inputs[0].batch,) if inputs[0].batch else (_READING_BATCH, 1):
        shapes, sizes = bind_shapes(inputs, batch, sample)
        try:
            return ReadGraph(model, inputs, shapes, sizes), batch
        except GraphError as error:
            first = first or error
    assert first is not None
    raise first


def _make_network(graph: ReadGraph, batch: int, counted_batch: int, name: str) -> Network:
    """Return the network of a graph, with counts of a step of ``counted_batch`` samples."""
    if not graph.calls:
        raise GraphError("its outputs do not depend on its inputs")
    try:
        calls = merge_slices(graph.calls)
        calls = insert_copies(fuse_patterns(calls, graph.outputs))
        assembler = LayerAssembler(graph, calls, batch, _find_costly(calls))
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
    totals = _count_step(graph, calls, network, counted_batch, counted_batch / batch)
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
    graph: ReadGraph, calls: Sequence[GraphCall], network: Network, batch: int, share: float
) -> StepTotals:
    """Return counts of a step from the shapes of the calls, and what the layers leave.

    A file describes the forward pass alone. Of the backward pass the layers say how much more work
    it is. ``share`` is the batch that is counted in proportion to the one that was read.
    """
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
