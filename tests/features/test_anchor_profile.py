"""``profile(anchors=True)``: what is refused before anything is measured."""

import pytest

import joulecast
from joulecast.system.errors import InputError, MissingError


@pytest.mark.parametrize(
    ("net", "options", "part"),
    [
        ("lenet5", {}, "give net or"),
        (None, {"atlas": True}, "not both"),
        (None, {"points": 3}, "leave points out"),
        (None, {"on": "cpu"}, "is a processor"),
    ],
)
def test_combinations_without_a_meaning_are_refused(net, options, part, tmp_path):
    store = tmp_path / "store.sqlite"
    given = {"on": "simulated:7", "store": str(store), **options}
    with pytest.raises(InputError, match=part):
        joulecast.profile(net, anchors=True, **given)
    assert not store.exists()


def test_device_without_a_data_sheet_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    store = tmp_path / "store.sqlite"
    with pytest.raises(MissingError, match="no data sheet of 'simulated-7'"):
        joulecast.profile(anchors=True, on="simulated:7", store=str(store))
    assert not store.exists()
