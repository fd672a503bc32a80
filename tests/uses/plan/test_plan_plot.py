"""Plans are plotted with their energy and interval."""

from datetime import UTC, datetime

from joulecast.uses.plan import DeviceSpec, Job, JobCost, PlanRequest, RunForecast, plan_jobs
from joulecast.uses.plan.plan_plot import plot_plan


def test_title_counts_jobs_and_devices():
    request = PlanRequest((Job("a", "net", 1),), (DeviceSpec("m", power_w=15.0, flops_per_s=1.0),))
    costs = {"a": {"m": JobCost(RunForecast(4500.0, 300.0, 0.3, 0.3), 1.0, "modelled", "")}}
    plan = plan_jobs(request, costs, {}, datetime(2030, 5, 1, tzinfo=UTC), 0.9, 5.0)
    plot = plot_plan(plan)
    assert "1 job on 1 device" in str(plot)
    assert "95 % interval" in str(plot) and "upper bounds at 90 %" in str(plot)
