"""Encode operators, and sums over them, as arrays; define the processes over them.

    durations   basis: launches, FLOPs by precision, bytes,           d = the roofline's sum
                FLOPs of padding to large tiles
    powers      basis: 1, share of time beyond that of short launches, achieved over peak FLOP rate
                by precision, achieved over peak byte rate

Overheads of imported runs have a basis function each. Names are numbered by hashes, so that numbers
mean the same in every fit and on every machine.

Two ways to know more than this device shows, of which a device uses one at most:

**Other devices** (``sources``, the option ``--from``). Their residuals are basis functions of the
logarithm of this device's means, as in recursive co-kriging (Le Gratiet and Garnier, 2014):

    r_s   residual of an operator on device s: its posterior mean less ln of the mean of s
    z     = ln m + Σ_s a_s·r_s + δ    log duration, or log power, of an operator on this device
    m     mean of this device, with rates of its own
    a_s   how alike the residuals of both devices are, fitted with all other hyper-parameters
    δ     residual of this device, with the prior that it has without sources

Where sources are unlike the device its own observations make a_s small, and the fit is the one
without them. The prior of δ is as wide as without sources, so that own observations always outweigh
them.

**Its data sheet** (``hardware``, see ``fit``). Operators of several devices are inputs of
one process: basis functions are relative to what the data sheet says, points have the figures that
efficiency depends on, and groups tell devices and makers apart.

Groups of inputs are classes of operators and kinds, regimes are precisions (with phase and
threads). Efficiency saturates with size and differs by class of operators: most of the variance is
that of a class's kernel over sizes, which all its kinds and precisions share in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np

from joulecast.estimators.additive.layers import AXES, OVERHEAD, Counts, SetupLayer, split_passes
from joulecast.estimators.additive.roofline import LEVEL_LOG_SD, Hardware, Roofline
from joulecast.gp.linalg import Bools, Floats, Ints, WeightedSums, group_rows
from joulecast.gp.lognormal import Prior
from joulecast.gp.logsums.inputs import ALL_INPUTS, NO_GROUP, LogInputs, LogSums
from joulecast.gp.logsums.posterior import FittedLogSums, condition_logsums, sum_by_input
from joulecast.gp.logsums.prior import KernelTerm, LogSumPrior, LogSumProcess
from joulecast.gp.logsums.stored import PackedArray
from joulecast.records import FLOAT_PRECISIONS
from joulecast.records.codec import Record, omit_default

DURATION_AXES = tuple(range(len(AXES) + 1))
"""Columns of points that durations depend on: AXES, and whether FLOPs or bytes bound."""
ALIGNMENT_AXES = (len(AXES) + 1,)
"""Columns of points where hardware is not known: the alignment of convolutions."""
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
# Rates below this share of the peak are alike: something else bounds the operator.
_LEAST_UTILISATION = 0.02
# Structures of a block: its label, its kind, any block, itself.
_STRUCTURES = 4
# Discrepancies over that of a structure: of all whole networks, of a family, of a family in one
# regime, of each network, and of all sums of a unit of the device.
_NETWORK_WEIGHTS = (0.4, 1.0, 0.5, 0.4)
_UNIT_WEIGHT = 1.5
# Observations of a source without a posterior mean given all of them: the fit was too large.
_MAX_SOURCE_ROWS = 2000


@dataclass(frozen=True)
class OperatorEncoder(Record):
    """Encodes operators as inputs of the processes.

    Attributes:
        overheads: Kinds of overheads, each of which has a basis function of its own.
        power_limit_w: What the device never draws more than.
        hardware: Figures of the data sheet, where several devices share a process.
        sources: Other devices that this one starts from.
    """

    roofline: Roofline
    overheads: tuple[str, ...]
    power_limit_w: float
    hardware: Hardware | None = omit_default(None)
    sources: tuple[SourceDevice, ...] = omit_default(())

    def encode_durations(self, operators: Sequence[SetupLayer]) -> LogInputs:
        """Return operators as inputs of the process of durations."""
        work = _Work.of(operators)
        basis = np.column_stack([work.launches, work.flops_by_precision, work.size_bytes])
        if self.hardware is None:
            basis = np.column_stack([basis, work.tile_flops_by_precision @ self._flop_s])
        else:
            # Seconds of launches, fp32 FLOPs, FLOPs of matrix units in any precision, and bytes:
            # the share of their peak that matrix units reach in one precision tells about others.
            seconds = basis * np.array(self.roofline.costs)
            launches_s, flops_s, bytes_s = np.split(seconds, [1, 1 + len(FLOAT_PRECISIONS)], axis=1)
            is_fp32 = np.array(FLOAT_PRECISIONS) == "fp32"
            columns = flops_s[:, is_fp32].sum(axis=1), flops_s[:, ~is_fp32].sum(axis=1)
            basis = np.column_stack([launches_s, *columns, bytes_s])
        return self._make_inputs(operators, basis, self._find_points(work), column=0)

    def encode_powers(self, operators: Sequence[SetupLayer], durations_s: Floats) -> LogInputs:
        """Return operators of given durations as inputs of the process of powers."""
        work = _Work.of(operators)
        compute = work.flops_by_precision * self._flop_s / durations_s[:, None]
        memory = work.size_bytes * self.roofline.byte_s / durations_s
        busy = 1.0 - np.minimum(
            _SHORT_LAUNCHES * self.roofline.launch_s * work.launches / durations_s, 1.0
        )
        basis = np.column_stack([np.ones(len(operators)), busy, compute, memory])
        if self.hardware is not None:
            basis = basis * np.array(self.hardware.powers_w)
        used = np.column_stack([compute.sum(axis=1), memory, busy])
        points = np.column_stack([np.log(_LEAST_UTILISATION + used), self._find_points(work)])
        inputs = self._make_inputs(operators, basis, points, column=1)
        return replace(inputs, log_caps=np.full(len(operators), np.log(self.power_limit_w)))

    @cached_property
    def _flop_s(self) -> Floats:
        return np.array([self.roofline.flop_s[name] for name in FLOAT_PRECISIONS])

    def _find_points(self, work: _Work) -> Floats:
        compute_s = work.flops_by_precision @ self._flop_s
        memory_s = self.roofline.byte_s * work.size_bytes
        log_ratio = np.log(compute_s + 1e-12) - np.log(memory_s + 1e-12)
        columns = [work.points, np.clip(log_ratio, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)]
        if self.hardware is not None:
            has_flops = work.flops_by_precision > 0
            flop_s = np.where(has_flops.any(axis=1), has_flops @ self._flop_s, self._flop_s[0])
            rates = 1.0 / flop_s, np.full(len(flop_s), 1.0 / self.roofline.byte_s)
            columns += [self.hardware.relate_work(work.points, work.size_bytes)]
            columns += [self.hardware.relate_rates(*rates)]
        else:
            columns += [work.alignment]
        return np.column_stack(columns)

    def _make_inputs(
        self, operators: Sequence[SetupLayer], basis: Floats, points: Floats, column: int
    ) -> LogInputs:
        """Return inputs; ``column`` is that of their residuals on other devices."""
        if self.overheads:
            kinds = np.array([operator.kind for operator in operators])
            own = (kinds[:, None] == np.array(self.overheads)).astype(float)
            # Overheads do no other work.
            basis = np.column_stack([basis * (1.0 - own.sum(axis=1, keepdims=True)), own])
        groups = [[one.operator_class, one.kind] for one in operators]
        identities = [one.key for one in operators]
        regimes = [one.regime for one in operators]
        columns = KIND + 1
        if (hardware := self.hardware) is not None:
            for group, one in zip(groups, operators, strict=True):
                group += [hardware.device, *hardware.name_groups(one.operator_class, one.kind)]
            identities = [f"{key} {hardware.device}" for key in identities]
            # Devices share the regimes of both half precisions.
            regimes = [name.replace("fp16", "bf16") for name in regimes]
            columns = NEW_DEVICE_KIND + 1
        numbers = [[number_name(name) if name else NO_GROUP for name in group] for group in groups]
        residuals = [one.predict_residuals(operators)[:, column] for one in self.sources]
        return LogInputs(
            basis,
            points,
            np.array(numbers, np.int64).reshape(len(operators), columns),
            np.array(list(map(number_name, regimes)), np.int64),
            np.array(list(map(number_name, identities)), np.int64),
            log_basis=np.column_stack(residuals) if residuals else None,
        )

    def sum_layers(
        self,
        counts: Sequence[Mapping[SetupLayer, float]],
        is_network: Sequence[bool] | None = None,
    ) -> OperatorSums:
        """Return sums over layers as sums over operators; over passes where devices share these."""
        operators: dict[SetupLayer, int] = {}
        layers: dict[SetupLayer, int] = {}
        passes: dict[SetupLayer, Counts] = {}
        row, operator_at, layer_at, count, names, families = [], [], [], [], [], []
        flags = [True] * len(counts) if is_network is None else is_network
        for at, (own, in_network) in enumerate(zip(counts, flags, strict=True)):
            parts = sorted(f"{layer.key} {times}" for layer, times in own.items())
            names.append(next(iter(own)).key if len(own) == 1 else " ".join(parts))
            families.append(_name_family(own) if in_network else ("", ""))
            for layer, times in own.items():
                number = layers.setdefault(layer, len(layers)) if layer.operators else -1
                some = layer.own_operators if in_network else layer.operators_alone
                for operator, repeats in some:
                    if self.hardware is not None and operator not in passes:
                        passes[operator] = split_passes(operator)
                    for one, runs in passes.get(operator, ((operator, 1.0),)):
                        row.append(at)
                        operator_at.append(operators.setdefault(one, len(operators)))
                        layer_at.append(number)
                        count.append(times * repeats * runs)
        return OperatorSums(
            tuple(operators),
            tuple(layers),
            len(counts),
            np.array(row, np.int64),
            np.array(operator_at, np.int64),
            np.array(layer_at, np.int64),
            np.array(count, float),
            np.array(list(map(number_name, names)), np.int64),
            np.array(flags, bool),
            tuple(families),
            passes,
        )


@dataclass(frozen=True)
class SourceDevice(Record):
    """What one device has learnt, for others to start from."""

    name: str
    profile: str
    encoder: OperatorEncoder
    duration: SourceMean
    power: SourceMean

    def predict_residuals(self, operators: Sequence[SetupLayer]) -> Floats:
        """Return the residuals of each operator's duration and power on that device, P x 2."""
        new = [one for one in dict.fromkeys(operators) if one.key not in self._known]
        if new:
            log_s, duration = self.duration.predict(self.encoder.encode_durations(new))
            powers = self.encoder.encode_powers(new, np.exp(log_s))
            residuals = np.column_stack([duration, self.power.predict(powers)[1]])
            self._known.update(zip((one.key for one in new), residuals, strict=True))
        return np.array([self._known[one.key] for one in operators]).reshape(len(operators), 2)

    @cached_property
    def _known(self) -> dict[str, Floats]:
        """Residuals by operator: a campaign asks for the same ones again and again."""
        return {}


@dataclass(frozen=True)
class SourceMean(Record):
    """The posterior mean of a process, without what variances would need.

    Attributes:
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
        if fitted.row_weights is not None:
            inputs, by_input = fitted.weighted_inputs
        else:
            from joulecast.gp.logsums.fit import select_subset

            rows = select_subset(fitted.observations, _MAX_SOURCE_ROWS)
            posterior = condition_logsums(fitted, rows)
            inputs = posterior.inputs
            by_input = sum_by_input(posterior.linear, posterior.row_weights, inputs.size)
        arrays = inputs.points, inputs.groups, inputs.regimes, inputs.identities, by_input
        return cls(fitted.process, PackedArray.pack(fitted.theta), *map(PackedArray.pack, arrays))

    def predict(self, inputs: LogInputs) -> tuple[Floats, Floats]:
        """Return the posterior mean of log values, and by how much it exceeds the mean."""
        known = self._known_inputs, self.input_weights.unpack()
        log_values = self._prior.mean(inputs) + self._prior.multiply_covariance(inputs, *known)
        return log_values, log_values - self._prior.mean(replace(inputs, log_basis=None))

    @cached_property
    def _prior(self) -> LogSumPrior:
        return self.process.unpack(self.theta.unpack())

    @cached_property
    def _known_inputs(self) -> LogInputs:
        """The inputs that were observed; of these, covariances need no basis."""
        points = self.points.unpack()
        rest = self.groups.unpack(), self.regimes.unpack(), self.identities.unpack()
        return LogInputs(np.zeros((len(points), 0)), points, *rest)


@dataclass(frozen=True)
class _Work:
    """Work of operators as arrays."""

    launches: Floats
    flops_by_precision: Floats
    tile_flops_by_precision: Floats
    size_bytes: Floats
    points: Floats
    alignment: Floats

    @classmethod
    def of(cls, operators: Sequence[SetupLayer]) -> _Work:
        size = len(operators)
        flops, tile_flops = np.zeros((2, size, len(FLOAT_PRECISIONS)))
        columns = [FLOAT_PRECISIONS.index(one.rate_precision) for one in operators]
        flops[np.arange(size), columns] = [one.padded_flops for one in operators]
        tile_flops[np.arange(size), columns] = [one.tile_flops for one in operators]
        return cls(
            np.array([max(one.launches, 1) for one in operators], float),
            flops,
            tile_flops,
            np.array([one.size_bytes for one in operators], float),
            np.array([one.point for one in operators], float).reshape(size, len(AXES)),
            np.array([one.alignment for one in operators], float),
        )


@dataclass(frozen=True)
class OperatorSums:
    """Networks, or observations, as sums over distinct operators.

    Attributes:
        layers: The distinct blocks, and layers of several operators.
        row: Sum of each entry, ascending.
        layer: Block or layer that each entry belongs to; -1 for a layer of one operator.
        identities: Identity of each sum: equal numbers are the same sum.
        is_network: Whether each sum is a network rather than an isolated layer.
        families: Of each network, its family, and its family in its regime.
        passes: Operators that were split, with the passes that stand in their place.
    """

    operators: tuple[SetupLayer, ...]
    layers: tuple[SetupLayer, ...]
    size: int
    row: Ints
    operator: Ints
    layer: Ints
    count: Floats
    identities: Ints
    is_network: Bools
    families: tuple[tuple[str, str], ...]
    passes: Mapping[SetupLayer, Counts]

    @cached_property
    def counts(self) -> WeightedSums:
        """How often each sum contains each operator."""
        return _merge_entries(self.size, self.row, self.operator, self.count)

    def make_log_sums(self, durations_s: Floats, units: Sequence[str] = ()) -> LogSums:
        """Return the sums with the share of each structure in them, given durations of operators.

        The structure of a block, or of a layer of several operators, shows as four: its operators,
        these in any precision, any block or layer, and itself. What isolated layers do not show has
        four parts in a network too: that of all networks, of its family (networks of the same
        operators, whatever their sizes), of this in its regime, and its own. Sums of one unit of
        the device have one in common.

        Args:
            durations_s: Durations of the operators.
            units: Unit that each sum is of; empty names, or none at all, for any unit.
        """
        cost = self.count * durations_s[self.operator]
        total = np.bincount(self.row, cost, self.size)
        inside = np.flatnonzero(self.layer >= 0)
        share = cost[inside] / total[self.row[inside]]
        table = np.zeros((len(self.layers), _STRUCTURES), np.int64)
        for at, layer in enumerate(self.layers):
            every = "blocks" if layer.is_block else "layers"
            # Structures of eager steps tell nothing about compiled ones.
            how = "compiled " if layer.is_compiled else ""
            names = layer.label, layer.kind, every, layer.key
            table[at] = [number_name(how + name) for name in names]
        networks = np.flatnonzero(self.is_network)
        own_units = np.array([at for at, unit in enumerate(units) if unit], np.int64)
        unit_numbers = np.array([number_name(f"unit {units[at]}") for at in own_units], np.int64)
        families = [self.families[at] for at in networks.tolist()]
        row = [np.repeat(self.row[inside], _STRUCTURES), np.tile(networks, 4), own_units]
        column = [
            table[self.layer[inside]].ravel(),
            np.full(len(networks), number_name("networks")),
            *(np.array([number_name(one[at]) for one in families], np.int64) for at in (0, 1)),
            self.identities[networks],
            unit_numbers,
        ]
        weight = [
            np.repeat(share, _STRUCTURES),
            np.repeat(_NETWORK_WEIGHTS, len(networks)),
            np.full(len(own_units), _UNIT_WEIGHT),
        ]
        structures = _merge_entries(self.size, *map(np.concatenate, (row, column, weight)))
        return LogSums(self.counts, structures, self.identities)


def _name_family(counts: Mapping[SetupLayer, float]) -> tuple[str, str]:
    """Return the name of a network's family, and of its family in its regime."""
    operators = [
        one for layer in counts for one, _ in layer.own_operators if one.operator_class != OVERHEAD
    ]
    name = "family " + " ".join(sorted({one.kind for one in operators}))
    return name, f"{name} {' '.join(sorted({one.regime for one in operators}))}"


@lru_cache(maxsize=65536)
def number_name(name: str) -> int:
    """Return a number for a name, the same on every machine."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _merge_entries(size: int, row: Ints, column: Ints, weight: Floats) -> WeightedSums:
    """Return sums in which each row has at most one entry of a column."""
    entries, place = group_rows(np.column_stack([row, column]))
    merged = np.asarray(np.bincount(place, weight, len(entries)), float)
    row, column = np.ascontiguousarray(entries.T)
    return WeightedSums(size, row, column, merged)


# The discrepancy of a block or network is one of its structures: sums have no other.
_SUM_SD: Prior = (1e-3, 0.1)
# On 1,658 observations of an H200, five-fold: MAPE 13.3 % with this length scale, 14.6 % with 2.
_LENGTH_SCALE = (4.0, 0.7)
# What a precision changes for all operators: of one that was not observed, the rate is a guess. On
# eight simulated devices, intervals in such a precision held 43 % without this and 96 % with it.
_REGIME_SD: Prior = (0.6, 0.5)
# Durations of imported runs: nothing is known of how they were timed.
_IMPORTED_NOISE: Prior = (0.02, 1.0)
# Repeated timings of 526 trials on H200s, most on two units, differ by 0.6 % (median) and 1.9 %
# (95th percentile), repeated powers of one unit by 1.5 %. Fitted freely, two odd trials made the
# noise of timings 5 %.
_TIMING_NOISE: Prior = (0.01, 0.05)
_POWER_NOISE: Prior = (0.015, 0.1)
# Share of the power limit that each of compute and memory draws at its peak, that of a busy device
# doing nothing, and the log standard deviations of these.
_PEAK_SHARE, _PEAK_LOG_SD = 0.5, 0.5
_STATIC_SHARE, _STATIC_FACTOR, _STATIC_LOG_SD = 0.2, 1.1, 0.3
# Power that a busy device adds to that, whatever it does.
_BUSY_FACTOR, _BUSY_LOG_SD = 1.3, 0.6
# What powers depend on, on one device as on several: kinds, achieved rates, and sizes by class.
_POWER_TERMS = (
    KernelTerm(CLASS, shared_sd=(0.1, 0.5), regime_sd=(0.05, 0.5)),
    KernelTerm(KIND, shared_sd=(0.1, 0.5), regime_sd=(0.05, 0.5)),
    KernelTerm(ALL_INPUTS, POWER_AXES[:3], (0.15, 0.5), (0.1, 0.5), (1.5, 0.7)),
    KernelTerm(CLASS, POWER_AXES, (0.1, 0.5), (0.1, 0.5), (3.0, 0.7)),
)
# Padding to large tiles takes this share of the time of other FLOPs. Fitted to convolutions of an
# H200 it is 0.15, to its matrix products 1.3.
_TILE_SHARE: Prior = (0.5, 1.0)
# Overheads: a tenth of a run, within a factor of ten.
_OVERHEAD_LOG_SD = 1.5
# Shares of the residuals of other devices that this one has too. Powers are learnt from noisier
# values: with a median of 0.7, ten networks made some shares 4. Log standard deviations of 0.7 gain
# nothing from like sources on simulated devices, and keep too much of unlike ones.
_DURATION_SHARE: Prior = (0.7, 1.5)
_POWER_SHARE: Prior = (0.25, 1.5)


def define_durations(
    encoder: OperatorEncoder, overhead_s: float, is_imported: bool = False
) -> LogSumProcess:
    """Return the process of durations."""
    roofline = encoder.roofline
    coefficients = (*zip(roofline.costs, roofline.log_sds, strict=True), _TILE_SHARE)
    coefficients += ((overhead_s, _OVERHEAD_LOG_SD),) * len(encoder.overheads)
    coefficients += _divide_share(_DURATION_SHARE, len(encoder.sources))
    axes = DURATION_AXES + ALIGNMENT_AXES
    terms = (
        KernelTerm(ALL_INPUTS, shared_sd=(0.3, 0.5), regime_sd=_REGIME_SD),
        KernelTerm(CLASS, regime_sd=(0.3, 0.5)),
        KernelTerm(KIND, shared_sd=(0.2, 0.5), regime_sd=(0.2, 0.5)),
        KernelTerm(CLASS, axes, (0.35, 0.5), (0.35, 0.5), _LENGTH_SCALE),
        KernelTerm(KIND, axes, (0.18, 0.5), (0.18, 0.5), _LENGTH_SCALE),
    )
    noise = _IMPORTED_NOISE if is_imported else _TIMING_NOISE
    return LogSumProcess(coefficients, terms, sum_sd=_SUM_SD, noise_sd=noise)


def define_powers(
    encoder: OperatorEncoder, idle_w: float, overhead_w: float, is_imported: bool = False
) -> LogSumProcess:
    """Return the process of powers.

    Idle power is 0 if unknown.
    """
    limit_w = encoder.power_limit_w
    static_w = min(_STATIC_FACTOR * idle_w, 0.5 * limit_w) or _STATIC_SHARE * limit_w
    peak: Prior = (_PEAK_SHARE * limit_w, _PEAK_LOG_SD)
    rates = len(encoder.roofline.costs) - 1
    busy: Prior = (_BUSY_FACTOR * static_w, _BUSY_LOG_SD)
    coefficients = ((static_w, _STATIC_LOG_SD), busy) + (peak,) * rates
    coefficients += ((overhead_w, _PEAK_LOG_SD),) * len(encoder.overheads)
    coefficients += _divide_share(_POWER_SHARE, len(encoder.sources))
    terms = (KernelTerm(ALL_INPUTS, shared_sd=(0.1, 0.5)), *_POWER_TERMS)
    return _make_power_process(coefficients, terms, (0.05, 0.5) if is_imported else _POWER_NOISE)


def define_shared_durations() -> LogSumProcess:
    """Return the process of durations that several devices share.

    Basis functions are seconds at the rates of the data sheet. Residuals are shared by all devices
    and by those of a maker, and in part belong to one device. A device that the process was not
    fitted to has three more terms, so that it may differ from the others by more than they do from
    each other, and what is measured on it soon outweighs them.

    A kind of operator that no device of the fit ran may take several times what the roofline says,
    which the large standard deviation of kinds stands for.
    """
    # Launches, FLOPs in fp32, FLOPs of matrix units, whose peaks are farther off, and bytes.
    coefficients: tuple[Prior, ...] = (1.0, 0.3), (1.15, 0.15), (1.3, 0.2), (1.2, 0.15)
    axes = DURATION_AXES + HARDWARE_AXES
    terms = (
        KernelTerm(DEVICE, shared_sd=(0.12, 0.3), regime_sd=(0.08, 0.5)),
        KernelTerm(DEVICE_CLASS, shared_sd=(0.15, 0.3), regime_sd=(0.1, 0.5)),
        KernelTerm(VENDOR_CLASS, shared_sd=(0.1, 0.5), regime_sd=(0.25, 0.3)),
        KernelTerm(KIND, shared_sd=(0.5, 0.1), regime_sd=(0.25, 0.3)),
        KernelTerm(CLASS, RELATIVE_AXES, (0.2, 0.5), (0.25, 0.5), _LENGTH_SCALE),
        KernelTerm(KIND, RELATIVE_AXES, (0.15, 0.5), (0.15, 0.5), _LENGTH_SCALE),
        KernelTerm(DEVICE_CLASS, axes, (0.15, 0.3), None, _LENGTH_SCALE),
        # No device of the fit has these: they stay at the medians of their priors.
        KernelTerm(NEW_DEVICE_CLASS, shared_sd=(0.15, 0.3), regime_sd=(0.1, 0.3)),
        KernelTerm(NEW_DEVICE_KIND, shared_sd=(0.15, 0.3), regime_sd=(0.1, 0.3)),
        KernelTerm(NEW_DEVICE_CLASS, axes, (0.2, 0.3), (0.1, 0.3), _LENGTH_SCALE),
    )
    return LogSumProcess(coefficients, terms, sum_sd=_SUM_SD, noise_sd=(0.03, 0.3))


def define_shared_powers() -> LogSumProcess:
    """Return the process of powers that several devices share.

    Basis functions are watts that the data sheet suggests (``roofline``).
    """
    coefficients: tuple[Prior, ...] = ((1.0, 0.1),) * (len(FLOAT_PRECISIONS) + 3)
    terms = (
        KernelTerm(DEVICE, shared_sd=(LEVEL_LOG_SD, 0.3), regime_sd=(0.05, 0.5)),
        KernelTerm(DEVICE_CLASS, shared_sd=(0.1, 0.5)),
        *_POWER_TERMS,
    )
    return _make_power_process(coefficients, terms, _POWER_NOISE)


def _make_power_process(
    coefficients: tuple[Prior, ...], terms: tuple[KernelTerm, ...], noise_sd: Prior
) -> LogSumProcess:
    return LogSumProcess(
        coefficients,
        terms,
        nugget_sd=(0.05, 0.5),
        structure_sd=(0.04, 0.5),
        sum_sd=_SUM_SD,
        noise_sd=noise_sd,
    )


def _divide_share(share: Prior, sources: int) -> tuple[Prior, ...]:
    """Return the prior of each source's share, where they have one share together."""
    median, log_sd = share
    return ((median / max(sources, 1), log_sd),) * sources
