"""``joulecast measure NET`` and ``measure -- COMMAND ...``: measure energy and time."""

from __future__ import annotations

from collections.abc import Sequence

import click

from joulecast.api.command_cost import CommandCost, measure_command
from joulecast.api.measure import measure_net, save_observation
from joulecast.api.nets import NetRequest
from joulecast.api.options import MeasureOptions
from joulecast.cli import options
from joulecast.cli.output import OutputOptions, write_result
from joulecast.cli.setups import (
    begin_sentence,
    describe_setup,
    is_inference,
    name_activity,
)
from joulecast.cli.streams import find_descriptor, write_message
from joulecast.cli.terminal import (
    Json,
    describe_provenance,
    format_optional,
    label_provenance,
    make_console,
    plural,
    print_table,
)
from joulecast.errors import StoreError
from joulecast.local_devices import find_meter
from joulecast.meters import Meter
from joulecast.records import Observation, compute_power, describe_inference, name_step
from joulecast.records.trial import INFERENCES
from joulecast.redaction import redact_url
from joulecast.store import check_place
from joulecast.units import format_bytes, format_duration, format_energy, format_power, format_wh

_COMMAND = "joulecast.cli.measure.command"
# Where the command's output goes when stdout is for JSON only.
_STDERR = 2


class CommandAfterDashes(click.Command):
    """A command that leaves everything after ``--`` unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "NET | -- COMMAND ..."]


@click.command(cls=CommandAfterDashes)
@click.argument("net", required=False)
@options.checkpointed_net_options
@options.measuring
@options.store
@click.option("--no-save", is_flag=True, help="Do not store the observation of NET.")
@options.output
def measure(
    request: NetRequest,
    measuring: MeasureOptions,
    store: str | None,
    no_save: bool,
    output: OutputOptions,
) -> None:
    """Train NET, or run any COMMAND, under a meter and print its energy and time.

    NET is warmed up and measured in several windows: energy and time of a step with their standard
    deviation. With --inference NET is run, not trained: energy and latency of an inference. A
    COMMAND is run once; its exit code becomes that of this program. With --json its
    output goes to stderr.
    """
    context = click.get_current_context()
    command = context.meta[_COMMAND]
    if bool(command) == bool(request.net):
        raise click.UsageError("give either NET, or -- and a command", context)
    if command:
        context.exit(_measure_command(command, measuring, output))
    if not no_save:
        check_place(store)
    observation = measure_net(*request.resolve(), measuring)
    place, failure = "", None
    try:
        place = "" if no_save else save_observation(observation, store)
    except StoreError as error:
        # What was measured is shown all the same.
        failure = error
    data = describe_observation(observation, place)
    write_result(output, data, lambda: _print_observation(observation, place))
    if failure is not None:
        raise failure


def describe_observation(observation: Observation, place: str) -> Json:
    """Return an observation as JSON values."""
    data = {key: value for key, value in observation.to_dict().items() if key != "trial"}
    setup, energy_j, duration_s = (
        observation.trial.setup,
        observation.energy_j,
        observation.duration_s,
    )
    return {
        "net": observation.trial.network.name,
        "setup": setup.to_dict(),
        **data,
        "power_w": compute_power(energy_j, duration_s),
        **describe_inference(setup, energy_j, duration_s),
        "store": place or None,
    }


def _print_observation(observation: Observation, place: str) -> None:
    console = make_console()
    setup, energy_j = observation.trial.setup, observation.energy_j
    console.print(
        f"{name_activity(setup)} {observation.trial.network.name} on {observation.device.name}: "
        f"{describe_setup(setup)}\n"
    )
    power = format_optional(compute_power(energy_j, observation.duration_s), format_power)
    rows = [
        (
            "energy",
            format_optional(energy_j, format_energy),
            format_optional(observation.energy_sd_j, format_energy),
        ),
        (
            "latency" if is_inference(setup) else "time",
            format_optional(observation.duration_s, format_duration),
            format_optional(observation.duration_sd_s, format_duration),
        ),
        ("issue time", format_optional(observation.issue_s, format_duration), ""),
        ("power", power, ""),
        ("peak memory", format_optional(observation.peak_memory_bytes, format_bytes), ""),
    ]
    if is_inference(setup) and energy_j is not None:
        rows.append((f"{INFERENCES:,} inferences", format_wh(INFERENCES * energy_j), ""))
    one = begin_sentence(setup).split(" ", 1)[1]
    heading = f"one {one}{label_provenance(observation.provenance)}"
    print_table(console, (heading, ">median", ">std. dev."), rows)
    console.print(
        f"{plural(observation.count, 'window')} with the meter {observation.meter}, which covers "
        f"{observation.covers}: {describe_provenance(observation.provenance)}."
    )
    if observation.measured_steps:
        noun = name_step(setup)
        console.print(
            f"{plural(observation.measured_steps, noun)} measured in all, after "
            f"{observation.warmup_steps:,} to warm up."
        )
    if observation.unchecked:
        console.print(f"Not checked by this meter: {', '.join(observation.unchecked)}.")
    if place:
        console.print(f"Stored in {place}.")


def _measure_command(
    command: Sequence[str], measuring: MeasureOptions, output: OutputOptions
) -> int:
    meter = find_meter(measuring.meter, measuring.on)
    cost = measure_command(command, meter, _STDERR if output.json else find_descriptor())
    for fault in cost.faults:
        write_message(f"joulecast: meter {meter.name}: {fault}")
    data = _describe_cost(command, cost, meter)
    write_result(output, data, lambda: _print_cost(cost, meter))
    return cost.exit_code or int(cost.energy_j is None)


def _describe_cost(command: Sequence[str], cost: CommandCost, meter: Meter) -> Json:
    return {
        "command": list(map(redact_url, command)),
        "energy_j": cost.energy_j,
        "duration_s": cost.duration_s,
        "power_w": cost.power_w,
        "exit_code": cost.exit_code,
        "faults": list(cost.faults),
        "meter": meter.name,
        "covers": meter.covers,
        "provenance": meter.provenance,
    }


def _print_cost(cost: CommandCost, meter: Meter) -> None:
    console = make_console()
    energy = format_optional(cost.energy_j, format_energy)
    power = format_optional(cost.power_w, format_power)
    console.print(
        f"\n{energy}{label_provenance(meter.provenance)} in {format_duration(cost.duration_s)}, "
        f"{power} on average; exit code {cost.exit_code}"
    )
    provenance = describe_provenance(meter.provenance)
    console.print(f"meter {meter.name} covers {meter.covers}: {provenance}", style="dim")
