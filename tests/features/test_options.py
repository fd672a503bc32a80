"""Keyword arguments become option records, and a misspelt one is reported in one line."""

from __future__ import annotations

import pytest

import joulecast
from joulecast.errors import InputError
from joulecast.features.options import MeasureOptions, ProfileOptions, split_options
from joulecast.records import Setup

CALLS = {
    "inspect": ("cnn5",),
    "measure": ("cnn5",),
    "profile": ("cnn5",),
    "estimate": ("cnn5",),
    "compare": ("cnn5",),
    "plan": ("jobs.toml",),
    "evaluate": ("cnn5",),
}


def test_options_are_split_by_record():
    options = {"batch": 8, "rounds": 5, "on": "cuda:0"}
    setup, measuring = split_options(joulecast.measure, options, Setup, MeasureOptions)
    assert setup == {"batch": 8}
    assert MeasureOptions(**measuring) == MeasureOptions("cuda:0", rounds=5)


@pytest.mark.parametrize("verb", [*CALLS, "search", "prune"])
def test_a_misspelt_option_is_an_error_with_a_suggestion(verb):
    function = getattr(joulecast, verb)
    arguments = CALLS.get(verb, ("cnn5",))
    required = {"search": {"score": len}, "prune": {}}
    options = {"budget": "50%", **required[verb]} if verb in required else {}
    with pytest.raises(InputError, match="has no (option|argument) 'nonsense'; choose from"):
        function(*arguments, nonsense=1, **options)
    misspelt, right = ("confidenec", "confidence") if verb == "plan" else ("bacth", "batch")
    with pytest.raises(InputError) as caught:
        function(*arguments, **{misspelt: 8}, **options)
    assert f"joulecast.{verb} has no " in str(caught.value)
    assert f"{misspelt!r}; did you mean {right!r}?" in str(caught.value)


def test_parameters_of_the_function_are_suggested_too():
    with pytest.raises(InputError, match="did you mean 'input_shape'"):
        joulecast.profile("cnn5", input_shpae=(3, 32, 32))


def test_a_campaign_without_limits_ends_after_ten_minutes():
    assert ProfileOptions().limit_s == 600
    assert ProfileOptions(points=3).limit_s is None
    assert ProfileOptions(points=3, seconds=5).limit_s == 5


@pytest.mark.parametrize("confidence", [0.3, 1.0])
def test_a_plan_needs_a_confidence_of_at_least_a_half(confidence):
    with pytest.raises(InputError, match=r"from 0\.5 to below 1"):
        joulecast.plan("jobs.toml", confidence=confidence)
