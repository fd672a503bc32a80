"""Find the profile of a device: by the device's name, a profile's key or file, or this machine.

a name or key of `joulecast profiles list`     its profile
a device of the catalogue                      its profile if it was measured, else a profile
                                               without observations, of its data sheet
profile.json, data_sheet.toml                  what the file contains
all                                            every profile, then the rest of the catalogue
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, cast

from joulecast.features.arguments import MESSAGES, convert_on, is_torch_device
from joulecast.records import DataSheet, Device, Profile
from joulecast.store import open_store
from joulecast.store.profiles import match_profiles
from joulecast.system.errors import InputError, JoulecastError, MissingError

if TYPE_CHECKING:
    from joulecast.features.arguments import DeviceLike
    from joulecast.store import ProfileSummary

_MESSAGES = logging.getLogger(MESSAGES)
SHORT_KEY = 8
"""Digits of a profile's key that messages show."""


def load_profile(
    device: DeviceLike | None = "", *, on: DeviceLike = "cpu", store: str | None = None
) -> Profile:
    """Return the profile of a device.

    Args:
        device: A device's name, a profile's key or the beginning of either, a profile's ``.json``
            file, a device of the catalogue, a ``.toml`` file that describes a device, or a
            ``torch.device`` of this machine; the device ``on`` by default. A device of the
            catalogue that was never measured has a profile without observations.
        on: A device of this machine: ``cpu``, ``cuda:0``, ``mnn:cpu``, ``onnx:cpu``, or a
            ``torch.device``.
        store: Path or URL of the store, if not the usual one.

    Raises:
        InputError: Several devices match, or a data sheet cannot be used.
        FileError: The file is damaged or newer than this version of Joulecast.
        MissingError: There is no such device, or ``on`` is not available.
    """
    if is_torch_device(device):
        device, on = "", device or on
    if not isinstance(device, (str, os.PathLike, NoneType)):
        raise InputError(
            f"device is {device!r}: give the name of a device with a profile, a profile's file, "
            "or a torch.device of this machine"
        )
    name, on = os.fspath(device or ""), convert_on(on)
    if name.endswith(".json"):
        from joulecast.features.outside_profiles import read_outside_profile

        return read_outside_profile(name)
    if name.endswith(".toml"):
        from joulecast.devices.data_sheets import read_data_sheet

        return _make_sheet_profile(read_data_sheet(name))
    with open_store(store, create=False) as opened:
        known = opened.list_profiles()
        if name:
            matches = match_name(known, name)
        else:
            here, framework = find_device(on)
            name, matches = here.name, _match_device(known, here, framework, on)
        if isinstance(matches, DataSheet):
            return _make_sheet_profile(matches)
        if len(matches) > 1:
            best, count = matches[0], len(matches) - 1
            facts = (best.device, best.power_mode, best.runtime, best.covers, best.provenance)
            others = "1 other matches" if count == 1 else f"{count} others match"
            _MESSAGES.info(
                f"Using profile {best.key[:SHORT_KEY]} ({', '.join(filter(None, facts))}); "
                f"{others} {name!r}: choose one of `joulecast profiles list` with --device KEY."
            )
        return opened.load_profile(matches[0].key)


def load_observed_profile(device: DeviceLike | None, *, store: str | None = None) -> Profile:
    """Return the profile of a device, for what needs its observations."""
    profile = load_profile(device, store=store)
    if profile.data_sheet is not None and not profile.observations:
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
        from joulecast.features.measurers import open_remote
        from joulecast.features.options import MeasureOptions

        with open_remote(MeasureOptions(on)) as remote:
            return remote.runtime.device, remote.runtime.name.partition("-")[0]
    hardware = find_hardware(on)
    device = open_runtime(on).device if hardware is None else detect_device(hardware)
    return device, name_framework(on)


def find_profile(device: DeviceLike | Profile, store: str | None = None) -> Profile:
    """Return a profile that is given as such or by its device."""
    return device if isinstance(device, Profile) else load_profile(device, store=store)


def find_observed_profile(device: DeviceLike | Profile, store: str | None = None) -> Profile:
    """Return a profile with observations that is given as such or by its device."""
    return device if isinstance(device, Profile) else load_observed_profile(device, store=store)


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
        if isinstance(device, Profile):
            found[device.key] = device
            continue
        name = str(device or "")
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


def _make_sheet_profile(sheet: DataSheet) -> Profile:
    from joulecast.devices.data_sheets import make_sheet_profile

    return make_sheet_profile(sheet)


def _match_device(
    known: Sequence[ProfileSummary], device: Device, framework: str, on: str
) -> list[ProfileSummary]:
    """Return the profiles of a device in its framework and power mode, the best one first."""
    from joulecast.devices.data_sheets import match_data_sheet

    place = f"{on} ({device.name}" if "://" in on else f"{on} of this machine ({device.name}"
    other = "or name a device of `joulecast profiles list` or `joulecast devices` with --device"
    named = [
        one
        for one in known
        if one.device == device.name and one.runtime.partition("-")[0] == framework
    ]
    if not named:
        sheet = match_data_sheet(device.processor)
        if sheet is not None:
            other = f"or use its data sheet with --device {sheet.name}"
        raise MissingError(
            f"{place}) has no profile yet: make one with `joulecast profile NET --on {on}`, {other}"
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
