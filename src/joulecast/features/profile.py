"""Profile a device: measure layers like those of a net, or for any net, and fit an estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, select, verb
from joulecast.features.measurers import MeasureOptions, lock_device, open_any_measurer
from joulecast.features.nets import NetRequest, ResolvedNet
from joulecast.features.profile_report import ProfileResult, describe_campaign, find_next_command
from joulecast.features.transfer_sources import make_estimator
from joulecast.records import Network, Profile, Setup, summarise_observations
from joulecast.system.errors import ArgumentError, MissingError, arg
from joulecast.system.units import parse_share

if TYPE_CHECKING:
    from joulecast.campaign import CampaignResult, Progress
    from joulecast.estimators import Estimator

DEFAULT_PROFILE_SECONDS = 600.0
DEFAULT_ATLAS_SECONDS = 1800.0
# One round of each trial of a list: more trials tell more than more rounds.
_LIST_ROUNDS, _ROUNDS = 1, 3
# The arguments of a campaign that has a list of trials, and why it takes no others.
_MEASURING = {"on", "meter", "rounds", "device_name", "warmup", "runs", "store", "on_progress"}
_LIMITS = {"points", "seconds", "retry_refused", "from_", "phase", "estimator"}
_USED = {
    "atlas": ({"atlas", *_MEASURING, *_LIMITS}, "draws its own networks and setups"),
    "anchors": ({"anchors", *_MEASURING}, "measures a fixed list"),
}

ProfiledNet = Annotated[
    Any, Argument("Layers are profiled up to its widths.", is_positional=True, harm="may run code")
]
Rounds = Annotated[
    int | None,
    Argument("Windows of each measurement.", least=1, default="3; 1 with --atlas or --anchors"),
]
Points = Annotated[int | None, Argument("Stop after this many measurements.", least=1)]
Interval = Annotated[
    float | None,
    Argument(
        "Stop when the estimate of NET (and of narrower members of its family) is within this "
        "share.",
        above=0.0,
        metavar="5%",
        option="interval",
        parse=parse_share,
        default="5%",
    ),
]
Acquisition = Annotated[
    str | None,
    Argument(
        "What to measure next: what lowers the uncertainty of NET most, or the paper's rule.",
        choices=("target", "energy", "time", "missing"),
        default="target",
    ),
]
Missing = Annotated[bool, Argument("Measure only layers of NET never seen before.")]
Seconds = Annotated[
    float | None,
    Argument("Stop after this time.", least=0.0, default="600, with --atlas 1800, or --points"),
]
Anchors = Annotated[
    bool, Argument("Instead of NET: seconds that narrow estimates from the data sheet of a GPU.")
]
Atlas = Annotated[bool, Argument("Instead of NET: learn the device for any network.")]
RetryRefused = Annotated[bool, Argument("With --atlas: try again what the device refused.")]
From = Annotated[
    tuple[str, ...],
    Argument(
        "Start from what another device has learnt: its name, or a profile's key or file; several "
        "times for several.",
        metavar="NAME",
        is_repeated=True,
    ),
]


@verb
def profile_device(
    net: ProfiledNet = None,
    inputs: Any = None,
    *,
    setup: Setup | None = None,
    batch: given.Batch = None,
    input_shape: given.InputShape = None,
    optimizer: given.Optimizer = None,
    precision: given.Precision = None,
    loss: given.Loss = None,
    accumulate: given.Accumulate = None,
    compiled: given.Compiled = None,
    checkpoint: given.Checkpoint = False,
    threads: given.Threads = None,
    processor: given.Processor = None,
    cuda_graphs: given.CudaGraphs = None,
    phase: given.Phase = None,
    on: given.On = None,
    meter: given.Meter = None,
    rounds: Rounds = None,
    device_name: given.RecordedName = "",
    warmup: given.Warmup = 0,
    runs: given.WindowRuns = 0,
    points: Points = None,
    interval_share: Interval = None,
    acquisition: Acquisition = None,
    missing: Missing = False,
    seconds: Seconds = None,
    anchors: Anchors = False,
    atlas: Atlas = False,
    retry_refused: RetryRefused = False,
    from_: From = (),
    estimator: given.Estimator = "auto",
    store: given.Store = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProfileResult:
    """Measure layers like those of NET on a device, and fit its profile.

    With --atlas there is no NET: layers and blocks of networks of all kinds are measured, from toys
    to large language models, in the order in which they tell most.

    With --anchors there is none either: large products and convolutions in each precision, a copy,
    an empty launch and steps of two small networks narrow the estimates that start from the data
    sheet of a GPU. They take seconds.

    Layers and blocks are trained in isolation under a meter, or run with --inference; the next one
    is always what lowers the uncertainty of NET most for its time. For a family (cnn5) that
    includes all narrower members. Up to six whole nets, spread over size, are trained or run for
    a second as well. Every measurement is stored at once: after an interruption, the same command
    resumes.
    """
    given_values = locals().copy()
    request = NetRequest.of(given_values)
    rounds = rounds or (_LIST_ROUNDS if atlas or anchors else _ROUNDS)
    measuring = MeasureOptions(on or "cpu", meter or "auto", rounds, device_name, warmup, runs)
    if atlas or anchors:
        _check_unused("anchors" if anchors else "atlas", given_values)
    elif net is None:
        raise ArgumentError(
            f"give {arg('net')}, or {arg('atlas', True)}, or {arg('anchors', True)}"
        )
    if anchors:
        from joulecast.features.atlas import profile_anchors

        return profile_anchors(measuring, store, on_progress)
    profiling = ProfileOptions(
        points=points,
        seconds=seconds,
        interval_share=0.05 if interval_share is None else interval_share,
        acquisition="missing" if missing else acquisition or "target",
        estimator=estimator,
        atlas=atlas,
        retry_refused=retry_refused,
        from_=from_,
        phase=phase or "train",
    )
    if atlas:
        from joulecast.features.atlas import profile_atlas

        return profile_atlas(measuring, profiling, store, on_progress)
    resolved, trained = request.resolve()
    result, found = run_profiling(resolved, trained, measuring, profiling, store, on_progress)
    command = find_next_command(found, request, trained, estimator, store)
    return describe_campaign(result, found, command)


def _check_unused(flag: str, values: Mapping[str, Any]) -> None:
    """Raise ArgumentError for a value that an atlas or anchors would ignore."""
    used, why = _USED[flag]
    for name, parameter in signature(profile_device).parameters.items():
        if name not in used and values[name] != parameter.default:
            if name in ("net", "atlas"):
                raise ArgumentError(f"give {arg(name)} or {arg(flag, True)}, not both")
            raise ArgumentError(f"{arg(flag, True)} {why}: leave {arg(name)} out")


profile = select(
    profile_device,
    lambda found: found.profile,
    "profile",
    """Measure layers like those of a net on a device and return the device's profile.

    Every observation is stored at once, so an interrupted campaign resumes where it stopped. With
    ``atlas=True`` there is no net: layers of networks of all kinds are measured. With
    ``anchors=True`` there is none either: large products and a copy narrow the estimates that start
    from the data sheet of a GPU. With ``phase="inference"`` layers are run, not trained.
    """,
)


@dataclass(frozen=True)
class ProfileOptions:
    """What a profiling campaign measures, and when it stops.

    Attributes:
        seconds: Longest duration; 600 s where neither limit is given, 1800 s for an atlas.
        acquisition: How the next measurement is chosen: ``target`` lowers the variance of the net's
            totals most per second; ``energy`` and ``time`` follow the paper; ``missing`` measures
            only what was never seen of the net.
        from_: Devices, keys or files of profiles that the device starts from (``--from``); none to
            keep those that it started from before.
    """

    points: int | None = None  # largest number of measurements
    seconds: float | None = None
    interval_share: float = 0.05  # stop when the interval is within this share of the estimate
    acquisition: str = "target"
    estimator: str = "auto"
    atlas: bool = False  # measure layers of networks of all kinds instead of those of one net
    retry_refused: bool = False  # with atlas, try again what the device refused in earlier runs
    from_: tuple[str, ...] = ()
    phase: str = "train"  # with atlas, what its networks do: train or inference

    @property
    def limit_s(self) -> float | None:
        """Longest duration in seconds; None where only ``points`` limits the campaign."""
        if self.points is None and self.seconds is None:
            return DEFAULT_ATLAS_SECONDS if self.atlas else DEFAULT_PROFILE_SECONDS
        return self.seconds


def run_profiling(
    net: ResolvedNet,
    setup: Setup,
    measuring: MeasureOptions,
    profiling: ProfileOptions,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[CampaignResult, Profile]:
    """Run a profiling campaign; return how it ended and the device's profile.

    Raises:
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    from joulecast.campaign import run_campaign
    from joulecast.campaign.trial_log import describe_profile
    from joulecast.estimators.base import Target
    from joulecast.store import open_store

    # Layers cost the same in every batch of a step: one batch is measured.
    target = Target(
        net.network,
        replace(setup, accumulate=1),
        profiling.acquisition,
        profiling.interval_share,
        networks=net.draw_members(),
    )
    with (
        open_any_measurer(measuring, allows_later=True) as measurer,
        lock_device(measuring.on),
    ):
        own = describe_profile(measurer)
        # Before a store is created: a source may not exist.
        estimator = make_estimator(profiling.estimator, profiling.from_, own, store)
        if profiling.acquisition == "probe":
            estimator = _start_probe(estimator, own, store)
        with open_store(store) as opened:
            result = run_campaign(
                measurer,
                opened,
                estimator,
                target,
                points=profiling.points,
                seconds=profiling.limit_s,
                on_progress=on_progress,
            )
            return result, opened.load_profile(result.profile_key)


def probe_layers(
    networks: tuple[Network, ...],
    setup: Setup,
    measuring: MeasureOptions,
    store: str | None,
    options: ProfileOptions,
) -> Profile:
    """Measure the layers of networks that the device has not seen; return its profile.

    Raises:
        MissingError: No energy was ever measured on the device.
    """
    measuring = replace(measuring, rounds=1)
    _check_has_energy(measuring, store)
    net = ResolvedNet(networks[0], setup.batch, draw_members=lambda: networks)
    return run_profiling(net, setup, measuring, replace(options, acquisition="probe"), store)[1]


def _start_probe(estimator: Estimator, own: Profile, store: str | None) -> Estimator:
    """Return an estimator that starts from the device's data sheet, if its estimates do.

    Campaigns need none: they measure enough of their own. A probe may measure durations alone.
    """
    from joulecast.estimators.fitted_profile import (
        STARTS_FROM_SHEETS,
        find_starting_sheet,
        make_starting_estimator,
    )

    sheet = find_starting_sheet(_load_known(own, store))
    if sheet is None or estimator.name not in STARTS_FROM_SHEETS:
        return estimator
    return make_starting_estimator(estimator.name, sheet)


def _check_has_energy(measuring: MeasureOptions, store: str | None) -> None:
    """Raise MissingError where a probe, which mostly measures time, would leave no energy."""
    from joulecast.campaign.trial_log import describe_profile
    from joulecast.estimators.fitted_profile import find_starting_sheet

    # Never opened: it only identifies the device and the meter.
    measurer = open_any_measurer(measuring)
    own = describe_profile(measurer)
    observations = _load_known(own, store).observations
    summary = summarise_observations(observations)
    has_energy = bool(summary.steps or summary.reference) or any(
        one.energy_j for one in observations if one.trial.network.layers
    )
    # A device that starts from its data sheet needs none.
    if not has_energy and find_starting_sheet(own) is None:
        raise MissingError(
            f"no layer's energy was measured on {measurer.runtime.device.name} yet: run "
            "`joulecast profile NET` there first"
        )


def _load_known(own: Profile, store: str | None) -> Profile:
    """Return what is known of a device, or its empty profile."""
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        is_known = any(one.key == own.key for one in opened.list_profiles())
        return opened.load_profile(own.key) if is_known else own
