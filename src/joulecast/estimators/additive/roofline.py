"""The roofline of a device: what an empty launch, a FLOP and a byte cost at best.

Rates are the best that the device was seen to reach. Large matrix products, one for each precision,
a large copy and an empty launch, the anchors of a campaign, make sure that it was seen at its best.

Of a device that was never measured, the data sheet tells what it sustains:

    F/s  peak FLOPs per second        P  power limit         n  process node in nanometres
    e    = e0·w·n                     energy of a FLOP; w its weight by precision
    L    = (1 - s)·P / e              FLOPs per second that the power limit allows
    r    = (peak^-q + L^-q)^(-1/q)    what the device sustains, the lower of both

A data sheet's peak is what a card reaches for a moment: at 70 W a T4 sustains half of it. The other
figures are inputs of residuals that all devices share (``encode``): how much work each of a
device's multiprocessors gets, and how much of it the cache holds.

Its powers:

    p = static + busy·share of time + compute·FLOP rate/peak + memory·byte rate/bandwidth

Each term is a share of the power limit: makers choose limits that busy devices come near to,
whatever the process or the memory. Rates are relative to those of ``hardware``. The shares are
those of devices whose powers are known, each fitted to the measured powers and durations of
networks with the work that Joulecast counts for them:

- P100, V100, Quadro RTX 6000 and A40: BERT base (SQuAD) and ResNet-50 (ImageNet) at 6 to 11 batch
  sizes and the usual power limit, from the traces of Zeus (You, Chung and Chowdhury, NSDI 2023;
  Apache-2.0); in fp32, on the A40 in TF32. Priors from all other cards are off by -4 % on average
  for the V100, +2 % for the RTX 6000, +11 % for the A40 and +24 % for the P100.
- A100: layers of GPT-3 in bf16 draw 475 W, more than its limit of 400 W (Chung et al., SOSP 2024),
  with about 0.6 of the peak.
- H200: 1,297 isolated layers of the shipped profile.

Idle means at active clocks with a CUDA context, as between two steps: more than the idle power that
data sheets quote. GDDR memory then runs at its full clock, HBM draws little. Training that waits
for the host nearly all the time (NCF, small batches, in the traces of Zeus) draws 34.8 W on the
P100, 38 W on the V100, 69 W on the RTX 6000 and 89 W on the A40. Idle cards in the state P0 draw,
by listings of ``nvidia-smi`` in public repositories, 50-70 W (A100), 26-27 W (T4), 27-28 W (L4) and
42-64 W (A10). So 15 % of the limit with HBM (12 to 17 %) and 8 W + 25 % with GDDR (within 16 %).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from joulecast.estimators.additive.layers import AXES, OVERHEAD
from joulecast.estimators.additive.observations import DecomposedObservation
from joulecast.gp.linalg import Floats
from joulecast.gp.lognormal import Prior
from joulecast.records import FLOAT_PRECISIONS, DataSheet
from joulecast.records.codec import Record, omit_default

# If a kind of rate was never observed: an order of magnitude that the fit then changes.
_DEFAULT_LAUNCH_S, _DEFAULT_FLOP_S, _DEFAULT_BYTE_S = 5e-6, 1e-11, 1e-11
# Rates of FLOPs by precision over those of fp32, for precisions not observed. Matrix units run tf32
# up to eight and half precisions up to sixteen times as fast; many CPUs gain nothing.
_SPEEDUPS = {"fp32": 1.0, "tf32": 3.0, "bf16": 6.0, "fp16": 6.0}
# Log standard deviations of the prior of a cost that was observed, and of one that was not.
_SEEN_LOG_SD, _UNSEEN_LOG_SD = 0.3, 0.7
# From this many observations on, the single best one may be an error.
_MANY = 8
# Rates of bytes are read off the observations that move most: small ones may stay in caches.
_LARGE_SHARE = 0.25


@dataclass(frozen=True)
class Roofline(Record):
    """Costs of a device at best.

    Attributes:
        launch_s: Duration of an empty launch.
        log_sds: Uncertainty of the logarithms of these: launches, each precision, bytes.
    """

    launch_s: float
    flop_s: Mapping[str, float]
    byte_s: float
    log_sds: tuple[float, ...]

    @property
    def costs(self) -> tuple[float, ...]:
        """Seconds of a launch, of a FLOP in each precision, and of a byte."""
        return self.launch_s, *(self.flop_s[name] for name in FLOAT_PRECISIONS), self.byte_s


def find_roofline(timed: Sequence[DecomposedObservation]) -> Roofline:
    """Return the best rates that observed durations show."""
    rows = [_sum_work(one) for one in timed]
    launch_s = _best([one.duration_s / one.launches for one in rows if one.launches])
    largest = sorted(rows, key=lambda one: -one.size_bytes)[: math.ceil(_LARGE_SHARE * len(rows))]
    byte_s = _best([one.duration_s / one.size_bytes for one in largest if one.size_bytes])
    by_precision = {
        name: _best([one.duration_s / one.flops[name] for one in rows if one.flops.get(name)])
        for name in FLOAT_PRECISIONS
    }
    costs = (launch_s, *by_precision.values(), byte_s)
    return Roofline(
        launch_s or _DEFAULT_LAUNCH_S,
        {name: value or _guess_flop_s(name, by_precision) for name, value in by_precision.items()},
        byte_s or _DEFAULT_BYTE_S,
        tuple(_SEEN_LOG_SD if cost else _UNSEEN_LOG_SD for cost in costs),
    )


def _guess_flop_s(precision: str, by_precision: Mapping[str, float]) -> float:
    """Return the seconds per FLOP that those of the most similar observed precision suggest."""
    seen = [name for name, flop_s in by_precision.items() if flop_s]
    if not seen:
        return _DEFAULT_FLOP_S / _SPEEDUPS[precision]
    ratios = {name: _SPEEDUPS[name] / _SPEEDUPS[precision] for name in seen}
    nearest = min(seen, key=lambda name: (abs(math.log(ratios[name])), -ratios[name]))
    return by_precision[nearest] * ratios[nearest]


class _Row(NamedTuple):
    """Work and duration of an observation; launches that its duration tells about."""

    duration_s: float
    flops: Mapping[str, float]
    size_bytes: float
    launches: float


def _sum_work(observation: DecomposedObservation) -> _Row:
    flops: dict[str, float] = {}
    size_bytes = launches = 0.0
    for layer, count in observation.counts.items():
        operators = layer.operators_alone if observation.is_isolated else layer.own_operators
        for operator, repeats in operators:
            if operator.operator_class == OVERHEAD:
                continue
            times = count * repeats
            precision = operator.rate_precision
            flops[precision] = flops.get(precision, 0.0) + times * operator.padded_flops
            size_bytes += times * operator.size_bytes
            # A recurrent layer fuses most of the launches that are counted for it.
            launches += times * operator.launches * (operator.operator_class != "recurrent")
    # What a run pays once would pass for the duration of its launches.
    if any(layer.operator_class == OVERHEAD for layer in observation.counts):
        launches = 0.0
    return _Row(observation.duration_s or 0.0, flops, size_bytes, launches)


def _best(costs: Sequence[float]) -> float:
    """Return the least cost, or the second of many; 0 if there is none."""
    ordered = sorted(costs)
    if not ordered:
        return 0.0
    return ordered[1] if len(ordered) >= _MANY else ordered[0]


ENERGY_PER_FLOP_AND_NM_J = 1e-12
"""Energy of an fp32 FLOP, over the process node in nm, with all that a large product needs.

A round number, chosen with large products of NeuSight's P4, T4, P100, V100 and A100 in view: from
0.9 to 1.1 pJ they are explained about equally well.
"""
# Energies of a FLOP over those of an fp32 one outside of matrix units; AMD's CDNA has matrix units
# for fp32 as well.
_WEIGHTS = {"fp32": 1.0, "tf32": 0.2, "bf16": 0.1, "fp16": 0.1}
_HAS_FP32_MATRIX_UNITS = "CDNA"
# Share of the power limit that a busy device draws whatever it does.
_STATIC_SHARE = 0.15
_SHARPNESS = 8.0
_DEFAULT_NODE_NM = 7.0
_L2_BYTES_PER_UNIT = 2**18
# FLOPs in fp32 and bytes per second of a multiprocessor of a V100, and how much a factor in them
# counts over one in sizes.
_UNIT_FLOPS_PER_S, _UNIT_BYTES_PER_S, _RATE_SCALE = 1.75e11, 1.1e10, 2.0
# Duration of an empty launch; those of GPUs of ten years differ by less than a factor of two.
_LAUNCH_S = 2.5e-6
# Log standard deviations: of a launch, of peaks, of the bandwidth.
_LAUNCH_LOG_SD, _PEAK_LOG_SD, _BANDWIDTH_LOG_SD = 0.3, 0.15, 0.1


@dataclass(frozen=True)
class Hardware(Record):
    """Figures of a device that residuals depend on, beyond its roofline.

    Attributes:
        vendor: Its maker, whose libraries it runs.
        l2_bytes: Its last cache.
        powers_w: What the data sheet suggests for each basis function of powers.
        is_fitted: Whether the processes were fitted to measurements of this device. Any other one
            may differ from all of them.
    """

    device: str
    vendor: str
    units: int
    l2_bytes: float
    powers_w: tuple[float, ...]
    is_fitted: bool = omit_default(False)

    @classmethod
    def from_data_sheet(cls, sheet: DataSheet, is_fitted: bool = False) -> Hardware:
        """Return the figures of a data sheet."""
        l2_bytes = sheet.l2_bytes or _L2_BYTES_PER_UNIT * sheet.units
        powers_w = tuple(median_w for median_w, _ in find_power_priors(sheet).coefficients)
        return cls(sheet.name, sheet.vendor, sheet.units, float(l2_bytes), powers_w, is_fitted)

    def name_groups(self, operator_class: str, kind: str) -> list[str]:
        """Return the groups of an operator on this device, after that of the device itself.

        They are its class on the device, its class on those of the maker, and its class and kind on
        a new device, which are empty for a device that the processes were fitted to.
        """
        makers = self.device, self.vendor or self.device
        new = ["", ""] if self.is_fitted else [f"new {operator_class}", f"new {kind}"]
        return [*(f"{operator_class} {name}" for name in makers), *new]

    def relate_work(self, points: Floats, size_bytes: Floats) -> Floats:
        """Return logarithms of the output of each multiprocessor and of bytes over the cache."""
        output = points[:, AXES.index("positions")] + points[:, AXES.index("output channels")]
        per_unit = output - math.log(self.units)
        return np.column_stack([per_unit, np.log(1.0 + size_bytes) - math.log(self.l2_bytes)])

    def relate_rates(self, flops_per_s: Floats, bytes_per_s: Floats) -> Floats:
        """Return logarithms of the rates of each multiprocessor, over those of a V100's.

        The faster the units of a multiprocessor are, the harder it is to keep them busy: a large
        ResNet reaches 0.42 of the peak of an RTX 3090 and 0.2 of that of an A100.
        """
        flops = np.log(flops_per_s / (self.units * _UNIT_FLOPS_PER_S))
        moved = np.log(bytes_per_s / (self.units * _UNIT_BYTES_PER_S))
        return _RATE_SCALE * np.column_stack([flops, moved])


def find_sustained_roofline(sheet: DataSheet) -> Roofline:
    """Return the costs of launches, FLOPs and bytes that a data sheet suggests."""
    peaks = complete_peaks(sheet.flops_per_s)
    flop_s = {name: 1.0 / sustain_rate(sheet, name, peaks[name]) for name in FLOAT_PRECISIONS}
    log_sds = (_LAUNCH_LOG_SD, *(_PEAK_LOG_SD,) * len(FLOAT_PRECISIONS), _BANDWIDTH_LOG_SD)
    return Roofline(_LAUNCH_S, flop_s, 1.0 / sheet.bytes_per_s, log_sds)


def sustain_rate(sheet: DataSheet, precision: str, peak: float) -> float:
    """Return the FLOPs per second that a device sustains within its power limit."""
    node_nm = sheet.process_nm or _DEFAULT_NODE_NM
    if precision == "fp32" and sheet.architecture.startswith(_HAS_FP32_MATRIX_UNITS):
        precision = "tf32"
    flop_j = ENERGY_PER_FLOP_AND_NM_J * _WEIGHTS[precision] * node_nm
    allowed = (1.0 - _STATIC_SHARE) * sheet.power_limit_w / flop_j
    return float((peak**-_SHARPNESS + allowed**-_SHARPNESS) ** (-1.0 / _SHARPNESS))


def complete_peaks(flops_per_s: Mapping[str, float]) -> dict[str, float]:
    """Return a peak for each precision; one that a device lacks runs at the rate of fp32."""
    fp32 = flops_per_s.get("fp32") or min(flops_per_s.values())
    return {name: flops_per_s.get(name, fp32) for name in FLOAT_PRECISIONS}


# Idle power at active clocks: watts, share of the power limit, log standard deviation.
_HBM_IDLE = (0.0, 0.15, 0.15)
_GDDR_IDLE = (8.0, 0.25, 0.2)
_UNKNOWN_IDLE = (0.0, 0.2, 0.35)
# Static power over idle power: a busy chip has a higher voltage and is warmer.
_STATIC_FACTOR, _STATIC_LOG_SD = 1.15, 0.1
# The devices whose shares are known are all NVIDIA's.
_OTHER_VENDOR_FACTOR = 1.4
# A few devices tell the spread badly: it counts as if two more of this log spread had been seen.
_PRIOR_LOG_SD, _PRIOR_DEVICES = 0.35, 2.0

LEVEL_LOG_SD = 0.15
"""By how much all powers of a device differ from what its data sheet suggests, in logarithm.

Of the four cards above: root mean square 0.13.
"""


@dataclass(frozen=True)
class _Shares:
    """Powers over the power limit: a busy device, arithmetic and memory at their peaks.

    Attributes:
        matrix: Arithmetic of matrix units (TF32, bf16, fp16) rather than in fp32. Their peaks are
            far above what the power limit allows.
    """

    busy: float | None = None
    fp32: float | None = None
    matrix: float | None = None
    memory: float | None = None


_KNOWN_SHARES = {
    "nvidia-p100": _Shares(0.22, 0.38, None, 0.38),
    "nvidia-v100": _Shares(0.35, 0.45, None, 0.48),
    "nvidia-quadro-rtx-6000": _Shares(0.33, 0.31, None, 0.60),
    "nvidia-a40": _Shares(0.29, None, 0.46, 0.39),
    "nvidia-a100": _Shares(matrix=1.05),
    "nvidia-h200": _Shares(0.24, 0.87, 2.5, 0.77),
}


@dataclass(frozen=True)
class PowerPriors:
    """Log-normal priors of powers in watts, each a median and a log standard deviation.

    Attributes:
        idle_w: Power of the idle device at active clocks.
        static_w: What a running device draws at least.
        busy_w: What it draws besides while any kernel but the shortest runs.
        compute_w: Arithmetic at the peak, by precision.
        memory_w: Memory at full bandwidth.
    """

    idle_w: Prior
    static_w: Prior
    busy_w: Prior
    compute_w: Mapping[str, Prior]
    memory_w: Prior

    @property
    def coefficients(self) -> tuple[Prior, ...]:
        """The priors in the order of the basis functions of powers (``encode``)."""
        compute = (self.compute_w[name] for name in FLOAT_PRECISIONS)
        return self.static_w, self.busy_w, *compute, self.memory_w


def find_power_priors(sheet: DataSheet, without: Collection[str] = ()) -> PowerPriors:
    """Return what a data sheet says about the powers of its device.

    Measured powers of devices whose names start with one of ``without`` are not used: for tests
    that treat a known device as unknown.
    """
    known = [
        shares for name, shares in _KNOWN_SHARES.items() if not name.startswith(tuple(without))
    ]
    widened = 1.0 if sheet.vendor.lower() == "nvidia" else _OTHER_VENDOR_FACTOR
    memory = sheet.memory_type.upper()
    known_idle = {"HBM": _HBM_IDLE, "GDDR": _GDDR_IDLE}
    found = [one for name, one in known_idle.items() if memory.startswith(name)]
    base_w, share, idle_log_sd = found[0] if found else _UNKNOWN_IDLE
    # Never below the power of a device that sleeps.
    idle_w = max(base_w + share * sheet.power_limit_w, sheet.idle_w or 0.0)
    static_w = min(_STATIC_FACTOR * idle_w, 0.5 * sheet.power_limit_w)
    static_log_sd = float(np.hypot(idle_log_sd, _STATIC_LOG_SD))

    def find(name: str) -> Prior:
        share, log_sd = _summarise([getattr(one, name) for one in known])
        return share * sheet.power_limit_w, widened * log_sd

    fp32, matrix = find("fp32"), find("matrix")
    return PowerPriors(
        idle_w=(idle_w, widened * idle_log_sd),
        static_w=(static_w, widened * static_log_sd),
        busy_w=find("busy"),
        compute_w={name: fp32 if name == "fp32" else matrix for name in FLOAT_PRECISIONS},
        memory_w=find("memory"),
    )


def _summarise(shares: Collection[float | None]) -> Prior:
    """Return the geometric mean of the shares of several devices, and their log spread."""
    logs = np.log([share for share in shares if share is not None])
    squares = _PRIOR_DEVICES * _PRIOR_LOG_SD**2 + float(np.square(logs - logs.mean()).sum())
    count = len(logs) + _PRIOR_DEVICES - 1.0
    # A new device differs from the mean by the spread, and the mean itself is uncertain.
    log_sd = np.sqrt(squares / count * (1.0 + 1.0 / len(logs)))
    return float(np.exp(logs.mean())), float(log_sd)
