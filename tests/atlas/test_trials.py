"""Trials of an atlas: what fits a device, in a useful order, without what was observed."""

from __future__ import annotations

import time

import pytest

from joulecast.atlas.device_scale import GIB, assume_scale
from joulecast.atlas.population import Population, draw_population
from joulecast.atlas.trials import AtlasTrial, list_trials
from joulecast.kinds import peak_memory
from joulecast.records import Observation

MODES = ("eager", "graph")
SCALE = assume_scale(True, 141 * GIB)


@pytest.fixture(scope="module")
def population() -> Population:
    return draw_population(0, 100)


@pytest.fixture(scope="module")
def trials(population: Population) -> tuple[AtlasTrial, ...]:
    return list_trials(population, SCALE, MODES)


def test_trials_are_reproducible_and_distinct(
    population: Population, trials: tuple[AtlasTrial, ...]
) -> None:
    assert list_trials(population, SCALE, MODES) == trials
    pieces = [one.trial.key for one in trials if one.reason != "anchor"]
    assert len(set(pieces)) == len(pieces)


def test_anchors_come_first(trials: tuple[AtlasTrial, ...]) -> None:
    assert [one.reason for one in trials[:10]] == ["anchor"] * 10
    assert [one.with_energy for one in trials[:10]] == [False] * 5 + [True] * 5
    assert all(one.reason != "anchor" for one in trials[10:])


def test_every_label_comes_within_the_first_third(trials: tuple[AtlasTrial, ...]) -> None:
    labels = {one.label for one in trials}
    assert {one.label for one in trials[: len(trials) // 3]} == labels


def test_about_one_trial_in_five_is_measured_with_energy(trials: tuple[AtlasTrial, ...]) -> None:
    for size in (200, 500, len(trials)):
        share = sum(one.with_energy for one in trials[:size]) / size
        assert 0.12 < share < 0.3
    kinds = {one.label.rpartition(" ")[0] for one in trials if not one.label.startswith("block:")}
    metered = {one.label.rpartition(" ")[0] for one in trials if one.with_energy}
    assert kinds <= metered


def test_structures_of_blocks_are_issued_eagerly_once(trials: tuple[AtlasTrial, ...]) -> None:
    hosts = [one for one in trials if one.reason == "host"]
    assert len(hosts) > 20
    assert all(one.trial.execution.mode == "eager" and not one.with_energy for one in hosts)
    others = [one for one in trials if one.reason != "host"]
    assert all(one.trial.execution.mode == "graph" for one in others)


def test_without_graphs_there_are_no_host_trials(population: Population) -> None:
    found = list_trials(population, SCALE, ("eager",))
    assert {one.reason for one in found} == {"anchor", "piece"}
    assert {one.trial.execution.mode for one in found} == {"eager"}


@pytest.mark.parametrize("memory_bytes", [1 * GIB, 8 * GIB, 141 * GIB])
def test_trials_fit_the_memory(population: Population, memory_bytes: int) -> None:
    found = list_trials(population, assume_scale(True, memory_bytes), MODES)
    assert len(found) > 100
    for one in found:
        trial = one.trial
        used_bytes = trial.execution.copies * peak_memory(trial.network, trial.setup)
        assert used_bytes <= memory_bytes
        assert trial.execution.copies >= 1


def test_a_processor_gets_short_trials_in_its_precisions() -> None:
    scale = assume_scale(False, 16 * GIB)
    found = list_trials(draw_population(0, 60, scale), scale)
    assert {one.trial.setup.precision for one in found} == {"fp32", "bf16"}


def test_what_was_observed_is_left_out(
    population: Population, trials: tuple[AtlasTrial, ...]
) -> None:
    done = [
        Observation(one.trial, energy_j=1.0 if one.with_energy else None, duration_s=1.0)
        for one in trials[:50]
    ]
    assert list_trials(population, SCALE, MODES, done) == trials[50:]


def test_a_timed_trial_still_needs_its_energy_and_a_refused_one_does_not(
    population: Population, trials: tuple[AtlasTrial, ...]
) -> None:
    wanted = next(one for one in trials if one.with_energy and one.reason == "piece")
    timed = [Observation(wanted.trial, duration_s=1.0)]
    assert wanted in list_trials(population, SCALE, MODES, timed)
    refused = [Observation(wanted.trial)]
    assert wanted not in list_trials(population, SCALE, MODES, refused)


def test_the_number_of_trials_is_limited(population: Population) -> None:
    assert len(list_trials(population, SCALE, MODES, most=30)) == 30


def test_listing_is_quick() -> None:
    """Some 2,000 trials; processor time, because tests run side by side."""
    started_s = time.process_time()
    list_trials(draw_population(1, 100), SCALE, MODES)
    assert time.process_time() - started_s < 8.0
