"""The settings that estimators are evaluated in: families, setups and seeds.

They were fixed before anything was measured. ``bound`` is the expected bottleneck of a step: the
host that launches kernels, or the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from joulecast.records import Setup
from joulecast.uses.evaluate import NO_PROBE, EvaluationPlan

TEST_NETS = 12
DEVELOPMENT_NETS = 6
# Device time of a campaign: that of additive, without the probes of the test nets, and that of a
# baseline, which is about the sum of both.
OWN_SECONDS = 20.0
BASELINE_SECONDS = 45.0
OWN = ("additive", "additive" + NO_PROBE)
BASELINES = ("subtractive", "flops", "neuralpower")


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


def _setting(
    name: str,
    family: str,
    batch: int,
    input_shape: tuple[int, ...],
    precision: str,
    optimizer: str,
    seed: int,
    bound: str,
) -> Setting:
    setup = Setup(batch=batch, precision=precision, optimizer=optimizer)
    return Setting(name, family, setup, input_shape, seed, bound)


SETTINGS = (
    _setting("lenet5", "lenet5", 10, (1, 28, 28), "fp32", "sgd", 401, "host"),
    _setting("cnn5-small", "cnn5", 10, (3, 32, 32), "tf32", "sgd", 402, "host"),
    _setting("cnn5", "cnn5", 128, (3, 96, 96), "tf32", "sgd", 403, "gpu"),
    _setting("cnn5-bf16", "cnn5", 128, (3, 96, 96), "bf16", "sgd", 404, "gpu"),
    _setting("har", "har", 32, (9, 128), "fp32", "sgd", 405, "host"),
    _setting("lstm", "lstm", 32, (32,), "fp32", "sgd", 406, "host"),
    _setting("transformer", "transformer", 512, (256,), "tf32", "adamw", 407, "gpu"),
    _setting("transformer-bf16", "transformer", 512, (256,), "bf16", "adamw", 408, "gpu"),
    _setting("resnet", "resnet18", 128, (3, 224, 224), "tf32", "sgd", 409, "gpu"),
    _setting("resnet-bf16", "resnet18", 128, (3, 224, 224), "bf16", "sgd", 410, "gpu"),
)
