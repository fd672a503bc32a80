"""The networks of benchmarks/anywhere, its training loop, its files and its report."""

import importlib
import json
import math
import sys
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import joulecast
from joulecast.families import make_family
from joulecast.meters import Meter, Reading
from joulecast.records import Execution, Observation, Setup, Trial
from joulecast.store import open_store

torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = (
    "training_examples", "language_networks", "recurrent_networks", "vision_networks",
    "generative_networks", "speech_and_tables", "networks", "development", "second_language",
    "second_vision", "second_generative", "second_signals", "second_networks", "third_language",
    "third_vision", "third_generative", "third_neighbourhoods", "third_signals", "third_networks",
    "fourth_networks",
    "result_files", "truth", "estimates", "scores", "run", "rescore", "report",
)  # fmt: skip


@pytest.fixture(scope="module")
def scripts():
    folder = str(BENCHMARKS / "anywhere")
    hidden = {name: sys.modules.pop(name) for name in SCRIPTS if name in sys.modules}
    sys.path.insert(0, folder)
    try:
        yield Namespace(**{name: importlib.import_module(name) for name in SCRIPTS})
    finally:
        sys.path.remove(folder)
        for name in SCRIPTS:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


# ---------------------------------------------------------------------------------------------
# Tables


SHARED_DOMAINS = {"language", "vision", "generative", "speech", "video", "tables", "points"}


OTHER_DOMAINS = SHARED_DOMAINS | {"series", "control"}


@pytest.mark.parametrize(
    ("name", "precisions", "optimizers", "domains"),
    [
        ("first", (14, 13, 3), (20, 9, 1), SHARED_DOMAINS),
        ("second", (14, 13, 3), (16, 9, 5), OTHER_DOMAINS),
        ("third", (13, 11, 2), (14, 7, 5), OTHER_DOMAINS | {"graphs", "fields"}),
        ("fourth", (6, 6, 2), (7, 7, 0), {"language", "vision", "video"}),
    ],
)
def test_the_table_keeps_what_the_protocol_says(scripts, name, precisions, optimizers, domains):
    table = scripts.run.TABLES[name]
    chosen = [entry.precision for entry in table]
    assert tuple(map(chosen.count, ("bf16", "tf32", "fp32"))) == precisions
    chosen = [entry.optimizer for entry in table]
    assert tuple(map(chosen.count, ("adamw", "sgd", "adam"))) == optimizers
    assert len(table) == sum(precisions) == sum(optimizers)
    assert {entry.domain for entry in table} == domains


def test_development_networks_are_few(scripts):
    assert len(scripts.development.DEVELOPMENT) == 8


def test_no_network_is_in_two_tables(scripts, import_accuracy):
    ours = [entry.name for table in scripts.run.TABLES.values() for entry in table]
    with import_accuracy("nets") as accuracy:
        tables = accuracy.nets.TABLES.values()
        earlier = [entry.name for table in tables for entry in table]
    # Another, smaller Llama of the transformers library has the same name.
    names = [*ours, *(set(earlier) - {"llama_gqa"})]
    assert len(set(names)) == len(names)


SMALL = ("tabular_resnet", "pointnet", "conv_vae", "char_cnn", "awd_lstm", "dcn_v2")
# Only trained here, not read or estimated: nothing may be chosen on networks of later tests.
LATER_SMALL = (
    "feature_transformer", "crf_tagger", "actor_critic", "scene_renderer",
    "citation_graph", "double_q", "fusion_forecaster",
)  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_modules_are_read_completely(scripts, name):
    entry = find_entry(scripts, name)
    example = entry.build(tiny=True)
    network, setup, _ = scripts.estimates.read_network(entry, example)
    assert setup == Setup(2, precision=entry.precision, optimizer=entry.optimizer)
    assert network.totals.params == sum(one.numel() for one in example.module.parameters())
    assert network.totals.unattributed_flops_share < 0.01


def test_estimates_are_those_of_the_module(scripts):
    """The network is read once and estimated; a user gives the module and its loss."""
    entry = find_entry(scripts, "tabular_resnet")
    example = entry.build(tiny=True)
    network, setup, _ = scripts.estimates.read_network(entry, example)
    profile = make_profile()
    found = scripts.estimates.estimate_shipped(network, setup, profile)
    options = scripts.estimates.list_options(entry, example)
    wanted = joulecast.estimate(example.module, example.inputs, device=profile, **options)
    assert found["energy_j"] == pytest.approx(wanted.energy_j)
    assert found["interval_j"] == pytest.approx(list(wanted.interval_j))


def find_entry(scripts, name):
    tables = scripts.run.TABLES.values()
    return next(entry for table in tables for entry in table if entry.name == name)


def test_tests_have_folders_of_their_own(scripts):
    """The report of a later test must not replace that of an earlier one."""
    folders = scripts.report.FOLDERS
    assert set(folders) == set(scripts.run.TABLES) - {"development"}
    assert len(set(folders.values())) == len(folders)


@cache
def make_profile():
    return joulecast.profile(
        "cnn5:4,4,4,4", on="simulated:5", batch=8, seconds=30, store=":memory:"
    )


def test_probes_start_from_an_empty_store_and_are_counted(scripts, monkeypatch):
    entry, seen = find_entry(scripts, "tabular_resnet"), []
    network = make_family("lenet5")

    def probe(module, inputs, *, store, **options):
        assert options.pop("loss") and options == {
            "probe": True, "on": "cuda:0", "probe_seconds": 5.0, "precision": "fp32",
            "optimizer": "adamw",
        }  # fmt: skip
        with open_store(store) as opened:
            seen.append(len(opened.list_profiles()))
            trial = Trial(network, Setup(), Execution())
            opened.add_observation(Observation(trial, duration_s=0.5, cost_s=2.5))
        return joulecast.estimate(network, device=make_profile(), batch=8)

    monkeypatch.setattr(scripts.estimates, "joulecast", Namespace(estimate=probe))
    for _ in range(2):
        example = entry.build(tiny=True)
        found, observations = scripts.estimates.estimate_probed(entry, example, "cuda:0", 5.0)
        assert found["measuring_s"] == 2.5 and len(observations) == found["observations"] == 1
    assert seen[0] == seen[1]


# ---------------------------------------------------------------------------------------------
# Training loop


class SteadyMeter(Meter):
    """Shows 10 W."""

    name = "steady"

    def begin(self):
        self.begun = True

    def end(self):
        assert self.begun
        return Reading(energy_j=20.0, duration_s=2.0)


def test_energy_of_a_step_is_power_times_its_duration(scripts):
    entry = find_entry(scripts, "tabular_resnet")
    rules = replace(scripts.truth.TINY, windows=3, most_windows=9)
    found = scripts.truth.measure_truth(entry, "cpu", SteadyMeter(), rules, tiny=True)
    for window in found["windows"]:
        assert window["energy_j"] == pytest.approx(10 * window["duration_s"])
    assert found["power_w"] == pytest.approx(10.0)
    assert len(found["windows"]) in (3, 6, 9)


def test_a_step_changes_every_weight(scripts):
    entry = find_entry(scripts, "tabular_resnet")
    example = entry.build(tiny=True)
    before = [weight.detach().clone() for weight in example.module.parameters()]
    scripts.truth.make_step(example, entry, "cpu")()
    after = example.module.parameters()
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", LATER_SMALL)
def test_networks_of_later_tests_train(scripts, name):
    entry = find_entry(scripts, name)
    example = entry.build(tiny=True)
    before = [weight.detach().clone() for weight in example.module.parameters()]
    loss = scripts.truth.make_step(example, entry, "cpu")()
    assert math.isfinite(loss.item())
    pairs = zip(before, example.module.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_chunks_of_the_state_space_model_run_the_recurrence(scripts):
    torch.manual_seed(0)
    x, decay = torch.randn(2, 12, 3, 4), -torch.rand(2, 12, 3)
    b, c = torch.randn(2, 12, 5), torch.randn(2, 12, 5)
    state, wanted = torch.zeros(2, 3, 4, 5), []
    for at in range(12):
        written = x[:, at, :, :, None] * b[:, at, None, None]
        state = decay[:, at, :, None, None].exp() * state + written
        wanted.append((state * c[:, at, None, None]).sum(dim=-1))
    found = scripts.third_language.scan_states(x, decay, b, c, chunk=4)
    torch.testing.assert_close(found, torch.stack(wanted, dim=1))


def test_windows_of_pixels_are_joined_as_they_were_split(scripts):
    attention = scripts.third_neighbourhoods.WindowAttention(6, 2, window=2, side=4, shift=1)
    maps = torch.randn(3, 4, 4, 6)
    windows = attention.split(maps)
    assert torch.equal(windows[0], maps[0, :2, :2].reshape(4, 6))
    assert torch.equal(attention.join(windows, maps.shape), maps)


def make_window(energy_j, faults=()):
    return {"energy_j": energy_j, "duration_s": 0.1, "faults": list(faults)}


@pytest.mark.parametrize(
    ("windows", "more"),
    [
        ([], True),
        ([make_window(10.0)] * 3, False),
        ([make_window(10.0), make_window(10.2), make_window(10.1)], False),
        ([make_window(10.0), make_window(10.5), make_window(10.1)], True),
        ([make_window(10.0)] * 2 + [make_window(10.0, ["gap"])], True),
    ],
)
def test_windows_are_taken_again_where_they_disagree(scripts, windows, more):
    assert scripts.truth.needs_more(windows, scripts.truth.TruthRules()) is more


def test_the_truth_is_the_median_of_windows_without_faults(scripts):
    windows = [make_window(10.0), make_window(99.0, ["gap"]), make_window(12.0), make_window(11.0)]
    found = scripts.truth.summarize(windows)
    assert found["energy_j"] == 11.0 and found["power_w"] == pytest.approx(110.0)
    assert found["energy_spread_share"] == pytest.approx(2 / 11)


# ---------------------------------------------------------------------------------------------
# Runs


def make_runner(scripts, folder, stages, stack, **options):
    args = Namespace(
        stage=stages, on="cpu", tiny=True, until_s=1e9, retry=False, device="x", **options
    )
    return scripts.run.Runner(args, folder, stack, started_s=0.0)


def test_a_failure_is_recorded_once_and_retried_on_request(scripts, tmp_path, monkeypatch, capsys):
    calls = []

    def fail(*args):
        calls.append(args)
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(scripts.run, "measure_truth", fail)
    monkeypatch.setattr(scripts.run.time, "monotonic", lambda: 0.0)
    folder = scripts.result_files.open_folder(tmp_path)
    with ExitStack() as stack:
        runner = make_runner(scripts, folder, ["truth"], stack)
        entry = find_entry(scripts, "tabular_resnet")
        runner.run_network(entry)
        runner.run_network(entry)
        assert len(calls) == 1
        runner.args.retry = True
        runner.run_network(entry)
    assert len(calls) == 2
    again = scripts.result_files.open_folder(tmp_path)
    assert again.results["tabular_resnet"]["truth"]["error"] == "RuntimeError: no such kernel"


def test_a_truth_of_another_card_is_measured_again_before_probing(scripts, tmp_path, monkeypatch):
    monkeypatch.setattr(scripts.run, "find_unit", lambda on: "new")
    folder = scripts.result_files.open_folder(tmp_path)
    folder.add_stage("tabular_resnet", "truth", {"energy_j": 1.0, "unit": "old"})
    with ExitStack() as stack:
        runner = make_runner(scripts, folder, ["truth"], stack)
        assert runner.is_done("tabular_resnet", "truth")
        runner.args.stage = ["truth", "probed"]
        assert not runner.is_done("tabular_resnet", "truth")
        folder.add_stage("tabular_resnet", "probed", {"energy_j": 1.0, "unit": "old"})
        assert runner.is_done("tabular_resnet", "truth")


def test_networks_and_probes_are_read_back(scripts, tmp_path):
    network, setup = make_family("lenet5"), Setup(batch=8, precision="bf16")
    observation = Observation(Trial(network, setup, Execution()), duration_s=0.5, cost_s=2.0)
    folder = scripts.result_files.open_folder(tmp_path)
    folder.add_network("mine", network, setup)
    folder.add_probes("mine", [observation])
    again = scripts.result_files.open_folder(tmp_path)
    assert again.load_network("mine") == (network, setup)
    assert again.load_probes("mine") == (observation,)
    assert scripts.estimates.sum_costs(again.load_probes("mine")) == 2.0


def test_a_run_is_estimated_again_without_a_device(scripts, tmp_path):
    network, setup = make_family("cnn5:4,4,4,4"), Setup(batch=8)
    before = scripts.result_files.open_folder(tmp_path / "before")
    before.add_stage("mine", "truth", {"energy_j": 1.0})
    before.add_network("mine", network, setup)
    before.add_probes("mine", [])
    after = scripts.result_files.open_folder(tmp_path / "after")
    rivals = scripts.estimates.Rivals(make_profile())
    scripts.rescore.rescore_network("mine", before, after, rivals)
    found = after.results["mine"]
    assert found["truth"] == {"energy_j": 1.0}
    assert found["shipped"]["energy_j"] == pytest.approx(found["probed"]["energy_j"])
    assert set(found["rivals"]) == set(scripts.estimates.list_rivals())
    assert "energy_j" in found["rivals"]["flops"]


# ---------------------------------------------------------------------------------------------
# Report


TESTED, PROFILED = "0123abcd", "4567cdef"


def make_estimate(energy_j, log_sd):
    factor = math.exp(1.959964 * log_sd)
    interval = [energy_j / factor, energy_j * factor]
    return {"energy_j": energy_j, "interval_j": interval, "level": 0.95, "duration_s": 0.1}


def make_result(true_j, shipped_j, precision="bf16", power_w=500.0, unit=TESTED):
    return {
        "setup": {"batch": 8, "precision": precision, "optimizer": "sgd"},
        "about": {"domain": "vision"},
        "truth": {
            "energy_j": true_j, "duration_s": 0.1, "power_w": power_w, "energy_spread_share": 0.01,
            "unit": unit,
        },
        "shipped": {**make_estimate(shipped_j, 0.1), "profile_units": [PROFILED]},
        "probed": {**make_estimate(true_j * 1.01, 0.02), "measuring_s": 9.0, "unit": unit},
        "rivals": {"flops": make_estimate(2 * true_j, 0.5), "subtractive": {"error": "no curve"}},
    }  # fmt: skip


@pytest.fixture
def results():
    found = {
        "one": make_result(10.0, 11.0),
        "two": make_result(10.0, 9.5, "tf32", power_w=150.0),
        "three": make_result(10.0, 15.0),
        "four": {**make_result(1.0, 1.0), "truth": {"error": "out of memory"}},
    }
    found["three"]["probed"] = {"error": "not readable"}
    return found


def test_scores_are_those_of_the_protocol(scripts, results):
    summary = scripts.report.make_summary(results)
    assert set(summary["networks"]) == {"one", "two", "three"}
    scores = {(one["method"], one["group"]): one for one in summary["scores"]}
    shipped = scores["shipped", "all"]
    assert shipped["mape_percent"] == pytest.approx((10 + 5 + 50) / 3)
    assert shipped["median_percent"] == pytest.approx(10.0)
    assert shipped["worst_percent"] == pytest.approx(50.0)
    assert shipped["within_percent"] == pytest.approx(200 / 3)
    zs = [math.log(ratio) / 0.1 for ratio in (1.1, 0.95, 1.5)]
    assert shipped["rms_z"] == pytest.approx(math.sqrt(sum(z * z for z in zs) / 3), rel=1e-4)
    assert scores["shipped", "fills the card"]["count"] == 2
    assert scores["shipped", "tf32 and fp32"]["mape_percent"] == pytest.approx(5.0)
    probed = scores["probed", "all"]
    assert (probed["count"], probed["failed"]) == (2, 1)
    assert scores["flops", "all"]["mape_percent"] == pytest.approx(100.0)
    assert ("subtractive", "all") not in scores


def test_goals_failures_and_cards_are_reported(scripts, results):
    summary = scripts.report.make_summary(results)
    goals = {(one["method"], one["quantity"]): one["is_met"] for one in summary["goals"]}
    assert not goals["shipped", "worst_percent"]
    assert goals["probed", "mape_percent"]
    failed = {(one["network"], one["stage"]) for one in summary["failures"]}
    assert failed == {("three", "probed"), ("four", "truth")}
    cards = {"tested": [TESTED], "profile": [PROFILED], "are_different": True}
    assert summary["cards"] == cards


@pytest.mark.parametrize("unit", [PROFILED, "3345", "unnamed"])
def test_cards_that_are_equal_or_named_otherwise_are_not_called_different(scripts, unit):
    results = {"one": make_result(10.0, 11.0, unit=unit)}
    assert not scripts.report.make_summary(results)["cards"]["are_different"]


def test_small_groups_are_not_judged(scripts):
    results = {f"n{at}": make_result(10.0, 11.0) for at in range(12)}
    results["small"] = make_result(10.0, 11.0, "tf32", power_w=100.0)
    rows = scripts.report.make_summary(results)["goals"]
    groups = {one["group"] for one in rows if one["quantity"] == "rms_z"}
    assert groups == {"all", "fills the card", "bf16", "vision"}


def test_the_report_writes_a_table_and_a_summary(scripts, results, tmp_path, monkeypatch, capsys):
    folder = scripts.result_files.open_folder(tmp_path / "run")
    for name, found in results.items():
        for stage, value in found.items():
            folder.add_stage(name, stage, value)
    monkeypatch.setattr(sys, "argv", ["report", str(folder.path), "--to", str(tmp_path / "to")])
    scripts.report.main()
    table = (tmp_path / "to" / "table.md").read_text()
    assert "| three | 8, bf16, sgd | 10.00 | 100.0 | 500 | 1.0 | +50.0* |" in table
    assert "- four, truth: out of memory" in table
    assert table in capsys.readouterr().out
    summary = json.loads((tmp_path / "to" / "summary.json").read_text())
    assert len(summary["networks"]) == 3


def test_the_report_refuses_a_folder_without_results(scripts, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"holds no results\.json"):
        scripts.report.main()


def test_a_second_run_fills_what_the_first_has_not_measured(scripts, results, tmp_path):
    for place, energy_j in (("first", None), ("second", 10.0)):
        folder = scripts.result_files.open_folder(tmp_path / place)
        truth = results["one"]["truth"] if energy_j else {"error": "time"}
        for stage, value in {**results["one"], "truth": truth}.items():
            folder.add_stage("one", stage, value)
    merged = scripts.report.merge_runs([tmp_path / "first", tmp_path / "second"])
    assert merged["one"]["truth"]["energy_j"] == 10.0
