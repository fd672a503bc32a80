"""Measure the anchors of a GPU into a file of lines, as ``joulecast profile --anchors`` does.

    python -m benchmarks.devices.measure_anchors OUT.jsonl --on cuda:0

It needs PyTorch, NumPy and NVML, and no database. What the file holds is not measured again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from joulecast.campaign.anchors import AnchorRun, run_anchors
from joulecast.errors import JoulecastError, MissingError
from joulecast.estimators.fitted_profile import match_device_sheet
from joulecast.features.measurers import open_any_measurer
from joulecast.features.options import MeasureOptions
from joulecast.uses.reproduce.observation_file import ObservationFile


def main() -> None:
    """Measure the anchors and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="file of the observations")
    parser.add_argument("--on", default="cuda:0", help="device to measure")
    arguments = parser.parse_args()
    try:
        run = measure(arguments.out, arguments.on)
    except JoulecastError as error:
        sys.exit(str(error))
    print(f"{run.trials} anchors, {run.with_energy} with energy, {run.elapsed_s:.1f} s")
    for reason in run.skipped:
        print(f"skipped: {reason}")


def measure(out: Path, on: str) -> AnchorRun:
    """Measure the anchors that the file does not hold yet."""
    with open_any_measurer(MeasureOptions(on=on)) as measurer:
        device = measurer.runtime.device
        sheet = match_device_sheet(device)
        if sheet is None:
            raise MissingError(f"the catalogue has no data sheet of {device.name}: name a GPU")
        return run_anchors(measurer, ObservationFile(out), sheet)


if __name__ == "__main__":
    main()
