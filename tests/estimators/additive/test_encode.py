"""Pieces and observations as arrays."""

from dataclasses import replace

import numpy as np
import pytest

from additive_examples import SETUP, count_network, draw_networks, observe_on_unit
from joulecast.estimators.additive.decompose import decompose_observations
from joulecast.estimators.additive.encode import (
    encode_counts,
    find_short_launch_duration,
    list_pieces,
    make_encoder,
    make_training_data,
    make_unit_loadings,
)
from joulecast.estimators.additive.pieces import make_overhead_piece
from joulecast.estimators.base import UNIT_SD_SHARE


@pytest.fixture(scope="module")
def decomposed(observations):
    return decompose_observations(observations)


def test_networks_become_sums_over_distinct_pieces(model):
    networks = [count_network(network, model) for network in draw_networks(3, seed=1)]
    pieces, sums = encode_counts([*networks, {}])
    assert len(set(pieces)) == len(pieces)
    matrix = sums.to_matrix(len(pieces))
    for row, counts in zip(matrix, [*networks, {}], strict=True):
        assert {pieces[at]: row[at] for at in np.flatnonzero(row)} == counts


def test_unseen_precision_counts_as_the_nearest_one(model):
    network = draw_networks(1, seed=1)[0]
    encoder = replace(model.encoder, flop_classes=("bf16", "fp32"))
    seen, unseen = (
        list(count_network(network, model, replace(SETUP, precision=precision)))
        for precision in ("bf16", "fp16")
    )
    assert (encoder.encode(unseen).basis[:, :2] > 0).tolist() == (
        encoder.encode(seen).basis[:, :2] > 0
    ).tolist()


def test_overhead_has_one_basis_function_of_its_own(decomposed):
    overhead = make_overhead_piece("log")
    encoder = make_encoder([*decomposed, replace(decomposed[0], counts={overhead: 0.01})])
    pieces = [overhead, *list_pieces(decomposed[:3])]
    for durations_s in (None, np.ones(len(pieces))):
        basis = encoder.encode(pieces, durations_s).basis
        assert basis[0].tolist() == [0.0] * (basis.shape[1] - 1) + [1.0]
        assert not basis[1:, -1].any()


def test_durations_are_split_into_short_launches_and_the_rest(decomposed):
    pieces = list_pieces(decomposed)
    durations_s = np.linspace(1e-6, 1e-3, len(pieces))
    encoder = replace(make_encoder(decomposed), short_launch_s=1e-5)
    short_s, busy_s = encoder.encode(pieces, durations_s).basis[:, -2:].T
    assert short_s + busy_s == pytest.approx(durations_s)
    assert (short_s <= 1e-5 * np.array([piece.launches for piece in pieces]) + 1e-18).all()


def test_recurrent_layers_do_not_define_short_launches(decomposed):
    fast = replace(decomposed[0], duration_s=1e-9)
    (piece,) = fast.counts
    recurrent = replace(fast, counts={replace(piece, is_recurrent=True): 1.0})
    others = decomposed[1:]
    assert find_short_launch_duration([recurrent, *others]) == find_short_launch_duration(others)
    assert find_short_launch_duration([fast, *others]) < find_short_launch_duration(others)


def test_training_data_reproduce_the_counts(decomposed):
    pieces = list_pieces(decomposed)
    size = len(decomposed)
    data = make_training_data(decomposed, pieces, [1.0] * size, [0.0] * size)
    for row, one in zip(data.counts, decomposed, strict=True):
        assert {pieces[at]: row[at] for at in np.flatnonzero(row)} == one.counts


def test_units_other_than_the_own_one_have_a_factor(observations):
    other = observe_on_unit(observations[:2], "other", 1.0, 0.0)
    own = observe_on_unit(observations[:1], "own", 1.0, 1.0)
    factors = make_unit_loadings(decompose_observations([*other, *own]), "own")
    assert factors.tolist() == [[UNIT_SD_SHARE], [UNIT_SD_SHARE], [0.0]]
