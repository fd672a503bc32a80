"""Experiments on a simulated device, with few networks and little device time."""

from __future__ import annotations

from dataclasses import replace

import pytest

import joulecast
from joulecast.uses.reproduce import paper_settings, pruned_networks

DEVICE = "simulated:7"
# Test networks, how many of them twice, and seconds of the paper's method and of ours.
TINY = {
    "lenet5": (3, 1, 10.0, 5.0),
    "cnn5": (9, 2, 38.0, 5.0),
    "har": (3, 1, 10.0, 5.0),
    "lstm": (3, 1, 10.0, 5.0),
    "transformer": (3, 1, 10.0, 5.0),
    "resnet34": (3, 1, 10.0, 5.0),
    "resnet50": (1, 1, 10.0, 5.0),
}


@pytest.fixture(scope="session")
def tiny():
    """Shrink --quick for as long as tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_settings, "_QUICK", TINY)
        small = replace(pruned_networks._QUICK_SMALL, seeds=1)
        patch.setattr(pruned_networks, "_QUICK_SMALL", small)
        yield


@pytest.fixture(scope="session")
def reproduced(tiny, tmp_path_factory):
    """Return the folder of all experiments on a simulated device, and their outcome."""
    folder = tmp_path_factory.mktemp("reproduce") / "simulated"
    return folder, joulecast.reproduce("all", on=DEVICE, out=str(folder), quick=True)
