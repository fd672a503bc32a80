"""Devices elsewhere are measured once, however often the connection, agent or client fails."""

import socket
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from agent_processes import TOKEN, install_slow_device, make_trial, start_agent
from joulecast.agent.client import open_remote_measurer
from joulecast.agent.client import LinkLimits, RemoteMeasurer
from joulecast.agent.messages import MOST_REQUEST_BYTES
from joulecast.agent.service import AgentOptions, AgentService
from joulecast.campaign import find_profile_key
from joulecast.errors import DeviceAwayError, InputError, NetError
from joulecast.local_devices import open_local_measurer
from joulecast.measurer import TrialMeasurer
from joulecast.records import Network, Setup, Trial

QUICK = LinkLimits(connect_s=1.0, answer_s=20.0, retry_s=0.4)


@pytest.fixture(scope="module")
def agent():
    with start_agent("simulated:3") as started:
        yield started


class CuttingProxy:
    """Forwards requests to an agent, and cuts the connection before the first answers arrive."""

    def __init__(self, target, cuts):
        host, port = target.listen.split(":")
        self.target, self.cuts, self.bodies = (host, int(port)), cuts, []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            with client, socket.create_connection(self.target) as agent:
                request = self.read_request(client)
                agent.sendall(request)
                answer = b"".join(iter(lambda agent=agent: agent.recv(65536), b""))
                self.bodies.append(request.partition(b"\r\n\r\n")[2])
                # After the first one, which describes the device.
                if 1 < len(self.bodies) <= 1 + self.cuts:
                    continue
                client.sendall(answer)

    @staticmethod
    def read_request(client):
        content = b""
        while b"\r\n\r\n" not in content:
            content += client.recv(65536)
        head, _, body = content.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += client.recv(65536)
        return head + b"\r\n\r\n" + body


def test_remote_measurer_is_like_a_local_one(agent):
    local = open_local_measurer("simulated:3")
    with open_remote_measurer(agent.address) as remote:
        assert find_profile_key(remote) == find_profile_key(local)
        assert remote.runtime.modes == local.runtime.modes
        started_s = remote.now()
        seen = remote.measure(make_trial())
        assert remote.now() - started_s >= seen.cost_s > 1.0
        assert (seen.trial, seen.run, seen.count) == (make_trial(), remote.run, 3)
        assert remote.time(make_trial()).energy_j is None
        assert remote.measure_idle().trial.network == Network()
        own = remote.change_run("other", rounds=1).measure(make_trial())
        assert (own.run, own.count) == ("other", 1)
        refusal = remote.make_refusal(make_trial(), "why")
        assert (refusal.refusal, refusal.count, refusal.energy_j) == ("why", 0, None)


def test_simulated_device_gives_the_same_numbers_here_and_there():
    with open_local_measurer("simulated:5") as local, start_agent("simulated:5") as agent:
        remote: TrialMeasurer = open_remote_measurer(agent.address)
        there, here = remote.measure(make_trial()), local.measure(make_trial())
        assert isinstance(remote, RemoteMeasurer)
    assert (there.energy_j, there.duration_s, there.issue_s) == (
        here.energy_j,
        here.duration_s,
        here.issue_s,
    )


@pytest.mark.parametrize("cuts", [1, 2])
def test_lost_answer_is_asked_for_again_and_not_measured_again(cuts):
    with start_agent("simulated:5") as agent, open_local_measurer("simulated:5") as local:
        proxy = CuttingProxy(agent, cuts)
        with open_remote_measurer(proxy.address) as remote:
            seen, after = remote.measure(make_trial()), remote.measure(make_trial())
        proxy.server.close()
        assert len(proxy.bodies) == 3 + cuts and len(set(proxy.bodies)) == 3
        # A second measurement in between would have moved the device's clock and its noise.
        expected = [local.measure(make_trial()).energy_j for _ in range(2)]
    assert [seen.energy_j, after.energy_j] == expected


def test_connection_that_stays_lost_is_given_up(agent):
    proxy = CuttingProxy(agent, 100)
    with (
        open_remote_measurer(proxy.address, limits=QUICK) as remote,
        pytest.raises(DeviceAwayError, match="cannot be reached"),
    ):
        remote.measure(make_trial())
    proxy.server.close()


def test_agent_that_is_killed_while_it_measures_is_asked_again(tmp_path):
    environ = install_slow_device(tmp_path / "site")
    with start_agent("slow:5", "--meter", "modelled", environ=environ) as first:
        remote = open_remote_measurer(first.address, rounds=1)
        found = []
        thread = threading.Thread(target=lambda: found.append(remote.measure(make_trial())))
        thread.start()
        time.sleep(0.5)
        first.kill()
        with start_agent("slow:5", "--meter", "modelled", listen=first.listen, environ=environ):
            thread.join(30)
    assert [one.count for one in found] == [1]
    assert found[0].duration_s == pytest.approx(5e-3, rel=0.2)


def test_requests_of_several_clients_are_measured_one_after_the_other(tmp_path):
    environ = install_slow_device(tmp_path / "site")
    with start_agent("slow:5", "--meter", "modelled", environ=environ) as agent:
        clients = [open_remote_measurer(agent.address, rounds=1) for _ in range(3)]
        seen, counts = [], set()
        threads = [
            threading.Thread(target=lambda one=one: seen.append(one.time(make_trial())))
            for one in clients
        ]
        for thread in threads:
            thread.start()
        tasks = Path(f"/proc/{agent.process.pid}/task")
        while any(thread.is_alive() for thread in threads):
            counts.add(len(list(tasks.iterdir())))
            time.sleep(0.05)
    # It has no thread beside the one that measures.
    assert counts == {1}
    ends_s = sorted((one.taken_at_s, one.cost_s) for one in seen)
    assert len(ends_s) == 3
    for (before_s, _), (after_s, cost_s) in pairwise(ends_s):
        assert after_s - cost_s >= before_s - 0.01


def test_agent_that_came_back_with_another_device_is_noticed():
    with start_agent("simulated:3") as first:
        remote = open_remote_measurer(first.address)
        first.kill()
        with (
            start_agent("simulated:4", listen=first.listen),
            pytest.raises(DeviceAwayError, match="another device"),
        ):
            remote.measure(make_trial())


def test_time_never_goes_back_when_a_simulated_device_starts_again():
    with start_agent("simulated:3") as first:
        remote = open_remote_measurer(first.address)
        for _ in range(3):
            remote.measure(make_trial())
        before_s = remote.now()
        first.kill()
        with start_agent("simulated:3", listen=first.listen):
            remote.measure(make_trial())
            assert remote.now() == before_s
            remote.measure(make_trial())
            assert remote.now() > before_s + 1.0


def test_device_can_have_another_name_here(agent):
    with open_remote_measurer(agent.address, device_name="desk") as remote:
        assert remote.measure(make_trial()).device == remote.runtime.device
        assert remote.runtime.device.name == "desk"


def test_errors_are_those_of_measuring_here(agent):
    with open_remote_measurer(agent.address) as remote:
        with pytest.raises(NetError, match="the network is empty"):
            remote.measure(Trial(Network(), Setup()))
        assert remote.measure(make_trial()).energy_j > 0


def test_wrong_token_is_one_line_without_tokens():
    with start_agent(environ={"JOULECAST_TOKEN": TOKEN}) as agent:
        wrong = "another-token-than-the-right-one"
        for token in ("", wrong):
            with pytest.raises(InputError, match="refuses the token: give both the same") as caught:
                open_remote_measurer(agent.address, token)
            assert wrong not in str(caught.value) and TOKEN not in str(caught.value)
        assert open_remote_measurer(agent.address, TOKEN).version


def test_trial_that_is_too_large_is_not_sent(agent):
    network = make_trial().network
    large = Network(network.layers, name="x" * MOST_REQUEST_BYTES)
    with (
        open_remote_measurer(agent.address) as remote,
        pytest.raises(InputError, match="agents take 8 MiB"),
    ):
        remote.measure(Trial(large, Setup()))


def test_disturbances_of_all_answers_add_up(monkeypatch):
    with AgentService(AgentOptions("simulated:3")) as service:

        class HereLink:
            ask = staticmethod(service.answer)

            def close(self):
                pass

        monkeypatch.setattr("joulecast.agent.client.make_link", lambda *given: HereLink())
        simulated = service._measurer.runtime.simulated
        with open_remote_measurer("http://here") as remote:
            simulated.disturb("other load", 1.0)
            remote.measure(make_trial())
            first = remote.disturbances["other load"]
            simulated.disturb("throttled", 1.0)
            remote.measure(make_trial())
    assert first > 0 and remote.disturbances["throttled"] > 0
    assert remote.disturbances["other load"] == first
