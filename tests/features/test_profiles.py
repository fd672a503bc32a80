"""A profile is found for the device that is named; damage is named; sources of a transfer."""

import json
from dataclasses import replace

import pytest

import joulecast
from additive_examples import draw_networks, observe_blocks
from benchmarks.robustness.hostile_inputs import pack, seal
from joulecast.devices.data_sheets import list_data_sheets
from joulecast.estimators import estimate_network, find_estimator
from joulecast.families import make_family
from joulecast.features.catalogue import find_catalogue_device
from joulecast.features.device_overview import read_profile_details, summarise_device
from joulecast.features.profiles import (
    find_profiles,
    load_observed_profile,
    load_profile,
    read_outside_profile,
)
from joulecast.features.transfer_sources import make_estimator
from joulecast.records import Device, Observation, Profile, Setup, Trial, find_fit_count
from joulecast.simulation import make_simulated_device
from joulecast.store import ProfileSummary, open_store, write_profile
from joulecast.store.campaigns import StoredEvaluation
from joulecast.store.files import read_profile
from joulecast.system.errors import FileError, InputError, JoulecastError, MissingError
from report_examples import make_evaluation

GPU = Device("nvidia-h20", "NVIDIA H20", 2**30, "1.0", "limit 500W")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return the place of a store with two profiles; the GPU here is the first one's."""
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as opened:
        for device in (GPU, replace(GPU, name="nvidia-h20x")):
            opened.import_profile(Profile(device, "torch-2.11.0", "gpu", "measured"))
    monkeypatch.setattr("joulecast.devices.detect.detect_device", lambda on: GPU)
    return place


def detect(monkeypatch, **changes) -> None:
    here = replace(GPU, **changes)
    monkeypatch.setattr("joulecast.devices.detect.detect_device", lambda on: here)


@pytest.mark.parametrize(
    ("here", "message"),
    [
        ({"name": "nvidia-h"}, r"cuda:0 of this machine \(nvidia-h\) has no profile"),
        # A shipped profile of another device is not used.
        ({"name": "nvidia-h2"}, "joulecast profile NET --on cuda:0"),
        ({"power_mode": "limit 300W"}, "no profile in this power mode, only in limit 500W"),
        (
            {"name": "tesla-t4", "processor": "Tesla T4"},
            "use its data sheet with device=.nvidia-t4",
        ),
    ],
)
def test_a_device_that_is_only_like_another_has_no_profile(store, monkeypatch, here, message):
    detect(monkeypatch, **here)
    with pytest.raises(MissingError, match=message):
        load_profile(on="cuda:0", store=store)


def test_this_device_is_found_whatever_its_driver_or_unknown_power_mode(store, monkeypatch):
    for here in ({}, {"power_mode": ""}):
        detect(monkeypatch, **here)
        assert load_profile(on="cuda:0", store=store).device == GPU
    assert load_profile("nvidia-h20x", store=store).device.name == "nvidia-h20x"
    detect(monkeypatch, name="nvidia-h200", power_mode="limit 700W", driver="2.0")
    assert load_profile(on="cuda:0", store=store).shipped


def test_profiles_of_other_frameworks_are_not_used(store, monkeypatch):
    # Made last: without the framework it would be the better match of both.
    with open_store(store) as opened:
        opened.import_profile(Profile(GPU, "mnn-3.6.1", "gpu", "measured"))
    assert load_profile(on="mnn:cpu", store=store).runtime == "mnn-3.6.1"
    assert load_profile(on="cuda:0", store=store).runtime == "torch-2.11.0"
    detect(monkeypatch, name="nvidia-h20x")
    with pytest.raises(JoulecastError, match="joulecast profile NET --on mnn:cpu"):
        load_profile(on="mnn:cpu", store=store)


# -- devices of the catalogue -------------------------------------------------------------------


def test_a_measured_device_of_the_catalogue_is_found_by_any_of_its_names(tmp_path):
    place = str(tmp_path / "store.sqlite")
    measured = Device("nvidia-h100-80gb-hbm3", "NVIDIA H100 80GB HBM3", power_mode="limit 700W")
    with open_store(place) as opened:
        opened.import_profile(Profile(measured, "torch-2.11.0", "gpu", "measured"))
    for name in ("h100-sxm", "nvidia-h100-sxm", "NVIDIA H100 80GB HBM3", "nvidia-h100-80"):
        assert load_profile(name, store=place).provenance == "measured", name
    assert load_profile("h100-pcie", store=place).provenance == "datasheet"
    # The shipped profile comes before its data sheet too.
    assert load_profile("h200", store=place).shipped


def test_the_whole_name_of_a_device_counts_more_than_the_start_of_a_profile(tmp_path):
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as opened:
        opened.import_profile(Profile(Device("l4-server"), "torch-2.11.0", "gpu", "measured"))
    assert load_profile("l4", store=place).device.name == "nvidia-l4"
    assert load_profile("l4-s", store=place).device.name == "l4-server"


def test_unknown_names_list_profiles_and_near_devices(store):
    with pytest.raises(MissingError, match=r"no profile of 'rtx-4099' \(known devices: nvidia-h20"):
        load_profile("rtx-4099", store=store)
    with pytest.raises(MissingError, match="did you mean nvidia-rtx-4090"):
        load_profile("rtx-4099", store=store)
    with pytest.raises(InputError, match="3 devices of the catalogue match 'h100'"):
        load_profile("h100", store=store)


def test_all_is_every_profile_and_the_rest_of_the_catalogue(store):
    found = find_profiles("all", store)
    names = [one.device.name for one in found.values()]
    assert names[:3] == ["nvidia-h20", "nvidia-h20x", "nvidia-h200"]
    assert "amd-mi300x" in names and len(set(names)) == len(names)
    assert len(names) == len(list_data_sheets()) + 2


def test_what_needs_observations_refuses_a_data_sheet(store, tmp_path):
    for use in (
        lambda: load_observed_profile("l4", store=store),
        lambda: joulecast.score(devices=["l4"], store=store),
        lambda: joulecast.export_observations("l4", str(tmp_path / "out.csv"), store=store),
        lambda: joulecast.report("l4", store=store),
        lambda: joulecast.evaluate("lenet5", device="l4", offline=True, store=store),
    ):
        with pytest.raises(MissingError, match="nvidia-l4 was never measured"):
            use()
    with pytest.raises(InputError, match="is a data sheet"), open_store(store) as opened:
        opened.import_profile(load_profile("l4"))


def test_every_device_says_where_its_estimates_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as opened:
        t4 = Profile(Device("tesla-t4", "Tesla T4"), "torch-2.11.0", "gpu", "measured")
        opened.import_profile(t4)
    found = {one.data_sheet.name: one for one in joulecast.list_devices(store=place)}
    assert found["nvidia-t4"].provenance == found["nvidia-h200"].provenance == "measured"
    assert [one.key for one in found["nvidia-t4"].profiles] == [t4.key]
    assert found["nvidia-l4"].provenance == "datasheet" and not found["nvidia-l4"].profiles
    data = find_catalogue_device("t4", place).to_dict()
    assert data["profiles"] == [t4.key] and data["power_limit_w"] == 70


SUMMARY = ProfileSummary(
    "key", "board", "15 W", "torch-2.11.0", "board", "measured", 7, ("additive",), 1_000_000.0
)


def test_overview_has_age_and_the_best_estimator_of_its_own_evaluations():
    parts = observe_blocks(make_simulated_device(3), draw_networks(1))
    seen = [replace(one, meter="toy") for one in parts]
    first = seen[0]
    profile = Profile(first.device, first.runtime, first.covers, first.provenance, tuple(seen))
    details = read_profile_details(profile)
    assert details.meters == ("toy",) and details.units == 1
    # Nothing was observed of the reference applications.
    assert (details.score_label, details.energy_label, details.iecs) == (None, None, None)
    result = make_evaluation().to_dict()
    stored = [StoredEvaluation(name, name, result, 0.0) for name in ("key", "another")]
    found = summarise_device(SUMMARY, details, stored, now_s=1_000_000.0 + 3 * 86_400)
    assert found.age_days == 3 and found.device == "board" and not found.is_shipped
    (accuracy,) = found.accuracies
    assert (accuracy.estimator, round(accuracy.mape_percent), accuracy.nets) == ("additive", 2, 3)


BOARD = Device("board")
SEEN = tuple(
    Observation(
        Trial(make_family(name), Setup(batch=batch)),
        energy_j=0.5 * batch,
        duration_s=0.01 * batch,
        device=BOARD,
        covers="cpu",
    )
    for name in ("lenet5", "cnn5:4,8,16,32")
    for batch in (4, 8)
)


@pytest.fixture(scope="module")
def fits():
    return {name: find_estimator(name).fit(SEEN).to_dict() for name in ("additive", "flops")}


@pytest.fixture
def path(tmp_path, fits):
    path = tmp_path / "profile.json"
    write_profile(Profile(BOARD, "", "cpu", "measured", SEEN).add_fits(fits), path)
    return path


def change_fit(path, name, fit):
    """Replace a fit in a profile file, and seal the file again."""
    content = json.loads(path.read_text())["profile"]
    content["fits"][name]["packed"] = pack(fit)
    path.write_bytes(seal("profile", 2, content))


def estimate(path, estimator):
    profile = load_profile(str(path))
    return estimate_network(profile, make_family("lenet5"), Setup(batch=10), estimator)


def test_sound_profile_is_read_as_it_is(path, fits):
    profile = read_outside_profile(path)
    assert profile == read_profile(path) and dict(profile.fits) == fits
    assert find_fit_count(profile.fits, "additive") == len(SEEN)
    assert estimate(path, "additive").energy_j > 0


def lengthen(packed):
    """Return an array that claims another length than its data has."""
    return {**packed, "shape": [packed["shape"][0] + 1, *packed["shape"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        lambda fit: {**fit, "idle_w": "much"},
        lambda fit: {**fit, "duration": None},
        lambda fit: {**fit, "identities": lengthen(fit["identities"])},
        lambda fit: {**fit, "duration": {**fit["duration"], "theta": fit["identities"]}},
        lambda fit: {
            **fit,
            "power": {**fit["power"], "basis": {**fit["power"]["basis"], "data": "no base64"}},
        },
        lambda fit: {key: value for key, value in fit.items() if key != "encoder"},
        lambda fit: [fit],
    ],
)
def test_damaged_fit_is_named_in_one_line(path, fits, change):
    change_fit(path, "additive", change(fits["additive"]))
    with pytest.raises(FileError, match=r"the fit of additive in .* is damaged") as caught:
        estimate(path, "additive")
    assert "\n" not in str(caught.value)
    # Others can still be used.
    assert estimate(path, "flops").energy_j > 0


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"cin": "many"}, "cin is 'many'"),
        ({"kernel": [99, 99]}, "does not fit on"),
        ({"width": 3}, "no size 'width'"),
    ],
)
def test_observation_of_an_impossible_layer_is_named(path, sizes, reason):
    data = [one.to_dict() for one in SEEN]
    layer = data[2]["trial"]["network"]["layers"][0]
    layer["sizes"] = {**layer["sizes"], **sizes}
    rows = tuple(Observation.from_dict(one) for one in data)
    write_profile(Profile(BOARD, "", "cpu", "measured", rows), path)
    with pytest.raises(FileError, match=r"observation 3 in .* is damaged \(layer 1") as caught:
        estimate(path, "additive")
    assert reason in str(caught.value)


def test_fit_of_another_version_is_not_tried(path):
    change_fit(path, "additive", {"version": 999, "anything": 1})
    assert read_outside_profile(path).fits["additive"] == {"version": 999, "anything": 1}


OPTIONS = {"batch": 8, "points": 10}
NET = "lenet5:4,8,16,16"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store with profiles of two simulated devices."""
    place = str(tmp_path_factory.mktemp("store") / "store.sqlite")
    for seed in (7, 8):
        joulecast.profile(NET, on=f"simulated:{seed}", store=place, **OPTIONS)
    return place


@pytest.fixture
def own(place):
    return joulecast.load_profile("simulated-8", store=place)


def make(place, own, *names, estimator="additive"):
    return make_estimator(estimator, names, own, place)


def test_profiles_are_found_by_name_key_and_file(place, own, tmp_path):
    profile = joulecast.load_profile("simulated-7", store=place)
    file = tmp_path / "seven.json"
    write_profile(profile, file)
    by_name, by_key, by_file = (
        make(place, own, one).sources for one in ("simulated-7", profile.key[:8], str(file))
    )
    assert [one.name for one in by_name] == ["simulated-7"] and by_name == by_key == by_file
    # Twice the same one is one source.
    assert make(place, own, "simulated-7", profile.key).sources == by_name


def test_another_version_of_a_framework_is_the_same_framework(place, own):
    here = replace(own, runtime="torch-1.0")
    (source,) = make(place, here, "nvidia-h200").sources
    assert source.name == "nvidia-h200"


@pytest.mark.parametrize(
    ("name", "changes", "estimator", "message"),
    [
        ("simulated-8", {}, "additive", "'simulated-8' is the profile of this device itself"),
        ("nvidia-h200", {}, "additive", "'nvidia-h200' was profiled with torch.*not mixed"),
        ("simulated-7", {"runtime": "mnn-3.2"}, "additive", "with simulated, this device with mnn"),
        ("nothing", {}, "additive", "there is no profile of 'nothing'"),
        ("simulated-7", {}, "flops", "flops cannot start from other devices"),
    ],
)
def test_what_cannot_be_a_source_is_refused(place, own, name, changes, estimator, message):
    with pytest.raises(JoulecastError, match=message):
        make(place, replace(own, **changes), name, estimator=estimator)
    assert make(place, own, estimator="flops").name == "flops"


def test_profile_keeps_its_sources(place):
    """Also where the command is repeated without them, and where the fit is extended."""
    options = {"on": "simulated:9", "store": place, "batch": 8}
    joulecast.profile(NET, from_="simulated-7", points=8, **options)
    profile = joulecast.profile(NET, points=12, **options)
    # The reference network itself was measured.
    estimate = joulecast.estimate("lenet5:3,9,24,24", device="simulated-9", store=place, batch=8)
    assert any(note.startswith("Transferred from simulated-7:") for note in estimate.notes)
    (source,) = make(place, profile).sources
    assert source.name == "simulated-7"


def test_atlas_may_start_from_others(place, monkeypatch):
    monkeypatch.setattr("joulecast.campaign.atlas._NETWORKS", {True: 3, False: 3})
    options = {"on": "simulated:6", "store": place, "atlas": True, "points": 8}
    joulecast.profile(from_=["simulated-7", "simulated-8"], **options)
    estimate = joulecast.estimate(NET, device="simulated-6", store=place, batch=8)
    assert any("simulated-7 and simulated-8" in note for note in estimate.notes)
    with pytest.raises(InputError, match="itself"):
        joulecast.profile(from_="simulated-6", **options)
    # Without them, the next fit keeps them.
    joulecast.profile(**{**options, "points": 9})
    estimate = joulecast.estimate(NET, device="simulated-6", store=place, batch=8)
    assert any("simulated-7 and simulated-8" in note for note in estimate.notes)
