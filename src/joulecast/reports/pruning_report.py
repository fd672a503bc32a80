"""Report a pruning: what a step takes before and after, by layer."""

from __future__ import annotations

from joulecast.records import weakest_provenance
from joulecast.units import format_bytes, format_duration, format_energy, format_share
from joulecast.uses.prune import LayerChange, PruningSummary
from joulecast.views.plot_kinds import ChangedLayer, plot_layer_changes
from joulecast.views.report import Block, Heading, Report, Table, Text, list_facts, make_table
from joulecast.views.words import format_with_interval


def report_pruning(result: PruningSummary) -> Report:
    """Return the report of a pruning."""
    provenance = _find_provenance(result)
    where = f" for {result.after.device}" if result.after else ""
    layers = [
        ChangedLayer(one.name, one.energy_before_j, one.energy_after_j) for one in result.layers
    ]
    blocks: tuple[Block, ...] = (
        Text(_describe_result(result), "lead"),
        list_facts(_list_key_figures(result)),
        *(Text(note) for note in _list_notes(result)),
        Heading("Before and after, by layer"),
        *([plot_layer_changes(layers, provenance)] if layers else []),
        _list_layers(result),
        Heading("How it was made"),
        _list_facts(result),
    )
    title = f"{result.net} pruned to {result.budget}{where}"
    return Report(title, blocks, provenance, "pruning")


def _find_provenance(result: PruningSummary) -> str:
    found = [one.provenance for one in (result.before, result.after) if one]
    if result.measured:
        found += [result.measured.before.provenance, result.measured.after.provenance]
    return weakest_provenance(found)


def _describe_result(result: PruningSummary) -> str:
    before, after = result.before, result.after
    if before is None or after is None or not before.energy_j:
        return "Pruned without a profile, so energies are unknown."
    share = format_share(after.energy_j / before.energy_j)
    energy = format_with_interval(after.energy_j, after.interval_j, after.level, after.provenance)
    text = f"A step takes {energy}, {share} of what it took before."
    if result.budget_probability is not None:
        probability = format_share(result.budget_probability)
        text += f" It stays within the budget with a probability of {probability}."
    return text


def _list_key_figures(result: PruningSummary) -> tuple[tuple[str, str], ...]:
    before, after = result.before, result.after
    if before is None or after is None:
        return ()
    return (
        ("Before", format_energy(before.energy_j)),
        ("After", format_energy(after.energy_j)),
        ("Duration", f"{format_duration(before.duration_s)} → {format_duration(after.duration_s)}"),
        (
            "Memory",
            f"{format_bytes(before.peak_memory_bytes)} → {format_bytes(after.peak_memory_bytes)}",
        ),
    )


def _list_layers(result: PruningSummary) -> Table:
    rows = tuple(
        (
            one.name,
            one.kind,
            _format_channels(one),
            format_energy(one.energy_before_j),
            format_energy(one.energy_after_j),
            format_share(one.energy_after_j / one.energy_before_j) if one.energy_before_j else "–",
        )
        for one in result.layers
    )
    columns = ("layer", "kind", ">channels", ">before", ">after", ">share")
    return make_table(columns, rows, "Channels and estimated energy of a step, by layer")


def _format_channels(one: LayerChange) -> str:
    if not one.channels_before:
        return ""
    if one.channels_before == one.channels_after:
        return str(one.channels_before)
    return f"{one.channels_before} → {one.channels_after}"


def _list_notes(result: PruningSummary) -> tuple[str, ...]:
    share = format_share(result.importance_share)
    notes = [f"{share} of the importance is kept on average."]
    if result.measured is not None:
        before, after = result.measured.before, result.measured.after
        verdict = "within" if result.measured.within_budget else "above"
        notes.append(
            f"Measured ({after.provenance}): a step takes {format_energy(after.energy_j)} instead "
            f"of {format_energy(before.energy_j)}, {verdict} the budget."
        )
    notes += [f"Not pruned: {reason}." for reason in result.not_prunable]
    return tuple(notes)


def _list_facts(result: PruningSummary) -> Table:
    after = result.after
    pairs = [
        ("Network", result.net),
        ("Budget", result.budget),
        ("Strategy", result.strategy),
        ("Minimised", result.objective),
    ]
    if after is not None:
        unseen = format_share(after.unseen_share) if after.unseen_share else ""
        pairs += [
            ("Device", after.device),
            ("Estimator", after.estimator),
            ("Provenance", after.provenance),
            ("Meter covers", after.covers),
            ("Extrapolated to layers never measured", unseen),
        ]
    return list_facts(pairs)
