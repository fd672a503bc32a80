"""``joulecast profiles``: manage the profiles in the store and in files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from joulecast.cli import options
from joulecast.cli.setups import describe_setup
from joulecast.cli.terminal import (
    Json,
    describe_provenance,
    make_console,
    plural,
    print_json,
    print_table,
)
from joulecast.errors import InputError
from joulecast.estimators import describe_fits
from joulecast.features.outside_profiles import read_outside_profile
from joulecast.features.profiles import SHORT_KEY
from joulecast.files import write_profile
from joulecast.records import Profile, Setup, summarise_observations
from joulecast.store import ProfileSummary, open_store

if TYPE_CHECKING:
    from rich.console import Console


@click.group()
@click.pass_context
def profiles(ctx: click.Context) -> None:
    """List, show, export, import and remove profiles.

    DEVICE is a device's name, a profile's key, or the beginning of either.
    """
    # Settings of [profiles] apply to each of its commands.
    ctx.default_map = dict.fromkeys(profiles.commands, ctx.default_map)


@profiles.command("list")
@options.store
@options.json
def list_profiles(store: str | None, json: bool) -> None:
    """List all profiles, including those that ship with Joulecast."""
    with open_store(store, create=False) as opened:
        found = opened.list_profiles()
    if json:
        print_json({"profiles": [one.to_dict() for one in found]})
        return
    console = make_console()
    if not found:
        console.print("There are no profiles yet: make one with `joulecast profile NET --on cpu`.")
        return
    columns = (
        "key",
        "device",
        "runtime",
        "covers",
        "provenance",
        ">observations",
        "changed",
    )
    print_table(console, columns, map(_format_summary, found))


@profiles.command()
@click.argument("device")
@options.store
@options.json
def show(device: str, store: str | None, json: bool) -> None:
    """Show the profile of DEVICE."""
    with open_store(store, create=False) as opened:
        profile = opened.find_profile(device)
    data = describe_profile(profile)
    if json:
        print_json(data)
    else:
        _print_profile(profile, data)


@profiles.command()
@click.argument("device")
@click.argument("file")
@options.store
@options.json
def export(device: str, file: str, store: str | None, json: bool) -> None:
    """Write the profile of DEVICE to FILE, as JSON with a checksum."""
    with open_store(store, create=False) as opened:
        profile = opened.find_profile(device)
    write_profile(profile, file)
    count = len(profile.observations)
    data = {"file": file, "key": profile.key, "observations": count}
    _report(data, f"Wrote {plural(count, 'observation')} to {file}.", json)


@profiles.command("import")
@click.argument("file")
@options.store
@options.json
def import_profile(file: str, store: str | None, json: bool) -> None:
    """Add the profile in FILE to the store, which keeps what it already has."""
    profile = read_outside_profile(file)
    with open_store(store) as opened:
        new = opened.import_profile(profile)
    name = profile.device.name
    data = {"key": profile.key, "device": name, "new_observations": new}
    _report(data, f"Added {plural(new, 'new observation')} to the profile of {name}.", json)


@profiles.command()
@click.argument("device")
@options.store
@options.json
def remove(device: str, store: str | None, json: bool) -> None:
    """Remove the profile of DEVICE from the store."""
    with open_store(store, create=False) as opened:
        matches = opened.list_matches(device)
        if len(matches) > 1:
            keys = "; ".join(map(str, matches))
            raise InputError(
                f"{len(matches)} profiles match {device!r}: give the key of one: {keys}"
            )
        if matches[0].shipped:
            raise InputError(f"the profile of {device} ships with Joulecast and cannot be removed")
        profile = opened.load_profile(matches[0].key)
        opened.remove_profile(matches[0].key)
    count = len(profile.observations)
    data = {"key": matches[0].key, "observations": count}
    _report(data, f"Removed {plural(count, 'observation')} of {profile.device.name}.", json)


def describe_profile(profile: Profile) -> Json:
    """Return a profile as JSON values, without its single observations."""
    observed = summarise_observations(profile.observations)
    return {
        "key": profile.key,
        "device": profile.device.to_dict(),
        "runtime": profile.runtime,
        "covers": profile.covers,
        "provenance": profile.provenance,
        "observations": observed.count,
        "units": dict(observed.units),
        "device_seconds": observed.device_time_s,
        "setups": [{**one.to_dict(), "observations": count} for one, count in observed.setups],
        "estimators": {
            name: [item.to_dict() for item in items]
            for name, items in describe_fits(profile).items()
        },
    }


def print_fits(console: Console, profile: Profile) -> None:
    """Print what each fit consists of, with its numbers of data points."""
    for name, items in describe_fits(profile).items():
        has_features = any(item.features for item in items)
        columns = ("features",) if has_features else ()
        columns = (f"fitted ({name})", *columns, ">energy points", ">time points")
        rows = [
            (
                item.label,
                *((", ".join(item.features),) if has_features else ()),
                str(item.energy_points),
                str(item.duration_points),
            )
            for item in items
        ]
        if rows:
            print_table(console, columns, rows)


def _format_summary(summary: ProfileSummary) -> tuple[str, ...]:
    mode = f" ({summary.power_mode})" if summary.power_mode else ""
    changed = time.strftime("%Y-%m-%d", time.localtime(summary.changed_at_s))
    return (
        summary.key[:SHORT_KEY],
        summary.device + mode,
        summary.runtime,
        summary.covers,
        summary.provenance,
        str(summary.observation_count),
        "shipped" if summary.shipped else changed,
    )


def _print_profile(profile: Profile, data: Json) -> None:
    console = make_console()
    device = profile.device
    facts = [
        ("device", f"{device.name} ({device.processor})"),
        ("power mode", device.power_mode or "-"),
        ("key", profile.key),
        ("runtime", profile.runtime),
        ("covers", profile.covers),
        ("provenance", describe_provenance(profile.provenance)),
        ("observations", str(len(profile.observations))),
    ]
    print_table(console, ("profile", "~"), facts)
    for setup in data["setups"]:
        console.print(_describe_setup(setup))
    console.print()
    print_fits(console, profile)


def _describe_setup(data: Json) -> str:
    setup = Setup(**{key: value for key, value in data.items() if key != "observations"})
    return f"{plural(data['observations'], 'observation')} at {describe_setup(setup)}"


def _report(data: Json, text: str, json: bool) -> None:
    if json:
        print_json(data)
    else:
        make_console().print(text)
