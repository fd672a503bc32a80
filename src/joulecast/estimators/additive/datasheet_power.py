"""Priors of the powers of a device that was never measured, from its data sheet.

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

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from joulecast.gp.logsums.process import Prior
from joulecast.records import FLOAT_PRECISIONS, DataSheet

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

    Args:
        sheet: The data sheet.
        without: Devices whose measured powers are not used, by the start of their names: for tests
            that treat a known device as unknown.
    """
    known = [
        shares for name, shares in _KNOWN_SHARES.items() if not name.startswith(tuple(without))
    ]
    widened = 1.0 if sheet.vendor.lower() == "nvidia" else _OTHER_VENDOR_FACTOR
    idle_w, idle_log_sd = _find_idle(sheet)
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


def _find_idle(sheet: DataSheet) -> Prior:
    """Return idle power at active clocks, never below that of a device that sleeps."""
    kind = sheet.memory_type.upper()
    if kind.startswith("HBM"):
        base_w, share, log_sd = _HBM_IDLE
    elif kind.startswith("GDDR"):
        base_w, share, log_sd = _GDDR_IDLE
    else:
        base_w, share, log_sd = _UNKNOWN_IDLE
    return max(base_w + share * sheet.power_limit_w, sheet.idle_w or 0.0), log_sd


def _summarise(shares: Collection[float | None]) -> Prior:
    """Return the geometric mean of the shares of several devices, and their log spread."""
    logs = np.log([share for share in shares if share is not None])
    squares = _PRIOR_DEVICES * _PRIOR_LOG_SD**2 + float(np.square(logs - logs.mean()).sum())
    count = len(logs) + _PRIOR_DEVICES - 1.0
    # A new device differs from the mean by the spread, and the mean itself is uncertain.
    log_sd = np.sqrt(squares / count * (1.0 + 1.0 / len(logs)))
    return float(np.exp(logs.mean())), float(log_sd)
