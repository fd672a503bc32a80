"""A measurer that measures nothing more once its time is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from joulecast.errors import BudgetSpentError
from joulecast.measurer import TrialMeasurer
from joulecast.measurer.base import MeterIdentity, RuntimeIdentity
from joulecast.records import Observation, Trial


@dataclass(frozen=True)
class BudgetedMeasurer:
    """A measurer that raises BudgetSpentError after a moment of its clock.

    Attributes:
        inner: Measures trials.
        until_s: The moment on its clock.
    """

    inner: TrialMeasurer
    until_s: float

    @property
    def runtime(self) -> RuntimeIdentity:
        """What runs trials."""
        return self.inner.runtime

    @property
    def meter(self) -> MeterIdentity:
        """What reads energy."""
        return self.inner.meter

    @property
    def rounds(self) -> int:
        """Valid windows per trial."""
        return self.inner.rounds

    @property
    def run(self) -> str:
        """Identifies this run of Joulecast in observations."""
        return self.inner.run

    @property
    def disturbances(self) -> Counter[str]:
        """How often windows were rejected, by the name of the fault."""
        return self.inner.disturbances

    def __enter__(self) -> BudgetedMeasurer:
        self.inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.inner.__exit__(*exc)

    def now(self) -> float:
        """Return the time on the clock of windows."""
        return self.inner.now()

    def measure(self, trial: Trial) -> Observation:
        """Measure a trial.

        Raises:
            BudgetSpentError: The time is spent.
        """
        return self._check(lambda: self.inner.measure(trial))

    def time(self, trial: Trial) -> Observation:
        """Time a trial.

        Raises:
            BudgetSpentError: The time is spent.
        """
        return self._check(lambda: self.inner.time(trial))

    def measure_idle(self) -> Observation:
        """Measure the idle device.

        Raises:
            BudgetSpentError: The time is spent.
        """
        return self._check(self.inner.measure_idle)

    def make_refusal(self, trial: Trial, reason: str) -> Observation:
        """Return the observation of a trial that the device refuses."""
        return self.inner.make_refusal(trial, reason)

    def change_run(self, run: str, rounds: int | None = None) -> BudgetedMeasurer:
        """Return the measurer for another run, with the same end."""
        return replace(self, inner=self.inner.change_run(run, rounds))

    def check_time(self) -> None:
        """Raise BudgetSpentError if the time is spent."""
        if self.now() >= self.until_s:
            raise BudgetSpentError("the device time is spent: run the same command to continue")

    def _check(self, measure: Callable[[], Observation]) -> Observation:
        self.check_time()
        return measure()
