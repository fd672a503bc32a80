"""Score the eight phones of DeepEn2023 from its published tables, beside the published scores.

The tables are in ``deepen2023/``, with their licence. Two things in them look wrong:

- TDP. With the row as printed the formula of PCS gives other scores than the published ones. One
  other order of the same eight numbers reproduces all of them.
- One energy, which is a tenth of that of its neighbours, most likely for a lost zero.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from joulecast.uses.score.device_score import (
    DeviceFacts,
    DeviceScore,
    ScoredConfiguration,
    score_power,
)

FOLDER = Path(__file__).parent / "deepen2023"
SOURCE = (
    'Tu et al., "Unveiling Energy Efficiency in Deep Learning: Measurement, Prediction, and '
    'Scoring across Edge Devices", SEC 2023, and the project page of DeepEn2023; CC BY 4.0; '
    "transcribed by hand"
)
REORDERED_TDP_W = (15.0, 12.0, 8.0, 15.0, 8.0, 10.0, 10.0, 6.0)
"""The printed numbers in the only order that reproduces all published PCS."""
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
# The rows of a table that are not about an application.
_TDP, _PCS, _IECS = "TDP", "PCS", "IECS"


@dataclass(frozen=True)
class PublishedScore:
    """A phone of DeepEn2023, scored by our formulas and as published.

    Attributes:
        score: Ours, with the TDP that reproduces the published PCS.
        tdp_printed_w: TDP in the published table.
        pcs_published: PCS in the published table.
        iecs_published: IECS in the published table.
        corrected: Ours, with the energy that looks like a misprint corrected; the same for phones
            without one.
    """

    score: DeviceScore
    tdp_printed_w: float
    pcs_published: int
    iecs_published: int
    corrected: DeviceScore

    @cached_property
    def pcs_printed_tdp(self) -> int | None:
        """PCS with the TDP as it is printed."""
        return score_power(self.score.configurations, self.tdp_printed_w)


def score_published(facts: Mapping[str, DeviceFacts] | None = None) -> tuple[PublishedScore, ...]:
    """Return the published phones with their scores.

    Args:
        facts: Prices and performances by the name of a phone; their TDP is not used.
    """
    powers_w = _read_table("app_level_APC_watt.csv")
    energies_j = _read_table("app_level_ECI_joule.csv")
    return tuple(
        _score_phone(column, powers_w, energies_j, tdp_w, (facts or {}).get(NAMES[column]))
        for column, tdp_w in zip(NAMES, REORDERED_TDP_W, strict=True)
    )


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


Table = dict[tuple[str, str], dict[str, str]]


def _read_table(name: str) -> Table:
    """Return the rows of a table by application and processor."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return {(row["dnn"], row["processor"]): row for row in csv.DictReader(file)}


def _score_phone(
    column: str, powers_w: Table, energies_j: Table, tdp_w: float, facts: DeviceFacts | None
) -> PublishedScore:
    configurations = tuple(
        _read_configuration(place, powers_w[place][column], energies_j[place][column])
        for place in powers_w
        if place in energies_j
    )
    known = replace(facts or DeviceFacts(), tdp_w=tdp_w, tdp_source="published, re-ordered")
    score = DeviceScore(
        NAMES[column], "", "device", "imported", configurations, known, "DeepEn2023, published"
    )
    return PublishedScore(
        score,
        tdp_printed_w=float(powers_w[_TDP, "-"][column]),
        pcs_published=int(powers_w[_PCS, "-"][column]),
        iecs_published=int(energies_j[_IECS, "-"][column]),
        corrected=_correct_misprint(score, column),
    )


def _read_configuration(place: tuple[str, str], power: str, energy: str) -> ScoredConfiguration:
    values: dict[str, Any] = {
        "energy_j": float(energy) if energy else None,
        "power_w": float(power) if power else None,
    }
    missing = "" if power and energy else _MISSING
    return ScoredConfiguration(*place, **values, missing=missing)


def _correct_misprint(score: DeviceScore, column: str) -> DeviceScore:
    configurations = tuple(
        replace(one, energy_j=_CORRECTED_J)
        if (column, one.application, one.processor) == _DOUBTFUL_CELL
        else one
        for one in score.configurations
    )
    return replace(score, configurations=configurations)
