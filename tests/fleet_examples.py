"""Devices of a fleet without a network: their agents answer in this process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from joulecast.agent.client import LinkLimits, open_remote_measurer
from joulecast.agent.service import AgentService
from joulecast.families import make_family
from joulecast.fleet.fleet_campaigns import CampaignRequest, run_campaigns, run_device_campaign
from joulecast.fleet.fleet_devices import FleetDevice
from joulecast.records import Setup
from joulecast.store import open_store
from joulecast.system.errors import DeviceAwayError

NETWORKS = tuple(make_family(f"lenet5:{n},6,12,8") for n in range(2, 6))
# The estimator that needs the fewest points: campaigns take moments.
REQUEST = CampaignRequest(NETWORKS[-1], Setup(batch=8), NETWORKS, estimator="constant", rounds=1)


def make_device(name="phone", **values):
    return FleetDevice(name, f"http://{name}:8377", **values)


class AgentHere:
    """An agent as a link: it answers in this process, and counts what it measures."""

    def __init__(self, on="simulated:5"):
        self.service = AgentService(on)
        self.measured = 0
        self.fails = None
        measure = self.service._measure

        def count(measurer, request):
            observation = measure(measurer, request)
            self.measured += 1
            return observation

        self.service._measure = count

    def ask(self, content):
        """Answer a request, unless ``fails`` raises something."""
        answer = self.service.answer(content)
        if self.fails is not None and b'"task":"describe"' not in content:
            self.fails(self)
        return answer

    def close(self):
        """Do nothing."""

    def open(self, device):
        """Return a measurer of the agent."""
        return open_remote_measurer(device.address, link=self, limits=LinkLimits(retry_s=0.0))


class FleetEndedError(Exception):
    """Ends campaigns of devices that are away."""


@contextmanager
def run_fleet_here(place, devices, agents):
    """Run a fleet in threads of this process: a coordinator, and agents without a network.

    Args:
        place: Path of the store.
        devices: The devices of the fleet.
        agents: Their agents by name; a device without one is away.
    """
    over = threading.Event()

    def open_measurer(device):
        if device.name not in agents:
            raise DeviceAwayError(f"the agent of {device.name} cannot be reached: start it")
        return agents[device.name].open(device)

    def wait(_pause_s):
        if over.wait(0.05):
            raise FleetEndedError

    def submit(device, request_key):
        options = {"open_measurer": open_measurer, "wait": wait}
        return pool.submit(run_device_campaign, store, device, request_key, 0.0, **options)

    with open_store(place) as store, ThreadPoolExecutor() as pool, store.fleet.claim_fleet():
        store.fleet.replace_devices({one.name: one.to_dict() for one in devices})
        running = pool.submit(
            run_campaigns, store.fleet, devices, submit, lambda *event: None, over.is_set
        )
        try:
            yield store
        finally:
            over.set()
            running.result()
