"""Windows of ``joulecast.monitor``: what they measure, nest, survive and refuse."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import joulecast
from joulecast.features.monitor import EnergyMonitor, find_busy_device
from joulecast.meters.modelled import ModelledMeter
from joulecast.system.errors import InputError, MeterLostError
from training_examples import use_virtual_clock


@pytest.fixture
def clock():
    with use_virtual_clock() as clock:
        yield clock


@pytest.fixture
def monitor(clock):
    """A monitor of one busy core of 10 W."""
    return joulecast.monitor(on="cpu")


def test_a_block_has_energy_duration_power_and_provenance(monitor, clock):
    with monitor as inside:
        assert inside is monitor
        clock.sleep(2.0)
    found = monitor.result
    assert (found.energy_j, found.duration_s, found.power_w) == pytest.approx((20.0, 2.0, 10.0))
    assert (found.provenance, found.on, found.meter) == ("modelled", "cpu", "modelled")
    assert found.covers == "cpu at 10 W a core"
    assert found.to_dict()["energy_j"] == found.energy_j


def test_windows_nest_and_overlap_by_name(monitor, clock):
    monitor.start("run")
    clock.sleep(1.0)
    monitor.start("epoch")
    clock.sleep(1.0)
    run = monitor.stop("run")
    clock.sleep(2.0)
    epoch = monitor.stop("epoch")
    assert (run.energy_j, epoch.energy_j) == pytest.approx((20.0, 30.0))
    assert [one.name for one in monitor.results] == ["run", "epoch"]


def test_a_block_ends_the_windows_that_it_started_and_no_others(monitor, clock):
    monitor.start("run")
    with monitor:
        monitor.start("epoch")
        with monitor:
            monitor.start("step")
        assert [one.name for one in monitor.results] == ["step", "block"]
    assert [one.name for one in monitor.results[2:]] == ["epoch", "block"]
    clock.sleep(1.0)
    assert monitor.stop("run").energy_j == pytest.approx(10.0)
    monitor.start("epoch")
    monitor.close()
    assert monitor.result.name == "epoch"
    # It can be used again.
    with monitor:
        clock.sleep(1.0)
    assert monitor.result.energy_j == pytest.approx(10.0)


def test_an_exception_passes_and_its_windows_are_kept_and_marked(monitor, clock):
    with pytest.raises(ZeroDivisionError), monitor:
        monitor.start("epoch")
        clock.sleep(1.0)
        1 / 0  # noqa: B018
    names = [(one.name, one.error) for one in monitor.results]
    assert names == [("epoch", "ZeroDivisionError"), ("block", "ZeroDivisionError")]
    assert all(one.energy_j == pytest.approx(10.0) for one in monitor.results)


def test_a_decorated_function_is_measured_at_every_call(monitor, clock):
    @monitor
    def factorial(n: int) -> int:
        clock.sleep(1.0)
        return n * factorial(n - 1) if n > 1 else 1

    @monitor
    async def wait() -> int:
        await asyncio.sleep(0)
        clock.sleep(1.0)
        raise KeyError("x")

    assert factorial(2) == 2
    inner, outer = monitor.results
    assert inner.name == outer.name == factorial.__qualname__
    assert (inner.energy_j, outer.energy_j) == pytest.approx((10.0, 20.0))
    with pytest.raises(KeyError):
        asyncio.run(wait())
    assert (monitor.result.error, monitor.result.duration_s) == ("KeyError", pytest.approx(1.0))


def test_threads_have_windows_of_their_own(monitor):
    def run(number: int) -> None:
        monitor.start(f"thread {number}")
        monitor.stop(f"thread {number}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))
    assert {one.name for one in monitor.results} == {f"thread {n}" for n in range(8)}


def test_two_threads_cannot_start_windows_of_the_same_name(monkeypatch):
    both_open = threading.Barrier(2)

    class SlowMeter(ModelledMeter):
        def _connect(self):
            with contextlib.suppress(threading.BrokenBarrierError):
                both_open.wait(0.2)

    monkeypatch.setattr("joulecast.features.monitor.find_meter", lambda name, on: SlowMeter())
    monitor = EnergyMonitor("cpu", "auto")
    with ThreadPoolExecutor(2) as pool:
        errors = [one.exception() for one in [pool.submit(monitor.start, "epoch") for _ in "ab"]]
    (refused,) = filter(None, errors)
    assert isinstance(refused, InputError) and "'epoch' is open" in str(refused)
    assert monitor.stop("epoch").name == "epoch"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda one: one.stop("epoch"), r"'epoch' is not open \(open: none\): start it first"),
        (lambda one: [one.start("epoch") for _ in "ab"], "'epoch' is open: stop it first"),
        (lambda one: one.result, "ask after the block"),
        (lambda one: one(lambda: (yield)), "is a generator, which works after it was called"),
        (lambda one: joulecast.monitor(on="simulated:7"), "measures this machine"),
        (lambda one: joulecast.monitor(on="http://board:8377"), "measures this machine"),
    ],
)
def test_what_cannot_be_measured_is_refused(monitor, act, words):
    with pytest.raises(InputError, match=words):
        act(monitor)


def test_a_wrong_meter_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="there is no meter 'nvlm'"):
        joulecast.monitor(on="cpu", meter="nvlm")


class UnpluggedMeter(ModelledMeter):
    """A meter that can fail at any call, as when it is unplugged; it counts open ones."""

    fails_in = ""
    open_count = made = 0

    def __init__(self):
        super().__init__()
        UnpluggedMeter.made += 1

    def _connect(self):
        self._fail("open")
        UnpluggedMeter.open_count += 1

    def _release(self):
        UnpluggedMeter.open_count -= 1

    def _start(self):
        self._fail("begin")
        super()._start()

    def _stop(self):
        self._fail("end")
        return super()._stop()

    def _fail(self, call):
        if self.fails_in == call:
            raise MeterLostError("the meter is gone: plug it in")


@pytest.fixture
def unplugged(monkeypatch):
    monkeypatch.setattr("joulecast.features.monitor.find_meter", lambda name, on: UnpluggedMeter())
    for name, value in (("open_count", 0), ("made", 0), ("fails_in", "")):
        monkeypatch.setattr(UnpluggedMeter, name, value)
    return EnergyMonitor(None, "auto")


@pytest.mark.parametrize("call", ["open", "begin", "end"])
def test_a_meter_that_fails_later_makes_energy_unknown_but_does_not_stop_the_program(
    unplugged, call
):
    with unplugged:
        UnpluggedMeter.fails_in = call
        unplugged.start("epoch")
        lost = unplugged.stop("epoch")
        UnpluggedMeter.fails_in = ""
        unplugged.start("epoch")
        assert unplugged.stop("epoch").energy_j is not None
    assert lost.energy_j is None and lost.power_w is None and lost.duration_s > 0
    assert "the meter is gone: plug it in" in lost.faults[0]
    assert lost.meter == "modelled" and lost.covers.startswith("cpu")
    assert unplugged.result.energy_j is not None
    assert UnpluggedMeter.open_count == 0


@pytest.mark.parametrize("call", ["open", "begin"])
def test_a_meter_that_does_not_work_is_refused_at_the_first_window_and_closed(unplugged, call):
    UnpluggedMeter.fails_in = call
    for _ in range(2):
        with pytest.raises(MeterLostError, match="plug it in"):
            unplugged.start("epoch")
    assert UnpluggedMeter.open_count == 0
    UnpluggedMeter.fails_in = ""
    unplugged.start("epoch")
    assert unplugged.stop("epoch").name == "epoch"


def test_windows_share_a_meter_that_is_opened_once(unplugged):
    """Opening a meter may start a process: a window in a loop has to cost next to nothing."""
    unplugged.start("outer")
    for _ in range(20):
        unplugged.start("step")
        unplugged.stop("step")
    unplugged.stop("outer")
    assert (UnpluggedMeter.made, UnpluggedMeter.open_count) == (2, 2)
    unplugged.close()
    assert UnpluggedMeter.open_count == 0


def test_windows_begin_and_end_when_the_gpu_has_finished(monkeypatch):
    torch, events = pytest.importorskip("torch"), []

    class Gpu:
        """A GPU of PyTorch that is not there."""

        is_available = is_initialized = staticmethod(lambda: True)
        current_device = staticmethod(lambda: 1)
        synchronize = staticmethod(lambda device: events.append(f"wait for {device}"))

    class Meter(ModelledMeter):
        def _start(self):
            events.append("begin")
            super()._start()

        def _stop(self):
            events.append("end")
            return super()._stop()

    monkeypatch.setattr(torch, "cuda", Gpu)
    monkeypatch.setattr("joulecast.features.monitor.find_meter", lambda name, on: Meter())
    assert find_busy_device() == "cuda:1"
    with joulecast.monitor() as monitor:
        pass
    assert events == ["wait for cuda:1", "begin", "wait for cuda:1", "end"]
    assert monitor.result.on == "cuda:1"
