"""Simulated devices: what the seed decides, and the properties that make them hard to estimate."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign_examples import make_noiseless_device
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.meters.simulated import SimulatedMeter
from joulecast.operators import (
    KINDS,
    StepWork,
    checkpoint_blocks,
    layer_work,
    make_layer,
    output_shape,
    peak_memory,
)
from joulecast.records import (
    FLOAT_PRECISIONS,
    OPTIMIZERS,
    Execution,
    Input,
    Layer,
    Network,
    Setup,
    Sizes,
    StepTotals,
    Trial,
    fold_blocks,
)
from joulecast.simulation import DISTURBANCES, make_simulated_device
from joulecast.simulation.chip import list_operators
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.system.errors import InputError, NetError
from joulecast.testing.meters import MeterContract
from joulecast.testing.runtimes import SMALL, RuntimeContract
from kind_examples import LAYERS

seeds = st.integers(0, 50)
families = st.sampled_from(["cnn5", "har", "lenet5", "lstm", "resnet18", "transformer"])
modes = st.sampled_from(["eager", "graph"])
GRAPH = Execution(mode="graph")
FREE = ("flatten", "view", "permute", "last", "slice", "gradient_copy")


def make_conv(width, space=12, cin=64):
    layer = make_layer("conv2d", cin=cin, cout=width, space=space, kernel=3, padding=1)
    return Trial(Network((layer,), Input((cin, space, space))), Setup(batch=8), GRAPH)


@given(seeds, families, st.randoms(use_true_random=False))
def test_the_seed_decides_the_costs(seed, family, rng):
    trial = Trial(draw_family(family, rng.randint), Setup(batch=4))
    simulated = make_simulated_device(seed)
    again = make_simulated_device(seed).true_cost(trial)
    assert simulated.true_cost(trial) == again == simulated.true_cost(trial)
    assert make_simulated_device(seed + 1).true_cost(trial) != again


@pytest.mark.parametrize(
    "layer",
    [one for one in LAYERS.values() if one.kind not in FREE and not KINDS[one.kind].only_trains],
    ids=lambda layer: layer.kind,
)
def test_every_kind_costs_something(layer):
    network = Network((layer,), Input((1,)))
    train, infer = (
        make_noiseless_device(0).true_cost(Trial(network, Setup(phase=p)))
        for p in ("train", "inference")
    )
    assert 0 < infer.energy_j < train.energy_j
    assert 0 < infer.issue_s < train.issue_s


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_operators_of_a_layer_add_up_to_its_work(family):
    setup = Setup()
    for layer in make_family(family).layers:
        alone = [layer_work(op, setup) for op in list_operators(layer, setup)]
        assert sum(alone, StepWork()) == layer_work(layer, setup)


def test_block_costs_the_same_as_its_parts():
    network = make_family("transformer")
    folded = fold_blocks(network)
    assert len(folded.layers) < len(network.layers)
    assert make_noiseless_device(1).true_cost(Trial(folded, Setup())) == make_noiseless_device(
        1
    ).true_cost(Trial(network, Setup()))


@given(seeds, families, st.randoms(use_true_random=False))
def test_graph_takes_no_more_time_or_energy(seed, family, rng):
    trial = Trial(draw_family(family, rng.randint), Setup(batch=8))
    eager, graph = (
        make_noiseless_device(seed).true_cost(trial),
        make_noiseless_device(seed).true_cost(replace(trial, execution=GRAPH)),
    )
    assert graph.duration_s <= eager.duration_s
    assert graph.energy_j <= eager.energy_j


@given(seeds, families, modes)
def test_step_takes_about_the_longer_of_host_and_device_time(seed, family, mode):
    trial = Trial(make_family(family), Setup(batch=4), Execution(mode=mode))
    cost = make_noiseless_device(seed).true_cost(trial)
    device_s = make_noiseless_device(seed).true_cost(replace(trial, execution=GRAPH)).duration_s
    launches = sum(layer_work(layer, trial.setup).total.launches for layer in trial.network.layers)
    longer_s = max(cost.issue_s, device_s)
    assert longer_s <= cost.duration_s <= 1.1 * longer_s + 3e-6 * (launches + 4)


@given(seeds)
def test_waiting_device_draws_idle_power(seed):
    """Small networks are host-bound: what they cost beyond the graph is waiting."""
    simulated = make_noiseless_device(seed)
    trial = Trial(make_family("lenet5:1,1,1,1"), Setup(batch=1))
    eager, graph = simulated.true_cost(trial), simulated.true_cost(replace(trial, execution=GRAPH))
    waited_w = (eager.energy_j - graph.energy_j) / (eager.duration_s - graph.duration_s)
    assert eager.issue_s > graph.duration_s
    assert waited_w == pytest.approx(
        simulated.true_cost(Trial(Network(), Setup())).energy_j, rel=0.05
    )


@given(seeds)
def test_layers_add_up_except_for_a_small_term(seed):
    simulated, setup = make_noiseless_device(seed), Setup()
    how = Execution(mode="graph", upstream="random")
    network = make_family("cnn5:40,80,160,320")
    alone = [
        simulated.true_cost(Trial(Network((layer,), Input((1,))), setup, how))
        for layer in network.layers
    ]
    whole = simulated.true_cost(Trial(network, setup, how))
    ratio = sum(cost.energy_j for cost in alone) / whole.energy_j
    assert ratio == pytest.approx(1.0, abs=0.06)
    assert abs(ratio - 1.0) > 1e-5


@given(seeds)
def test_layers_that_do_not_fill_the_device_cost_the_same_and_tiles_make_cliffs(seed):
    device = make_noiseless_device(seed)
    narrow, wide = (device.true_cost(make_conv(width, space=2)).energy_j for width in (1, 8))
    filling = [device.true_cost(make_conv(width, space=48)).energy_j for width in (64, 512)]
    assert wide < 1.35 * narrow and filling[1] > 5 * filling[0]
    # Some single channel costs five times what a channel costs on average.
    times = [device.true_cost(make_conv(width, space=24)).duration_s for width in range(1, 97)]
    steps = [after - before for before, after in itertools.pairwise(times)]
    average = (times[-1] - times[0]) / len(steps)
    assert max(abs(step) for step in steps) > 5 * average
    assert sum(abs(step) < average / 2 for step in steps) > len(steps) / 4


@given(seeds)
def test_setups_and_stages_change_the_energy_as_on_hardware(seed):
    device, net = make_noiseless_device(seed), make_family("transformer:128,4")

    def cost(network=net, how=GRAPH, **setup):
        return device.true_cost(Trial(network, Setup(**setup), how))

    whole, again = cost().energy_j, checkpoint_blocks(net)
    fast = [cost(precision=one).duration_s for one in FLOAT_PRECISIONS]
    assert fast[0] >= fast[1] >= fast[2] and cost(cudnn_benchmark=True).duration_s <= fast[0]
    assert len({cost(optimizer=one) for one in OPTIMIZERS}) == len(OPTIMIZERS)
    stages = [
        cost(how=Execution(stage, "graph", upstream="random")).energy_j
        for stage in ("forward", "backward", "update")
    ]
    alone = cost(how=Execution(mode="graph", upstream="random")).energy_j
    assert sum(stages) == pytest.approx(alone, rel=0.08) and alone < whole
    added, many = (cost(accumulate=count).energy_j for count in (0, 4))
    assert added < 1.1 * whole and many == pytest.approx(whole + 3 * added, rel=0.05)
    assert whole < cost(again).energy_j < whole + 1.05 * stages[0] + 0.05 * whole
    assert cost(again, phase="inference") == cost(phase="inference")
    copies = cost(how=Execution(mode="graph", upstream="random", copies=2)).energy_j
    assert copies == pytest.approx(2 * alone, rel=1e-2)
    eager, compiled = (cost(how=Execution(), compiled=one) for one in (False, True))
    assert compiled.energy_j < eager.energy_j and compiled.issue_s < eager.issue_s


def test_depthwise_convolution_is_slow_for_its_flops_and_calls_take_host_time():
    device = make_noiseless_device(0)
    plain = make_layer("conv2d", cin=64, cout=64, space=28, kernel=3, padding=1)
    deep, rates = replace(plain, sizes=Sizes({**plain.sizes, "groups": 64})), []
    for layer in (plain, deep):
        trial = Trial(Network((layer,), Input(output_shape(plain))), Setup(), GRAPH)
        duration_s = device.true_cost(trial).duration_s
        rates.append(duration_s / layer_work(layer, Setup()).total.flops)
    assert rates[0] < rates[1] / 3
    nets = [
        replace(make_family("lenet5"), totals=StepTotals(1.0, 1.0, 1, between=calls))
        for calls in (0, 100, 200)
    ]
    none, some, more = (device.true_cost(Trial(net, Setup())).issue_s for net in nets)
    assert more - some == pytest.approx(some - none) and some > none
    assert len({device.true_cost(Trial(net, Setup(), GRAPH)) for net in nets}) == 1


def test_what_is_unknown_or_has_nothing_to_run_is_refused():
    device, magic = make_noiseless_device(0), Network((Layer("magic"),), Input((1,)))
    backward = Execution(stage="backward")
    for words, act in (
        ("flood", lambda: device.disturb("flood", 1.0)),
        ("magic", lambda: device.true_cost(Trial(magic, Setup()))),
        (
            "there is no backward to run in inference",
            lambda: device.true_cost(
                Trial(make_family("lenet5"), Setup(phase="inference"), backward)
            ),
        ),
    ):
        with pytest.raises(InputError, match=words):
            act()


# -- clock and energy ---------------------------------------------------------------------------


def test_steps_cost_their_true_cost_and_the_first_are_slower():
    trial = Trial(make_family("cnn5"), Setup())
    for settle_share in (0.0, 0.5):
        device = make_noiseless_device(settle_share=settle_share)
        cost, marks = device.true_cost(trial), [(0.0, 0.0)]
        for count, done in ((1, 0), (10, 1000)):
            device.issue(cost, count, done)
            device.wait()
            marks.append((device.now(), device.energy_at(device.now())))
        (first_s, first_j), (last_s, last_j) = marks[1:]
        assert first_s == pytest.approx((1 + settle_share) * cost.duration_s)
        assert last_s - first_s == pytest.approx(10 * cost.duration_s)
        assert last_j - first_j == pytest.approx(10 * cost.energy_j)


def test_noise_is_seeded_and_small():
    cost = make_simulated_device(0).true_cost(Trial(make_family("cnn5"), Setup()))
    runs = []
    for _ in range(2):
        simulated, times = make_simulated_device(0), []
        for _ in range(30):
            begun = simulated.now()
            simulated.issue(cost, 10, done=1000)
            simulated.wait()
            times.append((simulated.now() - begun) / 10 / cost.duration_s)
        runs.append(times)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 30
    assert max(abs(time - 1) for time in runs[0]) < 0.05


def test_device_is_idle_after_a_load_and_asleep_later():
    simulated = make_noiseless_device(0)
    simulated.sleep(10.0)
    assert simulated.energy_at(10.0) == pytest.approx(10 * simulated.chip.asleep_w)
    simulated.issue(simulated.true_cost(Trial(make_family("cnn5"), Setup())), 1)
    simulated.wait()
    done = simulated.now()
    simulated.sleep(100.0)
    after = [simulated.energy_at(done + s) - simulated.energy_at(done + s - 1) for s in (1, 90)]
    assert after == pytest.approx([simulated.chip.idle_w, simulated.chip.asleep_w])


@given(seeds, st.lists(st.tuples(st.integers(0, 20), st.floats(0, 3)), max_size=8))
def test_energy_never_decreases(seed, acts):
    simulated = make_simulated_device(seed)
    simulated.disturb("other load", 1.0, start_s=0.5, slowdown=1.0, power_w=20.0)
    cost = simulated.true_cost(Trial(make_family("lenet5"), Setup()))
    for steps, pause_s in acts:
        if steps:
            simulated.issue(cost, steps)
        simulated.sleep(pause_s)
    ticks = [simulated.now() * share / 50 for share in range(51)]
    energies = [simulated.energy_at(tick) for tick in ticks]
    assert energies == sorted(energies)


def test_other_load_slows_steps_down_and_draws_power():
    cost = make_noiseless_device(0).true_cost(Trial(make_family("cnn5"), Setup()))
    count = round(1 / cost.duration_s)
    calm, busy = make_noiseless_device(0), make_noiseless_device(0)
    busy.disturb("other load", 0.5, start_s=0.2, slowdown=1.0, power_w=10.0)
    for simulated in (calm, busy):
        simulated.issue(cost, count)
        simulated.wait()
    assert busy.now() - calm.now() == pytest.approx(0.25)
    idle_j = 0.25 * busy.chip.idle_w
    extra_j = busy.energy_at(busy.now()) - calm.energy_at(calm.now())
    assert extra_j == pytest.approx(idle_j + 0.5 * 10.0)


# -- the meter ----------------------------------------------------------------------------------


class SimulatedMeterContract(MeterContract):
    @pytest.fixture(autouse=True)
    def simulated(self):
        self._simulated = make_noiseless_device(0)

    def load(self, duration_s):
        cost = self._simulated.true_cost(Trial(make_family("lenet5"), Setup()))
        self._simulated.issue(cost, round(duration_s / cost.duration_s))
        self._simulated.wait()


class TestExactMeter(SimulatedMeterContract):
    def make_meter(self):
        return SimulatedMeter(self._simulated, update_interval_s=0.0)


class TestCounter(SimulatedMeterContract):
    tolerance_share = 0.06  # one period of 0.1 s more or less in a window of 2 s

    def make_meter(self):
        return SimulatedMeter(self._simulated)


def read_load(simulated, update_interval_s, window_s=1.0):
    cost = simulated.true_cost(Trial(make_family("cnn5"), Setup()))
    with SimulatedMeter(simulated, update_interval_s=update_interval_s) as meter:
        meter.begin()
        simulated.issue(cost, round(window_s / cost.duration_s), done=1000)
        simulated.wait()
        return meter.end(), cost


@pytest.mark.parametrize("update_interval_s", [0.0, 0.1])
@pytest.mark.parametrize("what", DISTURBANCES)
def test_meter_names_every_disturbance(what, update_interval_s):
    simulated = make_noiseless_device(0)
    simulated.sleep(3.0)
    simulated.disturb(what, 0.4, start_s=3.3, slowdown=0.1)
    reading, _ = read_load(simulated, update_interval_s)
    assert [fault.split(":")[0] for fault in reading.faults] == [what]


def test_meter_reports_a_window_that_is_too_short():
    reading, _ = read_load(make_noiseless_device(0), update_interval_s=1.0, window_s=0.5)
    assert reading.faults[0].startswith("too short")


# -- the runtime --------------------------------------------------------------------------------


class TestSimulated(RuntimeContract):
    @pytest.fixture(autouse=True)
    def simulated(self):
        self._simulated = make_simulated_device(3, memory_bytes=2**28)

    def make_runtime(self):
        return SimulatedRuntime(self._simulated)

    def now(self):
        return self._simulated.now()

    def make_huge_trial(self):
        return Trial(make_family("cnn5"), Setup(batch=2**14))


def test_issuing_takes_host_time_and_waiting_the_rest():
    simulated = make_noiseless_device(3)
    trial = Trial(make_family("cnn5"), Setup())
    cost = simulated.true_cost(trial)
    step = SimulatedRuntime(simulated).prepare(trial)
    begun = simulated.now()
    step.run(10)
    assert simulated.now() - begun == pytest.approx(10 * cost.issue_s)
    step.wait()
    assert simulated.now() - begun == pytest.approx(10 * cost.duration_s)


def test_peak_memory_includes_all_copies():
    trial = replace(SMALL, execution=Execution(copies=3))
    step = SimulatedRuntime(make_noiseless_device(3)).prepare(trial)
    assert step.peak_memory_bytes() == 3 * peak_memory(SMALL.network, SMALL.setup)


def test_frozen_network_runs_only_inference():
    frozen = Network(
        tuple(replace(layer, trains=False) for layer in SMALL.network.layers), SMALL.network.input
    )
    runtime = SimulatedRuntime(make_noiseless_device(3))
    with pytest.raises(NetError, match="no layer of the network trains"):
        runtime.prepare(Trial(frozen, Setup()))
    assert runtime.prepare(Trial(frozen, Setup(phase="inference"))).peak_memory_bytes() > 0
