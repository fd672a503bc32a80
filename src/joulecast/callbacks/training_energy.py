"""Estimate, measure and project the energy of a training run, whatever trainer runs it.

    begin ── read_batch ── step_begin ─ step_end ─ … ── turn_to_other ── step_begin … ── finish
             estimate      windows under the meter      evaluation                       observation

An adapter of a trainer derives from ``EnergyHooks``, calls these methods and logs ``list_scalars``;
``never_fail`` keeps errors of ours out of other people's training. The projected end is what was
measured so far, plus the remaining steps: their energy is the estimate, updated by the steps that
were measured, and evaluation and checkpoints go on as often as so far.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from joulecast.callbacks.module_reading import (
    Shapes,
    choose_optimizer,
    choose_precision,
    list_shapes,
    name_device,
    read_training_net,
)
from joulecast.callbacks.training_windows import (
    WARMUP_STEPS,
    TrainingWindow,
    WindowSums,
    sum_windows,
    summarise_steps,
)
from joulecast.features.estimate import estimate_net
from joulecast.features.measure import save_observation
from joulecast.features.monitor import EnergyMonitor, OpenWindow, monitor
from joulecast.features.profiles import load_profile
from joulecast.measurer.base import make_run
from joulecast.measurer.windows import IDLE_POWER
from joulecast.records import OWN_NET, Estimate, Network, Observation, Setup, Trial
from joulecast.records.codec import Record, omit_default
from joulecast.runtimes import open_runtime
from joulecast.system.errors import InputError, JoulecastError
from joulecast.system.printable import make_printable
from joulecast.system.units import format_duration, format_energy, format_interval, parse_energy

PREFIX = "energy/"
"""What the names of all scalars begin with."""
_LONGEST_WINDOW_S = 10.0
# A meter waits for its next update at the end of a window: at most 5 % of the window.
_UPDATES_PER_WINDOW = 20
_NORMAL_QUANTILE = 1.96
LOGGER = logging.getLogger("joulecast.training")
F = TypeVar("F", bound=Callable[..., Any])
Interval = tuple[float, float, float]
"""Mean, lower and upper end."""


@dataclass(frozen=True)
class TrainingRun:
    """A run, as its trainer describes it; the batch size is that of the first batch.

    Attributes:
        steps: Updates of the weights that are to come; None if the trainer does not know.
        processes: Number of processes that train together.
        notes: What was assumed, in sentences.
    """

    on: str
    steps: int | None
    setup: Setup
    processes: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingSummary(Record):
    """What a run has taken.

    Attributes:
        energy_j: Energy of the whole run, evaluation and checkpoints included; None if the meter
            could not tell.
        estimated_j: Estimate of all steps from before the run; None without a profile.
        error: Name of the exception that ended the run, or its measurement.
    """

    energy_j: float | None
    duration_s: float
    steps: int
    meter: str
    covers: str
    provenance: str
    estimated_j: float | None = None
    estimated_interval_j: tuple[float, float] | None = None
    stopped_by_budget: bool = False
    error: str = omit_default("")


class EnergyHooks:
    """Measures the runs of a trainer, one after the other.

    Attributes:
        energy: The present run, or the last one; None before the first.
        has_failed: Something went wrong, and nothing is measured until the next run.
    """

    def __init__(
        self,
        budget: str | None = None,
        *,
        meter: str = "auto",
        device: str = "",
        store: str | None = None,
        save: bool = True,
    ) -> None:
        """Make the callback.

        Args:
            budget: Energy at which training is stopped, like ``500 kJ``; by default there is none.
            meter: Name of a meter, as ``joulecast detect`` lists them.
            device: Device, key or file of the profile to estimate from; by default that of the
                device that trains.
            store: Path or URL of the store, if not the usual one.
            save: Store the observation, so that the profile learns from the run.

        Raises:
            InputError: The budget is not an energy.
        """
        super().__init__()
        self.budget_j = None if budget is None else parse_energy(budget)
        if self.budget_j == 0.0:
            raise InputError(f"the budget is {budget}: give more than 0, like 500kJ")
        self.meter, self.device, self.store, self.save = meter, device, store, save
        self.energy: TrainingEnergy | None = None
        self.has_failed = False
        self._first_shapes: Shapes | None = None

    @property
    def running(self) -> TrainingEnergy | None:
        """The run that is being measured."""
        return None if self.energy is None or self.energy.summary else self.energy

    @property
    def summary(self) -> TrainingSummary | None:
        """What the last run took; None while it runs."""
        return None if self.energy is None else self.energy.summary

    def finish(self, error: str = "") -> TrainingSummary | None:
        """End the measurement of a run that its trainer did not end, by the exception ``error``."""
        return None if self.energy is None else self.energy.finish(error)

    def abandon(self, error: str) -> None:
        """Release model and meter after a failure; what was measured until then is kept."""
        try:
            self.release_model()
        finally:
            if self.energy is not None:
                self.energy.finish(error, has_failed=True)

    def release_model(self) -> None:
        """Remove what was added to the user's module; by default nothing was."""

    def begin_run(self, run: TrainingRun) -> TrainingEnergy:
        """Begin to measure a run; one that was not ended is ended first."""
        show_messages()
        # The trainer did not say which exception ended it.
        self.finish(Exception.__name__)
        self.energy = self._first_shapes = None
        self.energy = TrainingEnergy(self, run)
        return self.energy

    def add_inputs(self, module: Any, inputs: Any) -> None:
        """Count a batch; the first one is read together with its module."""
        if energy := self.running:
            shapes = list_shapes(inputs)
            if self._first_shapes is None:
                self._first_shapes = shapes
                energy.read_batch(module, inputs)
            energy.add_batch(is_odd=shapes != self._first_shapes)


class TrainingEnergy:
    """The energy of one training run.

    Attributes:
        estimate: Of one step, from before training; None without a profile.
        summary: What the run took, once it has ended.
        observation: What was stored, or could have been.
        is_over_budget: Whether the budget was passed.
    """

    def __init__(self, hooks: EnergyHooks, run: TrainingRun) -> None:
        self.hooks, self.run = hooks, run
        self.estimate: Estimate | None = None
        self.summary: TrainingSummary | None = None
        self.observation: Observation | None = None
        self.is_over_budget = False
        self._network: Network | None = None
        self._setup = run.setup
        self._windows: list[TrainingWindow] = []
        self._sums: WindowSums = sum_windows(())
        self._content = TrainingWindow(is_mixed=True)
        self._is_other = True
        self._steps = 0
        self._step_ended_s: float | None = None
        self._begun_s = time.monotonic()
        self._monitor: EnergyMonitor = monitor(run.on, hooks.meter)
        self._window: OpenWindow = self._monitor.open_window("training")
        for note in run.notes:
            LOGGER.info(note)
        if run.processes > 1:
            LOGGER.warning(
                f"Only the device of this process is measured, one of {run.processes}; estimates "
                "are for one device as well, and a budget is reported but does not stop training."
            )

    @property
    def must_stop(self) -> bool:
        """Whether training has to stop: other processes would wait for one that does."""
        return self.is_over_budget and self.run.processes == 1

    @property
    def estimated_j(self) -> Interval | None:
        """Energy of all steps, as it was estimated before training."""
        if self.estimate is None or not self.run.steps:
            return None
        low_j, high_j = self.estimate.interval_j
        steps = self.run.steps
        return steps * self.estimate.energy_j, steps * low_j, steps * high_j

    def read_batch(self, module: Any, inputs: Any) -> None:
        """Read the module with its first batch and say what training will take.

        Where that fails, the run is measured all the same. What reading takes is not part of it.
        """
        self._close_window()
        try:
            net, self._setup = read_training_net(module, inputs, self.run.setup)
            self._network = net.network
            profile = load_profile(self.hooks.device, on=self.run.on, store=self.hooks.store)
            self.estimate = estimate_net(profile, net.network, self._setup)
        except Exception as error:  # a module may fail in any way when it is read
            reason = str(error)
            if not isinstance(error, JoulecastError):
                text = f"{type(error).__name__}: {' '.join(reason.split())}"
                reason = f"the module cannot be read ({text})"
            LOGGER.warning(f"No estimate, the run is only measured: {reason}")
        else:
            self._say_estimate(self.estimate)
        self._open_window(is_mixed=True)

    # -- during training -------------------------------------------------------------------

    def step_begin(self) -> None:
        """Say that a step begins: its batch has been loaded."""
        if self._is_other:
            self._is_other = False
            self._turn(is_mixed=False)
        elif self._step_ended_s is not None:
            self._content.waiting_s += time.monotonic() - self._step_ended_s

    def add_batch(self, *, is_odd: bool) -> None:
        """Count a batch; an odd one has other shapes than the first."""
        self._content.batches += 1
        self._content.odd_batches += is_odd

    def step_end(self) -> None:
        """Say that the weights were updated; check the budget."""
        self._steps += 1
        self._content.steps += 1
        open_s = time.monotonic() - self._window.started_s
        if open_s >= self._choose_length_s() or self._is_near_budget(open_s):
            self._end_window(is_mixed=False)
        self.batch_end()

    def batch_end(self) -> None:
        """Say that a batch ended, perhaps without an update: gradients are accumulated."""
        self._step_ended_s = time.monotonic()

    def turn_to_other(self) -> None:
        """Say that evaluation or a checkpoint follows, until the next step begins."""
        if not self._is_other:
            self._is_other = True
            self._turn(is_mixed=True)

    def list_scalars(self) -> dict[str, float]:
        """Return what is logged now, in joules, watts and shares."""
        if time.monotonic() - self._window.started_s >= self._least_s:
            self._end_window(is_mixed=self._is_other)
        energy_j, budget_j = self._sums.energy_j, self.hooks.budget_j
        found: dict[str, float] = {}
        if energy_j is not None:
            found |= {"measured_j": energy_j, "power_w": self._sums.power_w or 0.0}
        for name, interval_j in (("projected", self.project()), ("estimated", self.estimated_j)):
            if interval_j is not None:
                names = (f"{name}_j", f"{name}_low_j", f"{name}_high_j")
                found |= zip(names, interval_j, strict=True)
        if budget_j and energy_j is not None:
            found["budget_share"] = energy_j / budget_j
        return {PREFIX + name: value for name, value in found.items()}

    def project(self) -> Interval | None:
        """Return the energy at the end of the run; None while nothing is known about a step."""
        step_j = self._find_step_energy()
        if step_j is None or self.run.steps is None:
            return None
        sums = self._sums
        left = max(0, self.run.steps - sums.steps)
        fixed_j = (sums.energy_j or 0.0) + left * sums.other_j_per_step
        mean_j, low_j, high_j = (fixed_j + left * one for one in step_j)
        return mean_j, low_j, high_j

    # -- afterwards ------------------------------------------------------------------------

    def finish(self, error: str = "", *, has_failed: bool = False) -> TrainingSummary:
        """End the measurement, say what the run took, and store the observation.

        After a failure of the measurement, what was measured is kept, but nothing is stored.
        """
        if self.summary is None:
            try:
                self._close_window(error)
            finally:
                self._monitor.close()
            first, estimated_j = self._windows[0].energy, self.estimated_j
            self.summary = TrainingSummary(
                self._sums.energy_j,
                self._sums.duration_s,
                self._steps,
                first.meter,
                first.covers,
                first.provenance,
                estimated_j[0] if estimated_j else None,
                estimated_j[1:] if estimated_j else None,
                self.must_stop,
                error,
            )
            if not has_failed:
                self._say_summary(self.summary)
                self._save()
        return self.summary

    def _say_estimate(self, estimate: Estimate) -> None:
        setup, budget_j, steps = self._setup, self.hooks.budget_j, self.run.steps or 1
        interval = format_interval([steps * one for one in estimate.interval_j], format_energy)
        batch = f"{setup.batch} x {setup.accumulate}" if setup.accumulate > 1 else setup.batch
        LOGGER.info(
            f"Estimate: {f'{steps:,} steps take' if steps > 1 else 'a step takes'} "
            f"{format_energy(steps * estimate.energy_j)} ({100 * estimate.level:g} % interval "
            f"{interval}, {estimate.provenance}), batch {batch}, {setup.precision}, "
            f"{setup.optimizer}."
        )
        for note in estimate.notes:
            LOGGER.info(f"Note: {note}")
        if budget_j is not None and self.run.steps and steps * estimate.energy_j > budget_j:
            LOGGER.warning(
                f"The budget of {format_energy(budget_j)} lasts for about "
                f"{int(budget_j / estimate.energy_j):,} of {steps:,} steps."
            )

    # -- windows ---------------------------------------------------------------------------

    @property
    def _least_s(self) -> float:
        meter = self._window.meter
        return max(meter.window_s, _UPDATES_PER_WINDOW * meter.update_interval_s)

    @property
    def _is_warm(self) -> bool:
        return self._steps >= WARMUP_STEPS

    def _choose_length_s(self) -> float:
        """Return how long the open window should be: longer in long runs, short if mixed."""
        content, run_s = self._content, time.monotonic() - self._begun_s
        if content.is_mixed or (self._is_warm and not content.is_warm):
            return self._least_s
        return max(self._least_s, min(_LONGEST_WINDOW_S, run_s / 10))

    def _is_near_budget(self, open_s: float) -> bool:
        budget_j, power_w = self.hooks.budget_j, self._sums.power_w
        if budget_j is None or power_w is None or open_s < self._least_s:
            return False
        return (self._sums.energy_j or 0.0) + power_w * open_s >= budget_j

    def _turn(self, *, is_mixed: bool) -> None:
        """End the window if it is long enough to be measured; else it is mixed."""
        if time.monotonic() - self._window.started_s >= self._least_s:
            self._end_window(is_mixed=is_mixed)
        else:
            self._content.is_mixed = True

    def _end_window(self, *, is_mixed: bool) -> None:
        self._close_window()
        self._open_window(is_mixed=is_mixed)
        budget_j, energy_j = self.hooks.budget_j, self._sums.energy_j
        if budget_j is None or energy_j is None or energy_j < budget_j or self.is_over_budget:
            return
        self.is_over_budget = True
        goes_on = "training goes on, because the other processes would wait for this one"
        total = f" of {self.run.steps:,}" if self.run.steps else ""
        LOGGER.warning(
            f"The budget of {format_energy(budget_j)} is passed: {format_energy(energy_j)} after "
            f"{self._steps:,}{total} steps; "
            f"{'training stops here' if self.must_stop else goes_on}."
        )

    def _open_window(self, *, is_mixed: bool) -> None:
        self._content = TrainingWindow(is_warm=self._is_warm, is_mixed=is_mixed)
        self._window = self._monitor.open_window("training")

    def _close_window(self, error: str = "") -> None:
        self._content.measured = self._monitor.close_window(self._window, error)
        self._windows.append(self._content)
        self._sums = sum_windows(self._windows)

    # -- results ---------------------------------------------------------------------------

    def _find_step_energy(self) -> Interval | None:
        """Return mean and interval of the energy of a step that is to come."""
        sums, found = self._sums, self.estimate
        has_steps = sums.steady_steps > 0 and sums.steady_j > 0
        if found is not None:
            if has_steps:
                from joulecast.estimators import update_estimate

                found = update_estimate(found, sums.steady_j, sums.steady_steps, sums.sd_share)
            return (found.energy_j, *found.interval_j)
        if not has_steps:
            return None
        mean_j = sums.steady_j / sums.steady_steps
        half = math.exp(_NORMAL_QUANTILE * sums.sd_share)
        return mean_j, mean_j / half, mean_j * half

    def _say_summary(self, summary: TrainingSummary) -> None:
        if summary.energy_j is None:
            faults = dict.fromkeys(fault for one in self._windows for fault in one.energy.faults)
            reason = "; ".join(faults) or "the run was too short for the meter"
            LOGGER.warning(f"The energy of the run is not known: {reason}.")
            return
        estimated = ""
        if summary.estimated_j is not None and summary.estimated_interval_j is not None:
            interval = format_interval(summary.estimated_interval_j, format_energy)
            energy = format_energy(summary.estimated_j)
            estimated = f"; the estimate of {self.run.steps:,} steps was {energy} ({interval})"
        LOGGER.info(
            f"Training took {format_energy(summary.energy_j)} ({summary.provenance}, the meter "
            f"covers {summary.covers}) in {format_duration(summary.duration_s)} and "
            f"{summary.steps:,} steps{estimated}."
        )

    def _save(self) -> None:
        """Store the observation of a step, if its windows are comparable with a profile's."""
        if self._network is None or not self.hooks.save:
            return
        found, reason = summarise_steps(self._windows, self._setup.accumulate)
        if not found:
            LOGGER.info(f"Nothing was stored for the profile: {reason}.")
            return
        runtime, energy = open_runtime(self.run.on), self._windows[0].energy
        is_measured = energy.provenance == "measured"
        found["unchecked"] = (*found["unchecked"], IDLE_POWER) if is_measured else ()
        self.observation = Observation(
            Trial(self._network, self._setup),
            **found,
            run=make_run(),
            device=runtime.device,
            runtime=runtime.name,
            meter=energy.meter,
            covers=energy.covers,
            provenance=energy.provenance,
            source=OWN_NET,
            taken_at_s=time.time(),
            cost_s=self._sums.duration_s,
            warmup_steps=WARMUP_STEPS,
        )
        try:
            place = save_observation(self.observation, self.hooks.store)
        except JoulecastError as error:
            LOGGER.warning(f"The observation of a step could not be stored: {error}")
            return
        LOGGER.info(
            f"Stored a step of {self._network.name} ({format_energy(found['energy_j'])} in "
            f"{format_duration(found['duration_s'])}, from {found['count']} windows) in {place}."
        )


def describe_run(
    device: Any,
    optimizer: Any,
    half: str,
    *,
    accumulate: int,
    compiled: bool,
    steps: float,
    processes: int,
    notes: tuple[str, ...] = (),
) -> TrainingRun:
    """Return a run, as trainers know it: ``half`` is ``bf16``, ``fp16`` or empty."""
    name, note = choose_optimizer(optimizer)
    setup = Setup(
        precision=half or choose_precision(device),
        optimizer=name,
        loss="own",
        accumulate=accumulate,
        compiled=compiled,
    )
    known = int(steps) if 0 < steps < math.inf else None
    notes = tuple(filter(None, (note, *notes)))
    return TrainingRun(name_device(device), known, setup, processes, notes)


def never_fail(method: F) -> F:
    """Return a method that warns once if it raises, and does nothing from then on.

    All such methods of an object are silent then: what follows would rest on a state that is not
    known. Its ``abandon`` releases what it holds. Interruptions by the user pass.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.has_failed:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # whatever it is, training goes on
            self.has_failed = True
            LOGGER.warning(
                "Energy is no longer measured, and training goes on: %s: %s",
                type(error).__name__,
                make_printable(" ".join(str(error).split())),
            )
            LOGGER.debug("The error was:", exc_info=error)
            try:
                self.abandon(type(error).__name__)
            except Exception as second:  # of the same cause, most likely
                LOGGER.debug("Cleaning up failed as well:", exc_info=second)
            return None

    return cast(F, call)


def show_messages() -> None:
    """Let messages of callbacks reach the user, unless the program configures logging itself."""
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("joulecast: %(message)s"))
        LOGGER.addHandler(handler)
