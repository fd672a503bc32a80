"""The rig: a Trial goes in, an Observation comes out.

    prepare ─ warm-up ─────────── issue ────── round 1 ─ pause ─ round 2 ─ … ─ round n ─ close
              chunks of steps     one step     ├─ window ─┤
              until the last      at a time,   begin  run · wait  end      a faulty or outlying
              three agree         not waited   meter ▔▔▔▔▔▔▔▔▔▔▔▔ meter    window is taken again

    host      ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁     ▔▁ ▔▁ ▔▁     ▔▔▔▔▔▔▁▁▁▁
    device    ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔     ▔▔ ▔▔ ▔▔     ▔▔▔▔▔▔▔▔▔▔

A window holds as many steps as the meter needs to see well. Its joules per step are the power that
the meter saw times the seconds per step, so that a meter may look at a part of the window only.
Median and standard deviation over the rounds go into the Observation.

A window is not trusted when the meter names a fault, when it saw no energy, or when its steps took
far longer or shorter than in the others, which is how other load shows. It is then taken again
after a while; beyond a limit the rig gives up and says what it saw. The tolerance is wide on
purpose: steps on a shared processor easily differ by 20 % from round to round, the median bears one
bad round in three, and an honest spread is worth more than a refusal.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, stdev
from typing import Any

from joulecast.errors import ContaminatedError, InputError
from joulecast.meters.base import Meter, Reading
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.runtimes.base import Runtime, Step

_MOST_CHUNKS = 200
_ADVICE = {
    "other load": "close other programs on the device",
    "throttled": "let the device cool down, or lower its power limit",
    "gap": "close other programs, so that the meter can keep up",
    "reset": "leave the driver alone while measuring",
    "stuck": "look whether the meter works with `joulecast detect`",
    "negative": "look whether the meter works with `joulecast detect`",
    "too short": "ask for longer windows",
}


@dataclass(frozen=True)
class MeasureLimits:
    """How patient a rig is.

    Attributes:
        window_s: Shortest window, whatever the meter asks for; ``probe_s`` that of a time probe,
            ``host_s`` that of one which shows the host, whose time moves from step to step.
        warm_s: Warm-up lasts at least this long, that of a time probe ``probe_warm_s``, and at most
            ``settle_s`` if times never agree.
        settle_share: Chunks of steps that differ by less than this share agree.
        issues: How often the time to issue one step is taken.
        outlier_share: A window whose steps take 1 + this times as long as the median of all, or as
            much less, is not trusted.
        retries: Untrusted windows of one trial before the rig gives up.
        recover_s: Pause before a window is taken again, doubled each time up to eight times this.
    """

    window_s: float = 0.1
    probe_s: float = 0.05
    host_s: float = 0.25
    warm_s: float = 0.2
    probe_warm_s: float = 0.08
    settle_s: float = 1.0
    settle_share: float = 0.1
    issues: int = 9
    outlier_share: float = 1.0
    retries: int = 5
    recover_s: float = 0.25


@dataclass(frozen=True)
class MeasuredWindow:
    """Joules and seconds per step, and why they cannot be trusted."""

    energy_j: float | None
    duration_s: float
    faults: tuple[str, ...] = ()


@dataclass
class _Log:
    """What has been seen of one trial so far."""

    trial: Trial
    limits: MeasureLimits
    windows: list[MeasuredWindow] = field(default_factory=list)
    paces_s: list[float] = field(default_factory=list)
    issues_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    cost_s: float = 0.0

    def trusted(self) -> list[MeasuredWindow]:
        """Windows without a fault whose step time is near the median, warm-ups included."""
        return [window for window in self.windows if not self.doubts(window)]

    def doubts(self, window: MeasuredWindow) -> tuple[str, ...]:
        """Why a window is not trusted."""
        if window.faults:
            return window.faults
        clean_s = [w.duration_s for w in self.windows if not w.faults]
        usual_s = median(clean_s + self.paces_s)
        factor = window.duration_s / usual_s
        if max(factor, 1 / factor) <= 1 + self.limits.outlier_share:
            return ()
        return (f"other load: a step took {factor:.1f} times as long as usual",)

    def stretch(self) -> int:
        """By how much windows must grow because the meter found them too short."""
        return 1 << sum(_has(window.faults, "too short") for window in self.windows)

    def rejected(self) -> int:
        return len(self.windows) - len(self.trusted())


def _has(faults: Sequence[str], name: str) -> bool:
    return any(fault.split(":")[0] == name for fault in faults)


@dataclass(frozen=True)
class Measurer:
    """A runtime and a meter, ready to measure. Use it as a context manager: it opens the meter."""

    runtime: Runtime
    meter: Meter
    rounds: int
    pause_s: float
    run: str
    limits: MeasureLimits
    now: Callable[[], float]
    sleep: Callable[[float], None]
    wall_clock: Callable[[], float]

    def __enter__(self) -> Measurer:
        self.meter.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.meter.close()

    def measure(self, trial: Trial) -> Observation:
        """Energy, time, host time and memory of a trial.

        Raises:
            ContaminatedError: Something disturbed the device again and again.
            MeasurementError: The runtime refuses the trial, or it does not fit on the device.
        """
        return self._repeat(trial, self._meter_window, self.limits.warm_s)

    def time(self, trial: Trial) -> Observation:
        """Time and host time of a trial, without energy: a probe that is over quickly."""
        return self._repeat(trial, self._time_window, self.limits.probe_warm_s)

    def idle(self) -> Observation:
        """Power of the waiting device: the observation of the empty network over one second."""
        log = _Log(Trial(Network(), Setup()), self.limits)
        started_s = self.now()
        while not log.trusted():
            log.windows.append(self._meter_sleep(log))
            self._check_patience(log)
        log.cost_s = self.now() - started_s
        return self._observe(log)

    def measure_all(
        self,
        trials: Sequence[Trial],
        on_done: Callable[[int, Observation], None] | None = None,
        rng: random.Random | None = None,
    ) -> list[Observation]:
        """Observations of many trials, each one's rounds spread over the whole time.

        Every round goes through the trials in a new order and prepares each anew, so that a slow
        drift of the device falls on all of them alike and none shares the memory of another.

        Args:
            trials: What to measure.
            on_done: Is told the place and the observation of every trial that is complete.
            rng: Shuffles the order.
        """
        rng = rng or random.Random(0)
        logs = [_Log(trial, self.limits) for trial in trials]
        done: list[Observation | None] = [None] * len(logs)
        while True:
            places = [place for place, seen in enumerate(done) if seen is None]
            if not places:
                return [seen for seen in done if seen is not None]
            rng.shuffle(places)
            for place in places:
                done[place] = self._visit(logs[place])
                seen = done[place]
                if seen is not None and on_done is not None:
                    on_done(place, seen)

    def _visit(self, log: _Log) -> Observation | None:
        """One more round of a trial; its observation once there are enough."""
        with self._running(log, self.limits.warm_s) as step:
            log.windows.append(self._meter_window(step, log))
        return None if self._lacks_windows(log) else self._observe(log)

    @contextmanager
    def _running(self, log: _Log, warm_s: float) -> Iterator[Step]:
        """A warm step that is closed whatever happens; what it cost is noted."""
        started_s = self.now()
        step = self.runtime.prepare(log.trial)
        try:
            log.paces_s.append(self._warm_up(step, warm_s))
            # A graph is issued at once, whatever it holds: nothing is learnt of the host.
            if log.trial.execution.mode != "graph":
                log.issues_s.extend(self._time_issue(step, log.paces_s[-1]))
            yield step
            log.peak_bytes = max(log.peak_bytes, step.peak_memory_bytes())
        finally:
            step.close()
            log.cost_s += self.now() - started_s

    def _repeat(
        self, trial: Trial, take: Callable[[Step, _Log], MeasuredWindow], warm_s: float
    ) -> Observation:
        """Take windows of a trial until enough of them can be trusted."""
        log = _Log(trial, self.limits)
        with self._running(log, warm_s) as step:
            log.windows.append(take(step, log))
            while self._lacks_windows(log):
                self._pause(step, log)
                log.windows.append(take(step, log))
        return self._observe(log)

    def _pause(self, step: Step, log: _Log) -> None:
        """Spread rounds over time, or let a disturbance pass; then warm up, as clocks fell."""
        pause_s = self.pause_s
        if log.doubts(log.windows[-1]):
            pause_s = max(pause_s, self.limits.recover_s * 2 ** min(log.rejected() - 1, 3))
        if pause_s:
            self.sleep(pause_s)
            self._time_steps(step, _fill(self.limits.warm_s, log.paces_s[-1]))

    def _warm_up(self, step: Step, warm_s: float) -> float:
        """Run steps until their time settles; says the seconds of one."""
        started_s, count = self.now(), 1
        paces_s: list[float] = []
        for _ in range(_MOST_CHUNKS):
            took_s = self._time_steps(step, count)
            paces_s.append(took_s / count)
            spent_s, last_s = self.now() - started_s, paces_s[-3:]
            agree = len(last_s) == 3 and max(last_s) <= min(last_s) * (1 + self.limits.settle_share)
            if spent_s >= self.limits.settle_s or (agree and spent_s >= warm_s):
                break
            count = min(_fill(warm_s / 4, paces_s[-1]), 10 * count)
        return median(paces_s[-3:])

    def _time_steps(self, step: Step, count: int) -> float:
        """Seconds of some steps; never 0, whatever the clock resolves."""
        started_s = self.now()
        step.run(count)
        step.wait()
        return max(self.now() - started_s, 1e-9)

    def _time_issue(self, step: Step, pace_s: float) -> Iterator[float]:
        """Host seconds to issue one step to a waiting device; fewer times where steps are slow."""
        for _ in range(max(1, min(self.limits.issues, int(self.limits.warm_s / pace_s)))):
            started_s = self.now()
            step.run(1)
            yield self.now() - started_s
            step.wait()

    def _meter_window(self, step: Step, log: _Log) -> MeasuredWindow:
        window_s = max(self.meter.window_s, self.limits.window_s) * log.stretch()
        count = _fill(window_s, log.paces_s[-1])
        self.meter.begin()
        duration_s = self._time_steps(step, count) / count
        return _judge(self.meter.end(), duration_s)

    def _time_window(self, step: Step, log: _Log) -> MeasuredWindow:
        # Where there are graphs, eager steps are timed for what the host does.
        host = "graph" in self.runtime.modes and log.trial.execution.mode == "eager"
        window_s = self.limits.host_s if host else self.limits.probe_s
        count = _fill(window_s, log.paces_s[-1])
        return MeasuredWindow(None, self._time_steps(step, count) / count)

    def _meter_sleep(self, log: _Log) -> MeasuredWindow:
        self.meter.begin()
        self.sleep(max(self.meter.window_s, 1.0) * log.stretch())
        # A modelled meter counts work only, and there is none.
        return _judge(self.meter.end(), 1.0, may_be_zero=self.meter.provenance == "modelled")

    def _lacks_windows(self, log: _Log) -> bool:
        self._check_patience(log)
        return len(log.trusted()) < self.rounds

    def _check_patience(self, log: _Log) -> None:
        if log.rejected() <= self.limits.retries:
            return
        doubts = [doubt for window in log.windows for doubt in log.doubts(window)]
        seen = Counter(doubt.split(":")[0] for doubt in doubts)
        worst = seen.most_common(1)[0][0]
        counts = ", ".join(f"{name} ({count} times)" for name, count in seen.most_common())
        advice = _ADVICE.get(worst, "look at the device and the meter")
        raise ContaminatedError(
            f"{log.trial.network.name or 'the trial'} could not be measured on "
            f"{self.runtime.device.name}: {log.rejected()} of {len(log.windows)} windows were "
            f'disturbed by {counts}, last "{doubts[-1]}"; {advice} and try again'
        )

    def _observe(self, log: _Log) -> Observation:
        windows, steps = log.trusted(), log.trial.execution.steps
        energies_j = [w.energy_j * steps for w in windows if w.energy_j is not None]
        durations_s = [w.duration_s * steps for w in windows]
        issues_s = [issue_s * steps for issue_s in log.issues_s]
        return Observation(
            log.trial,
            **_sum_up("energy", "j", energies_j),
            **_sum_up("duration", "s", durations_s),
            **_sum_up("issue", "s", issues_s),
            count=len(windows),
            peak_memory_bytes=log.peak_bytes or None,
            run=self.run,
            device=self.runtime.device,
            runtime=self.runtime.name,
            meter=self.meter.name,
            covers=self.meter.covers,
            provenance=self.meter.provenance,
            taken_at_s=self.wall_clock(),
            cost_s=log.cost_s,
        )


def make_measurer(
    runtime: Runtime,
    meter: Meter,
    *,
    rounds: int = 3,
    pause_s: float = 0.0,
    run: str = "",
    limits: MeasureLimits | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    wall_clock: Callable[[], float] = time.time,
) -> Measurer:
    """Put a runtime and a meter together.

    Args:
        runtime: What builds and runs trials.
        meter: What reads joules; the rig opens and closes it when used with ``with``.
        rounds: Windows of each trial that must be trusted.
        pause_s: Pause between two rounds of ``measure``, to spread them over time.
        run: Which run of Joulecast this is.
        limits: How patient to be.
        now: The clock of windows.
        sleep: Waits on that clock.
        wall_clock: Seconds since 1970.
    """
    if rounds < 1:
        raise InputError(f"rounds is {rounds}: give a whole number of at least 1")
    return Measurer(
        runtime, meter, rounds, pause_s, run, limits or MeasureLimits(), now, sleep, wall_clock
    )


def _fill(window_s: float, pace_s: float) -> int:
    """Steps that fill a window."""
    return max(1, math.ceil(window_s / pace_s))


def _judge(reading: Reading, duration_s: float, may_be_zero: bool = False) -> MeasuredWindow:
    """Joules per step from the power that was read, and faults that the meter itself missed."""
    faults = reading.faults
    if not faults and reading.duration_s <= 0:
        faults = ("too short: the meter saw no time pass",)
    if not faults and reading.energy_j < 0:
        faults = (f"negative: {reading.energy_j:.3g} J in {reading.duration_s:.3g} s",)
    if not faults and reading.energy_j == 0 and not may_be_zero:
        faults = (f"stuck: no energy in {reading.duration_s:.3g} s",)
    if faults:
        return MeasuredWindow(None, duration_s, faults)
    return MeasuredWindow(reading.energy_j / reading.duration_s * duration_s, duration_s)


def _sum_up(what: str, unit: str, values: list[float]) -> dict[str, Any]:
    """Median and standard deviation as an Observation names them; nothing for no values."""
    if not values:
        return {}
    spread = stdev(values) if len(values) > 1 else None
    return {f"{what}_{unit}": median(values), f"{what}_sd_{unit}": spread}
