"""Measure the anchors of a GPU into a file of lines, as ``joulecast profile --anchors`` does.

    python benchmarks/devices/measure_anchors.py OUT.jsonl --on cuda:0

It needs PyTorch, NumPy and NVML, and no database. What the file holds is not measured again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from joulecast.api.measurers import open_any_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign.anchor_campaign import run_anchors
from joulecast.errors import MissingError
from joulecast.estimators.sheet_start import match_device_sheet
from joulecast.uses.reproduce.observation_file import ObservationFile


def main() -> None:
    """Measure the anchors and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path, help="file of the observations")
    parser.add_argument("--on", default="cuda:0", help="device to measure")
    arguments = parser.parse_args()
    with open_any_measurer(MeasureOptions(on=arguments.on)) as measurer:
        sheet = match_device_sheet(measurer.runtime.device)
        if sheet is None:
            raise MissingError(f"the catalogue has no data sheet of {measurer.runtime.device.name}")
        run = run_anchors(measurer, ObservationFile(arguments.out), sheet)
    print(f"{run.trials} anchors, {run.with_energy} with energy, {run.elapsed_s:.1f} s")
    for reason in run.skipped:
        print(f"skipped: {reason}")


if __name__ == "__main__":
    main()
