"""``joulecast estimate NET``: what training a net will cost, before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from joulecast.api.measuring import probe_net
from joulecast.api.profiles import resolve_profile
from joulecast.cli import options
from joulecast.cli.bill import Bill, read_bill
from joulecast.cli.show import (
    join_ends,
    make_bar,
    make_console,
    mark_basis,
    print_json,
    print_notes,
    print_table,
    say_basis,
)
from joulecast.errors import InputError
from joulecast.estimators import estimate_network, renew_estimate
from joulecast.records import Estimate, LayerEstimate, Network, Profile, Setup
from joulecast.units import (
    battery_share,
    format_bytes,
    format_duration,
    format_energy,
    format_kwh,
    format_mass,
    format_money,
    format_share,
    parse_energy,
    parse_share,
)
from joulecast.uses.plan.charge import Finish, will_finish

Json = dict[str, Any]
TOP_LAYERS = 8
_MISSED = {"flops": "FLOPs", "bytes": "bytes", "params": "parameters"}
_MUCH_MISSED = 0.01
_MUCH_WAITING = 0.05
_MUCH_DOUBT = 0.05
_MUCH_UNTIMED = 0.3
_NEARLY = 0.999
_FEW_SETUPS = 3
# What is said from which probability on; nothing is certain.
_FINISHES = {
    f"Almost certainly (above {format_share(_NEARLY)})": _NEARLY,
    "Yes, with {share}": 0.975,
    "Probably, with {share}": 0.5,
    "Probably not, with {share}": 0.025,
    "No, with {share}": 1 - _NEARLY,
    f"Almost certainly not (below {100 * (1 - _NEARLY):.1f} %)": 0.0,
}
_NOT_INCLUDED = "Not included: loading data, evaluation and checkpoints."


@dataclass(frozen=True)
class Wishes:
    """What a person wants beside joules: how many steps, and in which other units."""

    steps: int
    grid: str | None
    price: str | None
    battery: str | None
    charge: str | None = None
    reserve: str | None = None
    rest_w: float | None = None

    @property
    def bill(self) -> Bill:
        """Of all steps, in these units."""
        return read_bill(self.steps, self.grid, self.price)

    def ask_battery(self, answer: Estimate) -> Finish | None:
        """Whether it finishes on the battery, where one was named."""
        if self.battery is None:
            return None
        shares = (parse_share(self.charge or "100%"), parse_share(self.reserve or "0%"))
        battery_j, rest_w = parse_energy(self.battery), self.rest_w or 0.0
        return will_finish(answer, self.steps, battery_j, *shares, rest_w)


@click.command()
@click.argument("net")
@options.net_options
@click.option("--device", default="", help="Whose profile answers.  [default: this machine's]")
@click.option("--profile", metavar="FILE", help="A profile's file, instead of --device.")
@options.estimator
@click.option(
    "--probe", is_flag=True, help="Look at the net's new layers first, on the device --on."
)
@options.on
@options.meter
@click.option("--seen", metavar="12J/100", help="What the run's first steps took: joules/steps.")
@click.option(
    "--level",
    default="95%",
    show_default=True,
    callback=options.read_share,
    help="How probable the interval shall be.",
)
@click.option("--steps", type=click.IntRange(1), help="Steps of the whole training.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over --samples.")
@click.option("--samples", type=click.IntRange(1), help="Samples of an epoch.")
@click.option("--battery", metavar="15Wh", help="Also say whether it finishes on this battery.")
@click.option("--charge", metavar="60%", help="What of --battery is there.  [default: 100%]")
@click.option("--reserve", metavar="10%", help="What of --battery shall be left.  [default: 0%]")
@click.option(
    "--rest-w",
    type=click.FloatRange(0),
    help="Watts of the machine that the meter does not see, for --battery.",
)
@click.option("--grid", metavar="400|de", help="Also say CO2e: grams a kWh, or a region.")
@click.option("--price", metavar="0.30EUR", help="Also say what it costs: money a kWh.")
@options.store
@options.json
def estimate(
    asked: options.Asked,
    device: str,
    profile: str | None,
    estimator: str,
    probe: bool,
    on: str,
    meter: str,
    seen: str | None,
    level: float,
    store: str | None,
    json: bool,
    **wishes: Any,
) -> None:
    """Say what training NET will cost in joules, with an interval, before it runs.

    A step is forward, loss, backward and update on a batch that is already there.
    """
    source = _choose_source(click.get_current_context(), device, profile)
    found, setup = asked.resolve()
    wanted = read_wishes(setup, **wishes)
    if probe:
        _check_probe(click.get_current_context(), source, estimator)
        known = probe_net(found, setup, {"on": on, "meter": meter, "rounds": 1}, store, estimator)
    else:
        known = resolve_profile(source, store, partial(click.echo, err=True))
    answer = estimate_network(known, found.network, setup, estimator, level=level)
    if seen is not None:
        answer = renew_estimate(answer, *parse_seen(seen))
    data = {**describe_estimate(answer, wanted), **list_missed(found.network)}
    if json:
        print_json(data)
    else:
        _print_estimate(found.network.name, setup, answer, data, wanted, known)


def _choose_source(ctx: click.Context, device: str, profile: str | None) -> str:
    """Whose profile answers; what stands on the command line goes before settings."""
    if not (device and profile):
        return profile or device
    said = [
        value
        for name, value in (("device", device), ("profile", profile))
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if len(said) != 1:
        raise click.UsageError("give --device or --profile, not both", ctx)
    return said[0]


def _check_probe(ctx: click.Context, source: str, estimator: str) -> None:
    """A probe runs on the device --on, and only one method learns from it."""
    if source:
        raise click.UsageError("--probe answers for the device --on: leave --device out", ctx)
    if estimator != "additive":
        raise click.UsageError("--probe looks at layers for additive: leave --estimator out", ctx)


def parse_seen(text: str) -> tuple[float, int]:
    """``12J/100`` → 12 joules in 100 steps."""
    energy, _, steps = text.partition("/")
    if not steps.strip().isdigit():
        raise InputError(f"{text!r} is no run: give joules and steps, like 12J/100")
    return parse_energy(energy), int(steps)


def read_wishes(
    setup: Setup,
    steps: int | None,
    epochs: int | None,
    samples: int | None,
    **units: Any,
) -> Wishes:
    """How many steps are meant: as they are, or epochs over samples."""
    strays = [name for name in ("charge", "reserve", "rest_w") if units.get(name) is not None]
    if strays and units.get("battery") is None:
        option = f"--{strays[0].replace('_', '-')}"
        raise click.UsageError(f"{option} needs --battery", click.get_current_context())
    length = options.read_length(steps, epochs, samples)
    return Wishes(length.count_steps(setup.batch), **units)


def describe_estimate(answer: Estimate, wanted: Wishes) -> Json:
    """An estimate for programs; every unit that was asked for."""
    totals = wanted.bill.describe(answer.energy_j, answer.interval_j, answer.duration_s)
    data = {**answer.to_dict(), "steps": wanted.steps, **totals}
    if wanted.battery:
        data["battery_share"] = battery_share(
            totals["total_energy_j"], parse_energy(wanted.battery)
        )
    finish = wanted.ask_battery(answer)
    if finish is not None:
        data["finish"] = finish.to_dict()
    return data


def list_missed(network: Network) -> dict[str, float]:
    """Shares of a step that reading gave to no layer, and that no estimate of layers holds."""
    return {
        f"unattributed_{what}_share": getattr(network.totals, f"unattributed_{what}_share", 0.0)
        for what in _MISSED
    }


# ---------------------------------------------------------------------------------------------
# For people


def _print_estimate(
    name: str, setup: Setup, answer: Estimate, data: Json, wanted: Wishes, profile: Profile
) -> None:
    console = make_console()
    verb = "Running" if setup.phase == "inference" else "Training"
    console.print(f"{verb} {name} on {answer.device}: {options.say_setup(setup)}\n")
    step = _say_cost(answer.energy_j, answer.interval_j, answer.duration_s, answer)
    console.print(f"A step takes {step}.", style="bold")
    if wanted.steps > 1:
        ends, duration_s = data["total_interval_j"], data["total_duration_s"]
        whole = _say_cost(data["total_energy_j"], ends, duration_s, answer)
        console.print(f"{wanted.steps:,} steps take {whole}.", style="bold")
    console.print(" · ".join(_list_units(data, wanted)) + ("" if "finish" in data else "\n"))
    if "finish" in data:
        console.print(_say_finish(data["finish"], answer, wanted) + "\n", style="bold")
    rows = [_show_layer(layer, answer) for layer in merge_layers(answer.layers)]
    print_table(console, ("layer", "kind", ">energy", ">share", " "), rows)
    print_notes(console, _list_notes(answer, setup, profile) + _say_missed(data))


def _say_cost(energy_j: float, interval_j: Any, duration_s: float, answer: Estimate) -> str:
    low, high = (format_energy(end) for end in interval_j)
    return (
        f"{format_energy(energy_j)}{mark_basis(answer.basis)}, {low} to {high} with "
        f"{100 * answer.level:g} %, and {format_duration(duration_s)}"
    )


def merge_layers(layers: tuple[LayerEstimate, ...]) -> list[LayerEstimate]:
    """The layers that cost most, and the rest as one."""
    ranked = sorted(layers, key=lambda layer: -layer.energy_j)
    top, rest = ranked[:TOP_LAYERS], ranked[TOP_LAYERS:]
    if len(rest) < 2:
        return ranked
    total_j = sum(layer.energy_j for layer in rest)
    seen = all(layer.seen for layer in rest)
    return [*top, LayerEstimate(f"other {len(rest)} layers", "", total_j, seen=seen)]


def _show_layer(layer: LayerEstimate, answer: Estimate) -> tuple[str, ...]:
    share = layer.energy_j / answer.energy_j if answer.energy_j else 0.0
    kind = layer.kind if layer.calls == 1 else f"{layer.kind} x{layer.calls}"
    energy = ("" if layer.seen else "about ") + format_energy(layer.energy_j)
    return (layer.name, kind, energy, format_share(share), make_bar(share))


def _list_units(data: Json, wanted: Wishes) -> list[str]:
    words = [format_kwh(data["total_energy_j"])]
    if "co2e_g" in data:
        words.append(f"about {format_mass(data['co2e_g'])} CO2e (grid {wanted.grid})")
    if "cost" in data:
        words.append(format_money(data["cost"], data["currency"]))
    if "battery_share" in data:
        words.append(f"{format_share(data['battery_share'])} of a charge of {wanted.battery}")
    return words


def _say_finish(finish: Json, answer: Estimate, wanted: Wishes) -> str:
    """Whether it will finish, with its probability, and what that leaves out."""
    share, worth = finish["probability"], f"which is worth about {finish['steps_left']:,} steps"
    available = format_energy(finish["available_j"])
    unseen = f" The meter covers {answer.covers}: what else the battery feeds is not in it"
    unseen = "" if wanted.rest_w else f"{unseen} (--rest-w says it)."
    if wanted.steps == 1:
        asks = "--steps, or --epochs and --samples, ask whether a whole training finishes."
        return f"This charge holds {available}, {worth}: {asks}{unseen}"
    word = next(word for word, least in _FINISHES.items() if share >= least)
    ends = join_ends(*(format_energy(end_j) for end_j in finish["interval_j"]))
    return (
        f"Will it finish on this charge? {word.format(share=f'{100 * share:.1f} %')}: it needs "
        f"{format_energy(finish['needed_j'])} ({ends}) of {available}, {worth}.{unseen}"
    )


def _list_notes(answer: Estimate, setup: Setup, profile: Profile) -> list[str]:
    notes = [
        f"Peak memory about {format_bytes(answer.peak_memory_bytes)}. {_NOT_INCLUDED}",
        f"Basis: {say_basis(answer.basis)}; the meter covers {answer.covers}.",
    ]
    if answer.host_share is not None and answer.host_share > _MUCH_WAITING:
        notes.append(
            f"{format_share(answer.host_share)} of the energy is waiting for the host; the device "
            f"alone would take {format_energy(answer.device_j or 0.0)}."
        )
    notes += _say_doubts(answer)
    if answer.unseen_share > 0:
        notes.append(_say_unseen(answer, setup, profile))
    return notes


def _say_doubts(answer: Estimate) -> list[str]:
    """Where the interval comes from, as far as the method knows, and what a probe would gain."""
    parts = [(name, share) for name, share in answer.doubts.items() if share >= _MUCH_DOUBT]
    if not parts:
        return []
    said = ", ".join(f"{name} ({format_share(share)})" for name, share in parts)
    words = f"The interval comes from: {said}."
    untimed = answer.doubts.get("layers not timed", 0.0)
    if untimed < _MUCH_UNTIMED:
        return [words]
    half = math.log(answer.interval_j[1] / answer.energy_j)
    narrowed = math.expm1(half * math.sqrt(1.0 - untimed))
    return [
        f"{words} With the device at hand, --probe would look at these layers first and narrow it "
        f"from ± {format_share(math.expm1(half))} to about ± {format_share(narrowed)}."
    ]


def _say_missed(data: Json) -> list[str]:
    shares = {words: data[f"unattributed_{what}_share"] for what, words in _MISSED.items()}
    much = {words: share for words, share in shares.items() if share > _MUCH_MISSED}
    if not much:
        return []
    said = ", ".join(f"{format_share(share)} of the {words}" for words, share in much.items())
    return [
        f"{said} belong to no layer and are not in the estimate: it is too low; "
        "`joulecast measure` says what the whole step takes."
    ]


def _say_unseen(answer: Estimate, setup: Setup, profile: Profile) -> str:
    share = format_share(answer.unseen_share)
    loaded = [seen.trial for seen in profile.observations if seen.trial.network.layers]
    setups = list(dict.fromkeys(trial.setup for trial in loaded))
    advice = "run `joulecast profile NET --missing` with this net on the device to learn them"
    if setups and setup not in setups:
        advice = f"profiled was {_say_nearest(setup, setups)}; ask for that, or profile this too"
    return f"{share} of the energy is a guess: such layers were never profiled here; {advice}."


def _say_nearest(setup: Setup, known: Sequence[Setup]) -> str:
    """The few setups that are most like one, and how many more there are."""

    def differ(other: Setup) -> tuple[int, float]:
        names = ("phase", "precision", "optimizer", "loss", "threads")
        apart = sum(getattr(other, name) != getattr(setup, name) for name in names)
        return apart, abs(math.log(other.batch / setup.batch))

    nearest = sorted(known, key=differ)[:_FEW_SETUPS]
    more = len(known) - len(nearest)
    said = "; ".join(map(options.say_setup, nearest))
    return f"{said}; and {more} more setup{'s' if more > 1 else ''}" if more else said
