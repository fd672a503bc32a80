"""A pruned network: what pruning found, and what people see of it.

A result that was read from a file of ``joulecast prune --out`` shows the same as the command did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulecast.records import (
    Estimate,
    Json,
    Network,
    Setup,
    describe_inference,
    name_step,
    weakest_provenance,
)
from joulecast.records.codec import Record, load_partial, not_stored, omit_default
from joulecast.system.units import format_bytes, format_duration, format_energy, format_share
from joulecast.views.plot_kinds import label_axis
from joulecast.views.report import Block, Plot, Report, Reportable, Table, Text, make_table
from joulecast.views.style import BLUE, GREY
from joulecast.views.words import (
    begin_sentence,
    describe_coverage,
    describe_provenance,
    describe_setup,
    format_with_interval,
    label_provenance,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More rows cannot be read: those that save least are summed.
_MAX_LAYERS = 24
_MAX_NOT_PRUNABLE = 6
# A layer is said to cost more only beyond what rounding explains.
_MORE_ENERGY = 1.02
_BAR_HEIGHT = 0.36


@dataclass(frozen=True)
class LayerChange(Record):
    """A layer before and after pruning."""

    name: str
    kind: str
    channels_before: int  # output channels; 0 if the layer has none of its own
    channels_after: int
    energy_before_j: float  # estimated energy of a step; 0 without a profile
    energy_after_j: float


@dataclass(frozen=True)
class PruningRound(Record):
    """A network that was chosen and measured.

    Attributes:
        estimated_j: What the choice was estimated to take, given what was measured before.
        share: Measured energy as a share of the unpruned network's.
        budget_probability: Probability that it meets the budget when it is measured again.
    """

    counts: Mapping[str, int]
    importance_share: float
    estimated_j: float
    energy_j: float
    duration_s: float
    share: float
    budget_probability: float


@dataclass(frozen=True, kw_only=True)
class PruningResult(Record, Reportable):
    """A network pruned to a budget.

    Attributes:
        budget_probability: Probability that the energy budget is met; None without a profile.
        setup: How the network is trained or run; files do not have it, nor the networks.
        is_built: Whether Joulecast built the net, so that its weights are random.
    """

    net: str
    budget: str
    strategy: str
    objective: str  # quantity that was minimised, energy or flops
    unit: str = ""
    cost_before: float = 0.0  # cost of a step of the original network, in unit
    cost_after: float = 0.0
    before: Estimate | None = None  # estimate of the original network; None without a profile
    after: Estimate | None = None
    budget_probability: float | None = None
    confidence: float = 0.5
    importance_share: float  # share of importance kept, averaged over groups
    candidates: int = 0  # number of candidates whose cost was computed
    counts: Mapping[str, int] = field(default_factory=dict)  # channels left in each group
    layers: tuple[LayerChange, ...]
    not_prunable: tuple[str, ...] = ()  # layers that could not be pruned, with the reason
    steps: int | None = None  # steps of the run that the budget is for
    saved: str | None = None  # folder of the pruned model
    rounds: tuple[PruningRound, ...] = omit_default(())  # what was measured, in order
    setup: Setup = not_stored(Setup())
    is_built: bool = not_stored(False)
    network: Network = not_stored(Network())
    pruned: Network = not_stored(Network())

    def to_dict(self) -> Json:
        data = super().to_dict()
        for one in filter(None, (data.get("before"), data.get("after"))):
            one.update(describe_inference(self.setup, one["energy_j"], one["duration_s"]))
        return data

    @property
    def provenance(self) -> str:
        """Where its energies come from: the weakest of all."""
        found = [one.provenance for one in (self.before, self.after) if one]
        return weakest_provenance(found)

    def report(self) -> Report:
        before, after = self.before, self.after
        first = begin_sentence(self.setup)
        blocks: list[Block] = []
        if before is None or after is None or not before.energy_j:
            blocks.append(Text("Pruned without a profile, so energies are unknown.", "lead"))
        else:
            share = format_share(after.energy_j / before.energy_j)
            new, old = (
                format_with_interval(one.energy_j, one.interval_j, one.level, one.provenance)
                + f" and {format_duration(one.duration_s)}"
                for one in (after, before)
            )
            blocks.append(Text(f"{first} takes {new}, {share} of {old} before.", "lead"))
        if self.budget_probability is not None:
            probability = format_share(self.budget_probability)
            sentence = f"It stays within the budget with a probability of {probability}."
            blocks.append(Text(sentence, "lead"))
        if self.rounds:
            if (self.budget_probability or 0.0) < self.confidence:
                sentence = "No choice was measured within the budget: this one took least."
                blocks.append(Text(sentence, "warning"))
            blocks.append(_tabulate_rounds(self.rounds))
        blocks.append(_tabulate_layers(_merge_layers(self.layers)))
        if after is not None and self.layers:
            blocks.append(self._plot_layers())
        blocks += [Text(note, "note") for note in self._list_notes()]
        if self.saved:
            net = "" if self.is_built else ", net=the original module"
            load = f"joulecast.load_pruned({self.saved!r}{net})"
            blocks.append(Text(f"Saved in {self.saved}; load it with {load}."))
        where = f" for {after.device}" if after else ""
        setup = f"{describe_setup(self.setup)}; " if self.pruned.layers else ""
        title = (
            f"{self.net} pruned to {self.budget}{where}: {setup}strategy {self.strategy}, "
            f"minimising {self.objective}"
        )
        return Report(title, tuple(blocks), self.provenance, "pruning")

    def _list_notes(self) -> list[str]:
        before, after = self.before, self.after
        candidates = f"; {self.candidates:,} candidates were estimated" if self.candidates else ""
        kept = format_share(self.importance_share)
        notes = [f"{kept} of the importance is kept on average{candidates}."]
        if self.objective == "flops" and self.cost_before:
            share = format_share(self.cost_after / self.cost_before)
            notes.insert(0, f"FLOPs are {share} of the original; energies are estimates.")
        if before is not None and after is not None:
            sizes = [format_bytes(one.peak_memory_bytes) for one in (before, after)]
            notes.append(f"Peak memory {' → '.join(sizes)}; estimator {after.estimator}.")
            notes.append(
                f"Provenance: {describe_provenance(after.provenance)}; "
                f"{describe_coverage(after.provenance, after.covers)}."
            )
            if after.unseen_share > 0:
                notes.append(
                    f"{format_share(after.unseen_share)} of the energy is extrapolated to layers "
                    "that were never measured on this device, and so is the choice of channels: "
                    "on the device, `joulecast profile` measures them."
                )
        if any(one.energy_after_j > _MORE_ENERGY * one.energy_before_j for one in self.layers):
            notes.append(
                "A layer may take more energy with fewer channels, which run less efficiently."
            )
        if self.is_built:
            notes.append(
                "Joulecast built this net: its weights are random, and so is their importance."
            )
        if self.steps and after is not None:
            total = format_energy(after.energy_j * self.steps)
            steps = f"{self.steps:,} {name_step(self.setup)}s"
            notes.append(f"{steps} take {total}{label_provenance(after.provenance)}.")
        notes += [f"Not pruned: {reason}." for reason in self.not_prunable[:_MAX_NOT_PRUNABLE]]
        more = len(self.not_prunable) - _MAX_NOT_PRUNABLE
        return notes + ([f"Not pruned: {more} more, see --json."] if more > 0 else [])

    def _plot_layers(self) -> Plot:
        rows = _merge_layers(self.layers)[::-1]

        def draw(figure: Figure) -> None:
            axes = figure.add_subplot()
            for name, sign, colour in (("before", 1, GREY), ("after", -1, BLUE)):
                places = [place + sign * _BAR_HEIGHT / 2 for place in range(len(rows))]
                energies = [getattr(row, f"energy_{name}_j") for row in rows]
                axes.barh(places, energies, _BAR_HEIGHT, color=colour, label=name)
            axes.set_yticks(range(len(rows)), [row.name for row in rows])
            label_axis(axes.xaxis, f"Energy per {name_step(self.setup)}", "J")
            axes.legend()

        return Plot(
            "layers",
            f"Energy by layer{label_provenance(self.provenance)}",
            draw,
            "Two bars for each layer, before and after pruning, in the order of the network.",
            _tabulate_layers(self.layers),
            (7.0, 1.2 + 0.3 * len(rows)),
        )


def read_pruning(data: Json, what: str = "the pruning") -> PruningResult:
    """Return the pruning that ``joulecast prune --out`` wrote.

    Raises:
        FileError: The data is something else; ``what`` names it.
    """
    return load_partial(PruningResult, data, what)


def _merge_layers(layers: Sequence[LayerChange]) -> list[LayerChange]:
    """Return the layers in order; in long nets those that save most, and the rest as one."""
    if len(layers) <= _MAX_LAYERS:
        return list(layers)
    ranked = sorted(layers, key=lambda one: one.energy_after_j - one.energy_before_j)
    top = set(map(id, ranked[:_MAX_LAYERS]))
    rest = [one for one in layers if id(one) not in top]
    sums = (sum(one.energy_before_j for one in rest), sum(one.energy_after_j for one in rest))
    other = LayerChange(f"other {len(rest)} layers", "", 0, 0, *sums)
    return [*(one for one in layers if id(one) in top), other]


def _tabulate_rounds(rounds: Sequence[PruningRound]) -> Table:
    rows = [
        (
            str(number),
            format_energy(one.estimated_j),
            format_energy(one.energy_j),
            format_share(one.share),
            format_share(one.budget_probability),
            format_share(one.importance_share),
        )
        for number, one in enumerate(rounds, start=1)
    ]
    columns = (">estimated", ">measured", ">share", ">within the budget", ">importance kept")
    return make_table(("choice", *columns), rows)


def _tabulate_layers(layers: Sequence[LayerChange]) -> Table:
    rows = []
    for one in layers:
        old, new = one.channels_before, one.channels_after
        channels = "" if not old else str(old) if old == new else f"{old} → {new}"
        share = one.energy_after_j / one.energy_before_j if one.energy_before_j else 1.0
        energies = (format_energy(one.energy_before_j), format_energy(one.energy_after_j))
        rows.append((one.name, one.kind, channels, *energies, format_share(share)))
    return make_table(("layer", "kind", ">channels", ">before", ">after", ">share"), rows)
