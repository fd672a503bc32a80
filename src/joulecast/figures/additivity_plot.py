"""Plot whether layer energies add up to the measured energy of the whole network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecast.figures.marks import Bars
from joulecast.figures.plot import (
    Axis,
    Caption,
    Panel,
    Plot,
    make_plot,
    needs_log_axis,
    require_data,
)
from joulecast.units import format_energy
from joulecast.views.style import BLUE, COLOURS, MEASURED, make_tints

# A stack of more layers is unreadable: the smallest are merged.
MAX_LAYERS = 8
# Bars of one network fill this share of its category, each with a small gap.
_GROUP_SHARE, _BAR_SHARE = 0.8, 0.94


@dataclass(frozen=True)
class NetworkBreakdown:
    """A network measured as a whole, and estimates of its layers.

    Attributes:
        layer_energies_j: Estimated energy by name of the layer, in order.
        neuralpower_j: NeuralPower's sum over forward, backward and update, if known.
        measured_sd_j: Standard deviation of repeated measurements.
    """

    net: str
    measured_j: float
    layer_energies_j: Mapping[str, float]
    neuralpower_j: float | None = None
    measured_sd_j: float = 0.0


def plot_additivity(networks: Sequence[NetworkBreakdown], caption: Caption = Caption()) -> Plot:
    """Plot the stacked layers of each network beside its measurement and NeuralPower's sum.

    Networks of very different size are shown as shares of their measurement.
    """
    require_data(networks, "measured network")
    as_share = needs_log_axis(network.measured_j for network in networks)
    scales = [100.0 / network.measured_j if as_share else 1.0 for network in networks]
    has_neuralpower = any(network.neuralpower_j is not None for network in networks)
    width = _GROUP_SHARE / (3 if has_neuralpower else 2)
    marks = (*_stack_layers(networks, scales, width), _make_measured(networks, scales, width))
    if has_neuralpower:
        marks = (*marks, _make_neuralpower(networks, scales, width))
    x = Axis("", categories=tuple(network.net for network in networks))
    y = Axis("Energy per step", "J", has_si_prefixes=True, low=0.0)
    if as_share:
        y = Axis("Share of measurement", "%", low=0.0)
    return make_plot((Panel(x, y, marks),), caption, "Sum of layers and whole network")


def _stack_layers(
    networks: Sequence[NetworkBreakdown], scales: Sequence[float], width: float
) -> tuple[Bars, ...]:
    series_of = _merge_small_layers(networks)
    names = sorted(dict.fromkeys(series_of.values()), key=lambda name: name not in series_of)
    tints = dict(zip(names, make_tints(BLUE, len(names)), strict=True))
    tops = [0.0] * len(networks)
    bars = []
    for name in names:
        values, bases, hover_texts = [], [], []
        for index, network in enumerate(networks):
            energies_j = network.layer_energies_j.items()
            shown = {layer: j for layer, j in energies_j if series_of[layer] == name}
            bases.append(tops[index])
            values.append(sum(shown.values()) * scales[index])
            tops[index] += values[-1]
            lines = (f"{layer}: {format_energy(j)}" for layer, j in shown.items())
            hover_texts.append("\n".join([network.net, *lines]))
        bars.append(
            Bars(
                name,
                _place_bars(range(len(networks)), 0, width),
                tuple(values),
                tints[name],
                _BAR_SHARE * width,
                tuple(bases),
                hover_texts=tuple(hover_texts),
            )
        )
    return tuple(bars)


def _make_measured(
    networks: Sequence[NetworkBreakdown], scales: Sequence[float], width: float
) -> Bars:
    scaled = list(zip(networks, scales, strict=True))
    return Bars(
        "measured network",
        _place_bars(range(len(networks)), 1, width),
        tuple(network.measured_j * scale for network, scale in scaled),
        MEASURED,
        _BAR_SHARE * width,
        low=tuple(
            (network.measured_j - network.measured_sd_j) * scale for network, scale in scaled
        ),
        high=tuple(
            (network.measured_j + network.measured_sd_j) * scale for network, scale in scaled
        ),
        hover_texts=tuple(f"{n.net}: measured {format_energy(n.measured_j)}" for n in networks),
    )


def _make_neuralpower(
    networks: Sequence[NetworkBreakdown], scales: Sequence[float], width: float
) -> Bars:
    sums_j = {i: n.neuralpower_j for i, n in enumerate(networks) if n.neuralpower_j is not None}
    return Bars(
        "neuralpower",
        _place_bars(sums_j, 2, width),
        tuple(value * scales[index] for index, value in sums_j.items()),
        COLOURS["neuralpower"],
        _BAR_SHARE * width,
        hover_texts=tuple(
            f"{networks[index].net}\nneuralpower: {format_energy(value)}, "
            f"error {100 * (value / networks[index].measured_j - 1):+.1f} %"
            for index, value in sums_j.items()
        ),
    )


def _place_bars(
    categories: Sequence[int] | Mapping[int, float], slot: int, width: float
) -> tuple[float, ...]:
    """Return the centres of the bars in one slot of each category."""
    return tuple(index - _GROUP_SHARE / 2 + (slot + 0.5) * width for index in categories)


def _merge_small_layers(networks: Sequence[NetworkBreakdown]) -> dict[str, str]:
    """Return the series of each layer: its own name, or one for all small layers."""
    totals: dict[str, float] = {}
    for network in networks:
        for layer, energy_j in network.layer_energies_j.items():
            totals[layer] = totals.get(layer, 0.0) + energy_j / network.measured_j
    large = sorted(totals, key=lambda layer: -totals[layer])[: MAX_LAYERS - 1]
    if len(totals) <= MAX_LAYERS:
        large = list(totals)
    merged = f"{len(totals) - len(large)} smaller layers"
    return {layer: layer if layer in large else merged for layer in totals}
