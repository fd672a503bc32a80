"""``joulecast estimate NET``: estimate the energy of training before it runs."""

from __future__ import annotations

from dataclasses import dataclass

import click

from joulecast.api.estimate import estimate_net, probe_net, update
from joulecast.api.nets import NetRequest
from joulecast.api.options import EstimateOptions, MeasureOptions
from joulecast.api.profiles import load_profile
from joulecast.budgets import RunLength
from joulecast.cli import options
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import ShareType
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.print_estimate import EstimateReport, print_estimate
from joulecast.cli.reading_notes import list_reading_notes
from joulecast.cli.run_options import RunOptions, make_run_options
from joulecast.cli.terminal import Json
from joulecast.errors import InputError
from joulecast.records import Estimate, Network
from joulecast.units import battery_share, parse_energy

WORK = ("flops", "bytes", "params")


@dataclass(frozen=True)
class SourceOptions:
    """Whose profile is used.

    Attributes:
        probe: Measure the net's unseen layers first.
    """

    device: str
    profile: str | None
    probe: bool

    @property
    def name(self) -> str:
        """The device or profile file; what is typed on the command line overrides settings."""
        if not (self.device and self.profile):
            return self.profile or self.device
        typed = [
            value
            for name, value in (("device", self.device), ("profile", self.profile))
            if options.is_typed(name)
        ]
        if len(typed) != 1:
            raise click.UsageError(
                "give --device or --profile, not both", click.get_current_context()
            )
        return typed[0]


_BATTERY_SHARE = ShareType(is_open=False)


@click.command()
@click.argument("net")
@options.net_options
@collect(
    "source",
    SourceOptions,
    options.device,
    click.option("--profile", metavar="FILE", help="Profile file, instead of --device."),
    click.option(
        "--probe", is_flag=True, help="First measure the net's unseen layers on the device --on."
    ),
)
@options.probing
@options.estimating
@options.run_length
@collect(
    "run",
    make_run_options,
    click.option("--seen", metavar="12J/100", help="Energy/number of the run's first steps."),
    options.grid,
    options.price,
    click.option("--battery", metavar="15Wh", help="Also print whether this battery suffices."),
    click.option(
        "--charge",
        type=_BATTERY_SHARE,
        metavar="60%",
        help="Charged share of --battery.  [default: 100%]",
    ),
    click.option(
        "--reserve",
        type=_BATTERY_SHARE,
        metavar="10%",
        help="Share of --battery that must remain.  [default: 0%]",
    ),
    click.option(
        "--rest-w",
        type=click.FloatRange(0),
        help="Watts drawn from --battery that the meter does not see.",
    ),
)
@options.output
def estimate(
    request: NetRequest,
    source: SourceOptions,
    measuring: MeasureOptions,
    estimating: EstimateOptions,
    length: RunLength,
    run: RunOptions,
    output: OutputOptions,
) -> None:
    """Estimate the energy of training NET, with a credible interval, before it runs.

    A step is forward, loss, backward and update on a batch that is already in memory.
    """
    device = source.name
    net, setup = request.resolve()
    steps = length.count_steps(setup.batch)
    if source.probe:
        _check_probe(device, estimating.estimator)
        profile = probe_net(net, setup, measuring, estimating)
    else:
        profile = load_profile(device, store=estimating.store, on_choice=options.echo_choice)
    result = estimate_net(profile, net, setup, estimating)
    if run.seen is not None:
        energy_j, seen_steps = parse_seen(run.seen)
        result = update(result, energy_j=energy_j, steps=seen_steps)
    data = {**describe_estimate(result, steps, run), **list_unattributed(net.network)}
    data["reading_notes"] = list_reading_notes(net.network)
    report = EstimateReport(net.network.name, setup, result, profile, data, run)
    write_result(output, data, lambda: print_estimate(report))


def parse_seen(text: str) -> tuple[float, int]:
    """Return energy and number of steps of a text like ``12J/100``."""
    energy, _, steps = text.partition("/")
    if not steps.strip().isdigit():
        raise InputError(
            f"--seen {text!r} is not energy/steps: give joules and steps, like 12J/100"
        )
    return parse_energy(energy), int(steps)


def describe_estimate(result: Estimate, steps: int, run: RunOptions) -> Json:
    """Return an estimate as JSON values, with every unit that was requested."""
    bill = run.make_bill(steps)
    totals = bill.compute_totals(result.energy_j, result.interval_j, result.duration_s)
    data = {**result.to_dict(), "steps": steps, **totals}
    finish = run.check_battery(result, steps)
    if finish is not None and run.battery:
        battery_j = parse_energy(run.battery)
        data["battery_share"] = battery_share(totals["total_energy_j"], battery_j)
        data["finish"] = finish.to_dict()
    return data


def list_unattributed(network: Network) -> dict[str, float]:
    """Return the shares of a step that belong to no layer, which no estimate of layers includes."""
    names = [f"unattributed_{what}_share" for what in WORK]
    return {name: getattr(network.totals, name, 0.0) for name in names}


def _check_probe(device: str, estimator: str) -> None:
    context = click.get_current_context()
    if device:
        raise click.UsageError("--probe uses the device --on: leave --device out", context)
    if estimator != "additive":
        raise click.UsageError(
            "--probe needs the estimator additive: leave --estimator out", context
        )
