"""Predict the energy of pieces that run alone on the device, without waiting for the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulecast.estimators.additive.device_model import (
    AdditiveModel,
    predict_durations,
    predict_powers,
)
from joulecast.estimators.additive.pieces import Piece, make_piece
from joulecast.gp.linalg import Floats
from joulecast.records import Setup
from joulecast.variants import Part


def predict_part_energies(
    model: AdditiveModel, parts: Sequence[Part], setup: Setup
) -> tuple[Floats, Floats]:
    """Return the mean energies of parts that run alone, and their standard deviations."""
    return predict_piece_energies(model, [make_piece(part, setup) for part in parts])


def predict_piece_energies(model: AdditiveModel, pieces: Sequence[Piece]) -> tuple[Floats, Floats]:
    """Return the mean energies of pieces that run alone, and their standard deviations."""
    sums = model.encoder.sum_pieces([{piece: 1.0} for piece in pieces], [False] * len(pieces))
    durations = predict_durations(model.encoder, model.duration, sums)
    powers = predict_powers(model, sums, durations.leaf)
    variance = powers.logs.log_variance + durations.logs.log_variance
    medians_j = durations.total * powers.total
    return np.asarray(medians_j), np.asarray(medians_j * np.sqrt(np.expm1(variance)))
