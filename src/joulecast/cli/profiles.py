"""``joulecast profiles``: what devices have learnt, in the store and as files."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from joulecast.api.profiles import SHORT_KEY
from joulecast.cli import options
from joulecast.cli.terminal import make_console, print_json, print_table, describe_provenance
from joulecast.errors import InputError
from joulecast.files import read_profile, write_profile
from joulecast.records import Profile
from joulecast.store import ProfileSummary, open_store

Json = dict[str, Any]


@click.group()
@click.pass_context
def profiles(ctx: click.Context) -> None:
    """List, show, export, import and remove profiles.

    DEVICE is a device's name or a profile's key, or how one of them begins.
    """
    # Settings of [profiles] hold for each of its commands.
    ctx.default_map = dict.fromkeys(profiles.commands, ctx.default_map)


@profiles.command("list")
@options.store
@options.json
def list_profiles(store: str | None, json: bool) -> None:
    """List all profiles, those that ship with Joulecast too."""
    with open_store(store, create=False) as opened:
        known = opened.profiles()
    if json:
        print_json({"profiles": [one.to_dict() for one in known]})
        return
    console = make_console()
    if not known:
        console.print("There are no profiles yet: make one with `joulecast profile NET --on cpu`.")
        return
    columns = ("key", "device", "runtime", "covers", "basis", ">seen", "fitted", "changed")
    print_table(console, columns, map(_show_summary, known))


@profiles.command()
@click.argument("device")
@options.store
@options.json
def show(device: str, store: str | None, json: bool) -> None:
    """Show what DEVICE has learnt."""
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
    data = {"file": file, "key": profile.key, "observations": len(profile.observations)}
    _report(data, f"Wrote {len(profile.observations)} observations to {file}.", json)


@profiles.command("import")
@click.argument("file")
@options.store
@options.json
def import_profile(file: str, store: str | None, json: bool) -> None:
    """Add the profile in FILE to the store; what is there already stays."""
    profile = read_profile(file)
    with open_store(store) as opened:
        new = opened.import_profile(profile)
    data = {"key": profile.key, "device": profile.device.name, "new_observations": new}
    _report(data, f"Added {new} new observations to the profile of {profile.device.name}.", json)


@profiles.command()
@click.argument("device")
@options.store
@options.json
def remove(device: str, store: str | None, json: bool) -> None:
    """Forget the profile of DEVICE."""
    with open_store(store, create=False) as opened:
        matches = opened.list_matches(device)
        if len(matches) > 1:
            keys = "; ".join(map(str, matches))
            raise InputError(f"{len(matches)} profiles match {device!r}: {keys}; give one's key")
        if matches[0].shipped:
            raise InputError(f"the profile of {device} ships with Joulecast and cannot be removed")
        profile = opened.profile(matches[0].key)
        opened.remove_profile(matches[0].key)
    data = {"key": matches[0].key, "observations": len(profile.observations)}
    words = f"Forgot {len(profile.observations)} observations of {profile.device.name}."
    _report(data, words, json)


def describe_profile(profile: Profile) -> Json:
    """A profile for programs, without its observations one by one."""
    from joulecast.estimators import describe_fits

    # The empty network is the waiting device: its setup means nothing.
    loads = [seen.trial for seen in profile.observations if seen.trial.network.layers]
    setups = Counter(tuple(trial.setup.to_dict().items()) for trial in loads)
    return {
        "key": profile.key,
        "device": profile.device.to_dict(),
        "runtime": profile.runtime,
        "covers": profile.covers,
        "provenance": profile.provenance,
        "observations": len(profile.observations),
        "device_seconds": sum(seen.cost_s for seen in profile.observations),
        "setups": [{**dict(key), "observations": count} for key, count in setups.items()],
        "estimators": {
            name: [item.to_dict() for item in items]
            for name, items in describe_fits(profile).items()
        },
    }


def _show_summary(one: ProfileSummary) -> tuple[str, ...]:
    mode = f" ({one.power_mode})" if one.power_mode else ""
    when = time.strftime("%Y-%m-%d", time.localtime(one.changed_at_s))
    return (
        one.key[:SHORT_KEY],
        one.device + mode,
        one.runtime,
        one.covers,
        one.provenance,
        str(one.observation_count),
        ", ".join(one.estimators) or "-",
        "shipped" if one.shipped else when,
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
        ("basis", describe_provenance(profile.provenance)),
        ("observed", f"{len(profile.observations)} times"),
    ]
    print_table(console, ("profile", "~"), facts)
    for setup in data["setups"]:
        console.print(_say_setup(setup))
    console.print()
    print_fits(console, profile)


def print_fits(console: Any, profile: Profile) -> None:
    """Print what each fit consists of, with its numbers of data points."""
    from joulecast.estimators import describe_fits

    for name, items in describe_fits(profile).items():
        rows = [
            (item.label, ", ".join(item.features), str(item.energy_points), str(item.duration_points))
            for item in items
        ]
        if rows:
            columns = (f"fitted ({name})", "over", ">energy points", ">duration points")
            print_table(console, columns, rows)


def _say_setup(setup: Json) -> str:
    from joulecast.records import Setup

    words = options.say_setup(Setup(**{k: v for k, v in setup.items() if k != "observations"}))
    return f"{setup['observations']} times at {words}"


def _report(data: Json, words: str, json: bool) -> None:
    if json:
        print_json(data)
    else:
        make_console().print(words)
