"""Predict published steps of image models and of BERT on each GPU, without having measured it.

    python benchmarks/devices/run_published.py --data FOLDER --out RESULTS.json
    python benchmarks/devices/run_published.py --data FOLDER --out RESULTS.json --gpu 5090

FOLDER has NeuSight's tables. A run resumes: GPUs that the file already has are kept.
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from duration_law import DurationLaw, fit_law
from neusight_data import read_kernels, read_steps
from published_steps import PublishedStep, read_published_steps
from run_neusight import choose_devices, load_results, save_results

from joulecast.errors import InputError
from joulecast.gp.lognormal import normal_quantile
from joulecast.kinds import network_work
from joulecast.records import DataSheet
from joulecast.testing.commits import find_commit

Json = dict[str, Any]
_LEVEL, _MS = 0.95, 1e-3


def main() -> None:
    """Leave out each GPU and write what is predicted for it."""
    arguments = parse_arguments()
    published = read_published_steps()
    try:
        kernels, steps = read_kernels(arguments.data), read_steps(arguments.data)
        chosen = choose_devices(sorted({row.device for row in published}), arguments.gpu)
    except InputError as error:
        sys.exit(str(error))
    results = load_results(arguments.out)
    for device in chosen:
        if device not in results:
            law = fit_law(device, kernels, steps)
            own = [row for row in published if row.device == device]
            results[device] = {"commit": find_commit(__file__), "steps": predict_steps(law, own)}
            save_results(arguments.out, results)
        print(describe(device, results[device]["steps"]), flush=True)


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of NeuSight's tables")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the predictions")
    parser.add_argument("--gpu", action="append", help="only this GPU, or a part of its name")
    return parser.parse_args()


def predict_steps(law: DurationLaw, steps: Sequence[PublishedStep]) -> list[Json]:
    """Return a record of each step, with the roofline of the data sheet beside it."""
    predicted = law.predict(steps)
    return [
        {
            "source": row.source,
            "model": row.model,
            "mode": row.mode,
            "size": row.size,
            "batch": row.batch,
            "precision": row.precision,
            "measured_ms": row.duration_s / _MS,
            "predicted_ms": float(median_s) / _MS,
            "log_sd": float(log_sd),
            "roofline_ms": time_roofline(law.sheet, row) / _MS,
        }
        for row, median_s, log_sd in zip(steps, predicted.medians_s, predicted.log_sds, strict=True)
    ]


def time_roofline(sheet: DataSheet, step: PublishedStep) -> float:
    """Return the longer of all FLOPs at the peak and all bytes at the full bandwidth."""
    work = network_work(step.network, step.setup).total
    return max(work.flops / sheet.find_peak(step.precision), work.size_bytes / sheet.bytes_per_s)


def describe(device: str, steps: Sequence[Json]) -> str:
    """Return a line about the predictions for a GPU."""
    measured, predicted, roofline, log_sds = (
        np.array([one[name] for one in steps])
        for name in ("measured_ms", "predicted_ms", "roofline_ms", "log_sd")
    )
    errors = predicted / measured - 1.0
    inside = np.abs(np.log(predicted / measured)) <= normal_quantile(_LEVEL) * log_sds
    return (
        f"{device}: {len(steps)} steps, MAPE {np.mean(np.abs(errors)):.1%}, median "
        f"{np.median(np.abs(errors)):.1%}, mean error {np.mean(errors):+.1%}, "
        f"{np.mean(inside):.0%} inside; roofline {np.mean(np.abs(roofline / measured - 1.0)):.1%}"
    )


if __name__ == "__main__":
    main()
