"""Profiles and networks as files: JSON that can be kept, sent, compared and checked.

    {"format": "joulecast-profile", "version": 1, "sha256": "...", "profile": {...}}
    {"format": "joulecast-network", "version": 1, "sha256": "...", "network": {...}}

Takes and gives records. The checksum is that of the content as compact JSON with sorted keys, so
it does not depend on how a file is indented. A profile must carry it; a network may go without, so
that one can be written by hand. A file is written beside its place and moved there when it is
safe on the disk: whoever reads it sees the old one or the new one. One observation or layer a line
keeps it readable for ``diff``.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from joulecast.errors import FileError, InputError
from joulecast.kinds import check_network
from joulecast.records import Json, Network, Profile, StepTotals, load_record

VERSION = 1


def write_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile to a file, whole or not at all."""
    _write("profile", profile.to_dict(), Path(path))


def read_profile(path: str | Path) -> Profile:
    """The profile in a file.

    Raises:
        FileError: It is absent, damaged, no profile, of a newer Joulecast, or mixes devices.
    """
    data = read_content("profile", Path(path))
    profile: Profile = load_record(Profile, data, str(path))
    for number, seen in enumerate(profile.observations, start=1):
        own = Profile(seen.device, seen.runtime, seen.covers, seen.provenance)
        if own.key != profile.key:
            raise FileError(
                f"{path} mixes what a profile keeps apart: observation {number} is of "
                f"{_describe(own)}, the profile of {_describe(profile)}; export it again"
            )
    return profile


def write_network(network: Network, path: str | Path) -> None:
    """Write a network to a file, whole or not at all."""
    _write("network", network.to_dict(), Path(path))


def read_network(path: str | Path) -> Network:
    """The network in a file; each layer is checked against the table of kinds.

    Raises:
        FileError: It is absent, damaged, no network, of a newer Joulecast, or cannot be.
    """
    data = read_content("network", Path(path), sealed=False)
    try:
        network: Network = load_record(Network, data, str(path))
        _check_labels(network)
        check_network(network)
    except InputError as error:
        raise FileError(f"{path}: {_first_line(error)}; correct the file") from error
    except (LookupError, OverflowError, RecursionError) as error:
        reason = _first_line(error)
        raise FileError(f"{path} is damaged ({reason}); export it again") from error
    return network


def _check_labels(network: Network) -> None:
    """What is no part of a network's equality, and would only fail when it is shown."""
    if not isinstance(network.name, str):
        raise InputError(f"the network's name is {network.name!r}; give a word")
    if not isinstance(network.buildable, bool):
        raise InputError(f"buildable is {network.buildable!r}; give true or false")
    for name, value in (network.totals or StepTotals(0.0, 0.0, 0)).to_dict().items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{name} of the totals is {value!r}; give a number")


# ---------------------------------------------------------------------------------------------
# Writing


def _write(what: str, data: Json, path: Path) -> None:
    text = _format(what, data)
    # Beside its place, because moving is atomic within one file system only.
    partial = path.parent / f".{path.name}.{os.getpid()}.partial"
    try:
        _write_safely(text, partial)
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        reason = error.strerror or str(error)
        raise FileError(f"{path} cannot be written ({reason}): give another path") from error


def _write_safely(text: str, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _format(what: str, data: Json) -> str:
    """One line a field, and one a value in fields that hold many."""
    try:
        head = {"format": f"joulecast-{what}", "version": VERSION, "sha256": _checksum(data)}
    except ValueError as error:
        raise InputError(f"a {what} with a number that is not finite cannot be written") from error
    fields = ",\n".join(f"  {json.dumps(key)}: {_spread(data[key])}" for key in data)
    return f'{json.dumps(head)[:-1]}, "{what}": {{\n{fields}\n}}}}\n'


def _spread(value: Any) -> str:
    if not (isinstance(value, list) and value and isinstance(value[0], dict)):
        return json.dumps(value)
    return "[\n" + ",\n".join("    " + json.dumps(one) for one in value) + "\n  ]"


def _checksum(data: Json) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------------------------------------
# Reading


def read_content(what: str, path: Path, *, sealed: bool = True) -> Json:
    """What an envelope holds, checked but not yet made into a record."""
    envelope = _open_envelope(what, path)
    data = envelope.get(what)
    found = envelope.get("sha256")
    if not isinstance(data, dict) or (sealed and found is None):
        missing = "sha256" if isinstance(data, dict) else what
        raise FileError(f"{path} is damaged ({missing} is missing); export it again")
    if found is not None and found != _checksum(data):
        raise FileError(f"{path} is damaged (its checksum does not fit); export it again")
    return data


def _open_envelope(what: str, path: Path) -> Json:
    envelope = _parse(path)
    own = f"joulecast-{what}"
    found = envelope.get("format") if isinstance(envelope, dict) else None
    if found != own:
        other = f"a {found} file" if isinstance(found, str) else "another kind of file"
        raise FileError(f"{path} is {other} and no {own} file: give one that Joulecast wrote")
    version = envelope.get("version")
    if not isinstance(version, int) or version < 1:
        raise FileError(f"{path} is damaged (its version is {version!r}); export it again")
    if version > VERSION:
        raise FileError(
            f"{path} was written by a newer Joulecast "
            f"(format {version}; this one reads {VERSION}): upgrade"
        )
    return dict(envelope)


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes(), parse_constant=_refuse)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}: give the path of one") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}): give another") from error
    except (ValueError, RecursionError) as error:
        reason = _first_line(error)
        raise FileError(f"{path} is no JSON, or damaged ({reason}); export it again") from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _describe(profile: Profile) -> str:
    device = profile.device
    parts = (device.name, device.power_mode, profile.runtime, profile.covers, profile.provenance)
    return ", ".join(part for part in parts if part) or "nothing"
