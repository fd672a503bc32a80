"""Test the contract of runtimes. Inherit the suite to test a new runtime:

class TestMyRuntime(RuntimeContract):
    def make_runtime(self):
        return MyRuntime(...)
"""

from __future__ import annotations

import time

import pytest

from joulecast.families import make_family
from joulecast.records import OPTIMIZERS, STAGES, Execution, Network, Setup, Trial
from joulecast.records.runtime import Runtime
from joulecast.system.errors import InputError, NetError, OutOfMemoryError

SMALL = Trial(make_family("lenet5:2,3,8,8"), Setup(batch=4, threads=1))
MANY = 64


class RuntimeContract:
    """Tests of any runtime; a subclass makes the runtime."""

    stages: tuple[str, ...] = STAGES
    """The stages that the runtime can run alone; ``step`` and ``forward`` at least."""

    trains: bool = True
    """Whether the runtime trains; one that does not refuses training by name."""

    small: Trial = SMALL
    """A trial that the runtime can run, of a network that takes well under a second."""

    refuses_when_closed: bool = False
    """Whether a step that was closed refuses to run."""

    def make_runtime(self) -> Runtime:
        """Return the runtime to test."""
        raise NotImplementedError

    def now(self) -> float:
        """Return the time on the clock of its steps."""
        return time.monotonic()

    def make_huge_trial(self) -> Trial | None:
        """Return a trial that does not fit on the device; None if memory is unlimited."""
        return None

    def test_runtime_names_itself_and_its_device(self) -> None:
        # Both are part of a profile's key.
        runtime = self.make_runtime()
        assert runtime.name
        assert runtime.device.name

    def test_step_runs_repeatedly(self) -> None:
        # The measurer runs a step in several windows.
        step = self.make_runtime().prepare(self.small)
        started_s = self.now()
        for count in (1, 3):
            step.run(count)
            step.wait()
        assert self.now() > started_s
        step.close()

    def test_waiting_twice_and_closing_twice_is_allowed(self) -> None:
        # The measurer closes a step whatever happened before.
        step = self.make_runtime().prepare(self.small)
        step.wait()
        step.close()
        step.close()
        if self.refuses_when_closed:
            with pytest.raises(InputError, match="closed"):
                step.run(1)

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_runs_alone_or_is_refused_by_name(self, stage: str) -> None:
        # Stages can be measured separately, unless the framework runs them only together.
        trial = Trial(self.small.network, self.small.setup, Execution(stage=stage))
        if stage in self.stages:
            assert self._run_once(trial) > 0
        else:
            with pytest.raises(InputError, match=stage):
                self.make_runtime().prepare(trial)

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_every_optimizer_runs_unless_training_is_refused(self, optimizer: str) -> None:
        # A Setup allows all of them.
        trial = Trial(self.small.network, Setup(batch=2, optimizer=optimizer))
        if self.trains:
            assert self._run_once(trial) > 0
        else:
            with pytest.raises(InputError, match="train"):
                self.make_runtime().prepare(trial)

    def test_inference_runs(self) -> None:
        # Forward alone.
        assert self._run_once(Trial(self.small.network, Setup(batch=2, phase="inference"))) > 0

    def test_copies_run_from_a_random_gradient(self) -> None:
        # Isolated layers are measured this way.
        execution = Execution(copies=2, upstream="random")
        assert self._run_once(Trial(self.small.network, self.small.setup, execution)) > 0

    def test_peak_memory_is_not_negative(self) -> None:
        # It is 0 if it is unknown.
        step = self.make_runtime().prepare(self.small)
        step.run(1)
        step.wait()
        assert step.peak_memory_bytes() >= 0
        step.close()

    def test_empty_network_is_refused(self) -> None:
        # The empty network stands for an idle device, which is not run.
        with pytest.raises(NetError):
            self.make_runtime().prepare(Trial(Network(), Setup()))

    def test_trial_that_does_not_fit_is_refused(self) -> None:
        # Smaller trials still run afterwards.
        huge = self.make_huge_trial()
        if huge is None:
            pytest.skip("the memory of this runtime is unlimited")
        runtime = self.make_runtime()
        with pytest.raises(OutOfMemoryError):
            runtime.prepare(huge)
        runtime.prepare(self.small).close()

    def _run_once(self, trial: Trial) -> float:
        step = self.make_runtime().prepare(trial)
        started_s = self.now()
        step.run(1)
        step.wait()
        duration_s = self.now() - started_s
        step.close()
        return duration_s
