"""Evaluate estimators on real nets outside the built-in families.

    read ─▶ pass 1 ─▶ energy of kinds ─▶ time of pieces ─▶ energy of pieces ─▶ baselines ─▶ pass 2
            modules   two pieces each    all, issue time   two per net         per net      modules

The reference is each net's own module, trained eagerly under the meter at two different times.
Estimators are never fitted to a whole net of the table: only to isolated layers and blocks, each
kind once for all nets, and to the observations of ``--known``. Every observation is stored at once
under its own run tag and never made again: the same command resumes an interrupted run.

    python benchmarks/accuracy/outside.py --on cuda:0 --store S.sqlite --which test --out OUT
    python benchmarks/accuracy/outside.py --offline --store S.sqlite --which test --out OUT
    python benchmarks/accuracy/outside.py --on cpu --tiny --store S.sqlite --which dev --out OUT
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from net_pieces import (
    READING_COLUMNS,
    MeasuredPieces,
    NetPiece,
    describe_nets,
    list_pieces,
    read_all,
)
from nets import TABLES, Entry, shrink
from outside_run import OutsideRun, print_progress
from scoring import (
    ENERGY_ROLE,
    ESTIMATORS,
    HOST_ROLE,
    PROBE_ROLE,
    SCORE_COLUMNS,
    Case,
    list_net_columns,
    score_case,
    show_net,
    show_score,
)

from joulecast.campaign import find_profile_key
from joulecast.cli.terminal import label_provenance, make_console, print_table
from joulecast.errors import MissingError
from joulecast.features.evaluation import PASSES, EvaluationLog
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.files import read_profile, write_profile
from joulecast.records import OWN_NET, Network, Observation, Profile
from joulecast.store import open_store
from joulecast.testing.commits import find_commit

Json = dict[str, Any]

TABLE_NAMES = {"test": "outside", "dev": "outside.dev", "fresh": "outside.fresh"}


def main() -> None:
    """Measure what is not stored yet, then score, print and write."""
    args = parse_arguments()
    args.started_s = time.monotonic()
    entries = choose_entries(args)
    folder = args.out / "networks" / (args.which + ("-tiny" if args.tiny else ""))
    failures: list[str] = []
    networks = read_all(entries, folder, failures, fresh=not args.offline)
    pieces_by_key = list_pieces(entries, networks)
    rows = describe_nets(entries, networks, pieces_by_key)
    print_table(make_console(), READING_COLUMNS, rows, title=f"{args.which}: nets as read")
    kinds = {one.piece.label for one in pieces_by_key.values()}
    print_progress(f"{len(pieces_by_key)} distinct pieces, {len(kinds)} kinds")
    if args.read_only:
        print_failures(failures)
        return
    if not args.offline:
        measure(args, entries, networks, pieces_by_key, failures)
    if not args.measure_only:
        score(args, entries, networks, pieces_by_key, failures)
    print_failures(failures)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--which", choices=list(TABLES), required=True)
    parser.add_argument("--on", default="cuda:0", help="cpu, cuda:0 or simulated:7")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--store", type=Path, required=True, help="store of observations")
    parser.add_argument("--out", type=Path, required=True, help="folder of networks and results")
    parser.add_argument(
        "--known",
        type=Path,
        nargs="*",
        default=[],
        help="profiles or stores of earlier observations",
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="device time for the energy of kinds"
    )
    parser.add_argument(
        "--subtractive-s",
        type=float,
        default=12.0,
        help="device time of its campaign per net; 0 for none",
    )
    parser.add_argument("--until-s", type=float, default=1e9, help="stop after this many seconds")
    parser.add_argument("--rounds", type=int, default=1, help="windows of each measured piece")
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS))
    parser.add_argument("--nets", nargs="+", default=[], help="names of nets; all by default")
    parser.add_argument("--tiny", action="store_true", help="small nets, to try the script")
    parser.add_argument("--read-only", action="store_true", help="only print how the nets are read")
    parser.add_argument("--measure-only", action="store_true", help="do not score")
    parser.add_argument("--offline", action="store_true", help="score stored observations")
    return parser.parse_args()


def choose_entries(args: argparse.Namespace) -> tuple[Entry, ...]:
    """Return the requested nets."""
    table = TABLES[args.which]
    chosen = tuple(entry for entry in table if not args.nets or entry.name in args.nets)
    if not chosen:
        sys.exit(f"none of {', '.join(args.nets)} is in the table {args.which}")
    return tuple(map(shrink, chosen)) if args.tiny else chosen


def print_failures(failures: Sequence[str]) -> None:
    """Print every failure once."""
    for failure in dict.fromkeys(failures):
        print(f"Left out: {failure}", flush=True)


# ---------------------------------------------------------------------------------------------
# Measuring


def measure(
    args: argparse.Namespace,
    entries: Sequence[Entry],
    networks: dict[str, Network],
    pieces_by_key: dict[str, NetPiece],
    failures: list[str],
) -> None:
    """Measure everything that is not stored yet."""
    with (
        open_measurer(MeasureOptions(args.on, args.meter, rounds=args.rounds)) as measurer,
        open_store(args.store) as store,
    ):
        key = find_profile_key(measurer)
        log = EvaluationLog(
            TABLE_NAMES[args.which], store.load_observations(key), store.add_observation
        )
        runtime, meter = measurer.runtime, measurer.meter
        here = Profile(runtime.device, runtime.name, meter.covers, meter.provenance)
        known = select_known(args, load_known_profiles(args.known, here), networks)
        ready = [entry for entry in entries if entry.name in networks]
        made = (one for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE) for one in log.list_for(role))
        mode = "graph" if "graph" in measurer.runtime.modes else "eager"
        measured_pieces = MeasuredPieces(mode, (*known, *made))
        work = OutsideRun(
            measurer, log, ready, networks, pieces_by_key, measured_pieces, failures, args.on, known
        )
        work.until_s = args.started_s + args.until_s
        try:
            work.measure_all(args)
        except KeyboardInterrupt:
            failures.append("interrupted: run the same command to resume")


# ---------------------------------------------------------------------------------------------
# Earlier observations


def load_known_profiles(files: Sequence[Path], here: Profile) -> list[Profile]:
    """Return the profiles of files and stores, all of this device."""
    found = [profile for file in files for profile in read_profiles(file)]
    for other in found:
        if identify_device(other) != identify_device(here):
            sys.exit(f"--known is of {identify_device(other)}, but this is {identify_device(here)}")
        if other.key != here.key:
            print_progress(
                f"known is of another driver or runtime: {other.device}, {other.runtime}"
            )
    return found


def identify_device(profile: Profile) -> tuple[str, str, str]:
    """Return what profiles must have in common to be combined."""
    return profile.device.name, profile.covers, profile.provenance


def read_profiles(file: Path) -> list[Profile]:
    """Return the profiles of a profile file or a store."""
    if file.suffix == ".json":
        return [read_profile(file)]
    if not file.exists():
        sys.exit(f"no file {file}")
    with open_store(file, create=False) as store:
        return [store.load_profile(one.key) for one in store.list_profiles() if not one.shipped]


def select_known(
    args: argparse.Namespace, profiles: Sequence[Profile], networks: Mapping[str, Network]
) -> tuple[Observation, ...]:
    """Return earlier observations, without those made for this table or ``test`` and its nets."""
    held_out, tables = set(networks.values()), {TABLE_NAMES["test"], TABLE_NAMES[args.which]}
    found = {}
    for profile in profiles:
        for observation in profile.observations:
            is_own = (
                any(is_of_table(observation, name) for name in tables)
                or observation.trial.network in held_out
            )
            is_named = observation.source == OWN_NET and observation.trial.network.name in networks
            if not is_own and not is_named:
                found[observation.trial.key, observation.run, observation.taken_at_s] = observation
    return tuple(found.values())


def is_of_table(observation: Observation, name: str) -> bool:
    """Return whether an observation was made for a table; one name is a prefix of another."""
    other = any(
        observation.run.startswith(f"{b}.") for b in TABLE_NAMES.values() if len(b) > len(name)
    )
    return observation.run.startswith(f"{name}.") and not other


def list_whole_nets(
    profiles: Sequence[Profile], known: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return whole nets that a factor may be fitted to: the table ``dev`` and earlier ones."""
    tags = {f"{TABLE_NAMES['dev']}.{role}" for role in PASSES}
    trained = [one for p in profiles for one in p.observations if one.run in tags]
    unique = {(s.trial.key, s.run, s.taken_at_s): s for s in (*trained, *known)}
    return tuple(unique.values())


# ---------------------------------------------------------------------------------------------
# Scores


def score(
    args: argparse.Namespace,
    entries: tuple[Entry, ...],
    networks: dict[str, Network],
    pieces_by_key: dict[str, NetPiece],
    failures: list[str],
) -> None:
    """Score stored observations, print and write the result."""
    profile = find_table_profile(args)
    profiles = load_known_profiles(args.known, profile)
    log = EvaluationLog(TABLE_NAMES[args.which], profile.observations)
    known = select_known(args, profiles, networks)
    others = list_whole_nets([profile, *profiles], known)
    case = Case(entries, networks, pieces_by_key, log, known, others)
    try:
        result = score_case(case, args.estimators, print_progress)
    except MissingError as error:
        sys.exit(str(error))
    result = {**describe_run(args, profile, case), **result, "troubles": list(failures)}
    write_result(
        args, result, replace(profile, observations=list_table_observations(log, args), fits={})
    )
    print_result(result)
    failures += result["left_out"]


def find_table_profile(args: argparse.Namespace) -> Profile:
    """Return the profile with the most observations of the table."""
    profiles = read_profiles(args.store)
    name = TABLE_NAMES[args.which]
    if not profiles:
        sys.exit(f"{args.store} is empty: run without --offline first")
    return max(profiles, key=lambda p: sum(is_of_table(one, name) for one in p.observations))


def list_table_observations(
    log: EvaluationLog, args: argparse.Namespace
) -> tuple[Observation, ...]:
    """Return the observations that were made for the table."""
    return tuple(one for one in log.list_all() if is_of_table(one, TABLE_NAMES[args.which]))


def describe_run(args: argparse.Namespace, profile: Profile, case: Case) -> Json:
    """Describe the device, the commit and the earlier observations of a result."""
    observations = list_table_observations(case.log, args)
    return {
        "which": args.which,
        "tiny": args.tiny,
        "device": profile.device.to_dict(),
        "runtime": profile.runtime,
        "covers": profile.covers,
        "provenance": profile.provenance,
        "date": datetime.fromtimestamp(max(s.taken_at_s for s in observations), UTC)
        .date()
        .isoformat(),
        "commit": find_commit(__file__),
        "known": [str(file.name) for file in args.known],
        "known_observations": len(case.known),
        "known_device_seconds": sum(one.cost_s for one in case.known),
    }


def write_result(args: argparse.Namespace, result: Json, profile: Profile) -> None:
    """Write the result as JSON, and its observations as a profile."""
    name = args.which + ("-tiny" if args.tiny else "")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_profile(profile, args.out / f"{name}-profile.json")


def print_result(result: Json) -> None:
    """Print scores, then the residuals of each net."""
    console = make_console()
    console.width = max(console.width, 200)
    provenance = label_provenance(result["provenance"])
    noise = result["noise_percent"]
    known = f"{result['known_observations']} earlier observations"
    title = (
        f"{len(result['nets'])} nets of {result['which']} on {result['device']['name']}{provenance}"
    )
    print_table(
        console, SCORE_COLUMNS, map(show_score, result["scores"]), title=f"{title}, {known}"
    )
    names = [score["estimator"] for score in result["scores"]]
    rows = [show_net(net, names) for net in result["nets"]]
    print_table(console, list_net_columns(names), rows, title="Error of each net in percent")
    spent = ", ".join(f"{role} {s:.0f} s" for role, s in result["device_seconds"].items())
    shown_noise = "unknown" if noise is None else f"{noise:.1f} %"
    console.print(f"Noise of two passes: {shown_noise}. Device time: {spent}.")


if __name__ == "__main__":
    main()
