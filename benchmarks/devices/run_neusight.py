"""Predict NeuSight's steps and kernels on each GPU, without having measured it.

    python benchmarks/devices/run_neusight.py --data FOLDER --out RESULTS.json
    python benchmarks/devices/run_neusight.py --data FOLDER --out RESULTS.json --anchors --gpu T4

A run resumes: predictions that the file already has are kept, unless --again is given.
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from duration_law import DurationLaw, fit_law
from neusight_anchors import choose_anchors
from neusight_data import KernelRow, StepRow, read_kernels, read_steps

from joulecast.catalogue import find_data_sheet
from joulecast.errors import InputError
from joulecast.testing.commits import find_commit

Json = dict[str, Any]
DATA_SHEET, ANCHORS = "datasheet", "anchors"
"""What is known of the left-out GPU."""
_MS = 1e-3
# Kernels of each function that are scored, drawn at random: medians of more are the same.
_SCORED_PER_OP = 150


def main() -> None:
    """Leave out each GPU and write what is predicted for it."""
    arguments = parse_arguments()
    try:
        kernels, steps = read_kernels(arguments.data), read_steps(arguments.data)
        chosen = choose_devices(sorted({row.device for row in steps}), arguments.gpu)
    except InputError as error:
        sys.exit(str(error))
    results = {} if arguments.again else load_results(arguments.out)
    variants = (DATA_SHEET, ANCHORS) if arguments.anchors else (DATA_SHEET,)
    for device in chosen:
        missing = [one for one in variants if one not in results.get(device, {})]
        if ANCHORS in missing and not choose_anchors(kernels, device):
            print(f"{device} has no kernels, and so no anchors", flush=True)
            missing.remove(ANCHORS)
        if missing:
            data = leave_out(kernels, steps, device, arguments.without_architecture)
            law = fit_law(device, *data)
            for variant in missing:
                found = predict_device(law, *data, device, variant)
                results.setdefault(device, {})[variant] = found
                save_results(arguments.out, results)
                print(describe(device, variant, found), flush=True)


def parse_arguments(options: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of NeuSight's tables")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the predictions")
    parser.add_argument("--anchors", action="store_true", help="also predict with seven kernels")
    parser.add_argument("--gpu", action="append", help="only this GPU, or a part of its name")
    parser.add_argument(
        "--without-architecture",
        action="store_true",
        help="also leave out the other GPUs of its architecture",
    )
    parser.add_argument("--again", action="store_true", help="predict everything again")
    return parser.parse_args(options)


def choose_devices(devices: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Return the GPUs whose names contain one of those given; all by default."""
    chosen = [one for one in devices if not names or any(part in one for part in names)]
    if not chosen:
        raise InputError(f"no GPU is called {' or '.join(names or ())}: {', '.join(devices)}")
    return chosen


def leave_out(
    kernels: Sequence[KernelRow], steps: Sequence[StepRow], device: str, architecture: bool
) -> tuple[list[KernelRow], list[StepRow]]:
    """Return rows of the device, which are predicted, and of all that may be used for it.

    Args:
        kernels: All kernels.
        steps: All steps.
        device: The GPU that is left out.
        architecture: Whether other GPUs of its architecture are left out as well.
    """
    devices = {row.device for row in kernels} | {row.device for row in steps}
    if architecture:
        own = find_data_sheet(device).architecture
        devices = {one for one in devices if find_data_sheet(one).architecture != own}
    devices.add(device)
    return (
        [row for row in kernels if row.device in devices],
        [row for row in steps if row.device in devices],
    )


def predict_device(
    law: DurationLaw,
    kernels: Sequence[KernelRow],
    steps: Sequence[StepRow],
    device: str,
    variant: str,
) -> Json:
    """Return the predictions for a GPU, with what was measured and what others predict."""
    started_s = time.perf_counter()
    anchors = choose_anchors(kernels, device) if variant == ANCHORS else []
    law = law.condition(anchors)
    own_steps = [row for row in steps if row.device == device]
    used = set(choose_anchors(kernels, device))
    own_kernels = [row for row in kernels if row.device == device and row not in used]
    return {
        "commit": find_commit(__file__),
        "anchors": [[row.op, list(row.sizes)] for row in anchors],
        "steps": predict_steps(law, own_steps),
        "kernels": score_kernels(law, own_kernels),
        "took_s": round(time.perf_counter() - started_s, 1),
    }


def predict_steps(law: DurationLaw, steps: Sequence[StepRow]) -> list[Json]:
    """Return a record of each step."""
    if not steps:
        return []
    predicted = law.predict(steps)
    return [
        {
            "model": row.model,
            "mode": row.mode,
            "tokens": row.tokens,
            "batch": row.batch,
            "measured_ms": row.duration_s / _MS,
            "predicted_ms": float(median_s) / _MS,
            "log_sd": float(log_sd),
            **{f"{name}_ms": value_s / _MS for name, value_s in row.rivals_s.items()},
        }
        for row, median_s, log_sd in zip(steps, predicted.medians_s, predicted.log_sds, strict=True)
    ]


def score_kernels(law: DurationLaw, kernels: Sequence[KernelRow]) -> dict[str, Json]:
    """Return the median error of each function of kernels, and the share inside intervals."""
    scores = {}
    for op in sorted({row.op for row in kernels}):
        rows = [row for row in kernels if row.op == op]
        order = np.random.default_rng(0).permutation(len(rows))[:_SCORED_PER_OP]
        rows = [rows[number] for number in sorted(order.tolist())]
        predicted = law.predict(rows)
        log_errors = predicted.log_means - np.log([row.duration_s for row in rows])
        scores[op] = {
            "rows": len(rows),
            "errors": [round(float(one), 4) for one in np.expm1(log_errors)],
            "z": [round(float(one), 3) for one in log_errors / predicted.log_sds],
        }
    return scores


def load_results(path: Path) -> dict[str, Json]:
    """Return the predictions of a file; nothing if there is none."""
    if not path.exists():
        return {}
    found: dict[str, Json] = json.loads(path.read_text(encoding="utf-8"))
    return found


def save_results(path: Path, results: dict[str, Json]) -> None:
    """Write the predictions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, separators=(",", ":")) + "\n", encoding="utf-8")


def describe(device: str, variant: str, found: Json) -> str:
    """Return a line about the predictions for a GPU."""
    errors = [abs(one["predicted_ms"] / one["measured_ms"] - 1.0) for one in found["steps"]]
    mean = f"MAPE {np.mean(errors):.1%} of {len(errors)} steps" if errors else "no steps"
    return f"{device}, {variant}: {mean}, {found['took_s']:.0f} s"


if __name__ == "__main__":
    main()
