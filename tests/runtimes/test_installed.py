"""The installed framework is compared with that of a profile."""

from importlib.metadata import version

import pytest

from joulecast.runtimes.installed import explain_runtime_difference, find_installed_runtime

TORCH = "torch-" + version("torch").partition("+")[0]


def test_the_installed_version_is_found_without_its_build():
    assert find_installed_runtime("torch-1.0") == TORCH
    assert "+" not in TORCH


@pytest.mark.parametrize("runtime", ["", "simulated", "unheard-of-2.0", TORCH])
def test_nothing_is_said_about_unknown_or_equal_versions(runtime):
    assert explain_runtime_difference(runtime) == ""


def test_another_version_is_named_with_the_installed_one():
    said = explain_runtime_difference("torch-1.0")
    assert "made with torch 1.0, but torch " in said and TORCH.removeprefix("torch-") in said
