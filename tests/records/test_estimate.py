"""The record of an estimate."""

from dataclasses import replace

import pytest

from joulecast.records import BlockEstimate, Estimate, LayerEstimate

ESTIMATE = Estimate(
    energy_j=2.0,
    interval_j=(1.0, 4.0),
    level=0.95,
    duration_s=0.1,
    peak_memory_bytes=100,
    layers=(LayerEstimate("h.0.fc", "linear", 1.0), LayerEstimate("h.1.fc", "linear", 1.0)),
    unseen_share=0.0,
    provenance="measured",
    covers="gpu",
    device="board",
    estimator="additive",
)


@pytest.mark.parametrize(
    ("needed", "available", "fits"),
    [(100, 100, True), (101, 100, False), (100, 0, None), (0, 100, None)],
)
def test_whether_a_step_fits_is_known_if_both_sizes_are(needed, available, fits):
    estimate = replace(ESTIMATE, peak_memory_bytes=needed, device_memory_bytes=available)
    assert estimate.fits_memory is fits


def test_an_estimate_survives_json():
    blocks = (BlockEstimate("h.0–1", 2, 1, 2.0, (0, 1)),)
    full = replace(ESTIMATE, blocks=blocks, runtime="torch-2.11.0", notes=("One.", "Two."))
    for estimate in (ESTIMATE, full):
        assert Estimate.from_dict(estimate.to_dict()) == estimate


def test_an_estimate_without_the_newer_fields_is_read():
    data = ESTIMATE.to_dict()
    for name in ("blocks", "device_memory_bytes", "runtime", "notes"):
        del data[name]
    assert Estimate.from_dict(data) == ESTIMATE
