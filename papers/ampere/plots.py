"""Draw panels with matplotlib, which is imported when the first one is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.records import weakest_provenance
from joulecast.system.errors import MissingError
from joulecast.views.words import label_provenance
from papers.ampere import experiment as ex
from papers.ampere.experiment import AMPERE, FLOPS, LABELS, OURS, Net, Result, list_net_errors

# Okabe and Ito's colours, which colour-blind readers can distinguish.
DARK, BLUE, RED, GREEN = "#3C3C3C", "#0072B2", "#D55E00", "#009E73"
GREY, ORANGE, SKY = "#8A8A8A", "#E69F00", "#56B4E9"
STYLES = {FLOPS: (GREY, "X"), "flops-linear": (ORANGE, "D"), AMPERE: (RED, "s"), OURS: (BLUE, "o")}
"""Colour and marker of each estimator."""

_COLUMNS = 3
_PATH, _DECIMALS = re.compile(r' (?:d|x|y)="[^"]*"'), re.compile(r"(\.\d\d)\d+")
_COMMENT = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
# With a fixed salt and no date, the same results give the same bytes.
_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "joulecast", "font.size": 9.0}
_SETTINGS |= {"font.family": "DejaVu Sans"}
_SETTINGS |= {"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
_SETTINGS |= {"axes.grid": True, "axes.titlesize": 9.5, "grid.color": "#E4E4E4"}
_SETTINGS |= {"lines.markersize": 4.5, "legend.frameon": False, "text.parse_math": False}


class Canvas:
    """A figure of results, that of a folder first, then those of other folders.

    Its title is the heading of the first, and says when energies were not measured.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        from matplotlib.figure import Figure

        self.results, self.numbers = results, results[0].numbers
        self.figure = Figure(layout="constrained")
        self.panels: list[Any] = []
        label = label_provenance(weakest_provenance(one.provenance for one in results))
        self.heading = f"{results[0].heading}{label}"
        self.devices = ", ".join(one.device.name for one in results)

    def add(self, count: int = 1, subtitle: str = "", **options: Any) -> list[Any]:
        """Return new panels, in rows of three; matplotlib gets the options."""
        columns = min(count, _COLUMNS)
        rows = -(-count // columns)
        self.figure.set_size_inches(max(4.6 * columns, 7.0), 3.3 * rows + 0.9)
        self.figure.suptitle(f"{self.heading}\n{self.devices}{subtitle and '; '}{subtitle}")
        add = self.figure.add_subplot
        self.panels = [add(rows, columns, at, **options) for at in range(1, count + 1)]
        return self.panels

    def save(self, path: Path) -> Path:
        """Add one legend for all panels, and write the figure as SVG."""
        from matplotlib.ticker import LogFormatter, NullFormatter

        known: dict[str, Any] = {}
        for panel in self.panels:
            # Powers of ten would be formulas, which are not parsed.
            for axis in (panel.xaxis, panel.yaxis):
                if isinstance(axis.get_major_formatter(), LogFormatter):
                    axis.set_major_formatter("{x:g}")
                    axis.set_minor_formatter(NullFormatter())
            for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
                known.setdefault(name, handle)
        if known:
            handles, names = list(known.values()), list(known)
            self.figure.legend(handles, names, loc="outside lower center", ncols=4)
        drawn = io.StringIO()
        self.figure.savefig(drawn, format="svg", metadata={"Date": None})
        # A hundredth of a point is enough for paths, and halves the file.
        text = _COMMENT.sub("", drawn.getvalue())
        text = _PATH.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), text)
        lines = (line.strip() for line in text.splitlines())
        path.write_text("\n".join(filter(None, lines)) + "\n")
        return path


@contextmanager
def apply_style() -> Iterator[None]:
    """Draw in our style; settings of matplotlib are unchanged afterwards."""
    try:
        from cycler import cycler
        from matplotlib import rc_context
    except ImportError as error:
        raise MissingError("pictures need matplotlib: pip install 'joulecast[paper]'") from error
    colours: Any = {"axes.prop_cycle": cycler(color=[BLUE, GREEN, ORANGE, RED, SKY, GREY])}
    with rc_context({**colours, **_SETTINGS}):
        yield


def draw_process(panel: Any, x: Sequence[float], low: Any, mean: Any, high: Any) -> None:
    panel.fill_between(x, low, high, alpha=0.2, label="95 % interval")
    panel.plot(x, mean, label="Gaussian process mean")
    panel.set(xlabel="Input channels", ylabel="Energy per step (J)")


def _draw_nets(panel: Any, nets: Sequence[Net], x: Sequence[float], y: Any) -> None:
    """Draw a point for each network and each estimator that estimated all of them."""
    for name in ex.list_known(nets):
        colour, marker = STYLES[name]
        panel.plot(x, y(name), marker, color=colour, label=LABELS[name], alpha=0.8)


def draw_agreement(panel: Any, nets: Sequence[Net]) -> None:
    """Draw estimated against measured energy, on logarithmic axes."""
    measured_j = [net["measured_j"] for net in nets]
    _draw_nets(panel, nets, measured_j, lambda name: [net["estimates_j"][name] for net in nets])
    ends = [min(measured_j), max(measured_j)]
    panel.plot(ends, ends, "--", color=GREY, label="no error")
    panel.set(xscale="log", yscale="log", title="Estimated against measured")
    panel.set(xlabel="Measured energy per step (J)", ylabel="Estimated energy per step (J)")


def draw_trend(panel: Any, nets: Sequence[Net], key: str) -> None:
    _draw_nets(panel, nets, [net[key] for net in nets], lambda name: list_net_errors(nets, name))
    panel.axhline(0.0, linestyle="--", color=GREY)
    panel.set(ylabel="Error of the estimate (%)")


def draw_distribution(panel: Any, nets: Sequence[Net]) -> None:
    names = ex.list_known(nets)
    for place, name in enumerate(names):
        errors, (colour, marker) = list_net_errors(nets, name), STYLES[name]
        panel.boxplot([errors], positions=[place], widths=0.5, showfliers=False)
        spread = place + np.linspace(-0.18, 0.18, len(errors))
        panel.plot(spread, errors, marker, color=colour, label=LABELS[name], alpha=0.6)
    panel.axhline(0.0, linestyle="--", color=GREY)
    panel.set_xticks(range(len(names)), [LABELS[name] for name in names])
    panel.set(title="Distribution of errors", ylabel="Error of the estimate (%)")
