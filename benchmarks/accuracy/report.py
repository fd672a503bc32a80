"""Judges what was measured: tables, numbers and pictures from stores alone, without a device.

    python benchmarks/accuracy/report.py STORE ... [--outside OUT/test.json]
    cd benchmarks/accuracy/results && python ../report.py observations-*.json.gz \\
        --outside outside.json                                            judges again, anywhere

Of every setting the source that holds most of its test nets is judged. ``results/`` then has

    summary.json    a row for each setting and estimator, and means       table.md   the same, short
    nets.json       every test net, measured and estimated                accuracy.svg, .png
    observations-SETTING.json.gz   what the setting rests on              error-shares.svg
    outside.json    what outside.py said, as it was given
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keeping import read_profiles, write_packed
from rows import ESTIMATORS, ScreenedCandidate, list_judged, list_nets, make_rows
from settings import OWN, OWN_SECONDS, RIVAL_SECONDS, RIVALS, SETTINGS, Setting
from tables import make_markdown, print_summary

from joulecast.errors import JoulecastError, MissingError
from joulecast.figures import Picture, draw_error_levels, draw_error_shares, save_png, save_svg
from joulecast.files import read_profile
from joulecast.records import Observation, Profile, weakest_provenance
from joulecast.testing.commits import find_commit
from joulecast.uses.evaluate import Evaluation, evaluate_stored, name_evaluation
from joulecast.uses.evaluate.evaluation_log import PASSES, EvaluationLog
from joulecast.uses.evaluate.evaluation_plan import strip_probe

Json = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
# Under tags that begin so cost.py keeps what it has measured.
COST = "cost"


def main() -> None:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stores", type=Path, nargs="+", help="stores, or files of observations")
    parser.add_argument("--outside", type=Path, help="the JSON that outside.py wrote")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    try:
        verdicts = judge_all([one for file in args.stores for one in read_profiles(file)])
        outside = json.loads(args.outside.read_text()) if args.outside else None
        args.out.mkdir(parents=True, exist_ok=True)
        summary = write_all(args.out, verdicts, outside)
        if args.outside:
            keep_outside(args.outside, args.out)
    except (JoulecastError, OSError) as error:
        sys.exit(str(error))
    print_summary(summary)


# ---------------------------------------------------------------------------------------------
# Judging


def judge_all(profiles: Sequence[Profile]) -> list[ScreenedCandidate]:
    """Every setting that has test nets somewhere.

    Raises:
        MissingError: No setting has.
    """
    verdicts = []
    for setting in SETTINGS:
        source = max(profiles, key=lambda one: count_tests(one, setting), default=None)
        if source is None or not count_tests(source, setting):
            continue
        print(f"judging {setting.name}", file=sys.stderr, flush=True)
        try:
            verdicts.append(judge_setting(source, setting))
        except MissingError as error:
            print(f"{setting.name} is left out: {error}", file=sys.stderr)
    if not verdicts:
        raise MissingError("no test net of any setting is kept there: run measure.py STORE test")
    return verdicts


def count_tests(profile: Profile, setting: Setting) -> int:
    """How many windows of a setting's test nets a profile holds."""
    book = open_book(profile, setting)
    return sum(len(book.list_for(who)) for who in PASSES)


def judge_setting(profile: Profile, setting: Setting) -> ScreenedCandidate:
    """All estimators that were measured, each with its seconds.

    Raises:
        MissingError: None was measured.
    """
    book = open_book(profile, setting)
    results: list[Evaluation] = []
    for names, seconds in ((OWN, OWN_SECONDS), (RIVALS, RIVAL_SECONDS)):
        measured = tuple(name for name in names if book.list_for(strip_probe(name)))
        if measured:
            results.append(evaluate_stored(profile, setting.plan(measured, seconds)))
    if not results:
        raise MissingError("no estimator has learnt anything there")
    scores = {score.estimator: score for one in results for score in one.scores}
    answers: dict[str, Json] = {}
    for net in (net for one in results for net in one.nets):
        answers.setdefault(net.name, {}).update(net.estimates)
    return ScreenedCandidate(
        setting,
        results[0],
        tuple(scores[name] for name in ESTIMATORS if name in scores),
        tuple(replace(net, estimates=answers[net.name]) for net in results[0].nets),
        tuple(dict.fromkeys(words for one in results for words in (*one.missing, *one.left_out))),
        replace(profile, observations=list_kept(book), fits={}),
    )


def open_book(profile: Profile, setting: Setting) -> EvaluationLog:
    """What a profile holds of a setting."""
    plan = setting.plan(OWN, OWN_SECONDS)
    return EvaluationLog(name_evaluation(plan, profile.key), profile.observations)


def list_kept(book: EvaluationLog) -> tuple[Observation, ...]:
    """All that a setting rests on, which is not what the question of cost does."""
    aside = book.tag(f"{COST}.")
    return tuple(seen for seen in book.list_all() if not seen.run.startswith(aside))


# ---------------------------------------------------------------------------------------------
# Writing


def write_all(out: Path, verdicts: Sequence[ScreenedCandidate], outside: Json | None) -> Json:
    """Everything but what outside.py said; gives the summary."""
    rows, nets = make_rows(verdicts, outside), list_nets(verdicts, outside)
    summary = {**describe_run(verdicts), "rows": rows}
    (out / "summary.json").write_text(spread_json(summary, "rows"))
    (out / "nets.json").write_text(spread_json({**describe_run(verdicts), "nets": nets}, "nets"))
    (out / "table.md").write_text(make_markdown(rows))
    for one in verdicts:
        write_packed(one.kept, out / f"observations-{one.setting.name}.json.gz")
    for name, picture in draw_all(summary, nets).items():
        save_svg(picture, out / f"{name}.svg")
        save_png(picture, out / f"{name}.png")
    return summary


def describe_run(verdicts: Sequence[ScreenedCandidate]) -> Json:
    """On what, when and by what it was judged."""
    results = [one.evaluation for one in verdicts]
    devices = list(dict.fromkeys(one.device for one in results))
    return {
        "device": " and ".join(dict.fromkeys(one.name for one in devices)),
        "devices": [one.to_dict() for one in devices],
        "provenance": weakest_provenance(one.provenance for one in results),
        "covers": " and ".join(dict.fromkeys(one.covers for one in results)),
        "date": max(one.date for one in results),
        "commit": find_commit(__file__),
        "missing": {one.setting.name: list(one.missing) for one in verdicts if one.missing},
    }


def keep_outside(file: Path, out: Path) -> None:
    """What outside.py said, and its observations where they lie beside it."""
    (out / "outside.json").write_bytes(file.read_bytes())
    beside = file.with_name(f"{file.stem}-profile.json")
    if beside.exists():
        write_packed(read_profile(beside), out / "observations-outside.json.gz")


def spread_json(data: Json, long: str) -> str:
    """JSON with a line for each value of one long list."""
    head = json.dumps({name: one for name, one in data.items() if name != long}, allow_nan=False)
    lines = ",\n".join(json.dumps(one, allow_nan=False) for one in data[long])
    return f"{head[:-1]},\n{json.dumps(long)}: [\n{lines}\n]}}\n"


def draw_all(summary: Json, nets: Sequence[Json]) -> dict[str, Picture]:
    """Mean errors by setting, and how many nets are estimated how well."""
    judged = list_judged(nets)
    noise = {row["setting"]: row["noise_percent"] for row in summary["rows"]}
    where, basis = summary["device"], summary["provenance"]
    settings = len({net["setting"] for net in nets})
    words = f"{len(nets)} nets that no estimator saw, in {settings} settings on {where}"
    return {
        "accuracy": draw_error_levels(
            judged,
            noise_percent={name: value for name, value in noise.items() if value is not None},
            title="Mean error of the estimated energy of a step",
            about=words,
            provenance=basis,
        ),
        "error-shares": draw_error_shares(judged, about=words, provenance=basis),
    }


if __name__ == "__main__":
    main()
