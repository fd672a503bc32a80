"""The verbs of ``import joulecast``: they take nets in every form and agree with each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import joulecast
from joulecast.cli.main import COMMANDS
from joulecast.families import make_family
from joulecast.store.files import write_network, write_profile
from joulecast.system.errors import InputError

SMALL = {"on": "simulated:7", "batch": 8}
VERBS = {
    "inspect",
    "measure",
    "profile",
    "estimate",
    "generate",
    "compare",
    "search",
    "prune",
    "report",
    "plan",
    "evaluate",
    "score",
}
JOBS = """
[[job]]
name = "first"
net = "lenet5:3,5,9,11"
batch = 8
steps = 1000
deadline = "3h"

[[device]]
name = "board"
power_w = 4
flops_per_s = 5e9
memory = "2GiB"
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return str(tmp_path_factory.mktemp("api") / "store.sqlite")


@pytest.fixture(scope="module")
def profile(store):
    return joulecast.profile("lenet5:4,8,16,16", points=20, store=store, **SMALL)


def test_an_atlas_needs_no_net(tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.campaign.atlas_campaign._NETWORKS", {True: 3, False: 3})
    options = {"atlas": True, "on": "simulated:7", "store": str(tmp_path / "atlas.sqlite")}
    told = []
    learnt = joulecast.profile(points=30, on_progress=told.append, **options)
    assert learnt.device.name == "simulated-7" and "additive" in learnt.fits
    assert all(one.count <= 1 for one in learnt.observations)
    assert told[0].reason.startswith("planning") and told[-1].reason.startswith("fitting")
    assert joulecast.estimate("lenet5", device=learnt, batch=4).energy_j > 0


@pytest.mark.parametrize(
    ("net", "options", "part"),
    [
        ("lenet5", {"atlas": True}, "net or|leave batch"),
        (None, {"atlas": True, "batch": 8}, "net or|leave batch"),
        (None, {}, "atlas=True"),
    ],
)
def test_a_net_or_an_atlas_is_given(net, options, part):
    with pytest.raises(InputError, match=part):
        joulecast.profile(net, on="simulated:7", **options)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 5)
        self.fc = nn.Linear(3 * 24 * 24, 10)

    def forward(self, x):
        return self.fc(self.conv(x).relu().flatten(1))


def test_every_offered_name_exists():
    assert all(getattr(joulecast, name) is not None for name in joulecast.__all__)
    assert set(dir(joulecast)) >= set(joulecast.__all__)
    assert joulecast.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = joulecast.nonsense


def test_verbs_have_the_same_names_on_the_command_line():
    commands = {name for rows in COMMANDS.values() for name in rows}
    others = {"agent", "data", "detect", "devices", "fleet", "profiles", "serve"}
    assert commands - others == VERBS
    assert set(joulecast.__all__) >= VERBS
    assert all(callable(getattr(joulecast, name)) for name in VERBS)


def test_inspect_takes_names_and_modules():
    assert joulecast.inspect("cnn5", input_shape=(3, 32, 32)).input.shape == (3, 32, 32)
    network = joulecast.inspect(Net(), torch.zeros(4, 1, 28, 28))
    assert [layer.kind for layer in network.layers] == ["conv2d", "linear"]
    with pytest.raises(joulecast.JoulecastError, match="example inputs"):
        joulecast.inspect(Net())


def test_profile_reports_progress_and_keeps_observations(store, profile):
    reports = []
    options = {"points": 21, "store": store, "on_progress": reports.append, **SMALL}
    more = joulecast.profile("lenet5:4,8,16,16", **options)
    assert [report.points for report in reports] == [20, 21]
    assert more.observations[: len(profile.observations)] == profile.observations
    assert joulecast.load_profile("sim", store=store) == more


def test_one_net_under_all_its_names_has_one_estimate(store, profile, tmp_path):
    network = make_family("lenet5:2,3,4,5")
    path = tmp_path / "net.json"
    write_network(network, path)
    estimates = [
        joulecast.estimate(net, device=profile, batch=8)
        for net in ("lenet5:2,3,4,5", network, path, str(path))
    ]
    assert estimates == [estimates[0]] * 4
    assert estimates[0].provenance == "simulated"


def test_a_profile_is_found_by_name_and_file(store, profile, tmp_path):
    write_profile(profile, tmp_path / "profile.json")
    given = joulecast.estimate("lenet5", device=profile)
    by_file = joulecast.estimate("lenet5", device=str(tmp_path / "profile.json"))
    assert by_file == given
    assert joulecast.estimate("lenet5", device="simulated-7", store=store).device == given.device


def test_a_setup_and_its_fields_are_the_same(profile):
    setup = joulecast.Setup(batch=8, precision="bf16")
    by_setup = joulecast.estimate("lenet5", device=profile, setup=setup)
    assert by_setup == joulecast.estimate("lenet5", device=profile, batch=8, precision="bf16")
    with pytest.raises(joulecast.JoulecastError, match="batch is 0"):
        joulecast.estimate("lenet5", device=profile, batch=0)


def test_a_module_is_estimated_at_its_own_batch_or_another(profile):
    inputs = torch.zeros(4, 1, 28, 28)
    own = joulecast.estimate(Net(), inputs, device=profile)
    assert own == joulecast.estimate(Net(), inputs, device=profile, batch=4)
    assert own.energy_j < joulecast.estimate(Net(), inputs, device=profile, batch=8).energy_j


def test_a_probe_narrows_the_interval(store, profile):
    net = "lenet5:2,7,12,9"
    before = joulecast.estimate(net, device=profile, batch=8)
    after = joulecast.estimate(net, probe=True, store=store, **SMALL)
    assert _width(after) < _width(before)
    with pytest.raises(joulecast.JoulecastError, match="leave device"):
        joulecast.estimate(net, device=profile, probe=True, **SMALL)
    with pytest.raises(joulecast.JoulecastError, match="probe=True"):
        joulecast.estimate(net, device=profile, batch=8, meter="nvml")


def test_on_means_the_profile_of_that_device(store, profile):
    here = joulecast.estimate("lenet5", store=store, **SMALL)
    assert here == joulecast.estimate("lenet5", device="simulated-7", store=store, batch=8)
    with pytest.raises(joulecast.JoulecastError, match=r"simulated:8 .* has no profile yet"):
        joulecast.estimate("lenet5", store=store, on="simulated:8")
    with pytest.raises(joulecast.JoulecastError, match="give one of them"):
        joulecast.estimate("lenet5", device=profile, **SMALL)


def test_notes_of_reading_reach_the_estimate(profile):
    class Frozen(Net):
        def __init__(self) -> None:
            super().__init__()
            self.requires_grad_(False)

    inputs = torch.zeros(4, 1, 28, 28)
    network = joulecast.inspect(Frozen(), inputs)
    estimate = joulecast.estimate(Frozen(), inputs, device=profile)
    assert network.totals.notes and set(network.totals.notes) <= set(estimate.notes)


def test_update_moves_an_estimate_to_the_first_steps(profile):
    before = joulecast.estimate("lenet5", device=profile, batch=8)
    after = joulecast.update(before, energy_j=11 * before.energy_j, steps=10)
    assert before.energy_j < after.energy_j < 1.1 * before.energy_j
    assert _width(after) < _width(before)
    assert after.notes == before.notes


@pytest.mark.parametrize("covers", ["cpu", "cpu at 10 W a core"])
def test_tf32_is_refused_on_a_processor(profile, covers):
    processor = replace(profile, covers=covers)
    with pytest.raises(InputError, match="give fp32"):
        joulecast.estimate("lenet5", device=processor, precision="tf32")
    assert joulecast.estimate("lenet5", device=profile, precision="tf32").energy_j > 0


@pytest.mark.parametrize(("factor", "side"), [(0.04, "below"), (25.0, "above")])
def test_first_steps_outside_the_interval_raise_an_alarm(profile, factor, side):
    before = joulecast.estimate("lenet5", device=profile, batch=8)
    after = joulecast.update(before, energy_j=100 * factor * before.energy_j, steps=100)
    (alarm,) = set(after.notes) - set(before.notes)
    assert alarm.startswith("The first 100 steps took") and f"{side} the 95 % interval" in alarm


def _width(estimate):
    low, high = estimate.interval_j
    return (high - low) / estimate.energy_j


def test_a_net_is_measured_where_requested(tmp_path):
    seen = joulecast.measure("lenet5:2,2,4,4", on="simulated:7", batch=8, rounds=1)
    assert seen.provenance == "simulated" and seen.trial.setup.batch == 8 and seen.energy_j > 0
    place = str(tmp_path / "kept.sqlite")
    kept = joulecast.measure("lenet5:2,2,4,4", rounds=1, store=place, **SMALL)
    assert joulecast.load_profile("sim", store=place).observations == (kept,)


def test_inference_in_half_precision_leaves_the_module_as_it_is():
    net = nn.Linear(64, 64)
    before = net.weight.detach().clone()
    seen = joulecast.measure(
        net, torch.zeros(1, 64), phase="inference", precision="bf16", meter="modelled:5", rounds=1
    )
    assert seen.energy_j is not None and seen.energy_j > 0
    assert net.weight.dtype == torch.float32 and torch.equal(net.weight, before)


def test_a_module_is_measured_with_its_own_loss():
    net = nn.Linear(4, 2)
    seen = joulecast.measure(
        net,
        torch.ones(3, 4),
        loss=lambda out: out.square().mean(),
        meter="modelled",
        rounds=1,
        threads=1,
        batch=6,
    )
    assert seen.trial.setup.loss == "own" and seen.trial.setup.batch == 6
    assert seen.provenance == "modelled" and seen.energy_j > 0


def test_compare_ranks_setups_and_devices(store, profile):
    setups = [joulecast.Setup(batch=batch) for batch in (4, 8, 16)]
    found = joulecast.compare("lenet5:3,5,9,11", devices=[profile], setups=setups)
    by_name = joulecast.compare("lenet5:3,5,9,11", devices=["sim"], batch=(4, 8, 16), store=store)
    assert len(found.rows) == len(by_name.rows) == 3
    assert [row.setup for row in found.rows] == [row.setup for row in by_name.rows]
    (row,) = (row for row in found.rows if row.setup.batch == 8)
    alone = joulecast.estimate("lenet5:3,5,9,11", device=profile, batch=8)
    assert row.energy_j == pytest.approx(alone.energy_j / 8)


def test_search_hands_modules_to_the_training_function(profile):
    seen = []

    def score(net, trial):
        seen.append((net, trial.params))
        return float(sum(weight.numel() for weight in net.parameters()))

    result = joulecast.search(
        "lenet5:4,8,16,16", score, budget="105%", device=profile, batch=8, trials=3, seed=5
    )
    assert len(result.trials) == 3 and result.front
    assert all(isinstance(net, nn.Module) for net, _ in seen)
    first = next(seen[0][0].parameters())
    assert first.shape[0] == seen[0][1]["c1"]


def test_prune_takes_flat_options(profile):
    options = {"objective": "flops", "batch": 8, "floor": 0.2, "multiple": 2, "steps": 10}
    pruned = joulecast.prune("lenet5:4,8,16,16", budget="60%", device=profile, **options)
    result = pruned.pruning
    assert result.objective == "flops" and result.cost_after <= 0.6 * result.cost_before
    assert all(count % 2 == 0 for count in result.counts.values())
    assert isinstance(pruned.net, nn.Module)


def test_plan_reads_a_file(tmp_path):
    path = tmp_path / "jobs.toml"
    path.write_text(JOBS)
    plan = joulecast.plan(path, confidence=0.9, time_limit_s=10.0)
    assert plan.confidence == 0.9 and not plan.left_out


def test_evaluate_measures_then_reads_the_store(tmp_path):
    options = {"nets": 2, "seconds": 5.0, "estimators": ("flops",), "rounds": 1, **SMALL}
    options["store"] = str(tmp_path / "store.sqlite")
    measured = joulecast.evaluate("lenet5", **options)
    assert [score.estimator for score in measured.scores] == ["flops"]
    assert joulecast.evaluate("lenet5", offline=True, **options).scores == measured.scores
