"""What every runtime must keep to, as tests to inherit.

    class TestMine(RuntimeContract):
        def make_runtime(self): return MyRuntime(...)

Takes a runtime and its clock, gives verdicts. A runtime that passes can be put under the rig.
"""

from __future__ import annotations

import time

import pytest

from joulecast.errors import NetError, OutOfMemoryError
from joulecast.families import make_family
from joulecast.records import OPTIMIZERS, STAGES, Execution, Network, Setup, Trial
from joulecast.runtimes.base import Runtime, Step

SMALL = Trial(make_family("lenet5:2,3,8,8"), Setup(batch=4, threads=1))
MANY = 64


class RuntimeContract:
    """Tests of any runtime; a subclass says how to make one."""

    def make_runtime(self) -> Runtime:
        """A runtime to test."""
        raise NotImplementedError

    def now(self) -> float:
        """The clock on which its steps take time."""
        return time.monotonic()

    def make_huge_trial(self) -> Trial | None:
        """A trial that does not fit on the device; None where nothing limits it."""
        return None

    def test_says_its_name_and_its_device(self) -> None:
        """Both are part of a profile's key."""
        runtime = self.make_runtime()
        assert runtime.name
        assert runtime.device.name

    def test_runs_waits_and_runs_again(self) -> None:
        """A step serves as many windows as the rig wants."""
        step = self.make_runtime().prepare(SMALL)
        started_s = self.now()
        for count in (1, 3):
            step.run(count)
            step.wait()
        assert self.now() > started_s
        step.close()

    def test_waiting_for_nothing_and_closing_twice_do_no_harm(self) -> None:
        """The rig closes whatever happened before."""
        step = self.make_runtime().prepare(SMALL)
        step.wait()
        step.close()
        step.close()

    @pytest.mark.parametrize("stage", STAGES)
    def test_runs_every_stage_of_training(self, stage: str) -> None:
        """Stages can be measured apart."""
        assert self._run_once(Trial(SMALL.network, SMALL.setup, Execution(stage=stage))) > 0

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_runs_every_optimizer(self, optimizer: str) -> None:
        """All three that a Setup knows."""
        assert self._run_once(Trial(SMALL.network, Setup(batch=2, optimizer=optimizer))) > 0

    def test_runs_inference(self) -> None:
        """Forward alone."""
        assert self._run_once(Trial(SMALL.network, Setup(batch=2, phase="inference"))) > 0

    def test_runs_copies_from_a_random_gradient(self) -> None:
        """As isolated layers are measured."""
        how = Execution(copies=2, upstream="random")
        assert self._run_once(Trial(SMALL.network, SMALL.setup, how)) > 0

    def test_more_steps_take_longer(self) -> None:
        """The shortest of several tries, so that nothing but the steps decides."""
        step = self.make_runtime().prepare(SMALL)
        one_s = min(self._time(step, 1) for _ in range(3))
        many_s = min(self._time(step, MANY) for _ in range(3))
        step.close()
        assert many_s > 2 * one_s

    def test_says_its_memory(self) -> None:
        """0 where it cannot be told, never less."""
        step = self.make_runtime().prepare(SMALL)
        step.run(1)
        step.wait()
        assert step.peak_memory_bytes() >= 0
        step.close()

    def test_refuses_an_empty_network(self) -> None:
        """The empty network stands for idle, which is not run."""
        with pytest.raises(NetError):
            self.make_runtime().prepare(Trial(Network(), Setup()))

    def test_refuses_what_does_not_fit(self) -> None:
        """And can still run what does."""
        huge = self.make_huge_trial()
        if huge is None:
            pytest.skip("nothing limits this runtime's memory")
        runtime = self.make_runtime()
        with pytest.raises(OutOfMemoryError):
            runtime.prepare(huge)
        runtime.prepare(SMALL).close()

    def _run_once(self, trial: Trial) -> float:
        step = self.make_runtime().prepare(trial)
        took_s = self._time(step, 1)
        step.close()
        return took_s

    def _time(self, step: Step, count: int) -> float:
        started_s = self.now()
        step.run(count)
        step.wait()
        return self.now() - started_s
