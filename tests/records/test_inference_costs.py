"""Energy and latency of an inference, in the units that people compare."""

from __future__ import annotations

import pytest

from joulecast.records import Setup, compute_power, describe_inference, name_step

INFERENCE = Setup(batch=1, phase="inference")


def test_inference_has_latency_power_and_watt_hours() -> None:
    assert describe_inference(INFERENCE, 7.2, 0.5) == {
        "energy_per_inference_j": 7.2,
        "latency_s": 0.5,
        "mean_power_w": 14.4,
        # 1,000 x 7.2 J are 7.2 kJ, and a watt-hour is 3.6 kJ.
        "wh_per_1000_inferences": pytest.approx(2.0),
    }


def test_training_has_none_of_them() -> None:
    assert describe_inference(Setup(), 7.2, 0.5) == {}


def test_what_is_not_known_stays_unknown() -> None:
    data = describe_inference(INFERENCE, None, 0.5)
    assert data["latency_s"] == 0.5
    assert data["mean_power_w"] is None and data["wh_per_1000_inferences"] is None
    assert compute_power(1.0, 0.0) is None


def test_a_step_of_inference_is_called_inference() -> None:
    assert name_step(INFERENCE) == "inference" and name_step(Setup()) == "step"
