"""NeuralPower (Cai et al., ACML 2017), carried over from inference to training steps.

    E(net) = Σ_layers Σ_stages P̂(sizes) · T̂(sizes)         stages: forward, backward, update

    T̂   sparse polynomial of degree ≤ 3 in the sizes, with FLOPs and bytes
    P̂   sparse polynomial of degree ≤ 2 in the sizes and their logarithms, with FLOPs and bytes

Each layer runs alone, stage by stage, and each type of layer has one pair of polynomials. Degrees,
logarithms, ten folds and a minimal runtime are the authors' choices; that stages are profiled apart
is how the AMPERE paper carries the method over to training. Where it leaves a choice, it was made
in its favour on simulated devices outside all benchmarks:

- A type is an operator with its tail, in its role. Kernel, stride and positions are sizes.
- A layer runs in several copies side by side, so that they share the host's start of a step: the
  stages of a transformer then sum to 8 % more than its step, with one copy to 35 %.
- Terms are chosen by the Lasso, then fitted without its shrinkage, by relative squares.
- Sizes fill the range below the layers of the target: those layers, the smallest one, then points
  of a Halton sequence, until 20 sizes of each type are complete.
- Outside the observed sizes, the value at the nearest ones grows with rates per FLOP, byte and
  launch, which also stand in for types that were never measured.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from joulecast.estimators.base import (
    ALL_SETUPS,
    FitComponent,
    Fitted,
    FittedBySetup,
    Floats,
    Json,
    Prediction,
    Proposal,
    Target,
    count_work,
    decline_probes,
    equicorrelated_covariance,
    fit_work_rates,
    setup_key,
    split_energy_by_bytes,
)
from joulecast.operators import KINDS, Work, layer_work
from joulecast.records import (
    Layer,
    LayerEstimate,
    Network,
    Observation,
    Setup,
    Trial,
    name_layout,
    stable_hash,
)
from joulecast.records.codec import Record, always_stored
from joulecast.system.errors import MissingError
from joulecast.variants import (
    REPEATED,
    Block,
    PlacedBlock,
    Widths,
    block_widths,
    describe_block,
    fixed_properties,
    make_isolated_trial,
    match_precision,
    read_isolated_block,
    resize_block,
    split_network,
)
from joulecast.variants.curves import plan_curves

STAGES = ("forward", "backward", "update")
TIME_DEGREE, POWER_DEGREE = 3, 2
SIZES = 20
"""Sizes at which each type of layer is measured."""
MIN_POINTS = 10
"""With fewer points there is nothing to choose terms by: FLOPs and bytes alone."""
# Standard deviations that cross-validation cannot estimate: a total around the sum of its stages,
# fits to few sizes, to one size, and rates, which may be far off elsewhere.
SUM_SD_SHARE, FEW_SD_SHARE, ONE_SIZE_SD_SHARE, MIN_RATE_SD_SHARE = 0.1, 0.3, 0.05, 0.6
# Refused sizes after which a type without any measurement is given up.
MAX_REFUSALS = 4
FOLDS = 10
PENALTIES = np.logspace(0, -5, 40)
# Columns that differ by less are equal, or constant.
MIN_DIFFERENCE = 1e-9


class NeuralPowerEstimator:
    """Sparse polynomials for power and runtime, one pair for each type of layer and stage."""

    name = "neuralpower"
    version = 2
    uses_anchors = False

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is an eager stage of a layer, with energy and duration."""
        seen = read_stage(observation)
        return seen is not None and bool(seen.energy_j and seen.duration_s)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return every type of layer at sizes that fill its range, stage by stage."""
        if target.acquisition == "probe":
            return decline_probes(self.name)
        measured: dict[LayerStage, bool] = {}
        for seen in map(read_stage, observations):
            if seen and seen.stage.setup == target.setup:
                is_measured = seen.energy_j is not None and seen.duration_s is not None
                measured[seen.stage] = is_measured or measured.get(seen.stage, False)
        types = draw_sizes((target.network, *target.networks), target.setup)
        plans = [plan_type(sizes, measured) for sizes in types]
        # The first size of every type, then the second: a budget may end at any time.
        turns = itertools.chain.from_iterable(itertools.zip_longest(*plans))
        wanted = [stage for stages in turns for stage in stages or ()]
        missing = [stage for stage in wanted if stage not in measured]
        points = sum(measured.get(stage, False) for stage in wanted)
        if not missing:
            reason = f"every layer type was measured at {SIZES} sizes, or at all sizes it has"
            return Proposal(None, 0.0, reason, points)
        reason = f"{missing[0].name} of {describe_block(missing[0].block)}, isolated"
        return Proposal(missing[0].trial, len(missing) / len(wanted), reason, points)

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedNeuralPower:
        """Fit polynomials for every type, and rates for what has none."""
        found = [seen for seen in map(read_stage, observations) if seen]
        # Sorted, so that the fit does not depend on the order of the observations.
        points = sorted(
            (seen for seen in found if seen.energy_j and seen.duration_s),
            key=lambda one: (
                one.stage.type_key, list_sizes(one.stage.block), one.duration_s, one.energy_j
            ),
        )  # fmt: skip
        if not points:
            raise MissingError(
                "no stage of an isolated layer was measured with its energy on this device: "
                "profile the net there with the estimator neuralpower first"
            )
        groups: dict[str, list[ObservedStage]] = {ALL_SETUPS: points}
        for point in points:
            groups.setdefault(setup_key(point.stage.setup), []).append(point)
        types = itertools.groupby(points, key=lambda one: one.stage.type_key)
        return FittedNeuralPower(
            {key: fit_regression(list(group)) for key, group in types},
            {key: fit_rates(group) for key, group in groups.items()},
            len(points),
        )

    def load(self, data: Json) -> FittedNeuralPower:
        """Restore a fit from its JSON."""
        return FittedNeuralPower.from_dict(data)


@dataclass(frozen=True)
class FittedNeuralPower(FittedBySetup, Record):
    """A fit: polynomials by stage type, and rates by setup for types without."""

    regressions: Mapping[str, StageRegression] = always_stored(json_name="types")
    rates: Mapping[str, StageRates] = always_stored()
    observation_count: int = always_stored(json_name="seen")
    version: int = NeuralPowerEstimator.version

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the stage types."""
        items = [FitComponent(one.label, one.count, one.count) for one in self.regressions.values()]
        return tuple(sorted(items, key=lambda item: item.label))

    def predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        counted = [list(count_stages(network, setup)) for network in networks]
        costs = self._predict_stages({stage for rows in counted for _, stage, _ in rows})
        energies_j, sds_j, durations_s, layers, unseen = [], [], [], [], []
        for rows in counted:
            # Errors are common within a type, and among all estimates from rates.
            type_sds_j: dict[str, float] = {}
            energy_j = duration_s = unseen_j = 0.0
            estimates: list[LayerEstimate] = []
            for placed, group in itertools.groupby(rows, key=lambda row: row[0]):
                block_j, is_block_seen = 0.0, True
                for _, stage, count in group:
                    cost = costs[stage]
                    key = stage.type_key if stage.type_key in self.regressions else "rates"
                    stage_j = count * cost.energy_j
                    type_sds_j[key] = type_sds_j.get(key, 0.0) + stage_j * cost.sd_share
                    block_j += stage_j
                    energy_j += stage_j
                    duration_s += count * cost.duration_s
                    unseen_j += 0.0 if cost.is_seen else stage_j
                    is_block_seen &= cost.is_seen
                if per_layer:
                    estimates += split_energy_by_bytes(placed.layers, block_j, is_block_seen, setup)
            energies_j.append(energy_j)
            sds_j.append(math.hypot(SUM_SD_SHARE * energy_j, *type_sds_j.values()))
            durations_s.append(duration_s)
            layers.append(tuple(estimates))
            unseen.append(unseen_j / energy_j if energy_j else 0.0)
        all_sds_j = np.array(sds_j)
        return Prediction(
            energy_j=np.array(energies_j),
            energy_sd_j=all_sds_j,
            energy_cov=equicorrelated_covariance(networks, all_sds_j) if joint else None,
            duration_s=np.array(durations_s),
            layers=tuple(layers),
            unseen_share=tuple(unseen),
        )

    def _predict_stages(self, stages: Iterable[LayerStage]) -> dict[LayerStage, StageCost]:
        """Predict the cost of each of many stages, those of one type together."""
        groups: dict[str, list[LayerStage]] = {}
        for stage in stages:
            groups.setdefault(stage.type_key, []).append(stage)
        costs: dict[LayerStage, StageCost] = {}
        for key, group in groups.items():
            rates = self.rates.get(setup_key(group[0].setup), self.rates[ALL_SETUPS])
            work = np.array([count_work(stage.work) for stage in group])
            if key not in self.regressions:
                energies_j, durations_s = work @ np.array(rates.energy), work @ np.array(rates.time)
                sd_shares, inside = np.full(len(group), rates.sd_share), np.zeros(len(group), bool)
            else:
                regression = self.regressions[key]
                columns = list_columns(group)
                nearest = np.clip(columns, regression.lows, regression.highs)
                durations_s, powers_w = regression.predict(nearest)
                nearest_s = np.hstack([nearest[:, -2:], work[:, 2:]]) @ np.array(rates.time)
                inside = (nearest == columns).all(axis=1)
                factors = (work @ np.array(rates.time)) / np.maximum(nearest_s, 1e-300)
                factors = np.where(inside | (nearest_s <= 0), 1.0, factors)
                durations_s = durations_s * factors
                energies_j = powers_w * durations_s
                # The extrapolated block is as uncertain as the rates.
                outside_share = abs(factors - 1.0) / np.maximum(factors, 1.0)
                sd_shares = regression.sd_share + outside_share * rates.sd_share
            rows = zip(energies_j, durations_s, sd_shares, inside, strict=True)
            found = [
                StageCost(float(j), float(s), float(sd), bool(seen)) for j, s, sd, seen in rows
            ]
            costs.update(zip(group, found, strict=True))
        return costs


# ---------------------------------------------------------------------------------------------
# Stages of layers


@dataclass(frozen=True)
class LayerStage:
    """A stage of a layer, trained with ``setup``."""

    block: Block
    setup: Setup
    name: str

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # A campaign looks up thousands of stages before each proposal.
        return hash((self.block, self.setup, self.name))

    @property
    def type_key(self) -> str:
        """A stable name of the regression that it belongs to."""
        return f"{block_type_key(self.block, self.setup)} {self.name}"

    @property
    def work(self) -> Work:
        """Its FLOPs, bytes and launches."""
        works = [layer_work(layer, self.setup) for layer in self.block.layers]
        work: Work = getattr(sum(works[1:], works[0]), self.name)
        return work

    @property
    def trial(self) -> Trial:
        """The trial that measures it."""
        return make_isolated_trial(self.block, self.setup, stage=self.name)


@dataclass(frozen=True)
class ObservedStage:
    """A stage and its cost per run; None if the device refused it."""

    stage: LayerStage
    energy_j: float | None
    duration_s: float | None


@dataclass(frozen=True)
class StageCost:
    """The predicted cost of a stage, and whether it lies within the observed sizes."""

    energy_j: float
    duration_s: float
    sd_share: float
    is_seen: bool


def list_stages(block: Block, setup: Setup) -> tuple[LayerStage, ...]:
    """Return the stages in which a layer does something: without weights there is no update."""
    stages = [LayerStage(match_precision(block, setup), setup, name) for name in STAGES]
    return tuple(stage for stage in stages if stage.work.launches)


def count_stages(network: Network, setup: Setup) -> Iterator[tuple[PlacedBlock, LayerStage, int]]:
    """Yield how often a step runs each stage; weights are updated once, by their first layer."""
    for placed in split_network(network):
        updates = 0 if any(layer.tied for layer in placed.layers) else 1
        for stage in list_stages(placed.block, setup):
            yield placed, stage, updates if stage.name == "update" else placed.calls


def read_stage(observation: Observation) -> ObservedStage | None:
    """Return the stage that an observation shows; None if it is no stage of an isolated layer."""
    trial, execution = observation.trial, observation.trial.execution
    is_isolated = execution.stage in STAGES and execution.mode == "eager" and execution.copies > 1
    block = read_isolated_block(trial) if is_isolated and not observation.source else None
    if block is None or block.role == REPEATED:
        return None
    energy_j, duration_s = (
        None if value is None else value / execution.steps / execution.copies
        for value in (observation.energy_j, observation.duration_s)
    )
    stage = LayerStage(match_precision(block, trial.setup), trial.setup, execution.stage)
    return ObservedStage(stage, energy_j, duration_s)


@lru_cache(maxsize=8192)
def block_type_key(block: Block, setup: Setup) -> str:
    """Return a stable name of what a layer has in common with all of its sizes."""
    layers = [describe_type(layer) for layer in block.layers]
    names = [name for name, _ in list_sizes(block)]
    return stable_hash([block.role, block.half_input, layers, names, setup.to_dict()])


@lru_cache(maxsize=8192)
def list_sizes(block: Block) -> tuple[tuple[str, float], ...]:
    """Return the names and values of numeric sizes; those of tails belong to the type."""
    return tuple(
        (f"{place}.{name}.{axis}", float(number))
        for place, layer in enumerate(block.layers)
        for name, size in layer.sizes.items()
        for axis, number in enumerate(size if isinstance(size, tuple) else (size,))
        if not isinstance(number, str)
    )


def describe_type(layer: Layer) -> Json:
    """Return all properties of a layer but its numeric sizes."""
    groups, channels = layer.sizes.get("groups", 1), layer.sizes.get("cin", 0)
    return {
        "kind": layer.kind,
        "words": {name: size for name, size in layer.sizes.items() if isinstance(size, str)},
        "groups": "one" if groups == 1 else "each" if groups == channels else "some",
        "tail": [op.to_dict() for op in layer.tail if not KINDS[op.kind].is_view],
        "trains": layer.trains,
        "input_grad": layer.input_grad,
        "inputs": len(layer.reads),
        "join": layer.join,
        "layout": list(name_layout(layer)),
    }


# ---------------------------------------------------------------------------------------------
# Which sizes to measure


Stages = tuple[LayerStage, ...]
"""All stages of a layer at one size."""
SizeRange = tuple[Block, Widths, Widths]
"""A layer of the target, and the smallest widths and steps that sizes are drawn with."""


def plan_type(sizes: Sequence[Stages], measured: Mapping[LayerStage, bool]) -> list[Stages]:
    """Return the sizes at which to measure a type, without those that the device refused."""
    possible = [stages for stages in sizes if all(measured.get(stage, True) for stage in stages)]
    plan = possible[:SIZES]
    is_refused_often = len(sizes) - len(possible) >= MAX_REFUSALS
    is_started = any(stage in measured for stages in plan for stage in stages)
    return plan if is_started or not is_refused_often else []


@lru_cache(maxsize=16)
def draw_sizes(networks: tuple[Network, ...], setup: Setup) -> list[list[Stages]]:
    """Return for every type the stages of all sizes that may be drawn, in order."""
    by_block: dict[str, list[SizeRange]] = {}
    for network in networks:
        curves = {stable_hash(fixed_properties(one.block)): one for one in plan_curves(network)}
        for placed in split_network(network):
            key, block = (
                stable_hash(fixed_properties(placed.block)),
                match_precision(placed.block, setup),
            )
            highs = block_widths(block)
            others = by_block.setdefault(f"{key} {block.half_input}", [])
            # Of ranges within each other, the widest counts.
            if not any(all(map(int.__le__, highs, block_widths(one))) for one, _, _ in others):
                lows = tuple(map(min, curves[key].lows, highs))
                others[:] = [
                    one for one in others if not all(map(int.__le__, block_widths(one[0]), highs))
                ]
                others.append((block, lows, curves[key].steps))
    types: dict[str, list[SizeRange]] = {}
    for ranges in by_block.values():
        types.setdefault(block_type_key(ranges[0][0], setup), []).extend(ranges)
    drawn = []
    for ranges in types.values():
        # Many draws fall on the same size where widths are narrow.
        blocks = dict.fromkeys(itertools.islice(draw_blocks(ranges), 4 * SIZES))
        drawn.append([stages for block in blocks if (stages := list_stages(block, setup))])
    return drawn


def draw_blocks(ranges: Sequence[SizeRange]) -> Iterator[Block]:
    """Yield layers of one type: those of the target, the smallest, then a Halton sequence."""
    yield from (block for block, _, _ in ranges)
    yield resize_block(ranges[0][0], ranges[0][1])
    for number in itertools.count(1):
        for at, (block, lows, steps) in enumerate(ranges):
            widths = []
            # Ranges of one type are shifted against each other by the golden ratio, and sizes are
            # denser where they are small: there the relative cost changes most.
            for low, high, step, base in zip(
                lows, block_widths(block), steps, (2, 3, 5, 7), strict=False
            ):
                share = ((radical_inverse(number, base) + 0.618 * at) % 1.0) ** 1.5
                widths.append(low + step * int(((high - low) // step + 1) * share))
            yield resize_block(block, widths)


def radical_inverse(number: int, base: int) -> float:
    """Return a number's digits mirrored at the point: an element of a Halton sequence."""
    value, unit = 0.0, 1.0
    while number:
        unit /= base
        number, digit = divmod(number, base)
        value += unit * digit
    return value


# ---------------------------------------------------------------------------------------------
# Regressions


@dataclass(frozen=True)
class Polynomial(Record):
    """The terms that were kept: powers of each column, a coefficient each, and the constant."""

    powers: tuple[tuple[int, ...], ...]
    weights: Floats
    offset: float

    def predict(self, columns: Floats) -> Floats:
        """Return the values at some rows of columns."""
        powers = np.array(self.powers, dtype=np.int64).reshape(-1, columns.shape[1])
        return np.asarray(self.offset + make_terms(columns, powers) @ self.weights)


@dataclass(frozen=True)
class StageRegression(Record):
    """Runtime and power of one stage type over its columns: all sizes, then FLOPs and bytes.

    Attributes:
        varying: Indices of the sizes that differ between points.
        lows: Smallest observed value of each column.
        highs: Largest observed value of each column.
        min_duration_s: Shortest observed runtime; no prediction is below.
        powers_w: Observed range of powers; no prediction is outside.
        sd_share: Cross-validated relative error of the energies.
        count: Number of points.
    """

    label: str
    varying: tuple[int, ...]
    lows: Floats
    highs: Floats
    min_duration_s: float
    powers_w: tuple[float, float]
    duration: Polynomial
    power: Polynomial
    sd_share: float
    count: int

    def predict(self, columns: Floats) -> tuple[Floats, Floats]:
        """Return durations and powers of points within the observed sizes."""
        durations_s = self.duration.predict(scale(columns, self.highs, self.varying))
        powers_w = self.power.predict(scale(columns, self.highs, self.varying, with_logs=True))
        return np.maximum(durations_s, self.min_duration_s), np.clip(powers_w, *self.powers_w)


@dataclass(frozen=True)
class StageRates(Record):
    """Energy and duration per FLOP, byte and launch."""

    energy: tuple[float, ...]
    time: tuple[float, ...]
    sd_share: float


def fit_rates(points: Sequence[ObservedStage]) -> StageRates:
    """Fit rates to stages; errors are relative to a cost, or to a tenth of the median cost."""
    work = np.array([count_work(point.stage.work) for point in points])
    energies_j = np.array([point.energy_j for point in points], dtype=float)
    durations_s = np.array([point.duration_s for point in points], dtype=float)
    (energy, error_share), (time, _) = (
        fit_work_rates(work, costs, np.maximum(costs, 0.1 * np.median(costs)))
        for costs in (energies_j, durations_s)
    )
    sd_share = max(error_share, MIN_RATE_SD_SHARE)
    return StageRates(tuple(energy.tolist()), tuple(time.tolist()), sd_share)


def fit_regression(points: Sequence[ObservedStage]) -> StageRegression:
    """Fit runtime and power of one stage type."""
    stage = points[0].stage
    energies_j = np.array([point.energy_j for point in points], dtype=float)
    durations_s = np.array([point.duration_s for point in points], dtype=float)
    powers_w = energies_j / durations_s
    columns = list_columns([point.stage for point in points])
    highs = columns.max(axis=0)
    # Sizes that differ between points, without those proportional to another.
    _, first = np.unique(
        (columns[:, :-2] / np.maximum(highs[:-2], 1.0)).round(9), axis=1, return_index=True
    )
    varying = tuple(sorted(int(at) for at in first if np.ptp(columns[:, at]) > 0))
    duration, predicted_s = fit_polynomial(scale(columns, highs, varying), durations_s, TIME_DEGREE)
    power, predicted_w = fit_polynomial(
        scale(columns, highs, varying, with_logs=True), powers_w, POWER_DEGREE
    )
    range_w = float(powers_w.min()), float(powers_w.max())
    predicted_j = np.maximum(predicted_s, durations_s.min()) * np.clip(predicted_w, *range_w)
    sd_share = float(np.sqrt(np.mean((predicted_j / energies_j - 1.0) ** 2)))
    if len(points) < MIN_POINTS:
        sd_share = FEW_SD_SHARE if varying else ONE_SIZE_SD_SHARE
    return StageRegression(
        label=f"{stage.name} of {describe_block(stage.block)}",
        varying=varying,
        lows=columns.min(axis=0),
        highs=highs,
        min_duration_s=float(durations_s.min()),
        powers_w=range_w,
        duration=duration,
        power=power,
        sd_share=sd_share,
        count=len(points),
    )


def list_columns(stages: Sequence[LayerStage]) -> Floats:
    """Return the sizes, FLOPs and bytes of stages of one type, one row each."""
    return np.array(
        [
            [*(size for _, size in list_sizes(one.block)), one.work.flops, one.work.size_bytes]
            for one in stages
        ],
        dtype=float,
    )


def scale(
    columns: Floats, highs: Floats, varying: Sequence[int], with_logs: bool = False
) -> Floats:
    """Return varying sizes, their logarithms on request, FLOPs and bytes, relative to highs."""
    sizes, largest = columns[:, varying], highs[list(varying)]
    logs = [np.log2(1.0 + sizes) / np.log2(1.0 + largest)] if with_logs else []
    return np.hstack([sizes / largest, *logs, columns[:, -2:] / np.maximum(highs[-2:], 1.0)])


def fit_polynomial(columns: Floats, values: Floats, degree: int) -> tuple[Polynomial, Floats]:
    """Return a polynomial, and the cross-validated prediction of each of its points.

    The last two columns, FLOPs and bytes, are in no product. Cross-validation chooses the degree
    and the penalty; squares are relative, so that layers of all sizes count alike.
    """
    from scipy.optimize import nnls
    from sklearn import config_context
    from sklearn.exceptions import ConvergenceWarning

    count = columns.shape[1]
    special = np.eye(count, dtype=np.int64)[count - 2 :]
    weights = np.maximum(values, 0.05 * values.max()) ** -2.0
    if len(values) < MIN_POINTS:
        roots = np.sqrt(weights)
        rows = np.hstack([np.ones((len(values), 1)), columns[:, -2:]])
        found, _ = nnls(rows * roots[:, None], values * roots)
        return make_polynomial(special, found[1:], found[0]), values
    candidates = []
    # Without scikit-learn's checks, half the time of a short path, and its warnings of terms that
    # explain nothing more, which it leaves out.
    with (
        config_context(assume_finite=True, skip_parameter_validation=True),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)
        for most in range(1, degree + 1):
            products = (
                np.bincount(chosen, minlength=count)
                for size in range(1, most + 1)
                for chosen in itertools.combinations_with_replacement(range(count - 2), size)
            )
            powers = np.array([*products, *special], dtype=np.int64)
            terms = make_terms(columns, powers)
            # Without terms that equal another one up to scale, or are constant.
            spread = np.ptp(terms, axis=0)
            shapes = (terms - terms.min(axis=0)) / np.where(spread > 0, spread, 1.0)
            _, first = np.unique(shapes.round(9), axis=1, return_index=True)
            keep = sorted(int(at) for at in first if spread[at] > MIN_DIFFERENCE)
            powers, terms = powers[keep], terms[:, keep]
            path = LassoPath(terms, values, weights)
            penalties = PENALTIES * path.penalties[0]
            predictions = np.empty((len(penalties), len(values)))
            for fold in range(FOLDS):
                left_out = np.arange(len(values)) % FOLDS == fold
                others = ~left_out
                block = LassoPath(terms[others], values[others], weights[others])
                predictions[:, left_out] = block.predict(penalties, terms[left_out])
            errors = (predictions - values) ** 2 @ weights
            best = int(np.argmin(errors))
            solved = path.solve(int(path.find_steps(penalties[best : best + 1])[0]))
            candidates.append((float(errors[best]), most, powers, solved, predictions[best]))
    _, _, powers, (active, coefficients, offset), predicted = min(
        candidates, key=lambda one: one[:2]
    )
    return make_polynomial(powers[active], coefficients, offset), predicted


class LassoPath:
    """A Lasso path over standardised terms; the terms of a step are refitted by least squares."""

    def __init__(self, terms: Floats, values: Floats, weights: Floats) -> None:
        from sklearn.linear_model import lars_path

        total = weights.sum()
        self.mean, self.value_mean = weights @ terms / total, float(weights @ values / total)
        spread = np.sqrt(weights @ (terms - self.mean) ** 2 / total)
        # A term that is constant among these points explains nothing.
        self.scale = np.where(spread > MIN_DIFFERENCE, spread, np.inf)
        roots = np.sqrt(weights / weights.mean())
        self.rows = (terms - self.mean) / self.scale * roots[:, None]
        self.targets = (values - self.value_mean) * roots
        self.penalties, found = np.zeros(1), np.zeros((0, 1))
        if terms.shape[1]:
            self.penalties, _, found = lars_path(
                self.rows, self.targets, method="lasso", max_iter=len(values) - 1
            )
        self.active = [np.flatnonzero(column).tolist() for column in found.T]

    def find_steps(self, penalties: Floats) -> NDArray[np.intp]:
        """Return the step of the path at each penalty."""
        return np.minimum(np.searchsorted(-self.penalties, -penalties), len(self.active) - 1)

    def solve(self, step: int) -> tuple[list[int], Floats, float]:
        """Return the terms of a step, their least-squares weights, and the constant."""
        active: list[int] = self.active[step]
        found = np.linalg.lstsq(self.rows[:, active], self.targets, rcond=MIN_DIFFERENCE)[0]
        weights: Floats = found / self.scale[active]
        return active, weights, float(self.value_mean - weights @ self.mean[active])

    def predict(self, penalties: Floats, terms: Floats) -> Floats:
        """Return the predictions at each penalty for some rows of terms."""
        steps, back = np.unique(self.find_steps(penalties), return_inverse=True)
        rows = np.empty((len(steps), len(terms)))
        for at, step in enumerate(steps.tolist()):
            active, weights, offset = self.solve(step)
            rows[at] = offset + terms[:, active] @ weights
        return np.asarray(rows[back])


def make_polynomial(powers: NDArray[np.int64], weights: Floats, offset: float) -> Polynomial:
    """Return a polynomial with plain numbers."""
    return Polynomial(tuple(map(tuple, powers.tolist())), np.asarray(weights), float(offset))


def make_terms(columns: Floats, powers: NDArray[np.int64]) -> Floats:
    """Return the product of powers of columns for each term."""
    return np.asarray(np.prod(columns[:, None, :] ** powers[None, :, :], axis=2))
