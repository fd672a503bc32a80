"""``estimate`` predicts the energy of a step and of a run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.features.estimate_report import describe_nearest
from joulecast.records import Device, Setup, StepTotals
from joulecast.store.files import write_network
from joulecast.system.units import joules_to_kwh

NET = ("lenet5:3,5,9,11", "--device", "sim", "--batch", "8")
LONG = ("--epochs", "1000000", "--samples", "1000000000")
PROMISED = {"energy_j", "interval_j", "level", "duration_s", "total_energy_j", "unseen_share"}
PROMISED |= {"peak_memory_bytes", "provenance", "device", "estimator", "layers", "covers", "steps"}
PROMISED |= {"total_interval_j", "total_duration_s", "kwh"}


def test_json_has_the_documented_keys(profiled):
    data = profiled.json("estimate", *NET)
    assert set(data) >= PROMISED
    low, high = data["interval_j"]
    assert 0 < low < data["energy_j"] < high and data["level"] == 0.95
    assert data["provenance"] == "simulated" and data["device"] == "simulated-7"
    assert data["unseen_share"] == 0 and data["steps"] == 1
    assert all({"name", "kind", "energy_j", "calls"} <= set(layer) for layer in data["layers"])
    assert sum(layer["energy_j"] for layer in data["layers"]) == pytest.approx(data["energy_j"])


def test_an_estimate_is_near_the_measurement(profiled):
    seen = profiled.json("measure", NET[0], "--on", "simulated:7", "--batch", "8", "--no-save")
    data = profiled.json("estimate", *NET)
    assert data["energy_j"] == pytest.approx(seen["energy_j"], rel=0.25)


def test_steps_and_epochs_agree(profiled):
    step = profiled.json("estimate", *NET)
    whole = profiled.json("estimate", *NET, "--steps", "26")
    epochs = profiled.json("estimate", *NET, "--epochs", "2", "--samples", "100")
    assert whole == epochs and whole["steps"] == 26
    assert whole["total_energy_j"] == pytest.approx(26 * step["energy_j"])
    assert whole["total_duration_s"] == pytest.approx(26 * step["duration_s"])
    assert whole["total_interval_j"] == pytest.approx([26 * end for end in step["interval_j"]])


def test_other_units_follow_from_the_energy(profiled):
    words = ("--grid", "400", "--price", "0.5EUR", "--battery", "10Wh", "--steps", "1000")
    data = profiled.json("estimate", *NET, *words)
    kwh = joules_to_kwh(data["total_energy_j"])
    assert data["kwh"] == kwh and data["co2e_g"] == pytest.approx(400 * kwh)
    assert data["cost"] == pytest.approx(0.5 * kwh) and data["currency"] == "EUR"
    assert data["battery_share"] == pytest.approx(data["total_energy_j"] / 36_000)
    text = profiled("estimate", *NET, *words).stdout
    assert "CO2e" in text and "EUR" in text and "of a 10Wh battery" in text


def test_finishing_on_a_charge_has_a_probability(profiled):
    def ask(*words):
        return profiled.json("estimate", *NET, "--steps", "1000", *words)["finish"]

    step_j = profiled.json("estimate", *NET)["energy_j"]
    even = ask("--battery", f"{1000 * step_j}J")
    assert even["probability"] == pytest.approx(0.5)
    assert even["needed_j"] == pytest.approx(1000 * step_j)
    assert even["steps_left"] in (999, 1000)
    half = ask("--battery", f"{2000 * step_j}J", "--charge", "50%")
    assert half["probability"] == pytest.approx(even["probability"])
    assert half["available_j"] == pytest.approx(even["available_j"])
    spare = ask("--battery", f"{2000 * step_j}J", "--charge", "60%", "--reserve", "5%")
    assert spare["available_j"] == pytest.approx(1100 * step_j)
    assert 0.5 < spare["probability"] <= 1
    high_j = even["interval_j"][1]
    assert ask("--battery", f"{high_j}J")["probability"] == pytest.approx(0.975)
    resting = ask("--battery", f"{1100 * step_j}J", "--rest-w", "500")
    assert resting["probability"] < spare["probability"]


def test_text_says_whether_a_charge_suffices(profiled):
    words = ("--steps", "1000", "--battery")
    rich = " ".join(profiled("estimate", *NET, *words, "900Wh").stdout.split())
    assert "Will it finish on this charge? Almost certainly (above 99.9 %)" in rich
    assert "The meter covers device: give the power of everything else" in rich
    poor = " ".join(profiled("estimate", *NET, *words, "1mWh", "--rest-w", "3").stdout.split())
    assert "Will it finish on this charge? Almost certainly not (below 0.1 %)" in poor
    assert "give the power of everything else" not in poor
    step = " ".join(profiled("estimate", *NET, "--battery", "15Wh").stdout.split())
    assert "Will it finish" not in step
    assert "This charge holds 54.0 kJ, enough for about" in step and "Give steps, or" in step
    assert "leaves no energy" in profiled.fails(
        "estimate", *NET, "--battery", "15Wh", "--charge", "5%", "--reserve", "10%"
    )


def test_a_higher_level_is_a_wider_interval(profiled):
    narrow, wide = (
        profiled.json("estimate", *NET, "--level", level)["interval_j"] for level in ("50%", "0.99")
    )
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_text_shows_provenance(profiled):
    text = profiled("estimate", *NET, "--steps", "1000").stdout
    assert "(simulated, 95 % interval" in text and "simulated, not a real device" in text
    assert "Not included: loading data, evaluation, checkpoint files" in text
    assert "the meter covers device" in text and "1,000 steps" in text
    assert "extrapolated" not in text and "█" in text
    assert max(map(len, text.splitlines())) <= 100


def test_small_layers_are_summed(profiled):
    text = profiled("estimate", "resnet18", "--device", "sim").stdout
    assert "other " in text and "of the energy is extrapolated" in text
    assert "stage1.0–1" in text and "block of 3" in text and "×2" in text


def test_every_layer_is_printed_on_request(profiled):
    names = [
        layer["name"]
        for layer in profiled.json("estimate", "resnet18", "--device", "sim")["layers"]
    ]
    text = profiled("estimate", "resnet18", "--device", "sim", "--layers").stdout
    assert all(name in text for name in names) and "block of" not in text


def test_json_has_every_layer_and_the_blocks(profiled):
    data = profiled.json("estimate", "resnet18", "--device", "sim")
    for block in data["blocks"]:
        own = [
            data["layers"][at]["energy_j"]
            for start in block["starts"]
            for at in range(start, start + block["layer_count"])
        ]
        assert len(own) == block["count"] * block["layer_count"]
        assert block["energy_j"] == pytest.approx(sum(own))
    assert [block["name"] for block in data["blocks"]][:2] == ["stage1.0–1", "stage2.0"]


def test_a_network_larger_than_the_memory_is_estimated_and_said_not_to_fit(profiled, shell):
    assert profiled.json("estimate", *NET)["fits_memory"] is None
    small = shell.json("estimate", "cnn5", "--device", "nvidia-h200")
    assert small["fits_memory"] is True
    assert not any("fit" in note for note in small["notes"])
    huge = ("estimate", "resnet50", "--device", "nvidia-h200", "--batch", "100000")
    data = shell.json(*huge)
    assert data["fits_memory"] is False and data["energy_j"] > 0
    assert data["peak_memory_bytes"] > data["device_memory_bytes"] == 150754820096
    text = " ".join(shell(*huge).stdout.split())
    assert text.count("It would not fit: it needs about") == 1
    assert "but nvidia-h200 has 140 GiB" in text


def test_the_version_that_made_the_profile_is_said_if_it_differs(shell, profiled, monkeypatch):
    words = ("estimate", "cnn5", "--device", "nvidia-h200")
    monkeypatch.setattr("joulecast.runtimes.version", lambda name: "9.9.9+cu")
    data = shell.json(*words)
    assert (data["runtime"], data["installed_runtime"]) == ("torch-2.11.0", "torch-9.9.9")
    said = "The profile was made with torch 2.11.0, but torch 9.9.9 is installed here"
    assert any(note.startswith(said) for note in data["notes"])
    assert said in " ".join(shell(*words).stdout.split())
    monkeypatch.setattr("joulecast.runtimes.version", lambda name: "2.11.0")
    assert "made with" not in shell(*words).stdout
    assert profiled.json("estimate", *NET)["installed_runtime"] is None


def test_on_means_the_profile_of_that_device(profiled):
    words = (NET[0], "--batch", "8")
    assert profiled.json("estimate", *words, "--on", "simulated:7") == profiled.json(
        "estimate", *NET
    )
    said = profiled.fails("estimate", *words, "--on", "simulated:8")
    assert "simulated:8 of this machine (simulated-8) has no profile yet" in said
    assert "--device and --on" in profiled.fails("estimate", *NET, "--on", "simulated:7", code=2)
    assert "--probe" in profiled.fails("estimate", *NET, "--meter", "nvml", code=2)


def test_runtime_and_on_name_a_device_together(profiled, write):
    words = ("estimate", NET[0], "--batch", "8")
    expected = profiled.json("estimate", *NET)
    assert profiled.json(*words, "--runtime", "simulated", "--on", "7") == expected
    assert profiled.json(*words, "--runtime", "simulated", "--on", "simulated:7") == expected
    assert "simulated-0" in profiled.fails(*words, "--runtime", "simulated")
    write("joulecast.toml", 'runtime = "simulated"')
    assert profiled.json(*words, "--on", "7") == expected


def test_runtime_that_does_not_fit_is_one_line(profiled):
    words = ("estimate", NET[0])
    assert "choose from torch, mnn" in profiled.fails(*words, "--runtime", "tf")
    assert "processor only" in profiled.fails(*words, "--runtime", "mnn", "--on", "cuda:0")
    said = profiled.fails("estimate", *NET, "--runtime", "simulated", code=2)
    assert "give --device or --runtime, not both" in said


def test_on_overrides_a_device_in_the_settings(profiled, write):
    write("joulecast.toml", 'device = "nvidia-h200"')
    words = (NET[0], "--batch", "8", "--on", "simulated:7")
    assert profiled.json("estimate", *words)["device"] == "simulated-7"
    assert profiled.json("estimate", *words, "--probe")["device"] == "simulated-7"
    assert profiled.json("estimate", *words[:3])["device"] == "nvidia-h200"


def test_unseen_setups_are_reported_with_advice(profiled):
    net = ("lenet5:3,5,9,11", "--device", "sim")
    strange = (*net, "--batch", "8", "--precision", "bf16")
    assert profiled.json("estimate", *strange)["unseen_share"] == pytest.approx(1.0)
    text = " ".join(profiled("estimate", *strange).stdout.split())
    assert "the profile has batch 8, sgd, fp32" in text


def test_the_nearest_profiled_setups_are_listed():
    known = [Setup(batch, optimizer=kind) for batch in (1, 4, 16, 64) for kind in ("sgd", "adamw")]
    asked = Setup(20, optimizer="sgd", precision="bf16")
    said = describe_nearest(asked, known)
    assert said == "batch 16, sgd, fp32; batch 64, sgd, fp32; batch 4, sgd, fp32; and 5 more setups"
    assert describe_nearest(asked, known[:1]) == "batch 1, sgd, fp32"
    assert describe_nearest(asked, known[:4]).endswith("; and 1 more setup")


def test_an_interval_of_unknown_sources_is_not_explained(shell):
    """Estimator ``flops`` does not say where its uncertainty comes from."""
    text = shell("estimate", "cnn5", "--device", "nvidia-h200", "--estimator", "flops").stdout
    assert "95 % interval" in text and "Sources of uncertainty" not in text


def test_another_batch_size_counts_as_seen(profiled):
    net = ("lenet5:3,5,9,11", "--device", "sim", "--batch", "9")
    assert profiled.json("estimate", *net)["unseen_share"] == 0


def test_a_probe_narrows_the_interval(profiled):
    before = profiled.json("estimate", *NET)
    net = (NET[0], "--batch", "8", "--probe", "--on", "simulated:7")
    after = profiled.json("estimate", *net)
    assert _width(after) < _width(before)
    assert (
        after["uncertainty_sources"].get("layers not timed", 0)
        < before["uncertainty_sources"]["layers not timed"]
    )
    text = " ".join(profiled("estimate", "lenet5:2,7,12,9", *NET[1:]).stdout.split())
    assert "Sources of uncertainty" in text


def test_a_probe_needs_a_profiled_device(shell):
    said = shell.fails("estimate", NET[0], "--probe", "--on", "simulated:8")
    assert "joulecast profile" in said


def test_a_probe_runs_on_its_own_device(profiled):
    assert "--on" in profiled.fails("estimate", *NET, "--probe", code=2)
    words = ("estimate", NET[0], "--probe", "--estimator", "subtractive")
    assert "additive" in profiled.fails(*words, code=2)


def _width(data):
    low, high = data["interval_j"]
    return (high - low) / data["energy_j"]


def test_first_steps_of_a_run_update_the_estimate(profiled):
    before = profiled.json("estimate", *NET)
    seen_j = 1.3 * before["energy_j"]
    after = profiled.json("estimate", *NET, "--seen", f"{40 * seen_j}J/40")
    assert abs(after["energy_j"] - seen_j) < abs(before["energy_j"] - seen_j)
    assert _width(after) < _width(before)
    assert "12J/100" in profiled.fails("estimate", *NET, "--seen", "12", code=2)


def test_first_steps_far_outside_the_interval_raise_an_alarm(profiled):
    seen = ("estimate", *NET, "--seen", "1J/1")
    text = " ".join(profiled(*seen).stdout.split())
    alarm = "The first 1 steps took 1.00 J each, above the 95 % interval of the estimate"
    # Above the table, and not again among the notes.
    assert text.count(alarm) == 1 and text.index(alarm) < text.index("layer")
    assert any(alarm in note for note in profiled.json(*seen)["notes"])


@pytest.mark.parametrize(("steps", "code"), [(("--steps", "1" + "0" * 14), 2), (LONG, 1)])
def test_a_run_that_nobody_can_finish_is_refused(profiled, steps, code):
    assert "1,000,000,000,000" in profiled.fails("estimate", *NET, *steps, code=code)


def test_a_measurement_improves_the_estimate(profiled):
    seen = profiled.json("measure", NET[0], "--on", "simulated:7", "--batch", "8")
    after = profiled.json("estimate", *NET)
    assert after["energy_j"] == pytest.approx(seen["energy_j"], rel=0.05)


def test_a_profile_file_gives_the_same_estimate(profiled, profile_file):
    by_file = profiled.json("estimate", NET[0], "--batch", "8", "--profile", str(profile_file))
    assert by_file == profiled.json("estimate", *NET)


def test_a_network_file_gives_the_same_estimate(profiled):
    write_network(make_family(NET[0]), "net.json")
    assert profiled.json("estimate", "net.json", *NET[1:]) == profiled.json("estimate", *NET)


def test_options_override_a_device_in_the_settings(profiled, profile_file, write):
    write("joulecast.toml", 'device = "elsewhere"')
    words = (NET[0], "--batch", "8", "--profile", str(profile_file))
    assert profiled.json("estimate", *words) == profiled.json("estimate", *NET)


def test_unattributed_work_is_reported_and_not_estimated(profiled):
    plain = make_family(NET[0])
    assert profiled.json("estimate", *NET)["unattributed_flops_share"] == 0
    write_network(replace(plain, totals=StepTotals(1e6, 1e6, 10, 0.73, 0.004, 0.02)), "net.json")
    data = profiled.json("estimate", "net.json", *NET[1:])
    assert data["energy_j"] == profiled.json("estimate", *NET)["energy_j"]
    shares = [data[f"unattributed_{what}_share"] for what in ("flops", "bytes", "params")]
    assert shares == [0.73, 0.004, 0.02]
    assert any("belong to no layer" in note for note in data["notes"])
    text = " ".join(profiled("estimate", "net.json", *NET[1:]).stdout.split())
    assert "73.0 % of the FLOPs, 2.00 % of the parameters belong to no layer" in text
    assert "which is too low" in text
    assert "belong to no layer" not in profiled("estimate", *NET).stdout


def test_this_machine_is_the_default(profiled, monkeypatch):
    assert "this machine" in profiled.fails("estimate", "lenet5")
    monkeypatch.setattr("joulecast.devices.detect.detect_device", lambda on: Device("simulated-7"))
    # Its profile was made by another framework.
    assert "has no profile yet" in profiled.fails("estimate", "lenet5")
    monkeypatch.setattr("joulecast.runtimes.name_framework", lambda on: "simulated")
    assert profiled.json("estimate", NET[0], "--batch", "8") == profiled.json("estimate", *NET)


def test_a_network_file_imports_nothing_heavy(profiled):
    write_network(make_family(NET[0]), "net.json")
    code = (
        "import sys\nfrom joulecast.cli.main import cli\n"
        "try: cli.main(sys.argv[1:], prog_name='joulecast')\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = ('torch', 'sklearn', 'scipy', 'alembic', 'transformers')\n"
        "assert not [name for name in heavy if name in sys.modules]"
    )
    words = [sys.executable, "-c", code, "estimate", "net.json", *NET[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["nix", "--device", "sim"], 1, "cnn5"),
        (["lenet5", "--device", "elsewhere"], 1, "no profile of 'elsewhere'"),
        (["lenet5", "--device", "sim", "--estimator", "stars"], 1, "additive"),
        (["lenet5", "--device", "sim", "--batch", "0"], 2, "'--batch': 0"),
        (["lenet5", "--device", "sim", "--battery", "5000mAh"], 1, "Wh"),
        (["lenet5", "--device", "sim", "--battery", "5Wh", "--charge", "6"], 2, "share"),
        (["lenet5", "--device", "sim", "--charge", "60%"], 2, "--battery"),
        (["lenet5", "--device", "sim", "--rest-w", "6"], 2, "--rest-w needs --battery"),
        (["lenet5", "--device", "sim", "--grid", "moon"], 1, "grid"),
        (["lenet5", "--device", "sim", "--price", "cheap"], 1, "price"),
        (["lenet5", "--profile", "nowhere.json"], 1, "nowhere.json"),
        (["lenet5", "--steps", "0"], 2, "--steps"),
        (["lenet5", "--epochs", "3"], 2, "--samples"),
        (["lenet5", "--steps", "3", "--epochs", "3", "--samples", "9"], 2, "--steps"),
        (["lenet5", "--level", "150%"], 2, "--level"),
        (["lenet5", "--device", "sim", "--profile", "some.json"], 2, "not both"),
    ],
)
def test_bad_options_are_one_line(profiled, words, code, part):
    assert part in profiled.fails("estimate", *words, code=code)


GPUS = ("--gpus", "4", "--parallel", "data", "--link-gb-s", "300")


def test_several_gpus_are_added_up_and_marked(profiled):
    one = profiled.json("estimate", *NET)
    four = profiled.json("estimate", *NET, *GPUS)
    part = four["data_parallel"]
    assert four["energy_j"] == pytest.approx(4 * one["energy_j"] + part["added_j"])
    assert part["provenance"] == "modelled" and part["step_provenance"] == "simulated"
    assert part["samples_per_step"] == 32 and part["link_bytes_per_s"] == 300e9
    # One GPU needs no all-reduce, and no link.
    assert profiled.json("estimate", *NET, "--gpus", "1", "--parallel", "data") == one
    assert "data_parallel" not in one
    text = " ".join(profiled("estimate", *NET, *GPUS).stdout.split())
    assert "on 4 × simulated-7: batch 8 per GPU" in text
    assert "A step of 32 samples takes" in text and "4 GPUs train 3." in text
    assert "the cost of using 4 GPUs is modelled, not measured" in text
    assert "Modelled, not measured: a ring all-reduce of" in text and "75.0 % of 300 GB/s" in text
    assert "Peak memory about" in text and "per GPU" in text and "all_reduce about" in text


def test_runs_of_several_gpus_have_fewer_steps(profiled):
    words = ("--epochs", "2", "--samples", "128", "--eval-every", "2", "--eval-samples", "64")
    one = profiled.json("estimate", *NET, *words)
    four = profiled.json("estimate", *NET, *words, *GPUS)
    assert (one["steps"], four["steps"]) == (32, 8)
    parts = [{part["name"]: part for part in data["run"]["parts"]} for data in (one, four)]
    assert [own["evaluation"]["count"] for own in parts] == [16 * 8, 4 * 2]
    # As many samples are evaluated per evaluation, by four GPUs at once.
    energies = [own["evaluation"]["energy_j"] / own["evaluation"]["count"] for own in parts]
    assert energies[1] == pytest.approx(4 * energies[0])
    assert "2 batches per GPU" in profiled("estimate", *NET, *words, *GPUS).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "4", "--parallel", "data"), "give --link-gb-s, in GB/s"),
        (("--gpus", "64", "--parallel", "data"), "from 1 to 16"),
        (("--inference", *GPUS), "--gpus 4 is for training"),
    ],
)
def test_gpus_that_cannot_be_estimated_are_one_clear_line(profiled, words, said):
    assert said in profiled.fails("estimate", *NET, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "4"), "give --parallel data"),
        (("--gpus", "4", "--parallel", "fsdp"), "FSDP is not modelled yet: give --parallel data"),
        (("--gpus", "0"), "'--gpus': 0"),
        (("--gpus", "2.5"), "'--gpus': '2.5'"),
        (("--parallel", "data"), "--parallel needs --gpus"),
        (("--link-gb-s", "300"), "--link-gb-s needs --gpus"),
        (("--gpus", "2", "--parallel", "data", "--link-gb-s", "0"), "more than 0"),
    ],
)
def test_wrong_options_of_gpus_are_usage_errors(profiled, words, said):
    assert said in profiled.fails("estimate", *NET, *words, code=2)
