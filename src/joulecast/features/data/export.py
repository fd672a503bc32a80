"""Export observations as CSV.

Exports are one tidy row per observation, the columns of CodeCarbon, or one of the three levels of
DeepEn2023's dataset, with a data card in Markdown:

    kernel        fused kernels that were run alone, with the features of DeepEn2023    inference
    network       whole networks: members of families, and your own modules   training, inference
    application   the six reference applications of ``joulecast score``                 inference

Rows are observations; estimates take no part.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.profiles import load_observed_profile
from joulecast.features.reference_applications import (
    build_reference_application,
    list_reference_applications,
)
from joulecast.records import OWN_NET, Network, Observation, Profile, Setup, compute_power
from joulecast.records.codec import Record, always_stored
from joulecast.system.errors import ArgumentError, InputError, arg
from joulecast.system.files import write_text
from joulecast.system.printable import make_printable
from joulecast.system.units import GRAMS_PER_KG, co2e_g, format_shape, joules_to_kwh, parse_grid
from joulecast.views.report import Answer, Report
from joulecast.views.words import describe_provenance, plural

if TYPE_CHECKING:
    from joulecast.onnx_nets.fusion import FusedKernel

TIDY, CODECARBON = "tidy", "codecarbon"
LEVELS = ("kernel", "network", "application")

Row = dict[str, Any]
ExportedDevice = Annotated[str, Argument("A device with a profile.")]
ExportedFile = Annotated[str, Argument("The CSV file, which is replaced.", harm="writes a file")]
Form = Annotated[
    str | None,
    Argument(
        "One row per observation, or CodeCarbon's columns.", choices=(TIDY, CODECARBON),
        option="format", default=TIDY,
    ),
]  # fmt: skip
Grid = Annotated[
    str | None,
    Argument("Emissions of CodeCarbon's columns: grams per kWh, or a region.", metavar="400|de"),
]
Level = Annotated[
    str | None,
    Argument(
        "Write a dataset of kernels, networks or applications instead, with a data card.",
        choices=LEVELS,
    ),
]
Licence = Annotated[str, Argument("Licence of the data, for the card.", metavar="TEXT")]


@verb
def export_data(
    device: ExportedDevice,
    file: ExportedFile,
    *,
    form: Form = None,
    grid: Grid = None,
    level: Level = None,
    licence: Licence = "",
    store: given.Store = None,
) -> Answer:
    """Write the observations of DEVICE to FILE as CSV.

    With --level, FILE has one of the levels of DeepEn2023's dataset, energies and durations are
    those of one inference or training step, and a data card in Markdown is written beside it.
    """
    if level is None:
        if licence:
            raise ArgumentError(f"{arg('licence')} needs {arg('level')}")
        form = form or TIDY
        count = export_observations(device, file, form=form, grid=grid, store=store)
        data = {"file": file, "format": form, "observations": count}
        return Answer(data, Report(f"Wrote {plural(count, 'observation')} to {file}.", ()))
    if form is not None or grid is not None:
        raise ArgumentError(
            f"{arg('level')} has its own columns: leave {arg('form')} and {arg('grid')} out"
        )
    result = export_dataset(device, file, level, licence=licence, store=store)
    left_out = f" {result.left_out:,} without energy were left out." if result.left_out else ""
    text = (
        f"Wrote {plural(result.rows, 'observation')} to {result.file}, and a data card to "
        f"{result.card}.{left_out}"
    )
    return Answer(result.to_dict(), Report(text, ()))


_AMOUNTS = ("energy_j", "energy_sd_j", "duration_s", "duration_sd_s")
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
# https://github.com/mlco2/codecarbon, codecarbon/output_methods/emissions_data.py
_CODECARBON_COLUMNS = (
    "timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions",
    "emissions_rate", "cpu_power", "gpu_power", "ram_power", "cpu_energy", "gpu_energy",
    "ram_energy", "energy_consumed", "water_consumed", "country_name", "country_iso_code", "region",
    "cloud_provider", "cloud_region", "os", "python_version", "codecarbon_version", "cpu_count",
    "cpu_model", "gpu_count", "gpu_model", "longitude", "latitude", "ram_total_size",
    "tracking_mode", "on_cloud", "pue", "wue",
)  # fmt: skip


@verb
def export_observations(
    device: ExportedDevice,
    file: ExportedFile,
    *,
    form: Form = TIDY,
    grid: Grid = None,
    store: given.Store = None,
) -> int:
    """Write the observations of a device to a CSV file; return how many.

    ``tidy`` has every observation with all its fields, ``codecarbon`` whole training steps with
    energies in the columns of CodeCarbon's ``emissions.csv``.
    """
    profile = load_observed_profile(device, store=store)
    if form == TIDY:
        rows = [_make_tidy_row(one) for one in profile.observations]
    else:
        grams_per_kwh = parse_grid(grid) if grid else None
        rows = [
            _make_codecarbon_row(one, grams_per_kwh)
            for one in profile.observations
            if one.energy_j is not None
            and one.duration_s
            and one.trial.network.layers
            and one.trial.execution.is_user_step
        ]
    if not rows:
        raise InputError(f"{profile.device.name} has no observation of a whole step to export")
    _write_rows(Path(file), rows[0], rows)
    return len(rows)


def _make_tidy_row(one: Observation) -> Row:
    network = one.trial.network
    return {
        "device": one.device.name,
        **_pick(one.device, "power_mode", "unit"),
        **_pick(one, "runtime", "meter", "covers", "provenance", "source", "run", "taken_at_s"),
        "trial": one.trial.key,
        "network": network.name,
        "layers": len(network.layers),
        **_pick(one.trial.setup, *Setup.__dataclass_fields__),
        **_pick(one.trial.execution, "stage", "mode", "copies", "upstream", "steps"),
        **_pick(one, *_AMOUNTS, "issue_s", "count", "peak_memory_bytes", "cost_s", "refusal"),
    }


def _pick(record: object, *names: str) -> Row:
    return {name: getattr(record, name) for name in names}


def _make_codecarbon_row(one: Observation, grams_per_kwh: float | None) -> Row:
    energy_j, duration_s = one.energy_j or 0.0, one.duration_s or 0.0
    row: Row = dict.fromkeys(_CODECARBON_COLUMNS, "")
    # What a meter covers is one part for CodeCarbon, or all of them.
    part = one.covers.split(" ")[0]
    if part in ("cpu", "gpu"):
        row |= {f"{part}_energy": joules_to_kwh(energy_j), f"{part}_power": energy_j / duration_s}
    if grams_per_kwh is not None:
        emissions_kg = co2e_g(energy_j, grams_per_kwh) / GRAMS_PER_KG
        row |= {"emissions": emissions_kg, "emissions_rate": emissions_kg / duration_s}
    moment = datetime.fromtimestamp(one.taken_at_s, UTC)
    return row | {
        "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S"),
        "project_name": one.trial.network.name,
        "run_id": one.run,
        "duration": duration_s,
        "energy_consumed": joules_to_kwh(energy_j),
        "gpu_model" if part == "gpu" else "cpu_model": one.device.name,
        "tracking_mode": "machine",
        "on_cloud": "N",
        "pue": 1.0,
    }


def _write_rows(path: Path, columns: Iterable[str], rows: Iterable[Row]) -> None:
    """Write rows as CSV; cells that a row does not have are empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns))
    writer.writeheader()
    for row in rows:
        # No spreadsheet takes these for formulas: names may be somebody else's.
        harmful = {
            name: f"'{cell}"
            for name, cell in row.items()
            if isinstance(cell, str) and cell.startswith(_FORMULA_SIGNS)
        }
        writer.writerow(row | harmful)
    write_text(path, text.getvalue())


# ---------------------------------------------------------------------------------------------
# The levels of a dataset


# A kernel has few operators; larger networks need not be looked at.
_MOST_KERNEL_LAYERS = 16


@dataclass(frozen=True)
class DatasetExport(Record):
    """A CSV file and its data card; ``left_out`` observations of the level have no energy."""

    file: str
    card: str
    level: str
    rows: int = always_stored(json_name="observations")
    left_out: int = always_stored()


@verb
def export_dataset(
    device: ExportedDevice,
    file: ExportedFile,
    level: Level,
    *,
    licence: Licence = "",
    store: given.Store = None,
) -> DatasetExport:
    """Write the observations of a device at one level as CSV, with a data card in Markdown.

    The card has the name of the file and ends in ``.md``.
    """
    dataset, path = _DATASETS[str(level)], Path(file)
    card = path.with_suffix(".md")
    if card == path:
        raise InputError(f"{path} is the name of the data card: give a file that ends in .csv")
    profile = load_observed_profile(device, store=store)
    chosen = list(dataset.select(profile))
    rows = [row for one, row in chosen if one.energy_j is not None and one.duration_s]
    if not rows:
        raise InputError(f"{profile.device.name} has no energies at this level: {dataset.hint}")
    # In the order of the card; sizes that it does not know come before the phase.
    known = list(_COLUMNS)
    places = {name: place for place, name in enumerate(known)}
    columns = sorted(
        {name for row in rows for name in row},
        key=lambda name: (places.get(name, places["phase"] - 0.5), name),
    )
    _write_rows(path, columns, rows)
    write_text(card, dataset.describe(path.name, licence, columns, rows, profile))
    return DatasetExport(str(path), str(card), str(level), len(rows), len(chosen) - len(rows))


def _select_kernels(profile: Profile) -> Iterator[tuple[Observation, Row]]:
    """Yield observations of single kernels, whether of a campaign for kernels or not."""
    from joulecast.onnx_nets.fusion import find_fusion_table, list_kernels

    @cache
    def find_kernel(network: Network, setup: Setup) -> FusedKernel | None:
        kernels = list_kernels(network, setup, find_fusion_table(profile.runtime, setup))
        return kernels[0] if len(kernels) == 1 and kernels[0].count == 1 else None

    for one in profile.observations:
        network, setup = one.trial.network, one.trial.setup
        if setup.phase != "inference" or not 0 < len(network.layers) <= _MOST_KERNEL_LAYERS:
            continue
        kernel = find_kernel(network, setup)
        if kernel is not None:
            features = {name: value for name, value in kernel.features.items() if name != "batch"}
            how = {"copies": one.trial.execution.copies, "mode": one.trial.mode}
            yield one, {"kernel": kernel.kind, **features, **_describe(one), **how}


def _select_networks(profile: Profile) -> Iterator[tuple[Observation, Row]]:
    for one in profile.observations:
        if one.trial.execution.is_user_step and one.trial.network.layers:
            row = _describe_network(one)
            if row["family"] or one.source == OWN_NET:
                yield one, row


def _select_applications(profile: Profile) -> Iterator[tuple[Observation, Row]]:
    names = {build_reference_application(one): one for one in list_reference_applications()}
    for one in profile.observations:
        name = names.get(one.trial.network)
        if name and one.trial.setup.phase == "inference" and one.trial.execution.is_user_step:
            yield one, {"application": name, **_describe_network(one)}


def _describe_network(one: Observation) -> Row:
    from joulecast.families import is_family
    from joulecast.operators import network_work

    network = one.trial.network
    work = network_work(network, one.trial.setup)
    return {
        "net": network.name,
        "family": network.name.partition(":")[0] if is_family(network.name) else "",
        "input": format_shape(network.input.shape),
        "layers": len(network.layers),
        "params": work.params,
        "FLOPs": work.total.flops,
        **_describe(one),
    }


def _describe(one: Observation) -> Row:
    """Return the columns of every level: the setup, one inference or step, and its origin."""
    setup, execution = one.trial.setup, one.trial.execution
    count, amounts = execution.steps * execution.copies, _pick(one, *_AMOUNTS)
    return {
        **_pick(setup, "phase", "batch", "precision", "processor", "threads"),
        "optimizer": setup.optimizer if setup.phase == "train" else "",
        "steps": 1,
        **{name: None if value is None else value / count for name, value in amounts.items()},
        "mean_power_w": compute_power(one.energy_j, one.duration_s),
        "rounds": one.count,
        "device": one.device.name,
        "power_mode": one.device.power_mode,
        **_pick(one, "runtime", "meter", "covers", "provenance", "taken_at_s", "run"),
    }


# ---------------------------------------------------------------------------------------------
# The data card: what a dataset is, where it comes from, and its columns


_METHOD = (
    "The network was built with random weights, warmed up until its time per step had settled, and "
    "run without a pause in several windows under the meter. Energy and duration are medians over "
    "the windows, with their standard deviation, divided by the number of inferences or training "
    "steps. The input stayed on the device: loading data is not included."
)
_IMPORTED_METHOD = (
    "Whole runs were measured by others and imported. Energy and duration are those of a run "
    "divided by its number of steps, so that they include start-up, loading and evaluation."
)
# Unit and meaning of each column.
_COLUMNS = {
    "kernel": ("", "operators of the kernel"),
    "application": ("", "name of the application"),
    "net": ("", "name of the network; `joulecast data import` reads it"),
    "family": ("", "family of the network; empty for other networks"),
    "input": ("", "shape of one sample"),
    "layers": ("", "number of layers"),
    "HW": ("pixels", "side of the input image, or root of its number of positions"),
    "C_in": ("channels", "input channels"),
    "C_out": ("channels", "output channels"),
    "KS": ("pixels", "kernel size"),
    "S": ("pixels", "stride"),
    "groups": ("", "groups of a convolution"),
    "rows": ("", "rows that a linear layer multiplies, or tokens that an embedding looks up"),
    "out": ("elements", "elements of an output sample, where it has more or fewer than the input"),
    **{f"C{n}": ("channels", f"channels of concatenated input {n}") for n in range(1, 5)},
    "FLOPs": ("FLOP", "floating-point operations of a batch, two per multiply-add"),
    "params": ("", "number of weights"),
    "phase": ("", "`inference`: a forward pass; `train`: a training step"),
    "batch": ("samples", "samples of a batch"),
    "precision": ("", "number format"),
    "optimizer": ("", "optimizer of a training step"),
    "processor": ("", "processor of the device; empty for the runtime's choice"),
    "threads": ("", "threads; 0 for the runtime's choice"),
    "steps": ("", "inferences or steps that energy and duration are for"),
    "energy_j": ("J", "energy of one inference or step"),
    "energy_sd_j": ("J", "its standard deviation over the windows"),
    "duration_s": ("s", "duration of one inference or step"),
    "duration_sd_s": ("s", "its standard deviation over the windows"),
    "mean_power_w": ("W", "energy divided by duration"),
    "rounds": ("", "number of windows"),
    "device": ("", "name of the device"),
    "power_mode": ("", "power mode, clock governor or power limit of the device"),
    "runtime": ("", "framework and version"),
    "meter": ("", "meter"),
    "covers": ("", "what the energy includes"),
    "provenance": ("", "where the energy comes from"),
    "taken_at_s": ("s", "when, in seconds since 1970 (UTC)"),
    "run": ("", "identifies the run of Joulecast; rows of one run share its conditions"),
    "copies": ("", "kernels that ran side by side; energy and duration are those of one"),
    "mode": ("", "`eager`, or `graph`: replayed as a CUDA graph"),
}
_OTHER = ("", "size of the kernel, as Joulecast calls it")
_NO_LICENCE = "not stated; ask the owner of the data before you use it"


@dataclass(frozen=True)
class _Dataset:
    """A level of datasets."""

    title: str
    content: str
    key: str  # the column that its rows are counted by
    hint: str  # how to measure something for it
    select: Callable[[Profile], Iterator[tuple[Observation, Row]]]

    def describe(
        self, file: str, licence: str, columns: Sequence[str], rows: Sequence[Row], profile: Profile
    ) -> str:
        """Return the data card as Markdown; the licence is empty if the owner has stated none."""
        device = profile.device
        times_s = [row["taken_at_s"] for row in rows if row["taken_at_s"]]
        ends_s = (min(times_s), max(times_s)) if times_s else ()
        days = dict.fromkeys(f"{datetime.fromtimestamp(one, UTC):%Y-%m-%d}" for one in ends_s)
        counts = Counter((row[self.key] or "other networks", row["phase"]) for row in rows)
        about = {name: _COLUMNS.get(name, _OTHER) for name in columns}
        hardware = ", ".join(filter(None, (device.name, device.processor, device.power_mode)))
        meters = ", ".join(sorted({row["meter"] for row in rows}))
        origin = describe_provenance(profile.provenance)
        origin = origin if profile.provenance == "measured" else f"**{origin}**"
        lines = [
            f"# {self.title} on {_escape(device.name)}",
            f"`{_escape(file)}`: {len(rows):,} rows. {self.content}",
            "| | |\n|---|---|",
            f"| Device | {_escape(hardware)} |",
            f"| Runtime | {_escape(profile.runtime)} |",
            f"| Meter | {_escape(meters)}, which covers {_escape(profile.covers)} |",
            f"| Provenance | {origin} |",
            f"| Taken | {' to '.join(days) or 'not known'} |",
            f"| Licence | {_escape(licence) or _NO_LICENCE} |",
            f"## Method\n\n{_IMPORTED_METHOD if profile.provenance == 'imported' else _METHOD}",
            f"## Counts\n\n| {self.key} | phase | rows |\n|---|---|---|",
            *sorted(
                f"| {_escape(name)} | {phase} | {n:,} |" for (name, phase), n in counts.items()
            ),
            "## Columns\n\n| column | unit | meaning |\n|---|---|---|",
            *(f"| `{name}` | {unit} | {meaning} |" for name, (unit, meaning) in about.items()),
        ]
        text = "\n\n".join(lines)
        # Rows of a table follow each other.
        return text.replace("|\n\n|", "|\n|") + "\n"


def _escape(text: str) -> str:
    """Return a text that changes neither a table nor the terminal that shows it."""
    return make_printable(text).replace("|", "\\|").replace("`", "'")


_DATASETS = {
    "kernel": _Dataset(
        "Energy of fused kernels",
        "Each row is a kernel that was run alone in inference: operators that the runtime runs as "
        "one. Energy and duration include the overhead of a call, divided by `copies`. Features of "
        "a kernel that its kind does not have are empty.",
        "kernel",
        "measure kernels with `joulecast profile NET --inference --estimator kernel-gp`",
        _select_kernels,
    ),
    "network": _Dataset(
        "Energy of whole networks",
        "Each row is a whole network, in inference or in training (column `phase`): a member of a "
        "family, or a user's own module.",
        "family",
        "measure networks with `joulecast measure FAMILY --inference`",
        _select_networks,
    ),
    "application": _Dataset(
        "Energy of six reference applications",
        "Each row is one of the applications that `joulecast score` runs, in inference: image "
        "classification, object detection, super resolution, segmentation, question answering and "
        "speech.",
        "application",
        "measure the applications with `joulecast score`",
        _select_applications,
    ),
}
