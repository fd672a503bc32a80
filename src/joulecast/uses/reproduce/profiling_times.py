"""Table 1: how long profiling and fitting take, family by family.

Profiling is the device time of the paper's method in the evaluation of a family. It ends by the
paper's rule, when every curve is known within 5 %, or at a limit. Fitting is the time that the
machine takes that analyses the observations. The paper's seconds are those of its devices: they are
shown beside ours, not compared with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from joulecast.errors import MissingError
from joulecast.estimators import find_estimator
from joulecast.estimators.subtractive.curves import QUANTITIES
from joulecast.features.evaluation import EvaluationPlan, draw_nets, strip_probe
from joulecast.figures import Caption, Plot
from joulecast.figures.marks import Mark, Points
from joulecast.figures.plot import Axis, Panel, choose_limits, make_plot
from joulecast.uses.reproduce.experiment import (
    HELD,
    NOT_HELD,
    Experiment,
    ExperimentResult,
    Findings,
    PlannedWork,
)
from joulecast.uses.reproduce.laboratory import Laboratory
from joulecast.uses.reproduce.paper_settings import (
    AMPERE,
    OURS,
    PAPER_FAMILIES,
    PaperSettings,
    list_family_work,
)
from joulecast.views.style import BLUE, MUTED, RED, SPARE_MARKERS

PAPER_SECONDS = {
    "OPPO": (694, 1688, 2188, 1615),
    "iPhone": (1201, 1012, 2446, 1168),
    "Xavier": (184, 421, 740, 1145),
    "TX2": (285, 1211, 4433, 422),
    "Server": (235, 268, 562, 436),
}
"""Seconds of profiling and fitting in the paper, by device, in the order of ``PAPER_FAMILIES``."""

MOST_SECONDS = 1200.0


def plan(settings: PaperSettings) -> Sequence[PlannedWork]:
    """Return the evaluations of the paper's four families."""
    return list_family_work(settings, PAPER_FAMILIES)


def measure(lab: Laboratory) -> None:
    """Measure the evaluations of the paper's four families."""
    for name in PAPER_FAMILIES:
        lab.measure_family(lab.settings.get_family(name).make_plan())


def analyse(lab: Laboratory) -> Findings:
    """Add up device time, and time the fits."""
    families = {}
    for name in PAPER_FAMILIES:
        evaluation_plan = lab.settings.get_family(name).make_plan()
        rows = {
            estimator: row
            for estimator in (AMPERE, OURS)
            if (row := _time_estimator(lab, evaluation_plan, estimator)) is not None
        }
        if AMPERE in rows:
            families[name] = rows
    verdict, finding = judge(families)
    seconds = sum(row["profiling_s"] for rows in families.values() for row in rows.values())
    limited = [name for name, rows in families.items() if not rows[AMPERE]["is_known"]]
    notes = []
    if limited:
        notes.append(
            f"Profiling of {', '.join(limited)} ended at its limit of device time, before every "
            "curve was known within 5 %."
        )
    notes.append(
        "Fitting was timed on the machine that analysed the observations. The paper's devices are "
        "phones, Jetson boards and a server: their seconds are not comparable with these."
    )
    found = Findings(verdict, finding, {"families": families}, seconds, tuple(notes))
    return found.mark_partial(len(families), len(PAPER_FAMILIES), "families")


def judge(families: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[str, str]:
    """Return the verdict and the sentence.

    Raises:
        MissingError: Nothing was profiled.
    """
    if not families:
        raise MissingError("no family was profiled")
    totals_s = {
        name: rows[AMPERE]["profiling_s"] + rows[AMPERE]["fitting_s"]
        for name, rows in families.items()
    }
    parts = [
        f"{name} {rows[AMPERE]['profiling_s']:.0f} + {rows[AMPERE]['fitting_s']:.1f} s "
        f"({rows[AMPERE]['points']} points)"
        for name, rows in families.items()
    ]
    finding = f"AMPERE's profiling + fitting took {', '.join(parts)}"
    if all(OURS in rows for rows in families.values()):
        ours = [
            f"{rows[OURS]['profiling_s']:.0f} + {rows[OURS]['fitting_s']:.1f} s"
            for rows in families.values()
        ]
        finding += f"; ours {', '.join(ours)}"
    return HELD if max(totals_s.values()) <= MOST_SECONDS else NOT_HELD, finding + "."


def draw(results: Sequence[ExperimentResult]) -> Plot:
    """Draw the paper's seconds and ours side by side."""
    result = results[0]
    families = [name for name in PAPER_FAMILIES if name in result.numbers["families"]]
    series: dict[str, tuple[list[float], str]] = {}
    for device, seconds in PAPER_SECONDS.items():
        values = [float(seconds[PAPER_FAMILIES.index(name)]) for name in families]
        series[device] = (values, MUTED)
    for estimator, colour in ((AMPERE, RED), (OURS, BLUE)):
        rows = [result.numbers["families"][name].get(estimator) for name in families]
        if all(rows):
            values = [row["profiling_s"] + row["fitting_s"] for row in rows]
            series[estimator] = (values, colour)
    # The first family is the top row.
    heights = [float(len(families) - 1 - at) for at in range(len(families))]
    marks: list[Mark] = [
        Points(
            name,
            tuple(values),
            tuple(heights),
            colour,
            hover_texts=tuple(f"{name}: {value:.0f} s" for value in values),
            marker=marker,
        )
        for (name, (values, colour)), marker in zip(
            series.items(), cycle(SPARE_MARKERS), strict=False
        )
    ]
    low, high = choose_limits([one for values, _ in series.values() for one in values], True)
    x = Axis("Profiling and fitting", "s", is_log=True, low=low, high=high)
    y = Axis("", categories=tuple(reversed(families)))
    subtitle = f"in colour on {result.device.name}; the paper's own devices, in grey, differ"
    caption = Caption("Table 1: time of profiling and fitting", subtitle, result.provenance)
    return make_plot((Panel(x, y, tuple(marks)),), caption, "")


def _time_estimator(
    lab: Laboratory,
    evaluation_plan: EvaluationPlan,
    name: str,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any] | None:
    """Return the device time of an estimator's campaign and the time of its fit; None without."""
    training = lab.find_training(evaluation_plan, name)
    method = find_estimator(strip_probe(lab.translate(name)))
    started_s = clock()
    try:
        if name == AMPERE:
            # The estimator remembers its curves, and would not fit them again.
            for quantity in QUANTITIES:
                lab.settings.fit_paper_curves(training.campaign, quantity)
        else:
            method.fit(training.campaign)
    except MissingError:
        return None
    fitting_s = clock() - started_s
    if not training.campaign:
        return None
    nets = draw_nets(evaluation_plan)
    target = nets.make_target(evaluation_plan.setup, nets.campaign)
    is_known = name == AMPERE and method.propose(target, training.campaign).trial is None
    return {
        "profiling_s": training.device_seconds,
        "fitting_s": fitting_s,
        "points": len(training.campaign),
        "is_known": is_known,
    }


PROFILING_TIMES = Experiment(
    "table1",
    "Time of profiling and fitting",
    "Profiling and fitting of most networks take less than 20 minutes.",
    f"Profiling and fitting of every family take at most {MOST_SECONDS:g} s together.",
    plan,
    measure,
    analyse,
    draw,
)
