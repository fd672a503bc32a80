"""The device side in one file: complete, the same every time, and enough for a bare Python."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import joulecast
from agent_processes import make_trial
from joulecast.agent.messages import AgentRequest, encode_message
from joulecast.features.agent_bundle import DEVICE_SIDE, bundle_agent, list_device_modules
from joulecast.records import Setup, Trial

PACKAGE = Path(joulecast.__file__).parent
# Current Jetsons have 3.10.
VERSIONS = ("3.10", "3.13")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "agent.pyz"
    assert bundle_agent(str(path)) == path.stat().st_size
    return path


def measure(command, trial):
    """Return the answer of an agent that is asked for one measurement, far from the sources."""
    request = AgentRequest("0" * 8, "measure", trial, rounds=1)
    done = subprocess.run(
        [*command, "--stdio"],
        input=encode_message(request) + b"\n",
        capture_output=True,
        timeout=120,
        check=True,
        cwd="/",
    )
    return json.loads(done.stdout)


def list_imports(name):
    """Yield the modules of Joulecast that a module imports, also within functions."""
    for node in ast.walk(ast.parse((PACKAGE / name).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joulecast"):
            yield from [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("joulecast"))


def test_bundle_contains_all_that_it_imports():
    modules = list_device_modules()
    assert len(modules) > 80
    foreign = {
        f"{name}: {one}"
        for name in modules
        for one in list_imports(name)
        if one != "joulecast" and one.split(".")[1] not in DEVICE_SIDE
    }
    assert not foreign


def test_device_side_is_written_for_the_python_of_jetsons():
    for name in list_device_modules():
        ast.parse((PACKAGE / name).read_text(), name, feature_version=(3, 10))


def test_bundle_can_be_run_as_a_program(bundle):
    assert os.access(bundle, os.X_OK)
    done = subprocess.run([bundle, "--help"], capture_output=True, text=True, check=True)
    assert "Measure trials" in done.stdout + done.stderr


def find_python(version):
    """Return an interpreter of a version: on the path, or beside the one that runs the tests."""
    beside = Path(sys.base_prefix).parent.glob(f"*{version}*/bin/python{version}")
    for found in (shutil.which(f"python{version}"), *beside):
        if found and not subprocess.run([found, "-V"], check=False, capture_output=True).returncode:
            return found
    return None


@pytest.mark.parametrize("version", VERSIONS)
def test_bare_interpreter_measures(bundle, version):
    python = find_python(version) or sys.executable
    # Neither packages, nor variables, nor the current folder.
    answer = measure([python, "-S", "-I", str(bundle), "--on", "simulated:3"], make_trial())
    assert answer["observation"]["energy_j"] > 0
    assert answer["observation"]["device"]["name"] == "simulated-3"


def test_bare_interpreter_says_which_framework_is_missing(bundle):
    done = subprocess.run(
        [sys.executable, "-S", "-I", bundle, "--on", "cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "needs PyTorch" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bundle_measures_with_the_framework_of_the_device(bundle):
    pytest.importorskip("MNN")
    trial = Trial(make_trial().network, Setup(batch=8, threads=1))
    command = [sys.executable, "-I", str(bundle), "--on", "mnn:cpu", "--meter", "modelled"]
    answer = measure(command, trial)
    assert answer["observation"]["runtime"].startswith("mnn")
    assert answer["observation"]["energy_j"] > 0


def test_command_writes_the_same_bundle(bundle, shell):
    assert "Wrote agent.pyz" in shell("fleet", "bundle", "agent.pyz").stdout
    assert (shell.folder / "agent.pyz").read_bytes() == bundle.read_bytes()
    assert "cannot be written" in shell.fails("fleet", "bundle", "none/agent.pyz")
