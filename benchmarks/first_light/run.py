"""Try the paper's method on a real NVIDIA GPU.

Profiles ``cnn5`` with the paper's variants, measures held-out random nets, and compares the paper's
method with an estimate proportional to FLOPs. Observations and results are stored in ``--out``, and
the same command resumes an interrupted run.

    python benchmarks/first_light/run.py --on cuda:0 --out DIR
    python benchmarks/first_light/run.py --offline DIR/nvidia-h200-observations.json --out DIR
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.campaign import run_campaign
from joulecast.devices import detect_device, find_gpu
from joulecast.estimators import estimate_network, find_estimator
from joulecast.estimators.base import Target
from joulecast.families import draw_family, make_family
from joulecast.files import read_profile, write_profile
from joulecast.kinds import network_work
from joulecast.measurer import Measurer, make_measurer
from joulecast.meters import make_meter
from joulecast.records import Profile, Setup, Trial
from joulecast.runtimes.torch.runtime import TorchRuntime
from joulecast.store import Store, open_store
from joulecast.testing.commits import find_commit

FAMILY = "cnn5"
INPUT = (3, 96, 96)
TEST_SEED = 20261115
FIT_SEED = 7
FIT_NETS = 6


def main() -> None:
    """Measure if a device is given, then compare and write."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    setup = Setup(batch=args.batch, precision=args.precision, threads=args.threads)
    tests = draw_trials(TEST_SEED, args.nets, setup, args.input)
    fits = draw_trials(FIT_SEED, FIT_NETS, setup, args.input)
    if args.offline:
        profile = read_profile(args.offline)
    else:
        profile = measure_everything(args, setup, tests, fits)
        write_profile(profile, args.out / f"{profile.device.name}-observations.json")
    report = compare(profile, tests, fits)
    report["about"] = describe(args, profile)
    write_results(args.out, report, profile)


def measure_everything(
    args: argparse.Namespace, setup: Setup, tests: list[Trial], fits: list[Trial]
) -> Profile:
    """Measure whole nets, run the campaign, and measure the test nets again."""
    device = detect_device(args.on)
    runtime = TorchRuntime(args.on, device)
    meter = make_meter(args.meter, on=args.on, gpu=find_gpu(args.on))
    run = datetime.now(UTC).strftime("first-light-%Y%m%dT%H%M%S")
    with (
        make_measurer(runtime, meter, rounds=args.rounds, run=run) as measurer,
        open_store(args.out / "store.sqlite") as store,
    ):
        measure_missing(measurer, store, [*fits, *tests], args.input)
        result = run_campaign(
            measurer,
            store,
            find_estimator("subtractive"),
            Target(make_family(FAMILY, args.input), setup),
            points=args.points,
            seconds=args.seconds,
            on_progress=lambda progress: print(progress, flush=True),
        )
        print("profiled:", result.stopped, flush=True)
        for observation in replace(measurer, run=run + "-again").measure_all(
            tests, rng=random.Random(1)
        ):
            store.add_observation(observation)
        return store.load_profile(result.profile_key)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--input", type=parse_shape, default=INPUT)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--nets", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--offline", type=Path, help="compare stored observations without measuring"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape of a text like ``3x96x96``."""
    return tuple(int(size) for size in text.split("x"))


def draw_trials(seed: int, count: int, setup: Setup, shape: tuple[int, ...]) -> list[Trial]:
    """Draw random nets of the family: every channel count is uniform in 1..original."""
    rng = random.Random(seed)
    return [Trial(draw_family(FAMILY, rng.randint, shape), setup) for _ in range(count)]


def measure_missing(
    measurer: Measurer, store: Store, trials: list[Trial], shape: tuple[int, ...]
) -> None:
    """Measure whole nets that the store lacks, in interleaved rounds."""
    # The first load on a cold device is slower and is not recorded.
    measurer.time(Trial(make_family(FAMILY, shape), trials[0].setup))
    known = {
        one.trial.key
        for summary in store.list_profiles()
        if not summary.shipped
        for one in store.load_observations(summary.key)
    }
    missing = [trial for trial in trials if trial.key not in known]
    for observation in measurer.measure_all(missing, rng=random.Random(0)):
        store.add_observation(observation)


def compare(profile: Profile, tests: list[Trial], fits: list[Trial]) -> dict[str, Any]:
    """Return errors of both methods, and the difference between two measurements of a net."""
    held_out = {trial.key for trial in tests}
    fit_keys = {trial.key for trial in fits}
    # No estimator is fitted to a test net; the FLOPs baseline is fitted to other whole nets.
    variants = select_observations(profile, lambda key: key not in held_out and key not in fit_keys)
    whole = select_observations(profile, lambda key: key in fit_keys)
    nets: list[dict[str, Any]] = []
    for trial in tests:
        observations = [o for o in profile.observations if o.trial.key == trial.key]
        energies_j = [o.energy_j for o in observations if o.energy_j is not None]
        measured_j = statistics.fmean(energies_j)
        subtractive = estimate_network(variants, trial.network, trial.setup, "subtractive")
        flops = estimate_network(whole, trial.network, trial.setup, "flops")
        nets.append(
            {
                "net": trial.network.name,
                "measured_j": measured_j,
                "repeat_difference_percent": 100 * (max(energies_j) - min(energies_j)) / measured_j,
                "measured_s": observations[0].duration_s,
                "subtractive_s": subtractive.duration_s,
                "issue_s": observations[0].issue_s,
                "subtractive_j": subtractive.energy_j,
                "subtractive_interval_j": list(subtractive.interval_j),
                "flops_j": flops.energy_j,
                "flops": network_work(trial.network, trial.setup).total.flops,
            }
        )
    repeats = [float(net["repeat_difference_percent"]) for net in nets]
    return {
        "mape_percent": {name: mape(nets, name) for name in ("subtractive", "flops")},
        "bias_percent": {name: bias(nets, name) for name in ("subtractive", "flops")},
        "max_percent": {
            name: max(map(abs, errors(nets, name))) for name in ("subtractive", "flops")
        },
        "flops_best_factor_mape_percent": best_factor_mape(nets),
        "time_mape_percent": time_mape(nets),
        "coverage95_percent": coverage(nets),
        "repeat_difference_percent": statistics.median(repeats),
        "points": sum(one.energy_j is not None for one in variants.observations),
        "device_seconds": sum(one.cost_s for one in variants.observations),
        "nets": nets,
    }


def select_observations(profile: Profile, wanted: Any) -> Profile:
    """Return the profile with some of its observations and without fits."""
    kept = tuple(one for one in profile.observations if wanted(one.trial.key))
    return replace(profile, observations=kept, fits={})


def errors(nets: list[dict[str, Any]], name: str) -> list[float]:
    """Return relative errors in percent."""
    return [100 * (net[f"{name}_j"] / net["measured_j"] - 1) for net in nets]


def mape(nets: list[dict[str, Any]], name: str) -> float:
    """Return the mean absolute percentage error."""
    return statistics.fmean(abs(error) for error in errors(nets, name))


def bias(nets: list[dict[str, Any]], name: str) -> float:
    """Return the mean signed error."""
    return statistics.fmean(errors(nets, name))


def best_factor_mape(nets: list[dict[str, Any]]) -> float:
    """Return the lowest MAPE of an estimate proportional to FLOPs on these nets."""
    factors = [net["measured_j"] / net["flops"] for net in nets]
    return min(
        100 * statistics.fmean(abs(a * net["flops"] / net["measured_j"] - 1) for net in nets)
        for a in factors
    )


def time_mape(nets: list[dict[str, Any]]) -> float:
    """Return the mean absolute percentage error of the duration."""
    return 100 * statistics.fmean(abs(n["subtractive_s"] / n["measured_s"] - 1) for n in nets)


def coverage(nets: list[dict[str, Any]]) -> float:
    """Return the coverage of the 95 % interval in percent."""
    inside = [
        net["subtractive_interval_j"][0] <= net["measured_j"] <= net["subtractive_interval_j"][1]
        for net in nets
    ]
    return 100 * statistics.fmean(inside)


def describe(args: argparse.Namespace, profile: Profile) -> dict[str, Any]:
    """Describe where, when and how this was measured."""
    last = profile.observations[-1]
    return {
        "device": profile.device.to_dict(),
        "runtime": profile.runtime,
        "covers": profile.covers,
        "provenance": profile.provenance,
        "date": datetime.fromtimestamp(last.taken_at_s, UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "run": profile.observations[0].run,
        "test_seed": TEST_SEED,
        "fit_seed": FIT_SEED,
        "fit_nets": FIT_NETS,
        "batch": args.batch,
        "precision": args.precision,
        "input": list(args.input),
    }


def write_results(out: Path, report: dict[str, Any], profile: Profile) -> None:
    """Write JSON and a profile, and print a table."""
    name = profile.device.name
    (out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    test_names = {net["net"] for net in report["nets"]}
    # A shipped profile must not contain the test nets.
    shipped = tuple(s for s in profile.observations if s.trial.network.name not in test_names)
    fits = {"subtractive": find_estimator("subtractive").fit(shipped).to_dict()}
    write_profile(replace(profile, observations=shipped, fits=fits), out / f"{name}-profile.json")
    print(f"{'net':24s} {'measured':>10s} {'subtractive':>22s} {'FLOPs':>10s}")
    for net in report["nets"]:
        low, high = net["subtractive_interval_j"]
        print(
            f"{net['net']:24s} {net['measured_j']:8.4f} J {net['subtractive_j']:8.4f} "
            f"[{low:.3f}, {high:.3f}] {net['flops_j']:8.4f} J"
        )
    for key, value in report.items():
        if key not in ("nets", "about"):
            print(key, value)


if __name__ == "__main__":
    main()
