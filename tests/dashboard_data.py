"""Fill a store and a folder of results as users do: with commands, on simulated devices."""

from dataclasses import dataclass
from pathlib import Path

from agent_processes import wait_until
from cli_stores import run_in_store
from fleet_examples import REQUEST, AgentHere, make_device, run_fleet_here

FIRST, SECOND, EVALUATED = "simulated-3", "simulated-5", "simulated-7"
NETWORK = "lenet5:4,8,16,16"
WIDE = ("cnn5:32,32,32,32", "--batch", "512", "--input", "3x32x32")
_PROFILED = ("lenet5", "--batch", "8", "--points", "16")
_JOBS = """
[[job]]
name = "night training"
net = "lenet5:4,8,16,16"
batch = 8
steps = 50_000
deadline = "3h"

[[job]]
name = "fine-tuning"
net = "lenet5:3,5,9,11"
batch = 8
steps = 20_000
deadline = "3h"

[[device]]
name = "phone"
profile = "simulated-5"
battery_wh = 50
charge = "70%"
reserve = "10%"
charger_w = 15
[[device.charging]]
from = "1h"
to = "2h"

[[device]]
name = "tablet"
profile = "simulated-5"
battery_wh = 80
charge = "90%"
"""


@dataclass(frozen=True)
class DashboardData:
    """A filled store, and a folder of results.

    Attributes:
        store: Path of the store: three profiles, an evaluation, two campaigns, scores, a fleet.
        results: Folder of ``plan.json``, ``pruning.json`` and ``score.json``.
    """

    store: Path
    results: Path


def make_dashboard_data(folder: Path) -> DashboardData:
    """Fill a store and a folder of results inside an empty folder."""
    store, results = folder / "store.sqlite", folder / "results"
    results.mkdir()
    jobs = folder / "jobs.toml"
    jobs.write_text(_JOBS)
    commands = (
        ("profile", *WIDE, "--on", "simulated:3", "--points", "18"),
        ("profile", *_PROFILED, "--on", "simulated:5"),
        ("evaluate", "lenet5", "--on", "simulated:7", "--batch", "8", "--nets", "3", "--seconds",
         "5", "--estimators", "additive,subtractive,flops"),
        ("score", "--on", "simulated:7", "--tdp", "150W", "--out", str(results / "score.json")),
        ("plan", str(jobs), "--out", str(results / "plan.json")),
        ("prune", *WIDE, "--device", FIRST, "--budget", "60%", "--strategy", "uniform",
         "--out", str(results / "pruning.json")),
    )  # fmt: skip
    for words in commands:
        run_in_store(store, *words)
    _run_fleet(store)
    return DashboardData(store, results)


def _run_fleet(store: Path) -> None:
    """Run a campaign on one device of a fleet; the other one is away."""
    devices = [make_device("phone"), make_device("tablet")]
    with run_fleet_here(store, devices, {"phone": AgentHere()}) as opened:
        names = [device.name for device in devices]
        opened.fleet.add_request(NETWORK, REQUEST.to_dict(), names)
        wait_until(
            lambda: any(one.state == "done" for one in opened.fleet.list_campaigns()),
            "the campaign of the fleet does not end",
        )
