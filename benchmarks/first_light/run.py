"""First light: does the paper's method work on a real NVIDIA GPU?

Profiles ``cnn5`` with guided variants, measures random nets that were never profiled, and compares
the paper's method with FLOPs-proportional on the same nets. Everything measured is kept: the store
and the results in ``--out``, so that a run that was cut goes on where it stopped.

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
    """Measure where a device is given, then compare and write."""
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
    """All observations: whole nets, the campaign, and the test nets again at another time."""
    device = detect_device(args.on)
    runtime = TorchRuntime(args.on, device)
    meter = make_meter(args.meter, on=args.on, gpu=find_gpu(args.on))
    run = datetime.now(UTC).strftime("first-light-%Y%m%dT%H%M%S")
    with (
        make_measurer(runtime, meter, rounds=args.rounds, run=run) as rig,
        open_store(args.out / "store.sqlite") as store,
    ):
        measure_missing(rig, store, [*fits, *tests], args.input)
        result = run_campaign(
            rig,
            store,
            find_estimator("subtractive"),
            Target(make_family(FAMILY, args.input), setup),
            points=args.points,
            seconds=args.seconds,
            on_progress=lambda progress: print(progress, flush=True),
        )
        print("profiled:", result.stopped, flush=True)
        for seen in replace(rig, run=run + "-again").measure_all(tests, rng=random.Random(1)):
            store.add_observation(seen)
        return store.profile(result.profile_key)


def parse_arguments() -> argparse.Namespace:
    """The command line; its defaults are the published run."""
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
    parser.add_argument("--offline", type=Path, help="compare again from kept observations")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def parse_shape(text: str) -> tuple[int, ...]:
    """``3x96x96`` → (3, 96, 96)."""
    return tuple(int(size) for size in text.split("x"))


def draw_trials(seed: int, count: int, setup: Setup, shape: tuple[int, ...]) -> list[Trial]:
    """Random members of the family: every channel count uniform in 1..original."""
    rng = random.Random(seed)
    return [Trial(draw_family(FAMILY, rng.randint, shape), setup) for _ in range(count)]


def measure_missing(rig: Measurer, store: Store, trials: list[Trial], shape: tuple[int, ...]) -> None:
    """Whole nets in interleaved rounds; those that the store has already are not measured again."""
    # The first load on a cold device is slower than all others: let it pass.
    rig.time(Trial(make_family(FAMILY, shape), trials[0].setup))
    known = {
        seen.trial.key
        for summary in store.profiles()
        if not summary.shipped
        for seen in store.observations(summary.key)
    }
    missing = [trial for trial in trials if trial.key not in known]
    for seen in rig.measure_all(missing, rng=random.Random(0)):
        store.add_observation(seen)


def compare(profile: Profile, tests: list[Trial], fits: list[Trial]) -> dict[str, Any]:
    """Errors of both methods on the same nets, and how far two measurements of a net differ."""
    held_out = {trial.key for trial in tests}
    fit_keys = {trial.key for trial in fits}
    # No estimator ever sees a test net; FLOPs-proportional learns from whole nets of its own draw.
    variants = only(profile, lambda key: key not in held_out and key not in fit_keys)
    whole = only(profile, lambda key: key in fit_keys)
    nets: list[dict[str, Any]] = []
    for trial in tests:
        seen = [o for o in profile.observations if o.trial.key == trial.key]
        energies_j = [o.energy_j for o in seen if o.energy_j is not None]
        truth_j = statistics.fmean(energies_j)
        ours = estimate_network(variants, trial.network, trial.setup, "subtractive")
        theirs = estimate_network(whole, trial.network, trial.setup, "flops")
        nets.append(
            {
                "net": trial.network.name,
                "measured_j": truth_j,
                "repeat_difference_percent": 100 * (max(energies_j) - min(energies_j)) / truth_j,
                "measured_s": seen[0].duration_s,
                "subtractive_s": ours.duration_s,
                "issue_s": seen[0].issue_s,
                "subtractive_j": ours.energy_j,
                "subtractive_interval_j": list(ours.interval_j),
                "flops_j": theirs.energy_j,
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
        "points": sum(seen.energy_j is not None for seen in variants.observations),
        "device_seconds": sum(seen.cost_s for seen in variants.observations),
        "nets": nets,
    }


def only(profile: Profile, wanted: Any) -> Profile:
    """The profile with some of its observations, to be fitted anew."""
    kept = tuple(seen for seen in profile.observations if wanted(seen.trial.key))
    return replace(profile, observations=kept, fits={})


def errors(nets: list[dict[str, Any]], name: str) -> list[float]:
    """Relative errors in percent."""
    return [100 * (net[f"{name}_j"] / net["measured_j"] - 1) for net in nets]


def mape(nets: list[dict[str, Any]], name: str) -> float:
    """Mean absolute percentage error."""
    return statistics.fmean(abs(error) for error in errors(nets, name))


def bias(nets: list[dict[str, Any]], name: str) -> float:
    """Mean error with its sign."""
    return statistics.fmean(errors(nets, name))


def best_factor_mape(nets: list[dict[str, Any]]) -> float:
    """What FLOPs-proportional would reach with the factor that suits these very nets best."""
    factors = [net["measured_j"] / net["flops"] for net in nets]
    return min(
        100 * statistics.fmean(abs(a * net["flops"] / net["measured_j"] - 1) for net in nets)
        for a in factors
    )


def time_mape(nets: list[dict[str, Any]]) -> float:
    """Mean absolute percentage error of the seconds that the paper's method gives."""
    return 100 * statistics.fmean(abs(n["subtractive_s"] / n["measured_s"] - 1) for n in nets)


def coverage(nets: list[dict[str, Any]]) -> float:
    """Share of nets whose measured energy lies in the 95 % interval."""
    inside = [
        net["subtractive_interval_j"][0] <= net["measured_j"] <= net["subtractive_interval_j"][1]
        for net in nets
    ]
    return 100 * statistics.fmean(inside)


def describe(args: argparse.Namespace, profile: Profile) -> dict[str, Any]:
    """Where, when and how this was measured."""
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
    """A JSON for programs, a profile to ship, a table for people."""
    name = profile.device.name
    (out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    held = {net["net"] for net in report["nets"]}
    # A profile that ships must not hold the nets it is judged by.
    shipped = tuple(s for s in profile.observations if s.trial.network.name not in held)
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
