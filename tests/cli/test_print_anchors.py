"""``profile --anchors``: measured, printed, refused, and narrowing estimates from a data sheet."""

from __future__ import annotations

import math

import pytest

ANCHORS = ("profile", "--anchors", "--on", "simulated:7")
TOML = """name = "simulated-7"
units = 46
clock_mhz = 1725
bandwidth_gb_s = 200
memory_gib = 16
power_limit_w = 130
tflops = { fp32 = 8.0, tf32 = 24.0, bf16 = 48.0 }
"""


@pytest.fixture
def described(shell, tmp_path, monkeypatch):
    """Describe the simulated device by a data sheet that is off by a fifth."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "card.toml"
    path.write_text(TOML)
    shell("devices", "--add", str(path))
    return shell


def find_width(answer):
    low_j, high_j = answer["interval_j"]
    return math.log(high_j / low_j)


def test_anchors_narrow_a_net_that_keeps_the_device_busy(described):
    """Nets that wait for the host gain nothing: anchors tell about the device alone."""
    estimate = ("estimate", "cnn5", "--device", "simulated-7")
    start = described.json(*estimate)
    assert start["provenance"] == "datasheet"
    run = described.json(*ANCHORS)
    assert run["new"] == run["trials"] and 0 < run["with_energy"] < run["trials"]
    anchored = described.json(*estimate)
    assert anchored["provenance"] == "simulated"
    assert find_width(start) > find_width(anchored)


def test_rates_are_shown_beside_the_data_sheet(described):
    text = described(*ANCHORS).stdout
    assert "matrix product, bf16" in text and "of simulated-7" in text
    assert text.rstrip().endswith("joulecast estimate NET --device simulated-7")
    assert "0 new measurements" in described(*ANCHORS).stdout


def test_device_without_a_data_sheet_is_told_how_to_describe_it(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    error = shell.fails(*ANCHORS)
    assert 'aliases = ["simulated-7"]' in error and "devices --add FILE.toml" in error


@pytest.mark.parametrize(
    ("words", "part", "code"),
    [
        (("lenet5", "--anchors", "--on", "simulated:7"), "not both", 2),
        (("--anchors", "--batch", "8", "--on", "simulated:7"), "leave --batch out", 2),
        (("--anchors", "--points", "8", "--on", "simulated:7"), "leave --points out", 2),
        (("--anchors", "--atlas", "--on", "simulated:7"), "not both", 2),
        (("--anchors", "--on", "cpu"), "is a processor", 1),
    ],
)
def test_combinations_without_a_meaning_are_refused(shell, words, part, code):
    assert part in shell.fails("profile", *words, code=code)
