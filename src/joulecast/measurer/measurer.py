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
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median

from joulecast.measurer.base import IDLE_TRIAL, R, TrialMeasurer, summarise_values
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
    name_fault,
)
from joulecast.meters.base import MeasureClock, Meter, Reading
from joulecast.records import LoadWindow, Observation, Trial
from joulecast.records.runtime import Runtime, Step
from joulecast.system.errors import ContaminatedError, InputError

# Shortest window, whatever the meter needs; of a time probe; and of a time probe of eager steps,
# whose host time varies from step to step.
_WINDOW_S, _PROBE_S, _HOST_S = 0.1, 0.05, 0.25
# Shortest warm-up, and that of a time probe.
_WARM_S, _PROBE_WARM_S = 0.2, 0.08
# Longest warm-up, if step times never agree: differ by less than a share.
_SETTLE_S, _SETTLE_SHARE = 1.0, 0.1
_MAX_CHUNKS = 200
# How often the time to issue one step is measured.
_ISSUES = 9
# How many more windows confirm a result at most; none begins later than this after the trial.
_CONFIRMATIONS, _CONFIRM_S = 4, 8.0
# Rejected windows per trial before the measurement fails, and the pause after one of them, doubled
# each time up to eight times this.
_RETRIES, _RECOVER_S = 5, 0.25
_ADVICE = {
    "other load": "close other programs on the device",
    "throttled": "let the device cool down, or lower its power limit",
    "gap": "close other programs, so that the meter can keep up",
    "reset": "do not reload the driver while measuring",
    "limit changed": "set the power limit back, or start anew to measure with this one",
    "too short": "use longer windows",
    "charging": "unplug the charger",
}

RunWindow = Callable[[Step, TrialMeasurements], MeasuredWindow]


@dataclass(frozen=True)
class Measurer(TrialMeasurer):
    """A runtime and a meter of this machine; as a context manager, it opens the meter."""

    runtime: Runtime
    meter: Meter
    limits: MeasureLimits = field(default_factory=MeasureLimits)
    clock: MeasureClock = field(default_factory=MeasureClock)
    idle: IdleChecks = field(default_factory=IdleChecks, compare=False)

    def __post_init__(self) -> None:
        if not self.rounds >= 1:
            raise InputError(f"rounds is {self.rounds}: give a whole number of at least 1")

    def __enter__(self) -> Measurer:
        self.meter.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.meter.close()

    def now(self) -> float:
        return self.clock.now()

    def wall_time(self) -> float:
        return self.clock.wall_time()

    def measure(self, trial: Trial) -> Observation:
        has_pulses = self.meter.is_recorder
        return self._run(trial, self._meter_window, _WARM_S, has_pulses=has_pulses)

    def time(self, trial: Trial) -> Observation:
        return self._run(trial, self._time_window, _PROBE_WARM_S)

    def measure_idle(self) -> Observation:
        measured = TrialMeasurements(IDLE_TRIAL)
        started_s = self.now()
        while not measured.valid_windows():
            measured.windows.append(self._meter_sleep(measured))
            self._check_retries(measured)
        measured.cost_s = self.now() - started_s
        return self._summarise(measured)

    def watch_idle(self, work: Callable[[], R]) -> R:
        """Do work that leaves the device idle, such as reading a net, and check meanwhile."""
        if not self._is_measured or self.now() < self.idle.due_s:
            return work()
        started_s = self.now()
        self.meter.begin()
        try:
            done = work()
            self.clock.sleep(max(0.0, max(self.meter.window_s, CHECK_S) - self.now() + started_s))
        finally:
            reading = self.meter.end()
        # What disturbed it is looked at again before the trial.
        self.idle.check_idle(reading, self.now())
        return done

    def _run(
        self, trial: Trial, run_window: RunWindow, warm_s: float, *, has_pulses: bool = False
    ) -> Observation:
        """Measure windows of a trial until enough of them are valid."""
        measured = TrialMeasurements(trial)
        self._check_idle(measured)
        measured.begun_s = self.now()
        step = self.runtime.prepare(trial)
        try:
            measured.step_times_s.append(self._warm_up(step, measured, warm_s))
            # A graph is issued at once, whatever it contains: it tells nothing about the host.
            if trial.mode != "graph":
                measured.issues_s.extend(self._time_issue(step, measured.step_times_s[-1]))
            if has_pulses:
                self._run_pulses(step, measured, "before")
            measured.windows.append(run_window(step, measured))
            while self._needs_windows(measured):
                self._pause(step, measured)
                measured.windows.append(run_window(step, measured))
            if has_pulses:
                self._run_pulses(step, measured, "after")
            measured.peak_bytes = step.peak_memory_bytes()
        finally:
            step.close()
        measured.cost_s = self.now() - measured.begun_s
        return self._summarise(measured)

    def _needs_windows(self, measured: TrialMeasurements) -> bool:
        self._check_retries(measured)
        valid = len(measured.valid_windows())
        if valid < self.rounds:
            return True
        is_late = self.now() - measured.begun_s > _CONFIRM_S
        most = self.rounds + _CONFIRMATIONS
        return valid < most and not is_late and not measured.is_confirmed()

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
        """Let a disturbance pass, or what made a window slow, then warm up again."""
        pause_s = 0.0
        if measured.find_faults(measured.windows[-1]):
            pause_s = self._find_recovery_s(measured)
        elif not measured.is_confirmed():
            extra = max(0, len(measured.valid_windows()) - self.rounds)
            pause_s = _RECOVER_S * 2 ** min(extra, 3)
        if pause_s:
            self.clock.sleep(pause_s)
            self._check_idle(measured)
            enough = _count_steps(_WARM_S, measured.step_times_s[-1])
            count = self.limits.warmup_steps or enough
            self._time_steps(step, count)
            measured.warmup_steps += count

    def _find_recovery_s(self, measured: TrialMeasurements) -> float:
        """Return how long to wait after a rejected window: longer each time."""
        doublings = min(measured.count_rejected() - 1, 3)
        return _RECOVER_S * (1 << doublings)

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
            agree = len(last_s) == 3 and max(last_s) <= min(last_s) * (1 + _SETTLE_SHARE)
            if spent_s >= _SETTLE_S or (agree and spent_s >= warm_s):
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
        for _ in range(max(1, min(_ISSUES, int(_WARM_S / step_s)))):
            started_s = self.now()
            step.run(1)
            yield self.now() - started_s
            step.wait()

    def _meter_window(self, step: Step, measured: TrialMeasurements) -> MeasuredWindow:
        least = self.limits.window_steps
        window_s = self.meter.window_s if least else max(self.meter.window_s, _WINDOW_S)
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
        window_s = _HOST_S if is_host else _PROBE_S
        count = _count_steps(window_s, measured.step_times_s[-1])
        return MeasuredWindow(None, self._time_steps(step, count) / count, steps=count)

    def _check_idle(self, measured: TrialMeasurements) -> None:
        """Read the idle device, if it is time to, until nothing else runs on it."""
        if not self._is_measured or self.now() < self.idle.due_s:
            return
        rejected = TrialMeasurements(measured.trial)
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

    def _check_retries(self, measured: TrialMeasurements) -> None:
        rejected = measured.count_rejected()
        if rejected <= _RETRIES:
            return
        faults = [fault for window in measured.windows for fault in measured.find_faults(window)]
        names = Counter(map(name_fault, faults)).most_common()
        self.disturbances.update(dict(names))
        counts = ", ".join(f"{name} ({count} times)" for name, count in names)
        advice = _ADVICE.get(names[0][0], "check the meter with `joulecast detect`")
        raise ContaminatedError(
            f"{measured.trial.network.name or 'the trial'} could not be measured on "
            f"{self.runtime.device.name}: {rejected} of {len(measured.windows)} windows were "
            f'rejected because of {counts}, last "{faults[-1]}"; {advice} and try again'
        )

    def _count_faults(self, measured: TrialMeasurements) -> None:
        for window in measured.windows:
            self.disturbances.update(map(name_fault, measured.find_faults(window)))

    def _summarise(self, measured: TrialMeasurements) -> Observation:
        windows, steps = measured.valid_windows(), measured.trial.execution.steps
        self._count_faults(measured)
        if slow := measured.count_slow():
            self.disturbances["other load"] += slow
        energies_j = [one.energy_j * steps for one in windows if one.energy_j is not None]
        unchecked: tuple[str, ...] = ()
        if energies_j and self._is_measured:
            unchecked = (*measured.list_unchecked(), *(() if self.idle.power_w else (IDLE_POWER,)))
        return self.make_observation(
            measured.trial,
            **summarise_values("energy", "j", energies_j),
            **summarise_values("duration", "s", [s * steps for s in measured.list_durations_s()]),
            **summarise_values("issue", "s", [issue_s * steps for issue_s in measured.issues_s]),
            count=len(windows),
            peak_memory_bytes=measured.peak_bytes or None,
            cost_s=measured.cost_s,
            unchecked=unchecked,
            windows=tuple(one.load for one in windows if one.load is not None),
            pulses=tuple(measured.pulses),
            warmup_steps=measured.warmup_steps,
            measured_steps=sum(one.steps for one in windows),
        )


def _count_steps(window_s: float, step_s: float) -> int:
    return max(1, math.ceil(window_s / step_s))
