"""Estimate networks that people train, and measure them: how far is the shipped profile off?

    python -m benchmarks.anywhere.run report                    tables of the tests, as judged
    python -m benchmarks.anywhere.run again --test third        estimate the kept networks again
                                            --all               also with probes and rivals, hours
    python -m benchmarks.anywhere.run measure --out OUT --on cuda:0 --test third
    python -m benchmarks.anywhere.run measure --out OUT --on cpu --tiny        a dry run

``again`` needs no device and none of the modules: networks are those that were read, probes those
that were measured, and the truth is kept. ``measure`` has three stages for each network:

    shipped     read the module and estimate it from the shipped profile
    rehearsed   estimate with a probe of the step on the device, in a store of its own
    truth       a plain PyTorch training loop under the energy meter

Earlier tests had ``probed`` in place of ``rehearsed``: with probes of the module's layers.

What is done is not done again; a failure is recorded. After a CUDA error nothing more can be
measured in the process: it ends with exit code 3; run it again.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joulecast
from benchmarks.anywhere.records import (
    METHODS,
    PROBED,
    REHEARSED,
    RESULTS,
    SHIPPED,
    RunFolder,
    make_groups,
    score_group,
    score_network,
)
from benchmarks.common import find_commit, use_rivals
from joulecast.estimators import DEFAULT, FittedProfile, fit_profile, list_estimator_names
from joulecast.records import Estimate, Observation, Profile, Setup
from joulecast.store import open_store
from joulecast.system.errors import JoulecastError

if TYPE_CHECKING:
    from benchmarks.anywhere.truth import BenchmarkNetwork, TrainingExample

Json = dict[str, Any]

STAGES = (SHIPPED, REHEARSED, "truth")
TESTS = ("first", "second", "third", "fourth", "fifth")
DEVICE = "nvidia-h200"
CUDA_ERROR_CODE = 3
# Method, quantity and bounds of each goal, written down before the first test.
GOALS = (
    (SHIPPED, "mape_percent", 0.0, 8.0),
    (SHIPPED, "median_percent", 0.0, 5.0),
    (SHIPPED, "worst_percent", 0.0, 25.0),
    (SHIPPED, "median_width_percent", 0.0, 35.0),
    (PROBED, "mape_percent", 0.0, 4.0),
    (PROBED, "median_percent", 0.0, 2.5),
    *((method, "within_percent", 90.0, 99.0) for method in (SHIPPED, PROBED)),
    *((method, "rms_z", 0.8, 1.2) for method in (SHIPPED, PROBED)),
)
# Those of the fifth test.
LATER_GOALS = (
    (REHEARSED, "mape_percent", 0.0, 2.5),
    (REHEARSED, "worst_percent", 0.0, 8.0),
    (SHIPPED, "mape_percent", 0.0, 9.0),
    (SHIPPED, "median_percent", 0.0, 6.0),
    (SHIPPED, "worst_percent", 0.0, 40.0),
    (SHIPPED, "duration_mape_percent", 0.0, 15.0),
    (SHIPPED, "median_width_percent", 0.0, 40.0),
    (SHIPPED, "within_percent", 90.0, 99.0),
)


def main() -> None:
    """Report, estimate again or measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", choices=("report", "again", "measure"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of a run")
    parser.add_argument("--test", choices=TESTS, nargs="+", default=list(TESTS))
    parser.add_argument("--only", nargs="+", default=[], help="names of networks")
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--on", default="cuda:0", help="device of truth and probes")
    parser.add_argument("--device", default=DEVICE, help="shipped device, or file of a profile")
    parser.add_argument("--until-s", type=float, default=1e9, help="start no stage after this time")
    parser.add_argument("--all", action="store_true", help="also with probes and by rivals")
    parser.add_argument("--tiny", action="store_true", help="small batches, to try the script")
    args = parser.parse_args()
    if args.work == "measure" and args.out == RESULTS:
        parser.error("give --out, the folder of a new run")
    folder = RunFolder.open(args.out)
    if args.work == "measure":
        measure(args, folder)
        return
    profile = joulecast.load_profile(args.device) if args.work == "again" else None
    pages = []
    for test in args.test:
        judged = folder.judged.get(test, {})
        if profile is not None:
            judged = estimate_again(folder, test, profile, args.all)
        known = {name: one for name, one in judged.items() if "energy_j" in one.get("truth", {})}
        if known:
            goals = LATER_GOALS if test == "fifth" else GOALS
            pages.append(f"## {test.capitalize()} test\n\n{make_page(judged, known, goals)}")
    if args.work == "report":
        (args.out / "table.md").write_text("# As judged\n\n" + "\n".join(pages))
    print("\n".join(pages))


# ---------------------------------------------------------------------------------------------
# Estimates


def estimate_again(
    folder: RunFolder, test: str, profile: Profile, with_all: bool
) -> dict[str, Json]:
    """Return the results of a test with estimates of the present code and profile."""
    rivals: dict[str, FittedProfile] = {}
    if with_all:
        use_rivals()
        for name in list_estimator_names():
            with suppress(JoulecastError):
                rivals[name] = fit_profile(profile, name)
        rivals.pop(DEFAULT)
    results = {}
    for net in folder.networks[test]:
        network, setup = folder.load_network(test, net)
        kept = folder.judged[test][net]
        found: Json = {name: kept[name] for name in ("setup", "about", "truth") if name in kept}
        found[SHIPPED] = catch(lambda: record(estimate(network, setup, profile)))  # noqa: B023
        probes = folder.load_probes(test, net)
        if probes and with_all:
            known = replace(profile, observations=(*profile.observations, *probes))
            found[PROBED] = catch(lambda: record(estimate(network, setup, known)))  # noqa: B023
            found[PROBED]["measuring_s"] = sum(one.cost_s for one in probes)
        found["rivals"] = {
            rival: catch(lambda: record(fitted.estimate([network], setup)[0]))  # noqa: B023
            for rival, fitted in rivals.items()
        }
        results[net] = found
        print(net, file=sys.stderr, flush=True)
    return results


def estimate(network: Any, setup: Setup, device: str | Profile) -> Estimate:
    """Estimate a network from a profile alone, without observations of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        return joulecast.estimate(
            network, setup=setup, device=device, store=f"{folder}/empty.sqlite"
        )


def catch(make: Callable[[], Json]) -> Json:
    """Return an estimate, or why there is none."""
    try:
        return make()
    except JoulecastError as error:
        return {"error": str(error)}


def record(found: Estimate) -> Json:
    """Return what the report needs of an estimate."""
    if not all(map(math.isfinite, (found.energy_j, *found.interval_j, found.duration_s))):
        raise ValueError(f"the estimate is not finite: {found.energy_j} J, {found.interval_j}")
    return {
        "energy_j": found.energy_j,
        "interval_j": list(found.interval_j),
        "level": found.level,
        "duration_s": found.duration_s,
        "unseen_share": found.unseen_share,
        "host_share": found.host_share,
        "uncertainty_sources": dict(found.uncertainty_sources),
        "notes": list(found.notes),
    }


# ---------------------------------------------------------------------------------------------
# Measuring


def measure(args: argparse.Namespace, folder: RunFolder) -> None:
    """Run what is missing of each network until the time is spent."""
    import torch

    from benchmarks.anywhere import networks, truth
    from benchmarks.anywhere.fresh import FRESH
    from joulecast.devices.detect import detect_device, find_gpu
    from joulecast.meters import make_meter

    started_s = time.monotonic()

    def measure_truth(entry: BenchmarkNetwork, example: TrainingExample) -> Json:
        rules = truth.TINY if args.tiny else truth.TruthRules()
        gpu = find_gpu(args.on) if args.on.startswith("cuda") else None
        with ExitStack() as stack:
            meter = make_meter("auto", args.on, gpu)
            meter.open()
            stack.callback(meter.close)
            return truth.measure_truth(entry, args.on, meter, rules, args.tiny)

    def estimate_shipped(entry: BenchmarkNetwork, example: TrainingExample) -> Json:
        from joulecast.torch_nets.inputs import find_first_tensor

        # The batch is the first axis of the inputs: where a sample has two views, that is twice
        # the batch of the table.
        first = find_first_tensor(example.inputs)
        assert first is not None
        setup = Setup(first.shape[0], precision=entry.precision, optimizer=entry.optimizer)
        options: Json = {"loss": example.loss} if callable(example.loss) else {}
        network = joulecast.inspect(example.module, example.inputs, setup=setup, **options)
        stored = {"network": network.to_dict(), "setup": setup.to_dict()}
        folder.add("networks", test, entry.name, stored)
        return record(estimate(network, setup, args.device))

    def estimate_rehearsed(entry: BenchmarkNetwork, example: TrainingExample) -> Json:
        options = list_options(entry, example)
        with tempfile.TemporaryDirectory() as store:
            file, began_s = f"{store}/probes.sqlite", time.monotonic()
            found = joulecast.estimate(
                example.module, example.inputs, probe=True, on=args.on, store=file, **options
            )
            wall_s = time.monotonic() - began_s
            probes = load_observations(Path(file))
        folder.add("probes", test, entry.name, [one.to_dict() for one in probes])
        return {**record(found), "is_measured": found.is_measured, "wall_s": wall_s}

    works = dict(zip(STAGES, (estimate_shipped, estimate_rehearsed, measure_truth), strict=True))
    stages = {name: works[name] for name in args.stages}
    for test in args.test:
        for entry in FRESH if test == "fifth" else networks.TESTS[test]:
            if (args.only and entry.name not in args.only) or not entry.is_available:
                continue
            batch = entry.tiny_batch if args.tiny else entry.batch
            setup = {"batch": batch, "precision": entry.precision, "optimizer": entry.optimizer}
            found = folder.judged.get(test, {}).get(entry.name, {"setup": setup})
            found["about"] = {"domain": entry.domain}
            for stage, run in stages.items():
                if stage in found or time.monotonic() - started_s > args.until_s:
                    continue
                try:
                    found[stage] = run(entry, entry.build(tiny=args.tiny))
                except Exception as error:  # one network must not end the run
                    traceback.print_exc()
                    text = " ".join(str(error).split())[:400]
                    found[stage] = {"error": f"{type(error).__name__}: {text}"}
                found[stage] |= {
                    "torch": torch.__version__,
                    "commit": find_commit(__file__),
                    "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
                    "unit": detect_device(args.on).unit if stage != SHIPPED else "",
                }
                folder.add("judged", test, entry.name, found)
                print(entry.name, stage, found[stage].get("error", "done"), flush=True)
                if "CUDA error" in found[stage].get("error", ""):
                    sys.stdout.flush()
                    os._exit(CUDA_ERROR_CODE)
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()


def list_options(entry: BenchmarkNetwork, example: TrainingExample) -> Json:
    """Return the options that a user gives besides the module and its inputs."""
    options: Json = {"precision": entry.precision, "optimizer": entry.optimizer}
    return {**options, "loss": example.loss} if callable(example.loss) else options


def load_observations(store: Path) -> list[Observation]:
    """Return what a store holds besides the shipped profiles."""
    with (
        tempfile.TemporaryDirectory() as nothing,
        open_store(store, shipped=Path(nothing)) as opened,
    ):
        keys = [profile.key for profile in opened.list_profiles()]
        return [one for key in keys for one in opened.load_observations(key)]


# ---------------------------------------------------------------------------------------------
# Tables


def make_page(
    results: dict[str, Json], known: dict[str, Json], goals: Sequence[tuple[str, str, float, float]]
) -> str:
    """Return scores by method and group, goals, and every network of a test.

    Args:
        results: All networks.
        known: Those with a truth.
        goals: Method, quantity and bounds of each goal.
    """
    groups = make_groups(known)
    rivals = dict.fromkeys(name for one in known.values() for name in one.get("rivals", {}))
    scores: dict[tuple[str, str], Json] = {}
    for method in (*METHODS, *rivals):
        for group, names in groups.items() if method in METHODS else [("all", [*known])]:
            if score := score_group(method, names, known):
                scores[method, group] = score
    units = sorted({one["truth"].get("unit", "") for one in known.values()})
    head = f"{len(known)} networks on {', '.join(units)}. {date.today()}, {find_commit(__file__)}."
    titles = ["method", "group", "networks", "failed", "MAPE", "median", "worst", "bias"]
    titles += ["within 95 %", "rms z", "median width", "MAPE of seconds"]
    rows = [[*key, *map(show, score.values())] for key, score in scores.items()]
    verdicts = []
    for method, quantity, low, high in goals:
        if (score := scores.get((method, "all"))) and score[quantity] is not None:
            verdict = "met" if low <= abs(score[quantity]) <= high else "**missed**"
            bounds = f"{low:g} to {high:g}" if low else f"at most {high:g}"
            verdicts.append([method, quantity, bounds, show(score[quantity]), verdict])
    failures = [
        f"- {name}, {stage}: {one[stage]['error']}\n"
        for name, one in results.items()
        for stage in (*METHODS, "truth")
        if "error" in one.get(stage, {})
    ]
    return "\n\n".join(
        [
            f"{head} Errors, coverage and widths in percent.",
            format_table(titles, rows),
            format_table(("method", "goal", "bounds", "reached", ""), verdicts),
            make_network_table(known),
            "".join(failures),
        ]
    )


def make_network_table(known: dict[str, Json]) -> str:
    """Return every network with its errors; an asterisk marks those outside their interval."""
    rows = []
    for name, found in known.items():
        truth, setup = found["truth"], found["setup"]
        row = [name, f"{setup['batch']}, {setup['precision']}, {setup['optimizer']}"]
        row += [f"{truth['energy_j']:.2f}", f"{1e3 * truth['duration_s']:.1f}"]
        row += [f"{truth['power_w']:.0f}", f"{100 * truth['energy_spread_share']:.1f}"]
        for method in METHODS:
            score = score_network(found, method)
            cells = ["-", "-", "-"]
            if score is not None:
                error = f"{100 * score['error_share']:+.1f}{'' if score['is_inside'] else '*'}"
                cells = [error, f"{100 * score['width_share']:.0f}", show(score["z"])]
            row += cells
        seconds = [found.get(name, {}) for name in (PROBED, REHEARSED)]
        rows.append([*row, show(seconds[0].get("measuring_s") or seconds[1].get("wall_s"))])
    titles = ("network", "batch, precision, optimizer", "J per step", "ms", "W", "spread")
    own = [cell for method in METHODS for cell in (method, "width", "z")]
    return format_table((*titles, *own, "probes, s"), rows)


def show(value: float | None) -> str:
    """Return a number, or a dash if there is none."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def format_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    marks = ["---"] * 2 + ["---:"] * (len(titles) - 2)
    return "\n".join("| " + " | ".join(line) + " |" for line in (titles, marks, *rows))


if __name__ == "__main__":
    main()
