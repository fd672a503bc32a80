"""Run the experiments of the AMPERE paper on a device, and say whether its statements hold there.

    Experiment.measure ─▶ observations of a folder ─▶ Experiment.analyse ─▶ ExperimentResult ─▶ draw

    experiment.py          what an experiment is, and the record of its result
    experiment_table.py    all experiments; each is one module
    paper_settings.py      networks, batches and device time
    laboratory.py          measures for experiments, and finds what they measured
    observation_file.py    observations in a file of lines, which nothing is lost from
    budgeted_measurer.py   a measurer that stops after a time
    result_folder.py       device, observations, results, pictures
    reproduction.py        runs, analyses and draws experiments
    summary_page.py        all results on one page

It builds on other uses, above all ``evaluate``; none of them knows it.
"""

from joulecast.uses.reproduce.budgeted_measurer import BudgetedMeasurer
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    UNTESTED,
    VERDICTS,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.experiment_table import ALL, EXPERIMENTS, find_experiments
from joulecast.uses.reproduce.laboratory import Laboratory
from joulecast.uses.reproduce.observation_file import ObservationFile
from joulecast.uses.reproduce.paper_settings import PaperSettings
from joulecast.uses.reproduce.reproduction import (
    Reproduction,
    analyse_experiments,
    draw_results,
    measure_experiments,
    plan_experiments,
)
from joulecast.uses.reproduce.result_folder import FolderIdentity, ResultFolder

__all__ = [
    "ALL",
    "EXPERIMENTS",
    "HELD",
    "NOT_HELD",
    "UNTESTED",
    "VERDICTS",
    "BudgetedMeasurer",
    "Experiment",
    "ExperimentResult",
    "Findings",
    "FolderIdentity",
    "Laboratory",
    "ObservationFile",
    "PaperSettings",
    "PlannedWork",
    "Reproduction",
    "ResultFolder",
    "analyse_experiments",
    "draw_results",
    "find_experiments",
    "measure_experiments",
    "plan_experiments",
]
