"""Host times by type of call: what all windows share is fitted, the error of one is not."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from joulecast.estimators.additive.decompose import DecomposedObservation
from joulecast.estimators.additive.host_calls import TimedStep, fit_call_durations
from joulecast.estimators.additive.host_time import fit_host_time
from joulecast.estimators.additive.pieces import make_piece
from joulecast.kinds import make_layer, make_op
from joulecast.records import Setup
from joulecast.variants import Part

START_S = 400e-6
CALLS_S = (20e-6, 55e-6, 90e-6, 70e-6)
SETUPS = [Setup(precision=precision) for precision in ("tf32", "bf16")]
OPERATORS = [
    ("linear", {"cin": 64, "cout": 64}),
    ("linear", {"cin": 64, "cout": 64, "bias": 0}),
    ("conv2d", {"cin": 8, "cout": 8, "space": 9, "kernel": 3, "padding": 1}),
    ("layer_norm", {"shape": (64,)}),
    ("elementwise", {"fn": "relu", "shape": (64,)}),
]
TAILS = [(), ("relu",), ("gelu", "tanh"), ("relu", "silu", "tanh")]


def list_pieces():
    """Return pieces of many structures, single layers and blocks."""
    layers = [
        make_layer(kind, tuple(make_op("elementwise", fn=fn) for fn in tail), **sizes)
        for kind, sizes in OPERATORS
        for tail in TAILS
    ]
    blocks = [tuple(layers[at : at + 5]) for at in range(0, len(layers), 3)]
    parts = [Part("hidden", (layer,)) for layer in layers]
    parts += [Part("block", block) for block in blocks]
    return [make_piece(part, setup) for part in parts for setup in SETUPS]


def true_time(piece):
    return sum(calls * call_s for calls, call_s in zip(piece.calls, CALLS_S, strict=True))


def observe_host_bound(piece, count, host_s, is_isolated=True):
    """Return an eager step that waits for its host."""
    key = f"{piece.key} {count}"
    return DecomposedObservation(
        {piece: count}, "eager", None, 0.0, host_s, 0.0, host_s, is_isolated, key
    )


def observe_all(noise, seed=3):
    rng = random.Random(seed)
    found = []
    for piece in list_pieces():
        copies = float(rng.choice((2, 4, 8)))
        host_s = (START_S + copies * true_time(piece)) * math.exp(rng.gauss(0.0, noise))
        found.append(observe_host_bound(piece, copies, host_s))
    return found


def fit(observations):
    size = len(observations)
    return fit_host_time(observations, np.full(size, 1e-5), np.zeros(size))


def predict_time(model, piece, count):
    return model.predict_issue_time({piece: count})[0]


def test_durations_of_calls_are_recovered():
    observations = observe_all(noise=0.0)
    steps = [TimedStep(one, one.duration_s) for one in observations]
    fitted = fit_call_durations(steps, 30e-6)
    assert fitted.start_s == pytest.approx(START_S, rel=0.15)
    assert fitted.calls_s[:3] == pytest.approx(CALLS_S[:3], rel=0.2)
    # Casts come with products, and few of them: they are drawn to the duration of a launch.
    assert sum(fitted.calls_s[2:]) == pytest.approx(sum(CALLS_S[2:]), rel=0.25)
    assert fitted.calls_s[3] == pytest.approx(CALLS_S[3], rel=0.5)
    factors = list(fitted.structure_factors.values())
    assert factors == pytest.approx([1.0] * len(factors), abs=0.1)
    model = fit(observations)
    for piece in list_pieces():
        expected_s = START_S + 20 * true_time(piece)
        assert predict_time(model, piece, 20.0) == pytest.approx(expected_s, rel=0.12)


def test_error_of_one_window_is_not_inherited_by_a_network():
    """A network runs the same block twelve times."""
    observations = observe_all(noise=0.2)
    model, errors, window_errors = fit(observations), [], []
    for one in observations:
        ((piece, copies),) = one.counts.items()
        expected_s = START_S + 12 * true_time(piece)
        errors.append(math.log(predict_time(model, piece, 12.0) / expected_s))
        window_errors.append(math.log(one.duration_s / (START_S + copies * true_time(piece))))
    assert np.std(errors) < 0.7 * np.std(window_errors)


def test_structure_that_several_networks_show_has_its_own_factor():
    piece = list_pieces()[-1]
    networks = [
        observe_host_bound(piece, float(n), 2.0 * n * true_time(piece), is_isolated=False)
        for n in (6, 8, 12)
    ]
    model = fit([*observe_all(noise=0.05), *networks])
    assert predict_time(model, piece, 10.0) == pytest.approx(20.0 * true_time(piece), rel=0.1)


def test_unseen_structure_takes_the_time_of_its_calls():
    observations = observe_all(noise=0.0)
    (unseen,) = observations[-1].counts
    others = [
        one
        for one in observations
        if unseen.structure not in {piece.structure for piece in one.counts}
    ]
    model = fit(others)
    assert unseen.structure not in model.structure_factors
    time_s, sd_s = model.predict_issue_time({unseen: 10.0})
    assert time_s == pytest.approx(START_S + 10 * true_time(unseen), rel=0.15)
    assert sd_s > fit(observations).predict_issue_time({unseen: 10.0})[1]


def test_calls_between_layers_take_as_long_as_launches():
    model, counts = fit(observe_all(noise=0.0)), {list_pieces()[0]: 3.0}
    more_s = model.predict_issue_time(counts, unattributed_calls=100.0)[0]
    more_s -= model.predict_issue_time(counts)[0]
    assert more_s == pytest.approx(100 * model.calls_s[0])


def test_host_that_finished_early_has_not_bound_the_step():
    """Device times may be underestimated; issue times are measured."""
    observations = observe_all(noise=0.0)
    slow = [replace(one, duration_s=60.0 * one.issue_s) for one in observations[::3]]
    assert fit([*observations, *slow]).calls_s == pytest.approx(fit(observations).calls_s, rel=0.05)
