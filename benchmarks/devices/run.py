"""Estimate devices that were never measured, from data sheets and from other GPUs.

    python -m benchmarks.devices.run neusight --data FOLDER    each of NeuSight's GPUs left out
    python -m benchmarks.devices.run published --data FOLDER   published steps, each GPU left out
    python -m benchmarks.devices.run h200 --data FOLDER        joules of the H200 as if unknown
    python -m benchmarks.devices.run fresh --data FOLDER       the same, networks of a later test
    python -m benchmarks.devices.run report                    tables of the kept predictions
    python -m benchmarks.devices.run build --data FOLDER       fit the shared model that ships

FOLDER has NeuSight's tables, which are not part of the project. ``--gpu`` chooses one GPU.
"""

from __future__ import annotations

import os

# Set before NumPy is imported: each process has one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.run import RESULTS as ACCURACY
from benchmarks.accuracy.run import SETTINGS
from benchmarks.anywhere.records import read_measured
from benchmarks.common import HERE as BENCHMARKS
from benchmarks.common import find_commit, read_bytes, read_json, write_json
from benchmarks.devices.tables import (
    H200,
    HERE,
    INFERENCE,
    PRODUCT_OPS,
    RIVALS,
    TRAINING,
    KernelRow,
    Row,
    StepRow,
    collect_all_devices,
    collect_devices,
    collect_metered,
    observe_row,
    read_kernels,
    read_published_steps,
    read_steps,
)
from joulecast.devices.data_sheets import find_data_sheet
from joulecast.estimators import find_estimator, fit_profile, load_fit
from joulecast.estimators.additive.estimator import FittedAdditive, start_from_sheet
from joulecast.estimators.additive.fit import (
    SHARED_FIT,
    SharedModel,
    extend_durations,
    fit_shared_durations,
    fit_shared_model,
    make_sheet_encoder,
)
from joulecast.estimators.additive.host_time import HostTimeModel, fit_host_time
from joulecast.estimators.additive.predict import AdditiveModel, predict_durations
from joulecast.estimators.additive.roofline import find_power_priors
from joulecast.estimators.base import Floats
from joulecast.features.nets import resolve_name
from joulecast.gp.lognormal import lognormal_interval
from joulecast.gp.logsums.posterior import FittedLogSums
from joulecast.operators import HOST_CALLS, network_work
from joulecast.records import DataSheet, Network, Observation, Setup
from joulecast.store.files import read_profile
from joulecast.store.profiles import SHIPPED
from joulecast.system.errors import InputError

Json = dict[str, Any]

RESULTS = HERE / "results"
SHEET, ANCHORS = "datasheet", "anchors"
"""What is known of a left-out GPU."""
LEVEL, Z95, ATLAS_S, FULL_POWER_W = 0.95, 1.959964, 60.0, 350.0
_MS = 1e-3
ANCHOR_SIZES = (
    ("linear", (1, 4096, 4096, 4096)),
    ("linear", (1, 8192, 2048, 8192)),
    ("linear", (1, 8192, 8192, 2048)),
    ("linear", (1, 2048, 8192, 2048)),
    ("bmm", (128, 1024, 96, 1024)),
    ("bmm", (128, 1024, 1024, 96)),
    ("addu", (16384, 4096)),
)
"""Anchors that are wanted; the tables have others on each GPU, and the nearest ones are taken."""
NOTICE = (
    "Durations of kernels and steps on P4, P100, V100, T4, A100, MI100 and MI210 are those of "
    "NeuSight (Lee, Phanishayee and Mahajan, ASPLOS 2025), Copyright (c) 2025 Georgia "
    "Institute of Technology and Microsoft Corporation, MIT licence; durations of image models on "
    "RTX 3090, 4090 and 5090 are those of timm (huggingface/pytorch-image-models, Apache-2.0), of "
    "BERT and ResNet-50 on twelve GPUs those of Lambda (lambdal/deeplearning-benchmark); powers "
    "are Joulecast's own, of an H200."
)


def main() -> None:
    """Run one part of the benchmark."""
    works = {
        "neusight": run_neusight,
        "published": run_published,
        "h200": run_h200,
        "fresh": run_h200,
        "report": report,
        "build": build,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=works)
    parser.add_argument("--data", type=Path, help="folder of NeuSight's tables")
    parser.add_argument("--out", type=Path, help="file to write; by default that of results/")
    parser.add_argument("--gpu", default="", help="only GPUs whose names contain this")
    args = parser.parse_args()
    if args.work != "report" and args.data is None:
        parser.error("give --data, the folder of NeuSight's tables")
    try:
        works[args.work](args)
    except InputError as error:
        sys.exit(str(error))


# ---------------------------------------------------------------------------------------------
# Durations of left-out GPUs


@dataclass(frozen=True)
class DurationLaw:
    """Joulecast's law of durations, fitted to other devices as the one that ships."""

    sheet: DataSheet
    fitted: FittedLogSums

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        """Return means and standard deviations of the logarithms of durations."""
        encoder = make_sheet_encoder(self.sheet)
        sums = encoder.sum_layers([row.counts for row in rows])
        logs = predict_durations(encoder, self.fitted, sums).logs
        return logs.log_mean, np.sqrt(logs.log_variance)

    def condition(self, anchors: Sequence[KernelRow]) -> DurationLaw:
        """Return the law given kernels of the device, as a profile with anchors has it."""
        if not anchors:
            return self
        encoder, rows = make_sheet_encoder(self.sheet), [observe_row(row) for row in anchors]
        return replace(self, fitted=extend_durations(encoder, self.fitted, rows))


def fit_law(device: str, kernels: Iterable[KernelRow], steps: Iterable[StepRow]) -> DurationLaw:
    """Fit the law to rows of all devices but one, with published steps."""
    others = collect_devices(
        [row for row in kernels if row.device != device],
        [*(row for row in steps if row.device != device), *read_published_steps(without=device)],
    )
    return DurationLaw(find_data_sheet(device), fit_shared_durations(others))


def choose_anchors(kernels: Iterable[KernelRow], device: str) -> list[KernelRow]:
    """Return six large products and a copy of a device; none of a device without kernels."""
    left = [one for one in kernels if one.device == device]
    chosen: list[KernelRow] = []
    for op, sizes in ANCHOR_SIZES:
        candidates = [one for one in left if one.op == op and one not in chosen]
        if candidates:
            logs = np.log(sizes)
            distances = [math.dist(np.log(one.sizes), logs) for one in candidates]
            chosen.append(candidates[int(np.argmin(distances))])
    return chosen


def run_neusight(args: argparse.Namespace) -> None:
    """Leave out each of NeuSight's GPUs and predict its steps and kernels."""
    out = args.out or RESULTS / "neusight.json.xz"
    kernels, steps = read_kernels(args.data), read_steps(args.data)
    results = read_json(out) if out.exists() else {}
    for device in choose_devices(steps, args.gpu):
        law, anchors = fit_law(device, kernels, steps), choose_anchors(kernels, device)
        own_steps = [row for row in steps if row.device == device]
        own_kernels = [row for row in kernels if row.device == device and row not in anchors]
        results[device] = {}
        for variant in (SHEET, ANCHORS) if anchors else (SHEET,):
            known = law.condition(anchors) if variant == ANCHORS else law
            results[device][variant] = {
                "commit": find_commit(__file__),
                "steps": predict_steps(known, own_steps),
                "kernels": score_kernels(known, own_kernels),
            }
        write_json(out, results)
        print(table_errors(results), flush=True)


def run_published(args: argparse.Namespace) -> None:
    """Leave out each GPU with published steps and predict them."""
    out = args.out or RESULTS / "published.json.xz"
    kernels, steps = read_kernels(args.data), read_steps(args.data)
    published = read_published_steps()
    results = read_json(out) if out.exists() else {}
    for device in choose_devices(published, args.gpu):
        law = fit_law(device, kernels, steps)
        rows = predict_steps(law, [row for row in published if row.device == device])
        results[device] = {"commit": find_commit(__file__), "steps": rows}
        write_json(out, results)
        print(describe_published(device, rows), flush=True)


def choose_devices(rows: Iterable[StepRow], part: str) -> list[str]:
    """Return the GPUs of rows whose names contain a part."""
    devices = sorted({row.device for row in rows})
    chosen = [one for one in devices if part in one]
    if not chosen:
        raise InputError(f"no GPU is called {part}: {', '.join(devices)}")
    return chosen


def predict_steps(law: DurationLaw, steps: Sequence[StepRow]) -> list[Json]:
    """Return a record of each step, with the roofline of the data sheet beside published ones."""
    if not steps:
        return []
    rows = []
    for row, log_mean, log_sd in zip(steps, *law.predict(steps), strict=True):
        rivals_s = dict(row.rivals_s)
        if row.source:
            work = network_work(row.network, row.setup).total
            peak, bandwidth = law.sheet.find_peak(row.precision), law.sheet.bytes_per_s
            rivals_s["roofline"] = max(work.flops / peak, work.size_bytes / bandwidth)
        rows.append(
            {
                "source": row.source,
                "model": row.model,
                "mode": row.mode,
                "size": row.size,
                "batch": row.batch,
                "precision": row.precision,
                "measured_ms": row.duration_s / _MS,
                "predicted_ms": math.exp(log_mean) / _MS,
                "log_sd": float(log_sd),
                **{f"{name}_ms": value_s / _MS for name, value_s in rivals_s.items()},
            }
        )
    return rows


def score_kernels(law: DurationLaw, kernels: Sequence[KernelRow]) -> dict[str, list[float]]:
    """Return errors of kernels by function, of 150 at random: medians of more are the same."""
    scores = {}
    for op in sorted({row.op for row in kernels}):
        rows = [row for row in kernels if row.op == op]
        order = np.random.default_rng(0).permutation(len(rows))[:150]
        rows = [rows[number] for number in sorted(order.tolist())]
        log_errors = law.predict(rows)[0] - np.log([row.duration_s for row in rows])
        scores[op] = [round(float(one), 4) for one in np.expm1(log_errors)]
    return scores


# ---------------------------------------------------------------------------------------------
# Tables


def report(args: argparse.Namespace) -> None:
    """Print the tables of the kept predictions."""
    neusight = read_json(RESULTS / "neusight.json.xz")
    print(table_errors(neusight), table_kernels(neusight), sep="\n")
    for device, found in read_json(RESULTS / "published.json.xz").items():
        print(describe_published(device, found["steps"]))
    for name in ("h200", "fresh"):
        for stage, rows in read_json(RESULTS / f"{name}.json.xz")["estimates"].items():
            print(name, stage, score_rows(rows))


def table_errors(results: dict[str, Json]) -> str:
    """Return the MAPE of each GPU and mode by method, and how often our intervals held."""
    methods = (SHEET, ANCHORS, *RIVALS)
    lines = [f"| GPU | | steps | {' | '.join(methods)} | inside 95 % |", "|---" * 10 + "|"]
    for mode in (TRAINING, INFERENCE):
        of_mode: list[Json] = []
        for device, variants in sorted(results.items()):
            rows = [row for row in list_scored(variants) if row["mode"] == mode]
            of_mode += rows
            if rows:
                lines.append(f"| {device} | {mode} | {format_scores(rows, methods)} |")
        if of_mode:
            lines.append(f"| all | {mode} | {format_scores(of_mode, methods)} |")
    return "\n".join(lines)


def list_scored(variants: Json) -> Iterator[Json]:
    """Yield each step of a GPU with the relative error of each method, and z of our own."""
    for number, row in enumerate(variants[SHEET]["steps"]):
        measured_ms = row["measured_ms"]
        errors = {n: row[f"{n}_ms"] / measured_ms - 1.0 for n in RIVALS if f"{n}_ms" in row}
        z = {}
        for name, found in variants.items():
            own = found["steps"][number]
            errors[name] = own["predicted_ms"] / measured_ms - 1.0
            z[name] = math.log1p(errors[name]) / own["log_sd"]
        yield {"mode": row["mode"], "errors": errors, "z": z}


def format_scores(rows: Sequence[Json], methods: Sequence[str]) -> str:
    """Return the number of steps, the MAPE of each method, and coverage of both of ours."""
    cells = [str(len(rows))]
    for name in methods:
        errors = [abs(row["errors"][name]) for row in rows if name in row["errors"]]
        cells.append(f"{np.mean(errors):.1%}" if errors else "")
    inside = [
        f"{np.mean([abs(row['z'][name]) <= Z95 for row in rows if name in row['z']]):.0%}"
        for name in (SHEET, ANCHORS)
        if any(name in row["z"] for row in rows)
    ]
    return " | ".join([*cells, " / ".join(inside)])


def table_kernels(results: dict[str, Json]) -> str:
    """Return the median error of products and of vector kernels of each GPU."""
    lines = ["| GPU | products | with anchors | vector | with anchors |", "|---" * 5 + "|"]
    for device, variants in sorted(results.items()):
        cells = []
        for is_product in (True, False):
            for name in (SHEET, ANCHORS):
                found = variants.get(name, {}).get("kernels", {}).items()
                errors = [e for op, own in found if (op in PRODUCT_OPS) == is_product for e in own]
                cells.append(f"{np.median(np.abs(errors)):.1%}" if errors else "")
        if any(cells):
            lines.append(f"| {device} | {' | '.join(cells)} |")
    return "\n".join(lines)


def describe_published(device: str, steps: Sequence[Json]) -> str:
    """Return a line about the predictions for a GPU."""
    measured, predicted, roofline, log_sds = (
        np.array([one[name] for one in steps])
        for name in ("measured_ms", "predicted_ms", "roofline_ms", "log_sd")
    )
    errors = predicted / measured - 1.0
    inside = np.abs(np.log(predicted / measured)) <= Z95 * log_sds
    return (
        f"{device}: {len(steps)} steps, MAPE {np.mean(np.abs(errors)):.1%}, median "
        f"{np.median(np.abs(errors)):.1%}, mean error {np.mean(errors):+.1%}, "
        f"{np.mean(inside):.0%} inside; roofline {np.mean(np.abs(roofline / measured - 1.0)):.1%}"
    )


# ---------------------------------------------------------------------------------------------
# Joules of an H200 as if it had never been measured


@dataclass(frozen=True)
class MeasuredStep:
    """A network of ours with the measured energy and duration of a step on an H200."""

    test: str
    name: str
    network: Network
    setup: Setup
    energy_j: float
    duration_s: float


@dataclass(frozen=True)
class BlindModel(SharedModel):
    """A shared model to which neither powers nor durations of an H200 are known."""

    def start_model(self, sheet: DataSheet) -> AdditiveModel:
        """Return the model of a device that was never measured."""
        model, priors = super().start_model(sheet), find_power_priors(sheet, [H200])
        assert model.encoder.hardware is not None
        powers_w = tuple(median_w for median_w, _ in priors.coefficients)
        hardware = replace(model.encoder.hardware, powers_w=powers_w)
        encoder = replace(model.encoder, hardware=hardware)
        return replace(model, encoder=encoder, idle_w=priors.idle_w[0])


def run_h200(args: argparse.Namespace) -> None:
    """Estimate every network with more and more known of the H200; write and print."""
    is_fresh = args.work == "fresh"
    steps = list(read_measured_steps(is_fresh))
    devices = collect_all_devices(args.data)
    nothing = np.zeros(0)
    found = fit_shared_model(devices, devices, fit_host_time([], nothing, nothing))
    shared, sheet = BlindModel(**vars(found)), find_data_sheet(H200)
    anchors = read_anchors("h200-anchors-fourth" if is_fresh else "h200-anchors")
    left_s = ATLAS_S - sum(one.cost_s for one in anchors)
    known: dict[str, Sequence[Observation]] = {
        "data sheet": [],
        "anchors": [replace(one, energy_j=None) for one in anchors if one.trial.network.layers],
        "anchors with energy": anchors,
        "60 s of atlas": read_atlas(ATLAS_S),
        "60 s, of which anchors": [*anchors, *read_atlas(left_s)],
        "anchors and 60 s of atlas": [*anchors, *read_atlas(ATLAS_S)],
    }
    stages: dict[str, list[Json]] = {}
    for name, observations in known.items():
        stages[name] = estimate_steps(start_from_sheet(sheet, observations, shared), steps)
        print(name, score_rows(stages[name]), flush=True)
    shipped = fit_profile(read_profile(SHIPPED / f"{H200}.json")).fitted
    assert isinstance(shipped, FittedAdditive)
    stages["shipped profile"] = estimate_steps(shipped, steps)
    for share in (1.0, 0.5):
        rows = stages[f"FLOPs over {share:g} of the peak x power limit"] = []
        for one in steps:
            flops = network_work(one.network, one.setup).total.flops
            duration_s = flops / (share * sheet.find_peak(one.setup.precision))
            rows.append(make_row(one, duration_s * sheet.power_limit_w, duration_s))
    result = {
        "measured": "on H200s, by Joulecast",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "observations": {name: len(found) for name, found in known.items()},
        "scores": {name: score_rows(rows) for name, rows in stages.items()},
        "estimates": stages,
    }
    write_json(args.out or RESULTS / f"{args.work}.json.xz", result)
    for name, rows in stages.items():
        print(name, score_rows(rows))


def read_measured_steps(is_fresh: bool) -> Iterator[MeasuredStep]:
    """Yield networks that were measured: of the fourth test, or of all others and of families."""
    for test in ("fourth",) if is_fresh else ("first", "second", "third"):
        for name, network, setup, truth in read_measured(test):
            yield MeasuredStep(
                "anywhere", name, network, setup, truth["energy_j"], truth["duration_s"]
            )
    settings = {} if is_fresh else {one.name: one for one in SETTINGS}
    for row in read_json(ACCURACY / "nets.json.xz")["nets"]:
        if (setting := settings.get(row["setting"])) is not None:
            network = resolve_name(row["name"], input_shape=setting.input_shape).network
            values = row["measured_j"], row["measured_s"]
            yield MeasuredStep(setting.name, row["name"], network, setting.setup, *values)


def read_atlas(seconds: float) -> list[Observation]:
    """Return what an atlas campaign observes in its first seconds of device time."""
    rows = read_json(BENCHMARKS / "atlas" / "results" / "observations.json.xz")
    found = []
    for one in sorted(map(Observation.from_dict, rows), key=lambda row: row.taken_at_s):
        seconds -= one.cost_s
        if seconds < 0:
            break
        found.append(one)
    return found


def read_anchors(name: str) -> list[Observation]:
    """Return the anchors of one H200, as ``joulecast profile --anchors`` measures them."""
    lines = read_bytes(RESULTS / f"{name}.jsonl.xz").splitlines()
    return [Observation.from_dict(json.loads(line)) for line in lines]


def estimate_steps(fitted: FittedAdditive, steps: Sequence[MeasuredStep]) -> list[Json]:
    """Return the estimate of every network beside its measurement."""
    rows = []
    for start in range(0, len(steps), 20):
        some = steps[start : start + 20]
        found = fitted.predict([one.network for one in some], [one.setup for one in some])
        for at, one in enumerate(some):
            mean_j, sd_j = float(found.energy_j[at]), float(found.energy_sd_j[at])
            interval_j = lognormal_interval(mean_j, sd_j**2, LEVEL)
            rows.append(make_row(one, mean_j, float(found.duration_s[at]), interval_j))
    return rows


def make_row(
    step: MeasuredStep, energy_j: float, duration_s: float, interval_j: Sequence[float] = ()
) -> Json:
    """Return an estimate as JSON, rounded."""
    values = {
        "measured_j": step.energy_j,
        "energy_j": energy_j,
        "measured_s": step.duration_s,
        "duration_s": duration_s,
    }
    rounded: Json = {name: float(f"{value:.5g}") for name, value in values.items()}
    if interval_j:
        rounded["interval_j"] = [float(f"{bound:.5g}") for bound in interval_j]
    fills = step.energy_j / step.duration_s >= FULL_POWER_W
    return {"test": step.test, "name": step.name, "fills": fills, **rounded}


def score_rows(rows: Sequence[Json]) -> Json:
    """Return errors of joules and seconds in percent, coverage and width, in all and by group."""
    groups = {
        "all": rows,
        "fill the card": [row for row in rows if row["fills"]],
        "wait for the host": [row for row in rows if not row["fills"]],
        "anywhere": [row for row in rows if row["test"] == "anywhere"],
        "families": [row for row in rows if row["test"] != "anywhere"],
    }
    scores: Json = {}
    for group, own in groups.items():
        if not own:
            continue
        energy_j, measured_j, duration_s, measured_s = (
            np.array([row[name] for row in own])
            for name in ("energy_j", "measured_j", "duration_s", "measured_s")
        )
        errors, seconds = 100 * (energy_j / measured_j - 1), 100 * (duration_s / measured_s - 1)
        score = {
            "n": len(own),
            "mape": np.mean(np.abs(errors)),
            "median": np.median(np.abs(errors)),
            "bias": np.mean(errors),
            "seconds_mape": np.mean(np.abs(seconds)),
        }
        if "interval_j" in own[0]:
            low_j, high_j = np.array([row["interval_j"] for row in own]).T
            score["inside"] = 100 * np.mean((low_j <= measured_j) & (measured_j <= high_j))
            score["width"] = np.median(100 * (high_j - low_j) / energy_j)
        scores[group] = {name: round(float(value), 1) for name, value in score.items()}
    return scores


# ---------------------------------------------------------------------------------------------
# The model that ships


def build(args: argparse.Namespace) -> None:
    """Fit the model that several GPUs share, and write it where the package ships it."""
    devices = collect_all_devices(args.data)
    model = fit_shared_model(devices, collect_metered(), find_host_time(), NOTICE)
    data = model.to_dict()
    out = args.out or SHARED_FIT
    out.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    rows = model.duration.observations.size, model.power.observations.size
    print(f"{len(devices)} devices, {rows[0]} durations, {rows[1]} powers: {out}")


def find_host_time() -> HostTimeModel:
    """Return the host of the shipped H200 profile, for training and inference."""
    fitted = load_fit(read_profile(SHIPPED / f"{H200}.json"), find_estimator("additive"))
    assert isinstance(fitted, FittedAdditive)
    training = fitted.host_time
    inference = fitted.for_phase("inference").host_time
    per_call_s = tuple(
        (inference if name.startswith("inference") else training).per_call_s[at]
        for at, name in enumerate(HOST_CALLS)
    )
    factors = {**inference.structure_factors, **training.structure_factors}
    return replace(training, per_call_s=per_call_s, structure_factors=factors)


if __name__ == "__main__":
    main()
