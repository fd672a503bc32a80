"""Scores of devices by the energy and power of inferences, as DeepEn2023 has them.

    PCS    power consumption score              100 x mean of (1 - power / TDP), rounded
    IECS   inference energy consumption score   sum of inferences per joule (our reading)

Both are over configurations: applications, each on some processors or with some numbers of threads.
TDP is the thermal design power. The exact weights of IECS are not public.

Letters from A to G have thresholds of our own; no standard has any. They were set so that the eight
phones that DeepEn2023 published lie in the middle, and both ends are left to better and worse
devices, as the energy label of the European Union leaves class A empty when it is introduced:

    PCS                                  one letter for every 10 points; the phones have C to E
    inferences per joule, on average     one letter for every factor of two; the phones have C, D
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from joulecast.records import PROVENANCES, Json, weakest_provenance
from joulecast.records.trial import INFERENCES
from joulecast.system.errors import FileError, InputError
from joulecast.system.printable import make_printable
from joulecast.system.units import (
    format_duration,
    format_energy,
    format_money,
    format_power,
    joules_to_wh,
)
from joulecast.views.report import Block, Picture, Plot, Report, Reportable, Table, Text, make_table
from joulecast.views.style import GREY
from joulecast.views.words import (
    describe_provenance,
    format_optional,
    label_provenance,
    plural,
    shorten,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = "ABCDEFG"
# From green to red, each readable below white letters.
LETTER_COLOURS = ("#0B7A4B", "#3F8F2F", "#7A8F1E", "#B08900", "#C96F12", "#C24A1C", "#B3261E")


@dataclass(frozen=True)
class LabelScale:
    """The least values of A to F; everything below has G."""

    thresholds: tuple[float, ...]

    def choose_letter(self, value: float) -> str:
        for letter, least in zip(LETTERS, self.thresholds, strict=False):
            if value >= least:
                return letter
        return LETTERS[-1]

    def describe(self) -> str:
        """Return ``A from 90, B from 80, …, G below``."""
        steps = zip(LETTERS, self.thresholds, strict=False)
        return ", ".join(f"{letter} from {least:g}" for letter, least in steps) + ", G below"


POWER_SCALE = LabelScale((90.0, 80.0, 70.0, 60.0, 50.0, 40.0))
ENERGY_SCALE = LabelScale((16.0, 8.0, 4.0, 2.0, 1.0, 0.5))
IECS_CAVEAT = (
    "IECS is our reading of DeepEn2023: the sum of inferences per joule over applications and "
    "processors. Its exact weights are not public. Compare it only between devices with the same "
    "applications and processors."
)
SCALE_NOTE = (
    f"The thresholds of A to G are ours. PCS: {POWER_SCALE.describe()}. "
    f"Inferences per joule, on average: {ENERGY_SCALE.describe()}. The label is the worse of both."
)


@dataclass(frozen=True)
class ScoredConfiguration:
    """The energy and power of one inference of an application on a processor.

    Attributes:
        processor: Processor or number of threads.
        missing: Why a value is not known; empty if all are.
        count: Number of observations.
    """

    application: str
    processor: str
    energy_j: float | None = None
    power_w: float | None = None
    missing: str = ""
    count: int = 1

    @property
    def duration_s(self) -> float | None:
        if self.energy_j is None or not self.power_w:
            return None
        return self.energy_j / self.power_w


@dataclass(frozen=True)
class DeviceFacts:
    """What no meter tells about a device; a stated performance replaces the observed one."""

    tdp_w: float | None = None
    tdp_source: str = "given"
    price: float | None = None
    currency: str = ""
    inferences_per_s: float | None = None


# JSON has these under their own names.
_SCORE_FIELDS = (
    "name", "label", "pcs", "pcs_label", "iecs", "iecs_label", "inferences_per_joule",
    "wh_per_1000_inferences", "inferences_per_s", "mean_power_w",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceScore:
    """The scores of a device, and what they rest on; ``source`` published imported energies."""

    name: str
    runtime: str
    covers: str
    provenance: str
    configurations: tuple[ScoredConfiguration, ...]
    facts: DeviceFacts = DeviceFacts()
    source: str = ""

    @cached_property
    def energies_j(self) -> tuple[float, ...]:
        """Known energies of an inference."""
        return tuple(one.energy_j for one in self.configurations if one.energy_j)

    @cached_property
    def mean_power_w(self) -> float | None:
        powers_w = [one.power_w for one in self.configurations if one.power_w is not None]
        return fmean(powers_w) if powers_w else None

    @property
    def pcs(self) -> int | None:
        """The power consumption score; None if TDP or power is not known."""
        return self.score_power(self.facts.tdp_w)

    def score_power(self, tdp_w: float | None) -> int | None:
        """Return PCS for a thermal design power; None if that or all powers are unknown."""
        powers_w = [one.power_w for one in self.configurations if one.power_w and tdp_w]
        if tdp_w is None or not powers_w:
            return None
        return round(100.0 * fmean(1.0 - one / tdp_w for one in powers_w))

    @property
    def iecs(self) -> float | None:
        """The inference energy consumption score, as we read it; None without energies."""
        return sum(1.0 / one for one in self.energies_j) if self.energies_j else None

    @property
    def inferences_per_joule(self) -> float | None:
        return None if self.iecs is None else self.iecs / len(self.energies_j)

    @property
    def inferences_per_s(self) -> float | None:
        """The stated performance, else the geometric mean over configurations."""
        if self.facts.inferences_per_s is not None:
            return self.facts.inferences_per_s
        durations_s = [one.duration_s for one in self.configurations if one.duration_s]
        if not durations_s:
            return None
        return math.exp(-fmean(map(math.log, durations_s)))

    @property
    def wh_per_1000_inferences(self) -> float | None:
        """Watt-hours per 1,000 inferences: the mean over applications."""
        own = [wh for _, wh in self.list_applications() if wh is not None]
        return fmean(own) if own else None

    def list_applications(self) -> list[tuple[str, float | None]]:
        """Return each application with its watt-hours per 1,000 inferences, over processors."""
        energies_j: dict[str, list[float]] = {one.application: [] for one in self.configurations}
        for one in self.configurations:
            energies_j[one.application] += [one.energy_j] if one.energy_j else []
        return [
            (name, joules_to_wh(INFERENCES * fmean(found)) if found else None)
            for name, found in energies_j.items()
        ]

    @cached_property
    def unscored(self) -> tuple[str, ...]:
        """Applications without an energy on any processor: without them there are no letters."""
        return tuple(name for name, wh in self.list_applications() if wh is None)

    @property
    def pcs_label(self) -> str | None:
        """The letter of PCS; None unless all applications were scored."""
        pcs = self.pcs
        return None if pcs is None or self.unscored else POWER_SCALE.choose_letter(pcs)

    @property
    def iecs_label(self) -> str | None:
        """The letter of inferences per joule; None unless all applications were scored."""
        mean = self.inferences_per_joule
        return None if mean is None or self.unscored else ENERGY_SCALE.choose_letter(mean)

    @property
    def label(self) -> str | None:
        """The worse of both letters; None unless both scores are known."""
        if self.pcs_label is None or self.iecs_label is None:
            return None
        return max(self.pcs_label, self.iecs_label)

    def list_notes(self) -> list[str]:
        """Return sentences about what limits the scores of this device."""
        notes = []
        tdp_w = self.facts.tdp_w
        if tdp_w is None:
            notes.append(
                "PCS and the label need the thermal design power of the device: give it, like "
                "--tdp 15W."
            )
        elif self.mean_power_w is not None and self.mean_power_w > tdp_w:
            notes.append(
                f"PCS is negative: the device drew {format_power(self.mean_power_w)} on average, "
                f"more than its TDP of {format_power(tdp_w)}. Check the TDP, and what the meter "
                "covers besides the processor."
            )
        if self.provenance == "modelled":
            notes.append(
                "Power was not measured but stated, so PCS repeats that statement and IECS ranks "
                "by processor time. Measure with a meter of `joulecast detect` for real scores."
            )
        if self.provenance == "simulated":
            notes.append("The device is simulated: its scores say nothing about a real one.")
        reasons: dict[str, list[str]] = {}
        for one in self.configurations:
            if one.missing:
                name = ", ".join(filter(None, (one.application, one.processor)))
                reasons.setdefault(one.missing, []).append(name)
        notes += [
            f"Not scored: {len(names)} of {len(self.configurations)} configurations "
            f"({'; '.join(names)}): {reason}"
            for reason, names in reasons.items()
        ]
        if self.unscored:
            missing = ", ".join(self.unscored).replace("_", " ")
            notes.append(f"There are no letters, because not all applications ran: {missing}.")
        return notes

    def to_dict(self) -> Json:
        facts = self.facts
        return {
            **{name: getattr(self, name) for name in _SCORE_FIELDS},
            "tdp_w": facts.tdp_w,
            "tdp_source": facts.tdp_source if facts.tdp_w is not None else None,
            "price": facts.price,
            "currency": facts.currency or None,
            "runtime": self.runtime or None,
            "covers": self.covers,
            "provenance": self.provenance,
            "source": self.source or None,
            "applications": [
                {"name": name, "wh_per_1000_inferences": wh}
                for name, wh in self.list_applications()
            ],
            "configurations": [
                {
                    "application": one.application,
                    "processor": one.processor,
                    "energy_per_inference_j": one.energy_j,
                    "latency_s": one.duration_s,
                    "mean_power_w": one.power_w,
                    "observations": one.count,
                    "missing": one.missing or None,
                }
                for one in self.configurations
            ],
            "notes": self.list_notes(),
        }


# ---------------------------------------------------------------------------------------------
# The eight phones of DeepEn2023, from its published tables
#
# The tables are in ``deepen2023/``, with their licence. Two things in them look wrong:
#
# - TDP. With the row as printed the formula of PCS gives other scores than the published ones. One
#   other order of the same eight numbers reproduces all of them.
# - One energy, which is a tenth of that of its neighbours, most likely for a lost zero.


FOLDER = Path(__file__).parent / "deepen2023"
SOURCE = (
    'Tu et al., "Unveiling Energy Efficiency in Deep Learning: Measurement, Prediction, and '
    'Scoring across Edge Devices", SEC 2023, and the project page of DeepEn2023; CC BY 4.0; '
    "transcribed by hand"
)
REORDERED_TDP_W = (15.0, 12.0, 8.0, 15.0, 8.0, 10.0, 10.0, 6.0)
NAMES = {
    "OnePlus8Pro": "OnePlus 8 Pro",
    "RedmiNote8": "Redmi Note 8",
    "Mate40Pro": "Mate 40 Pro",
    "P40Pro": "P40 Pro",
    "P40Lite": "P40 Lite",
    "P40LiteE": "P40 Lite E",
    "RedmiK30Ultra": "Redmi K30 Ultra",
    "MotoOneMacro": "Moto One Macro",
}
_DOUBTFUL_CELL = ("RedmiNote8", "DNN2", "NNAPI")
_CORRECTED_J = 0.265
_MISSING = "the published table has no value"


@dataclass(frozen=True)
class PublishedScore:
    """A phone of DeepEn2023, scored by our formulas and as published.

    Attributes:
        score: Ours, with the TDP that reproduces the published PCS.
        corrected: Ours, with the energy that looks like a misprint corrected, if there is one.
    """

    score: DeviceScore
    tdp_printed_w: float
    pcs_published: int
    iecs_published: int
    corrected: DeviceScore

    @cached_property
    def pcs_printed_tdp(self) -> int | None:
        return self.score.score_power(self.tdp_printed_w)


def score_published(facts: Mapping[str, DeviceFacts] | None = None) -> tuple[PublishedScore, ...]:
    """Return the published phones; ``facts`` have their prices and performances by name."""
    tables = []
    for name in ("app_level_APC_watt.csv", "app_level_ECI_joule.csv"):
        with (FOLDER / name).open(encoding="utf-8", newline="") as file:
            tables.append({(row["dnn"], row["processor"]): row for row in csv.DictReader(file)})
    powers_w, energies_j = tables
    phones = []
    for column, tdp_w in zip(NAMES, REORDERED_TDP_W, strict=True):
        configurations = []
        for place in powers_w:
            # The other rows are about the phone, not about an application.
            if place in energies_j:
                energy, power = (
                    float(cell) if cell else None
                    for cell in (energies_j[place][column], powers_w[place][column])
                )
                missing = _MISSING if energy is None or power is None else ""
                configurations.append(ScoredConfiguration(*place, energy, power, missing))
        corrected = [
            replace(one, energy_j=_CORRECTED_J)
            if (column, one.application, one.processor) == _DOUBTFUL_CELL
            else one
            for one in configurations
        ]
        known = (facts or {}).get(NAMES[column], DeviceFacts())
        known = replace(known, tdp_w=tdp_w, tdp_source="published, re-ordered")
        score = DeviceScore(
            NAMES[column], "", "device", "imported", tuple(configurations), known,
            "DeepEn2023, published",
        )  # fmt: skip
        phones.append(
            PublishedScore(
                score,
                tdp_printed_w=float(powers_w["TDP", "-"][column]),
                pcs_published=int(powers_w["PCS", "-"][column]),
                iecs_published=int(energies_j["IECS", "-"][column]),
                corrected=replace(score, configurations=tuple(corrected)),
            )
        )
    return tuple(phones)


def list_published_notes() -> list[str]:
    """Return what the comparison with all published scores shows."""
    phones = score_published()
    agreeing = sum(one.score.pcs == one.pcs_published for one in phones)
    printed = sum(one.pcs_printed_tdp == one.pcs_published for one in phones)
    doubtful = next(one for one in phones if one.corrected != one.score)
    regular = [one for one in phones if one is not doubtful]
    ratios = [one.iecs_published / (one.score.iecs or 1.0) for one in regular]
    before, after = doubtful.score.iecs or 0.0, doubtful.corrected.iecs or 0.0
    return [
        f"PCS: with the TDP row as printed the formula reproduces {printed} of {len(phones)} "
        f"published scores, with its numbers in another order {agreeing}. So the row was printed "
        "in another order than the scores were computed with. The other order gives a Snapdragon "
        "665 (Redmi Note 8) 12 W and a Kirin 9000 (Mate 40 Pro) 8 W, which is hard to believe: do "
        "not rank phones by the published PCS.",
        "IECS: the published values are "
        f"{min(ratios):.2f} to {max(ratios):.2f} times ours, {doubtful.score.name} aside. About "
        "25,000 formulas were tried, and none comes within 2.9 % of all eight.",
        f"{doubtful.score.name}: the energy of DNN2 with NNAPI is printed as 0.0265 J, most likely "
        f"for 0.265 J. With that, our IECS is {after:.1f} instead of {before:.1f}, and the "
        f"published {doubtful.iecs_published} is {doubtful.iecs_published / after:.2f} times ours "
        f"instead of {doubtful.iecs_published / before:.2f}, as for the other phones.",
        f"Source: {SOURCE}.",
    ]


# ---------------------------------------------------------------------------------------------
# The result of ``joulecast score``


@dataclass(frozen=True)
class DeviceScores(Reportable):
    """The scores of one or more devices; ``failure`` says why the label was not written."""

    devices: tuple[DeviceScore, ...]
    published: tuple[PublishedScore, ...] = ()
    failure: FileError | None = None

    def __iter__(self) -> Iterator[DeviceScore]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __getitem__(self, place: int) -> DeviceScore:
        return self.devices[place]

    def to_dict(self) -> Json:
        devices, notes = [one.to_dict() for one in self.devices], [IECS_CAVEAT, SCALE_NOTE]
        if self.published:
            notes += list_published_notes()
        for device, one in zip(devices, self.published, strict=False):
            device |= {
                "pcs_published": one.pcs_published,
                "pcs_printed_tdp": one.pcs_printed_tdp,
                "tdp_printed_w": one.tdp_printed_w,
                "iecs_published": one.iecs_published,
                "iecs_corrected": one.corrected.iecs,
            }
        scales = {"pcs": POWER_SCALE, "inferences_per_joule": ENERGY_SCALE}
        return {
            "devices": devices,
            "scale": {
                name: dict(zip(LETTERS, (*scale.thresholds, None), strict=True))
                for name, scale in scales.items()
            },
            "notes": notes,
        }

    def report(self) -> Report:
        if not self.devices:
            raise InputError("there is no score to report: run `joulecast score --out score.json`")
        first, title = self.devices[0], f"Scores of {plural(len(self), 'device')}"
        blocks: list[Block]
        if self.published:
            title = "DeepEn2023, published tables (imported)"
            blocks = [_tabulate_phones(self.published), Text(_PUBLISHED_TDP)]
            notes = [
                f"{one.name}: {note}"
                for one in self.devices
                for note in one.list_notes()
                if note.startswith("Not scored")
            ]
            notes += list_published_notes()
        elif len(self) == 1:
            name = shorten(make_printable(first.name), _NAME_SIZE)
            title = f"Inference energy: {name}{label_provenance(first.provenance)}"
            blocks = [Text(_describe_label(first), "lead"), *_describe_device(first)]
            notes = first.list_notes()
        else:
            blocks = _compare_devices(self.devices)
            # A narrow terminal shortens names, and with them where the joules come from.
            notes = [
                f"{one.name}: joules are {one.provenance}."
                for one in self.devices
                if label_provenance(one.provenance)
            ]
            notes += [f"{one.name}: {note}" for one in self.devices for note in one.list_notes()]
        blocks += [Text(note, "note") for note in (*notes, IECS_CAVEAT, SCALE_NOTE)]
        currencies = {one.facts.currency for one in self if one.facts.price is not None}
        if len(currencies) > 1:
            named = ", ".join(sorted(one or "none" for one in currencies))
            note = f"Prices are in {named}: give all of them in one currency to plot them."
            blocks.append(Text(note, "warning"))
        else:
            currency = f" ({next(iter(currencies))})" if any(currencies) else ""
            prices = [one.facts.price for one in self]
            blocks += _plot_scores(self.devices, "price", f"Price{currency}", prices)
        rates = [one.inferences_per_s for one in self]
        blocks += _plot_scores(self.devices, "performance", "Performance (inferences/s)", rates)
        blocks += [
            Picture(
                "label" if len(self) == 1 else f"label-{number}",
                draw_label(one),
                f"{_describe_label(one)} Energies are {one.provenance}.",
            )
            for number, one in enumerate(self, start=1)
        ]
        provenance = weakest_provenance(one.provenance for one in self)
        return Report(title, tuple(blocks), provenance, "score")


def read_scores(data: Json, what: str = "the score") -> DeviceScores:
    """Return the scores that ``joulecast score --out`` wrote; errors call them ``what``."""
    try:
        return DeviceScores(tuple(_read_score(one) for one in data["devices"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(f"{what} is damaged ({type(error).__name__}); make it again") from error


def _read_score(data: Json) -> DeviceScore:
    configurations = tuple(
        ScoredConfiguration(
            str(one["application"]),
            str(one["processor"]),
            _read_amount(one["energy_per_inference_j"]),
            _read_amount(one["mean_power_w"]),
            str(one["missing"] or ""),
            int(one["observations"]),
        )
        for one in data["configurations"]
    )
    tdp_w, price, inferences_per_s = (
        _read_amount(data[name]) for name in ("tdp_w", "price", "inferences_per_s")
    )
    texts = ("name", "runtime", "covers", "provenance", "tdp_source", "currency", "source")
    name, runtime, covers, provenance, tdp_source, currency, source = (
        str(data[key] or "") for key in texts
    )
    if provenance not in PROVENANCES:
        raise ValueError("unknown provenance")
    facts = DeviceFacts(tdp_w, tdp_source or "given", price, currency, inferences_per_s)
    return DeviceScore(name, runtime, covers, provenance, configurations, facts, source)


def _read_amount(value: Any) -> float | None:
    if value is not None and not 0 <= float(value) < math.inf:
        raise ValueError("not a positive number")
    return None if value is None else float(value)


# ---------------------------------------------------------------------------------------------
# What people see

_NAME_SIZE = 60
_LABEL_NAME_SIZE, _LABEL_LINE_SIZE, _LABEL_APPLICATIONS = 27, 62, 12
_BEST_PCS = 100.0
_PUBLISHED_TDP = (
    "TDP: in the order that reproduces PCS / as printed. PCS is ours with the first, as published, "
    "and ours with the second."
)


def draw_label(score: DeviceScore) -> str:
    """Return the label of a device as SVG; it says that it is not an official energy label."""
    from joulecast.views.html import TEMPLATES, make_environment

    def add_letter(text: str, letter: str | None) -> str:
        return f"{text}: {letter}" if letter else text

    def format_short(value: float | None) -> str:
        return format_number(value, ".3g", "–")

    name, tdp_w = make_printable(score.name), score.facts.tdp_w
    basis = ", ".join(filter(None, (score.source or score.runtime, f"meter covers {score.covers}")))
    known = sum(1 for one in score.configurations if one.energy_j)
    tdp = f"TDP {format_power(tdp_w)} ({score.facts.tdp_source})" if tdp_w else "TDP not known"
    svg: str = make_environment(TEMPLATES).get_template("label.svg").render(
        score=score,
        name=name,
        shown_name=shorten(name, _LABEL_NAME_SIZE),
        basis=shorten(make_printable(basis), _LABEL_LINE_SIZE),
        letters=list(zip(LETTERS, LETTER_COLOURS, strict=True)),
        tiles=[
            ("PCS", format_short(score.pcs), add_letter("of 100", score.pcs_label)),
            ("IECS*", format_short(score.iecs), add_letter("sum", score.iecs_label)),
            ("Wh", format_short(score.wh_per_1000_inferences), "per 1,000 inf."),
            ("inferences", format_short(score.inferences_per_s), "per second"),
        ],
        applications=[
            (make_printable(one.replace("_", " ")), format_short(wh))
            for one, wh in score.list_applications()[:_LABEL_APPLICATIONS]
        ],
        footer=[
            make_printable(f"{known} of {len(score.configurations)} configurations. {tdp}."),
            "*Our reading of DeepEn2023's IECS; its weights are not public.",
            "Thresholds are Joulecast's own. This is not an official energy label.",
        ],
    )  # fmt: skip
    return "\n".join(filter(str.strip, svg.splitlines())) + "\n"


def _describe_label(score: DeviceScore) -> str:
    if score.label is None:
        return f"{score.name} has no label: one of the scores is unknown."
    scale = " ".join(f"▶{one}◀" if one == score.label else one for one in LETTERS)
    return f"{score.name} has the label {score.label}, from A, the best, to G:  {scale}"


def _describe_device(score: DeviceScore) -> list[Block]:
    """Return the scores of one device, and what each configuration took."""
    facts, tdp_w = score.facts, score.facts.tdp_w
    tdp = f" of {format_power(tdp_w)} TDP" if tdp_w else ", TDP not known"
    power = format_optional(score.mean_power_w, format_power)
    mean = format_number(score.inferences_per_joule)
    figures = [
        ("PCS", _format_score(score.pcs, score.pcs_label), f"{power}{tdp}"),
        ("IECS", _format_score(score.iecs, score.iecs_label), f"{mean} inferences/J on average"),
        ("", format_number(score.wh_per_1000_inferences), "Wh per 1,000 inferences"),
        ("", format_number(score.inferences_per_s), "inferences/s"),
    ]
    if facts.price is not None:
        figures.append(("", format_money(facts.price, facts.currency), "price"))
    rows = [
        (
            one.application.replace("_", " "),
            one.processor,
            format_optional(one.energy_j, format_energy),
            format_optional(one.duration_s, format_duration),
            format_optional(one.power_w, format_power),
            format_number(1.0 / one.energy_j if one.energy_j else None),
            format_number(joules_to_wh(INFERENCES * one.energy_j) if one.energy_j else None),
        )
        for one in score.configurations
    ]
    columns = (
        "application", "processor", ">energy", ">latency", ">power", ">inferences/J", ">Wh/1,000",
    )  # fmt: skip
    basis = [
        score.source or score.runtime,
        f"the meter covers {score.covers}",
        describe_provenance(score.provenance),
        f"TDP {format_power(tdp_w)} ({facts.tdp_source})" if tdp_w is not None else "",
    ]
    return [
        make_table(("", ">", ""), figures),
        make_table(columns, rows),
        Text("; ".join(filter(None, basis)) + "."),
    ]


def _compare_devices(scores: Sequence[DeviceScore]) -> list[Block]:
    """Return the scores of several devices, and why they cannot be compared."""
    rows = [
        (
            one.name + label_provenance(one.provenance),
            one.label or "-",
            _format_score(one.pcs, one.pcs_label),
            _format_score(one.iecs, one.iecs_label),
            format_number(one.wh_per_1000_inferences),
            format_number(one.inferences_per_s),
            format_optional(one.facts.tdp_w, format_power),
            "-" if one.facts.price is None else format_money(one.facts.price, one.facts.currency),
        )
        for one in scores
    ]
    columns = ("device", "label", ">PCS", ">IECS", ">Wh/1,000", ">inferences/s", ">TDP", ">price")
    blocks: list[Block] = [make_table(columns, rows)]
    if len({one.covers for one in scores}) > 1:
        covers = "; ".join(f"{one.name}: {one.covers}" for one in scores)
        text = f"Not comparable, because the meters cover different parts ({covers})."
        blocks.append(Text(text))
    pairs = {
        tuple((one.application, one.processor) for one in score.configurations if one.energy_j)
        for score in scores
    }
    if len(pairs) > 1:
        text = "IECS is not comparable, because devices have different processors or applications."
        blocks.append(Text(text))
    return blocks


def _tabulate_phones(phones: Sequence[PublishedScore]) -> Table:
    rows = [
        (
            one.score.name,
            one.score.label or "-",
            format_optional(one.score.pcs, str),
            str(one.pcs_published),
            format_optional(one.pcs_printed_tdp, str),
            f"{format_optional(one.score.facts.tdp_w, '{:g}'.format)} / {one.tdp_printed_w:g} W",
            format_number(one.score.iecs),
            str(one.iecs_published),
            format_number(one.score.wh_per_1000_inferences),
            format_number(one.score.inferences_per_s),
        )
        for one in phones
    ]
    columns = (
        "phone", "label", ">PCS", ">published", ">printed TDP", ">TDP", ">IECS", ">published",
        ">Wh/1,000", ">inf./s",
    )  # fmt: skip
    return make_table(columns, rows)


def _plot_scores(
    scores: Sequence[DeviceScore], name: str, quantity: str, values: Sequence[float | None]
) -> list[Plot]:
    """Plot both scores against a quantity, unless nothing is known of it."""
    panels = {}
    results: dict[str, list[float | None]] = {
        "PCS": [one.pcs for one in scores], "IECS (our reading)": [one.iecs for one in scores],
    }  # fmt: skip
    for title, found in results.items():
        triples = zip(scores, values, found, strict=True)
        points = [(one, x, y) for one, x, y in triples if x is not None and y is not None]
        if points:
            panels[title] = points
    if not panels:
        return []

    def draw(figure: Figure) -> None:
        subplots = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, points) in zip(subplots, panels.items(), strict=True):
            for score, x, y in points:
                colour = LETTER_COLOURS[LETTERS.index(score.label)] if score.label else GREY
                axes.plot([x], [y], "o", color=colour, ms=8)
                text = f"{score.name} ({score.label or 'no label'})"
                axes.annotate(text, (x, y), (6, 5), textcoords="offset points", fontsize=8)
            # Names stand on the right of their points.
            axes.set_xlim(0.0, 1.35 * max(x for _, x, _ in points) or 1.0)
            lowest, highest = min(y for *_, y in points), max(y for *_, y in points)
            axes.set_ylim(min(0.0, lowest), _BEST_PCS if title == "PCS" else 1.1 * highest)
            axes.set_xlabel(quantity)
            axes.set_ylabel(title)

    rows = [
        (score.name, score.label or "-", title, f"{x:.4g}", f"{y:.4g}")
        for title, points in panels.items()
        for score, x, y in points
    ]
    data = make_table(("device", "label", "score", f">{quantity}", ">value"), rows)
    provenance = label_provenance(weakest_provenance(one.provenance for one in scores))
    title = f"Scores against {name}{provenance}"
    return [Plot(name, title, draw, "", data, (5.0 * len(panels), 4.0))]


def format_number(value: float | None, digits: str = "#.3g", unknown: str = "-") -> str:
    """Return three significant digits, or a dash for None."""
    if value is None:
        return unknown
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:{digits}}".rstrip(".")


def _format_score(value: float | None, letter: str | None) -> str:
    shown = "-" if value is None else str(value) if isinstance(value, int) else format_number(value)
    return f"{shown} ({letter})" if letter else shown
