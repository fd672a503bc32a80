"""What a data sheet says about the durations and powers of layers, before anything was measured.

    F/s  peak FLOPs per second        P  power limit         n  process node in nanometres
    e    = e0·w·n                     energy of a FLOP; w its weight by precision
    L    = (1 - s)·P / e              FLOPs per second that the power limit allows
    r    = (peak^-q + L^-q)^(-1/q)    what the device sustains, the lower of both

A data sheet's peak is what a card reaches for a moment: at 70 W a T4 sustains half of it. The other
figures are inputs of residuals that all devices share (``encode``): how much work each of a
device's multiprocessors gets, and how much of it the cache holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.additive.datasheet_power import find_power_priors
from joulecast.estimators.additive.piece_points import AXES
from joulecast.estimators.additive.roofline import Roofline
from joulecast.gp.linalg import Floats
from joulecast.records import FLOAT_PRECISIONS, DataSheet
from joulecast.records.codec import Record, omit_default

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
        device: Its name.
        vendor: Its maker, whose libraries it runs.
        units: Its multiprocessors.
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
        return cls(
            sheet.name,
            sheet.vendor,
            sheet.units,
            float(l2_bytes),
            powers_w,
            is_fitted,
        )

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


def find_sustained_roofline(
    sheet: DataSheet, energy_per_flop_and_nm_j: float = ENERGY_PER_FLOP_AND_NM_J
) -> Roofline:
    """Return the costs of launches, FLOPs and bytes that a data sheet suggests."""
    peaks = complete_peaks(sheet.flops_per_s)
    flop_s = {
        name: 1.0 / sustain_rate(sheet, name, peaks[name], energy_per_flop_and_nm_j)
        for name in FLOAT_PRECISIONS
    }
    log_sds = (_LAUNCH_LOG_SD, *(_PEAK_LOG_SD,) * len(FLOAT_PRECISIONS), _BANDWIDTH_LOG_SD)
    return Roofline(_LAUNCH_S, flop_s, 1.0 / sheet.bytes_per_s, log_sds)


def sustain_rate(
    sheet: DataSheet, precision: str, peak: float, energy_per_flop_and_nm_j: float
) -> float:
    """Return the FLOPs per second that a device sustains within its power limit."""
    node_nm = sheet.process_nm or _DEFAULT_NODE_NM
    if precision == "fp32" and sheet.architecture.startswith(_HAS_FP32_MATRIX_UNITS):
        precision = "tf32"
    flop_j = energy_per_flop_and_nm_j * _WEIGHTS[precision] * node_nm
    allowed = (1.0 - _STATIC_SHARE) * sheet.power_limit_w / flop_j
    return float((peak**-_SHARPNESS + allowed**-_SHARPNESS) ** (-1.0 / _SHARPNESS))


def complete_peaks(flops_per_s: Mapping[str, float]) -> dict[str, float]:
    """Return a peak for each precision; one that a device lacks runs at the rate of fp32."""
    fp32 = flops_per_s.get("fp32") or min(flops_per_s.values())
    return {name: flops_per_s.get(name, fp32) for name in FLOAT_PRECISIONS}
