"""Errors after which a process can use its device no more."""

import pytest

from joulecast.errors import MeasurementError
from joulecast.measurer.device_lock import is_device_lost


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: out of memory", False),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_device_is_lost_after_some_errors_of_cuda(text, is_lost):
    assert is_device_lost(RuntimeError(text)) == is_lost
    caused = MeasurementError("the step failed")
    caused.__cause__ = RuntimeError(text)
    assert is_device_lost(caused) == is_lost


def test_no_error_is_no_loss():
    assert not is_device_lost(None)
