"""Results of a search, trained or only screened, and what people see of them.

The front is given twice: for the mean energies, and as the share of joint draws of all energies in
which a network is on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulecast.families import FAMILIES
from joulecast.features.search.screen import BudgetScreener, ScreenedCandidate
from joulecast.features.search.space import Params
from joulecast.records import name_step
from joulecast.system.redaction import redact_url
from joulecast.system.units import (
    format_count,
    format_duration,
    format_energy,
    format_interval,
    format_share,
)
from joulecast.views.fronts import find_front
from joulecast.views.report import Block, Plot, Report, Reportable, Text, make_table
from joulecast.views.words import (
    describe_coverage,
    describe_provenance,
    describe_setup,
    explain_not_included,
    format_level,
    is_inference,
    label_provenance,
    plural,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = dict[str, Any]
# What a plot calls a candidate, and its value there.
_Point = tuple[str, float, ScreenedCandidate]
_DRAWS = 400
_MAX_ROWS = 15
_P_BUDGET = "P(budget): probability that the budget is kept."


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


def make_trained_trials(
    screener: BudgetScreener, trained: Sequence[tuple[int, float, Params]]
) -> tuple[TrainedTrial, ...]:
    """Return trials, given by number, score and values, with their estimates and the front."""
    if not trained:
        return ()
    import numpy as np

    candidates = screener.screen([values for _, _, values in trained])
    losses = [-score for _, score, _ in trained]
    on_front = find_front(list(zip(losses, (one.energy_j for one in candidates), strict=True)))
    # The share of joint draws in which each trial is on the front.
    built = [screener.space.build(one.params) for one in candidates]
    estimates = screener.estimate(built, joint=True)
    energies_j = estimates.draw(_DRAWS) * np.array([one.steps for one in candidates])
    fronts = [find_front(list(zip(losses, row, strict=True))) for row in energies_j.tolist()]
    shares = np.mean(fronts, axis=0).tolist()
    return tuple(
        TrainedTrial(number, score, candidate, is_on_front, share)
        for (number, score, _), candidate, is_on_front, share in zip(
            trained, candidates, on_front, shares, strict=True
        )
    )


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
