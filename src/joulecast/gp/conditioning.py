"""What rows have taught, and what they say of any piece under one draw of the hyper-parameters.

C = S·K·Sᵀ + noise + above + units   of the rows; S sums pieces to rows, as a share of each
  = L·Lᵀ
B = Sᵀ·L⁻ᵀ                           the basis
δ | rows  ~  N(k·B·z, k0 - |k·B|²)   of any piece, k its prior covariance with the rows'
                                     pieces, k0 its prior variance, z = L⁻¹·residual
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from joulecast.gp.joint import Field, Parts, Rows, relate, split
from joulecast.gp.kernels import Floats, Mix, combine, factorise
from joulecast.gp.queries import Nets


@dataclass(frozen=True)
class Known:
    """What the rows say of every piece under one draw of the hyper-parameters.

    Attributes:
        pull: What a piece's δ becomes, by its covariance with the pieces of the rows, P.
        basis: Likewise how much of its prior the rows explain, P x N.
        above_pull: What whole nets are off by, by how each kind takes part in that, L.
        above_basis: Likewise how much of it the rows explain, L x N.
    """

    field: Field
    parts: Parts
    level: float
    pull: Floats
    basis: Floats
    above_pull: Floats
    above_basis: Floats

    def relate(self, nets: Nets) -> Floats:
        """Prior covariance of the nets' pieces with those of the rows, p x P."""
        across = relate(nets.field, self.field, self.parts, self.level)
        same = np.flatnonzero(nets.match >= 0)
        across[same, nets.match[same]] += self.parts.jagged**2
        return across


@dataclass(frozen=True)
class Learnt:
    """A joint process with its hyper-parameters; the first draw is the most probable one.

    Attributes:
        spread: How far whole nets may be off besides, one deviation.
    """

    field: Field
    rows: Rows
    level: float
    thetas: Floats
    spread: float = 0.0

    @cached_property
    def draws(self) -> tuple[Known, ...]:
        """What the rows say under every draw; found when it is first asked for."""
        return tuple(know(self, theta) for theta in self.thetas)


def know(learnt: Learnt, theta: Floats) -> Known:
    """Condition on the rows."""
    field, rows = learnt.field, learnt.rows
    parts = split(theta, field.columns.shape[1], field.places.shape[1])
    row, piece = np.nonzero(rows.counts)
    share = rows.counts[row, piece] / rows.values[row] * field.mean(parts)[piece]
    sums, spreads = Mix(len(rows.values), row, piece), Mix(len(field.labels), piece, row)
    half = sums.times(share, relate_own(field, parts, learnt.level))
    total = sums.times(share, np.ascontiguousarray(half.T))
    reach = np.asarray(np.bincount(row, share, len(rows.values)), float)
    total[np.diag_indices_from(total)] += parts.noise**2 + rows.known
    total += rows.relate(reach)
    _, root = factorise(total)
    basis = spreads.times(share, np.ascontiguousarray(root.T))
    residual = 1.0 - reach
    drawn, above = combine(root, residual), rows.above.T @ root.T
    return Known(
        field, parts, learnt.level, combine(basis, drawn), basis, combine(above, drawn), above
    )


def relate_own(field: Field, parts: Parts, level: float) -> Floats:
    """Prior covariance of δ among pieces, with what is each one's own."""
    cov = relate(field, field, parts, level)
    cov[np.diag_indices_from(cov)] += parts.jagged**2
    return cov
