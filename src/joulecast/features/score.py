"""Score devices on six reference applications: PCS, IECS and a label from A to G.

Observations make scores; estimates take no part. What users know about devices, no meter tells:
TDP, price and performance, as options or in a file of TOML or CSV:

    [[device]]                      name,tdp,price,performance
    name = "nvidia-h200"            nvidia-h200,700W,30000EUR,
    tdp = "700W"
    price = "30000EUR"
    performance = 120               inferences per second; by default what was observed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from joulecast.features import arguments as given
from joulecast.features.arguments import Argument, parse_counts, parse_list, verb
from joulecast.features.data.power_trace import read_csv
from joulecast.features.device_score import (
    DeviceFacts,
    DeviceScore,
    DeviceScores,
    ScoredConfiguration,
    draw_label,
    score_phones,
)
from joulecast.features.measurers import MeasureOptions
from joulecast.features.progress_report import ProgressReport, ReportProgress
from joulecast.features.reference_applications import (
    build_reference_application,
    list_reference_applications,
)
from joulecast.records import PRECISIONS, Observation, Profile, Setup, Trial
from joulecast.system.errors import (
    ArgumentError,
    ContaminatedError,
    FileError,
    InputError,
    MissingError,
    NotTrainingError,
    OutOfMemoryError,
    arg,
)
from joulecast.system.files import read_toml, write_text
from joulecast.system.toml_tables import list_tables, parse_table, refuse_unknown
from joulecast.system.units import parse_money, parse_power
from joulecast.views.words import plural

# A device that cannot run one application is scored on the others.
_REFUSALS = (ContaminatedError, InputError, NotTrainingError, OutOfMemoryError)
Rounds = Annotated[int | None, Argument("Windows of each measurement.", least=1, default="3")]
Devices = Annotated[
    tuple[str, ...],
    Argument(
        "Score devices with profiles from what is stored, without measuring.",
        metavar="NAME,NAME",
        parse=parse_list,
    ),
]
DeviceFile = Annotated[
    str | None,
    Argument("TDP, price and performance of devices: .toml or .csv.", metavar="FILE"),
]
Published = Annotated[bool, Argument("Score the eight phones that DeepEn2023 published.")]
Svg = Annotated[
    str | None,
    Argument(
        "Also draw the label as a picture.",
        metavar="FILE.svg",
        harm="writes a file",
        is_written=True,
    ),
]
Threads = Annotated[
    tuple[int, ...],
    Argument(
        "Numbers of threads.", metavar="1,4", parse=parse_counts, least=1,
        default="the runtime's choice",
    ),
]  # fmt: skip
Processors = Annotated[
    tuple[str, ...],
    Argument(
        "Processors of the device.", metavar="NAME,NAME", parse=parse_list, option="processor",
        default="the runtime's choice",
    ),
]  # fmt: skip
Precision = Annotated[str | None, Argument("Number format.", choices=PRECISIONS, default="fp32")]
Tdp = Annotated[
    str | None, Argument("Thermal design power.", metavar="15W", default="power limit of a GPU")
]
Price = Annotated[str | None, Argument("What the device costs, for --plot.", metavar="599EUR")]
Performance = Annotated[
    float | None,
    Argument(
        "Inferences per second, for --plot.", above=0.0, metavar="N", option="performance",
        default="as observed",
    ),
]  # fmt: skip
Offline = Annotated[bool, Argument("Score what is stored without measuring.")]


@verb
def score(
    *,
    on: given.On = None,
    meter: given.Meter = None,
    rounds: Rounds = None,
    device_name: given.RecordedName = "",
    warmup: given.Warmup = 0,
    runs: given.WindowRuns = 0,
    devices: Devices = (),
    device_file: DeviceFile = None,
    published: Published = False,
    svg: Svg = None,
    threads: Threads = (),
    processors: Processors = (),
    precision: Precision = None,
    tdp: Tdp = None,
    price: Price = None,
    inferences_per_s: Performance = None,
    offline: Offline = False,
    store: given.Store = None,
    on_progress: ReportProgress | None = None,
) -> DeviceScores:
    """Score a device by the power and energy of inferences, with a label from A to G.

    Six small reference applications are run one inference at a time; what is stored already is not
    measured again, and estimates take no part. PCS says how far the power stays below the thermal
    design power, IECS how many inferences a joule is enough for.
    """
    measuring = {"on": on, "meter": meter, "rounds": rounds, "offline": offline or None}
    for name, value in measuring.items():
        if value is not None and (published or devices or device_file):
            raise ArgumentError(
                f"{arg(name)} is for measuring: leave it out, or {arg('published')}, "
                f"{arg('devices')} and {arg('device_file')}"
            )
    observed = {
        "threads": threads, "processors": processors, "precision": precision, "tdp": tdp,
        "price": price, "inferences_per_s": inferences_per_s,
    }  # fmt: skip
    for name, found in observed.items():
        if published and found:
            raise ArgumentError(f"{arg('published')} has no {arg(name)}: leave it out")
    # A wrong value is reported before anything is measured.
    texts = {"tdp": tdp, "price": price, "performance": inferences_per_s}
    stated = parse_facts("options", {key: value for key, value in texts.items() if value})
    facts = read_device_file(device_file) if device_file else {}
    names = devices or tuple(facts)
    phones = score_phones(devices, facts) if published else ()
    count = len(phones) or len(names) or 1
    if svg is not None and count > 1:
        raise InputError(
            f"{arg('svg')} draws the label of one device, and there are {count}: name one with "
            f"{arg('devices')}, or leave {arg('svg')} out"
        )
    if published:
        result = DeviceScores(tuple(one.score for one in phones), phones)
    else:
        precision = precision or "fp32"
        setups = list_score_setups(threads, processors, precision) if threads or processors else []
        if names and any(texts.values()) and (len(names) > 1 or facts):
            raise InputError(
                "TDP, price and performance as options are those of one device: give them in "
                f"a file with {arg('device_file')} for several, and not in both places"
            )
        on = on or "cpu"
        if names or offline:
            scores = []
            for name in names or ("",):
                profile = _load_stored(name, on, store)
                own = setups or find_score_setups(profile.observations, precision)
                scores.append(score_observations(profile, own, facts.get(name, stated)))
        else:
            options = MeasureOptions(on, meter or "auto", rounds or 3, device_name, warmup, runs)
            setups = setups or list_score_setups(precision=precision)
            scores = [_measure_and_score(options, setups, stated, store, on_progress)]
        result = DeviceScores(tuple(scores))
    try:
        if svg is not None:
            write_text(Path(svg), draw_label(result[0]))
    except FileError as error:
        # What was measured is shown all the same.
        return replace(result, failure=error)
    return result


def _load_stored(name: str, on: str, store: str | None) -> Profile:
    from joulecast.features.profiles import load_observed_profile, load_profile

    if name:
        return load_observed_profile(name, store=store)
    try:
        return load_profile("", on=on, store=store)
    except MissingError as error:
        raise MissingError(f"nothing is stored of {on}: leave {arg('offline')} out") from error


def _measure_and_score(
    measuring: MeasureOptions,
    setups: Sequence[Setup],
    facts: DeviceFacts,
    store: str | None,
    on_progress: ReportProgress | None,
) -> DeviceScore:
    """Measure what the store does not have, and score the device."""
    from joulecast.campaign.trial_log import describe_profile
    from joulecast.features.measurers import lock_device, open_any_measurer
    from joulecast.store import open_store

    refusals: dict[Trial, str] = {}
    with (
        lock_device(measuring.on),
        open_any_measurer(measuring) as measurer,
        open_store(store) as opened,
    ):
        profile = describe_profile(measurer)
        opened.check_writable(profile)
        observed = list(opened.load_observations(profile.key))
        known = {one.trial for one in observed if has_energy(one)}
        trials = [trial for trial in list_score_trials(setups) if trial not in known]
        for number, trial in enumerate(trials):
            if on_progress is not None:
                detail = f"{trial.network.name}, {describe_processor(trial.setup)}"
                on_progress(ProgressReport(number, len(trials), "measurements", detail))
            try:
                found = measurer.measure(trial)
            except _REFUSALS as error:
                refusals[trial] = str(error)
            else:
                opened.add_observation(found)
                observed.append(found)
    complete = replace(profile, observations=tuple(observed))
    return score_observations(complete, setups, facts, refusals)


_PENDING = "its energy is still to come: attach a power trace with `joulecast data attach`"
_NO_ENERGY = "it was observed without energy: measure it again"
_ZERO = "the meter counted no energy: measure it with a meter that resolves it"


def list_score_setups(
    threads: Sequence[int] = (), processors: Sequence[str] = (), precision: str = "fp32"
) -> list[Setup]:
    """Return setups of one inference at a time; empty arguments are the runtime's choice."""
    return [
        Setup(1, "inference", precision, threads=count, processor=processor)
        for processor, count in product(processors or ("",), threads or (0,))
    ]


def find_score_setups(observations: Iterable[Observation], precision: str) -> list[Setup]:
    """Return the setups with which reference applications were observed one at a time."""
    networks = set(map(build_reference_application, list_reference_applications()))
    found = {
        trial.setup
        for trial in (one.trial for one in observations)
        if (trial.setup.batch, trial.setup.phase, trial.setup.precision)
        == (1, "inference", precision)
        and trial.execution.is_user_step
        and trial.network in networks
    }
    return sorted(found, key=lambda setup: (setup.processor, setup.threads, setup.cuda_graphs))


def list_score_trials(setups: Sequence[Setup]) -> list[Trial]:
    """Return each reference application with each setup, as trials."""
    return [
        Trial(build_reference_application(name), setup)
        for name in list_reference_applications()
        for setup in setups
    ]


def score_observations(
    profile: Profile,
    setups: Sequence[Setup],
    facts: DeviceFacts,
    refusals: Mapping[Trial, str] | None = None,
) -> DeviceScore:
    """Return the scores of a device that has energies; its TDP is by default its power limit.

    ``refusals`` says why trials were not measured.

    Raises:
        MissingError: No reference application has an energy.
    """
    limit_w = profile.device.power_limit_w
    if facts.tdp_w is None and limit_w is not None:
        facts = replace(facts, tdp_w=limit_w, tdp_source="power limit of the device")
    by_trial = {trial: list[Observation]() for trial in list_score_trials(setups)}
    for one in profile.observations:
        if one.trial in by_trial:
            by_trial[one.trial].append(one)
    configurations = tuple(
        _summarise(trial, found, (refusals or {}).get(trial)) for trial, found in by_trial.items()
    )
    if not any(one.energy_per_inference_j for one in configurations):
        reasons = "; ".join(dict.fromkeys(one.missing or "" for one in configurations))
        why = f" ({reasons})" if reasons else ""
        if refusals is None:
            why += ": measure them there with `joulecast score --on DEVICE`"
        name = profile.device.name
        raise MissingError(f"{name} has no energies of the reference applications{why}")
    is_imported = profile.provenance == "imported"
    sources = sorted({one.source for one in profile.observations if one.source and is_imported})
    return DeviceScore(
        profile.device.name, profile.runtime, profile.covers, profile.provenance, configurations,
        facts, ", ".join(sources) or None,
    )  # fmt: skip


def has_energy(observation: Observation) -> bool:
    """Return whether an observation can be scored."""
    return bool(observation.energy_j and observation.duration_s)


def describe_processor(setup: Setup) -> str:
    """Return what distinguishes a setup from others of a device: ``NNAPI``, ``4 threads``."""
    parts = (
        setup.processor,
        plural(setup.threads, "thread") if setup.threads else "",
        "CUDA graphs" if setup.cuda_graphs else "",
        "" if setup.precision == "fp32" else setup.precision,
    )
    return ", ".join(filter(None, parts)) or "default"


def _summarise(
    trial: Trial, observations: Sequence[Observation], refusal: str | None
) -> ScoredConfiguration:
    name, processor = trial.network.name, describe_processor(trial.setup)
    complete = [one for one in observations if has_energy(one)]
    if not complete:
        reason = "not measured yet"
        if observations:
            last = observations[-1]
            reason = _NO_ENERGY if last.energy_j is None else _ZERO
            reason = last.refusal or (_PENDING if last.is_pending else reason)
        return ScoredConfiguration(name, processor, missing=refusal or reason, observations=0)
    energies_j = [(one.energy_j or 0.0) / one.trial.execution.steps for one in complete]
    powers_w = [(one.energy_j or 0.0) / (one.duration_s or 1.0) for one in complete]
    return ScoredConfiguration(
        name, processor, median(energies_j), median(powers_w), observations=len(complete)
    )


def read_device_file(path: str | Path) -> dict[str, DeviceFacts]:
    """Return what a file says about devices, by their names."""
    path = Path(path)
    try:
        if path.suffix.lower() == ".csv":
            rows = read_csv(path)
            _, columns = next(rows)
            pairs = [zip(columns, cells, strict=False) for _, cells in rows]
            data = {"device": [{key: cell for key, cell in row if cell} for row in pairs]}
        else:
            data = read_toml(path)
        refuse_unknown("the file", data, ("device",))
        tables = list_tables(data, "device")
        return {values["name"]: parse_facts(where, values) for where, values in tables}
    except FileError:
        raise
    except InputError as error:
        raise FileError(f"{path}: {error}") from error


def parse_facts(where: str, texts: Mapping[str, Any]) -> DeviceFacts:
    """Return the facts of ``tdp``, ``price`` and ``performance``, which messages call ``where``."""
    values = parse_table(where, texts, _PARSERS)
    price, currency = values.get("price", (None, None))
    return DeviceFacts(
        values.get("tdp"),
        price=price,
        currency=currency,
        inferences_per_s=values.get("performance"),
    )


def _parse_positive(value: Any, parse: Callable[[str], float], advice: str) -> float:
    try:
        number = parse(str(value))
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e15:
        raise InputError(advice)
    return number


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "name": str,
    "tdp": partial(_parse_positive, parse=parse_power, advice="give more than 0 W, like 15W"),
    "price": lambda value: parse_money(str(value)),
    "performance": partial(
        _parse_positive, parse=float, advice="give inferences per second, like 120"
    ),
}
