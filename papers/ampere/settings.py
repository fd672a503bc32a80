"""Choose networks, batch sizes and device time for the device that experiments run on.

The paper trains its convolutional networks with batches of 10. A large GPU then waits for its host,
and what is measured is the host. On a GPU the five-layer CNN, Transformers and ResNets therefore
have batches that keep it busy; Fig. 2 and 5 measure both. Other devices get the batch of the paper.
Architectures are ours, because the paper does not give them.

``AMPERE`` names the paper's method in results. The estimator behind it is ``subtractive``, or
``ampere`` if experiments are faithful to the paper.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from joulecast.estimators.subtractive.options import OURS as OUR_OPTIONS
from joulecast.estimators.subtractive.options import PAPER, SubtractiveOptions
from joulecast.features.evaluation import NO_PROBE, EvaluationPlan
from joulecast.records import Setup
from papers.ampere.experiment import TRIAL_S, Json, Work

AMPERE, OURS, FLOPS = "subtractive", "additive" + NO_PROBE, "flops"
ESTIMATORS = (FLOPS, "flops-linear", AMPERE, OURS)
SHOWN = (FLOPS, AMPERE, OURS)
LABELS = {FLOPS: "proportional to FLOPs", AMPERE: "AMPERE", OURS: "ours"}
"""How findings and legends name estimators."""

SIZES: Json = tomllib.loads(Path(__file__).with_name("settings.toml").read_text("utf-8"))
PAPER_BATCH = 10
_FLOPS_NETS = 7
# The paper's method finishes one curve after the other: ended early, it would lack whole curves.
_FAITHFUL_S = 900.0


@dataclass(frozen=True)
class Settings:
    """Which of the sizes apply, and whether the paper's method has none of our deviations."""

    is_gpu: bool = False
    is_quick: bool = False
    is_faithful: bool = False

    @property
    def kind(self) -> str:
        """The kind of device, as ``settings.toml`` names it."""
        return "gpu" if self.is_gpu else "small"

    @property
    def length(self) -> str:
        """The length of experiments, as ``settings.toml`` names it."""
        return "quick" if self.is_quick else "full"

    @property
    def ampere(self) -> str:
        """Name of the estimator that stands for the paper's method."""
        return "ampere" if self.is_faithful else AMPERE

    @property
    def paper_options(self) -> SubtractiveOptions:
        """How the paper's method fits curves and chooses points."""
        return PAPER if self.is_faithful else OUR_OPTIONS

    def choose(self, full: int, quick: int) -> int:
        """Return one of two sizes of an experiment."""
        return quick if self.is_quick else full

    def plan_family(self, family: str) -> EvaluationPlan:
        """Return how estimators are evaluated on a family."""
        row = SIZES["families"][family]
        nets, repeated, ampere_s, ours_s = row[self.length]
        return EvaluationPlan(
            family,
            Setup(**row[self.kind]),
            tuple(row[f"{self.kind}_input"]),
            tuple(self.ampere if name == AMPERE else name for name in ESTIMATORS),
            nets,
            _FAITHFUL_S if self.is_faithful else ampere_s,
            row["seed"],
            (("additive", ours_s),),
            repeated,
        )

    def describe_family(self, family: str) -> Work:
        """Return what the evaluation of a family measures."""
        plan = self.plan_family(family)
        repeated, ours_s = plan.repeated or 0, dict(plan.budgets)["additive"]
        whole = plan.nets + repeated + _FLOPS_NETS
        return Work(
            f"{family}: {plan.nets} test networks, {repeated} of them twice, {_FLOPS_NETS} "
            f"networks for {FLOPS}, campaigns of {self.ampere} ({plan.seconds:.0f} s) and "
            f"additive ({ours_s:.0f} s)",
            whole + int(plan.seconds) + int(2 * ours_s),
            TRIAL_S * whole + plan.seconds + 1.3 * ours_s,
            lambda lab: lab.measure_family(family),
        )


def make_paper_setup(batch: int = PAPER_BATCH, is_gpu: bool = False) -> Setup:
    """Return how the paper trains: with SGD in full precision; on a CPU with one thread."""
    return Setup(batch=batch, threads=0 if is_gpu else 1)
