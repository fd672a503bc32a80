"""The benchmark of error against device time: cuts of campaigns, means over worlds, resuming."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest

from joulecast.api.measurers import open_measurer
from joulecast.api.options import MeasureOptions
from joulecast.campaign import find_profile_key
from joulecast.errors import MissingError
from joulecast.store import open_store
from joulecast.uses.evaluate.campaign_budget import sum_work_s

NAMES = ("settings", "keeping", "rows", "tables", "report", "cost")
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
    """A store that was filled in three goes, and its profile after each."""
    place = tmp_path_factory.mktemp("cost") / "store.sqlite"
    profiles = []
    for until_s in (1.0, 7.0, 1e9):
        with (
            open_measurer(MeasureOptions("simulated:22", rounds=1)) as rig,
            open_store(place) as store,
        ):
            bench.cost.measure_setting(rig, store, setting, until_s)
            profiles.append(store.profile(find_profile_key(rig)))
    return place, profiles[-1], profiles


def test_a_campaign_that_was_cut_goes_on(bench, setting, kept):
    who = bench.cost.ARMS[0].who
    none, some, every = (
        bench.report.open_book(profile, setting).list_for(who) for profile in kept[2]
    )
    assert len(none) == 0 < len(some) < len(every)
    assert every[: len(some)] == some


@pytest.fixture(scope="module")
def result(bench, setting, kept):
    return bench.cost.judge_cost(kept[1], setting)


def test_cuts_are_growing_beginnings_of_the_campaign_within_their_budgets(bench, setting, kept):
    book = bench.report.open_book(kept[1], setting)
    for arm in bench.cost.ARMS:
        campaign = book.list_for(arm.who)
        cuts = bench.cost.cut_campaign(campaign)
        assert tuple(cuts) == BUDGETS_S
        assert sorted(map(len, cuts.values())) == [len(cut) for cut in cuts.values()]
        assert 0 < len(cuts[BUDGETS_S[0]]) < len(campaign)
        for budget_s, cut in cuts.items():
            assert cut == campaign[: len(cut)]
            assert sum_work_s(cut) <= 1.1 * budget_s


def test_what_is_kept_is_not_measured_again(bench, setting, kept):
    place, profile, _ = kept
    with open_measurer(MeasureOptions("simulated:22", rounds=1)) as rig, open_store(place) as store:
        bench.cost.measure_setting(rig, store, setting)
        assert store.profile(profile.key).observations == profile.observations


def test_every_layer_of_the_test_nets_is_timed_once_and_counted(bench, setting, kept, result):
    book = bench.report.open_book(kept[1], setting)
    keys = [seen.trial.key for seen in bench.cost.list_probes(book)]
    assert len(keys) == len(set(keys))
    _, _, plain, probed = result["arms"].values()
    before = {point["budget_s"]: point["device_seconds"] for point in plain}
    for point in probed:
        assert point["probes"] > 0
        assert point["device_seconds"] > before.get(point["budget_s"], 0.0)


def test_packed_observations_are_judged_alike(bench, setting, kept, result, tmp_path):
    args = Namespace(store=kept[0], setting=setting.name, out=tmp_path)
    bench.cost.judge_store(args)
    first = json.loads((tmp_path / "cost.json").read_text())
    assert first["arms"] == result["arms"]
    assert "(simulated)" in (tmp_path / "cost.svg").read_text()
    (again,) = bench.keeping.read_profiles(tmp_path / "observations-cost.json.gz")
    assert bench.cost.judge_cost(again, setting)["arms"] == result["arms"]


def test_worlds_are_averaged_at_budgets_that_were_enough_in_all_of_them(bench):
    small, large = BUDGETS_S
    one = [{"budget_s": small, "mape_percent": 9.0}, {"budget_s": large, "mape_percent": 3.0}]
    two = [{"budget_s": large, "mape_percent": 5.0}]
    assert bench.cost.average_worlds([one, two]) == [{"budget_s": large, "mape_percent": 4.0}]


def test_without_campaigns_it_says_what_to_run(bench, setting, kept):
    for profile in (kept[2][0], replace(kept[1], observations=())):
        with pytest.raises(MissingError, match=r"cost\.py measure"):
            bench.cost.judge_cost(profile, setting)


def test_worlds_are_given_as_first_and_last(bench):
    assert list(bench.cost.parse_worlds("1500-1502")) == [1500, 1501, 1502]
    assert list(bench.cost.parse_worlds("7")) == [7]
