"""Reports say what was found, name what was not measured, and are one file that needs no other."""

import base64
import hashlib
import html.parser
import re
from dataclasses import replace

import pytest

from benchmarks.robustness.hostile_inputs import damage_value
from joulecast.errors import FileError, InputError
from joulecast.features.device_score import score_published
from joulecast.records import Profile
from joulecast.reports.campaign_report import report_campaign
from joulecast.reports.evaluation_report import report_evaluation
from joulecast.reports.fleet_report import report_fleet
from joulecast.reports.profile_report import report_profile
from joulecast.reports.report_page import make_report_page, save_report, save_report_pictures
from joulecast.reports.result_files import (
    MOST_RESULT_BYTES,
    RESULT_KINDS,
    parse_result,
    recognise_result,
    report_result,
)
from joulecast.reports.score_report import report_scores
from joulecast.store.campaigns import (
    CampaignProgress,
    RecordedCampaign,
    StoredCampaign,
    StoredDevice,
)
from report_examples import SCORE, list_results, make_evaluation

RESULTS = list_results()


def list_cells(report):
    return [cell for one in report.sections for t in one.tables for row in t.rows for cell in row]


@pytest.mark.parametrize("kind", RESULT_KINDS)
def test_results_are_recognised_by_their_content(kind):
    assert recognise_result(RESULTS[kind]) == kind
    report = report_result(RESULTS[kind], "it")
    assert report.kind == kind and report.title and report.lead and report.facts


@pytest.mark.parametrize("data", [None, [], {}, "text", {"devices": []}])
def test_other_data_is_refused(data):
    with pytest.raises(FileError, match="give one that `joulecast evaluate`"):
        report_result(data, "it")


def test_text_that_is_not_json_or_too_large_is_refused():
    with pytest.raises(FileError, match="it is not JSON"):
        parse_result("{", "it")
    with pytest.raises(FileError, match="larger than 16 MiB"):
        parse_result(b" " * (MOST_RESULT_BYTES + 1), "it")


@pytest.mark.parametrize("kind", RESULT_KINDS)
def test_damaged_results_are_refused_in_one_line(kind):
    import random

    rng = random.Random(5)
    for _ in range(60):
        damaged = damage_value(RESULTS[kind], rng)
        try:
            make = report_result(damaged, "it")
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert make.title


def test_evaluation_shows_all_pictures_and_every_network():
    report = report_evaluation(make_evaluation())
    assert list(report.plots) == [
        "agreement", "errors", "error-shares", "error-time", "profiling-time", "time-energy",
    ]  # fmt: skip
    assert {"lenet5:1", "+50.0 %", "additive"} <= set(list_cells(report))
    assert "MAPE 2.0 %" in report.lead


def test_pruning_compares_layers():
    report = report_result(RESULTS["pruning"], "it")
    assert "49.0 % of what it took before" in report.lead
    assert "8 → 4" in list_cells(report)
    (layers,) = report.plots.values()
    assert layers.heading == "Energy by layer (modelled)"
    assert "within the budget" in " ".join(report.sections[0].text)


def test_plan_has_the_charge_of_its_battery():
    report = report_result(RESULTS["plan"], "it")
    (plot,) = report.plots.values()
    assert {"job", "state of charge", "reserve"} <= set(plot.series)
    assert {"night", "phone", "modelled"} <= set(list_cells(report))


def test_score_of_one_device_has_its_label_and_of_several_a_comparison():
    one = report_result(RESULTS["score"], "it")
    assert list(one.pictures) == ["label"] and "<svg" in one.pictures["label"].svg
    assert "1 thread" in list_cells(one)
    phones = report_scores([phone.score for phone in score_published()])
    assert len(phones.pictures) == 8 and phones.provenance == "imported"
    assert "scores-performance" in phones.plots
    with pytest.raises(InputError, match="no score"):
        report_scores([])


def test_score_survives_being_written(tmp_path):
    from joulecast.features.device_score import DeviceScores, read_scores

    assert read_scores(RESULTS["score"]).to_dict() == DeviceScores((SCORE,)).to_dict()


def test_profile_shows_what_it_rests_on(simulated_profile):
    report = report_profile(simulated_profile)
    headings = [one.heading for one in report.sections]
    assert headings == ["Device and meter", "Observations", "Errors of the fit", "Fits"]
    assert {"observations", "time-energy", "agreement", "error-shares"} <= set(report.plots)
    assert any(name.startswith("curve-") for name in report.plots)
    assert all("(simulated)" in plot.heading for plot in report.plots.values())


def test_profile_without_observations_has_no_plots():
    profile = Profile(make_evaluation().device, "torch-2.13.0", "board", "measured")
    report = report_profile(profile)
    assert report.plots == {} and report.facts[-1] == ("Last observation", "unknown")


def test_campaign_shows_how_far_it_is():
    campaign = RecordedCampaign(
        "k",
        "lenet5",
        "phone",
        "p",
        "modelled",
        points=4,
        uncertainty_share=0.2,
        left_s=30.0,
        total=9,
    )
    moments = [CampaignProgress(float(i), i, 1.0 / (1 + i)) for i in range(1000)]
    report = report_campaign(campaign, moments)
    assert report.lead == "Running: 4 points."
    assert dict(report.facts) == {
        "Uncertainty": "± 20.0 %", "Points": "4 of 9", "Elapsed": "0 s", "Time left": "30.0 s",
    }  # fmt: skip
    (plot,) = report.plots.values()
    (steps,) = plot.panels[1].marks
    assert len(steps.x) <= 400 and steps.x[-1] == 999.0
    stopping = replace(campaign, is_stop_requested=True)
    assert report_campaign(stopping).lead.startswith("Stopping after the current measurement")


def test_fleet_names_faults():
    devices = [
        StoredDevice("a", {}, "ready", "", "k", "a phone", 1e9),
        StoredDevice("b", {}, "away", "it does not answer", "", "", 1e9),
    ]
    failed = StoredCampaign("r", "lenet5", "a", "failed", "too large", 3, None, 4.0, 1e9, 1e9)
    report = report_fleet(devices, [failed], {"k": 12}, is_up=True)
    assert report.lead == "The fleet is up: 1 of 2 devices ready, 0 open campaigns."
    (faults,) = report.sections[2].tables
    assert [row[0] for row in faults.rows] == ["b", "a: lenet5"]
    assert "12" in list_cells(report)


class Collector(html.parser.HTMLParser):
    """Collects scripts, addresses and elements of a page."""

    def __init__(self):
        super().__init__()
        self.scripts, self.addresses, self.tags, self._script = [], [], [], None

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.addresses += [found[name] for name in ("src", "href") if name in found]
        if tag == "script" and found.get("type") != "application/json":
            self._script = ""

    def handle_data(self, data):
        if self._script is not None:
            self._script += data

    def handle_endtag(self, tag):
        if tag == "script" and self._script is not None:
            self.scripts.append(self._script)
            self._script = None


def test_page_needs_no_other_file_and_may_run_its_own_scripts_only():
    page = make_report_page(report_result(RESULTS["pruning"], "it"))
    found = Collector()
    found.feed(page)
    assert all(one.startswith(("#", "data:")) for one in found.addresses)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in found.scripts}
    assert len(hashes) == 3 and all(f"'sha256-{one}'" in policy for one in hashes)
    assert page.count("plotly.js v") == 1
    tags = [tag for tag, _ in found.tags]
    assert tags.count("caption") >= 2 and tags.count("h1") == 1 and "figcaption" in tags
    assert "The energies are modelled, not measured" in page


def test_names_in_results_cannot_become_markup():
    name = "</script><script>alert(1)</script><b>x"
    layers = [{**one, "name": name} for one in RESULTS["pruning"]["layers"]]
    page = make_report_page(report_result({**RESULTS["pruning"], "layers": layers}, "it"))
    found = Collector()
    found.feed(page)
    assert not any("alert(1)" in one for one in found.scripts)
    assert not [tag for tag, _ in found.tags if tag == "b"]


def test_pages_without_plots_are_small():
    page = make_report_page(report_fleet([], [], {}, is_up=False))
    assert len(page) < 100_000


def test_pictures_are_written_by_name(tmp_path):
    report = report_result(RESULTS["plan"], "it")
    (written,) = save_report_pictures(report, tmp_path / "new")
    assert written.name == "plan.svg" and "(modelled)" in written.read_text()
    label = save_report_pictures(report_result(RESULTS["score"], "it"), tmp_path)
    assert "label.svg" in {one.name for one in label}
    with pytest.raises(FileError, match="give another path"):
        save_report(report, tmp_path)
