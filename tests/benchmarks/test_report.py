"""The accuracy benchmark's report: rows and means, and judging again from packed observations."""

import json
from dataclasses import replace
from statistics import fmean

import pytest

from joulecast.api.measurers import open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign import find_profile_key
from joulecast.errors import FileError, MissingError
from joulecast.store import open_store
from joulecast.uses.evaluate import evaluate

NAMES = ("settings", "keeping", "rows", "tables", "report")
SECONDS = 8.0


@pytest.fixture(scope="module")
def bench(import_accuracy):
    with import_accuracy(*NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def kept(bench, tmp_path_factory):
    """A store with one setting, measured for a few simulated seconds, and its profile."""
    place = tmp_path_factory.mktemp("kept") / "store.sqlite"
    setting = bench.settings.SETTINGS[0]
    with open_measurer(MeasureOptions("simulated:21", rounds=1)) as rig, open_store(place) as store:
        evaluate(rig, store, setting.plan(bench.settings.OWN, SECONDS))
        evaluate(rig, store, setting.plan(("flops",), SECONDS))
        # What the benchmark of cost measures lies in the same store, and is none of the report's.
        profile = store.profile(find_profile_key(rig))
        run = bench.report.open_book(profile, setting).tag("cost.additive-energy")
        store.add_observation(replace(profile.observations[0], run=run))
        return place, store.profile(profile.key)


@pytest.fixture(scope="module")
def verdicts(bench, kept):
    short = pytest.MonkeyPatch()
    short.setattr(bench.report, "OWN_SECONDS", SECONDS)
    short.setattr(bench.report, "RIVAL_SECONDS", SECONDS)
    yield bench.report.judge_all([kept[1]])
    short.undo()


def spread(bench, verdict):
    """The verdict as if it were that of settings of all sorts, with other errors."""
    found = []
    for at, setting in enumerate(bench.settings.SETTINGS[:5]):
        scores = tuple(
            replace(score, mape_percent=score.mape_percent * (1 + at), max_percent=90.0 - at)
            for score in verdict.scores
            # One rival was not measured everywhere.
            if at != 1 or score.estimator != "flops"
        )
        found.append(replace(verdict, setting=setting, scores=scores))
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


def make_outside(verdict):
    return {"scores": [verdict.scores[0].to_dict()], "nets": [OUTSIDE_NET]}


def test_rows_have_exactly_their_fields(bench, verdicts):
    rows = bench.rows.make_rows(spread(bench, verdicts[0]), make_outside(verdicts[0]))
    groups = bench.rows.GROUPS
    for row in rows:
        extra = ["ratios"] if row["setting"] in groups and row["estimator"] == "additive" else []
        assert list(row) == [*bench.rows.FIELDS, *extra]
    assert {row["bound"] for row in rows} == {"host", "gpu", "outside", "all"}
    (strange,) = (row for row in rows if row["family"] == "outside")
    assert strange["interval_width_percent"] == round(verdicts[0].scores[0].width95_percent, 4)


def test_means_weigh_every_setting_alike_and_leave_out_strange_nets(bench, verdicts):
    spread_out = spread(bench, verdicts[0])
    rows = bench.rows.make_rows(spread_out, make_outside(verdicts[0]))
    for group, bounds in bench.rows.GROUPS.items():
        settings = [one.setting.name for one in spread_out if one.setting.bound in bounds]
        for name in bench.rows.ESTIMATORS[:2]:
            own = [bench.rows.find_row(rows, setting, name) for setting in settings]
            mean = bench.rows.find_row(rows, group, name)
            for field in bench.rows.FIELDS[5:]:
                fold = max if field == "max_percent" else fmean
                assert mean[field] == pytest.approx(fold(row[field] for row in own), abs=1e-3)
            assert mean["nets"] == sum(row["nets"] for row in own)


def test_ratios_compare_settings_that_both_answered_for(bench, verdicts):
    rows = bench.rows.make_rows(spread(bench, verdicts[0]))
    ours, theirs = (
        next(score.mape_percent for score in verdicts[0].scores if score.estimator == name)
        for name in ("additive", "flops")
    )
    ratios = bench.rows.find_row(rows, "all", "additive")["ratios"]
    assert ratios == {"flops": pytest.approx(theirs / ours, rel=1e-3)}


def test_packed_observations_give_the_same_rows_as_their_store(bench, kept, verdicts, tmp_path):
    packed = [tmp_path / name for name in ("one.json.gz", "two.json.gz")]
    for file in packed:
        bench.keeping.write_packed(verdicts[0].kept, file)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    again = bench.report.judge_all(bench.keeping.read_profiles(packed[0]))
    assert bench.rows.make_rows(again) == bench.rows.make_rows(verdicts)
    assert bench.rows.list_nets(again) == bench.rows.list_nets(verdicts)
    (stored,) = bench.keeping.read_profiles(kept[0])
    runs = {seen.run for seen in stored.observations} - {s.run for s in again[0].kept.observations}
    assert [run.split(".", 1)[1] for run in runs] == ["cost.additive-energy"]


def test_the_fuller_source_of_a_setting_is_judged(bench, kept, verdicts):
    profile = kept[1]
    some = [s for s in profile.observations if not s.run.endswith("test2")]
    poorer = replace(profile, observations=tuple(some))
    for sources in ([poorer, profile], [profile, poorer]):
        (found,) = bench.report.judge_all(sources)
        assert found.scores == verdicts[0].scores


def test_everything_is_written_and_says_that_it_is_simulated(bench, verdicts, tmp_path):
    summary = bench.report.write_all(tmp_path, verdicts, make_outside(verdicts[0]))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert {"device", "date", "commit", "rows"} <= set(summary)
    nets = json.loads((tmp_path / "nets.json").read_text())["nets"]
    assert len(nets) == len(verdicts[0].nets) + 1
    assert all(len(net["passes_j"]) == 2 and net["answers"] for net in nets)
    assert "(simulated)" in (tmp_path / "accuracy.svg").read_text()
    head, _, *lines = (tmp_path / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        f"| {name}" for name in ("lenet5", "outside", "host-bound", "all")
    ]
    assert all(line.count("|") == head.count("|") for line in lines)


def test_without_test_nets_it_says_what_to_run(bench, kept):
    with pytest.raises(MissingError, match=r"measure\.py"):
        bench.report.judge_all([replace(kept[1], observations=())])


def test_files_that_are_absent_or_damaged_are_one_clear_error(bench, tmp_path):
    file = tmp_path / "a.json.gz"
    with pytest.raises(FileError, match="there is no file"):
        bench.keeping.read_profiles(file)
    file.write_bytes(b"no gzip")
    with pytest.raises(FileError, match="damaged"):
        bench.keeping.read_profiles(file)
