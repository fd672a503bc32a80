"""Score devices by the power and energy of inferences: PCS, IECS and a label from A to G."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulecast.errors import (
    ContaminatedError,
    InputError,
    MissingError,
    NotTrainingError,
    OutOfMemoryError,
)
from joulecast.features.measurers import lock_device, open_any_measurer
from joulecast.features.options import MeasureOptions, ProgressOptions, split_options
from joulecast.features.profiles import load_observed_profile, load_profile
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.records import Observation, Profile, Setup, Trial

if TYPE_CHECKING:
    from joulecast.features.option_values import DeviceLike
    from joulecast.measurer import TrialMeasurer
    from joulecast.store import Store
    from joulecast.uses.score import DeviceFacts, DeviceScore, PublishedScore

# A device that cannot run one application is scored on the others.
_REFUSALS = (ContaminatedError, InputError, NotTrainingError, OutOfMemoryError)


@dataclass(frozen=True)
class ScoreOptions:
    """With what a device is scored.

    Attributes:
        threads: Numbers of threads. By default the runtime's choice, and for stored observations
            all that were observed.
        processors: Processors of the device, as its runtime names them; likewise.
        precision: Number format.
        tdp: Thermal design power, like ``15W``; by default the power limit of a GPU.
        price: What the device costs, like ``599EUR``.
        inferences_per_s: Performance that is stated elsewhere; by default what was observed.
        offline: Score stored observations without measuring.
        store: Path or URL of the store, if not the usual one.
    """

    threads: tuple[int, ...] = ()
    processors: tuple[str, ...] = ()
    precision: str = "fp32"
    tdp: str = ""
    price: str = ""
    inferences_per_s: float | None = None
    offline: bool = False
    store: str | None = None

    def __post_init__(self) -> None:
        for count in self.threads:
            if count < 1:
                raise InputError(f"threads has {count}: give whole numbers of at least 1")
        # A wrong value is reported before anything is measured.
        self.parse_facts()

    def parse_facts(self) -> DeviceFacts:
        """Return what the options state about the device."""
        from joulecast.uses.score.device_file import parse_facts

        texts = {"tdp": self.tdp, "price": self.price, "performance": self.inferences_per_s}
        return parse_facts("options", {key: value for key, value in texts.items() if value})


def score(
    *,
    on: DeviceLike = "cpu",
    devices: Sequence[str] = (),
    **options: Any,
) -> tuple[DeviceScore, ...]:
    """Score a device on six reference applications, or stored devices.

    What the store has of the device's observations is used, the rest is measured and stored.
    Estimates take no part.

    Args:
        on: The device to measure on; see ``MeasureOptions``.
        devices: Devices with profiles (see ``load_profile``), which are not measured, instead.
        options: Fields of ``ScoreOptions`` (``threads=(1, 4), tdp="15W"``) and of
            ``MeasureOptions``: ``meter``, ``rounds``, ``device_name``; also ``on_progress``, which
            is called before every measurement.

    Raises:
        InputError: A value cannot be used.
        MissingError: Nothing was observed of the reference applications.
    """
    scoring, measuring, reporting = split_options(
        score, {"on": on, **options}, ScoreOptions, MeasureOptions, ProgressOptions
    )
    how = ScoreOptions(**scoring)
    if devices:
        return score_stored(devices, how, {})
    report = ProgressOptions(**reporting).on_progress
    return (score_here(MeasureOptions(**measuring), how, report),)


def score_phones(
    names: Sequence[str] = (), facts: Mapping[str, DeviceFacts] | None = None
) -> tuple[PublishedScore, ...]:
    """Return the phones of DeepEn2023, with our scores beside the published ones.

    Args:
        names: Names of phones; all eight by default.
        facts: Prices and performances by the name of a phone.

    Raises:
        InputError: There is no such phone.
    """
    from joulecast.uses.score import score_published

    phones = {one.score.name: one for one in score_published(facts)}
    for name in (*names, *(facts or {})):
        if name not in phones:
            raise InputError(f"DeepEn2023 has no phone {name!r}: choose from {', '.join(phones)}")
    return tuple(phones[name] for name in names or phones)


def score_stored(
    devices: Sequence[str], options: ScoreOptions, facts: Mapping[str, DeviceFacts]
) -> tuple[DeviceScore, ...]:
    """Score devices from stored observations.

    Args:
        devices: Names of devices, or keys or files of profiles.
        options: With what they are scored; TDP, price and performance are for a single device.
        facts: TDP, price and performance by the name that is in ``devices``.
    """
    stated = options.parse_facts()
    is_stated = bool(options.tdp or options.price or options.inferences_per_s)
    if is_stated and (len(devices) > 1 or facts):
        raise InputError(
            "TDP, price and performance as options are those of one device: give them in a file "
            "with --device-file for several, and not in both places"
        )
    return tuple(
        _score_profile(
            load_observed_profile(name, store=options.store), options, facts.get(name, stated)
        )
        for name in devices
    )


def score_here(
    measuring: MeasureOptions, options: ScoreOptions, on_progress: ReportProgress | None = None
) -> DeviceScore:
    """Score the device that ``measuring`` names; measure what the store does not have.

    Args:
        measuring: Device, meter and number of rounds.
        options: With what it is scored.
        on_progress: Called before every measurement.
    """
    if options.offline:
        try:
            profile = load_profile("", on=measuring.on, store=options.store)
        except MissingError as error:
            raise MissingError(
                f"nothing is stored of {measuring.on}: leave --offline out"
            ) from error
        return _score_profile(profile, options, options.parse_facts())
    from joulecast.store import open_store
    from joulecast.uses.score.observed_scores import list_score_setups, score_observations

    setups = list_score_setups(options.threads, options.processors, options.precision)
    with (
        lock_device(measuring.on),
        open_any_measurer(measuring) as measurer,
        open_store(options.store) as store,
    ):
        profile = _identify(measurer)
        store.check_writable(profile)
        observed, refusals = _measure_missing(measurer, store, profile, setups, on_progress)
    profile = replace(profile, observations=observed)
    result = score_observations(
        profile, setups, _fill_tdp(options.parse_facts(), profile), refusals
    )
    return _require_energies(result, "")


def _score_profile(profile: Profile, options: ScoreOptions, facts: DeviceFacts) -> DeviceScore:
    from joulecast.uses.score.observed_scores import (
        find_score_setups,
        list_score_setups,
        score_observations,
    )

    is_given = bool(options.threads or options.processors)
    setups = (
        list_score_setups(options.threads, options.processors, options.precision)
        if is_given
        else find_score_setups(profile.observations, options.precision)
    )
    result = score_observations(profile, setups, _fill_tdp(facts, profile))
    return _require_energies(result, ": measure them there with `joulecast score --on DEVICE`")


def _identify(measurer: TrialMeasurer) -> Profile:
    """Return the profile that a measurer's observations belong to, without observations."""
    runtime, meter = measurer.runtime, measurer.meter
    return Profile(runtime.device, runtime.name, meter.covers, meter.provenance)


def _measure_missing(
    measurer: TrialMeasurer,
    store: Store,
    profile: Profile,
    setups: Sequence[Setup],
    on_progress: ReportProgress | None,
) -> tuple[list[Observation], dict[str, str]]:
    """Return all observations, and why trials could not be measured, by their keys."""
    from joulecast.uses.score.observed_scores import (
        describe_processor,
        has_energy,
        list_score_trials,
    )

    observed = list(store.load_observations(profile.key))
    known = {one.trial.key for one in observed if one.trial.setup in setups and has_energy(one)}
    trials = [pair for pair in list_score_trials(setups) if pair[1].key not in known]
    refusals: dict[str, str] = {}
    for number, (name, trial) in enumerate(trials):
        if on_progress is not None:
            detail = f"{name}, {describe_processor(trial.setup)}"
            on_progress(ProgressReport(number, len(trials), "measurements", detail))
        found = _measure(measurer, trial)
        if isinstance(found, str):
            refusals[trial.key] = found
        else:
            store.add_observation(found)
            observed.append(found)
    return observed, refusals


def _measure(measurer: TrialMeasurer, trial: Trial) -> Observation | str:
    """Return the observation of a trial, or why there is none."""
    try:
        return measurer.measure(trial)
    except _REFUSALS as error:
        return str(error)


def _fill_tdp(facts: DeviceFacts, profile: Profile) -> DeviceFacts:
    limit_w = profile.device.power_limit_w
    if facts.tdp_w is not None or limit_w is None:
        return facts
    return replace(facts, tdp_w=limit_w, tdp_source="power limit of the device")


def _require_energies(result: DeviceScore, hint: str) -> DeviceScore:
    if result.energies_j:
        return result
    reasons = dict.fromkeys(one.missing for one in result.configurations)
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise MissingError(f"{result.name} has no energies of the reference applications{why}{hint}")
