"""Comparing devices and setups: ranks, fronts, chances, and what cannot be compared."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joulecast.errors import InputError
from joulecast.families import make_family
from joulecast.fronts import find_front
from joulecast.records import Device, Setup
from joulecast.uses.compare import compare
from joulecast.uses.compare.comparison_plot import draw_comparison

NET = make_family("cnn5:32,64,128,256", (3, 32, 32))
SETUPS = [Setup(batch, precision=kind) for batch in (8, 32, 64) for kind in ("fp32", "bf16")]


def test_ranks_are_by_joules_of_a_sample(cnn_profile):
    found = compare(NET, {"test": cnn_profile}, SETUPS)
    (rows,) = found.groups.values()
    assert [row.rank for row in rows] == list(range(1, len(SETUPS) + 1))
    assert [row.energy_j for row in rows] == sorted(row.energy_j for row in rows)
    assert {row.setup for row in rows} == set(SETUPS)
    for row in rows:
        assert row.energy_j == pytest.approx(row.estimate.energy_j / row.setup.batch)
        assert row.interval_j[0] < row.energy_j < row.interval_j[1]
        low, high = row.duration_interval_s
        assert low < row.duration_s < high
        assert row.estimate.basis == "simulated"


def test_the_front_is_the_front(cnn_profile):
    (rows,) = compare(NET, {"test": cnn_profile}, SETUPS).groups.values()
    pairs = [(row.duration_s, row.energy_j) for row in rows]
    assert tuple(row.on_front for row in rows) == find_front(pairs)
    assert rows[0].on_front


def test_one_device_is_surer_of_itself_than_two_strangers(cnn_profile):
    """What two setups of a device share cancels; the same joules on two devices do not."""
    twin = replace(cnn_profile, device=Device("twin"))
    setups = [Setup(32), Setup(36)]
    alone = compare(NET, {"a": cnn_profile}, setups).groups["device"]
    both = compare(NET, {"a": cnn_profile, "b": twin}, setups).groups["device"]
    assert [row.device for row in both] == ["test", "twin", "test", "twin"]
    assert both[0].chance_next == both[2].chance_next == pytest.approx(0.5)
    assert 0.5 < both[1].chance_next < alone[0].chance_next <= 1.0
    assert alone[-1].chance_next is both[-1].chance_next is None


def test_what_covers_something_else_is_ranked_apart(cnn_profile):
    board = replace(cnn_profile, device=Device("board"), covers="board")
    found = compare(NET, {"gpu": cnn_profile, "board": board}, SETUPS[:2])
    assert set(found.groups) == {"device", "board"}
    assert all([row.rank for row in rows] == [1, 2] for rows in found.groups.values())
    assert found.to_dict()["comparable"] is False
    assert "not comparable" in draw_comparison(found).about


def test_what_cannot_be_compared_is_kept_with_the_reason(cnn_profile):
    small = replace(cnn_profile, device=Device("small", memory_bytes=2**20))
    profiles = {"test": cnn_profile, "small": small, "nobody": "there is no profile of 'nobody'"}
    setups = [Setup(32), Setup(32, precision="fp16")]
    found = compare(NET, profiles, setups)
    assert len(found.rows) == 6
    (ranked,) = found.groups["device"]
    assert ranked.device == "test" and ranked.setup == setups[0]
    why = {(row.device or row.asked, row.setup.precision): row.why for row in found.unranked}
    assert "precision fp16 was never profiled on test (only fp32, bf16)" in why["test", "fp16"]
    assert why["small", "fp32"].startswith("does not fit: it needs about")
    assert why["nobody", "fp32"] == "there is no profile of 'nobody'"
    data = json.loads(json.dumps(found.to_dict()))
    assert [row["rank"] for row in data["rows"]] == [1, None, None, None, None, None]
    guess = data["rows"][1]
    assert guess["why_not_ranked"] and guess["energy_j_per_sample"] > 0


def test_nothing_to_compare_is_refused(cnn_profile):
    for profiles, setups in (({"test": cnn_profile}, []), ({}, SETUPS)):
        with pytest.raises(InputError, match="nothing to compare"):
            compare(NET, profiles, setups)
    twice = compare(NET, {"test": cnn_profile}, [SETUPS[0], SETUPS[0]])
    assert [row.setup for row in twice.rows] == SETUPS[:1]


def test_an_estimator_that_knows_nothing_says_so(cnn_profile):
    empty = replace(cnn_profile, observations=(), fits={})
    found = compare(NET, {"empty": empty}, SETUPS[:1])
    assert not found.groups and "holds nothing" in found.rows[0].why
