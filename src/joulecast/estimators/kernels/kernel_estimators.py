"""Estimate networks as sums of fused kernels, each kind with a Gaussian process around its work.

For inference runtimes, which fuse operators (``joulecast.fusion``). Durations and mean powers are
those of kernels that ran alone; whole networks show how far the sum of kernels is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from joulecast.errors import MissingError
from joulecast.estimators.base import Fitted, Json, Proposal, Target, decline_probes
from joulecast.estimators.kernels.fitted_kernels import (
    CostModel,
    FittedKernels,
    SetupModel,
    SumFactor,
)
from joulecast.estimators.kernels.kernel_fit import FitRegression, fit_setup
from joulecast.estimators.kernels.kernel_points import (
    RunOverhead,
    group_by_setup,
    is_readable,
    read_points,
)
from joulecast.estimators.kernels.kernel_proposals import propose_kernel
from joulecast.estimators.kernels.kernel_regressions import (
    ProcessRegression,
    fit_process,
)
from joulecast.estimators.kernels.work_means import WorkMean
from joulecast.fusion import find_fusion_table
from joulecast.records import Observation, Setup


class KernelEstimator:
    """Sums of kernels, each kind with a regression."""

    name: ClassVar[str]
    version = 2
    uses_anchors = False
    regression: ClassVar[type[ProcessRegression]]

    def uses(self, observation: Observation) -> bool:
        """Return whether an observation is an eager step of a kernel or a network."""
        return is_readable(observation)

    def propose(
        self, target: Target, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> Proposal:
        """Return the kernels of the target, and then what reduces its variance most."""
        if target.acquisition == "probe":
            return decline_probes(self.name)
        # Rivals with other regressions share this campaign: only a covariance can guide it.
        return propose_kernel(target, observations, KernelProcessEstimator().fit)

    def fit(
        self, observations: Sequence[Observation], fitted: Fitted | None = None
    ) -> FittedKernels:
        """Fit the kernels of every setup."""
        groups = group_by_setup(observations)
        if not groups:
            raise MissingError(
                f"no step was observed on this device that {self.name} can learn from: profile a "
                "net there first"
            )
        runtime = find_runtime(observations)
        points = {
            key: read_points(group, find_fusion_table(runtime, group[0].trial.setup))
            for key, group in groups.items()
        }
        points = {key: one for key, one in points.items() if one.points}
        if not points:
            raise MissingError("only empty graphs were observed on this device: profile a net")
        order = sorted(points, key=lambda key: (-len(points[key].points), key))
        models = {key: fit_setup(points[key], self._get_fit()) for key in order}
        seen = sum(map(len, groups.values()))
        table = find_fusion_table(runtime, Setup())
        return FittedKernels(table.name, models, seen, self.version)

    def load(self, data: Json) -> FittedKernels:
        """Restore a fit from its JSON."""
        models = {key: self._load_setup(one) for key, one in data["setups"].items()}
        return FittedKernels(data["table"], models, data["seen"], data["version"])

    def _get_fit(self) -> FitRegression:
        raise NotImplementedError

    def _load_setup(self, data: Json) -> SetupModel:
        costs = (self._load_cost(data[name]) for name in ("duration", "power"))
        return SetupModel(RunOverhead(*data["overhead"]), *costs)

    def _load_cost(self, data: Json) -> CostModel:
        regressions = {key: self.regression.from_dict(one) for key, one in data["kinds"].items()}
        factor = SumFactor.from_dict(data["factor"])
        return CostModel(regressions, WorkMean.from_dict(data["mean"]), factor)


class KernelProcessEstimator(KernelEstimator):
    """A Gaussian process per kernel kind."""

    name = "kernel-gp"
    regression = ProcessRegression

    def _get_fit(self) -> FitRegression:
        return fit_process


def find_runtime(observations: Sequence[Observation]) -> str:
    """Return the runtime of observations; a profile has one."""
    return next((seen.runtime for seen in observations if seen.runtime), "")
