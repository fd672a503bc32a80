"""``joulecast estimate NET``: estimate the energy of training or inference before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import click

from joulecast.api.estimate import check_first_steps, estimate_net, probe_net, update_run
from joulecast.api.estimate_run import RunSource, add_up_net
from joulecast.api.nets import NetRequest
from joulecast.api.options import EstimateOptions, MeasureOptions
from joulecast.api.profiles import load_profile
from joulecast.budgets import RunLength
from joulecast.cli import options
from joulecast.cli.interruptions import MEASUREMENTS_KEPT, report_interruption
from joulecast.cli.option_records import collect
from joulecast.cli.option_types import NumberType, ShareType
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.print_estimate import EstimateReport, print_estimate
from joulecast.cli.progress import show_activity
from joulecast.cli.run_options import RunOptions, make_run_options
from joulecast.cli.terminal import Json
from joulecast.errors import InputError
from joulecast.records import Estimate, Network, describe_inference, name_step
from joulecast.runtimes.installed import find_installed_runtime
from joulecast.units import battery_share, parse_energy
from joulecast.uses.whole_run import RunCost, average_step

WORK = ("flops", "bytes", "params")
# More digits than any number of steps has.
_MOST_DIGITS = 15


@dataclass(frozen=True)
class SourceOptions:
    """Whose profile is used.

    Attributes:
        profile: A profile's file.
        on: A device of this machine.
        meter: Meter of a probe.
        probe: Measure the net's unseen layers on the device first.
    """

    device: str
    profile: str | None
    on: str
    meter: str
    probe: bool

    def choose_name(self) -> str:
        """Return the device or profile file to use; empty for the device ``on``.

        What is typed on the command line overrides settings.
        """
        here = "runtime" if options.is_typed("runtime") and not options.is_typed("on") else "on"
        names = {"device": self.device, "profile": self.profile or "", here: ""}
        typed = [name for name in names if options.is_typed(name)]
        given = typed or [name for name in ("device", "profile") if names[name]]
        if len(given) > 1:
            self._refuse(f"give {' or '.join(f'--{name}' for name in given)}, not both")
        return names[given[0]] if given else ""

    def check_probe(self, estimator: str) -> None:
        """Raise UsageError where a probe contradicts other options, or --meter has no use."""
        if not self.probe:
            if options.is_typed("meter"):
                self._refuse("--meter is for measuring: give --probe as well, or leave it out")
            return
        if options.is_typed("device") or options.is_typed("profile"):
            self._refuse("--probe uses the device --on: leave --device and --profile out")
        if estimator not in ("auto", "additive"):
            self._refuse("--probe needs the estimator additive: leave --estimator out")

    def _refuse(self, message: str) -> NoReturn:
        raise click.UsageError(message, click.get_current_context())


_BATTERY_SHARE = ShareType(is_open=False)


@click.command()
@click.argument("net")
@options.checkpointed_net_options
@collect(
    "source",
    SourceOptions,
    options.device,
    click.option("--profile", metavar="FILE", help="Profile file, instead of --device."),
    options.make_on(
        "Device of this machine, instead of --device: cpu, cuda:0, mnn:cpu, onnx:cpu or "
        "simulated:7."
    ),
    click.option(
        "--probe", is_flag=True, help="First measure the net's unseen layers on the device --on."
    ),
    options.meter,
)
@options.estimating
@options.run_length
@collect(
    "run",
    make_run_options,
    click.option(
        "--eval-every", type=click.IntRange(1), help="Evaluate the net after every N steps."
    ),
    click.option("--eval-samples", type=click.IntRange(1), help="Samples of each evaluation."),
    click.option(
        "--loader",
        metavar="FILE.py:FUNCTION",
        help="Time the data loader that it returns on this machine, and add what the net waits.",
    ),
    click.option(
        "--runs",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Number of equal runs: what a sweep takes.",
    ),
    click.option(
        "--gpus",
        type=click.IntRange(1),
        metavar="N",
        help="GPUs of one machine that train together; --batch is that of each.",
    ),
    options.parallel,
    options.link_gb_s,
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
        type=NumberType(0),
        help="Watts drawn from --battery that the meter does not see.",
    ),
)
@click.option("--layers", is_flag=True, help="Print every layer, in call order.")
@options.output
def estimate(
    request: NetRequest,
    source: SourceOptions,
    estimating: EstimateOptions,
    length: RunLength,
    run: RunOptions,
    layers: bool,
    output: OutputOptions,
) -> None:
    """Estimate the energy of training or running NET, with a credible interval, beforehand.

    A step is forward, loss, backward and update on a batch that is already in memory. With
    --inference the net is not trained: an inference is one forward pass, and its duration is the
    latency.
    """
    source.check_probe(estimating.estimator)
    device = "" if source.probe else source.choose_name()
    net, setup = request.resolve()
    length.count_steps(run.parallel.gpus * setup.samples_per_step)
    if source.probe:
        with report_interruption(MEASUREMENTS_KEPT), show_activity("measuring layers"):
            profile = probe_net(net, setup, MeasureOptions(source.on, source.meter), estimating)
    else:
        profile = load_profile(
            device, on=source.on, store=estimating.store, on_choice=options.echo_choice
        )
    result, warnings = estimate_net(profile, net, setup, estimating, run.parallel), []
    if run.seen is not None:
        energy_j, seen_steps = parse_seen(run.seen)
        first = (energy_j, seen_steps, name_step(setup))
        warnings, result = check_first_steps(result, *first), update_run(result, *first)
    cost = add_up_net(result, RunSource(profile, net, setup, estimating), length, run.whole)
    data = {
        **describe_estimate(result, cost, run),
        **describe_inference(setup, result.energy_j, result.duration_s),
        **list_unattributed(net.network),
    }
    report = EstimateReport(
        net.network.name, setup, result, profile, data, run, cost, tuple(warnings), layers
    )
    write_result(output, data, lambda: print_estimate(report))


def parse_seen(text: str) -> tuple[float, int]:
    """Return energy and number of steps of a text like ``12J/100``."""
    energy, _, steps = text.partition("/")
    if not (steps.strip().isdecimal() and len(steps) <= _MOST_DIGITS):
        raise InputError(
            f"--seen {text[:60]!r} is not energy/steps: give joules and steps, like 12J/100"
        )
    return parse_energy(energy), int(steps)


def describe_estimate(result: Estimate, cost: RunCost, run: RunOptions) -> Json:
    """Return an estimate as JSON values, with every unit that was requested.

    Totals are those of all runs, with everything that was asked for.
    """
    totals = run.make_bill().compute_totals(cost.energy_j, cost.interval_j, cost.duration_s)
    steps, runs = cost.schedule.steps, cost.schedule.runs
    data = {
        **result.to_dict(),
        "fits_memory": result.fits_memory,
        "installed_runtime": find_installed_runtime(result.runtime) or None,
        "steps": steps,
        "runs": runs,
        **totals,
    }
    if not run.whole.is_plain:
        data["run"] = cost.to_dict()
    finish = run.check_battery(average_step(result, cost), steps * runs)
    if finish is not None and run.battery:
        battery_j = parse_energy(run.battery)
        data["battery_share"] = battery_share(totals["total_energy_j"], battery_j)
        data["finish"] = finish.to_dict()
    return data


def list_unattributed(network: Network) -> dict[str, float]:
    """Return the shares of a step that belong to no layer, which no estimate of layers includes."""
    names = [f"unattributed_{what}_share" for what in WORK]
    return {name: getattr(network.totals, name, 0.0) for name in names}
