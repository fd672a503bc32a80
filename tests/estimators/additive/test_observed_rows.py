"""Observations as rows of the processes."""

from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.additive.fit import (
    encode_decomposed,
    find_powers,
    observe_durations,
)
from joulecast.estimators.additive.observations import decompose_observations
from joulecast.estimators.additive.predict import predict_durations


@pytest.fixture(scope="module")
def rows(observations):
    return [one for one in decompose_observations(observations) if one.mode == "graph"]


def test_rows_of_durations_are_logarithms(model, rows):
    sums = encode_decomposed(model.encoder, rows)
    operator_s = predict_durations(model.encoder, model.duration, sums).by_operator
    found = observe_durations(rows, sums, operator_s)
    assert np.exp(found.log_values) == pytest.approx([one.duration_s for one in rows])


def test_powers_of_graphs_are_energy_over_time_and_need_both(model, rows):
    timed = [replace(one, energy_j=None) for one in rows[:2]]
    some = [*timed, *rows[2:5]]
    busy = predict_durations(model.encoder, model.duration, encode_decomposed(model.encoder, some))
    found = find_powers(some, busy, "graph", model.idle_w, 0.0)
    assert [one.observation for one in found] == rows[2:5]
    assert [one.power_w for one in found] == pytest.approx(
        [one.energy_j / one.duration_s for one in rows[2:5]]
    )


def test_networks_are_one_stratum_and_labels_are_others(model, observations):
    every = [one for one in decompose_observations(observations) if one.duration_s]
    sums = encode_decomposed(model.encoder, every)
    strata = observe_durations(every, sums, np.ones(len(sums.operators))).strata
    networks = {number for one, number in zip(every, strata, strict=True) if not one.is_isolated}
    labels = {number for one, number in zip(every, strata, strict=True) if one.is_isolated}
    assert len(networks) == 1 and len(labels) > 1 and not networks & labels
