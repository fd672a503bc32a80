"""Read a profile that anybody may have written, and check what is in it when it is first used.

Types and ranges are checked when a value is decoded. Whether the sizes of a layer fit together only
its kind knows, and whether the arrays of a fit do only its estimator: a fit is tried on a small
network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from joulecast.families import make_family
from joulecast.operators import check_observed
from joulecast.records import (
    LazyObservations,
    Observation,
    Profile,
    Setup,
    StoredFits,
    find_fit_count,
    summarise_observations,
)
from joulecast.store.files import read_profile
from joulecast.system.errors import FileError, InputError, JoulecastError, MissingError
from joulecast.system.files import first_line

# Joules and seconds of a step of a small network.
_MOST = 1e15


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
            summarise_observations(observations),
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
