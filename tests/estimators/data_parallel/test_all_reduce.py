"""The all-reduce: ring, buckets, what hides behind the backward pass, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulecast.estimators.data_parallel import (
    BUCKET_BYTES,
    AllReduceCost,
    BackwardPart,
    RingAssumptions,
    expected_maximum,
    find_spread,
    model_all_reduce,
    ring_assumptions,
)

LINK = 100e9
# A ring at full speed and nothing else.
IDEAL = RingAssumptions(
    efficiency=1.0,
    hop_s=0.0,
    contention_share=0.0,
    speed_sd_share=0.0,
    byte_j=0.0,
    waiting_w=0.0,
)


def spread_evenly(size_bytes: float, backward_s: float, count: int = 100) -> list[BackwardPart]:
    return [BackwardPart(backward_s / count, size_bytes / count)] * count


def model(
    assumed: RingAssumptions, gpus: int = 4, size_bytes: float = 1e9, backward_s: float = 1.0
) -> AllReduceCost:
    return model_all_reduce(gpus, LINK, 1.5, spread_evenly(size_bytes, backward_s), assumed)


@pytest.mark.parametrize(("gpus", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_a_ring_sends_twice_all_but_its_own_part(gpus: int, factor: float) -> None:
    found = model(IDEAL, gpus)
    assert found.all_reduce_s == pytest.approx(factor * 1e9 / LINK)
    assert found.gradient_bytes == pytest.approx(1e9)


def test_only_the_last_bucket_is_exposed_if_the_link_is_fast() -> None:
    found = model(IDEAL)
    # 10 MB parts: one of them fills the first bucket, three fill each of the others.
    last_bytes = (100 - 1) % 3 * 10e6 or 30e6
    assert found.buckets == 34
    assert found.exposed_s == pytest.approx(1.5 * last_bytes / LINK)
    assert found.added_s == found.exposed_s


def test_a_slow_link_exposes_what_the_backward_pass_cannot_hide() -> None:
    found = model(IDEAL, backward_s=0.005)
    # It starts after the first of 100 parts.
    assert found.exposed_s == pytest.approx(found.all_reduce_s + 0.00005 - 0.005)


def test_gradients_that_come_last_wait_longest() -> None:
    """An embedding is the first layer, so its gradient is the last: nothing is left to hide it."""
    large, small = BackwardPart(0.5, 5e8), BackwardPart(0.5, 1e6)
    first = model_all_reduce(4, LINK, 1.5, [large, small], IDEAL)
    last = model_all_reduce(4, LINK, 1.5, [small, large], IDEAL)
    assert last.all_reduce_s == pytest.approx(first.all_reduce_s)
    assert last.exposed_s > 100 * first.exposed_s


def test_every_bucket_costs_its_hops() -> None:
    hop = replace(IDEAL, hop_s=1e-5)
    found, without = model(hop), model(IDEAL)
    assert found.all_reduce_s - without.all_reduce_s == pytest.approx(34 * 6 * 1e-5)
    assert model(hop, size_bytes=BUCKET_BYTES).buckets < 4


def test_slower_kernels_and_the_slowest_gpu_add_time() -> None:
    plain = model(IDEAL)
    slower = model(replace(IDEAL, contention_share=0.2))
    hidden_s = plain.all_reduce_s - plain.exposed_s
    assert slower.added_s - plain.added_s == pytest.approx(0.2 * hidden_s)
    late = model(replace(IDEAL, speed_sd_share=0.01))
    assert late.added_s - plain.added_s == pytest.approx(0.01 * expected_maximum(4) * 1.5)


def test_energy_is_waiting_and_bytes_of_all_gpus() -> None:
    found = model(replace(IDEAL, waiting_w=100.0, byte_j=1e-10))
    assert found.added_j == pytest.approx(4 * (100.0 * found.added_s + 1e-10 * 1.5e9))


def test_expected_maximum_of_normals() -> None:
    """Exact values are 0.564, 1.029 and 1.424."""
    found = [expected_maximum(count) for count in (1, 2, 4, 8)]
    assert found == pytest.approx([0.0, 0.564, 1.029, 1.424], abs=0.03)


def test_frozen_weights_need_no_all_reduce() -> None:
    found = model_all_reduce(4, LINK, 1.5, [BackwardPart(1.0, 0.0)], ring_assumptions(LINK, 100.0))
    assert (found.buckets, found.all_reduce_s, found.exposed_s) == (0, 0.0, 0.0)


def test_pcie_is_less_efficient_and_less_certain_than_nvlink() -> None:
    parts = spread_evenly(1e9, 0.05)
    spreads = []
    for link in (32e9, 300e9):
        ring = 4, link, 0.1, parts, ring_assumptions(link, 100.0)
        found, (sd_s, sd_j) = model_all_reduce(*ring), find_spread(*ring)
        assert sd_s > 0 and sd_j > 0
        spreads.append(sd_s / found.added_s)
    assert ring_assumptions(32e9, 1.0).efficiency < ring_assumptions(300e9, 1.0).efficiency
    assert spreads[0] > spreads[1]
