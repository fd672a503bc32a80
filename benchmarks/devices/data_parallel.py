"""Compare the model of several GPUs with published throughputs of one GPU and of several.

    python -m benchmarks.devices.data_parallel
    python -m benchmarks.devices.data_parallel --data FOLDER

print the tables of ``data_parallel.md``. With the folder of NeuSight's tables, steps of one GPU are
predicted from its data sheet, and those of several follow from them.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.devices.run import fit_law
from benchmarks.devices.tables import TRAINING, StepRow, read_kernels, read_steps
from joulecast.devices.data_sheets import find_data_sheet
from joulecast.estimators.data_parallel import (
    BackwardPart,
    GpuGroup,
    find_spread,
    make_ring,
    model_all_reduce,
    replicate_step,
)
from joulecast.records import Estimate, Setup

FOLDER = Path(__file__).parent
INPUT_BOUND = "input"
"""Remark on rows whose throughput may be that of loading images."""
# Power takes no part in durations.
_NO_POWER_W = 1.0
# The backward pass takes twice as long as the forward pass. Gradients come evenly in it, but those
# of embeddings come last.
_BACKWARD_SHARE = 2 / 3
_PARTS = 60
_WEIGHT_BYTES = 4
_Z95 = 1.96


@dataclass(frozen=True)
class ScalingRow:
    """Published throughputs of one GPU and of several, and what the model says."""

    name: str
    where: str
    gpus: int
    remark: str
    measured: float
    predicted: float
    predicted_sd: float

    @property
    def error(self) -> float:
        """Return the duration of a step predicted over measured, less 1."""
        return self.measured / self.predicted - 1.0

    @property
    def is_inside(self) -> bool:
        """Return whether the measured efficiency is inside the 95 % interval."""
        return abs(1 / self.measured - 1 / self.predicted) <= _Z95 * self.predicted_sd


@dataclass(frozen=True)
class DistributedStep:
    """A published step of several GPUs, and what is predicted for one of them and for all."""

    name: str
    measured_s: float
    neusight_s: float
    one_s: float
    all_s: float


def main(options: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, help="folder of NeuSight's tables")
    folder = parser.parse_args(options).data
    print_scaling(read_scaling(FOLDER / "published_scaling.csv"))
    if folder is not None:
        print_distributed(predict_distributed(FOLDER / "neusight_distributed.csv", folder))


def print_scaling(rows: Sequence[ScalingRow]) -> None:
    """Print scaling efficiencies and how far they are off."""
    print("| network | GPUs | efficiency measured | predicted | error of the step | in interval |")
    print("|---|---|---:|---:|---:|---|")
    for row in rows:
        note = " *" if row.remark == INPUT_BOUND else ""
        print(
            f"| {row.name}{note} | {row.gpus} × {row.where} | {row.measured:.3f} | "
            f"{row.predicted:.3f} | {100 * row.error:+.1f} % | {'yes' if row.is_inside else 'no'} |"
        )
    bound = [row for row in rows if row.remark != INPUT_BOUND]
    for label, chosen in (("all", rows), ("without *", bound)):
        errors = [abs(row.error) for row in chosen]
        inside = sum(row.is_inside for row in chosen)
        print(
            f"{label}: n = {len(chosen)}, MAPE {100 * sum(errors) / len(errors):.1f} %, median "
            f"{100 * median(errors):.1f} %, worst {100 * max(errors):.1f} %, inside {inside}"
        )


def print_distributed(rows: Sequence[DistributedStep]) -> None:
    """Print steps of several GPUs that were predicted from a data sheet."""
    print("\n| step | one GPU, predicted | all, predicted | measured | error | NeuSight |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        errors = [100 * (one / row.measured_s - 1) for one in (row.all_s, row.neusight_s)]
        durations = [f"{1e3 * one:.0f} ms" for one in (row.one_s, row.all_s, row.measured_s)]
        print(f"| {row.name} | {' | '.join(durations)} | {errors[0]:+.1f} % | {errors[1]:+.1f} % |")


def predict_distributed(path: Path, folder: Path) -> list[DistributedStep]:
    """Return NeuSight's distributed steps with predictions from data sheets.

    Args:
        path: The steps.
        folder: NeuSight's tables, of which kernels and steps of other GPUs are used.
    """
    kernels, steps = read_kernels(folder), read_steps(folder)
    found = []
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            device, gpus, batch = row["device"], int(row["gpus"]), int(row["batch"])
            tokens = int(row["tokens"])
            step = StepRow("", device, row["model"], TRAINING, tokens, batch, "fp32", 0.0)
            log_means, _ = fit_law(device, kernels, steps).predict([step])
            one_s = math.exp(log_means[0])
            link = find_data_sheet(device).link_bytes_per_s
            assert link is not None
            group = GpuGroup(gpus, link, _NO_POWER_W)
            together, _ = replicate_step(
                _make_step(device, one_s), step.network, Setup(batch), group
            )
            found.append(
                DistributedStep(
                    f"{row['model']}, batch {batch}, {gpus} × {device}",
                    1e-3 * float(row["measured_ms"]),
                    1e-3 * float(row["neusight_ms"]),
                    one_s,
                    together.duration_s,
                )
            )
    return found


def read_scaling(path: Path) -> list[ScalingRow]:
    """Return the published rows with predictions."""
    with path.open(newline="") as lines:
        return [_predict(row) for row in csv.DictReader(lines)]


def _predict(row: dict[str, str]) -> ScalingRow:
    gpus, batch = int(row["gpus"]), int(row["batch"])
    link = 1e9 * float(row["link_gb_s"])
    one, together = float(row["one_per_s"]), float(row["all_per_s"])
    step_s = batch / one
    all_bytes, last_bytes = (
        _WEIGHT_BYTES * 1e6 * float(row[name])
        for name in ("million_weights", "last_million_weights")
    )
    part = BackwardPart(_BACKWARD_SHARE * step_s / _PARTS, (all_bytes - last_bytes) / _PARTS)
    backward = [part] * _PARTS + [BackwardPart(0.0, last_bytes)]
    ring = make_ring(gpus, link, step_s, backward, _NO_POWER_W)
    added_s, sd_s = model_all_reduce(ring).added_s, find_spread(ring)[0]
    return ScalingRow(
        f"{row['network']}, batch {batch}, {row['precision']}",
        row["gpu"],
        gpus,
        row["remark"],
        together / one / gpus,
        step_s / (step_s + added_s),
        sd_s / step_s,
    )


def _make_step(device: str, duration_s: float) -> Estimate:
    """Return an estimate of which only the duration is known."""
    return Estimate(
        energy_j=1.0,
        interval_j=(0.9, 1.1),
        level=0.95,
        duration_s=duration_s,
        peak_memory_bytes=0,
        layers=(),
        unseen_share=0.0,
        provenance="datasheet",
        covers="gpu",
        device=device,
        estimator="additive",
    )


if __name__ == "__main__":
    main()
