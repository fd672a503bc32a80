"""Where observations are kept: stores, profiles as files, and those files packed.

A packed file is the text that ``joulecast.files.write_profile`` writes, compressed: the same
observations give the same bytes. ``gunzip`` makes it a file that ``joulecast profiles import``
takes; ``read_profiles`` reads it as it is.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from pathlib import Path

from joulecast.errors import FileError
from joulecast.files import read_profile, write_profile
from joulecast.records import Profile
from joulecast.store import open_store

PACKED = ".json.gz"


def read_profiles(file: Path) -> list[Profile]:
    """All profiles of a store, or the one of a profile's file, packed or not.

    Raises:
        FileError: There is no such file, or it is damaged.
    """
    if not file.exists():
        raise FileError(f"there is no file {file}: give a store that measure.py filled")
    if file.name.endswith(PACKED):
        return [_unpack(file)]
    if file.suffix == ".json":
        return [read_profile(file)]
    with open_store(file, create=False) as store:
        return [store.profile(one.key) for one in store.profiles() if not one.shipped]


def write_packed(profile: Profile, file: Path) -> None:
    """Write a profile as a packed file; the same profile gives the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "profile.json"
        write_profile(profile, plain)
        data = plain.read_bytes()
    # Neither a date nor a name: only what was observed.
    file.write_bytes(gzip.compress(data, mtime=0))


def _unpack(file: Path) -> Profile:
    try:
        data = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{file} is damaged ({error}); fetch it again") from error
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / file.name.removesuffix(".gz")
        plain.write_bytes(data)
        return read_profile(plain)
