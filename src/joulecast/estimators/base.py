"""Define what an estimator is, and the records it exchanges with its callers.

    propose   target, observations → the next Trial, or the reason to stop
    fit       observations → Fitted
    load      JSON that a Fitted returned → the same Fitted
    predict   Fitted, networks, setups → means, and their joint covariance on request

Any class with these methods is an estimator: no base class is needed. A fit is stored as JSON, so
that nothing is ever pickled and prediction needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from joulecast.operators import Work, layer_work
from joulecast.records import Layer, LayerEstimate, Network, Observation, Setup, Trial, stable_hash
from joulecast.records.codec import Record

Json = dict[str, Any]
Floats = NDArray[np.float64]

ALL_SETUPS = "*"
"""Name of the part of a fit that serves setups without a part of their own."""

UNIT_SD_SHARE = 0.04
"""Standard deviation between units of one device model, as a share of the energy.

Powers of nine H200s differ by 3.0 % (benchmarks/units); a tenth took 7 % less than two others in an
independent test, so that it is rounded up.
"""


@dataclass(frozen=True)
class Target:
    """What profiling is for: networks up to the widths of ``network``, trained with ``setup``.

    Attributes:
        networks: The networks to estimate; if empty, ``network`` and narrower ones.
        acquisition: What decides where to measure next: ``target`` (the largest reduction of the
            variance of the networks' totals for the device time); ``energy`` or ``time`` (the
            paper's rule: the largest standard deviation); ``missing`` (kinds that were never
            measured, and the duration of every layer of the networks); or ``probe`` (these
            durations, then the energy of the few layers that contribute most variance).
        uncertainty_share: Stop at this uncertainty: under the paper's rule a curve's largest
            standard deviation over its mean value, else half the 95 % interval of a total.
        modes: Ways to run a step that the device's runtime offers: ``eager``, ``graph``.
        runtime: Name of that runtime, which decides how operators are fused; empty if unknown.
    """

    network: Network
    setup: Setup
    acquisition: str = "target"
    uncertainty_share: float = 0.05
    networks: tuple[Network, ...] = ()
    modes: tuple[str, ...] = ("eager",)
    runtime: str = ""


@dataclass(frozen=True)
class Proposal:
    """The next trial to measure, or None with the reason to stop.

    Attributes:
        uncertainty_share: The current uncertainty, defined as the target's ``uncertainty_share``.
        reason: One line for people: what to measure and why, or why to stop.
        points: Observations that the target can already use.
        with_energy: Whether to measure energy; if not, timing the trial is enough (a probe).
        probes: All trials that have to be measured for the target's networks, whatever the next one
            shows; filled only if the target's acquisition is ``probe``.
        fitted: The fit that the proposal is based on, from which the next one may start.
    """

    trial: Trial | None
    uncertainty_share: float
    reason: str
    points: int = 0
    with_energy: bool = True
    probes: tuple[Trial, ...] = ()
    fitted: Fitted | None = None


@dataclass(frozen=True)
class Prediction:
    """Energy and duration of one step of each of n networks: means, and what is known of errors.

    Attributes:
        energy_cov: Joint covariance, n x n; None unless it was requested.
        layers: Energy of each layer of each network; empty tuples unless they were requested.
        unseen_share: Share of each network's energy in layers that were never measured.
        device_energy_j: Energy of the device alone, without waiting for the host; None if the
            estimator cannot separate it.
        uncertainty_sources: Shares of each network's variance by source; empty if unknown.
        duration_sd_s: Standard deviations of the durations; None if unknown.
        notes: What limits each network's prediction, in sentences; empty if there are none.
    """

    energy_j: Floats
    energy_sd_j: Floats
    energy_cov: Floats | None
    duration_s: Floats
    layers: tuple[tuple[LayerEstimate, ...], ...]
    unseen_share: tuple[float, ...]
    device_energy_j: Floats | None = None
    uncertainty_sources: tuple[dict[str, float], ...] = ()
    duration_sd_s: Floats | None = None
    notes: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class FitComponent(Record):
    """A component of a fit, such as a layer kind or a curve, and its number of data points."""

    label: str
    energy_points: int
    duration_points: int
    features: tuple[str, ...] = ()  # names of the quantities that it varies over


class Fitted(Protocol):
    """An estimator fitted to observations.

    It may also have a method ``narrow(networks, setup)``, which returns the fit for many networks
    like these: it predicts each of them in less time.
    """

    @property
    def observation_count(self) -> int:
        """Number of observations it was fitted to: those that ``Estimator.uses`` accepts."""

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Predict the energy and duration of one step of each network.

        With their joint covariance and the energy of each layer, if these are requested.
        """

    def describe(self) -> tuple[FitComponent, ...]:
        """Return the components of the fit; empty if there is nothing to list."""

    def to_dict(self) -> Json:
        """Return JSON from which ``Estimator.load`` restores the fit exactly.

        Its entry ``version`` is the estimator's; it may be left out while that is 1.
        """


class Estimator(Protocol):
    """A method of estimating energy. It is stateless: what it learns is in the fit.

    It may also have an attribute ``campaign``: the name of the estimator whose campaign it shares
    in an evaluation, if both propose the same trials. Campaigns measure doubtful trials again
    unless an attribute ``repeats_doubtful`` is false.

    Attributes:
        version: Version of the fit's JSON; fits of another version are fitted anew.
        uses_anchors: Whether it learns from the peaks of a device (one large matrix product, a
            copy, an empty launch), which campaigns then measure first.
    """

    name: str
    version: int
    uses_anchors: bool

    def uses(self, observation: Observation) -> bool:
        """Return whether the estimator can learn from an observation."""

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the most useful trial to measure next; equal inputs give equal proposals.

        Args:
            target: What profiling is for.
            observations: What was measured so far.
            fitted: An earlier fit to some of them, to start from; estimators that fit fast
                ignore it.
        """

    def fit(self, observations: Sequence[Observation], fitted: Fitted | None = None) -> Fitted:
        """Fit the estimator, starting from an earlier fit to some of the observations if given.

        Raises:
            MissingError: The observations are too few to fit anything.
        """

    def load(self, data: Json) -> Fitted:
        """Restore a fit from its JSON."""


def restore_fit(estimator: Estimator, data: Json | None) -> Fitted | None:
    """Return a stored fit; None if there is none, or if it is of another version."""
    if data is None or data.get("version", 1) != estimator.version:
        return None
    return estimator.load(data)


class FittedBySetup:
    """Base of fits that predict every setup separately: errors of setups are independent."""

    def predict(
        self,
        networks: Sequence[Network],
        setups: Sequence[Setup],
        *,
        joint: bool = False,
        per_layer: bool = False,
    ) -> Prediction:
        """Predict the networks of each setup together; return them in the given order."""
        groups: dict[Setup, list[int]] = {}
        for at, setup in enumerate(setups):
            groups.setdefault(setup, []).append(at)

        def predict_group(places: Sequence[int]) -> Prediction:
            own = [networks[at] for at in places]
            return self.predict_setup(own, setups[places[0]], joint, per_layer)

        return predict_groups(predict_group, list(groups.values()))

    def predict_setup(
        self, networks: Sequence[Network], setup: Setup, joint: bool, per_layer: bool
    ) -> Prediction:
        """Predict networks under one setup."""
        raise NotImplementedError


def predict_groups(
    predict: Callable[[Sequence[int]], Prediction], groups: Sequence[Sequence[int]]
) -> Prediction:
    """Predict each group of networks by itself and return all in the order of their numbers.

    Errors of different groups are independent.
    """
    if len(groups) == 1:
        return predict(groups[0])
    parts = [(list(places), predict(places)) for places in groups]
    return _join_predictions(parts, sum(map(len, groups)))


def split_energy_by_bytes(
    layers: Sequence[Layer], energy_j: float, seen: bool, setup: Setup
) -> list[LayerEstimate]:
    """Split the energy of a block among its layers in proportion to the bytes they move."""
    sizes = [layer_work(layer, setup).total.size_bytes for layer in layers]
    shares = [size / sum(sizes) if sum(sizes) else 1.0 / len(sizes) for size in sizes]
    return list(list_layers(layers, [energy_j * share for share in shares], seen))


def list_layers(
    layers: Sequence[Layer], energies_j: Sequence[float], seen: bool
) -> tuple[LayerEstimate, ...]:
    """Return the energy of each layer, all of which were measured or none."""
    return tuple(
        LayerEstimate(layer.name or layer.kind, layer.kind, energy_j, layer.calls, seen)
        for layer, energy_j in zip(layers, energies_j, strict=True)
    )


def setup_key(setup: Setup) -> str:
    """Return the name of a setup among the parts of a fit that belong to one setup."""
    return stable_hash(setup.to_dict())


def decline_probes(estimator: str) -> Proposal:
    """Return the answer of an estimator that has no probes to a target that asks for some."""
    return Proposal(None, 0.0, f"{estimator} does not use time probes")


def equicorrelated_covariance(queries: Sequence[object], sds: Floats) -> Floats:
    """Return the covariance of errors that have a correlation of one half.

    Half of their variance is a bias of the device, common to all queries; the other half belongs to
    each query. Equal queries have equal errors.
    """
    # Equal queries get equal numbers, so that long records are not compared pair by pair.
    numbers: dict[object, int] = {}
    which = np.array([numbers.setdefault(query, len(numbers)) for query in queries], int)
    return np.asarray((0.5 + 0.5 * (which[:, None] == which)) * np.outer(sds, sds))


def _join_predictions(parts: Sequence[tuple[list[int], Prediction]], count: int) -> Prediction:
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    predictions = [prediction for _, prediction in parts]
    covariance = None
    if predictions[0].energy_cov is not None:
        covariance = np.zeros((count, count))
        for places, prediction in parts:
            covariance[np.ix_(places, places)] = prediction.energy_cov
    joined: dict[str, Any] = {"energy_cov": covariance}
    for name in ("energy_j", "energy_sd_j", "duration_s", "device_energy_j", "duration_sd_s"):
        values = [getattr(one, name) for one in predictions]
        is_known = all(value is not None for value in values)
        joined[name] = np.concatenate(values)[order] if is_known else None
    for name in ("layers", "unseen_share", "uncertainty_sources"):
        rows = [row for one in predictions for row in getattr(one, name)]
        joined[name] = tuple(rows[at] for at in order) if len(rows) == count else ()
    notes = [own for places, one in parts for own in one.notes or ((),) * len(places)]
    joined["notes"] = tuple(notes[at] for at in order) if any(notes) else ()
    return Prediction(**joined)


# Isolated layers, host and device time separated: 141 networks on an H200 were off by 1.3 %, noise
# included. A stated prior on other devices.
ISOLATED_SUM_ERROR_SD_SHARE = 0.012
# The same for a user's own module, which may do work that no layer shows, and whose layers may read
# tensors of another layout than they do alone: 29 modules on an H200, all layers timed. With this,
# 90 % of them are within their 95 % interval, without it 72 %.
READ_MODULE_SUM_ERROR_SD_SHARE = 0.05
# Isolated layers on a device without graphs whose host runs ahead: small observations show the
# host's time and large networks the device's, and neither adds to the other. A stated prior.
MIXED_TIME_SUM_ERROR_SD_SHARE = 0.06
# Durations of whole steps differ from sums of isolated layers, and from hour to hour.
DURATION_SUM_ERROR_SD_SHARE = 0.03
# Layers found by subtracting variants. A stated prior: with it, 95 % intervals had about 95 %
# coverage on simulated devices outside all benchmarks. The method does not fit whole networks, so
# observations cannot replace it.
SUBTRACTED_SUM_ERROR_SD_SHARE = 0.06


def count_work(work: Work) -> Floats:
    """Return FLOPs, bytes and launches."""
    return np.array([work.flops, work.size_bytes, float(work.launches)])


def fit_work_rates(work: Floats, costs: Floats, scales: Floats) -> tuple[Floats, float]:
    """Fit rates that minimise the sum of squares of (cost - work·rates) / scale.

    Args:
        work: FLOPs, bytes and launches, n x 3.
        costs: Energies or durations, n.
        scales: What the error of each cost is relative to, n.

    Returns:
        The rates, and the root mean square of the relative errors.
    """
    from scipy.optimize import nnls

    rows, targets = work / scales[:, None], costs / scales
    # FLOPs and launches differ by twelve orders of magnitude: unscaled, nnls stops too early.
    units = np.maximum(rows.max(axis=0), 1e-300)
    rates, _ = nnls(rows / units, targets)
    error_share = float(np.sqrt(np.mean((rows / units @ rates - targets) ** 2)))
    return np.asarray(rates / units), error_share
