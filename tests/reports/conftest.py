"""The profile of a simulated device, for all tests of reports."""

import pytest

import joulecast


@pytest.fixture(scope="package")
def simulated_profile(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("reports") / "store.sqlite")
    options = {"on": "simulated:5", "batch": 8, "store": path, "points": 14}
    joulecast.profile("lenet5:4,8,16,16", estimator="subtractive", **options)
    return joulecast.profile("lenet5:4,8,16,16", **{**options, "points": 20})
