"""Make trials that run a part alone, and read the part back from them.

    forward of all copies ─▶ backward of all copies from a random gradient ─▶ one update

The measured cost is divided by the number of copies. A variant shows a layer by the difference to a
smaller network; an isolated part runs alone. Several copies, each with its own weights and data,
keep the device busy between launches. An output part runs with its loss, and an input part without
a gradient of its input.
"""

from __future__ import annotations

from dataclasses import replace

from joulecast.kinds import find_kind, layer_work
from joulecast.records import Execution, Input, Network, Setup, Trial
from joulecast.variants.parts import (
    BLOCK,
    Part,
    disconnect_layer,
    is_bare_view,
    match_phase,
    match_precision,
    single_input_shape,
    split_network,
)

# All copies together move about this many bytes, within bounds: enough to hide launches.
_TARGET_BYTES = 1e9
_FEWEST_COPIES, _MOST_COPIES = 2, 8
# A forward pass alone moves little: with more copies, their weights do not all stay in a cache, as
# those of a whole network do not.
_MOST_INFERENCE_COPIES = 32


def make_isolated_trial(
    part: Part, setup: Setup, mode: str = "eager", stage: str = "step"
) -> Trial:
    """Return the trial that measures a part alone."""
    # The role still tells two layers that end a network from a block.
    part = replace(part, layers=match_phase(part, setup).layers)
    works = [layer_work(layer, setup) for layer in part.layers]
    if part.role == "output" and not any(work.params for work in works):
        # A module that returns its own loss ends without weights: nothing would train.
        part = Part("hidden", part.layers, part.half_input)
    upstream = "loss" if part.role == "output" else "random"
    moved_bytes = sum(work.total.size_bytes for work in works)
    wanted = round(_TARGET_BYTES / max(moved_bytes, 1.0))
    most = _MOST_COPIES if setup.phase == "train" else _MOST_INFERENCE_COPIES
    copies = max(_FEWEST_COPIES, min(most, wanted))
    network = make_isolated_network(match_precision(part, setup))
    return Trial(network, setup, Execution(stage, mode, copies, upstream))


def make_isolated_network(part: Part) -> Network:
    """Return a network that consists of a part only."""
    first = part.layers[0]
    vocabulary = int(first.sizes.get("vocabulary", 0))
    return Network(part.layers, Input(single_input_shape(first), vocabulary, part.half_input))


def read_isolated_part(trial: Trial) -> Part | None:
    """Return the part that a trial runs alone, or None if it runs something else."""
    network, execution = trial.network, trial.execution
    if not network.layers or not network.buildable:
        return None
    if execution.upstream == "loss":
        placed = split_network(network)
        return placed[0].part if len(placed) == 1 else None
    if len(network.layers) > 1:
        return Part(BLOCK, network.layers, network.input.half)
    layer = network.layers[0]
    if is_bare_view(layer):
        return None
    reads_data = find_kind(layer.kind).reads_tokens or not layer.input_grad
    role = "input" if reads_data else "hidden"
    return Part(role, (disconnect_layer(layer),), network.input.half)
