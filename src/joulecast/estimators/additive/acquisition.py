"""Choose what to measure next, so that the totals of the target's networks become certain.

    1  an eager step of a whole network: the largest
    2  a measurement of every kind of layer in the target's networks, at the third quartile of their
       work, so that no kind is extrapolated to
    3  steps of two more networks, the smallest and a middle one
    4  another layer of every kind, at the first quartile
    5  steps of three more networks, spread over size
    6  then, of all layers, by energy or by duration, and of further networks for the host, the
       measurement that most reduces the mean relative variance of the totals per device second

Whole networks show by how much sums of isolated layers are off in a family: on a CPU, CNNs were off
by 12.4 % after 36 s without them, and by 6.9 % with six of them. More of them before the first
layers would leave kinds unmeasured where seconds are few: transformers were off by 23 % after 10 s
with six networks first, and by 11 % in this order (H200, from kept measurements).

Layers run in isolation, as graphs if the runtime captures them. Graphs hide the host: its time
shows in eager steps of whole networks and, where those cannot be built or may not run, of isolated
layers, one of each structure.

The variance that a measurement would leave needs no measurement, only its covariance with the
totals (``gp.logsums.posterior``). This beats the paper's rule, the layer with the largest standard
deviation, from about 12 points on and is unsafe below, hence 1 and 2 (H200). The paper's rule is
also available. Profiling stops when the totals are known within the target's share, or when nothing
that can be measured would help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulecast.estimators.additive.layers import (
    SetupLayer,
    count_layers,
    set_up_layer,
    split_layers,
)
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.predict import (
    HOST_TIME,
    AdditiveModel,
    NetworkTotals,
    predict_durations,
    predict_layer_energies,
    predict_powers,
    predict_totals,
)
from joulecast.estimators.base import Fitted, Proposal, Target
from joulecast.gp.linalg import Floats
from joulecast.gp.logsums.posterior import expected_variance_reduction
from joulecast.operators import network_work
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.records.codec import cache_on_record
from joulecast.system.errors import MissingError
from joulecast.system.units import format_share
from joulecast.variants import Block, describe_block, make_isolated_trial, read_isolated_block

if TYPE_CHECKING:
    from joulecast.estimators.additive.estimator import FittedAdditive

MEASUREMENTS_PER_KIND = 2
# Networks that are measured as a whole in any case, by their places among all from the smallest to
# the largest; how many of them before each kind's first layer, before its second, and after it.
_NETWORK_PLACES, _NETWORK_COUNTS = (1.0, 0.0, 0.5, 0.25, 0.75, 0.875), (1, 3, 6)
# Device time of a measurement with energy and of a probe, in seconds, if none was made yet.
_DEFAULT_ENERGY_COST_S, _DEFAULT_PROBE_COST_SHARE = 2.0, 0.25
# A measurement must reduce the variance by at least this share.
_MIN_REDUCTION = 0.002
# After all layers were timed, the energy of one must reduce the variance by at least this share.
_MIN_REDUCTION_AFTER_PROBES = 0.05
# After all layers were timed, energies are measured until they make up this share, or are so many:
# with durations alone, the power of 29 networks on an H200 was up to 46 % too low.
_METERED_SHARE, _MOST_METERED = 0.6, 6
# Half the width of a 95 % interval, in standard deviations.
_HALF_WIDTH_SDS = 1.96
_ALL_TIMED = "every layer of the network was timed"


FitModel = Callable[[Sequence[Observation], Fitted | None], "FittedAdditive"]


@dataclass(frozen=True)
class TargetLayers:
    """The layers of a target, and which of them were measured.

    Attributes:
        blocks: How to run each layer in isolation, by key.
        refused_keys: Keys of layers that the device could not run.
        observation_count: Observations that show a layer or a network of the target.
    """

    target: Target
    networks: tuple[Mapping[SetupLayer, float], ...]
    layers: tuple[SetupLayer, ...]
    blocks: Mapping[str, Block]
    energy_keys: frozenset[str]
    duration_keys: frozenset[str]
    refused_keys: frozenset[str]
    observation_count: int

    def lacks(self, key: str, with_energy: bool) -> bool:
        """Return whether the energy or the duration of a layer is still to be measured."""
        done = self.energy_keys if with_energy else self.duration_keys
        return key not in self.refused_keys and key not in done

    @property
    def untimed(self) -> list[str]:
        """Keys of the layers whose duration is still to be measured."""
        return [layer.key for layer in self.layers if self.lacks(layer.key, with_energy=False)]

    def isolate(self, key: str) -> Trial:
        """Return the trial that runs a layer alone."""
        return make_isolated_trial(self.blocks[key], self.target.setup, isolated_mode(self.target))

    def propose(self, key: str, with_energy: bool, uncertainty: float, why: str) -> Proposal:
        """Propose to measure a layer alone, for a reason."""
        quantity = "energy" if with_energy else "duration"
        reason = f"{quantity} of {describe_block(self.blocks[key])} ({why})"
        count = self.observation_count
        return Proposal(self.isolate(key), uncertainty, reason, count, with_energy)


class _Measurement(NamedTuple):
    """A measurement that could be made of an isolated layer.

    Attributes:
        score: What the best measurement has most of.
        reduction: What it takes off the mean relative variance of the totals.
    """

    key: str
    with_energy: bool
    score: float
    reduction: float


def propose_trial(
    target: Target,
    observations: Sequence[Observation],
    fit: FitModel,
    fitted: Fitted | None = None,
) -> Proposal:
    """Return the most useful trial, or the reason why there is none."""
    layers = read_target(target, observations)
    is_probe = target.acquisition == "probe"
    tried, networks = _list_eager_keys(observations), _list_networks(target)
    first = None if is_probe else _propose_required(layers, networks, tried)
    if first is None and target.acquisition in ("probe", "missing"):
        first = _propose_probe(layers, observations)
    if first is not None and (first.trial or not is_probe):
        return replace(first, fitted=fitted)
    try:
        found = fit(observations, fitted)
    except MissingError as error:
        return first or Proposal(None, 1.0, str(error), layers.observation_count)
    model = found.for_phase(target.setup.phase)
    totals = predict_totals(model, layers.networks, model.sum_error_sd_share)
    if is_probe:
        proposal = _propose_energy(layers, model, totals)
    else:
        costs_s, others = _read_costs(observations), networks[_NETWORK_COUNTS[-1] :]
        host = next((trial for trial in others if trial.key not in tried), None)
        proposal = _propose_best(layers, model, totals, costs_s, host)
    return replace(proposal, fitted=found)


def _propose_required(
    layers: TargetLayers, networks: Sequence[Trial], tried: Set[str]
) -> Proposal | None:
    """Propose what is measured in any case: whole networks, and layers of every kind."""
    for turn, count in enumerate(_NETWORK_COUNTS):
        for trial in networks[:count]:
            if trial.key not in tried:
                return _propose_network(trial, 1.0, layers.observation_count, with_energy=True)
        key = _find_new_kind(layers, turn) if turn < MEASUREMENTS_PER_KIND else None
        if key is not None:
            return layers.propose(key, True, 1.0, "few measurements of its kind")
    return None


def read_target(target: Target, observations: Iterable[Observation]) -> TargetLayers:
    """Return the layers of a target's networks, and which of them were measured."""
    placed = [
        split_layers(network, target.setup) for network in target.networks or (target.network,)
    ]
    blocks = {one.layer.key: one.placed_block.block for own in placed for one in own}
    layers = {one.layer.key: one.layer for own in placed for one in own}
    measured, timed, refused = set(), set(), set()
    network_keys = {trial.key for trial in _list_networks(target)}
    mode, count = isolated_mode(target), 0
    for observation in observations:
        trial, has_duration = observation.trial, observation.duration_s is not None
        execution = trial.execution
        # Keys are hashes of whole networks, and most observations are of other trials.
        if execution.mode == "eager":
            count += bool(observation.duration_s) and trial.key in network_keys
        if execution.mode != mode or execution.stage != "step":
            continue
        if not _has_same_layers(trial.setup, target.setup):
            continue
        key = _find_isolated_key(trial)
        if key is None:
            continue
        count += bool(observation.duration_s) and key in layers
        if observation.energy_j is None and not has_duration:
            refused.add(key)
        if observation.energy_j is not None:
            measured.add(key)
        if has_duration:
            timed.add(key)
    run_as = {key: _find_run_key(block, target.setup, mode) for key, block in blocks.items()}

    def select_shown(shown: Set[str]) -> frozenset[str]:
        """Return the layers that were shown, by themselves or by the one that is run for them."""
        return frozenset(key for key, run in run_as.items() if key in shown or run in shown)

    return TargetLayers(
        target=target,
        networks=tuple(map(count_layers, placed)),
        layers=tuple(layers[key] for key in sorted(layers)),
        blocks=blocks,
        energy_keys=select_shown(measured),
        duration_keys=select_shown(timed),
        refused_keys=select_shown(refused),
        observation_count=count,
    )


def isolated_mode(target: Target) -> str:
    """Return the mode in which layers run in isolation."""
    return "graph" if "graph" in target.modes else "eager"


def list_host_probes(layers: TargetLayers, observations: Sequence[Observation]) -> list[Trial]:
    """Return eager steps of isolated layers: one for each structure that none has shown."""
    target = layers.target
    if "graph" not in target.modes:
        return []
    issued = (one for one in observations if one.trial.mode == "eager" and one.issue_s)
    shown = {layer.structure for one in decompose_observations(issued) for layer in one.counts}
    tried = _list_eager_keys(observations)
    trials: dict[str, Trial] = {}
    for layer in sorted(layers.layers, key=lambda layer: (layer.size_bytes, layer.key)):
        if layer.structure not in shown | trials.keys() and layer.key not in layers.refused_keys:
            trial = make_isolated_trial(layers.blocks[layer.key], target.setup, "eager")
            if trial.key not in tried:
                trials[layer.structure] = trial
    return list(trials.values())


def _propose_probe(layers: TargetLayers, observations: Sequence[Observation]) -> Proposal:
    """Propose the duration of a layer that was not timed, then its host time."""
    untimed, count = layers.untimed, layers.observation_count
    uncertainty = len(untimed) / len(layers.layers)
    hosts = list_host_probes(layers, observations)
    if untimed:
        proposal = layers.propose(untimed[0], False, uncertainty, f"{len(untimed)} left")
    elif hosts:
        proposal = _propose_network(hosts[0], uncertainty, count, with_energy=False)
    else:
        return Proposal(None, 0.0, _ALL_TIMED, count)
    if layers.target.acquisition == "probe":
        proposal = replace(proposal, probes=(*map(layers.isolate, untimed), *hosts))
    return proposal


def _propose_energy(layers: TargetLayers, model: AdditiveModel, totals: NetworkTotals) -> Proposal:
    """Propose the energies of layers whose durations left the totals uncertain, if that helps."""
    uncertainty, variance = _measure_uncertainty(totals), _mean_relative_variance(totals)
    largest = _list_largest_unmetered(layers, totals)
    if largest:
        key, share = next(iter(largest.items()))
        proposal = layers.propose(key, True, uncertainty, f"{format_share(share)} of the energy")
        return replace(proposal, probes=tuple(map(layers.isolate, largest)))
    measurements = _list_measurements("target", layers, model, totals, (1.0, 1.0))
    best = max(measurements, key=lambda one: one.reduction, default=None)
    is_done = uncertainty <= layers.target.uncertainty_share
    if best is None or is_done or best.reduction < _MIN_REDUCTION_AFTER_PROBES * variance:
        return Proposal(None, uncertainty, _ALL_TIMED, layers.observation_count)
    why = f"reduces the variance by {format_share(best.reduction / variance)}"
    return layers.propose(best.key, True, uncertainty, why)


def _list_largest_unmetered(layers: TargetLayers, totals: NetworkTotals) -> dict[str, float]:
    """Return the layers with most energy whose energy was not measured, with their shares.

    With those that were measured they make up most of the energy, or are many.
    """
    operator_j = totals.energy_by_operator_j
    energies_j: dict[str, float] = {}
    for network in layers.networks:
        for layer, count in network.items():
            own_j = sum(operator_j[operator] * times for operator, times in layer.own_operators)
            energies_j[layer.key] = energies_j.get(layer.key, 0.0) + count * own_j
    total_j = sum(energies_j.values())
    metered = [key for key in energies_j if key in layers.energy_keys]
    covered_j, places = sum(energies_j[key] for key in metered), _MOST_METERED - len(metered)
    left = [key for key in energies_j if layers.lacks(key, with_energy=True)]
    largest: dict[str, float] = {}
    for key in sorted(left, key=lambda one: (energies_j[one], one), reverse=True):
        if len(largest) >= places or covered_j >= _METERED_SHARE * total_j:
            break
        largest[key] = energies_j[key] / total_j
        covered_j += energies_j[key]
    return largest


def _propose_best(
    layers: TargetLayers,
    model: AdditiveModel,
    totals: NetworkTotals,
    costs_s: tuple[float, float],
    host: Trial | None,
) -> Proposal:
    """Propose the measurement with the highest score, of a layer or of the host."""
    target, count = layers.target, layers.observation_count
    uncertainty = _measure_uncertainty(totals)
    if uncertainty <= target.uncertainty_share:
        reason = f"the networks are known within {format_share(target.uncertainty_share)}"
        return Proposal(None, uncertainty, reason, count)
    is_targeted = target.acquisition == "target"
    measurements = _list_measurements(target.acquisition, layers, model, totals, costs_s)
    best = max(measurements, key=lambda one: one.score, default=None)
    variance = _mean_relative_variance(totals)
    rival = 0.0 if best is None else best.score * costs_s[1]
    by_host = 0.0
    if is_targeted:
        # What timing one more network takes off the mean relative variance.
        host_var = float(np.mean(totals.variance_by_source[HOST_TIME] / totals.energy_j**2))
        by_host = model.host_time.variance_reduction_share * host_var
    if host is not None and by_host > max(rival, _MIN_REDUCTION * variance):
        return _propose_network(host, uncertainty, count, with_energy=False)
    if best is None:
        reason = "every layer of the networks was measured"
        return Proposal(None, uncertainty, reason, count)
    if is_targeted and max(one.reduction for one in measurements) < _MIN_REDUCTION * variance:
        sources = totals.variance_by_source
        source = max(sources, key=lambda name: float(sources[name].sum()))
        reason = f"no measurement would help: the remaining uncertainty is {source}"
        return Proposal(None, uncertainty, reason, count)
    reduction = f"reduces the variance by {format_share(best.reduction / variance)}"
    why = reduction if is_targeted else "largest standard deviation"
    return layers.propose(best.key, best.with_energy, uncertainty, why)


def _list_measurements(
    acquisition: str,
    layers: TargetLayers,
    model: AdditiveModel,
    totals: NetworkTotals,
    costs_s: tuple[float, float],
) -> list[_Measurement]:
    """Return all useful measurements of isolated layers with their scores.

    ``costs_s`` is the device time of a measurement with energy, and of one without.
    """
    if acquisition == "target":
        by_energy, by_duration = _find_reductions(layers, model, totals)
    else:
        # The paper's rule: wherever the standard deviation is largest, at any cost.
        by_duration, costs_s = np.zeros(len(layers.layers)), (1.0, 1.0)
        if acquisition == "time":
            alone = [{layer: 1.0} for layer in layers.layers]
            sums = model.encoder.sum_layers(alone, [False] * len(alone))
            found = predict_durations(model.encoder, model.duration, sums)
            by_energy = np.sqrt(found.variance)
        else:
            by_energy = predict_layer_energies(model, layers.layers)[1]
    return [
        _Measurement(layer.key, with_energy, reduction / cost_s, reduction)
        for at, layer in enumerate(layers.layers)
        for with_energy, reduction, cost_s in (
            (True, float(by_energy[at]), costs_s[0]),
            (False, float(by_duration[at]), costs_s[1]),
        )
        if reduction > 0 and layers.lacks(layer.key, with_energy)
    ]


def _find_reductions(
    layers: TargetLayers, model: AdditiveModel, totals: NetworkTotals
) -> tuple[Floats, Floats]:
    """Return what each layer's energy or duration takes off the mean relative variance."""
    targets, alone = len(layers.networks), [{layer: 1.0} for layer in layers.layers]
    is_network = [True] * targets + [False] * len(alone)
    sums = model.encoder.sum_layers([*layers.networks, *alone], is_network)
    # What matters for the networks matters for their layers.
    durations = predict_durations(model.encoder, totals.durations.posterior, sums)
    posterior = totals.powers.posterior
    powers = predict_powers(model, sums, durations.by_operator, posterior=posterior)
    found = []
    for process in (durations, powers):
        own = process.log_sums
        first, last = own.take(np.arange(targets)), own.take(np.arange(targets, own.size))
        reduction = expected_variance_reduction(process.posterior, process.inputs, first, last)
        found.append(reduction)
    by_time = totals.grad_time_j / totals.energy_j
    by_power = totals.device_energy_j / totals.energy_j
    by_duration = np.mean(by_time[:, None] ** 2 * found[0], axis=0)
    return by_duration + np.mean(by_power[:, None] ** 2 * found[1], axis=0), by_duration


def _propose_network(trial: Trial, uncertainty: float, count: int, with_energy: bool) -> Proposal:
    what = "energy of the whole" if with_energy else "host time of"
    reason = f"{what} {trial.network.name or 'network'}"
    return Proposal(trial, uncertainty, reason, count, with_energy)


def _find_new_kind(layers: TargetLayers, turn: int) -> str | None:
    """Return a layer of a kind that was measured at most ``turn`` times, at a quartile of work."""
    groups: dict[str, list[SetupLayer]] = {}
    for layer in layers.layers:
        groups.setdefault(layer.label, []).append(layer)
    for label in sorted(groups):
        group = sorted(groups[label], key=lambda one: (one.size_bytes, one.flops, one.key))
        measured = sum(layer.key in layers.energy_keys for layer in group)
        keys = [layer.key for layer in group if layers.lacks(layer.key, with_energy=True)]
        if measured <= turn and keys:
            quartile = (0.75, 0.25)[turn]
            return keys[round(quartile * (len(keys) - 1))]
    return None


def _measure_uncertainty(totals: NetworkTotals) -> float:
    """Return half the 95 % interval over the energy, averaged over networks."""
    return float(np.mean(_HALF_WIDTH_SDS * np.sqrt(totals.variance) / totals.energy_j))


def _mean_relative_variance(totals: NetworkTotals) -> float:
    return float(np.mean(totals.variance / totals.energy_j**2))


def _read_costs(observations: Iterable[Observation]) -> tuple[float, float]:
    """Return the median device time of measurements with energy and of probes, in seconds."""
    energies_s: list[float] = []
    probes_s: list[float] = []
    for one in observations:
        if one.cost_s > 0 and read_isolated_block(one.trial) is not None:
            (probes_s if one.energy_j is None else energies_s).append(one.cost_s)
    energy_s = median(energies_s) if energies_s else _DEFAULT_ENERGY_COST_S
    return energy_s, median(probes_s) if probes_s else _DEFAULT_PROBE_COST_SHARE * energy_s


def _list_eager_keys(observations: Iterable[Observation]) -> set[str]:
    trials = (observation.trial for observation in observations)
    return {trial.key for trial in trials if trial.mode == "eager"}


@lru_cache(maxsize=4096)
def _has_same_layers(setup: Setup, other: Setup) -> bool:
    """Return whether setups show each other's layers, which depend on all but the loss."""
    return replace(setup, loss=other.loss) == other


@lru_cache(maxsize=65536)
def _find_run_key(block: Block, setup: Setup, mode: str) -> str:
    """Return the key of the layer that runs for a block: an output without weights has no loss."""
    key = _find_isolated_key(make_isolated_trial(block, setup, mode))
    return set_up_layer(block, setup).key if key is None else key


@cache_on_record
def _find_isolated_key(trial: Trial) -> str | None:
    """Return the key of the layer that a trial runs alone; None if it runs something else."""
    block = read_isolated_block(trial)
    return None if block is None else set_up_layer(block, trial.setup).key


def _list_networks(target: Target) -> list[Trial]:
    """Return eager steps of the networks, those first that are measured in any case."""
    known = dict.fromkeys((target.network, *target.networks))
    networks = [network for network in known if network.buildable]
    networks.sort(key=lambda one: _measure_size(one, target.setup))
    first = [networks[round(place * (len(networks) - 1))] for place in _NETWORK_PLACES if networks]
    return [Trial(network, target.setup) for network in dict.fromkeys((*first, *networks))]


@lru_cache(maxsize=4096)
def _measure_size(network: Network, setup: Setup) -> tuple[float, float, str]:
    work = network_work(network, setup).total
    return work.flops, work.size_bytes, network.name
