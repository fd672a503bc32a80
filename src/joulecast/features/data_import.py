"""Import runs that others have measured, and predict runs as their source reports them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.budgets import RunLength
from joulecast.errors import FileError, InputError, JoulecastError
from joulecast.features.data_fits import refit_profile
from joulecast.features.nets import NetRequest, ResolvedNet, resolve_name
from joulecast.features.option_values import convert_option
from joulecast.features.options import EstimateOptions, split_options
from joulecast.features.profiles import load_observed_profile
from joulecast.features.transfer_sources import make_estimator
from joulecast.records import Device, Execution, Observation, Profile, Record, Setup, Trial

if TYPE_CHECKING:
    from joulecast.traces.run_logs import LoggedRun, RunLog

# Nothing of ours ran there.
_RUNTIME = "unknown"
_COVERS = "board"


@dataclass(frozen=True)
class ImportOptions:
    """What a log of runs does not say itself.

    Attributes:
        device: Name of the device; by default the one that the log names.
        source: Name of the log. Runs of one source share an overhead: start-up and evaluation.
        covers: What the energies include; by default what the tool measures.
        tool: ``csv``, ``zeus``, ``codecarbon`` or ``carbontracker``; ``auto``: by the content.
        window: For Zeus, the name of the windows that are runs.
        steps: Steps of a run, where the log has none.
        epochs: Epochs of a run, with ``samples``; a Carbontracker log has them.
        samples: Samples of an epoch.
        from_: Devices, keys or files of profiles that the device starts from (``--from``): those of
            other imported runs; none to keep those that it started from before.
    """

    device: str = ""
    source: str = ""
    covers: str = ""
    tool: str = "auto"
    window: str = ""
    steps: int | None = None
    epochs: int | None = None
    samples: int | None = None
    from_: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportedRuns(Record):
    """What was imported.

    Attributes:
        runs: Runs in the file.
        new: How many of them were not in the store yet.
        is_fitted: Whether networks can be estimated from them.
    """

    profile: str
    device: str
    tool: str
    source: str
    runs: int
    new: int
    is_fitted: bool


@dataclass(frozen=True)
class RunPrediction(Record):
    """A whole run, as the source of imported runs would report it.

    Attributes:
        interval_j: Where one run lies with probability ``level``.
        repeat_sd_share: How much repeated runs differ, as a share of their energy.
        transferred_from: Devices that the device started from.
    """

    network: str
    device: str
    source: str
    steps: int
    energy_j: float
    interval_j: tuple[float, float]
    level: float
    duration_s: float
    repeat_sd_share: float
    transferred_from: tuple[str, ...] = ()


def import_runs(
    file: str | os.PathLike[str],
    net: Any = None,
    *,
    setup: Setup | None = None,
    store: str | None = None,
    **options: Any,
) -> ImportedRuns:
    """Add measured runs from elsewhere to the store, and fit an estimator to them.

    Args:
        file: CSV with a net, joules and seconds, or a log of Zeus, CodeCarbon or Carbontracker.
        net: The net of all runs, where the log does not name it.
        setup: How it was trained.
        store: Path or URL of the store, if not the usual one.
        options: Fields of ``Setup`` and of ``ImportOptions``: ``device``, ``source``, ``steps`` ...

    Raises:
        FileError: The file is damaged or in no known format.
        InputError: The log does not name a device, a net or a number of steps, and no option does.
    """
    setup_options, importing = split_options(import_runs, options, Setup, ImportOptions)
    request = NetRequest(net, None, setup, None, setup_options)
    return import_log(file, request, ImportOptions(**importing), store)


def import_log(
    file: str | os.PathLike[str],
    request: NetRequest,
    options: ImportOptions,
    store: str | None = None,
) -> ImportedRuns:
    """Add the runs of a log to the store; see ``import_runs``."""
    from joulecast.store import open_store
    from joulecast.traces.run_logs import read_run_log

    path = Path(file)
    log = _select_windows(read_run_log(path, options.tool), options.window, path)
    default = path.stem if log.tool == "csv" else log.tool
    options = replace(
        options, source=options.source or default, covers=options.covers or log.covers or _COVERS
    )
    observations = [_make_observation(run, request, options, path) for run in log.runs]
    profile = _join_profile(observations, path)
    method = make_estimator(EstimateOptions().estimator, options.from_, profile, store)
    with open_store(store) as opened:
        new = opened.import_profile(profile)
        is_fitted = refit_profile(opened, profile.key, method)
    return ImportedRuns(
        profile.key,
        profile.device.name,
        log.tool,
        options.source,
        len(observations),
        new,
        is_fitted,
    )


def predict_run(
    net: Any,
    inputs: Any = None,
    *,
    device: str,
    steps: int,
    source: str = "",
    setup: Setup | None = None,
    **options: Any,
) -> RunPrediction:
    """Predict a whole run of a net, with the overhead and noise of the source of imported runs.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        device: A device with imported runs.
        steps: Steps of the run.
        source: Whose runs; by default the only source of the profile.
        setup: How the net is trained.
        options: Fields of ``Setup`` and of ``EstimateOptions``: ``level``, ``store``.

    Raises:
        InputError: The profile has runs of several sources.
        MissingError: The profile has no imported runs.
    """
    setup_options, estimating = split_options(predict_run, options, Setup, EstimateOptions)
    request = NetRequest(net, inputs, setup, None, setup_options)
    steps = convert_option("steps", steps, int)
    return predict_net(request, device, steps, source, EstimateOptions(**estimating))


def predict_net(
    request: NetRequest, device: str, steps: int, source: str, options: EstimateOptions
) -> RunPrediction:
    """Predict a whole run of a net; see ``predict_run``."""
    from joulecast.estimators import fit_profile
    from joulecast.estimators.additive.estimator import FittedAdditive, predict_runs
    from joulecast.gp.lognormal import lognormal_interval

    RunLength(steps=steps)
    resolved, setup = request.resolve()
    profile = load_observed_profile(device, store=options.store)
    source = source or _find_source(profile)
    fitted = fit_profile(profile, "additive").fitted
    assert isinstance(fitted, FittedAdditive)
    totals = predict_runs(fitted, [resolved.network], setup, steps, source)
    energy_j, variance = float(totals.energy_j[0]), float(totals.variance()[0])
    low_j, high_j = lognormal_interval(energy_j, variance, options.level)
    return RunPrediction(
        resolved.network.name,
        profile.device.name,
        source,
        steps,
        energy_j,
        (float(low_j), float(high_j)),
        options.level,
        float(totals.duration_s[0]),
        totals.repeat_sd_share,
        tuple(one.name for one in fitted.sources),
    )


def _find_source(profile: Profile) -> str:
    imported = (one.source for one in profile.observations if one.provenance == "imported")
    sources = sorted(set(imported))
    if len(sources) > 1:
        raise InputError(
            f"{profile.device.name} has runs of {', '.join(sources)}: give one of them as --source"
        )
    return sources[0] if sources else "an imported log"


def _select_windows(log: RunLog, window: str, path: Path) -> RunLog:
    """Return a log with the windows of one name only, because windows may contain each other."""
    names = sorted({run.window for run in log.runs})
    if not window and len(names) > 1:
        raise InputError(f"{path} has the windows {', '.join(names)}: give one as --window")
    runs = tuple(run for run in log.runs if not window or run.window == window)
    if not runs:
        raise InputError(f"{path} has no window {window!r}: choose from {', '.join(names)}")
    return replace(log, runs=runs)


def _make_observation(
    run: LoggedRun, request: NetRequest, options: ImportOptions, path: Path
) -> Observation:
    try:
        net, setup = _resolve(run, request, path)
        steps = _count_steps(run, options, setup.samples_per_step)
    except FileError:
        raise
    except JoulecastError as error:
        raise InputError(f"{run.place}: {error}") from error
    device = options.device or run.device
    if not device:
        raise InputError(f"{run.place} names no device: give its name as --device")
    return Observation(
        Trial(net.network, setup, Execution(steps=steps)),
        energy_j=run.energy_j,
        duration_s=run.duration_s,
        device=Device(device),
        runtime=_RUNTIME,
        meter=f"{options.source}: {run.place.rpartition(', ')[2]}"[:200],
        covers=options.covers,
        provenance="imported",
        source=options.source,
    )


def _resolve(run: LoggedRun, request: NetRequest, path: Path) -> tuple[ResolvedNet, Setup]:
    """Return the net of a run and its setup; the log comes before options."""
    own = _convert_setup(run.setup)
    request = replace(request, setup_options={**request.setup_options, **own})
    if request.net is not None:
        return request.resolve()
    if not run.net:
        raise InputError("the log names no net: give one as --net")
    # The file is somebody else's: a callable that it names must not run.
    batch = request.setup_options.get("batch")
    found = resolve_name(run.net, batch, named_in=str(path))
    return replace(
        request, net=found.network, setup_options={**request.setup_options, "batch": found.batch}
    ).resolve()


def _convert_setup(texts: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = dict(texts)
    for name in ("batch", "threads"):
        if name in values:
            if not (values[name].isdecimal() and len(values[name]) < 10):
                raise InputError(f"{name} is {values[name]!r}: give a whole number")
            values[name] = int(values[name])
    return values


def _count_steps(run: LoggedRun, options: ImportOptions, batch: int) -> int:
    steps = run.steps or options.steps
    if steps:
        return RunLength(steps=steps).count_steps(batch)
    epochs = run.epochs or options.epochs
    if not (epochs and options.samples):
        raise InputError(
            "the number of steps is unknown: give --steps, or --epochs and --samples of an epoch"
        )
    return RunLength(epochs=epochs, samples=options.samples).count_steps(batch)


def _join_profile(observations: list[Observation], path: Path) -> Profile:
    devices = sorted({one.device.name for one in observations})
    if len(devices) > 1:
        raise InputError(
            f"{path} has runs of {len(devices)} devices ({', '.join(devices)}): give one file for "
            "each, or --device if they are the same"
        )
    one = observations[0]
    return Profile(one.device, one.runtime, one.covers, one.provenance, tuple(observations))
