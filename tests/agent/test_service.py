"""An agent measures once per request, for those with its token; damaged messages are refused."""

import http.client
import io
import json
import random
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent_processes import PROGRAM, TOKEN, install_slow_device, make_trial, start_agent
from benchmarks.robustness.hostile_inputs import damage_bytes, damage_value, find_defect
from joulecast.agent import service as services
from joulecast.agent.addresses import (
    is_loopback,
    is_remote,
    names_loopback,
    parse_address,
    parse_listen,
    read_token,
)
from joulecast.agent.messages import (
    MOST_REQUEST_BYTES,
    AgentAnswer,
    AgentRequest,
    SentError,
    decode_message,
    describe_error,
    encode_message,
)
from joulecast.agent.service import AgentService, DeadlineReader, check_fits, serve_http
from joulecast.devices.detect import detect_device, find_free_memory
from joulecast.measurer.device_lock import hold_device
from joulecast.meters import UnavailableError
from joulecast.operators import peak_memory
from joulecast.records import Device, Execution, Network, Trial
from joulecast.system import errors
from joulecast.system.errors import (
    DeviceAwayError,
    InputError,
    MeasurementError,
    MeterLostError,
    MissingError,
    OutOfMemoryError,
)
from joulecast.system.plugins import load_plugins

ID = "0123456789abcdef"
DESCRIBE = encode_message(AgentRequest("0" * 8, "describe"))


@pytest.fixture
def service():
    with AgentService("simulated:3") as made:
        yield made


def ask(service, task="measure", trial=None, id=ID, **values):
    request = AgentRequest(id, task, trial, **values)
    return decode_message(AgentAnswer, service.answer(encode_message(request)), "agent")


def test_same_request_gets_the_same_answer_without_measuring_again(service, monkeypatch):
    request = encode_message(AgentRequest(ID, "measure", make_trial()))
    first = service.answer(request)
    # The client knows the trial.
    assert service.answer(request) == first and len(first) < 1000
    other = ask(service, trial=make_trial(), id="f" * 8)
    assert other.clock_s > json.loads(first)["clock_s"]
    # An id that is reused for another trial gets no foreign observation.
    foreign = ask(service, trial=make_trial(batch=64))
    assert foreign.observation.duration_s != json.loads(first)["observation"]["duration_s"]
    # Only the last answers are remembered.
    monkeypatch.setattr(services, "_REMEMBERED", 2)
    for digit in "123":
        ask(service, "idle", id=digit * 8)
    assert json.loads(service.answer(request))["clock_s"] > other.clock_s


def test_errors_are_answers_that_are_not_remembered(service):
    empty = replace(make_trial(), network=Network())
    for _ in range(2):
        with pytest.raises(InputError, match="empty"):
            ask(service, trial=empty).raise_error()
    data = make_trial().to_dict()
    data["network"]["layers"][1]["sizes"]["kernel"] = -1
    with pytest.raises(InputError, match="layer 2"):
        ask(service, trial=Trial.from_dict(data)).raise_error()


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
    with AgentService("slow:50", f"command:cat {watts}") as service:
        watts.unlink()
        with pytest.raises(MeterLostError, match=r"cat .*watts"):
            ask(service, "idle").raise_error()
        watts.write_text("5 W\n")
        assert ask(service, "idle").observation.energy_j == pytest.approx(5.0, rel=0.01)


def test_lock_and_power_mode_of_the_device_are_looked_at_for_every_request(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pytest.importorskip("MNN")
    with AgentService("mnn:cpu", "modelled", "board", lock_wait_s=0.0) as service:
        with hold_device("cpu"), pytest.raises(DeviceAwayError, match="another campaign"):
            ask(service, "idle").raise_error()
        before = ask(service, "describe").description.device
        changed = replace(detect_device("cpu"), power_mode="15W")
        monkeypatch.setattr(services, "detect_device", lambda hardware: changed)
        assert ask(service, "idle").observation.device == replace(before, power_mode="15W")
        assert before.name == "board"


def test_trial_larger_than_the_free_memory_is_refused_before_it_runs(service):
    trial = make_trial("resnet18", batch=64)
    needed = peak_memory(trial.network, trial.setup)
    check_fits(trial, Device("board", memory_bytes=needed))
    check_fits(trial, Device("board"))
    for copies, memory_bytes in ((1, needed - 1), (2, needed)):
        own = replace(trial, execution=Execution(copies=copies))
        with pytest.raises(OutOfMemoryError, match="resnet18"):
            check_fits(own, Device("board", memory_bytes=memory_bytes))
    service._measurer.runtime.device = Device("board", memory_bytes=2**30)
    with pytest.raises(OutOfMemoryError, match="smaller batch"):
        ask(service, trial=make_trial("resnet50", batch=10**9)).raise_error()
    assert ask(service, "describe").clock_s == 0.0


def test_processor_has_the_memory_that_other_programs_leave(tmp_path, monkeypatch):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable:  300 kB\n")
    monkeypatch.setattr("joulecast.devices.detect.ROOT", tmp_path)
    assert find_free_memory(Device("cpu", memory_bytes=1_024_000)) == 307_200
    assert find_free_memory(Device("gpu", memory_bytes=80 * 2**30)) == 80 * 2**30


def test_damaged_requests_get_an_answer_of_one_line(service, capsys):
    rng = random.Random(0)
    request = {"protocol": 1, **AgentRequest(ID, "measure", make_trial(), rounds=1).to_dict()}
    content, refused = json.dumps(request).encode(), 0
    for _ in range(80):
        for damaged in (
            json.dumps(damage_value(request, rng)).encode(),
            damage_bytes(content, rng),
        ):
            answer = decode_message(AgentAnswer, service.answer(damaged), "agent")
            if answer.error is not None:
                refused += 1
                assert find_defect(answer.raise_error) is None
    assert refused > 100
    # Where a bug would show its traceback.
    assert capsys.readouterr().err == ""


# -- HTTP ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent():
    with start_agent(environ={"JOULECAST_TOKEN": TOKEN}) as started:
        yield started


@pytest.fixture(scope="module")
def open_agent():
    with start_agent() as started:
        yield started


def post(agent, content=DESCRIBE, token=TOKEN, **headers):
    """Return status and answer of a request."""
    connection = http.client.HTTPConnection(agent.listen, timeout=20)
    given = {"Authorization": f"Bearer {token}"} if token else {}
    own = {"Content-Type": "application/json", **given, **headers}
    connection.request("POST", "/", content, own)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü" * 9])
def test_wrong_tokens_are_refused_without_showing_the_right_one(agent, token):
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    status, answer = post(agent, token="", **headers)
    assert status == 401 and "refuses the token" in answer["error"]["message"]
    assert TOKEN not in json.dumps(answer)
    assert TOKEN not in Path(f"/proc/{agent.process.pid}/cmdline").read_text()


HEAD = f"POST / HTTP/1.1\nHost: a\nAuthorization: Bearer {TOKEN}\nContent-Type: application/json\n"
TEXT = HEAD.replace("application/json", "text/plain")


@pytest.mark.parametrize(
    ("head", "status", "part"),
    [
        (f"{HEAD}Content-Length: 10000000000\n\n{{", 413, "larger than 8 MiB"),
        (f"{HEAD}Content-Length: {'9' * 5000}\n\n", 413, "larger than 8 MiB"),
        (f"{HEAD}Content-Length: -1\n\n", 411, "how long"),
        (f"{HEAD}\n", 411, "how long"),
        (f"{HEAD}Transfer-Encoding: chunked\n\n", 411, "how long"),
        (f"{HEAD}Transfer-Encoding: chunked\nContent-Length: 5\n\n", 411, "how long"),
        (f"{TEXT}Content-Length: 5\n\n", 415, "json only"),
        (f"{HEAD}X: {'x' * 70_000}\n\n", 431, ""),
        ("GET / HTTP/1.1\nHost: a\n\n", 501, ""),
    ],
)
def test_requests_are_refused_before_they_are_read(agent, head, status, part):
    host, port = agent.listen.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode())
        with connection.makefile("rb") as file:
            answer = file.read().decode()
    assert answer.split()[1] == str(status) and part in answer


def test_agent_survives_clients_that_break_off_and_measures_nothing_for_them(agent):
    address = ("127.0.0.1", int(agent.listen.split(":")[1]))
    before = post(agent)[1]["clock_s"]
    content = encode_message(AgentRequest("a" * 8, "measure", make_trial()))
    head = HEAD.replace("\n", "\r\n") + f"Content-Length: {len(content)}\r\n\r\n"
    for text in (b"", b"POST / HT", head.encode() + b"{"):
        with socket.create_connection(address) as connection:
            connection.sendall(text)
    # The agent is kept busy by a client that sends nothing until the other one has given up.
    with socket.create_connection(address) as busy:
        with socket.create_connection(address) as impatient:
            impatient.sendall(head.encode() + content)
        busy.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert post(agent)[1]["clock_s"] == before


def test_client_that_sends_a_byte_now_and_then_is_not_waited_for():
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def drip():
        with suppress(OSError):
            while not over.wait(0.02):
                ours.sendall(b"x")

    with ours, theirs, io.BufferedReader(DeadlineReader(theirs, 0.2)) as reader:
        dripping = threading.Thread(target=drip)
        dripping.start()
        with pytest.raises(TimeoutError):
            reader.readline()
        over.set()
        dripping.join()


def test_without_a_token_only_this_machine_is_answered(open_agent, service):
    assert post(open_agent, token="")[0] == 200
    for host in ("evil.example", "evil.example:8377", "[", ""):
        status, answer = post(open_agent, token="", Host=host)
        assert status == 403 and "token" in answer["error"]["message"]
    for host in ("0.0.0.0", "::", "192.168.1.2"):
        with pytest.raises(InputError, match="JOULECAST_TOKEN"):
            serve_http(service, (host, 0))
    with pytest.raises(InputError, match="cannot listen"):
        serve_http(service, ("127.0.0.1", int(open_agent.listen.split(":")[1])))


def test_agent_has_one_thread_does_not_wake_and_writes_no_file(open_agent):
    content = encode_message(AgentRequest("b" * 8, "measure", make_trial()))
    assert post(open_agent, content, token="")[0] == 200
    process = Path(f"/proc/{open_agent.process.pid}")

    def count_wakes():
        text = (process / "status").read_text()
        return [line for line in text.splitlines() if "voluntary_ctxt_switches" in line]

    # It may still finish the request, but one that polls would wake in every pause.
    for _ in range(40):
        before = count_wakes()
        time.sleep(0.5)
        if count_wakes() == before:
            break
    assert count_wakes() == before
    assert len(list((process / "task").iterdir())) == 1
    targets = [str(one.readlink()) for one in (process / "fd").iterdir()]
    assert not [one for one in targets if one.startswith("/") and not one.startswith("/dev/")]


# -- stdin --------------------------------------------------------------------------------------


def test_each_line_of_stdin_is_answered_until_one_is_too_long():
    requests = [AgentRequest("0" * 8, "describe"), AgentRequest("1" * 8, "time", make_trial())]
    lines = [*[encode_message(one) for one in requests] * 2, b"nonsense"]
    lines += [b"[" * (MOST_REQUEST_BYTES + 10), encode_message(requests[0])]
    done = subprocess.run(
        [*PROGRAM, "--stdio", "--on", "simulated:3"],
        input=b"\n".join([*lines, b""]),
        capture_output=True,
        timeout=60,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == b""
    assert [one["id"] for one in answers] == ["0" * 8, "1" * 8, "0" * 8, "1" * 8, "", ""]
    assert answers[1] == answers[3] and answers[1]["observation"]["duration_s"] > 0
    assert "not JSON" in answers[4]["error"]["message"]
    assert "larger than 8 MiB" in answers[5]["error"]["message"]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ssh://board", "joulecast agent --stdio"),
        ("ssh://pi@board:2222/agent.pyz", "python3 agent.pyz --stdio"),
        ("ssh://board//opt/agent.pyz", "python3 /opt/agent.pyz --stdio"),
        ("ssh://board?on=cuda:0&meter=hwmon", "joulecast agent --stdio --on cuda:0 --meter hwmon"),
        ("ssh://board/my%20agent.pyz", "python3 'my agent.pyz' --stdio"),
        ("ssh://board/a.pyz;reboot", "python3 'a.pyz;reboot' --stdio"),
        ("ssh://board?on=cpu;reboot", "joulecast agent --stdio --on 'cpu;reboot'"),
        ("ssh://board/-c", "python3 ./-c --stdio"),
    ],
)
def test_ssh_starts_the_agent_and_nothing_else(text, command):
    assert parse_address(text).make_command() == command


def test_http_addresses_have_a_default_port():
    assert parse_address("http://board").port == 8377
    found = parse_address("https://[::1]:9000/")
    assert (found.scheme, found.host, found.port) == ("https", "::1", 9000)
    assert all(map(is_remote, ("http://a", "HTTPS://a", "ssh://a")))
    assert not any(map(is_remote, ("cpu", "cuda:0", "mnn:cpu", "simulated:7", "http")))
    assert parse_listen("[::]:1") == ("::", 1) and parse_listen("board:0") == ("board", 0)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("board:8377", "does not begin"),
        ("ftp://board", "does not begin"),
        ("http://", "no host"),
        ("http://board:99999", "ange"),
        ("http://board/path", "nothing follows"),
        ("ssh://-oProxyCommand=reboot/", "no host"),
        ("ssh://-l@board", "no host"),
        ("ssh://board?listen=0.0.0.0:1", "no option 'listen'"),
        ("http://me:secret@board", "JOULECAST_TOKEN"),
        ("http://secret@board", "JOULECAST_TOKEN"),
        ("ssh://a:secret@b", "JOULECAST_TOKEN"),
    ],
)
def test_other_addresses_are_refused_without_showing_secrets(text, part):
    with pytest.raises(InputError, match=part) as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "8377", "127.0.0.1", ":8377", "a:b", "a:99999", "a:٣"])
def test_other_values_of_listen_are_refused(text):
    with pytest.raises(InputError, match="--listen"):
        parse_listen(text)


def test_loopback_is_what_only_this_machine_reaches():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.2", "board", "", "127.0.0.1.a")))
    assert names_loopback("localhost:80") and not any(map(names_loopback, ("evil.example", "[")))


def test_token_is_that_of_the_file_then_of_the_environment(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert read_token(str(file), {"JOULECAST_TOKEN": "x" * 20}) == TOKEN
    assert read_token("", {"JOULECAST_TOKEN_FILE": str(file)}) == TOKEN
    assert read_token("", {"JOULECAST_TOKEN": TOKEN}) == TOKEN and read_token("", {}) == ""
    file.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600") as caught:
        read_token(str(file), {})
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("content", ["short", "with spaces in the middle", "x" * 1025, "ü" * 20])
def test_other_contents_are_not_tokens(content):
    with pytest.raises(InputError, match="JOULECAST_TOKEN") as caught:
        read_token("", {"JOULECAST_TOKEN": content})
    assert content not in str(caught.value)


def test_errors_arrive_as_the_nearest_class_in_one_short_line():
    for cls in (one for one in vars(errors).values() if isinstance(one, type)):
        sent = encode_message(AgentAnswer(ID, error=describe_error(cls("what to do"))))
        with pytest.raises(cls, match="what to do") as caught:
            decode_message(AgentAnswer, sent, "agent").raise_error()
        assert type(caught.value) is cls
    with pytest.raises(MissingError, match="no meter"):
        AgentAnswer(ID, error=describe_error(UnavailableError("no meter", ""))).raise_error()
    for name in ("ValueError", "make_printable", "__import__", ""):
        with pytest.raises(MeasurementError) as caught:
            AgentAnswer(ID, error=SentError(name, "a\nb\x1b[2J")).raise_error()
        assert str(caught.value) == "a b\\x1b[2J"
    assert len(describe_error(InputError("x" * 10_000)).message) == 2000


def change(**values):
    data = {"protocol": 1, **AgentRequest(ID, "measure", make_trial()).to_dict(), **values}
    return json.dumps({key: value for key, value in data.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "not JSON"),
        (b"\x80\x04K\x01.", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"protocol": 1, "id": NaN}', "NaN"),
        (b"[]", "not a message"),
        (b"{}", "not a message"),
        (change(protocol=2), "version 2 of the protocol"),
        (change(id="../../etc"), "hexadecimal"),
        (change(task="exec"), "task"),
        (change(code="import os"), "no field 'code'"),
        (change(rounds=10**9), "rounds"),
        (change(rounds=0), "rounds"),
        (change(run="x" * 1001), "run of a request"),
        (change(task="idle"), "trial"),
        (change(trial=None), "trial"),
    ],
)
def test_damaged_requests_are_refused(content, part):
    with pytest.raises(InputError, match=part) as caught:
        decode_message(AgentRequest, content, "the client")
    assert len(str(caught.value)) < 300
