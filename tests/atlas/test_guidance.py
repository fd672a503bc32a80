"""The design decides first, then a score; anchors are never displaced."""

from joulecast.atlas.device_scale import assume_scale
from joulecast.atlas.guidance import BASE_TRIALS, order_remaining
from joulecast.atlas.population import draw_population
from joulecast.atlas.trials import list_trials
from joulecast.records import Observation

SCALE = assume_scale(is_gpu=True, memory_bytes=80 * 2**30)
TRIALS = list_trials(draw_population(3, 3, SCALE), SCALE, ("eager", "graph"), most=40)
MANY = [Observation(TRIALS[0].trial)] * BASE_TRIALS


def prefer_later(trials, observations):
    return list(range(len(trials)))


def test_design_decides_without_a_score_and_before_the_base_is_measured():
    assert order_remaining(TRIALS, MANY) == list(TRIALS)
    assert order_remaining(TRIALS, MANY[:-1], prefer_later) == list(TRIALS)


def test_anchors_come_first_then_the_best_scores():
    found = order_remaining(TRIALS, MANY, prefer_later)
    anchors = [one for one in TRIALS if one.reason == "anchor"]
    others = [one for one in TRIALS if one.reason != "anchor"]
    assert anchors and others
    assert found == [*anchors, *reversed(others)]


def test_equal_scores_keep_the_order_of_the_design():
    found = order_remaining(TRIALS, MANY, lambda trials, seen: [1.0] * len(trials))
    assert found == list(TRIALS)
