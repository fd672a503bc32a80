"""Hyper-parameters of the process, by name and as the vector of logarithms that is fitted.

θ = ln (β_1 … β_K, σ_f, σ_r, σ_j, σ_n, ℓ_1 … ℓ_D, λ_1 … λ_Q)

β      coefficients of the mean's basis functions, all positive
σ_f    standard deviation of the kernel within a label, ℓ its length scales
σ_r    standard deviation of the kernel that all labels share, λ its length scales
σ_j    nugget: standard deviation of each distinct input
σ_n    relative noise of an observation
σ_u    offset of a label, fixed and not part of θ
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.gp.linalg import Floats


@dataclass(frozen=True)
class HyperParameters:
    """Hyper-parameters by name; standard deviations are relative to the mean."""

    coefficients: Floats
    local_sd: float
    shared_sd: float
    nugget_sd: float
    noise_sd: float
    local_length_scales: Floats
    shared_length_scales: Floats
    label_offset_sd: float

    @classmethod
    def unpack(
        cls, theta: Floats, basis_size: int, axes: int, label_offset_sd: float
    ) -> HyperParameters:
        """Return the hyper-parameters of θ.

        Args:
            theta: Logarithms, in the order above.
            basis_size: Number of basis functions.
            axes: Number of axes of the kernel within a label.
            label_offset_sd: Standard deviation of a label's offset.
        """
        values = np.exp(theta)
        local, shared, nugget, noise = map(float, values[basis_size : basis_size + 4])
        scales = values[basis_size + 4 :]
        return cls(
            values[:basis_size],
            local,
            shared,
            nugget,
            noise,
            scales[:axes],
            scales[axes:],
            label_offset_sd,
        )


@dataclass(frozen=True)
class HyperPrior:
    """Independent log-normal priors of the hyper-parameters, in the order of θ.

    Attributes:
        medians: Prior medians.
        log_sds: Standard deviations of the logarithms.
        label_offset_sd: Standard deviation of a label's offset, which is not fitted.
    """

    medians: Floats
    log_sds: Floats
    label_offset_sd: float

    def negative_log_density(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log density of θ up to a constant, and its gradient."""
        z = (theta - np.log(self.medians)) / self.log_sds
        return 0.5 * float(z @ z), z / self.log_sds
