"""Prior covariance of the relative deviations δ of inputs; ``inputs`` defines the process."""

from __future__ import annotations

import numpy as np

from joulecast.gp.hyperparameters import HyperParameters
from joulecast.gp.inputs import Inputs
from joulecast.gp.kernels import add_matern52, scale_points
from joulecast.gp.linalg import Floats, Ints


def prior_covariance(inputs: Inputs, hyper: HyperParameters) -> Floats:
    """Return the covariance of δ among distinct inputs, nuggets included."""
    cov = cross_covariance(inputs, inputs, hyper)
    cov[np.diag_indices_from(cov)] += hyper.nugget_sd**2
    return cov


def cross_covariance(left: Inputs, right: Inputs, hyper: HyperParameters) -> Floats:
    """Return the covariance of δ between two sets of inputs, without nuggets."""
    cov = np.zeros((left.size, right.size))
    for label in np.intersect1d(left.labels, right.labels):
        rows, columns = _find_label(left.labels, label), _find_label(right.labels, label)
        one = scale_points(left.points[rows], hyper.local_length_scales)
        two = scale_points(right.points[columns], hyper.local_length_scales)
        # Where the inputs of a label are contiguous, their block is written in place.
        in_place = isinstance(rows, slice) and isinstance(columns, slice)
        block = cov[rows, columns] if in_place else np.zeros((len(one), len(two)))
        add_matern52(block, one, two, hyper.local_sd**2, hyper.label_offset_sd**2)
        if not in_place:
            cov[np.ix_(left.labels == label, right.labels == label)] = block
    if left.shared_points.shape[1]:
        one = scale_points(left.shared_points, hyper.shared_length_scales)
        two = scale_points(right.shared_points, hyper.shared_length_scales)
        add_matern52(cov, one, two, hyper.shared_sd**2)
    return cov


def _find_label(labels: Ints, label: int) -> slice | Ints:
    """Return the inputs of a label, as a slice where they are contiguous."""
    found = np.flatnonzero(labels == label)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else found
