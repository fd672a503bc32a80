"""Samples of power: checked, and integrated by the trapezoidal rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.system.errors import FileError, InputError
from joulecast.traces import power_trace as csv_tables
from joulecast.traces.power_trace import make_trace, read_csv, read_trace

SAMPLE_TIMES = np.arange(200) / 100


@given(st.floats(-5, 5), st.floats(0.1, 50), st.floats(0, 0.9), st.floats(0.01, 1.0))
def test_power_that_grows_linearly_has_the_exact_energy(slope, level, start_s, length_s):
    trace = make_trace(SAMPLE_TIMES, level + slope * SAMPLE_TIMES)
    end_s = start_s + length_s
    middle_w = level + slope * (start_s + end_s) / 2
    assert trace.find_power(start_s, end_s) == pytest.approx(middle_w, rel=1e-3, abs=1e-3)


def test_samples_of_a_packet_become_their_mean():
    trace = make_trace(np.repeat(SAMPLE_TIMES, 3), np.tile([1.0, 2.0, 6.0], len(SAMPLE_TIMES)))
    assert trace.times_s == pytest.approx(SAMPLE_TIMES)
    assert trace.powers_w == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("times", "powers", "reason"),
    [
        (SAMPLE_TIMES[:50], np.ones(50), "only 50 samples"),
        (
            np.where(SAMPLE_TIMES == 1.0, 0.5, SAMPLE_TIMES),
            np.ones(200),
            "time goes back at sample 101",
        ),
        (SAMPLE_TIMES, np.where(SAMPLE_TIMES == 1.0, np.nan, 1.0), "not a finite number"),
    ],
)
def test_impossible_samples_are_refused(times, powers, reason):
    with pytest.raises(InputError, match=reason):
        make_trace(times, powers)


def test_missing_samples_are_found():
    keep = (SAMPLE_TIMES < 0.5) | (SAMPLE_TIMES > 0.8)
    trace = make_trace(SAMPLE_TIMES[keep], np.ones(int(keep.sum())))
    assert trace.find_gap(0.0, 0.4) == 0
    assert trace.find_gap(0.3, 1.0) == pytest.approx(0.32)


def test_columns_and_rows_keep_their_lines(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes('\ufeffa; b ;c\r\n\r\n1;2;"x;y"\r\n'.encode())
    table = read_csv(path)
    assert table.columns == ("a", "b", "c")
    assert list(table.read_rows()) == [(3, ["1", "2", "x;y"])]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\xff\xfe\x00a", "no text"), (b"a\0b\n", "no text"), (b"", "no header")],
)
def test_what_is_no_table_is_refused(tmp_path, content, reason):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(FileError, match=reason):
        read_csv(path)


def test_large_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "MOST_TRACE_BYTES", 2**20)
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b\n" * 300_000)
    with pytest.raises(FileError, match="larger than 1 MiB"):
        read_csv(path)


def test_enormous_cells_are_refused_in_one_line(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n" + "9" * 200_000 + ",1\n")
    with pytest.raises(FileError, match="line 2 is not CSV"):
        list(read_csv(path).read_rows())


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
