"""Inputs and sums as arrays."""

from dataclasses import replace

import numpy as np

from joulecast.gp.logsums.inputs import (
    append_inputs,
    append_observations,
    sort_by_cell,
)
from logsums_examples import draw_fitted, draw_inputs, draw_sums, to_matrix


def test_cells_are_the_distinct_groups_and_regimes():
    inputs = draw_inputs(np.random.default_rng(0), 40)
    table, cell = inputs.cells
    rows = np.column_stack([inputs.groups, inputs.regimes])
    assert (table[cell] == rows).all()
    assert len(table) == len(np.unique(rows, axis=0))
    for index, members in enumerate(inputs.members):
        assert (members == np.flatnonzero(cell == index)).all()


def test_taken_sums_are_rows_of_the_matrix():
    rng = np.random.default_rng(1)
    sums = draw_sums(rng, 10, 4, 5)
    index = np.array([7, 0, 5, 5])
    taken = sums.take(index)
    assert (to_matrix(taken.counts, 10) == to_matrix(sums.counts, 10)[index]).all()
    assert (to_matrix(taken.structures, 3) == to_matrix(sums.structures, 3)[index]).all()
    used, narrowed = taken.narrow()
    assert (to_matrix(narrowed.counts, len(used)) == to_matrix(taken.counts, 10)[:, used]).all()


def test_sorted_observations_are_over_the_same_inputs():
    fitted, _ = draw_fitted(np.random.default_rng(2))
    index, observations = sort_by_cell(fitted.inputs, fitted.observations)
    before = to_matrix(fitted.observations.sums.counts, fitted.inputs.size)
    after = to_matrix(observations.sums.counts, len(index))
    assert (after == before[:, index]).all()
    assert (np.diff(fitted.inputs.cells[1][index]) >= 0).all()


def test_appended_observations_come_last():
    fitted, _ = draw_fitted(np.random.default_rng(3))
    one = fitted.observations
    both = append_observations(one, one.take(np.array([2])))
    assert both.size == one.size + 1
    matrix = to_matrix(both.sums.counts, fitted.inputs.size)
    assert (matrix[-1] == matrix[2]).all()


def test_appended_inputs_keep_what_both_have():
    rng = np.random.default_rng(5)
    one, two = draw_inputs(rng, 3, caps=True), draw_inputs(rng, 2, first_identity=3, caps=True)
    shifted = replace(one, log_basis=np.ones((3, 1)))
    both = append_inputs(shifted, replace(two, log_basis=np.zeros((2, 1))))
    assert both.log_basis[:, 0].tolist() == [1, 1, 1, 0, 0]
    assert both.take(np.array([0, 4])).log_basis[:, 0].tolist() == [1, 0]
    assert both.log_caps.tolist() == [*one.log_caps, *two.log_caps]
    assert append_inputs(shifted, two).log_basis is None
