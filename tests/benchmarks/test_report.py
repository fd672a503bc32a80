"""Report of the accuracy benchmark: rows, means, and packed observations."""

import json
from dataclasses import replace
from statistics import fmean, median

import pytest

from joulecast.campaign import find_profile_key
from joulecast.errors import FileError, MissingError
from joulecast.features.evaluation_run import measure_and_evaluate
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.store import open_store

NAMES = ("settings", "observation_files", "outside_baselines", "rows", "tables", "report")
SECONDS = 8.0


@pytest.fixture(scope="module")
def bench(import_accuracy):
    with import_accuracy(*NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def kept(bench, tmp_path_factory):
    """Return a store with one setting, measured for a few simulated seconds, and its profile."""
    place = tmp_path_factory.mktemp("kept") / "store.sqlite"
    setting = bench.settings.SETTINGS[0]
    with (
        open_measurer(MeasureOptions("simulated:21", rounds=1)) as measurer,
        open_store(place) as store,
    ):
        measure_and_evaluate(measurer, store, setting.plan(bench.settings.OWN, SECONDS))
        measure_and_evaluate(measurer, store, setting.plan(("flops",), SECONDS))
        # Observations of cost.py are in the same store and not part of the report.
        profile = store.load_profile(find_profile_key(measurer))
        run = bench.report.open_log(profile, setting).make_tag("cost.additive-energy")
        store.add_observation(replace(profile.observations[0], run=run))
        return place, store.load_profile(profile.key)


@pytest.fixture(scope="module")
def results(bench, kept):
    short = pytest.MonkeyPatch()
    short.setattr(bench.report, "OWN_SECONDS", SECONDS)
    short.setattr(bench.report, "BASELINE_SECONDS", SECONDS)
    yield bench.report.evaluate_settings([kept[1]])
    short.undo()


def spread(bench, result):
    """Return the result as if it were that of several settings with other errors."""
    found = []
    for at, setting in enumerate(bench.settings.SETTINGS[:5]):
        scores = tuple(
            replace(score, mape_percent=score.mape_percent * (1 + at), max_percent=90.0 - at)
            for score in result.scores
            # One baseline was not measured everywhere.
            if at != 1 or score.estimator != "flops"
        )
        found.append(replace(result, setting=setting, scores=scores))
    return found


OUTSIDE_NET = {
    "name": "resnet50",
    "passes_j": [1.0, 1.1],
    "measured_j": 1.05,
    "measured_s": 0.1,
    "flops": 1e9,
    "answers": {"additive": {"energy_j": 1.0, "interval95_j": [0.9, 1.2]}},
    "parts": {},
}


def make_outside(result):
    return {"scores": [result.scores[0].to_dict()], "nets": [OUTSIDE_NET]}


def test_rows_have_exactly_their_fields(bench, results):
    rows = bench.rows.make_rows(spread(bench, results[0]), make_outside(results[0]))
    groups = bench.rows.GROUPS
    for row in rows:
        extra = ["ratios"] if row["setting"] in groups and row["estimator"] == "additive" else []
        assert list(row) == [*bench.rows.FIELDS, *extra]
    assert {row["bound"] for row in rows} == {"host", "gpu", "outside", "all"}
    (outside_row,) = (row for row in rows if row["family"] == "outside")
    assert outside_row["interval_width_percent"] == round(results[0].scores[0].width95_percent, 4)


def test_groups_score_all_nets_of_their_settings_and_no_outside_nets(bench, results):
    spread_out = spread(bench, results[0])
    rows = bench.rows.make_rows(spread_out, make_outside(results[0]))
    for group, bounds in bench.rows.GROUPS.items():
        members = [one for one in spread_out if one.setting.bound in bounds]
        nets = [net for one in members for net in one.nets]
        for name in bench.rows.ESTIMATORS[:2]:
            row = bench.rows.find_row(rows, group, name)
            widths = [
                100 * (high - low) / net.estimates[name].energy_j
                for net in nets
                for low, high in [net.estimates[name].interval95_j]
            ]
            assert row["interval_width_percent"] == pytest.approx(median(widths), abs=1e-3)
            errors = [abs(net.estimates[name].energy_j / net.measured_j - 1) for net in nets]
            assert row["mape_percent"] == pytest.approx(100 * fmean(errors), abs=1e-3)
            assert row["nets"] == len(nets)


def test_group_lacks_an_estimator_that_some_setting_lacks(bench, results):
    rows = bench.rows.make_rows(spread(bench, results[0]))
    assert bench.rows.find_row(rows, "gpu-bound", "flops") is not None
    assert bench.rows.find_row(rows, "all", "flops") is None
    assert bench.rows.find_row(rows, "all", "constant") is not None


def test_ratios_compare_mean_errors(bench, results):
    rows = bench.rows.make_rows(results)
    ours, theirs = (
        next(score.mape_percent for score in results[0].scores if score.estimator == name)
        for name in ("additive", "work-linear")
    )
    ratios = bench.rows.find_row(rows, "all", "additive")["ratios"]
    assert set(ratios) == {"work-linear", "flops-linear", "flops"}
    assert ratios["work-linear"] == pytest.approx(theirs / ours, rel=1e-3)


def test_baselines_of_whole_nets_share_the_campaign_of_flops(bench, results):
    scores = {score.estimator: score for score in results[0].scores}
    names = bench.outside_baselines.WHOLE_NET_BASELINES
    assert {scores[name].points for name in names} == {6}
    assert len({scores[name].device_seconds for name in names}) == 1


def test_first_judgement_is_a_column_of_its_own(bench, results, tmp_path):
    first = bench.rows.list_first_rows({"rows": bench.rows.make_rows(results)})
    summary = bench.report.write_all(tmp_path, results, None, first)
    columns = bench.tables.list_columns(summary["rows"])
    assert columns[3:5] == ["first judged", "additive"]
    (cells, *_) = bench.tables.list_cells(summary["rows"])
    assert cells[3] == cells[4]


def test_outside_baselines_are_fitted_to_the_other_nets(bench, kept):
    """One net of the table costs ten times as much as the others: nothing learns from it."""
    log = bench.report.open_log(kept[1], bench.settings.SETTINGS[0])
    passes = [one for role in ("test1", "test2") for one in log.list_for(role)]
    odd = passes[0].trial.network.name
    passes = [
        replace(one, energy_j=10 * one.energy_j) if one.trial.network.name == odd else one
        for one in passes
    ]
    names = dict.fromkeys(one.trial.network.name for one in passes)
    nets = [{**OUTSIDE_NET, "name": name} for name in names]
    outside = {"nets": nets, "scores": []}
    profile = replace(kept[1], observations=tuple(passes))
    found = bench.outside_baselines.add_baselines(outside, [profile])
    estimates = {net["name"]: net["answers"] for net in found["nets"]}
    others = [one["constant"]["energy_j"] for name, one in estimates.items() if name != odd]
    assert estimates[odd]["constant"]["energy_j"] < median(others)
    assert [score["estimator"] for score in found["scores"]] == list(
        bench.outside_baselines.WHOLE_NET_BASELINES
    )
    assert all(set(OUTSIDE_NET["answers"]) < set(answers) for answers in estimates.values())
    unknown = {"nets": [OUTSIDE_NET], "scores": []}
    assert bench.outside_baselines.add_baselines(unknown, [profile]) == unknown


def test_packed_observations_give_the_same_rows_as_the_store(bench, kept, results, tmp_path):
    packed = [tmp_path / name for name in ("one.json.gz", "two.json.gz")]
    for file in packed:
        bench.observation_files.write_packed(results[0].profile, file)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    again = bench.report.evaluate_settings(bench.observation_files.read_profiles(packed[0]))
    assert bench.rows.make_rows(again) == bench.rows.make_rows(results)
    assert bench.rows.list_nets(again) == bench.rows.list_nets(results)
    (stored,) = bench.observation_files.read_profiles(kept[0])
    runs = {seen.run for seen in stored.observations} - {
        s.run for s in again[0].profile.observations
    }
    assert [run.split(".", 1)[1] for run in runs] == ["cost.additive-energy"]


def test_source_with_most_test_nets_is_used(bench, kept, results):
    profile = kept[1]
    some = [s for s in profile.observations if not s.run.endswith("test2")]
    poorer = replace(profile, observations=tuple(some))
    for sources in ([poorer, profile], [profile, poorer]):
        (found,) = bench.report.evaluate_settings(sources)
        assert found.scores == results[0].scores


def test_all_files_are_written_and_marked_as_simulated(bench, results, tmp_path):
    summary = bench.report.write_all(tmp_path, results, make_outside(results[0]))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert {"device", "date", "commit", "rows"} <= set(summary)
    nets = json.loads((tmp_path / "nets.json").read_text())["nets"]
    assert len(nets) == len(results[0].nets) + 1
    assert all(len(net["passes_j"]) == 2 and net["answers"] for net in nets)
    assert "(simulated)" in (tmp_path / "accuracy.svg").read_text()
    head, _, *lines = (tmp_path / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        f"| {name}" for name in ("lenet5", "outside", "host-bound", "all")
    ]
    assert all(line.count("|") == head.count("|") for line in lines)


def test_missing_test_nets_error_says_what_to_run(bench, kept):
    with pytest.raises(MissingError, match=r"measure\.py"):
        bench.report.evaluate_settings([replace(kept[1], observations=())])


def test_missing_or_damaged_file_is_one_clear_error(bench, tmp_path):
    file = tmp_path / "a.json.gz"
    with pytest.raises(FileError, match="no file"):
        bench.observation_files.read_profiles(file)
    file.write_bytes(b"no gzip")
    with pytest.raises(FileError, match="damaged"):
        bench.observation_files.read_profiles(file)
