"""Measure and score estimators on random networks of families: twelve in each of ten settings.

    python -m benchmarks.accuracy.run report                     from kept observations, 1 minute
    python -m benchmarks.accuracy.run measure STORE --on cuda:0  170 s of device time per setting
    python -m benchmarks.accuracy.run report STORE ...           from other observations

``measure`` stores every observation at once; the same command resumes. ``report`` writes

    results/summary.json.xz   a row for each setting and estimator, and for groups of settings
    results/nets.json.xz    every test network, measured and estimated
    results/table.md, accuracy.svg

A group scores the networks of all its settings together. The row *outside* is that of fifteen
networks of torchvision and transformers, kept as they were judged (``outside.json``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import (
    find_commit,
    pack_profile,
    read_json,
    read_profiles,
    use_rivals,
    write_json,
)
from joulecast.features.evaluate import EstimatorScore, Evaluation, NetResult
from joulecast.features.evaluation import (
    NO_PROBE,
    PASSES,
    EvaluationLog,
    EvaluationPlan,
    evaluate_stored,
    measure_and_evaluate,
    name_campaign,
    score_estimator,
)
from joulecast.features.measurers import MeasureOptions, open_any_measurer
from joulecast.records import Profile, Setup, weakest_provenance
from joulecast.store import open_store
from joulecast.system.errors import JoulecastError, MissingError

Json = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
TEST_NETS = 12
# Device time of a campaign: that of additive, without the probes of the test networks, and that of
# a baseline, which is about the sum of both.
OWN_SECONDS, BASELINE_SECONDS = 20.0, 45.0
OWN = ("additive", "additive" + NO_PROBE)
BASELINES = ("subtractive", "neuralpower", "work-linear", "flops-linear", "flops", "constant")
ESTIMATORS = (*OWN, *BASELINES)
# additive when the test networks were first seen: the only test of it that is clean.
FIRST = "first judged"
OUTSIDE = "outside"
# Names of groups, and the bottleneck of their settings.
GROUPS = {"gpu-bound": ("gpu",), "host-bound": ("host",), "all": ("gpu", "host")}


@dataclass(frozen=True)
class Setting:
    """A family with one setup, the seed of its networks, and the expected bottleneck."""

    name: str
    family: str
    setup: Setup
    input_shape: tuple[int, ...]
    seed: int
    bound: str

    def plan(self, estimators: tuple[str, ...], seconds: float) -> EvaluationPlan:
        """Return the plan that evaluates some estimators in this setting."""
        shape, seed = self.input_shape, self.seed
        return EvaluationPlan(self.family, self.setup, shape, estimators, TEST_NETS, seconds, seed)

    def open_log(self, profile: Profile) -> EvaluationLog:
        """Return a profile's observations of this setting."""
        return EvaluationLog(self.plan(OWN, OWN_SECONDS), profile)

    def count_tests(self, profile: Profile) -> int:
        """Return how many windows of its test networks a profile has."""
        log = self.open_log(profile)
        return sum(len(log.list_for(role)) for role in PASSES)


def _train(batch: int, precision: str, optimizer: str = "sgd") -> Setup:
    return Setup(batch=batch, precision=precision, optimizer=optimizer)


# Fixed before anything was measured.
SETTINGS = (
    Setting("lenet5", "lenet5", _train(10, "fp32"), (1, 28, 28), 401, "host"),
    Setting("cnn5-small", "cnn5", _train(10, "tf32"), (3, 32, 32), 402, "host"),
    Setting("cnn5", "cnn5", _train(128, "tf32"), (3, 96, 96), 403, "gpu"),
    Setting("cnn5-bf16", "cnn5", _train(128, "bf16"), (3, 96, 96), 404, "gpu"),
    Setting("har", "har", _train(32, "fp32"), (9, 128), 405, "host"),
    Setting("lstm", "lstm", _train(32, "fp32"), (32,), 406, "host"),
    Setting("transformer", "transformer", _train(512, "tf32", "adamw"), (256,), 407, "gpu"),
    Setting("transformer-bf16", "transformer", _train(512, "bf16", "adamw"), (256,), 408, "gpu"),
    Setting("resnet", "resnet18", _train(128, "tf32"), (3, 224, 224), 409, "gpu"),
    Setting("resnet-bf16", "resnet18", _train(128, "bf16"), (3, 224, 224), 410, "gpu"),
)


@dataclass(frozen=True)
class SettingResult:
    """The scores of one setting.

    Attributes:
        evaluation: Evaluation of additive, or of the baselines if only those were measured.
        nets: Test networks with the estimates of all estimators.
        missing: What was not measured or could not be scored.
        profile: The observations that it is based on.
    """

    setting: Setting
    evaluation: Evaluation
    scores: tuple[EstimatorScore, ...]
    nets: tuple[NetResult, ...]
    missing: tuple[str, ...]
    profile: Profile


def main() -> None:
    """Measure or report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    measuring = parts.add_parser("measure", help="measure what a store lacks")
    measuring.add_argument("store", type=Path)
    measuring.add_argument("--on", default="cuda:0")
    measuring.add_argument("--only", nargs="*", choices=[one.name for one in SETTINGS])
    measuring.add_argument("--until-s", type=float, default=1e9, help="start no setting after it")
    measuring.set_defaults(work=measure)
    reporting = parts.add_parser("report", help="score observations and write tables")
    reporting.add_argument("stores", type=Path, nargs="*", help="stores or files of observations")
    reporting.add_argument("--out", type=Path, default=RESULTS)
    reporting.set_defaults(work=report)
    args = parser.parse_args()
    use_rivals()
    try:
        args.work(args)
    except (JoulecastError, OSError) as error:
        sys.exit(str(error))


def measure(args: argparse.Namespace) -> None:
    """Measure test networks, their probes and the campaigns of all estimators."""
    started_s = time.monotonic()
    with (
        open_any_measurer(MeasureOptions(args.on, rounds=1)) as measurer,
        open_store(args.store) as store,
    ):
        for setting in SETTINGS:
            if args.only and setting.name not in args.only:
                continue
            if time.monotonic() - started_s > args.until_s:
                sys.exit(f"{setting.name} and later settings are left out")
            plan = setting.plan(ESTIMATORS, BASELINE_SECONDS)
            try:
                measure_and_evaluate(
                    measurer, store, replace(plan, budgets=(("additive", OWN_SECONDS),))
                )
            except JoulecastError as error:
                print(f"{setting.name}: {error}")
            print(f"{time.monotonic() - started_s:.0f} s: {setting.name} done", flush=True)


def report(args: argparse.Namespace) -> None:
    """Score, print and write; without stores, the kept observations."""
    files = args.stores or [RESULTS / f"observations-{one.name}.json.xz" for one in SETTINGS]
    profiles = [one for file in files for one in read_profiles(file)]
    results = [
        evaluate_setting(max(found, key=setting.count_tests), setting)
        for setting in SETTINGS
        if (found := [one for one in profiles if setting.count_tests(one)])
    ]
    if not results:
        raise MissingError("the sources have no test networks: run measure first")
    args.out.mkdir(parents=True, exist_ok=True)
    rows = make_rows(results)
    if args.stores:
        for one in results:
            pack_profile(one.profile, args.out / f"observations-{one.setting.name}.json.xz")
    else:
        first = read_json(RESULTS / "summary-first.json.xz")["rows"]
        rows += read_json(RESULTS / "outside.json")["rows"]
        rows += [{**row, "estimator": FIRST} for row in first if row["estimator"] == OWN[0]]
    about = describe_run(results)
    nets = [{"setting": one.setting.name, **net.to_dict()} for one in results for net in one.nets]
    write_json(args.out / "summary.json.xz", {**about, "rows": rows})
    write_json(args.out / "nets.json.xz", {**about, "nets": nets})
    table = make_markdown(rows)
    (args.out / "table.md").write_text(f"{table}\n{about['date']}, commit {about['commit']}\n")
    draw_errors(rows, args.out / "accuracy.svg")
    print(table)
    for name, lines in about["missing"].items():
        print(*(f"Not measured or scored in {name}: {line}" for line in lines), sep="\n")


def evaluate_setting(profile: Profile, setting: Setting) -> SettingResult:
    """Return the scores of all estimators that were measured."""
    print(f"scoring {setting.name}", file=sys.stderr, flush=True)
    log = setting.open_log(profile)
    results: list[Evaluation] = []
    for names, seconds in ((OWN, OWN_SECONDS), (BASELINES, BASELINE_SECONDS)):
        measured = tuple(name for name in names if log.list_for(name_campaign(name)))
        if measured:
            results.append(evaluate_stored(profile, setting.plan(measured, seconds)))
    if not results:
        raise MissingError(f"no estimator has observations of {setting.name}")
    estimates: dict[str, Any] = {}
    for net in (net for one in results for net in one.nets):
        estimates.setdefault(net.name, {}).update(net.estimates)
    return SettingResult(
        setting,
        results[0],
        tuple(score for one in results for score in one.scores),
        tuple(replace(net, estimates=estimates[net.name]) for net in results[0].nets),
        tuple(dict.fromkeys(line for one in results for line in (*one.missing, *one.left_out))),
        replace(profile, observations=tuple(log.observations), fits={}),
    )


def describe_run(results: Sequence[SettingResult]) -> Json:
    """Describe the devices, date and commit of the results."""
    evaluations = [one.evaluation for one in results]
    return {
        "devices": list({one.device.unit: one.device.to_dict() for one in evaluations}.values()),
        "provenance": weakest_provenance(one.provenance for one in evaluations),
        "covers": " and ".join(dict.fromkeys(one.covers for one in evaluations)),
        "date": max(one.date for one in evaluations),
        "commit": find_commit(__file__),
        "missing": {one.setting.name: list(one.missing) for one in results if one.missing},
    }


def make_rows(results: Sequence[SettingResult]) -> list[Json]:
    """Return a row for each setting and estimator, then for each group."""
    rows = [
        make_row(one.setting.name, one.setting.bound, score)
        for one in results
        for score in one.scores
    ]
    for group, bounds in GROUPS.items():
        members = [one for one in results if one.setting.bound in bounds]
        scores = [{score.estimator: score for score in one.scores} for one in members]
        for name in ESTIMATORS:
            if members and all(name in own for own in scores):
                pooled = score_estimator(
                    name,
                    [net for one in members for net in one.nets],
                    device_seconds=fmean(own[name].device_seconds for own in scores),
                    points=sum(own[name].points for own in scores),
                )
                rows.append(make_row(group, "+".join(bounds), pooled))
    return rows


def make_row(setting: str, bound: str, score: EstimatorScore) -> Json:
    """Return what a table shows of a score."""
    data = score.to_dict()
    shown = ("mape", "bias", "p90", "max", "coverage95", "width95", "noise")
    numbers = {f"{name}_percent": data[f"{name}_percent"] for name in shown}
    numbers["device_seconds"] = data["device_seconds"]
    rounded = {name: None if one is None else round(one, 4) for name, one in numbers.items()}
    named = {"setting": setting, "bound": bound, "estimator": score.estimator}
    return {**named, "nets": score.nets, **rounded}


def make_markdown(rows: Sequence[Json]) -> str:
    """Return the table: MAPE of all estimators, the lowest in bold, then details of additive."""
    known = {row["estimator"] for row in rows}
    names = [name for name in (FIRST, *ESTIMATORS) if name in known]
    columns = ["setting", "networks", "repeatability", *names, "within 95 %", "width", "device s"]
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    order = [one.name for one in SETTINGS] + [OUTSIDE, *GROUPS]
    for setting in order:
        found = {row["estimator"]: row for row in rows if row["setting"] == setting}
        if OWN[0] not in found:
            continue
        own, errors = found[OWN[0]], {name: found[name]["mape_percent"] for name in found}
        best = min(errors.values())
        cells = []
        for name in names:
            text = f"{errors[name]:.1f}" if name in errors else "-"
            cells.append(f"**{text}**" if text == f"{best:.1f}" else text)
        details = ("coverage95_percent", "width95_percent", "device_seconds")
        more = [f"{own[name]:.0f}" for name in details]
        noise = own["noise_percent"]
        start = [setting, str(own["nets"]), "-" if noise is None else f"{noise:.1f}"]
        lines.append([*start, *cells, *more])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw_errors(rows: Iterable[Json], file: Path) -> None:
    """Draw the MAPE of each estimator in each setting, and the repeatability."""
    from matplotlib.figure import Figure

    found = {(row["setting"], row["estimator"]): row for row in rows}
    settings = [one.name for one in SETTINGS if (one.name, OWN[0]) in found]
    figure = Figure((8, 5), layout="constrained")
    axes = figure.subplots()
    for marker, name in zip("osD^vPX*", ESTIMATORS, strict=True):
        places = [at for at, one in enumerate(settings) if (one, name) in found]
        errors = [found[settings[at], name]["mape_percent"] for at in places]
        axes.plot(errors, places, marker, label=name, markersize=9 if name == OWN[0] else 6)
    noise = [found[one, OWN[0]]["noise_percent"] or 0.0 for one in settings]
    axes.barh(range(len(settings)), noise, 0.7, color="0.9", label="repeatability")
    axes.set(xscale="symlog", xlim=(0, 100), yticks=range(len(settings)), yticklabels=settings)
    axes.set(xlabel="MAPE of the energy per step, %", xticks=(0, 1, 2, 5, 10, 20, 50, 100))
    axes.set_xticklabels(["0", "1", "2", "5", "10", "20", "50", "100"])
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axes.set_title("120 held-out networks in ten settings on NVIDIA H200s (measured)", loc="left")
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
