"""Inference in every verb: batch 1, latency beside energy, and no words of training."""

import random
import shutil
from pathlib import Path

import pytest

import joulecast
from cli_stores import export_profile, run_in_store
from joulecast.families import draw_family
from joulecast.records import Setup, Trial
from joulecast.simulation import make_simulated_device

FAMILY = "lenet5:4,8,16,16"
SEED = 3
MEMBER = "lenet5:3,6,10,12"
TRAINING_WORDS = ("step", "train", "sgd", "loss", "checkpoint")


@pytest.fixture(scope="module")
def inference_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with a simulated device's profile for inference."""
    path = tmp_path_factory.mktemp("inference") / "store.sqlite"
    words = ("--inference", "--on", f"simulated:{SEED}", "--points", "30", "--interval", "2%")
    printed = run_in_store(path, "profile", FAMILY, *words)
    # The command that follows is complete.
    assert f"joulecast estimate {FAMILY} --device simulated-{SEED}" in printed
    assert printed.rstrip().endswith("--batch 1 --inference")
    return path


@pytest.fixture
def ran(shell, inference_store):
    """Return a command line whose store has the profile of inference."""
    shutil.copy(inference_store, shell.folder / "store.sqlite")
    return shell


def assert_about_inference(text: str) -> None:
    """Check that a text is about inference alone."""
    assert "inference" in text
    found = [word for word in TRAINING_WORDS if word in text.lower()]
    assert not found, text


def test_estimates_of_unseen_members_are_right(inference_store):
    device, rng = make_simulated_device(SEED), random.Random(5)
    errors, latency_errors, covered = [], [], 0
    profile = export_profile(inference_store)
    for _ in range(12):
        network = draw_family(FAMILY, rng.randint)
        found = joulecast.estimate(network, device=str(profile), phase="inference")
        true = device.true_cost(Trial(network, Setup(batch=1, phase="inference")))
        errors.append(abs(found.energy_j / true.energy_j - 1))
        latency_errors.append(abs(found.duration_s / true.duration_s - 1))
        covered += found.interval_j[0] <= true.energy_j <= found.interval_j[1]
    assert sum(errors) / 12 < 0.06 and sum(latency_errors) / 12 < 0.03
    assert covered >= 10


def test_estimate_of_a_run_counts_inferences(ran):
    words = ("estimate", MEMBER, "--inference", "--device", "sim", "--inferences", "5000")
    data = ran.json(*words)
    assert data["steps"] == 5000
    assert data["total_duration_s"] == pytest.approx(5000 * data["latency_s"])
    assert data["energy_per_inference_j"] == data["energy_j"]
    assert data["mean_power_w"] == pytest.approx(data["energy_j"] / data["latency_s"])
    assert data["wh_per_1000_inferences"] == pytest.approx(1000 * data["energy_j"] / 3600)
    text = " ".join(ran(*words, "--battery", "1Wh", "--seen", "1J/10").stdout.split())
    assert f"Running {MEMBER} on simulated-{SEED}: batch 1, inference, fp32" in text
    assert "An inference takes" in text and "with a latency of" in text
    assert "W on average" in text and "Wh per 1,000 inferences" in text
    assert "5,000 inferences take" in text and "The first 10 inferences took" in text
    assert_about_inference(text)


def test_measure_says_how_much_was_run(shell):
    words = ("measure", MEMBER, "--inference", "--on", f"simulated:{SEED}", "--no-save")
    data = shell.json(*words, "--warmup", "10", "--runs", "10", "--rounds", "1")
    assert data["warmup_steps"] == 10 and data["measured_steps"] >= 10
    assert data["latency_s"] == data["duration_s"] and data["setup"]["batch"] == 1
    usual, graph = shell.json(*words), shell.json(*words, "--cuda-graphs")
    assert usual["warmup_steps"] > 10
    assert graph["setup"]["cuda_graphs"] and graph["issue_s"] is None
    assert graph["latency_s"] < 0.8 * usual["latency_s"]
    text = shell(*words, "--batch", "8").stdout
    assert "one inference of 8 samples (simulated)" in text and "latency" in text
    assert "1,000 inferences" in text and "to warm up" in text
    assert_about_inference(text)


def test_compare_shows_latency(ran):
    words = ("compare", MEMBER, "--inference", "--devices", "sim")
    single = ran(*words).stdout
    assert "energy and latency per inference" in single
    assert_about_inference(single.replace("combination", ""))
    several = ran(*words, "--batch", "1,2").stdout
    assert "energy and time per sample" in several and "latency" in several
    row = ran.json(*words)["rows"][0]
    assert row["latency_s"] == row["duration_s_per_sample"] and row["mean_power_w"] > 0


def test_search_and_prune_have_budgets_per_inference(ran):
    network, device = (FAMILY, "--inference"), ("--device", "sim")
    energy_j = ran.json("estimate", *network, *device)["energy_j"]
    budget = f"{0.99 * energy_j * 1e3:.6f}mJ/inference"
    text = ran("search", *network, *device, "--budget", budget, "--candidates", "50").stdout
    assert "per inference, kept" in " ".join(text.split())
    assert "energy and time of one inference" in text
    words = ("search", *network, *device, "--budget", budget, "--candidates", "50")
    candidate = ran.json(*words)["candidates"][0]
    assert candidate["latency_s"] == candidate["duration_s"]
    # Wide enough for channels to cost more than the host.
    wide = ("lenet5:64,128,256,256", "--inference", *device)
    pruned = ran.json("prune", *wide, "--budget", "90%", "--strategy", "uniform")
    assert pruned["after"]["latency_s"] == pruned["after"]["duration_s"]
    assert "per inference" in ran.fails("search", *network, *device, "--budget", "1nJ/inference")
    assert "per inference" in ran.fails("prune", *network, *device, "--budget", "1nJ/inference")


def test_plan_runs_inferences(ran, write):
    job = f'[[job]]\nname = "serve"\nnet = "{MEMBER}"\n'
    device = '[[device]]\nname = "board"\nprofile = "sim"\n'
    write("plan.toml", f"{job}inference = true\ninferences = 1000\n{device}")
    energy_j = ran.json("estimate", MEMBER, "--inference", "--device", "sim")["energy_j"]
    assert ran.json("plan", "plan.toml")["energy_j"] == pytest.approx(1000 * energy_j, rel=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--precision", "int8", "--on", "cpu"), "PyTorch does not run int8"),
        (("--processor", "NPU", "--on", "cpu"), "PyTorch has no processor 'NPU'"),
        (("--cuda-graphs", "--on", "cpu"), "PyTorch on cpu has no CUDA graphs"),
        (("--on", "http://127.0.0.1:1", "--runs", "10"), "leave --warmup and --runs out"),
    ],
)
def test_what_a_runtime_cannot_run_is_one_line(shell, words, message):
    assert message in shell.fails("measure", MEMBER, "--inference", "--no-save", *words)
    for precision in ("int8", "int8_dynamic"):
        asked = ("--device", "nvidia-h200", "--inference", "--precision", precision)
        assert f"which does not run {precision} here" in shell.fails("estimate", MEMBER, *asked)
