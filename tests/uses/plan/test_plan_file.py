"""TOML tables become a plan request; errors name table and key."""

from datetime import UTC, datetime

import pytest

from joulecast.errors import FileError, InputError
from joulecast.records import Setup
from joulecast.uses.plan import parse_plan_request, read_plan_request

NOW = datetime(2030, 5, 1, 22, tzinfo=UTC)
JOB = {"name": "a", "net": "lenet5", "steps": 5, "deadline": "2h"}
DEVICE = {"name": "m", "power_w": 4, "flops_per_s": 5e9}


def parse_device(**more):
    request = parse_plan_request({"job": [JOB], "device": [{**DEVICE, **more}]}, NOW)
    return request.devices[0]


def test_values_have_units_and_defaults():
    device = parse_device(memory="2GiB", uncertainty="20%", max_parallel=2)
    assert (device.memory_bytes, device.uncertainty_share) == (2 * 2**30, 0.2)
    assert device.max_parallel == 2 and device.battery is None


def test_times_are_durations_or_dates():
    charging = [{"from": "1h", "to": "2030-05-02T00:00"}]
    device = parse_device(battery_wh=10, charge="50%", charger_w=5, charging=charging)
    assert device.battery.charge_j == 18_000.0
    (window,) = device.battery.windows
    assert (window.start_s, window.end_s, window.power_w) == (3600.0, 7200.0, 5.0)


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"doubts": 1}, "unknown key 'doubts'"),
        ({"charge": "50%"}, "charge needs battery_wh"),
        ({"max_parallel": 0}, "max_parallel is 0"),
        ({"profile": "x"}, "give profile, or power_w and flops_per_s"),
        ({"flops_per_s": 0}, "flops_per_s is 0: give more"),
        ({"launch_s": -1}, "launch_s is -1: give a number"),
    ],
)
def test_errors_name_table_and_key(more, part):
    with pytest.raises(InputError, match=part) as caught:
        parse_device(**more)
    assert "[[device]] m" in str(caught.value)


def test_unreadable_files_are_file_errors(tmp_path):
    with pytest.raises(FileError, match="there is no file"):
        read_plan_request(tmp_path / "nowhere.toml", NOW)
    (tmp_path / "jobs.toml").write_text("[[job")
    with pytest.raises(FileError, match="not valid TOML"):
        read_plan_request(tmp_path / "jobs.toml", NOW)


def test_jobs_train_as_people_do():
    job = {"name": "a", "net": "transformer", "epochs": 2, "samples": 64, "batch": 8}
    training = {"accumulate": 4, "compiled": True, "checkpoint": True}
    data = {"job": [{**job, **training}], "device": [DEVICE]}
    (parsed,) = parse_plan_request(data, NOW).jobs
    assert parsed.setup == {"batch": 8, "accumulate": 4, "compiled": True}
    assert parsed.checkpoint
    # A step has four batches of eight samples.
    assert parsed.count_steps(Setup(**parsed.setup).samples_per_step) == 4
