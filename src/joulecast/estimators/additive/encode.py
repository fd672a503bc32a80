"""Encode pieces and observations as arrays of the Gaussian processes.

Basis functions are FLOPs by class (precision and phase) and bytes; for durations also padded FLOPs
and launches, for energies seconds: those of short launches, which leave most of the device idle,
and those beyond, busy ones. Each source of imported runs adds one for its overhead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.estimators.additive.pieces import AXES, OVERHEAD_PREFIX, Piece
from joulecast.estimators.base import UNIT_SD_SHARE
from joulecast.gp.hyperparameters import HyperPrior
from joulecast.gp.inputs import Inputs, TrainingData
from joulecast.gp.linalg import Floats, Ints
from joulecast.gp.weighted_sums import WeightedSums

# From few FLOPs per second to many.
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# Launches are short up to this factor of the shortest one, and up to this many seconds.
_SHORT_FACTOR, _MAX_SHORT_S = 4.0, 10e-6


@dataclass(frozen=True)
class PieceEncoder:
    """Encodes pieces as inputs of the processes.

    Attributes:
        labels: Labels of the observed pieces, in order.
        flop_classes: Their FLOP classes, in order.
        short_launch_s: Duration on the device up to which a launch leaves most of the device idle.
    """

    labels: tuple[str, ...]
    flop_classes: tuple[str, ...]
    short_launch_s: float = 0.0

    @property
    def overhead_labels(self) -> tuple[str, ...]:
        """Labels of overheads, each of which has a basis function of its own."""
        return tuple(label for label in self.labels if label.startswith(OVERHEAD_PREFIX))

    def encode(
        self,
        pieces: Sequence[Piece],
        durations_s: Floats | None = None,
        training_index: Mapping[str, int] | None = None,
    ) -> Inputs:
        """Return pieces as inputs of the duration process, or with durations of the energy process.

        Args:
            pieces: The pieces.
            durations_s: Their durations on the device.
            training_index: Training inputs of the process, by the keys of their pieces.
        """
        basis = self._make_basis(pieces, durations_s)
        shared_points = _find_throughputs(pieces, durations_s)
        for column, label in enumerate(
            self.overhead_labels, start=basis.shape[1] - len(self.overhead_labels)
        ):
            mine = np.array([piece.label == label for piece in pieces], bool)
            basis[mine] = 0.0
            basis[mine, column] = 1.0
            # An overhead does no work: its throughput is far from that of all layers.
            shared_points[mine] = 0.0
        points = np.array([piece.point for piece in pieces]).reshape(len(pieces), len(AXES))
        index = None
        if training_index is not None:
            index = np.array([training_index.get(piece.key, -1) for piece in pieces], int)
        return Inputs(basis, self._number_labels(pieces), points, shared_points, index)

    def _make_basis(self, pieces: Sequence[Piece], durations_s: Floats | None) -> Floats:
        classes, at = len(self.flop_classes), np.arange(len(pieces))
        flop_class = self._number_flop_classes(pieces)
        size = 2 * classes + 2 if durations_s is None else classes + 3
        basis = np.zeros((len(pieces), size + len(self.overhead_labels)))
        basis[at, flop_class] = [piece.flops for piece in pieces]
        size_bytes = [piece.size_bytes for piece in pieces]
        launches = np.array([piece.launches for piece in pieces])
        if durations_s is None:
            basis[at, classes + flop_class] = [piece.padded_flops for piece in pieces]
            basis[:, size - 2], basis[:, size - 1] = size_bytes, launches
        else:
            short_s = np.minimum(durations_s, self.short_launch_s * launches)
            basis[:, size - 3] = size_bytes
            basis[:, size - 2], basis[:, size - 1] = short_s, durations_s - short_s
        return basis

    def _number_flop_classes(self, pieces: Sequence[Piece]) -> Ints:
        """Return the FLOP class of each piece; an unseen one counts as the nearest precision."""
        numbers = {name: at for at, name in enumerate(self.flop_classes)}
        for unseen in {piece.flop_class for piece in pieces} - numbers.keys():
            rank = _rank_precision(unseen)
            distances = [abs(_rank_precision(name) - rank) for name in self.flop_classes]
            numbers[unseen] = distances.index(min(distances)) if distances else 0
        return np.array([numbers[piece.flop_class] for piece in pieces], int)

    def _number_labels(self, pieces: Sequence[Piece]) -> Ints:
        """Return labels as numbers; each unseen one gets a new number."""
        numbers = {label: at for at, label in enumerate(self.labels)}
        return np.array([numbers.setdefault(piece.label, len(numbers)) for piece in pieces], int)


def make_encoder(decomposed: Sequence[DecomposedObservation]) -> PieceEncoder:
    """Return an encoder of all labels and FLOP classes that were observed."""
    pieces = {piece for one in decomposed for piece in one.counts}
    labels = {piece.label for piece in pieces}
    classes = {piece.flop_class for piece in pieces if piece.flop_class}
    return PieceEncoder(tuple(sorted(labels)), tuple(sorted(classes)))


def find_short_launch_duration(decomposed: Sequence[DecomposedObservation]) -> float:
    """Return the duration up to which a launch leaves most of the device idle.

    Recurrent layers fuse most of the launches that are counted for them, and are left out.
    """
    launches_s = [
        one.duration_s / one.launches
        for one in decomposed
        if one.duration_s and one.launches and not any(piece.is_recurrent for piece in one.counts)
    ]
    return min(_SHORT_FACTOR * min(launches_s, default=0.0), _MAX_SHORT_S)


def list_pieces(decomposed: Sequence[DecomposedObservation]) -> tuple[Piece, ...]:
    """Return the distinct pieces by label, whatever the order of the observations."""
    pieces = {piece for one in decomposed for piece in one.counts}
    return tuple(sorted(pieces, key=lambda piece: (piece.label, piece.key)))


def make_training_data(
    decomposed: Sequence[DecomposedObservation],
    pieces: Sequence[Piece],
    values: Sequence[float],
    relative_variance: Sequence[float],
) -> TrainingData:
    """Return observations as sums over pieces, with independent errors."""
    index = {piece: at for at, piece in enumerate(pieces)}
    counts = np.zeros((len(decomposed), len(pieces)))
    for row, one in enumerate(decomposed):
        for piece, count in one.counts.items():
            counts[row, index[piece]] = count
    none = np.zeros((len(decomposed), 0))
    return TrainingData(
        counts, np.array(values, float), np.array(relative_variance, float), none, none
    )


def make_unit_loadings(decomposed: Sequence[DecomposedObservation], unit: str) -> Floats:
    """Return the loadings of errors that observations of each other unit share, N x U."""
    others = sorted({one.unit for one in decomposed} - {unit})
    rows = [[UNIT_SD_SHARE * (one.unit == other) for other in others] for one in decomposed]
    return np.array(rows, float).reshape(len(decomposed), len(others))


def make_discrepancy_loadings(
    decomposed: Sequence[DecomposedObservation],
    data: TrainingData,
    inputs: Inputs,
    prior: HyperPrior,
    discrepancy_sd: float,
) -> Floats:
    """Return the loadings of the discrepancies of sums: labels by their prior mean, N x L."""
    costs = inputs.basis @ prior.medians[: inputs.basis.shape[1]]
    by_label = np.zeros((len(decomposed), int(inputs.labels.max(initial=-1)) + 1))
    is_sum = np.array([not one.is_isolated for one in decomposed], float)
    row, column = np.nonzero(data.counts * is_sum[:, None])
    np.add.at(by_label, (row, inputs.labels[column]), data.counts[row, column] * costs[column])
    shares = by_label / np.maximum(by_label.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(discrepancy_sd * np.sqrt(shares))


def encode_counts(
    networks: Sequence[Mapping[Piece, float]],
) -> tuple[tuple[Piece, ...], WeightedSums]:
    """Return the distinct pieces of networks, by label, and the networks as sums over them."""
    found = dict.fromkeys(piece for counts in networks for piece in counts)
    pieces = tuple(sorted(found, key=lambda piece: piece.label))
    index = {piece: at for at, piece in enumerate(pieces)}
    lengths = np.array([len(counts) for counts in networks], int)
    row = np.repeat(np.arange(len(networks)), lengths)
    column = np.array([index[piece] for counts in networks for piece in counts], int)
    weight = np.array([count for counts in networks for count in counts.values()], float)
    return pieces, WeightedSums(len(networks), row, column, weight)


def _rank_precision(flop_class: str) -> int:
    """Return the rank of a class's precision; the same precision in another phase is nearest."""
    return _PRECISIONS.index(flop_class.split()[0]) if flop_class else 0


def _find_throughputs(pieces: Sequence[Piece], durations_s: Floats | None) -> Floats:
    """Return the logarithms of FLOPs and bytes per second; none for durations."""
    if durations_s is None:
        return np.zeros((len(pieces), 0))
    size_bytes = np.array([piece.size_bytes for piece in pieces])
    flops = np.maximum([piece.flops for piece in pieces], 0.1 * size_bytes)
    work = np.maximum(np.column_stack([flops, size_bytes]), 1.0)
    return np.asarray(np.log(work / np.maximum(durations_s, 1e-12)[:, None]))
