"""Estimate the energy of a training step before it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joulecast.api.nets import NetRequest, ResolvedNet, Shape
from joulecast.api.options import (
    DEFAULT_PROFILE_SECONDS,
    EstimateOptions,
    MeasureOptions,
    ProbeOptions,
    ProfileOptions,
    split_options,
)
from joulecast.api.profile import probe_layers
from joulecast.api.profiles import find_profile
from joulecast.errors import InputError
from joulecast.records import Estimate, Profile, Setup


def estimate(
    net: Any,
    inputs: Any = None,
    *,
    device: str | Profile = "",
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    **options: Any,
) -> Estimate:
    """Estimate energy and duration of one training step, with a credible interval.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        device: A device with a profile (see ``load_profile``), or the profile itself.
        setup: How the net is trained.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        options: Fields of ``Setup`` (``batch=128``), of ``EstimateOptions``: ``estimator``,
            ``level``, ``store``, and of ``ProbeOptions``: ``probe=True`` measures the net's unseen
            layers first, where ``on`` and ``meter`` say.
    """
    setup_options, estimating, probing, measuring = split_options(
        estimate, options, Setup, EstimateOptions, ProbeOptions, MeasureOptions
    )
    resolved, setup = NetRequest(net, inputs, setup, input_shape, setup_options).resolve()
    how, probe = EstimateOptions(**estimating), ProbeOptions(**probing)
    if measuring and not probe.probe:
        raise InputError(f"{next(iter(measuring))} is for measuring: give probe=True as well")
    if probe.probe:
        if device:
            raise InputError("a probe runs on the device given by on: leave device out")
        known = probe_net(resolved, setup, MeasureOptions(**measuring), how, probe.probe_seconds)
    else:
        known = find_profile(device, how.store)
    return estimate_net(known, resolved, setup, how)


def update(estimate: Estimate, *, energy_j: float, steps: int) -> Estimate:
    """Update an estimate with the energy of the first steps of the real run.

    Args:
        estimate: The estimate from before the run.
        energy_j: Energy of these steps together.
        steps: Number of steps.
    """
    from joulecast.estimators import update_estimate

    return update_estimate(estimate, energy_j, steps)


def estimate_net(
    profile: Profile, net: ResolvedNet, setup: Setup, options: EstimateOptions
) -> Estimate:
    """Estimate one step of a net from a profile."""
    from joulecast.estimators import estimate_network

    return estimate_network(profile, net.network, setup, options.estimator, options.level)


def probe_net(
    net: ResolvedNet,
    setup: Setup,
    measuring: MeasureOptions,
    options: EstimateOptions,
    seconds: float | None = None,
) -> Profile:
    """Measure the layers of a net that its device has not seen; return the device's profile."""
    limits = ProfileOptions(seconds=DEFAULT_PROFILE_SECONDS, estimator=options.estimator)
    if seconds is not None:
        limits = replace(limits, seconds=seconds)
    return probe_layers((net.network,), setup, measuring, options.store, limits)
