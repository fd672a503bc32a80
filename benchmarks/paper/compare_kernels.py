"""Compare kernels of the paper's method on the kept campaigns of a folder: Matern 5/2 and RBF.

    python -m benchmarks.paper.compare_kernels benchmarks/paper/results

Campaigns were chosen with Matern; only the fits differ.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
from papers.ampere.experiment import AMPERE, SIZES, compute_mape, list_errors
from papers.ampere.lab import Folder, Lab

KERNELS = "matern", "rbf"


def main(folder: str) -> None:
    """Print the MAPE of each family with each kernel."""
    lab = Lab(Folder(Path(folder)))
    families = SIZES["families"]
    rows = {family: [score(lab, family, kernel) for kernel in KERNELS] for family in families}
    rows["mean"] = [fmean(column) for column in zip(*rows.values(), strict=True)]
    print(f"{'':12s}" + "".join(f"{kernel:>10s}" for kernel in KERNELS))
    for family, mapes in rows.items():
        print(f"{family:12s}" + "".join(f"{mape:8.1f} %" for mape in mapes))


def score(lab: Lab, family: str, kernel: str) -> float:
    """Return the MAPE over the random test networks of a family."""
    plan = lab.settings.plan_family(family)
    measured_j = {net.name: net.measured_j for net in lab.evaluate(family).nets}
    fitted = SubtractiveEstimator(kernel=kernel).fit(lab.find_training(family, AMPERE).campaign)
    networks = [net for net in plan.drawn.test if net.name in measured_j]
    estimates_j = fitted.predict(networks, [plan.setup] * len(networks)).energy_j.tolist()
    return compute_mape(list_errors(estimates_j, [measured_j[net.name] for net in networks]))


if __name__ == "__main__":
    main(sys.argv[1])
