"""Export observations as CSV: one tidy row each, or as CodeCarbon writes runs."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.errors import FileError, InputError
from joulecast.features.profiles import load_observed_profile
from joulecast.records import Observation, Setup
from joulecast.units import GRAMS_PER_KG, co2e_g, joules_to_kwh, parse_grid

TIDY, CODECARBON = "tidy", "codecarbon"
EXPORT_FORMATS = (TIDY, CODECARBON)
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


def export_observations(
    device: str,
    file: str | os.PathLike[str],
    *,
    form: str = TIDY,
    grid: str = "",
    store: str | None = None,
) -> int:
    """Write the observations of a device to a CSV file; return how many.

    Args:
        device: A device with a profile.
        file: The file, which is replaced.
        form: ``tidy``: every observation with all its fields. ``codecarbon``: whole training steps
            with energies, in the columns of CodeCarbon's ``emissions.csv``.
        grid: For CodeCarbon's ``emissions``: grams per kWh, or a region; empty without.
        store: Path or URL of the store, if not the usual one.

    Raises:
        InputError: There is nothing to export.
        FileError: The file cannot be written.
    """
    if form not in EXPORT_FORMATS:
        raise InputError(f"form is {form!r}: choose from {', '.join(EXPORT_FORMATS)}")
    profile = load_observed_profile(device, store=store)
    if form == TIDY:
        rows = [_make_tidy_row(one) for one in profile.observations]
    else:
        grams_per_kwh = parse_grid(grid) if grid else None
        runs = [one for one in profile.observations if _is_run(one)]
        rows = [_make_codecarbon_row(one, grams_per_kwh) for one in runs]
    if not rows:
        raise InputError(f"{profile.device.name} has no observation of a whole step to export")
    write_rows(Path(file), list(rows[0]), rows)
    return len(rows)


def _make_tidy_row(one: Observation) -> dict[str, Any]:
    network, how = one.trial.network, one.trial.execution
    return {
        "device": one.device.name,
        "power_mode": one.device.power_mode,
        "unit": one.device.unit,
        "runtime": one.runtime,
        "meter": one.meter,
        "covers": one.covers,
        "provenance": one.provenance,
        "source": one.source,
        "run": one.run,
        "taken_at_s": one.taken_at_s,
        "trial": one.trial.key,
        "network": network.name,
        "layers": len(network.layers),
        **{name: getattr(one.trial.setup, name) for name in Setup.__dataclass_fields__},
        "stage": how.stage,
        "mode": how.mode,
        "copies": how.copies,
        "upstream": how.upstream,
        "steps": how.steps,
        "energy_j": one.energy_j,
        "energy_sd_j": one.energy_sd_j,
        "duration_s": one.duration_s,
        "duration_sd_s": one.duration_sd_s,
        "issue_s": one.issue_s,
        "count": one.count,
        "peak_memory_bytes": one.peak_memory_bytes,
        "cost_s": one.cost_s,
        "refusal": one.refusal,
    }


def _is_run(one: Observation) -> bool:
    has_values = one.energy_j is not None and bool(one.duration_s)
    return has_values and bool(one.trial.network.layers) and one.trial.execution.is_user_step


def _make_codecarbon_row(one: Observation, grams_per_kwh: float | None) -> dict[str, Any]:
    energy_j, duration_s = one.energy_j or 0.0, one.duration_s or 0.0
    row: dict[str, Any] = dict.fromkeys(_CODECARBON_COLUMNS, "")
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


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV; cells that a row does not have are empty.

    Raises:
        FileError: The file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            cells = ({name: _make_harmless(row.get(name)) for name in columns} for row in rows)
            writer.writerows(cells)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another file") from error


def _make_harmless(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula: names may be somebody else's."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value
