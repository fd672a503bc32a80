"""Express energy and duration of a forward pass as people compare inference.

An inference is one forward pass on a batch, by default of one sample. Watt-hours per 1,000
inferences are the unit of the AI Energy Score.
"""

from __future__ import annotations

from joulecast.records.codec import Json
from joulecast.records.trial import Setup
from joulecast.units import joules_to_wh

INFERENCES = 1000
"""Number of inferences whose watt-hours are stated."""


def name_step(setup: Setup) -> str:
    """Return what one step of a setup is called: ``step`` or ``inference``."""
    return "inference" if setup.phase == "inference" else "step"


def describe_inference(setup: Setup, energy_j: float | None, duration_s: float | None) -> Json:
    """Return energy, latency, mean power and watt-hours as JSON values; empty for training.

    Args:
        setup: How the network is run.
        energy_j: Energy of one inference; None if it is not known.
        duration_s: Duration of one inference; None if it is not known.
    """
    if setup.phase != "inference":
        return {}
    wh = None if energy_j is None else joules_to_wh(INFERENCES * energy_j)
    return {
        "energy_per_inference_j": energy_j,
        "latency_s": duration_s,
        "mean_power_w": compute_power(energy_j, duration_s),
        f"wh_per_{INFERENCES}_inferences": wh,
    }


def compute_power(energy_j: float | None, duration_s: float | None) -> float | None:
    """Return the mean power; None where energy or duration is not known."""
    if energy_j is None or not duration_s:
        return None
    return energy_j / duration_s
