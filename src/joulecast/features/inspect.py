"""Read a net into its layers, and count the work of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.nets import NetRequest, has_torch
from joulecast.operators import (
    StepWork,
    find_kind,
    layer_work,
    network_work,
    output_shape,
    peak_memory,
)
from joulecast.records import (
    Layer,
    Network,
    Op,
    Setup,
    StepTotals,
    find_equal_blocks,
    fold_blocks,
    list_reading_notes,
)
from joulecast.store.files import write_network
from joulecast.system.units import format_bytes, format_count, format_shape, format_share
from joulecast.views.report import Block, Report, Reportable, Text, make_table
from joulecast.views.words import describe_setup, is_inference, shorten_path

Json = dict[str, Any]
# A count takes a hundredth of a second for each layer.
_MOST_COUNTED_LAYERS = 1000
_SHARES = tuple(f"unattributed_{what}_share" for what in ("flops", "bytes", "params"))
_SHARES += tuple(f"overcounted_{what}_share" for what in ("flops", "bytes"))
_STAGES = ("forward", "backward", "update")
_NAME_SIZE = 22
# Nobody reads more, and laying out a table of 20,000 rows takes a minute.
_MOST_ROWS = 1000
# Shares below which a difference is not worth a sentence.
_MIN_UNATTRIBUTED_SHARE = 1e-5
_MIN_OVERCOUNTED_SHARE = 1e-3
_QUANTITIES = {"flops": "FLOPs", "bytes": "bytes", "params": "parameters"}
_SHORT_NAMES = {
    "batch_norm": "bn",
    "layer_norm": "ln",
    "max": "maxpool",
    "avg": "avgpool",
    "adaptive_avg": "avgpool",
}

Blocks = Annotated[bool, Argument("Show equal blocks as one row.")]
NetworkFile = Annotated[
    str | None,
    Argument(
        "Also write the network, to be used as NET.",
        metavar="NET.json",
        harm="writes a file",
        is_written=True,
    ),
]


@verb
def inspect(
    net: given.Net,
    inputs: Any = None,
    *,
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    loss: given.Loss = None,
    phase: given.Phase = None,
    checkpoint: given.Checkpoint = False,
) -> Network:
    """Return the network of a net: its layers and how they connect."""
    return NetRequest.of(locals()).resolve()[0].network


@verb
def inspect_step(
    net: given.Net,
    inputs: Any = None,
    *,
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    checkpoint: given.Checkpoint = False,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    blocks: Blocks = False,
    out: NetworkFile = None,
) -> Inspection:
    """Show the layers of NET and the work of a step.

    FLOPs count multiplications and additions of contractions, bytes what operators read and write,
    kernels what a GPU would launch.
    """
    found, setup = NetRequest.of(locals()).resolve()
    network = add_step_totals(found.network, setup)
    if out is not None:
        write_network(network, out)
    shown = fold_blocks(network) if blocks else network
    is_fresh = found.load is not None or found.network.totals is None
    return Inspection(network, shown, setup, is_fresh)


def add_step_totals(network: Network, setup: Setup) -> Network:
    """Return the network with an independent count of its step, where PyTorch can make one."""
    can_count = 0 < len(network.layers) <= _MOST_COUNTED_LAYERS and has_torch()
    if network.totals or not (network.buildable and can_count):
        return network
    from joulecast.torch_nets.net_reader import count_step_totals

    return replace(network, totals=count_step_totals(network, setup.batch))


@dataclass(frozen=True)
class Inspection(Reportable):
    """A network and the work of its step.

    Attributes:
        is_fresh: Whether the count was made now; a file does not say at which batch size it was.
    """

    network: Network  # the network, with the independent count of its step where there is one
    shown: Network  # the network whose layers are shown; its equal blocks may be folded
    setup: Setup
    is_fresh: bool = False

    @cached_property
    def work(self) -> StepWork:
        """The sum of the layers."""
        return network_work(self.network, self.setup)

    @cached_property
    def counted(self) -> StepTotals | None:
        """The independent count, if it is one of this very step.

        It counts training in four-byte numbers. For a file, the layers' FLOPs at this batch size
        must be those that the count was compared with.
        """
        setup, totals, work = self.setup, self.network.totals, self.work
        is_own = setup.phase == "train" and setup.precision in ("fp32", "tf32")
        if totals is None or not is_own or setup.accumulate != 1:
            return None
        compared = 1 - totals.unattributed_flops_share + totals.overcounted_flops_share
        flops = work.forward.flops + work.backward.flops
        is_same = flops > 0 and math.isclose(totals.flops * compared, flops, rel_tol=1e-6)
        return totals if self.is_fresh or is_same else None

    def to_dict(self) -> Json:
        network, totals = self.network, self.network.totals
        step = self.counted or self.work.total
        return {
            "name": network.name,
            "input": network.input.to_dict(),
            "setup": self.setup.to_dict(),
            "buildable": network.buildable,
            "flops": step.flops,
            "bytes": step.size_bytes,
            "params": (totals or self.work).params,
            **{name: getattr(totals, name, None) for name in _SHARES},
            "ops_without_rule": dict(totals.ops_without_rule) if totals else {},
            "notes": list_reading_notes(network),
            "counted": "independently" if self.counted else "by layer",
            "peak_memory_bytes": peak_memory(network, self.setup),
            "layers": [_describe_layer(layer, self.setup) for layer in self.shown.layers],
            "groups": [list(group) for group in network.groups],
        }

    def report(self) -> Report:
        network, shown, setup, work = self.network, self.shown, self.setup, self.work
        columns = (
            "layer", "operator", "then", ">output", ">params", ">FLOPs", ">bytes", ">kernels"
        )  # fmt: skip
        is_folded = shown is not network
        rows = _list_block_rows(shown, network, setup) if is_folded else []
        rows = rows or [_format_layer(layer, setup) for layer in shown.layers[:_MOST_ROWS]]
        totals = ("all", "", "", "", *_format_work(work))
        blocks: list[Block] = [make_table(columns, rows, footer=totals)]
        if not is_inference(setup):
            stages = [(one, *_format_work(StepWork(getattr(work, one)))[1:]) for one in _STAGES]
            blocks.append(make_table(("stage", ">FLOPs", ">bytes", ">kernels"), stages))
        if len(rows) == _MOST_ROWS < len(shown.layers):
            text = f"Only the first {_MOST_ROWS} rows are shown: --json lists every layer."
            blocks.append(Text(text, "note"))
        blocks += [Text(note, "note") for note in self._list_notes(is_folded)]
        phase = "one inference" if is_inference(setup) else "one training step"
        shape = format_shape(network.input.shape)
        title = f"{network.name}: {phase}, input {shape}, {describe_setup(setup)}"
        return Report(title, tuple(blocks), kind="network")

    def _list_notes(self, is_folded: bool) -> list[str]:
        network = self.network
        peak = format_bytes(peak_memory(network, self.setup))
        notes = [f"Peak memory about {peak}, without the framework's own."]
        notes += self._explain_totals()
        notes += list_reading_notes(network)
        if network.groups and not is_folded:
            notes.append(
                f"A module is repeated {len(network.groups)} times: --blocks shows equal blocks as "
                "one row."
            )
        if not network.buildable:
            notes.append("This network can be estimated, but not rebuilt from its layers.")
        return notes

    def _explain_totals(self) -> list[str]:
        """Return where the totals come from, and how far the layers account for them."""
        network, totals = self.network, self.network.totals
        if totals is None:
            note = "The totals are the sums of the layers"
            if not network.buildable:
                return [f"{note}: a network that cannot be rebuilt is not counted independently."]
            is_unchecked = network.layers and not has_torch()
            return [f"{note}: install PyTorch to check them." if is_unchecked else f"{note}."]
        missing = [
            f"{format_share(share)} of the {name}"
            for key, name in _QUANTITIES.items()
            if (share := getattr(totals, f"unattributed_{key}_share")) > _MIN_UNATTRIBUTED_SHARE
        ]
        where = ", ".join(missing) + " belong to no layer"
        step = "the step" if self.counted else "a training step when the net was read"
        said = where if missing else "everything belongs to a layer"
        notes = [f"In an independent count of {step}, {said}."]
        # By how much the formulas of forward and backward are above or below the count.
        shares = {"flops": totals.overcounted_flops_share, "bytes": totals.overcounted_bytes_share}
        if self.counted and totals.size_bytes:
            formula_bytes = self.work.forward.size_bytes + self.work.backward.size_bytes
            shares["bytes"] = formula_bytes / totals.size_bytes - 1.0
        differences = [
            f"{format_share(abs(share))} {'more' if share > 0 else 'fewer'} {_QUANTITIES[key]}"
            for key, share in shares.items()
            if abs(share) > _MIN_OVERCOUNTED_SHARE
        ]
        if differences:
            text = f"The formulas of the layers give {' and '.join(differences)} than counted."
            notes.append(text)
        return notes


def _describe_layer(layer: Layer, setup: Setup) -> Json:
    work = layer_work(layer, setup)

    def count(quantity: str) -> Json:
        counts = {stage: getattr(getattr(work, stage), quantity) for stage in _STAGES}
        return {**counts, "total": sum(counts.values())}

    return {
        "name": layer.name,
        "kind": layer.kind,
        "sizes": layer.sizes.to_dict(),
        "tail": [op.to_dict() for op in layer.tail],
        "calls": layer.calls,
        "trains": layer.trains,
        "transposed": list(layer.transposed),
        "output": list(output_shape(layer)),
        "params": work.params,
        "flops": count("flops"),
        "bytes": count("size_bytes"),
        "launches": count("launches"),
        "memory_bytes": count("memory_bytes"),
        "parts": [_describe_layer(part, setup) for part in layer.parts],
    }


def format_operator(op: Op) -> str:
    """Return an operator in short: ``conv2d 3→64 k3 /2``."""
    sizes = op.sizes
    name = str(sizes.get("fn", op.kind))
    parts = [_SHORT_NAMES.get(name, name)]
    for source, target in (("cin", "cout"), ("cin", "hidden"), ("vocabulary", "width")):
        if source in sizes and target in sizes:
            parts.append(f"{sizes[source]}→{sizes[target]}")
    if "experts" in sizes:
        parts.append(f"{sizes['experts']} experts")
    if "head_dim" in sizes:
        parts.append(f"{sizes['heads']}x{sizes['head_dim']}")
    if "m" in sizes:
        parts.append("x".join(str(sizes[key]) for key in ("count", "m", "k", "n")))
    if "kernel" in sizes and "cin" in sizes:
        is_square = len(set(sizes["kernel"])) == 1
        parts.append("k" + format_shape(sizes["kernel"][:1] if is_square else sizes["kernel"]))
        parts += [f"/{max(sizes['stride'])}"] if max(sizes["stride"]) > 1 else []
    if sizes.get("groups", 1) > 1:
        parts.append(f"groups {sizes['groups']}")
    return " ".join(parts)


def _list_block_rows(shown: Network, network: Network, setup: Setup) -> list[tuple[str, ...]]:
    """Return a row for every layer of a folded network, equal blocks together as one."""
    blocks = {start: block for block in find_equal_blocks(network) for start in block.starts}
    rows: list[tuple[str, ...]] = []
    start = 0
    for layer in shown.layers:
        if len(rows) == _MOST_ROWS:
            break
        block = blocks.get(start)
        if block is None:
            rows.append(_format_layer(layer, setup))
        elif start == block.starts[0]:
            rows.append(_format_layer(replace(layer, name=block.name), setup, block.count))
        start += len(layer.parts) or 1
    return rows


def _format_layer(layer: Layer, setup: Setup, count: int = 1) -> tuple[str, ...]:
    work = sum([layer_work(layer, setup)] * count, StepWork())
    operator = f"block of {len(layer.parts)}" if layer.parts else format_operator(layer)
    calls = layer.calls * count
    operator += f" ×{calls}" if calls > 1 else ""
    operator += " (frozen)" if work.params and not layer.trains else ""
    operator += " (transposed)" if layer.transposed else ""
    name = shorten_path(layer.name, _NAME_SIZE)
    tail = " ".join(format_operator(op) for op in layer.tail if not find_kind(op.kind).is_view)
    return (name or "-", operator, tail, format_shape(output_shape(layer)), *_format_work(work))


def _format_work(work: StepWork) -> tuple[str, ...]:
    total = work.total
    counts = (work.params, total.flops, total.size_bytes)
    return (*map(format_count, counts), str(total.launches))
