"""Do isolated leaves add up to a net as well as isolated blocks do?

Measures whole nets, each of their distinct blocks and each of their distinct leaves, all as graphs
where the device has them, and compares the sums. Everything measured is kept in ``--out``; a run
that was cut goes on where it stopped.

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
# Widths and depths chosen by hand, before anything was measured.
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
    """Measure where a device is given, then compare and write."""
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
    """Whole nets, eager too, and every distinct part of both splits, once."""
    trials: dict[str, Trial] = {}
    for network, setup in nets:
        found = [Trial(network, setup, Execution(mode=mode)), Trial(network, setup)]
        for split in SPLITS.values():
            found += [make_isolated_trial(place.part, setup, mode) for place in split(network)]
        trials.update((trial.key, trial) for trial in found)
    return list(trials.values())


def list_issues(nets: Sequence[tuple[Network, Setup]]) -> list[Trial]:
    """Every distinct part as an eager step, to see what issuing it takes the host."""
    places = [(place, setup) for network, setup in nets for place in split_blocks(network)]
    trials = [make_isolated_trial(place.part, setup) for place, setup in places]
    return list({trial.key: trial for trial in trials}.values())


def measure_all(args: argparse.Namespace, nets: Sequence[tuple[Network, Setup]]) -> Profile:
    """Everything that the store does not hold yet, shuffled, in rounds."""
    runtime = TorchRuntime(args.on, detect_device(args.on))
    gpu = find_gpu(args.on) if args.on.startswith("cuda") else None
    meter = make_meter(args.meter, on=args.on, gpu=gpu)
    run = datetime.now(UTC).strftime("additivity-%Y%m%dT%H%M%S")
    started_s = time.monotonic()
    trials = list_trials(nets, args.mode)
    random.Random(3).shuffle(trials)
    with (
        make_measurer(runtime, meter, rounds=args.rounds, run=run) as rig,
        open_store(args.out / "store.sqlite") as store,
    ):
        own = Profile(runtime.device, runtime.name, meter.covers, meter.provenance)
        store.add_observation(rig.measure(trials[0]))
        store.add_observation(rig.measure_idle())
        known = {seen.trial.key for seen in store.observations(own.key)}
        for trial in trials:
            if trial.key not in known and time.monotonic() - started_s < args.seconds:
                store.add_observation(rig.measure(trial))
        probed = {
            s.trial.key for s in store.observations(own.key) if s.trial.execution.mode == "eager"
        }
        for trial in list_issues(nets):
            if trial.key not in probed and time.monotonic() - started_s < args.seconds:
                store.add_observation(rig.time(trial))
        store.add_observation(rig.measure_idle())
        return store.profile(own.key)


def compare(profile: Profile, nets: Sequence[tuple[Network, Setup]], mode: str) -> list[Json]:
    """Sums of parts over the whole, in joules and seconds of the device."""
    seen: dict[str, list[Observation]] = {}
    for observation in profile.observations:
        seen.setdefault(observation.trial.key, []).append(observation)
    rows = []
    for network, setup in nets:
        whole = seen.get(Trial(network, setup, Execution(mode=mode)).key)
        if not whole:
            continue
        row: Json = {"net": network.name, "precision": setup.precision}
        row["energy_j"], row["duration_s"] = middle(whole)
        row.update(compare_host(network, setup, seen))
        for name, split in SPLITS.items():
            found = add_up(split(network), setup, mode, seen)
            if found is not None:
                row[f"{name}_energy_ratio"] = found[0] / row["energy_j"]
                row[f"{name}_time_ratio"] = found[1] / row["duration_s"]
        rows.append(row)
    return rows


def add_up(
    places: Sequence[PlacedPart], setup: Setup, mode: str, seen: dict[str, list[Observation]]
) -> tuple[float, float] | None:
    """Joules and seconds of all places; None where one was not measured."""
    energy_j = duration_s = 0.0
    for place in places:
        trial = make_isolated_trial(place.part, setup, mode)
        if trial.key not in seen:
            return None
        one_j, one_s = middle(seen[trial.key])
        energy_j += one_j / trial.execution.copies * place.calls
        duration_s += one_s / trial.execution.copies * place.calls
    return energy_j, duration_s


def compare_host(
    network: Network, setup: Setup, seen: dict[str, list[Observation]]
) -> dict[str, float]:
    """Host time of the eager net, and that of its parts issued alone over it."""
    whole = seen.get(Trial(network, setup).key)
    parts = [(make_isolated_trial(place.part, setup), place) for place in split_blocks(network)]
    if not whole or any(trial.key not in seen for trial, _ in parts):
        return {}
    sum_s = sum(
        place.calls * (seen[trial.key][0].issue_s or 0.0) / trial.execution.copies
        for trial, place in parts
    )
    issue_s = statistics.median(one.issue_s or 0.0 for one in whole)
    eager_s = middle(whole)[1]
    return {"issue_s": issue_s, "eager_s": eager_s, "blocks_issue_ratio": sum_s / issue_s}


def middle(observations: Sequence[Observation]) -> tuple[float, float]:
    """Median joules and seconds of the same trial."""
    return (
        statistics.median(o.energy_j or 0.0 for o in observations),
        statistics.median(o.duration_s or 0.0 for o in observations),
    )


def describe(profile: Profile) -> Json:
    """Where and when this was measured."""
    first = profile.observations[0]
    return {
        "device": profile.device.to_dict(),
        "runtime": profile.runtime,
        "provenance": profile.provenance,
        "date": datetime.fromtimestamp(first.taken_at_s, UTC).date().isoformat(),
        "observations": len(profile.observations),
        "device_seconds": sum(seen.cost_s for seen in profile.observations),
    }


def make_table(report: Json) -> str:
    """Sum over whole, for people."""
    names = [f"{split}_{what}_ratio" for split in SPLITS for what in ("energy", "time")]
    names.append("blocks_issue_ratio")
    lines = [f"{'net':24s} {'':5s} " + " ".join(f"{name:>20s}" for name in names)]
    for row in report["nets"]:
        ratios = " ".join(f"{row.get(name, float('nan')):20.3f}" for name in names)
        lines.append(f"{row['net']:24s} {row['precision']:5s} {ratios}")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--mode", default="graph", choices=("graph", "eager"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--offline", type=Path, help="compare again from kept observations")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
