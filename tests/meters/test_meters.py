"""The value of --meter, and detection of meters."""

import subprocess
import sys

import pytest
from virtual_instruments import PowercapTree

from joulecast import meters
from joulecast.errors import InputError, MissingError
from joulecast.meters import METERS, detect_meters, make_meter
from joulecast.meters.rapl import make_rapl


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


def use_powercap(monkeypatch, root):
    spec = meters.MeterSpec("rapl", lambda request: make_rapl(str(root)))
    monkeypatch.setitem(METERS, "rapl", spec)


def test_importing_meters_does_not_import_pynvml():
    script = "import sys, joulecast.meters; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_auto_uses_rapl_if_readable(monkeypatch, tmp_path):
    PowercapTree(tmp_path).add("intel-rapl:0", "package-0")
    use_powercap(monkeypatch, tmp_path)
    assert make_meter("auto").name == "rapl"


def test_auto_falls_back_to_modelled(monkeypatch, tmp_path):
    use_powercap(monkeypatch, tmp_path)
    assert make_meter("auto").name == "modelled"


def test_auto_does_not_fall_back_for_a_gpu(no_gpu):
    with pytest.raises(MissingError, match="nvidia-ml-py"):
        make_meter("auto", on="cuda:0", gpu="0")


def test_meters_are_joined_by_plus(monkeypatch, tmp_path):
    path = tmp_path / "a+b.csv"
    path.write_text("1,2\n")
    assert make_meter(f"file:{path}+modelled:8W").name == f"file:{path}+modelled:8W"


@pytest.mark.parametrize(
    "text",
    [
        "file:{folder}/a.csv+file:{folder}/./a.csv",
        "command:echo 7 J+command:/bin/echo 7 J",
        "rapl:{folder}+rapl:{folder}/",
        "modelled:8W+modelled:9W",
    ],
)
def test_one_instrument_is_not_counted_twice(tmp_path, monkeypatch, text):
    monkeypatch.setenv("PATH", "/bin")
    (tmp_path / "a.csv").write_text("1,2\n")
    PowercapTree(tmp_path).add("intel-rapl:0", "package-0")
    with pytest.raises(InputError, match="twice"):
        make_meter(text.format(folder=tmp_path))


def test_two_files_can_be_added(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("1,2\n")
    meter = make_meter(f"file:{tmp_path}/a.csv+file:{tmp_path}/b.csv")
    assert meter.covers == "board by a.csv+board by b.csv"


@pytest.mark.parametrize(
    "text", ["", "nvm", "modelled+", "+modelled", "modelled+watts", "simulated"]
)
def test_error_for_an_unknown_meter_lists_all_forms(text):
    with pytest.raises(InputError, match="there is no meter") as caught:
        make_meter(text)
    for spec in METERS.values():
        assert spec.form in str(caught.value)


def test_error_for_an_unavailable_meter_says_what_to_do(no_gpu):
    with pytest.raises(MissingError, match=r"meter nvml is not available: .+; run: pip install"):
        make_meter("nvml+modelled")


def test_detect_lists_every_meter(no_gpu):
    rows = detect_meters()
    names = list(dict.fromkeys(row.name.partition(":")[0] for row in rows))
    assert names == [name for name in METERS if name != "auto"]
    for row in rows:
        assert row.reason
        assert row.covers
        assert row.available or row.advice
        assert set(row.to_dict()) >= {"name", "available", "reason", "covers", "update_interval_s"}
