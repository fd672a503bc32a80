"""The measurer on simulated devices: true costs are recovered, disturbances detected."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign_examples import make_noiseless_device
from joulecast.families import draw_family, make_family
from joulecast.measurer import MeasureClock, MeasureLimits, Measurer
from joulecast.measurer.local_devices import find_meter, name_lock, open_local_measurer
from joulecast.meters.base import FAULTS, Meter, Reading
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Execution, Network, Setup, Trial
from joulecast.simulation import DISTURBANCES, make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime, SimulatedStep
from joulecast.system.errors import ContaminatedError, InputError, MeasurementError

CNN = Trial(make_family("cnn5:16,32,64,128"), Setup())
SLOW = Trial(make_family("resnet50", (3, 224, 224)), Setup(batch=1024))


@pytest.fixture(autouse=True)
def no_real_sleep(monkeypatch):
    def refuse(seconds):
        raise AssertionError(f"slept {seconds} s of real time")

    monkeypatch.setattr(time, "sleep", refuse)


def make_simulated_measurer(simulated, meter=None, runtime=None, **options):
    return Measurer(
        runtime or SimulatedRuntime(simulated),
        meter or SimulatedMeter(simulated),
        clock=MeasureClock(simulated.now, simulated.sleep, lambda: 1e9 + simulated.now()),
        **options,
    )


def measure_in(simulated, trial=CNN, **options):
    with make_simulated_measurer(simulated, **options) as measurer:
        return measurer.measure(trial)


class ConstantMeter(Meter):
    """A meter that always returns the same reading."""

    name, covers, window_s = "scripted", "cpu", 0.2

    def __init__(self, energy_j, duration_s=1.0, provenance="measured"):
        self._reading = Reading(energy_j, duration_s)
        self.provenance = provenance

    def begin(self):
        pass

    def end(self):
        return self._reading


# -- one trial ----------------------------------------------------------------------------------


@given(
    st.integers(0, 30),
    st.sampled_from(["cnn5", "har", "lenet5", "lstm"]),
    st.sampled_from(["eager", "graph"]),
    st.randoms(use_true_random=False),
)
def test_measured_cost_is_true_cost_within_noise(seed, family, mode, rng):
    simulated = make_simulated_device(seed)
    trial = Trial(draw_family(family, rng.randint), Setup(batch=32), Execution(mode=mode))
    cost, seen = simulated.true_cost(trial), measure_in(simulated, trial)
    # Host-bound steps have the noise of the host, which is larger.
    rel = 0.12 if cost.issue_s > 0.7 * cost.duration_s else 0.03
    assert seen.energy_j == pytest.approx(cost.energy_j, rel=rel)
    assert seen.duration_s == pytest.approx(cost.duration_s, rel=rel)
    if mode == "eager":
        assert seen.issue_s == pytest.approx(cost.issue_s, rel=0.12)
    else:
        assert seen.issue_s is None
    assert seen.count == 3 and 0 < seen.energy_sd_j < 0.15 * seen.energy_j


@pytest.mark.parametrize(("update_interval_s", "steps"), [(0.0, 1), (0.1, 1), (0.1, 10)])
def test_measured_cost_is_exact_without_noise(update_interval_s, steps):
    simulated, trial = make_noiseless_device(), replace(CNN, execution=Execution(steps=steps))
    cost = simulated.true_cost(CNN)
    seen = measure_in(simulated, trial, meter=SimulatedMeter(simulated, update_interval_s))
    assert seen.energy_j == pytest.approx(steps * cost.energy_j)
    assert seen.duration_s == pytest.approx(steps * cost.duration_s)
    assert seen.issue_s == pytest.approx(steps * cost.issue_s)
    assert seen.energy_sd_j == pytest.approx(0, abs=1e-9)


def test_observation_names_device_runtime_meter_and_run():
    simulated = make_simulated_device(4)
    seen = measure_in(simulated, run="monday")
    assert (seen.trial, seen.run) == (CNN, "monday")
    assert seen.device == SimulatedRuntime(simulated).device
    assert (seen.runtime, seen.meter, seen.covers) == ("simulated", "simulated", "device")
    assert seen.provenance == "simulated" and seen.taken_at_s == 1e9 + simulated.now()
    assert seen.cost_s == pytest.approx(simulated.now())
    assert seen.peak_memory_bytes == SimulatedRuntime(simulated).prepare(CNN).peak_memory_bytes()
    assert seen.warmup_steps > 0 and seen.measured_steps * seen.duration_s < seen.cost_s


def test_one_round_has_no_spread_and_more_rounds_are_counted():
    single, many = (measure_in(make_simulated_device(0), rounds=rounds) for rounds in (1, 7))
    assert (single.count, single.energy_sd_j, single.duration_sd_s) == (1, None, None)
    assert many.count == 7 and many.energy_sd_j > 0


def test_warm_up_lasts_until_steps_settle():
    slow = make_noiseless_device(settle_share=4.0, settle_steps=30.0)
    seen, calm = measure_in(slow), measure_in(make_noiseless_device())
    assert seen.duration_s == pytest.approx(slow.true_cost(CNN).duration_s, rel=0.002)
    assert seen.warmup_steps > 1.5 * calm.warmup_steps


def test_warm_up_and_windows_may_have_fixed_numbers_of_steps():
    limits = MeasureLimits(warmup_steps=3, window_steps=2)
    seen = measure_in(make_noiseless_device(1), SLOW, limits=limits)
    assert (seen.count, seen.warmup_steps, seen.measured_steps) == (3, 3, 6)
    # A meter that updates slowly needs more of short steps.
    short = measure_in(make_noiseless_device(1), limits=limits)
    assert short.warmup_steps == 3 and short.measured_steps * short.duration_s >= 3 * 1.0


def test_steps_that_never_settle_are_still_measured():
    seen = measure_in(make_simulated_device(0, noise=10.0), rounds=9)
    assert seen.duration_sd_s > 0.02 * seen.duration_s


def test_step_longer_than_a_window_runs_once_per_round():
    simulated = make_noiseless_device(1)
    cost, seen = simulated.true_cost(SLOW), measure_in(simulated, SLOW)
    assert cost.duration_s > 5.0 and seen.energy_j == pytest.approx(cost.energy_j)
    assert seen.cost_s < 8 * cost.duration_s


def test_time_probe_has_no_energy_and_is_quick():
    simulated = make_noiseless_device()
    with make_simulated_measurer(simulated) as measurer:
        probe, whole = measurer.time(CNN), measurer.measure(CNN)
        graph = measurer.time(Trial(CNN.network, CNN.setup, Execution(mode="graph")))
    assert probe.energy_j is None and probe.duration_s == pytest.approx(whole.duration_s)
    assert probe.issue_s == pytest.approx(whole.issue_s)
    # Eager steps measure the host, which needs a longer window than the device.
    assert graph.cost_s < 0.5 < probe.cost_s < 0.5 * whole.cost_s
    assert (probe.covers, probe.provenance) == (whole.covers, whole.provenance)


def test_measure_idle_observes_the_empty_network():
    simulated = make_noiseless_device()
    with make_simulated_measurer(simulated) as measurer:
        asleep = measurer.measure_idle()
        measurer.measure(CNN)
        awake = measurer.measure_idle()
    assert awake.trial.network == Network()
    assert (asleep.duration_s, awake.duration_s) == (1.0, 1.0)
    assert asleep.energy_j == pytest.approx(simulated.chip.asleep_w)
    assert awake.energy_j == pytest.approx(simulated.true_cost(awake.trial).energy_j)


# -- disturbances and errors --------------------------------------------------------------------


@pytest.mark.parametrize("what", DISTURBANCES)
def test_passing_disturbance_does_not_change_the_observation(what):
    calm, simulated = make_noiseless_device(), make_noiseless_device()
    simulated.disturb(what, 0.4, start_s=1.7, slowdown=0.3, power_w=5.0)
    seen, undisturbed = measure_in(simulated), measure_in(calm)
    assert seen.energy_j == pytest.approx(undisturbed.energy_j)
    assert seen.duration_s == pytest.approx(undisturbed.duration_s) and seen.count == 3
    assert seen.cost_s > undisturbed.cost_s + 1.0


@pytest.mark.parametrize("what", DISTURBANCES)
def test_lasting_disturbance_is_named_in_the_error(what):
    simulated = make_noiseless_device()
    simulated.disturb(what, 1e6, start_s=0.5, slowdown=0.3)
    with pytest.raises(ContaminatedError) as caught:
        measure_in(simulated)
    message = str(caught.value)
    assert f"cnn5:16,32,64,128 could not be measured on {simulated.name}: 6 of 6 windows" in message
    assert f"rejected because of {what} (6 times)" in message
    assert message.endswith("and try again") and "\n" not in message


def test_unnoticed_load_shows_in_the_step_time():
    simulated = make_noiseless_device()
    simulated.disturb("other load", 3.0, start_s=1.5, slowdown=4.0, power_w=30.0, noticed=False)
    seen = measure_in(simulated)
    assert seen.duration_s == pytest.approx(simulated.true_cost(CNN).duration_s)
    assert seen.energy_sd_j == pytest.approx(0, abs=1e-9) and seen.count == 3


@pytest.mark.parametrize("verb", ["measure", "time"])
def test_one_slow_window_is_measured_again(verb):
    """One round only, so that no other window outvotes the slow one."""
    with make_simulated_measurer(make_noiseless_device(), rounds=1) as measurer:
        right = getattr(measurer, verb)(CNN)
    simulated = make_noiseless_device()
    # It starts after the warm-up and the issues, and ends with the first window.
    begin_s = simulated.now() + right.cost_s - measure_window_s(verb)
    simulated.disturb("other load", 0.6, begin_s, slowdown=3.0, noticed=False)
    with make_simulated_measurer(simulated, rounds=1) as measurer:
        seen = getattr(measurer, verb)(CNN)
    assert seen.duration_s == pytest.approx(right.duration_s, rel=0.01)
    if verb == "measure":
        assert seen.energy_j == pytest.approx(right.energy_j, rel=0.01)
    assert seen.cost_s > right.cost_s
    assert measurer.disturbances["other load"] >= 1


def measure_window_s(verb):
    """Return a little less than the length of a window."""
    return 0.9 if verb == "measure" else 0.9 * 0.25


@pytest.mark.parametrize(("trial", "window_s", "count"), [(CNN, 0.25, 5), (SLOW, 5.0, 1)])
def test_a_load_that_outlasts_all_windows_shows_in_the_spread(trial, window_s, count):
    """No window is added eight seconds after the trial began."""
    with make_simulated_measurer(make_noiseless_device(), rounds=1) as measurer:
        right = measurer.time(trial)
    simulated = make_noiseless_device()
    begin_s = right.cost_s - 0.9 * window_s
    simulated.disturb("other load", 1e3, begin_s, slowdown=1.5, noticed=False)
    with make_simulated_measurer(simulated, rounds=1) as measurer:
        seen = measurer.time(trial)
    assert seen.count == count
    assert seen.duration_sd_s > 0.2 * seen.duration_s


def test_refusal_names_the_device_and_has_no_values():
    simulated = make_noiseless_device()
    measurer = make_simulated_measurer(simulated).change_run("monday", rounds=1)
    refused = measurer.make_refusal(CNN, "it does not fit")
    assert (refused.trial, refused.refusal, refused.run) == (CNN, "it does not fit", "monday")
    assert (refused.device, measurer.rounds) == (SimulatedRuntime(simulated).device, 1)
    assert (refused.energy_j, refused.duration_s, refused.issue_s, refused.count) == (
        None, None, None, 0,
    )  # fmt: skip


def test_changing_load_fails_after_the_retries():
    simulated = make_noiseless_device()
    for place in range(100):
        slowdown = (0.0, 2.0, 8.0)[place % 3]
        simulated.disturb("other load", 4.0, 4.0 * place, slowdown=slowdown, noticed=False)
    with pytest.raises(
        ContaminatedError, match=r"other load .*times as long as usual.*close other"
    ):
        measure_in(simulated, rounds=16)


def test_moderate_load_is_not_refused():
    """Step times that differ by a fifth from round to round are spread, not contamination."""
    simulated = make_noiseless_device()
    rng = random.Random(0)
    for start_s in range(60):
        slowdown = rng.uniform(0.0, 0.25)
        simulated.disturb("other load", 1.0, start_s=start_s, slowdown=slowdown, noticed=False)
    seen = measure_in(simulated, rounds=9)
    assert seen.count == 9 and 0.02 < seen.duration_sd_s / seen.duration_s < 0.2


@pytest.mark.parametrize(
    ("reading", "name"),
    [
        *(((value,), "invalid") for value in (float("nan"), float("inf"), None, "many")),
        ((-1.0,), "negative"),
        ((0.0,), "stuck"),
        ((1.0, 0.0), "too short"),
    ],
)
def test_reading_of_no_energy_or_time_is_rejected(reading, name):
    with pytest.raises(ContaminatedError, match=f"{name} .*and try again") as caught:
        measure_in(make_noiseless_device(), meter=ConstantMeter(*reading))
    assert "\n" not in str(caught.value)
    # Only a modelled meter may read no energy of the idle device.
    for provenance in ("modelled", "measured"):
        meter = ConstantMeter(*reading, provenance=provenance)
        with make_simulated_measurer(make_noiseless_device(), meter=meter) as measurer:
            if reading == (0.0,) and provenance == "modelled":
                assert measurer.measure_idle().energy_j == 0.0
            else:
                with pytest.raises(ContaminatedError):
                    measurer.measure_idle()


def test_windows_grow_until_they_are_long_enough():
    simulated = make_noiseless_device()
    seen = measure_in(
        simulated, meter=SimulatedMeter(simulated, update_interval_s=1.0, window_s=0.4)
    )
    assert seen.energy_j == pytest.approx(simulated.true_cost(CNN).energy_j)


def test_every_fault_has_advice():
    class Faulty(ConstantMeter):
        def end(self):
            return Reading(1.0, 1.0, (self.fault + ": on purpose",))

    for fault in FAULTS:
        meter = Faulty(1.0)
        meter.fault = fault
        with pytest.raises(ContaminatedError, match=f'last "{fault}: on purpose"') as caught:
            measure_in(make_noiseless_device(), meter=meter)
        assert "check the device" not in str(caught.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MeasurementError])
@pytest.mark.parametrize("verb", ["measure", "time"])
def test_step_is_closed_after_an_error(verb, error, monkeypatch):
    closed = []

    def fail(step, count):
        if count > 10:
            raise error("lost the device")

    with make_simulated_measurer(make_noiseless_device()) as measurer:
        monkeypatch.setattr(SimulatedStep, "run", fail)
        monkeypatch.setattr(SimulatedStep, "close", lambda step: closed.append(1))
        with pytest.raises(error):
            getattr(measurer, verb)(CNN)
    assert len(closed) == 1


def test_simulated_device_has_its_own_meter_and_clock():
    measurer = open_local_measurer("simulated:7", rounds=2, device_name="sim")
    assert (measurer.runtime.device.name, measurer.meter.name) == ("sim", "simulated")
    assert (measurer.rounds, measurer.now()) == (2, 0.0)
    assert measurer.run != open_local_measurer("simulated:7").run
    with pytest.raises(InputError, match="has its own meter"):
        open_local_measurer("simulated:7", "rapl")


@pytest.mark.parametrize("on", ["simulated:7", "cpu"])
def test_recorders_are_for_callers_that_store_windows(on):
    with pytest.raises(InputError, match="--meter later records windows"):
        find_meter("later", on) if on == "cpu" else open_local_measurer(on, "later")
    assert open_local_measurer("simulated:7", "later", allows_later=True).meter.is_recorder
    assert find_meter("later", "cpu", allows_later=True).is_recorder


def test_frameworks_share_the_lock_of_a_processor():
    assert name_lock("cpu") == name_lock("mnn:cpu") == "cpu"
    assert name_lock("simulated:7") is None
