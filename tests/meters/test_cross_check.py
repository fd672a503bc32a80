"""Comparing nvml and rapl with Zeus: on virtual meters, and Zeus itself on emulated counters."""

import functools
import json

import pytest
from click.testing import CliRunner
from virtual_instruments import PowercapTree, VirtualClock

from joulecast.cli.main import cli
from joulecast.errors import MissingError
from joulecast.meters import cross_check
from joulecast.meters.cross_check import (
    MeterPair,
    compare_pairs,
    cross_check_meters,
    find_pairs,
)
from joulecast.meters.rapl import RaplMeter, detect_rapl
from joulecast.meters.zeus_meters import ZeusMeter, ZeusSource, open_rapl

POWERS_W = {
    "intel-rapl:0": 60.0,
    "intel-rapl:0/intel-rapl:0:2": 5.0,
    "intel-rapl:1": 40.0,
    "intel-rapl:2": 500.0,
}


def make_pair(clock, ours_w, zeus_w, zeus_covers="cpu"):
    """Return two meters of constant power on a virtual clock."""
    ours = ZeusSource("rapl", "cpu", "ours", "J", lambda: ours_w * clock.now())
    other = ZeusSource("rapl", zeus_covers, "zeus", "J", lambda: zeus_w * clock.now())
    return MeterPair(ZeusMeter(ours, now=clock.now), ZeusMeter(other, now=clock.now))


@pytest.mark.parametrize(
    ("zeus_w", "difference_share", "agrees"),
    [(100.0, 0.0, True), (104.0, 0.04, True), (94.0, -0.06, False), (0.1, -0.999, False)],
)
def test_powers_over_one_window_are_compared(zeus_w, difference_share, agrees):
    clock = VirtualClock()
    (check,) = compare_pairs([make_pair(clock, 100.0, zeus_w)], 10.0, clock.sleep)
    assert check.power_w == pytest.approx(100.0)
    assert check.zeus_power_w == pytest.approx(zeus_w)
    assert check.difference_share == pytest.approx(difference_share)
    assert check.agrees == agrees


def test_faults_of_either_are_named():
    clock = VirtualClock()
    (check,) = compare_pairs([make_pair(clock, 100.0, 0.0)], 10.0, clock.sleep)
    assert check.faults == ("Zeus: stuck: the energy counter did not change in 10 s",)
    assert not check.agrees


def test_all_meters_share_one_window():
    clock = VirtualClock(start_s=0.0)
    pairs = [make_pair(clock, 100.0, 100.0), make_pair(clock, 50.0, 50.0)]
    assert all(check.agrees for check in compare_pairs(pairs, 10.0, clock.sleep))
    assert clock.now() == pytest.approx(10.0)


def test_machine_without_such_meters_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(cross_check, "detect_rapl", functools.partial(detect_rapl, tmp_path))
    monkeypatch.setattr(cross_check, "detect_nvml", tuple)
    with pytest.raises(MissingError, match="no meter can be compared with Zeus: rapl: no RAPL"):
        cross_check_meters()


# ---------------------------------------------------------------------------------------------
# Zeus itself


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return counters as Linux shows them, which Zeus and Joulecast read."""
    zeus_rapl = pytest.importorskip("zeus.device.cpu.rapl")
    nested = PowercapTree(tmp_path / "intel-rapl")
    nested.add("intel-rapl:0", "package-0").add("intel-rapl:0/intel-rapl:0:2", "dram")
    nested.add("intel-rapl:1", "package-1").add("intel-rapl:2", "psys")
    for folder, path in nested.zones.items():
        # Linux links all zones into one folder.
        (tmp_path / folder.rpartition("/")[2]).symlink_to(path.parent)
    monkeypatch.setattr(zeus_rapl, "RAPL_DIR", str(nested.root))
    monkeypatch.setattr(cross_check, "detect_nvml", tuple)
    monkeypatch.setattr(cross_check, "detect_rapl", functools.partial(detect_rapl, tmp_path))
    monkeypatch.setattr(cross_check, "make_rapl", lambda argument: RaplMeter(tmp_path))
    zeus_rapl.rapl_is_available.cache_clear()
    yield nested
    zeus_rapl.rapl_is_available.cache_clear()


def test_rapl_and_zeus_agree_on_the_same_counters(tree, tmp_path):
    clock = VirtualClock(step_s=0.5)

    def count():
        for folder, power_w in POWERS_W.items():
            tree.set(folder, power_w * clock.now() * 1e6)

    count()
    clock.hooks.append(count)
    ours = RaplMeter(tmp_path, tmp_path, now=clock.now, ticker=clock.make_ticker)
    zeus = ZeusMeter(open_rapl(), now=clock.now)
    (check,) = compare_pairs([MeterPair(ours, zeus)], 10.0, clock.sleep)
    # Packages and memory, but not the board that includes them.
    assert check.power_w == pytest.approx(105.0)
    assert check.zeus_power_w == pytest.approx(105.0)
    assert (check.covers, check.zeus_covers, check.faults) == ("cpu+dram", "cpu+dram", ())


def test_meters_that_zeus_reads_are_found(tree):
    (pair,), refused = find_pairs()
    assert not refused
    assert (pair.ours.name, pair.ours.covers, pair.zeus.covers) == ("rapl", "cpu+dram", "cpu+dram")


def test_counter_that_zeus_cannot_read_is_named(tree, monkeypatch):
    monkeypatch.setattr("zeus.device.cpu.rapl.RAPL_DIR", "/nowhere")
    pairs, refused = find_pairs()
    assert not pairs
    assert refused["rapl"].startswith("Zeus cannot read RAPL counters")


# ---------------------------------------------------------------------------------------------
# The command


def test_command_prints_both_powers(monkeypatch):
    clock = VirtualClock()
    pairs = [make_pair(clock, 100.0, 101.0), make_pair(clock, 100.0, 50.0)]
    monkeypatch.setattr(cross_check, "find_pairs", lambda: (pairs, {"nvml": "no driver"}))
    checking = functools.partial(cross_check_meters, sleep=clock.sleep)
    monkeypatch.setattr("joulecast.meters.cross_check.cross_check_meters", checking)
    done = CliRunner().invoke(cli, ["detect", "--cross-check"])
    assert done.exit_code == 0, done.output
    assert "100 W" in done.stdout and "101 W" in done.stdout and "+1.0 %" in done.stdout
    assert done.stdout.count("rapl and Zeus disagree: check with another instrument") == 1
    assert "nvml was not compared: no driver." in done.stdout
    rows = json.loads(CliRunner().invoke(cli, ["detect", "--cross-check", "--json"]).stdout)
    assert [row["agrees"] for row in rows["cross_checks"]] == [True, False]
    assert rows["refused"] == {"nvml": "no driver"}


def test_command_says_that_zeus_covers_something_else(monkeypatch):
    clock = VirtualClock()
    pairs = [make_pair(clock, 100.0, 120.0, "cpu+dram")]
    monkeypatch.setattr(cross_check, "find_pairs", lambda: (pairs, {"nvml": "no driver"}))
    checking = functools.partial(cross_check_meters, sleep=clock.sleep)
    monkeypatch.setattr("joulecast.meters.cross_check.cross_check_meters", checking)
    said = CliRunner().invoke(cli, ["detect", "--cross-check"]).stdout
    assert "rapl and Zeus disagree: it covers cpu, Zeus cpu+dram." in said
