"""Compare whole nets with the sums of their isolated layers and of their isolated blocks.

Whole nets, their distinct blocks and their distinct layers ("leaves") are measured, as CUDA graphs
if the device has them. Every observation is stored in ``--out``, and the same command resumes an
interrupted run.

    python benchmarks/additivity/run.py --on cuda:0 --out DIR
    python benchmarks/additivity/run.py --offline DIR/nvidia-h200-observations.json --out DIR
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.devices import detect_device, find_gpu
from joulecast.families import make_family
from joulecast.files import read_profile, write_profile
from joulecast.measurer import make_measurer
from joulecast.meters import make_meter
from joulecast.records import Execution, Network, Observation, Profile, Setup, Trial
from joulecast.runtimes.torch.runtime import TorchRuntime
from joulecast.store import open_store
from joulecast.variants import PlacedPart, make_isolated_trial, split_blocks, split_network

Json = dict[str, Any]

IMAGES = Setup(batch=64, precision="bf16")
TF32 = Setup(batch=64, precision="tf32")
TOKENS = Setup(batch=32, precision="bf16", optimizer="adamw")
# Widths and depths were chosen by hand before anything was measured.
NETS: tuple[tuple[str, tuple[int, ...] | None, Setup], ...] = (
    ("resnet18:56,2,1,2,1", (3, 96, 96), IMAGES),
    ("resnet18:40,1,2,1,2", (3, 96, 96), TF32),
    ("resnet50:24,1,1,1,1", (3, 96, 96), IMAGES),
    ("transformer:256,4", (256,), TOKENS),
    ("transformer:512,3", (128,), TOKENS),
    ("transformer:128,2", (64,), TOKENS),
)
SPLITS = {"leaves": split_network, "blocks": split_blocks}


def main() -> None:
    """Measure if a device is given, then compare and write."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    nets = [(make_family(name, shape), setup) for name, shape, setup in NETS]
    profile = read_profile(args.offline) if args.offline else measure_all(args, nets)
    name = profile.device.name
    if not args.offline:
        write_profile(profile, args.out / f"{name}-observations.json")
    report = {"about": describe(profile), "nets": compare(profile, nets, args.mode)}
    (args.out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(make_table(report))


def list_trials(nets: Sequence[tuple[Network, Setup]], mode: str) -> list[Trial]:
    """Return trials of whole nets, also eager, and of every distinct part of both splits."""
    trials: dict[str, Trial] = {}
    for network, setup in nets:
        found = [Trial(network, setup, Execution(mode=mode)), Trial(network, setup)]
        for split in SPLITS.values():
            found += [make_isolated_trial(placed.part, setup, mode) for placed in split(network)]
        trials.update((trial.key, trial) for trial in found)
    return list(trials.values())


def list_issue_trials(nets: Sequence[tuple[Network, Setup]]) -> list[Trial]:
    """Return trials of every distinct part as an eager step, for its issue time."""
    placed_parts = [(placed, setup) for network, setup in nets for placed in split_blocks(network)]
    trials = [make_isolated_trial(placed.part, setup) for placed, setup in placed_parts]
    return list({trial.key: trial for trial in trials}.values())


def measure_all(args: argparse.Namespace, nets: Sequence[tuple[Network, Setup]]) -> Profile:
    """Measure everything that the store does not have yet, in random order."""
    runtime = TorchRuntime(args.on, detect_device(args.on))
    gpu = find_gpu(args.on) if args.on.startswith("cuda") else None
    meter = make_meter(args.meter, on=args.on, gpu=gpu)
    run = datetime.now(UTC).strftime("additivity-%Y%m%dT%H%M%S")
    started_s = time.monotonic()
    trials = list_trials(nets, args.mode)
    random.Random(3).shuffle(trials)
    with (
        make_measurer(runtime, meter, rounds=args.rounds, run=run) as measurer,
        open_store(args.out / "store.sqlite") as store,
    ):
        own = Profile(runtime.device, runtime.name, meter.covers, meter.provenance)
        store.add_observation(measurer.measure(trials[0]))
        store.add_observation(measurer.measure_idle())
        known = {one.trial.key for one in store.load_observations(own.key)}
        for trial in trials:
            if trial.key not in known and time.monotonic() - started_s < args.seconds:
                store.add_observation(measurer.measure(trial))
        probed = {
            s.trial.key
            for s in store.load_observations(own.key)
            if s.trial.execution.mode == "eager"
        }
        for trial in list_issue_trials(nets):
            if trial.key not in probed and time.monotonic() - started_s < args.seconds:
                store.add_observation(measurer.time(trial))
        store.add_observation(measurer.measure_idle())
        return store.load_profile(own.key)


def compare(profile: Profile, nets: Sequence[tuple[Network, Setup]], mode: str) -> list[Json]:
    """Return the ratio of the sum of parts to the whole, in energy and device time."""
    by_key: dict[str, list[Observation]] = {}
    for observation in profile.observations:
        by_key.setdefault(observation.trial.key, []).append(observation)
    rows = []
    for network, setup in nets:
        whole = by_key.get(Trial(network, setup, Execution(mode=mode)).key)
        if not whole:
            continue
        row: Json = {"net": network.name, "precision": setup.precision}
        row["energy_j"], row["duration_s"] = take_medians(whole)
        row.update(compare_host(network, setup, by_key))
        for name, split in SPLITS.items():
            found = sum_parts(split(network), setup, mode, by_key)
            if found is not None:
                row[f"{name}_energy_ratio"] = found[0] / row["energy_j"]
                row[f"{name}_time_ratio"] = found[1] / row["duration_s"]
        rows.append(row)
    return rows


def sum_parts(
    placed_parts: Sequence[PlacedPart],
    setup: Setup,
    mode: str,
    by_key: dict[str, list[Observation]],
) -> tuple[float, float] | None:
    """Return energy and duration of all parts; None if one was not measured."""
    energy_j = duration_s = 0.0
    for placed in placed_parts:
        trial = make_isolated_trial(placed.part, setup, mode)
        if trial.key not in by_key:
            return None
        one_j, one_s = take_medians(by_key[trial.key])
        energy_j += one_j / trial.execution.copies * placed.calls
        duration_s += one_s / trial.execution.copies * placed.calls
    return energy_j, duration_s


def compare_host(
    network: Network, setup: Setup, by_key: dict[str, list[Observation]]
) -> dict[str, float]:
    """Return the issue time of the eager net, and the ratio of its isolated parts to it."""
    whole = by_key.get(Trial(network, setup).key)
    parts = [(make_isolated_trial(placed.part, setup), placed) for placed in split_blocks(network)]
    if not whole or any(trial.key not in by_key for trial, _ in parts):
        return {}
    sum_s = sum(
        placed.calls * (by_key[trial.key][0].issue_s or 0.0) / trial.execution.copies
        for trial, placed in parts
    )
    issue_s = statistics.median(one.issue_s or 0.0 for one in whole)
    eager_s = take_medians(whole)[1]
    return {"issue_s": issue_s, "eager_s": eager_s, "blocks_issue_ratio": sum_s / issue_s}


def take_medians(observations: Sequence[Observation]) -> tuple[float, float]:
    """Return median energy and duration of observations of one trial."""
    return (
        statistics.median(o.energy_j or 0.0 for o in observations),
        statistics.median(o.duration_s or 0.0 for o in observations),
    )


def describe(profile: Profile) -> Json:
    """Describe where and when the observations were made."""
    first = profile.observations[0]
    return {
        "device": profile.device.to_dict(),
        "runtime": profile.runtime,
        "provenance": profile.provenance,
        "date": datetime.fromtimestamp(first.taken_at_s, UTC).date().isoformat(),
        "observations": len(profile.observations),
        "device_seconds": sum(one.cost_s for one in profile.observations),
    }


def make_table(report: Json) -> str:
    """Return the ratios as a table."""
    names = [f"{split}_{what}_ratio" for split in SPLITS for what in ("energy", "time")]
    names.append("blocks_issue_ratio")
    lines = [f"{'net':24s} {'':5s} " + " ".join(f"{name:>20s}" for name in names)]
    for row in report["nets"]:
        ratios = " ".join(f"{row.get(name, float('nan')):20.3f}" for name in names)
        lines.append(f"{row['net']:24s} {row['precision']:5s} {ratios}")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--mode", default="graph", choices=("graph", "eager"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument(
        "--offline", type=Path, help="compare stored observations without measuring"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
