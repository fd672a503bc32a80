"""Prune a net to an energy budget: find its channel groups, choose counts, remove channels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.estimate import find_run_length
from joulecast.features.measurers import MeasureOptions, lock_device, open_any_measurer
from joulecast.features.nets import NetRequest, ResolvedNet, require_packages, require_torch
from joulecast.features.profiles import load_profile
from joulecast.features.prune_report import PruningResult
from joulecast.records import Json, Network, Observation, Profile, Setup
from joulecast.system.errors import ArgumentError, FileError, InputError, arg
from joulecast.system.units import parse_share
from joulecast.views.report import Report, Reportable

if TYPE_CHECKING:
    from torch import nn

    from joulecast.features.channel_search import Counts, PruneOptions
    from joulecast.features.run import EnergyBudget
    from joulecast.measurer import TrialMeasurer
    from joulecast.torch_nets.load import LoadedNet

_PACKAGES = {"torch": "PyTorch", "torch_pruning": "Torch-Pruning", "safetensors": "safetensors"}


def parse_floor(text: str) -> float:
    """Return what remains of a group: a share as ``10%`` or ``0.1``, or a number as ``8``."""
    return float(text) if text.strip().isdigit() else parse_share(text)


Budget = Annotated[
    str,
    Argument("A share of the original, or energy of a step or run.", metavar="50%|5J|2Wh"),
]
Strategy = Annotated[
    str, Argument("How channels are chosen.", choices=("marginal", "uniform", "walk"))
]
Objective = Annotated[
    str,
    Argument("Quantity to minimise; flops is for comparison.", choices=("energy", "flops")),
]
Importance = Annotated[str, Argument("How channels are ranked.", choices=("magnitude", "taylor"))]
Floor = Annotated[
    float,
    Argument(
        "Share or number of channels that remain in every group.", least=0.0, metavar="10%|8",
        parse=parse_floor, default="10%",
    ),
]  # fmt: skip
Keep = Annotated[
    tuple[str, ...],
    Argument("Layers not to prune, like 'fc*'; repeatable.", metavar="LAYER", is_repeated=True),
]
Multiple = Annotated[int, Argument("Round channel counts to a multiple of N.", least=1)]
Confidence = Annotated[float, Argument(
    "Probability with which the budget is kept.", above=0.0, below=1.0, metavar="90%",
    parse=parse_share, default="90%",
)]  # fmt: skip
Verify = Annotated[bool | None, Argument(
    "Measure what is chosen on the device --on, and choose again, at most three times.",
    default="yes with --on", is_negatable=True,
)]  # fmt: skip
Save = Annotated[
    str | None,
    Argument(
        "Write the pruned model: weights and structure.", metavar="FOLDER", harm="writes files"
    ),
]


@verb
def prune(
    net: given.Net,
    inputs: Any = None,
    *,
    budget: Budget,
    device: given.DeviceName = "",
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    steps: given.Steps = None,
    inferences: given.Inferences = None,
    epochs: given.Epochs = None,
    samples: given.Samples = None,
    strategy: Strategy = "marginal",
    objective: Objective = "energy",
    confidence: Confidence = 0.9,
    importance: Importance = "magnitude",
    floor: Floor = 0.1,
    keep: Keep = (),
    multiple: Multiple = 1,
    seed: given.Seed = 0,
    start: Mapping[str, int] | None = None,
    estimator: given.Estimator = "auto",
    level: given.Level = 0.95,
    verify: Verify = None,
    on: given.On = None,
    meter: given.Meter = None,
    save: Save = None,
    store: given.Store = None,
) -> PrunedNet:
    """Remove the least important channels of NET until a step stays within a budget.

    Channels that depend on each other are removed together, so that the pruned net still runs and
    trains. No channel is removed that saves nothing. With --on, each choice is measured for about a
    second.

    In Python, the result's ``net`` is the pruned module; a module that is given is not changed.
    ``pruning`` says what it costs before and after, ``start=pruning.counts`` continues from there.
    """
    require_packages("pruning", _PACKAGES, "prune")
    from joulecast.features.channel_search import PruneOptions, parse_pruning_budget

    length = find_run_length(steps, inferences, epochs, samples, phase)
    request = NetRequest.of(locals())
    resolved, setup = request.resolve()
    limit = parse_pruning_budget(budget, length, setup.samples_per_step)
    if verify is None:
        verify = on is not None and objective == "energy"
    if verify and (on is None or objective == "flops"):
        raise ArgumentError(
            f"{arg('verify')} measures energies on a device: name it with {arg('on')}, and leave "
            f"{arg('objective', 'flops')} out"
        )
    if meter is not None and not verify:
        raise ArgumentError(f"{arg('meter')} is for measuring: give {arg('on')} as well")
    if objective == "flops" and confidence != PruneOptions.confidence:
        raise ArgumentError(
            f"FLOPs are counted, not estimated: leave {arg('confidence')} out, or give "
            f"{arg('objective', 'energy')}"
        )
    if save:
        # So that an error appears before the work is done.
        try:
            Path(save).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"cannot create {save} ({error.strerror}): give another folder to {arg('save')}"
            ) from error
    # One window of about a second.
    measuring = MeasureOptions(on or "cpu", meter or "auto", rounds=1)
    profile = load_profile(device, on=measuring.on, store=store)
    options = PruneOptions(
        strategy, objective, confidence, floor, keep, multiple, seed, start, estimator, level
    )
    with ExitStack() as stack:
        measurer = None
        if verify:
            stack.enter_context(lock_device(measuring.on))
            measurer = stack.enter_context(open_any_measurer(measuring))
            _check_same_device(profile, measurer, measuring.on)
        pruned = _prune_module(
            resolved, setup, limit, importance, options, profile, measurer, measuring.on
        )
    source = (request.name or "a module that was handed over") if resolved.load else ""
    steps = length.count_steps(setup.samples_per_step) if length.is_run else None
    pruning = replace(pruned.pruning, steps=steps, is_built=not source, saved=save or None)
    pruned = replace(pruned, pruning=pruning, source=source)
    if save:
        pruned.save(save)
    return pruned


def load_pruned(folder: str, net: Any = None) -> Any:
    """Return the pruned module that ``prune(...).save(folder)`` or ``prune --save`` wrote.

    Args:
        folder: Where it was written.
        net: The original module, unless a family or a Network was pruned. Code that the folder
            names is never run.
    """
    require_torch("loading a pruned net", "prune")
    from joulecast.torch_nets.channel_removal import load_pruned as load

    return load(folder, net)


@dataclass(frozen=True)
class PrunedNet(Reportable):
    """A pruned module and the result that led to it."""

    net: nn.Module  # the pruned module, with the remaining weights
    loaded: LoadedNet  # the original module and what it is called on
    pruning: PruningResult  # what it costs before and after
    removed: dict[str, dict[str, list[int]]]  # removed channels of each module and side
    source: str = ""  # name of the callable that makes the original; empty where Joulecast built it

    def save(self, folder: str) -> str:
        """Write the module into a folder for ``load_pruned``; return the folder."""
        from joulecast.torch_nets.channel_removal import save_pruned

        network, removed = self.pruning.pruned, self.removed
        path = save_pruned(self.net, folder, network=network, removed=removed, source=self.source)
        return str(path)

    def to_dict(self) -> Json:
        return self.pruning.to_dict()

    def report(self) -> Report:
        return self.pruning.report()


def _prune_module(
    net: ResolvedNet,
    setup: Setup,
    budget: EnergyBudget,
    importance: str,
    options: PruneOptions,
    profile: Profile,
    measurer: TrialMeasurer | None,
    on: str,
) -> PrunedNet:
    """Choose channel counts of a net, on a device with measurements, and remove channels."""
    from joulecast.features.channel_search import prune_network
    from joulecast.features.measure import measure_opened
    from joulecast.torch_nets.channel_pruning import find_channel_groups
    from joulecast.torch_nets.channel_removal import (
        compute_importance,
        list_removed_channels,
        prune_channels,
        run_backward,
    )
    from joulecast.torch_nets.load import build_example_net

    loaded = net.load() if net.load else build_example_net(net.network, net.batch)
    channels = find_channel_groups(
        loaded.net, loaded.inputs, loaded.loss, None if net.load else net.network
    )
    # The caller may have run backward already, perhaps on real data.
    has_gradients = any(value.grad is not None for value in loaded.net.parameters())
    if importance == "taylor" and not has_gradients:
        run_backward(loaded)
    groups = compute_importance(loaded.net, channels.groups, importance)
    network = replace(channels.network, name=net.network.name)

    def measure(counts: Counts, pruned: Network) -> Observation:
        assert measurer is not None
        # A copy, because training changes the weights.
        own = replace(loaded, net=prune_channels(loaded.net, groups, counts))
        resolved = ResolvedNet(pruned, setup.batch, lambda: own)
        return measure_opened(measurer, lambda: (resolved, setup), on).observation

    pruning = prune_network(
        network, groups, setup, budget, profile, options, measure if measurer else None
    )
    return PrunedNet(
        prune_channels(loaded.net, groups, pruning.counts),
        loaded,
        replace(pruning, not_prunable=channels.not_prunable),
        list_removed_channels(groups, pruning.counts),
    )


def _check_same_device(profile: Profile, measurer: TrialMeasurer, on: str) -> None:
    """Raise InputError where the estimates are for another device than the one measured."""
    here = (measurer.runtime.device.name, measurer.meter.covers)
    there = (profile.device.name, profile.covers)
    if here != there:
        raise InputError(
            f"the estimate is for {there[0]} (its meter covers {there[1]}), but "
            f"{arg('on', on)} is {here[0]} (covers {here[1]}): measure there, or leave out "
            f"{arg('on')} or {arg('device')}"
        )
