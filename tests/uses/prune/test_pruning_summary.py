"""A pruning that was written as JSON is read as reports need it."""

import pytest

from joulecast.errors import FileError
from joulecast.uses.prune import read_pruning
from report_examples import PRUNING


def test_pruning_is_read_as_it_was_written():
    found = read_pruning(PRUNING)
    assert (found.net, found.after.energy_j, found.measured.within_budget) == (
        "cnn5:8,8,8,8",
        0.98,
        True,
    )
    assert [one.name for one in found.layers] == ["conv1", "fc"]
    without = {**PRUNING, "before": None, "after": None, "measured": None}
    assert read_pruning(without).after is None


@pytest.mark.parametrize("change", [{"layers": 3}, {"after": {"energy_j": 1}}, {"net": None}])
def test_damaged_pruning_is_refused(change):
    with pytest.raises(FileError, match="the pruning is damaged"):
        read_pruning({**PRUNING, **change})
