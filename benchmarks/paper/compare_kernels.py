"""Compare kernels of the paper's method on the kept campaigns of a folder: Matern 5/2 and RBF.

    python benchmarks/paper/compare_kernels.py benchmarks/paper/results

Campaigns were chosen with Matern; only the fits differ.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from joulecast.features.evaluation import draw_nets
from joulecast.uses.reproduce import Laboratory, ObservationFile, ResultFolder
from joulecast.uses.reproduce.paper_settings import AMPERE
from joulecast.uses.reproduce.statistics import compute_errors_percent, compute_mape

FAMILIES = "lenet5", "cnn5", "har", "lstm", "transformer", "resnet34", "resnet50"
KERNELS = "matern", "rbf"


def main() -> None:
    """Print the MAPE of each family with each kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = ResultFolder(parser.parse_args().folder)
    identity = folder.read_identity()
    lab = Laboratory(ObservationFile(folder.observations), identity.profile, identity.settings)
    print(f"{'':12s}" + "".join(f"{kernel:>10s}" for kernel in KERNELS))
    rows = {family: [score(lab, family, kernel) for kernel in KERNELS] for family in FAMILIES}
    rows["mean"] = [fmean(column) for column in zip(*rows.values(), strict=True)]
    for family, mapes in rows.items():
        print(f"{family:12s}" + "".join(f"{mape:8.1f} %" for mape in mapes))


def score(lab: Laboratory, family: str, kernel: str) -> float:
    """Return the MAPE over the random test networks of a family."""
    plan = lab.settings.get_family(family).make_plan()
    measured_j = {net.name: net.measured_j for net in lab.evaluate_family(plan).nets}
    fitted = SubtractiveEstimator(kernel).fit(lab.find_training(plan, AMPERE).campaign)
    networks = [net for net in draw_nets(plan).test if net.name in measured_j]
    estimates_j = fitted.predict(networks, [plan.setup] * len(networks)).energy_j.tolist()
    errors = compute_errors_percent(estimates_j, [measured_j[net.name] for net in networks])
    return compute_mape(errors)


if __name__ == "__main__":
    main()
