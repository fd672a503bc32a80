"""The best rates of a device, read off its observations."""

from dataclasses import replace

import pytest

from additive_examples import SETUP, draw_networks, observe_parts
from joulecast.estimators.additive.layers import make_overhead
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.roofline import find_roofline
from joulecast.records import FLOAT_PRECISIONS


@pytest.fixture(scope="module")
def timed(device):
    return decompose_observations(observe_parts(device, draw_networks(6, seed=1)))


def test_no_observation_beats_the_rates_but_perhaps_one(timed):
    """The single best of many may be an error."""
    roofline = find_roofline(timed)
    work = [sum_work(one) for one in timed]
    by_launch = sorted(
        one.duration_s / launches for one, (_, launches) in zip(timed, work, strict=True)
    )
    assert roofline.launch_s == pytest.approx(by_launch[1])
    by_flop = sorted(one.duration_s / flops for one, (flops, _) in zip(timed, work, strict=True))
    assert roofline.flop_s["fp32"] == pytest.approx(by_flop[1])


def sum_work(one):
    """Return the FLOPs and launches of an observation."""
    leaves = [
        (leaf, count * repeats)
        for piece, count in one.counts.items()
        for leaf, repeats in piece.own_operators
    ]
    flops = sum(leaf.padded_flops * count for leaf, count in leaves)
    return flops, sum(leaf.launches * count for leaf, count in leaves)


def test_single_wrong_duration_does_not_set_a_rate(timed):
    wrong = replace(timed[0], duration_s=1e-3 * timed[0].duration_s)
    plain, disturbed = (find_roofline(some) for some in (timed[1:], [wrong, *timed[1:]]))
    assert disturbed.flop_s["fp32"] >= 0.5 * plain.flop_s["fp32"]
    assert disturbed.launch_s >= 0.5 * plain.launch_s


def test_unseen_precision_is_guessed_and_less_certain(timed):
    roofline = find_roofline(timed)
    seen = FLOAT_PRECISIONS.index("fp32")
    assert roofline.flop_s["bf16"] == roofline.flop_s["fp16"] < roofline.flop_s["tf32"]
    assert roofline.flop_s["tf32"] < roofline.flop_s["fp32"]
    log_sds = roofline.log_sds[1:-1]
    assert all(log_sds[seen] < sd for at, sd in enumerate(log_sds) if at != seen)


def test_precisions_have_rates_of_their_own(device, timed):
    half = observe_parts(device, draw_networks(6, seed=1), replace(SETUP, precision="bf16"))
    both = find_roofline([*timed, *decompose_observations(half)])
    assert both.flop_s["fp32"] == pytest.approx(find_roofline(timed).flop_s["fp32"], rel=0.15)
    assert both.flop_s["bf16"] < 0.5 * both.flop_s["fp32"]


def test_overheads_of_imported_runs_are_no_work(timed):
    overhead = make_overhead("log")
    more = [replace(one, counts={**one.counts, overhead: 0.01}) for one in timed]
    found, plain = find_roofline(more), find_roofline(timed)
    assert found.flop_s["fp32"] == pytest.approx(plain.flop_s["fp32"], rel=0.15)
    assert found.byte_s == pytest.approx(plain.byte_s, rel=0.15)
    # An overhead is not the duration of launches.
    assert found.log_sds[0] > plain.log_sds[0]


def test_costs_are_positive_without_any_observation():
    roofline = find_roofline([])
    assert all(cost > 0 for cost in roofline.costs)
    assert len(roofline.costs) == len(roofline.log_sds) == len(FLOAT_PRECISIONS) + 2


def test_half_precisions_are_guessed_from_each_other(device):
    half = observe_parts(device, draw_networks(3, seed=1), replace(SETUP, precision="bf16"))
    roofline = find_roofline(decompose_observations(half))
    assert roofline.flop_s["fp16"] == roofline.flop_s["bf16"]
