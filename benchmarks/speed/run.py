"""Time estimates, fits, probes and the command on this machine.

Devices are simulated, only the clock is real. Every figure is taken several times, each in a new
process so that nothing is cached, and the minimum counts: other load can make a figure larger,
never smaller.

    python -m benchmarks.speed.run                                 a table, about 3 minutes
    python -m benchmarks.speed.run --repeats 5 --out benchmarks/speed/results/two-cores.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import joulecast
from benchmarks.common import find_commit, find_processor, read_json, write_json
from joulecast.estimators import find_estimator, fit_profile
from joulecast.estimators.base import Target
from joulecast.families import draw_family, make_family
from joulecast.operators import network_work
from joulecast.records import Execution, Network, Observation, Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.store.files import read_profile
from joulecast.store.profiles import SHIPPED
from joulecast.variants import make_isolated_trial, make_variant, split_blocks, split_network

SETUP = Setup(batch=32)
FAMILY, MIXED = "cnn5", ("resnet18", "resnet50", "cnn5")
DEVICE_SEED, FIT_SEED, NET_SEED = 300, 3, 4
HEAVY = ("scipy", "sklearn", "torch", "pandas", "transformers", "threadpoolctl")
COMMAND = ("estimate", "cnn5:8,16,32,64", "--device", "nvidia-h200")
PROBED = "resnet50:48,10,25,45,19"

Json = dict[str, Any]


def main() -> None:
    """Measure everything, or one thing if called by itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(MEASURES[args.measure][1](args.folder)))
        return
    found: dict[str, list[Json]] = {name: [] for name in MEASURES}
    with tempfile.TemporaryDirectory() as folder:
        # Fits of both estimators to 70 observations, for processes that only predict.
        for name, seen in (
            ("additive", observe_layers(["cnn5"], 70, 0)),
            ("subtractive", observe_variants(70)),
        ):
            write_json(Path(folder) / f"{name}.json", find_estimator(name).fit(seen).to_dict())
        # In turns, so that all meet the same other load; the largest fit once.
        for turn in range(args.repeats):
            for name in MEASURES:
                if turn == 0 or name != "fit_500":
                    command = [sys.executable, "-m", "benchmarks.speed.run", "--measure", name]
                    done = subprocess.run(
                        [*command, "--folder", folder], capture_output=True, check=True
                    )
                    found[name].append(json.loads(done.stdout))
    best = {name: min(rows, key=lambda row: row["cpu_s"]) for name, rows in found.items()}
    report = {
        "processor": find_processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "repeats": args.repeats,
        "best": best,
        "all_cpu_s": {name: [row["cpu_s"] for row in rows] for name, rows in found.items()},
    }
    if args.out:
        write_json(args.out, report)
    print(make_table(report))


# ---------------------------------------------------------------------------------------------
# Observations


def observe(trial: Trial) -> Observation:
    """Return an observation of a simulated device, with a standard deviation of 0.5 %."""
    cost = make_simulated_device(DEVICE_SEED).true_cost(trial)
    return Observation(
        trial,
        energy_j=cost.energy_j,
        energy_sd_j=0.005 * cost.energy_j,
        duration_s=cost.duration_s,
        duration_sd_s=0.005 * cost.duration_s,
        issue_s=cost.issue_s,
        count=3,
        provenance="simulated",
    )


def observe_layers(families: Sequence[str], alone: int, whole: int) -> list[Observation]:
    """Return isolated layers and whole networks as CUDA graphs, and the idle device."""
    rng = random.Random(FIT_SEED)
    networks = [draw_family(families[at % len(families)], rng.randint) for at in range(whole)]
    trials: dict[str, Trial] = {}
    while len(trials) < alone:
        network = draw_family(families[len(trials) % len(families)], rng.randint)
        for place in split_network(network):
            trial = make_isolated_trial(place.block, SETUP, "graph")
            trials[trial.key] = trial
    isolated = list(trials.values())[:alone]
    graphs = [Trial(network, SETUP, Execution(mode="graph")) for network in networks]
    return list(map(observe, [*isolated, *graphs, Trial(Network(), Setup())]))


def observe_variants(points: int) -> list[Observation]:
    """Return the paper's variants of random networks."""
    rng, original, trials = random.Random(FIT_SEED), make_family(FAMILY), dict[str, Trial]()
    while len(trials) < points:
        for place in split_blocks(draw_family(FAMILY, rng.randint)):
            trial = Trial(make_variant(place.block, original), SETUP)
            trials[trial.key] = trial
    return list(map(observe, list(trials.values())[:points]))


# ---------------------------------------------------------------------------------------------
# Measures


def time_call(work: Callable[[], Any]) -> Json:
    """Return CPU time, wall time and peak memory of a call."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return {
        "cpu_s": round(time.process_time() - cpu_s, 4),
        "wall_s": round(time.perf_counter() - started_s, 4),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def time_prediction(folder: Path, name: str, count: int, at_once: bool = True) -> Json:
    """Time the prediction of random networks with intervals, without drawing them."""
    data, rng = read_json(folder / f"{name}.json"), random.Random(NET_SEED)
    drawn = [draw_family(FAMILY, rng.randint) for _ in range(count)]
    groups = [drawn] if at_once else [[network] for network in drawn]

    def predict() -> None:
        for group in groups:
            fitted = find_estimator(name).load(data)
            found = fitted.predict(group, [SETUP] * len(group), per_layer=True)
            assert np.isfinite(found.energy_sd_j).all()

    return time_call(predict)


def time_fit(folder: Path, alone: int, whole: int) -> Json:
    """Time a fit to observations of many kinds."""
    observations = observe_layers(MIXED, alone, whole)
    return time_call(lambda: find_estimator("additive").fit(observations))


def time_profile(folder: Path, parse: bool) -> Json:
    """Time reading the shipped profile, with or without parsing its observations."""
    file = SHIPPED / "nvidia-h200.json"

    def read() -> object:
        profile = read_profile(file)
        # Observations stay packed until one of them is asked for.
        return list(profile.observations) if parse else profile

    return time_call(read)


def time_probe(folder: Path) -> Json:
    """Time what a probe of a network computes beside its measurements, which are made up."""
    profile, estimator = joulecast.load_profile("nvidia-h200"), find_estimator("additive")
    network, setup = make_family(PROBED), Setup(batch=16)
    target = Target(network, setup, "probe", networks=(network,), modes=("graph", "eager"))

    def make_up(trial: Trial, with_energy: bool) -> Observation:
        work = network_work(trial.network, trial.setup).total
        duration_s = 1e-5 * work.launches + work.flops / 3e13 + work.size_bytes / 3e12
        duration_s *= trial.execution.copies
        return replace(
            profile.observations[-1],
            trial=trial,
            duration_s=duration_s,
            energy_j=400.0 * duration_s if with_energy else None,
            issue_s=duration_s if trial.execution.mode == "eager" else None,
            refusal="",
        )

    def probe() -> None:
        observations, fitted = list(profile.observations), fit_profile(profile, "additive").fitted
        for _ in range(60):
            proposal = estimator.propose(target, [*observations], fitted)
            fitted = proposal.fitted or fitted
            if proposal.trial is None:
                break
            trials = proposal.probes or (proposal.trial,)
            observations += [make_up(trial, proposal.with_energy) for trial in trials]
        estimator.fit(observations, fitted).predict([network], [setup], per_layer=True)

    return time_call(probe)


def time_command(folder: Path, *words: str) -> Json:
    """Time a Python process from start to end, and name heavy modules that it imports."""
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], capture_output=True, check=True)
    wall_s, after = time.perf_counter() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", *words], capture_output=True, text=True, check=True
    )
    names = {line.rpartition("|")[2].strip() for line in listed.stderr.splitlines()}
    return {
        "cpu_s": round(cpu_s, 4),
        "wall_s": round(wall_s, 4),
        "peak_bytes": after.ru_maxrss * 1024,
        "modules": len(names),
        "own_modules": sum(name.startswith("joulecast") for name in names),
        "heavy": sorted({name.partition(".")[0] for name in names} & set(HEAVY)),
    }


MEASURES: dict[str, tuple[str, Callable[[Path], Json]]] = {
    "together": (
        "predict 10,000 networks with intervals, nothing cached",
        partial(time_prediction, name="additive", count=10_000),
    ),
    "few": ("predict 500 networks", partial(time_prediction, name="additive", count=500)),
    "subtractive": (
        "predict 500 networks, the paper's method",
        partial(time_prediction, name="subtractive", count=500),
    ),
    "apart": (
        "predict 200 networks, one at a time",
        partial(time_prediction, name="additive", count=200, at_once=False),
    ),
    "fit_100": ("fit 101 observations of many layers", partial(time_fit, alone=60, whole=40)),
    "fit_500": ("fit 501 observations (once)", partial(time_fit, alone=300, whole=200)),
    "probe": (f"compute the probes of {PROBED}", time_probe),
    "read": ("read the shipped profile", partial(time_profile, parse=False)),
    "parse": ("read it and parse every observation", partial(time_profile, parse=True)),
    "command": (
        "`joulecast estimate` with the shipped profile, start to end",
        lambda folder: time_command(
            folder, "-c", "from joulecast.cli.main import main; main()", *COMMAND
        ),
    ),
    "numpy": ("`import numpy`", lambda folder: time_command(folder, "-c", "import numpy")),
}
"""What is measured: its line in the table, and a function of the folder of fits."""


def make_table(report: Json) -> str:
    """Return the results as a table."""
    best = report["best"]
    lines = [
        f"| {report['processor']}, {report['cores']} shared cores, load {report['load']}; the "
        f"minimum of {report['repeats']}; {report['date']}, {report['commit']} | CPU s | MB |",
        "|---|---:|---:|",
    ]
    for name, (about, _) in MEASURES.items():
        row = best[name]
        lines.append(f"| {about} | {row['cpu_s']:.2f} | {row['peak_bytes'] / 1e6:.0f} |")
    command = best["command"]
    heavy = ", ".join(command["heavy"]) or "none of scipy, scikit-learn, torch"
    lines.append(
        f"\nThe command imports {command['own_modules']} modules of Joulecast and {heavy}."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
