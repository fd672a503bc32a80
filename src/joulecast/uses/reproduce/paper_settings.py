"""Choose networks, batch sizes and device time for the device that experiments run on.

The paper trains its convolutional networks with batches of 10. A large GPU then waits for its host,
and what is measured is the host. On a GPU the five-layer CNN, Transformers and ResNets therefore
have batches that keep it busy; single experiments measure both. Other devices get the batch of the
paper. Architectures are ours, because the paper does not give them.

The seeds were chosen before anything was measured; no estimator was developed on these networks.

``AMPERE`` names the paper's method in results: ``subtractive``, or ``ampere`` if experiments are
faithful to the paper (``estimators/subtractive/estimator.py``). ``Laboratory`` translates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from joulecast.estimators.subtractive.curves import Curve, fit_curves
from joulecast.estimators.subtractive.options import OURS as OUR_OPTIONS
from joulecast.estimators.subtractive.options import PAPER as PAPER_OPTIONS
from joulecast.estimators.subtractive.options import SubtractiveOptions
from joulecast.features.evaluation import NO_PROBE, EvaluationPlan
from joulecast.gp.regression import fit_gaussian_process
from joulecast.records import Observation, Setup
from joulecast.uses.reproduce.experiment import PlannedWork

PAPER_BATCH = 10
"""Batch size of the paper's convolutional networks."""

AMPERE, OURS, FLOPS = "subtractive", "additive" + NO_PROBE, "flops"
ESTIMATORS = (FLOPS, "flops-linear", AMPERE, OURS)
"""Estimators that are compared: proportional to FLOPs, linear in them, the paper's, and ours."""

PAPER_FAMILIES = ("lenet5", "cnn5", "har", "lstm")
"""Families of the paper's Table 1 and Fig. 8."""

TRIAL_S = 1.05
"""Expected device time of a trial with energy, on an H200."""

_FLOPS_NETS = 7
# The paper's method finishes one curve after the other: ended early, it would lack whole curves.
_FAITHFUL_S = 900.0


@dataclass(frozen=True)
class FamilySetting:
    """A family as it is evaluated on a device.

    Attributes:
        family: Name of the family.
        setup: How its networks are trained.
        input_shape: Shape of one sample.
        seed: Seed that draws the networks.
        nets: Number of test networks.
        repeated: How many of them are measured twice.
        ampere_s: Device time of the paper's method, which may stop earlier by its own rule.
        ours_s: Device time of our method.
        ampere: Name of the estimator that stands for the paper's method.
    """

    family: str
    setup: Setup
    input_shape: tuple[int, ...]
    seed: int
    nets: int
    repeated: int
    ampere_s: float
    ours_s: float
    ampere: str = AMPERE

    def make_plan(self) -> EvaluationPlan:
        """Return the plan of the evaluation."""
        return EvaluationPlan(
            self.family,
            self.setup,
            self.input_shape,
            tuple(self.ampere if name == AMPERE else name for name in ESTIMATORS),
            self.nets,
            self.ampere_s,
            self.seed,
            (("additive", self.ours_s),),
            self.repeated,
        )

    def list_work(self) -> tuple[PlannedWork, ...]:
        """Return what its evaluation measures."""
        name = self.family
        return (
            PlannedWork(f"{name}: test networks", self.nets, TRIAL_S * self.nets),
            PlannedWork(f"{name}: test networks again", self.repeated, TRIAL_S * self.repeated),
            PlannedWork(f"{name}: campaign of {self.ampere}", int(self.ampere_s), self.ampere_s),
            PlannedWork(f"{name}: campaign of additive", int(2 * self.ours_s), 1.3 * self.ours_s),
            PlannedWork(f"{name}: networks for {FLOPS}", _FLOPS_NETS, TRIAL_S * _FLOPS_NETS),
        )


@dataclass(frozen=True)
class PaperSettings:
    """How large experiments are.

    Attributes:
        is_gpu: Whether the device is a GPU that small batches leave idle.
        is_quick: Whether fewer networks and less device time are used.
        is_faithful: Whether the paper's method has none of our deviations from the paper.
    """

    is_gpu: bool = False
    is_quick: bool = False
    is_faithful: bool = False

    @property
    def ampere(self) -> str:
        """Name of the estimator that stands for the paper's method."""
        return "ampere" if self.is_faithful else AMPERE

    @property
    def paper_options(self) -> SubtractiveOptions:
        """How the paper's method fits and chooses points."""
        return PAPER_OPTIONS if self.is_faithful else OUR_OPTIONS

    def fit_paper_curves(
        self, observations: Sequence[Observation], quantity: str
    ) -> dict[str, Curve]:
        """Fit the curves of the paper's method to energies or durations."""
        options = self.paper_options
        fit = partial(fit_gaussian_process, options=options.process)
        return fit_curves(observations, quantity, fit, options.partition, options.carried)

    def get_family(self, name: str) -> FamilySetting:
        """Return how a family is evaluated."""
        setup, shape, seed = (_GPU if self.is_gpu else _SMALL)[name]
        nets, repeated, ampere_s, ours_s = (_QUICK if self.is_quick else _FULL)[name]
        if self.is_faithful:
            ampere_s = _FAITHFUL_S
        return FamilySetting(
            name, setup, shape, seed, nets, repeated, ampere_s, ours_s, self.ampere
        )

    def choose(self, full: int, quick: int) -> int:
        """Return one of two sizes of an experiment."""
        return quick if self.is_quick else full


def make_paper_setup(batch: int = PAPER_BATCH, is_gpu: bool = False) -> Setup:
    """Return how the paper trains: with SGD, here in full precision and on a CPU with one thread.

    With two threads of two shared cores, rounds of one network differed by up to 22 %; with one by
    2 to 4 %.
    """
    return Setup(batch=batch, threads=0 if is_gpu else 1)


def list_family_work(settings: PaperSettings, names: Sequence[str]) -> tuple[PlannedWork, ...]:
    """Return what the evaluations of some families measure."""
    return tuple(work for name in names for work in settings.get_family(name).list_work())


def _train(batch: int, precision: str = "fp32", optimizer: str = "sgd") -> Setup:
    return Setup(batch=batch, precision=precision, optimizer=optimizer)


# Setup, input and seed of each family.
_GPU = {
    "lenet5": (_train(PAPER_BATCH), (1, 28, 28), 501),
    "cnn5": (_train(128, "tf32"), (3, 96, 96), 502),
    "har": (_train(32), (9, 128), 503),
    "lstm": (_train(32), (32,), 504),
    "transformer": (_train(512, "tf32", "adamw"), (256,), 505),
    "resnet34": (_train(128, "tf32"), (3, 96, 96), 506),
    "resnet50": (_train(128, "tf32"), (3, 96, 96), 507),
}
_SMALL = {
    "lenet5": (make_paper_setup(), (1, 28, 28), 501),
    "cnn5": (make_paper_setup(), (3, 32, 32), 502),
    "har": (make_paper_setup(32), (9, 128), 503),
    "lstm": (make_paper_setup(32), (32,), 504),
    "transformer": (make_paper_setup(8), (32,), 505),
    "resnet34": (make_paper_setup(4), (3, 64, 64), 506),
    "resnet50": (make_paper_setup(4), (3, 64, 64), 507),
}
# Test networks, how many of them twice, and seconds of the paper's method and of ours.
_FULL = {
    "lenet5": (20, 8, 60.0, 25.0),
    "cnn5": (100, 25, 100.0, 35.0),
    "har": (20, 8, 60.0, 25.0),
    "lstm": (20, 8, 60.0, 25.0),
    "transformer": (20, 8, 60.0, 25.0),
    "resnet34": (20, 8, 75.0, 30.0),
    "resnet50": (6, 3, 50.0, 25.0),
}
_QUICK = {
    "lenet5": (6, 3, 40.0, 15.0),
    "cnn5": (20, 5, 50.0, 15.0),
    "har": (6, 3, 40.0, 15.0),
    "lstm": (6, 3, 40.0, 15.0),
    "transformer": (6, 3, 50.0, 15.0),
    "resnet34": (6, 3, 50.0, 15.0),
    "resnet50": (3, 1, 40.0, 15.0),
}
