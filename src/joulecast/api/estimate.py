"""Estimate the energy of a training step, or of an inference, before it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.api.nets import NetRequest, ResolvedNet, Shape
from joulecast.api.option_values import convert_option
from joulecast.api.options import (
    DEFAULT_PROFILE_SECONDS,
    EstimateOptions,
    MeasureOptions,
    NetOptions,
    ParallelOptions,
    ProbeOptions,
    ProfileOptions,
    split_options,
)
from joulecast.api.profiles import load_profile
from joulecast.errors import InputError
from joulecast.records import INT8_PRECISIONS, Estimate, Network, Profile, Setup
from joulecast.units import format_energy

if TYPE_CHECKING:
    from joulecast.api.option_values import DeviceLike
    from joulecast.estimators.fitted_profile import FittedProfile


def estimate(
    net: Any,
    inputs: Any = None,
    *,
    device: DeviceLike | Profile = "",
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    **options: Any,
) -> Estimate:
    """Estimate energy and duration of one step, with a credible interval.

    A step trains the net on a batch; with ``phase="inference"`` it is one forward pass, and its
    duration is the latency.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        device: A device with a profile (see ``load_profile``), or the profile itself; by default
            the device ``on``.
        setup: How the net is trained or run.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        options: Fields of ``Setup`` (``batch=128, accumulate=4, compiled=True``);
            ``checkpoint=True`` puts repeated blocks under activation checkpointing; fields of
            ``EstimateOptions``: ``estimator``, ``level``, ``store``; ``on``: a device of this
            machine (``cuda:0``; the processor by default); and fields of ``ProbeOptions``:
            ``probe=True`` measures the net's unseen layers on it first, under ``meter``. For a
            module, ``loss`` may be a callable from its output to a scalar. Fields of
            ``ParallelOptions``: ``gpus=4, parallel="data"`` trains on four GPUs, each with a batch
            of its own; the all-reduce of their gradients is modelled.
    """
    setup_options, changes, estimating, parallel, probing, measuring = split_options(
        estimate,
        options,
        Setup,
        NetOptions,
        EstimateOptions,
        ParallelOptions,
        ProbeOptions,
        MeasureOptions,
    )
    request = NetRequest(net, inputs, setup, input_shape, setup_options, **changes)
    # Before anything is read or measured.
    gpus = ParallelOptions(**parallel)
    known, resolved, setup, how = find_source(request, device, estimating, probing, measuring)
    return estimate_net(known, resolved, setup, how, gpus)


def find_source(
    request: NetRequest,
    device: DeviceLike | Profile,
    estimating: Mapping[str, Any],
    probing: Mapping[str, Any],
    measuring: Mapping[str, Any],
) -> tuple[Profile, ResolvedNet, Setup, EstimateOptions]:
    """Return the profile that an estimate rests on, the net with its setup, and how to estimate.

    Args:
        request: The net.
        device: A device with a profile, or the profile itself.
        estimating: Fields of ``EstimateOptions``.
        probing: Fields of ``ProbeOptions``; a probe measures the net's layers first.
        measuring: Fields of ``MeasureOptions``.
    """
    how, probe = EstimateOptions(**estimating), ProbeOptions(**probing)
    _check_source(device, probe, measuring)
    resolved, setup = request.resolve()
    if probe.probe:
        known = probe_net(resolved, setup, MeasureOptions(**measuring), how, probe.probe_seconds)
    elif isinstance(device, Profile):
        known = device
    else:
        known = load_profile(device, on=MeasureOptions(**measuring).on, store=how.store)
    return known, resolved, setup, how


def update(estimate: Estimate, *, energy_j: float, steps: int) -> Estimate:
    """Update an estimate with the energy of the first steps of the real run.

    A note warns where these steps lie outside the interval of the estimate.

    Args:
        estimate: The estimate from before the run.
        energy_j: Energy of these steps together.
        steps: Number of steps.
    """
    energy_j = convert_option("energy_j", energy_j, float)
    steps = convert_option("steps", steps, int)
    if math.isinf(energy_j):
        raise InputError(f"energy_j is {energy_j}: give joules")
    return update_run(estimate, energy_j, steps)


def update_run(estimate: Estimate, energy_j: float, steps: int, noun: str = "step") -> Estimate:
    """Update an estimate with the first steps of a run; notes call a step ``noun``."""
    from joulecast.estimators import update_estimate

    updated = update_estimate(estimate, energy_j, steps)
    warnings = check_first_steps(estimate, energy_j, steps, noun)
    return replace(updated, notes=(*updated.notes, *warnings))


def check_first_steps(
    estimate: Estimate, energy_j: float, steps: int, noun: str = "step"
) -> list[str]:
    """Return a warning if the first steps of a run lie outside the interval of its estimate.

    Args:
        estimate: The estimate from before the run.
        energy_j: Energy of these steps together.
        steps: Number of steps.
        noun: What the warning calls a step.
    """
    low_j, high_j = estimate.interval_j
    step_j = energy_j / steps
    if low_j <= step_j <= high_j:
        return []
    side = "below" if step_j < low_j else "above"
    return [
        f"The first {steps:,} {noun}s took {format_energy(step_j)} each, {side} the "
        f"{100 * estimate.level:g} % interval of the estimate before the run "
        f"({format_energy(low_j)} to {format_energy(high_j)}): "
        f"check the energy and the number of {noun}s, and that device, batch size and precision "
        "are those of the estimate."
    ]


def estimate_net(
    profile: Profile,
    net: ResolvedNet,
    setup: Setup,
    options: EstimateOptions,
    parallel: ParallelOptions | None = None,
) -> Estimate:
    """Estimate one step of a net from a profile, with a note if another framework is installed."""
    from joulecast.estimators import fit_profile

    _check_precision(profile, setup)
    fitted = fit_profile(profile, options.estimator)
    return estimate_fitted(fitted, net.network, setup, options.level, parallel)


def estimate_fitted(
    fitted: FittedProfile,
    network: Network,
    setup: Setup,
    level: float,
    parallel: ParallelOptions | None = None,
) -> Estimate:
    """Estimate one step from a fitted profile, with a note if another framework is installed."""
    from joulecast.runtimes.installed import explain_runtime_difference

    _check_precision(fitted.profile, setup)
    found = fitted.estimate([network], setup, level)[0]
    if parallel is not None and parallel.gpus > 1:
        from joulecast.estimators.data_parallel import find_gpu_group, replicate_step

        gpus = parallel.gpus, parallel.link_bytes_per_s
        found = replicate_step(found, network, setup, find_gpu_group(fitted.profile, setup, *gpus))
    difference = explain_runtime_difference(fitted.profile.runtime)
    return replace(found, notes=(*found.notes, difference)) if difference else found


def probe_net(
    net: ResolvedNet,
    setup: Setup,
    measuring: MeasureOptions,
    options: EstimateOptions,
    seconds: float | None = None,
) -> Profile:
    """Measure the layers of a net that its device has not seen; return the device's profile."""
    # What measures takes a moment to import.
    from joulecast.api.profile import probe_layers

    limits = ProfileOptions(seconds=DEFAULT_PROFILE_SECONDS, estimator=options.estimator)
    if seconds is not None:
        limits = replace(limits, seconds=seconds)
    return probe_layers((net.network,), setup, measuring, options.store, limits)


def _check_precision(profile: Profile, setup: Setup) -> None:
    """Raise InputError for a precision that the profile's device or framework does not have."""
    if setup.precision in INT8_PRECISIONS and profile.runtime.startswith(("torch", "mnn")):
        raise InputError(
            f"the profile of {profile.device.name} is of {profile.runtime}, which does not run "
            f"{setup.precision} here: give --on onnx:cpu, or another precision"
        )
    # It would silently compute in fp32.
    if setup.precision == "tf32" and profile.covers.split(" ")[0] == "cpu":
        raise InputError(
            f"tf32 is a number format of NVIDIA GPUs, and {profile.device.name} is a processor: "
            "give fp32"
        )


def _check_source(
    device: DeviceLike | Profile, probe: ProbeOptions, measuring: Mapping[str, Any]
) -> None:
    """Raise InputError where options contradict each other, or where nothing is measured."""
    if device and probe.probe:
        raise InputError("a probe runs on the device given by on: leave device out")
    if device and "on" in measuring:
        raise InputError("device and on both name a device: give one of them")
    for name in measuring:
        if name != "on" and not probe.probe:
            raise InputError(f"{name} is for measuring: give probe=True as well")
