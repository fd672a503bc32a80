"""Estimate a whole run: training, evaluation and waiting for data, or a sweep of such runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulecast.api.estimate import estimate_net, find_source
from joulecast.api.nets import NetRequest, ResolvedNet, Shape, require_torch
from joulecast.api.options import (
    EstimateOptions,
    MeasureOptions,
    NetOptions,
    ParallelOptions,
    ProbeOptions,
    WholeRunOptions,
    split_options,
)
from joulecast.budgets import RunLength
from joulecast.errors import InputError
from joulecast.records import Estimate, Profile, Setup

if TYPE_CHECKING:
    from joulecast.api.option_values import DeviceLike
    from joulecast.uses.whole_run import DataWait, RunCost


def estimate_run(
    net: Any,
    inputs: Any = None,
    *,
    device: DeviceLike | Profile = "",
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    **options: Any,
) -> RunCost:
    """Estimate what a whole run costs, or a sweep of such runs, with a credible interval.

    Args:
        net: A name, a Network, or a module with ``inputs``.
        inputs: For a module, what it is called on.
        device: A device with a profile (see ``load_profile``), or the profile itself; by default
            the device ``on``.
        setup: How the net is trained.
        input_shape: For a name, the shape of one sample where it differs from the usual one.
        options: ``steps``, or ``epochs`` and ``samples``; fields of ``WholeRunOptions``:
            ``eval_every`` and ``eval_samples``, ``loader``, ``runs``; and the options of
            ``joulecast.estimate``.
    """
    setup_options, changes, length, whole, estimating, parallel, probing, measuring = split_options(
        estimate_run,
        options,
        Setup,
        NetOptions,
        RunLength,
        WholeRunOptions,
        EstimateOptions,
        ParallelOptions,
        ProbeOptions,
        MeasureOptions,
    )
    request = NetRequest(net, inputs, setup, input_shape, setup_options, **changes)
    # Before anything is read or measured.
    run, steps, gpus = WholeRunOptions(**whole), RunLength(**length), ParallelOptions(**parallel)
    # A measurement has runs, too.
    measuring.pop("runs", None)
    known, resolved, setup, how = find_source(request, device, estimating, probing, measuring)
    step = estimate_net(known, resolved, setup, how, gpus)
    return add_up_net(step, RunSource(known, resolved, setup, how), steps, run)


class RunSource:
    """What the estimates of a run rest on: a profile, a net, its setup, and how to estimate."""

    def __init__(
        self, profile: Profile, net: ResolvedNet, setup: Setup, options: EstimateOptions
    ) -> None:
        self.profile = profile
        self.net = net
        self.setup = setup
        self.options = options


def add_up_net(
    step: Estimate, source: RunSource, length: RunLength, run: WholeRunOptions
) -> RunCost:
    """Return what a run of a net costs.

    Args:
        step: Estimate of a step, on one GPU or several.
        source: What it rests on.
        length: Length of the run.
        run: What it consists of besides training.
    """
    from joulecast.uses.whole_run import RunSchedule, add_up_run

    setup = source.setup
    steps = length.count_steps(step.gpus * setup.samples_per_step)
    if setup.phase == "inference" and (run.eval_every or run.loader is not None):
        raise InputError(
            "evaluation and a loader belong to training: leave --eval-every and --loader out"
        )
    if length.steps is None and length.epochs is None and not run.is_plain:
        raise InputError("how long is a run? Give --steps, or --epochs and --samples")
    schedule = RunSchedule(steps, runs=run.runs)
    evaluation = None
    if run.eval_every and run.eval_samples:
        # Each GPU evaluates its share of the samples.
        batches = math.ceil(run.eval_samples / (step.gpus * setup.batch))
        schedule = replace(
            schedule, evaluations=steps // run.eval_every, evaluation_batches=batches
        )
        evaluation = _estimate_evaluation(source)
    return add_up_run(step, setup, schedule, evaluation, _find_wait(step, source, run))


def _estimate_evaluation(source: RunSource) -> Estimate:
    """Estimate the forward pass of one batch, from the same profile."""
    default = Setup()
    setup = replace(
        source.setup,
        phase="inference",
        accumulate=default.accumulate,
        optimizer=default.optimizer,
        loss=default.loss,
    )
    return estimate_net(source.profile, source.net, setup, source.options)


def _find_wait(step: Estimate, source: RunSource, run: WholeRunOptions) -> DataWait | None:
    if run.loader is None:
        return None
    from joulecast.estimators.additive.observations import find_idle_power
    from joulecast.uses.whole_run import find_wait, time_loader

    loading = time_loader(_open_loader(run.loader), source.setup.batch)
    idle_w = find_idle_power(source.profile.observations)
    return find_wait(loading, step.duration_s, source.setup, idle_w)


def _open_loader(loader: Any) -> Iterable[Any]:
    """Return a loader, which a function may make."""
    if not isinstance(loader, str):
        found = loader
    else:
        require_torch(f"running {loader}")
        from joulecast.runtimes.torch.load import call_maker

        found = call_maker(loader, "returns a data loader")
    if not isinstance(found, Iterable):
        raise InputError(f"the loader is a {type(found).__name__}: give one that gives batches")
    return found
