"""Fitted processes as JSON, and back."""

import base64
import json
import zlib
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

from joulecast.gp.logsums.posterior import condition_logsums, predict_log_totals
from joulecast.gp.logsums.selection import keep_linearisation
from joulecast.gp.logsums.stored import PackedArray, restore_logsums, store_logsums
from joulecast.system.files import MOST_UNPACKED_BYTES
from logsums_examples import draw_fitted, draw_inputs, draw_sums


@pytest.mark.parametrize("has_all", [True, False])
def test_restored_process_predicts_the_same(has_all):
    rng = np.random.default_rng(0)
    fitted = keep_linearisation(draw_fitted(rng)[0])
    inputs = replace(fitted.inputs, log_basis=rng.normal(size=(fitted.inputs.size, 2)))
    bare = replace(fitted, observations=replace(fitted.observations, strata=None), row_weights=None)
    fitted = replace(fitted, inputs=inputs) if has_all else bare
    data = json.loads(json.dumps(store_logsums(fitted)))
    optional = {"strata", "log_caps", "log_basis", "row_weights"} & set(data)
    assert optional == ({"strata", "log_basis", "row_weights"} if has_all else set())
    restored = restore_logsums(data)
    for path in ("inputs.log_basis", "row_weights", "observations.strata"):
        one, two = (attrgetter(path)(each) for each in (fitted, restored))
        assert np.array_equal(one, two)
    new, sums = draw_inputs(rng, 20, first_identity=25), draw_sums(rng, 20, 5, 10)
    plain = replace(restored, inputs=bare.inputs, row_weights=None)
    one, two = (predict_log_totals(condition_logsums(x), new, sums) for x in (bare, plain))
    assert (one.log_mean == two.log_mean).all()
    assert (one.log_variance == two.log_variance).all()


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
