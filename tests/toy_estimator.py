"""A small estimator as a third party could write it: every call of a layer costs the same."""

from dataclasses import asdict, dataclass, fields

import numpy as np

from joulecast.estimators.base import Prediction, Proposal
from joulecast.records import LayerEstimate
from joulecast.system.errors import MissingError

SD_SHARE = 0.5


class CallEstimator:
    name = "calls"
    version = 2
    uses_anchors = False

    def uses(self, observation):
        has_costs = bool(observation.energy_j and observation.duration_s)
        return has_costs and observation.trial.execution.is_user_step and _count(observation) > 0

    def propose(self, target, observations, fitted=None):
        return Proposal(None, 0.0, "it uses what others measured")

    def fit(self, observations, fitted=None):
        used = [seen for seen in observations if self.uses(seen)]
        if not used:
            raise MissingError("no step was measured: profile a net first")
        return FittedCalls(
            float(np.median([seen.energy_j / _count(seen) for seen in used])),
            float(np.median([seen.duration_s / _count(seen) for seen in used])),
            sorted({str(seen.trial.setup) for seen in used}),
            len(used),
        )

    def load(self, data):
        return FittedCalls(*(data[one.name] for one in fields(FittedCalls)))


@dataclass
class FittedCalls:
    energy_j: float
    duration_s: float
    setups: list[str]
    observation_count: int

    def predict(self, networks, setups, *, joint=False, per_layer=False):
        counts = np.array([sum(layer.calls for layer in one.layers) for one in networks], float)
        sds_j = SD_SHARE * self.energy_j * counts
        return Prediction(
            energy_j=self.energy_j * counts,
            energy_sd_j=sds_j,
            energy_cov=np.outer(sds_j, sds_j) if joint else None,
            duration_s=self.duration_s * counts,
            layers=tuple(
                tuple(
                    LayerEstimate(one.name, one.kind, self.energy_j * one.calls, one.calls)
                    for one in (network.layers if per_layer else ())
                )
                for network in networks
            ),
            unseen_share=tuple(float(str(setup) not in self.setups) for setup in setups),
        )

    def describe(self):
        return ()

    def to_dict(self):
        return {"version": CallEstimator.version, **asdict(self)}


def _count(seen):
    return seen.trial.execution.steps * sum(layer.calls for layer in seen.trial.network.layers)
