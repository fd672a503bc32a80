"""Encode pieces, and sums over their leaves, as arrays of the processes.

    durations   basis: launches, FLOPs by precision, bytes            d = the roofline's sum
    powers      basis: 1, share of time beyond that of short launches, achieved over peak FLOP rate
                by precision, achieved over peak byte rate

Overheads of imported runs have a basis function each. Names are numbered by hashes, so that numbers
mean the same in every fit and on every machine.

Leaves of several devices are inputs of one process where their hardware is known: basis functions
are then relative to what the data sheet says, points have the figures that efficiency depends on,
and groups tell devices and makers apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np

from joulecast.estimators.additive.layers import Passes, Piece, split_passes
from joulecast.estimators.additive.operators import AXES
from joulecast.estimators.additive.roofline import Hardware, Roofline
from joulecast.gp.linalg import Floats, Ints, WeightedSums
from joulecast.gp.logsums.fit import select_subset
from joulecast.gp.logsums.inputs import LogInputs, LogSums
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums
from joulecast.gp.logsums.prior import multiply_prior_covariance, prior_log_mean
from joulecast.gp.logsums.process import NO_GROUP, LogSumParameters, LogSumProcess
from joulecast.gp.logsums.stored import PackedArray
from joulecast.records import FLOAT_PRECISIONS
from joulecast.records.codec import Record, omit_default

DURATION_AXES = tuple(range(len(AXES) + 1))
"""Columns of points that durations depend on: those of pieces, and whether FLOPs or bytes bound."""

HARDWARE_AXES = tuple(range(len(AXES) + 1, len(AXES) + 5))
"""Columns of points where hardware is known: output per multiprocessor, bytes over the cache, FLOPs
and bytes per second of a multiprocessor."""

POWER_AXES = tuple(range(len(AXES) + 4))
"""Columns of points that powers depend on: achieved rates, then those of durations."""

CLASS, KIND = range(2)
"""Columns of groups."""

DEVICE, DEVICE_CLASS, VENDOR_CLASS, NEW_DEVICE_CLASS, NEW_DEVICE_KIND = range(2, 7)
"""Further columns where hardware is known; the last two for devices that the process was not fitted
to, and for no others."""

RELATIVE_AXES = tuple(
    at
    for at in DURATION_AXES + HARDWARE_AXES
    if at not in (AXES.index("positions"), AXES.index("output channels"))
)
"""Columns that mean the same on every device: the output of a multiprocessor in place of the whole
output."""

# FLOPs and bytes that differ by more than this in logarithm: only one of them matters.
_MAX_LOG_RATIO = 4.0
# Launches are short up to this factor of an empty one: most of the device idles meanwhile.
_SHORT_LAUNCHES = 4.0
# Rates below this share of the peak are alike: something else bounds the piece.
_LEAST_UTILISATION = 0.02
# Structures of a block: its label, its kind, any block, itself.
_STRUCTURES = 4
# Discrepancies that all whole networks have in common, and all sums of a unit of the device, over
# that of a structure.
_NETWORK_WEIGHT, _UNIT_WEIGHT = 0.4, 1.5


@dataclass(frozen=True)
class PieceEncoder(Record):
    """Encodes leaves as inputs of the processes.

    Attributes:
        roofline: Costs of the device at best.
        overheads: Kinds of overheads, each of which has a basis function of its own.
        power_limit_w: What the device never draws more than.
        hardware: Figures of the data sheet, where several devices share a process.
    """

    roofline: Roofline
    overheads: tuple[str, ...]
    power_limit_w: float
    hardware: Hardware | None = omit_default(None)

    def sum_pieces(
        self, counts: Sequence[Mapping[Piece, float]], is_network: Sequence[bool] | None = None
    ) -> PieceSums:
        """Return sums over pieces; where devices share a process, over the passes of leaves."""
        return encode_sums(counts, is_network, self.hardware is not None)

    def encode_durations(self, leaves: Sequence[Piece]) -> LogInputs:
        """Return leaves as inputs of the process of durations."""
        work = _Work.of(leaves)
        basis = np.column_stack([work.launches, work.flops_by_precision, work.size_bytes])
        if self.hardware is not None:
            basis = _merge_matrix_units(basis * np.array(self.roofline.costs))
        basis = self._add_overheads(leaves, basis)
        return self._make_inputs(leaves, basis, self._find_points(work))

    def encode_powers(self, leaves: Sequence[Piece], durations_s: Floats) -> LogInputs:
        """Return leaves of given durations as inputs of the process of powers."""
        work = _Work.of(leaves)
        flop_s = np.array([self.roofline.flop_s[name] for name in FLOAT_PRECISIONS])
        compute = work.flops_by_precision * flop_s / durations_s[:, None]
        memory = work.size_bytes * self.roofline.byte_s / durations_s
        busy = 1.0 - np.minimum(
            _SHORT_LAUNCHES * self.roofline.launch_s * work.launches / durations_s, 1.0
        )
        basis = np.column_stack([np.ones(len(leaves)), busy, compute, memory])
        if self.hardware is not None:
            basis = basis * np.array(self.hardware.powers_w)
        basis = self._add_overheads(leaves, basis)
        used = np.column_stack([compute.sum(axis=1), memory, busy])
        points = np.column_stack([np.log(_LEAST_UTILISATION + used), self._find_points(work)])
        caps = np.full(len(leaves), np.log(self.power_limit_w))
        return self._make_inputs(leaves, basis, points, caps)

    def _add_overheads(self, leaves: Sequence[Piece], basis: Floats) -> Floats:
        """Return the basis with that of overheads, which do no other work."""
        if not self.overheads:
            return basis
        kinds = np.array([leaf.kind for leaf in leaves])
        own = (kinds[:, None] == np.array(self.overheads)).astype(float)
        is_work = 1.0 - own.sum(axis=1, keepdims=True)
        return np.column_stack([basis * is_work, own])

    def _find_points(self, work: _Work) -> Floats:
        flop_s = np.array([self.roofline.flop_s[name] for name in FLOAT_PRECISIONS])
        compute_s = work.flops_by_precision @ flop_s
        memory_s = self.roofline.byte_s * work.size_bytes
        log_ratio = np.log(compute_s + 1e-12) - np.log(memory_s + 1e-12)
        columns = [work.points, np.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)]
        if self.hardware is not None:
            has_flops = work.flops_by_precision > 0
            leaf_flop_s = np.where(has_flops.any(axis=1), has_flops @ flop_s, flop_s[0])
            rates = 1.0 / leaf_flop_s, np.full(len(leaf_flop_s), 1.0 / self.roofline.byte_s)
            columns += [self.hardware.relate_work(work.points, work.size_bytes)]
            columns += [self.hardware.relate_rates(*rates)]
        return np.column_stack(columns)

    def _make_inputs(
        self, leaves: Sequence[Piece], basis: Floats, points: Floats, caps: Floats | None = None
    ) -> LogInputs:
        groups = [[leaf.operator_class, leaf.kind] for leaf in leaves]
        identities = [leaf.key for leaf in leaves]
        if (own := self.hardware) is not None:
            for group, leaf in zip(groups, leaves, strict=True):
                group += [own.device, *own.name_groups(leaf.operator_class, leaf.kind)]
            identities = [f"{key} {own.device}" for key in identities]
        numbers = [[number_name(name) if name else NO_GROUP for name in group] for group in groups]
        columns = KIND + 1 if own is None else NEW_DEVICE_KIND + 1
        return LogInputs(
            basis,
            points,
            np.array(numbers, np.int64).reshape(len(leaves), columns),
            np.array(list(map(number_name, self._name_regimes(leaves))), np.int64),
            np.array(list(map(number_name, identities)), np.int64),
            caps,
        )

    def _name_regimes(self, leaves: Sequence[Piece]) -> list[str]:
        """Return the regimes of leaves; devices share those of both half precisions."""
        regimes = [leaf.regime for leaf in leaves]
        if self.hardware is None:
            return regimes
        return [name.replace("fp16", "bf16") for name in regimes]


@dataclass(frozen=True)
class _Work:
    """Work of leaves as arrays."""

    launches: Floats
    flops_by_precision: Floats
    size_bytes: Floats
    points: Floats

    @classmethod
    def of(cls, leaves: Sequence[Piece]) -> _Work:
        flops = np.zeros((len(leaves), len(FLOAT_PRECISIONS)))
        columns = [FLOAT_PRECISIONS.index(leaf.rate_precision) for leaf in leaves]
        flops[np.arange(len(leaves)), columns] = [leaf.padded_flops for leaf in leaves]
        return cls(
            np.array([max(leaf.launches, 1) for leaf in leaves], float),
            flops,
            np.array([leaf.size_bytes for leaf in leaves], float),
            np.array([leaf.point for leaf in leaves], float).reshape(len(leaves), len(AXES)),
        )


@dataclass(frozen=True)
class PieceSums:
    """Networks, or observations, as sums over distinct leaves.

    Attributes:
        leaves: The distinct leaves.
        blocks: The distinct blocks, and layers of several operators.
        size: Number of sums.
        row: Sum of each entry, ascending.
        leaf: Leaf of each entry.
        block: Block that each entry belongs to; -1 for a leaf outside of blocks.
        count: How often the sum contains the leaf.
        identities: Identity of each sum: equal numbers are the same sum.
        is_network: Whether each sum is a network rather than an isolated piece.
        passes: Leaves that were split, with the passes that are leaves in their place.
    """

    leaves: tuple[Piece, ...]
    blocks: tuple[Piece, ...]
    size: int
    row: Ints
    leaf: Ints
    block: Ints
    count: Floats
    identities: Ints
    is_network: Floats
    passes: Mapping[Piece, Passes]

    @cached_property
    def counts(self) -> WeightedSums:
        """How often each sum contains each leaf."""
        return _merge_entries(self.size, self.row, self.leaf, self.count)

    def make_log_sums(self, durations_s: Floats, units: Sequence[str] = ()) -> LogSums:
        """Return the sums with the share of each structure in them, given durations of leaves.

        The structure of a block, or of a layer of several operators, shows as four: its operators,
        these in any precision, any block or layer, and itself. Networks have a discrepancy in
        common and each its own; sums of one unit of the device have one in common.

        Args:
            durations_s: Durations of the leaves.
            units: Unit that each sum is of; empty names, or none at all, for any unit.
        """
        cost = self.count * durations_s[self.leaf]
        total = np.bincount(self.row, cost, self.size)
        inside = np.flatnonzero(self.block >= 0)
        share = cost[inside] / total[self.row[inside]]
        table = np.array([_number_structures(block) for block in self.blocks], np.int64)
        table = table.reshape(len(self.blocks), _STRUCTURES)
        networks = np.flatnonzero(self.is_network)
        own_units = np.array([at for at, unit in enumerate(units) if unit], np.int64)
        unit_numbers = np.array([number_name(f"unit {units[at]}") for at in own_units], np.int64)
        row = [np.repeat(self.row[inside], _STRUCTURES), networks, networks, own_units]
        column = [
            table[self.block[inside]].ravel(),
            np.full(len(networks), number_name("networks")),
            self.identities[networks],
            unit_numbers,
        ]
        weight = [
            np.repeat(share, _STRUCTURES),
            np.full(2 * len(networks), _NETWORK_WEIGHT),
            np.full(len(own_units), _UNIT_WEIGHT),
        ]
        structures = _merge_entries(self.size, *map(np.concatenate, (row, column, weight)))
        return LogSums(self.counts, structures, self.identities)


def encode_sums(
    counts: Sequence[Mapping[Piece, float]],
    is_network: Sequence[bool] | None = None,
    splits_passes: bool = False,
) -> PieceSums:
    """Return sums over pieces as sums over their leaves.

    Args:
        counts: Pieces of each sum and how often it runs each.
        is_network: Whether each sum is a network; all are if nothing else is said.
        splits_passes: Whether leaves of training steps are split into their passes.
    """
    leaves: dict[Piece, int] = {}
    blocks: dict[Piece, int] = {}
    passes: dict[Piece, Passes] = {}
    row, leaf_at, block_at, count = [], [], [], []
    flags = [True] * len(counts) if is_network is None else is_network
    for at, (own, in_network) in enumerate(zip(counts, flags, strict=True)):
        for piece, times in own.items():
            block = blocks.setdefault(piece, len(blocks)) if piece.leaves else -1
            for leaf, repeats in piece.own_leaves if in_network else piece.leaves_alone:
                if splits_passes and leaf not in passes:
                    passes[leaf] = split_passes(leaf)
                for one, runs in passes.get(leaf, ((leaf, 1.0),)):
                    row.append(at)
                    leaf_at.append(leaves.setdefault(one, len(leaves)))
                    block_at.append(block)
                    count.append(times * repeats * runs)
    return PieceSums(
        tuple(leaves),
        tuple(blocks),
        len(counts),
        np.array(row, np.int64),
        np.array(leaf_at, np.int64),
        np.array(block_at, np.int64),
        np.array(count, float),
        np.array([_identify(own) for own in counts], np.int64),
        np.array(flags, bool),
        passes,
    )


def _merge_matrix_units(seconds: Floats) -> Floats:
    """Return seconds of launches, fp32 FLOPs, FLOPs of matrix units in any precision, and bytes.

    What share of their peak matrix units reach in one precision tells about the others.
    """
    precisions = len(FLOAT_PRECISIONS)
    flops = seconds[:, 1 : 1 + precisions]
    is_fp32 = np.array(FLOAT_PRECISIONS) == "fp32"
    columns = flops[:, is_fp32].sum(axis=1), flops[:, ~is_fp32].sum(axis=1)
    return np.column_stack([seconds[:, 0], *columns, seconds[:, 1 + precisions :]])


@lru_cache(maxsize=65536)
def number_name(name: str) -> int:
    """Return a number for a name, the same on every machine."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _identify(counts: Mapping[Piece, float]) -> int:
    if len(counts) == 1:
        return number_name(next(iter(counts)).key)
    return number_name(" ".join(sorted(f"{piece.key} {count}" for piece, count in counts.items())))


def _number_structures(block: Piece) -> list[int]:
    every = "blocks" if block.is_block else "layers"
    # Structures of eager steps tell nothing about compiled ones.
    how = "compiled " if block.is_compiled else ""
    return [number_name(how + name) for name in (block.label, block.kind, every, block.key)]


def _merge_entries(size: int, row: Ints, column: Ints, weight: Floats) -> WeightedSums:
    """Return sums in which each row has at most one entry of a column."""
    order = np.lexsort((column, row))
    row, column, weight = row[order], column[order], weight[order]
    is_first = np.ones(len(row), bool)
    is_first[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
    group = np.cumsum(is_first) - 1
    merged = np.asarray(np.bincount(group, weight, int(is_first.sum())), float)
    return WeightedSums(size, row[is_first], column[is_first], merged)


# Observations of a source without a posterior mean given all of them: the fit was too large.
_MAX_SOURCE_ROWS = 2000


@dataclass(frozen=True)
class DeviceEncoder(PieceEncoder):
    """Encodes leaves for a device that may start from what others have learnt.

    Attributes:
        sources: The other devices.
    """

    sources: tuple[SourceDevice, ...] = omit_default(())

    def encode_durations(self, leaves: Sequence[Piece]) -> LogInputs:
        """Return leaves as inputs of the process of durations."""
        return self._add_residuals(super().encode_durations(leaves), leaves, 0)

    def encode_powers(self, leaves: Sequence[Piece], durations_s: Floats) -> LogInputs:
        """Return leaves of given durations as inputs of the process of powers."""
        return self._add_residuals(super().encode_powers(leaves, durations_s), leaves, 1)

    def _add_residuals(self, inputs: LogInputs, leaves: Sequence[Piece], column: int) -> LogInputs:
        if not self.sources:
            return inputs
        found = [source.predict_residuals(leaves)[:, column] for source in self.sources]
        return replace(inputs, log_basis=np.column_stack(found))


@dataclass(frozen=True)
class SourceDevice(Record):
    """What one device has learnt, for others to start from.

    Attributes:
        name: Name of the device.
        profile: Key of its profile.
        encoder: Encodes leaves for that device.
        duration: Its durations.
        power: Its powers.
    """

    name: str
    profile: str
    encoder: DeviceEncoder
    duration: SourceMean
    power: SourceMean

    def predict_residuals(self, leaves: Sequence[Piece]) -> Floats:
        """Return the residuals of each leaf's duration and power on that device, P x 2."""
        new = [leaf for leaf in dict.fromkeys(leaves) if leaf.key not in self._known]
        if new:
            inputs = self.encoder.encode_durations(new)
            log_s, duration = self.duration.predict(inputs)
            powers = self.encoder.encode_powers(new, np.exp(log_s))
            residuals = np.column_stack([duration, self.power.predict(powers)[1]])
            self._known.update(zip((leaf.key for leaf in new), residuals, strict=True))
        return np.array([self._known[leaf.key] for leaf in leaves]).reshape(len(leaves), 2)

    @cached_property
    def _known(self) -> dict[str, Floats]:
        """Residuals by leaf: a campaign asks for the same ones again and again."""
        return {}


@dataclass(frozen=True)
class SourceMean(Record):
    """The posterior mean of a process, without what variances would need.

    Attributes:
        theta: The fitted hyper-parameters.
        input_weights: The posterior mean is the prior covariance with the inputs times these.
    """

    process: LogSumProcess
    theta: PackedArray
    points: PackedArray
    groups: PackedArray
    regimes: PackedArray
    identities: PackedArray
    input_weights: PackedArray

    @classmethod
    def from_fitted(cls, fitted: FittedLogSums) -> SourceMean:
        """Return the posterior mean of a fitted process."""
        inputs, weights = _find_weights(fitted)
        pack = PackedArray.pack
        return cls(
            fitted.process,
            pack(fitted.theta),
            pack(inputs.points),
            pack(inputs.groups),
            pack(inputs.regimes),
            pack(inputs.identities),
            pack(weights),
        )

    def predict(self, inputs: LogInputs) -> tuple[Floats, Floats]:
        """Return the posterior mean of log values, and by how much it exceeds the mean."""
        coefficients = self._hyper.coefficients
        known = self._known_inputs, self.input_weights.unpack()
        log_values = prior_log_mean(inputs, coefficients)
        log_values = log_values + multiply_prior_covariance(
            self.process, self._hyper, inputs, *known
        )
        plain = prior_log_mean(replace(inputs, log_basis=None), coefficients)
        return log_values, log_values - plain

    @cached_property
    def _hyper(self) -> LogSumParameters:
        return self.process.unpack(self.theta.unpack())

    @cached_property
    def _known_inputs(self) -> LogInputs:
        """The inputs that were observed; of these, covariances need no basis."""
        points = self.points.unpack()
        rest = self.groups.unpack(), self.regimes.unpack(), self.identities.unpack()
        return LogInputs(np.zeros((len(points), 0)), points, *rest)


def note_sources(sources: Sequence[SourceDevice], observation_count: int) -> tuple[str, ...]:
    """Return a sentence on the devices that a fit started from; none if there are none."""
    if not sources:
        return ()
    names = " and ".join(source.name for source in sources)
    return (
        f"Transferred from {names}: what was learnt there counts where the {observation_count} "
        "observations of this device say little.",
    )


def _find_weights(fitted: FittedLogSums) -> tuple[LogInputs, Floats]:
    """Return observed inputs, cell by cell, and the weight of each in the posterior mean."""
    if fitted.mean is not None:
        return fitted.mean.inputs, fitted.mean.input_weights
    posterior = condition_logsums(fitted, select_subset(fitted.observations, _MAX_SOURCE_ROWS))
    weights = posterior.linear.weights
    products = weights.weight * posterior.row_weights[weights.row]
    by_input = np.bincount(weights.column, products, posterior.inputs.size)
    return posterior.inputs, np.asarray(by_input, float)
