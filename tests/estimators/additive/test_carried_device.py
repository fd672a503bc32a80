"""A device that starts from the runs of another one and from both data sheets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from additive_examples import SETUP, draw_networks
from joulecast.catalogue import find_data_sheet
from joulecast.estimators.additive.carried_device import CarriedDevice
from joulecast.estimators.additive.estimator import AdditiveEstimator
from joulecast.estimators.additive.imported_runs import predict_runs
from joulecast.records import Device, Execution, Observation, Trial

STEPS, OVERHEAD_J, OVERHEAD_S = 2000, 60.0, 1.0
SOURCE = "imported log"
SHEET = find_data_sheet("nvidia-rtx-3060")
TEST = draw_networks(12, seed=3)


def import_runs(device, networks, slower=1.0, stronger=1.0):
    """Return runs on a simulated device, each step of which may take longer and draw more."""
    found = []
    for network in networks:
        cost = device.true_cost(Trial(network, SETUP))
        found.append(
            Observation(
                Trial(network, SETUP, Execution(steps=STEPS)),
                energy_j=STEPS * slower * stronger * cost.energy_j + OVERHEAD_J,
                duration_s=STEPS * slower * cost.duration_s + OVERHEAD_S,
                device=Device("card", power_mode=f"limit {SHEET.power_limit_w:g}W"),
                provenance="imported",
                source=SOURCE,
            )
        )
    return found


@pytest.fixture(scope="module")
def fitted(device):
    return AdditiveEstimator().fit(import_runs(device, draw_networks(30, seed=1)))


def predict(fitted):
    return predict_runs(fitted, TEST, SETUP, STEPS, SOURCE)


def test_a_device_of_the_same_data_sheet_is_the_same_but_less_certain(fitted):
    own, carried = predict(fitted), predict(CarriedDevice(fitted, SHEET, SHEET).fit())
    assert carried.energy_j == pytest.approx(own.energy_j, rel=0.06)
    assert carried.duration_s == pytest.approx(own.duration_s, rel=0.06)
    assert (carried.energy_sd_j / carried.energy_j > 0.1).all()


def test_durations_follow_rates_and_powers_the_limit(fitted):
    faster = replace(
        SHEET,
        flops_per_s={name: 2 * rate for name, rate in SHEET.flops_per_s.items()},
        bytes_per_s=2 * SHEET.bytes_per_s,
        power_limit_w=2 * SHEET.power_limit_w,
    )
    before, after = (predict(CarriedDevice(fitted, SHEET, one).fit()) for one in (SHEET, faster))
    assert (after.duration_s < 0.75 * before.duration_s).all()
    powers = (after.energy_j / after.duration_s) / (before.energy_j / before.duration_s)
    assert powers == pytest.approx(np.full(len(TEST), 1.95), rel=0.1)


def test_runs_on_the_device_outweigh_its_data_sheet(fitted, device):
    other = {"slower": 1.3, "stronger": 0.8}
    truth_j = np.array([one.energy_j for one in import_runs(device, TEST, **other)])
    carried = CarriedDevice(fitted, SHEET, SHEET)
    start = predict(carried.fit())
    known = predict(carried.fit(import_runs(device, draw_networks(8, seed=5), **other)))
    errors = [np.abs(one.energy_j / truth_j - 1).mean() for one in (start, known)]
    assert errors[1] < 0.03
    assert (known.energy_sd_j < 0.5 * start.energy_sd_j).all()
    low_j, high_j = (start.energy_j + side * 2 * start.energy_sd_j for side in (-1, 1))
    assert ((low_j < truth_j) & (truth_j < high_j)).all()
