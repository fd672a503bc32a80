"""The paper's method at several budgets: cut campaigns, means over devices, one table."""

import json
from argparse import Namespace

import pytest

from joulecast.campaign import find_profile_key
from joulecast.errors import MissingError
from joulecast.features.measurers import open_measurer
from joulecast.features.options import MeasureOptions
from joulecast.store import open_store
from joulecast.uses.evaluate import evaluate

NAMES = (
    "settings",
    "observation_files",
    "outside_baselines",
    "rows",
    "tables",
    "report",
    "cost",
    "rivals",
)
ESTIMATORS = ("subtractive-blocks", "constant")


@pytest.fixture(scope="module")
def bench(import_accuracy):
    with import_accuracy(*NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def kept(bench, tmp_path_factory):
    """Return a store with a short campaign on a simulated device."""
    place = tmp_path_factory.mktemp("kept") / "store.sqlite"
    setting = bench.cost.find_setting("transformer-bf16")
    with (
        open_measurer(MeasureOptions("simulated:23", rounds=1)) as measurer,
        open_store(place) as store,
    ):
        evaluate(measurer, store, bench.rivals.make_plan(setting, ESTIMATORS, 30.0))
        return place, store.load_profile(find_profile_key(measurer))


def test_smaller_budgets_use_the_beginning_of_a_campaign(bench, kept):
    rows = bench.rivals.score_budgets(kept[1], bench.cost.find_setting("transformer-bf16"))
    spent_s = {
        (row["estimator"], row["budget_s"]): row["device_seconds"]
        for row in rows
        if row["estimator"] in ESTIMATORS
    }
    blocks = [spent_s["subtractive-blocks", budget_s] for budget_s in bench.rivals.BUDGETS_S]
    assert blocks[0] < blocks[1] and blocks[0] < 25.0
    assert len({spent_s["constant", budget_s] for budget_s in bench.rivals.BUDGETS_S}) == 1
    # All baselines of whole nets share one campaign.
    assert {row["estimator"] for row in rows} == set(bench.rivals.RIVALS) - {"subtractive"}


def test_scores_and_observations_are_written(bench, kept, tmp_path, capsys):
    args = Namespace(stores=[kept[0]], out=tmp_path, settings="transformer-bf16,resnet-bf16")
    bench.rivals.score_store(args)
    assert "subtractive-blocks" in capsys.readouterr().out
    written = json.loads((tmp_path / "rivals.json").read_text())
    assert written["provenance"] == "simulated"
    args.stores = [tmp_path / "observations-rivals-transformer-bf16.json.gz"]
    bench.rivals.score_store(args)
    again = json.loads((tmp_path / "rivals.json").read_text())
    assert again["settings"] == written["settings"]


def test_setting_that_was_not_measured_is_one_clear_error(bench, kept, tmp_path):
    args = Namespace(stores=[kept[0]], out=tmp_path, settings="resnet-bf16")
    with pytest.raises(MissingError, match=r"rivals\.py measure"):
        bench.rivals.score_store(args)


def test_devices_are_averaged_by_method_and_budget(bench):
    row = {"estimator": "flops", "budget_s": 20.0, "noise_percent": 1.0, "nets": 12}
    devices = [[{**row, "mape_percent": error, "device_seconds": 5.0}] for error in (10.0, 20.0)]
    (mean,) = bench.rivals.average_devices(devices)
    assert (mean["mape_percent"], mean["nets"], mean["devices"]) == (15.0, 24, 2)
