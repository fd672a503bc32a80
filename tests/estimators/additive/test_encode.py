"""Layers and sums over their operators as arrays."""

from dataclasses import replace

import numpy as np
import pytest

from additive_examples import SETUP, count_network, draw_networks, encode_sums
from joulecast.estimators.additive.encode import OperatorEncoder, number_name
from joulecast.estimators.additive.layers import make_overhead, set_up_layer
from joulecast.families import make_family
from joulecast.operators import make_layer
from joulecast.variants import Block
from logsums_examples import to_matrix


@pytest.fixture(scope="module")
def encoder(model):
    return model.encoder


@pytest.fixture(scope="module")
def operators():
    return encode_sums([count_network(make_family("transformer:64,2"))]).operators


def sum_operators(counts):
    found = {}
    for layer, count in counts.items():
        for operator, repeats in layer.own_operators:
            found[operator] = found.get(operator, 0.0) + count * repeats
    return found


def test_networks_become_sums_over_distinct_operators():
    networks = [count_network(network) for network in draw_networks(3, seed=1)]
    networks.append(count_network(make_family("transformer:64,2")))
    sums = encode_sums([*networks, {}])
    assert len(set(sums.operators)) == len(sums.operators)
    matrix = to_matrix(sums.counts, len(sums.operators))
    for row, counts in zip(matrix, [*networks, {}], strict=True):
        found = {sums.operators[at]: row[at] for at in np.flatnonzero(row)}
        assert found == pytest.approx(sum_operators(counts))
    assert any(layer.is_block for layer in sums.layers)
    assert all(layer.operators for layer in sums.layers)


def test_isolated_sum_moves_less_than_it_does_in_a_network():
    """Two inputs of a sum are one tensor if it runs alone."""
    layer = make_layer("elementwise", fn="add", inputs=2, shape=(64, 8, 8))
    layer = set_up_layer(Block("hidden", (replace(layer, reads=(1, 1), join="add"),)), SETUP)
    inside, alone = (encode_sums([{layer: 1.0}], [flag]).operators for flag in (True, False))
    assert sum(operator.size_bytes for operator in alone) < sum(
        operator.size_bytes for operator in inside
    )


def test_identities_tell_sums_apart_in_any_order():
    one, two = (count_network(network) for network in draw_networks(2, seed=1))
    backwards = dict(reversed(one.items()))
    identities = encode_sums([one, backwards, two]).identities
    assert identities[0] == identities[1] != identities[2]


def test_numbers_of_names_are_the_same_on_every_machine():
    assert number_name("networks") == 7911472207318826337
    assert number_name("networks") != number_name("network")


def test_flops_count_in_their_own_precision(encoder):
    network = draw_networks(1, seed=1)[0]
    used = []
    for precision in ("bf16", "fp16"):
        counts = count_network(network, replace(SETUP, precision=precision))
        basis = encoder.encode_durations(encode_sums([counts]).operators).basis
        used.append(set(np.flatnonzero(basis.any(axis=0)).tolist()))
    # Launches and bytes are common, FLOPs are not.
    assert len(used[0]) == len(used[1]) == 3
    assert len(used[0] & used[1]) == 2


def test_overhead_has_one_basis_function_of_its_own(encoder, operators):
    overhead = make_overhead("log")
    own = OperatorEncoder(encoder.roofline, (overhead.kind,), encoder.power_limit_w)
    inputs = [
        own.encode_durations([overhead, *operators]),
        own.encode_powers([overhead, *operators], np.ones(1 + len(operators))),
    ]
    for one in inputs:
        assert one.basis[0].tolist() == [0.0] * (one.basis.shape[1] - 1) + [1.0]
        assert not one.basis[1:, -1].any()
        assert one.basis[1:, :-1].any(axis=1).all()


def test_powers_depend_on_achieved_rates(encoder, operators):
    """Half the duration is twice the rate."""
    durations_s = np.full(len(operators), 1e-3)
    slow, fast = (encoder.encode_powers(operators, durations_s * factor) for factor in (1.0, 0.5))
    assert fast.basis[:, 2:] == pytest.approx(2.0 * slow.basis[:, 2:])
    assert (slow.basis[:, 0] == fast.basis[:, 0]).all()
    assert np.exp(slow.log_caps) == pytest.approx(encoder.power_limit_w)


def test_short_launches_leave_the_device_idle(encoder, operators):
    launches = np.array([max(operator.launches, 1) for operator in operators])
    shortest_s = encoder.roofline.launch_s * launches
    busy = [encoder.encode_powers(operators, times * shortest_s).basis[:, 1] for times in (1, 1000)]
    assert not busy[0].any()
    assert (busy[1] > 0.99).all()


def test_structures_have_their_share_of_a_sum(operators):
    """A network's discrepancy is its own, and one that all networks have."""
    sums = encode_sums([count_network(make_family("transformer:64,2"))])
    structures = sums.make_log_sums(np.ones(len(sums.operators))).structures
    weights = dict(zip(structures.column.tolist(), structures.weight.tolist(), strict=True))
    assert number_name("networks") in weights and int(sums.identities[0]) in weights
    is_block = np.array([layer.is_block for layer in sums.layers])
    count = sums.count[sums.layer >= 0] * is_block[sums.layer[sums.layer >= 0]]
    assert weights[number_name("blocks")] == pytest.approx(count.sum() / sums.count.sum())
    on_unit = sums.make_log_sums(np.ones(len(sums.operators)), ["mine"]).structures
    assert number_name("unit mine") in on_unit.column.tolist()
