"""``joulecast measure NET`` and ``measure -- COMMAND ...``: what something really takes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from joulecast.api.measuring import find_meter, observe_net
from joulecast.cli import options
from joulecast.cli.show import make_console, mark_basis, print_json, print_table, say_basis
from joulecast.errors import InputError
from joulecast.meters import Meter, Reading
from joulecast.records import Observation
from joulecast.units import format_bytes, format_duration, format_energy, format_power

Json = dict[str, Any]
_COMMAND = "joulecast.cli.measure.command"
# Where a command's output goes when ours has to stay clean.
_STDERR = 2
# Faults of the surroundings: the joules were still read.
_BEARABLE = ("other load", "throttled")


class CommandAfterDashes(click.Command):
    """Keeps what stands behind ``--`` as it is: somebody else's command with its own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "NET | -- COMMAND ..."]


@click.command(cls=CommandAfterDashes)
@click.argument("net", required=False)
@options.net_options
@options.on
@options.meter
@options.rounds
@options.device
@options.store
@click.option("--no-save", is_flag=True, help="Do not keep the observation of NET.")
@options.json
@click.pass_context
def measure(ctx: click.Context, /, asked: options.Asked, on: str, meter: str, **rest: Any) -> None:
    """Train NET, or run any COMMAND, under a meter, and say what it took.

    NET is warmed up and measured in several windows: energy and time of a step with their spread.
    A COMMAND is run once as it is; its exit code becomes that of this program. With --json its
    output goes to stderr.
    """
    command = ctx.meta[_COMMAND]
    if bool(command) == bool(asked.net):
        raise click.UsageError("give either NET, or -- and a command", ctx)
    if command:
        ctx.exit(_measure_command(command, on, meter, rest["json"]))
    _measure_net(asked, on, meter, **rest)


# ---------------------------------------------------------------------------------------------
# A net


def _measure_net(
    asked: options.Asked,
    on: str,
    meter: str,
    rounds: int,
    device: str,
    store: str | None,
    no_save: bool,
    json: bool,
) -> None:
    found, setup = asked.resolve()
    seen = observe_net(found, setup, on, meter, device_name=device, rounds=rounds)
    place = "" if no_save else save(seen, store)
    if json:
        print_json(describe_observation(seen, place))
    else:
        _print_observation(seen, place)


def save(seen: Observation, store: str | None) -> str:
    """Keep an observation; says where."""
    from joulecast.store import open_store

    with open_store(store) as opened:
        opened.add_observation(seen)
        return str(opened.place)


def describe_observation(seen: Observation, place: str) -> Json:
    """An observation for programs."""
    data = {key: value for key, value in seen.to_dict().items() if key != "trial"}
    power_w = _power(seen)
    return {
        "net": seen.trial.network.name,
        "setup": seen.trial.setup.to_dict(),
        **data,
        "power_w": power_w,
        "basis": seen.provenance,
        "store": place or None,
    }


def _power(seen: Observation) -> float | None:
    if seen.energy_j is None or not seen.duration_s:
        return None
    return seen.energy_j / seen.duration_s


def _print_observation(seen: Observation, place: str) -> None:
    console = make_console()
    setup = seen.trial.setup
    what = "inference" if setup.phase == "inference" else "training"
    console.print(
        f"{what.capitalize()} {seen.trial.network.name} on {seen.device.name}: "
        f"{options.say_setup(setup)}\n"
    )
    rows = [
        ("energy", _show(seen.energy_j, format_energy), _show(seen.energy_sd_j, format_energy)),
        (
            "time",
            _show(seen.duration_s, format_duration),
            _show(seen.duration_sd_s, format_duration),
        ),
        ("host issues it in", _show(seen.issue_s, format_duration), ""),
        ("power", _show(_power(seen), format_power), ""),
        ("peak memory", _show(seen.peak_memory_bytes, format_bytes), ""),
    ]
    heading = f"one step{mark_basis(seen.provenance)}"
    print_table(console, (heading, ">median", ">± one deviation"), rows)
    console.print(
        f"{seen.count} windows under the meter {seen.meter}, which covers {seen.covers}: "
        f"{say_basis(seen.provenance)}."
    )
    if place:
        console.print(f"Kept in {place}.")


def _show(value: float | None, form: Any) -> str:
    return "-" if value is None else str(form(value))


# ---------------------------------------------------------------------------------------------
# A command


@dataclass(frozen=True)
class CommandCost:
    """What a command took; no energy where the meter could not tell."""

    energy_j: float | None
    duration_s: float
    exit_code: int
    faults: tuple[str, ...]

    @property
    def power_w(self) -> float | None:
        """Average power."""
        return None if self.energy_j is None else self.energy_j / self.duration_s


def run_command(command: Sequence[str], meter: Meter, stdout: Any = None) -> CommandCost:
    """Run a command under a meter that is not open yet.

    Raises:
        InputError: The program cannot be started.
    """
    with meter:
        started_s = time.monotonic()
        meter.begin()
        try:
            exit_code = subprocess.call(command, stdout=stdout)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"{command[0]} cannot be run ({reason}): give a program") from error
        # A meter may wait for its last number: the command's time ends here.
        duration_s = max(time.monotonic() - started_s, 1e-9)
        reading = meter.end()
    # Negative codes are signals, which shells write as 128 and more.
    code = exit_code if exit_code >= 0 else 128 - exit_code
    return CommandCost(_scale(reading, duration_s), duration_s, code, reading.faults)


def _scale(reading: Reading, duration_s: float) -> float | None:
    """Joules over the whole command from the part of it that the meter saw."""
    grave = [fault for fault in reading.faults if fault.split(":")[0] not in _BEARABLE]
    if grave or reading.duration_s <= 0:
        return None
    return reading.energy_j / reading.duration_s * duration_s


def _measure_command(command: Sequence[str], on: str, meter: str, json: bool) -> int:
    found = find_meter(meter, on)
    cost = run_command(command, found, _STDERR if json else None)
    for fault in cost.faults:
        click.echo(f"joulecast: the meter {found.name} saw {fault}", err=True)
    if json:
        print_json(_describe_cost(command, cost, found))
    else:
        _print_cost(cost, found)
    return cost.exit_code or int(cost.energy_j is None)


def _describe_cost(command: Sequence[str], cost: CommandCost, meter: Meter) -> Json:
    return {
        "command": list(command),
        "energy_j": cost.energy_j,
        "duration_s": cost.duration_s,
        "power_w": cost.power_w,
        "exit_code": cost.exit_code,
        "faults": list(cost.faults),
        "meter": meter.name,
        "covers": meter.covers,
        "basis": meter.provenance,
    }


def _print_cost(cost: CommandCost, meter: Meter) -> None:
    console = make_console()
    energy = _show(cost.energy_j, format_energy)
    power = _show(cost.power_w, format_power)
    duration = format_duration(cost.duration_s)
    console.print(
        f"\n{energy}{mark_basis(meter.provenance)} in {duration}, {power} on average; "
        f"exit code {cost.exit_code}"
    )
    words = f"meter {meter.name} covers {meter.covers}: {say_basis(meter.provenance)}"
    console.print(words, style="dim")
