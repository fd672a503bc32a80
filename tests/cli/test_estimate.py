"""``estimate`` predicts the energy of a step and of a run."""

import json
from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.features.estimate_report import describe_nearest
from joulecast.features.run import EVALUATION, TRAINING, WAITING
from joulecast.records import Device, Setup, StepTotals
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store.files import write_network
from joulecast.system.errors import OutOfMemoryError

BARE = ("lenet5:3,5,9,11", "--batch", "8")
NET = ("lenet5:3,5,9,11", "--device", "sim", "--batch", "8")


def read(shell, *words):
    """Return what `joulecast estimate` prints, as one line."""
    return " ".join(shell("estimate", *words).stdout.split())


def width(data):
    low, high = data["interval_j"]
    return (high - low) / data["energy_j"]


def test_an_estimate_has_an_interval_layers_and_provenance(profiled):
    data = profiled.json("estimate", *NET)
    low, high = data["interval_j"]
    assert 0 < low < data["energy_j"] < high and data["level"] == 0.95
    assert data["provenance"] == "simulated" and data["device"] == "simulated-7"
    assert data["unseen_share"] == 0 and data["steps"] == 1
    assert sum(layer["energy_j"] for layer in data["layers"]) == pytest.approx(data["energy_j"])
    narrow, wide = (profiled.json("estimate", *NET, "--level", one) for one in ("50%", "0.99"))
    assert width(narrow) < width(data) < width(wide)
    text = profiled("estimate", *NET, "--steps", "1000").stdout
    assert "(simulated, 95 % interval" in text and "simulated, not a real device" in text
    assert "Not included: loading data, evaluation, checkpoint files" in text
    assert "the meter covers device" in text and "1,000 steps" in text
    assert "extrapolated" not in text and "█" in text
    assert max(map(len, text.splitlines())) <= 100
    # A measurement improves the estimate.
    seen = profiled.json("measure", *BARE, "--on", "simulated:7")
    assert data["energy_j"] == pytest.approx(seen["energy_j"], rel=0.25)
    after = profiled.json("estimate", *NET)
    assert after["energy_j"] == pytest.approx(seen["energy_j"], rel=0.05)


def test_other_units_follow_from_the_energy(profiled):
    words = ("--grid", "400", "--price", "0.5EUR", "--battery", "10Wh", "--steps", "1000")
    data = profiled.json("estimate", *NET, *words)
    assert data["co2e_g"] == pytest.approx(400 * data["kwh"]) and data["currency"] == "EUR"
    assert data["battery_share"] == pytest.approx(data["total_energy_j"] / 36_000)
    text = read(profiled, *NET, *words)
    assert "CO2e" in text and "EUR" in text and "of a 10Wh battery" in text


def test_finishing_on_a_charge_has_a_probability(profiled):
    step_j = profiled.json("estimate", *NET)["energy_j"]

    def ask(steps, *words):
        battery = ("--battery", f"{steps * step_j}J")
        return profiled.json("estimate", *NET, "--steps", "1000", *battery, *words)["finish"]

    even = ask(1000)
    assert even["probability"] == pytest.approx(0.5) and even["steps_left"] in (999, 1000)
    assert even["needed_j"] == pytest.approx(1000 * step_j)
    half = ask(2000, "--charge", "50%")
    assert half["probability"] == pytest.approx(even["probability"])
    assert half["available_j"] == pytest.approx(even["available_j"])
    spare = ask(2000, "--charge", "60%", "--reserve", "5%")
    assert spare["available_j"] == pytest.approx(1100 * step_j)
    assert 0.5 < spare["probability"] <= 1
    assert ask(even["interval_j"][1] / step_j)["probability"] == pytest.approx(0.975)
    assert ask(1100, "--rest-w", "500")["probability"] < spare["probability"]


def test_text_says_whether_a_charge_suffices(profiled):
    words = (*NET, "--steps", "1000", "--battery")
    rich, poor = read(profiled, *words, "900Wh"), read(profiled, *words, "1mWh", "--rest-w", "3")
    assert "Will it finish on this charge? Almost certainly (above 99.9 %)" in rich
    assert "The meter covers device: give the power of everything else" in rich
    assert "Will it finish on this charge? Almost certainly not (below 0.1 %)" in poor
    assert "give the power of everything else" not in poor
    step = read(profiled, *NET, "--battery", "15Wh")
    assert "Will it finish" not in step
    assert "This charge holds 54.0 kJ, enough for about" in step and "Give steps, or" in step


def test_layers_are_summed_in_blocks_or_printed_on_request(profiled):
    words = ("resnet18", "--device", "sim")
    data, text = profiled.json("estimate", *words), read(profiled, *words)
    assert "other " in text and "of the energy is extrapolated" in text
    assert "stage1.0–1" in text and "block of 3" in text and "×2" in text
    assert [block["name"] for block in data["blocks"]][:2] == ["stage1.0–1", "stage2.0"]
    for block in data["blocks"]:
        spans = [range(start, start + block["layer_count"]) for start in block["starts"]]
        own = [data["layers"][at]["energy_j"] for span in spans for at in span]
        assert len(spans) == block["count"] and block["energy_j"] == pytest.approx(sum(own))
    every = read(profiled, *words, "--layers")
    assert all(layer["name"] in every for layer in data["layers"]) and "block of" not in every


def test_a_network_larger_than_the_memory_is_estimated_and_said_not_to_fit(profiled, shell):
    assert profiled.json("estimate", *NET)["fits_memory"] is None
    small = shell.json("estimate", "cnn5", "--device", "nvidia-h200")
    assert small["fits_memory"] is True and not any("fit" in note for note in small["notes"])
    huge = ("resnet50", "--device", "nvidia-h200", "--batch", "100000")
    data, text = shell.json("estimate", *huge), read(shell, *huge)
    assert data["fits_memory"] is False and data["energy_j"] > 0
    assert data["peak_memory_bytes"] > data["device_memory_bytes"] == 150754820096
    assert text.count("It would not fit: it needs about") == 1
    assert "but nvidia-h200 has 140 GiB" in text


def test_the_version_that_made_the_profile_is_said_if_it_differs(shell, profiled, monkeypatch):
    words = ("cnn5", "--device", "nvidia-h200")
    monkeypatch.setattr("joulecast.runtimes.version", lambda name: "9.9.9+cu")
    data = shell.json("estimate", *words)
    assert (data["runtime"], data["installed_runtime"]) == ("torch-2.11.0", "torch-9.9.9")
    said = "The profile was made with torch 2.11.0, but torch 9.9.9 is installed here"
    assert any(note.startswith(said) for note in data["notes"]) and said in read(shell, *words)
    monkeypatch.setattr("joulecast.runtimes.version", lambda name: "2.11.0")
    assert "made with" not in read(shell, *words)
    assert profiled.json("estimate", *NET)["installed_runtime"] is None


def test_one_estimate_has_many_command_lines(profiled, profile_file, write, monkeypatch):
    expected = profiled.json("estimate", *NET)
    write_network(make_family(NET[0]), "net.json")
    assert profiled.json("estimate", "net.json", *NET[1:]) == expected
    alike = (
        ("--on", "simulated:7"),
        ("--runtime", "simulated", "--on", "7"),
        ("--runtime", "simulated", "--on", "simulated:7"),
        ("--profile", str(profile_file)),
    )
    for words in alike:
        assert profiled.json("estimate", *BARE, *words) == expected
    # Options override a device in the settings.
    write("joulecast.toml", 'device = "nvidia-h200"')
    for words in (alike[0], alike[-1], (*alike[0], "--probe")):
        assert profiled.json("estimate", *BARE, *words)["device"] == "simulated-7"
    assert profiled.json("estimate", *BARE)["device"] == "nvidia-h200"
    write("joulecast.toml", 'runtime = "simulated"')
    assert profiled.json("estimate", *BARE, "--on", "7")["device"] == "simulated-7"


def test_this_machine_is_the_default(profiled, monkeypatch):
    assert "this machine" in profiled.fails("estimate", "lenet5")
    monkeypatch.setattr("joulecast.devices.detect.detect_device", lambda on: Device("simulated-7"))
    # Its profile was made by another framework.
    assert "has no profile yet" in profiled.fails("estimate", "lenet5")
    monkeypatch.setattr("joulecast.runtimes.name_framework", lambda on: "simulated")
    assert profiled.json("estimate", *BARE) == profiled.json("estimate", *NET)


LOADER = """
import torch
def make_loader(): return torch.utils.data.DataLoader(torch.zeros(80, 1, 28, 28), batch_size=8)
def make_number(): return 7
"""
DEVICE, LOADED = ("--device", "sim"), ("--device", "sim", "--steps", "10", "--loader")
INFER = (*DEVICE, "--inference")


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (1, ("--on", "simulated:8"), "simulated:8 of this machine (simulated-8) has no profile"),
        (1, ("--probe", "layers", "--on", "simulated:8"), "joulecast profile"),
        (2, ("--probe", "all", "--on", "simulated:8"), "'all': choose from step, layers"),
        (2, ("--probe", "--probe-seconds", "5"), "--probe-seconds needs --probe layers"),
        (1, ("--runtime", "simulated"), "simulated-0"),
        (1, ("--runtime", "mnn", "--on", "cuda:0"), "processor only"),
        (1, ("--on", "torch_compile:cpu"), "give --on cpu and --compile"),
        (2, ("--probe", "--estimator", "subtractive"), "additive"),
        (2, (*DEVICE, "--on", "simulated:7"), "--device and --on"),
        (2, (*DEVICE, "--runtime", "simulated"), "give --device or --runtime, not both"),
        (2, (*DEVICE, "--probe"), "--on"),
        (2, (*DEVICE, "--seen", "12"), "12J/100"),
        (2, (*DEVICE, "--steps", "1" + "0" * 14), "1,000,000,000,000"),
        (1, (*DEVICE, "--battery", "9Wh", "--charge", "5%", "--reserve", "10%"), "no energy"),
        (2, (*DEVICE, "--loader", "data.py:make_loader"), "give --steps, or --epochs and"),
        (1, (*LOADED, "data.py:make_number"), "the loader is a int: give one that gives"),
        (1, (*LOADED, "data.py:nothing"), "no function 'nothing' that returns a data loader"),
        (1, (*LOADED, "data.py:make_loader", "--batch", "4"), "give --batch 8"),
        (1, (*DEVICE, "--checkpoint"), "repeats no block to checkpoint: leave --checkpoint out"),
        (1, (*DEVICE, "--precision", "int8"), "int8 is for inference only: give --inference"),
        (2, (*DEVICE, "--inferences", "5"), "--inferences needs --inference"),
        (1, (*INFER, "--accumulate", "2"), "leave out --accumulate"),
        (1, (*INFER, "--checkpoint"), "inference keeps no activations"),
        (2, (*INFER, "--optimizer", "adam"), "--optimizer is for training"),
        (2, (*INFER, "--inferences", "5", "--steps", "5"), "which mean the same"),
    ],
)
def test_options_that_contradict_each_other_are_one_line(profiled, write, code, words, message):
    write("data.py", LOADER)
    assert message in profiled.fails("estimate", *BARE, *words, code=code)


def test_first_steps_of_a_run_raise_an_alarm(profiled):
    text = read(profiled, *NET, "--seen", "1J/1")
    alarm = "The first 1 steps took 1.00 J each, above the 95 % interval of the estimate"
    # Above the table, and not again among the notes.
    assert text.count(alarm) == 1 and text.index(alarm) < text.index("layer")


def test_unattributed_work_is_reported_and_not_estimated(profiled):
    totals = StepTotals(1e6, 1e6, 10, 0.73, 0.004, 0.02)
    write_network(replace(make_family(NET[0]), totals=totals), "net.json")
    data = profiled.json("estimate", "net.json", *NET[1:])
    assert data["energy_j"] == profiled.json("estimate", *NET)["energy_j"]
    shares = [data[f"unattributed_{what}_share"] for what in ("flops", "bytes", "params")]
    assert shares == [0.73, 0.004, 0.02]
    said = "73.0 % of the FLOPs, 2.00 % of the parameters belong to no layer"
    assert said in read(profiled, "net.json", *NET[1:]) and said in " ".join(data["notes"])


def test_unseen_setups_are_reported_with_advice(profiled):
    strange = (*NET, "--precision", "bf16")
    assert profiled.json("estimate", *strange)["unseen_share"] == pytest.approx(1.0)
    assert "the profile has batch 8, sgd, fp32" in read(profiled, *strange)
    # Another batch size counts as seen.
    assert profiled.json("estimate", *NET[:3], "--batch", "9")["unseen_share"] == 0
    known = [Setup(batch, optimizer=kind) for batch in (1, 4, 16, 64) for kind in ("sgd", "adamw")]
    asked = Setup(20, optimizer="sgd", precision="bf16")
    said = describe_nearest(asked, known)
    assert said == "batch 16, sgd, fp32; batch 64, sgd, fp32; batch 4, sgd, fp32; and 5 more setups"
    assert describe_nearest(asked, known[:1]) == "batch 1, sgd, fp32"
    assert describe_nearest(asked, known[:4]).endswith("; and 1 more setup")


def test_a_probe_narrows_the_interval_whose_sources_are_said(profiled, shell):
    before = profiled.json("estimate", *NET)
    after = profiled.json("estimate", *BARE, "--probe", "layers", "--on", "simulated:7")
    assert width(after) < width(before)
    untimed = [
        one["uncertainty_sources"]["layers not timed"] * width(one) ** 2 for one in (after, before)
    ]
    assert untimed[0] < untimed[1]
    assert "Sources of uncertainty" in read(profiled, "lenet5:2,7,12,9", *NET[1:])
    # This estimator does not say where its uncertainty comes from.
    text = read(shell, "cnn5", "--device", "nvidia-h200", "--estimator", "flops")
    assert "95 % interval" in text and "Sources of uncertainty" not in text


def test_a_rehearsal_answers_with_the_measured_step(shell):
    words = (*BARE, "--on", "simulated:8")
    assert "estimate NET --on simulated:8 --probe" in shell.fails("estimate", *words)
    measured = shell.json("measure", *words, "--no-save")
    found = shell.json("estimate", *words, "--probe")
    assert found["energy_j"] == pytest.approx(measured["energy_j"], rel=0.02)
    assert found["duration_s"] == pytest.approx(measured["duration_s"], rel=0.02)
    assert found["is_measured"] and width(found) < 0.2
    # It stays known, and the same network at another batch size starts from it.
    again = shell.json("estimate", *words)
    assert (again["energy_j"], again["layers"]) == (found["energy_j"], found["layers"])
    text = read(shell, *words)
    assert "A step was measured as a whole" in text
    other = shell.json("estimate", *words, "--batch", "12")
    assert "is_measured" not in other and width(other) > width(found)


def test_a_step_that_does_not_fit_is_probed_by_layers(profiled, monkeypatch):
    prepare = SimulatedRuntime.prepare

    def run_out_of_memory(self, trial):
        if trial.execution.is_user_step:
            raise OutOfMemoryError("the step does not fit into the memory of simulated:7")
        return prepare(self, trial)

    monkeypatch.setattr(SimulatedRuntime, "prepare", run_out_of_memory)
    result = profiled("estimate", *BARE, "--probe", "--on", "simulated:7", "--json")
    assert "simulated:7; its layers are measured instead" in result.stderr
    found = json.loads(result.stdout)
    assert "is_measured" not in found and found["unseen_share"] == 0


WHOLE = ("--steps", "100", "--eval-every", "25", "--eval-samples", "50", "--runs", "3")


def test_whole_run_has_every_part(profiled, write):
    plain = profiled.json("estimate", *NET, "--steps", "100", "--battery", "1Wh")
    data = profiled.json("estimate", *NET, *WHOLE, "--battery", "1Wh")
    assert "run" not in plain and data["run"]["energy_j"] == data["total_energy_j"]
    assert data["runs"] == 3 and data["steps"] == 100
    assert [part["name"] for part in data["run"]["parts"]] == [TRAINING, EVALUATION]
    assert data["finish"]["needed_j"] > 3 * plain["finish"]["needed_j"]
    text = profiled("estimate", *NET, *WHOLE).stdout
    assert "100 steps take" in text and "4 evaluations of 7 batches take" in text
    assert "The run takes" in text and "3 runs take" in text and "simulated" in text
    assert "Not included: loading data, checkpoint files and start-up." in " ".join(text.split())
    write("data.py", LOADER)
    words = ("--steps", "10", "--loader", "data.py:make_loader", "--accumulate", "2")
    found = profiled.json("estimate", *NET, *words)["run"]
    waiting, wait = found["parts"][-1], found["wait"]
    assert waiting["name"] == WAITING and waiting["count"] == 20
    assert wait["loading"]["batches"] == 9 and wait["loading"]["workers"] == 0
    assert wait["wait_s"] == wait["loading"]["batch_s"] > 0
    # The profile knows the power of the idle device.
    assert waiting["energy_j"] == pytest.approx(20 * wait["wait_s"] * wait["idle_w"])
    assert "Loading data adds" in profiled("estimate", *NET, *words).stdout


def test_accumulated_epochs_have_fewer_steps(profiled):
    epochs = ("--epochs", "2", "--samples", "160")
    for more, steps in (((), 40), (("--accumulate", "4"), 10)):
        assert profiled.json("estimate", *NET, *epochs, *more)["steps"] == steps
    text = profiled("estimate", *NET, "--accumulate", "4", "--compile").stdout
    assert "batch 8, 4 batches per step, sgd, fp32, compiled" in text
