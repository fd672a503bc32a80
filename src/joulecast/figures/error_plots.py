"""How good estimates are: beside what was measured, family by family, and how many are how good.

Takes ``Judged`` rows, one for each net and estimator; gives pictures. An error is a share
of what was measured, in percent: above zero is too much.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.figures.marks import Bars, Dots, Line, Mark
from joulecast.figures.picture import Axis, Panel, Picture, need_some, pick_bounds, spans_decades
from joulecast.figures.style import FAINT, INK, choose_colours, choose_shapes
from joulecast.units import format_energy


@dataclass(frozen=True)
class Judged:
    """An estimate of a net's step beside what the net took.

    Attributes:
        interval_j: Low and high end of the estimate, where it has any.
        family: What the net is a member of.
    """

    net: str
    estimator: str
    measured_j: float
    estimated_j: float
    interval_j: tuple[float, float] | None = None
    family: str = ""

    def __post_init__(self) -> None:
        if not self.measured_j > 0:
            taken = f"{self.net} took {self.measured_j} J"
            raise InputError(
                f"{taken}: an error is a share of what was measured, so leave that net out"
            )

    @property
    def error_percent(self) -> float:
        """How far off the estimate is."""
        return 100.0 * (self.estimated_j / self.measured_j - 1.0)

    @property
    def note(self) -> str:
        """The net in words."""
        doubt = ""
        if self.interval_j is not None:
            doubt = " ({} to {})".format(*map(format_energy, self.interval_j))
        return (
            f"{self.net}\n{self.estimator}: {format_energy(self.estimated_j)}{doubt}\n"
            f"took {format_energy(self.measured_j)}, off by {self.error_percent:+.1f} %"
        )


def mape_percent(rows: Iterable[Judged]) -> float:
    """Mean absolute error."""
    return statistics.fmean(abs(row.error_percent) for row in rows)


def draw_agreement(
    rows: Sequence[Judged],
    *,
    title: str = "Estimated and measured energy of a step",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """Every net as a point, estimated over measured; on the line an estimate is right."""
    need_some(rows, "the judged nets")
    values = [value for row in rows for value in (row.measured_j, row.estimated_j)]
    log = spans_decades(values)
    low, high = pick_bounds(values, log)
    x = Axis("measured energy of a step", "J", True, log, low, high)
    y = Axis("estimated energy of a step", "J", True, log, low, high)
    diagonal = Line("estimated = measured", (low, high), (low, high), FAINT, dashed=True)
    groups = _group(rows, lambda row: row.estimator)
    colours, shapes = choose_colours(groups), choose_shapes(groups)
    marks: list[Mark] = [diagonal]
    for name, group in groups.items():
        ends = [row.interval_j or (row.estimated_j,) * 2 for row in group]
        marks.append(
            Dots(
                name,
                tuple(row.measured_j for row in group),
                tuple(row.estimated_j for row in group),
                colours[name],
                # On a logarithmic axis nothing lies at zero.
                low=tuple(max(end[0], low) if log else end[0] for end in ends),
                high=tuple(end[1] for end in ends),
                notes=tuple(row.note for row in group),
                shape=shapes[name],
            )
        )
    return Picture(title, (Panel(x, y, tuple(marks), square=True),), about, provenance)


def draw_errors(
    rows: Sequence[Judged],
    *,
    noise_percent: Mapping[str, float] | None = None,
    title: str = "Mean error by family",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """A bar for each family and estimator, and the line below which nobody can get.

    Args:
        rows: The judged nets.
        noise_percent: For each family how far two measurements of a net lie apart.
        title: What is shown.
        about: A smaller line under it.
        provenance: What the numbers rest on.
    """
    need_some(rows, "the judged nets")
    families = list(dict.fromkeys(row.family for row in rows))
    groups = _group(rows, lambda row: row.estimator)
    colours = choose_colours(groups)
    width = 0.8 / len(groups)
    marks: list[Mark] = []
    for place, (name, group) in enumerate(groups.items()):
        of_family = _group(group, lambda row: row.family)
        errors = {families.index(key): mape_percent(own) for key, own in of_family.items()}
        marks.append(
            Bars(
                name,
                tuple(at - 0.4 + (place + 0.5) * width for at in errors),
                tuple(errors.values()),
                colours[name],
                0.92 * width,
                notes=tuple(f"{families[at]}, {name}: {e:.1f} %" for at, e in errors.items()),
                texts=tuple(
                    f"{error:.2g}" if error < 10 else f"{error:.0f}" for error in errors.values()
                ),
            )
        )
    for family, floor in (noise_percent or {}).items():
        if family in families:
            at = families.index(family)
            marks.append(Line("two measurements", (at - 0.45, at + 0.45), (floor,) * 2, INK, True))
    x = Axis("", labels=tuple(families))
    y = Axis("mean absolute error", "%", low=0.0)
    return Picture(title, (Panel(x, y, tuple(marks)),), about, provenance)


def draw_error_levels(
    rows: Sequence[Judged],
    *,
    noise_percent: Mapping[str, float] | None = None,
    title: str = "Mean error by family",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """A row for each family, a point for each estimator on a logarithmic axis: for many of both.

    Args:
        rows: The judged nets.
        noise_percent: For each family how far two measurements of a net lie apart.
        title: What is shown.
        about: A smaller line under it.
        provenance: What the numbers rest on.
    """
    need_some(rows, "the judged nets")
    families = list(dict.fromkeys(row.family for row in rows))
    # The first family is the top row.
    places = {name: float(len(families) - 1 - at) for at, name in enumerate(families)}
    noise = {name: e for name, e in (noise_percent or {}).items() if name in places and e > 0}
    groups = _group(rows, lambda row: row.estimator)
    errors = {name: _average(group) for name, group in groups.items()}
    positive = [e for found in errors.values() for e in found.values() if e > 0]
    low, high = pick_bounds([*positive, *noise.values()] or [1.0], log=True)
    colours, shapes = choose_colours(groups), choose_shapes(groups)
    marks: list[Mark] = []
    for name, found in errors.items():
        marks.append(
            Dots(
                name,
                tuple(max(error, low) for error in found.values()),
                tuple(places[family] for family in found),
                colours[name],
                notes=tuple(f"{family}, {name}: {e:.1f} %" for family, e in found.items()),
                shape=shapes[name],
            )
        )
    for family, floor in noise.items():
        ends = (places[family] - 0.32, places[family] + 0.32)
        marks.append(Line("two measurements", (floor, floor), ends, INK))
    x = Axis("mean absolute error", "%", log=True, low=low, high=high)
    y = Axis("", labels=tuple(reversed(families)))
    return Picture(title, (Panel(x, y, tuple(marks)),), about, provenance)


def draw_error_shares(
    rows: Sequence[Judged],
    *,
    title: str = "How many nets are estimated how well",
    about: str = "",
    provenance: str = "measured",
) -> Picture:
    """For each error the share of nets that are off by no more; high and far left is best."""
    need_some(rows, "the judged nets")
    groups = _group(rows, lambda row: row.estimator)
    colours = choose_colours(groups)
    errors = {
        name: sorted(abs(row.error_percent) for row in group) for name, group in groups.items()
    }
    largest = max(found[-1] for found in errors.values())
    log = spans_decades([largest, *(statistics.median(found) for found in errors.values())])
    start = min([1.0, *(statistics.median(found) / 4 for found in errors.values())]) if log else 0.0
    marks = []
    for name, group in groups.items():
        ordered = sorted(group, key=lambda row: abs(row.error_percent))
        x = (start, *(max(start, abs(row.error_percent)) for row in ordered), largest)
        y = (0.0, *(100.0 * (i + 1) / len(ordered) for i in range(len(ordered))), 100.0)
        notes = (name, *(row.note for row in ordered), name)
        marks.append(Line(name, x, y, colours[name], stepped=True, notes=notes))
    across = Axis("absolute error", "%", log=log, low=start, high=1.02 * largest or 1.0)
    up = Axis("nets with at most this error", "%", low=0.0, high=103.0)
    return Picture(title, (Panel(across, up, tuple(marks)),), about, provenance)


def _average(rows: Iterable[Judged]) -> dict[str, float]:
    """The mean error of each family."""
    return {name: mape_percent(own) for name, own in _group(rows, lambda row: row.family).items()}


def _group(rows: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    groups: dict[str, list[Judged]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
