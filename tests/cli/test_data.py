"""joulecast data: joules that come later, on a simulated device with another clock."""

import numpy as np
import pytest

from joulecast import simulation
from joulecast.store import open_store
from simulated_traces import Instrument

PROFILED = ("lenet5:4,8,16,16", "--batch", "8")
INSTRUMENT = Instrument(offset_s=-4321.0, drift=150e-6)


@pytest.fixture
def devices(monkeypatch):
    """Return the simulated devices that commands have used."""
    made, make = [], simulation.make_simulated_device

    def make_and_keep(*args, **options):
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(simulation, "make_simulated_device", make_and_keep)
    return made


@pytest.fixture
def recorded(shell, devices):
    words = ("--on", "simulated:7", "--meter", "later", "--points", "12")
    result = shell("profile", *PROFILED, *words)
    assert "Next: joulecast data attach TRACE.csv --device simulated-7" in result.stdout
    return shell


def write_trace(path, device, instrument=INSTRUMENT, share=1.0):
    times, powers = instrument.sample(device, 0.0, share * device.now())
    rows = (
        f"{time!r},{power!r}" for time, power in zip(times.tolist(), powers.tolist(), strict=True)
    )
    path.write_text("\n".join(["time,watts", *rows]) + "\n")


def load_observations():
    with open_store(create=False) as store:
        return store.find_profile("simulated-7").observations


def test_recorded_campaign_gets_its_joules_and_estimates(recorded, devices):
    assert "no energy" in recorded.fails("estimate", *PROFILED, "--device", "simulated-7")
    before = load_observations()
    write_trace(recorded.folder / "trace.csv", devices[0])
    # Refused before any energy is filled in.
    itself = recorded.fails("data", "attach", "trace.csv", "--from", "simulated-7")
    assert "is the profile of this device itself" in itself
    result = recorded.json("data", "attach", "trace.csv")
    assert result["completed"] == sum(one.is_pending for one in before) > 4
    assert result["pending"] == 0
    (run,) = result["runs"]
    assert run["drift_ppm"] == pytest.approx(150, abs=20)
    assert run["residual_s"] < 0.005
    after = load_observations()
    assert len(after) == len(before)
    assert not any(one.is_pending for one in after)
    estimate = recorded.json("estimate", *PROFILED, "--device", "simulated-7")
    truth_j = next(
        devices[0].true_cost(one.trial).energy_j
        for one in after
        if one.trial.network.name == PROFILED[0] and one.trial.execution.is_user_step
    )
    assert estimate["energy_j"] == pytest.approx(truth_j, rel=0.15)


def test_rest_of_a_campaign_waits_for_its_own_trace(recorded, devices):
    write_trace(recorded.folder / "half.csv", devices[0], share=0.5)
    first = recorded("data", "attach", "half.csv")
    assert "Refused: " in first.stdout
    assert "the trace ends" in first.stdout
    assert "still wait for a trace" in first.stdout
    write_trace(recorded.folder / "whole.csv", devices[0], Instrument(offset_s=9.0))
    assert recorded.json("data", "attach", "whole.csv")["pending"] == 0
    assert "waits for a trace" in recorded.fails("data", "attach", "whole.csv")
    sources = {one.source for one in load_observations()}
    assert {"half.csv", "whole.csv"} <= sources


def test_trace_of_something_else_changes_nothing(recorded, devices, write):
    times = np.arange(0, 60, 0.005)
    rows = (f"{time!r},{5.0 + time % 3!r}" for time in times.tolist())
    write("other.csv", "\n".join(["time,watts", *rows]))
    assert "recorded during this run" in recorded.fails("data", "attach", "other.csv")
    write("words.csv", "once,upon\na,time\n")
    assert "no columns of time and power" in recorded.fails("data", "attach", "words.csv")
    assert "there is no file" in recorded.fails("data", "attach", "missing.csv")


def test_recorder_is_refused_where_joules_are_needed_now(shell):
    for words in (
        ("measure", "--meter", "later", "--", "true"),
        ("evaluate", "lenet5", "--on", "simulated:7", "--meter", "later"),
    ):
        assert "give a meter of `joulecast detect`" in shell.fails(*words)
    assert "waits for a trace" in shell.fails("data", "attach", "trace.csv")
    atlas = shell("profile", "--atlas", "--on", "simulated:7", "--meter", "later", code=1)
    assert "give a meter of `joulecast detect`" in atlas.stderr
