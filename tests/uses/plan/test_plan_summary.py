"""A plan that was written as JSON is read as pictures need it."""

import pytest

from joulecast.errors import FileError
from joulecast.uses.plan import read_plan
from joulecast.uses.plan.plan_plot import plot_plan
from report_examples import make_plan


def test_plan_is_read_as_it_was_written():
    plan = make_plan()
    found = read_plan(plan.to_dict())
    (device,) = found.devices
    assert (found.energy_j, found.interval_j) == (plan.energy_j, plan.interval_j)
    assert (found.provenance, found.job_count) == ("modelled", 1)
    assert device.reserve_share == pytest.approx(0.1) and device.charge[0] == (0.0, 30 / 36)
    assert plot_plan(found).data == plot_plan(plan).data


@pytest.mark.parametrize("change", [{"energy_j": "much"}, {"devices": [{"device": "a"}]}])
def test_damaged_plan_is_refused(change):
    with pytest.raises(FileError, match=r"plan\.json is damaged"):
        read_plan({**make_plan().to_dict(), **change}, "plan.json")
