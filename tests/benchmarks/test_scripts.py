"""Test what the scripts of benchmarks read, score and write, from their kept results."""

import hashlib

import pytest

from benchmarks import common
from benchmarks.accuracy import cost
from benchmarks.accuracy import run as accuracy
from benchmarks.anywhere import records
from benchmarks.anywhere import run as anywhere
from benchmarks.atlas import ship
from benchmarks.devices import data_parallel, tables
from benchmarks.devices import run as devices
from joulecast.devices.data_sheets import find_data_sheet
from joulecast.operators import network_work
from joulecast.records import Observation, Setup
from joulecast.system.errors import FileError, InputError, MissingError

BENCHMARKS = common.HERE
SUMS = BENCHMARKS / "SHA256SUMS"


def test_kept_data_have_the_recorded_checksums():
    lines = [line.split() for line in SUMS.read_text().splitlines()]
    packed = {str(path.relative_to(BENCHMARKS)) for path in BENCHMARKS.rglob("*.xz")}
    assert packed == {name for _, name in lines}
    for digest, name in lines:
        assert hashlib.sha256((BENCHMARKS / name).read_bytes()).hexdigest() == digest, name


def test_packed_files_are_restored_and_damaged_ones_refused(tmp_path):
    data = {"a": [1, 2.5]}
    for name in ("plain.json", "packed.json.xz"):
        common.write_json(tmp_path / name, data)
        assert common.read_json(tmp_path / name) == data
    (tmp_path / "packed.json.xz").write_bytes(b"no")
    for name in ("packed.json.xz", "missing.json"):
        with pytest.raises(FileError, match=name):
            common.read_json(tmp_path / name)


def test_accuracy_scores_a_kept_setting_and_leaves_out_cost(rivals):
    setting = next(one for one in accuracy.SETTINGS if one.name == "lstm")
    (profile,) = common.read_profiles(accuracy.RESULTS / "observations-lstm.json.xz")
    assert setting.count_tests(profile) == 2 * accuracy.TEST_NETS
    result = accuracy.evaluate_setting(profile, setting)
    assert {score.estimator for score in result.scores} == set(accuracy.ESTIMATORS)
    rows = accuracy.make_rows([result])
    assert [row["setting"] for row in rows if row["estimator"] == "additive"] == [
        "lstm",
        "host-bound",
        "all",
    ]
    kept = common.read_json(accuracy.RESULTS / "summary.json.xz")["rows"]
    (before,) = [r for r in kept if (r["setting"], r["estimator"]) == ("lstm", "work-linear")]
    (now,) = [r for r in rows if (r["setting"], r["estimator"]) == ("lstm", "work-linear")]
    assert now["mape_percent"] == pytest.approx(before["mape_percent"], abs=0.01)
    line = accuracy.make_markdown(rows).splitlines()[2]
    assert line.startswith("| lstm | 12 | 7.0 |") and "**" in line


def test_results_name_commit_and_date():
    for folder, name in (("accuracy", "summary.json.xz"), ("accuracy", "cost.json.xz")):
        data = common.read_json(BENCHMARKS / folder / "results" / name)
        assert data["commit"] and data["date"]


def test_cost_compares_kept_campaigns_at_equal_seconds():
    setting = next(one for one in cost.COMPARED if one.name == "lenet5")
    campaigns = cost.find_campaigns(setting, [])
    assert set(campaigns) == {"additive", "work-linear", "subtractive"}
    own = campaigns["additive"]
    assert own.is_recombined
    # One whole network, a layer of each of three kinds, two networks, the layers, three networks.
    sizes = [len(one.trial.network.layers) for one in own.observations]
    whole = max(sizes)
    assert sizes[:13] == [0, whole, 1, 1, 1, whole, whole, 1, 1, 1, whole, whole, whole]
    tests = set(own.log.plan.drawn.test)
    assert not any(one.trial.network in tests for one in own.observations)
    few = {"work-linear": campaigns["work-linear"]}
    points = cost.score(setting, few)["arms"]["work-linear"]
    assert [one["budget_s"] for one in points] == list(cost.BUDGETS_S)
    spent_s = [one["device_seconds"] for one in points]
    assert spent_s[0] < 6.0 and spent_s == sorted(spent_s)


def test_cost_has_no_scores_without_measurements():
    with pytest.raises(MissingError, match="run measure first"):
        cost.score(cost.COMPARED[0], {})


def test_anywhere_scores_errors_coverage_and_failures():
    truth = {"energy_j": 10.0, "duration_s": 1.0, "power_w": 400.0}
    shared = {"setup": {"precision": "bf16"}, "about": {"domain": "vision"}, "truth": truth}
    estimate = {"energy_j": 12.0, "interval_j": [9.0, 16.0], "duration_s": 0.5}
    results = {
        "one": {**shared, "shipped": estimate},
        "two": {**shared, "shipped": {**estimate, "energy_j": 8.0, "interval_j": [7.0, 9.0]}},
        "three": {**shared, "shipped": {"error": "cannot be read"}},
    }
    score = records.score_group("shipped", results, results)
    assert (score["networks"], score["failed"]) == (2, 1)
    assert score["mape_percent"] == pytest.approx(20.0)
    assert score["within_percent"] == 50.0 and score["duration_mape_percent"] == 50.0
    assert records.score_group("probed", results, results) is None
    groups = records.make_groups(results)
    assert groups["fills the card"] == groups["bf16"] == groups["vision"] == list(results)
    assert "tf32 and fp32" not in groups


def test_anywhere_page_has_the_published_figures():
    judged = records.RunFolder.open(records.RESULTS).judged["third"]
    known = {name: one for name, one in judged.items() if "energy_j" in one["truth"]}
    page = anywhere.make_page(judged, known, anywhere.GOALS)
    assert "| shipped | all | 25 | 1 | 16.8 | 7.6 | 14" in page
    assert "| probed | all | 9 | 0 | 8.6 | 5.0 |" in page
    assert "- text_recognizer, shipped: " in page


def test_kept_networks_are_those_that_were_measured():
    for test, count in {"first": 29, "second": 29, "third": 25, "fourth": 14}.items():
        assert len(list(records.read_measured(test))) == count


def test_shipped_profile_has_no_test_networks():
    data = common.read_json(BENCHMARKS / "atlas" / "results" / "regular.json.xz")
    one = next(ship.find_observations({"rows": data}))
    assert isinstance(one, Observation) and ship.is_shippable(one)
    test = Observation.from_dict({**one.to_dict(), "run": "1a2b.test1"})
    assert not ship.is_shippable(test)


def test_networks_of_models_have_the_flops_of_their_formula():
    network = tables.load_network("neusight", "gpt2_large", "train", 1024)
    width, layers, vocabulary, tokens = 1280, 36, 50257, 1024
    products = 12 * width**2 * layers + width * vocabulary + 2 * tokens * width * layers
    inference, training = Setup(batch=3, phase="inference"), Setup(batch=3, accumulate=0)
    assert network_work(network, inference).total.flops == 2 * 3 * tokens * products
    assert network_work(network, training).total.flops == 6 * 3 * tokens * products


def test_kernels_have_the_coordinates_of_a_network_operator():
    network, setup = (
        tables.load_network("neusight", "bert", "inf", 512),
        Setup(8, phase="inference"),
    )
    compared = 0
    for operator, piece in tables.list_step_operators(network, setup):
        for op, sizes in tables.list_products(operator, setup):
            if op == "bmm" or sizes[1] == 8 * 512:
                kernel = tables.make_kernel_piece(op, sizes)
                assert (kernel.label, kernel.flops) == (piece.label, piece.flops)
                assert kernel.point == pytest.approx(piece.point)
                compared += 1
    assert compared > 10


def test_published_steps_have_networks_and_data_sheets():
    steps = tables.read_published_steps()
    assert len(steps) == 189
    for step in steps:
        assert step.network.layers and 1e-2 < step.duration_s < 3.0
        find_data_sheet(step.device).find_peak(step.precision)
    left = tables.read_published_steps(without="H100 SXM")
    assert len({find_data_sheet(step.device).name for step in left}) == 12
    thinned = tables.thin_steps(steps)
    assert len(thinned) < len(steps)
    assert {(s.source, s.device) for s in thinned} == {(s.source, s.device) for s in steps}


def test_wrong_tables_are_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        tables.read_steps(tmp_path)
    (tmp_path / "steps.csv").write_text("device,model\nx,y\n")
    with pytest.raises(InputError, match="has no mode"):
        tables.read_steps(tmp_path)
    with pytest.raises(InputError, match="'conv'"):
        tables.make_kernel_piece("conv", (1, 2))
    with pytest.raises(InputError, match="bert"):
        tables.load_network("neusight", "bert", "train", 7)
    with pytest.raises(InputError, match="H100x"):
        devices.choose_devices(tables.read_published_steps(), "H100x")


def test_tables_of_left_out_gpus_have_the_published_figures():
    results = common.read_json(devices.RESULTS / "neusight.json.xz")
    text = devices.table_errors(results)
    assert (
        "| Tesla V100-PCIE-32GB | train | 3 | 21.2% | 6.3% | 8.9% | 16.4% | 5.4% | 37.4% |" in text
    )
    assert "| Tesla T4 | 18.6% | 16.7% | 8.1% | 3.0% |" in devices.table_kernels(results)
    rows = common.read_json(devices.RESULTS / "fresh.json.xz")["estimates"]["data sheet"]
    assert devices.score_rows(rows)["all"]["mape"] == pytest.approx(31.3, abs=0.1)
    assert sum(one.cost_s for one in devices.read_atlas(60.0)) <= 60.0


def test_scaling_of_several_gpus_is_near_what_was_published():
    rows = data_parallel.read_scaling(data_parallel.FOLDER / "published_scaling.csv")
    assert len(rows) == 18
    assert sum(abs(row.error) for row in rows) / len(rows) < 0.05
