"""Describe scores as JSON values, and read them back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from joulecast.errors import FileError
from joulecast.records import PROVENANCES, Json
from joulecast.uses.score.device_score import (
    IECS_CAVEAT,
    SCALE_NOTE,
    DeviceFacts,
    DeviceScore,
    ScoredConfiguration,
)
from joulecast.uses.score.published_scores import PublishedScore, list_published_notes
from joulecast.uses.score.score_labels import ENERGY_SCALE, LETTERS, POWER_SCALE, LabelScale


def describe_scores(scores: Sequence[DeviceScore]) -> Json:
    """Return the scores of devices, with the scale of the labels and what limits them."""
    return {
        "devices": [describe_score(one) for one in scores],
        "scale": {
            "pcs": _describe_scale(POWER_SCALE),
            "inferences_per_joule": _describe_scale(ENERGY_SCALE),
        },
        "notes": [IECS_CAVEAT, SCALE_NOTE],
    }


def describe_published(phones: Sequence[PublishedScore]) -> Json:
    """Return the scores of the published phones, ours beside the published ones."""
    data = describe_scores([one.score for one in phones])
    devices = [
        {
            **device,
            "pcs_published": one.pcs_published,
            "pcs_printed_tdp": one.pcs_printed_tdp,
            "tdp_printed_w": one.tdp_printed_w,
            "iecs_published": one.iecs_published,
            "iecs_corrected": one.corrected.iecs,
        }
        for device, one in zip(data["devices"], phones, strict=True)
    ]
    return {**data, "devices": devices, "notes": [*data["notes"], *list_published_notes()]}


def describe_score(score: DeviceScore) -> Json:
    """Return the scores of one device and what they rest on."""
    facts = score.facts
    return {
        "name": score.name,
        "label": score.label,
        "pcs": score.pcs,
        "pcs_label": score.pcs_label,
        "iecs": score.iecs,
        "iecs_label": score.iecs_label,
        "inferences_per_joule": score.inferences_per_joule,
        "wh_per_1000_inferences": score.wh_per_1000_inferences,
        "inferences_per_s": score.inferences_per_s,
        "mean_power_w": score.mean_power_w,
        "tdp_w": facts.tdp_w,
        "tdp_source": facts.tdp_source if facts.tdp_w is not None else None,
        "price": facts.price,
        "currency": facts.currency or None,
        "runtime": score.runtime or None,
        "covers": score.covers,
        "provenance": score.provenance,
        "source": score.source or None,
        "applications": [
            {"name": name, "wh_per_1000_inferences": wh} for name, wh in score.list_applications()
        ],
        "configurations": [_describe_configuration(one) for one in score.configurations],
        "notes": score.list_notes(),
    }


def read_scores(data: Json, what: str = "the score") -> tuple[DeviceScore, ...]:
    """Return the scores that ``describe_scores`` or ``joulecast score --out`` wrote.

    Raises:
        FileError: The data is something else; ``what`` names it.
    """
    try:
        return tuple(_read_score(one) for one in data["devices"])
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
    facts = DeviceFacts(
        _read_amount(data["tdp_w"]),
        str(data["tdp_source"] or "given"),
        _read_amount(data["price"]),
        str(data["currency"] or ""),
        _read_amount(data["inferences_per_s"]),
    )
    if data["provenance"] not in PROVENANCES:
        raise ValueError("unknown provenance")
    return DeviceScore(
        name=str(data["name"]),
        configurations=configurations,
        facts=facts,
        provenance=data["provenance"],
        covers=str(data["covers"]),
        runtime=str(data["runtime"] or ""),
        source=str(data["source"] or ""),
    )


def _read_amount(value: Any) -> float | None:
    """Return a number of at least 0, or None."""
    if value is None:
        return None
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError("not a positive number")
    return number


def _describe_configuration(one: ScoredConfiguration) -> Json:
    return {
        "application": one.application,
        "processor": one.processor,
        "energy_per_inference_j": one.energy_j,
        "latency_s": one.duration_s,
        "mean_power_w": one.power_w,
        "observations": one.count,
        "missing": one.missing or None,
    }


def _describe_scale(scale: LabelScale) -> Json:
    return dict(zip(LETTERS, (*scale.thresholds, None), strict=True))
