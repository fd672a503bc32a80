"""Attach a power trace to observations that were recorded with the meter ``later``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import FileError, InputError, MissingError
from joulecast.features.data_fits import refit_profile
from joulecast.features.option_values import convert_option
from joulecast.features.profiles import SHORT_KEY
from joulecast.features.transfer_sources import make_estimator
from joulecast.records import Observation

if TYPE_CHECKING:
    from joulecast.store import ProfileSummary, Store
    from joulecast.traces.alignment import RunAttachment


@dataclass(frozen=True)
class TraceAttachment:
    """What a power trace has filled in.

    Attributes:
        profile_key: The profile whose observations got energies.
        device: Name of its device.
        completed: How many observations got their energy.
        pending: How many of the profile still have none.
        runs: Alignment and refusals of each run.
        is_fitted: Whether there was enough to fit the estimator, so that networks can be estimated.
    """

    profile_key: str
    device: str
    completed: int
    pending: int
    runs: tuple[RunAttachment, ...]
    is_fitted: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "profile": self.profile_key,
            "device": self.device,
            "completed": self.completed,
            "pending": self.pending,
            "is_fitted": self.is_fitted,
            "runs": [_describe_run(one) for one in self.runs],
        }


def attach_trace(
    trace: str | os.PathLike[str],
    *,
    device: str = "",
    run: str = "",
    estimator: str = "auto",
    from_: str | Sequence[str] = (),
    store: str | None = None,
) -> TraceAttachment:
    """Fill in the energy of observations that were recorded with the meter ``later``.

    Their load pulses are found in the trace, the clocks are aligned, and the power in each window
    is integrated. What the trace does not cover, or where pulses do not match, stays as it is.

    Args:
        trace: A CSV file of time and power (see ``traces.power_trace``).
        device: A device's name or a profile's key; by default the only one with recordings.
        run: Only this run of Joulecast, or those that begin with it.
        estimator: Name of the estimator that is fitted afterwards.
        from_: Devices, keys or files of profiles that the device starts from (``--from``).
        store: Path or URL of the store, if not the usual one.

    Raises:
        FileError: The file is not a power trace, or it belongs to none of the recordings.
        MissingError: Nothing waits for a trace.
    """
    from joulecast.store import open_store
    from joulecast.traces.alignment import attach_energies
    from joulecast.traces.power_trace import read_trace

    path, names = Path(trace), convert_option("from_", from_, tuple[str, ...])
    with open_store(store, create=False) as opened:
        summary, pending = _find_pending(opened, device, run)
        runs = attach_energies(read_trace(path), pending, path.name)
        pairs = [pair for one in runs for pair in one.completed]
        if not pairs:
            reasons = dict.fromkeys(reason for one in runs for _, reason in one.refused)
            raise FileError(f"{path} says nothing about {summary.device}: {next(iter(reasons))}")
        method = make_estimator(estimator, names, opened.load_profile(summary.key), store)
        completed = opened.complete_observations(pairs)
        is_fitted = refit_profile(opened, summary.key, method)
        left = sum(one.is_pending for one in opened.load_observations(summary.key))
    return TraceAttachment(summary.key, summary.device, completed, left, tuple(runs), is_fitted)


def _find_pending(
    store: Store, device: str, run: str
) -> tuple[ProfileSummary, Sequence[Observation]]:
    """Return the profile that waits for a trace, and its recorded observations."""
    known = store.list_matches(device) if device else store.list_profiles()
    found = []
    for summary in known:
        if summary.shipped:
            continue
        own = [
            one
            for one in store.load_observations(summary.key)
            if one.is_pending and one.run.startswith(run)
        ]
        if own:
            found.append((summary, own))
    if not found:
        whose = f" of {device}" if device else ""
        which = f" from run {run}" if run else ""
        raise MissingError(
            f"no observation{whose}{which} waits for a trace: record some with `joulecast profile "
            "NET --meter later` first"
        )
    if len(found) > 1:
        names = "; ".join(f"{one.device} ({one.key[:SHORT_KEY]})" for one, _ in found)
        raise InputError(f"{len(found)} profiles wait for a trace: give --device, one of {names}")
    return found[0]


def _describe_run(run: RunAttachment) -> dict[str, Any]:
    found = run.alignment
    return {
        "run": run.run,
        "completed": len(run.completed),
        "refused": [
            {"network": one.trial.network.name, "reason": reason} for one, reason in run.refused
        ],
        "offset_s": found.offset_s if found else None,
        "drift_ppm": 1e6 * found.drift if found else None,
        "residual_s": found.residual_s if found else None,
    }
