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
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from net_pieces import (
    READING_COLUMNS,
    MeasuredPieces,
    NetPiece,
    describe_nets,
    find_next_piece,
    list_host_probes,
    list_pieces,
    list_probes,
    read_all,
)
from nets import TABLES, Entry, shrink
from scoring import (
    ENERGY_ROLE,
    ESTIMATORS,
    HOST_ROLE,
    PROBE_ROLE,
    SCORE_COLUMNS,
    Case,
    list_net_columns,
    list_windows,
    score_case,
    show_net,
    show_score,
)

from joulecast.api.measurers import OwnNetRuntime, open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign import find_profile_key, run_campaign
from joulecast.cli.terminal import label_provenance, make_console, print_table
from joulecast.errors import MissingError
from joulecast.estimators import find_estimator
from joulecast.estimators.additive.acquisition import propose_trial
from joulecast.estimators.additive.model_fit import fit_model
from joulecast.estimators.base import Estimator, Fitted, Proposal, Target
from joulecast.files import read_profile, write_profile
from joulecast.measurer import Measurer
from joulecast.records import OWN_NET, Network, Observation, Profile, Trial
from joulecast.store import open_store
from joulecast.testing.commits import find_commit
from joulecast.uses.evaluate.campaign_budget import BudgetedEstimator, is_budget_spent, sum_work_s
from joulecast.uses.evaluate.evaluation_log import PASSES, EvaluationLog

Json = dict[str, Any]

CAMPAIGNS = ("subtractive", "neuralpower")
# Pieces of each net whose energy is measured at most, after all pieces were timed.
ENERGY_PROBES_PER_NET = 2
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


def print_progress(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


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
        made = (
            seen for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE) for seen in log.list_for(role)
        )
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


class TimeUpError(Exception):
    """The time limit was reached."""


@dataclass
class OutsideRun:
    """One run of the benchmark: the measurer, the log and the failures so far."""

    measurer: Measurer
    log: EvaluationLog
    entries: Sequence[Entry]
    networks: dict[str, Network]
    pieces_by_key: dict[str, NetPiece]
    measured_pieces: MeasuredPieces
    failures: list[str]
    on: str
    known: Sequence[Observation]
    until_s: float = 0.0
    reserve_s: float = 0.0
    is_warm: bool = False
    refused: set[str] = field(default_factory=set)

    def measure_all(self, args: argparse.Namespace) -> None:
        """Run all stages; time for the second pass is reserved."""
        stages: list[tuple[str, Callable[[], None], bool]] = [
            ("pass 1", lambda: self.measure_pass(PASSES[0]), False),
            ("energy of kinds", lambda: self.measure_kinds(args.seconds), True),
            ("time of pieces", self.time_pieces, True),
        ]
        stages.append(("issue times of pieces", self.time_host_issue, True))
        stages.append(("energy of uncertain pieces", self.measure_uncertain_pieces, True))
        for name in CAMPAIGNS:
            if name in args.estimators and args.subtractive_s > 0:
                stages.append(
                    (name, lambda n=name: self.run_campaigns(n, args.subtractive_s), True)
                )  # type: ignore[misc]
        stages.append(("pass 2", lambda: self.measure_pass(PASSES[1]), False))
        for what, run, is_optional in stages:
            started_s = time.monotonic()
            print_progress(f"== {what}")
            try:
                self.reserve_s = self.estimate_pass_s() if is_optional else 0.0
                run()
            except TimeUpError:
                self.failures.append(
                    f"{what}: the time limit was reached, run the same command to resume"
                )
            print_progress(f"   took {time.monotonic() - started_s:.0f} s")

    def estimate_pass_s(self) -> float:
        """Return the time of the rest of the second pass, estimated from the first."""
        done = {seen.trial.network.name for seen in self.log.list_for(PASSES[1])}
        first = self.log.list_for(PASSES[0])
        return sum(1.3 * s.cost_s + 2.0 for s in first if s.trial.network.name not in done)

    def check_time_left(self) -> None:
        """Raise TimeUpError if the time limit, less the reserve, was reached."""
        if time.monotonic() + self.reserve_s > self.until_s:
            raise TimeUpError

    # -- the nets themselves -----------------------------------------------------------------

    def measure_pass(self, role: str) -> None:
        """Measure one window of every net that the pass lacks."""
        for entry in self.entries:
            if list_windows(self.log, entry, role):
                continue
            self.check_time_left()
            self.warm_up()
            with self.record_failures(entry.name):
                seen = self.measure_net(entry, role)
                self.log.add(seen)
                print_progress(
                    f"   {entry.name}: {seen.energy_j:.3g} J, {1e3 * (seen.duration_s or 0):.1f} ms"
                    f", {(seen.peak_memory_bytes or 0) / 1e9:.1f} GB, cost {seen.cost_s:.1f} s"
                )
            # Some nets contain reference cycles; their memory is needed for the next one.
            gc.collect()

    def measure_net(self, entry: Entry, role: str) -> Observation:
        """Measure a window of a net's own module, or of its network on a simulated device."""
        measurer = replace(self.measurer, run=self.log.make_tag(role), rounds=1)
        trial = Trial(self.networks[entry.name], entry.setup)
        if self.measurer.runtime.name.startswith("simulated"):
            return measurer.measure(trial)
        loaded = load_entry(entry, self.on)
        if loaded.loss is not None:
            trial = replace(trial, setup=replace(entry.setup, loss="own"))
        own: Any = OwnNetRuntime(self.measurer.runtime, loaded)  # type: ignore[arg-type]
        return replace(replace(measurer, runtime=own).measure(trial), source=OWN_NET)

    def warm_up(self) -> None:
        """Run a first load, whose result is discarded."""
        if not self.is_warm and self.pieces_by_key:
            self.is_warm = True
            ordered = sorted(self.pieces_by_key.values(), key=lambda p: p.piece.size_bytes)
            with suppress(Exception):
                self.measurer.time(ordered[len(ordered) // 2].make_trial("eager"))

    # -- additive ----------------------------------------------------------------------------

    def measure_kinds(self, seconds: float) -> None:
        """Measure the energy of two pieces of every unseen kind, over all nets together."""
        measurer = replace(self.measurer, run=self.log.make_tag(ENERGY_ROLE))
        if not any(not seen.trial.network.layers for seen in self.log.list_for(ENERGY_ROLE)):
            self.warm_up()
            self.log.add(measurer.measure_idle())
        while sum_work_s(self.log.list_for(ENERGY_ROLE)) < seconds:
            net_piece = find_next_piece(self.pieces_by_key, self.measured_pieces, self.refused)
            if net_piece is None:
                return
            self.check_time_left()
            self.warm_up()
            self.measure_piece(net_piece, measurer.measure, self.measured_pieces.mode)
        self.failures.append(f"not all kinds were measured within {seconds:.0f} s")

    def time_pieces(self) -> None:
        """Time every distinct piece that has not been timed yet."""
        measurer = replace(self.measurer, run=self.log.make_tag(PROBE_ROLE))
        for net_piece in list_probes(self.pieces_by_key, self.measured_pieces):
            self.check_time_left()
            self.warm_up()
            if net_piece.piece.key not in self.refused:
                self.measure_piece(net_piece, measurer.time, self.measured_pieces.mode)

    def time_host_issue(self) -> None:
        """Time the host for one piece of each structure, run eagerly and isolated."""
        measurer = replace(self.measurer, run=self.log.make_tag(HOST_ROLE))
        for net_piece in list_host_probes(self.pieces_by_key, self.measured_pieces):
            self.check_time_left()
            self.warm_up()
            if net_piece.piece.key not in self.refused:
                self.measure_piece(net_piece, measurer.time, "eager")

    def measure_uncertain_pieces(self) -> None:
        """Measure the energy of the pieces that contribute most to each net's variance."""
        measurer = replace(self.measurer, run=self.log.make_tag(PROBE_ROLE))
        left = ENERGY_PROBES_PER_NET * len(self.entries) - self.count_energy_probes()
        for _ in range(ENERGY_PROBES_PER_NET):
            try:
                state = fit_model(self.list_observations())
            except MissingError:
                return
            for entry in self.entries:
                if left <= 0:
                    return
                self.check_time_left()
                target = Target(self.networks[entry.name], entry.setup, acquisition="probe")
                target = replace(target, modes=self.measurer.runtime.modes)
                proposal = propose_trial(
                    target, self.list_observations(), lambda seen, now=state: now
                )  # type: ignore[misc]
                if proposal.trial is not None and proposal.with_energy:
                    left -= 1
                    with self.record_failures(f"a probe of {entry.name}"):
                        self.log.add(measurer.measure(proposal.trial))

    def list_observations(self) -> list[Observation]:
        """Return the observations of ``additive`` so far."""
        made = [
            seen
            for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE)
            for seen in self.log.list_for(role)
        ]
        refused = [
            Observation(net_piece.make_trial(self.measured_pieces.mode))
            for key, net_piece in self.pieces_by_key.items()
            if key in self.refused
        ]
        return [*self.known, *made, *refused]

    def count_energy_probes(self) -> int:
        """Return how many energies were measured after the pieces were timed."""
        return sum(seen.energy_j is not None for seen in self.log.list_for(PROBE_ROLE))

    def measure_piece(
        self, net_piece: NetPiece, measure: Callable[[Trial], Observation], mode: str
    ) -> None:
        """Measure a piece, or record why the device did not run it."""
        trial = net_piece.make_trial(mode)
        before = len(self.failures)
        with self.record_failures(f"{net_piece.piece.label} of {', '.join(net_piece.nets)}"):
            seen = measure(trial)
            self.log.add(seen)
            self.measured_pieces.add(seen)
        if len(self.failures) > before:
            self.refused.add(net_piece.piece.key)

    # -- others ------------------------------------------------------------------------------

    def run_campaigns(self, name: str, seconds: float) -> None:
        """Run a campaign of a baseline for each net, each with its own device time."""
        tags = [f"{name}.{entry.name}" for entry in self.entries]
        for entry, role in zip(self.entries, tags, strict=True):
            self.check_time_left()
            self.warm_up()
            shelf = SharedCampaignLog(self.log, role, tags)
            method = NetBudgetEstimator(find_estimator(name), seconds, self, role)
            measurer = replace(self.measurer, run=self.log.make_tag(role))
            target = Target(self.networks[entry.name], entry.setup, acquisition="energy")
            with self.record_failures(f"{name} of {entry.name}"), suppress(MissingError):
                result = run_campaign(measurer, shelf, method, target)
                self.failures += [f"{name} of {entry.name}: {w}" for w in result.skipped[:1]]
                print_progress(f"   {entry.name}: {result.new} new points, {result.stopped}")

    @contextmanager
    def record_failures(self, what: str) -> Iterator[None]:
        """Record an exception as a failure and continue."""
        try:
            yield
        except (KeyboardInterrupt, TimeUpError):
            raise
        except Exception as error:  # nets and drivers may raise anything
            text = " ".join(str(error).split())[:300]
            self.failures.append(f"{what}: {type(error).__name__}: {text}")
            print_progress(f"   {self.failures[-1]}")


class SharedCampaignLog:
    """The log of one net's campaign, which also sees the campaigns of the other nets."""

    def __init__(self, log: EvaluationLog, role: str, tags: Sequence[str]) -> None:
        self._log, self._role, self._tags = log, role, tags

    def add_observation(self, observation: Observation) -> None:
        """Store an observation permanently."""
        self._log.add(observation)

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return the observations of the campaigns of all nets."""
        return [seen for tag in self._tags for seen in self._log.list_for(tag)]

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: scoring fits the estimator again."""


class NetBudgetEstimator(BudgetedEstimator):
    """An estimator that proposes nothing once one net has used its device time."""

    def __init__(self, method: Estimator, seconds: float, run: OutsideRun, role: str) -> None:
        super().__init__(method, seconds)
        self._run, self._role = run, role

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """Return the estimator's proposal until the net's device time is spent."""
        self._run.check_time_left()
        if is_budget_spent(self._run.log.list_for(self._role), self._seconds):
            return Proposal(None, 0.0, f"the {self._seconds:.0f} s of this net are spent")
        return self._estimator.propose(target, observations)

    def fit(self, observations: Sequence[Observation]) -> Fitted:
        """Return an empty fit: the estimator is fitted later, when no device waits for it."""
        return cast(Fitted, NoFit())


class NoFit:
    """A fit that holds nothing, for campaigns that only measure."""

    def to_dict(self) -> Json:
        """Return nothing to store."""
        return {}


def load_entry(entry: Entry, on: str) -> Any:
    """Build an entry's module, on the device if possible."""
    import torch

    from joulecast.runtimes.torch.load import LoadedNet

    try:
        with torch.device(on):
            return LoadedNet(*entry.build())
    except Exception:  # some nets can only be built on the CPU
        return LoadedNet(*entry.build())


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
        for seen in profile.observations:
            is_own = (
                any(is_of_table(seen, name) for name in tables) or seen.trial.network in held_out
            )
            is_named = seen.source == OWN_NET and seen.trial.network.name in networks
            if not is_own and not is_named:
                found[seen.trial.key, seen.run, seen.taken_at_s] = seen
    return tuple(found.values())


def is_of_table(seen: Observation, name: str) -> bool:
    """Return whether an observation was made for a table; one name is a prefix of another."""
    other = any(seen.run.startswith(f"{b}.") for b in TABLE_NAMES.values() if len(b) > len(name))
    return seen.run.startswith(f"{name}.") and not other


def list_whole_nets(
    profiles: Sequence[Profile], known: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return whole nets that a factor may be fitted to: the table ``dev`` and earlier ones."""
    tags = {f"{TABLE_NAMES['dev']}.{role}" for role in PASSES}
    trained = [seen for p in profiles for seen in p.observations if seen.run in tags]
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
    return max(profiles, key=lambda p: sum(is_of_table(seen, name) for seen in p.observations))


def list_table_observations(
    log: EvaluationLog, args: argparse.Namespace
) -> tuple[Observation, ...]:
    """Return the observations that were made for the table."""
    return tuple(seen for seen in log.list_all() if is_of_table(seen, TABLE_NAMES[args.which]))


def describe_run(args: argparse.Namespace, profile: Profile, case: Case) -> Json:
    """Describe the device, the commit and the earlier observations of a result."""
    seen = list_table_observations(case.log, args)
    return {
        "which": args.which,
        "tiny": args.tiny,
        "device": profile.device.to_dict(),
        "runtime": profile.runtime,
        "covers": profile.covers,
        "provenance": profile.provenance,
        "date": datetime.fromtimestamp(max(s.taken_at_s for s in seen), UTC).date().isoformat(),
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
