"""Estimate networks as a user does: from the shipped profile, with probes, and by rivals."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import joulecast
from joulecast.errors import JoulecastError
from joulecast.estimators import DEFAULT, FittedProfile, fit_profile, list_estimator_names
from joulecast.records import Estimate, Network, Observation, Profile, Setup
from joulecast.runtimes.torch.inputs import find_first_tensor
from joulecast.store import open_store
from training_examples import BenchmarkNetwork, TrainingExample

Json = dict[str, Any]

DEVICE = "nvidia-h200"
UNNAMED = "unnamed"
"""Unit of observations that do not say which card they are from."""


def list_options(entry: BenchmarkNetwork, example: TrainingExample) -> Json:
    """Return the options that a user gives besides the module and its inputs."""
    options: Json = {"precision": entry.precision, "optimizer": entry.optimizer}
    return {**options, "loss": example.loss} if callable(example.loss) else options


def read_network(entry: BenchmarkNetwork, example: TrainingExample) -> tuple[Network, Setup, float]:
    """Read a module; return its network, its setup and the seconds it took.

    The batch is the first axis of the inputs, as everywhere in Joulecast: where a sample has two
    views, that is twice the batch of the table.
    """
    first = find_first_tensor(example.inputs)
    assert first is not None
    batch = first.shape[0]
    started_s = time.perf_counter()
    network = joulecast.inspect(example.module, example.inputs, **list_options(entry, example))
    seconds = time.perf_counter() - started_s
    return network, Setup(batch, precision=entry.precision, optimizer=entry.optimizer), seconds


def estimate_shipped(network: Network, setup: Setup, device: str | Profile = DEVICE) -> Json:
    """Estimate a network from a profile alone, the shipped one by default."""
    with tempfile.TemporaryDirectory() as folder:
        return record_estimate(
            lambda: joulecast.estimate(
                network, setup=setup, device=device, store=f"{folder}/empty.sqlite"
            )
        )


class Rivals:
    """All estimators but the default one, each fitted to a profile once."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.fits: dict[str, FittedProfile] = {}
        self.failures: dict[str, str] = {}

    def estimate(self, network: Network, setup: Setup) -> Json:
        """Return the estimate of each rival, or why there is none."""
        return {name: self._estimate_one(name, network, setup) for name in list_rivals()}

    def _estimate_one(self, name: str, network: Network, setup: Setup) -> Json:
        if name in self.failures:
            return {"error": self.failures[name]}
        try:
            if name not in self.fits:
                self.fits[name] = fit_profile(self.profile, name)
        except JoulecastError as error:
            self.failures[name] = str(error)
            return {"error": str(error)}
        try:
            found = self.fits[name].estimate([network], setup)[0]
        except JoulecastError as error:
            return {"error": str(error)}
        return {
            "energy_j": found.energy_j,
            "interval_j": list(found.interval_j),
            "duration_s": found.duration_s,
        }


def list_rivals() -> list[str]:
    """Return the names of all estimators but the default one."""
    return [name for name in list_estimator_names() if name != DEFAULT]


def estimate_probed(
    entry: BenchmarkNetwork, example: TrainingExample, on: str, seconds: float | None = None
) -> tuple[Json, list[Observation]]:
    """Probe a module's layers, with a new store, and estimate it; return the probes as well.

    Args:
        entry: The network.
        example: Its module and inputs.
        on: Device that the probes run on.
        seconds: Longest duration of the probes; as long as Joulecast allows by default.
    """
    options = list_options(entry, example)
    if seconds is not None:
        options["probe_seconds"] = seconds
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/probes.sqlite"
        found = record_estimate(
            lambda: joulecast.estimate(
                example.module, example.inputs, probe=True, on=on, store=store, **options
            )
        )
        observations = load_observations(Path(store))
    found["measuring_s"] = sum_costs(observations)
    found["observations"] = len(observations)
    return found, observations


def load_observations(store: Path) -> list[Observation]:
    """Return what a store holds besides the shipped profiles."""
    with (
        tempfile.TemporaryDirectory() as nothing,
        open_store(store, shipped=Path(nothing)) as opened,
    ):
        keys = [profile.key for profile in opened.list_profiles()]
        return [one for key in keys for one in opened.load_observations(key)]


def sum_costs(observations: Iterable[Observation]) -> float:
    """Return the device time of observations."""
    return sum(one.cost_s for one in observations)


def record_estimate(estimate: Callable[[], Estimate]) -> Json:
    """Return what the report needs of an estimate, and how long it took."""
    started_s = time.perf_counter()
    found = estimate()
    wall_s = time.perf_counter() - started_s
    if not all(map(math.isfinite, (found.energy_j, *found.interval_j, found.duration_s))):
        raise ValueError(f"the estimate is not finite: {found.energy_j} J, {found.interval_j}")
    duration = found.duration_interval_s
    return {
        "energy_j": found.energy_j,
        "interval_j": list(found.interval_j),
        "level": found.level,
        "duration_s": found.duration_s,
        "duration_interval_s": None if duration is None else list(duration),
        "unseen_share": found.unseen_share,
        "host_share": found.host_share,
        "peak_memory_bytes": found.peak_memory_bytes,
        "uncertainty_sources": dict(found.uncertainty_sources),
        "notes": list(getattr(found, "notes", ())),
        "wall_s": wall_s,
    }
