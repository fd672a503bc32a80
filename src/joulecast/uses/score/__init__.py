"""Score devices by the energy and power of inferences, as DeepEn2023 does.

reference_applications   six networks, built in code
observed_scores          observations of them ──▶ DeviceScore
published_scores         the published tables ──▶ DeviceScore, beside the published scores
device_score             DeviceScore: the formulas of PCS and IECS
score_labels             letters from A to G
label_picture, score_plot, score_json     a DeviceScore as SVG, plots and JSON
device_file              TDP, price and performance that users know
"""

from joulecast.uses.score.device_score import (
    IECS_CAVEAT,
    SCALE_NOTE,
    DeviceFacts,
    DeviceScore,
    ScoredConfiguration,
)
from joulecast.uses.score.label_picture import LETTER_COLOURS, draw_label
from joulecast.uses.score.published_scores import (
    PublishedScore,
    list_published_notes,
    score_published,
)
from joulecast.uses.score.reference_applications import (
    build_reference_application,
    list_reference_applications,
)
from joulecast.uses.score.score_json import describe_published, describe_scores, read_scores
from joulecast.uses.score.score_labels import LETTERS

__all__ = [
    "IECS_CAVEAT",
    "LETTERS",
    "LETTER_COLOURS",
    "SCALE_NOTE",
    "DeviceFacts",
    "DeviceScore",
    "PublishedScore",
    "ScoredConfiguration",
    "build_reference_application",
    "describe_published",
    "describe_scores",
    "draw_label",
    "list_published_notes",
    "list_reference_applications",
    "read_scores",
    "score_published",
]
