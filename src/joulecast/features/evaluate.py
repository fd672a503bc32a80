"""Evaluate estimators on held-out random nets of a family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulecast.features.measurers import lock_device, open_any_measurer
from joulecast.features.nets import NetRequest, Shape
from joulecast.features.options import EvaluateOptions, MeasureOptions, split_options
from joulecast.features.profiles import find_observed_profile
from joulecast.records import Profile, Setup
from joulecast.uses.progress_report import ReportProgress

if TYPE_CHECKING:
    from joulecast.features.option_values import DeviceLike
    from joulecast.uses.evaluate import Evaluation, EvaluationPlan


def evaluate(
    family: str,
    *,
    setup: Setup | None = None,
    input_shape: Shape | None = None,
    device: DeviceLike | Profile = "",
    store: str | None = None,
    on_progress: ReportProgress | None = None,
    **options: Any,
) -> Evaluation:
    """Measure random nets of a family and compare the estimators' predictions with them.

    Every observation is stored at once, so an interrupted evaluation resumes where it stopped.

    Args:
        family: Name of the family, without widths.
        setup: How its nets are trained or run.
        input_shape: Shape of one sample, where it differs from the family's.
        device: With ``offline=True``, a device with a profile, or the profile itself; by default
            the profile of the device ``on`` and its meter.
        store: Path or URL of the store, if not the usual one.
        on_progress: Called before every measurement.
        options: Fields of ``Setup`` (``batch=128``), of ``MeasureOptions`` (``on="cuda:0"``) and of
            ``EvaluateOptions``: ``estimators``, ``nets``, ``seconds``, ``seed``, ``offline``.
    """
    setup_options, measuring, evaluating = split_options(
        evaluate, options, Setup, MeasureOptions, EvaluateOptions
    )
    request = NetRequest(family, None, setup, input_shape, setup_options)
    how, where = EvaluateOptions(**evaluating), MeasureOptions(**measuring)
    plan = make_evaluation_plan(request, how)
    if how.offline:
        return evaluate_offline(plan, device, where, store)
    return run_evaluation(plan, where, store, on_progress)


def make_evaluation_plan(request: NetRequest, options: EvaluateOptions) -> EvaluationPlan:
    """Return what is to be evaluated."""
    from joulecast.uses.evaluate import EvaluationPlan, check_family, list_estimators

    check_family(request.name)
    setup = request.resolve()[1]
    return EvaluationPlan(
        request.name,
        setup,
        request.input_shape,
        options.estimators or list_estimators(request.name, setup.phase),
        options.nets,
        options.seconds,
        options.seed,
    )


def run_evaluation(
    plan: EvaluationPlan,
    measuring: MeasureOptions,
    store: str | None = None,
    on_progress: ReportProgress | None = None,
) -> Evaluation:
    """Measure what the store does not hold yet, then evaluate, and store the result.

    Raises:
        MeasurementError: Another campaign runs on the device.
    """
    from joulecast.campaign import find_profile_key
    from joulecast.store import open_store
    from joulecast.uses.evaluate import evaluate as measure_and_evaluate

    with (
        open_any_measurer(measuring) as measurer,
        lock_device(measuring.on),
        open_store(store) as opened,
    ):
        opened.check_writable()
        result = measure_and_evaluate(measurer, opened, plan, on_progress)
        opened.evaluations.save(result.name, find_profile_key(measurer), result.to_dict())
        return result


def evaluate_offline(
    plan: EvaluationPlan,
    device: DeviceLike | Profile,
    measuring: MeasureOptions,
    store: str | None = None,
) -> Evaluation:
    """Evaluate stored observations without measuring.

    Args:
        plan: What is evaluated.
        device: A device with a profile, or the profile; the device of ``measuring`` where empty.
        measuring: Device and meter whose observations are evaluated.
        store: Path or URL of the store.
    """
    from joulecast.campaign import find_profile_key
    from joulecast.store import open_store
    from joulecast.uses.evaluate import evaluate_stored

    if device:
        return evaluate_stored(find_observed_profile(device, store), plan)
    # Never opened: it only identifies the device and the meter.
    measurer = open_any_measurer(measuring)
    runtime, meter = measurer.runtime, measurer.meter
    with open_store(store, create=False) as opened:
        observations = opened.load_observations(find_profile_key(measurer))
    profile = Profile(runtime.device, runtime.name, meter.covers, meter.provenance, observations)
    return evaluate_stored(profile, plan)
