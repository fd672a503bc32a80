"""Logs of runs: formats as their tools write them, and refusals that name the line."""

import pytest

from joulecast.system.errors import FileError
from joulecast.traces.run_logs import read_run_log

# The header and a row of a public emissions.csv, CodeCarbon 2.4.2.
CODECARBON = """\
timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,\
cpu_energy,gpu_energy,ram_energy,energy_consumed,country_name,country_iso_code,region,\
cloud_provider,cloud_region,os,python_version,codecarbon_version,cpu_count,cpu_model,gpu_count,\
gpu_model,longitude,latitude,ram_total_size,tracking_mode,on_cloud,pue
2024-05-27T11:31:35,codecarbon,979336a5,299.7817449569702,0.016563636840486076,5.52e-05,42.5,\
302.3,31.3,0.0035390833232137897,0.027742843305368026,0.00260613401381208,0.03388806064239389,\
Singapore,SGP,,,,Linux,3.10.12,2.4.2,12,Intel(R) Xeon(R) CPU @ 2.20GHz,1,\
1 x NVIDIA A100-SXM4-40GB,103.8503,1.2868,83.4,machine,N,1.0
"""
ZEUS = """\
start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy
1700000000.5,epoch,12.5,1000.5,20.0
1700000013.0,step,0.1,10.0,1.0
"""
# As tracker.py writes it and parser.py reads it.
CARBONTRACKER = """
CarbonTracker:
Actual consumption for 1 epoch(s):
\tTime:\t0:00:10
\tEnergy:\t0.000038 kWh
\tCO2eq:\t0.003130 g
CarbonTracker:
Predicted consumption for 1000 epoch(s):
\tTime:\t2:52:22
\tEnergy:\t0.038168 kWh
CarbonTracker:
Actual consumption for 3 epoch(s):
\tTime:\t1:02:03.50
\tEnergy:\t0.000114 kWh
\tCO2eq:\t0.009 g
"""


@pytest.fixture
def write(tmp_path):
    def put(text):
        path = tmp_path / "log"
        path.write_text(text)
        return path

    return put


def test_codecarbon(write):
    log = read_run_log(write(CODECARBON))
    (run,) = log.runs
    assert (log.tool, log.covers) == ("codecarbon", "cpu+gpu+ram")
    assert run.energy_j == pytest.approx(0.03388806064239389 * 3.6e6)
    assert run.duration_s == pytest.approx(299.78, abs=0.01)
    assert run.device == "1 x NVIDIA A100-SXM4-40GB"
    assert run.net == "codecarbon"


def test_zeus_adds_up_gpus(write):
    log = read_run_log(write(ZEUS))
    assert (log.tool, log.covers) == ("zeus", "gpu")
    assert [(run.window, run.energy_j, run.duration_s) for run in log.runs] == [
        ("epoch", 1020.5, 12.5),
        ("step", 11.0, 0.1),
    ]


def test_carbontracker_has_what_was_consumed_last_and_not_what_was_predicted(write):
    log = read_run_log(write(CARBONTRACKER))
    (run,) = log.runs
    assert log.tool == "carbontracker"
    assert run.energy_j == pytest.approx(0.000114 * 3.6e6)
    assert run.duration_s == 3723.5
    assert run.epochs == 3


def test_csv_with_its_own_setups(write):
    text = "net,energy_kwh,duration_s,steps,batch,precision\nlenet5,0.001,9.5,100,32,fp32\n"
    (run,) = read_run_log(write(text)).runs
    assert (run.net, run.energy_j, run.duration_s, run.steps) == ("lenet5", 3600.0, 9.5, 100)
    assert run.setup == {"batch": "32", "precision": "fp32"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n", "no known format"),
        ("net,energy_j\nlenet5,3\n", "no column duration_s"),
        ("net,duration_s\nlenet5,3\n", "no column energy_j"),
        ("net,energy_j,duration_s\nlenet5,-3,1\n", "line 2: energy_j is '-3'"),
        ("net,energy_j,duration_s\nlenet5,3,inf\n", "line 2: duration_s is 'inf'"),
        ("net,energy_j,duration_s\nlenet5,3\n", "line 2 has 2 cells instead of 3"),
        ("net,energy_j,duration_s,steps\nlenet5,3,1,1.5\n", "steps is '1.5'"),
        ("net,energy_j,duration_s\n", "has no runs"),
        ("start_time,window_name,elapsed_time\n1,a,2\n", "no column gpu0_energy"),
    ],
)
def test_other_files_are_refused(write, text, reason):
    with pytest.raises(FileError, match=reason):
        read_run_log(write(text))
