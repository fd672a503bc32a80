"""``plan`` schedules jobs on devices: valid by an independent replay, and optimal where proven."""

import itertools
import math
import sys
import time
import tomllib
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.estimators.forecast import RunForecast
from joulecast.families import make_family
from joulecast.features.plan.model import GOOD_GAP_SHARE, solve
from joulecast.features.plan.problem import (
    Assignment,
    Battery,
    ChargingWindow,
    Job,
    JobCost,
    JobForecast,
    PlanDevice,
    Problem,
    estimate_jobs,
    parse_plan_request,
)
from joulecast.features.plan.replay import replay
from joulecast.features.plan.result import explain_left_out, follow_schedule, plan_jobs, read_plan
from joulecast.features.run import RunLength
from joulecast.operators import network_work
from joulecast.records import Setup
from joulecast.system.errors import FileError
from joulecast.views.plots import make_svg
from report_examples import make_plan

JOBS = """
[[job]]
name = "first"
net = "lenet5:3,5,9,11"
batch = 8
steps = 50_000
deadline = "3h"

[[job]]
name = "second"
net = "lenet5:4,8,16,16"
batch = 8
epochs = 2
samples = 100_000
release = "10min"
deadline = 2030-05-02T02:00:00
devices = ["phone"]
"""
PHONE = """
[[device]]
name = "phone"
profile = "sim"
battery_wh = 50
charge = "70%"
reserve = "10%"
"""
CHARGER = """
charger_w = 15
[[device.charging]]
from = "1h"
to = "2030-05-01T23:30"
"""
BOARD = """
[[device]]
name = "board"
power_w = 4
flops_per_s = 5e9
idle_w = 2
memory = "2GiB"
max_parallel = 2
"""
FILE = JOBS + PHONE + CHARGER + BOARD
NOW = ("--now", "2030-05-01T22:00")
MIDNIGHT = datetime(2030, 5, 1, tzinfo=UTC)


# Random small problems in whole seconds and watts, and two other ways to check schedules


@st.composite
def devices(draw, name):
    capacity, awake = draw(st.integers(20, 120)), draw(st.integers(0, 3))
    edges = sorted(draw(st.sets(st.integers(0, 24), max_size=4)))
    windows = tuple(
        ChargingWindow(float(a), float(b), float(draw(st.integers(1, 9))))
        for a, b in zip(edges[::2], edges[1::2], strict=False)
    )
    charge, reserve = draw(st.integers(0, capacity)), draw(st.integers(0, capacity // 2))
    battery = Battery(float(capacity), float(charge), float(reserve), windows)
    return PlanDevice(
        name,
        idle_w=float(awake),
        asleep_w=float(draw(st.integers(0, awake))),
        memory_bytes=draw(st.sampled_from([math.inf, 4.0 * 2**20])),
        max_parallel=draw(st.integers(1, 2)),
        battery=draw(st.sampled_from([None, battery])),
    )


@st.composite
def problems(draw, max_jobs=4, max_s=10, whole=True):
    """Draw a problem: whole seconds and deadlines, or fractions and some without deadline."""
    stretch = 1.0 if whole else draw(st.floats(0.5, 2.0))
    found = tuple(draw(devices(f"m{at}")) for at in range(draw(st.integers(1, 2))))
    jobs = []
    for at in range(draw(st.integers(1, max_jobs))):
        sizes = st.integers(1, 4), st.integers(0, 30), st.integers(1, 5)
        costs = {
            device.name: JobCost(
                stretch * draw(sizes[0]), float(draw(sizes[1])), draw(sizes[2]) * 2.0**20
            )
            for device in found
        }
        release = draw(st.integers(0, 4))
        deadline = release + draw(st.integers(2, max_s - release))
        is_due = whole or draw(st.booleans())
        times = float(release), float(deadline) if is_due else math.inf
        jobs.append(Job(f"t{at}", costs, *times, draw(st.integers(1, 2))))
    return Problem(found, tuple(jobs))


def simulate(problem, schedule, parts=8):
    """Follow the charge in small steps, without the replay's code: (least room, energy)."""
    energy, least = 0.0, math.inf
    for device in problem.devices:
        here = [one for one in schedule if one.device == device.name]
        if not here:
            continue
        first, last = min(one.start_s for one in here), max(one.end_s for one in here)
        held = device.battery.charge_j if device.battery else 0.0
        for step in range(round(last * parts) + 1):
            now = step / parts
            if device.battery and now >= first:
                least = min(least, held - device.battery.reserve_j)
            if now >= last:
                break
            power = device.awake_w if now >= first else device.asleep_w
            for one in here:
                if one.start_s <= now < one.end_s:
                    cost = problem.job[one.job].costs[device.name]
                    power += cost.extra_j / cost.duration_s
            if now >= first:
                energy += power / parts
            if device.battery:
                charging = sum(w.power_w for w in device.windows if w.start_s <= now < w.end_s)
                held = min(device.battery.capacity_j, held + (charging - power) / parts)
    return least, energy


# -- the solver and the replay ------------------------------------------------------------------


@given(problems() | problems(whole=False))
@settings(max_examples=25, deadline=None)
def test_schedules_violate_nothing_and_can_be_followed(problem):
    found = solve(problem, 0.5, workers=1)
    assert not replay(problem, found.schedule).violations
    least, energy = simulate(problem, found.schedule, parts=200)
    assert least > -0.5
    assert found.energy_j == pytest.approx(energy, abs=0.5)
    assert {one.job for one in found.schedule} | set(found.left_out) == set(problem.job)
    followed = follow_schedule(problem, found.schedule, 1.5 * found.time_step_s)
    replayed = replay(problem, followed)
    assert replayed.energy_j == pytest.approx(found.energy_j, rel=1e-3, abs=0.05)
    kinds = {one.kind for one in replayed.violations}
    assert not kinds & {"release", "parallel", "memory", "jobs"}
    for name in found.left_out:
        assert {one.device for one in explain_left_out(problem, found.schedule, name).reasons} == {
            device.name for device in problem.devices
        }


@given(problems(max_jobs=3, max_s=8))
@settings(max_examples=60, deadline=None)
def test_no_schedule_is_better_than_the_solvers(problem):
    found = solve(problem, 20.0, workers=1)
    # Every job at every whole second, or not at all.
    choices = [
        [None, *(
            problem.assign(job.name, name, float(start))
            for name, cost in job.costs.items()
            for start in range(int(job.release_s), int(job.deadline_s - cost.duration_s) + 1)
        )]
        for job in problem.jobs
    ]  # fmt: skip
    schedules = ([one for one in row if one] for row in itertools.product(*choices))
    best = min(
        (-problem.priority_of(schedule), replayed.energy_j)
        for schedule in schedules
        if not (replayed := replay(problem, schedule)).violations
    )
    assert (found.is_optimal or found.gap_share <= GOOD_GAP_SHARE) and found.runs_most
    assert -problem.priority_of(found.schedule) == best[0] and not found.timed_out
    # Time steps are finer than the seconds that were tried, so the solver may even be better.
    assert found.energy_j <= best[1] * (1 + 1e-6) + 1e-6
    assert found.lower_bound_j <= found.energy_j * (1 + 1e-9)
    for one in found.schedule:
        others = [other for other in found.schedule if other != one]
        sooner = problem.assign(one.job, one.device, one.start_s - 1.0)
        replayed = replay(problem, [*others, sooner])
        costs_more = replayed.energy_j > found.energy_j * (1 + 1e-9)
        assert replayed.violations or costs_more or sooner.start_s < 0


@given(problems(), st.data())
@settings(max_examples=40, deadline=None)
def test_the_replay_agrees_with_small_steps(problem, data):
    schedule = []
    for job in problem.jobs:
        device = data.draw(st.sampled_from(problem.devices)).name
        schedule.append(problem.assign(job.name, device, float(data.draw(st.integers(0, 6)))))
    replayed = replay(problem, schedule)
    least, energy = simulate(problem, schedule)
    assert replayed.energy_j == pytest.approx(energy, abs=1e-6)
    worst = max((one.missing for one in replayed.violations if one.kind == "battery"), default=0.0)
    # Small steps notice a full battery a little late, and nothing else.
    coarse = 9 / 8
    assert (worst > coarse) <= (least < 0)
    assert (least < -coarse) <= (worst > 0)
    if worst and least < 0:
        assert worst == pytest.approx(-least, abs=coarse)


@pytest.mark.parametrize(
    ("second_s", "energies"),
    [(10.0, (140, 0, 0)), (15.0, (150, 10, 0)), (0.0, (120, 0, 20))],
    ids=["after", "apart", "together"],
)
def test_idle_energy_flows_between_tasks_and_is_counted_once(second_s, energies):
    cost = JobCost(10.0, 50.0)
    device = PlanDevice("m", idle_w=2.0, max_parallel=2)
    problem = Problem((device,), (Job("a", {"m": cost}), Job("b", {"m": cost})))
    assert cost.energy_j(device) == 70.0
    both = [problem.assign("a", "m", 0.0), problem.assign("b", "m", second_s)]
    run = replay(problem, both).runs["m"]
    assert (run.energy_j, run.idle_j, run.shared_j) == pytest.approx(energies)


@pytest.mark.parametrize(
    ("schedule", "kind", "missing"),
    [
        ([Assignment("a", "m", 0.0, 10.0)], "release", 1.0),
        ([Assignment("a", "m", 25.0, 35.0)], "deadline", 5.0),
        ([Assignment("a", "m", 5.0, 15.0), Assignment("b", "m", 6.0, 16.0)], "parallel", 1.0),
        ([Assignment("a", "n", 5.0, 15.0), Assignment("b", "n", 6.0, 16.0)], "memory", 2.0),
        ([Assignment("a", "m", 5.0, 15.0), Assignment("a", "n", 5.0, 15.0)], "jobs", 1.0),
        ([Assignment("a", "m", 5.0, 12.0)], "jobs", 1.0),
        ([Assignment("a", "full", 10.0, 20.0)], "battery", 10.0),
    ],
)
def test_violations_say_how_much_is_missing(schedule, kind, missing):
    cost, drain = JobCost(10.0, 1.0, 5.0), JobCost(10.0, 60.0)
    battery = Battery(100.0, 90.0, 50.0, (ChargingWindow(0.0, 10.0, 5.0),))
    costs = {"m": cost, "n": cost, "full": drain}
    jobs = tuple(Job(name, costs, 1.0, 30.0) for name in "ab")
    some = PlanDevice("m"), PlanDevice("n", max_parallel=2, memory_bytes=8.0)
    problem = Problem((*some, PlanDevice("full", battery=battery)), jobs)
    violations = replay(problem, schedule).violations
    (found,) = {(one.kind, one.missing) for one in violations}
    assert found == (kind, pytest.approx(missing))


def make_jobs(names, duration_s=10.0, extra_j=1.0, *times):
    return [Job(name, {"m": JobCost(duration_s, extra_j)}, *times) for name in names]


@pytest.mark.parametrize(
    ("jobs", "device", "starts"),
    [
        # Who gains nothing by waiting does not wait.
        (
            [*make_jobs("l", 700.0, 9e4, 1800.0, 36e3), *make_jobs("s", 30.0, 9e3, 0.0, 28800.0)],
            {"idle_w": 220.0},
            [1770.0, 1800.0],
        ),
        # Only the wait for the next time step is between them.
        (make_jobs("ab", 499.593), {"idle_w": 30.0}, [0.0, 499.6]),
        # One that needs the last joule runs.
        (make_jobs("a", math.pi, 30.0), {"battery": Battery(100.0, 40.0, 10.0)}, [0.0]),
    ],
)
def test_small_problems_have_the_obvious_schedule(jobs, device, starts):
    found = solve(Problem((PlanDevice("m", **device),), tuple(jobs)), 10.0, 1)
    assert found.runs_most and not found.left_out
    assert sorted(one.start_s for one in found.schedule) == pytest.approx(starts, abs=0.2)


def test_each_device_that_a_job_names_has_its_own_reason():
    battery = Battery(100.0, 40.0, 10.0, (ChargingWindow(50.0, 60.0, 1.0),))
    devices = PlanDevice("m", battery=battery), PlanDevice("n", memory_bytes=4.0)
    costs = {"m": JobCost(10.0, 90.0), "n": JobCost(10.0, 1.0, 5.0)}
    problem = Problem(devices, (Job("a", costs, devices=("m", "n")),))
    reasons = explain_left_out(problem, (), "a").reasons
    assert {(one.device, one.reason) for one in reasons} == {("m", "battery"), ("n", "memory")}


def test_priorities_are_added_up():
    """Neither the job of highest priority nor the most jobs are best."""
    sizes = {"a": (10.0, 4), "b": (5.0, 3), "c": (5.0, 3), "d": (3.0, 1), "e": (3.0, 1)}
    sizes["f"] = sizes["e"]
    jobs = [
        Job(n, {"m": JobCost(s, 1.0)}, 0.0, 10.0, priority) for n, (s, priority) in sizes.items()
    ]
    found = solve(Problem((PlanDevice("m"),), tuple(jobs)), 10.0, 1)
    assert {one.job for one in found.schedule} == {"b", "c"} and found.runs_most


def test_uneven_lanes_are_proven_optimal():
    """Durations that sum to 105 s cannot be split evenly over two lanes."""
    durations_s = (11.0, 13.0, 17.0, 19.0, 16.0, 14.0, 15.0)
    jobs = tuple(Job(f"t{s:g}", {"m": JobCost(s, 1.0)}, 0.0, 120.0) for s in durations_s)
    found = solve(Problem((PlanDevice("m", idle_w=10.0, max_parallel=2),), jobs), 20.0, 2)
    assert found.is_optimal
    assert found.energy_j == pytest.approx(10 * 53.0 + 7, abs=0.1)


def test_time_limit_leaves_a_schedule_and_a_bound():
    jobs = []
    for at in range(30):
        costs = [JobCost(5.0 + at % 7, 10.0 + (at * k) % 11) for k in range(3)]
        jobs.append(Job(f"t{at}", dict(zip("mno", costs, strict=True))))
    some = tuple(PlanDevice(name, idle_w=1.0, max_parallel=2) for name in "mno")
    ticking = itertools.count(0.0, 0.8)
    found = solve(Problem(some, tuple(jobs)), 1.0, workers=1, now=lambda: next(ticking))
    assert len(found.schedule) == 30 and not found.replay.violations
    assert 0 <= found.lower_bound_j <= found.energy_j and 0 <= found.gap_share <= 1


@pytest.mark.parametrize(
    ("duration_s", "starts"), [(5.0, [0, 5, 50]), (30.0, [0, 30, 60]), (10.0, [0, 10, 50])]
)
def test_task_that_follows_another_waits_only_for_it(duration_s, starts):
    planned = tuple(
        Assignment(name, "m", start_s, start_s + 10.0)
        for name, start_s in (("a", 0.0), ("b", 10.0), ("c", 50.0))
    )
    problem = Problem((PlanDevice("m"),), tuple(make_jobs("abc", duration_s)))
    assert [one.start_s for one in follow_schedule(problem, planned, 0.01)] == starts


# -- costs, and the result ----------------------------------------------------------------------


def plan_two_jobs(confidence, idle_w=10.0, max_parallel=2, rest_w=0.0):
    """Plan two jobs of 300 s at 15 W with an uncertainty of 30 %."""
    device = PlanDevice("m", idle_w=idle_w, max_parallel=max_parallel, rest_w=rest_w)
    run = RunForecast(15.0 * 300, 300.0, 0.3, 0.3, rest_w)
    jobs = tuple(Job(name, forecasts={"m": JobForecast(run, 1.0, "modelled")}) for name in "ab")
    return plan_jobs(Problem((device,), jobs), MIDNIGHT, confidence, 10.0)


@pytest.mark.parametrize(
    ("idle_w", "max_parallel", "rest_w"), [(0.0, 1, 4.0), (10.0, 2, 4.0), (20.0, 1, 0.0)]
)
def test_expected_energy_is_the_same_at_every_confidence(idle_w, max_parallel, rest_w):
    even, sure = (plan_two_jobs(c, idle_w, max_parallel, rest_w) for c in (0.5, 0.9))
    alone_j = 300 * (max(15.0, idle_w) + rest_w)
    shared_j = 300 * (idle_w + rest_w) if max_parallel == 2 else 0.0
    assert even.energy_j == pytest.approx(2 * alone_j - shared_j, rel=1e-6)
    assert even.planned_energy_j == pytest.approx(even.energy_j, rel=1e-6)
    low_j, high_j = even.interval_j
    # Energy and duration of all jobs are off by the same 30 %, so everything scales.
    assert math.log(high_j / even.energy_j) == pytest.approx(1.96 * 0.3, rel=1e-3)
    assert math.log(even.energy_j / low_j) == pytest.approx(1.96 * 0.3, rel=1e-3)
    assert sure.energy_j == pytest.approx(even.energy_j, rel=1e-6)
    assert sure.interval_j == pytest.approx(even.interval_j, rel=1e-6)
    assert sure.jobs[0][1].energy_j == pytest.approx(alone_j)
    assert sure.planned_energy_j > even.planned_energy_j


def test_upper_bounds_hold_for_parallel_jobs():
    """Much energy in a short time: then sharing idle power for longer gains nothing."""
    run = RunForecast(4500.0, 300.0, 0.3, 0.3)
    planned_j = plan_two_jobs(0.9).planned_energy_j
    assert planned_j >= 2 * run.energy_quantile(0.9) - 10.0 * run.duration_quantile(0.1)
    alone_j = plan_two_jobs(0.9, max_parallel=1).planned_energy_j
    assert alone_j == pytest.approx(2 * run.energy_quantile(0.9), rel=1e-6)


@pytest.mark.parametrize("flops_per_s", [1e6, 1e15])
def test_stated_devices_take_flops_or_wait_for_launches(flops_per_s):
    lenet5, setup = make_family("lenet5"), Setup(batch=8)
    device = PlanDevice("m", power_w=3.0, flops_per_s=flops_per_s, launch_s=1e-3)
    problem = Problem((device,), (Job("a", length=RunLength(10)),))
    cost = estimate_jobs(problem, {"a": (lenet5, setup)}, {}).jobs[0].forecasts["m"]
    work = network_work(lenet5, setup).total
    step_s = work.flops / 1e6 if flops_per_s == 1e6 else work.launches * 1e-3
    assert cost.run.duration_s == pytest.approx(10 * step_s)
    assert cost.run.energy_j == pytest.approx(30 * step_s) and cost.covers == ""


def test_a_plan_is_read_back_with_its_report():
    plan = make_plan()
    found = read_plan(plan.to_dict(), "plan.json")
    assert found.to_dict() == plan.to_dict()
    assert make_svg(found.report().plots[0]) == make_svg(plan.report().plots[0])
    for change in ({"devices": 3}, {"energy_j": "much"}, {"now": None}):
        with pytest.raises(FileError, match=r"plan\.json"):
            read_plan({**plan.to_dict(), **change}, "plan.json")


# -- the file and the command -------------------------------------------------------------------


def test_values_have_units_and_defaults():
    training = "accumulate = 4\ncompiled = true\ncheckpoint = true\nbatch = 8"
    data = tomllib.loads(FILE.replace("batch = 8", training) + 'uncertainty = "20%"')
    request = parse_plan_request(data, MIDNIGHT.replace(hour=22))
    job, (phone, board) = request.jobs[1], request.devices
    assert job.setup == {"batch": 8, "accumulate": 4, "compiled": True} and job.checkpoint
    # A step has four batches of eight samples.
    assert job.length.count_steps(Setup(**job.setup).samples_per_step) == 2 * 100_000 / 32
    assert (job.release_s, job.deadline_s, job.devices) == (600.0, 4 * 3600.0, ("phone",))
    assert (board.memory_bytes, board.max_parallel, board.battery) == (2 * 2**30, 2, None)
    assert (phone.uncertainty_share, board.uncertainty_share) == (0.3, 0.2)
    assert phone.battery.charge_j == pytest.approx(0.7 * 50 * 3600)
    assert phone.windows == (ChargingWindow(3600.0, 5400.0, 15.0),)


@pytest.fixture
def planned(profiled, write):
    write("jobs.toml", FILE)
    return profiled


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("steps = 50_000", "steps = 0", ("[[job]] first", "steps is 0")),
        ("steps = 50_000", "epochs = 5", ("[[job]] first", "epochs and samples")),
        ("steps = 50_000", "inferences = 5", ("[[job]] first", "needs inference = true")),
        ("batch = 8", 'inference = true\nloss = "mse"', ("[[job]] first", "loss is for training")),
        ('net = "lenet5:3,5,9,11"', "", ("[[job]] first", "net is missing")),
        ('net = "lenet5:3,5,9,11"', 'net = "nix"', ("[[job]] first", "no net 'nix'")),
        ('deadline = "3h"', "deadline = 3", ("[[job]] first", "deadline is 3", "2h")),
        ('deadline = "3h"', 'deadline = "soon"', ("[[job]] first", "deadline is 'soon'")),
        ('release = "10min"', 'release = "6h"', ("[[job]] second", "deadline is before")),
        ('devices = ["phone"]', 'devices = ["fridge"]', ("second", "'fridge'", "phone")),
        ('charge = "70%"', 'charge = "170%"', ("[[device]] phone", "charge is '170%'")),
        ("battery_wh = 50", "", ("[[device]] phone", "needs battery_wh")),
        ('to = "2030-05-01T23:30"', "", ("[[device]] phone, charging 1", "to is missing")),
        ('to = "2030-05-01T23:30"', 'to = "30min"', ("[[device]] phone", "charging window")),
        ('profile = "sim"', 'profile = "moon"', ("[[device]] phone", "'moon'")),
        ("flops_per_s = 5e9", "", ("[[device]] board", "power_w and flops_per_s")),
        ('memory = "2GiB"', 'memory = "2"', ("[[device]] board", "memory is '2'")),
        ("max_parallel = 2", "max_parallel = 0.5", ("[[device]] board", "max_parallel is 0.5")),
        ("max_parallel = 2", "asleep_w = 5", ("[[device]] board", "asleep_w is 5", "2 W")),
        ('deadline = "3h"', 'input = "3xx"', ("[[job]] first", "input is '3xx'", "3x96x96")),
        ("idle_w = 2", 'profile = "x"', ("[[device]] board", "give profile, or power_w")),
        ("idle_w = 2", "launch_s = -1", ("[[device]] board", "launch_s is -1: give a number")),
        ("idle_w = 2", 'uncertainty = "2"', ("[[device]] board", "uncertainty is '2'")),
        ("charger_w = 15", "charger_w = 0", ("[[device]] phone", "charger_w is 0")),
        (CHARGER, "charger_w = 5", ("[[device]] phone", "charger_w needs [[device.charging")),
        (CHARGER, "charging = 3", ("[[device]] phone", "charging is 3")),
        (CHARGER, "charging = [3]", ("[[device]] phone, charging 1 is 3",)),
        (CHARGER, CHARGER + CHARGER[15:], ("[[device]] phone", "overlap")),
        ("[[job]]", "[[jobs]]", ("unknown key 'jobs'",)),
    ],
)
def test_a_bad_file_is_one_line_with_its_location(profiled, write, old, new, parts):
    write("jobs.toml", FILE.replace(old, new))
    said = profiled.fails("plan", "jobs.toml", *NOW)
    assert "jobs.toml" in said
    assert all(part in said for part in parts), said


def test_json_has_a_valid_schedule_with_the_estimates_of_its_jobs(planned):
    data = planned.json("plan", "jobs.toml", *NOW)
    (phone,) = (one for one in data["devices"] if one["device"] == "phone")
    (job,) = (one for one in phone["jobs"] if one["job"] == "second")
    assert job["start"].startswith("2030-05-01T22:1") and not data["left_out"]
    assert 600 <= job["start_s"] < job["end_s"] <= 4 * 3600
    assert data["energy_j"] == pytest.approx(data["planned_energy_j"], rel=1e-6)
    assert all(0.1 <= share <= 1 for _, share in phone["charge"])
    assert job["charge_share"] == pytest.approx(phone["charge"][-1][1], abs=0.2)
    words = ("lenet5:4,8,16,16", "--device", "sim", "--batch", "8", "--epochs", "2")
    asked = planned.json("estimate", *words, "--samples", "100000")
    assert job["energy_j"] == pytest.approx(asked["total_energy_j"])
    assert job["interval_j"] == pytest.approx(asked["total_interval_j"])
    assert job["end_s"] - job["start_s"] == pytest.approx(asked["total_duration_s"])


def test_text_shows_the_schedule_and_its_limits(planned):
    text = planned("plan", "jobs.toml", *NOW, "--confidence", "95%", "--plot", "plan.svg").stdout
    flat = " ".join(text.split())
    for part in (
        "Plan of 2 jobs on 2 of 2 devices", "(simulated, 95 % interval", "The plan is optimal.",
        "mains", "2030-05-01 22:00", "energy and time with a probability of 95 %",
        "FLOPs / flops_per_s at a stated power_w (board)", "The meters cover device",
    ):  # fmt: skip
        assert part in flat
    assert max(map(len, text.splitlines())) <= 100
    assert "phone" in (planned.folder / "plan.svg").read_text()


@pytest.mark.parametrize(
    ("old", "new", "name", "kind", "words"),
    [
        ('"3h"', '"1s"\ndevices = ["board"]', "first", "deadline", "late"),
        ('"2GiB"', '"2kB"', "first", "memory", "the memory of board lacks"),
        ('"70%"', '"11%"', "second", "battery", "the battery of phone lacks"),
    ],
)
def test_jobs_that_cannot_run_have_reasons(profiled, write, old, new, name, kind, words):
    jobs = JOBS.replace('"3h"', '"3h"\ndevices = ["board"]') if kind == "memory" else JOBS
    text = (jobs + PHONE + BOARD).replace(old, new)
    write("jobs.toml", text.replace("samples = 100_000", "samples = 4_000_000"))
    data = profiled.json("plan", "jobs.toml", *NOW)
    (left,) = (one for one in data["left_out"] if one["job"] == name)
    (reason,) = left["reasons"]
    assert reason["reason"] == kind and reason["missing"] > 0 and left["alone"]
    said = " ".join(str(read_plan(data)).split())
    assert f"{name} cannot run: " in said and words in said


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system's clock has no tzset")
def test_local_times_respect_daylight_saving(planned, write, monkeypatch):
    """From 22:00 to 08:00 it is eleven hours in the night that summer time ends."""
    jobs = JOBS.replace('deadline = "3h"', "").replace("2030-05-02T02", "2030-10-27T09")
    write("jobs.toml", jobs.replace('"10min"', "2030-10-27T08:00:00") + PHONE)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        starts = {
            now: planned.json("plan", "jobs.toml", "--now", now)["devices"][-1]["jobs"][-1]
            for now in ("2030-10-26T22:00", "2030-10-26T22:00+02:00")
        }
    time.tzset()
    local, named = starts.values()
    assert local["start_s"] == 11 * 3600 and local["start"] == "2030-10-27T08:00:00+01:00"
    assert named["start_s"] == 10 * 3600 and named["start"] == "2030-10-27T08:00:00+02:00"


@pytest.mark.parametrize("value", ["30%", "100%"])
def test_confidence_is_from_a_half_to_one(planned, value):
    assert "--confidence" in planned.fails("plan", "jobs.toml", "--confidence", value, code=2)


def test_a_job_that_never_ends_is_refused(planned, write):
    write("jobs.toml", FILE.replace("flops_per_s = 5e9", "flops_per_s = 1e-300"))
    assert "cannot be planned" in planned.fails("plan", "jobs.toml", *NOW)


def test_a_missing_solver_names_the_extra(planned, monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    assert "pip install 'joulecast[plan]'" in planned.fails("plan", "jobs.toml", *NOW)
