"""The rig against simulated worlds: it finds the law again, and what disturbs it."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import ContaminatedError, InputError, MeasurementError, OutOfMemoryError
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.measurer import MeasureLimits, make_measurer
from joulecast.meters.base import FAULTS, Meter, Reading
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import Execution, Network, Setup, Trial
from joulecast.runtimes.simulated import SimulatedRuntime
from joulecast.simulation import DISTURBANCES, SimulatedDevice, draw_chip, make_simulated_device

CNN = Trial(make_family("cnn5:16,32,64,128"), Setup())
NETS = [Trial(make_family(name), Setup(batch=8)) for name in ("har", "lstm", "lenet5", "cnn5")]


@pytest.fixture(autouse=True)
def no_real_sleep(monkeypatch):
    def refuse(seconds):
        raise AssertionError(f"slept {seconds} s of real time")

    monkeypatch.setattr(time, "sleep", refuse)


def still(seed=0, **options):
    """A world without noise and without warm-up."""
    return SimulatedDevice(draw_chip(seed), noise=0.0, **{"settle_share": 0.0, **options})


def rig_in(world, meter=None, runtime=None, **options):
    return make_measurer(
        runtime or SimulatedRuntime(world),
        meter or SimulatedMeter(world),
        now=world.now,
        sleep=world.sleep,
        wall_clock=lambda: 1e9 + world.now(),
        **options,
    )


def measure_in(world, trial=CNN, **options):
    with rig_in(world, **options) as rig:
        return rig.measure(trial)


class Watched(SimulatedRuntime):
    """Notes what is prepared and what is closed, and can fail while it runs."""

    def __init__(self, world, error=None):
        super().__init__(world)
        self.prepared, self.open, self._error = [], 0, error

    def prepare(self, trial):
        step = super().prepare(trial)
        self.prepared.append(trial)
        self.open += 1
        close, run = step.close, step.run

        def note_close():
            self.open -= 1
            close()

        def fail_when_many(count):
            if self._error and count > 10:
                raise self._error
            run(count)

        step.close, step.run = note_close, fail_when_many
        return step


class Scripted(Meter):
    """Says the same reading whatever happens."""

    name, covers, window_s = "scripted", "cpu", 0.2

    def __init__(self, energy_j, duration_s=1.0, provenance="measured"):
        self._reading = Reading(energy_j, duration_s)
        self.provenance = provenance

    def begin(self):
        pass

    def end(self):
        return self._reading


# ---------------------------------------------------------------------------------------------
# What is seen


@given(
    st.integers(0, 30),
    st.sampled_from(["cnn5", "har", "lenet5", "lstm"]),
    st.sampled_from(["eager", "graph"]),
    st.randoms(use_true_random=False),
)
def test_measuring_recovers_the_law_within_its_noise(seed, family, mode, rng):
    world = make_simulated_device(seed)
    trial = Trial(draw_family(family, rng.randint), Setup(batch=32), Execution(mode=mode))
    law, seen = world.law(trial), measure_in(world, trial)
    # Steps that the host holds up have its noise.
    rel = 0.12 if law.issue_s > 0.7 * law.duration_s else 0.03
    assert seen.energy_j == pytest.approx(law.energy_j, rel=rel)
    assert seen.duration_s == pytest.approx(law.duration_s, rel=rel)
    if mode == "eager":
        assert seen.issue_s == pytest.approx(law.issue_s, rel=0.12)
    else:
        assert seen.issue_s is None
    assert seen.count == 3
    assert 0 < seen.energy_sd_j < 0.15 * seen.energy_j


@pytest.mark.parametrize("period_s", [0.0, 0.1])
def test_without_noise_the_law_comes_out_exactly(period_s):
    world = still()
    law = world.law(CNN)
    seen = measure_in(world, meter=SimulatedMeter(world, period_s))
    assert seen.energy_j == pytest.approx(law.energy_j)
    assert seen.duration_s == pytest.approx(law.duration_s)
    assert seen.issue_s == pytest.approx(law.issue_s)
    assert seen.energy_sd_j == pytest.approx(0, abs=1e-9)


def test_an_observation_says_where_it_comes_from():
    world = make_simulated_device(4)
    seen = measure_in(world, run="monday")
    assert (seen.trial, seen.run) == (CNN, "monday")
    assert seen.device == SimulatedRuntime(world).device
    assert (seen.runtime, seen.meter, seen.covers) == ("simulated", "simulated", "device")
    assert seen.provenance == "simulated"
    assert seen.taken_at_s == 1e9 + world.now()
    assert seen.cost_s == pytest.approx(world.now())
    assert seen.peak_memory_bytes == SimulatedRuntime(world).prepare(CNN).peak_memory_bytes()


def test_an_observation_spans_the_steps_of_its_trial():
    ten = Trial(CNN.network, CNN.setup, Execution(steps=10))
    one_seen, ten_seen = measure_in(still()), measure_in(still(), ten)
    for number in ("energy_j", "duration_s", "issue_s"):
        assert getattr(ten_seen, number) == pytest.approx(10 * getattr(one_seen, number))


def test_one_round_has_no_spread_and_more_rounds_are_counted():
    single, many = (measure_in(make_simulated_device(0), rounds=rounds) for rounds in (1, 7))
    assert (single.count, single.energy_sd_j, single.duration_sd_s) == (1, None, None)
    assert many.count == 7
    assert many.energy_sd_j > 0


def test_measuring_costs_a_few_windows():
    assert 3.0 < measure_in(make_simulated_device(0)).cost_s < 4.0
    quick = SimulatedMeter(world := make_simulated_device(0), period_s=0.0, window_s=0.2)
    assert measure_in(world, meter=quick).cost_s < 1.2


def test_a_pause_spreads_the_rounds():
    near, far = (measure_in(still(), pause_s=pause_s) for pause_s in (0.0, 60.0))
    assert far.cost_s - near.cost_s == pytest.approx(2 * 60.0, abs=1.0)
    assert far.energy_j == pytest.approx(near.energy_j)


def test_warm_up_lasts_until_steps_settle():
    world = still(settle_share=1.0, settle_steps=40.0)
    cost = world.law(CNN)
    seen = measure_in(world, limits=MeasureLimits(settle_s=20.0, settle_share=0.005))
    assert seen.duration_s == pytest.approx(cost.duration_s, rel=0.002)
    hasty = measure_in(
        still(settle_share=1.0, settle_steps=40.0), limits=MeasureLimits(settle_s=0.0, warm_s=0.0)
    )
    assert hasty.cost_s < seen.cost_s


def test_steps_that_never_settle_are_measured_all_the_same():
    seen = measure_in(make_simulated_device(0, noise=10.0), rounds=9)
    assert seen.duration_sd_s > 0.02 * seen.duration_s


def test_a_step_longer_than_a_window_is_run_once_a_round():
    world = still(1)
    slow = Trial(make_family("resnet50", (3, 224, 224)), Setup(batch=1024))
    law, seen = world.law(slow), measure_in(world, slow)
    assert law.duration_s > 5.0
    assert seen.energy_j == pytest.approx(law.energy_j)
    assert seen.cost_s < 8 * law.duration_s


def test_a_probe_has_time_only_and_is_quick():
    world = still()
    with rig_in(world) as rig:
        probe, whole = rig.time(CNN), rig.measure(CNN)
        graph = rig.time(Trial(CNN.network, CNN.setup, Execution(mode="graph")))
    assert probe.energy_j is None
    assert probe.duration_s == pytest.approx(whole.duration_s)
    assert probe.issue_s == pytest.approx(whole.issue_s)
    # Eager steps show the host, which needs a longer look than the device.
    assert graph.cost_s < 0.5 < probe.cost_s < 0.5 * whole.cost_s
    assert (probe.covers, probe.provenance) == (whole.covers, whole.provenance)


def test_idle_is_the_observation_of_the_empty_network():
    world = still()
    with rig_in(world) as rig:
        asleep = rig.idle()
        rig.measure(CNN)
        awake = rig.idle()
    assert awake.trial.network == Network()
    assert (asleep.duration_s, awake.duration_s) == (1.0, 1.0)
    assert asleep.energy_j == pytest.approx(world.chip.asleep_w)
    assert awake.energy_j == pytest.approx(world.law(awake.trial).energy_j)


def test_only_a_modelled_meter_may_find_that_idle_costs_nothing():
    with rig_in(still(), meter=Scripted(0.0, provenance="modelled")) as rig:
        assert rig.idle().energy_j == 0.0
    with rig_in(still(), meter=Scripted(0.0)) as rig, pytest.raises(ContaminatedError):
        rig.idle()


# ---------------------------------------------------------------------------------------------
# Many trials


def test_many_trials_come_back_in_their_order():
    world = still()
    done = {}
    with rig_in(world) as rig:
        seen = rig.measure_all(NETS, done.__setitem__)
    assert [observation.trial for observation in seen] == NETS
    assert done == dict(enumerate(seen))
    for observation in seen:
        assert observation.count == 3
        law = world.law(observation.trial)
        assert observation.energy_j == pytest.approx(law.energy_j)
        assert observation.duration_s == pytest.approx(law.duration_s)


def test_rounds_of_many_trials_are_shuffled_and_spread():
    orders = []
    for seed in (1, 1, 2):
        world = still()
        runtime = Watched(world)
        with rig_in(world, runtime=runtime) as rig:
            rig.measure_all(NETS, rng=random.Random(seed))
        orders.append([NETS.index(trial) for trial in runtime.prepared])
    for order in orders:
        rounds = [order[start : start + 4] for start in (0, 4, 8)]
        assert [sorted(places) for places in rounds] == [[0, 1, 2, 3]] * 3
    assert orders[0] == orders[1] != orders[2]


def test_a_slow_drift_falls_on_all_trials_alike():
    """A device that gets slower: what is measured last must not look dearest."""
    durations = []
    for verb in (
        lambda rig: rig.measure_all([CNN] * 8),
        lambda rig: [*map(rig.measure, [CNN] * 8)],
    ):
        world = still()
        world.disturb("other load", 1e4, start_s=22.0, slowdown=0.3, noticed=False)
        with rig_in(world) as rig:
            durations.append({round(seen.duration_s, 9) for seen in verb(rig)})
    together, one_by_one = durations
    assert len(together) == 1
    assert len(one_by_one) > 1


def test_no_trials_give_no_observations():
    with rig_in(still()) as rig:
        assert rig.measure_all([]) == []


# ---------------------------------------------------------------------------------------------
# What goes wrong


@pytest.mark.parametrize("what", DISTURBANCES)
def test_a_disturbance_that_passes_leaves_no_trace(what):
    calm, world = still(), still()
    world.disturb(what, 0.4, start_s=1.7, slowdown=0.3, power_w=5.0)
    seen, undisturbed = measure_in(world), measure_in(calm)
    assert seen.energy_j == pytest.approx(undisturbed.energy_j)
    assert seen.duration_s == pytest.approx(undisturbed.duration_s)
    assert seen.count == 3
    assert seen.cost_s > undisturbed.cost_s + 1.0


@pytest.mark.parametrize("what", DISTURBANCES)
def test_a_disturbance_that_stays_is_named_and_given_up(what):
    world = still()
    for start_s in range(100) if what in ("reset", "negative") else [0]:
        lasts_s = 0.1 if what in ("reset", "negative") else 1e6
        world.disturb(what, lasts_s, start_s=0.5 + start_s, slowdown=0.3)
    with pytest.raises(ContaminatedError) as caught:
        measure_in(world)
    message = str(caught.value)
    assert f"cnn5:16,32,64,128 could not be measured on {world.name}: 6 of 6 windows" in message
    assert f"disturbed by {what} (6 times)" in message
    assert message.endswith("and try again")
    assert "\n" not in message


@pytest.mark.parametrize("what", DISTURBANCES)
def test_many_trials_see_disturbances_too(what):
    world = still()
    world.disturb(what, 0.4, start_s=5.0, slowdown=0.3, power_w=5.0)
    with rig_in(world) as rig:
        seen = rig.measure_all(NETS)
    laws = [world.law(trial).energy_j for trial in NETS]
    assert [observation.energy_j for observation in seen] == pytest.approx(laws)


def test_load_that_no_meter_notices_shows_in_the_step_time():
    world = still()
    world.disturb("other load", 3.0, start_s=1.5, slowdown=4.0, power_w=30.0, noticed=False)
    seen = measure_in(world)
    assert seen.duration_s == pytest.approx(world.law(CNN).duration_s)
    assert seen.energy_sd_j == pytest.approx(0, abs=1e-9)
    assert seen.count == 3


def test_load_that_comes_and_goes_without_end_is_given_up():
    world = still()
    for place in range(100):
        slowdown = (0.0, 2.0, 8.0)[place % 3]
        world.disturb("other load", 50.0, 50.0 * place, slowdown=slowdown, noticed=False)
    with pytest.raises(
        ContaminatedError, match=r"other load .*times as long as usual.*close other"
    ):
        measure_in(world, rounds=8, pause_s=50.0)


def test_a_shared_laptop_is_not_refused():
    """A fifth more or less from round to round is spread, not contamination."""
    world = still()
    rng = random.Random(0)
    for start_s in range(60):
        slowdown = rng.uniform(0.0, 0.25)
        world.disturb("other load", 1.0, start_s=start_s, slowdown=slowdown, noticed=False)
    seen = measure_in(world, rounds=9)
    assert seen.count == 9
    assert 0.02 < seen.duration_sd_s / seen.duration_s < 0.2


@pytest.mark.parametrize(("energy_j", "name"), [(-1.0, "negative"), (0.0, "stuck")])
def test_a_meter_that_reads_nothing_or_less_is_not_believed(energy_j, name):
    with pytest.raises(ContaminatedError, match=name + r" .*joulecast detect"):
        measure_in(still(), meter=Scripted(energy_j))


def test_a_meter_that_sees_no_time_is_not_believed():
    with pytest.raises(ContaminatedError, match=r"too short .*longer windows"):
        measure_in(still(), meter=Scripted(1.0, duration_s=0.0))


def test_windows_grow_until_the_meter_sees_enough():
    world = still()
    seen = measure_in(world, meter=SimulatedMeter(world, period_s=1.0, window_s=0.4))
    assert seen.energy_j == pytest.approx(world.law(CNN).energy_j)


def test_every_fault_has_its_advice():
    class Faulty(Scripted):
        def end(self):
            return Reading(1.0, 1.0, (self.fault + ": on purpose",))

    for fault in FAULTS:
        meter = Faulty(1.0)
        meter.fault = fault
        with pytest.raises(ContaminatedError, match=f'last "{fault}: on purpose"') as caught:
            measure_in(still(), meter=meter)
        assert "look at the device" not in str(caught.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MeasurementError("lost the device")])
@pytest.mark.parametrize("verb", ["measure", "time"])
def test_the_step_is_closed_whatever_happens(verb, error):
    world = still()
    runtime = Watched(world, error)
    with rig_in(world, runtime=runtime) as rig, pytest.raises(type(error)):
        getattr(rig, verb)(CNN)
    assert runtime.prepared
    assert runtime.open == 0


def test_the_step_is_closed_when_the_meter_fails_and_when_all_is_well():
    class Broken(Scripted):
        def end(self):
            raise MeasurementError("the meter died")

    world = still()
    runtime = Watched(world)
    with rig_in(world, runtime=runtime, meter=Broken(1.0)) as rig:
        with pytest.raises(MeasurementError, match="the meter died"):
            rig.measure(CNN)
        assert runtime.open == 0
    with rig_in(world, runtime=runtime) as rig:
        rig.measure_all(NETS)
    assert runtime.open == 0


def test_what_does_not_fit_is_said_and_the_rig_goes_on():
    world = make_simulated_device(0, memory_bytes=2**28)
    with rig_in(world) as rig:
        with pytest.raises(OutOfMemoryError):
            rig.measure(Trial(make_family("cnn5"), Setup(batch=2**14)))
        assert rig.measure(CNN).count == 3


def test_a_rig_opens_and_closes_its_meter():
    calls = []

    class Noting(Scripted):
        def open(self):
            calls.append("open")

        def close(self):
            calls.append("close")

    with pytest.raises(KeyboardInterrupt), rig_in(still(), meter=Noting(1.0)):
        raise KeyboardInterrupt
    assert calls == ["open", "close"]


def test_no_rounds_are_refused():
    with pytest.raises(InputError, match="rounds is 0"):
        rig_in(still(), rounds=0)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_can_be_measured(family):
    world = make_simulated_device(2)
    trial = Trial(make_family(family), Setup(batch=FAMILIES[family].batch))
    assert measure_in(world, trial).energy_j == pytest.approx(world.law(trial).energy_j, rel=0.1)
