"""Devices of a fleet are asked what they are, and refused if the file says something else."""

import pytest

from agent_processes import TOKEN, start_agent
from fleet_examples import AgentHere, make_device
from joulecast.errors import InputError
from joulecast.fleet import fleet_devices as fleet_checks
from joulecast.fleet.fleet_devices import FleetDevice, check_devices, open_device


@pytest.fixture
def here(monkeypatch):
    """Let devices answer in this process, whatever their address."""
    agent = AgentHere()

    def open_here(address, token, limits):
        return agent.open(make_device())

    monkeypatch.setattr(fleet_checks, "open_remote_measurer", open_here)
    monkeypatch.delenv("JOULECAST_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("runtime", "simulated", "mnn"),
        ("meter", "simulated", "rapl"),
        ("power_mode", "", "MAXN"),
    ],
)
def test_device_must_be_what_the_file_says(here, key, right, wrong):
    with open_device(make_device(**{key: right})) as measurer:
        assert measurer.runtime.device.name == "simulated-5"
    with pytest.raises(InputError, match=f"{key} .*not {wrong!r}.*or correct the file"):
        open_device(make_device(**{key: wrong}))


@pytest.mark.parametrize(
    ("runtime", "wanted", "is_right"),
    [
        ("torch-2.13.0", "torch", True),
        ("torch-2.13.0", "torch-2.13.0", True),
        ("torch-2.13.0", "torch-2.1", False),
        ("onnxruntime-1.31.1", "onnx", True),
        ("onnxruntime-1.31.1", "onnxruntime", True),
        ("onnxruntime-1.31.1", "torch", False),
    ],
)
def test_framework_may_be_given_with_its_version(here, monkeypatch, runtime, wanted, is_right):
    monkeypatch.setattr("joulecast.runtimes.simulated.SimulatedRuntime.name", runtime)
    if is_right:
        open_device(make_device(runtime=wanted)).connection.close()
    else:
        with pytest.raises(InputError):
            open_device(make_device(runtime=wanted))


def test_each_device_is_reported_ready_away_or_refused(monkeypatch, tmp_path):
    """Ask a real agent with the right and a wrong token, and an address where nobody listens."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(TOKEN)
    wrong.write_text(f"{TOKEN}-of-another")
    for file in (right, wrong):
        file.chmod(0o600)
    with start_agent("simulated:4", "--token-file", str(right)) as agent:
        devices = [
            FleetDevice("board", agent.address, str(right)),
            FleetDevice("stranger", agent.address, str(wrong)),
            FleetDevice("shelf", "http://127.0.0.1:9", str(right)),
            FleetDevice("bare", agent.address, str(tmp_path / "missing")),
        ]
        found = {one.device.name: one for one in check_devices(devices)}
    states = {name: one.state for name, one in found.items()}
    assert states == {
        "board": "ready", "stranger": "refused", "shelf": "away", "bare": "refused",
    }  # fmt: skip
    assert found["board"].is_ready and len(found["board"].profile_key) == 16
    assert found["board"].description == "simulated-4, simulated, simulated"
    assert "refuses the token" in found["stranger"].reason
    assert "cannot be reached" in found["shelf"].reason
    assert "there is no file" in found["bare"].reason
    assert all(TOKEN not in one.reason for one in found.values())
