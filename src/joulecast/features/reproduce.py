"""Run the experiments of the AMPERE paper on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.devices import parse_on
from joulecast.errors import InputError
from joulecast.features.measurers import lock_device, open_any_measurer
from joulecast.features.options import MeasureOptions, split_options
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.runtimes import find_hardware

if TYPE_CHECKING:
    from joulecast.measurer import TrialMeasurer
    from joulecast.uses.reproduce import (
        Experiment,
        FolderIdentity,
        PlannedWork,
        Reproduction,
        ResultFolder,
    )

DEFAULT_FOLDER = "reproduction"
# Steps of a measurement of the paper.
_FAITHFUL_STEPS = 500


@dataclass(frozen=True)
class ReproduceOptions:
    """How experiments are run.

    Attributes:
        out: Folder that receives observations, results and pictures.
        quick: Use fewer networks and less device time.
        until_s: Measure nothing more after this time; the same command continues later.
        measure_only: Measure, and leave analysing and drawing to a later run.
        redraw: Use what the folder holds, and measure nothing.
        beside: Folders of other devices, whose results are drawn beside.
        faithful: Use the paper's algorithm without our deviations, ``ampere``, and measure 500
            steps at a time.
        celeba: Folder of CelebA's images for fig13; faces are drawn without it.
    """

    out: str = DEFAULT_FOLDER
    quick: bool = False
    until_s: float | None = None
    measure_only: bool = False
    redraw: bool = False
    beside: tuple[str, ...] = ()
    faithful: bool = False
    celeba: str = ""

    def __post_init__(self) -> None:
        if self.measure_only and self.redraw:
            raise InputError("measure_only measures and redraw does not: give one of them")
        if self.until_s is not None and not 0.0 < self.until_s < math.inf:
            raise InputError(f"until_s is {self.until_s}: give seconds above 0")


def reproduce(
    experiments: str | Sequence[str] = "all",
    *,
    on_progress: ReportProgress | None = None,
    **options: Any,
) -> Reproduction:
    """Run experiments of the AMPERE paper, and say whether its statements hold on a device.

    Every observation is kept in the folder at once; the same call continues where it stopped.

    Args:
        experiments: ``all``, or names such as ``fig2`` and ``table1``.
        on_progress: Called before every measurement.
        options: Fields of ``MeasureOptions`` (``on="cuda:0"``) and of ``ReproduceOptions``:
            ``out``, ``quick``, ``until_s``, ``measure_only``, ``redraw``, ``beside``,
            ``faithful``, ``celeba``.
    """
    measuring, running = split_options(reproduce, options, MeasureOptions, ReproduceOptions)
    names = (experiments,) if isinstance(experiments, str) else tuple(experiments)
    how, where = ReproduceOptions(**running), MeasureOptions(**measuring)
    return run_experiments(names, where, how, on_progress)


def run_experiments(
    names: Sequence[str],
    measuring: MeasureOptions,
    options: ReproduceOptions,
    on_progress: ReportProgress | None = None,
) -> Reproduction:
    """Measure what the folder lacks, then analyse and draw.

    Args:
        names: Names of experiments.
        measuring: The device and its meter.
        options: How experiments are run.
        on_progress: Called before every measurement.

    Raises:
        InputError: There is no such experiment, or the folder belongs to another device.
        MissingError: With ``redraw``: nothing was measured into the folder.
    """
    from joulecast.uses.reproduce import (
        Laboratory,
        ObservationFile,
        Reproduction,
        ResultFolder,
        analyse_experiments,
        draw_results,
        find_experiments,
        measure_experiments,
    )

    found = find_experiments(names)
    folder = ResultFolder(Path(options.out))
    others = [_open_other(path) for path in options.beside]
    with ExitStack() as stack:
        measurer = None if options.redraw else _open(stack, measuring, options, folder)
        identity = folder.read_identity()
        lab = Laboratory(
            ObservationFile(folder.observations),
            identity.profile,
            identity.settings,
            measurer,
            on_progress or _ignore,
            celeba=options.celeba,
        )
        is_complete = options.redraw or measure_experiments(found, lab)
    if options.measure_only:
        return Reproduction((), (), tuple(lab.failures), is_complete)
    results = analyse_experiments(found, lab, folder)
    files = draw_results(results, folder, others)
    return Reproduction(results, files, tuple(lab.failures), is_complete)


def plan_reproduction(
    names: Sequence[str], measuring: MeasureOptions, options: ReproduceOptions
) -> dict[str, tuple[PlannedWork, ...]]:
    """Return what each experiment would measure in an empty folder, with expected seconds.

    Raises:
        InputError: There is no such experiment or device. The device need not be here.
    """
    from joulecast.uses.reproduce import PaperSettings, find_experiments, plan_experiments

    hardware = None if "://" in measuring.on else find_hardware(measuring.on)
    if hardware is not None:
        parse_on(hardware)
    settings = PaperSettings(_is_gpu(measuring.on), options.quick, options.faithful)
    return plan_experiments(find_experiments(names), settings)


def _open(
    stack: ExitStack, measuring: MeasureOptions, options: ReproduceOptions, folder: ResultFolder
) -> TrialMeasurer:
    """Open the device, and claim the folder for it."""
    from joulecast.uses.reproduce import BudgetedMeasurer

    if options.faithful:
        measuring = replace(measuring, runs=measuring.runs or _FAITHFUL_STEPS)
    measurer = open_any_measurer(measuring)
    folder.claim(_identify(measurer, measuring, options))
    stack.enter_context(lock_device(measuring.on))
    opened: TrialMeasurer = stack.enter_context(measurer)
    if options.until_s is None:
        return opened
    return BudgetedMeasurer(opened, opened.now() + options.until_s)


def _identify(
    measurer: TrialMeasurer, measuring: MeasureOptions, options: ReproduceOptions
) -> FolderIdentity:
    from joulecast.uses.reproduce import FolderIdentity

    runtime, meter = measurer.runtime, measurer.meter
    return FolderIdentity(
        runtime.device,
        runtime.name,
        meter.covers,
        meter.provenance,
        _is_gpu(measuring.on),
        options.quick,
        options.faithful,
    )


def _is_gpu(on: str) -> bool:
    """Return whether small batches leave the device idle."""
    return on.startswith("cuda")


def _open_other(path: str) -> ResultFolder:
    from joulecast.uses.reproduce import ResultFolder

    folder = ResultFolder(Path(path))
    folder.read_identity()
    return folder


def _ignore(report: ProgressReport) -> None:
    pass


def list_experiments() -> tuple[Experiment, ...]:
    """Return all experiments, in the order in which they are measured."""
    from joulecast.uses.reproduce import EXPERIMENTS

    return tuple(EXPERIMENTS.values())
