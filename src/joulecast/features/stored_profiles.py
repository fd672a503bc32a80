"""List, show, export, import and remove profiles."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, verb
from joulecast.features.profiles import SHORT_KEY
from joulecast.records import Json, Profile, summarise_observations
from joulecast.store import open_store
from joulecast.store.files import write_profile
from joulecast.system.errors import InputError
from joulecast.views.report import Answer, Block, Report, Table, Text, make_table
from joulecast.views.words import describe_provenance, describe_setup, plural

if TYPE_CHECKING:
    from joulecast.store import ProfileSummary

_COLUMNS = ("key", "device", "runtime", "covers", "provenance", ">observations", "changed")

StoredDevice = Annotated[
    str, Argument("A device's name, a profile's key, or the beginning of either.")
]
File = Annotated[str, Argument("A profile's file.", harm="writes a file")]


@verb
def list_profiles(*, store: given.Store = None) -> Answer:
    """List all profiles, including those that ship with Joulecast."""
    with open_store(store, create=False) as opened:
        found = opened.list_profiles()
    data = {"profiles": [one.to_dict() for one in found]}
    if not found:
        text = "There are no profiles yet: make one with `joulecast profile NET --on cpu`."
        return Answer(data, Report(text, ()))
    table = make_table(_COLUMNS, map(_format_summary, found))
    return Answer(data, Report("", (table,), kind="profiles"))


@verb
def show_profile(device: StoredDevice, *, store: given.Store = None) -> Answer:
    """Show the profile of DEVICE."""
    with open_store(store, create=False) as opened:
        profile = opened.find_profile(device)
    observed = summarise_observations(profile.observations)
    facts = [
        ("device", f"{profile.device.name} ({profile.device.processor})"),
        ("power mode", profile.device.power_mode or "-"),
        ("key", profile.key),
        ("runtime", profile.runtime),
        ("covers", profile.covers),
        ("provenance", describe_provenance(profile.provenance)),
        ("observations", str(len(profile.observations))),
    ]
    blocks: list[Block] = [make_table(("profile", "~"), facts)]
    for setup, count in observed.setups:
        blocks.append(Text(f"{plural(count, 'observation')} at {describe_setup(setup)}"))
    blocks += tabulate_fits(profile)
    return Answer(
        describe_profile(profile), Report("", tuple(blocks), profile.provenance, "profile")
    )


@verb
def export_profile(device: StoredDevice, file: File, *, store: given.Store = None) -> Answer:
    """Write the profile of DEVICE to FILE, as JSON with a checksum."""
    with open_store(store, create=False) as opened:
        profile = opened.find_profile(device)
    write_profile(profile, file)
    count = len(profile.observations)
    data = {"file": file, "key": profile.key, "observations": count}
    return Answer(data, Report(f"Wrote {plural(count, 'observation')} to {file}.", ()))


@verb
def import_profile(file: File, *, store: given.Store = None) -> Answer:
    """Add the profile in FILE to the store, which keeps what it already has."""
    from joulecast.features.outside_profiles import read_outside_profile

    profile = read_outside_profile(file)
    with open_store(store) as opened:
        new = opened.import_profile(profile)
    name = profile.device.name
    data = {"key": profile.key, "device": name, "new_observations": new}
    text = f"Added {plural(new, 'new observation')} to the profile of {name}."
    return Answer(data, Report(text, ()))


@verb
def remove_profile(device: StoredDevice, *, store: given.Store = None) -> Answer:
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
    text = f"Removed {plural(count, 'observation')} of {profile.device.name}."
    return Answer(data, Report(text, ()))


def describe_profile(profile: Profile) -> Json:
    """Return a profile as JSON values, without its single observations."""
    from joulecast.estimators import describe_fits

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


def tabulate_fits(profile: Profile) -> list[Table]:
    """Return what each fit consists of, with its numbers of data points."""
    from joulecast.estimators import describe_fits

    tables = []
    for name, items in describe_fits(profile).items():
        has_features = any(item.features for item in items)
        columns = ("features",) if has_features else ()
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
            columns = (f"fitted ({name})", *columns, ">energy points", ">time points")
            tables.append(make_table(columns, rows))
    return tables


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
