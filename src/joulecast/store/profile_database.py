"""Keep profiles in a database: every method is one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import sqlalchemy as sa

from joulecast.errors import InputError, MissingError
from joulecast.records import Json, Observation, Profile, find_fit_count
from joulecast.records.codec import stable_hash
from joulecast.redaction import redact_url
from joulecast.store import rows
from joulecast.store.campaign_tables import CampaignTables
from joulecast.store.claims import Claims, FileClaims, NoClaims, ServerClaims
from joulecast.store.database import find_file, find_url, open_database
from joulecast.store.database_errors import wrap_errors
from joulecast.store.evaluation_table import EvaluationTable
from joulecast.store.fleet_tables import FleetTables
from joulecast.store.places import IN_MEMORY
from joulecast.store.summaries import ProfileSummary
from joulecast.store.tables import PROFILES
from joulecast.store.transactions import Transactions


def open_profile_database(
    place: str, *, create: bool, wait_s: float, now: Callable[[], float]
) -> ProfileDatabase | None:
    """Return the profiles at a path or URL; None if there are none and ``create`` is False."""
    url = find_url(place)
    file = find_file(url)
    is_server = url.get_backend_name() != "sqlite"
    name = redact_url(place) if is_server else str(file or IN_MEMORY)
    with wrap_errors(name, file):
        engine = open_database(url, create=create, wait_s=wait_s)
    if engine is None:
        return None
    claims: Claims = NoClaims()
    if is_server:
        claims = ServerClaims(engine, wait_s)
    elif file is not None:
        claims = FileClaims(file)
    return ProfileDatabase(engine, Transactions(engine, name, file, wait_s), claims, now)


class ProfileDatabase:
    """Profiles with their observations and fits, in a database.

    Every method raises StoreError if the database cannot be read or written, and then leaves it
    unchanged.
    """

    def __init__(
        self,
        engine: sa.Engine,
        transactions: Transactions,
        claims: Claims,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.place = transactions.place
        self.fleet = FleetTables(transactions, claims, now)
        self.campaigns = CampaignTables(transactions, claims, now)
        self.evaluations = EvaluationTable(transactions, now)
        self._engine = engine
        self._transactions = transactions
        self._claims = claims
        self._now = now

    def close(self) -> None:
        """Close the database. Closing twice is allowed."""
        self._engine.dispose()

    def check_writable(self, profile: Profile) -> None:
        """Raise StoreError or InputError if a profile cannot be stored here."""

        def rehearse(connection: sa.Connection) -> None:
            trial = connection.begin_nested()
            rows.insert_profile(connection, profile, self._now())
            trial.rollback()

        self._transactions.write(rehearse)

    def add_observation(self, observation: Observation) -> None:
        """Append an observation; it is on disk when this returns."""
        profile = find_own_profile(observation)

        def add(connection: sa.Connection) -> None:
            rows.insert_profile(connection, profile, self._now())
            rows.insert_observation(connection, profile.key, observation)

        self._transactions.write(add)

    @contextmanager
    def claim_trial(
        self, planned: Observation, wait_s: float
    ) -> Iterator[tuple[Observation, ...] | None]:
        """Claim a trial; yield what is stored of it, or None if another process has claimed it."""
        profile_key, trial_key = find_own_profile(planned).key, planned.trial.key
        claim = self._claims.hold(stable_hash([profile_key, trial_key]), wait_s)
        with ExitStack() as stack:
            with wrap_errors(self.place):
                is_held = stack.enter_context(claim)
            # What was stored before the claim was released is seen now.
            yield self._load_trial(profile_key, trial_key) if is_held else None

    def find_profile(self, key: str) -> tuple[Profile, set[str]] | None:
        """Return a profile and the runs of its observations; None if it is not here."""

        def find(connection: sa.Connection) -> tuple[Profile, set[str]] | None:
            profile = rows.select_profile(connection, key, self.place)
            if profile is None:
                return None
            observations, runs = rows.select_observations(connection, key, self.place)
            return replace(profile, observations=observations), runs

        with rows.name_store(self.place):
            return self._transactions.read(find)

    def list_profiles(self) -> tuple[ProfileSummary, ...]:
        """Return summaries of all profiles, in the order they were created."""
        with rows.name_store(self.place):
            return self._transactions.read(rows.select_summaries)

    def save_fit(self, key: str, estimator: str, fitted: Json, shipped_count: int) -> None:
        """Store a fit made from the observations here and from ``shipped_count`` others."""

        def save(connection: sa.Connection) -> None:
            self._check_profile(connection, key)
            count = shipped_count + rows.count_observations(connection, key)
            self._replace_fit(connection, key, estimator, fitted, count)

        self._transactions.write(save)

    def import_profile(self, profile: Profile) -> int:
        """Add a profile's observations and fits; return how many observations were new.

        An imported fit replaces one of the same estimator unless that used more observations.
        """
        if profile.data_sheet is not None:
            raise InputError(
                f"the profile of {profile.device.name} is a data sheet, which a store does not "
                "keep: add its TOML file with `joulecast devices --add`"
            )
        key = profile.key
        for observation in profile.observations:
            if find_own_profile(observation).key != key:
                raise InputError(_explain_mixed(observation, profile))

        def add(connection: sa.Connection) -> int:
            rows.insert_profile(connection, profile, self._now())
            new = sum(rows.insert_observation(connection, key, one) for one in profile.observations)
            for estimator, fitted in profile.fits.items():
                known = find_fit_count(profile.fits, estimator)
                count = len(profile.observations) if known is None else known
                if count >= rows.count_fitted(connection, key, estimator):
                    self._replace_fit(connection, key, estimator, fitted, count)
            return new

        return self._transactions.write(add)

    def complete_observations(self, pairs: Sequence[tuple[Observation, Observation]]) -> int:
        """Replace recorded observations by the same ones with energies; return how many."""

        def complete(connection: sa.Connection) -> int:
            count = 0
            for recorded, completed in pairs:
                key = find_own_profile(recorded).key
                # Another process may have been faster.
                if rows.delete_observation(connection, key, recorded):
                    count += rows.insert_observation(connection, key, completed)
                    # As many observations as before, so a fit would still look new.
                    rows.delete_fits(connection, key)
            return count

        return self._transactions.write(complete)

    def remove_profile(self, key: str) -> None:
        """Remove a profile with its observations and fits."""

        def remove(connection: sa.Connection) -> None:
            self._check_profile(connection, key)
            connection.execute(sa.delete(PROFILES).where(PROFILES.c.key == key))

        self._transactions.write(remove)

    def _load_trial(self, profile_key: str, trial_key: str) -> tuple[Observation, ...]:
        def load(connection: sa.Connection) -> tuple[Observation, ...]:
            found, _ = rows.select_observations(
                connection, profile_key, self.place, trial_key=trial_key
            )
            return tuple(found)

        return self._transactions.read(load)

    def _check_profile(self, connection: sa.Connection, key: str) -> None:
        if not rows.has_profile(connection, key):
            raise MissingError(
                f"the store {self.place} has no profile {key!r}; see `joulecast profiles list`"
            )

    def _replace_fit(
        self, connection: sa.Connection, key: str, estimator: str, fitted: Json, count: int
    ) -> None:
        now_s = self._now()
        rows.replace_fit(connection, key, estimator, fitted, count=count, fitted_at_s=now_s)


def find_own_profile(observation: Observation) -> Profile:
    """Return the profile that an observation belongs to, without observations."""
    one = observation
    return Profile(one.device, one.runtime, one.covers, one.provenance)


def _explain_mixed(observation: Observation, profile: Profile) -> str:
    one = observation
    return (
        f"an observation of {one.device.name!r} ({one.runtime}, {one.covers}, "
        f"{one.provenance}) does not belong to the profile of {profile.device.name!r} "
        f"({profile.runtime}, {profile.covers}, {profile.provenance}): put it in another profile"
    )
