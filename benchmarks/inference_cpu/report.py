"""Fit estimators to the measured kernels and score them on the nets of the benchmark.

    python benchmarks/inference_cpu/report.py OUT [--group test]

Reads OUT/visits.json and OUT/networks.json, prints the tables and writes OUT/report.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.estimators.kernels.estimator import (
    KernelEstimator,
    KernelForestEstimator,
    KernelProcessEstimator,
)
from joulecast.fusion import find_fusion_table, list_kernels
from joulecast.kinds import network_work
from joulecast.records import Network, Observation, Setup, Trial

RUNTIME = "onnxruntime"
READERS = ("onnx", "torch")


def load_observations(items: Sequence[Mapping[str, Any]], runtime: str) -> list[Observation]:
    """Return what was measured: the median of the visits of each item."""
    found = []
    for item in items:
        visits = item["visits_s"]
        if not visits:
            continue
        spread_s = statistics.stdev(visits) if len(visits) > 1 else 0.02 * visits[0]
        found.append(
            Observation(
                Trial.from_dict(item["trial"]),
                duration_s=statistics.median(visits),
                duration_sd_s=spread_s,
                count=len(visits),
                runtime=runtime,
            )
        )
    return found


def fit_flops(observations: Sequence[Observation]) -> tuple[float, float]:
    """Return seconds per FLOP and per run that minimise the relative squared error."""
    rows, durations = [], []
    for seen in observations:
        trial = seen.trial
        flops = network_work(trial.network, trial.setup).total.flops * trial.execution.copies
        if flops and seen.duration_s:
            rows.append((flops, 1.0))
            durations.append(seen.duration_s)
    from scipy.optimize import nnls

    scaled = np.array(rows) / np.array(durations)[:, None]
    rates, _ = nnls(scaled, np.ones(len(rows)))
    return float(rates[0]), float(rates[1])


def predict_flops(rates: tuple[float, float], networks: Sequence[Network], setup: Setup) -> Any:
    """Return the seconds of networks by their FLOPs."""
    return [rates[0] * network_work(one, setup).total.flops + rates[1] for one in networks]


def count_shared(
    observations: Sequence[Observation], nets: Sequence[Mapping[str, Any]], setup: Setup
) -> int:
    """Return how many of the measured kernels a net of the benchmark runs, too."""
    table = find_fusion_table(RUNTIME, setup)
    networks = [Trial.from_dict(one["trial"]).network for one in nets]
    own = {(k.kind, k.features) for one in networks for k in list_kernels(one, setup, table)}
    measured = (list_kernels(seen.trial.network, setup, table) for seen in observations)
    return sum(len(found) == 1 and (found[0].kind, found[0].features) in own for found in measured)


def score(predicted_s: Sequence[float], measured_s: Sequence[float]) -> dict[str, Any]:
    """Return the error of each net in percent, and their mean."""
    errors = [100.0 * (p / m - 1.0) for p, m in zip(predicted_s, measured_s, strict=True)]
    mape = statistics.fmean(map(abs, errors))
    return {"errors_percent": [round(one, 1) for one in errors], "mape_percent": round(mape, 2)}


def report(folder: Path, group: str) -> dict[str, Any]:
    """Return all figures."""
    found = json.loads((folder / "visits.json").read_text(encoding="utf-8"))
    read = json.loads((folder / "networks.json").read_text(encoding="utf-8"))
    setup, items = Setup.from_dict(found["setup"]), found["items"]
    runtime = f"onnxruntime-{found['machine']['onnxruntime']}"
    by_group = {
        name: load_observations([one for one in items if one["group"] == name], runtime)
        for name in ("overhead", "kernel", "family", "own")
    }
    nets = [one for one in items if one["group"] == group and one["visits_s"]]
    measured_s = [statistics.median(one["visits_s"]) for one in nets]
    alone = [*by_group["overhead"], *by_group["kernel"]]
    profiles = {
        "kernels": alone,
        "kernels and families": [*alone, *by_group["family"]],
        "kernels and the nets' own": [*alone, *by_group["own"]],
    }
    rows: dict[str, Any] = {}
    for reader in READERS:
        by_name = {one["name"]: Network.from_dict(one[reader]) for one in read}
        networks = [by_name[one["name"]] for one in nets]
        estimators: tuple[KernelEstimator, ...] = (
            KernelProcessEstimator(),
            KernelForestEstimator(),
        )
        for estimator in estimators:
            for title, observations in profiles.items():
                prediction = estimator.fit(observations).predict(networks, [setup] * len(nets))
                rows[f"{estimator.name}, {title}, {reader}"] = score(
                    prediction.duration_s.tolist(), measured_s
                )
        for title, observations in (
            ("kernels", by_group["kernel"]),
            ("families", by_group["family"]),
        ):
            predicted_s = predict_flops(fit_flops(observations), networks, setup)
            rows[f"FLOPs, {title}, {reader}"] = score(predicted_s, measured_s)
    spreads = [
        statistics.stdev(one["visits_s"]) / statistics.median(one["visits_s"])
        for one in nets
        if len(one["visits_s"]) > 1
    ]
    return {
        "machine": found["machine"],
        "setup": found["setup"],
        "kernels": len(by_group["kernel"]),
        "shared_kernels": count_shared(by_group["kernel"], nets, setup),
        "refused": sum("refusal" in one for one in items),
        "nets": [one["name"] for one in nets],
        "measured_ms": [round(1e3 * one, 3) for one in measured_s],
        "visits": [len(one["visits_s"]) for one in nets],
        "visit_spread_percent": [round(100 * one, 1) for one in spreads],
        "scores": rows,
    }


def main() -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--group", default="test")
    options = parser.parse_args()
    found = report(options.out, options.group)
    print(json.dumps({key: one for key, one in found.items() if key != "scores"}, indent=1))
    print(f"| error, % | MAPE | {' | '.join(found['nets'])} |")
    for name, row in found["scores"].items():
        errors = " | ".join(f"{one:+.1f}" for one in row["errors_percent"])
        print(f"| {name} | {row['mape_percent']:.1f} | {errors} |")
    path = options.out / f"report-{options.group}.json"
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
