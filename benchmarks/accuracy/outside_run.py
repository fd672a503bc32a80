"""Measure nets outside the families and their pieces: the stages of one run of outside.py."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from net_pieces import (
    MeasuredPieces,
    NetPiece,
    find_next_piece,
    list_host_probes,
    list_probes,
)
from nets import Entry
from scoring import (
    ENERGY_ROLE,
    HOST_ROLE,
    PROBE_ROLE,
    list_windows,
)

from joulecast.campaign import run_campaign
from joulecast.errors import MissingError
from joulecast.estimators import find_estimator
from joulecast.estimators.additive.acquisition import propose_trial
from joulecast.estimators.additive.estimator import AdditiveEstimator, FittedAdditive
from joulecast.estimators.base import Estimator, Fitted, Proposal, Target
from joulecast.features.evaluation import (
    PASSES,
    BudgetedEstimator,
    EvaluationLog,
    is_budget_spent,
    sum_work_s,
)
from joulecast.features.measurers import OwnNetRuntime
from joulecast.measurer import Measurer
from joulecast.records import OWN_NET, Network, Observation, Trial

Json = dict[str, Any]

CAMPAIGNS = ("subtractive", "neuralpower")
# Pieces of each net whose energy is measured at most, after all pieces were timed.
ENERGY_PROBES_PER_NET = 2


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
                stages.append((name, partial(self.run_campaigns, name, args.subtractive_s), True))
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
        done = {one.trial.network.name for one in self.log.list_for(PASSES[1])}
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
                observation = self.measure_net(entry, role)
                self.log.add(observation)
                duration_ms = 1e3 * (observation.duration_s or 0)
                memory_gb = (observation.peak_memory_bytes or 0) / 1e9
                print_progress(
                    f"   {entry.name}: {observation.energy_j:.3g} J, {duration_ms:.1f} ms, "
                    f"{memory_gb:.1f} GB, cost {observation.cost_s:.1f} s"
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
        own: Any = OwnNetRuntime(self.measurer.runtime, loaded)
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
        if not any(not one.trial.network.layers for one in self.log.list_for(ENERGY_ROLE)):
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
                fitted = AdditiveEstimator().fit(self.list_observations())
            except MissingError:
                return
            for entry in self.entries:
                if left <= 0:
                    return
                self.check_time_left()
                target = Target(self.networks[entry.name], entry.setup, acquisition="probe")
                target = replace(target, modes=self.measurer.runtime.modes)
                proposal = propose_trial(
                    target, self.list_observations(), partial(_reuse_fit, fitted)
                )
                if proposal.trial is not None and proposal.with_energy:
                    left -= 1
                    with self.record_failures(f"a probe of {entry.name}"):
                        self.log.add(measurer.measure(proposal.trial))

    def list_observations(self) -> list[Observation]:
        """Return the observations of ``additive`` so far."""
        made = [
            one for role in (ENERGY_ROLE, PROBE_ROLE, HOST_ROLE) for one in self.log.list_for(role)
        ]
        refused = [
            Observation(net_piece.make_trial(self.measured_pieces.mode))
            for key, net_piece in self.pieces_by_key.items()
            if key in self.refused
        ]
        return [*self.known, *made, *refused]

    def count_energy_probes(self) -> int:
        """Return how many energies were measured after the pieces were timed."""
        return sum(one.energy_j is not None for one in self.log.list_for(PROBE_ROLE))

    def measure_piece(
        self, net_piece: NetPiece, measure: Callable[[Trial], Observation], mode: str
    ) -> None:
        """Measure a piece, or record why the device did not run it."""
        trial = net_piece.make_trial(mode)
        before = len(self.failures)
        with self.record_failures(f"{net_piece.piece.label} of {', '.join(net_piece.nets)}"):
            observation = measure(trial)
            self.log.add(observation)
            self.measured_pieces.add(observation)
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
        return [one for tag in self._tags for one in self._log.list_for(tag)]

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return nothing: campaigns start afresh."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: scoring fits the estimator again."""


class NetBudgetEstimator(BudgetedEstimator):
    """An estimator that proposes nothing once one net has used its device time."""

    def __init__(self, method: Estimator, seconds: float, run: OutsideRun, role: str) -> None:
        super().__init__(method, seconds)
        self._run, self._role = run, role

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the estimator's proposal until the net's device time is spent."""
        self._run.check_time_left()
        if is_budget_spent(self._run.log.list_for(self._role), self._seconds):
            return Proposal(None, 0.0, f"the {self._seconds:.0f} s of this net are spent")
        return self._estimator.propose(target, observations)

    def fit(self, observations: Sequence[Observation], fitted: Fitted | None = None) -> Fitted:
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


class TimeUpError(Exception):
    """The time limit was reached."""


def print_progress(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def _reuse_fit(
    own: FittedAdditive, observations: Sequence[Observation], fitted: Fitted | None
) -> FittedAdditive:
    """Return the given fit instead of fitting one to the observations."""
    return own
