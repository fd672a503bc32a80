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
    ``phase="inference"`` layers are run, not trained.

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
            ``estimator``, ``atlas``, ``from_``. For a module, ``loss`` may be a callable from its
            output to a scalar.

    Raises:
        InputError: Neither a net nor ``atlas`` is given, or both are.
        MeasurementError: The device could not be measured, or another campaign runs on it.
    """
    setup_options, changes, measuring, profiling = split_options(
        profile, options, Setup, NetOptions, MeasureOptions, ProfileOptions
    )
    chosen = ProfileOptions(**profiling)
    if chosen.atlas:
        given = [net, inputs, setup, input_shape]
        if any(one is not None for one in given) or setup_options.keys() - {"phase"} or changes:
            raise InputError(
                "atlas=True draws its own networks and setups: leave net and setup out"
            )
        # One round of each: more trials tell more than more rounds.
        from joulecast.api.atlas import profile_atlas

        measured = MeasureOptions(**{"rounds": 1, **measuring})
        return profile_atlas(measured, chosen, store, on_progress)[1]
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
    from joulecast.campaign.time_guidance import TimeGuidedLog
    from joulecast.campaign.trial_log import describe_profile
    from joulecast.estimators.base import Target
    from joulecast.store import open_store

    # Layers cost the same in every batch of a step: one batch is measured.
    target = Target(
        net.network,
        replace(setup, accumulate=1),
        profiling.acquisition,
        profiling.interval_share,
        networks=net.members,
    )
    with (
        open_any_measurer(measuring, allows_later=True) as measurer,
        lock_device(measuring.on),
    ):
        own = describe_profile(measurer)
        # Before a store is created: a source may not exist.
        estimator = make_estimator(profiling.estimator, profiling.from_, own, store)
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
    net = ResolvedNet(networks[0], setup.batch, members=networks)
    return run_profiling(net, setup, measuring, replace(options, acquisition="probe"), store)[1]


def make_short_probe(seconds: float) -> ProfileOptions:
    """Return the options of a short probe, which ends when the estimate is nearly exact."""
    return ProfileOptions(seconds=seconds, interval_share=_PROBE_INTERVAL_SHARE)


def _check_has_energy(measuring: MeasureOptions, store: str | None) -> None:
    """Raise MissingError where a probe, which mostly measures time, would leave no energy."""
    from joulecast.campaign import find_profile_key
    from joulecast.store import open_store

    # Never opened: it only identifies the device and the meter.
    measurer = open_any_measurer(measuring)
    with open_store(store, create=False) as opened:
        observations = opened.load_observations(find_profile_key(measurer))
    if not any(one.energy_j for one in observations if one.trial.network.layers):
        raise MissingError(
            f"no layer's energy was measured on {measurer.runtime.device.name} yet: run "
            "`joulecast profile NET` there first"
        )
