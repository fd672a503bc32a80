"""A folder of a pruned module is data: loading it runs no code that it names."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from joulecast.errors import FileError
from joulecast.families import make_family
from joulecast.runtimes.torch.build import build_net
from joulecast.runtimes.torch.channel_removal import ARCHITECTURE, WEIGHTS, load_pruned, save_pruned

NETWORK = make_family("lenet5:2,4,8,8")
REMOVED = {"0": {"out": [1]}, "1": {"in": [1]}}


def make_original():
    return nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a pruned module that names a callable."""
    pruned = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3))
    save_pruned(pruned, tmp_path, network=NETWORK, removed=REMOVED, source="evil.py:make")
    return tmp_path


def change(folder, **values):
    path = folder / ARCHITECTURE
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", ["{}/evil.py:make", "evil:make", "os:getcwd"])
def test_no_code_that_a_folder_names_is_run(folder, monkeypatch, name):
    (folder / "evil.py").write_text("import sys\nsys.was_run = True\ndef make(): return None")
    monkeypatch.chdir(folder)
    change(folder, net=name.format(folder))
    with pytest.raises(FileError, match=r"was pruned from .*: give the original module as net"):
        load_pruned(folder)
    assert load_pruned(folder, make_original())[0].out_features == 1
    assert not hasattr(sys, "was_run") and "evil" not in sys.modules


def test_a_built_network_needs_no_module(tmp_path):
    pruned = build_net(NETWORK)
    save_pruned(pruned, tmp_path, network=NETWORK, removed={})
    again = load_pruned(tmp_path)
    for old, new in zip(pruned.parameters(), again.parameters(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize(
    "removed",
    [[], None, 7, {"0": []}, {"0": {"out": "x"}}, {"nowhere": {"out": [0]}}, {"forward": {"": []}}],
)
def test_damaged_channels_are_one_line(folder, removed):
    change(folder, removed=removed)
    with pytest.raises(FileError, match="cannot be rebuilt"):
        load_pruned(folder, make_original())


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\xff" * 8 + b"{}"])
def test_damaged_weights_are_one_line(folder, data):
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(FileError, match="cannot be rebuilt"):
        load_pruned(folder, make_original())


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"format": "other"}'])
def test_other_files_are_refused(folder, text):
    (folder / ARCHITECTURE).write_text(text)
    with pytest.raises(FileError, match=r"give (the|a) folder"):
        load_pruned(folder)
