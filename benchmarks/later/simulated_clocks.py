"""Attach traces with drifting clocks to recordings of simulated devices; write later.json.

    python benchmarks/later/simulated_clocks.py

For each seed, twenty random networks are recorded on a simulated device. Instruments with random
offset and drift, at several sampling rates, sample its power with noise. Compared are the aligned
clocks with the true ones, and the energies with those of an exact meter in the same windows.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from joulecast.records import Observation  # noqa: E402
from joulecast.simulation import SimulatedDevice  # noqa: E402
from joulecast.traces.attachment import attach_energies  # noqa: E402
from joulecast.traces.power_trace import make_trace  # noqa: E402
from simulated_traces import (  # type: ignore[import-not-found]  # noqa: E402
    WALL_S,
    Instrument,
    read_live,
    record_trials,
)

SEEDS = range(20)
TRIALS = 20
RATES_HZ = (50, 100, 1000, 5000)
NOISE_SHARE = 0.01


def main() -> None:
    """Run all seeds and rates, and write the result."""
    rows: dict[int, list[tuple[float, list[float], int]]] = {one: [] for one in RATES_HZ}
    for seed in SEEDS:
        device, observed = record_trials(seed, TRIALS)
        rng = random.Random(seed)
        for rate_hz in RATES_HZ:
            offset_s, drift = rng.uniform(-1e6, 1e6), rng.uniform(-200e-6, 200e-6)
            instrument = Instrument(offset_s, drift, rate_hz, NOISE_SHARE)
            rows[rate_hz].append(measure_errors(device, observed, instrument))
    result = {
        "seeds": len(SEEDS),
        "trials": TRIALS,
        "noise_share": NOISE_SHARE,
        "rates": [summarise(rate_hz, rows[rate_hz]) for rate_hz in RATES_HZ],
    }
    (HERE / "later.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure_errors(
    device: SimulatedDevice, observed: list[Observation], instrument: Instrument
) -> tuple[float, list[float], int]:
    """Return the largest error of the clock, errors of energies, and how many were refused."""
    (run,) = attach_energies(make_trace(*instrument.sample(device)), observed, "trace")
    assert run.alignment is not None, run.refused[0][1]
    times = np.linspace(0, device.now(), 50)
    error_s = np.abs(run.alignment.convert(WALL_S + times) - instrument.read_clock(times)).max()
    shares = [abs(new.energy_j / read_live(device, old) - 1) for old, new in run.completed]
    return float(error_s), shares, len(run.refused)


def summarise(rate_hz: int, rows: list[tuple[float, list[float], int]]) -> dict[str, float]:
    """Return the largest and median errors of one sampling rate."""
    shares = [share for _, own, _ in rows for share in own]
    return {
        "rate_hz": rate_hz,
        "energies": len(shares),
        "refused": sum(refused for _, _, refused in rows),
        "largest_clock_error_ms": 1e3 * max(error_s for error_s, _, _ in rows),
        "median_energy_error_percent": 100 * float(np.median(shares)),
        "largest_energy_error_percent": 100 * max(shares),
    }


if __name__ == "__main__":
    main()
