"""Measure the energy of blocks of your own program.

    with joulecast.monitor() as monitor:        one window: the block
        for epoch in range(3):
            monitor.start("epoch")              windows by name, nested as you like
            train(...)
            print(monitor.stop("epoch").energy_j)
    print(monitor.result.energy_j)

    @joulecast.monitor()                        one window per call
    def evaluate(...): ...

A GPU works while Python already runs on, so a window begins and ends when the GPU has finished what
it was given before. Every open window has a meter of its own: windows may be nested, overlap, or be
opened by several threads, and each sees all energy of the device, other programs included.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from joulecast.agent.addresses import is_remote
from joulecast.features.arguments import convert_on
from joulecast.features.measure import scale_energy
from joulecast.measurer.local_devices import find_meter
from joulecast.meters import Meter, Reading
from joulecast.records import compute_power
from joulecast.records.codec import Record, omit_default
from joulecast.runtimes import find_hardware, is_simulated
from joulecast.system.errors import InputError, JoulecastError, MeasurementError

if TYPE_CHECKING:
    from joulecast.features.arguments import DeviceLike

F = TypeVar("F", bound=Callable[..., Any])
KEPT_WINDOWS = 10_000
"""How many of the latest windows a monitor keeps."""
BLOCK = "block"
"""Name of the window of a ``with`` statement."""


def monitor(on: DeviceLike | None = None, meter: str = "auto") -> EnergyMonitor:
    """Return a monitor of the energy of your own program: context manager, decorator, or windows.

    Args:
        on: The device that does the work: ``cpu``, ``cuda:0`` or a ``torch.device``. By default
            PyTorch's current GPU if PyTorch is imported and sees one when the first window starts,
            else the processor.
        meter: Name of a meter, as ``joulecast detect`` lists them; ``nvml+rapl`` adds two up.

    Raises:
        InputError: There is no such meter, or the device is not one of this machine.
    """
    name = None if on is None else convert_on(on)
    if name is not None and (is_remote(name) or is_simulated(name)):
        raise InputError(f"a monitor measures this machine, not {name}: give cpu or cuda:0")
    return EnergyMonitor(name, meter)


@dataclass(frozen=True)
class WindowEnergy(Record):
    """Energy and duration of a window."""

    name: str
    energy_j: float | None  # of the device; None where the meter could not tell
    duration_s: float
    on: str
    meter: str
    covers: str  # what the meter sees (gpu, cpu ...)
    provenance: str  # measured, or modelled where there is no meter
    faults: tuple[str, ...] = omit_default(())  # energy that is given is valid all the same
    unchecked: tuple[str, ...] = omit_default(())  # what the meter could not check
    error: str = omit_default("")  # name of the exception that ended the window

    @property
    def power_w(self) -> float | None:
        return compute_power(self.energy_j, self.duration_s)


@dataclass(frozen=True)
class OpenWindow:
    """A window that has started, and the meter that measures it."""

    name: str
    meter: Meter
    started_s: float
    fault: str = ""  # why the meter does not measure it


class EnergyMonitor:
    """Measures windows of this program on one device. Use it as context manager or decorator."""

    def __init__(self, on: str | None, meter: str) -> None:
        self._on, self._meter_name = on, meter
        self._lock = threading.Lock()
        # None while a window of that name is being opened.
        self._named: dict[str, OpenWindow | None] = {}
        # The window of each `with` statement, and the windows that were open before it.
        self._blocks: list[tuple[OpenWindow, list[OpenWindow]]] = []
        self._idle: list[Meter] = []
        # A meter that has worked; it describes windows that no meter could measure.
        self._proven: Meter | None = None
        self._results: deque[WindowEnergy] = deque(maxlen=KEPT_WINDOWS)
        # Meters may have processes, which must end with the monitor.
        self._opened: list[Meter] = []
        weakref.finalize(self, _close_meters, self._opened)
        if on is not None:
            # A wrong name is reported here, not in the middle of a run.
            find_meter(self._meter_name, self.on)

    # -- windows ---------------------------------------------------------------------------

    def start(self, name: str = BLOCK) -> None:
        """Start a window; others may be open.

        Raises:
            InputError: A window of that name is open.
            JoulecastError: The meter does not work, in the first window; later windows then have
                no energy, and ``faults`` says why.
        """
        with self._lock:
            if name in self._named:
                raise InputError(
                    f"window {name!r} is open: stop it first, or give the new one another name"
                )
            self._named[name] = None
        try:
            self._named[name] = self.open_window(name)
        except BaseException:
            del self._named[name]
            raise

    def stop(self, name: str = BLOCK) -> WindowEnergy:
        """Stop a window and return its energy."""
        with self._lock:
            if window := self._named.get(name):
                del self._named[name]
            names = ", ".join(repr(one) for one, known in self._named.items() if known) or "none"
        if window is None:
            raise InputError(f"window {name!r} is not open (open: {names}): start it first")
        return self.close_window(window)

    @contextlib.contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Measure the block of a ``with`` statement as a window, also if it raises."""
        window, failure = self.open_window(name), ""
        try:
            yield
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            self.close_window(window, failure)

    @property
    def results(self) -> tuple[WindowEnergy, ...]:
        """The windows that have ended, the latest last; at most ``KEPT_WINDOWS``."""
        return tuple(self._results)

    @property
    def result(self) -> WindowEnergy:
        """The window that ended last."""
        if not self._results:
            raise InputError("no window has ended yet: ask after the block, or after stop()")
        return self._results[-1]

    @property
    def on(self) -> str:
        if self._on is None:
            self._on = find_busy_device()
        return self._on

    def close(self) -> None:
        """Close all meters; windows that are open end here, and their energy is kept."""
        self._close_named()
        self._drop_meters(self._idle)

    # -- context manager and decorator -----------------------------------------------------

    def __enter__(self) -> EnergyMonitor:
        with self._lock:
            before = [window for window in self._named.values() if window is not None]
        self._blocks.append((self.open_window(BLOCK), before))
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        error = kind.__name__ if kind is not None else ""
        block, before = self._blocks.pop()
        self._close_named(error, keep=before)
        self.close_window(block, error)
        if not self._blocks:
            self._drop_meters(self._idle)

    def __call__(self, function: F) -> F:
        """Return a function whose every call is a window with the function's name."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InputError(
                f"{function.__qualname__} is a generator, which works after it was called: put "
                "`with monitor.window(name):` around the loop that uses it"
            )

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.window(function.__qualname__):
                return function(*args, **kwargs)

        async def call_later(*args: Any, **kwargs: Any) -> Any:
            with self.window(function.__qualname__):
                return await function(*args, **kwargs)

        is_later = inspect.iscoroutinefunction(function)
        return cast(F, functools.wraps(function)(call_later if is_later else call))

    # -- meters ----------------------------------------------------------------------------

    def open_window(self, name: str) -> OpenWindow:
        """Start a window that is not known by its name; ``close_window`` ends it."""
        try:
            meter = self._take_meter()
            try:
                wait_for_device(self.on)
                meter.begin()
            except BaseException:
                self._drop_meters([meter])
                raise
        except (JoulecastError, OSError, RuntimeError) as failure:
            if self._proven is None:
                raise
            # The program has run for a while: it is worth more than the energy of a window.
            fault = " ".join(str(failure).split()) or type(failure).__name__
            return OpenWindow(name, self._proven, time.monotonic(), fault)
        self._proven = meter
        return OpenWindow(name, meter, time.monotonic())

    def close_window(self, window: OpenWindow, error: str = "") -> WindowEnergy:
        """End a window and return its energy; ``error`` names the exception that ended it."""
        meter = window.meter
        try:
            wait_for_device(self.on)
        except RuntimeError as failure:
            # After an exception in a kernel every call fails: the first one is what matters.
            error = error or type(failure).__name__
        # Taken before the meter ends, because a meter may wait for its last reading.
        duration_s = max(time.monotonic() - window.started_s, 1e-9)
        reading = self._end_meter(window)
        found = WindowEnergy(
            window.name,
            scale_energy(reading, duration_s),
            duration_s,
            self.on,
            meter.name,
            meter.covers,
            meter.provenance,
            reading.faults,
            reading.unchecked if meter.provenance == "measured" else (),
            error,
        )
        self._results.append(found)
        return found

    def _close_named(self, error: str = "", keep: Sequence[OpenWindow] = ()) -> None:
        kept = {id(window) for window in keep}
        with self._lock:
            windows = [one for one in self._named.values() if one and id(one) not in kept]
            for window in windows:
                del self._named[window.name]
        for window in windows:
            self.close_window(window, error)

    def _end_meter(self, window: OpenWindow) -> Reading:
        if window.fault:
            return Reading(0.0, 0.0, (window.fault,))
        try:
            reading = window.meter.end()
        except (JoulecastError, OSError) as failure:
            self._drop_meters([window.meter])
            return Reading(0.0, 0.0, (str(failure),))
        with self._lock:
            self._idle.append(window.meter)
        return reading

    def _take_meter(self) -> Meter:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        meter = find_meter(self._meter_name, self.on)
        try:
            meter.open()
        except JoulecastError as error:
            if not self._opened:
                raise
            raise MeasurementError(
                f"meter {meter.name} cannot measure a second window at the same time ({error}): "
                "stop the first one before"
            ) from error
        with self._lock:
            self._opened.append(meter)
        return meter

    def _drop_meters(self, meters: list[Meter]) -> None:
        """Close meters that no window uses; another thread may still use others."""
        with self._lock:
            dropped = meters.copy()
            meters.clear()
            for meter in dropped:
                if meter in self._opened:
                    self._opened.remove(meter)
        _close_meters(dropped)


def find_busy_device() -> str:
    """Return PyTorch's current GPU if PyTorch is imported and sees one, else the processor."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}"


def wait_for_device(on: str) -> None:
    """Wait until a GPU has finished its work; a processor has finished when Python goes on."""
    hardware, torch = find_hardware(on) or on, sys.modules.get("torch")
    if torch is not None and hardware.startswith("cuda") and torch.cuda.is_initialized():
        torch.cuda.synchronize(torch.device(hardware))


def _close_meters(meters: list[Meter]) -> None:
    while meters:
        with contextlib.suppress(JoulecastError, OSError):
            meters.pop().close()
