"""Judges estimators by real nets that no family of ours contains.

    read ─▶ pass 1 ─▶ joules of new kinds ─▶ seconds of pieces ─▶ doubts ─▶ subtractive ─▶ pass 2
            own nets  two pieces of each     of all, and issued   two a net  net by net    own nets

The truth is each net's own module trained eagerly under the meter, at two different times. What is
learnt is never a whole net of the table: layers and blocks alone, each kind once for all nets, and
what ``--known`` brings from elsewhere. Every observation is kept in the store as it is made, under
a run tag of its own, and never made again: the same command goes on where it stopped.

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

from scoring import (
    ESTIMATORS,
    HOST_ROLE,
    ENERGY_ROLE,
    PROBE_ROLE,
    SCORE_COLUMNS,
    Case,
    score_case,
    list_net_columns,
    list_windows,
    show_net,
    show_score,
)
from nets import TABLES, Entry, shrink
from net_pieces import (
    READING_COLUMNS,
    NetPiece,
    MeasuredPieces,
    describe_nets,
    find_next_piece,
    list_host_probes,
    list_pieces,
    list_probes,
    read_all,
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
# Joules of at most so many pieces of each net, after all pieces were timed.
ENERGY_PROBES_PER_NET = 2
TABLE_NAMES = {"test": "outside", "dev": "outside.dev", "fresh": "outside.fresh"}


def main() -> None:
    """Measure what is not kept yet, then judge, print and write."""
    args = parse_arguments()
    args.started_s = time.monotonic()
    entries = choose_entries(args)
    folder = args.out / "networks" / (args.which + ("-tiny" if args.tiny else ""))
    failures: list[str] = []
    networks = read_all(entries, folder, failures, fresh=not args.offline)
    pieces_by_key = list_pieces(entries, networks)
    rows = describe_nets(entries, networks, pieces_by_key)
    print_table(make_console(), READING_COLUMNS, rows, title=f"{args.which}: how nets read")
    print_progress(f"{len(pieces_by_key)} distinct pieces, {len({p.piece.label for p in pieces_by_key.values()})} kinds")
    if args.read_only:
        print_failures(failures)
        return
    if not args.offline:
        measure(args, entries, networks, pieces_by_key, failures)
    if not args.measure_only:
        evaluate_stored(args, entries, networks, pieces_by_key, failures)
    print_failures(failures)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--which", choices=list(TABLES), required=True)
    parser.add_argument("--on", default="cuda:0", help="cpu, cuda:0 or simulated:7")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--store", type=Path, required=True, help="kept observations")
    parser.add_argument("--out", type=Path, required=True, help="networks and results")
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="profiles or stores")
    parser.add_argument("--seconds", type=float, default=600.0, help="of joules of new kinds")
    parser.add_argument(
        "--subtractive-s", type=float, default=12.0, help="of its campaign, a net; 0 for none"
    )
    parser.add_argument("--until-s", type=float, default=1e9, help="wall seconds, then it stops")
    parser.add_argument("--rounds", type=int, default=1, help="windows of looks and probes")
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS))
    parser.add_argument("--nets", nargs="+", default=[], help="only these")
    parser.add_argument("--tiny", action="store_true", help="small nets, to try it out")
    parser.add_argument("--read-only", action="store_true", help="only say how nets read")
    parser.add_argument("--measure-only", action="store_true", help="judge later")
    parser.add_argument("--offline", action="store_true", help="judge what is kept")
    return parser.parse_args()


def choose_entries(args: argparse.Namespace) -> tuple[Entry, ...]:
    """The nets that are asked for."""
    table = TABLES[args.which]
    chosen = tuple(entry for entry in table if not args.nets or entry.name in args.nets)
    if not chosen:
        sys.exit(f"none of {', '.join(args.nets)} is in the table {args.which}")
    return tuple(map(shrink, chosen)) if args.tiny else chosen


def print_progress(words: str) -> None:
    """Progress, on stderr."""
    print(words, file=sys.stderr, flush=True)


def print_failures(failures: Sequence[str]) -> None:
    """What went wrong, each once."""
    for words in dict.fromkeys(failures):
        print(f"Left out: {words}", flush=True)


# ---------------------------------------------------------------------------------------------
# Measuring


def measure(
    args: argparse.Namespace,
    entries: Sequence[Entry],
    networks: dict[str, Network],
    pieces_by_key: dict[str, NetPiece],
    failures: list[str],
) -> None:
    """Everything that is not kept yet, in the order that the module draws."""
    with (
        open_measurer(MeasureOptions(args.on, args.meter, rounds=args.rounds)) as measurer,
        open_store(args.store) as kept,
    ):
        key = find_profile_key(measurer)
        log = EvaluationLog(TABLE_NAMES[args.which], kept.load_observations(key), kept.add_observation)
        runtime, meter = measurer.runtime, measurer.meter
        here = Profile(runtime.device, runtime.name, meter.covers, meter.provenance)
        known = select_known(args, load_known_profiles(args.known, here), networks)
        ready = [entry for entry in entries if entry.name in networks]
        made = (seen for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE) for seen in log.list_for(role))
        mode = "graph" if "graph" in measurer.runtime.modes else "eager"
        measured_pieces = MeasuredPieces(mode, (*known, *made))
        work = OutsideRun(measurer, log, ready, networks, pieces_by_key, measured_pieces, failures, args.on, known)
        work.until_s = args.started_s + args.until_s
        try:
            work.measure_all(args)
        except KeyboardInterrupt:
            failures.append("interrupted: the same command goes on")


class TimeUpError(Exception):
    """The wall budget is spent."""


@dataclass
class OutsideRun:
    """One run: the rig, what is kept, and what went wrong so far."""

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
        """Pass, campaigns, pass; the second pass has its time kept free."""
        stages: list[tuple[str, Callable[[], None], bool]] = [
            ("pass 1", lambda: self.measure_pass(PASSES[0]), False),
            ("joules of new kinds", lambda: self.measure_kinds(args.seconds), True),
            ("seconds of pieces", self.time_pieces, True),
        ]
        stages.append(("issue times of pieces", self.time_host_issue, True))
        stages.append(("joules where doubt is left", self.measure_uncertain_pieces, True))
        for name in CAMPAIGNS:
            if name in args.estimators and args.subtractive_s > 0:
                stages.append((name, lambda n=name: self.learn(n, args.subtractive_s), True))  # type: ignore[misc]
        stages.append(("pass 2", lambda: self.measure_pass(PASSES[1]), False))
        for what, run, yields in stages:
            started_s = time.monotonic()
            print_progress(f"== {what}")
            try:
                self.reserve_s = self.estimate_pass_s() if yields else 0.0
                run()
            except TimeUpError:
                self.failures.append(f"{what}: the wall budget was spent, run it again to go on")
            print_progress(f"   took {time.monotonic() - started_s:.0f} s")

    def estimate_pass_s(self) -> float:
        """Seconds that the second pass will take: as the first, where it is not done."""
        done = {seen.trial.network.name for seen in self.log.list_for(PASSES[1])}
        first = self.log.list_for(PASSES[0])
        return sum(1.3 * s.cost_s + 2.0 for s in first if s.trial.network.name not in done)

    def check_time_left(self) -> None:
        """Raise where what is measured next would not end in time."""
        if time.monotonic() + self.reserve_s > self.until_s:
            raise TimeUpError

    # -- the nets themselves -----------------------------------------------------------------

    def measure_pass(self, role: str) -> None:
        """One window of every net that the pass lacks."""
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
            # A net refers to itself in places, and its memory is wanted for the next one.
            gc.collect()

    def measure_net(self, entry: Entry, role: str) -> Observation:
        """A window of a net's own module; a simulated device has only its network."""
        measurer = replace(self.measurer, run=self.log.tag(role), rounds=1)
        trial = Trial(self.networks[entry.name], entry.setup)
        if self.measurer.runtime.name.startswith("simulated"):
            return measurer.measure(trial)
        loaded = load_entry(entry, self.on)
        if loaded.loss is not None:
            trial = replace(trial, setup=replace(entry.setup, loss="own"))
        own: Any = OwnNetRuntime(self.measurer.runtime, loaded)  # type: ignore[arg-type]
        return replace(replace(measurer, runtime=own).measure(trial), source=OWN_NET)

    def warm_up(self) -> None:
        """Let the first load pass; nobody looks at what it took."""
        if not self.is_warm and self.pieces_by_key:
            self.is_warm = True
            ordered = sorted(self.pieces_by_key.values(), key=lambda p: p.piece.size_bytes)
            with suppress(Exception):
                self.measurer.time(ordered[len(ordered) // 2].make_trial("eager"))

    # -- additive ----------------------------------------------------------------------------

    def measure_kinds(self, seconds: float) -> None:
        """Two looks in joules at every kind that nobody knows, over all nets together."""
        measurer = replace(self.measurer, run=self.log.tag(ENERGY_ROLE))
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
        self.failures.append(f"not all kinds were looked at within {seconds:.0f} s")

    def time_pieces(self) -> None:
        """Seconds of every distinct piece that nobody has timed."""
        measurer = replace(self.measurer, run=self.log.tag(PROBE_ROLE))
        for net_piece in list_probes(self.pieces_by_key, self.measured_pieces):
            self.check_time_left()
            self.warm_up()
            if net_piece.piece.key not in self.refused:
                self.measure_piece(net_piece, measurer.time, self.measured_pieces.mode)

    def time_host_issue(self) -> None:
        """Host seconds of one piece of each structure, issued eagerly alone."""
        measurer = replace(self.measurer, run=self.log.tag(HOST_ROLE))
        for net_piece in list_host_probes(self.pieces_by_key, self.measured_pieces):
            self.check_time_left()
            self.warm_up()
            if net_piece.piece.key not in self.refused:
                self.measure_piece(net_piece, measurer.time, "eager")

    def measure_uncertain_pieces(self) -> None:
        """Joules of the pieces that leave most doubt about each net, all of them timed."""
        measurer = replace(self.measurer, run=self.log.tag(PROBE_ROLE))
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
                proposal = propose_trial(target, self.list_observations(), lambda seen, now=state: now)  # type: ignore[misc]
                if proposal.trial is not None and proposal.with_energy:
                    left -= 1
                    with self.record_failures(f"a doubt about {entry.name}"):
                        self.log.add(measurer.measure(proposal.trial))

    def list_observations(self) -> list[Observation]:
        """What `additive` knows so far."""
        made = [seen for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE) for seen in self.log.list_for(role)]
        refused = [
            Observation(net_piece.make_trial(self.measured_pieces.mode))
            for key, net_piece in self.pieces_by_key.items()
            if key in self.refused
        ]
        return [*self.known, *made, *refused]

    def count_energy_probes(self) -> int:
        """Joules that were measured after the seconds."""
        return sum(seen.energy_j is not None for seen in self.log.list_for(PROBE_ROLE))

    def measure_piece(self, net_piece: NetPiece, look: Callable[[Trial], Observation], mode: str) -> None:
        """Look at a piece, or note why the device would not run it."""
        trial = net_piece.make_trial(mode)
        before = len(self.failures)
        with self.record_failures(f"{net_piece.piece.label} of {', '.join(net_piece.nets)}"):
            seen = look(trial)
            self.log.add(seen)
            self.measured_pieces.add(seen)
        if len(self.failures) > before:
            self.refused.add(net_piece.piece.key)

    # -- others ------------------------------------------------------------------------------

    def learn(self, name: str, seconds: float) -> None:
        """A campaign of a method for each net, with seconds of its own; curves are shared."""
        tags = [f"{name}.{entry.name}" for entry in self.entries]
        for entry, role in zip(self.entries, tags, strict=True):
            self.check_time_left()
            self.warm_up()
            shelf = SharedCampaignLog(self.log, role, tags)
            method = NetBudgetEstimator(find_estimator(name), seconds, self, role)
            measurer = replace(self.measurer, run=self.log.tag(role))
            target = Target(self.networks[entry.name], entry.setup, acquisition="energy")
            with self.record_failures(f"{name} of {entry.name}"), suppress(MissingError):
                result = run_campaign(measurer, shelf, method, target)
                self.failures += [f"{name} of {entry.name}: {w}" for w in result.skipped[:1]]
                print_progress(f"   {entry.name}: {result.new} new points, {result.stopped}")

    @contextmanager
    def record_failures(self, what: str) -> Iterator[None]:
        """Goes on where something fails."""
        try:
            yield
        except (KeyboardInterrupt, TimeUpError):
            raise
        except Exception as error:  # other people's nets and drivers raise anything
            text = " ".join(str(error).split())[:300]
            self.failures.append(f"{what}: {type(error).__name__}: {text}")
            print_progress(f"   {self.failures[-1]}")


class SharedCampaignLog:
    """A book as the store of one net's campaign, which sees those of the other nets too."""

    def __init__(self, log: EvaluationLog, role: str, tags: Sequence[str]) -> None:
        self._book, self._who, self._tags = log, role, tags

    def add_observation(self, observation: Observation) -> None:
        """Keep an observation for good."""
        self._book.add(observation)

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """What the campaigns for all nets have seen."""
        return [seen for tag in self._tags for seen in self._book.list_for(tag)]

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Nothing: whoever judges fits."""


class NetBudgetEstimator(BudgetedEstimator):
    """A method that asks for nothing more once one net has had its seconds."""

    def __init__(self, method: Estimator, seconds: float, work: OutsideRun, role: str) -> None:
        super().__init__(method, seconds)
        self._work, self._who = work, role

    def propose(self, target: Target, observations: Sequence[Observation]) -> Proposal:
        """As the method itself, within what the net may take."""
        self._work.check_time_left()
        if is_budget_spent(self._work.log.list_for(self._who), self._seconds):
            return Proposal(None, 0.0, f"the {self._seconds:.0f} s of this net are spent")
        return self._method.propose(target, observations)

    def fit(self, observations: Sequence[Observation]) -> Fitted:
        """Return an empty fit: the estimator is fitted later, when no device waits for it."""
        return cast(Fitted, NoFit())


class NoFit:
    """A fit that holds nothing, for campaigns that only measure."""

    def to_dict(self) -> Json:
        """Return nothing to store."""
        return {}


def load_entry(entry: Entry, on: str) -> Any:
    """An entry's own module, made on its device where that works."""
    import torch

    from joulecast.runtimes.torch.load import LoadedNet

    try:
        with torch.device(on):
            return LoadedNet(*entry.build())
    except Exception:  # some nets only start on a processor
        return LoadedNet(*entry.build())


# ---------------------------------------------------------------------------------------------
# What was known before


def load_known_profiles(files: Sequence[Path], here: Profile) -> list[Profile]:
    """Profiles of files and stores, all of the device in question."""
    found = [profile for file in files for profile in read_profiles(file)]
    for other in found:
        if identify_device(other) != identify_device(here):
            sys.exit(f"--known is of {identify_device(other)}, but this is {identify_device(here)}")
        if other.key != here.key:
            print_progress(f"known is of another driver or runtime: {other.device}, {other.runtime}")
    return found


def identify_device(profile: Profile) -> tuple[str, str, str]:
    """What must be the same for observations to go together."""
    return profile.device.name, profile.covers, profile.provenance


def read_profiles(file: Path) -> list[Profile]:
    """All profiles of a profile's file, or of a store."""
    if file.suffix == ".json":
        return [read_profile(file)]
    if not file.exists():
        sys.exit(f"there is no file {file}")
    with open_store(file, create=False) as kept:
        return [kept.load_profile(one.key) for one in kept.list_profiles() if not one.shipped]


def select_known(
    args: argparse.Namespace, profiles: Sequence[Profile], networks: Mapping[str, Network]
) -> tuple[Observation, ...]:
    """What may be learnt from before: nothing made for this table or for ``test``, no net of it."""
    held_out, books = set(networks.values()), {TABLE_NAMES["test"], TABLE_NAMES[args.which]}
    found = {}
    for profile in profiles:
        for seen in profile.observations:
            mine = any(is_of_table(seen, name) for name in books) or seen.trial.network in held_out
            named = seen.source == OWN_NET and seen.trial.network.name in networks
            if not mine and not named:
                found[seen.trial.key, seen.run, seen.taken_at_s] = seen
    return tuple(found.values())


def is_of_table(seen: Observation, name: str) -> bool:
    """Whether an observation was made for a table; the name of one begins that of the other."""
    other = any(seen.run.startswith(f"{b}.") for b in TABLE_NAMES.values() if len(b) > len(name))
    return seen.run.startswith(f"{name}.") and not other


def list_whole_nets(
    profiles: Sequence[Profile], known: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Whole nets that a factor may be learnt from: those of the table ``dev``, and known ones."""
    tags = {f"{TABLE_NAMES['dev']}.{role}" for role in PASSES}
    trained = [seen for p in profiles for seen in p.observations if seen.run in tags]
    unique = {(s.trial.key, s.run, s.taken_at_s): s for s in (*trained, *known)}
    return tuple(unique.values())


# ---------------------------------------------------------------------------------------------
# Judging


def evaluate_stored(
    args: argparse.Namespace,
    entries: tuple[Entry, ...],
    networks: dict[str, Network],
    pieces_by_key: dict[str, NetPiece],
    failures: list[str],
) -> None:
    """Judge what is kept, print it and write it."""
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
    write_result(args, result, replace(profile, observations=list_table_observations(log, args), fits={}))
    print_result(result)
    failures += result["left_out"]


def find_table_profile(args: argparse.Namespace) -> Profile:
    """The profile of the store that holds most of what was made for the table."""
    profiles = read_profiles(args.store)
    name = TABLE_NAMES[args.which]
    if not profiles:
        sys.exit(f"{args.store} holds nothing yet: run it without --offline first")
    return max(profiles, key=lambda p: sum(is_of_table(seen, name) for seen in p.observations))


def list_table_observations(log: EvaluationLog, args: argparse.Namespace) -> tuple[Observation, ...]:
    """What was made for the table."""
    return tuple(seen for seen in log.list_all() if is_of_table(seen, TABLE_NAMES[args.which]))


def describe_run(args: argparse.Namespace, profile: Profile, case: Case) -> Json:
    """Where and from what a result comes."""
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
    """The result as JSON, and its observations as a profile's file."""
    name = args.which + ("-tiny" if args.tiny else "")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_profile(profile, args.out / f"{name}-profile.json")


def print_result(result: Json) -> None:
    """Scores, then residuals net by net."""
    console = make_console()
    console.width = max(console.width, 200)
    basis = label_provenance(result["provenance"])
    noise = result["noise_percent"]
    known = f"{result['known_observations']} observations known before"
    title = f"{len(result['nets'])} nets of {result['which']} on {result['device']['name']}{basis}"
    print_table(
        console, SCORE_COLUMNS, map(show_score, result["scores"]), title=f"{title}, {known}"
    )
    names = [score["estimator"] for score in result["scores"]]
    rows = [show_net(net, names) for net in result["nets"]]
    print_table(console, list_net_columns(names), rows, title="Errors in percent, net by net")
    spent = ", ".join(f"{role} {s:.0f} s" for role, s in result["device_seconds"].items())
    noise_words = "unknown" if noise is None else f"{noise:.1f} %"
    console.print(f"Noise of two passes: {noise_words}. Device: {spent}.")


if __name__ == "__main__":
    main()
