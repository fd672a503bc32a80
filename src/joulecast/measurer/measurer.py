"""Measure a Trial and return an Observation.

    prepare ─ warm-up ─────────── issue ────── round 1 ─ pause ─ round 2 ─ … ─ round n ─ close
              chunks of steps     one step     ├─ window ─┤
              until the last      at a time,   begin  run · wait  end      a rejected
              three agree         not waited   meter ▔▔▔▔▔▔▔▔▔▔▔▔ meter    window is repeated

    host      ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁     ▔▁ ▔▁ ▔▁     ▔▔▔▔▔▔▁▁▁▁
    device    ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔     ▔▔ ▔▔ ▔▔     ▔▔▔▔▔▔▔▔▔▔

A window contains as many steps as the meter needs for a good reading. Energy per step is the
average power during the window times the seconds per step, so a meter may read a part of the window
only. The observation has the median and the standard deviation over the rounds. A result that the
fastest time or the lowest power contradicts is checked by more rounds. Before the first trial and
every two minutes the idle device is read, because other programs show only then.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median, stdev
from typing import Any

from joulecast.measurer.base import describe_refusal
from joulecast.measurer.windows import (
    CHECK_S,
    IDLE_POWER,
    LAST_GAP_S,
    IdleChecks,
    MeasuredWindow,
    MeasureLimits,
    TrialMeasurements,
    draw_pulses,
    is_busy,
    make_window,
)
from joulecast.meters.base import Meter, Reading
from joulecast.records import LoadWindow, Network, Observation, Setup, Trial
from joulecast.records.runtime import Runtime, Step
from joulecast.system.errors import ContaminatedError, InputError

_MAX_CHUNKS = 200
_ADVICE = {
    "other load": "close other programs on the device",
    "throttled": "let the device cool down, or lower its power limit",
    "gap": "close other programs, so that the meter can keep up",
    "reset": "do not reload the driver while measuring",
    "limit changed": "set the power limit back, or start anew to measure with this one",
    "stuck": "check the meter with `joulecast detect`",
    "negative": "check the meter with `joulecast detect`",
    "invalid": "check the meter with `joulecast detect`",
    "implausible": "check the meter with `joulecast detect`",
    "too short": "use longer windows",
    "charging": "unplug the charger",
}

MeasureWindow = Callable[[Step, TrialMeasurements], MeasuredWindow]


@dataclass(frozen=True)
class MeasureClock:
    """The clock of windows and pauses.

    Attributes:
        now: Returns seconds since any fixed moment.
        sleep: Waits on that clock.
        wall_time: Returns seconds since 1970.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    wall_time: Callable[[], float] = time.time


@dataclass(frozen=True)
class Measurer:
    """A runtime and a meter. Use it as a context manager: it opens and closes the meter.

    Attributes:
        rounds: Valid windows per trial.
        pause_s: Pause between two rounds of ``measure``.
        run: Identifies this run of Joulecast in observations.
        disturbances: How often windows were rejected, by the name of the fault.
        idle: What is known about the idle device.
    """

    runtime: Runtime
    meter: Meter
    rounds: int
    pause_s: float
    run: str
    limits: MeasureLimits
    clock: MeasureClock
    disturbances: Counter[str] = field(default_factory=Counter, compare=False)
    idle: IdleChecks = field(default_factory=IdleChecks, compare=False)

    def __enter__(self) -> Measurer:
        self.meter.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.meter.close()

    def now(self) -> float:
        """Return the time on the clock of windows."""
        return self.clock.now()

    def measure(self, trial: Trial) -> Observation:
        """Measure energy, duration, host time and memory of a trial.

        Raises:
            ContaminatedError: Something disturbed the device in too many windows.
            MeasurementError: The runtime refuses the trial, or it does not fit on the device.
        """
        return self._repeat(
            trial, self._meter_window, self.limits.warm_s, has_pulses=self.meter.is_recorder
        )

    def time(self, trial: Trial) -> Observation:
        """Measure duration and host time of a trial without its energy, which is quicker."""
        return self._repeat(trial, self._time_window, self.limits.probe_warm_s)

    def measure_idle(self) -> Observation:
        """Measure the idle device: return the observation of the empty network over one second."""
        measured = TrialMeasurements(Trial(Network(), Setup()), self.limits)
        started_s = self.now()
        while not measured.valid_windows():
            measured.windows.append(self._meter_sleep(measured))
            self._check_retries(measured)
        measured.cost_s = self.now() - started_s
        return self._make_observation(measured)

    def make_refusal(self, trial: Trial, reason: str) -> Observation:
        """Return the observation of a trial that the device refuses: it has no values."""
        return describe_refusal(self, trial, reason, self.clock.wall_time())

    def change_run(self, run: str, rounds: int | None = None) -> Measurer:
        """Return the measurer for another run, and perhaps with another number of rounds."""
        return replace(self, run=run, rounds=self.rounds if rounds is None else rounds)

    def measure_all(
        self,
        trials: Sequence[Trial],
        on_done: Callable[[int, Observation], None] | None = None,
        rng: random.Random | None = None,
    ) -> list[Observation]:
        """Measure many trials, with the rounds of each spread over the whole time.

        Every round visits the trials in a new random order and prepares each anew, so that a slow
        drift of the device affects all of them alike and none shares memory with another.

        Args:
            trials: What to measure.
            on_done: Called with index and observation of every trial that is complete.
            rng: Shuffles the order.
        """
        rng = rng or random.Random(0)
        measured = [TrialMeasurements(trial, self.limits) for trial in trials]
        done: list[Observation | None] = [None] * len(measured)
        while True:
            remaining = [index for index, seen in enumerate(done) if seen is None]
            if not remaining:
                return [seen for seen in done if seen is not None]
            rng.shuffle(remaining)
            for index in remaining:
                observation = self._measure_round(measured[index])
                done[index] = observation
                if observation is not None and on_done is not None:
                    on_done(index, observation)

    def _measure_round(self, measured: TrialMeasurements) -> Observation | None:
        """Measure one more round of a trial; return its observation after the last one."""
        with self._running(measured, self.limits.warm_s) as step:
            measured.windows.append(self._meter_window(step, measured))
        return None if self._needs_windows(measured) else self._make_observation(measured)

    @contextmanager
    def _running(self, measured: TrialMeasurements, warm_s: float) -> Iterator[Step]:
        """Yield a warm step, close it whatever happens, and record its cost."""
        self._check_idle(measured)
        started_s = measured.begun_s = self.now()
        step = self.runtime.prepare(measured.trial)
        try:
            measured.step_times_s.append(self._warm_up(step, measured, warm_s))
            # A graph is issued at once, whatever it contains: it tells nothing about the host.
            if measured.trial.mode != "graph":
                measured.issues_s.extend(self._time_issue(step, measured.step_times_s[-1]))
            yield step
            measured.peak_bytes = max(measured.peak_bytes, step.peak_memory_bytes())
        finally:
            step.close()
            measured.cost_s += self.now() - started_s

    def _repeat(
        self,
        trial: Trial,
        measure_window: MeasureWindow,
        warm_s: float,
        *,
        has_pulses: bool = False,
    ) -> Observation:
        """Measure windows of a trial until enough of them are valid."""
        measured = TrialMeasurements(trial, self.limits)
        with self._running(measured, warm_s) as step:
            if has_pulses:
                self._run_pulses(step, measured, "before")
            measured.windows.append(measure_window(step, measured))
            while self._needs_windows(measured):
                self._pause(step, measured)
                measured.windows.append(measure_window(step, measured))
            if has_pulses:
                self._run_pulses(step, measured, "after")
        return self._make_observation(measured)

    def _run_pulses(self, step: Step, measured: TrialMeasurements, place: str) -> None:
        """Run short loads, by which a power trace is aligned later."""
        for gap_s, load_s in draw_pulses(measured.trial, place):
            self.clock.sleep(gap_s)
            count = _count_steps(load_s, measured.step_times_s[-1])
            self.meter.begin()
            self._time_steps(step, count)
            span_s = self.meter.end().span_s
            if span_s is not None:
                measured.pulses.append(LoadWindow(*span_s, count))
        self.clock.sleep(LAST_GAP_S)

    def _pause(self, step: Step, measured: TrialMeasurements) -> None:
        """Spread rounds over time or let a disturbance pass, then warm up again."""
        pause_s = self.pause_s
        if measured.find_faults(measured.windows[-1]):
            pause_s = max(pause_s, self._find_recovery_s(measured))
        elif not measured.is_confirmed():
            extra = max(0, len(measured.valid_windows()) - self.rounds)
            pause_s = max(pause_s, self.limits.recover_s * 2 ** min(extra, 3))
        if pause_s:
            self.clock.sleep(pause_s)
            self._check_idle(measured)
            enough = _count_steps(self.limits.warm_s, measured.step_times_s[-1])
            count = self.limits.warmup_steps or enough
            self._time_steps(step, count)
            measured.warmup_steps += count

    def _find_recovery_s(self, measured: TrialMeasurements) -> float:
        """Return how long to wait after a rejected window: longer each time."""
        doublings = min(measured.count_rejected() - 1, 3)
        return self.limits.recover_s * (1 << doublings)

    def _warm_up(self, step: Step, measured: TrialMeasurements, warm_s: float) -> float:
        """Run as many steps as are asked for, or until their time settles; return that time."""
        if fixed := self.limits.warmup_steps:
            measured.warmup_steps += fixed
            # The first steps are often slow.
            slow, count = fixed // 2, fixed - fixed // 2
            if slow:
                self._time_steps(step, slow)
            return self._time_steps(step, count) / count
        started_s, count = self.now(), 1
        step_times_s: list[float] = []
        for _ in range(_MAX_CHUNKS):
            step_times_s.append(self._time_steps(step, count) / count)
            measured.warmup_steps += count
            spent_s, last_s = self.now() - started_s, step_times_s[-3:]
            agree = len(last_s) == 3 and max(last_s) <= min(last_s) * (1 + self.limits.settle_share)
            if spent_s >= self.limits.settle_s or (agree and spent_s >= warm_s):
                break
            count = min(_count_steps(warm_s / 4, step_times_s[-1]), 10 * count)
        return median(step_times_s[-3:])

    def _time_steps(self, step: Step, count: int) -> float:
        """Return the seconds of ``count`` steps; never 0, whatever the clock resolves."""
        started_s = self.now()
        step.run(count)
        step.wait()
        return max(self.now() - started_s, 1e-9)

    def _time_issue(self, step: Step, step_s: float) -> Iterator[float]:
        """Yield host seconds to issue one step to an idle device; fewer values for slow steps."""
        for _ in range(max(1, min(self.limits.issues, int(self.limits.warm_s / step_s)))):
            started_s = self.now()
            step.run(1)
            yield self.now() - started_s
            step.wait()

    def _meter_window(self, step: Step, measured: TrialMeasurements) -> MeasuredWindow:
        least = self.limits.window_steps
        window_s = self.meter.window_s if least else max(self.meter.window_s, self.limits.window_s)
        window_s *= measured.window_factor()
        count = max(_count_steps(window_s, measured.step_times_s[-1]), least)
        self.meter.begin()
        duration_s = self._time_steps(step, count) / count
        reading = self.meter.end()
        if self._is_measured and not reading.faults:
            reading = replace(reading, faults=self.idle.check_load(reading))
        return make_window(reading, duration_s, steps=count)

    def _time_window(self, step: Step, measured: TrialMeasurements) -> MeasuredWindow:
        # If the runtime has graphs, eager steps are timed to learn about the host.
        is_host = "graph" in self.runtime.modes and measured.trial.mode == "eager"
        window_s = self.limits.host_s if is_host else self.limits.probe_s
        count = _count_steps(window_s, measured.step_times_s[-1])
        return MeasuredWindow(None, self._time_steps(step, count) / count, steps=count)

    def _check_idle(self, measured: TrialMeasurements) -> None:
        """Read the idle device, if it is time to, until nothing else runs on it."""
        if not self._is_measured or self.now() < self.idle.due_s:
            return
        rejected = TrialMeasurements(measured.trial, self.limits)
        while faults := self.idle.check_idle(self._read_idle(), self.now()):
            rejected.windows.append(MeasuredWindow(None, 1.0, faults))
            self._check_retries(rejected)
            self.clock.sleep(self._find_recovery_s(rejected))
        self._count_faults(rejected)

    def _meter_sleep(self, measured: TrialMeasurements) -> MeasuredWindow:
        reading = self._read_idle(measured.window_factor())
        if self._is_measured:
            found = self.idle.check_idle(reading, self.now())
            reading = replace(reading, faults=reading.faults or found)
        # A modelled meter counts only work, and an idle device does none.
        return make_window(reading, 1.0, allows_zero=self.meter.provenance == "modelled")

    def _read_idle(self, factor: int = 1) -> Reading:
        reading = self._meter_idle(factor)
        # Utilisation may still include our own load; then the next reading is without it.
        return self._meter_idle(factor) if is_busy(reading) else reading

    def _meter_idle(self, factor: int) -> Reading:
        window_s = CHECK_S if self._is_measured else 1.0
        self.meter.begin()
        self.clock.sleep(max(self.meter.window_s, window_s) * factor)
        return self.meter.end()

    @property
    def _is_measured(self) -> bool:
        """Whether a real instrument is read, about whose readings there can be a doubt."""
        return self.meter.provenance == "measured" and not self.meter.is_recorder

    def _needs_windows(self, measured: TrialMeasurements) -> bool:
        self._check_retries(measured)
        valid = len(measured.valid_windows())
        if valid < self.rounds:
            return True
        is_late = self.now() - measured.begun_s > self.limits.confirm_s
        most = self.rounds + self.limits.confirmations
        return valid < most and not is_late and not measured.is_confirmed()

    def _check_retries(self, measured: TrialMeasurements) -> None:
        rejected = measured.count_rejected()
        if rejected <= self.limits.retries:
            return
        faults = [fault for window in measured.windows for fault in measured.find_faults(window)]
        names = Counter(map(_name_fault, faults)).most_common()
        self.disturbances.update(dict(names))
        counts = ", ".join(f"{name} ({count} times)" for name, count in names)
        advice = _ADVICE.get(names[0][0], "check the device and the meter")
        raise ContaminatedError(
            f"{measured.trial.network.name or 'the trial'} could not be measured on "
            f"{self.runtime.device.name}: {rejected} of {len(measured.windows)} windows were "
            f'rejected because of {counts}, last "{faults[-1]}"; {advice} and try again'
        )

    def _count_faults(self, measured: TrialMeasurements) -> None:
        for window in measured.windows:
            self.disturbances.update(map(_name_fault, measured.find_faults(window)))

    def _make_observation(self, measured: TrialMeasurements) -> Observation:
        windows, steps = measured.valid_windows(), measured.trial.execution.steps
        self._count_faults(measured)
        if slow := measured.count_slow():
            self.disturbances["other load"] += slow
        energies_j = [one.energy_j * steps for one in windows if one.energy_j is not None]
        durations_s = [duration_s * steps for duration_s in measured.list_durations_s()]
        issues_s = [issue_s * steps for issue_s in measured.issues_s]
        return Observation(
            measured.trial,
            **_summarise("energy", "j", energies_j),
            **_summarise("duration", "s", durations_s),
            **_summarise("issue", "s", issues_s),
            count=len(windows),
            peak_memory_bytes=measured.peak_bytes or None,
            run=self.run,
            device=self.runtime.device,
            runtime=self.runtime.name,
            meter=self.meter.name,
            covers=self.meter.covers,
            provenance=self.meter.provenance,
            taken_at_s=self.clock.wall_time(),
            cost_s=measured.cost_s,
            unchecked=self._list_unchecked(measured),
            windows=tuple(one.load for one in windows if one.load is not None),
            pulses=tuple(measured.pulses),
            warmup_steps=measured.warmup_steps,
            measured_steps=sum(one.steps for one in windows),
        )

    def _list_unchecked(self, measured: TrialMeasurements) -> tuple[str, ...]:
        """Return what could not be checked about the energy; empty where nothing was measured."""
        has_energy = any(one.energy_j is not None for one in measured.valid_windows())
        if not (has_energy and self._is_measured):
            return ()
        unknown = () if self.idle.power_w else (IDLE_POWER,)
        return (*measured.list_unchecked(), *unknown)


def make_measurer(
    runtime: Runtime,
    meter: Meter,
    *,
    rounds: int = 3,
    pause_s: float = 0.0,
    run: str = "",
    limits: MeasureLimits | None = None,
    clock: MeasureClock | None = None,
) -> Measurer:
    """Return a measurer; use it in a ``with`` statement.

    Args:
        runtime: Builds and runs trials.
        meter: Reads energy.
        rounds: Valid windows per trial.
        pause_s: Pause between two rounds of ``measure``, to spread them over time.
        run: Identifies this run of Joulecast in observations.
        limits: Durations of warm-ups and windows, and when a measurement fails.
        clock: The clock of windows and pauses; that of the system by default.
    """
    if not rounds >= 1:
        raise InputError(f"rounds is {rounds}: give a whole number of at least 1")
    if not 0 <= pause_s < math.inf:
        raise InputError(f"pause_s is {pause_s}: give a finite number of at least 0")
    limits, clock = limits or MeasureLimits(), clock or MeasureClock()
    return Measurer(runtime, meter, rounds, pause_s, run, limits, clock)


def _name_fault(fault: str) -> str:
    return fault.split(":")[0]


def _count_steps(window_s: float, step_s: float) -> int:
    """Return how many steps fill a window."""
    return max(1, math.ceil(window_s / step_s))


def _summarise(quantity: str, unit: str, values: list[float]) -> dict[str, Any]:
    """Return median and standard deviation as fields of an Observation; empty for no values."""
    if not values:
        return {}
    spread = stdev(values) if len(values) > 1 else None
    return {f"{quantity}_{unit}": median(values), f"{quantity}_sd_{unit}": spread}
