"""Time estimates and fits on this machine.

Devices are simulated. Every figure is taken several times, each in a new process so that nothing is
cached, and the minimum counts: other load can make a figure larger, never smaller.

    python benchmarks/speed/run.py                a table
    python benchmarks/speed/run.py --json         JSON on stdout
    python benchmarks/speed/run.py --out FILE     also write it
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.estimators import find_estimator
from joulecast.families import draw_family, make_family
from joulecast.records import Execution, Network, Observation, Setup, Trial
from joulecast.simulation import SimulatedDevice, make_simulated_device
from joulecast.testing.commits import find_commit
from joulecast.testing.machines import find_processor
from joulecast.variants import make_isolated_trial, make_variant, split_blocks, split_network

SETUP = Setup(batch=32)
FAMILY = "cnn5"
MIXED = ("resnet18", "resnet50", "cnn5")
DEVICE_SEED, FIT_SEED, NET_SEED = 300, 3, 4
NETS, SINGLE_NETS, COMPARED_NETS = 10_000, 200, 500
HEAVY = ("scipy", "sklearn", "torch", "pandas", "transformers", "threadpoolctl")
COMMAND = ("estimate", "cnn5:8,16,32,64", "--device", "nvidia-h200")

Json = dict[str, Any]


def main() -> None:
    """Measure everything, or one thing if called by itself."""
    args = parse_arguments()
    if args.measure:
        print(json.dumps(MEASURES[args.measure](args.folder)))
        return
    report = run_all(args.repeats)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1) if args.json else make_table(report))


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    parser.add_argument("--measure", choices=sorted(MEASURES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(repeats: int) -> Json:
    """Run every measure in new processes, in turns, so that all meet the same other load."""
    found: dict[str, list[Json]] = {name: [] for name in MEASURES}
    with tempfile.TemporaryDirectory() as folder:
        write_fits(Path(folder))
        load = [os.getloadavg()[0]]
        for turn in range(repeats):
            for name in MEASURES:
                if turn == 0 or name != "fit_500":
                    found[name].append(measure_in_process(name, folder))
                    load.append(os.getloadavg()[0])
    best = {name: min(rows, key=lambda row: row["cpu_s"]) for name, rows in found.items()}
    return {
        "simulated_devices": True,
        **describe_machine(),
        "load": [round(min(load), 1), round(max(load), 1)],
        "repeats": repeats,
        "best": best,
        "ratios": compare(best),
        "all_cpu_s": {name: [row["cpu_s"] for row in rows] for name, rows in found.items()},
    }


def measure_in_process(name: str, folder: str) -> Json:
    """Run one measure in its own process."""
    command = [sys.executable, __file__, "--measure", name, "--folder", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def compare(best: Json) -> Json:
    """Return ratios of CPU time per net."""
    together, apart = (best[name]["cpu_s"] / best[name]["nets"] for name in ("together", "apart"))
    few, subtractive = (best[name]["cpu_s"] / best[name]["nets"] for name in ("few", "subtractive"))
    return {
        "one_net_at_a_time_over_together": apart / together,
        "subtractive_over_additive": subtractive / few,
        "command_over_importing_numpy": best["command"]["cpu_s"] / best["numpy"]["cpu_s"],
    }


# ---------------------------------------------------------------------------------------------
# Measures


def observe(device: SimulatedDevice, trial: Trial) -> Observation:
    """Return an observation of a simulated device, with a standard deviation of 0.5 %."""
    cost = device.true_cost(trial)
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
    """Return isolated layers and whole nets as CUDA graphs, and the idle device."""
    device, rng = make_simulated_device(DEVICE_SEED), random.Random(FIT_SEED)
    nets = [draw_family(families[at % len(families)], rng.randint) for at in range(whole)]
    trials: dict[str, Trial] = {}
    while len(trials) < alone:
        net = draw_family(families[len(trials) % len(families)], rng.randint)
        for place in split_network(net):
            trial = make_isolated_trial(place.part, SETUP, "graph")
            trials[trial.key] = trial
    all_trials = [
        *list(trials.values())[:alone],
        *(Trial(net, SETUP, Execution(mode="graph")) for net in nets),
        Trial(Network(), Setup()),
    ]
    return [observe(device, trial) for trial in all_trials]


def observe_variants(points: int) -> list[Observation]:
    """Return the paper's variants of random nets."""
    device, rng = make_simulated_device(DEVICE_SEED), random.Random(FIT_SEED)
    original, trials = make_family(FAMILY), dict[str, Trial]()
    while len(trials) < points:
        for place in split_blocks(draw_family(FAMILY, rng.randint)):
            trial = Trial(make_variant(place.part, original), SETUP)
            trials[trial.key] = trial
    return [observe(device, trial) for trial in list(trials.values())[:points]]


def write_fits(folder: Path) -> None:
    """Write fits of both estimators to 70 observations, for processes that only predict."""
    fits = {"additive": observe_layers([FAMILY], 70, 0), "subtractive": observe_variants(70)}
    for name, observation in fits.items():
        (folder / f"{name}.json").write_text(
            json.dumps(find_estimator(name).fit(observation).to_dict())
        )


def time_call(work: Callable[[], Any]) -> Json:
    """Return CPU time, wall time and peak memory of a call."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return {
        "cpu_s": round(time.process_time() - cpu_s, 4),
        "wall_s": round(time.perf_counter() - started_s, 4),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def time_prediction(folder: Path, name: str, nets: int, at_once: bool = True) -> Json:
    """Time the prediction of random nets with intervals, without drawing them."""
    data = json.loads((folder / f"{name}.json").read_text())
    rng = random.Random(NET_SEED)
    drawn = [draw_family(FAMILY, rng.randint) for _ in range(nets)]
    groups = [drawn] if at_once else [[net] for net in drawn]
    estimator = find_estimator(name)

    def predict() -> None:
        for group in groups:
            fitted = estimator.load(data)
            prediction = fitted.predict(group, [SETUP] * len(group), per_layer=True)
            assert np.isfinite(prediction.energy_sd_j).all()

    return {"nets": nets, **time_call(predict)}


def time_fit(alone: int, whole: int) -> Json:
    """Time a fit to observations of many kinds."""
    observations = observe_layers(MIXED, alone, whole)
    fitted: Json = {}
    timing = time_call(
        lambda: fitted.update(find_estimator("additive").fit(observations).to_dict())
    )
    layers = len({str(piece) for piece in fitted["energy"]["pieces"]})
    return {"observations": len(observations), "layers": layers, **timing}


def run_child(command: Sequence[str]) -> Json:
    """Time a whole command from start to end."""
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = sorted({name.partition(".")[0] for name in names} & set(HEAVY))
    timing = {"cpu_s": round(cpu_s, 4), "wall_s": round(time.perf_counter() - started_s, 4)}
    return {**timing, "peak_bytes": after.ru_maxrss * 1024, "modules": len(names), "heavy": heavy}


def run_command() -> Json:
    """Time ``joulecast estimate`` with the shipped profile, and list its imports."""
    code = "from joulecast.cli.main import main; main()"
    listed = run_child([sys.executable, "-X", "importtime", "-c", code, *COMMAND])
    timing = run_child([sys.executable, "-c", code, *COMMAND])
    return {**timing, "modules": listed["modules"], "heavy": listed["heavy"]}


MEASURES: dict[str, Callable[[Path], Json]] = {
    "together": lambda folder: time_prediction(folder, "additive", NETS),
    "apart": lambda folder: time_prediction(folder, "additive", SINGLE_NETS, at_once=False),
    "few": lambda folder: time_prediction(folder, "additive", COMPARED_NETS),
    "subtractive": lambda folder: time_prediction(folder, "subtractive", COMPARED_NETS),
    "fit_100": lambda folder: time_fit(60, 40),
    "fit_500": lambda folder: time_fit(300, 200),
    "command": lambda folder: run_command(),
    "numpy": lambda folder: run_child([sys.executable, "-c", "import numpy"]),
}


# ---------------------------------------------------------------------------------------------
# Output


def describe_machine() -> Json:
    """Describe this machine."""
    return {
        "processor": find_processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
    }


def make_table(report: Json) -> str:
    """Return the results as a table."""
    best, ratios = report["best"], report["ratios"]
    rows = {
        "together": f"predict {NETS:,} nets with intervals, without cache",
        "apart": f"predict {SINGLE_NETS} nets, one at a time",
        "few": f"predict {COMPARED_NETS} nets",
        "subtractive": f"predict {COMPARED_NETS} nets, the paper's method",
        "fit_100": "fit {observations} observations of {layers} layers",
        "fit_500": "fit {observations} observations of {layers} layers",
        "command": "joulecast estimate, start to end ({modules} modules)",
        "numpy": "python -c 'import numpy'",
    }
    lines = [
        f"{report['processor']}, {report['cores']} cores, load {report['load'][0]} to "
        f"{report['load'][1]}; the minimum of {report['repeats']}",
        f"{'':58s} {'CPU s':>8s} {'wall s':>8s} {'MB':>6s}",
    ]
    for name, about in rows.items():
        row = best[name]
        numbers = f"{row['cpu_s']:8.2f} {row['wall_s']:8.2f} {row['peak_bytes'] / 1e6:6.0f}"
        lines.append(f"{about.format(**row):58s} {numbers}")
    lines += [f"{name.replace('_', ' ')}: {ratio:.1f}" for name, ratio in ratios.items()]
    lines.append(
        f"heavy modules that estimate loads: {', '.join(best['command']['heavy']) or 'none'}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
