"""The verbs of ``import joulecast``: nets in every form, and one line for what cannot be used."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import joulecast
from joulecast.cli.main import COMMANDS
from joulecast.devices.detect import detect_device
from joulecast.families import make_family
from joulecast.features.arguments import convert_on, is_torch_device, list_arguments
from joulecast.features.profile import ProfileOptions
from joulecast.features.profiles import find_profiles
from joulecast.store.files import write_network, write_profile
from joulecast.system.errors import InputError, MissingError

SMALL = {"on": "simulated:7", "batch": 8}
NET = "lenet5:4,8,16,16"
VERBS = {"inspect", "measure", "profile", "estimate", "generate", "compare", "search", "prune"}
VERBS |= {"report", "plan", "evaluate", "score"}
NAN = math.nan
ODD = ("a", NAN, 1.5, math.inf, [], True, object())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return str(tmp_path_factory.mktemp("api") / "store.sqlite")


@pytest.fixture(scope="module")
def profile(store):
    return joulecast.profile(NET, points=20, store=store, **SMALL)


class Net(nn.Module):
    def __init__(self, trains=True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 5)
        self.fc = nn.Linear(3 * 24 * 24, 10)
        self.requires_grad_(trains)

    def forward(self, x):
        return self.fc(self.conv(x).relu().flatten(1))


INPUTS = torch.zeros(4, 1, 28, 28)


def width(estimate):
    low, high = estimate.interval_j
    return (high - low) / estimate.energy_j


def test_every_name_exists_and_verbs_are_commands():
    assert all(getattr(joulecast, name) is not None for name in joulecast.__all__)
    assert set(dir(joulecast)) >= set(joulecast.__all__) >= VERBS
    assert joulecast.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = joulecast.nonsense
    commands = {name for rows in COMMANDS.values() for name in rows}
    others = {"agent", "data", "detect", "devices", "fleet", "profiles", "serve"}
    assert commands - others == VERBS


# -- values -------------------------------------------------------------------------------------

A_COUNT = "give a whole number"
REFUSED = [
    *(("estimate", {"batch": value}, f"batch is .*: {A_COUNT}") for value in (*ODD, [8])),
    *(("estimate", {"threads": value}, f"threads is .*: {A_COUNT}") for value in (*ODD, [8])),
    *(("compare", {"batch": (8, value)}, "batch is") for value in (ODD[0], ODD[1], ODD[-1])),
    ("estimate", {"level": NAN}, "level is"),
    ("estimate", {"estimator": 3}, "estimator is"),
    ("estimate", {"store": 3}, "store is"),
    ("estimate", {"precision": 3}, "precision is"),
    ("estimate", {"probe": "all"}, "probe is"),
    ("estimate", {"probe_seconds": -1}, "probe_seconds is"),
    ("estimate", {"setup": 3}, "setup is"),
    *(("estimate", {"device": value}, "device is") for value in (3, NAN, ["nvidia-h200"])),
    ("estimate", {"input_shape": (3, NAN, 32)}, "input_shape is"),
    ("estimate", {"net": None}, "net is missing"),
    *(("estimate", {"net": net, "inputs": INPUTS}, "net is .*: give a name") for net in (3, len)),
    ("estimate", {"batch": 0}, "batch is 0"),
    ("estimate", {"loss": len}, "needs a module and its inputs"),
    ("estimate", {"net": "own.py:make_net", "loss": len}, "needs a module and its inputs"),
    ("estimate", {"net": "none", "gpus": 4, "parallel": "tensor"}, "tensor parallelism is not"),
    ("estimate", {"net": "none", "gpus": 2.5, "parallel": "data"}, r"gpus is 2\.5: give a whole"),
    ("estimate", {"probe": True}, "leave device"),
    ("estimate", {"meter": "nvml"}, "probe=True"),
    ("estimate", {"on": "cpu"}, "give one of them"),
    ("estimate_run", {"steps": 5, "eval_every": 5}, "eval_every and eval_samples belong together"),
    ("estimate_run", {"steps": 5, "runs": 0}, "runs is 0"),
    ("estimate_run", {"runs": 5}, "the length of the run is missing"),
    ("estimate_run", {"evalevery": 5}, "has no argument 'evalevery'; did you mean 'eval_every'"),
    (
        "estimate_run",
        {"phase": "inference", "steps": 1, "eval_every": 1, "eval_samples": 1},
        "belong to training",
    ),
    *(("profile", {"seconds": value}, "seconds is") for value in (NAN, -1, math.inf)),
    ("profile", {"points": 0}, "points is"),
    ("profile", {"interval_share": 0}, "interval_share is"),
    ("profile", {"input_shpae": (3, 32, 32)}, "did you mean 'input_shape'"),
    ("profile", {"atlas": True}, "net or|leave batch"),
    ("profile", {"net": None, "atlas": True, "batch": 8}, "net or|leave batch"),
    ("profile", {"net": None}, "atlas=True"),
    ("measure", {"rounds": NAN}, "rounds is"),
    ("measure", {"on": 3}, "on is"),
    ("measure", {"meter": 3}, "meter is"),
    ("evaluate", {"nets": "a"}, "nets is"),
    *(("plan", {"time_limit_s": value}, "time_limit_s is") for value in (NAN, -1)),
    ("plan", {"confidence": "a"}, "confidence is"),
    *(("search", {"budget": one}, "the budget is .* as text") for one in (0.5, 3)),
    ("inspect", {"net": Net()}, "example inputs"),
]


@pytest.mark.parametrize(("verb", "options", "message"), REFUSED)
def test_what_cannot_be_used_is_one_line_that_names_it(verb, options, message):
    options = dict(options)
    net = options.pop("net", "lenet5")
    needs_device = verb in ("estimate", "estimate_run", "search") and options.get("device") is None
    options |= {"device": "nvidia-h200"} if needs_device else {}
    with pytest.raises(InputError, match=message) as caught:
        getattr(joulecast, verb)(net, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("verb", sorted(VERBS - {"generate", "search", "report", "plan", "score"}))
def test_a_misspelt_argument_is_an_error_with_a_suggestion(verb):
    for name, hint in (("nonsense", "choose from"), ("bacth", "did you mean 'batch'")):
        with pytest.raises(InputError, match=f"joulecast.{verb} has no .*{name!r}; {hint}"):
            getattr(joulecast, verb)("cnn5", **{name: 8})


def test_a_campaign_without_limits_ends_after_ten_minutes():
    assert ProfileOptions().limit_s == 600 and ProfileOptions(points=3).limit_s is None
    assert ProfileOptions(points=3, seconds=5).limit_s == 5


def test_numbers_of_numpy_and_pytorch_are_numbers_and_paths_are_text(profile, tmp_path):
    declared = {one.name: one for one in list_arguments(joulecast.estimate)}
    assert declared["batch"].convert(np.int64(8)) == 8
    assert declared["threads"].convert(torch.tensor(2)) == 2
    assert declared["level"].convert(np.float32(0.75)) == 0.75
    assert declared["input_shape"].convert([np.int32(3), 8]) == (3, 8)
    write_profile(profile, str(tmp_path / "profile.json"))
    assert joulecast.load_profile(tmp_path / "profile.json").key == profile.key


def test_a_torch_device_is_a_device_of_this_machine(tmp_path):
    store, here = str(tmp_path / "store.sqlite"), torch.device("cpu")
    assert is_torch_device(here) and not is_torch_device("cpu") and convert_on(here) == "cpu"
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


@pytest.mark.parametrize("verb", ["inspect", "estimate", "profile", "compare", "measure"])
def test_a_module_takes_its_own_loss(verb, profile):
    """Cross-entropy would fail: the module returns a dict."""

    class Outputs(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x)}

    options = {
        "inspect": {},
        "estimate": {"device": profile},
        "profile": {"on": "simulated:1", "points": 4, "store": ":memory:"},
        "compare": {"devices": profile},
        "measure": {"meter": "modelled", "rounds": 1, "threads": 1, "batch": 6},
    }[verb]
    calls = []

    def loss(output):
        calls.append(output)
        return output["logits"].square().mean()

    found = getattr(joulecast, verb)(Outputs(12, 4), torch.zeros(4, 12), loss=loss, **options)
    assert calls and (
        verb != "measure" or found.trial.setup == joulecast.Setup(6, loss="own", threads=1)
    )


# -- verbs --------------------------------------------------------------------------------------


def test_profile_reports_progress_and_keeps_observations(store, profile):
    reports = []
    more = joulecast.profile(NET, points=24, store=store, on_progress=reports.append, **SMALL)
    # A doubtful point may have been repeated.
    counts = [report.points for report in reports]
    assert counts == list(range(counts[0], 25)) and 20 <= counts[0] < 24
    assert more.observations[: len(profile.observations)] == profile.observations
    assert joulecast.load_profile("sim", store=store) == more


def test_one_net_and_one_profile_under_all_their_names_have_one_estimate(store, profile, tmp_path):
    network, path = make_family("lenet5:2,3,4,5"), tmp_path / "net.json"
    write_network(network, path)
    write_profile(profile, tmp_path / "profile.json")
    first, *others = (
        joulecast.estimate(net, device=device, batch=8)
        for net in ("lenet5:2,3,4,5", network, path, str(path))
        for device in (profile, str(tmp_path / "profile.json"))
    )
    assert others == [first] * 7 and first.provenance == "simulated"
    named = [joulecast.estimate(NET, store=store, **one) for one in (SMALL, {"device": "sim"})]
    assert [one.device for one in named] == ["simulated-7"] * 2


def test_a_setup_and_its_fields_are_the_same(profile):
    setup = joulecast.Setup(batch=8, precision="bf16")
    by_setup = joulecast.estimate("lenet5", device=profile, setup=setup)
    assert by_setup == joulecast.estimate("lenet5", device=profile, batch=8, precision="bf16")
    for name in ("batch", "threads"):
        with pytest.raises(InputError, match=f"{name} is 'a'"):
            joulecast.Setup(**{name: "a"})


def test_a_module_is_estimated_at_its_own_batch_or_another(profile):
    own = joulecast.estimate(Net(), INPUTS, device=profile)
    assert own == joulecast.estimate(Net(), INPUTS, device=profile, batch=4)
    assert own.energy_j < joulecast.estimate(Net(), INPUTS, device=profile, batch=8).energy_j


def test_notes_of_reading_reach_the_estimate(profile):
    notes = joulecast.inspect(Net(trains=False), INPUTS).totals.notes
    assert notes and set(notes) <= set(
        joulecast.estimate(Net(trains=False), INPUTS, device=profile).notes
    )


@pytest.mark.parametrize("covers", ["cpu", "cpu at 10 W a core"])
def test_tf32_is_refused_on_a_processor(profile, covers):
    processor = replace(profile, covers=covers)
    with pytest.raises(InputError, match="give fp32"):
        joulecast.estimate("lenet5", device=processor, precision="tf32")
    assert joulecast.estimate("lenet5", device=profile, precision="tf32").energy_j > 0


@pytest.mark.parametrize(("factor", "side"), [(0.04, "below"), (1.1, ""), (25.0, "above")])
def test_the_first_steps_update_an_estimate_and_may_raise_an_alarm(profile, factor, side):
    before = joulecast.estimate("lenet5", device=profile, batch=8)
    after = joulecast.update(before, energy_j=100 * factor * before.energy_j, steps=100)
    assert width(after) < width(before)
    low, high = sorted((before.energy_j, factor * before.energy_j))
    assert low < after.energy_j < high
    alarms = [note for note in after.notes if note not in before.notes]
    assert len(alarms) == bool(side)
    assert all(f"{side} the 95 % interval" in alarm for alarm in alarms)
    for energy_j, steps in ((NAN, 3), ("a", 3), (math.inf, 3), (1.0, NAN), (1.0, 1.5), (1.0, 0)):
        with pytest.raises(InputError):
            joulecast.update(before, energy_j=energy_j, steps=steps)


def test_inference_in_half_precision_leaves_the_module_as_it_is():
    net = nn.Linear(64, 64)
    before = net.weight.detach().clone()
    options = {"phase": "inference", "precision": "bf16", "meter": "modelled:5", "rounds": 1}
    seen = joulecast.measure(net, torch.zeros(1, 64), **options)
    assert seen.energy_j is not None and seen.energy_j > 0
    assert net.weight.dtype == torch.float32 and torch.equal(net.weight, before)


def test_compare_ranks_setups_and_devices(store, profile):
    net = "lenet5:3,5,9,11"
    setups = [joulecast.Setup(batch=batch) for batch in (4, 8, 16)]
    found = joulecast.compare(net, devices=[profile], setups=setups)
    by_name = joulecast.compare(net, devices="sim", batch=(4, 8, 16), store=store)
    assert [row.setup for row in found.rows] == [row.setup for row in by_name.rows]
    (row,) = (row for row in found.rows if row.setup.batch == 8)
    alone = joulecast.estimate(net, device=profile, batch=8)
    assert len(found.rows) == 3 and row.energy_j == pytest.approx(alone.energy_j / 8)


def test_search_hands_modules_to_the_training_function(profile):
    seen = []

    def score(net, trial):
        seen.append((net, trial.params))
        return float(sum(weight.numel() for weight in net.parameters()))

    options = {"device": profile, "batch": 8, "trials": 3, "seed": 5}
    result = joulecast.search(NET, score, budget="105%", **options)
    assert len(result.trials) == 3 and result.front
    assert all(isinstance(net, nn.Module) for net, _ in seen)
    assert next(seen[0][0].parameters()).shape[0] == seen[0][1]["c1"]


def test_prune_takes_flat_options(profile):
    options = {"objective": "flops", "batch": 8, "floor": 0.2, "multiple": 2, "steps": 10}
    pruned = joulecast.prune(NET, budget="60%", device=profile, **options)
    result = pruned.pruning
    assert result.objective == "flops" and result.cost_after <= 0.6 * result.cost_before
    assert all(count % 2 == 0 for count in result.counts.values())
    assert isinstance(pruned.net, nn.Module)
