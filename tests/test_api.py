"""``import joulecast``: the same answers as the command line gives, in a few lines."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import joulecast
from joulecast.families import make_family
from joulecast.files import write_network, write_profile

KNOWN = {"on": "simulated:7", "batch": 8}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return str(tmp_path_factory.mktemp("api") / "store.sqlite")


@pytest.fixture(scope="module")
def profile(store):
    return joulecast.profile("lenet5:4,8,16,16", points=20, store=store, **KNOWN)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 5)
        self.fc = nn.Linear(3 * 24 * 24, 10)

    def forward(self, x):
        return self.fc(self.conv(x).relu().flatten(1))


def test_everything_that_is_offered_is_there():
    assert all(getattr(joulecast, name) is not None for name in joulecast.__all__)
    assert joulecast.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = joulecast.nonsense


def test_reading_takes_names_and_modules():
    assert joulecast.read("cnn5", input_shape=(3, 32, 32)).input.shape == (3, 32, 32)
    network = joulecast.read(Net(), torch.zeros(4, 1, 28, 28))
    assert [layer.kind for layer in network.layers] == ["conv2d", "linear"]
    with pytest.raises(joulecast.JoulecastError, match="example"):
        joulecast.read(Net())


def test_progress_is_told_and_what_is_learnt_is_kept(store, profile):
    told = []
    words = {"points": 21, "store": store, "on_progress": told.append, **KNOWN}
    more = joulecast.profile("lenet5:4,8,16,16", **words)
    assert [step.points for step in told] == [20, 21]
    assert more.observations[: len(profile.observations)] == profile.observations
    assert joulecast.load_profile("sim", store=store) == more


def test_one_net_under_all_its_names(store, profile, tmp_path):
    network = make_family("lenet5:2,3,4,5")
    path = tmp_path / "net.json"
    write_network(network, path)
    answers = [
        joulecast.estimate(net, device=profile, batch=8)
        for net in ("lenet5:2,3,4,5", network, path, str(path))
    ]
    assert answers == [answers[0]] * 4
    assert answers[0].basis == "simulated"


def test_a_profile_answers_by_name_by_file_and_itself(store, profile, tmp_path):
    write_profile(profile, tmp_path / "profile.json")
    given = joulecast.estimate("lenet5", device=profile)
    by_file = joulecast.estimate("lenet5", device=str(tmp_path / "profile.json"))
    assert by_file == given
    assert joulecast.estimate("lenet5", device="simulated-7", store=store).device == given.device


def test_a_setup_and_its_words_are_the_same(profile):
    setup = joulecast.Setup(batch=8, precision="bf16")
    by_setup = joulecast.estimate("lenet5", device=profile, setup=setup)
    assert by_setup == joulecast.estimate("lenet5", device=profile, batch=8, precision="bf16")
    with pytest.raises(TypeError):
        joulecast.estimate("lenet5", device=profile, speed="fast")
    with pytest.raises(joulecast.JoulecastError, match="batch is 0"):
        joulecast.estimate("lenet5", device=profile, batch=0)


def test_a_module_is_estimated_at_its_own_batch_or_another(profile):
    inputs = torch.zeros(4, 1, 28, 28)
    own = joulecast.estimate(Net(), inputs, device=profile)
    assert own == joulecast.estimate(Net(), inputs, device=profile, batch=4)
    assert own.energy_j < joulecast.estimate(Net(), inputs, device=profile, batch=8).energy_j


def test_a_net_is_observed_where_it_is_asked_for():
    seen = joulecast.observe("lenet5:2,2,4,4", on="simulated:7", batch=8, rounds=1)
    assert seen.provenance == "simulated" and seen.trial.setup.batch == 8 and seen.energy_j > 0


def test_a_module_is_observed_with_its_own_loss():
    net = nn.Linear(4, 2)
    seen = joulecast.observe(
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


def test_setups_and_devices_are_compared(store, profile):
    setups = [joulecast.Setup(batch=batch) for batch in (4, 8, 16)]
    found = joulecast.compare("lenet5:3,5,9,11", devices=[profile], setups=setups)
    by_name = joulecast.compare("lenet5:3,5,9,11", devices=["sim"], setups=setups, store=store)
    assert len(found.rows) == len(by_name.rows) == 3
    (row,) = (row for row in found.rows if row.setup.batch == 8)
    alone = joulecast.estimate("lenet5:3,5,9,11", device=profile, batch=8)
    assert row.energy_j == pytest.approx(alone.energy_j / 8)


def test_a_search_hands_modules_to_the_training_function(profile):
    seen = []

    def score(net, trial):
        seen.append((net, trial.params))
        return float(sum(weight.numel() for weight in net.parameters()))

    setup = joulecast.Setup(batch=8)
    found = joulecast.search(
        "lenet5:4,8,16,16", score, budget="98%", device=profile, setup=setup, trials=3, seed=5
    )
    assert len(found.points) == 3 and found.front
    assert all(isinstance(net, nn.Module) for net, _ in seen)
    first = next(seen[0][0].parameters())
    assert first.shape[0] == seen[0][1]["c1"]
