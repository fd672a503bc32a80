"""Profile a device: measure layers like those of a net, and fit an estimator to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.api.measurers import lock_device, open_any_measurer
from joulecast.api.nets import NetRequest, ResolvedNet, Shape
from joulecast.api.options import (
    DEFAULT_PROFILE_SECONDS,
    MeasureOptions,
    NetOptions,
    ProfileOptions,
    split_options,
)
from joulecast.api.transfer_sources import make_estimator
from joulecast.errors import InputError, MissingError
from joulecast.records import Network, Profile, Setup

if TYPE_CHECKING:
    from joulecast.campaign import CampaignResult, Progress
    from joulecast.estimators import Estimator

# A probe measures each layer in one window and stops at this interval.
_PROBE_INTERVAL_SHARE = 0.005


def profile(
    net: Any = None,
    inputs: Any = None,
    *,
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Profile:
    """Measure layers like those of a net on a device and return the device's profile.

    Every observation is stored at once, so an interrupted campaign resumes where it stopped. With
    ``atlas=True`` there is no net: layers of networks of all kinds are measured. With
    ``anchors=True`` there is none either: large products and a copy narrow the estimates that start
    from the data sheet of a GPU. With ``phase="inference"`` layers are run, not trained.

    Args:
        net: A name, a Network, or a module with ``inputs``; layers are profiled up to its widths.
        inputs: For a module, what it is called on.
        setup: How the net is trained or run.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        store: Path or URL of the store, if not the usual one.
        on_progress: Called before every measurement and at the end.
        options: Fields of ``Setup`` (``batch=128``); ``checkpoint=True`` puts repeated blocks under
            activation checkpointing; fields of ``MeasureOptions`` (``on="cuda:0"``) and of
            ``ProfileOptions``: ``points``, ``seconds``, ``interval_share``, ``acquisition``,
            ``estimator``, ``atlas``, ``anchors``, ``from_``. For a module, ``loss`` may be a
            callable from its output to a scalar.

    Raises:
        InputError: Neither a net nor ``atlas`` nor ``anchors`` is given, or several are.
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    setup_options, changes, measuring, profiling = split_options(
        profile, options, Setup, NetOptions, MeasureOptions, ProfileOptions
    )
    chosen = ProfileOptions(**profiling)
    if chosen.atlas or chosen.anchors:
        given = [net, inputs, setup, input_shape]
        if any(one is not None for one in given) or setup_options.keys() - {"phase"} or changes:
            name = "atlas" if chosen.atlas else "anchors"
            raise InputError(
                f"{name}=True draws its own networks and setups: leave net and setup out"
            )
        unused = [*(name for name in profiling if name != "anchors"), *setup_options]
        if chosen.anchors and unused:
            raise InputError(f"anchors=True measures a fixed list: leave {unused[0]} out")
        # One round of each: more trials tell more than more rounds.
        measured = MeasureOptions(**{"rounds": 1, **measuring})
        return _profile_without_net(measured, chosen, store, on_progress)
    if net is None:
        raise InputError("no net is given: give one, or atlas=True to profile for any network")
    request = NetRequest(net, inputs, setup, input_shape, setup_options, **changes)
    return run_profiling(
        *request.resolve(),
        MeasureOptions(**measuring),
        chosen,
        store,
        on_progress,
    )[1]


def _profile_without_net(
    measuring: MeasureOptions,
    profiling: ProfileOptions,
    store: str | None,
    on_progress: Callable[[Progress], None] | None,
) -> Profile:
    """Measure the anchors of a device, or an atlas; return its profile."""
    if profiling.anchors:
        from joulecast.api.atlas import profile_anchors

        return profile_anchors(measuring, store, on_progress)[2]
    from joulecast.api.atlas import profile_atlas

    return profile_atlas(measuring, profiling, store, on_progress)[1]


def run_profiling(
    net: ResolvedNet,
    setup: Setup,
    measuring: MeasureOptions,
    profiling: ProfileOptions,
    store: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[CampaignResult, Profile]:
    """Run a profiling campaign; return how it ended and the device's profile.

    Args:
        net: The net whose widths are the largest that are profiled.
        setup: How it is trained.
        measuring: Device, meter and rounds.
        profiling: What is measured, and when to stop.
        store: Path or URL of the store that receives every observation at once.
        on_progress: Called before every measurement and at the end.

    Raises:
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    from joulecast.campaign import run_campaign
    from joulecast.campaign.trial_log import TimeGuidedLog, describe_profile
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
                TimeGuidedLog(opened) if measurer.meter.is_recorder else opened,
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
    store: str | None = None,
    options: ProfileOptions | None = None,
) -> Profile:
    """Measure the layers of networks that the device has not seen; return its profile.

    Args:
        networks: Networks whose layers are measured.
        setup: How they are trained.
        measuring: Device and meter.
        store: Path or URL of the store.
        options: When to stop, and for which estimator.

    Raises:
        MissingError: No energy was ever measured on the device.
    """
    measuring = replace(measuring, rounds=1)
    options = options or ProfileOptions(seconds=DEFAULT_PROFILE_SECONDS)
    _check_has_energy(measuring, store)
    net = ResolvedNet(networks[0], setup.batch, draw_members=lambda: networks)
    return run_profiling(net, setup, measuring, replace(options, acquisition="probe"), store)[1]


def make_short_probe(seconds: float) -> ProfileOptions:
    """Return the options of a short probe, which ends when the estimate is nearly exact."""
    return ProfileOptions(seconds=seconds, interval_share=_PROBE_INTERVAL_SHARE)


def _start_probe(estimator: Estimator, own: Profile, store: str | None) -> Estimator:
    """Return an estimator that starts from the device's data sheet, if its estimates do.

    Campaigns need none: they measure enough of their own. A probe may measure durations alone.
    """
    from joulecast.estimators.sheet_start import (
        STARTS_FROM_SHEETS,
        find_starting_sheet,
        make_starting_estimator,
    )
    from joulecast.store import open_store

    with open_store(store, create=False) as opened:
        known = next((one for one in opened.list_profiles() if one.key == own.key), None)
        sheet = find_starting_sheet(own if known is None else opened.load_profile(own.key))
    if sheet is None or estimator.name not in STARTS_FROM_SHEETS:
        return estimator
    return make_starting_estimator(estimator.name, sheet)


def _check_has_energy(measuring: MeasureOptions, store: str | None) -> None:
    """Raise MissingError where a probe, which mostly measures time, would leave no energy."""
    from joulecast.campaign import find_profile_key
    from joulecast.campaign.trial_log import describe_profile
    from joulecast.estimators.sheet_start import find_starting_sheet
    from joulecast.store import open_store

    # Never opened: it only identifies the device and the meter.
    measurer = open_any_measurer(measuring)
    with open_store(store, create=False) as opened:
        observations = opened.load_observations(find_profile_key(measurer))
    own = describe_profile(measurer)
    has_energy = any(one.energy_j for one in observations if one.trial.network.layers)
    # A device that starts from its data sheet needs none.
    if not has_energy and find_starting_sheet(own) is None:
        raise MissingError(
            f"no layer's energy was measured on {measurer.runtime.device.name} yet: run "
            "`joulecast profile NET` there first"
        )
