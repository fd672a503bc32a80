"""Whatever a caller gives to the verbs, a wrong value is one of our errors and names the option."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import joulecast
from joulecast.devices.detect import detect_device
from joulecast.features.arguments import convert_on, is_torch_device, list_arguments
from joulecast.features.profiles import find_profiles
from joulecast.records import Setup
from joulecast.store.files import write_profile
from joulecast.system.errors import InputError, MissingError

NAN = math.nan
ODD = ("a", NAN, 1.5, math.inf, [], True, object())


@pytest.fixture(scope="module")
def profile():
    net, inputs = make_net()
    return joulecast.profile(net, inputs, on="simulated:1", points=6, store=":memory:")


def make_net():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 4)), torch.zeros(4, 12)


def mean_square(output):
    return output.square().mean()


@pytest.mark.parametrize("value", [*ODD, [8]])
@pytest.mark.parametrize("name", ["batch", "threads"])
def test_a_count_that_is_no_whole_number_is_named(profile, name, value):
    with pytest.raises(InputError, match=f"{name} is .*: give a whole number"):
        joulecast.estimate("lenet5", device=profile, **{name: value})
    with pytest.raises(InputError, match=f"{name} is .*: give a whole number"):
        Setup(**{name: value})


@pytest.mark.parametrize("value", [ODD[0], ODD[1], ODD[-1]])
def test_batch_sizes_to_compare_are_checked(profile, value):
    with pytest.raises(InputError, match="batch is"):
        joulecast.compare("lenet5", devices=[profile], batch=(8, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("level", NAN),
        ("estimator", 3),
        ("store", 3),
        ("precision", 3),
        ("probe", "yes"),
        ("probe_seconds", -1),
        ("setup", 3),
        ("device", 3),
        ("device", NAN),
        ("device", ["nvidia-h200"]),
        ("input_shape", (3, NAN, 32)),
    ],
)
def test_a_value_of_the_wrong_type_is_named(profile, name, value):
    with pytest.raises(InputError, match=f"{name} is "):
        joulecast.estimate("lenet5", **{"device": profile, name: value})


@pytest.mark.parametrize(
    ("verb", "name", "value"),
    [
        ("profile", "seconds", NAN),
        ("profile", "seconds", -1),
        ("profile", "seconds", math.inf),
        ("profile", "points", 0),
        ("profile", "interval_share", 0),
        ("measure", "rounds", NAN),
        ("measure", "on", 3),
        ("measure", "meter", 3),
        ("evaluate", "nets", "a"),
        ("plan", "time_limit_s", NAN),
        ("plan", "time_limit_s", -1),
        ("plan", "confidence", "a"),
    ],
)
def test_options_of_other_verbs_are_checked(verb, name, value):
    with pytest.raises(InputError, match=f"{name} is "):
        getattr(joulecast, verb)("lenet5", **{name: value})


@pytest.mark.parametrize("budget", [0.5, 3])
def test_a_budget_is_text(profile, budget):
    with pytest.raises(InputError, match=r"the budget is .* as text"):
        joulecast.search("lenet5", len, budget=budget, device=profile)


@pytest.mark.parametrize("net", [3, len])
def test_something_that_is_no_net_is_named(net, profile):
    with pytest.raises(InputError, match="net is missing"):
        joulecast.estimate(None, device=profile)
    with pytest.raises(InputError, match=r"net is .*: give a name"):
        joulecast.estimate(net, torch.zeros(1), device=profile)


@pytest.mark.parametrize(
    ("energy_j", "steps"), [(NAN, 3), ("a", 3), (math.inf, 3), (1.0, NAN), (1.0, 1.5), (1.0, 0)]
)
def test_the_first_steps_are_numbers(profile, energy_j, steps):
    estimate = joulecast.estimate("lenet5", device=profile)
    with pytest.raises(InputError):
        joulecast.update(estimate, energy_j=energy_j, steps=steps)


def test_numbers_of_numpy_and_pytorch_are_numbers():
    declared = {one.name: one for one in list_arguments(joulecast.estimate)}
    assert declared["batch"].convert(np.int64(8)) == 8
    assert declared["threads"].convert(torch.tensor(2)) == 2
    assert declared["level"].convert(np.float32(0.75)) == 0.75
    assert declared["input_shape"].convert([np.int32(3), 8]) == (3, 8)


def test_one_value_stands_for_a_list_of_one(profile):
    one = joulecast.compare("lenet5", devices=profile, batch=8, precision="bf16")
    many = joulecast.compare("lenet5", devices=[profile], batch=(8,), precision=("bf16",))
    assert one.rows == many.rows


@pytest.mark.parametrize("verb", ["inspect", "estimate", "profile", "compare", "measure"])
def test_a_module_takes_its_own_loss(verb, profile):
    """Cross-entropy would fail: the module returns a dict."""

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 4)

        def forward(self, x):
            return {"logits": self.layer(x)}

    options = {
        "inspect": {},
        "estimate": {"device": profile},
        "profile": {"on": "simulated:1", "points": 4, "store": ":memory:"},
        "compare": {"devices": profile},
        "measure": {"on": "simulated:1", "rounds": 1},
    }[verb]
    calls = []

    def loss(output):
        calls.append(output)
        return mean_square(output["logits"])

    assert getattr(joulecast, verb)(Outputs(), torch.zeros(4, 12), loss=loss, **options)
    assert calls


@pytest.mark.parametrize("net", ["lenet5", "own.py:make_net"])
def test_a_loss_function_without_a_module_is_refused(net, profile):
    with pytest.raises(InputError, match="needs a module and its inputs"):
        joulecast.estimate(net, device=profile, loss=mean_square)


def test_a_torch_device_is_a_device_of_this_machine(tmp_path):
    store, here = str(tmp_path / "store.sqlite"), torch.device("cpu")
    assert is_torch_device(here) and not is_torch_device("cpu")
    assert convert_on(here) == "cpu"
    name = detect_device("cpu").name
    for ask in (
        lambda: joulecast.estimate("lenet5", device=here, store=store),
        lambda: joulecast.estimate("lenet5", on=here, store=store),
        lambda: joulecast.load_profile(here, store=store),
        lambda: find_profiles([here], store),
    ):
        with pytest.raises(MissingError, match=f"cpu of this machine \\({name}\\) has no profile"):
            ask()
    with pytest.raises(InputError, match="there is no device 'meta'"):
        joulecast.load_profile(torch.device("meta"), store=store)


def test_a_path_is_text(profile, tmp_path):
    write_profile(profile, str(tmp_path / "profile.json"))
    assert joulecast.load_profile(tmp_path / "profile.json").key == profile.key
