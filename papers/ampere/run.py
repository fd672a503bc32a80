"""Run experiments: measure what a folder lacks, analyse what it holds, draw, and summarise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from joulecast.features.options import MeasureOptions
from joulecast.features.progress_report import ReportProgress
from joulecast.system.errors import BudgetSpentError, InputError, MissingError
from joulecast.system.files import write_atomically
from papers.ampere import plots
from papers.ampere.experiment import TABLE, UNTESTED, Experiment, Result, Work
from papers.ampere.lab import Folder, Lab, open_device
from papers.ampere.report import write_results
from papers.ampere.settings import Settings
from papers.ampere.table import EXPERIMENTS, find_experiments

# Steps of a measurement of the paper.
_FAITHFUL_STEPS = 500


@dataclass(frozen=True)
class Outcome:
    """Results, pages and pictures of a run, what failed, and whether everything was measured."""

    results: tuple[Result, ...]
    files: tuple[Path, ...]
    failures: tuple[str, ...]
    is_complete: bool


def run(
    *experiments: str,
    on: str = "cpu",
    meter: str = "auto",
    device_name: str = "",
    out: str | Path = "reproduction",
    quick: bool = False,
    until_s: float | None = None,
    measure_only: bool = False,
    redraw: bool = False,
    beside: Sequence[str | Path] = (),
    faithful: bool = False,
    celeba: str = "",
    on_progress: ReportProgress = lambda report: None,
) -> Outcome:
    """Run experiments; the command line explains the options (``--help``).

    Every observation is kept in the folder ``out`` at once: the same call continues.
    """
    if measure_only and redraw:
        raise InputError("measure_only measures and redraw does not: give one of them")
    if until_s is not None and not 0.0 < until_s < float("inf"):
        raise InputError(f"until_s is {until_s}: give seconds above 0")
    found, folder = find_experiments(experiments), Folder(Path(out))
    others = [Folder(Path(path)) for path in beside]
    for other in others:
        other.read_identity()
    is_complete = True
    if redraw:
        lab = Lab(folder)
    else:
        runs = _FAITHFUL_STEPS if faithful else 0
        where = MeasureOptions(on=on, meter=meter, device_name=device_name, runs=runs)
        settings = choose_settings(on, quick, faithful)
        with open_device(folder, where, settings, until_s) as device:
            lab = Lab(folder, device, on_progress, celeba)
            try:
                for works in plan(found, settings).values():
                    for work in works:
                        work.measure(lab)
            except BudgetSpentError:
                is_complete = False
    if measure_only:
        return Outcome((), (), tuple(lab.failures), is_complete)
    results = tuple(_analyse(experiment, lab) for experiment in found)
    return Outcome(results, draw(results, folder, others), tuple(lab.failures), is_complete)


def choose_settings(on: str, quick: bool, faithful: bool) -> Settings:
    """Return how large experiments are on a device."""
    return Settings(on.startswith("cuda"), quick, faithful)


def plan(experiments: Sequence[Experiment], settings: Settings) -> dict[str, list[Work]]:
    """Return what each experiment measures; what an earlier one measures is not listed again."""
    known: set[str] = set()
    plans = {}
    for one in experiments:
        works = [*map(settings.describe_family, one.families), *one.plan(settings)]
        plans[one.name] = [work for work in works if work.name not in known]
        known.update(work.name for work in works)
    return plans


def _analyse(experiment: Experiment, lab: Lab) -> Result:
    """Analyse what was measured, and save the result."""
    name, row, own = experiment.name, TABLE[experiment.name], lab.identity
    last_s = max((one.taken_at_s for one in lab.list_all()), default=None)
    date = "" if last_s is None else datetime.fromtimestamp(last_s, UTC).date().isoformat()
    roles = (f"reproduce.{name}", f"reproduce.{name}.")
    mine = [one for one in lab.list_all() if one.run == roles[0] or one.run.startswith(roles[1])]
    seconds, notes = sum(one.cost_s for one in mine), []
    numbers = {}
    try:
        found = experiment.analyse(lab)
    except MissingError as error:
        verdict, finding = UNTESTED, f"Not enough was measured: {error}."
    else:
        (verdict, finding), numbers, notes = found.judge(), found.numbers, list(found.notes)
    for family in experiment.families:
        family_s, family_notes = lab.describe_family(family)
        seconds, notes = seconds + family_s, notes + family_notes
    criterion = row["criterion"].format(**row.get("limits", {}))
    texts = (name, row["title"], row["statement"], criterion, verdict, finding)
    about = (own.device, own.runtime, own.covers, own.provenance, date, own.is_quick)
    result = Result(*texts, numbers, *about, seconds, tuple(notes))
    lab.folder.save(result, name)
    return result


def draw(
    results: Sequence[Result], folder: Folder, others: Sequence[Folder] = ()
) -> tuple[Path, ...]:
    """Draw results, with those of other folders where a figure shows several devices.

    Returns:
        The pictures, and a page with all results of the folder.
    """
    files = []
    for result in results:
        experiment, shown = EXPERIMENTS[result.name], [result]
        for other in others if experiment.shows_others else ():
            found = other.find(Result, result.name)
            shown += [found] if found is not None and found.numbers else []
        if result.numbers:
            with plots.apply_style():
                canvas = plots.Canvas(shown)
                experiment.draw(canvas, shown)
                files.append(canvas.save(folder.path / f"{result.name}.svg"))
    page = folder.path / "summary.md"
    text = f"# The experiments of the AMPERE paper\n\n{write_results([folder.path], page)}\n"
    write_atomically(text.encode("utf-8"), page)
    return (*files, page)
