"""Test estimates from a profile: single networks, many at once, and which fit is used."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from joulecast.devices.data_sheets import find_data_sheet, make_sheet_profile
from joulecast.estimators import (
    ESTIMATORS,
    check_estimator,
    choose_estimator,
    describe_fits,
    estimate_network,
    find_estimator,
    fit_profile,
    update_estimate,
)
from joulecast.estimators.base import UNIT_SD_SHARE
from joulecast.estimators.fitted_profile import (
    NO_COST_RULE,
    NO_LAYER,
    UNIT_VARIATION,
    check_sheet_precision,
    explain_memory,
    find_starting_sheet,
    find_uncounted_share,
    list_estimate_notes,
    make_starting_estimator,
    match_device_sheet,
    rests_on_sheet,
)
from joulecast.families import make_family
from joulecast.operators import peak_memory
from joulecast.records import (
    OWN_NET,
    Device,
    Estimate,
    Execution,
    LazyObservations,
    Network,
    Observation,
    Profile,
    Setup,
    StepTotals,
    Trial,
    find_steps,
    summarise_observations,
)
from joulecast.system.errors import InputError, MissingError
from joulecast.testing.estimators import SETUP, draw_networks, make_observations

SETUPS = (Setup(batch=10), Setup(batch=20), Setup(batch=10, optimizer="adamw"))
NETS = draw_networks(4, seed=5)
NETWORKS = [network for network in NETS for _ in SETUPS]
NETWORK_SETUPS = [setup for _ in NETS for setup in SETUPS]


@pytest.fixture(scope="module")
def unfitted():
    return Profile(Device("board"), "simulated", "device", "simulated", make_observations())


@pytest.fixture(scope="module")
def profile(unfitted):
    seen = unfitted.observations
    fits = {name: find_estimator(name).fit(seen).to_dict() for name in ("additive", "flops")}
    return replace(unfitted, fits=fits)


def estimate(profile, count=12, name="additive", **options):
    return fit_profile(profile, name).estimate(NETWORKS[:count], NETWORK_SETUPS[:count], **options)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_estimate_says_what_it_rests_on(unfitted, name):
    network = draw_networks(1)[0]
    found = estimate_network(unfitted, network, SETUP, name)
    low, high = found.interval_j
    assert 0 < low < found.energy_j < high and found.duration_s > 0
    assert (found.estimator, found.device, found.covers) == (name, "board", "device")
    assert found.provenance == "simulated"
    assert found.peak_memory_bytes == peak_memory(network, SETUP)
    assert len(found.layers) == len(network.layers)


@pytest.mark.parametrize("name", ["additive", "flops"])
def test_networks_together_are_estimated_as_each_alone(profile, name):
    together = estimate(profile, name=name)
    for network, setup, one in zip(NETWORKS, NETWORK_SETUPS, together, strict=True):
        alone = estimate_network(profile, network, setup, name)
        assert one.energy_j == pytest.approx(alone.energy_j)
        assert one.interval_j == pytest.approx(alone.interval_j)
        assert one.duration_s == pytest.approx(alone.duration_s)
        assert (one.duration_interval_s is None) == (name == "flops")
        if one.duration_interval_s:
            assert one.duration_interval_s[0] < one.duration_s < one.duration_interval_s[1]
        assert [layer.name for layer in one.layers] == [layer.name for layer in alone.layers]
        assert one.unseen_share == pytest.approx(alone.unseen_share)
        assert one.provenance == alone.provenance == "simulated"


def test_details_can_be_left_out(profile):
    full, brief = (estimate(profile, details=wanted) for wanted in (True, False))
    for one, other in zip(full, brief, strict=True):
        assert one.layers and one.peak_memory_bytes > 0
        assert replace(one, layers=(), peak_memory_bytes=0) == other


@pytest.mark.parametrize("name", ["additive", "flops"])
def test_equal_networks_have_equal_estimates_to_the_last_digit(profile, name):
    networks = [*NETWORKS, *NETWORKS[:3], NETWORKS[0]]
    setups = [*NETWORK_SETUPS, *NETWORK_SETUPS[:3], NETWORK_SETUPS[0]]
    found = fit_profile(profile, name).estimate(networks, setups, joint=True)
    assert found.first_occurrence == (*range(len(NETWORKS)), 0, 1, 2, 0)
    drawn = found.draw(50)
    for at, first in enumerate(found.first_occurrence):
        assert found[at] == found[first]
        assert np.array_equal(drawn[:, at], drawn[:, first])
        assert found.log_ratio_variance(first, [at])[0] == 0.0
    renamed = replace(NETS[0], layers=tuple(replace(one, name="x") for one in NETS[0].layers))
    layers = fit_profile(profile, name).estimate([NETS[0], renamed], SETUPS[0])[1].layers
    assert {layer.name for layer in layers} == {"x"}


def fail(*_args, **_kwargs):
    raise AssertionError("fitted or parsed for nothing")


def test_stored_fit_is_used_until_there_are_new_observations(unfitted, monkeypatch):
    method, seen = find_estimator("subtractive"), unfitted.observations
    fewer, stored = ({"subtractive": method.fit(some).to_dict()} for some in (seen[:20], seen))
    stale = fit_profile(replace(unfitted, fits=fewer), "subtractive")
    assert stale.fitted.to_dict() == stored["subtractive"]
    # What it could not learn from is not new.
    refused = Observation(seen[0].trial, refusal="out of memory")
    assert not method.uses(refused)
    monkeypatch.setattr(type(method), "fit", fail)
    for observations in (seen, (), (*seen, refused)):
        kept = replace(unfitted.add_fits(stored), observations=observations)
        assert fit_profile(kept, "subtractive").fitted.to_dict() == stored["subtractive"]


def test_fit_that_counts_its_observations_is_used_without_parsing_them(unfitted):
    fitted = find_estimator("flops").fit(unfitted.observations).to_dict()
    lazy = LazyObservations(len(unfitted.observations), fail, find=lambda keys: ())
    current = replace(unfitted, observations=lazy).add_fits({"flops": fitted})
    assert estimate_network(current, NETS[0], SETUP, "flops").provenance == "simulated"
    one_more = replace(current, observations=LazyObservations(len(lazy) + 1, fail))
    with pytest.raises(AssertionError, match="parsed"):
        estimate_network(one_more, NETS[0], SETUP, "flops")


def test_fit_of_another_version_is_not_used(profile):
    old = {"additive": {"version": 1}}
    fitted = fit_profile(replace(profile, fits=old)).fitted
    assert fitted.to_dict() == profile.fits["additive"]
    with pytest.raises(MissingError, match="joulecast profile"):
        fit_profile(replace(profile, fits=old, observations=()))


def test_fits_are_described_if_their_estimator_is_known(profile):
    items = describe_fits(
        replace(profile, fits={**profile.fits, "unknown": {}, "subtractive": {"version": 9}})
    )
    assert {item.label for item in items["additive"]} >= {"conv2d fp32", "linear fp32"}
    assert items["unknown"] == items["subtractive"] == ()


def test_unit_to_unit_variation_widens_energies_but_not_ratios(profile):
    own, shipped = (
        estimate(one, 2, joint=True) for one in (profile, replace(profile, shipped=True))
    )
    assert (shipped.energy_j == own.energy_j).all()
    assert shipped[0].uncertainty_sources[UNIT_VARIATION] > 0
    assert sum(shipped[0].uncertainty_sources.values()) == pytest.approx(1.0)
    extra = shipped.variance - own.variance
    assert extra == pytest.approx(UNIT_SD_SHARE**2 * (own.energy_j**2 + own.variance))
    ratios = [one.probability_ratio_within(0, [1], [1.5])[0] for one in (own, shipped)]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-9)
    limit = 1.1 * own.energy_j
    assert (shipped.probability_within(limit) < own.probability_within(limit)).all()


def with_unknown_operators(network, share):
    totals = StepTotals(
        1.0, 1.0, 1, ops_without_rule=(("lib::scan", 1),), uncounted_bytes_share=share
    )
    return replace(network, totals=totals)


def test_operators_without_a_cost_rule_widen_the_interval(profile):
    plain, unknown = (
        fit_profile(profile).estimate([with_unknown_operators(NETS[0], share)], SETUP)
        for share in (0.0, 0.3)
    )
    assert unknown[0].energy_j == plain[0].energy_j
    extra = unknown.variance - plain.variance
    assert extra == pytest.approx(0.3**2 * (plain.energy_j**2 + plain.variance))
    for name in ("interval_j", "duration_interval_s"):
        (low, high), (own_low, own_high) = (getattr(one[0], name) for one in (unknown, plain))
        assert low < own_low and high > own_high
    sources = unknown[0].uncertainty_sources
    assert next(iter(sources)) == NO_COST_RULE
    assert sources[NO_COST_RULE] == pytest.approx(extra[0] / unknown.variance[0])
    assert sum(sources.values()) == pytest.approx(1.0)
    assert any("lib::scan" in note for note in unknown[0].notes)
    assert NO_COST_RULE not in plain[0].uncertainty_sources


def test_unknown_operators_do_not_matter_once_the_step_was_measured(profile):
    network, other = (with_unknown_operators(one, 0.3) for one in NETS[:2])
    trial = Trial(network, replace(SETUP, loss="own"))
    own = Observation(trial, 1.0, duration_s=1.0, provenance="simulated", source=OWN_NET)
    measured = replace(profile, observations=(*profile.observations, own))
    for one, asked, is_unknown in (
        (profile, network, True),
        (measured, network, False),
        (measured, other, True),
    ):
        found = estimate_network(one, asked, SETUP)
        assert (NO_COST_RULE in found.uncertainty_sources) == is_unknown


def test_estimate_says_whether_it_fits_and_what_made_the_profile(profile):
    device = Device("board", memory_bytes=2**40)
    ample = estimate_network(replace(profile, device=device, runtime="lab-1"), NETS[0], SETUP)
    assert ample.fits_memory and ample.notes == () and ample.runtime == "lab-1"
    tiny = replace(profile, device=replace(device, memory_bytes=1000))
    estimate = estimate_network(tiny, NETS[0], SETUP)
    assert estimate.fits_memory is False and estimate.energy_j == ample.energy_j
    assert estimate.notes[0].startswith("It would not fit")


def test_notes_of_a_prediction_reach_the_estimate(profile):
    fitted = fit_profile(profile)

    class Cautious:
        def predict(self, networks, setups, **options):
            found = fitted.fitted.predict(networks, setups, **options)
            return replace(found, notes=tuple((f"{len(n.layers)} layers",) for n in networks))

    networks = [NETS[0], NETS[1], NETS[0]]
    found = replace(fitted, fitted=Cautious()).estimate(networks, SETUP)
    assert [one.notes for one in found] == [(f"{len(one.layers)} layers",) for one in networks]


def test_equal_blocks_are_added_up(profile):
    found = estimate_network(profile, make_family("resnet18:4,2,2,2,2"), SETUP)
    first = found.blocks[0]
    assert first.count == 2
    own = [found.layers[at : at + first.layer_count] for at in first.starts]
    assert first.energy_j == pytest.approx(sum(one.energy_j for block in own for one in block))
    doubled = update_estimate(found, 1e6 * found.energy_j, steps=10)
    factor = doubled.energy_j / found.energy_j
    assert doubled.blocks[0].energy_j == pytest.approx(factor * first.energy_j)


def test_first_steps_of_a_run_update_the_estimate(profile):
    before = estimate_network(profile, NETS[0], SETUP)
    after = update_estimate(before, 10 * 1.3 * before.energy_j, steps=10)
    assert before.energy_j < after.energy_j < 1.3 * before.energy_j
    width_before, width_after = (one.interval_j[1] / one.interval_j[0] for one in (before, after))
    assert width_after < width_before
    assert after.interval_j[0] < after.energy_j < after.interval_j[1]
    assert sum(layer.energy_j for layer in after.layers) == pytest.approx(after.energy_j)


def estimate_with(profile, **changes):
    """Estimate one network, with some arguments changed."""
    known = {"profile": profile, "network": NETS[0], "setup": SETUP}
    return estimate_network(**{**known, **changes})


def update(profile, energy_j, steps):
    return update_estimate(estimate_network(profile, NETS[0], SETUP), energy_j, steps)


T4 = make_sheet_profile(find_data_sheet("t4"))


@pytest.mark.parametrize(
    ("ask", "error", "named"),
    [
        (
            lambda own: estimate_with(replace(own, observations=(), fits={})),
            MissingError,
            "profile",
        ),
        (lambda own: estimate_with(own, estimator="tea leaves"), InputError, "subtractive"),
        (lambda own: estimate_with(own, level=95.0), InputError, "95"),
        (lambda own: estimate_with(own, level=1.0), InputError, "level"),
        (lambda own: estimate_with(own, network=Network()), InputError, "layers"),
        (lambda own: fit_profile(own).predict_means([Network()], SETUP), InputError, "layers"),
        (lambda own: check_estimator("other"), InputError, "other"),
        (lambda own: update(own, 0.0, 3), InputError, "steps"),
        (lambda own: update(own, 1.0, 0), InputError, "steps"),
        (lambda own: estimate(own, 2).draw(3), InputError, "joint=True"),
        (
            lambda own: estimate(own, 2).probability_ratio_within(0, [1], [1.0]),
            InputError,
            "joint=True",
        ),
        (lambda own: fit_profile(T4, "subtractive"), InputError, "subtractive needs measurements"),
        (
            lambda own: check_sheet_precision(T4, Setup(precision="bf16")),
            InputError,
            "no bf16 peak",
        ),
    ],
)
def test_what_cannot_be_estimated_is_an_error_of_one_line(profile, ask, error, named):
    with pytest.raises(error, match=named) as caught:
        ask(profile)
    assert "\n" not in str(caught.value)


def test_what_can_be_estimated_is_no_error():
    check_estimator("auto")
    check_sheet_precision(T4, Setup(precision="fp16"))


@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        ("torch-2.13.0", "additive"),
        ("onnxruntime-1.31.1", "kernel-gp"),
        ("torch_compile-2.13.0", "kernel-gp"),
    ],
)
def test_runtimes_that_fuse_are_estimated_by_their_kernels(runtime, name):
    assert choose_estimator("auto", runtime) == name
    assert choose_estimator("flops", runtime) == "flops"
    assert find_estimator(name).name == name


def test_durations_alone_are_not_enough_for_an_estimate():
    setup = Setup(batch=4, phase="inference")
    network = draw_networks(1)[0]
    seen = Observation(Trial(network, setup), duration_s=1e-3, runtime="onnxruntime-1.31.1")
    profile = Profile(Device("board"), seen.runtime, "device", "measured", (seen,))
    with pytest.raises(MissingError, match="durations but no energies"):
        estimate_network(profile, network, setup)


GIB = 2**30
LENET = make_family("lenet5")
ESTIMATE = Estimate(
    2.0, (1.0, 4.0), 0.95, 0.1, 10 * GIB, (), 0.0, "measured", "gpu", "board", "additive",
    device_memory_bytes=80 * GIB,
)  # fmt: skip


@pytest.mark.parametrize(
    ("gib", "start"), [(10, ""), (79, "It may not fit"), (96, "It would not fit")]
)
def test_notes_say_whether_a_step_fits(gib, start):
    estimate = replace(ESTIMATE, peak_memory_bytes=gib * GIB)
    notes = list_estimate_notes(estimate, LENET)
    assert bool(notes) == bool(start) and all(note.startswith(start) for note in notes)
    assert all(f"{gib}.0 GiB" in note and "80.0 GiB" in note for note in notes)
    assert explain_memory(replace(estimate, device_memory_bytes=0)) == []


def test_notes_come_from_memory_prediction_and_reading():
    shares = {"unattributed_flops_share": 0.25, "uncounted_bytes_share": 0.5}
    rest = {"ops_without_rule": (("lib::scan", 2),), "notes": ("Read with two samples.",)}
    totals = StepTotals(1.0, 1.0, 1, **shares, **rest)
    large = replace(ESTIMATE, peak_memory_bytes=96 * GIB)
    read = replace(LENET, totals=totals)
    notes = list_estimate_notes(large, read, ("Extrapolated 4x.",))
    assert [note.split()[0] for note in notes] == ["It", "Extrapolated", "25.0", "Read", "No"]
    assert "25.0 % of the FLOPs belong to no layer" in notes[2]
    assert "lib::scan (2 calls)" in notes[-1]


@pytest.mark.parametrize(
    ("shares", "source"),
    [
        ({}, (NO_COST_RULE, 0.0)),
        ({"uncounted_bytes_share": 0.3}, (NO_COST_RULE, 0.3)),
        ({"uncounted_bytes_share": 0.1, "unattributed_flops_share": 0.2}, (NO_LAYER, 0.2)),
        ({"unattributed_bytes_share": 0.4, "unattributed_flops_share": 0.2}, (NO_LAYER, 0.4)),
        ({"unattributed_params_share": 0.5}, (NO_COST_RULE, 0.0)),
    ],
)
def test_the_largest_share_names_the_source(shares, source):
    network = replace(LENET, totals=StepTotals(1.0, 1.0, 1, **shares))
    assert find_uncounted_share(network) == source


def test_only_whole_steps_with_energy_are_measured():
    setup = Setup(batch=4)
    own_loss = Trial(LENET, replace(setup, loss="own"))
    own = [Observation(own_loss, energy_j=1.0, duration_s=0.1)]
    assert find_steps(own, LENET, setup) == own
    assert not find_steps(own, LENET, replace(setup, batch=5))
    assert not find_steps(own, make_family("lenet5:1,2,3,4"), setup)
    graph = Trial(LENET, setup, Execution(mode="graph"))
    many = Trial(LENET, setup, Execution(steps=100))
    others = [
        Observation(own_loss, duration_s=1.0),
        Observation(graph, energy_j=1.0, duration_s=0.1),
        Observation(many, energy_j=1.0, duration_s=0.1, provenance="imported"),
    ]
    assert not find_steps(others, LENET, setup)


def test_observations_are_not_parsed_to_find_that_a_step_was_not_measured():
    other = Observation(Trial(LENET, Setup(batch=5)), energy_j=1.0, duration_s=0.1)
    lazy = LazyObservations(1, fail, lambda: summarise_observations([other]))
    assert not find_steps(lazy, LENET, Setup(batch=4))
    assert find_steps(LazyObservations(1, lambda: (other,)), LENET, Setup(batch=5)) == [other]


A10 = find_data_sheet("nvidia-a10")
MEASURED = Profile(Device("my-gpu", "NVIDIA A10"), "torch-2.13.0", "gpu", "measured")


def test_small_measured_profile_starts_from_the_sheet_of_its_device():
    assert find_starting_sheet(MEASURED) == A10 and rests_on_sheet(MEASURED)
    assert find_starting_sheet(make_sheet_profile(A10)) == A10
    assert match_device_sheet(Device("nvidia-a10", "unknown")) == A10
    assert make_starting_estimator("additive", A10).name == "additive"


@pytest.mark.parametrize(
    "change",
    [
        {"provenance": "imported"},
        {"runtime": "mnn-3.0"},
        {"device": Device("a-cpu", "Some Processor 9000")},
        {"fits": {"additive": {"encoder": {"sources": [{"name": "nvidia-h200"}]}}}},
        {"observations": (Observation(Trial(Network(), Setup())),) * 150},
    ],
)
def test_other_profiles_do_not(change):
    assert find_starting_sheet(replace(MEASURED, **change)) is None


def test_probability_agrees_with_the_interval(profile):
    few = estimate(profile, 3)
    assert len(few) == 3 and list(few) == [few[0], few[1], few[2]] == list(few[:3])
    assert few.select([2, 0, 2]).first_occurrence == (0, 1, 0)
    found = estimate(profile, level=0.8)
    for side, probability in ((0, 0.1), (1, 0.9)):
        ends = [one.interval_j[side] for one in found]
        assert found.probability_within(ends) == pytest.approx([probability] * len(ends), abs=1e-6)
    assert found.probability_within(found.energy_j) == pytest.approx([0.5] * len(found))


def test_network_has_no_uncertainty_relative_to_itself(profile):
    networks, setups = [NETS[0], NETS[0], NETWORKS[4]], [SETUPS[0], SETUPS[0], NETWORK_SETUPS[4]]
    found = fit_profile(profile).estimate(networks, setups, joint=True)
    less, more = found.probability_ratio_within(0, [1, 1], [0.99, 1.01])
    assert less < 1e-6 and more > 1 - 1e-6
    one = found.probability_ratio_within(0, [2], [1.0])
    other = found.probability_ratio_within(2, [0], [1.0])
    assert one[0] + other[0] == pytest.approx(1.0)


def test_draws_have_the_medians_and_the_intervals(profile):
    found = estimate(profile, 3, level=0.9, joint=True)
    drawn = found.draw(20_000, seed=1)
    assert np.median(drawn, axis=0) == pytest.approx(found.energy_j, rel=0.02)
    for column, one in zip(drawn.T, found, strict=True):
        inside = (column > one.interval_j[0]) & (column < one.interval_j[1])
        assert inside.mean() == pytest.approx(0.9, abs=0.015)
    assert np.array_equal(drawn, found.draw(20_000, seed=1))


def test_all_probabilities_follow_from_one_covariance(profile):
    """Single energies, ratios and draws have the same log variances, however large they are."""
    narrow = estimate(profile, 4, joint=True)
    factor = 1.0 / narrow.log_variance.max()
    found = replace(narrow, variance=factor * narrow.variance, cov=factor * narrow.cov)
    assert np.diag(found.log_covariance) == pytest.approx(found.log_variance, rel=1e-6)
    logs = np.log(found.draw(40_000, seed=2))
    assert np.cov(logs.T) == pytest.approx(found.log_covariance, rel=0.03, abs=0.01)
    ratios = (logs[:, 1:] - logs[:, :1]).var(axis=0)
    assert found.log_ratio_variance(0, [1, 2, 3]) == pytest.approx(ratios, rel=0.03)
    ratio = 0.8 * found.energy_j[0] / found.energy_j[3]
    expected = found.probability_ratio_within(0, [3], [ratio])
    assert found.probability_less(3, found, 0, ratio) == expected


def test_estimates_of_another_device_share_no_error(profile):
    own, others = (estimate(profile, 2, joint=True) for _ in range(2))
    ratio = 1.02 * own.energy_j[0] / own.energy_j[1]
    margin = np.log(1.02) / np.sqrt(own.log_variance[:2].sum())
    expected = NormalDist().cdf(margin)
    assert own.probability_less(0, others, 1, ratio) == pytest.approx(expected)
    assert own.probability_less(0, own, 1, ratio) > expected > 0.5
