"""Import runs that others have measured, and predict runs as their source reports them.

    csv             net,energy_j,duration_s[,steps,batch,precision,…]     one run per line
    zeus            start_time,window_name,elapsed_time,gpu0_energy,…     one window per line, in J
    codecarbon      …,project_name,…,duration,…,energy_consumed,…         one run per line, in kWh
    carbontracker   Actual consumption for 3 epoch(s): Time, Energy       one run per file, in kWh

Sources of the formats:

- Zeus: https://github.com/ml-energy/zeus, zeus/monitor/energy.py: ``ZeusMonitor(log_file=...)``.
- CodeCarbon: https://github.com/mlco2/codecarbon, codecarbon/output_methods/emissions_data.py, the
  columns of ``emissions.csv``. ``energy_consumed`` is that of CPU, GPU and RAM together.
- Carbontracker: https://github.com/lfwa/carbontracker, carbontracker/parser.py: the patterns with
  which it reads its own logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.data.power_trace import read_csv
from joulecast.features.nets import NetRequest, ResolvedNet, resolve_name
from joulecast.features.profile import From
from joulecast.features.profiles import load_observed_profile
from joulecast.features.run import RunLength
from joulecast.records import Device, Execution, Observation, Profile, Record, Setup, Trial
from joulecast.system.errors import FileError, InputError, JoulecastError, MissingError, arg
from joulecast.system.files import read_limited, show_value
from joulecast.system.units import (
    JOULES_PER_KWH,
    format_duration,
    format_share,
)
from joulecast.views.report import Block, Report, Reportable, Text
from joulecast.views.words import format_with_interval, plural

if TYPE_CHECKING:
    from joulecast.estimators import Estimator
    from joulecast.store import Store

# Nothing of ours ran there.
_RUNTIME = "unknown"
_COVERS = "board"

LogFile = Annotated[
    str, Argument("CSV with net, joules and seconds, or a log of Zeus, CodeCarbon, Carbontracker.")
]
LoggedNet = Annotated[
    Any,
    Argument(
        "The net of all runs.", metavar="NET", default="as the file says", harm="may run code"
    ),
]
LoggedDevice = Annotated[
    str, Argument("Name of the device.", metavar="NAME", default="as the file says")
]
LogSource = Annotated[
    str,
    Argument(
        "Name of the log; runs of one source share an overhead.", metavar="NAME",
        default="its tool or file",
    ),
]  # fmt: skip
Covers = Annotated[str, Argument("What the joules include: gpu, board ...", metavar="TEXT")]
Tool = Annotated[
    str,
    Argument(
        "Format of FILE.", choices=("auto", "csv", "zeus", "codecarbon", "carbontracker"),
        default="by its content",
    ),
]  # fmt: skip
Window = Annotated[str, Argument("Zeus: name of the windows that are runs.", metavar="NAME")]
ImportedDevice = Annotated[str, Argument("Device with imported runs.", metavar="NAME")]
RunSteps = Annotated[int, Argument("Steps of the run.", least=1, most=given.MAX_COUNT)]
Source = Annotated[str, Argument("Whose runs.", metavar="NAME", default="the only source")]


@verb
def import_runs(
    file: LogFile,
    net: LoggedNet = None,
    *,
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    device: LoggedDevice = "",
    source: LogSource = "",
    covers: Covers = "",
    tool: Tool = "auto",
    window: Window = "",
    steps: given.Steps = None,
    epochs: given.Epochs = None,
    samples: given.Samples = None,
    from_: From = (),
    store: given.Store = None,
) -> ImportedRuns:
    """Import measured runs from FILE, so that estimates learn from them.

    FILE is a CSV with the columns net, energy_j and duration_s (and steps, batch, precision ...),
    or a log of Zeus, CodeCarbon or Carbontracker. Importing it again adds nothing.
    """
    from joulecast.features.transfer_sources import make_estimator
    from joulecast.store import open_store

    request = NetRequest.of(locals())
    path = Path(file)
    tool, logged = read_run_log(path, tool)
    # Windows may contain each other, so that only those of one name are runs.
    names = sorted({run.window for run in logged})
    if not window and len(names) > 1:
        raise InputError(f"{path} has the windows {', '.join(names)}: give one as {arg('window')}")
    runs = [run for run in logged if not window or run.window == window]
    if not runs:
        raise InputError(f"{path} has no window {window!r}: choose from {', '.join(names)}")
    source = source or (path.stem if tool == "csv" else tool)
    observations = []
    for run in runs:
        try:
            found, own = _resolve(run, request, path)
            count = _count_steps(run, steps, epochs, samples, own.samples_per_step)
        except FileError:
            raise
        except JoulecastError as error:
            raise InputError(f"{run.place}: {error.message}") from error
        name = device or run.device
        if not name:
            raise InputError(f"{run.place} names no device: give its name as {arg('device')}")
        observations.append(
            Observation(
                Trial(found.network, own, Execution(steps=count)),
                energy_j=run.energy_j,
                duration_s=run.duration_s,
                device=Device(name),
                runtime=_RUNTIME,
                meter=f"{source}: {run.place.rpartition(', ')[2]}"[:200],
                covers=covers or run.covers or _COVERS,
                provenance="imported",
                source=source,
            )
        )
    devices = sorted({one.device.name for one in observations})
    if len(devices) > 1:
        raise InputError(
            f"{path} has runs of {len(devices)} devices ({', '.join(devices)}): give one file for "
            f"each, or {arg('device')} if they are the same"
        )
    one = observations[0]
    profile = Profile(one.device, one.runtime, one.covers, one.provenance, tuple(observations))
    method = make_estimator("auto", from_, profile, store)
    with open_store(store) as opened:
        new = opened.import_profile(profile)
        is_fitted = refit_profile(opened, profile.key, method)
    return ImportedRuns(
        profile.key, profile.device.name, tool, source, len(observations), new, is_fitted
    )


@verb
def predict_run(
    net: given.Net,
    inputs: Any = None,
    *,
    device: ImportedDevice,
    steps: RunSteps,
    source: Source = "",
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    level: given.Level = 0.95,
    store: given.Store = None,
) -> RunPrediction:
    """Predict a whole run of NET, as the source of imported runs would report it.

    The overhead of a run (start-up, evaluation) and the spread of repeated runs are those of the
    source. `joulecast estimate` is about steps alone.
    """
    from joulecast.estimators import fit_profile
    from joulecast.estimators.additive.estimator import FittedAdditive, predict_runs
    from joulecast.gp.lognormal import lognormal_interval

    resolved, setup = NetRequest.of(locals()).resolve()
    profile = load_observed_profile(device, store=store)
    if not source:
        known = {one.source for one in profile.observations if one.provenance == "imported"}
        if len(known) > 1:
            raise InputError(
                f"{profile.device.name} has runs of {', '.join(sorted(known))}: give one of them "
                f"as {arg('source')}"
            )
        source = next(iter(known), "an imported log")
    fitted = fit_profile(profile, "additive").fitted
    assert isinstance(fitted, FittedAdditive)
    totals = predict_runs(fitted, [resolved.network], setup, steps, source)
    energy_j, variance = float(totals.energy_j[0]), float(totals.variance()[0])
    low_j, high_j = lognormal_interval(energy_j, variance, level)
    return RunPrediction(
        resolved.network.name, profile.device.name, source, steps, energy_j,
        (float(low_j), float(high_j)), level, float(totals.duration_s[0]), totals.repeat_sd_share,
        tuple(one.name for one in fitted.sources),
    )  # fmt: skip


@dataclass(frozen=True)
class ImportedRuns(Record, Reportable):
    """Runs of a file, of which ``new`` were not stored yet; if fitted, they give estimates."""

    profile: str
    device: str
    tool: str
    source: str
    runs: int
    new: int
    is_fitted: bool

    def report(self) -> Report:
        title = (
            f"Imported {plural(self.runs, 'run')} of {self.device} from {self.source}, {self.new} "
            "of them new."
        )
        command = Text(f"Next: joulecast estimate NET --device {self.device!r}", "command")
        return Report(title, (command,) if self.is_fitted else (), "imported", "import")


@dataclass(frozen=True)
class RunPrediction(Record, Reportable):
    """A whole run, as the source of imported runs would report it."""

    network: str
    device: str
    source: str
    steps: int
    energy_j: float
    interval_j: tuple[float, float]  # where one run lies with probability level
    level: float
    duration_s: float
    repeat_sd_share: float  # how much repeated runs differ, as a share of their energy
    transferred_from: tuple[str, ...] = ()  # devices that the device started from

    def report(self) -> Report:
        energy = format_with_interval(self.energy_j, self.interval_j, self.level, "imported")
        title = (
            f"A run of {self.network} on {self.device}, {self.steps:,} steps, as {self.source} "
            f"reports it: {energy}, {format_duration(self.duration_s)}."
        )
        spread = format_share(self.repeat_sd_share)
        blocks: list[Block] = [Text(f"Repeated runs differ by {spread} (std. dev.).")]
        if self.transferred_from:
            blocks.append(Text(f"Transferred from {' and '.join(self.transferred_from)}."))
        return Report(title, tuple(blocks), "imported", "prediction")


def refit_profile(store: Store, key: str, estimator: Estimator) -> bool:
    """Fit an estimator to a profile and store the fit; return False if there is too little."""
    from joulecast.campaign.campaign import fit_estimator
    from joulecast.estimators.plausibility import drop_contradicted

    believed = list(drop_contradicted(store.load_observations(key)))
    try:
        fitted = fit_estimator(estimator, believed)
    except MissingError:
        return False
    store.save_fit(key, estimator.name, fitted.to_dict())
    return True


def _resolve(run: LoggedRun, request: NetRequest, path: Path) -> tuple[ResolvedNet, Setup]:
    """Return the net of a run and its setup; the log comes before options."""
    request = replace(request, setup_options={**request.setup_options, **run.setup})
    if request.net is None:
        if not run.net:
            raise InputError(f"the log names no net: give one as {arg('net')}")
        # The file is somebody else's: a callable that it names must not run.
        found = resolve_name(run.net, request.setup_options.get("batch"), named_in=str(path))
        options = {**request.setup_options, "batch": found.batch}
        request = replace(request, net=found.network, setup_options=options)
    return request.resolve()


def _count_steps(
    run: LoggedRun, steps: int | None, epochs: int | None, samples: int | None, batch: int
) -> int:
    """Return the steps of a run; the log comes before arguments."""
    steps, epochs = run.steps or steps, run.epochs or epochs
    if steps:
        return RunLength(steps=steps).count_steps(batch)
    if not (epochs and samples):
        raise InputError(
            f"the number of steps is unknown: give {arg('steps')}, or {arg('epochs')} and "
            f"{arg('samples')} of an epoch"
        )
    return RunLength(epochs=epochs, samples=samples).count_steps(batch)


# ---------------------------------------------------------------------------------------------
# Logs


@dataclass(frozen=True)
class LoggedRun:
    """A whole run as a log reports it; what the log does not say is empty or None."""

    place: str  # file and line, for messages
    energy_j: float
    duration_s: float
    covers: str = ""  # what the energy includes
    net: str = ""
    device: str = ""
    window: str = ""  # name of Zeus's window
    steps: int | None = None
    epochs: int | None = None
    setup: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _CsvFormat:
    """Where a tool writes what."""

    columns: tuple[str, ...]  # a table that has them is of this tool
    duration: str
    energies: str  # matches columns of energy; the first alternative is for messages
    net: str = ""
    devices: tuple[str, ...] = ()  # columns that may name the device, the best first
    window: str = ""
    covers: str = ""


# The last one is recognised by a column that others might have.
_CSV_FORMATS = {
    "zeus": _CsvFormat(
        ("start_time", "window_name", "elapsed_time"), "elapsed_time",
        r"gpu0_energy|gpu\d+_energy", window="window_name", covers="gpu",
    ),
    "codecarbon": _CsvFormat(
        ("project_name", "duration", "emissions", "energy_consumed"), "duration",
        "energy_consumed", "project_name", ("gpu_model", "cpu_model"), covers="cpu+gpu+ram",
    ),
    "csv": _CsvFormat(("net",), "duration_s", "energy_j|joules|energy_kwh", "net", ("device",)),
}  # fmt: skip
_KWH_COLUMNS = ("energy_kwh", "energy_consumed")
# Columns of our CSV that say how a net was trained.
_SETUP_TEXTS, _SETUP_COUNTS = ("phase", "precision", "optimizer", "loss"), ("batch", "threads")
_MOST_LOG_BYTES = 16 * 2**20
_TRACKED = re.compile(
    r"Actual consumption for (\d+) epoch\(s\):\s*Time:\s*(\d+):(\d{2}):(\d{1,2}(?:\.\d+)?)\s*"
    r"Energy:\s*(\S+)\s*kWh",
    re.IGNORECASE,
)


def read_run_log(path: Path, tool: str = "auto") -> tuple[str, list[LoggedRun]]:
    """Return the format of a file, by default recognised by its content, and its runs.

    Raises:
        FileError: The file cannot be read, is in no known format, or a value is impossible.
    """
    tool = _recognise(path) if tool == "auto" else tool
    is_table = tool in _CSV_FORMATS
    runs = list(_read_table(path, tool)) if is_table else _read_carbontracker(path)
    if not runs:
        raise FileError(f"{path} has no runs: give a log of a run that has ended")
    return tool, runs


def _recognise(path: Path) -> str:
    columns: list[str] = []
    # Logs may begin with an empty line; what cannot be read at all fails again below.
    with suppress(FileError):
        _, columns = next(read_csv(path))
    for tool, form in _CSV_FORMATS.items():
        if set(form.columns) <= set(columns):
            return tool
    if _read_carbontracker(path):
        return "carbontracker"
    raise FileError(
        f"{path} is in no known format: give a CSV with the columns net, energy_j and duration_s, "
        "or a log of Zeus, CodeCarbon or Carbontracker"
    )


def _read_table(path: Path, tool: str) -> Iterator[LoggedRun]:
    rows, form = read_csv(path), _CSV_FORMATS[tool]
    _, columns = next(rows)
    energies = [name for name in columns if re.fullmatch(form.energies, name)]
    if tool != "zeus":
        # GPUs of Zeus add up; others have the same energy in several units.
        del energies[1:]
    needed = {*form.columns, form.duration, *(energies or form.energies.split("|")[:1])}
    if missing := ", ".join(sorted(needed.difference(columns))):
        wanted = ", ".join(sorted(needed))
        raise FileError(f"{path} has no column {missing}: a log of {tool} has {wanted}")
    for line, cells in rows:
        place = f"{path}, line {line}"
        if len(cells) < len(columns):
            raise FileError(f"{place} has {len(cells)} cells instead of {len(columns)}")
        row = {name: cell for name, cell in zip(columns, cells, strict=False) if cell}
        counts = {
            name: _read_count(row, name, place, least=0 if name == "threads" else 1)
            for name in ("steps", "epochs", *_SETUP_COUNTS)
            if name in row
        }
        yield LoggedRun(
            place,
            sum(_read_number(row, name, place) for name in energies),
            _read_number(row, form.duration, place),
            form.covers,
            net=row.get(form.net, ""),
            device=next((row[name] for name in form.devices if name in row), ""),
            window=row.get(form.window, ""),
            steps=counts.get("steps"),
            epochs=counts.get("epochs"),
            setup={name: row[name] for name in _SETUP_TEXTS if name in row}
            | {name: counts[name] for name in _SETUP_COUNTS if name in counts},
        )


def _read_carbontracker(path: Path) -> list[LoggedRun]:
    text = read_limited(path, _MOST_LOG_BYTES).decode("utf-8", errors="replace")
    # A tracker that is stopped twice reports twice: the last one is the whole run.
    return [
        LoggedRun(
            str(path),
            _read_number({"energy_kwh": energy}, "energy_kwh", str(path)),
            3600 * int(hours) + 60 * int(minutes) + float(seconds),
            "cpu+gpu",
            epochs=int(epochs),
        )
        for epochs, hours, minutes, seconds, energy in _TRACKED.findall(text)[-1:]
    ]


def _read_number(row: Mapping[str, str], name: str, place: str) -> float:
    """Return a number of a row; energies are in joules."""
    text = row.get(name, "")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e15:
        raise FileError(f"{place}: {name} is {show_value(text)}: give a number above 0")
    return value * (JOULES_PER_KWH if name in _KWH_COLUMNS else 1.0)


def _read_count(row: Mapping[str, str], name: str, place: str, least: int) -> int:
    text = row[name]
    if not (text.isdecimal() and len(text) < 10 and int(text) >= least):
        raise FileError(
            f"{place}: {name} is {show_value(text)}: give a whole number of at least {least}"
        )
    return int(text)
