"""Answer many estimates from one process: profiles stay fitted, and equal questions are remembered.

    EstimateQuestion ──▶ network (family, reference application, Network)
                     ──▶ fitted profile (kept until the store changes)
                     ──▶ Estimate (kept: the same question gets the same answer)

A question names no file and runs no code, so it may come from somebody else. All methods may be
called from several threads.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from joulecast.devices.data_sheets import find_data_sheet, make_sheet_profile
from joulecast.families import FAMILIES, is_family, parse_params
from joulecast.features.catalogue import summarise_sheet
from joulecast.features.estimate import estimate_fitted
from joulecast.features.estimate_report import RunEstimate
from joulecast.features.nets import choose_batch, resolve_built_in
from joulecast.features.profiles import list_unmeasured, match_name
from joulecast.features.run import ParallelOptions, RunSchedule, add_up_run
from joulecast.records import DATASHEET, DataSheet, Estimate, Network, Setup
from joulecast.store import ProfileSummary, open_store
from joulecast.store.profiles import match_profiles
from joulecast.system.errors import InputError, NetError

if TYPE_CHECKING:
    from joulecast.estimators.fitted_profile import FittedProfile

MOST_SERVED_LAYERS, MOST_DISTINCT_LAYERS = 5_000, 1_000
"""Layers of a network: an estimate of more would take long and gigabytes (3,000 distinct: 34 s)."""
MOST_SERVED_DEPTH = 128
"""Blocks of a member of a family: a thousand would take megabytes."""
# Fitted profiles take tens of megabytes each, estimates a kilobyte for each layer.
_KEPT_FITS, _KEPT_ESTIMATES, _MOST_KEPT_LAYERS = 8, 512, 500
# How long changes of the store may go unnoticed.
_LIST_S = 1.0

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True)
class EstimateQuestion:
    """A net, how it is trained or run, and on which device.

    Attributes:
        device: Name of a device with a profile, or a profile's key, or the start of either; or a
            device of the catalogue.
        setup: Fields of ``Setup``; the batch size is the net's own by default.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        estimator: Name of an estimator that was fitted to the profile; ``auto`` for the one that
            suits the runtime.
    """

    net: str | Network  # a family such as cnn5:16,32,64,128, a reference application, or a Network
    device: str
    setup: Mapping[str, Any] = field(default_factory=dict)
    input_shape: tuple[int, ...] | None = None
    level: float = 0.95  # probability of the interval
    estimator: str = "auto"
    parallel: ParallelOptions | None = None  # on how many GPUs it is trained; one by default


@dataclass(frozen=True)
class EstimateAnswer:
    """An estimate, and what it was made for."""

    network: Network
    setup: Setup
    estimate: Estimate
    profile_key: str  # key of the profile that it rests on
    is_repeated: bool = False  # whether the same question was answered before

    def describe_run(
        self,
        steps: int = 1,
        grid: str | None = None,
        price: str | None = None,
        battery: str | None = None,
    ) -> dict[str, Any]:
        """Return a run of so many steps as JSON values: those of `joulecast estimate`, and more."""
        cost = add_up_run(self.estimate, self.setup, RunSchedule(steps))
        run = RunEstimate(
            self.network, self.setup, self.estimate, cost, grid=grid, price=price, battery=battery
        )
        found = run.to_dict()
        for name, value in found.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(
                    f"{name} is too large: give fewer steps, or usual values of grid, price and "
                    "battery"
                )
        return {
            **found,
            "net": self.network.name,
            "setup": self.setup.to_dict(),
            "gpus": self.estimate.gpus,
            "profile": self.profile_key,
        }


class EstimateService:
    """Answers questions from the profiles of a store.

    Args:
        store: Path or URL of the store, if not the usual one.
        now: Returns seconds of a clock that never goes back.
    """

    def __init__(self, store: str | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._listed_at_s = -_LIST_S
        self._summaries: tuple[ProfileSummary, ...] = ()
        self._fits: BoundedCache[Any, FittedProfile] = BoundedCache(_KEPT_FITS)
        self._estimates: BoundedCache[Any, EstimateAnswer] = BoundedCache(_KEPT_ESTIMATES)

    def answer(self, question: EstimateQuestion) -> EstimateAnswer:
        """Return the estimate of one step."""
        network, setup = resolve_question(question)
        summary = self.find_device(question.device)
        asked = (question.estimator, question.level, question.parallel, setup)
        key = (identify_profile(summary), *asked, _label(network))
        known = self._estimates.get(key)
        if known is not None:
            return replace(known, is_repeated=True)
        fitted = self._find_fit(summary, question.estimator)
        found = estimate_fitted(fitted, network, setup, question.level, question.parallel)
        answer = EstimateAnswer(network, setup, found, fitted.profile.key)
        if len(network.layers) <= _MOST_KEPT_LAYERS:
            self._estimates.put(key, answer)
        return answer

    def fit(self, device: str, estimator: str = "auto") -> FittedProfile:
        """Return the fitted profile of a device, the kept one if the store has not changed."""
        return self._find_fit(self.find_device(device), estimator)

    def list_profiles(self) -> tuple[ProfileSummary, ...]:
        """Return summaries of all profiles, at most a second old."""
        with self._lock:
            if self._now() - self._listed_at_s >= _LIST_S:
                with open_store(self._store, create=False) as opened:
                    self._summaries = opened.list_profiles()
                self._listed_at_s = self._now()
            return self._summaries

    def find_profile(self, device: str) -> ProfileSummary:
        """Return the best profile of a device."""
        return match_profiles(self.list_profiles(), device)[0]

    def find_device(self, device: str) -> ProfileSummary:
        """Return the best profile of a device, or that of a data sheet of the catalogue."""
        found = match_name(self.list_profiles(), device)
        return summarise_sheet(found) if isinstance(found, DataSheet) else found[0]

    def list_unmeasured(self) -> tuple[DataSheet, ...]:
        """Return the devices of the catalogue that have no profile."""
        return list_unmeasured(self.list_profiles())

    @property
    def fit_count(self) -> int:
        """Number of fitted profiles that are kept."""
        return len(self._fits)

    def _find_fit(self, summary: ProfileSummary, estimator: str) -> FittedProfile:
        from joulecast.estimators import fit_profile

        # Fitting takes seconds to minutes, which nobody else should have to wait for.
        if estimator not in ("auto", *summary.estimators):
            raise InputError(
                f"the profile of {summary.device} has no fit of {estimator!r}: give auto, or one "
                f"of {', '.join(summary.estimators)}"
            )

        def load() -> FittedProfile:
            if summary.provenance == DATASHEET:
                return fit_profile(make_sheet_profile(find_data_sheet(summary.device)), estimator)
            with open_store(self._store, create=False) as opened:
                return fit_profile(opened.load_profile(summary.key), estimator)

        return self._fits.get_or_make((identify_profile(summary), estimator), load)


def resolve_question(question: EstimateQuestion) -> tuple[Network, Setup]:
    """Return the network of a question, and its setup with the batch size that applies."""
    fields = dict(question.setup)
    setup = Setup(**fields)
    batch = fields.get("batch")
    if isinstance(question.net, Network):
        network = question.net
        batch = batch or choose_batch(setup.phase)
    else:
        params = parse_params(question.net) if is_family(question.net) else {}
        for key, value in params.items():
            if is_depth(key) and value > MOST_SERVED_DEPTH:
                raise InputError(f"{key} is {value}: give at most {MOST_SERVED_DEPTH} blocks")
        found = resolve_built_in(question.net, batch, question.input_shape, phase=setup.phase)
        if found is None:
            raise NetError(
                f"there is no family {question.net!r}: give one of {', '.join(FAMILIES)}, or a "
                "network"
            )
        network, batch = found.network, found.batch
    count, distinct = len(network.layers), len(set(network.layers))
    if count > MOST_SERVED_LAYERS or distinct > MOST_DISTINCT_LAYERS:
        raise InputError(
            f"the network has {count:,} layers, {distinct:,} of them distinct: give one of at most "
            f"{MOST_SERVED_LAYERS:,} and {MOST_DISTINCT_LAYERS:,}"
        )
    return network, replace(setup, batch=batch)


def identify_profile(summary: ProfileSummary) -> Hashable:
    """Return what changes whenever a profile changes."""
    return summary.key, summary.changed_at_s, summary.observation_count, summary.estimators


def is_depth(parameter: str) -> bool:
    """Return whether a parameter of a family is a number of blocks."""
    return parameter.startswith("d")


class BoundedCache(Generic[Key, Value]):
    """The values used last, for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._making: dict[Key, threading.Lock] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key; None if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, and forget the one that was not used for longest."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)

    def get_or_make(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key; threads that need it at once wait for one that makes it."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            own = self._making.setdefault(key, threading.Lock())
        try:
            with own:
                found = self.get(key)
                if found is None:
                    found = make()
                    self.put(key, found)
                return found
        finally:
            with self._lock:
                self._making.pop(key, None)


def _label(network: Network) -> Hashable:
    """Return what an estimate of a network depends on: names and totals take no part in ==."""
    return network, network.name, network.totals, tuple(layer.name for layer in network.layers)
