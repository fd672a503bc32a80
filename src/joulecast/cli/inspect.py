"""``joulecast inspect NET``: show the layers of a net and the work of a step."""

from __future__ import annotations

from typing import Any

import click

from joulecast.cli import options
from joulecast.cli.option_types import OutputFileType
from joulecast.cli.print_network import print_network
from joulecast.cli.terminal import Json, print_json
from joulecast.features.inspect import StepCount, add_step_totals, count_step
from joulecast.features.nets import NetRequest
from joulecast.files import write_network
from joulecast.kinds import Work, layer_work, output_shape, peak_memory
from joulecast.records import Layer, Network, Setup, fold_blocks, list_reading_notes

STAGES = ("forward", "backward", "update")
_SHARES = tuple(f"unattributed_{what}_share" for what in ("flops", "bytes", "params"))
_SHARES += tuple(f"overcounted_{what}_share" for what in ("flops", "bytes"))


@click.command()
@click.argument("net")
@options.checkpointed_net_options
@click.option("--blocks", is_flag=True, help="Show equal blocks as one row.")
@click.option(
    "--out",
    type=OutputFileType(),
    metavar="NET.json",
    help="Also write the network, to be used as NET.",
)
@options.json
def inspect(request: NetRequest, blocks: bool, out: str | None, json: bool) -> None:
    """Show the layers of NET and the work of a step.

    FLOPs count multiplications and additions of contractions, bytes what operators read and write,
    kernels what a GPU would launch.
    """
    net, setup = request.resolve()
    network = add_step_totals(net.network, setup)
    if out:
        write_network(network, out)
    count = count_step(net, network, setup)
    shown = fold_blocks(network) if blocks else network
    if json:
        print_json(describe_network(shown, network, setup, count))
    else:
        print_network(shown, network, setup, count)


def describe_network(shown: Network, network: Network, setup: Setup, count: StepCount) -> Json:
    """Return a network as JSON values, with the layers of ``shown``."""
    return {
        "name": network.name,
        "input": network.input.to_dict(),
        "setup": setup.to_dict(),
        "buildable": network.buildable,
        "flops": count.flops,
        "bytes": count.size_bytes,
        "params": count.params,
        **{name: getattr(count.totals, name) if count.totals else None for name in _SHARES},
        "ops_without_rule": dict(network.totals.ops_without_rule) if network.totals else {},
        "notes": list_reading_notes(network),
        "counted": "independently" if count.is_independent else "by layer",
        "peak_memory_bytes": peak_memory(network, setup),
        "layers": [_describe_layer(layer, setup) for layer in shown.layers],
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
        "transposed": list(layer.transposed),
        "output": list(output_shape(layer)),
        "params": work.params,
        "flops": _sum_stages(stages, "flops"),
        "bytes": _sum_stages(stages, "size_bytes"),
        "launches": _sum_stages(stages, "launches"),
        "memory_bytes": _sum_stages(stages, "memory_bytes"),
        "parts": [_describe_layer(part, setup) for part in layer.parts],
    }


def _sum_stages(stages: dict[str, Work], quantity: str) -> dict[str, Any]:
    counts = {stage: getattr(work, quantity) for stage, work in stages.items()}
    return {**counts, "total": sum(counts.values())}
