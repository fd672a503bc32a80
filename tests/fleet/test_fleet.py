"""A fleet is checked, campaigns end despite failures, forecasts say who can finish."""

import re
import sys
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from agent_processes import TOKEN, start_agent
from fleet_examples import REQUEST, AgentHere, make_device
from joulecast.features.fleet import follow_request, run_fleet
from joulecast.fleet import fleet_devices
from joulecast.fleet.fleet_campaigns import (
    name_requests,
    open_cluster,
    run_campaigns,
    run_device_campaign,
)
from joulecast.fleet.fleet_devices import FleetDevice, check_devices, open_device, read_fleet
from joulecast.fleet.fleet_forecast import FleetEstimate, RunQuestion, forecast_fleet
from joulecast.records import Estimate, Setup
from joulecast.store import open_store
from joulecast.store.campaigns import StoredDevice
from joulecast.system.errors import (
    DeviceAwayError,
    FileError,
    InputError,
    MeterLostError,
    MissingError,
    StoreError,
)

PHONE = make_device()

# -- the file -----------------------------------------------------------------------------------

WHOLE = """
[[device]]
name = "phone"
address = "http://phone.local:8377"
token_file = "phone.token"
runtime = "mnn"
meter = "battery"
power_mode = "balanced"
battery_wh = 15
charge = "60%"
reserve = 0.2
rest_w = 0.8
memory = "4GiB"

[[device]]
name = "board"
address = "ssh://me@board"
"""
NAMED = '[[device]]\nname = "a"\naddress = "http://a"\n'


@pytest.fixture
def read(tmp_path):
    def write_and_read(text):
        file = tmp_path / "fleet.toml"
        file.write_text(text)
        return read_fleet(file)

    return write_and_read


def test_devices_are_read_in_joules_bytes_and_shares(read, tmp_path):
    phone, board = read(WHOLE)
    assert phone == FleetDevice(
        "phone", "http://phone.local:8377", str(tmp_path / "phone.token"), "mnn", "battery",
        "balanced", battery_j=54_000.0, charge_share=0.6, reserve_share=0.2, rest_w=0.8,
        memory_bytes=4 * 2**30,
    )  # fmt: skip
    assert board.battery_j is None and board.token_file == ""
    # The store gets no path of a token.
    assert "token" not in str(phone.to_dict())
    assert FleetDevice.from_dict(phone.to_dict()).battery_j == 54_000.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"\[\[device\]\] is missing"),
        ('[[device]]\naddress = "http://a"', "number 1 has no name"),
        ('[[device]]\nname = "a"', "a: address is missing"),
        (NAMED.replace('"a"', '"a,b"'), "without commas"),
        (NAMED.replace("http:", "ftp:"), "a: address is 'ftp://a'"),
        (NAMED.replace("//a", "//u:pw@a"), "must not contain a token"),
        (f'{NAMED}charge = "5%"', "charge needs battery_wh"),
        (f"{NAMED}battery_wh = 0", "above 0"),
        (f"{NAMED}colour = 1", "unknown key 'colour'"),
        (f'{NAMED}memory = "lots"', "8GiB"),
        ("[[fleet]]", "unknown key 'fleet'"),
        ("device = 3", r"\[\[device\]\] is missing"),
        (NAMED * 2, r"two \[\[device\]\] are called 'a'"),
        (f'{NAMED}token_file = "../secret"', "a: token_file is '../secret'"),
        (f'{NAMED}token_file = "/etc/hostname"', "a: token_file is"),
        (f'{NAMED}token_file = "link"', "a: token_file is 'link'"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_that_names_it(read, tmp_path, text, words):
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(FileError, match=words) as caught:
        read(text)
    assert "\n" not in str(caught.value) and "fleet.toml: " in str(caught.value)


# -- checks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "found", "wanted", "is_right"),
    [
        ("meter", None, "simulated", True),
        ("meter", None, "rapl", False),
        ("power_mode", None, "MAXN", False),
        ("runtime", None, "simulated", True),
        ("runtime", "torch-2.13.0", "torch", True),
        ("runtime", "torch-2.13.0", "torch-2.13.0", True),
        ("runtime", "torch-2.13.0", "torch-2.1", False),
        ("runtime", "onnxruntime-1.31.1", "onnx", True),
        ("runtime", "onnxruntime-1.31.1", "onnxruntime", True),
        ("runtime", "onnxruntime-1.31.1", "torch", False),
    ],
)
def test_device_must_be_what_the_file_says(monkeypatch, key, found, wanted, is_right):
    agent = AgentHere()
    monkeypatch.setattr(fleet_devices, "open_remote_measurer", lambda *_, **__: agent.open(PHONE))
    if found is not None:
        monkeypatch.setattr("joulecast.simulation.runtime.SimulatedRuntime.name", found)
    device = make_device(**{key: wanted})
    if is_right:
        with open_device(device) as measurer:
            assert measurer.runtime.device.name == "simulated-5"
    else:
        with pytest.raises(InputError, match=f"{key} .*not {wanted!r}"):
            open_device(device)


def test_each_device_is_reported_ready_away_or_refused(tmp_path):
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
        bare, board, shelf, stranger = checks = check_devices(devices)
    assert [one.state for one in checks] == ["refused", "ready", "away", "refused"]
    assert board.is_ready and len(board.profile_key) == 16
    assert board.description == "simulated-4, simulated, simulated"
    assert "refuses the token" in stranger.reason and "there is no file" in bare.reason
    assert "cannot be reached" in shelf.reason
    assert all(TOKEN not in one.reason for one in checks)


# -- a campaign ---------------------------------------------------------------------------------


class Killed(BaseException):
    """What a worker does not survive."""


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "store.sqlite") as opened:
        opened.fleet.replace_devices({PHONE.name: PHONE.to_dict()})
        yield opened


def request_campaign(store, request=REQUEST, device=PHONE.name):
    return store.fleet.add_request("lenet5", request.to_dict(), [device])


def list_stored(store):
    (device,) = store.fleet.list_devices()
    return store.load_observations(device.profile_key)


class Clock:
    """A clock that only pauses advance; after the last one the worker is killed."""

    def __init__(self, pauses=0):
        self.now_s, self.pauses, self.on_pause = 0.0, pauses, lambda: None

    def wait(self, pause_s):
        if not self.pauses:
            raise Killed
        self.pauses -= 1
        self.now_s += pause_s
        self.on_pause()


def run(store, agent, key, clock=None):
    """Run a campaign; return its state and that of its device."""
    clock = clock or Clock()
    options = {"now": lambda: clock.now_s, "wait": clock.wait}
    opens = agent.open if isinstance(agent, AgentHere) else agent
    try:
        run_device_campaign(store, PHONE, key, 10.0, open_measurer=opens, **options)
    finally:
        (campaign,), (device,) = store.fleet.list_campaigns(), store.fleet.list_devices()
    return campaign, device


def test_campaign_leaves_a_profile_with_a_fit_and_is_not_run_again(store):
    agent, key = AgentHere(), request_campaign(store)
    campaign, device = run(store, agent, key)
    assert (campaign.state, campaign.reason) == ("done", "4 networks were measured")
    assert campaign.elapsed_s > 0 and device.state == "ready"
    profile = store.load_profile(device.profile_key)
    assert "constant" in profile.fits and len(profile.observations) == agent.measured
    (run_id,) = {one.run for one in profile.observations}
    count = agent.measured
    assert run(store, agent, key)[0].state == "done" and agent.measured == count
    # A successor names requests like the worker before it.
    trial = profile.observations[0].trial
    first = name_requests(run_id, [])("measure", trial)
    after, again = (name_requests(run_id, profile.observations)("measure", trial) for _ in "ab")
    assert first != after == again
    assert name_requests("other", profile.observations)("measure", trial) not in (first, after)


@pytest.mark.parametrize("moment", [1, 2, 5])
def test_worker_that_is_killed_before_it_stores_an_answer_loses_and_doubles_nothing(store, moment):
    agent, key, seen = AgentHere(), request_campaign(store), []

    def kill_once(_agent):
        seen.append(1)
        if len(seen) == moment:
            raise Killed

    agent.fails = kill_once
    with pytest.raises(Killed):
        run(store, agent, key)
    before = list_stored(store) if moment > 1 else ()
    assert len(before) == moment - 1 and agent.measured == moment
    assert run(store, agent, key)[0].state == "done"
    after = list_stored(store)
    assert after[: len(before)] == before
    # The answer that was on its way is there, and was not measured again.
    assert len(after) == agent.measured
    loads = [one.trial.key for one in after if one.trial.network.layers]
    assert len(loads) == len(set(loads))


@pytest.mark.parametrize("error", [DeviceAwayError, MeterLostError])
def test_device_or_meter_that_vanishes_is_waited_for_and_parked(store, error):
    agent, key, states = AgentHere(), request_campaign(store), []

    def vanish(here):
        if here.measured >= 2:
            raise error("it is gone: plug it in")

    def look():
        (campaign,), (device,) = store.fleet.list_campaigns(), store.fleet.list_devices()
        assert campaign.is_open and campaign.reason == device.reason == "it is gone: plug it in"
        assert campaign.state == device.state
        states.append((campaign.state, clock.now_s))
        if len(states) == 6:
            agent.fails = None

    agent.fails, clock = vanish, Clock(6)
    clock.on_pause = look
    campaign, device = run(store, agent, key, clock)
    assert (campaign.state, device.state, device.reason) == ("done", "ready", "")
    away, parked = ([s for state, s in states if state == name] for name in ("away", "parked"))
    # It is tried less and less often, and parked after 10 s.
    assert away == [1.0, 3.0, 7.0, 15.0] and parked == [31.0, 63.0]
    assert len(list_stored(store)) == agent.measured


def test_time_of_earlier_attempts_counts(store):
    agent, key = AgentHere(), request_campaign(store, replace(REQUEST, seconds=8.0))
    store.fleet.change_campaign(key, PHONE.name, elapsed_s=7.9)
    campaign, _ = run(store, agent, key)
    assert campaign.state == "done" and campaign.elapsed_s > 7.9
    # One trial and the idle device: the rest of the time is not enough for more.
    assert agent.measured == 2


def test_failures_that_would_repeat_end_the_campaign_with_the_reason(store):
    def refuse(_device):
        raise InputError("the agent refuses the token")

    campaign, device = run(store, refuse, request_campaign(store))
    assert (campaign.state, device.state) == ("failed", "refused")
    assert campaign.reason == device.reason == "the agent refuses the token"
    store.fleet.replace_devices({})
    store.fleet.replace_devices({PHONE.name: PHONE.to_dict()})
    key = request_campaign(store, replace(REQUEST, members=()))
    campaign, device = run(store, AgentHere(), key)
    assert (campaign.state, device.state, device.reason) == ("failed", "ready", "")
    assert campaign.reason.startswith("no step with energy")


def test_only_one_program_measures_on_a_device(store, monkeypatch):
    monkeypatch.setattr("joulecast.fleet.fleet_campaigns._CLAIM_WAIT_S", 0.0)
    agent, key = AgentHere(), request_campaign(store)
    with store.fleet.claim_device(PHONE.name, 0.0), pytest.raises(Killed):
        run(store, agent, key)
    (campaign,) = store.fleet.list_campaigns()
    assert campaign.state == "away" and "another program" in campaign.reason
    assert agent.measured == 0


def test_store_that_fails_is_waited_for_and_not_blamed_on_the_device(store, monkeypatch):
    key, clock, seen = request_campaign(store), Clock(1), []

    def fail(*_):
        raise StoreError("the disk is full")

    def look_and_repair():
        (campaign,), (device,) = store.fleet.list_campaigns(), store.fleet.list_devices()
        seen.append((campaign.state, campaign.reason, device.state))
        monkeypatch.undo()

    monkeypatch.setattr(store, "add_observation", fail)
    clock.on_pause = look_and_repair
    assert run(store, AgentHere(), key, clock)[0].state == "done"
    assert seen == [("away", "the disk is full", "ready")]


# -- the coordinator ----------------------------------------------------------------------------


def test_coordinator_submits_open_campaigns_once_and_tells_what_happens(store, monkeypatch):
    monkeypatch.setattr("joulecast.fleet.fleet_campaigns._POLL_S", 0.0)
    tables, events, futures = store.fleet, [], {}
    devices = [make_device(name) for name in ("a", "b", "c")]
    tables.replace_devices({name: {} for name in ("a", "b", "c", "stranger")})
    keys = {name: request_campaign(store, device=name) for name in ("a", "b", "c", "stranger")}
    # As a coordinator that was killed left them.
    tables.change_campaign(keys["b"], "b", state="running")
    tables.change_campaign(keys["c"], "c", state="parked", reason="it is gone")

    def submit(device, key):
        assert device.name not in futures
        return futures.setdefault(device.name, Future())

    def end(name, **values):
        tables.change_campaign(keys[name], name, **values)
        futures.pop(name).set_result(None)

    steps = iter(
        [
            lambda: None,
            lambda: None,
            lambda: tables.change_campaign(keys["a"], "a", state="running"),
            lambda: end("b", state="done", reason="4 points"),
            lambda: end("c", state="failed", reason="the token is wrong"),
            lambda: futures.pop("a").set_exception(TypeError("no such\nargument")),
            lambda: request_campaign(store, device="b"),
            lambda: None,
        ]
    )

    def is_over():
        step = next(steps, None)
        if step is not None:
            step()
        return step is None

    run_campaigns(tables, devices, submit, lambda *event: events.append(": ".join(event)), is_over)
    assert events == [
        "b: profiling lenet5",
        "c: parked: it is gone",
        "a: profiling lenet5",
        "b: lenet5 is profiled: 4 points",
        "c: failed: the token is wrong",
        "a: failed: TypeError: no such argument",
    ]
    assert set(futures) == {"b"}
    states = {one.device: one.state for one in tables.list_campaigns()}
    assert states == {"a": "failed", "b": "waiting", "c": "failed", "stranger": "waiting"}


def test_cluster_without_dask_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingError, match=r"pip install 'joulecast\[fleet\]'"),
        open_cluster([PHONE], "store.sqlite", 1, 0.0),
    ):
        pass


def test_fleet_starts_if_a_device_answers_or_campaigns_are_open(tmp_path, monkeypatch):
    place, fleet_file = str(tmp_path / "store.sqlite"), str(tmp_path / "fleet.toml")
    address = "http://127.0.0.1:9"
    Path(fleet_file).write_text(f'[[device]]\nname = "phone"\naddress = "{address}"\n')

    class StartedError(Exception):
        pass

    def start(*_):
        raise StartedError

    monkeypatch.setattr("joulecast.fleet.fleet_campaigns.open_cluster", start)
    monkeypatch.setattr("joulecast.features.fleet._CHECK_UP_S", 0.0)
    shown = {"on_start": print, "on_event": print}
    with pytest.raises(InputError, match="a store that its workers share"):
        run_fleet(fleet_file, ":memory:", **shown)
    with pytest.raises(DeviceAwayError, match="no device of the fleet is ready: phone: the agent"):
        run_fleet(fleet_file, place, **shown)
    with open_store(place) as store:
        (device,) = store.fleet.list_devices()
        assert device.state == "away" and "cannot be reached" in device.reason
        key = store.fleet.add_request("lenet5", REQUEST.to_dict(), ["phone"])
    # The request of a fleet that went down is not waited for.
    with pytest.raises(MissingError, match="the fleet went down"):
        follow_request(key, place)
    (campaign,) = follow_request(key, place, waits=False)
    assert campaign.state == "waiting"
    with pytest.raises(StartedError):
        run_fleet(fleet_file, place, **shown)


# 2 J in 10 ms, each within 10 % with 95 %.
STEP = Estimate(
    2.0, (1.8, 2.2), 0.95, 0.01, 2**20, (), 0.0, "simulated", "board", "simulated-5", "additive",
    duration_interval_s=(0.009, 0.011), device_memory_bytes=2**30,
)  # fmt: skip
QUESTION = RunQuestion(steps=1000)


def store_device(name="phone", profile_key="k1", **values):
    device = make_device(name, **values)
    return StoredDevice(name, device.to_dict(), "ready", "", profile_key, "", 0.0)


def forecast_one(question=QUESTION, step=STEP, **values):
    (found,) = forecast_fleet([store_device(**values)], question, lambda key: step)
    return found


def test_run_on_mains_power_takes_what_its_steps_take():
    found = forecast_one()
    assert found.can_finish and found.probability == 1.0 and not found.obstacle
    assert found.energy_j == pytest.approx(2000.0, rel=1e-3)
    assert found.interval_j == pytest.approx((1800.0, 2200.0), rel=0.02)
    assert found.duration_s == 10.0 and found.battery_share is None
    assert found.step_energy_j == 2.0 and found.profile_key == "k1"


FULL = {"battery_j": 10_000.0}
NARROW = {**FULL, "charge_share": 0.405, "reserve_share": 0.2}


@pytest.mark.parametrize(
    ("asked", "device", "obstacle", "probability", "reason"),
    [
        ({}, {**FULL, "charge_share": 0.5, "reserve_share": 0.2}, "", (0.99, 1.0), "$"),
        ({}, NARROW, "battery", (0.5, 0.9), "needs up to 2.1.*has 2.05 kJ"),
        ({"confidence": 0.5}, NARROW, "", (0.5, 0.9), "$"),
        ({}, {**FULL, "charge_share": 0.1, "reserve_share": 0.2}, "battery", (0.0, 0.0), "needs"),
        ({"deadline_s": 12.0}, {}, "", (0.9, 1.0), "$"),
        ({"deadline_s": 10.1}, {}, "deadline", (0.5, 0.7), "takes up to 10."),
        # What is less likely is the obstacle.
        ({"deadline_s": 10.1}, {"battery_j": 1900.0}, "battery", (0.0, 0.5), "needs"),
        ({}, {"memory_bytes": 2**21}, "", (1.0, 1.0), "$"),
        ({}, {"memory_bytes": 2**19}, "memory", (0.0, 0.0), "needs 1.00 MiB of .*has 512 KiB"),
        # The charge of this moment replaces that of the file.
        ({"charges": {"phone": 0.1}}, FULL, "battery", (0.0, 0.0), "needs"),
    ],
)
def test_what_prevents_a_run(asked, device, obstacle, probability, reason):
    found = forecast_one(replace(QUESTION, **asked), **device)
    assert (found.can_finish, found.obstacle) == (not obstacle, obstacle)
    assert probability[0] <= found.probability <= probability[1]
    assert re.match(reason, found.reason)


def test_memory_of_the_device_and_power_that_its_meter_does_not_see_count():
    assert forecast_one(step=replace(STEP, device_memory_bytes=2**19)).obstacle == "memory"
    seen, rest = forecast_one(**FULL), forecast_one(**FULL, rest_w=50.0)
    assert seen.battery_share == pytest.approx(0.2, rel=1e-3)
    assert rest.energy_j == pytest.approx(seen.energy_j + 500.0, rel=1e-6)
    assert rest.battery_share > seen.battery_share


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"charges": {"phone": 1.5}}, "charge of phone"),
        ({"charges": {"laptop": 0.1}}, "called 'laptop'"),
        ({"charges": {"phone": 0.1}}, "phone has no battery"),
    ],
)
def test_impossible_questions_are_refused(values, part):
    with pytest.raises(InputError, match=part):
        forecast_one(RunQuestion(**{"steps": 10, **values}))


def test_devices_are_ranked_and_those_of_one_profile_are_estimated_once():
    asked = []

    def estimate(key):
        asked.append(key)
        if key == "k3":
            raise MissingError("no profile yet: run `joulecast fleet profile NET`")
        return replace(STEP, energy_j=1.0, interval_j=(0.9, 1.1)) if key == "k2" else STEP

    devices = [
        store_device("new", "k3"),
        store_device("silent", ""),
        store_device("empty", "k1", battery_j=10.0),
        store_device("strong", "k1"),
        store_device("frugal", "k2"),
    ]
    found = forecast_fleet(devices, QUESTION, estimate)
    assert [one.name for one in found] == ["frugal", "strong", "empty", "new", "silent"]
    assert sorted(asked) == ["k1", "k2", "k3"]
    assert [one.can_finish for one in found] == [True, True, False, None, None]
    assert found[3].reason.startswith("no profile yet")
    assert "never answered" in found[4].reason
    whole = FleetEstimate("lenet5", Setup(), 1000, 0.95, 0.9, None, found)
    assert FleetEstimate.from_dict(whole.to_dict()) == whole
