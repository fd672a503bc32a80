"""Guide a campaign by time where energies come later, and store none in the meantime.

    store ── durations ──▶ energies at a constant power ──▶ campaign
      ◀── windows, no energy ── observation ◀──────────────────┘

The estimators of a campaign choose trials by the uncertainty of energies. At a constant power that
is the uncertainty of durations, which the paper uses where energy cannot be read live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from joulecast.estimators.base import Json
from joulecast.meters.later import STAND_IN_W
from joulecast.records import Observation, Profile
from joulecast.store import Store
from joulecast.store.campaigns import CampaignTables


def drop_energy(observation: Observation) -> Observation:
    """Return an observation without its energy, which is to be read from a power trace."""
    return replace(observation, energy_j=None, energy_sd_j=None, unchecked=())


def add_stand_in(observation: Observation) -> Observation:
    """Return a recorded observation with the energy of a constant power."""
    if not observation.windows or observation.duration_s is None:
        return replace(observation, energy_j=None, energy_sd_j=None)
    spread_s = observation.duration_sd_s
    return replace(
        observation,
        energy_j=STAND_IN_W * observation.duration_s,
        energy_sd_j=None if spread_s is None else STAND_IN_W * spread_s,
    )


@dataclass(frozen=True)
class TimeGuidedLog:
    """A store as a campaign sees it that is guided by time."""

    store: Store

    @property
    def campaigns(self) -> CampaignTables:
        """The campaigns of the store."""
        return self.store.campaigns

    def load_observations(self, profile_key: str) -> Sequence[Observation]:
        """Return all observations of a profile, with the energies of a constant power."""
        return [add_stand_in(one) for one in self.store.load_observations(profile_key)]

    def add_observation(self, observation: Observation) -> None:
        """Store an observation without its energy."""
        self.store.add_observation(drop_energy(observation))

    def load_fit(self, profile_key: str, estimator: str) -> Json | None:
        """Return no fit: what is stored was fitted to other energies."""
        return None

    def save_fit(self, profile_key: str, estimator: str, fitted: Json) -> None:
        """Store no fit: its energies are none."""

    def check_writable(self, profile: Profile) -> None:
        """Raise an error if observations of a profile cannot be stored."""
        self.store.check_writable(profile)

    @contextmanager
    def claim_trial(
        self, planned: Observation, wait_s: float
    ) -> Iterator[Sequence[Observation] | None]:
        """Claim a trial; yield what is stored of it, or None if another campaign has claimed it."""
        with self.store.claim_trial(planned, wait_s) as stored:
            yield None if stored is None else [add_stand_in(one) for one in stored]
