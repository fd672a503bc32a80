"""An agent measures once per request, and says in one line what it cannot do."""

import json
import random
from dataclasses import replace

import pytest

from agent_processes import install_slow_device, make_trial
from joulecast.agent import service as services
from joulecast.agent.messages import (
    AgentAnswer,
    AgentRequest,
    decode_message,
    encode_message,
)
from joulecast.agent.service import AgentOptions, AgentService, check_fits
from joulecast.devices import detect_device, find_free_memory
from joulecast.errors import (
    DeviceAwayError,
    InputError,
    MeterLostError,
    OutOfMemoryError,
)
from joulecast.kinds import peak_memory
from joulecast.measurer.device_lock import hold_device
from joulecast.plugins import load_plugins
from joulecast.records import Device, Execution, Network, Trial
from joulecast.testing.hostile_inputs import damage_bytes, damage_value, find_defect

ID = "0123456789abcdef"


@pytest.fixture
def service():
    with AgentService(AgentOptions("simulated:3")) as made:
        yield made


def ask(service, task="measure", trial=None, id=ID, **values):
    request = AgentRequest(id, task, trial, **values)
    return decode_message(AgentAnswer, service.answer(encode_message(request)), "agent")


def test_answer_is_an_observation_of_the_run_with_its_rounds(service):
    answer = ask(service, trial=make_trial(), rounds=5, run="mine")
    seen = answer.take_observation(make_trial())
    assert (seen.count, seen.run, seen.device.name) == (5, "mine", "simulated-3")
    assert seen.energy_j > 0 and answer.clock_s > 5.0
    timed = ask(service, "time", make_trial(), id="1" * 8)
    assert timed.observation.energy_j is None and timed.observation.duration_s > 0
    idle = ask(service, "idle", id="2" * 8)
    assert idle.take_observation(None).trial.network == Network()


def test_same_request_gets_the_same_answer_without_measuring_again(service):
    request = encode_message(AgentRequest(ID, "measure", make_trial()))
    first = service.answer(request)
    assert service.answer(request) == first
    other = ask(service, trial=make_trial(), id="f" * 8)
    assert other.clock_s > json.loads(first)["clock_s"]
    assert other.observation.energy_j != json.loads(first)["observation"]["energy_j"]


def test_id_of_another_trial_gets_no_foreign_observation(service):
    first = ask(service, trial=make_trial(batch=8))
    other = ask(service, trial=make_trial(batch=64))
    assert other.observation.duration_s != first.observation.duration_s


def test_only_the_last_answers_are_remembered(service, monkeypatch):
    monkeypatch.setattr(services, "_REMEMBERED", 2)
    first = ask(service, "idle", id="0" * 8)
    for digit in "123":
        ask(service, "idle", id=digit * 8)
    assert ask(service, "idle", id="0" * 8).clock_s > first.clock_s


def test_errors_are_answers_that_are_not_remembered(service):
    empty = replace(make_trial(), network=Network())
    for _ in range(2):
        with pytest.raises(InputError, match="empty"):
            ask(service, trial=empty).raise_error()
    assert decode_message(AgentAnswer, service.answer(b"rm -rf"), "agent").error is not None


def test_disturbances_belong_to_one_answer(service):
    simulated = service._measurer.runtime.simulated
    simulated.disturb("other load", 1.0)
    first = ask(service, trial=make_trial())
    assert first.disturbances == {"other load": first.disturbances["other load"]}
    assert ask(service, trial=make_trial(), id="1" * 8).disturbances == {}


@pytest.fixture
def slow_device(tmp_path, monkeypatch):
    install_slow_device(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    load_plugins.cache_clear()
    yield
    load_plugins.cache_clear()


def test_meter_that_vanishes_is_opened_again(slow_device, tmp_path):
    watts = tmp_path / "watts"
    watts.write_text("5 W\n")
    with AgentService(AgentOptions("slow:50", f"command:cat {watts}")) as service:
        assert ask(service, "idle").observation.energy_j == pytest.approx(5.0, rel=0.01)
        watts.unlink()
        for _ in range(2):
            with pytest.raises(MeterLostError, match=r"cat .*watts"):
                ask(service, "idle", id="1" * 8).raise_error()
        watts.write_text("5 W\n")
        assert ask(service, "idle", id="1" * 8).observation.energy_j > 0


def test_lost_device_is_told_apart_from_a_refused_trial(slow_device):
    with AgentService(AgentOptions("slow", "modelled")) as service:
        error = ask(service, trial=make_trial(batch=13)).error
        assert error.message.startswith("RuntimeError: CUDA")
        assert service.is_lost


def test_another_process_on_the_device_makes_it_unavailable(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pytest.importorskip("MNN")
    with AgentService(AgentOptions("mnn:cpu", "modelled"), lock_wait_s=0.0) as service:
        with hold_device("cpu"), pytest.raises(DeviceAwayError, match="another campaign"):
            ask(service, "idle").raise_error()
        assert ask(service, "idle").observation is not None


def test_power_mode_that_was_changed_is_noticed(monkeypatch):
    pytest.importorskip("MNN")
    with AgentService(AgentOptions("mnn:cpu", "modelled", "board")) as service:
        before = ask(service, "describe").description.device
        changed = replace(detect_device("cpu"), power_mode="15W")
        monkeypatch.setattr(services, "detect_device", lambda hardware: changed)
        after = ask(service, "describe", id="1" * 8).description.device
        assert after == replace(before, power_mode="15W") and after.name == "board"
        assert ask(service, "idle").observation.device == after


# -- what does not fit --------------------------------------------------------------------------


def test_trial_larger_than_the_free_memory_is_refused_before_it_runs():
    trial = make_trial("resnet18", batch=64)
    needed = peak_memory(trial.network, trial.setup)
    check_fits(trial, Device("board", memory_bytes=needed))
    check_fits(trial, Device("board"))
    for copies, memory_bytes in ((1, needed - 1), (2, needed)):
        own = replace(trial, execution=Execution(copies=copies))
        with pytest.raises(OutOfMemoryError, match=r"resnet18.* MiB free"):
            check_fits(own, Device("board", memory_bytes=memory_bytes))


def test_processor_has_the_memory_that_other_programs_leave(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable:  300 kB\n")
    assert find_free_memory(Device("cpu", memory_bytes=1_024_000), tmp_path) == 307_200
    assert find_free_memory(Device("gpu", memory_bytes=80 * 2**30), tmp_path) == 80 * 2**30


def test_huge_batch_is_refused_without_building_it():
    with AgentService(AgentOptions("simulated:3")) as service:
        service._measurer.runtime.device = Device("board", memory_bytes=2**30)
        with pytest.raises(OutOfMemoryError, match="smaller batch"):
            ask(service, trial=make_trial("resnet50", batch=10**9)).raise_error()
        assert ask(service, "describe").clock_s == 0.0


def test_impossible_layer_is_refused_by_name(service):
    data = make_trial().to_dict()
    data["network"]["layers"][1]["sizes"]["kernel"] = -1
    with pytest.raises(InputError, match="layer 2"):
        ask(service, trial=Trial.from_dict(data)).raise_error()


def test_damaged_requests_get_an_answer_of_one_line(service, capsys):
    rng = random.Random(0)
    request = {"protocol": 1, **AgentRequest(ID, "measure", make_trial(), rounds=1).to_dict()}
    content, refused = json.dumps(request).encode(), 0
    for _ in range(150):
        for damaged in (
            json.dumps(damage_value(request, rng)).encode(),
            damage_bytes(content, rng),
        ):
            answer = decode_message(AgentAnswer, service.answer(damaged), "agent")
            if answer.error is not None:
                refused += 1
                assert find_defect(answer.raise_error) is None
    assert refused > 200
    # Where a bug would show its traceback.
    assert capsys.readouterr().err == ""
