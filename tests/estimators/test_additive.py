"""The additive estimator: its contract, the laws of its mathematics, worlds that it recovers."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from joulecast.errors import MissingError
from joulecast.estimators.additive import acquisition
from joulecast.estimators.additive.acquisition import choose_aim
from joulecast.estimators.additive.decompose import OFF_SHARE
from joulecast.estimators.additive.estimator import AdditiveEstimator, fit_state
from joulecast.estimators.additive.model import State, total_nets
from joulecast.estimators.additive.pieces import count_stands, make_piece, split_pieces
from joulecast.estimators.base import Target
from joulecast.families import draw_family, make_family
from joulecast.kinds import layer_work, make_layer
from joulecast.records import (
    MODES,
    OWN_NET,
    Execution,
    Input,
    Network,
    Observation,
    Setup,
    StepTotals,
    Trial,
)
from joulecast.simulation import make_simulated_device
from joulecast.testing.estimators import EstimatorContract, observe
from joulecast.variants import make_isolated_trial, read_isolated_part, split_blocks, split_network

SETUP = Setup(batch=32)
FAMILY = "cnn5"


class TestContract(EstimatorContract):
    unseen_setup = Setup(batch=10, precision="bf16")
    tolerance_share = 1e-4

    def make_estimator(self):
        return AdditiveEstimator()


def draw(count, seed=0, family=FAMILY):
    rng = random.Random(seed)
    return [draw_family(family, rng.randint) for _ in range(count)]


def look(world, trial, energy=True):
    cost = world.true_cost(trial)
    return replace(observe(world, trial, energy), issue_s=cost.issue_s)


def see_parts(world, networks, setup=SETUP, mode="graph", energy=True, split=split_blocks):
    """Every distinct part of some nets alone."""
    trials = {}
    for network in networks:
        for place in split(network):
            trial = make_isolated_trial(place.part, setup, mode)
            trials[trial.key] = trial
    return [look(world, trial, energy) for trial in trials.values()]


def see_idle(world):
    return look(world, Trial(Network(), Setup()))


@pytest.fixture(scope="module")
def world():
    return make_simulated_device(201, noise=0.0)


@pytest.fixture(scope="module")
def seen(world):
    """Graph looks at the parts of eight nets, eager seconds of two, the waiting device."""
    nets = draw(8, seed=1)
    eager = [look(world, Trial(net, SETUP), energy=False) for net in nets[:2]]
    return [*see_parts(world, nets), *eager, see_idle(world)]


@pytest.fixture(scope="module")
def state(seen):
    return fit_state(seen)


def counts(network, state, setup=SETUP):
    return count_stands(split_pieces(network, setup, set(state.table.labels)))


def test_a_net_of_known_layers_is_their_sum(world, seen):
    """Looked at alone, layers give the whole net's energy: nothing was fitted to the net."""
    nets = draw(8, seed=1)
    estimator = AdditiveEstimator()
    answer = estimator.fit(seen).predict(nets, [SETUP] * len(nets))
    truth = [world.true_cost(Trial(net, SETUP)) for net in nets]
    assert answer.energy_j == pytest.approx([cost.energy_j for cost in truth], rel=0.03)
    assert answer.duration_s == pytest.approx([cost.duration_s for cost in truth], rel=0.03)


def test_unseen_nets_lie_in_their_intervals(world, seen):
    nets = draw(30, seed=9)
    estimator = AdditiveEstimator()
    answer = estimator.fit(seen).predict(nets, [SETUP] * len(nets))
    truth = np.array([world.true_cost(Trial(net, SETUP)).energy_j for net in nets])
    off = np.abs(answer.energy_j - truth)
    assert np.mean(off / truth) < 0.08
    assert np.mean(off < 1.96 * answer.energy_sd_j) > 0.85


def test_joined_networks_add(state):
    """Device energy and device time of two nets run one after the other are the sums."""
    one, two = (counts(net, state) for net in draw(2, seed=3))
    totals = total_nets(state, [one, two, (*one, *two)], OFF_SHARE)
    device = totals.device_energy_j
    assert device[2] == pytest.approx(device[0] + device[1], rel=1e-9)


def test_more_rows_never_raise_a_variance_under_fixed_hyper_parameters(world, state, seen):
    """What is seen can only make surer, as long as nobody changes their mind about smoothness."""
    nets = [counts(net, state) for net in draw(6, seed=4)]
    before = _variances(state, nets)
    extra = see_parts(world, draw(3, seed=12))
    after = _variances(_with_rows(fit_state([*seen, *extra]), state), nets)
    assert (after <= before * (1 + 1e-6)).all()
    assert (after < 0.99 * before).any()


def _with_rows(state, fixed):
    """All rows of one state under another's hyper-parameters."""
    time = replace(state.time.learnt, thetas=fixed.time.learnt.thetas[:1])
    energy = replace(state.energy.learnt, thetas=fixed.energy.learnt.thetas[:1])
    return replace(
        state,
        time=replace(state.time, learnt=time),
        energy=replace(state.energy, learnt=energy),
    )


def _variances(state, nets):
    """Of the time process, whose pieces keep their places however many rows there are."""
    from joulecast.estimators.additive.encode import make_batch
    from joulecast.estimators.additive.model import ask_times

    state = _with_rows(state, state)
    return ask_times(state.table, state.time, make_batch(nets)).var


def test_scaling_all_energies_scales_the_estimate(seen):
    nets = draw(4, seed=5)
    estimator = AdditiveEstimator()
    scaled = [
        seen_one
        if seen_one.energy_j is None
        else replace(seen_one, energy_j=7 * seen_one.energy_j, energy_sd_j=7 * seen_one.energy_sd_j)
        for seen_one in seen
    ]
    one, seven = (estimator.fit(o).predict(nets, [SETUP] * len(nets)) for o in (seen, scaled))
    assert seven.energy_j == pytest.approx(7 * one.energy_j, rel=1e-3)
    assert seven.duration_s == pytest.approx(one.duration_s, rel=1e-6)


def test_what_was_learnt_survives_json_exactly(state):
    again = State.from_dict(json.loads(json.dumps(state.to_dict())))
    assert again.to_dict() == state.to_dict()
    nets = [counts(net, state) for net in draw(3, seed=6)]
    one, two = (total_nets(found, nets, OFF_SHARE) for found in (state, again))
    assert (one.energy_j == two.energy_j).all()
    assert (one.var == two.var).all()


def test_time_probes_make_an_estimate_better_and_surer(world, seen):
    nets = draw(12, seed=21)
    truth = np.array([world.true_cost(Trial(net, SETUP)).energy_j for net in nets])
    estimator = AdditiveEstimator()
    target = Target(make_family(FAMILY), SETUP, networks=tuple(nets), modes=MODES)
    probes = estimator.list_probes(target, seen)
    assert probes
    probed = [*seen, *(look(world, trial, energy=False) for trial in probes)]
    assert not estimator.list_probes(target, probed)
    before, after = (
        estimator.fit(o).predict(nets, [SETUP] * len(nets)) for o in (seen, probed)
    )
    assert np.abs(after.energy_j / truth - 1).mean() < np.abs(before.energy_j / truth - 1).mean()
    assert after.energy_sd_j.mean() < before.energy_sd_j.mean()


def test_a_measured_net_is_learnt_from(world, seen):
    """What a real run took draws the estimate of that net to itself."""
    net = draw(1, seed=33)[0]
    estimator = AdditiveEstimator()
    run = look(world, Trial(net, SETUP))
    more = replace(run, energy_j=1.2 * run.energy_j, source="own net")
    before = estimator.fit(seen).predict([net], [SETUP])
    after = estimator.fit([*seen, more]).predict([net], [SETUP])
    truth = 1.2 * run.energy_j
    assert after.energy_sd_j[0] < before.energy_sd_j[0]
    assert abs(after.energy_j[0] - truth) < 0.8 * abs(before.energy_j[0] - truth)


def test_an_unseen_kind_is_guessed_widely_and_named(world, seen):
    net = make_family("transformer:64,2")
    estimator = AdditiveEstimator()
    answer = estimator.fit(seen).predict([net], [SETUP])
    truth = world.true_cost(Trial(net, SETUP)).energy_j
    assert answer.unseen_share[0] > 0.9
    assert answer.energy_sd_j[0] > 0.2 * answer.energy_j[0]
    assert next(iter(answer.uncertainty_sources[0])) in ("kinds never measured", "layers not timed", "host")
    assert 0.2 < answer.energy_j[0] / truth < 5


def test_an_unseen_precision_is_guessed_widely(seen):
    net = draw(1, seed=2)[0]
    estimator = AdditiveEstimator()
    fitted = estimator.fit(seen)
    known = fitted.predict([net], [SETUP])
    strange = fitted.predict([net], [replace(SETUP, precision="bf16")])
    assert strange.unseen_share[0] == pytest.approx(1.0)
    wide = strange.energy_sd_j[0] / strange.energy_j[0]
    assert wide > 0.5 > known.energy_sd_j[0] / known.energy_j[0]


def test_device_energy_and_host_energy_are_told_apart():
    """A launch-bound net: its device part is far below what the user pays."""
    world = make_simulated_device(202, noise=0.0)
    setup = Setup(batch=10)
    nets = draw(6, seed=8, family="lenet5")
    eager = [look(world, Trial(net, setup), energy=False) for net in nets[:2]]
    seen = [*see_parts(world, nets, setup), *eager, see_idle(world)]
    estimator = AdditiveEstimator()
    answer = estimator.fit(seen).predict(nets, [setup] * len(nets))
    graph = [world.true_cost(Trial(net, setup, Execution(mode="graph"))).energy_j for net in nets]
    whole = [world.true_cost(Trial(net, setup)).energy_j for net in nets]
    assert answer.device_energy_j == pytest.approx(graph, rel=0.05)
    assert answer.energy_j == pytest.approx(whole, rel=0.10)
    assert (answer.device_energy_j < 0.9 * answer.energy_j).any()


def test_calls_between_layers_take_the_hosts_time_and_none_of_the_devices():
    """A launch-bound net pays for them at idle power; one that keeps the device busy does not."""
    world = make_simulated_device(202, noise=0.0)
    estimator = AdditiveEstimator()
    for family, setup, bound in (("lenet5", Setup(batch=10), True), ("cnn5", SETUP, False)):
        net = draw(1, seed=8, family=family)[0]
        nets = draw(4, seed=9, family=family)
        eager = [look(world, Trial(one, setup), energy=False) for one in nets[:2]]
        fitted = estimator.fit([*see_parts(world, [net], setup), *eager, see_idle(world)])
        busy = replace(net, totals=StepTotals(1.0, 1.0, 1, between=100))
        plain, more = fitted.predict([net, busy], [setup] * 2).energy_j
        least, most = (0.001 * plain, plain) if bound else (0.0, 0.001 * plain)
        assert least < more - plain < most
        parts = fitted.predict([net, busy], [setup] * 2).device_energy_j
        assert parts[0] == pytest.approx(parts[1])


def test_without_graphs_energy_above_idle_adds_up():
    """A device whose looks are all eager, with a host that runs ahead."""
    world = make_simulated_device(203, noise=0.0)
    setup = Setup(batch=64)
    nets = draw(8, seed=2)
    seen = [*see_parts(world, nets, setup, mode="eager"), see_idle(world)]
    estimator = AdditiveEstimator()
    fitted = estimator.fit(seen)
    assert fitted["form"] == "eager"
    answer = fitted.predict(nets, [setup] * len(nets))
    truth = [world.true_cost(Trial(net, setup)).energy_j for net in nets]
    assert answer.energy_j == pytest.approx(truth, rel=0.06)


def test_where_the_host_waits_for_every_operator_time_adds_up():
    """A processor: issuing a step is running it."""
    world = make_simulated_device(204, noise=0.0)
    nets = draw(6, seed=2)

    def wait(seen):
        return replace(seen, issue_s=seen.duration_s)

    seen = [*map(wait, see_parts(world, nets, mode="eager")), see_idle(world)]
    estimator = AdditiveEstimator()
    fitted = estimator.fit(seen)
    assert fitted["form"] == "eager"
    assert fitted["off_share"] == OFF_SHARE
    answer = fitted.predict(nets, [SETUP] * len(nets))
    parts = {seen_one.trial.key: seen_one for seen_one in seen}
    for at, net in enumerate(nets):
        trials = [make_isolated_trial(place.part, SETUP) for place in split_blocks(net)]
        sum_s = sum(parts[trial.key].duration_s / trial.execution.copies for trial in trials)
        assert answer.duration_s[at] == pytest.approx(sum_s, rel=0.02)


def test_variants_of_the_paper_are_rows_too(world):
    """Eager variants alone, as the paper measures them: nothing is subtracted."""
    from joulecast.estimators.subtractive.estimator import SubtractiveEstimator
    from joulecast.testing.estimators import run_short_campaign

    target = Target(make_family(FAMILY), SETUP)
    seen = run_short_campaign(SubtractiveEstimator(), target, 45, world)
    estimator = AdditiveEstimator()
    nets = draw(10, seed=9)
    answer = estimator.fit([*seen, see_idle(world)]).predict(nets, [SETUP] * len(nets))
    truth = np.array([world.true_cost(Trial(net, SETUP)).energy_j for net in nets])
    assert np.abs(answer.energy_j / truth - 1).mean() < 0.2


def test_blocks_are_taken_whole_where_they_are_known(world):
    net = make_family("transformer:64,2")
    block = make_piece(split_blocks(net)[1].part, SETUP)
    leaf = make_piece(split_network(net)[1].part, SETUP)
    whole = split_pieces(net, SETUP, {block.label})
    opened = split_pieces(net, SETUP, {leaf.label})
    assert sum(stand.is_block for stand in whole) == 2
    assert not any(stand.is_block for stand in opened)


def test_weights_that_are_called_again_are_updated_once():
    """A linear that a step calls eight times moves its weights' state once."""
    setup = Setup(batch=4, optimizer="adamw")
    wide = make_layer("linear", cin=512, cout=512)
    output = make_layer("linear", cin=512, cout=10)
    net = Network((replace(wide, calls=8), output), Input((512,)))
    first = split_pieces(net, setup, ())[0]
    work = layer_work(wide, setup)
    moved = 8 * (work.forward + work.backward).size_bytes + work.update.size_bytes
    # There are hardly any products beside the update.
    assert first.count * first.piece.size_bytes == pytest.approx(moved, rel=0.02)


def test_what_does_no_work_is_no_piece():
    view = make_layer("view", shape=(4, 4), out=(16,))
    net = Network((make_layer("linear", cin=4, cout=4, lead=(4,)), view), Input((4, 4)))
    inference = Setup(batch=2, phase="inference")
    assert [s.piece.label for s in split_pieces(net, inference, ())] == ["linear fp32 inference"]


def test_a_users_own_module_teaches_no_other_net(world, seen):
    """It may do more than its layers show; that is its own."""
    own, others = draw(1, seed=33)[0], draw(5, seed=34)
    run = look(world, Trial(own, SETUP))
    strange = replace(run, energy_j=1.5 * run.energy_j, source=OWN_NET)
    estimator = AdditiveEstimator()
    before = estimator.fit(seen).predict(others, [SETUP] * len(others))
    after = estimator.fit([*seen, strange]).predict(others, [SETUP] * len(others))
    assert after.energy_j == pytest.approx(before.energy_j, rel=1e-6)


def test_a_strangers_runs_pay_one_overhead(world):
    """Whole runs with start-up and evaluation in them: what a step costs is told from the rest."""
    steps, extra_j, extra_s = 100, 60.0, 0.3
    runs = []
    for net in draw(25, seed=41):
        cost = world.true_cost(Trial(net, SETUP))
        trial = Trial(net, SETUP, Execution(steps=steps))
        energy_j, time_s = steps * cost.energy_j + extra_j, steps * cost.duration_s + extra_s
        run = Observation(trial, energy_j=energy_j, duration_s=time_s, provenance="imported")
        runs.append(replace(run, source="somebody's log"))
    nets = draw(10, seed=42)
    estimator = AdditiveEstimator()
    fitted = estimator.fit(runs)
    assert json.loads(json.dumps(fitted)) == fitted
    answer = fitted.predict(nets, [SETUP] * len(nets))
    truth = np.array([world.true_cost(Trial(net, SETUP)).energy_j for net in nets])
    off = answer.energy_j / truth - 1
    share = extra_j / steps / truth
    assert share.mean() > 0.2
    assert abs(np.median(off)) < 0.25 * np.median(share)


def test_nothing_but_probes_is_too_little(world):
    probes = see_parts(world, draw(2), energy=False)
    with pytest.raises(MissingError, match="profile"):
        AdditiveEstimator().fit(probes)


# ---------------------------------------------------------------------------------------------
# Where to look next


def follow(world, target, most=60):
    """What the estimator asks for, one after the other."""
    estimator, seen, proposals = AdditiveEstimator(), [see_idle(world)], []
    while len(seen) < most:
        proposal = estimator.propose(target, seen)
        proposals.append(proposal)
        if proposal.trial is None:
            break
        cost_s = 2.0 if proposal.with_energy else 0.5
        seen.append(replace(look(world, proposal.trial, proposal.with_energy), cost_s=cost_s))
    return proposals, seen


def test_every_kind_is_looked_at_twice_before_anything_else(world):
    target = Target(make_family(FAMILY), SETUP, networks=tuple(draw(8, seed=1)), modes=MODES)
    proposals, _ = follow(world, target, most=8)
    # One net runs as a whole between the two rounds, two more follow.
    sizes = [len(proposal.trial.network.layers) for proposal in proposals[:7]]
    assert sizes == [1, 1, 5, 1, 1, 5, 5]
    alone = [proposals[at].trial.network.layers[0].kind for at in (0, 1, 3, 4)]
    assert sorted(alone) == ["conv2d", "conv2d", "linear", "linear"]
    assert all(proposal.with_energy for proposal in proposals[:7])


def test_guided_looks_bring_the_target_within_its_share(world):
    nets = tuple(draw(8, seed=1))
    target = Target(make_family(FAMILY), SETUP, networks=nets, modes=MODES, uncertainty_share=0.06)
    proposals, seen = follow(world, target)
    assert proposals[-1].trial is None
    assert proposals[-1].uncertainty_share <= 0.06
    assert "known within 6%" in proposals[-1].reason
    assert any(not proposal.with_energy for proposal in proposals[:-1])
    estimator = AdditiveEstimator()
    answer = estimator.fit(seen).predict(nets, [SETUP] * len(nets))
    truth = [world.true_cost(Trial(net, SETUP)).energy_j for net in nets]
    assert answer.energy_j == pytest.approx(truth, rel=0.15)


def test_nothing_is_proposed_twice_and_refusals_are_left_alone(world):
    target = Target(make_family(FAMILY), SETUP, networks=tuple(draw(3, seed=1)), modes=MODES)
    estimator = AdditiveEstimator()
    first = estimator.propose(target, [])
    refused = Observation(first.trial)
    second = estimator.propose(target, [refused])
    assert second.trial is not None
    assert second.trial.key != first.trial.key


def see_all_hosts(world, seen, nets):
    """What was seen, and every net as the host issues it: what is next is chosen by a fit."""
    return [*seen, *(look(world, Trial(net, SETUP)) for net in nets)]


def test_what_is_known_of_other_kinds_is_left_out_of_choosing(world, seen, monkeypatch):
    """Where a device knows very much, the next look is chosen by what shows the target's kinds."""
    nets = tuple(draw(8, seed=1))
    target = Target(make_family(FAMILY), SETUP, networks=nets, modes=MODES, uncertainty_share=0.0)
    near = see_all_hosts(world, seen[: len(seen) // 2], nets)
    parts = see_parts(world, [make_family("lstm")])
    strangers = [one for one in parts if one.trial.network.layers[0].kind == "lstm"]
    monkeypatch.setattr(acquisition, "MANY_ROWS", 0)
    fitted = []

    def fit(observations):
        fitted.append(list(observations))
        return fit_state(observations)

    alone, among = (choose_aim(target, some, fit) for some in (near, [*near, *strangers]))
    assert strangers and alone.trial is not None and among == alone
    assert fitted == [near, near]


def test_what_is_refused_stays_refused_where_much_is_known(world, seen, monkeypatch):
    monkeypatch.setattr(acquisition, "MANY_ROWS", 0)
    target = Target(make_family(FAMILY), SETUP, networks=tuple(draw(3, seed=1)), modes=MODES)
    estimator, strangers = AdditiveEstimator(), see_parts(world, [make_family("lstm")])
    first = estimator.propose(target, strangers)
    second = estimator.propose(target, [*strangers, Observation(first.trial)])
    assert second.trial is not None and second.trial.key != first.trial.key


def test_without_joules_of_its_kinds_a_probe_asks_for_some(world, seen, monkeypatch):
    """All layers were timed, and only other kinds were measured in joules: nothing is known yet."""
    monkeypatch.setattr(acquisition, "MANY_ROWS", 0)
    net = draw(1, seed=3)[0]
    timed = [
        look(world, make_isolated_trial(place.part, SETUP, mode), energy=False)
        for place in split_blocks(net)
        for mode in ("graph", "eager")
    ]
    strangers = [*see_parts(world, [make_family("lstm")]), see_idle(world)]
    target = Target(net, SETUP, acquisition="probe", modes=MODES, uncertainty_share=0.05)
    proposal = AdditiveEstimator().propose(target, [*strangers, *timed])
    assert proposal.trial is not None and proposal.with_energy
    assert proposal.uncertainty_share > 0.3


def test_the_papers_rule_can_be_asked_for(world):
    target = Target(
        make_family(FAMILY), SETUP, networks=tuple(draw(6, seed=1)), modes=MODES, acquisition="energy"
    )
    proposals, _ = follow(world, target, most=14)
    guided = [p for p in proposals if p.trial is not None and "least sure" in p.reason]
    assert guided
    assert all(proposal.with_energy for proposal in guided)


def test_structures_that_no_eager_step_showed_are_issued_alone(world):
    """Of a net that may not run as a whole the host is known from its pieces; each once."""
    net = draw(1, seed=51)[0]
    target = Target(net, SETUP, networks=(net,), modes=MODES, acquisition="probe")
    _, seen = follow(world, target)
    eager = [
        one for one in seen if one.trial.execution.mode == "eager" and one.trial.network.layers
    ]
    frames = [make_piece(read_isolated_part(one.trial), SETUP).frame for one in eager]
    assert len(set(frames)) == len(frames) > 0
    assert all(one.energy_j is None and one.issue_s for one in eager)
    stands = split_pieces(net, SETUP, ())
    assert set(frames) == {stand.piece.frame for stand in stands}


def on_unit(seen, unit, factor, start_s):
    """Observations as if another unit of the device had made them."""
    return [
        replace(
            one,
            energy_j=one.energy_j and factor * one.energy_j,
            device=replace(one.device, unit=unit),
            taken_at_s=start_s + at,
        )
        for at, one in enumerate(seen)
    ]


def test_what_another_unit_measured_is_drawn_to_this_one(seen):
    """A few looks at one's own unit, which takes 8 % less, move all that the other one taught."""
    estimator, nets = AdditiveEstimator(), draw(6, seed=61)
    other = on_unit(seen, "other", 1.0, 0.0)
    own = on_unit([one for one in seen if one.energy_j][:6], "own", 0.92, 1e6)
    fitted = estimator.fit([*other, *own])
    assert json.loads(json.dumps(fitted)) == fitted
    nameless = [replace(one, device=replace(one.device, unit="")) for one in (*other, *own)]
    alone, told, mixed = (
        numbers.predict(nets, [SETUP] * len(nets)).device_energy_j
        for numbers in (estimator.fit(other), fitted, estimator.fit(nameless))
    )
    assert (told / alone).mean() == pytest.approx(0.92, abs=0.015)
    assert (mixed / alone).mean() > 0.95


def test_where_all_joules_are_another_units_they_are_taken_as_they_are(world, seen):
    """Seconds of one's own unit and nobody's joules of it: no excuse to call everything cheap."""
    estimator, nets = AdditiveEstimator(), draw(6, seed=61)
    many = [*see_parts(world, draw(60, seed=5)), see_idle(world)]
    timed = [replace(one, energy_j=None) for one in seen if one.trial.network.layers]
    fitted = estimator.fit([*on_unit(many, "other", 1.0, 0.0), *on_unit(timed, "own", 1.0, 1e6)])
    plain = estimator.fit(many).predict(nets, [SETUP] * len(nets)).device_energy_j
    assert fitted.predict(nets, [SETUP] * len(nets)).device_energy_j == pytest.approx(plain, rel=0.05)


def test_structures_are_learnt_from_all_hosts_and_their_pace_from_ones_own(world, seen):
    nets = draw(4, seed=71)
    eager = [look(world, Trial(net, SETUP), energy=False) for net in nets]
    slow = [
        replace(one, issue_s=3.0 * one.issue_s, duration_s=max(one.duration_s, 3.0 * one.issue_s))
        for one in eager
    ]
    plain = fit_state([*seen, *eager]).clock
    own = fit_state([*on_unit(seen, "other", 1.0, 0.0), *on_unit(slow, "own", 1.0, 1e6)]).clock
    counts = count_stands(split_pieces(nets[0], SETUP, ()))
    assert own.issue(counts)[0] == pytest.approx(3.0 * plain.issue(counts)[0], rel=0.1)
    assert own.nets == len(slow)


def test_a_tied_head_loses_its_update_and_not_its_products():
    """A table of words that is also the head: its products are most of the head's cost."""
    words, width = 5_000, 256
    head = replace(make_layer("linear", cin=width, cout=words, lead=(64,), bias=0), tied=True)
    table = make_layer("embedding", vocabulary=words, width=width, lead=(64,))
    setup = Setup(batch=32, optimizer="adamw")
    net = Network((table, head), Input((64,), words))
    (stand,) = [one for one in split_pieces(net, setup, ()) if one.piece.flops > 1e9]
    alone = replace(net, layers=(table, replace(head, tied=False)))
    (whole,) = [one for one in split_pieces(alone, setup, ()) if one.piece.flops > 1e9]
    assert whole.count == 1.0
    # By bytes alone a fifth would be gone.
    assert 0.85 < stand.count < 0.95


def test_without_graphs_there_is_no_host_to_look_at(world):
    """One clock: looks are pieces alone, whatever the nets are."""
    nets = tuple(draw(2, seed=81))
    target = Target(nets[0], SETUP, networks=nets, modes=("eager",))
    proposals, _ = follow(world, target, most=10)
    assert all(len(one.trial.network.layers) == 1 for one in proposals if one.trial)
