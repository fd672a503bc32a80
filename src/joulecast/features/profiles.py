"""Find, list, export and import profiles of devices.

A profile is found by the device's name, its key or file, or for a device of this machine:

    a name or key of `joulecast profiles list`     its profile
    a device of the catalogue                      its profile if it was measured, else a profile
                                                   without observations, of its data sheet
    profile.json, data_sheet.toml                  what the file contains
    all                                            every profile, then the rest of the catalogue
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, cast

from joulecast.families import make_family
from joulecast.features import arguments as given
from joulecast.features.arguments import MESSAGES, Argument, convert_on, is_torch_device, verb
from joulecast.operators import check_observed
from joulecast.records import (
    DataSheet,
    Device,
    Json,
    LazyObservations,
    Observation,
    Profile,
    Setup,
    StoredFits,
    find_fit_count,
    summarise_observations,
)
from joulecast.store import open_store
from joulecast.store.files import read_profile, write_profile
from joulecast.store.profiles import match_profiles
from joulecast.system.errors import FileError, InputError, JoulecastError, MissingError, arg
from joulecast.system.files import first_line
from joulecast.views.report import Answer, Block, Report, Table, Text, make_table
from joulecast.views.words import describe_provenance, describe_setup, plural

if TYPE_CHECKING:
    from joulecast.features.arguments import DeviceLike
    from joulecast.store import ProfileSummary

_MESSAGES = logging.getLogger(MESSAGES)
SHORT_KEY = 8
"""Digits of a profile's key that messages show."""
# Joules and seconds of a step of a small network.
_MOST = 1e15
_COLUMNS = ("key", "device", "runtime", "covers", "provenance", ">observations", "changed")

StoredDevice = Annotated[
    str, Argument("A device's name, a profile's key, or the beginning of either.")
]
File = Annotated[str, Argument("A profile's file.", harm="writes a file")]


def load_profile(
    device: DeviceLike | Profile | None = "", *, on: DeviceLike = "cpu", store: str | None = None
) -> Profile:
    """Return the profile of a device.

    Args:
        device: A device's name, a profile's key or the beginning of either, a profile's ``.json``
            file, a device of the catalogue, a ``.toml`` file that describes a device, or a
            ``torch.device`` of this machine; the device ``on`` by default. A device of the
            catalogue that was never measured has a profile without observations. A profile stands
            for itself.
        on: A device of this machine: ``cpu``, ``cuda:0``, ``mnn:cpu``, ``onnx:cpu``, or a
            ``torch.device``.
        store: Path or URL of the store, if not the usual one.

    Raises:
        InputError: Several devices match, or a data sheet cannot be used.
        FileError: The file is damaged or newer than this version of Joulecast.
        MissingError: There is no such device, or ``on`` is not available.
    """
    if isinstance(device, Profile):
        return device
    if is_torch_device(device):
        device, on = "", device or on
    if not isinstance(device, (str, os.PathLike, NoneType)):
        raise InputError(
            f"device is {device!r}: give the name of a device with a profile, a profile's file, "
            "or a torch.device of this machine"
        )
    name, on = os.fspath(device or ""), convert_on(on)
    if name.endswith(".json"):
        return read_outside_profile(name)
    if name.endswith(".toml"):
        from joulecast.devices.data_sheets import make_sheet_profile, read_data_sheet

        return make_sheet_profile(read_data_sheet(name))
    with open_store(store, create=False) as opened:
        known = opened.list_profiles()
        if name:
            matches = match_name(known, name)
        else:
            here, framework = find_device(on)
            name, matches = here.name, _match_device(known, here, framework, on)
        if isinstance(matches, DataSheet):
            from joulecast.devices.data_sheets import make_sheet_profile

            return make_sheet_profile(matches)
        if len(matches) > 1:
            best, count = matches[0], len(matches) - 1
            facts = (best.device, best.power_mode, best.runtime, best.covers, best.provenance)
            others = "1 other matches" if count == 1 else f"{count} others match"
            _MESSAGES.info(
                f"Using profile {best.key[:SHORT_KEY]} ({', '.join(filter(None, facts))}); "
                f"{others} {name!r}: choose one of `joulecast profiles list` with --device KEY."
            )
        return opened.load_profile(matches[0].key)


def load_observed_profile(
    device: DeviceLike | Profile | None, *, store: str | None = None
) -> Profile:
    """Return the profile of a device, for what needs its observations."""
    profile = load_profile(device, store=store)
    if profile is not device and profile.data_sheet is not None and not profile.observations:
        raise MissingError(
            f"{profile.device.name} was never measured, and its data sheet has no observations: "
            "measure it with `joulecast profile NET --on cuda:0`, or import its profile"
        )
    return profile


def find_device(on: str) -> tuple[Device, str]:
    """Return the device ``on`` and its framework: of this machine, simulated or by its agent."""
    # Most estimates name a device, and need no connection.
    from joulecast.agent.addresses import is_remote
    from joulecast.devices.detect import detect_device
    from joulecast.runtimes import find_hardware, name_framework, open_runtime

    if is_remote(on):
        from joulecast.features.measurers import MeasureOptions, open_remote

        with open_remote(MeasureOptions(on)) as remote:
            return remote.runtime.device, remote.runtime.name.partition("-")[0]
    hardware = find_hardware(on)
    device = open_runtime(on).device if hardware is None else detect_device(hardware)
    return device, name_framework(on)


def find_profiles(
    devices: DeviceLike | Profile | Sequence[DeviceLike | Profile], store: str | None = None
) -> dict[str, Profile | str]:
    """Return the profile of every device, or the reason why there is none, unless none has one.

    ``all`` stands for every profile and every other device of the catalogue.
    """
    from joulecast.devices.data_sheets import ALL

    found: dict[str, Profile | str] = {}
    errors: list[JoulecastError] = []
    one = cast("DeviceLike | Profile", devices)
    wanted = list(devices) if isinstance(devices, (list, tuple)) else [one]
    if ALL in wanted:
        with open_store(store, create=False) as opened:
            known = opened.list_profiles()
        place = wanted.index(ALL)
        keys, names = [one.key for one in known], [one.name for one in list_unmeasured(known)]
        wanted[place : place + 1] = [*keys, *names]
    for device in wanted or ("",):
        name = device.key if isinstance(device, Profile) else str(device or "")
        try:
            found[name] = load_profile(device, store=store)
        except JoulecastError as error:
            errors.append(error)
            found[name] = str(error)
    if len(errors) == len(found):
        raise errors[0]
    return found


def identify_profile(profile: Profile, store: str | None = None) -> str:
    """Return what identifies a profile: the name of its device if unique, else its short key."""
    with open_store(store, create=False) as opened:
        named = [one for one in opened.list_profiles() if one.device == profile.device.name]
    return profile.device.name if len(named) <= 1 else profile.key[:SHORT_KEY]


def match_name(known: Sequence[ProfileSummary], name: str) -> list[ProfileSummary] | DataSheet:
    """Return the profiles that a name means, the best one first, or the data sheet of a device.

    No file is read but those of the catalogue.
    """
    if any(name.lower() in (one.device.lower(), one.key) for one in known):
        return match_profiles(known, name)
    from joulecast.devices import data_sheets

    # The whole name of a device of the catalogue counts more than the beginning of another.
    sheet = data_sheets.match_data_sheet(name)
    if sheet is None:
        try:
            return match_profiles(known, name)
        except MissingError as error:
            if not data_sheets.search_data_sheets(name):
                advice = f"the catalogue has none either: {data_sheets.suggest_devices(name)}"
                raise MissingError(f"{error}; {advice}") from error
            sheet = data_sheets.find_data_sheet(name)
    measured = [one for one in known if data_sheets.is_named(sheet, one.device)]
    return match_profiles(measured, measured[0].device) if measured else sheet


def list_unmeasured(known: Sequence[ProfileSummary]) -> tuple[DataSheet, ...]:
    """Return the devices of the catalogue that have none of the known profiles."""
    from joulecast.devices.data_sheets import is_named, list_data_sheets

    names = [one.device for one in known]
    return tuple(
        sheet for sheet in list_data_sheets() if not any(is_named(sheet, name) for name in names)
    )


def _match_device(
    known: Sequence[ProfileSummary], device: Device, framework: str, on: str
) -> list[ProfileSummary]:
    """Return the profiles of a device in its framework and power mode, the best one first."""
    from joulecast.devices.data_sheets import match_data_sheet

    place = f"{on} ({device.name}" if "://" in on else f"{on} of this machine ({device.name}"
    names = "`joulecast profiles list` or `joulecast devices`"
    other = f"or name a device of {names} with {arg('device')}"
    named = [
        one
        for one in known
        if one.device == device.name and one.runtime.partition("-")[0] == framework
    ]
    if not named:
        sheet = match_data_sheet(device.processor)
        if sheet is not None:
            other = f"or use its data sheet with {arg('device', sheet.name)}"
        raise MissingError(
            f"{place}) has no profile yet: make one with `joulecast profile NET --on {on}`, "
            f"measure a single step with `joulecast estimate NET --on {on} --probe`, {other}"
        )
    # A power mode that is not known is no other one.
    modes = ("", device.power_mode) if device.power_mode else {one.power_mode for one in named}
    alike = [one for one in named if one.power_mode in modes]
    if not alike:
        seen = ", ".join(dict.fromkeys(one.power_mode for one in named))
        raise MissingError(
            f"{place}, {device.power_mode}) has no profile in this power mode, only in {seen}: "
            f"profile it with `joulecast profile NET --on {on}`, {other}"
        )
    return match_profiles(alike, device.name)


# ---------------------------------------------------------------------------------------------
# The profiles of a store


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


# ---------------------------------------------------------------------------------------------
# Files from others
#
# Types and ranges are checked when a value is decoded. Whether the sizes of a layer fit together
# only its kind knows, and whether the arrays of a fit do only its estimator: a fit is tried on a
# small network.


def read_outside_profile(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a file; using impossible observations or fits raises FileError."""
    profile = read_profile(os.fspath(path))
    fits, observations = profile.fits, profile.observations
    counts = {name: find_fit_count(fits, name) for name in fits}
    return replace(
        profile,
        observations=LazyObservations(
            len(observations),
            partial(_check_observations, observations, os.fspath(path)),
            lambda: summarise_observations(observations),
        ),
        fits=StoredFits(
            {name: partial(_try_fit, fits, name, os.fspath(path)) for name in fits},
            {name: count for name, count in counts.items() if count is not None},
        ),
    )


def _check_observations(observations: Sequence[Observation], path: str) -> tuple[Observation, ...]:
    for number, one in enumerate(observations, start=1):
        try:
            check_observed(one.trial.network)
        except InputError as error:
            raise FileError(
                f"observation {number} in {path} is damaged ({error}); export it again"
            ) from error
    return tuple(observations)


def _try_fit(fits: Mapping[str, Any], name: str, path: str) -> Any:
    """Return a fit with which its estimator can predict; unknown estimators are not tried."""
    data = fits[name]
    try:
        _predict(name, data)
    except JoulecastError as error:
        raise FileError(f"the fit of {name} in {path} is damaged ({error})") from error
    except Exception as error:
        # An estimator may stumble over anything in arrays that do not fit together.
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise FileError(
            f"the fit of {name} in {path} is damaged ({reason}); export it again"
        ) from error
    return data


def _predict(name: str, data: Any) -> None:
    # Most commands read no file, and importing takes a moment.
    import numpy as np

    from joulecast.estimators import find_estimator

    try:
        estimator = find_estimator(name)
    except (InputError, MissingError):
        return
    if not isinstance(data, Mapping):
        raise TypeError("not a JSON object")
    if data.get("version", 1) != estimator.version:
        return
    with np.errstate(all="ignore"):
        fitted = estimator.load(dict(data))
        fitted.describe()
        found = fitted.predict([make_family("lenet5")], [Setup(batch=10)], joint=True)
    values = np.array([found.energy_j, found.energy_sd_j, found.duration_s])
    # Also false for NaN.
    if not ((values >= 0.0) & (values <= _MOST)).all():
        raise ValueError("its prediction is impossible")
