"""Say in sentences what limits an estimate, as far as network, device and prediction tell."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.records import Estimate, Network, list_reading_notes
from joulecast.units import format_bytes, format_share

# Shares of FLOPs, bytes or parameters above which a note is worth reading.
_MIN_UNATTRIBUTED_SHARE = 0.01
# Share of the memory above which a step may not fit. Counted peaks are up to a third below those
# measured, which contain workspaces and the allocator's rounding (H200, steps above 3 GB).
_NEARLY_FULL_SHARE = 0.7
_WORK = {"flops": "FLOPs", "bytes": "bytes", "params": "parameters"}


def list_estimate_notes(
    estimate: Estimate, network: Network, prediction_notes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return what a user should know about an estimate, the most important first.

    Args:
        estimate: The estimate, with its peak memory.
        network: The network that it is for.
        prediction_notes: What the estimator says about its prediction.
    """
    return (
        *explain_memory(estimate),
        *prediction_notes,
        *_explain_unattributed(network),
        *list_reading_notes(network),
    )


def explain_memory(estimate: Estimate) -> list[str]:
    """Return a warning if the step does not fit the device's memory, or may not."""
    needed, available = map(
        format_bytes, (estimate.peak_memory_bytes, estimate.device_memory_bytes)
    )
    if estimate.fits_memory is None:
        return []
    if not estimate.fits_memory:
        return [
            f"It would not fit: it needs about {needed} of memory, but {estimate.device} has "
            f"{available}. The estimate is for a device like it with enough memory."
        ]
    if estimate.peak_memory_bytes > _NEARLY_FULL_SHARE * estimate.device_memory_bytes:
        return [
            f"It may not fit: it needs about {needed} of memory, workspaces of the framework "
            f"not included, and {estimate.device} has {available}."
        ]
    return []


def _explain_unattributed(network: Network) -> list[str]:
    """Return how much of a step belongs to no layer, which no estimate of layers includes."""
    shares = {
        name: getattr(network.totals, f"unattributed_{what}_share", 0.0)
        for what, name in _WORK.items()
    }
    large = {name: share for name, share in shares.items() if share > _MIN_UNATTRIBUTED_SHARE}
    if not large:
        return []
    parts = ", ".join(f"{format_share(share)} of the {name}" for name, share in large.items())
    return [
        f"{parts} belong to no layer and are not in the estimate, which is too low: "
        "`joulecast measure` measures the whole net."
    ]
