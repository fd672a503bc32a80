"""Fitted processes as JSON, and back."""

import base64
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

from joulecast.gp.logsums.posterior import condition_logsums
from joulecast.gp.logsums.selection import keep_linearisation
from joulecast.gp.logsums.stored import PackedArray, StoredLogSums
from joulecast.gp.logsums.totals import predict_log_totals
from joulecast.system.files import MOST_UNPACKED_BYTES
from logsums_examples import draw_fitted, draw_inputs, draw_sums


def test_restored_process_predicts_the_same():
    rng = np.random.default_rng(0)
    fitted = keep_linearisation(draw_fitted(rng)[0])
    text = json.dumps(StoredLogSums.from_fitted(fitted).to_dict())
    restored = StoredLogSums.from_dict(json.loads(text)).restore()
    new, sums = draw_inputs(rng, 20, first_identity=25), draw_sums(rng, 20, 5, 10)
    one, two = (
        predict_log_totals(condition_logsums(each), new, sums) for each in (fitted, restored)
    )
    assert (one.log_mean == two.log_mean).all()
    assert (one.log_variance == two.log_variance).all()
    assert (restored.row_weights == fitted.row_weights).all()
    assert (restored.observations.strata == fitted.observations.strata).all()


def test_optional_arrays_are_left_out():
    fitted, _ = draw_fitted(np.random.default_rng(1))
    fitted = replace(fitted, observations=replace(fitted.observations, strata=None))
    data = StoredLogSums.from_fitted(fitted).to_dict()
    optional = {"strata", "log_caps", "log_basis", "weights", "offsets", "row_weights"}
    assert not optional & set(data)
    assert StoredLogSums.from_dict(data).restore().linear is None


def test_basis_functions_of_the_logarithm_are_stored():
    rng = np.random.default_rng(1)
    fitted, _ = draw_fitted(rng)
    inputs = replace(fitted.inputs, log_basis=rng.normal(size=(fitted.inputs.size, 2)))
    restored = StoredLogSums.from_fitted(replace(fitted, inputs=inputs)).restore()
    assert (restored.inputs.log_basis == inputs.log_basis).all()


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.zeros((0, 4)), np.array([1e-300])]
)
def test_arrays_keep_shape_type_and_bits(array):
    found = PackedArray.pack(array).unpack()
    assert found.shape == array.shape
    assert found.dtype == array.dtype
    assert (found == array).all()


def test_array_that_unpacks_to_too_much_is_refused():
    packed = base64.b64encode(zlib.compress(bytes(MOST_UNPACKED_BYTES + 8))).decode("ascii")
    with pytest.raises(ValueError, match="unpacks to more than"):
        PackedArray("f", (MOST_UNPACKED_BYTES // 8 + 1,), packed).unpack()
