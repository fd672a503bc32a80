"""Stored fits: decoded once, on demand, with the number of observations behind each."""

import pytest

from joulecast.records import Device, Profile, StoredFits, find_fit_count, merge_fits


def make_fits(decoded, **fits):
    def decode(name):
        decoded.append(name)
        return fits[name]

    return StoredFits({name: lambda name=name: decode(name) for name in fits}, {"flops": 7})


def test_a_fit_is_decoded_once_when_it_is_asked_for():
    decoded = []
    fits = make_fits(decoded, flops={"slope": 1}, forest={})
    assert set(fits) == {"flops", "forest"} and len(fits) == 2 and "flops" in fits
    assert "forest" in repr(fits)
    assert decoded == []
    assert fits["flops"] == fits.get("flops") == {"slope": 1}
    assert decoded == ["flops"]
    assert fits.get("none") is None
    with pytest.raises(KeyError):
        fits["none"]


def test_fits_equal_the_mapping_of_them():
    fits = make_fits([], flops={"slope": 1}, forest={})
    assert fits == {"flops": {"slope": 1}, "forest": {}} == fits
    assert fits != {"flops": {"slope": 2}, "forest": {}}


def test_merging_prefers_the_second_and_decodes_nothing():
    decoded = []
    fits = make_fits(decoded, flops={"slope": 1}, forest={})
    merged = merge_fits(fits, {"forest": {"trees": 3}, "other": {}})
    assert decoded == []
    assert find_fit_count(merged, "flops") == 7
    assert find_fit_count(merged, "forest") is None
    assert merged == {"flops": {"slope": 1}, "forest": {"trees": 3}, "other": {}}


def test_plain_fits_have_no_count():
    assert find_fit_count({"flops": {}}, "flops") is None


def test_added_fits_count_the_observations_of_the_profile():
    profile = Profile(Device("board"), "", "", "measured", fits={"forest": {}})
    fitted = profile.add_fits({"flops": {"slope": 1}})
    assert fitted.fits == {"flops": {"slope": 1}, "forest": {}}
    assert find_fit_count(fitted.fits, "flops") == 0
    assert find_fit_count(fitted.fits, "forest") is None
