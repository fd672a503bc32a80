"""Print what ``joulecast inspect`` found."""

from __future__ import annotations

from dataclasses import replace

from joulecast.cli.setups import describe_setup, is_inference
from joulecast.cli.terminal import make_console, print_notes, print_table, shorten_path
from joulecast.features import nets
from joulecast.features.inspect import StepCount
from joulecast.kinds import (
    StepWork,
    find_kind,
    layer_work,
    network_work,
    output_shape,
    peak_memory,
)
from joulecast.records import Layer, Network, Op, Setup, find_equal_blocks, list_reading_notes
from joulecast.units import format_bytes, format_count, format_shape, format_share

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


def print_network(shown: Network, network: Network, setup: Setup, count: StepCount) -> None:
    """Print the layers of ``shown``, the stages of a step, and notes."""
    console = make_console()
    phase = "one inference" if is_inference(setup) else "one training step"
    shape = format_shape(network.input.shape)
    console.print(f"{network.name}: {phase}, input {shape}, {describe_setup(setup)}\n")
    work = network_work(network, setup)
    columns = ("layer", "operator", "then", ">output", ">params", ">FLOPs", ">bytes", ">kernels")
    is_folded = shown is not network
    rows = _list_block_rows(shown, network, setup) if is_folded else []
    rows = rows or [_format_layer(layer, setup) for layer in shown.layers[:_MOST_ROWS]]
    print_table(console, columns, rows, footer=("all", "", "", "", *_format_work(work)))
    if not is_inference(setup):
        stages = [(stage, *_format_work(StepWork(getattr(work, stage)))[1:]) for stage in _STAGES]
        print_table(console, ("stage", ">FLOPs", ">bytes", ">kernels"), stages)
    notes = _list_notes(network, setup, count, is_folded)
    if len(rows) == _MOST_ROWS < len(shown.layers):
        notes.insert(0, f"Only the first {_MOST_ROWS} rows are shown: --json lists every layer.")
    print_notes(console, notes)


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


def _list_notes(network: Network, setup: Setup, count: StepCount, is_folded: bool) -> list[str]:
    peak = format_bytes(peak_memory(network, setup))
    notes = [f"Peak memory about {peak}, without the framework's own."]
    notes += _explain_totals(network, setup, count)
    notes += list_reading_notes(network)
    if network.groups and not is_folded:
        notes.append(
            f"A module is repeated {len(network.groups)} times: --blocks shows equal blocks as one "
            "row."
        )
    if not network.buildable:
        notes.append("This network can be estimated, but not rebuilt from its layers.")
    return notes


def _explain_totals(network: Network, setup: Setup, count: StepCount) -> list[str]:
    """Return where the totals come from, and how far the layers account for them."""
    totals = count.totals
    if totals is None:
        note = "The totals are the sums of the layers"
        if not network.buildable:
            return [f"{note}: a network that cannot be rebuilt is not counted independently."]
        is_unchecked = network.layers and not nets.has_torch()
        return [f"{note}: install PyTorch to check them." if is_unchecked else f"{note}."]
    step = "the step" if count.is_independent else "a training step when the net was read"
    shares = {
        name: getattr(totals, f"unattributed_{key}_share") for key, name in _QUANTITIES.items()
    }
    notes = [f"In an independent count of {step}, {_describe_unattributed(shares)}."]
    differences = _list_differences(network, setup, count)
    if differences:
        notes.append(f"The formulas of the layers give {' and '.join(differences)} than counted.")
    return notes


def _describe_unattributed(shares: dict[str, float]) -> str:
    parts = [
        f"{format_share(share)} of the {name}"
        for name, share in shares.items()
        if share > _MIN_UNATTRIBUTED_SHARE
    ]
    return ", ".join(parts) + " belong to no layer" if parts else "everything belongs to a layer"


def _list_differences(network: Network, setup: Setup, count: StepCount) -> list[str]:
    """Return by how much the formulas of forward and backward are above or below the count."""
    totals = count.totals
    if totals is None:
        return []
    shares = {"flops": totals.overcounted_flops_share, "bytes": totals.overcounted_bytes_share}
    if count.is_independent and count.size_bytes:
        work = network_work(network, setup)
        formula_bytes = work.forward.size_bytes + work.backward.size_bytes
        shares["bytes"] = formula_bytes / count.size_bytes - 1.0
    return [
        f"{format_share(abs(share))} {'more' if share > 0 else 'fewer'} {_QUANTITIES[key]}"
        for key, share in shares.items()
        if abs(share) > _MIN_OVERCOUNTED_SHARE
    ]
