"""Keyword arguments become option records, and a misspelt one is reported in one line."""

from __future__ import annotations

import pytest

import joulecast
from joulecast.features.options import ProfileOptions
from joulecast.system.errors import InputError

CALLS = {
    "inspect": ("cnn5",),
    "measure": ("cnn5",),
    "profile": ("cnn5",),
    "estimate": ("cnn5",),
    "compare": ("cnn5",),
    "evaluate": ("cnn5",),
}


@pytest.mark.parametrize("verb", [*CALLS, "prune"])
def test_a_misspelt_option_is_an_error_with_a_suggestion(verb):
    function = getattr(joulecast, verb)
    arguments = CALLS.get(verb, ("cnn5",))
    required: dict[str, dict[str, object]] = {"prune": {}}
    options = {"budget": "50%", **required[verb]} if verb in required else {}
    with pytest.raises(InputError, match=r"has no (option|argument) 'nonsense'; choose from"):
        function(*arguments, nonsense=1, **options)
    misspelt, right = "bacth", "batch"
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
