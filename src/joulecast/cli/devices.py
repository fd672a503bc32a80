"""``joulecast devices``: list the catalogue, show one device, or add one."""

from __future__ import annotations

import click

from joulecast.catalogue import add_data_sheet
from joulecast.cli import options
from joulecast.cli.terminal import make_console, print_json, print_notes, print_table
from joulecast.features.catalogue import CatalogueDevice, find_catalogue_device, list_devices
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import DataSheet

_COLUMNS = (
    "device",
    ">memory",
    ">fp32",
    ">tf32",
    ">bf16",
    ">fp16",
    ">bandwidth",
    ">power",
    "profile",
)
_LISTED_PEAKS = ("fp32", "tf32", "bf16", "fp16")
_UNKNOWN = {"idle_w": "unknown: assumed from the power limit and the type of memory"}
_UNITS = "Peaks in TFLOP/s, dense, with sums in fp32; memory in GiB, bandwidth in GB/s, power in W."


@click.command()
@click.argument("name", required=False)
@click.option(
    "--add",
    metavar="FILE.toml",
    help="Add the device that a TOML file describes to your own.",
)
@options.store
@options.json
def devices(name: str | None, add: str | None, store: str | None, json: bool) -> None:
    """List the devices of the catalogue, or show all figures of NAME and their sources.

    Any of them can be given to --device and --devices. Where it has no profile, estimates rest on
    its data sheet and say so. NAME may also be a TOML file that describes a device.
    """
    if add is not None:
        if name is not None:
            raise click.UsageError("give NAME or --add, not both", click.get_current_context())
        _add(add, json)
    elif name is not None:
        found = find_catalogue_device(name, store)
        if json:
            print_json(found.to_dict())
        else:
            _print_device(found)
    else:
        _list(list_devices(store=store), json)


def _list(found: tuple[CatalogueDevice, ...], json: bool) -> None:
    if json:
        print_json({"devices": [one.to_dict() for one in found]})
        return
    console = make_console()
    print_table(console, _COLUMNS, map(_format_row, found))
    print_notes(
        console,
        [
            _UNITS,
            "profile: where estimates come from; datasheet: it was never measured.",
            "`joulecast devices NAME` shows every figure and its source; `--add FILE.toml` adds "
            "yours.",
        ],
    )


def _add(file: str, json: bool) -> None:
    sheet, path = add_data_sheet(file)
    if json:
        print_json({"device": sheet.name, "file": str(path)})
    else:
        make_console().print(
            f"Added {sheet.name} as {path}: give --device {sheet.name}. Remove the file to remove "
            "it."
        )


def _format_row(device: CatalogueDevice) -> tuple[str, ...]:
    sheet = device.data_sheet
    peaks = (sheet.flops_per_s.get(name) for name in _LISTED_PEAKS)
    return (
        sheet.name,
        f"{sheet.memory_bytes / 2**30:g}",
        *("-" if peak is None else f"{peak / 1e12:g}" for peak in peaks),
        f"{sheet.bytes_per_s / 1e9:g}",
        f"{sheet.power_limit_w:g}",
        device.provenance,
    )


def _print_device(device: CatalogueDevice) -> None:
    console, sheet = make_console(), device.data_sheet
    facts = (sheet.vendor, sheet.architecture, str(sheet.year or ""))
    console.print(f"{sheet.name}: {sheet.title} ({', '.join(filter(None, facts))})\n")
    rows = _list_figures(sheet)
    found = (sheet.sources[field] for *_, field in rows if field in sheet.sources)
    numbers = {text: number for number, text in enumerate(dict.fromkeys(found), start=1)}
    cells = [
        (
            label,
            value,
            f"[{numbers[sheet.sources[field]]}]"
            if field in sheet.sources
            else _UNKNOWN.get(field, "unknown"),
        )
        for label, value, field in rows
    ]
    print_table(console, ("figure", ">value", "source"), cells)
    for text, number in numbers.items():
        console.print(f"[{number}] {text}")
    console.print()
    print_notes(console, [_explain_estimates(device)])


def _list_figures(sheet: DataSheet) -> list[tuple[str, str, str]]:
    """Return label, value and field of every figure; peaks have their precision as field."""
    rows: list[tuple[str, float | None, float, str, str]] = [
        *(
            (f"{name} peak", peak, 1e12, "TFLOP/s", name)
            for name, peak in sheet.flops_per_s.items()
        ),
        ("bandwidth", sheet.bytes_per_s, 1e9, "GB/s", "bytes_per_s"),
        ("memory", sheet.memory_bytes, 2**30, f"GiB {sheet.memory_type}", "memory_bytes"),
        ("units (SM, CU)", sheet.units, 1, "", "units"),
        ("clock", sheet.clock_hz, 1e6, "MHz", "clock_hz"),
        ("L2 cache", sheet.l2_bytes, 2**20, "MiB", "l2_bytes"),
        ("power limit", sheet.power_limit_w, 1, "W", "power_limit_w"),
        ("idle power", sheet.idle_w, 1, "W", "idle_w"),
        ("process", sheet.process_nm, 1, "nm", "process_nm"),
        ("link", sheet.link_bytes_per_s, 1e9, "GB/s", "link_bytes_per_s"),
    ]
    return [
        (label, "-" if value is None else f"{value / scale:g} {unit}".strip(), field)
        for label, value, scale, unit, field in rows
    ]


def _explain_estimates(device: CatalogueDevice) -> str:
    if not device.profiles:
        return (
            "Estimates rest on this data sheet, since the device was never measured: they are "
            "labelled datasheet, and have wide intervals."
        )
    best = device.profiles[0]
    key = f"{best.key[:SHORT_KEY]} ({best.provenance}, {best.runtime})"
    return f"Estimates rest on its profile {key}, not on this data sheet alone."
