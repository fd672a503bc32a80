"""Read and write profiles and networks as JSON files.

    {"format": "joulecast-profile", "version": 2, "sha256": "...", "profile": {...}}
    {"format": "joulecast-network", "version": 1, "sha256": "...", "network": {...}}

The checksum is over the content as compact JSON with sorted keys, so it does not depend on the
indentation. A profile must have one; a network may omit it, so that one can be written by hand.
Writing is atomic: a temporary file is synced to disk and then moved into place. Each layer of a
network has a line of its own, so that ``diff`` stays readable.

In a profile, the observations and each fit are packed: JSON, compressed by zlib, in base64. Reading
the file leaves them packed; they are decoded when they are first used. Beside them stand a summary
of the observations and the number of observations each fit was made from. The checksum covers all
of it. Version 1 of the format, with observations and fits as plain JSON, is still read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from joulecast.operators import check_network
from joulecast.records import (
    DataSheet,
    Device,
    Json,
    LazyObservations,
    Network,
    Observation,
    ObservationSummary,
    Profile,
    Record,
    StoredFits,
    find_fit_count,
    load_record,
    summarise_observations,
)
from joulecast.records.codec import Count, omit_default
from joulecast.records.observation import Provenance
from joulecast.system.errors import FileError, InputError
from joulecast.system.files import (
    MOST_JSON_BYTES,
    MOST_UNPACKED_BYTES,
    decompress,
    first_line,
    parse_json,
    read_limited,
    write_atomically,
)

VERSIONS = {"profile": 2, "network": 1}


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile to a file, atomically.

    Raises:
        InputError: The profile mixes observations of several profiles, or contains a value that
            would not be read again: a number that is not finite, or more than fits a file.
    """
    mixed = explain_mixed(profile, profile.observations)
    if mixed:
        raise InputError(f"{mixed}; write them to files of their own")
    packed = _PackedProfile(
        profile.device,
        profile.runtime,
        profile.covers,
        profile.provenance,
        summarise_observations(profile.observations),
        _pack([one.to_dict() for one in profile.observations]),
        {
            name: _PackedFit(_pack(data), find_fit_count(profile.fits, name))
            for name, data in profile.fits.items()
        },
        profile.data_sheet,
    )
    _write("profile", packed.to_dict(), path)


def read_profile(path: str | Path) -> Profile:
    """Return the profile in a file.

    Its observations and fits are decoded when they are first used, which raises FileError as well
    where they are damaged or mix several profiles.

    Raises:
        FileError: The file is missing, damaged, not a profile, or written by a newer version.
    """
    version, data = _open_envelope("profile", _parse(Path(path)), path)
    if version == 1:
        plain: Profile = load_record(Profile, data, str(path))
        _check_same_profile(plain, plain.observations, path)
        return plain
    file: _PackedProfile = load_record(_PackedProfile, data, str(path))
    profile = Profile(
        file.device, file.runtime, file.covers, file.provenance, data_sheet=file.data_sheet
    )
    parse = partial(_unpack_observations, file, profile, path)
    decoders = {
        name: partial(_unpack, fit.packed, f"the fit of {name} in {path}", dict)
        for name, fit in file.fits.items()
    }
    counts = {name: fit.observation_count for name, fit in file.fits.items()}
    known = {name: count for name, count in counts.items() if count is not None}
    return replace(
        profile,
        observations=LazyObservations(file.summary.count, parse, lambda: file.summary),
        fits=StoredFits(decoders, known),
    )


def write_network(network: Network, path: str | Path) -> None:
    """Write a network to a file, atomically."""
    _write("network", network.to_dict(), path)


def read_network(path: str | Path) -> Network:
    """Return the network in a file, with each layer checked against the table of kinds.

    Raises:
        FileError: The file is missing, damaged, not a network, written by a newer version, or
            describes an impossible network.
    """
    return decode_network(_parse(Path(path)), str(path), is_file=True)


def decode_network(data: Any, name: str, *, is_file: bool = False) -> Network:
    """Return the network of a file's content, or of what ``Network.to_dict`` returns.

    With ``is_file``, only the former; ``name`` is what messages call it.
    """
    if is_file or (isinstance(data, dict) and "format" in data):
        _, data = _open_envelope("network", data, name, needs_checksum=False)
    try:
        network = Network.from_dict(data)
        check_network(network)
    except InputError as error:
        raise FileError(f"{name}: {first_line(error)}; correct the file") from error
    return network


# ---------------------------------------------------------------------------------------------
# Packed profiles


@dataclass(frozen=True)
class _PackedFit(Record):
    """A fit in a profile file, and the number of observations it was made from if known."""

    packed: str
    observation_count: Count | None = omit_default(None)


@dataclass(frozen=True)
class _PackedProfile(Record):
    """The content of a profile file."""

    device: Device
    runtime: str
    covers: str
    provenance: Provenance
    summary: ObservationSummary
    observations: str
    fits: Mapping[str, _PackedFit]
    data_sheet: DataSheet | None = omit_default(None)


def _unpack_observations(
    file: _PackedProfile, profile: Profile, path: str | Path
) -> tuple[Observation, ...]:
    rows = _unpack(file.observations, f"the list of observations in {path}", list)
    count = file.summary.count
    if len(rows) != count:
        raise FileError(f"{path} is damaged (it should have {count} observations); export it again")
    observations = tuple(
        load_record(Observation, row, f"observation {number} in {path}")
        for number, row in enumerate(rows, start=1)
    )
    _check_same_profile(profile, observations, path)
    return observations


def _pack(data: Any) -> str:
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise InputError("the profile contains a number that is not finite") from error
    if len(text) > MOST_UNPACKED_BYTES:
        raise InputError(
            f"the profile is larger than {MOST_UNPACKED_BYTES // 2**20} MiB: a file of it could "
            "not be read again"
        )
    return base64.b64encode(zlib.compress(text.encode(), level=9)).decode()


def _unpack(packed: str, what: str, kind: type) -> Any:
    try:
        data = parse_json(decompress(base64.b64decode(packed, validate=True)))
        if not isinstance(data, kind):
            raise ValueError(f"it is not a {kind.__name__}")
    except ValueError as error:
        raise FileError(f"{what} is damaged ({first_line(error)}); export it again") from error
    return data


# ---------------------------------------------------------------------------------------------
# Check


def _check_same_profile(
    profile: Profile, observations: Sequence[Observation], path: str | Path
) -> None:
    mixed = explain_mixed(profile, observations)
    if mixed:
        raise FileError(f"{path}: {mixed}; export it again")


def explain_mixed(profile: Profile, observations: Sequence[Observation]) -> str:
    """Return which observation belongs to another profile; empty if none does."""
    # Hashing a key takes longer than comparing: most observations share one identity.
    checked = set()
    for number, one in enumerate(observations, start=1):
        identity = (one.device, one.runtime, one.covers, one.provenance)
        if identity in checked:
            continue
        own = Profile(*identity)
        if own.key != profile.key:
            return (
                f"observation {number} belongs to the profile of {_describe(own)}, the others to "
                f"that of {_describe(profile)}"
            )
        checked.add(identity)
    return ""


# ---------------------------------------------------------------------------------------------
# The file around the content


def _write(what: str, data: Json, path: str | Path) -> None:
    """Write JSON with one line per field, and one per item in lists of records."""
    try:
        head = {"format": f"joulecast-{what}", "version": VERSIONS[what], "sha256": _checksum(data)}
    except ValueError as error:
        raise InputError(f"the {what} contains a number that is not finite") from error
    fields = ",\n".join(f"  {json.dumps(key)}: {_spread(data[key])}" for key in data)
    text = f'{json.dumps(head)[:-1]}, "{what}": {{\n{fields}\n}}}}\n'
    write_atomically(text.encode(), Path(path))


def _spread(value: Any) -> str:
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return json.dumps(value)
    return "[\n" + ",\n".join("    " + json.dumps(one) for one in value) + "\n  ]"


def _checksum(data: Json) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _open_envelope(
    what: str, envelope: Any, path: str | Path, *, needs_checksum: bool = True
) -> tuple[int, Json]:
    """Return the version and the content of a file, if it is of its kind and has its checksum."""

    def name_damage(reason: str) -> FileError:
        return FileError(f"{path} is damaged ({reason}); export it again")

    own = f"joulecast-{what}"
    found = envelope.get("format") if isinstance(envelope, dict) else None
    if found != own:
        other = f"a {found} file" if isinstance(found, str) else "another kind of file"
        raise FileError(f"{path} is {other}, not a {own} file: give one that Joulecast wrote")
    version = envelope.get("version")
    if not isinstance(version, int) or version < 1:
        raise name_damage(f"its version is {version!r}")
    if version > VERSIONS[what]:
        raise FileError(
            f"{path} was written by a newer version of Joulecast "
            f"(format {version}; this one reads {VERSIONS[what]}): upgrade"
        )
    for key in envelope:
        # A damaged name of the checksum would otherwise leave a network unchecked.
        if key not in ("format", "version", "sha256", what):
            raise name_damage(f"unknown field {key!r}")
    data, checksum = envelope.get(what), envelope.get("sha256")
    if not isinstance(data, dict):
        raise name_damage(f"{what} is missing")
    if checksum is None and needs_checksum:
        raise name_damage("sha256 is missing")
    try:
        is_whole = checksum is None or _checksum(data) == checksum
    except ValueError:
        # A number like 1e999 is infinite, which is never written.
        is_whole = False
    if not is_whole:
        raise name_damage("its checksum does not match")
    return version, data


def _parse(path: Path) -> Any:
    try:
        return parse_json(read_limited(path, MOST_JSON_BYTES))
    except ValueError as error:
        reason = first_line(error)
        raise FileError(f"{path} is not JSON, or damaged ({reason}); export it again") from error


def _describe(profile: Profile) -> str:
    device = profile.device
    parts = (device.name, device.power_mode, profile.runtime, profile.covers, profile.provenance)
    return ", ".join(part for part in parts if part) or "nothing"
