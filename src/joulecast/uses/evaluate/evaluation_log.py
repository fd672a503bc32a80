"""Observations of one evaluation, distinguished by their run tags.

    1a2b….test1             test networks, first pass       1a2b….test2   second pass
    1a2b….additive          campaign of ``additive``
    1a2b….additive.probe    probes of the test networks for ``additive``
    1a2b….flops             whole networks that ``flops`` and other baselines learn from

The part after the evaluation's name is the role of an observation. A campaign sees only the
observations of its own role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from joulecast.records import Observation

Json = dict[str, Any]

PASSES = ("test1", "test2")
"""Roles of the two passes over the test networks."""


class EvaluationLog:
    """The observations of one evaluation.

    Args:
        name: Name of the evaluation.
        observations: All stored observations of the device.
        store: Stores an observation permanently; None if none will be added.
    """

    def __init__(
        self,
        name: str,
        observations: Iterable[Observation],
        store: Callable[[Observation], None] | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._observations = [one for one in observations if one.run.startswith(f"{name}.")]

    def make_tag(self, role: str) -> str:
        """Return the run tag of observations with this role."""
        return f"{self.name}.{role}"

    def add(self, observation: Observation) -> None:
        """Store an observation, then append it."""
        if self._store is not None:
            self._store(observation)
        self._observations.append(observation)

    def list_all(self) -> tuple[Observation, ...]:
        """Return all observations, in the order they were made."""
        return tuple(self._observations)

    def list_for(self, role: str) -> tuple[Observation, ...]:
        """Return the observations with this role, in the order they were made."""
        tag = self.make_tag(role)
        return tuple(one for one in self._observations if one.run == tag)


class CampaignObservations:
    """The observations of one campaign of an evaluation, as an ``ObservationLog``."""

    def __init__(self, log: EvaluationLog, role: str) -> None:
        self._log = log
        self._role = role

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return the observations of this campaign alone."""
        return self._log.list_for(self._role)

    def add_observation(self, observation: Observation) -> None:
        """Store an observation permanently."""
        self._log.add(observation)

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return nothing: each campaign of an evaluation starts afresh."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Discard the fit: a fit to a part of the observations must not replace the profile's."""
