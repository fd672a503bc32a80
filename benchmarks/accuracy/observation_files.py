"""Read observations from stores, profile files and packed profile files.

A packed file is the output of ``joulecast.files.write_profile``, compressed with gzip: equal
observations give equal bytes. Unpacked, ``joulecast profiles import`` reads it.
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
    """Return the profiles of a store, or the one of a profile file, packed or not.

    Raises:
        FileError: There is no such file, or it is damaged.
    """
    if not file.exists():
        raise FileError(f"no file {file}: give a store that measure.py wrote")
    if file.name.endswith(PACKED):
        return [_unpack(file)]
    if file.suffix == ".json":
        return [read_profile(file)]
    with open_store(file, create=False) as store:
        return [store.load_profile(one.key) for one in store.list_profiles() if not one.shipped]


def write_packed(profile: Profile, file: Path) -> None:
    """Write a profile as a packed file; equal profiles give equal bytes."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "profile.json"
        write_profile(profile, plain)
        data = plain.read_bytes()
    # Without date and name, the bytes depend on the observations alone.
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
