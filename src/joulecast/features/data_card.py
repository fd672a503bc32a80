"""Write the data card of an exported dataset: what it is, where it comes from, and its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulecast.errors import FileError
from joulecast.printable import make_printable
from joulecast.records import Profile

_TITLES = {
    "kernel": "Energy of fused kernels",
    "network": "Energy of whole networks",
    "application": "Energy of six reference applications",
}
_CONTENTS = {
    "kernel": "Each row is a kernel that was run alone in inference: operators that the runtime "
    "runs as one. Energy and duration include the overhead of a call, divided by `copies`. "
    "Features of a kernel that its kind does not have are empty.",
    "network": "Each row is a whole network, in inference or in training (column `phase`): a "
    "member of a family, or a user's own module.",
    "application": "Each row is one of the applications that `joulecast score` runs, in inference: "
    "image classification, object detection, super resolution, segmentation, question answering "
    "and speech.",
}
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
_PROVENANCES = {
    "measured": "read from a meter",
    "imported": "reported by somebody else, not by Joulecast",
    "modelled": "**not measured**: processor time x a stated power",
    "datasheet": "**not measured**: estimated from a data sheet",
    "simulated": "**not a real device**: a simulation",
}
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
    **{
        f"C{number}": ("channels", f"channels of concatenated input {number}")
        for number in range(1, 5)
    },
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
class DatasetFacts:
    """What a data card says.

    Attributes:
        file: Name of the CSV file.
        level: ``kernel``, ``network`` or ``application``.
        licence: What others may do with the data; empty if the owner has not said.
    """

    file: str
    level: str
    licence: str
    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    profile: Profile


def write_card(path: Path, facts: DatasetFacts) -> None:
    """Write a data card as Markdown.

    Raises:
        FileError: The file cannot be written.
    """
    try:
        path.write_text(make_card(facts), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another file") from error


def make_card(facts: DatasetFacts) -> str:
    """Return a data card as Markdown."""
    profile, device = facts.profile, facts.profile.device
    hardware = ", ".join(filter(None, (device.name, device.processor, device.power_mode)))
    meters = ", ".join(sorted({str(row["meter"]) for row in facts.rows}))
    lines = [
        f"# {_TITLES[facts.level]} on {_escape(device.name)}",
        f"`{_escape(facts.file)}`: {len(facts.rows):,} rows. {_CONTENTS[facts.level]}",
        "| | |\n|---|---|",
        f"| Device | {_escape(hardware)} |",
        f"| Runtime | {_escape(profile.runtime)} |",
        f"| Meter | {_escape(meters)}, which covers {_escape(profile.covers)} |",
        f"| Provenance | {profile.provenance}: {_PROVENANCES[profile.provenance]} |",
        f"| Taken | {_describe_dates(facts.rows)} |",
        f"| Licence | {_escape(facts.licence) or _NO_LICENCE} |",
        f"## Method\n\n{_IMPORTED_METHOD if profile.provenance == 'imported' else _METHOD}",
        f"## Counts\n\n{_count_rows(facts)}",
        "## Columns\n\n| column | unit | meaning |\n|---|---|---|",
        *(_describe_column(name) for name in facts.columns),
    ]
    text = "\n\n".join(lines)
    # Rows of a table follow each other.
    return text.replace("|\n\n|", "|\n|") + "\n"


def order_columns(names: Iterable[str]) -> list[str]:
    """Return the columns of a dataset in the order of its card; other sizes come before phase."""
    known = list(_COLUMNS)
    other = known.index("phase") - 0.5
    return sorted(names, key=lambda name: (known.index(name) if name in known else other, name))


def _describe_column(name: str) -> str:
    unit, meaning = _COLUMNS.get(name, _OTHER)
    return f"| `{name}` | {unit} | {meaning} |"


def _count_rows(facts: DatasetFacts) -> str:
    key = {"kernel": "kernel", "application": "application"}.get(facts.level, "family")
    counts = Counter((str(row[key]) or "other networks", str(row["phase"])) for row in facts.rows)
    rows = [f"| {_escape(name)} | {phase} | {count:,} |" for (name, phase), count in counts.items()]
    return "\n".join([f"| {key} | phase | rows |\n|---|---|---|", *sorted(rows)])


def _describe_dates(rows: Sequence[Mapping[str, Any]]) -> str:
    times_s = [row["taken_at_s"] for row in rows if row["taken_at_s"]]
    if not times_s:
        return "not known"
    days = [f"{datetime.fromtimestamp(one, UTC):%Y-%m-%d}" for one in (min(times_s), max(times_s))]
    return " to ".join(dict.fromkeys(days))


def _escape(text: str) -> str:
    """Return a text that changes neither a table nor the terminal that shows it."""
    return make_printable(text).replace("|", "\\|").replace("`", "'")
