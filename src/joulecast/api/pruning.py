"""From a net that somebody named to the smaller one: finds its groups, chooses counts, cuts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.api.measuring import Budget as LearningBudget
from joulecast.api.measuring import observe_net, open_rig, probe_networks
from joulecast.api.nets import ResolvedNet, require_torch
from joulecast.errors import FileError, InputError
from joulecast.records import Network, Observation, Profile, Setup
from joulecast.budgets import EnergyBudget
from joulecast.uses.prune import PruneOptions, PruningResult, prune_network

if TYPE_CHECKING:
    from torch import nn

    from joulecast.runtimes.torch.load import LoadedNet


HANDED_OVER = "a module that was handed over"
# How often what was chosen is looked at before the choice goes on, and until it is how well known.
_LOOKS = 2
_SURE_SHARE = 0.005
LOOK_SECONDS = 20.0
Look = Callable[[tuple[Network, ...]], Profile]


@dataclass(frozen=True)
class Shrunk:
    """A smaller net and how it came about.

    Attributes:
        net: The smaller module, with the weights that are left.
        loaded: The net before, with what it is called on.
        removed: For each module and side which channels went.
        source: The callable that made it; empty where Joulecast built it.
    """

    net: nn.Module
    loaded: LoadedNet
    pruning: PruningResult
    removed: dict[str, dict[str, list[int]]]
    source: str = ""

    def save(self, folder: str) -> str:
        """Write it into a folder; says where."""
        from joulecast.runtimes.torch.pruned_files import save_pruned

        network = self.pruning.pruned
        place = save_pruned(
            self.net, folder, network=network, removed=self.removed, source=self.source
        )
        return str(place)


def shrink_net(
    found: ResolvedNet,
    setup: Setup,
    budget: EnergyBudget,
    profile: Profile | None,
    *,
    options: PruneOptions,
    source: str = "",
    look: Look | None = None,
) -> Shrunk:
    """Prune a net to a budget.

    Args:
        found: The net.
        setup: How it is trained, or run.
        budget: What a step may take.
        profile: What the device has learnt.
        options: Options of pruning.
        source: The name of the callable that makes the net, to be written beside its weights.
        look: Shows the device layers of networks and says what it knows then; the choice goes on
            from there.
    """
    require_torch("pruning")
    from joulecast.runtimes.torch.load import build_example_net
    from joulecast.runtimes.torch.channel_pruning import (
        prune_channels,
        find_channel_groups,
        list_removed_channels,
    )
    from joulecast.runtimes.torch.importance import run_backward, compute_importance

    loaded = found.load() if found.load else build_example_net(found.network, found.batch)
    channels = find_channel_groups(
        loaded.net, loaded.inputs, loaded.loss, None if found.load else found.network
    )
    if options.importance == "taylor" and not _has_gradients(loaded):
        run_backward(loaded)
    groups = compute_importance(loaded.net, channels.groups, options.importance)
    network = replace(channels.network, name=found.network.name)
    pruning = prune_network(network, groups, setup, budget, profile, options)
    if look is not None:
        for _ in range(_LOOKS):
            known = look((pruning.pruned, network))
            again = replace(options, start=pruning.counts)
            pruning = prune_network(network, groups, setup, budget, known, again)
    return Shrunk(
        prune_channels(loaded.net, groups, pruning.counts),
        loaded,
        replace(pruning, not_prunable=channels.whole),
        list_removed_channels(groups, pruning.counts),
        _name_source(found, source),
    )


def make_look(
    setup: Setup, on: str, meter: str, store: str | None, seconds: float = LOOK_SECONDS
) -> Look:
    """Looks at layers alone, on a device: seconds, and joules of those that leave most doubt."""
    budget = LearningBudget(seconds=seconds, uncertainty_share=_SURE_SHARE)
    rig = {"on": on, "meter": meter, "rounds": 1}
    return lambda networks: probe_networks(networks, setup, budget, rig, store)


def _name_source(found: ResolvedNet, source: str) -> str:
    """What made the net; a module that was handed over has no name to call."""
    return (source or HANDED_OVER) if found.load else ""


def measure_both(
    shrunk: Shrunk, setup: Setup, on: str, meter: str, rounds: int = 3
) -> tuple[Observation, Observation]:
    """A step of the net and of the smaller one, each trained under a meter."""
    pruning = shrunk.pruning
    pairs = ((pruning.network, shrunk.loaded.net), (pruning.pruned, shrunk.net))
    before, after = (
        observe_net(
            ResolvedNet(network, setup.batch, _make_load(shrunk, net)),
            setup,
            on,
            meter,
            rounds=rounds,
        )
        for network, net in pairs
    )
    return before, after


def check_same_device(profile: Profile, on: str, meter: str) -> None:
    """What one device is estimated to take says nothing of what another one does."""
    rig = open_rig(on, meter)
    here = (rig.runtime.device.name, rig.meter.covers)
    asked = (profile.device.name, profile.covers)
    if here != asked:
        raise InputError(
            f"the estimate is of {asked[0]} (its meter covers {asked[1]}), but --on {on} is "
            f"{here[0]} (covers {here[1]}): measure there, or leave out --measure or --device"
        )


def make_folder(folder: str) -> None:
    """Where a net will be written; complains before the work is done.

    Raises:
        FileError: It cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be made ({error.strerror}): give another --out"
        ) from error


def _make_load(shrunk: Shrunk, net: nn.Module) -> Any:
    """Training changes weights: a copy is trained."""
    return lambda: replace(shrunk.loaded, net=copy.deepcopy(net))


def _has_gradients(loaded: LoadedNet) -> bool:
    """Whoever hands over a module may have run backward on data of their own."""
    return any(value.grad is not None for value in loaded.net.parameters())
