"""Commands on a device that runs MNN."""

import pytest

from joulecast.devices.detect import detect_device
from joulecast.store import open_store

pytest.importorskip("MNN")

NET = "lenet5:2,3,8,8"
SETUP = ("--threads", "1", "--estimator", "flops")
HERE = ("--runtime", "mnn", *SETUP)


def test_profile_and_estimate_use_one_framework(shell):
    done = shell.json("profile", NET, *HERE, "--points", "3", "--rounds", "1")
    assert done["profile"]["runtime"].startswith("mnn-")
    estimate = shell.json("estimate", NET, *HERE)
    assert estimate["runtime"].startswith("mnn-")
    assert shell.json("estimate", NET, "--on", "mnn:cpu", *SETUP) == estimate
    with open_store(create=False) as store:
        summaries = store.list_matches(detect_device("cpu").name)
        assert [one.runtime for one in summaries] == [estimate["runtime"]]
    assert "has no profile yet" in shell.fails("estimate", NET, "--on", "cpu", "--threads", "1")


def test_kind_that_mnn_cannot_train_is_one_line(shell):
    line = shell.fails("measure", "transformer:16,1", "--on", "mnn")
    assert "layer block0.sdpa: MNN cannot train sdpa" in line
