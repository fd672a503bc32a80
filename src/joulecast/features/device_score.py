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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING

from joulecast.records import Json, weakest_provenance
from joulecast.records.codec import Amount, Count, Record, load_partial, not_stored
from joulecast.records.observation import Provenance
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
from joulecast.views.report import (
    Block,
    Columns,
    Picture,
    Plot,
    Report,
    Reportable,
    Text,
    make_table,
    tabulate,
)  # fmt: skip
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
# The least values of A to F; everything below has G.
POWER_SCALE = dict(zip(LETTERS, (90.0, 80.0, 70.0, 60.0, 50.0, 40.0), strict=False))
ENERGY_SCALE = dict(zip(LETTERS, (16.0, 8.0, 4.0, 2.0, 1.0, 0.5), strict=False))


def choose_letter(scale: Mapping[str, float], value: float) -> str:
    """Return the letter of a value."""
    return next((letter for letter, least in scale.items() if value >= least), LETTERS[-1])


def _describe_scale(scale: Mapping[str, float]) -> str:
    return ", ".join(f"{letter} from {least:g}" for letter, least in scale.items()) + ", G below"


IECS_CAVEAT = (
    "IECS is our reading of DeepEn2023: the sum of inferences per joule over applications and "
    "processors. Its exact weights are not public. Compare it only between devices with the same "
    "applications and processors."
)
SCALE_NOTE = (
    f"The thresholds of A to G are ours. PCS: {_describe_scale(POWER_SCALE)}. Inferences per "
    f"joule, on average: {_describe_scale(ENERGY_SCALE)}. The label is the worse of both."
)


@dataclass(frozen=True)
class ScoredConfiguration(Record):
    """The median energy and power of one inference of an application on a processor."""

    application: str
    processor: str  # processor or number of threads
    energy_per_inference_j: Amount | None = None
    mean_power_w: Amount | None = None
    missing: str | None = None  # why a value is not known
    observations: Count = 1

    @property
    def duration_s(self) -> float | None:
        if self.energy_per_inference_j is None or not self.mean_power_w:
            return None
        return self.energy_per_inference_j / self.mean_power_w

    @property
    def wh_per_1000(self) -> float | None:
        energy_j = self.energy_per_inference_j
        return joules_to_wh(INFERENCES * energy_j) if energy_j else None

    @property
    def inferences_per_joule(self) -> float | None:
        return 1.0 / self.energy_per_inference_j if self.energy_per_inference_j else None


@dataclass(frozen=True)
class DeviceFacts(Record):
    """What no meter tells about a device; a stated performance replaces the observed one."""

    tdp_w: Amount | None = None
    tdp_source: str | None = "given"
    price: Amount | None = None
    currency: str | None = None
    inferences_per_s: Amount | None = None

    def describe_tdp(self) -> str:
        if self.tdp_w is None:
            return "TDP not known"
        return f"TDP {format_power(self.tdp_w)} ({self.tdp_source})"

    def format_price(self) -> str:
        return "-" if self.price is None else format_money(self.price, self.currency or "")


# JSON has these under their own names.
_SCORE_FIELDS = (
    "label", "pcs", "pcs_label", "iecs", "iecs_label", "inferences_per_joule",
    "wh_per_1000_inferences", "inferences_per_s", "mean_power_w",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceScore(Record):
    """The scores of a device, and what they rest on; ``source`` published imported energies."""

    name: str
    runtime: str | None
    covers: str
    provenance: Provenance
    configurations: tuple[ScoredConfiguration, ...]
    facts: DeviceFacts = DeviceFacts()
    source: str | None = None

    def list_known(self, quantity: str) -> list[float]:
        """Return a quantity of all configurations that have it."""
        return [value for one in self.configurations if (value := getattr(one, quantity))]

    @property
    def mean_power_w(self) -> float | None:
        return _mean(self.list_known("mean_power_w"))

    @property
    def pcs(self) -> int | None:
        tdp_w, powers_w = self.facts.tdp_w, self.list_known("mean_power_w")
        if not tdp_w or not powers_w:
            return None
        return round(100.0 * fmean(1.0 - one / tdp_w for one in powers_w))

    @property
    def iecs(self) -> float | None:
        return sum(self.list_known("inferences_per_joule")) or None

    @property
    def inferences_per_joule(self) -> float | None:
        return _mean(self.list_known("inferences_per_joule"))

    @property
    def inferences_per_s(self) -> float | None:
        """The stated performance, else the geometric mean over configurations."""
        if self.facts.inferences_per_s is not None:
            return self.facts.inferences_per_s
        durations_s = self.list_known("duration_s")
        return 1.0 / geometric_mean(durations_s) if durations_s else None

    @property
    def wh_per_1000_inferences(self) -> float | None:
        return _mean(self.applications.values())

    @cached_property
    def applications(self) -> dict[str, float | None]:
        """Watt-hours per 1,000 inferences of each application, the mean over processors."""
        found: dict[str, list[float | None]] = {}
        for one in self.configurations:
            found.setdefault(one.application, []).append(one.wh_per_1000)
        return {name: _mean(own) for name, own in found.items()}

    @cached_property
    def unscored(self) -> tuple[str, ...]:
        """Applications without an energy on any processor: without them there are no letters."""
        return tuple(name for name, wh in self.applications.items() if wh is None)

    @property
    def pcs_label(self) -> str | None:
        return self._choose_letter(POWER_SCALE, self.pcs)

    @property
    def iecs_label(self) -> str | None:
        return self._choose_letter(ENERGY_SCALE, self.inferences_per_joule)

    def _choose_letter(self, scale: Mapping[str, float], value: float | None) -> str | None:
        return None if value is None or self.unscored else choose_letter(scale, value)

    @property
    def label(self) -> str | None:
        """The worse of both letters."""
        power, energy = self.pcs_label, self.iecs_label
        return max(power, energy) if power and energy else None

    def list_notes(self) -> list[str]:
        """Return sentences about what limits the scores of this device."""
        notes, tdp_w = [], self.facts.tdp_w
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
        data = super().to_dict()
        facts = data.pop("facts")
        return {
            **data,
            **facts,
            **{name: getattr(self, name) for name in _SCORE_FIELDS},
            "tdp_source": None if self.facts.tdp_w is None else self.facts.tdp_source,
            "applications": [
                {"name": name, "wh_per_1000_inferences": wh}
                for name, wh in self.applications.items()
            ],
            "configurations": [
                {**one.to_dict(), "latency_s": one.duration_s} for one in self.configurations
            ],
            "notes": self.list_notes(),
        }


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known."""
    known = [one for one in values if one is not None]
    return fmean(known) if known else None


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
# By column: the name of a phone, and the TDP in the order that reproduces PCS.
PHONES = {
    "OnePlus8Pro": ("OnePlus 8 Pro", 15.0),
    "RedmiNote8": ("Redmi Note 8", 12.0),
    "Mate40Pro": ("Mate 40 Pro", 8.0),
    "P40Pro": ("P40 Pro", 15.0),
    "P40Lite": ("P40 Lite", 8.0),
    "P40LiteE": ("P40 Lite E", 10.0),
    "RedmiK30Ultra": ("Redmi K30 Ultra", 10.0),
    "MotoOneMacro": ("Moto One Macro", 6.0),
}
_REORDERED = "published, re-ordered"
_DOUBTFUL_PHONE, _PRINTED_J, _CORRECTED_J = "Redmi Note 8", 0.0265, 0.265


@dataclass(frozen=True)
class PublishedScore:
    """A phone of DeepEn2023, scored by our formulas and as published."""

    score: DeviceScore  # ours, with the TDP that reproduces the published PCS
    tdp_printed_w: float
    pcs_published: int
    iecs_published: int

    @property
    def pcs_printed_tdp(self) -> int | None:
        facts = replace(self.score.facts, tdp_w=self.tdp_printed_w)
        return replace(self.score, facts=facts).pcs

    @property
    def iecs_corrected(self) -> float:
        """Our IECS, with the energy that looks like a misprint corrected."""
        is_doubtful = self.score.name == _DOUBTFUL_PHONE
        lost = 1.0 / _PRINTED_J - 1.0 / _CORRECTED_J if is_doubtful else 0.0
        return (self.score.iecs or 0.0) - lost


def score_phones(
    names: Sequence[str] = (), facts: Mapping[str, DeviceFacts] | None = None
) -> tuple[PublishedScore, ...]:
    """Return some or all phones of DeepEn2023, with our scores beside the published ones.

    ``facts`` have prices and performances by the names of phones.
    """
    facts, known = facts or {}, [name for name, _ in PHONES.values()]
    for name in (*names, *facts):
        if name not in known:
            raise InputError(f"DeepEn2023 has no phone {name!r}: choose from {', '.join(known)}")
    tables = []
    for file in ("app_level_APC_watt.csv", "app_level_ECI_joule.csv"):
        with (FOLDER / file).open(encoding="utf-8", newline="") as opened:
            tables.append({(row["dnn"], row["processor"]): row for row in csv.DictReader(opened)})
    powers, energies = tables
    phones = {}
    for column, (name, tdp_w) in PHONES.items():
        configurations = []
        # The other rows are about the phone, not about an application.
        for place in [one for one in powers if one in energies]:
            cells = (energies[place][column], powers[place][column])
            energy_j, power_w = (float(cell) if cell else None for cell in cells)
            missing = None if all(cells) else "the published table has no value"
            configurations.append(ScoredConfiguration(*place, energy_j, power_w, missing))
        own = replace(facts.get(name, DeviceFacts()), tdp_w=tdp_w, tdp_source=_REORDERED)
        score = DeviceScore(
            name, None, "device", "imported", tuple(configurations), own, "DeepEn2023, published"
        )
        printed = (powers["TDP", "-"], powers["PCS", "-"], energies["IECS", "-"])
        printed_tdp, pcs, iecs = (row[column] for row in printed)
        phones[name] = PublishedScore(score, float(printed_tdp), int(pcs), int(iecs))
    return tuple(phones[name] for name in names or phones)


def list_published_notes() -> list[str]:
    """Return what the comparison with all published scores shows."""
    phones = score_phones()
    agreeing = sum(one.score.pcs == one.pcs_published for one in phones)
    printed = sum(one.pcs_printed_tdp == one.pcs_published for one in phones)
    doubtful = next(one for one in phones if one.score.name == _DOUBTFUL_PHONE)
    regular = [one for one in phones if one is not doubtful]
    ratios = [one.iecs_published / (one.score.iecs or 1.0) for one in regular]
    before, after = doubtful.score.iecs or 0.0, doubtful.iecs_corrected
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


_PUBLISHED_FIELDS = (
    "pcs_published", "pcs_printed_tdp", "tdp_printed_w", "iecs_published", "iecs_corrected",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceScores(Record, Reportable):
    """The scores of one or more devices; ``failure`` says why the label was not written."""

    devices: tuple[DeviceScore, ...]
    published: tuple[PublishedScore, ...] = not_stored(())
    failure: FileError | None = not_stored(None)

    def __iter__(self) -> Iterator[DeviceScore]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __getitem__(self, place: int) -> DeviceScore:
        return self.devices[place]

    def to_dict(self) -> Json:
        devices = [one.to_dict() for one in self.devices]
        for device, one in zip(devices, self.published, strict=False):
            device |= {name: getattr(one, name) for name in _PUBLISHED_FIELDS}
        scales = {"pcs": POWER_SCALE, "inferences_per_joule": ENERGY_SCALE}
        return {
            "devices": devices,
            "scale": {name: {**scale, LETTERS[-1]: None} for name, scale in scales.items()},
            "notes": [
                IECS_CAVEAT, SCALE_NOTE, *(list_published_notes() if self.published else ()),
            ],
        }  # fmt: skip

    def finish_command(self) -> int:
        if self.failure is not None:
            raise self.failure
        return 0

    def report(self) -> Report:
        if not self.devices:
            raise InputError("there is no score to report: run `joulecast score --out score.json`")
        first, title = self.devices[0], f"Scores of {plural(len(self), 'device')}"
        notes = [f"{one.name}: {note}" for one in self.devices for note in one.list_notes()]
        blocks: list[Block]
        if self.published:
            title = "DeepEn2023, published tables (imported)"
            blocks = [tabulate(_PHONE_COLUMNS, self.published), Text(_PUBLISHED_TDP)]
            notes = [note for note in notes if ": Not scored" in note] + list_published_notes()
        elif len(self) == 1:
            name = shorten(make_printable(first.name), _NAME_SIZE)
            title = f"Inference energy: {name}{label_provenance(first.provenance)}"
            blocks = [Text(_describe_label(first), "lead"), *_describe_device(first)]
            notes = first.list_notes()
        else:
            blocks = _compare_devices(self.devices)
            # A narrow terminal shortens names, and with them where the joules come from.
            notes[:0] = [
                f"{one.name}: joules are {one.provenance}."
                for one in self.devices
                if label_provenance(one.provenance)
            ]
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
    devices = data.get("devices")
    if isinstance(devices, list):
        # What is known of a device is beside its scores.
        devices = [{**one, "facts": one} if isinstance(one, dict) else one for one in devices]
    return load_partial(DeviceScores, {"devices": devices}, what)


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

    name = make_printable(score.name)
    basis = ", ".join(filter(None, (score.source or score.runtime, f"meter covers {score.covers}")))
    count = len(score.list_known("energy_per_inference_j"))
    known = f"{count} of {len(score.configurations)} configurations"
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
            for one, wh in list(score.applications.items())[:_LABEL_APPLICATIONS]
        ],
        footer=[
            make_printable(f"{known}. {score.facts.describe_tdp()}."),
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
    facts = score.facts
    tdp = f" of {format_power(facts.tdp_w)} TDP" if facts.tdp_w else ", TDP not known"
    power = format_optional(score.mean_power_w, format_power)
    mean = format_number(score.inferences_per_joule)
    figures = [
        ("PCS", _format_score(score.pcs, score.pcs_label), f"{power}{tdp}"),
        ("IECS", _format_score(score.iecs, score.iecs_label), f"{mean} inferences/J on average"),
        ("", format_number(score.wh_per_1000_inferences), "Wh per 1,000 inferences"),
        ("", format_number(score.inferences_per_s), "inferences/s"),
    ]
    if facts.price is not None:
        figures.append(("", facts.format_price(), "price"))
    basis = [
        score.source or score.runtime,
        f"the meter covers {score.covers}",
        describe_provenance(score.provenance),
        facts.describe_tdp() if facts.tdp_w is not None else "",
    ]
    return [
        make_table(("", ">", ""), figures),
        tabulate(_CONFIGURATION_COLUMNS, score.configurations),
        Text("; ".join(filter(None, basis)) + "."),
    ]


def _compare_devices(scores: Sequence[DeviceScore]) -> list[Block]:
    """Return the scores of several devices, and why they cannot be compared."""
    texts = []
    if len({one.covers for one in scores}) > 1:
        covers = "; ".join(f"{one.name}: {one.covers}" for one in scores)
        texts.append(f"Not comparable, because the meters cover different parts ({covers}).")
    pairs = {
        tuple((one.application, one.processor) for one in score.configurations if one.wh_per_1000)
        for score in scores
    }
    if len(pairs) > 1:
        texts.append(
            "IECS is not comparable, because devices have different processors or applications."
        )
    return [tabulate(_DEVICE_COLUMNS, scores), *map(Text, texts)]


def _plot_scores(
    scores: Sequence[DeviceScore], name: str, quantity: str, values: Sequence[float | None]
) -> list[Plot]:
    """Plot both scores against a quantity, unless nothing is known of it."""
    panels: dict[str, list[tuple[DeviceScore, float, float]]] = {}
    for score, x in zip(scores, values, strict=True):
        for title, y in (("PCS", score.pcs), ("IECS (our reading)", score.iecs)):
            if x is not None and y is not None:
                panels.setdefault(title, []).append((score, x, y))
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
            axes.set(xlabel=quantity, ylabel=title)

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
    shown = str(value) if isinstance(value, int) else format_number(value)
    return f"{shown} ({letter})" if letter else shown


_CONFIGURATION_COLUMNS: Columns = (
    ("application", lambda one: one.application.replace("_", " ")),
    ("processor", lambda one: one.processor),
    (">energy", lambda one: format_optional(one.energy_per_inference_j, format_energy)),
    (">latency", lambda one: format_optional(one.duration_s, format_duration)),
    (">power", lambda one: format_optional(one.mean_power_w, format_power)),
    (">inferences/J", lambda one: format_number(one.inferences_per_joule)),
    (">Wh/1,000", lambda one: format_number(one.wh_per_1000)),
)
_DEVICE_COLUMNS: Columns = (
    ("device", lambda one: one.name + label_provenance(one.provenance)),
    ("label", lambda one: one.label or "-"),
    (">PCS", lambda one: _format_score(one.pcs, one.pcs_label)),
    (">IECS", lambda one: _format_score(one.iecs, one.iecs_label)),
    (">Wh/1,000", lambda one: format_number(one.wh_per_1000_inferences)),
    (">inferences/s", lambda one: format_number(one.inferences_per_s)),
    (">TDP", lambda one: format_optional(one.facts.tdp_w, format_power)),
    (">price", lambda one: one.facts.format_price()),
)
_PHONE_COLUMNS: Columns = (
    ("phone", lambda one: one.score.name),
    ("label", lambda one: one.score.label or "-"),
    (">PCS", lambda one: format_optional(one.score.pcs, str)),
    (">published", lambda one: str(one.pcs_published)),
    (">printed TDP", lambda one: format_optional(one.pcs_printed_tdp, str)),
    (">TDP", lambda one: f"{one.score.facts.tdp_w:g} / {one.tdp_printed_w:g} W"),
    (">IECS", lambda one: format_number(one.score.iecs)),
    (">published", lambda one: str(one.iecs_published)),
    (">Wh/1,000", lambda one: format_number(one.score.wh_per_1000_inferences)),
    (">inf./s", lambda one: format_number(one.score.inferences_per_s)),
)
