"""Measure an atlas of a device, so that it is known for any network, not for one family.

    atlas.json.gz ──▶ networks ──draw setups──▶ members ──split──▶ blocks ──order──▶ trials
                                                                   anchors ─────────────▶

``atlas.json.gz`` has 300 networks of the 32 architectures that people train, from toys to large
language models, with widths, resolutions, sequences, heads, vocabularies and depths spread
log-uniformly. ``benchmarks/atlas/build_atlas.py`` compares it with real models and can extend it.
Its order never changes, so that campaigns on one device continue each other.

Trials are isolated layers and repeated blocks of these networks, in an order of which every prefix
is a good design:

    anchors, then their energies ─▶ one trial of every label ─▶ more, where they tell most
                                         └ in between: eager trials of blocks, for host time

Greedily, the next point p of label l is the one with the largest

    w_l^⅓ · d(p) · (s_p / max s)^½

with w_l the share of the work that a label carries, s_p that of the point, and d(p) the distance to
the nearest point of the same label that was taken: a weighted greedy k-centre design. The first
point of a label is its most central one. It counts as if it were FIRST_DISTANCE away, and its label
as if it carried at least some work, so that even rare labels come early, but after a dozen points
of the label that carries most.

About one trial in five is measured with its energy: the first of every kind of layer, since kinds
differ in level, and every fifth of a label, whose order is spread over its sizes and so over rates.
Precisions take turns, so that they show different sizes.

A campaign measures them until its time is over, and leaves out what was observed, refused or is too
slow for this device. Every observation is stored as soon as it is made, refused trials too, and the
list of trials depends on the device alone: a campaign that was interrupted at any moment resumes.
Fitting is left to the caller, since measuring may happen in another process.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from itertools import chain, islice

import numpy as np

from joulecast.campaign.anchors import (
    GIB,
    DeviceScale,
    MeasuredPeaks,
    apply_peaks,
    assume_scale,
    find_scale,
    limit_copies,
    make_anchor_trials,
    read_peaks,
)
from joulecast.campaign.trial_log import (
    STOPPED_BY_REQUEST,
    ObservationLog,
    Progress,
    TrialLog,
    find_profile_key,
    repeat_doubtful,
)
from joulecast.estimators.additive.layers import FLOPS_PER_BYTE, SetupLayer, set_up_layer
from joulecast.estimators.additive.observations import find_idle_power
from joulecast.gp.linalg import Floats, Ints
from joulecast.measurer import TrialMeasurer
from joulecast.operators import Work, layer_work, output_shape, peak_memory
from joulecast.records import Layer, Network, Observation, Setup, Trial
from joulecast.system.errors import ContaminatedError
from joulecast.variants import (
    REPEATED,
    Block,
    make_isolated_network,
    make_isolated_trial,
    split_blocks,
    split_network,
)

MOST_TRIALS = 5000
FIRST_DISTANCE = 15.0
_LEAST_FIRST_WEIGHT = 0.1
# Mean log distance from the layers of other networks to the nearest of 500 / 1,000 / 2,000 trials,
# weighted by work, on 297 networks that chose nothing (seeds 31 to 33): 2.47 / 1.78 / 1.50. With
# powers ½ and 0, no weight for single points: 2.43 / 2.07 / 1.62. Twelve pairs were compared on
# seeds 7 and 8; those near this one differ by less than 0.1.
_LABEL_POWER = 1 / 3
_POINT_POWER = 0.5
# Draws the setups of every atlas.
_SEED = 20261116
# Networks take turns among the architectures; those of few layers take more than one turn.
_TURNS = 37
# Devices of this memory are the default: what fills one also shows the largest layers of others.
_DEFAULT_MEMORY_BYTES = 80 * GIB
_LARGEST_BATCH = 4096
# Networks have few blocks here, so a whole one is larger and slower by about this factor.
_DEPTH_FACTOR = 4
_LONGEST_NETWORK_STEP_S = 1.0
# A layer or block whose step takes longer, as far as is assumed, is left out.
_LONGEST_LAYER_STEP_S = 0.1
# Batches of networks that fit no device, which matter all the same.
_SMALL_BATCH = 4
_ADAMW_SHARE = 0.65
_SINGLE_SHARE = 0.5
_IMAGE_OUTPUTS = ("gan generator", "diffusion unet")
# A label has at least this many points in every precision, copied from another one if need be.
_FEWEST = 4
_COPY_SHARE = 0.3
# Bytes that take as long to move as a launch, about: inference is often nothing but launches.
_LAUNCH_BYTES = 5e6
# Peak memory is counted without workspaces and what an allocator keeps.
_MEMORY_MARGIN = 1.3
# Every this many trials of a label, energy is measured too. The first with energy is the first of
# a kind's first precision, the third of its other ones and the fourth of a block's.
_ENERGY_EVERY = 5
_NEW_KIND_RANK, _KNOWN_KIND_RANK, _BLOCK_RANK = 0, 2, 3
# Blocks repeat what their layers show; they tell what running them together changes.
_BLOCK_WEIGHT = 0.25
# One trial for host time after this many others.
_HOST_EVERY = 8


@dataclass(frozen=True)
class AtlasBlock:
    """A distinct layer or repeated block of an atlas.

    Attributes:
        layer: How estimators see it.
        block: How to run it in isolation.
        work_share: Its share of the work of the atlas, in which every network counts alike.
    """

    layer: SetupLayer
    block: Block
    setup: Setup
    work_share: float

    @property
    def is_repeated(self) -> bool:
        """Whether it is a whole repeated block, not a layer."""
        return self.block.role == REPEATED

    @property
    def work(self) -> Work:
        """The work of one copy."""
        return Work(self.layer.flops, self.layer.size_bytes, self.layer.launches)

    @cached_property
    def memory_bytes(self) -> float:
        """The memory that one copy takes."""
        return _MEMORY_MARGIN * max(1, peak_memory(make_isolated_network(self.block), self.setup))


@dataclass(frozen=True)
class AtlasTrial:
    """A trial of an atlas and why it is made.

    Attributes:
        with_energy: Whether its energy is measured, not only its duration.
        label: Kind and regime of what it runs.
        reason: ``anchor``, ``block`` or ``host``.
        work: Work of one copy; none for anchors.
    """

    trial: Trial
    with_energy: bool
    label: str
    reason: str
    work: Work = Work()


@cache
def load_networks() -> tuple[Network, ...]:
    """Return the networks of the atlas, in their order."""
    packed = files("joulecast.campaign").joinpath("atlas.json.gz").read_bytes()
    data = json.loads(gzip.decompress(packed))
    # Networks repeat layers: each is written, decoded and kept once.
    layers = [Layer.from_dict(one) for one in data["layers"]]
    networks = []
    for one in data["networks"]:
        bare = Network.from_dict({**one, "layers": []})
        networks.append(replace(bare, layers=tuple(layers[index] for index in one["layers"])))
    return tuple(networks)


def draw_members(
    count: int, scale: DeviceScale | None = None, phase: str = "train"
) -> tuple[Trial, ...]:
    """Return the first networks of the atlas with setups, the same ones for every count.

    Args:
        count: Number of networks.
        scale: What is assumed about the device: its precisions, and what fills it.
        phase: ``train`` or ``inference``; half of the networks then run one sample at a time.
    """
    scale = scale or assume_scale(is_gpu=True, memory_bytes=_DEFAULT_MEMORY_BYTES)
    precisions = sorted(scale.flops_per_s)
    members = []
    for index, network in enumerate(load_networks()[:count]):
        # Precisions change with every round, and from one architecture to the next.
        precision = precisions[sum(divmod(index, _TURNS)) % len(precisions)]
        draw = random.Random(f"setup {_SEED} {index}")
        if phase == "inference":
            setup = Setup(1, phase="inference", precision=precision)
            is_single = draw.random() < _SINGLE_SHARE
        else:
            optimizer = "adamw" if draw.random() < _ADAMW_SHARE else "sgd"
            # Cross-entropy over one class has no gradient.
            has_one = 1 in output_shape(network.layers[-1])
            loss = "mse" if has_one or network.name in _IMAGE_OUTPUTS else "cross_entropy"
            setup = Setup(1, precision=precision, optimizer=optimizer, loss=loss)
            is_single = False
        if not is_single:
            # Log-uniform up to the batch that fills the device.
            most = _find_largest_batch(network, setup, scale)
            setup = replace(setup, batch=round(math.exp(draw.uniform(0.0, math.log(most)))))
        members.append(Trial(network, setup))
    return tuple(members)


def split_members(members: Sequence[Trial]) -> tuple[AtlasBlock, ...]:
    """Return the distinct layers and blocks of all networks, in order of appearance."""
    shares: dict[tuple[Block, Setup], float] = {}
    for member in members:
        setup = member.setup
        counts = Counter(placed.block for placed in split_network(member.network))
        blocks = (placed.block for placed in split_blocks(member.network))
        counts.update(block for block in blocks if block.role == REPEATED)
        costs = {block: count * _weigh(block, setup) for block, count in counts.items()}
        total = max(1.0, sum(cost for block, cost in costs.items() if block.role != REPEATED))
        for block, cost in costs.items():
            share = cost / total / len(members)
            shares[block, setup] = shares.get((block, setup), 0.0) + share
    found: dict[str, AtlasBlock] = {}
    for (block, setup), share in shares.items():
        layer = set_up_layer(block, setup)
        if layer.key in found:
            share += found[layer.key].work_share
        if layer.flops or layer.size_bytes:
            found[layer.key] = AtlasBlock(layer, block, setup, share)
    _add_missing_precisions(found, sorted({member.setup.precision for member in members}))
    return tuple(found.values())


def list_trials(
    blocks: Sequence[AtlasBlock],
    scale: DeviceScale,
    modes: tuple[str, ...] = ("eager",),
    most: int = MOST_TRIALS,
    phase: str = "train",
) -> tuple[AtlasTrial, ...]:
    """Return the trials of an atlas, the most useful first."""
    mode = "graph" if "graph" in modes else "eager"
    anchors = [
        AtlasTrial(trial, with_energy, _name_anchor(trial), "anchor")
        # All durations take two seconds, and tell how long the energies will take.
        for with_energy in (False, True)
        for trial in make_anchor_trials(scale, modes, phase)
    ]
    running = [one for one in blocks if _can_run(one, scale)]
    hosts = _list_host_trials(running, scale) if mode == "graph" else iter(())
    return tuple(islice(chain(anchors, _list_block_trials(running, scale, mode, hosts)), most))


def drop_observed(
    trials: Sequence[AtlasTrial], observations: Iterable[Observation]
) -> tuple[AtlasTrial, ...]:
    """Return the trials that are still to be measured, in their order.

    A refused trial needs no energy any more; one that was only timed may.
    """
    timed, metered = set(), set()
    for one in observations:
        timed.add(one.trial.key)
        if one.energy_j is not None or one.duration_s is None:
            metered.add(one.trial.key)
    if not timed:
        return tuple(trials)
    return tuple(
        one for one in trials if one.trial.key not in (metered if one.with_energy else timed)
    )


def order_points(
    labels: Sequence[str], points: Sequence[tuple[float, ...]], shares: Sequence[float]
) -> list[tuple[int, int]]:
    """Return all points in the order of the design: their indices and ranks within their labels."""
    groups: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        groups.setdefault(label, []).append(index)
    weights = {
        label: sum(shares[index] for index in own) ** _LABEL_POWER for label, own in groups.items()
    }
    least = _LEAST_FIRST_WEIGHT * max(weights.values(), default=0.0)
    sequences = []
    for label in sorted(groups):
        own = np.array(groups[label])
        x = np.array([points[index] for index in own])
        order, gains = _order_label(x, np.array([shares[index] for index in own]))
        gains *= weights[label]
        gains[0] = FIRST_DISTANCE * max(weights[label], least)
        sequences.append(zip(gains.tolist(), own[order].tolist(), range(len(own)), strict=True))
    # Labels are merged, the most valuable point first; each label keeps its order.
    merged = heapq.merge(*sequences, key=lambda point: -point[0])
    return [(index, rank) for _, index, rank in merged]


def _order_label(x: Floats, weights: Floats) -> tuple[Ints, Floats]:
    """Return the order of one label's points, and what each was worth when it was taken."""
    mass = (weights / max(float(weights.max()), 1e-300)) ** _POINT_POWER
    centre = np.average(x, axis=0, weights=np.maximum(weights, 1e-300))
    order = np.empty(len(x), np.int64)
    gains = np.empty(len(x))
    distance = np.full(len(x), np.inf)
    is_taken = np.zeros(len(x), dtype=bool)
    taken = int(np.argmin(((x - centre) ** 2).sum(axis=1)))
    gain = 0.0  # the caller knows what a first point is worth
    for rank in range(len(x)):
        order[rank], gains[rank] = taken, gain
        distance = np.minimum(distance, np.sqrt(((x - x[taken]) ** 2).sum(axis=1)))
        is_taken[taken] = True
        score = np.where(is_taken, -1.0, distance * mass)
        taken = int(np.argmax(score))
        gain = float(score[taken])
    return order, gains


def _find_largest_batch(network: Network, setup: Setup, scale: DeviceScale) -> int:
    """Return the batch that fills the device's memory or takes a second, whichever is less."""
    sample_bytes, fixed_bytes, sample_s = 1.0, 0.0, scale.launch_s
    # Only what decides its cost is kept of a layer: repeated layers become equal.
    layers = (
        Layer(one.kind, one.sizes, one.tail, one.trains, one.input_grad) for one in network.layers
    )
    for layer, count in Counter(layers).items():
        work = layer_work(layer, setup)
        sample_bytes += count * work.forward.memory_bytes
        fixed_bytes += count * work.update.memory_bytes
        sample_s += count * scale.duration_s(work.forward + work.backward, setup.precision)
    free_bytes = scale.memory_bytes / _DEPTH_FACTOR - fixed_bytes
    most = min(free_bytes / sample_bytes, _LONGEST_NETWORK_STEP_S / _DEPTH_FACTOR / sample_s)
    return min(_LARGEST_BATCH, max(_SMALL_BATCH, int(most)))


def _weigh(block: Block, setup: Setup) -> float:
    """Return the work of a layer or block, in bytes."""
    work = set_up_layer(block, setup)
    launched_bytes = _LAUNCH_BYTES * work.launches if setup.phase == "inference" else 0.0
    return work.size_bytes + work.flops / FLOPS_PER_BYTE + launched_bytes


def _add_missing_precisions(found: dict[str, AtlasBlock], precisions: Sequence[str]) -> None:
    """Add copies of layers whose labels are rare in another precision."""
    groups: dict[str, list[AtlasBlock]] = {}
    for one in found.values():
        if not one.is_repeated:
            groups.setdefault(one.layer.label, []).append(one)
    counts = {label: len(group) for label, group in groups.items()}
    for label in sorted(groups):
        group = sorted(groups[label], key=lambda one: (one.layer.size_bytes, one.layer.key))
        spread = [group[round(at * (len(group) - 1) / _FEWEST)] for at in range(_FEWEST + 1)]
        for precision in precisions:
            for one in dict.fromkeys(spread):
                setup = replace(one.setup, precision=precision)
                layer = set_up_layer(one.block, setup)
                if layer.key not in found and counts.get(layer.label, 0) < _FEWEST:
                    counts[layer.label] = counts.get(layer.label, 0) + 1
                    share = _COPY_SHARE * one.work_share
                    found[layer.key] = AtlasBlock(layer, one.block, setup, share)


def _name_anchor(trial: Trial) -> str:
    layer = trial.network.layers[0]
    return f"{layer.sizes.get('fn', layer.kind)} {trial.setup.precision}"


def _list_block_trials(
    blocks: Sequence[AtlasBlock], scale: DeviceScale, mode: str, hosts: Iterator[AtlasTrial]
) -> Iterator[AtlasTrial]:
    """Yield trials in the order of the design, and trials for host time in between."""
    design = order_points(
        [one.layer.label for one in blocks],
        [one.layer.point for one in blocks],
        [one.work_share * (_BLOCK_WEIGHT if one.is_repeated else 1.0) for one in blocks],
    )
    first_labels: dict[str, str] = {}
    for number, (index, rank) in enumerate(design, start=1):
        one = blocks[index]
        label = one.layer.label
        is_new = first_labels.setdefault(one.layer.kind, label) == label
        turn = _NEW_KIND_RANK if is_new else _KNOWN_KIND_RANK
        turn = _BLOCK_RANK if one.is_repeated else turn
        with_energy = rank % _ENERGY_EVERY == turn
        yield AtlasTrial(_isolate(one, scale, mode), with_energy, label, "block", one.work)
        if number % _HOST_EVERY == 0:
            yield from islice(hosts, 1)
    yield from hosts


def _list_host_trials(blocks: Sequence[AtlasBlock], scale: DeviceScale) -> Iterator[AtlasTrial]:
    """Yield one eager trial of every structure of repeated blocks, at its smallest size.

    Graphs hide the host, and small blocks show it without waiting for the device. Structures that
    carry most work come first.
    """
    groups: dict[str, list[AtlasBlock]] = {}
    for one in blocks:
        if one.is_repeated:
            groups.setdefault(one.layer.structure, []).append(one)
    shares = {name: sum(one.work_share for one in group) for name, group in groups.items()}
    for name in sorted(groups, key=lambda name: (-shares[name], name)):
        one = min(groups[name], key=lambda one: (one.layer.size_bytes, one.layer.key))
        trial = _isolate(one, scale, "eager")
        yield AtlasTrial(trial, False, one.layer.label, "host", one.work)


def _can_run(one: AtlasBlock, scale: DeviceScale) -> bool:
    """Return whether one copy trains, fits the device and takes little time."""
    precision = one.setup.precision
    if one.block.role == "output" and not any(layer.trains for layer in one.block.layers):
        return False  # nothing would train
    if precision not in scale.flops_per_s or one.memory_bytes > scale.memory_bytes:
        return False
    return scale.duration_s(one.work, precision) <= _LONGEST_LAYER_STEP_S


def _isolate(one: AtlasBlock, scale: DeviceScale, mode: str) -> Trial:
    """Return the isolated trial, with as many copies as fit the device."""
    fitting = int(scale.memory_bytes / one.memory_bytes)
    return limit_copies(
        make_isolated_trial(one.block, one.setup, mode), min(scale.most_copies, fitting)
    )


# Networks of an atlas, for processors and for GPUs, which measure more trials in a second.
_NETWORKS = {False: 120, True: 300}
# The idle device is observed after this many trials.
_IDLE_EVERY = 100
# A step that would take longer at the measured peaks is left out, on processors and on GPUs. Layers
# of processors reach a smaller share of them.
_LONGEST_STEP_S = {False: 0.2, True: 0.5}
# So many trials with energy in a row that something disturbed end the campaign.
_MOST_DISTURBED = 3
# After this many trials, so many doubtful ones are measured again at most.
_REPEAT_EVERY, _REPEATS = 20, 5


@dataclass(frozen=True)
class AtlasLimits:
    """When an atlas ends, and what it tries.

    Attributes:
        seconds: Stop after this time on the measurer's clock.
        points: Stop at this many trials, those of earlier runs and refused ones included.
        most_trials: How many trials the design has.
        networks: Number of networks; None chooses it by the device.
        retries_refused: Try again what the device refused in earlier runs.
        phase: What its networks do: ``train`` or ``inference``.
    """

    seconds: float | None = None
    points: int | None = None
    most_trials: int = MOST_TRIALS
    networks: int | None = None
    retries_refused: bool = False
    phase: str = "train"


@dataclass(frozen=True)
class AtlasRun:
    """What one run of an atlas did.

    Attributes:
        new: Number of trials measured.
        stopped: Why it ended.
        repeated: Doubtful trials that were measured again.
        disturbances: How often something disturbed a measurement, by name.
        restarts: How often the measuring process had to be replaced.
    """

    profile_key: str
    new: int
    stopped: str
    elapsed_s: float
    repeated: int = 0
    disturbances: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0


def run_atlas(
    measurer: TrialMeasurer,
    log: ObservationLog,
    limits: AtlasLimits,
    *,
    on_trial: Callable[[Observation], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    is_stop_requested: Callable[[], bool] = lambda: False,
) -> AtlasRun:
    """Measure trials in their order and store them, until a limit is reached.

    Raises:
        ContaminatedError: Something disturbed several measurements in a row.
        DeviceLostError: The process can no longer use the device; another one can continue.
    """
    if on_progress is not None:
        on_progress(Progress(0, 0.0, 0.0, None, "planning what to measure"))
    started_s, key, modes = measurer.now(), find_profile_key(measurer), measurer.runtime.modes
    stored = list(log.load_observations(key))
    trials = TrialLog(measurer, log, stored, keeps_refusals=True)
    planned = plan_atlas(measurer, limits)
    seen = [one for one in stored if not (limits.retries_refused and one.refusal)]
    left = deque(drop_observed(planned, seen))
    earlier, planned_s = len(planned) - len(left), measurer.now()
    tried = disturbed = repeated = 0
    measured_scale: DeviceScale | None = None

    def find_pace_s() -> float:
        return (measurer.now() - planned_s) / tried if tried else 0.0

    def is_time_over() -> bool:
        """Return whether one more trial would take longer than the limit."""
        elapsed_s = measurer.now() - started_s
        return limits.seconds is not None and elapsed_s + find_pace_s() > limits.seconds

    while True:
        while left and left[0].reason != "anchor" and not is_time_over():
            # A step that would take very long at the rates that the anchors showed is left out.
            if measured_scale is None:
                scale = find_scale(measurer)
                measured_scale = apply_peaks(scale, read_peaks(trials.believed, scale, modes))
            one, own = left[0], left[0].trial
            step_s = measured_scale.duration_s(one.work, own.setup.precision)
            if step_s * own.execution.copies <= _LONGEST_STEP_S["graph" in modes]:
                break
            left.popleft()
        done, stopped = earlier + tried, ""
        if not left:
            stopped = "every trial of the atlas was tried"
        elif limits.points is not None and done >= limits.points:
            stopped = f"{limits.points} trials are done"
        elif is_time_over():
            stopped = f"the budget of {limits.seconds:.0f} s is spent"
        elif is_stop_requested():
            stopped = STOPPED_BY_REQUEST
        if on_progress is not None:
            elapsed_s, total = measurer.now() - started_s, done + len(left)
            if limits.points is not None:
                total = min(total, max(done, limits.points))
            limits_s = [] if limits.seconds is None else [limits.seconds - elapsed_s]
            limits_s += [(total - done) * find_pace_s()] if tried else []
            left_s = max(0.0, min(limits_s)) if limits_s else None
            reason = stopped or _describe(left[0])
            on_progress(Progress(done, 0.0, elapsed_s, left_s, reason, total))
        if stopped:
            break
        one = left.popleft()
        if on_trial is not None:
            on_trial(measurer.make_refusal(one.trial, ""))
        try:
            # What another campaign measures at the moment is left to it.
            trials.measure(one.trial, one.with_energy, one.label, waits=False)
            # Only a meter sees other programs and throttling, so times alone prove nothing.
            disturbed = 0 if one.with_energy else disturbed
        except ContaminatedError:
            # The device is to blame, not the trial: a later run tries it again.
            disturbed += 1
            if disturbed == _MOST_DISTURBED:
                raise
        if tried % _IDLE_EVERY == 0:
            trials.measure_idle()
        tried += 1
        if tried % _REPEAT_EVERY == 0:
            repeated += repeat_doubtful(trials, most=_REPEATS)
    if tried and not is_time_over():
        repeated += repeat_doubtful(trials, most=_REPEATS)
    elapsed_s, disturbances = measurer.now() - started_s, dict(measurer.disturbances)
    return AtlasRun(key, trials.new, stopped, elapsed_s, repeated, disturbances)


def plan_atlas(measurer: TrialMeasurer, limits: AtlasLimits) -> tuple[AtlasTrial, ...]:
    """Return all trials of an atlas of the measurer's device, in the order of the design."""
    scale, modes = find_scale(measurer), measurer.runtime.modes
    count = limits.networks or _NETWORKS["graph" in modes]
    blocks = split_members(draw_members(count, scale, limits.phase))
    return list_trials(blocks, scale, modes, limits.most_trials, limits.phase)


def _describe(one: AtlasTrial) -> str:
    """Return what is measured, for people."""
    setup, layers = one.trial.setup, one.trial.network.layers
    what = "energy" if one.with_energy else "time"
    # Labels of blocks are hashes.
    name = f"a block of {len(layers)} layers {setup.precision}" if len(layers) > 1 else one.label
    return f"{what} of {name}, batch {setup.batch}"


@dataclass(frozen=True)
class AtlasSummary:
    """What is stored about a device.

    Attributes:
        trials: Distinct trials that were measured.
        with_energy: Those of them whose energy was measured.
        refused: Trials that the device refused, by reason, the most frequent first.
        idle_power_w: Median power of the idle device; None if it was not measured.
        peaks: The fastest rates seen.
    """

    trials: int
    with_energy: int
    refused: dict[str, int]
    idle_power_w: float | None
    peaks: MeasuredPeaks


def summarise_atlas(observations: Sequence[Observation], peaks: MeasuredPeaks) -> AtlasSummary:
    """Return a summary of the observations of a device."""
    measured = {one.trial for one in observations if one.duration_s and one.trial.network.layers}
    metered = {one.trial for one in observations if one.energy_j and one.trial.network.layers}
    refusals = {one.trial: _shorten(one.refusal) for one in observations if one.refusal}
    reasons = Counter(reason for trial, reason in refusals.items() if trial not in measured)
    idle_w = find_idle_power(observations)
    return AtlasSummary(len(measured), len(metered), dict(reasons.most_common()), idle_w, peaks)


def _shorten(reason: str) -> str:
    """Return the first clause of a refusal, so that equal ones are counted together."""
    return reason.partition(";")[0].partition(" (")[0].strip() or "no reason"
