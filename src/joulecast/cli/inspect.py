"""``joulecast inspect NET``: what a net consists of, and what each layer has to do in a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.nets import NamedNet, has_torch, show_shape
from joulecast.cli.show import make_console, print_json, print_notes, print_table
from joulecast.files import write_network
from joulecast.kinds import StepWork, Work, layer_work, network_work, output_shape, peak_memory
from joulecast.records import Layer, Network, Op, Setup, Totals, fold_blocks
from joulecast.units import format_bytes, format_count, format_share

Json = dict[str, Any]
STAGES = ("forward", "backward", "update")


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
    sums = total_work(network, setup)
    seen = fold_blocks(network) if blocks else network
    if json:
        print_json(describe_network(seen, network, setup, sums))
    else:
        _print_network(seen, network, setup, sums)


def count_totals(found: NamedNet, setup: Setup) -> Network:
    """The network with an independent count of its step, where PyTorch is there to make one."""
    network = found.network
    if network.totals or not (network.buildable and network.layers and has_torch()):
        return network
    from joulecast.runtimes.torch.recount import recount

    return replace(network, totals=recount(network, setup.batch))


def total_work(network: Network, setup: Setup) -> Json:
    """FLOPs, bytes and parameters of the whole step, and what no layer accounts for.

    The layers' own sums, scaled up by what the independent count says that they miss.
    """
    work = network_work(network, setup)
    shares = network.totals or Totals(0.0, 0.0, 0)
    known = network.totals is not None
    sums = {
        "flops": (work.total.flops, shares.unattributed_flops_share),
        "bytes": (work.total.size_bytes, shares.unattributed_bytes_share),
        "params": (work.params, shares.unattributed_params_share),
    }
    data: Json = {key: _scale_up(value, share) for key, (value, share) in sums.items()}
    data["params"] = shares.params if known else work.params
    missed = {f"unattributed_{key}_share": share for key, (_, share) in sums.items()}
    return {**data, **(missed if known else dict.fromkeys(missed))}


def describe_network(seen: Network, network: Network, setup: Setup, sums: Json) -> Json:
    """A network for programs."""
    return {
        "name": network.name,
        "input": network.input.to_dict(),
        "setup": setup.to_dict(),
        "buildable": network.buildable,
        **sums,
        "counted": "independently" if network.totals else "by layer",
        "peak_memory_bytes": peak_memory(network, setup),
        "layers": [_describe_layer(layer, setup) for layer in seen.layers],
        "groups": [list(group) for group in network.groups],
    }


def _scale_up(value: float, share: float) -> float:
    return value / (1.0 - share) if share < 1 else value


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
# Operators that only look at data in another way; they are left out of what follows a layer.
_VIEWS = ("flatten", "view", "permute", "last")
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
    shape = show_shape(network.input.shape)
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
    tail = " ".join(show_operator(op) for op in layer.tail if op.kind not in _VIEWS)
    return (name or "-", operator, tail, show_shape(output_shape(layer)), *_show_work(work))


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
        words.append("k" + show_shape(sizes["kernel"][:1] if square else sizes["kernel"]))
        words += [f"/{max(sizes['stride'])}"] if max(sizes["stride"]) > 1 else []
    if sizes.get("groups", 1) > 1:
        words.append(f"groups {sizes['groups']}")
    return " ".join(words)


def _list_notes(network: Network, setup: Setup, sums: Json, folded: bool) -> list[str]:
    peak = format_bytes(peak_memory(network, setup))
    notes = [f"Memory at its peak: about {peak}, the framework's own aside."]
    notes.append(_say_shares(sums))
    if network.groups and not folded:
        notes.append(f"It repeats a module {len(network.groups)} times: --blocks shows it as one.")
    if not network.buildable:
        notes.append("It can be estimated, but not rebuilt from these layers.")
    return notes


def _say_shares(sums: Json) -> str:
    shares = {key: sums[f"unattributed_{key}_share"] for key in ("flops", "bytes", "params")}
    if None in shares.values():
        return "The totals are the layers' own sums: with PyTorch installed they are checked."
    if max(shares.values()) < _NOTHING:
        return "An independent count of the step agrees: nothing in it belongs to no layer."
    words = ", ".join(f"{format_share(share)} of {key}" for key, share in shares.items())
    return f"Beside the layers, by an independent count of the step: {words}."
