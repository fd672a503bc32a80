"""Predict the energy of published convolution kernels of two phones, on random 80/20 splits.

The files are DeepEn2023's measurements of conv+bn+relu kernels (PlatformX). They have no licence
and are not part of the project: their paths are arguments, and no row is printed or stored.

    python benchmarks/kernels/run.py --cpu FILE --gpu FILE
    python benchmarks/kernels/run.py --cpu FILE --seeds 3 --out DIR      a quick run of one file
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from joulecast.estimators.base import Floats, fit_work_rates
from joulecast.estimators.kernels.fitted_kernels import (
    fit_forest,
    fit_process,
    fit_work_mean,
    list_features,
    name_features,
)
from joulecast.fusion import FUSION_TABLES, FusedKernel, list_kernels
from joulecast.gp.lognormal import minimise_relative_error
from joulecast.kinds import make_layer, make_op
from joulecast.records import Input, Network, Setup
from joulecast.testing.commits import find_commit

COLUMNS = ("size", "kernel", "stride", "channels_in", "channels_out", "energy_mj")
SETUP = Setup(batch=1, phase="inference")
SEEDS = 30
TRAINING_SHARE = 0.8
WITHIN = 0.1
Z95 = 1.959964
# The files have three decimals: energies of a few microjoules are known to about one.
RESOLUTION_MJ = 0.001
LEAST_SD_SHARE = 0.01


@dataclass(frozen=True)
class KernelSet:
    """Kernels of one processor and their energies."""

    kernels: tuple[FusedKernel, ...]
    energies_mj: Floats

    def take(self, places: Sequence[int]) -> KernelSet:
        """Return some of the kernels."""
        return KernelSet(tuple(self.kernels[at] for at in places), self.energies_mj[list(places)])


@dataclass(frozen=True)
class KernelPredictions:
    """Predictions of test kernels; methods without intervals have no variances."""

    energies_mj: Floats
    log_means: Floats | None = None
    log_variances: Floats | None = None


Method = Callable[[KernelSet, KernelSet], KernelPredictions]


def main() -> None:
    """Score all methods on the given files, print and store the figures."""
    args = parse_arguments()
    files = {name: path for name, path in (("cpu", args.cpu), ("gpu", args.gpu)) if path}
    if not files:
        sys.exit("give the file of at least one processor: --cpu FILE or --gpu FILE")
    results: dict[str, Any] = {
        "commit": find_commit(__file__),
        "seeds": args.seeds,
        "sets": {},
    }
    for name, path in files.items():
        results["sets"][name] = score_file(path, args.seeds)
        print_table(name, results["sets"][name])
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results, indent=1) + "\n"
    (args.out / "phones.json").write_text(text, encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cpu", type=Path, help="kernels measured on a phone's CPU")
    parser.add_argument("--gpu", type=Path, help="kernels measured on a phone's GPU")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of random splits")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def read_kernels(path: Path) -> KernelSet:
    """Return the kernels of a file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        values = [[float(row[name]) for name in COLUMNS] for row in rows]
    except FileNotFoundError:
        sys.exit(f"there is no file {path}: give a CSV file with the columns {', '.join(COLUMNS)}")
    except (KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
        sys.exit(f"{path} is not such a file ({error}): it needs the columns {', '.join(COLUMNS)}")
    kernels = [make_kernel(*map(int, row[:-1])) for row in values]
    return KernelSet(tuple(kernels), np.array([row[-1] for row in values]))


def make_kernel(size: int, kernel: int, stride: int, cin: int, cout: int) -> FusedKernel:
    """Return a convolution with a norm and ReLU, as one kernel."""
    tail = (make_op("batch_norm"), make_op("elementwise", fn="relu"))
    sizes = {"cin": cin, "cout": cout, "space": (size, size), "kernel": kernel, "stride": stride}
    layer = make_layer("conv2d", tail, padding=kernel // 2, bias=0, **sizes)
    network = Network((layer,), Input((cin, size, size)))
    (found,) = list_kernels(network, SETUP, FUSION_TABLES["tflite"])
    return found


def score_file(path: Path, seeds: int) -> dict[str, Any]:
    """Return the figures of every method, over random splits."""
    data = read_kernels(path)
    scores: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(data.kernels))
        count = int(TRAINING_SHARE * len(order))
        training, test = data.take(order[:count].tolist()), data.take(order[count:].tolist())
        for name, predict in METHODS.items():
            scores[name].append(score(predict(training, test), test.energies_mj))
    return {
        "kernels": len(data.kernels),
        "methods": {name: summarise(rows) for name, rows in scores.items()},
    }


def score(found: KernelPredictions, energies_mj: Floats) -> dict[str, float]:
    """Return the errors of one split."""
    errors = np.abs(found.energies_mj / energies_mj - 1.0)
    row = {"mape": float(errors.mean()), "within_10_percent": float((errors <= WITHIN).mean())}
    if found.log_means is None or found.log_variances is None:
        return row
    medians = np.abs(np.exp(found.log_means) / energies_mj - 1.0)
    deviations = np.abs(np.log(energies_mj) - found.log_means)
    is_inside = deviations <= Z95 * np.sqrt(found.log_variances + _noise(energies_mj))
    return {**row, "mape_of_medians": float(medians.mean()), "coverage": float(is_inside.mean())}


def summarise(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return means over splits, and the standard deviation of the MAPE between them."""
    means = {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
    return {**means, "mape_sd": round(float(np.std([row["mape"] for row in rows])), 4)}


def predict_by_process(training: KernelSet, test: KernelSet) -> KernelPredictions:
    """Predict with the Gaussian process of ``kernel-gp``."""
    fitted = fit_process(training.kernels, training.energies_mj, _sd_shares(training))
    return _predict_logs(*fitted.predict(test.kernels))


def predict_by_forest(training: KernelSet, test: KernelSet) -> KernelPredictions:
    """Predict with the random forest of ``kernel-forest``: its medians, the best of it."""
    fitted = fit_forest(training.kernels, training.energies_mj, _sd_shares(training))
    log_means, covariance = fitted.predict(test.kernels)
    return KernelPredictions(np.exp(log_means), log_means, np.diag(covariance))


def predict_by_plain_forest(training: KernelSet, test: KernelSet) -> KernelPredictions:
    """Predict with a random forest of the energies themselves, as DeepEn2023 does."""
    names = name_features(training.kernels)
    forest = RandomForestRegressor(100, random_state=0)
    forest.fit(list_features(training.kernels, names), training.energies_mj)
    return KernelPredictions(forest.predict(list_features(test.kernels, names)))


def predict_by_work(training: KernelSet, test: KernelSet) -> KernelPredictions:
    """Predict with the process's mean alone: linear in FLOPs, bytes and depth."""
    fitted = fit_work_mean([(one,) for one in training.kernels], training.energies_mj)
    return KernelPredictions(np.exp(fitted.log_costs(test.kernels)))


def predict_by_flops(training: KernelSet, test: KernelSet) -> KernelPredictions:
    """Predict with a straight line over FLOPs."""
    lines = [np.array([[one.flops, 1.0] for one in each.kernels]) for each in (training, test)]
    rates, _ = fit_work_rates(lines[0], training.energies_mj, training.energies_mj)
    return KernelPredictions(lines[1] @ rates)


METHODS: dict[str, Method] = {
    "kernel-gp": predict_by_process,
    "kernel-forest": predict_by_forest,
    "plain forest": predict_by_plain_forest,
    "work-linear": predict_by_work,
    "flops-linear": predict_by_flops,
}


def print_table(name: str, figures: dict[str, Any]) -> None:
    """Print the figures of one file."""
    print(f"\n{name}, {figures['kernels']} kernels")
    for method, row in figures["methods"].items():
        coverage = f", coverage {row['coverage']:.0%}" if "coverage" in row else ""
        print(
            f"  {method:14} MAPE {row['mape']:.1%} (sd {row['mape_sd']:.1%}), within 10 %: "
            f"{row['within_10_percent']:.0%}{coverage}"
        )


def _predict_logs(log_means: Floats, covariance: Floats) -> KernelPredictions:
    variances = np.diag(covariance)
    return KernelPredictions(minimise_relative_error(log_means, variances), log_means, variances)


def _sd_shares(data: KernelSet) -> Floats:
    return np.sqrt(_noise(data.energies_mj))


def _noise(energies_mj: Floats) -> Floats:
    """Return the noise variance of the logarithms of energies."""
    return np.asarray(np.maximum(LEAST_SD_SHARE, RESOLUTION_MJ / energies_mj) ** 2)


if __name__ == "__main__":
    main()
