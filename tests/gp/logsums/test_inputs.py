"""Inputs and sums as arrays."""

from dataclasses import replace

import numpy as np

from logsums_examples import draw_fitted, draw_inputs, draw_sums, to_matrix


def test_cells_are_the_distinct_groups_and_regimes():
    inputs = draw_inputs(np.random.default_rng(0), 40)
    table, cell = inputs.cells
    rows = np.column_stack([inputs.groups, inputs.regimes])
    assert (table[cell] == rows).all()
    assert len(table) == len(np.unique(rows, axis=0))


def test_taken_sums_are_rows_of_the_matrix():
    sums = draw_sums(np.random.default_rng(1), 10, 4, 5)
    index = np.array([7, 0, 5, 5])
    taken = sums.take(index)
    assert (to_matrix(taken.counts, 10) == to_matrix(sums.counts, 10)[index]).all()
    assert (to_matrix(taken.structures, 9) == to_matrix(sums.structures, 9)[index]).all()
    used, narrowed = taken.narrow()
    assert (to_matrix(narrowed.counts, len(used)) == to_matrix(taken.counts, 10)[:, used]).all()
    both = to_matrix(sums.append(taken).counts, 10)
    assert (both == to_matrix(sums.counts, 10)[[*range(9), *index]]).all()


def test_narrowed_observations_are_over_the_same_inputs():
    fitted, _ = draw_fitted(np.random.default_rng(2))
    rows = np.array([0, 3, 21, 22, 31])
    own, size = fitted.narrow(rows), fitted.inputs.size
    place = [fitted.inputs.identities.tolist().index(one) for one in own.inputs.identities]
    for one, two in (
        (own.observations.sums.counts, fitted.observations.sums.counts),
        (own.linear.weights, fitted.linear.weights),
    ):
        assert (to_matrix(one, len(place)) == to_matrix(two, size)[np.ix_(rows, place)]).all()
    assert (own.observations.log_values == fitted.observations.log_values[rows]).all()
    assert (np.diff(fitted.inputs.cells[1][place]) >= 0).all()


def test_appended_inputs_keep_what_both_have():
    rng = np.random.default_rng(5)
    one, two = draw_inputs(rng, 3, caps=True), draw_inputs(rng, 2, first_identity=3, caps=True)
    shifted = replace(one, log_basis=np.ones((3, 1)))
    both = shifted.append(replace(two, log_basis=np.zeros((2, 1))))
    assert both.log_basis[:, 0].tolist() == [1, 1, 1, 0, 0]
    assert both.take(np.array([0, 4])).log_basis[:, 0].tolist() == [1, 0]
    assert both.log_caps.tolist() == [*one.log_caps, *two.log_caps]
    assert shifted.append(two).log_basis is None
