"""Describe scores as JSON values."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.records import Json
from joulecast.uses.score.device_score import (
    IECS_CAVEAT,
    SCALE_NOTE,
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
