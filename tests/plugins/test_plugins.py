"""Meters and runtimes that another distribution adds through entry points."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli
from joulecast.meters import detect_meters, make_meter
from joulecast.runtimes import is_plugin, open_runtime
from joulecast.system.errors import InputError, MissingError
from joulecast.system.plugins import load_plugins
from joulecast.testing.meters import MeterContract
from joulecast.testing.runtimes import RuntimeContract

ENTRY_POINTS = """\
[joulecast.meters]
toy = toy_energy:METER
broken = toy_energy:MISSING

[joulecast.runtimes]
toy = toy_energy:ToyRuntime
"""


@pytest.fixture
def toy_energy(tmp_path, monkeypatch):
    """Install the toy distribution for one test, and return its module."""
    site = tmp_path / "site"
    info = site / "toy_energy-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("toy_energy.py"), site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-energy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    load_plugins.cache_clear()
    yield importlib.import_module("toy_energy")
    sys.modules.pop("toy_energy", None)
    load_plugins.cache_clear()


class TestToyMeter(MeterContract):
    @pytest.fixture(autouse=True)
    def install(self, toy_energy):
        self._now_s = 100.0

    def make_meter(self):
        meter = make_meter("toy")
        meter._now = lambda: self._now_s
        return meter

    def load(self, duration_s):
        self._now_s += duration_s


class TestToyRuntime(RuntimeContract):
    @pytest.fixture(autouse=True)
    def install(self, toy_energy):
        pass

    def make_runtime(self):
        return open_runtime("toy")


def test_meter_gets_its_argument(toy_energy):
    assert make_meter("toy:7").name == "toy:7"
    with pytest.raises(InputError, match="toy:x is not a power"):
        make_meter("toy:x")


def test_meter_can_be_added_to_a_built_in_one(toy_energy):
    meter = make_meter("toy+modelled:8W")
    assert meter.name == "toy+modelled:8W"
    assert meter.covers == "toy+cpu at 8 W a core"


def test_detect_lists_plugins_even_if_one_is_broken(toy_energy):
    found = {info.name: info for info in detect_meters()}
    assert found["toy"].available
    assert not found["broken"].available
    assert "toy-energy 1.0" in found["broken"].reason


def test_broken_meter_names_its_distribution(toy_energy):
    with pytest.raises(MissingError, match=r"broken.*toy-energy 1\.0"):
        make_meter("broken")


def test_unknown_meter_error_lists_plugins(toy_energy):
    with pytest.raises(InputError, match=r"there is no meter 'nvm': .*toy"):
        make_meter("nvm")


def test_runtime_gets_the_whole_text_and_a_device_name(toy_energy):
    assert is_plugin("toy:3")
    assert not is_plugin("cpu")
    assert open_runtime("toy:3").device.name == "toy-3"
    assert open_runtime("toy", "mine").device.name == "mine"


def test_names_of_plugins_are_unknown_without_the_distribution():
    load_plugins.cache_clear()
    with pytest.raises(InputError, match="there is no meter 'toy'"):
        make_meter("toy")
    with pytest.raises(InputError, match="there is no device 'toy'"):
        open_runtime("toy")


def test_command_line_measures_with_both(toy_energy, tmp_path):
    store = str(tmp_path / "store.sqlite")
    command = ("measure", "lenet5", "--on", "toy", "--meter", "toy:20", "--store", store, "--json")
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    assert '"runtime": "toy-1.0"' in result.stdout
    assert '"meter": "toy:20"' in result.stdout
    assert '"covers": "toy"' in result.stdout
