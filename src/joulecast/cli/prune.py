"""``joulecast prune NET``: cuts a net's channels until it fits an energy budget."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from joulecast.api.profiles import resolve_profile
from joulecast.api.pruning import (
    Shrunk,
    check_same_device,
    make_folder,
    make_look,
    measure_both,
    shrink_net,
)
from joulecast.cli import options
from joulecast.cli.show import (
    make_console,
    mark_basis,
    print_json,
    print_notes,
    print_table,
    say_basis,
)
from joulecast.errors import InputError
from joulecast.estimators import DEFAULT
from joulecast.records import Estimate, Observation, Setup
from joulecast.units import format_duration, format_energy, format_share, parse_share
from joulecast.uses.prune import STRATEGIES, EnergyBudget, Pruning, parse_budget
from joulecast.uses.prune.result import LayerChange
from joulecast.uses.prune.run import GUIDES

Json = dict[str, Any]
_TOP_LAYERS = 24
_MOST_WHOLE = 6
_EVEN = 0.5


def read_floor(ctx: Any, param: Any, value: Any) -> float:
    """Of a callback of click: ``10%`` → 0.1; ``8`` → 8 channels."""
    text = str(value).strip()
    if text.isdigit():
        return float(text)
    try:
        share = parse_share(text) if text.endswith("%") else 1.0
    except InputError:
        share = 1.0
    if share == 1.0:
        raise click.BadParameter(f"{text!r} is no floor: give one like 10% or 8", ctx, param)
    return share


@click.command()
@click.argument("net")
@options.net_options
@click.option(
    "--budget",
    required=True,
    metavar="50%|5J|2Wh",
    help="A share, or energy of a step; with --steps, of the whole run.",
)
@click.option("--steps", type=click.IntRange(1), help="Steps of the run that --budget is for.")
@click.option("--epochs", type=click.IntRange(1), help="Instead of --steps: passes over --samples.")
@click.option("--samples", type=click.IntRange(1), help="Samples of an epoch.")
@click.option("--device", default="", help="Whose profile answers.  [default: this machine's]")
@options.estimator
@click.option(
    "--strategy", type=click.Choice(list(STRATEGIES)), default="marginal", show_default=True
)
@click.option(
    "--guide",
    type=click.Choice(GUIDES),
    default="estimate",
    show_default=True,
    help="What is cut by; flops is for comparing.",
)
@click.option(
    "--confidence",
    default="0.5",
    show_default=True,
    callback=options.read_share,
    help="How probable keeping the budget shall be.",
)
@click.option(
    "--importance",
    type=click.Choice(("magnitude", "taylor")),
    default="magnitude",
    show_default=True,
    help="Which channels matter.",
)
@click.option(
    "--floor",
    default="10%",
    show_default=True,
    callback=read_floor,
    metavar="10%|8",
    help="What stays of every group of channels.",
)
@click.option("--keep", multiple=True, metavar="LAYER", help="Layers that stay whole, like 'fc*'.")
@click.option("--multiple", type=click.IntRange(1), default=1, help="Channels by so many.")
@click.option("--seed", type=int, default=0, help="Of random candidates.")
@click.option("--out", metavar="DIR", help="Write the smaller net: weights and architecture.")
@click.option(
    "--probe", is_flag=True, help="Look at the layers that are left, on the device --on, and go on."
)
@click.option("--measure", is_flag=True, help="Train both on the device --on, under the meter.")
@options.on
@options.meter
@options.store
@options.json
def prune(
    asked: options.Asked,
    budget: str,
    steps: int | None,
    epochs: int | None,
    samples: int | None,
    device: str,
    out: str | None,
    probe: bool,
    measure: bool,
    on: str,
    meter: str,
    store: str | None,
    json: bool,
    **choice: Any,
) -> None:
    """Cut channels of NET, least important first, until a step of it keeps a budget.

    What depends on each other is cut together, so that the smaller net still runs and trains. The
    estimate says which channels are worth their joules; no channel is cut that saves nothing.
    """
    length = options.read_length(steps, epochs, samples)
    found, setup = asked.resolve()
    steps = length.count_steps(setup.batch) if length.is_run else None
    wanted = parse_budget(budget, steps)
    _check_choice(probe, device, **choice)
    if out:
        make_folder(out)
    say = partial(click.echo, err=True)
    look = make_look(setup, on, meter, store) if probe else None
    profile = look((found.network,)) if look else resolve_profile(device, store, say)
    if measure:
        check_same_device(profile, on, meter)
    shrunk = shrink_net(found, setup, wanted, profile, source=asked.net, look=look, **choice)
    seen = measure_both(shrunk, setup, on, meter) if measure else None
    place = shrunk.save(out) if out else ""
    if json:
        print_json(describe(shrunk, seen, place, steps))
    else:
        _print_pruning(shrunk, setup, seen, place, steps)


def _check_choice(probe: bool, device: str, **choice: Any) -> None:
    """What cannot be meant together."""
    if probe and (device or choice["guide"] != "estimate" or choice["estimator"] != DEFAULT):
        raise click.UsageError(
            "--probe asks the device --on itself: leave out --device, --guide and --estimator"
        )
    if choice["guide"] == "flops" and choice["confidence"] != _EVEN:
        raise click.UsageError(
            "FLOPs are counted, not estimated: leave --confidence out, or let the estimate guide"
        )


def describe(
    shrunk: Shrunk, seen: tuple[Observation, Observation] | None, place: str, steps: int | None
) -> Json:
    """A pruning for programs."""
    data: Json = {**shrunk.pruning.to_dict(), "steps": steps, "out": place or None}
    if seen is not None:
        before, after = seen
        data["measured"] = {
            "before": _describe_seen(before),
            "after": _describe_seen(after),
            "share": _share(before, after),
            "kept": is_kept(shrunk.pruning.budget, before, after),
        }
    return data


def is_kept(budget: EnergyBudget, before: Observation, after: Observation) -> bool:
    """Whether what was measured keeps the budget."""
    if before.energy_j is None or after.energy_j is None:
        raise InputError("the meter gave no joules: choose another with --meter")
    return after.energy_j <= budget.limit(before.energy_j)


def _share(before: Observation, after: Observation) -> float:
    return (after.energy_j or 0.0) / (before.energy_j or 1.0)


def _describe_seen(seen: Observation) -> Json:
    keys = ("energy_j", "energy_sd_j", "duration_s", "count", "meter", "covers", "provenance")
    return {key: getattr(seen, key) for key in keys}


# ---------------------------------------------------------------------------------------------
# For people


def _print_pruning(
    shrunk: Shrunk,
    setup: Setup,
    seen: tuple[Observation, Observation] | None,
    place: str,
    steps: int | None,
) -> None:
    console = make_console()
    done = shrunk.pruning
    before, after = done.before, done.after
    assert before is not None and after is not None, "the command has a profile"
    console.print(
        f"Pruning {done.network.name} for {before.device}: {options.say_setup(setup)}; to "
        f"{done.budget}, {done.strategy} by {_say_guide(done)}\n"
    )
    console.print(f"A step takes {_say_estimate(after)},", style="bold")
    share = format_share(after.energy_j / before.energy_j)
    console.print(f"{share} of {_say_estimate(before)} before.", style="bold")
    console.print(_say_odds(done) + "\n", style="bold")
    columns = ("layer", "kind", ">channels", ">before", ">after", ">left")
    print_table(console, columns, map(_show_layer, _choose_layers(done.layers)))
    print_notes(console, _list_notes(shrunk, after, steps))
    if seen is not None:
        console.print("\n" + _say_measured(done, *seen), style="bold")
    if place:
        console.print(f"Written to {place}; joulecast.load_pruned({place!r}) makes it again.")


def _say_guide(done: Pruning) -> str:
    return "the estimate" if done.guide == "estimate" else "FLOPs"


def _say_estimate(answer: Estimate) -> str:
    low, high = (format_energy(end) for end in answer.interval_j)
    return (
        f"{format_energy(answer.energy_j)}{mark_basis(answer.basis)} ({low} to {high} with "
        f"{100 * answer.level:g} %) and {format_duration(answer.duration_s)}"
    )


def _say_odds(done: Pruning) -> str:
    if done.kept_probability is None:
        return "Nobody estimated whether the budget is kept."
    return f"The budget is kept with a probability of {format_share(done.kept_probability)}."


def _choose_layers(layers: tuple[LayerChange, ...]) -> list[LayerChange]:
    """Layers in order; of long nets those that change most."""
    if len(layers) <= _TOP_LAYERS:
        return list(layers)
    ranked = sorted(layers, key=lambda one: one.energy_after_j - one.energy_before_j)
    top = set(map(id, ranked[:_TOP_LAYERS]))
    rest = [one for one in layers if id(one) not in top]
    sums = (sum(one.energy_before_j for one in rest), sum(one.energy_after_j for one in rest))
    other = LayerChange(f"other {len(rest)} layers", "", 0, 0, *sums)
    return [*(one for one in layers if id(one) in top), other]


def _show_layer(one: LayerChange) -> tuple[str, ...]:
    channels = f"{one.channels_before} → {one.channels_after}" if one.channels_before else ""
    if one.channels_before == one.channels_after and channels:
        channels = str(one.channels_before)
    left = one.energy_after_j / one.energy_before_j if one.energy_before_j else 1.0
    energies = (format_energy(one.energy_before_j), format_energy(one.energy_after_j))
    return (one.name, one.kind, channels, *energies, format_share(left))


def _list_notes(shrunk: Shrunk, after: Estimate, steps: int | None) -> list[str]:
    done = shrunk.pruning
    notes = [
        f"Groups keep {format_share(done.importance_share)} of their importance on average; "
        f"{done.looked_at:,} candidates were looked at.",
        f"Basis: {say_basis(after.basis)}; the meter covers {after.covers}.",
    ]
    if after.unseen_share > 0:
        share = format_share(after.unseen_share)
        notes.append(
            f"{share} of the energy is in layers that were never measured so: a guess, and what is "
            "cut is one too. With the device at hand, --probe looks at them first."
        )
    if any(one.energy_after_j > 1.02 * one.energy_before_j for one in done.layers):
        notes.append("A layer that costs more than before reads fewer channels in a slower way.")
    if done.guide == "flops":
        cost = format_share(done.cost_after / done.cost_before)
        notes.insert(0, f"FLOPs are {cost} of what they were; joules are what the estimate says.")
    if not shrunk.source:
        notes.append("Joulecast built this net: its weights are fresh, and so is what matters.")
    if steps:
        total = format_energy(after.energy_j * steps)
        notes.append(f"{steps:,} steps take {total}{mark_basis(after.basis)}.")
    notes += [f"Stays whole: {words}." for words in done.whole[:_MOST_WHOLE]]
    if len(done.whole) > _MOST_WHOLE:
        notes.append(f"Stays whole: {len(done.whole) - _MOST_WHOLE} more, see --json.")
    return notes


def _say_measured(done: Pruning, before: Observation, after: Observation) -> str:
    verdict = "kept" if is_kept(done.budget, before, after) else "missed"
    energies = [_say_seen(one) for one in (after, before)]
    ran = "Trained" if after.trial.setup.phase == "train" else "Run"
    return (
        f"{ran} under the meter{mark_basis(after.provenance)}: {energies[0]} a step instead of "
        f"{energies[1]}, {format_share(_share(before, after))}: the budget is {verdict}."
    )


def _say_seen(seen: Observation) -> str:
    """Joules, and how far rounds differ."""
    spread = f" ± {format_energy(seen.energy_sd_j)}" if seen.energy_sd_j else ""
    return format_energy(seen.energy_j or 0.0) + spread
