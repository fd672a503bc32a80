"""Write the result of a command: text or JSON on stdout, a JSON file, and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.cli.terminal import Json, format_json, print_json
from joulecast.errors import FileError
from joulecast.views.report import Plot

PLOT_SUFFIXES = (".html", ".svg", ".png", ".pdf")


@dataclass(frozen=True)
class OutputOptions:
    """Where a result goes.

    Attributes:
        out: File that receives the result as JSON.
        plot: File that receives the plot.
        json: Print JSON instead of text.
    """

    out: str | None = None
    json: bool = False
    plot: str | None = None


def write_result(output: OutputOptions, data: Json, print_text: Callable[[], None]) -> None:
    """Write the result to the file that ``--out`` names, and print it as JSON or text."""
    if output.out:
        write_json(output.out, data)
    if output.json:
        print_json(data)
    else:
        print_text()


def write_json(path: str, data: Any) -> None:
    """Write a value to a file as JSON.

    Raises:
        FileError: The file cannot be written.
    """
    try:
        Path(path).write_text(format_json(data) + "\n", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise FileError(f"cannot write {path} ({reason}): give another --out") from error


def save_plots(path: str, plots: Sequence[Plot]) -> None:
    """Write plots to a file that ends in one of ``PLOT_SUFFIXES``."""
    from joulecast.views.plots import save_plots

    save_plots(plots, Path(path))
