"""Benchmark of error against device time: budgets, means over devices, resuming."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest

from joulecast.campaign import find_profile_key
from joulecast.errors import MissingError
from joulecast.features.evaluation import sum_work_s
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.store import open_store

NAMES = ("settings", "observation_files", "outside_baselines", "rows", "tables", "report", "cost")
BUDGETS_S = (4.0, 10.0)


@pytest.fixture(scope="module")
def bench(import_accuracy):
    with import_accuracy(*NAMES) as found, pytest.MonkeyPatch.context() as few:
        few.setattr(found.cost, "BUDGETS_S", BUDGETS_S)
        few.setattr(found.cost, "OWN_SECONDS", BUDGETS_S[0])
        yield found


@pytest.fixture(scope="module")
def setting(bench):
    return bench.cost.find_setting("lenet5")


@pytest.fixture(scope="module")
def kept(bench, setting, tmp_path_factory):
    """Return a store that was filled in three runs, and its profile after each."""
    place = tmp_path_factory.mktemp("cost") / "store.sqlite"
    profiles = []
    for until_s in (1.0, 7.0, 1e9):
        with (
            open_measurer(MeasureOptions("simulated:22", rounds=1)) as measurer,
            open_store(place) as store,
        ):
            bench.cost.measure_setting(measurer, store, setting, until_s)
            profiles.append(store.load_profile(find_profile_key(measurer)))
    return place, profiles[-1], profiles


def test_interrupted_campaign_resumes(bench, setting, kept):
    role = bench.cost.ARMS[0].role
    none, some, every = (
        bench.report.open_log(profile, setting).list_for(role) for profile in kept[2]
    )
    assert len(none) == 0 < len(some) < len(every)
    assert every[: len(some)] == some


@pytest.fixture(scope="module")
def result(bench, setting, kept):
    return bench.cost.score_cost(kept[1], setting)


def test_smaller_budgets_are_the_beginning_of_the_campaign(bench, setting, kept):
    log = bench.report.open_log(kept[1], setting)
    for arm in bench.cost.ARMS:
        campaign = log.list_for(arm.role)
        cuts = bench.cost.cut_campaign(campaign)
        assert tuple(cuts) == BUDGETS_S
        assert sorted(map(len, cuts.values())) == [len(cut) for cut in cuts.values()]
        assert 0 < len(cuts[BUDGETS_S[0]]) < len(campaign)
        for budget_s, cut in cuts.items():
            assert cut == campaign[: len(cut)]
            # Anchors come before the first proposal, which is what a budget limits.
            assert sum_work_s(cut) <= 1.2 * budget_s


def test_stored_observations_are_not_measured_again(bench, setting, kept):
    place, profile, _ = kept
    with (
        open_measurer(MeasureOptions("simulated:22", rounds=1)) as measurer,
        open_store(place) as store,
    ):
        bench.cost.measure_setting(measurer, store, setting)
        assert store.load_profile(profile.key).observations == profile.observations


def test_every_layer_of_the_test_nets_is_timed_once(bench, setting, kept, result):
    log = bench.report.open_log(kept[1], setting)
    keys = [seen.trial.key for seen in bench.cost.list_probes(log)]
    assert len(keys) == len(set(keys))
    _, _, plain, probed = result["arms"].values()
    before = {point["budget_s"]: point["device_seconds"] for point in plain}
    for point in probed:
        assert point["probes"] > 0
        assert point["device_seconds"] > before.get(point["budget_s"], 0.0)


def test_packed_observations_give_the_same_scores(bench, setting, kept, result, tmp_path):
    args = Namespace(store=kept[0], setting=setting.name, out=tmp_path)
    bench.cost.score_store(args)
    first = json.loads((tmp_path / "cost.json").read_text())
    assert first["arms"] == result["arms"]
    assert "(simulated)" in (tmp_path / "cost.svg").read_text()
    (again,) = bench.observation_files.read_profiles(tmp_path / "observations-cost.json.gz")
    assert bench.cost.score_cost(again, setting)["arms"] == result["arms"]


def test_devices_are_averaged_at_budgets_that_all_have(bench):
    small, large = BUDGETS_S
    one = [{"budget_s": small, "mape_percent": 9.0}, {"budget_s": large, "mape_percent": 3.0}]
    two = [{"budget_s": large, "mape_percent": 5.0}]
    assert bench.cost.average_devices([one, two]) == [{"budget_s": large, "mape_percent": 4.0}]


def test_missing_campaigns_error_says_what_to_run(bench, setting, kept):
    for profile in (kept[2][0], replace(kept[1], observations=())):
        with pytest.raises(MissingError, match=r"cost\.py measure"):
            bench.cost.score_cost(profile, setting)


def test_seeds_are_given_as_first_and_last(bench):
    assert list(bench.cost.parse_seeds("1500-1502")) == [1500, 1501, 1502]
    assert list(bench.cost.parse_seeds("7")) == [7]
