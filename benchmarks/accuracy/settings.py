"""The settings that estimators are evaluated in: families, setups and seeds.

They were fixed before anything was measured. ``bound`` is the expected bottleneck of a step: the
host that launches kernels, or the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from joulecast.features.evaluation import NO_PROBE, EvaluationPlan
from joulecast.records import Setup

TEST_NETS = 12
DEVELOPMENT_NETS = 6
# Device time of a campaign: that of additive, without the probes of the test nets, and that of a
# baseline, which is about the sum of both.
OWN_SECONDS = 20.0
BASELINE_SECONDS = 45.0
OWN = ("additive", "additive" + NO_PROBE)
BASELINES = ("subtractive", "neuralpower", "work-linear", "flops-linear", "flops", "constant")


@dataclass(frozen=True)
class Setting:
    """A family with one setup and the seed of its nets."""

    name: str
    family: str
    setup: Setup
    input_shape: tuple[int, ...]
    seed: int
    bound: str

    def plan(
        self, estimators: tuple[str, ...], seconds: float, nets: int = TEST_NETS
    ) -> EvaluationPlan:
        """Return the plan that evaluates some estimators in this setting."""
        shape, seed = self.input_shape, self.seed
        return EvaluationPlan(self.family, self.setup, shape, estimators, nets, seconds, seed)

    def plan_all(self, baselines: tuple[str, ...] = BASELINES) -> EvaluationPlan:
        """Return the plan that evaluates all estimators between the same two passes."""
        plan = self.plan(OWN + baselines, BASELINE_SECONDS)
        return replace(plan, budgets=(("additive", OWN_SECONDS),))


def _train(batch: int, precision: str, optimizer: str = "sgd") -> Setup:
    return Setup(batch=batch, precision=precision, optimizer=optimizer)


SETTINGS = (
    Setting("lenet5", "lenet5", _train(10, "fp32"), (1, 28, 28), 401, "host"),
    Setting("cnn5-small", "cnn5", _train(10, "tf32"), (3, 32, 32), 402, "host"),
    Setting("cnn5", "cnn5", _train(128, "tf32"), (3, 96, 96), 403, "gpu"),
    Setting("cnn5-bf16", "cnn5", _train(128, "bf16"), (3, 96, 96), 404, "gpu"),
    Setting("har", "har", _train(32, "fp32"), (9, 128), 405, "host"),
    Setting("lstm", "lstm", _train(32, "fp32"), (32,), 406, "host"),
    Setting("transformer", "transformer", _train(512, "tf32", "adamw"), (256,), 407, "gpu"),
    Setting("transformer-bf16", "transformer", _train(512, "bf16", "adamw"), (256,), 408, "gpu"),
    Setting("resnet", "resnet18", _train(128, "tf32"), (3, 224, 224), 409, "gpu"),
    Setting("resnet-bf16", "resnet18", _train(128, "bf16"), (3, 224, 224), 410, "gpu"),
)
