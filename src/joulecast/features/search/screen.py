"""Screen candidates: estimate their cost and the probability that they meet the budget.

All candidates of a batch are estimated together, which takes hardly longer than one. For a budget
that is a share of the original, the probability comes from the joint covariance, because the errors
of both networks are correlated. Nothing is measured or trained here.

The results of a search, trained or only screened, follow. The front is given twice: for the mean
energies, and as the share of joint draws of all energies in which a network is on it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from joulecast.families import FAMILIES
from joulecast.features.run import EnergyBudget, RunLength
from joulecast.features.search.space import Params, SearchSpace
from joulecast.records import Estimate, Network, Profile, Setup, describe_inference, name_step
from joulecast.system.errors import InputError
from joulecast.system.redaction import redact_url
from joulecast.system.units import (
    format_count,
    format_duration,
    format_energy,
    format_interval,
    format_share,
)
from joulecast.views.report import Block, Plot, Report, Reportable, Text, make_table
from joulecast.views.words import (
    describe_coverage,
    describe_provenance,
    describe_setup,
    explain_not_included,
    format_level,
    format_with_interval,
    is_inference,
    label_provenance,
    plural,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from joulecast.estimators import Estimates, FittedProfile

Json = dict[str, Any]
BATCH_SIZE = 256
"""Candidates estimated together: larger batches are no faster and take more memory."""
_MAX_ROWS = 15
_P_BUDGET = "P(budget): probability that the budget is kept."


@dataclass(frozen=True)
class ScreenedCandidate:
    """A candidate with its estimated cost, of all steps, before it is trained.

    Attributes:
        estimate: Estimate of one step.
        steps: Steps of the run; 1 if the run has no length.
        is_within_budget: Whether the probability reaches the required confidence.
        flops: FLOPs of one step.
    """

    params: Params
    space: SearchSpace
    name: str
    setup: Setup
    estimate: Estimate
    steps: int
    budget_probability: float
    is_within_budget: bool
    parameters: int
    flops: float

    @property
    def network(self) -> Network:
        """The network, built again: many deep ones would fill the memory."""
        return self.space.build(self.params)[0]

    @property
    def energy_j(self) -> float:
        return self.estimate.energy_j * self.steps

    @property
    def interval_j(self) -> tuple[float, float]:
        low_j, high_j = self.estimate.interval_j
        return low_j * self.steps, high_j * self.steps

    @property
    def duration_s(self) -> float:
        return self.estimate.duration_s * self.steps

    def to_dict(self) -> Json:
        return {
            "net": self.name,
            "params": dict(self.params),
            "setup": self.setup.to_dict(),
            "energy_j": self.energy_j,
            "interval_j": list(self.interval_j),
            "duration_s": self.duration_s,
            "steps": self.steps,
            **describe_inference(self.setup, self.estimate.energy_j, self.estimate.duration_s),
            "budget_probability": self.budget_probability,
            "within_budget": self.is_within_budget,
            # Older versions interpolated between the estimates of other candidates.
            "interpolated": False,
            "unseen_share": self.estimate.unseen_share,
            "provenance": self.estimate.provenance,
        }


@dataclass(frozen=True)
class BudgetScreener:
    """A search space, a budget and the estimator that decides which candidates meet it.

    Attributes:
        confidence: Probability with which a candidate must meet the budget.
        level: Probability of each interval.
    """

    space: SearchSpace
    budget: EnergyBudget
    fitted_profile: FittedProfile
    length: RunLength = field(default_factory=RunLength)
    confidence: float = 0.5
    level: float = 0.95

    @cached_property
    def limit_j(self) -> float:
        """The budget in joules, per step or per run; a share is of the original network."""
        if self.budget.share is None:
            return self.budget.limit(0.0)
        network, setup = self.space.original
        original_j = self.fitted_profile.estimate([network], setup)[0].energy_j
        return self.budget.limit(self.length.count_steps(setup.samples_per_step) * original_j)

    def compute_run_limit_j(self, steps: int) -> float:
        """Return the budget in joules for all steps of a run."""
        return self.limit_j * (steps if self.budget.per == "step" else 1)

    def screen(self, candidates: Sequence[Params]) -> tuple[ScreenedCandidate, ...]:
        """Return every candidate with its estimate, made in batches."""
        from joulecast.operators import network_work

        if len(candidates) > BATCH_SIZE:
            batches = range(0, len(candidates), BATCH_SIZE)
            parts = (self.screen(candidates[at : at + BATCH_SIZE]) for at in batches)
            return tuple(one for part in parts for one in part)
        built = [self.space.build(params) for params in candidates]
        steps = [self.length.count_steps(setup.samples_per_step) for _, setup in built]
        share = self.budget.share
        if share is not None:
            # The original comes last.
            count = len(built)
            original_steps = self.length.count_steps(self.space.setup.samples_per_step)
            estimates = self.estimate([*built, self.space.original], joint=True)
            ratios = [share * original_steps / one for one in steps]
            probabilities = estimates.probability_ratio_within(count, range(count), ratios)
        else:
            estimates = self.estimate(built)
            is_run = self.budget.per == "run"
            limits_j = [self.limit_j / (one if is_run else 1) for one in steps]
            probabilities = estimates.probability_within(limits_j)
        found = []
        rows = zip(candidates, built, estimates[: len(built)], steps, probabilities, strict=True)
        for params, (network, setup), estimate, count, probability in rows:
            work, is_within = network_work(network, setup), bool(probability >= self.confidence)
            about, budget = (params, self.space, network.name), (float(probability), is_within)
            sizes = work.params, work.total.flops
            found.append(ScreenedCandidate(*about, setup, estimate, count, *budget, *sizes))
        return tuple(found)

    def estimate(self, built: Sequence[tuple[Network, Setup]], joint: bool = False) -> Estimates:
        """Return estimates of one step of each network, if asked with their joint covariance."""
        networks, setups = zip(*built, strict=True)
        fitted = self.fitted_profile
        return fitted.estimate(networks, setups, self.level, joint=joint, details=False)

    def explain_rejection(self, candidate: ScreenedCandidate) -> str:
        """Return one sentence that says why a candidate is not trained."""
        return (
            f"{candidate.name} would need {self._describe_cost(candidate)} and meets "
            f"{self.describe_budget()} with probability "
            f"{format_share(candidate.budget_probability)}, not {format_share(self.confidence)}"
        )

    def describe_budget(self) -> str:
        """Return the budget in words, per step, inference or run."""
        return self.budget.describe(name_step(self.space.setup))

    def _describe_cost(self, candidate: ScreenedCandidate) -> str:
        """Return a candidate's energy per step or per run, whichever the budget limits."""
        steps = candidate.steps if self.budget.per == "run" else 1
        period = "run" if self.budget.per == "run" else name_step(self.space.setup)
        one, interval_j = candidate.estimate, [j * steps for j in candidate.estimate.interval_j]
        energy = format_with_interval(one.energy_j * steps, interval_j, self.level, one.provenance)
        return f"{energy} per {period}"

    def check_reachable(self, seed: int = 0) -> None:
        """Raise InputError if neither the smallest networks nor random ones meet the budget."""
        rng, found = random.Random(seed), list[ScreenedCandidate]()
        drawn = [self.space.draw(rng) for _ in range(BATCH_SIZE)]
        for batch in (self.space.list_smallest()[:BATCH_SIZE], drawn):
            found += self.screen(batch)
            if any(candidate.is_within_budget for candidate in found):
                return
        best = max(found, key=lambda candidate: (candidate.budget_probability, -candidate.energy_j))
        raise InputError(
            f"no candidate meets {self.describe_budget()} with probability "
            f"{format_share(self.confidence)}: {best.name} comes closest with "
            f"{self._describe_cost(best)}; give a larger budget or smaller networks"
        )

    def to_dict(self) -> Json:
        fitted, limit_j = self.fitted_profile, self.limit_j
        return {
            "space": self.space.to_dict(),
            "budget": {**self.budget.to_dict(), "text": str(self.budget), "limit_j": limit_j},
            "confidence": self.confidence,
            "length": self.length.to_dict(),
            "device": fitted.profile.device.name,
            "covers": fitted.profile.covers,
            "provenance": fitted.provenance,
            "estimator": fitted.estimator.name,
            "level": self.level,
        }


def make_screener(
    profile: Profile,
    space: SearchSpace,
    budget: EnergyBudget,
    length: RunLength | None = None,
    *,
    confidence: float = 0.5,
    estimator: str = "auto",
    level: float = 0.95,
) -> BudgetScreener:
    """Return a screener that estimates energy from a profile."""
    from joulecast.estimators import fit_profile

    fitted = fit_profile(profile, estimator).model
    return BudgetScreener(space, budget, fitted, length or RunLength(), confidence, level)


@dataclass(frozen=True)
class TrainedTrial:
    """A trial whose network was trained.

    Attributes:
        score: Value that the training function returned; higher is better.
        is_on_front: Whether no other trial has at least this score for less estimated energy.
        front_probability: Probability of that under the uncertainty of the energies; scores are
            taken as exact.
    """

    number: int
    score: float
    candidate: ScreenedCandidate
    is_on_front: bool
    front_probability: float

    def to_dict(self) -> Json:
        return {
            "trial": self.number,
            "score": self.score,
            "on_front": self.is_on_front,
            "front_probability": self.front_probability,
            **self.candidate.to_dict(),
        }


@dataclass(frozen=True)
class SearchResult(Reportable):
    """The state of a study.

    Attributes:
        trials: Trials whose network was trained, in order.
        ruled_out_count: Candidates that were not trained because they exceed the budget.
        pruned_count: Trials that ended early: the sampler proposed no candidate within the budget,
            or the training function stopped.
        failed_count: Trials whose training failed or gave no finite score.
        storage: URL of the storage; empty if it is in memory.
    """

    study: str
    screener: BudgetScreener
    trials: tuple[TrainedTrial, ...]
    screened_count: int
    ruled_out_count: int
    pruned_count: int
    failed_count: int
    sampler: str = ""
    storage: str = ""

    @property
    def front(self) -> tuple[TrainedTrial, ...]:
        """Trials on the Pareto front, the least energy first."""
        best = [trial for trial in self.trials if trial.is_on_front]
        return tuple(sorted(best, key=lambda trial: trial.candidate.energy_j))

    def to_dict(self) -> Json:
        return {
            **self.screener.to_dict(),
            "study": self.study,
            "sampler": self.sampler,
            "screened": self.screened_count,
            "ruled_out": self.ruled_out_count,
            "pruned": self.pruned_count,
            "failed": self.failed_count,
            "trials": [trial.to_dict() for trial in self.trials],
            "front": [trial.to_dict() for trial in self.front],
        }

    def report(self) -> Report:
        screener, front, count = self.screener, self.front, len(self.trials)
        blocks: list[Block] = [
            Text(
                f"{plural(count, 'trial')} trained, sampled by {self.sampler}; "
                f"{self.ruled_out_count:,} of {self.screened_count:,} candidates were ruled out "
                "before training."
            )
        ]
        rows = [
            (one.candidate, (f"{one.score:.4g}", format_share(one.front_probability)))
            for one in front
        ]
        columns = "Pareto front, least energy first", ">score", ">P(front)"
        points = [(f"#{one.number}", one.score, one.candidate) for one in self.trials]
        blocks += _show_candidates(screener, columns, rows, points)
        if len(front) > _MAX_ROWS:
            blocks.append(Text(f"{len(front) - _MAX_ROWS} more on the front: see --json"))
        notes = [
            f"{_P_BUDGET} P(front): probability that no other trial has at least this score for "
            "less energy."
        ]
        if self.pruned_count or self.failed_count:
            pruned = plural(self.pruned_count, "trial")
            notes.append(f"{pruned} pruned, {self.failed_count:,} failed.")
        report = _make_report("Searching", screener, blocks, notes, points)
        if not self.storage:
            return report
        again = f"Stored as study {self.study!r}: the same command continues it. To view it:"
        view = Text(f"    optuna-dashboard {redact_url(self.storage)}", "command")
        return replace(report, blocks=(*report.blocks, Text(again, "note"), view))


@dataclass(frozen=True)
class Screening(Reportable):
    """Random candidates in the order they were drawn, and how long it took to estimate them."""

    screener: BudgetScreener
    candidates: tuple[ScreenedCandidate, ...]
    seed: int
    duration_s: float

    @property
    def within_budget(self) -> tuple[ScreenedCandidate, ...]:
        """Candidates that meet the budget, the one with most parameters first."""
        found = [candidate for candidate in self.candidates if candidate.is_within_budget]
        return tuple(sorted(found, key=lambda candidate: -candidate.parameters))

    def to_dict(self) -> Json:
        return {
            **self.screener.to_dict(),
            "seed": self.seed,
            "screened": len(self.candidates),
            "within_budget": len(self.within_budget),
            "interpolated": 0,
            "duration_s": self.duration_s,
            "candidates": [
                {**one.to_dict(), "parameters": one.parameters, "flops": one.flops}
                for one in self.candidates
            ],
        }

    def report(self) -> Report:
        screener, kept, count = self.screener, self.within_budget, len(self.candidates)
        lead = Text(
            f"{len(kept):,} of {count:,} random candidates keep the budget "
            f"({format_share(len(kept) / count)}); {count / self.duration_s:,.0f} screened "
            "per second."
        )
        rows = [(one, (format_count(one.parameters),)) for one in kept]
        points = [("", float(one.parameters), one) for one in self.candidates]
        shown = _show_candidates(screener, ("The largest of them", ">parameters"), rows, points)
        note = (
            f"{_P_BUDGET} Their accuracy is unknown: give --train FILE.PY:NAME to train nets that "
            "keep the budget."
        )
        return _make_report("Screening", screener, [lead, *shown], [note], points)


def draw_candidates(screener: BudgetScreener, count: int = 1000, seed: int = 0) -> Screening:
    """Draw random candidates and screen them, equal ones once."""
    rng, begin_s = random.Random(seed), time.perf_counter()
    drawn = [screener.space.draw(rng) for _ in range(count)]
    keys = [tuple(params.values()) for params in drawn]
    distinct = dict(zip(keys, drawn, strict=True))
    screened = dict(zip(distinct, screener.screen([*distinct.values()]), strict=True))
    found = tuple(screened[key] for key in keys)
    return Screening(screener, found, seed, time.perf_counter() - begin_s)


# What a plot calls a candidate, and its value there.
_Point = tuple[str, float, ScreenedCandidate]


def _make_report(
    verb: str,
    screener: BudgetScreener,
    blocks: Sequence[Block],
    notes: Sequence[str],
    points: Sequence[_Point],
) -> Report:
    """Return a report with notes on the energies of some candidates below."""
    space, fitted = screener.space, screener.fitted_profile
    notes = [
        *notes,
        f"Energies are estimates. Provenance: {describe_provenance(fitted.provenance)}; "
        f"{describe_coverage(fitted.provenance, fitted.profile.covers)}. "
        f"{explain_not_included(space.setup)}",
    ]
    if "batch" in _list_other_dimensions(screener) and screener.length.epochs is None:
        notes.append(
            f"{'An inference' if is_inference(space.setup) else 'A step'} with a smaller batch "
            "does less work: give --epochs and --samples to compare batch sizes by the energy of "
            "a whole run."
        )
    if unseen := sum(one.estimate.unseen_share > 0 for _, _, one in points):
        notes.append(
            f"about: {unseen:,} of {len(points):,} have layers or a setup that were never "
            "measured on the device; profile them before you rely on their energy."
        )
    limit = "" if screener.budget.share is None else f" (about {format_energy(screener.limit_j)})"
    title = (
        f"{verb} {space.family} on {fitted.profile.device.name}: {describe_setup(space.setup)}; "
        f"budget {screener.describe_budget()}{limit}, kept with a probability of at least "
        f"{format_share(screener.confidence)}"
    )
    texts = (Text(note, "note") for note in notes)
    return Report(title, (*blocks, *texts), fitted.provenance, "search")


def _show_candidates(
    screener: BudgetScreener,
    columns: tuple[str, ...],
    rows: Sequence[tuple[ScreenedCandidate, tuple[str, ...]]],
    points: Sequence[_Point],
) -> list[Block]:
    """Return a table like ``cnn5:8,16  batch 16, bf16, lr 0.0016  0.9  2 J ...``, and a plot.

    ``columns`` are a title and headings. The first cell that comes with a candidate is shown before
    its costs, the others after them. The plot has energies with intervals, front and budget.
    """
    if not rows:
        return []
    names, cells = _list_other_dimensions(screener), []
    for candidate, (first, *others) in rows[:_MAX_ROWS]:
        parts = []
        for name in names:
            one = candidate.params[name]
            text = f"{one:.2g}" if isinstance(one, float) else str(one)
            parts.append(text if isinstance(one, str) else f"{name} {text}")
        about = "about " if candidate.estimate.unseen_share > 0 else ""
        costs = (
            about + format_energy(candidate.energy_j),
            format_interval(candidate.interval_j, format_energy),
            format_duration(candidate.duration_s),
            format_share(candidate.budget_probability),
        )
        setup = [", ".join(parts)] if parts else []
        cells.append((candidate.name, *setup, first, *costs, *others))
    title, heading, *more = columns
    period = "run" if screener.length.is_run else name_step(screener.space.setup)
    level, setup = f">{format_level(screener.level)}", ["with"] if names else []
    headings = ("net", *setup, heading, ">energy", level, ">time", ">P(budget)", *more)
    table = make_table(headings, cells, f"{title}; energy and time of one {period}")

    fitted, value = screener.fitted_profile, heading.lstrip(">")
    label = label_provenance(fitted.provenance)

    def draw(figure: Figure) -> None:
        from joulecast.views.plot_kinds import FrontPoint, draw_front

        steps = {candidate.steps for _, _, candidate in points}
        has_one_limit = len(steps) == 1 or screener.budget.per == "run"
        budget_j = screener.compute_run_limit_j(min(steps)) if has_one_limit else None
        shown = [FrontPoint(name, x, one.energy_j, one.interval_j) for name, x, one in points]
        axes, energy = figure.subplots(), f"Estimated energy per {period}"
        draw_front(
            axes, shown, value=value.capitalize(), budget_j=budget_j, energy=energy,
            others="other nets",
        )  # fmt: skip
        where = f"{fitted.profile.device.name}, joules of the {fitted.profile.covers}"
        axes.set_title(where + label)

    values = [(name, f"{at:.4g}", format_energy(one.energy_j)) for name, at, one in points]
    data = make_table(("candidate", heading, ">energy"), values)
    title = f"{screener.space.family}: {value} against energy{label}"
    about = f"Bars are {100 * screener.level:g} % intervals."
    return [table, Plot("search", title, draw, about, data)]


def _list_other_dimensions(screener: BudgetScreener) -> list[str]:
    """Return the dimensions that vary and that the name of a net does not show."""
    widths = FAMILIES[screener.space.family.partition(":")[0]].params
    dimensions = screener.space.dimensions.items()
    return [name for name, one in dimensions if name not in widths and len(one.bounds) > 1]
