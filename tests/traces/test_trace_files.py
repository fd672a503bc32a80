"""CSV of instruments: columns by name and unit, and refusals that name the line."""

import numpy as np
import pytest

from joulecast.errors import FileError
from joulecast.traces.power_trace import read_trace

TIMES = 0.002 * np.arange(400)
POWERS = 3.0 + np.sin(TIMES)
SAMPLES = list(zip(TIMES.tolist(), POWERS.tolist(), strict=True))


@pytest.fixture
def write(tmp_path):
    def put(header, rows):
        path = tmp_path / "trace.csv"
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return path

    return put


def check(trace):
    assert trace.times_s - trace.times_s[0] == pytest.approx(TIMES, abs=1e-6)
    assert trace.powers_w == pytest.approx(POWERS, rel=1e-6)


@pytest.mark.parametrize(
    ("header", "scales"),
    [
        ("time,watts", (1, 1)),
        ("time_s,power_w", (1, 1)),
        ("Time (ms);Power (mW)", (1e3, 1e3)),
        ("\ufefftimestamp,Power [uW]", (1, 1e6)),
        ("Time [us]\tPower [kW]", (1e6, 1e-3)),
    ],
)
def test_units_in_names_are_applied(write, header, scales):
    mark = next(one for one in ",;\t" if one in header)
    rows = (f"{t * scales[0]!r}{mark}{p * scales[1]!r}" for t, p in SAMPLES)
    check(read_trace(write(header, rows)))


def test_monsoon_times_are_seconds_although_the_header_says_ms(write):
    """As PyMonsoon writes them: three samples of a packet share a time, lines end in a comma."""
    rows = [f"{t!r},{p * 250 + shift!r},4.0," for t, p in SAMPLES for shift in (-1.0, 0.0, 1.0)]
    check(read_trace(write("Time(ms),Main(mA),Main Voltage(V),", rows)))


def test_monsoon_usb_channel_is_not_taken_for_the_device(write):
    rows = [f"{t!r},{p * 250!r},9000.0,4.0,5.0," for t, p in SAMPLES]
    header = "Time(ms),Main(mA),USB(mA),Main Voltage(V),USB Voltage(V),"
    check(read_trace(write(header, rows)))


def test_otii_export_with_dates_and_an_energy_column(write):
    header = (
        '"Wall-clock time (UTC)","Arc Main Current (A)","Arc Main Voltage (V)",'
        '"Arc Main Energy (J)"'
    )
    rows = [f'"2024-05-01T10:00:{t:09.6f}+00:00",{p / 4!r},4.0,{7 * p!r}' for t, p in SAMPLES]
    check(read_trace(write(header, rows)))


@pytest.mark.parametrize(
    ("header", "rows", "reason"),
    [
        ("a,b", ["1,2"], "no columns of time and power, only 'a, b'"),
        ("time,current (A)", ["1,2"], "no columns of time and power"),
        ("time,watts", ["0,1", "1,x"], "line 3 is '1,x'"),
        ("time,watts", ["0,1", "1"], "line 3 is '1'"),
        ("time,watts", ["0,1", "0.1,nan"], "not a power trace: a time or a power is not a finite"),
        ("time,watts", ["0,1", "1,1"], "only 2 samples"),
        ("", ["1,2"], "has no header"),
        ("time,watts", ["2024-99-01T00:00:00,1"], "line 2 is"),
    ],
)
def test_other_files_are_refused(write, header, rows, reason):
    with pytest.raises(FileError, match=reason):
        read_trace(write(header, rows))
