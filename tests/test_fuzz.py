"""Hostile files, TOML, texts and URLs: refused in one line, and no code of theirs is run.

The readers and their hostile inputs are those of benchmarks/robustness, which runs many more.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.robustness.hostile_inputs import find_defect
from benchmarks.robustness.readers import HostileFolder

# Inputs of each reader; about 2,000 together.
FAST, SLOW = 170, 100
COUNTS = {
    "profile, bytes": FAST,
    "profile, values, sealed again": FAST,
    "observations, sealed again": SLOW,
    "fits, sealed again": SLOW,
    "network, bytes": FAST,
    "network, values": FAST,
    "ONNX file, bytes": FAST,
    "ONNX file, graph": FAST,
    "store, bytes": SLOW,
    "jobs, bytes": FAST,
    "jobs, values": FAST,
    "settings, bytes": SLOW,
    "settings, values": SLOW,
    "samples of a meter": FAST,
    "pruned modules": 60,
    "texts": FAST,
    "URLs of stores": FAST,
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return HostileFolder(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def folder(hostile, monkeypatch):
    """Stay in the folder of the hostile files, whose settings are read."""
    monkeypatch.chdir(hostile.folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(hostile.folder / "config"))
    return hostile


def test_every_reader_is_tested(hostile):
    assert [one.name for one in hostile.list_readers()] == list(COUNTS)
    assert 1900 <= sum(COUNTS.values()) <= 2500


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", COUNTS)
def test_hostile_input_is_refused_in_one_line(folder, name):
    (reader,) = [one for one in folder.list_readers() if one.name == name]

    @settings(
        max_examples=COUNTS[name],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def refuse(rng):
        defect = find_defect(reader.draw(rng))
        assert defect is None, f"{type(defect).__name__}: {defect}"

    refuse()
    assert not folder.has_run_code()
