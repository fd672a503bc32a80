"""Estimate what training or running a net costs, before it runs.

    net ──nets.py──▶ Network, Setup ┐
    device ──profiles.py──▶ Profile ┴──▶ Estimate of a step ──run.py──▶ RunEstimate ──▶ Report

``estimate`` answers for one step, ``estimate_run`` for whole runs; ``joulecast estimate`` and the
HTTP API ask the latter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import MESSAGES, Argument, list_arguments, verb
from joulecast.features.estimate_report import RunEstimate
from joulecast.features.nets import NetRequest, ResolvedNet, require_torch
from joulecast.features.profiles import load_profile
from joulecast.features.run import (
    DataWait,
    ParallelOptions,
    RunLength,
    RunSchedule,
    add_up_run,
    find_wait,
    list_totals,
    time_loader,
)
from joulecast.records import (
    INT8_PRECISIONS,
    Estimate,
    Network,
    Profile,
    Setup,
    name_step,
    summarise_observations,
)
from joulecast.runtimes import explain_runtime_difference
from joulecast.system.errors import (
    ArgumentError,
    InputError,
    MeasurementError,
    OutOfMemoryError,
    arg,
)
from joulecast.system.units import format_energy, parse_energy, parse_share

if TYPE_CHECKING:
    from joulecast.estimators.fitted_profile import FittedProfile
    from joulecast.features.measurers import MeasureOptions

_MESSAGES = logging.getLogger(MESSAGES)
# More digits than any number of steps has.
_MOST_DIGITS = 15


def parse_seen(text: str) -> tuple[float, int]:
    """Return energy and number of steps of a text like ``12J/100``."""
    energy, _, steps = text.partition("/")
    if not steps.strip().isdecimal() or len(steps) > _MOST_DIGITS or int(steps) < 1:
        raise InputError("give the joules and the number of steps, like 12J/100")
    return parse_energy(energy), int(steps)


STEP, LAYERS = "step", "layers"
"""What a probe measures."""


def parse_probe(text: str) -> str | None:
    """Return what a probe measures, from an option or from a setting; None for no probe."""
    word = text.strip().lower()
    if word in ("false", "no", "off", "0", ""):
        return None
    return STEP if word in ("true", "yes", "on", "1") else word


Probe = Annotated[Any, Argument(
    "First measure the step on the device --on for about three seconds, or the layers of it that "
    "were never measured.",
    choices=(STEP, LAYERS), flag_value=STEP, parse=parse_probe,
)]  # fmt: skip
ProbeSeconds = Annotated[
    float | None,
    Argument("Longest duration of a probe of layers.", least=0.0, default="600"),
]
EvalEvery = Annotated[
    int | None, Argument("Evaluate the net after every N steps.", least=1, most=given.MAX_COUNT)
]
EvalSamples = Annotated[
    int | None, Argument("Samples of each evaluation.", least=1, most=given.MAX_COUNT)
]
Loader = Annotated[Any, Argument(
    "Function that returns a data loader: time it here, and add what the device waits.",
    metavar="FILE.py:FUNCTION", harm="runs code",
)]  # fmt: skip
Runs = Annotated[
    int, Argument("Number of identical runs, as in a sweep.", least=1, most=given.MAX_COUNT)
]
Seen = Annotated[Any, Argument(
    "Measured energy and number of the first steps, to update the estimate.",
    metavar="12J/100", parse=parse_seen,
)]  # fmt: skip
SeenEnergy = Annotated[float, Argument("Energy of these steps together, in joules.")]
SeenSteps = Annotated[int, Argument("Number of steps.", least=1)]
Battery = Annotated[
    str | None, Argument("Also print whether this battery suffices.", metavar="15Wh")
]
Charge = Annotated[float | None, Argument(
    "Charged share of --battery.", metavar="60%", least=0.0, most=1.0, parse=parse_share,
    default="100%",
)]  # fmt: skip
Reserve = Annotated[float | None, Argument(
    "Share of --battery that must remain.", metavar="10%", least=0.0, most=1.0,
    parse=parse_share, default="0%",
)]  # fmt: skip
RestW = Annotated[
    float | None, Argument("Watts drawn from --battery that the meter does not see.", least=0.0)
]


@verb
def estimate(
    net: given.Net,
    inputs: Any = None,
    *,
    device: given.DeviceName = "",
    on: given.On = None,
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
    probe: Probe = False,
    probe_seconds: ProbeSeconds = None,
    meter: given.Meter = None,
    estimator: given.Estimator = "auto",
    level: given.Level = 0.95,
    store: given.Store = None,
    gpus: given.Gpus = None,
    parallel: given.Parallel = "",
    link_gb_s: given.LinkGbS = None,
) -> Estimate:
    """Estimate energy and duration of one step, with a credible interval.

    A step trains the net on a batch; with ``phase="inference"`` it is one forward pass, and its
    duration is the latency.
    """
    request = NetRequest.of(locals())
    # Before anything is read or measured.
    group = ParallelOptions.of(gpus, parallel, link_gb_s)
    source = find_source(request, estimator, store, device, on, meter, probe, probe_seconds)
    return estimate_fitted(*source, level, group)


@verb
def estimate_run(
    net: given.Net,
    inputs: Any = None,
    *,
    device: given.DeviceName = "",
    profile: given.ProfileFile = None,
    on: given.On = None,
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
    probe: Probe = False,
    probe_seconds: ProbeSeconds = None,
    meter: given.Meter = None,
    estimator: given.Estimator = "auto",
    level: given.Level = 0.95,
    store: given.Store = None,
    steps: given.Steps = None,
    inferences: given.Inferences = None,
    epochs: given.Epochs = None,
    samples: given.Samples = None,
    eval_every: EvalEvery = None,
    eval_samples: EvalSamples = None,
    loader: Loader = None,
    runs: Runs = 1,
    gpus: given.Gpus = None,
    parallel: given.Parallel = "",
    link_gb_s: given.LinkGbS = None,
    seen: Seen = None,
    grid: given.Grid = None,
    price: given.Price = None,
    battery: Battery = None,
    charge: Charge = None,
    reserve: Reserve = None,
    rest_w: RestW = None,
) -> RunEstimate:
    """Estimate the energy of training or running NET, with a credible interval, before it runs.

    A step is forward, loss, backward and update on a batch that is already in memory. For an
    inference the net is not trained: it is one forward pass, and its duration is the latency.
    """
    request = NetRequest.of(locals())
    length = find_run_length(steps, inferences, epochs, samples, phase)
    for name, value in (("charge", charge), ("reserve", reserve), ("rest_w", rest_w)):
        if value is not None and battery is None:
            raise ArgumentError(f"{arg(name)} needs {arg('battery')}")
    if (eval_every is None) != (eval_samples is None):
        raise ArgumentError(
            f"{arg('eval_every')} and {arg('eval_samples')} belong together: give both"
        )
    is_plain = eval_every is None and loader is None and runs == 1
    if not (length.is_run or is_plain):
        raise ArgumentError(
            f"the length of the run is missing: give {arg('steps')}, or {arg('epochs')} and "
            f"{arg('samples')}"
        )
    if seen is not None:
        seen = _check_seen(seen)
    # Also before anything is measured.
    list_totals(1, 0.0, (0.0, 0.0), 0.0, grid, price)
    if battery is not None:
        parse_energy(battery)
    group = ParallelOptions.of(gpus, parallel, link_gb_s)
    if device and profile:
        raise ArgumentError(f"give {arg('device')} or {arg('profile')}, not both")
    device = device or profile or ""
    fitted, network, setup = find_source(
        request, estimator, store, device, on, meter, probe, probe_seconds, length, group
    )
    if setup.phase == "inference" and (eval_every or loader is not None):
        raise InputError(
            f"evaluation and a loader belong to training: leave {arg('eval_every')} and "
            f"{arg('loader')} out"
        )
    step, warnings = estimate_fitted(fitted, network, setup, level, group), []
    if seen is not None:
        first = (*seen, name_step(setup))
        warnings, step = check_first_steps(step, *first), update_run(step, *first)
    schedule = RunSchedule(length.count_steps(step.gpus * setup.samples_per_step), runs=runs)
    evaluation = None
    if eval_every is not None and eval_samples is not None:
        # Each GPU evaluates its share of the samples.
        batches = math.ceil(eval_samples / (step.gpus * setup.batch))
        count, usual = schedule.steps // eval_every, Setup()
        schedule = replace(schedule, evaluations=count, evaluation_batches=batches)
        forward = replace(
            setup,
            phase="inference",
            accumulate=usual.accumulate,
            optimizer=usual.optimizer,
            loss=usual.loss,
        )
        evaluation = estimate_fitted(fitted, network, forward, level)
    wait = None if loader is None else _time_wait(step, fitted.profile, setup, loader)
    cost = add_up_run(step, setup, schedule, evaluation, wait)
    return RunEstimate(
        network, setup, step, cost, fitted.profile, is_plain, grid, price, battery,
        1.0 if charge is None else charge, reserve or 0.0, rest_w or 0.0, tuple(warnings),
    )  # fmt: skip


@verb
def update(estimate: Estimate, *, energy_j: SeenEnergy, steps: SeenSteps) -> Estimate:
    """Update the estimate from before a run with the energy of its first steps.

    A note warns where these steps lie outside the interval of the estimate.
    """
    return update_run(estimate, energy_j, steps)


def _check_seen(seen: Any) -> tuple[float, int]:
    """Return the energy and the number of the first steps of a run."""
    if not (isinstance(seen, (tuple, list)) and len(seen) == 2 and None not in seen):
        raise ArgumentError(f"{arg('seen')} is {seen!r}: give energy and steps, like (12.0, 100)")
    energy, steps = list_arguments(update)
    return energy.convert(seen[0]), steps.convert(seen[1])


# ---------------------------------------------------------------------------------------------
# From a net and a device to an estimate


def find_source(
    request: NetRequest,
    estimator: str,
    store: str | None,
    device: Any,
    on: str | None,
    meter: str | None,
    probe: Any,
    probe_seconds: float | None,
    length: RunLength | None = None,
    group: ParallelOptions | None = None,
) -> tuple[FittedProfile, Network, Setup]:
    """Fit the profile of a device, and read a net; a probe measures it or its layers first."""
    probe = STEP if probe is True else probe or ""
    if probe not in ("", STEP, LAYERS):
        raise ArgumentError(f"{arg('probe')} is {probe!r}: give True, {STEP!r} or {LAYERS!r}")
    if probe and device:
        raise ArgumentError(
            f"a probe measures on the device {arg('on')}: leave {arg('device')} and "
            f"{arg('profile')} out"
        )
    if probe and estimator not in ("auto", "additive"):
        raise ArgumentError(
            f"{arg('probe')} needs the estimator additive: leave {arg('estimator')} out"
        )
    if device and on is not None:
        raise ArgumentError(f"{arg('device')} and {arg('on')} both name a device: give one of them")
    if meter is not None and not probe:
        raise ArgumentError(f"{arg('meter')} is for measuring: give {arg('probe', True)} as well")
    if probe_seconds is not None and probe != LAYERS:
        raise ArgumentError(f"{arg('probe_seconds')} needs {arg('probe', LAYERS)}")

    def read() -> tuple[ResolvedNet, Setup]:
        net, setup = request.resolve()
        if length is not None and group is not None:
            # A run that is too long is refused before anything is measured.
            length.count_steps(group.gpus * setup.samples_per_step)
        return net, setup

    if not probe:
        net, setup = read()
        profile = load_profile(device, on=on or "cpu", store=store)
        return fit_for_setup(profile, setup, estimator), net.network, setup

    # What measures takes a moment to import.
    from joulecast.features.measurers import MeasureOptions
    from joulecast.features.profile import ProfileOptions, probe_layers

    measuring = MeasureOptions(on or "cpu", meter or "auto")
    if probe == STEP:
        rehearsed = rehearse_step(read, measuring, store, estimator)
        if rehearsed is not None:
            return rehearsed
    net, setup = read()
    limits = ProfileOptions(seconds=probe_seconds, estimator=estimator)
    profile = probe_layers((net.network,), setup, measuring, store, limits)
    return fit_for_setup(profile, setup, estimator), net.network, setup


def rehearse_step(
    read: Callable[[], tuple[ResolvedNet, Setup]],
    measuring: MeasureOptions,
    store: str | None,
    estimator: str,
) -> tuple[FittedProfile, Network, Setup] | None:
    """Measure the step of a net, and store that; None if it does not fit into the memory.

    The answer is what was measured. The fit, which says where the energy goes, does not have to
    know that yet. On a unit of the device that is new to its profile, a layer that was measured on
    others is measured too: powers of units differ by a factor that all networks share
    (benchmarks/units).
    """
    from joulecast.estimators import fit_profile
    from joulecast.features.measure import measure_opened
    from joulecast.features.measurers import lock_device, open_any_measurer
    from joulecast.store import check_place, open_store, profile_key

    check_place(store)
    with lock_device(measuring.on), open_any_measurer(measuring) as measurer:
        try:
            found = measure_opened(measurer, read, measuring.on)
        except OutOfMemoryError as error:
            _MESSAGES.warning(f"{error}; its layers are measured instead")
            return None
        with open_store(store) as opened:
            key, unit = profile_key(found.observation), found.observation.device.unit
            opened.add_observation(found.observation)
            known = summarise_observations(opened.load_profile(key).observations)
            if unit and known.reference and known.units[unit] == 1:
                # Without it, the answer is the same.
                with suppress(MeasurementError):
                    opened.add_observation(measurer.measure(known.reference))
            profile = opened.load_profile(key)
    fitted = fit_profile(profile, estimator, accepts_old=True)
    return fitted, found.net.network, found.setup


def estimate_net(
    profile: Profile, network: Network, setup: Setup, estimator: str = "auto", level: float = 0.95
) -> Estimate:
    """Estimate one step of a network from a profile."""
    return estimate_fitted(fit_for_setup(profile, setup, estimator), network, setup, level)


def fit_for_setup(profile: Profile, setup: Setup, estimator: str) -> FittedProfile:
    """Fit an estimator, which may take minutes, unless the device cannot run the setup."""
    from joulecast.estimators import fit_profile

    check_precision(profile, setup)
    return fit_profile(profile, estimator)


def estimate_fitted(
    fitted: FittedProfile,
    network: Network,
    setup: Setup,
    level: float,
    group: ParallelOptions | None = None,
) -> Estimate:
    """Estimate one step from a fitted profile, with a note if another framework is installed."""
    check_precision(fitted.profile, setup)
    found = fitted.estimate([network], setup, level)[0]
    if group is not None and group.gpus > 1:
        from joulecast.estimators.data_parallel import find_gpu_group, replicate_step

        gpus = find_gpu_group(fitted.profile, setup, group.gpus, group.link_bytes_per_s)
        found, _ = replicate_step(found, network, setup, gpus)
    difference = explain_runtime_difference(fitted.profile.runtime)
    return replace(found, notes=(*found.notes, difference)) if difference else found


def check_precision(profile: Profile, setup: Setup) -> None:
    """Raise InputError for a precision that the profile's device or framework does not have."""
    if setup.precision in INT8_PRECISIONS and profile.runtime.startswith(("torch", "mnn")):
        raise InputError(
            f"the profile of {profile.device.name} is of {profile.runtime}, which does not run "
            f"{setup.precision} here: give {arg('on', 'onnx:cpu')}, or another precision"
        )
    # It would silently compute in fp32.
    if setup.precision == "tf32" and profile.covers.split(" ")[0] == "cpu":
        raise InputError(
            f"tf32 is a number format of NVIDIA GPUs, and {profile.device.name} is a processor: "
            "give fp32"
        )


def update_run(estimate: Estimate, energy_j: float, steps: int, noun: str = "step") -> Estimate:
    """Update an estimate with the first steps of a run; notes call a step ``noun``."""
    from joulecast.estimators import update_estimate

    updated = update_estimate(estimate, energy_j, steps)
    warnings = check_first_steps(estimate, energy_j, steps, noun)
    return replace(updated, notes=(*updated.notes, *warnings))


def check_first_steps(
    estimate: Estimate, energy_j: float, steps: int, noun: str = "step"
) -> list[str]:
    """Return a warning if the first steps of a run lie outside the interval of its estimate."""
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


def find_run_length(
    steps: int | None,
    inferences: int | None,
    epochs: int | None,
    samples: int | None,
    phase: str | None,
) -> RunLength:
    """Return the length of a run; inferences are steps of inference."""
    if inferences is not None:
        if phase != "inference":
            raise ArgumentError(f"{arg('inferences')} needs {arg('phase', 'inference')}")
        if steps is not None:
            raise ArgumentError(f"give {arg('inferences')} or {arg('steps')}, which mean the same")
    return RunLength(steps if inferences is None else inferences, epochs, samples)


def _time_wait(step: Estimate, profile: Profile, setup: Setup, loader: Any) -> DataWait:
    """Time a data loader on this machine; return how long the device waits for its batches."""
    from joulecast.estimators.additive.observations import find_idle_power

    if isinstance(loader, str):
        require_torch(f"running {loader}")
        from joulecast.torch_nets.load import call_maker

        loader = call_maker(loader, "returns a data loader")
    if not isinstance(loader, Iterable):
        raise InputError(f"the loader is a {type(loader).__name__}: give one that gives batches")
    idle_w = find_idle_power(profile.observations)
    return find_wait(time_loader(loader, setup.batch), step.duration_s, setup, idle_w)
