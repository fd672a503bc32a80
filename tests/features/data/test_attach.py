"""Joules that come later: traces of a simulated device on another clock, aligned within 5 ms."""

import random
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_stores import run_in_store
from joulecast import simulation
from joulecast.families import draw_family
from joulecast.features.data import power_trace
from joulecast.features.data.attach import attach_energies
from joulecast.features.data.power_trace import MOST_DRIFT, make_trace, read_csv, read_trace
from joulecast.measurer import MeasureClock, Measurer
from joulecast.meters.file import LaterMeter
from joulecast.records import Setup, Trial
from joulecast.simulation import make_simulated_device
from joulecast.simulation.runtime import SimulatedRuntime
from joulecast.store import open_store
from joulecast.system.errors import FileError

WALL_S, LIMIT_S = 1e9, 0.005


@dataclass(frozen=True)
class Instrument:
    """A power monitor: its clock against that of the device, and its samples."""

    offset_s: float = 0.0
    drift: float = 0.0
    rate_hz: float = 1000.0
    noise_share: float = 0.005

    def read_clock(self, times_s):
        return self.offset_s + (1 + self.drift) * np.asarray(times_s)

    def sample(self, device, start_s=0.0, end_s=None):
        """Return times and mean powers of all samples, on the clock of the instrument."""
        edges = np.arange(start_s, device.now() if end_s is None else end_s, 1 / self.rate_hz)
        energies = np.array([device.energy_at(one) for one in edges])
        powers = np.diff(energies) / np.diff(edges)
        rng = np.random.default_rng(7)
        noisy = powers * (1 + self.noise_share * rng.standard_normal(len(powers)))
        return self.read_clock((edges[1:] + edges[:-1]) / 2), noisy


def record_trials(seed, count):
    """Record random nets, and the idle device once; return the device and the observations."""
    device, rng = make_simulated_device(seed), random.Random(seed)
    clock = MeasureClock(device.now, device.sleep, lambda: WALL_S + device.now())
    meter = LaterMeter("device", "simulated", clock)
    with Measurer(SimulatedRuntime(device), meter, clock=clock, run="run") as measurer:
        nets = [
            draw_family(rng.choice(("lenet5", "cnn5", "har")), rng.randint) for _ in range(count)
        ]
        observed = [measurer.measure(Trial(net, Setup(batch=8))) for net in nets]
        observed.append(measurer.measure_idle())
    device.sleep(1.0)
    return device, observed


def read_live(device, observation):
    """Return the energy of a step that an exact meter would have read in the same windows."""
    steps_j = []
    for window in observation.windows:
        start_s, end_s = window.start_s - WALL_S, window.end_s - WALL_S
        energy_j = device.energy_at(end_s) - device.energy_at(start_s)
        is_idle = not observation.trial.network.layers
        steps_j.append(energy_j / ((end_s - start_s) if is_idle else window.steps))
    return float(np.median(steps_j))


@pytest.fixture(scope="module")
def recording():
    return record_trials(seed=3, count=5)


@pytest.mark.parametrize(
    "instrument",
    [
        Instrument(),
        Instrument(offset_s=-123_456.7, drift=100e-6),
        Instrument(offset_s=9e8, drift=-450e-6, rate_hz=200),
        Instrument(offset_s=17.25, drift=30e-6, rate_hz=50, noise_share=0.02),
        Instrument(offset_s=1234.5, drift=-120e-6, rate_hz=2000),
    ],
)
def test_clocks_are_aligned_and_energies_are_those_of_a_live_meter(recording, instrument):
    device, observed = recording
    (run,) = attach_energies(make_trace(*instrument.sample(device)), observed, "t.csv")
    found, times = run.alignment, np.linspace(0, device.now(), 40)
    assert found.convert(WALL_S + times) == pytest.approx(instrument.read_clock(times), abs=LIMIT_S)
    assert found.drift == pytest.approx(instrument.drift, abs=5e-5)
    assert found.residual_s < LIMIT_S and all(found.matched) and not run.refused
    for recorded, completed in run.completed:
        tolerance = max(0.005, instrument.noise_share)
        assert completed.energy_j == pytest.approx(read_live(device, recorded), rel=tolerance)
        assert completed.source == "t.csv" and completed.duration_s == recorded.duration_s
    assert [one for one, _ in run.completed] == observed


@pytest.mark.parametrize(("part", "reason"), [((0.5, 1.0), "begins"), ((0.0, 0.5), "ends")])
def test_trials_outside_a_short_trace_are_refused(recording, part, reason):
    device, observed = recording
    instrument = Instrument(offset_s=-7.0, drift=80e-6)
    trace = make_trace(*instrument.sample(device, *(share * device.now() for share in part)))
    (run,) = attach_energies(trace, observed, "t.csv")
    assert {None, True} == set(run.alignment.matched)
    assert 0 < len(run.completed) < len(observed) == len(run.completed) + len(run.refused)
    for recorded, completed in run.completed:
        assert completed.energy_j == pytest.approx(read_live(device, recorded), rel=0.005)
    assert all(f"the trace {reason}" in said for _, said in run.refused)


OTHERS = {
    "constant": lambda times: np.full(len(times), 5.0),
    "noise": lambda times: 50 + np.random.default_rng(1).standard_normal(len(times)),
    "square wave": lambda times: 50 + 20 * (np.arange(len(times)) // 100 % 2),
    "random switching": lambda times: (
        50 + 20 * (np.cumsum(np.random.default_rng(2).random(len(times)) < 0.01) % 2)
    ),
}


@pytest.mark.parametrize("name", [*OTHERS, "another run", "drift", "50 ms apart"])
def test_power_without_our_pulses_is_refused(recording, name):
    device, observed = recording
    times, reason = np.arange(0, 80, 0.002), "recorded during this run"
    if name in OTHERS:
        trace = make_trace(times, OTHERS[name](times))
    elif name == "another run":
        trace = make_trace(*Instrument().sample(record_trials(seed=4, count=5)[0]))
    elif name == "drift":
        trace = make_trace(*Instrument(drift=100 * MOST_DRIFT).sample(device))
    else:
        trace, reason = make_trace(*Instrument(rate_hz=20).sample(device)), name
    (run,) = attach_energies(trace, observed, "t.csv")
    assert not run.completed and run.alignment is None
    assert all(reason in said for _, said in run.refused)


def test_a_trial_with_missing_samples_or_pulses_is_refused(recording):
    device, observed = recording
    times, powers = Instrument().sample(device)
    start_s = observed[2].windows[1].start_s - WALL_S
    keep = (times <= start_s + 0.2) | (times >= start_s + 0.5)
    (run,) = attach_energies(make_trace(times[keep], powers[keep]), observed, "t.csv")
    assert run.refused == ((observed[2], "the trace has no sample for 0.301 s of it"),)
    first, last = (observed[1].pulses[0].start_s - WALL_S, observed[1].pulses[3].end_s - WALL_S)
    hidden = np.where((times > first - 0.1) & (times < last + 0.1), powers.mean(), powers)
    (run,) = attach_energies(make_trace(times, hidden), observed, "t.csv")
    ((one, reason),) = run.refused
    assert one == observed[1] and "pulses are not where" in reason


# -- files of instruments -----------------------------------------------------------------------


SAMPLE_TIMES = np.arange(200) / 100


@given(st.floats(-5, 5), st.floats(0.1, 50), st.floats(0, 0.9), st.floats(0.01, 1.0))
def test_power_that_grows_linearly_has_the_exact_energy(slope, level, start_s, length_s):
    trace = make_trace(SAMPLE_TIMES, level + slope * SAMPLE_TIMES)
    middle_w = level + slope * (start_s + length_s / 2)
    found_w = trace.find_power(start_s, start_s + length_s)
    assert found_w == pytest.approx(middle_w, rel=1e-3, abs=1e-3)


def test_samples_of_a_packet_become_their_mean_and_gaps_are_found():
    trace = make_trace(np.repeat(SAMPLE_TIMES, 3), np.tile([1.0, 2.0, 6.0], len(SAMPLE_TIMES)))
    assert trace.times_s == pytest.approx(SAMPLE_TIMES) and trace.powers_w == pytest.approx(3.0)
    keep = (SAMPLE_TIMES < 0.5) | (SAMPLE_TIMES > 0.8)
    trace = make_trace(SAMPLE_TIMES[keep], np.ones(int(keep.sum())))
    assert trace.find_gap(0.0, 0.4) == 0 and trace.find_gap(0.3, 1.0) == pytest.approx(0.32)


def write_table(path, header, rows=()):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_rows_keep_their_lines(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes('\ufeffa; b ;c\r\n\r\n1;2;"x;y"\r\n'.encode())
    assert list(read_csv(path)) == [(1, ["a", "b", "c"]), (3, ["1", "2", "x;y"])]


TIMES = 0.002 * np.arange(400)
SAMPLES = list(zip(TIMES.tolist(), (3.0 + np.sin(TIMES)).tolist(), strict=True))
FORMATS = {
    "time,watts": lambda t, p: [f"{t!r},{p!r}"],
    "time_s,power_w": lambda t, p: [f"{t!r},{p!r}"],
    "Time (ms);Power (mW)": lambda t, p: [f"{t * 1e3!r};{p * 1e3!r}"],
    "\ufefftimestamp,Power [uW]": lambda t, p: [f"{t!r},{p * 1e6!r}"],
    "Time [us]\tPower [kW]": lambda t, p: [f"{t * 1e6!r}\t{p / 1e3!r}"],
    # Monsoon: seconds although the header says ms, three samples of a packet at one time.
    "Time(ms),Main(mA),Main Voltage(V),": lambda t, p: [
        f"{t!r},{p * 250 + shift!r},4.0," for shift in (-1.0, 0.0, 1.0)
    ],
    # Its channel of USB is not the device.
    "Time(ms),Main(mA),USB(mA),Main Voltage(V),USB Voltage(V),": lambda t, p: [
        f"{t!r},{p * 250!r},9000.0,4.0,5.0,"
    ],
    '"Wall-clock time (UTC)","Arc Main Current (A)","Arc Main Voltage (V)","Arc Main Energy (J)"': (
        lambda t, p: [f'"2024-05-01T10:00:{t:09.6f}Z",{p / 4!r},4.0,{7 * p!r}']
    ),
}


@pytest.mark.parametrize("header", FORMATS)
def test_formats_are_known_by_the_names_of_their_columns(tmp_path, header):
    rows = [row for t, p in SAMPLES for row in FORMATS[header](t, p)]
    trace = read_trace(write_table(tmp_path / "trace.csv", header, rows))
    assert trace.times_s - trace.times_s[0] == pytest.approx(TIMES, abs=1e-6)
    assert trace.powers_w == pytest.approx(3.0 + np.sin(TIMES), rel=1e-6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a,b\n1,2", "no columns of time and power, only 'a, b'"),
        ("time,current (A)\n1,2", "no columns of time and power"),
        ("time,watts\n0,1\n1,x", "line 3 is '1,x'"),
        ("time,watts\n0,1\n0.1,nan", "not a power trace: a time or a power is not a finite"),
        ("time,watts\n0,1\n1,1", "only 2 samples"),
        ("time,watts\n0,1\n2,1\n1,1", "time goes back at sample 3"),
        ("time,watts\n2024-99-01T00:00:00,1", "line 2 is"),
        ("time,watts\n" + "9" * 200_000 + ",1", "line 2 is not CSV"),
        ("time,watts\n" + "0,1\n" * 300_000, "larger than 1 MiB"),
        ("", "has no header"),
        ("time\0,watts\n", "not a text"),
    ],
)
def test_other_files_are_refused(tmp_path, monkeypatch, content, reason):
    monkeypatch.setattr(power_trace, "MOST_TRACE_BYTES", 2**20)
    path = tmp_path / "trace.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(FileError, match=reason):
        read_trace(path)


# -- the verb -----------------------------------------------------------------------------------


PROFILED = ("lenet5:6,16,120,84", "--batch", "8")
RECORDED = ("--on", "simulated:7", "--meter", "later")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Return a store with a campaign that has no energies, and the device that it ran on."""
    made, make = [], simulation.make_simulated_device

    def make_and_keep(*args, **options):
        made.append(make(*args, **options))
        return made[-1]

    path = tmp_path_factory.mktemp("recorded") / "store.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "make_simulated_device", make_and_keep)
        said = run_in_store(path, "profile", *PROFILED, *RECORDED, "--points", "12")
    assert "Next: joulecast data attach TRACE.csv --device simulated-7" in said
    return path, made[0]


@pytest.fixture
def recorded(shell, campaign):
    """Return a command line whose store has that campaign, and a function that writes traces."""
    shutil.copy(campaign[0], shell.folder / "store.sqlite")

    def write_trace(name, instrument, share=1.0):
        times, powers = instrument.sample(campaign[1], 0.0, share * campaign[1].now())
        pairs = zip(times.tolist(), powers.tolist(), strict=True)
        write_table(shell.folder / name, "time,watts", (f"{t!r},{p!r}" for t, p in pairs))

    return shell, write_trace


def load_observations():
    with open_store(create=False) as store:
        return store.find_profile("simulated-7").observations


def test_recorded_campaign_gets_its_joules_and_estimates(recorded, campaign):
    shell, write_trace = recorded
    assert "no energy" in shell.fails("estimate", *PROFILED, "--device", "simulated-7")
    before = load_observations()
    write_trace("trace.csv", Instrument(offset_s=-4321.0, drift=150e-6))
    # Refused before any energy is filled in.
    itself = shell.fails("data", "attach", "trace.csv", "--from", "simulated-7")
    assert "is the profile of this device itself" in itself
    result = shell.json("data", "attach", "trace.csv")
    assert result["completed"] == sum(one.is_pending for one in before) > 4
    (run,) = result["runs"]
    assert run["drift_ppm"] == pytest.approx(150, abs=20) and run["residual_s"] < LIMIT_S
    after = load_observations()
    assert result["pending"] == 0 and len(after) == len(before)
    assert not any(one.is_pending for one in after)
    estimate = shell.json("estimate", *PROFILED, "--device", "simulated-7")
    truth_j = next(
        campaign[1].true_cost(one.trial).energy_j
        for one in after
        if one.trial.network.name == PROFILED[0] and one.trial.execution.is_user_step
    )
    assert estimate["energy_j"] == pytest.approx(truth_j, rel=0.15)


def test_rest_of_a_campaign_waits_for_its_own_trace(recorded):
    shell, write_trace = recorded
    rows = (f"{0.005 * number},5.0" for number in range(10_000))
    write_table(shell.folder / "other.csv", "time,watts", rows)
    assert "recorded during this run" in shell.fails("data", "attach", "other.csv")
    write_trace("half.csv", Instrument(), share=0.5)
    first = shell("data", "attach", "half.csv").stdout
    assert "Refused: " in first and "the trace ends" in first and "wait for a trace" in first
    write_trace("whole.csv", Instrument(offset_s=9.0))
    assert shell.json("data", "attach", "whole.csv")["pending"] == 0
    assert "waits for a trace" in shell.fails("data", "attach", "whole.csv")
    assert {"half.csv", "whole.csv"} <= {one.source for one in load_observations()}


def test_recorder_is_refused_where_joules_are_needed_now(shell):
    for words in (
        ("measure", "--meter", "later", "--", "true"),
        ("evaluate", "lenet5", *RECORDED),
        ("profile", "--atlas", *RECORDED),
    ):
        result = shell(*words, code=1)
        assert "give a meter of `joulecast detect`" in result.stderr
    assert "waits for a trace" in shell.fails("data", "attach", "trace.csv")
