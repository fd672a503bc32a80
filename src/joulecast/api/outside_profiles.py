"""Read a profile that anybody may have written, and try its fits before they are used.

Types and ranges of a fit are checked when it is decoded. Whether its arrays fit together only its
estimator knows, so that a fit is tried on a small network when it is first asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from joulecast.errors import FileError, InputError, JoulecastError, MissingError
from joulecast.families import make_family
from joulecast.files import read_profile
from joulecast.input_files import first_line
from joulecast.records import Profile, Setup, StoredFits, find_fit_count

# Joules and seconds of a step of a small network.
_MOST = 1e15


def read_outside_profile(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a file; asking for a damaged fit of it raises FileError.

    Raises:
        FileError: The file is missing, damaged, not a profile, or written by a newer version.
    """
    profile = read_profile(os.fspath(path))
    fits = profile.fits
    counts = {name: find_fit_count(fits, name) for name in fits}
    return replace(
        profile,
        fits=StoredFits(
            {name: partial(_try_fit, fits, name, os.fspath(path)) for name in fits},
            {name: count for name, count in counts.items() if count is not None},
        ),
    )


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
        raise TypeError("it is no object")
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
