"""Prune a net to an energy budget: find its channel groups, choose counts, remove channels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulecast.budgets import EnergyBudget, RunLength
from joulecast.errors import InputError
from joulecast.features.measure import measure_net
from joulecast.features.measurers import open_any_measurer
from joulecast.features.nets import NetRequest, ResolvedNet, Shape, require_packages, require_torch
from joulecast.features.options import (
    DEFAULT_PROBE_SECONDS,
    MeasureOptions,
    ProbeOptions,
    PruneOptions,
    StoreOptions,
    split_options,
)
from joulecast.features.profile import make_short_probe, probe_layers
from joulecast.features.profiles import find_profile
from joulecast.records import Network, Observation, Profile, Setup
from joulecast.uses.prune import PruningResult, parse_pruning_budget, prune_network

if TYPE_CHECKING:
    from torch import nn

    from joulecast.features.option_values import DeviceLike
    from joulecast.runtimes.torch.load import LoadedNet

HANDED_OVER = "a module that was handed over"
# How often the layers of the pruned net are probed before the counts are chosen again.
_PROBE_ROUNDS = 2
_PACKAGES = {"torch": "PyTorch", "torch_pruning": "Torch-Pruning", "safetensors": "safetensors"}

Probe = Callable[[tuple[Network, ...]], Profile]


@dataclass(frozen=True)
class PrunedNet:
    """A pruned module and the result that led to it.

    Attributes:
        net: The pruned module, with the remaining weights.
        loaded: The original module and what it is called on.
        removed: Removed channels of each module and side.
        source: Name of the callable that makes the original; empty where Joulecast built it.
    """

    net: nn.Module
    loaded: LoadedNet
    pruning: PruningResult
    removed: dict[str, dict[str, list[int]]]
    source: str = ""

    def save(self, folder: str) -> str:
        """Write the module into a folder for ``load_pruned``; return the folder."""
        from joulecast.runtimes.torch.channel_removal import save_pruned

        network = self.pruning.pruned
        place = save_pruned(
            self.net, folder, network=network, removed=self.removed, source=self.source
        )
        return str(place)


def prune(
    net: Any,
    inputs: Any = None,
    *,
    budget: str,
    device: DeviceLike | Profile = "",
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    **options: Any,
) -> PrunedNet:
    """Remove the least important channels of a net until a step stays within an energy budget.

    The result's ``net`` is the pruned module, ``pruning`` says what it costs before and after and
    with which probability it stays within the budget, ``save(folder)`` writes it.

    Args:
        net: A name, a Network, or a module with ``inputs``, which is not changed.
        inputs: For a module, what it is called on.
        budget: ``50%`` of the original, ``5J`` per step, or ``2Wh`` of a run of ``steps``.
        device: A device with a profile (see ``load_profile``), or the profile itself.
        setup: How the net is trained.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        options: Fields of ``Setup`` (``batch=128``), of ``PruneOptions`` (``confidence=0.9``), of
            ``RunLength``: ``steps``, or ``epochs`` and ``samples``; also ``store``. For a module,
            ``loss`` may be a callable from its output to a scalar. ``probe=True`` measures the
            remaining layers on the device ``on`` twice, for ``probe_seconds`` at most each, and
            chooses again.
    """
    check_can_prune()
    setup_options, pruning, length, probing, measuring, storing = split_options(
        prune, options, Setup, PruneOptions, RunLength, ProbeOptions, MeasureOptions, StoreOptions
    )
    request = NetRequest(net, inputs, setup, input_shape, setup_options)
    resolved, setup = request.resolve()
    task = PruneTask(
        resolved,
        setup,
        parse_pruning_budget(budget, RunLength(**length), setup.samples_per_step),
        PruneOptions(**pruning),
        request.name,
    )
    store, probe_options = StoreOptions(**storing).store, ProbeOptions(**probing)
    probe = None
    if probe_options.probe:
        where = MeasureOptions(**measuring)
        probe = make_probe(setup, where, store, probe_options.probe_seconds)
    return prune_net(task, find_profile(device, store), probe)


def load_pruned(folder: str, net: Any = None) -> Any:
    """Return the pruned module that ``prune(...).save(folder)`` or ``prune --save`` wrote.

    Args:
        folder: Where it was written.
        net: The original module, unless a family or a Network was pruned. Code that the folder
            names is never run.
    """
    require_torch("loading a pruned net", "prune")
    from joulecast.runtimes.torch.channel_removal import load_pruned as load

    return load(folder, net)


def check_can_prune() -> None:
    """Raise MissingError unless everything that pruning needs is installed."""
    require_packages("pruning", _PACKAGES, "prune")


@dataclass(frozen=True)
class PruneTask:
    """A net to prune.

    Attributes:
        budget: Limit for one step.
        source: Name of the callable that makes the net, to be stored with its weights.
    """

    net: ResolvedNet
    setup: Setup
    budget: EnergyBudget
    options: PruneOptions
    source: str = ""


def prune_net(task: PruneTask, profile: Profile | None, probe: Probe | None = None) -> PrunedNet:
    """Prune a net to a budget.

    Args:
        task: The net, its budget and options.
        profile: Profile of the device.
        probe: Measures layers of networks on the device and returns its profile; counts are then
            chosen again.
    """
    check_can_prune()
    from joulecast.runtimes.torch.channel_pruning import find_channel_groups
    from joulecast.runtimes.torch.channel_removal import (
        compute_importance,
        list_removed_channels,
        prune_channels,
        run_backward,
    )
    from joulecast.runtimes.torch.load import build_example_net

    net, options = task.net, task.options
    loaded = net.load() if net.load else build_example_net(net.network, net.batch)
    channels = find_channel_groups(
        loaded.net, loaded.inputs, loaded.loss, None if net.load else net.network
    )
    if options.importance == "taylor" and not _has_gradients(loaded):
        run_backward(loaded)
    groups = compute_importance(loaded.net, channels.groups, options.importance)
    network = replace(channels.network, name=net.network.name)
    question = (network, groups, task.setup, task.budget)
    pruning = prune_network(*question, profile, options)
    for _ in range(_PROBE_ROUNDS if probe else 0):
        assert probe is not None
        known = probe((pruning.pruned, network))
        pruning = prune_network(*question, known, replace(options, start=pruning.counts))
    return PrunedNet(
        prune_channels(loaded.net, groups, pruning.counts),
        loaded,
        replace(pruning, not_prunable=channels.not_prunable),
        list_removed_channels(groups, pruning.counts),
        (task.source or HANDED_OVER) if net.load else "",
    )


def make_probe(
    setup: Setup, measuring: MeasureOptions, store: str | None, seconds: float | None = None
) -> Probe:
    """Return a function that measures isolated layers of networks on a device."""
    options = make_short_probe(DEFAULT_PROBE_SECONDS if seconds is None else seconds)
    return lambda networks: probe_layers(networks, setup, measuring, store, options)


def measure_both(
    pruned: PrunedNet, setup: Setup, options: MeasureOptions
) -> tuple[Observation, Observation]:
    """Measure one step of the original and one of the pruned net."""
    pruning = pruned.pruning
    pairs = ((pruning.network, pruned.loaded.net), (pruning.pruned, pruned.net))
    before, after = (
        measure_net(ResolvedNet(network, setup.batch, _load_copy(pruned, net)), setup, options)
        for network, net in pairs
    )
    return before, after


def is_within_budget(budget: EnergyBudget, before: Observation, after: Observation) -> bool:
    """Return whether a measured step stays within a budget."""
    if before.energy_j is None or after.energy_j is None:
        raise InputError("the meter gave no energy: choose another with --meter")
    return after.energy_j <= budget.limit(before.energy_j)


def check_same_device(profile: Profile, options: MeasureOptions) -> None:
    """Raise InputError where the estimates are for another device than the one measured."""
    measurer = open_any_measurer(options)
    here = (measurer.runtime.device.name, measurer.meter.covers)
    there = (profile.device.name, profile.covers)
    if here != there:
        raise InputError(
            f"the estimate is for {there[0]} (its meter covers {there[1]}), but --on {options.on} "
            f"is {here[0]} (covers {here[1]}): measure there, or leave out --measure or --device"
        )


def _load_copy(pruned: PrunedNet, net: nn.Module) -> Callable[[], LoadedNet]:
    """Return a loader of a copy, because training changes the weights."""
    return lambda: replace(pruned.loaded, net=copy.deepcopy(net))


def _has_gradients(loaded: LoadedNet) -> bool:
    """Return whether the caller has already run backward, perhaps on real data."""
    return any(value.grad is not None for value in loaded.net.parameters())
