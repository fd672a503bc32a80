"""Host times by sort of call: what all windows share is learnt, what one window shows hardly is."""

import math
import random
from dataclasses import replace

import pytest

from joulecast.estimators.additive.decompose import Look
from joulecast.estimators.additive.host_calls import fit_calls
from joulecast.estimators.additive.host_time import fit_clock
from joulecast.estimators.additive.pieces import make_piece
from joulecast.kinds import make_layer, make_op
from joulecast.records import Setup
from joulecast.variants import Part

np = pytest.importorskip("numpy")

BEGIN_S = 400e-6
SECONDS = (20e-6, 55e-6, 90e-6, 70e-6)
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
    """Structures of many shapes, alone and as blocks."""
    layers = [
        make_layer(kind, tuple(make_op("elementwise", fn=fn) for fn in tail), **sizes)
        for kind, sizes in OPERATORS
        for tail in TAILS
    ]
    blocks = [tuple(layers[at : at + 5]) for at in range(0, len(layers), 3)]
    parts = [Part("hidden", (layer,)) for layer in layers]
    parts += [Part("block", block) for block in blocks]
    return [make_piece(part, setup) for part in parts for setup in SETUPS]


def take(piece):
    return sum(map(lambda calls, call_s: calls * call_s, piece.calls, SECONDS))


def look(counts, host_s, whole=False):
    """An eager step that waits for its host."""
    key = "+".join(piece.key for piece, _ in counts)
    return Look(tuple(counts), "eager", None, 0.0, host_s, 0.0, host_s, whole, key)


def time_all(noise, seed=3):
    rng = random.Random(seed)
    found = []
    for piece in list_pieces():
        copies = float(rng.choice((2, 4, 8)))
        host_s = (BEGIN_S + copies * take(piece)) * math.exp(rng.gauss(0.0, noise))
        found.append(look([(piece, copies)], host_s))
    return found


def fit(looks):
    return fit_clock(looks, np.full(len(looks), 1e-5), np.zeros(len(looks)))


def test_seconds_of_calls_are_those_of_the_law():
    looks = time_all(noise=0.0)
    begin_s, calls_s, habits = fit_calls([(one, one.duration_s) for one in looks], 30e-6)
    assert begin_s == pytest.approx(BEGIN_S, rel=0.15)
    assert calls_s[:3] == pytest.approx(SECONDS[:3], rel=0.2)
    # Casts come with products, and few of them: they are drawn to the time of a launch.
    assert sum(calls_s[2:]) == pytest.approx(sum(SECONDS[2:]), rel=0.25)
    assert calls_s[3] == pytest.approx(SECONDS[3], rel=0.5)
    assert list(habits.values()) == pytest.approx([1.0] * len(habits), abs=0.1)
    clock = fit(looks)
    for piece in list_pieces():
        true_s = BEGIN_S + 20 * take(piece)
        assert clock.issue([(piece, 20.0)])[0] == pytest.approx(true_s, rel=0.12)


def test_a_net_is_known_better_than_one_window_of_its_block():
    """Twelve times the same block: the error of its window is not taken over."""
    looks = time_all(noise=0.2)
    clock, off, alone_off = fit(looks), [], []
    for one in looks:
        ((piece, copies),) = one.counts
        true_s = BEGIN_S + 12 * take(piece)
        off.append(math.log(clock.issue([(piece, 12.0)])[0] / true_s))
        alone_off.append(math.log(one.duration_s / (BEGIN_S + copies * take(piece))))
    assert np.std(off) < 0.7 * np.std(alone_off)


def test_a_structure_that_nets_show_again_and_again_has_its_own_time():
    odd = list_pieces()[-1]
    looks = time_all(noise=0.05)
    nets = [look([(odd, float(n))], 2.0 * n * take(odd), whole=True) for n in (6, 8, 12)]
    clock = fit([*looks, *nets])
    assert clock.issue([(odd, 10.0)])[0] == pytest.approx(20.0 * take(odd), rel=0.1)


def test_a_structure_that_nobody_timed_takes_what_its_calls_take():
    looks = time_all(noise=0.0)
    strange = looks[-1].counts[0][0]
    clock = fit([one for one in looks if one.counts[0][0].frame != strange.frame])
    assert strange.frame not in clock.habits
    time_s, sd_s = clock.issue([(strange, 10.0)])
    assert time_s == pytest.approx(BEGIN_S + 10 * take(strange), rel=0.15)
    assert sd_s > fit(looks).issue([(strange, 10.0)])[1]


def test_calls_between_layers_take_as_long_as_launches():
    clock = fit(time_all(noise=0.0))
    counts = [(list_pieces()[0], 3.0)]
    more_s = clock.issue(counts, between=100.0)[0] - clock.issue(counts)[0]
    assert more_s == pytest.approx(100 * clock.calls_s[0])


def test_a_host_that_was_done_long_before_has_not_held_up_the_step():
    """What kernels take may be guessed far too low; how long issuing took is measured."""
    looks = time_all(noise=0.0)
    slow = [replace(one, duration_s=60.0 * one.issue_s) for one in looks[::3]]
    assert fit([*looks, *slow]).calls_s == pytest.approx(fit(looks).calls_s, rel=0.05)
