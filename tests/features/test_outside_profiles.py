"""Fits of a file that do not fit together are damage, and are named when they are used."""

import base64
import hashlib
import json
import zlib

import pytest

from joulecast.estimators import estimate_network, find_estimator
from joulecast.families import make_family
from joulecast.features.outside_profiles import read_outside_profile
from joulecast.features.profiles import load_profile
from joulecast.records import Device, Observation, Profile, Setup, Trial, find_fit_count
from joulecast.store.files import read_profile, write_profile
from joulecast.system.errors import FileError

DEVICE = Device("board")
SEEN = tuple(
    Observation(
        Trial(make_family(name), Setup(batch=batch)),
        energy_j=0.5 * batch,
        duration_s=0.01 * batch,
        device=DEVICE,
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
    write_profile(Profile(DEVICE, "", "cpu", "measured", SEEN).add_fits(fits), path)
    return path


def change_fit(path, name, fit):
    """Replace a fit in a profile file, and seal the file again."""
    content = json.loads(path.read_text())["profile"]
    packed = base64.b64encode(zlib.compress(json.dumps(fit).encode())).decode()
    content["fits"][name]["packed"] = packed
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    head = {"format": "joulecast-profile", "version": 2, "sha256": digest}
    path.write_text(json.dumps({**head, "profile": content}))


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
    write_profile(Profile(DEVICE, "", "cpu", "measured", rows), path)
    with pytest.raises(FileError, match=r"observation 3 in .* is damaged \(layer 1") as caught:
        estimate(path, "additive")
    assert reason in str(caught.value)


def test_fit_of_another_version_is_not_tried(path):
    change_fit(path, "additive", {"version": 999, "anything": 1})
    assert read_outside_profile(path).fits["additive"] == {"version": 999, "anything": 1}
