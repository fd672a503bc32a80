"""Laws of simulated devices: what their seed decides, and what makes them worth estimating."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.families import FAMILIES, draw_family, make_family
from joulecast.kinds import KINDS, StepWork, layer_work, make_layer, output_shape
from joulecast.meters.simulated import SimulatedMeter
from joulecast.records import (
    OPTIMIZERS,
    PRECISIONS,
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
from joulecast.simulation import DISTURBANCES, SimulatedDevice, draw_chip, make_simulated_device
from joulecast.simulation.step_cost import unfold
from joulecast.testing.meters import MeterContract

seeds = st.integers(0, 50)
families = st.sampled_from(["cnn5", "har", "lenet5", "lstm", "resnet18", "transformer"])
modes = st.sampled_from(["eager", "graph"])
GRAPH = Execution(mode="graph")
EXAMPLES = {
    "linear": {"cin": 8, "cout": 8},
    "embedding": {"vocabulary": 20, "width": 8, "lead": (6,)},
    "lstm": {"cin": 8, "hidden": 8, "tokens": 6},
    "gru": {"cin": 8, "hidden": 8, "tokens": 6},
    "rnn": {"cin": 8, "hidden": 8, "tokens": 6},
    "attention": {"width": 8, "heads": 2, "tokens": 6, "kv_tokens": 6},
    "sdpa": {"heads": 2, "kv_heads": 2, "head_dim": 4, "tokens": 6, "kv_tokens": 6},
    "matmul": {"m": 4, "k": 5, "n": 6},
    "group_norm": {"groups": 2},
    "elementwise": {"fn": "relu"},
    "pool": {"fn": "max", "kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)},
    "dropout": {"p": 0.5},
}
FREE = ("flatten", "view", "permute", "last")


def make_example(kind):
    if kind.startswith("conv"):
        sizes = {"cin": 4, "cout": 8, "space": 6, "kernel": 3}
    else:
        sizes = EXAMPLES.get(kind, {})
    if KINDS[kind].can_be_in_tail:
        sizes = {**sizes, "shape": (4, 8, 8)}
    return make_layer(kind, **sizes)


def still(seed):
    """A world without noise and without warm-up."""
    return SimulatedDevice(draw_chip(seed), noise=0.0, settle_share=0.0)


def make_conv(width, space=12, cin=64):
    layer = make_layer("conv2d", cin=cin, cout=width, space=space, kernel=3, padding=1)
    return Trial(Network((layer,), Input((cin, space, space))), Setup(batch=8), GRAPH)


@given(seeds, families, st.randoms(use_true_random=False))
def test_the_same_seed_gives_the_same_law(seed, family, rng):
    trial = Trial(draw_family(family, rng.randint), Setup(batch=4))
    world = make_simulated_device(seed)
    assert world.law(trial) == make_simulated_device(seed).law(trial) == world.law(trial)


def test_different_seeds_give_different_laws():
    trial = Trial(make_family("cnn5"), Setup())
    assert len({make_simulated_device(seed).law(trial) for seed in range(20)}) == 20


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FREE])
def test_every_kind_costs_something(kind):
    layer = make_example(kind)
    network = Network((layer,), Input((1,)))
    train, infer = (still(0).law(Trial(network, Setup(phase=p))) for p in ("train", "inference"))
    assert 0 < infer.energy_j < train.energy_j
    assert 0 < infer.issue_s < train.issue_s


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_operators_one_by_one_make_up_the_layer(family):
    setup = Setup()
    for layer in make_family(family).layers:
        alone = [layer_work(op, setup) for op in unfold(layer, setup)]
        assert sum(alone, StepWork()) == layer_work(layer, setup)


def test_a_block_costs_what_its_parts_cost():
    network = make_family("transformer")
    folded = fold_blocks(network)
    assert len(folded.layers) < len(network.layers)
    assert still(1).law(Trial(folded, Setup())) == still(1).law(Trial(network, Setup()))


@given(seeds, families, st.randoms(use_true_random=False))
def test_a_graph_is_never_slower_nor_dearer(seed, family, rng):
    trial = Trial(draw_family(family, rng.randint), Setup(batch=8))
    eager, graph = still(seed).law(trial), still(seed).law(replace(trial, execution=GRAPH))
    assert graph.duration_s <= eager.duration_s
    assert graph.energy_j <= eager.energy_j


@given(seeds, families, modes)
def test_a_step_takes_about_the_longer_of_host_and_device(seed, family, mode):
    trial = Trial(make_family(family), Setup(batch=4), Execution(mode=mode))
    cost = still(seed).law(trial)
    device_s = still(seed).law(replace(trial, execution=GRAPH)).duration_s
    launches = sum(layer_work(layer, trial.setup).total.launches for layer in trial.network.layers)
    longer_s = max(cost.issue_s, device_s)
    assert longer_s <= cost.duration_s <= 1.1 * longer_s + 3e-6 * (launches + 4)


@given(seeds)
def test_a_waiting_device_draws_idle_power(seed):
    """Small nets are bound by the host; what they cost beyond the graph is waiting."""
    world = still(seed)
    trial = Trial(make_family("lenet5:1,1,1,1"), Setup(batch=1))
    eager, graph = world.law(trial), world.law(replace(trial, execution=GRAPH))
    waited_w = (eager.energy_j - graph.energy_j) / (eager.duration_s - graph.duration_s)
    assert eager.issue_s > graph.duration_s
    assert waited_w == pytest.approx(world.law(Trial(Network(), Setup())).energy_j, rel=0.05)


@given(seeds)
def test_layers_add_up_but_for_a_small_term(seed):
    world, setup = still(seed), Setup()
    how = Execution(mode="graph", upstream="random")
    network = make_family("cnn5:40,80,160,320")
    alone = [
        world.law(Trial(Network((layer,), Input((1,))), setup, how)) for layer in network.layers
    ]
    whole = world.law(Trial(network, setup, how))
    ratio = sum(cost.energy_j for cost in alone) / whole.energy_j
    assert ratio == pytest.approx(1.0, abs=0.06)
    assert abs(ratio - 1.0) > 1e-5


@given(seeds)
def test_small_layers_lie_on_a_plateau(seed):
    """Eight times the channels hardly cost more while the machine is not full."""
    world = still(seed)
    narrow, wide = (world.law(make_conv(width, space=2)) for width in (1, 8))
    filling = [world.law(make_conv(width, space=48)).energy_j for width in (64, 512)]
    assert wide.energy_j < 1.35 * narrow.energy_j
    assert filling[1] > 5 * filling[0]


@given(seeds)
def test_there_are_cliffs(seed):
    """Somewhere one channel more costs five times what a channel costs on average."""
    times = [still(seed).law(make_conv(width, space=24)).duration_s for width in range(1, 97)]
    steps = [after - before for before, after in itertools.pairwise(times)]
    average = (times[-1] - times[0]) / len(steps)
    assert max(abs(step) for step in steps) > 5 * average
    assert sum(abs(step) < average / 2 for step in steps) > len(steps) / 4


@given(seeds, families)
def test_precision_optimizer_and_benchmark_matter(seed, family):
    world, network = still(seed), make_family(family)
    setup = Setup(batch=16)
    by_precision = [
        world.law(Trial(network, replace(setup, precision=p), GRAPH)).duration_s for p in PRECISIONS
    ]
    assert by_precision[0] >= by_precision[1] >= by_precision[2]
    by_optimizer = {world.law(Trial(network, replace(setup, optimizer=o))) for o in OPTIMIZERS}
    assert len(by_optimizer) == len(OPTIMIZERS)
    tuned = world.law(Trial(network, replace(setup, cudnn_benchmark=True), GRAPH))
    assert tuned.duration_s <= by_precision[0]


@given(seeds, families)
def test_stages_make_up_the_step(seed, family):
    world, network = still(seed), make_family(family)
    how = Execution(mode="graph", upstream="random")
    stages = [
        world.law(Trial(network, Setup(), replace(how, stage=stage)))
        for stage in ("forward", "backward", "update")
    ]
    whole = world.law(Trial(network, Setup(), how))
    assert sum(cost.energy_j for cost in stages) == pytest.approx(whole.energy_j, rel=0.08)


def test_the_loss_costs_something_and_copies_cost_twice():
    world, network = still(0), make_family("cnn5")
    how = Execution(mode="graph", upstream="random")
    once = world.law(Trial(network, Setup(), how))
    assert once.energy_j < world.law(Trial(network, Setup(), GRAPH)).energy_j
    twice = world.law(Trial(network, Setup(), replace(how, copies=2)))
    assert twice.energy_j == pytest.approx(2 * once.energy_j, rel=1e-3)


def test_depthwise_is_slow_for_its_flops():
    world = still(0)
    plain = make_layer("conv2d", cin=64, cout=64, space=28, kernel=3, padding=1)
    deep = replace(plain, sizes=Sizes({**plain.sizes, "groups": 64}))
    flops, times = [], []
    for layer in (plain, deep):
        trial = Trial(Network((layer,), Input(output_shape(plain))), Setup(), GRAPH)
        flops.append(layer_work(layer, Setup()).total.flops)
        times.append(world.law(trial).duration_s)
    assert times[0] / flops[0] < times[1] / flops[1] / 3


# ---------------------------------------------------------------------------------------------
# The clock and the account


@given(seeds, st.integers(1, 500))
def test_twice_the_steps_cost_twice_as_much(seed, count):
    world = still(seed)
    cost = world.law(Trial(make_family("har"), Setup()))
    marks = [(world.now(), world.energy_at(world.now()))]
    for steps in (count, 2 * count):
        world.issue(cost, steps)
        world.wait()
        marks.append((world.now(), world.energy_at(world.now())))
    (t0, e0), (t1, e1), (t2, e2) = marks
    assert t2 - t1 == pytest.approx(2 * (t1 - t0))
    assert e2 - e1 == pytest.approx(2 * (e1 - e0))
    assert e1 - e0 == pytest.approx(count * cost.energy_j)


def test_noise_is_seeded_small_and_different_each_time():
    cost = make_simulated_device(0).law(Trial(make_family("cnn5"), Setup()))
    runs = []
    for _ in range(2):
        world, times = make_simulated_device(0), []
        for _ in range(30):
            begun = world.now()
            world.issue(cost, 10, done=1000)
            world.wait()
            times.append((world.now() - begun) / 10 / cost.duration_s)
        runs.append(times)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 30
    assert max(abs(time - 1) for time in runs[0]) < 0.05


def test_first_steps_are_slower():
    world = SimulatedDevice(draw_chip(0), noise=0.0, settle_share=0.5)
    cost = world.law(Trial(make_family("cnn5"), Setup()))
    world.issue(cost, 1)
    world.wait()
    first_s = world.now()
    world.issue(cost, 1, done=100)
    world.wait()
    assert first_s == pytest.approx(1.5 * cost.duration_s)
    assert world.now() - first_s == pytest.approx(cost.duration_s)


def test_a_device_sleeps_is_awake_after_load_and_sleeps_again():
    world = still(0)
    world.sleep(10.0)
    assert world.energy_at(10.0) == pytest.approx(10 * world.chip.asleep_w)
    world.issue(world.law(Trial(make_family("cnn5"), Setup())), 1)
    world.wait()
    done = world.now()
    world.sleep(100.0)
    after = [world.energy_at(done + s) - world.energy_at(done + s - 1) for s in (1, 90)]
    assert after == pytest.approx([world.chip.idle_w, world.chip.asleep_w])


@given(seeds, st.lists(st.tuples(st.integers(0, 20), st.floats(0, 3)), max_size=8))
def test_the_account_never_falls(seed, acts):
    world = make_simulated_device(seed)
    world.disturb("other load", 1.0, start_s=0.5, slowdown=1.0, power_w=20.0)
    cost = world.law(Trial(make_family("lenet5"), Setup()))
    for steps, pause_s in acts:
        if steps:
            world.issue(cost, steps)
        world.sleep(pause_s)
    ticks = [world.now() * share / 50 for share in range(51)]
    energies = [world.energy_at(tick) for tick in ticks]
    assert energies == sorted(energies)


def test_other_load_slows_steps_down_and_draws_power():
    cost = still(0).law(Trial(make_family("cnn5"), Setup()))
    count = round(1 / cost.duration_s)
    calm, busy = still(0), still(0)
    busy.disturb("other load", 0.5, start_s=0.2, slowdown=1.0, power_w=10.0)
    for world in (calm, busy):
        world.issue(cost, count)
        world.wait()
    assert busy.now() - calm.now() == pytest.approx(0.25)
    idle_j = 0.25 * busy.chip.idle_w
    extra_j = busy.energy_at(busy.now()) - calm.energy_at(calm.now())
    assert extra_j == pytest.approx(idle_j + 0.5 * 10.0)


def test_unknown_disturbances_are_refused():
    with pytest.raises(InputError, match="there is no disturbance 'flood'"):
        still(0).disturb("flood", 1.0)


# ---------------------------------------------------------------------------------------------
# The meter


class MeterOfAWorld(MeterContract):
    @pytest.fixture(autouse=True)
    def world(self):
        self._world = still(0)

    def load(self, duration_s):
        cost = self._world.law(Trial(make_family("lenet5"), Setup()))
        self._world.issue(cost, round(duration_s / cost.duration_s))
        self._world.wait()


class TestExactMeter(MeterOfAWorld):
    def make_meter(self):
        return SimulatedMeter(self._world, period_s=0.0)


class TestCounter(MeterOfAWorld):
    tolerance_share = 0.06  # one period of 0.1 s more or less in a window of 2 s

    def make_meter(self):
        return SimulatedMeter(self._world)


def read_load(world, period_s, window_s=1.0):
    cost = world.law(Trial(make_family("cnn5"), Setup()))
    with SimulatedMeter(world, period_s=period_s) as meter:
        meter.begin()
        world.issue(cost, round(window_s / cost.duration_s), done=1000)
        world.wait()
        return meter.end(), cost


@pytest.mark.parametrize("period_s", [0.0, 0.01, 0.1])
def test_a_meter_reads_the_power_of_the_law(period_s):
    reading, cost = read_load(still(0), period_s)
    power_w = cost.energy_j / cost.duration_s
    assert reading.faults == ()
    assert reading.energy_j / reading.duration_s == pytest.approx(power_w)


@pytest.mark.parametrize("period_s", [0.0, 0.1])
@pytest.mark.parametrize("what", DISTURBANCES)
def test_a_meter_names_what_befalls_it(what, period_s):
    world = still(0)
    world.sleep(3.0)
    world.disturb(what, 0.4, start_s=3.3, slowdown=0.1)
    reading, _ = read_load(world, period_s)
    assert [fault.split(":")[0] for fault in reading.faults] == [what]


def test_a_meter_says_when_a_window_is_too_short():
    reading, _ = read_load(still(0), period_s=1.0, window_s=0.5)
    assert reading.faults[0].startswith("too short")


def test_layers_that_nobody_knows_are_refused():
    network = Network((Layer("magic"),), Input((1,)))
    with pytest.raises(InputError, match="there is no kind 'magic'"):
        still(0).law(Trial(network, Setup()))


def test_calls_between_layers_take_the_host_only():
    """As many seconds for each, and nothing of what a graph holds."""
    world, setup = make_simulated_device(7, noise=0.0), Setup(batch=8)
    net = make_family("lenet5")
    costs = [
        world.law(Trial(replace(net, totals=StepTotals(1.0, 1.0, 1, between=calls)), setup))
        for calls in (0, 100, 200)
    ]
    first, second = (b.issue_s - a.issue_s for a, b in itertools.pairwise(costs))
    assert first == pytest.approx(second) and first > 0
    called = replace(net, totals=StepTotals(1.0, 1.0, 1, between=100))
    graphs = [world.law(Trial(one, setup, Execution(mode="graph"))) for one in (net, called)]
    assert graphs[0].energy_j == graphs[1].energy_j
