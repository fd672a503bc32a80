"""``joulecast inspect NET``: what a net consists of, and what each layer has to do in a step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import click

from joulecast.api.nets import ResolvedNet, has_torch
from joulecast.cli import options
from joulecast.cli.terminal import make_console, print_json, print_notes, print_table
from joulecast.files import write_network
from joulecast.kinds import (
    StepWork,
    Work,
    find_kind,
    layer_work,
    network_work,
    output_shape,
    peak_memory,
)
from joulecast.records import Layer, Network, Op, Setup, fold_blocks
from joulecast.units import format_bytes, format_count, format_shape, format_share

Json = dict[str, Any]
STAGES = ("forward", "backward", "update")
_SHARES = tuple(f"unattributed_{what}_share" for what in ("flops", "bytes", "params"))
_SHARES += tuple(f"overcounted_{what}_share" for what in ("flops", "bytes"))


@click.command()
@click.argument("net")
@options.net_options
@click.option("--blocks", is_flag=True, help="Show a module that the net repeats as one layer.")
@click.option("--out", metavar="NET.json", help="Also write the network to a file.")
@options.json
def inspect(asked: options.Asked, blocks: bool, out: str | None, json: bool) -> None:
    """Show what NET consists of, layer by layer, and what a step of it has to do.

    FLOPs count multiplications and additions of contractions; bytes are what operators read and
    write; kernels are those that a GPU would be given to run.
    """
    found, setup = asked.resolve()
    network = count_totals(found, setup)
    if out:
        write_network(network, out)
    sums = total_work(network, setup, is_counted(found, network, setup))
    seen = fold_blocks(network) if blocks else network
    if json:
        print_json(describe_network(seen, network, setup, sums))
    else:
        _print_network(seen, network, setup, sums)


def count_totals(found: ResolvedNet, setup: Setup) -> Network:
    """The network with an independent count of its step, where PyTorch is there to make one."""
    network = found.network
    if network.totals or not (network.buildable and network.layers and has_torch()):
        return network
    from joulecast.runtimes.torch.independent_count import count_step_totals

    return replace(network, totals=count_step_totals(network, setup.batch))


def is_counted(found: ResolvedNet, network: Network, setup: Setup) -> bool:
    """Whether a network's totals are a count of this very step.

    They are of training in numbers of four bytes. A file does not say at which batch they were
    taken: there the layers' FLOPs at this batch must be those that the count was compared with.
    """
    totals = network.totals
    if totals is None or setup.phase != "train" or setup.precision not in ("fp32", "tf32"):
        return False
    if found.load is not None or found.network.totals is None:
        return True
    work = network_work(network, setup)
    compared = 1 - totals.unattributed_flops_share + totals.overcounted_flops_share
    flops = work.forward.flops + work.backward.flops
    return flops > 0 and math.isclose(totals.flops * compared, flops, rel_tol=1e-6)


def total_work(network: Network, setup: Setup, counted: bool) -> Json:
    """FLOPs, bytes and parameters of the step, and how the layers' formulas compare with them.

    They are the independent count of forward and backward where there is one of this step, else
    the layers' own sums.
    """
    work = network_work(network, setup)
    totals = network.totals
    data: Json = {"flops": work.total.flops, "bytes": work.total.size_bytes, "params": work.params}
    if totals is not None:
        data["params"] = totals.params
        if counted:
            data.update(flops=totals.flops, bytes=totals.size_bytes)
    shares = {key: getattr(totals, key) if totals else None for key in _SHARES}
    return {**data, **shares, "counted": "independently" if counted else "by layer"}


def describe_network(seen: Network, network: Network, setup: Setup, sums: Json) -> Json:
    """A network for programs."""
    return {
        "name": network.name,
        "input": network.input.to_dict(),
        "setup": setup.to_dict(),
        "buildable": network.buildable,
        **sums,
        "peak_memory_bytes": peak_memory(network, setup),
        "layers": [_describe_layer(layer, setup) for layer in seen.layers],
        "groups": [list(group) for group in network.groups],
    }


def _describe_layer(layer: Layer, setup: Setup) -> Json:
    work = layer_work(layer, setup)
    stages = {stage: getattr(work, stage) for stage in STAGES}
    return {
        "name": layer.name,
        "kind": layer.kind,
        "sizes": layer.sizes.to_dict(),
        "tail": [op.to_dict() for op in layer.tail],
        "calls": layer.calls,
        "trains": layer.trains,
        "output": list(output_shape(layer)),
        "params": work.params,
        "flops": _per_stage(stages, "flops"),
        "bytes": _per_stage(stages, "size_bytes"),
        "launches": _per_stage(stages, "launches"),
        "memory_bytes": _per_stage(stages, "memory_bytes"),
        "parts": [_describe_layer(part, setup) for part in layer.parts],
    }


def _per_stage(stages: dict[str, Work], what: str) -> Json:
    counts = {stage: getattr(work, what) for stage, work in stages.items()}
    return {**counts, "total": sum(counts.values())}


# ---------------------------------------------------------------------------------------------
# For people

_NAME_SIZE = 24
_NOTHING = 1e-5
_ALIKE = 1e-3
_COUNTED = {"flops": "FLOPs", "bytes": "bytes", "params": "parameters"}
_WORDS = {
    "batch_norm": "bn",
    "layer_norm": "ln",
    "max": "maxpool",
    "avg": "avgpool",
    "adaptive_avg": "avgpool",
}


def _print_network(seen: Network, network: Network, setup: Setup, sums: Json) -> None:
    console = make_console()
    phase = "inference" if setup.phase == "inference" else "one training step"
    shape = format_shape(network.input.shape)
    console.print(f"{network.name}: {phase}, input {shape}, {options.say_setup(setup)}\n")
    work = network_work(network, setup)
    columns = ("layer", "operator", "then", ">output", ">params", ">FLOPs", ">bytes", ">kernels")
    rows = [_show_layer(layer, setup) for layer in seen.layers]
    print_table(console, columns, rows, footer=("all", "", "", "", *_show_work(work)))
    stages = [(stage, *_show_work(StepWork(getattr(work, stage)))[1:]) for stage in STAGES]
    print_table(console, ("stage", ">FLOPs", ">bytes", ">kernels"), stages)
    print_notes(console, _list_notes(network, setup, sums, folded=seen is not network))


def _show_layer(layer: Layer, setup: Setup) -> tuple[str, ...]:
    work = layer_work(layer, setup)
    operator = f"block of {len(layer.parts)}" if layer.parts else show_operator(layer)
    operator += f" x{layer.calls}" if layer.calls > 1 else ""
    operator += " (frozen)" if work.params and not layer.trains else ""
    name = layer.name if len(layer.name) <= _NAME_SIZE else "…" + layer.name[1 - _NAME_SIZE :]
    tail = " ".join(show_operator(op) for op in layer.tail if not find_kind(op.kind).is_view)
    return (name or "-", operator, tail, format_shape(output_shape(layer)), *_show_work(work))


def _show_work(work: StepWork) -> tuple[str, ...]:
    total = work.total
    counts = (work.params, total.flops, total.size_bytes)
    return (*map(format_count, counts), str(total.launches))


def show_operator(op: Op) -> str:
    """An operator in a few signs: ``conv2d 3→64 k3 /2``."""
    sizes = op.sizes
    word = str(sizes.get("fn", op.kind))
    words = [_WORDS.get(word, word)]
    for source, target in (("cin", "cout"), ("cin", "hidden"), ("vocabulary", "width")):
        if source in sizes and target in sizes:
            words.append(f"{sizes[source]}→{sizes[target]}")
    if "head_dim" in sizes:
        words.append(f"{sizes['heads']}x{sizes['head_dim']}")
    if "m" in sizes:
        words.append("x".join(str(sizes[key]) for key in ("count", "m", "k", "n")))
    if "kernel" in sizes and "cin" in sizes:
        square = len(set(sizes["kernel"])) == 1
        words.append("k" + format_shape(sizes["kernel"][:1] if square else sizes["kernel"]))
        words += [f"/{max(sizes['stride'])}"] if max(sizes["stride"]) > 1 else []
    if sizes.get("groups", 1) > 1:
        words.append(f"groups {sizes['groups']}")
    return " ".join(words)


def _list_notes(network: Network, setup: Setup, sums: Json, folded: bool) -> list[str]:
    peak = format_bytes(peak_memory(network, setup))
    notes = [f"Memory at its peak: about {peak}, the framework's own aside."]
    notes += _say_totals(network, setup, sums)
    if network.groups and not folded:
        notes.append(f"It repeats a module {len(network.groups)} times: --blocks shows it as one.")
    if not network.buildable:
        notes.append("It can be estimated, but not rebuilt from these layers.")
    return notes


def _say_totals(network: Network, setup: Setup, sums: Json) -> list[str]:
    """What the totals rest on, and how far the layers account for them."""
    if network.totals is None:
        note = "The totals are the layers' own sums"
        if not network.buildable:
            return [f"{note}: a net that cannot be rebuilt from its layers is not counted again."]
        unchecked = network.layers and not has_torch()
        return [f"{note}: with PyTorch installed they are checked." if unchecked else f"{note}."]
    step = "the step" if sums["counted"] == "independently" else "a training step when it was read"
    missed = {words: sums[f"unattributed_{key}_share"] for key, words in _COUNTED.items()}
    notes = [f"By an independent count of {step}, {_say_missed(missed)}."]
    differs = _list_differences(network, setup, sums)
    if differs:
        notes.append(f"The layers' own formulas say {' and '.join(differs)} than were counted.")
    return notes


def _say_missed(missed: dict[str, float]) -> str:
    words = [f"{format_share(s)} of the {what}" for what, s in missed.items() if s > _NOTHING]
    return ", ".join(words) + " belong to no layer" if words else "everything belongs to a layer"


def _list_differences(network: Network, setup: Setup, sums: Json) -> list[str]:
    """By how much the formulas of forward and backward are above or below the count."""
    differs = {key: sums[f"overcounted_{key}_share"] for key in ("flops", "bytes")}
    if sums["counted"] == "independently" and sums["bytes"]:
        work = network_work(network, setup)
        said_bytes = work.forward.size_bytes + work.backward.size_bytes
        differs["bytes"] = said_bytes / sums["bytes"] - 1.0
    return [
        f"{format_share(abs(share))} {'more' if share > 0 else 'fewer'} {_COUNTED[key]}"
        for key, share in differs.items()
        if abs(share) > _ALIKE
    ]
