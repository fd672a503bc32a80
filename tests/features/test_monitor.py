"""Windows of ``joulecast.monitor``: what they measure, nest, survive and refuse."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import pytest

import joulecast
from joulecast.features.monitor import EnergyMonitor, find_busy_device
from joulecast.meters.modelled import ModelledMeter
from joulecast.system.errors import InputError, MeterLostError


def work(seconds: float) -> None:
    """Keep a core busy."""
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


@pytest.fixture
def monitor():
    return joulecast.monitor(on="cpu", meter="modelled:10W")


def test_a_block_has_energy_duration_power_and_provenance(monitor):
    with monitor as inside:
        assert inside is monitor
        work(0.05)
    found = monitor.result
    assert found.energy_j == pytest.approx(10 * 0.05, rel=0.3)
    assert found.duration_s >= 0.04
    assert found.power_w == pytest.approx(found.energy_j / found.duration_s)
    assert (found.provenance, found.on, found.meter) == ("modelled", "cpu", "modelled:10W")
    assert found.covers == "cpu at 10 W a core"
    assert found.to_dict()["energy_j"] == found.energy_j


def test_windows_nest_and_overlap_by_name(monitor):
    monitor.start("run")
    work(0.03)
    monitor.start("epoch")
    work(0.03)
    run = monitor.stop("run")
    work(0.03)
    epoch = monitor.stop("epoch")
    assert run.energy_j == pytest.approx(0.6, rel=0.3)
    assert epoch.energy_j == pytest.approx(0.6, rel=0.3)
    assert [one.name for one in monitor.results] == ["run", "epoch"]


def test_names_are_checked(monitor):
    with pytest.raises(InputError, match=r"'epoch' is not open \(open: none\): start it first"):
        monitor.stop("epoch")
    monitor.start("epoch")
    with pytest.raises(InputError, match="'epoch' is open: stop it first"):
        monitor.start("epoch")
    assert monitor.stop("epoch").name == "epoch"


def test_asking_before_anything_has_ended_says_when_to_ask(monitor):
    with pytest.raises(InputError, match="ask after the block"):
        _ = monitor.result


def test_an_exception_passes_and_its_windows_are_kept_and_marked(monitor):
    with pytest.raises(ZeroDivisionError), monitor:
        monitor.start("epoch")
        work(0.02)
        1 / 0  # noqa: B018
    assert [(one.name, one.error) for one in monitor.results] == [
        ("epoch", "ZeroDivisionError"),
        ("block", "ZeroDivisionError"),
    ]
    assert all(one.energy_j > 0 for one in monitor.results)


def test_a_decorated_function_is_measured_at_every_call(monitor):
    @monitor
    def factorial(n: int) -> int:
        work(0.01)
        return n * factorial(n - 1) if n > 1 else 1

    assert factorial(2) == 2
    inner, outer = monitor.results
    assert inner.name == outer.name == factorial.__qualname__
    assert outer.energy_j > 1.5 * inner.energy_j


def test_a_decorated_function_that_raises_is_marked(monitor):
    @monitor
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert monitor.result.error == "KeyError"


def test_a_coroutine_is_measured_until_it_returns(monitor):
    @monitor
    async def wait() -> int:
        await asyncio.sleep(0.03)
        return 7

    assert asyncio.run(wait()) == 7
    assert monitor.result.duration_s >= 0.03


def test_a_generator_is_refused(monitor):
    with pytest.raises(InputError, match="is a generator, which works after it was called"):

        @monitor
        def numbers():
            yield 1


def test_threads_have_windows_of_their_own(monitor):
    def run(name: str) -> None:
        monitor.start(name)
        work(0.02)
        monitor.stop(name)

    threads = [threading.Thread(target=run, args=(f"thread {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name for one in monitor.results} == {f"thread {n}" for n in range(4)}
    assert all(one.energy_j > 0 for one in monitor.results)


def test_closing_ends_open_windows_and_the_monitor_can_be_used_again(monitor):
    monitor.start("epoch")
    monitor.close()
    assert [one.name for one in monitor.results] == ["epoch"]
    with monitor:
        work(0.01)
    assert monitor.result.energy_j > 0


class LostMeter(ModelledMeter):
    def _stop(self):
        raise MeterLostError("the meter is gone: plug it in")


def test_a_meter_that_fails_makes_the_energy_unknown_but_not_the_program(monkeypatch):
    monkeypatch.setattr("joulecast.features.monitor.find_meter", lambda name, on: LostMeter())
    monitor = EnergyMonitor("cpu", "auto")
    with monitor:
        pass
    assert monitor.result.energy_j is None and monitor.result.power_w is None
    assert monitor.result.faults == ("the meter is gone: plug it in",)


class UnpluggedMeter(ModelledMeter):
    """A meter that can fail at any call, as when it is unplugged; it counts open ones."""

    fails_in = ""
    open_count = 0

    def _connect(self):
        self._fail("open")
        UnpluggedMeter.open_count += 1

    def _release(self):
        UnpluggedMeter.open_count -= 1

    def _start(self):
        self._fail("begin")
        super()._start()

    def _fail(self, call):
        if self.fails_in == call:
            raise MeterLostError("the meter is gone: plug it in")


@pytest.fixture
def unplugged(monkeypatch):
    monkeypatch.setattr("joulecast.features.monitor.find_meter", lambda name, on: UnpluggedMeter())
    monkeypatch.setattr(UnpluggedMeter, "open_count", 0)
    monkeypatch.setattr(UnpluggedMeter, "fails_in", "")
    return EnergyMonitor("cpu", "auto")


@pytest.mark.parametrize("call", ["open", "begin"])
def test_a_meter_that_fails_when_a_later_window_starts_does_not_stop_the_program(unplugged, call):
    with unplugged:
        work(0.01)
        UnpluggedMeter.fails_in = call
        unplugged.start("epoch")
        lost = unplugged.stop("epoch")
        UnpluggedMeter.fails_in = ""
        unplugged.start("epoch")
        work(0.01)
        assert unplugged.stop("epoch").energy_j > 0
    assert lost.energy_j is None and lost.duration_s > 0
    assert "the meter is gone: plug it in" in lost.faults[0]
    assert lost.meter == "modelled" and lost.covers.startswith("cpu")
    assert unplugged.result.energy_j > 0
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


def test_a_block_leaves_windows_open_that_it_did_not_start(monitor):
    monitor.start("run")
    with monitor:
        monitor.start("epoch")
        with monitor:
            monitor.start("step")
        assert [one.name for one in monitor.results] == ["step", "block"]
    assert [one.name for one in monitor.results[2:]] == ["epoch", "block"]
    work(0.01)
    assert monitor.stop("run").energy_j > 0


def test_two_threads_cannot_start_windows_of_the_same_name(monkeypatch):
    both_open = threading.Barrier(2)

    class SlowMeter(ModelledMeter):
        def _connect(self):
            with contextlib.suppress(threading.BrokenBarrierError):
                both_open.wait(0.2)

    monkeypatch.setattr("joulecast.features.monitor.find_meter", lambda name, on: SlowMeter())
    monitor, refused = EnergyMonitor("cpu", "auto"), []

    def start() -> None:
        try:
            monitor.start("epoch")
        except InputError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1 and "'epoch' is open" in refused[0]
    assert monitor.stop("epoch").name == "epoch"


@pytest.mark.parametrize("on", ["simulated:7", "http://board:8377"])
def test_only_devices_of_this_machine_are_monitored(on):
    with pytest.raises(InputError, match="measures this machine"):
        joulecast.monitor(on=on)


def test_a_wrong_meter_is_refused_before_anything_runs():
    with pytest.raises(InputError, match="there is no meter 'nvlm'"):
        joulecast.monitor(on="cpu", meter="nvlm")


class Gpu:
    """A GPU of PyTorch that is not there: it records when it was waited for."""

    def __init__(self) -> None:
        self.waits: list[str] = []

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def current_device(self) -> int:
        return 1

    def synchronize(self, device) -> None:
        self.waits.append(str(device))


def test_windows_begin_and_end_when_the_gpu_has_finished(monkeypatch):
    torch = pytest.importorskip("torch")
    gpu = Gpu()
    monkeypatch.setattr(torch, "cuda", gpu)
    events: list[str] = []

    class Meter(ModelledMeter):
        def _start(self):
            events.append(f"begin after {len(gpu.waits)}")
            super()._start()

        def _stop(self):
            events.append(f"end after {len(gpu.waits)}")
            return super()._stop()

    monkeypatch.setattr("joulecast.features.monitor.find_meter", lambda name, on: Meter())
    assert find_busy_device() == "cuda:1"
    monitor = joulecast.monitor()
    with monitor:
        pass
    assert gpu.waits == ["cuda:1", "cuda:1"]
    assert events == ["begin after 1", "end after 2"]
    assert monitor.result.on == "cuda:1"


def test_windows_share_a_meter_that_is_opened_once(unplugged, monkeypatch):
    """Opening a meter may start a process: a window in a loop has to cost next to nothing."""
    made = []
    monkeypatch.setattr(
        "joulecast.features.monitor.find_meter",
        lambda name, on: made.append(UnpluggedMeter()) or made[-1],
    )
    unplugged.start("outer")
    for _ in range(20):
        unplugged.start("step")
        unplugged.stop("step")
    unplugged.stop("outer")
    assert (len(made), UnpluggedMeter.open_count) == (2, 2)
    unplugged.close()
    assert UnpluggedMeter.open_count == 0
