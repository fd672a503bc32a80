"""The fit of `additive` as it is stored in a profile, and back.

Field names in JSON are older than those in code. Counts and loadings are stored without zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulecast.estimators.additive.device_model import AdditiveModel, PieceProcess
from joulecast.estimators.additive.encode import PieceEncoder
from joulecast.estimators.additive.host_time import HostTimeModel
from joulecast.estimators.additive.measured_networks import MeasuredNetwork
from joulecast.estimators.additive.pieces import Piece
from joulecast.gp.conditioning import FittedProcess
from joulecast.gp.inputs import TrainingData
from joulecast.gp.linalg import Floats
from joulecast.records.codec import Record

# Version of the stored fit; other versions are fitted again.
FIT_VERSION = 4


@dataclass(frozen=True)
class StoredProcess(Record):
    """A Gaussian process over pieces.

    Attributes:
        durations_s: Durations of the pieces on the device, from which an energy process is encoded.
        counts: For each observation its pieces, by index, and their counts.
        discrepancy_loadings: Rows that are not all zero, with their index.
        unit_loadings: Likewise.
    """

    pieces: tuple[Piece, ...]
    durations_s: Floats = field(metadata={"json_name": "times_s"})
    counts: list[Any] = field(metadata={"json_name": "rows"})
    values: Floats
    relative_variance: Floats = field(metadata={"json_name": "known"})
    discrepancy_loadings: list[Any] = field(metadata={"json_name": "above"})
    unit_loadings: list[Any] = field(metadata={"json_name": "units"})
    discrepancy_sd_share: float = field(metadata={"json_name": "spread"})
    label_offset_sd_share: float = field(metadata={"json_name": "level"})
    thetas: Floats

    @classmethod
    def from_process(cls, process: PieceProcess, encoder: PieceEncoder) -> StoredProcess:
        """Return what is stored of a process."""
        fitted, data = process.fitted, process.fitted.data
        # The last two basis functions of energies before those of overheads are seconds.
        last = fitted.inputs.basis.shape[1] - len(encoder.overhead_labels)
        return cls(
            process.pieces,
            fitted.inputs.basis[:, last - 2 : last].sum(axis=1),
            [[[int(at), float(row[at])] for at in np.flatnonzero(row)] for row in data.counts],
            data.values,
            data.relative_variance,
            _pack_rows(data.discrepancy_loadings),
            _pack_rows(data.unit_loadings),
            fitted.discrepancy_sd,
            fitted.label_offset_sd,
            fitted.thetas,
        )

    def restore(self, encoder: PieceEncoder, has_durations: bool) -> PieceProcess:
        """Return the process; only that of energies is encoded with durations."""
        counts = np.zeros((len(self.counts), len(self.pieces)))
        for row, entries in zip(counts, self.counts, strict=True):
            for at, count in entries:
                row[at] = count
        size = len(self.values)
        factors = self.discrepancy_loadings, self.unit_loadings
        discrepancies, units = (_unpack_rows(rows, size) for rows in factors)
        data = TrainingData(counts, self.values, self.relative_variance, discrepancies, units)
        inputs = encoder.encode(self.pieces, self.durations_s if has_durations else None)
        return PieceProcess(
            self.pieces,
            FittedProcess(
                inputs, data, self.label_offset_sd_share, self.thetas, self.discrepancy_sd_share
            ),
        )


@dataclass(frozen=True)
class StoredFit(Record):
    """A fit of the estimator."""

    version: int
    observation_count: int = field(metadata={"json_name": "seen"})
    sum_error_sd_share: float = field(metadata={"json_name": "off_share"})
    measured_networks: Mapping[str, MeasuredNetwork] = field(metadata={"json_name": "runs"})
    kind_counts: Mapping[str, Any] = field(metadata={"json_name": "looks"})
    mode: str = field(metadata={"json_name": "form"})
    idle_w: float
    labels: tuple[str, ...]
    flop_classes: tuple[str, ...] = field(metadata={"json_name": "rates"})
    short_launch_s: float = field(metadata={"json_name": "launch_s"})
    duration: StoredProcess = field(metadata={"json_name": "time"})
    energy: StoredProcess
    host_time: HostTimeModel = field(metadata={"json_name": "clock"})

    @classmethod
    def from_model(
        cls,
        model: AdditiveModel,
        observation_count: int,
        sum_error_sd_share: float,
        measured_networks: Mapping[str, MeasuredNetwork],
        kind_counts: Mapping[str, Any],
    ) -> StoredFit:
        """Return what is stored of a fit."""
        encoder = model.encoder
        return cls(
            version=FIT_VERSION,
            observation_count=observation_count,
            sum_error_sd_share=sum_error_sd_share,
            measured_networks=measured_networks,
            kind_counts=kind_counts,
            mode=model.mode,
            idle_w=model.idle_w,
            labels=encoder.labels,
            flop_classes=encoder.flop_classes,
            short_launch_s=encoder.short_launch_s,
            duration=StoredProcess.from_process(model.duration, encoder),
            energy=StoredProcess.from_process(model.energy, encoder),
            host_time=model.host_time,
        )

    def restore_model(self) -> AdditiveModel:
        """Return the fitted model."""
        encoder = PieceEncoder(self.labels, self.flop_classes, self.short_launch_s)
        return AdditiveModel(
            self.mode,
            self.idle_w,
            encoder,
            self.duration.restore(encoder, has_durations=False),
            self.energy.restore(encoder, has_durations=True),
            self.host_time,
        )


def _pack_rows(matrix: Floats) -> list[Any]:
    """Return the rows that are not all zero, with their index."""
    return [[at, row.tolist()] for at, row in enumerate(matrix) if row.any()]


def _unpack_rows(rows: Sequence[Any], size: int) -> Floats:
    matrix = np.zeros((size, len(rows[0][1]) if rows else 0))
    for at, row in rows:
        matrix[at] = row
    return matrix
