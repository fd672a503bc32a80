"""Reports and curves of layers: what was found, what was not measured, one file each."""

import base64
import hashlib
import html.parser
import json
import random
import re
from dataclasses import replace

import pytest

import joulecast
from benchmarks.robustness.hostile_inputs import damage_value
from joulecast.estimators import fit_profile
from joulecast.features.campaigns import CampaignDetails
from joulecast.features.layer_curves import (
    describe_layer_curve,
    find_layer_curves,
    list_layer_curves,
    sample_layer_curve,
)
from joulecast.features.report import RESULT_KINDS, recognise_result, report_profile, report_result
from joulecast.records import Profile
from joulecast.store import open_store, write_profile
from joulecast.store.campaigns import CampaignProgress, RecordedCampaign
from joulecast.system.errors import FileError, InputError, MissingError
from joulecast.testing.stores import make_observation, make_profile
from joulecast.views.html import render_page
from joulecast.views.report import Heading, Table, Text
from joulecast.views.terminal import format_report
from report_examples import PRUNING, SCORE, list_results, make_evaluation, make_plan

RESULTS = list_results()


def list_cells(report):
    tables = [one for one in report.blocks if isinstance(one, Table)]
    return [cell for table in tables for row in table.rows for cell in row]


def find_lead(report):
    return next(one.text for one in report.blocks if isinstance(one, Text) and one.role == "lead")


@pytest.fixture(scope="module")
def simulated_profile(tmp_path_factory):
    place = str(tmp_path_factory.mktemp("reports") / "store.sqlite")
    options = {"on": "simulated:5", "batch": 8, "store": place, "points": 14}
    joulecast.profile("lenet5:4,8,16,16", estimator="subtractive", **options)
    return joulecast.profile("lenet5:4,8,16,16", **{**options, "points": 20})


@pytest.mark.parametrize("kind", RESULT_KINDS)
def test_results_are_recognised_by_their_content(kind):
    assert recognise_result(RESULTS[kind]) == kind
    report = report_result(RESULTS[kind], "it")
    assert report.kind == kind and report.title and find_lead(report)
    # The same report serves the terminal.
    assert find_lead(report)[:40] in format_report(report)
    rng = random.Random(5)
    for _ in range(40):
        damaged = damage_value(RESULTS[kind], rng)
        try:
            assert report_result(damaged, "it").title
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("kind", "plots", "cells", "lead"),
    [
        (
            "evaluation",
            ["agreement", "errors", "error-shares", "error-time", "profiling-time", "time-energy"],
            {"+50.0 %", "additive"},
            "MAPE 2.0 %",
        ),
        ("pruning", ["layers"], {"8 → 4"}, "49.0 % of 2.00 J"),
        ("plan", ["plan"], {"night", "phone"}, "900 J"),
        ("score", ["performance"], {"1 thread"}, "label"),
    ],
)
def test_content(kind, plots, cells, lead):
    report = report_result(RESULTS[kind], "it")
    assert [plot.name for plot in report.plots] == plots
    assert cells <= set(list_cells(report)) and lead in find_lead(report)


def test_profile_shows_what_it_rests_on(simulated_profile):
    report = report_profile(simulated_profile)
    headings = [one.text for one in report.blocks if isinstance(one, Heading)]
    assert headings == [
        "Device and meter", "Observations", "Errors of the fit", "Curves of layers", "Fits",
    ]  # fmt: skip
    names = {plot.name for plot in report.plots}
    assert {"observations", "time-energy", "agreement", "error-shares", "layer-1"} <= names
    assert any(name.startswith("curve-") for name in names)
    assert all("(simulated)" in plot.title for plot in report.plots)
    empty = Profile(make_evaluation().device, "torch-2.13.0", "board", "measured")
    assert report_profile(empty).plots == ()


def test_campaign_shows_how_far_it_is():
    campaign = RecordedCampaign(
        "k", "lenet5", "phone", "p", "modelled", points=4, uncertainty_share=0.2, left_s=30.0,
        total=9,
    )  # fmt: skip
    moments = tuple(CampaignProgress(float(at), at, 1.0 / (1 + at)) for at in range(1000))
    report = CampaignDetails(campaign, moments).report()
    assert find_lead(report) == "Running: 4 points."
    assert {"± 20.0 %", "4 of 9", "0 s", "30.0 s"} <= set(list_cells(report))
    (plot,) = report.plots
    assert len(plot.data.rows) <= 400 and plot.data.rows[-1][1] == "999"
    stopping = CampaignDetails(replace(campaign, is_stop_requested=True), ())
    assert find_lead(stopping.report()).startswith("Stopping after the current measurement")


def list_elements(page):
    """Return the elements of a page as names and attributes."""
    found = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))
    parser.feed(page)
    return found


def test_page_needs_no_other_file_and_has_no_script():
    page = render_page(report_result(PRUNING, "it"))
    found = list_elements(page)
    for _, attrs in found:
        assert "style" not in attrs and not any(name.startswith("on") for name in attrs)
        addresses = [attrs[name] for name in ("src", "href", "xlink:href") if name in attrs]
        assert all(one.startswith(("#", "data:")) for one in addresses)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    (styles,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    tags = [tag for tag, _ in found]
    assert "script" not in tags and tags.count("h1") == 1 and "svg" in tags
    assert "The energies are modelled, not measured" in page and len(page) < 100_000


def test_names_in_results_cannot_become_markup():
    name = "</svg><script>alert(1)</script><b>x"
    layers = [{**one, "name": name} for one in PRUNING["layers"]]
    found = list_elements(render_page(report_result({**PRUNING, "layers": layers}, "it")))
    assert not {"b", "script"} & {tag for tag, _ in found}


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (make_plan(), "plan"),
        (SCORE, "score"),
        ((SCORE, SCORE), "score"),
        (PRUNING, "pruning"),
        (make_profile(make_observation()), "profile"),
    ],
)
def test_python_reports_results_as_they_are(what, kind):
    assert joulecast.report(what).kind == kind


def test_python_recognises_files_and_devices(tmp_path):
    result, profile = tmp_path / "result.json", make_profile(make_observation())
    result.write_text(json.dumps(PRUNING))
    write_profile(profile, tmp_path / "profile.json")
    out, place = tmp_path / "page.html", str(tmp_path / "store.sqlite")
    assert joulecast.report(result, out=out).kind == "pruning"
    assert out.read_text().startswith("<!doctype html>")
    assert joulecast.report(str(tmp_path / "profile.json")).kind == "profile"
    with open_store(place) as store:
        store.import_profile(profile)
    found = joulecast.report(profile.device.name, store=place)
    assert found.title == f"Profile of {profile.device.name}"
    with pytest.raises(FileError, match="cannot write"):
        joulecast.report(result, out=tmp_path)


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("", InputError, "nothing to report"),
        ("none.json", FileError, "there is no file"),
        ("damaged.json", FileError, "not JSON"),
        ("network.json", FileError, "not a joulecast-profile file"),
        ("estimate.json", FileError, "not a result"),
        ("no such device", MissingError, "no profile"),
        (3, InputError, "a int cannot be reported"),
        ([1], InputError, "a list cannot be reported"),
        ({"devices": []}, FileError, "not a result"),
    ],
)
def test_what_cannot_be_reported_is_refused(what, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "estimate.json").write_text('{"energy_j": 1}')
    network = '{"format": "joulecast-network", "version": 1, "network": {}}'
    (tmp_path / "network.json").write_text(network)
    with pytest.raises(error, match=text):
        joulecast.report(what, store=str(tmp_path / "none"))


def test_command_writes_one_file_or_pictures(shell, write):
    write("pruning.json", json.dumps(PRUNING))
    assert "pruned to 50% for board" in shell("report", "pruning.json").stdout
    assert (shell.folder / "report.html").exists()
    (shell.folder / "report.html").unlink()
    found = json.loads(shell("report", "pruning.json", "--svg", "pictures", "--json").stdout)
    assert found["files"] == ["pictures/layers.svg"] and found["provenance"] == "modelled"
    assert not (shell.folder / "report.html").exists()
    done = shell("report", "pruning.json", "--svg", "pictures", "--out", "page.html")
    assert "Wrote page.html" in done.stdout and (shell.folder / "page.html").exists()
    assert "page.pdf" in shell.fails("report", "pruning.json", "--out", "page.pdf", code=2)
    assert "there is no file none.json" in shell.fails("report", "none.json")


def test_estimate_shows_itself(simulated_profile):
    found = joulecast.estimate("lenet5:4,8,16,16", device=simulated_profile, batch=8)
    text = str(found)
    assert "A step takes" in text and "95 % interval" in text and "simulated" in text
    assert found.layers[0].name in text and "<table" in found._repr_html_()
    assert repr(found).startswith("Estimate(")


@pytest.fixture(scope="module")
def profile(cnn_profile):
    # A forward pass alone is not a step: no point of a curve.
    first = cnn_profile.observations[0]
    execution = replace(first.trial.execution, stage="forward")
    forward = replace(first, trial=replace(first.trial, execution=execution))
    return replace(cnn_profile, observations=(*cnn_profile.observations, forward))


@pytest.fixture(scope="module")
def curves(profile):
    return list_layer_curves(profile)


def test_curves_have_the_measured_points_of_whole_steps(profile, curves):
    counts = [len(curve.points) for curve in curves]
    assert counts == sorted(counts, reverse=True) and counts[0] >= 5
    steps = [one for one in profile.observations if one.trial.execution.stage == "step"]
    assert sum(counts) <= len(steps) - 1
    one, *_ = find_layer_curves(curves, kind="conv2d", image="16x16")
    assert one.features == ("cin", "cout") and one.setup.batch == 32
    assert describe_layer_curve(one)["point_count"] == len(one.points)


def test_sampled_curve_passes_through_its_points(profile, curves):
    curve, *_ = find_layer_curves(curves, kind="conv2d", image="16x16")
    sampled = sample_layer_curve(fit_profile(profile), curve)
    assert len(sampled.means_j) == len(sampled.axes[0]) * len(sampled.axes[1])
    assert max(abs(point.error_percent) for point in sampled.points) < 10
    widths, energy_j = sampled.next_point
    assert widths not in {point.widths for point in sampled.points}
    assert min(sampled.means_j) <= energy_j <= max(sampled.means_j)


def test_unknown_choices_are_explained(profile, curves):
    with pytest.raises(MissingError, match="no layer with kind lstm was measured"):
        find_layer_curves(curves, kind="lstm")
    with pytest.raises(MissingError, match="joulecast profile NET"):
        find_layer_curves((), kind="conv2d")
    with pytest.raises(InputError, match="does not predict single layers"):
        sample_layer_curve(replace(fit_profile(profile), fitted=object()), curves[0])
