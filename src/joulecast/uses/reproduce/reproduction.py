"""Run experiments: measure what is missing, analyse what was measured, draw, and summarise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from joulecast.errors import BudgetSpentError, MissingError
from joulecast.figures import save_svg
from joulecast.files import write_atomically
from joulecast.uses.reproduce.experiment import (
    UNTESTED,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.experiment_table import EXPERIMENTS
from joulecast.uses.reproduce.laboratory import Laboratory
from joulecast.uses.reproduce.paper_settings import PaperSettings
from joulecast.uses.reproduce.result_folder import ResultFolder
from joulecast.uses.reproduce.summary_page import write_summary


@dataclass(frozen=True)
class Reproduction:
    """The outcome of a run.

    Attributes:
        results: Results of the experiments that were run.
        files: Pictures and pages that were written.
        failures: What could not be measured, with the reason.
        is_complete: Whether everything was measured; if not, the same command continues.
    """

    results: tuple[ExperimentResult, ...]
    files: tuple[Path, ...]
    failures: tuple[str, ...]
    is_complete: bool = True


def plan_experiments(
    experiments: Sequence[Experiment], settings: PaperSettings
) -> dict[str, tuple[PlannedWork, ...]]:
    """Return what each experiment measures; what an earlier one measures is not listed again."""
    known: set[str] = set()
    plans: dict[str, tuple[PlannedWork, ...]] = {}
    for experiment in experiments:
        new = [work for work in experiment.plan(settings) if work.name not in known]
        known.update(work.name for work in new)
        plans[experiment.name] = tuple(new)
    return plans


def measure_experiments(experiments: Sequence[Experiment], lab: Laboratory) -> bool:
    """Measure what the folder lacks; return False if the time was spent before the end."""
    try:
        for experiment in experiments:
            experiment.measure(lab)
    except BudgetSpentError:
        return False
    return True


def analyse_experiments(
    experiments: Sequence[Experiment], lab: Laboratory, folder: ResultFolder
) -> tuple[ExperimentResult, ...]:
    """Analyse what was measured, and save each result."""
    results = []
    for experiment in experiments:
        try:
            findings = experiment.analyse(lab)
        except MissingError as error:
            findings = Findings(UNTESTED, f"Not enough was measured: {error}.", {})
        result = _make_result(experiment, findings, lab)
        folder.save_result(result)
        results.append(result)
    return tuple(results)


def draw_results(
    results: Sequence[ExperimentResult], folder: ResultFolder, beside: Sequence[ResultFolder] = ()
) -> tuple[Path, ...]:
    """Draw results, with those of other folders where an experiment shows several devices.

    Returns:
        The pictures, and a page with all results of the folder.
    """
    files = []
    for result in results:
        experiment = EXPERIMENTS[result.name]
        if not result.numbers:
            continue
        others = [other.find_result(result.name) for other in beside]
        shown = [one for one in others if one is not None and one.numbers]
        plot = experiment.draw([result, *(shown if experiment.has_several_devices else [])])
        files.append(save_svg(plot, folder.path / f"{result.name}.svg"))
    kept = [folder.find_result(name) for name in EXPERIMENTS]
    page = write_summary([one for one in kept if one is not None], folder.path)
    path = folder.path / "summary.md"
    write_atomically(page.encode("utf-8"), path)
    return (*files, path)


def _make_result(experiment: Experiment, findings: Findings, lab: Laboratory) -> ExperimentResult:
    own = lab.profile
    observations = lab.log.load_observations(own.key)
    last_s = max((one.taken_at_s for one in observations), default=None)
    date = "" if last_s is None else datetime.fromtimestamp(last_s, UTC).date().isoformat()
    return ExperimentResult(
        experiment.name,
        experiment.title,
        experiment.statement,
        experiment.criterion,
        findings.verdict,
        findings.finding,
        findings.numbers,
        own.device,
        own.runtime,
        own.covers,
        own.provenance,
        date,
        lab.settings.is_quick,
        findings.device_seconds,
        findings.notes,
    )
