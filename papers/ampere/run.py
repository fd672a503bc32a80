"""Run experiments: measure what a folder lacks, analyse what it holds, draw, and summarise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from joulecast.campaign.trial_log import describe_profile
from joulecast.features.measurers import MeasureOptions, lock_device, open_any_measurer
from joulecast.features.progress_report import ReportProgress
from joulecast.system.errors import BudgetSpentError, InputError, MissingError
from joulecast.system.files import write_atomically
from papers.ampere import experiment as ex
from papers.ampere import layers, networks, plots, pruning
from papers.ampere.experiment import TABLE, Analyse, Experiment, Findings, Result, Settings, Work
from papers.ampere.lab import Folder, Identity, Lab
from papers.ampere.layers import plan_surfaces
from papers.ampere.report import write_results

# Steps of a measurement of the paper.
_FAITHFUL_STEPS = 500


def _judge_nets(judge: Callable[[Sequence[ex.Net]], Findings], family: str) -> Analyse:
    return lambda lab: judge(lab.list_nets(family))


def _judge_surfaces(judge: Callable[[Sequence[ex.Json]], Findings]) -> Analyse:
    return lambda lab: judge(layers.sample_surfaces(lab))


_ROWS = (
    Experiment("fig2", layers.analyse_fig2, layers.draw_fig2, layers.plan_fig2),
    Experiment("fig4", layers.analyse_fig4, layers.draw_fig4, layers.plan_fig4),
    Experiment("fig5", layers.analyse_fig5, layers.draw_fig5, layers.plan_fig5),
    Experiment("fig6", _judge_nets(networks.judge_fig6, "cnn5"), networks.draw_fig6),
    Experiment("fig7", _judge_nets(networks.judge_fig7, "cnn5"), networks.draw_fig7),
    Experiment("fig11", _judge_surfaces(layers.judge_fig11), layers.draw_fig11, plan_surfaces),
    Experiment("fig12", _judge_surfaces(layers.judge_fig12), layers.draw_fig12, plan_surfaces),
    Experiment("fig10", networks.analyse_fig10, networks.draw_fig10, networks.plan_fig10),
    Experiment("fig8", networks.analyse_fig8, networks.draw_fig8),
    Experiment("fig9", _judge_nets(networks.judge_fig9, "transformer"), networks.draw_fig9),
    Experiment("table1", networks.analyse_table1, networks.draw_table1),
    Experiment("fig13", pruning.analyse_fig13, pruning.draw_fig13, pruning.plan_fig13),
)
EXPERIMENTS = {one.name: one for one in _ROWS}
assert list(EXPERIMENTS) == list(TABLE)


def find_experiments(names: Sequence[str]) -> list[Experiment]:
    """Return experiments by their names, each once; ``all`` stands for all of them."""
    known = ", ".join(EXPERIMENTS)
    if not names:
        raise InputError(f"name at least one experiment, or all: {known}")
    for name in names:
        if name not in (*EXPERIMENTS, "all"):
            close = get_close_matches(name.lower().replace(" ", ""), [*EXPERIMENTS, "all"], n=2)
            hint = f"did you mean {' or '.join(close)}?" if close else f"choose from {known}, all"
            raise InputError(f"there is no experiment {name!r}; {hint}")
    return [one for name, one in EXPERIMENTS.items() if name in names or "all" in names]


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
        measurer = open_any_measurer(where)
        own = describe_profile(measurer)
        about = {key: getattr(own, key) for key in ("device", "runtime", "covers", "provenance")}
        folder.claim(Identity(**about, **settings.to_dict()))
        with lock_device(on), measurer as device:
            ends_s = device.now() + (until_s or float("inf"))
            lab = Lab(folder, device, on_progress, celeba, ends_s)
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
    name, row, own = experiment.name, TABLE[experiment.name], lab.settings
    seen, role = lab.folder.observations, f"reproduce.{experiment.name}"
    last_s = max((one.taken_at_s for one in seen), default=None)
    seconds = sum(one.cost_s for one in seen if f"{one.run}.".startswith(f"{role}."))
    numbers, notes = {}, []
    try:
        found = experiment.analyse(lab)
    except MissingError as error:
        verdict, finding = ex.UNTESTED, f"Not enough was measured: {error}."
    else:
        (verdict, finding), numbers = found.judge(row), found.numbers
        notes = [*found.notes, *row.get("notes", ())]
    for family in experiment.families:
        family_s, family_notes = lab.describe_family(family)
        seconds, notes = seconds + family_s, notes + family_notes
    criterion = row["criterion"].format(**row.get("limits", {}))
    date = "" if last_s is None else datetime.fromtimestamp(last_s, UTC).date().isoformat()
    texts = (name, row["title"], row["statement"], criterion, verdict, finding)
    about = (own.device, own.runtime, own.covers, own.provenance, date, own.is_quick)
    result = Result(*texts, numbers, *about, seconds, tuple(notes))
    lab.folder.save(result, name)
    return result


def draw(
    results: Sequence[Result], folder: Folder, others: Sequence[Folder] = ()
) -> tuple[Path, ...]:
    """Draw results, beside those of others where a figure shows several; return the files."""
    files = []
    for result in results:
        experiment, shown = EXPERIMENTS[result.name], [result]
        for other in others if TABLE[result.name].get("beside") else ():
            found = other.find(Result, result.name)
            shown += [found] if found is not None and found.numbers else []
        if result.numbers:
            with plots.apply_style():
                canvas = plots.Canvas(shown)
                experiment.draw(canvas)
                files.append(canvas.save(folder.path / f"{result.name}.svg"))
    page = folder.path / "summary.md"
    text = f"# The experiments of the AMPERE paper\n\n{write_results([folder.path], page)}\n"
    write_atomically(text.encode("utf-8"), page)
    return (*files, page)
