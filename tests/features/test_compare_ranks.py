"""Comparisons: ranks, the Pareto front, probabilities, and rows that are not ranked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joulecast.devices import find_data_sheet, make_sheet_profile
from joulecast.estimators.additive import estimator
from joulecast.estimators.additive.fit import load_shared_model
from joulecast.families import make_family
from joulecast.features.compare import rank_setups
from joulecast.features.parallel import ParallelOptions
from joulecast.records import Device, Setup
from joulecast.system.errors import InputError
from joulecast.views.fronts import find_front

NET = make_family("cnn5:32,64,128,256", (3, 32, 32))
SETUPS = [Setup(batch, precision=kind) for batch in (8, 32, 64) for kind in ("fp32", "bf16")]


def test_rows_are_ranked_by_energy_per_sample(cnn_profile):
    found = rank_setups(NET, {"test": cnn_profile}, SETUPS)
    (rows,) = found.groups.values()
    assert [row.rank for row in rows] == list(range(1, len(SETUPS) + 1))
    assert [row.energy_j for row in rows] == sorted(row.energy_j for row in rows)
    assert {row.setup for row in rows} == set(SETUPS)
    for row in rows:
        assert row.energy_j == pytest.approx(row.estimate.energy_j / row.setup.batch)
        assert row.interval_j[0] < row.energy_j < row.interval_j[1]
        low, high = row.duration_interval_s
        assert low < row.duration_s < high
        assert row.estimate.provenance == "simulated"


def test_data_sheets_are_ranked_in_precisions_that_no_fit_has_seen(monkeypatch):
    profiles = {name: make_sheet_profile(find_data_sheet(name)) for name in ("l40s", "a10")}
    # As if the shared model knew no kind of layer.
    shared = replace(load_shared_model(), measured_kinds={})
    monkeypatch.setattr(estimator, "load_shared_model", lambda: shared)
    found = rank_setups(NET, profiles, [Setup(32, precision="bf16"), Setup(32)])
    (rows,) = found.groups.values()
    assert sorted(row.rank for row in rows) == [1, 2, 3, 4]
    assert all(row.estimate.unseen_share == pytest.approx(1.0, abs=0.01) for row in rows)
    assert not found.unranked


def test_front_is_marked(cnn_profile):
    (rows,) = rank_setups(NET, {"test": cnn_profile}, SETUPS).groups.values()
    pairs = [(row.duration_s, row.energy_j) for row in rows]
    assert tuple(row.is_on_front for row in rows) == find_front(pairs)
    assert rows[0].is_on_front


def test_shared_errors_cancel_on_one_device_only(cnn_profile):
    """Two setups of one device are easier to tell apart than the same setups on two devices."""
    twin = replace(cnn_profile, device=Device("twin"))
    setups = [Setup(32), Setup(36)]
    alone = rank_setups(NET, {"a": cnn_profile}, setups).groups["device"]
    both = rank_setups(NET, {"a": cnn_profile, "b": twin}, setups).groups["device"]
    assert [row.device for row in both] == ["test", "twin", "test", "twin"]
    assert both[0].probability_below_next == both[2].probability_below_next == pytest.approx(0.5)
    assert 0.5 < both[1].probability_below_next < alone[0].probability_below_next <= 1.0
    assert alone[-1].probability_below_next is both[-1].probability_below_next is None


def test_different_meter_coverages_are_ranked_separately(cnn_profile):
    board = replace(cnn_profile, device=Device("board"), covers="board")
    found = rank_setups(NET, {"gpu": cnn_profile, "board": board}, SETUPS[:2])
    assert set(found.groups) == {"device", "board"}
    assert all([row.rank for row in rows] == [1, 2] for rows in found.groups.values())
    assert found.to_dict()["comparable"] is False
    assert "not comparable" in found.report().plots[0].description


def test_rows_that_cannot_be_ranked_are_kept_with_the_reason(cnn_profile):
    small = replace(cnn_profile, device=Device("small", memory_bytes=2**20))
    profiles = {"test": cnn_profile, "small": small, "absent": "no profile of 'absent'"}
    setups = [Setup(32), Setup(32, precision="fp16")]
    found = rank_setups(NET, profiles, setups)
    assert len(found.rows) == 6
    (ranked,) = found.groups["device"]
    assert ranked.device == "test" and ranked.setup == setups[0]
    reasons = {
        (row.device or row.requested_device, row.setup.precision): row.reason
        for row in found.unranked
    }
    assert "precision fp16 was never profiled on test (only fp32, bf16)" in reasons["test", "fp16"]
    assert reasons["small", "fp32"].startswith("does not fit: needs about")
    assert reasons["absent", "fp32"] == "no profile of 'absent'"
    data = json.loads(json.dumps(found.to_dict()))
    assert [row["rank"] for row in data["rows"]] == [1, None, None, None, None, None]
    guess = data["rows"][1]
    assert guess["reason_not_ranked"] and guess["energy_j_per_sample"] > 0


def test_empty_comparison_is_rejected(cnn_profile):
    for profiles, setups in (({"test": cnn_profile}, []), ({}, SETUPS)):
        with pytest.raises(InputError, match="nothing to compare"):
            rank_setups(NET, profiles, setups)
    twice = rank_setups(NET, {"test": cnn_profile}, [SETUPS[0], SETUPS[0]])
    assert [row.setup for row in twice.rows] == SETUPS[:1]


def test_empty_profile_is_the_reason(cnn_profile):
    empty = replace(cnn_profile, observations=(), fits={})
    found = rank_setups(NET, {"empty": empty}, SETUPS[:1])
    assert not found.groups and "holds nothing" in found.rows[0].reason


def test_numbers_of_gpus_are_ranked_per_sample(cnn_profile):
    gpus = [ParallelOptions(), ParallelOptions(4, "data", 300.0)]
    found = rank_setups(NET, {"test": cnn_profile}, SETUPS[:2], counts=gpus)
    (rows,) = found.groups.values()
    assert len(rows) == 4 and {row.gpus for row in rows} == {1, 4}
    pairs = {(row.setup, row.gpus): row for row in rows}
    for setup in SETUPS[:2]:
        one, four = pairs[setup, 1], pairs[setup, 4]
        assert four.energy_j == pytest.approx(four.estimate.energy_j / (4 * setup.batch))
        # Four GPUs are faster, and take a little more energy for each sample.
        assert one.energy_j < four.energy_j < 1.5 * one.energy_j
        assert one.duration_s / 4 < four.duration_s < one.duration_s
        assert one.to_dict()["gpus"] == 1 and "data_parallel" not in one.to_dict()
        part = four.to_dict()["data_parallel"]
        assert part["gpus"] == 4 and part["provenance"] == "modelled"
    assert "4 GPUs" in str(found)


def test_gpus_without_a_known_link_are_not_ranked(cnn_profile):
    profiles = {"test": cnn_profile, "absent": "no profile of 'absent'"}
    gpus = [ParallelOptions(), ParallelOptions(4, "data")]
    found = rank_setups(NET, profiles, SETUPS[:1], counts=gpus)
    (ranked,) = found.groups["device"]
    assert ranked.gpus == 1
    refused, *absent = found.unranked
    assert refused.gpus == 4 and "give --link-gb-s" in refused.reason
    assert [row.gpus for row in absent] == [1, 4]
