"""The runtime of examples/numpy_runtime, installed as a user does and found by its entry point."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from joulecast.cli.main import cli
from joulecast.records import Execution, Input, Layer, Network, Op, Setup, Sizes, Trial
from joulecast.runtimes import join_runtime, name_framework, open_runtime
from joulecast.system.errors import InputError, NetError, OutOfMemoryError
from joulecast.system.plugins import load_plugins
from joulecast.testing.runtimes import SMALL, RuntimeContract

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/numpy_runtime"
PAGE = ROOT / "docs/how-to/runtime.md"
MOST_LINES = 300


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build and install the package with pip, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    words = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", *words, "--target", str(folder), str(EXAMPLE)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def numpy_runtime(site, monkeypatch):
    """Return the installed module."""
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    load_plugins.cache_clear()
    yield importlib.import_module("numpy_runtime")
    load_plugins.cache_clear()


def make_linear(cin, cout, fn="", bias=1, **fields):
    sizes = {"cin": cin, "cout": cout, "bias": bias, "lead": ()}
    activation = Sizes({"fn": fn, "inputs": 1, "params": 0, "passes": 1, "axes": ()})
    tail = (Op("elementwise", activation),) if fn else ()
    return Layer("linear", Sizes(sizes), tail=tail, **fields)


MLP = Network(
    (
        make_linear(12, 8, "relu", input_grad=False),
        make_linear(8, 8, "tanh", bias=0),
        make_linear(8, 8, "sigmoid"),
        make_linear(8, 5),
    ),
    Input((12,)),
)
SETUP = Setup(batch=4, threads=1)


@pytest.mark.usefixtures("numpy_runtime")
class TestNumpyRuntime(RuntimeContract):
    small = Trial(MLP, SETUP)

    def make_runtime(self):
        return open_runtime("numpy")

    def make_huge_trial(self):
        return Trial(Network((make_linear(10**6, 10**6),), Input((10**6,))), SETUP)


def test_example_is_short():
    assert len((EXAMPLE / "numpy_runtime.py").read_text().splitlines()) < MOST_LINES


def test_entry_point_adds_a_framework(numpy_runtime):
    assert join_runtime("numpy") == "numpy"
    assert join_runtime("numpy", "cpu") == "numpy:cpu"
    assert name_framework("numpy:cpu") == "numpy"
    assert open_runtime("numpy").name == f"numpy-{np.__version__}"
    with pytest.raises(InputError, match="not a device of PyTorch"):
        join_runtime("torch", "numpy")
    with pytest.raises(InputError, match="processor only"):
        open_runtime("numpy:gpu")


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        (SMALL, NetError, "NumPy cannot train layer conv1: conv2d"),
        (Trial(MLP, Setup(precision="bf16")), InputError, "fp32"),
        (Trial(MLP, SETUP, Execution(mode="graph")), InputError, "use eager"),
    ],
)
def test_what_it_cannot_train_is_refused_by_name(numpy_runtime, trial, error, message):
    with pytest.raises(error, match=message):
        open_runtime("numpy").prepare(trial)


def test_memory_is_counted_before_it_is_allocated(numpy_runtime):
    with pytest.raises(OutOfMemoryError, match="smaller batch"):
        open_runtime("numpy").prepare(TestNumpyRuntime().make_huge_trial())


def test_gradients_are_those_of_pytorch(numpy_runtime):
    torch = pytest.importorskip("torch")
    chain = numpy_runtime.Chain(MLP, SETUP, False, np.random.default_rng(3))
    loss = chain.forward()
    chain.backward()
    x = torch.tensor(chain._x)
    weights = [torch.tensor(one.value, requires_grad=True) for one in chain.weights]
    w1, b1, w2, w3, b3, w4, b4 = weights
    x = torch.tanh(torch.relu(x @ w1.T + b1) @ w2.T)
    x = torch.sigmoid(x @ w3.T + b3) @ w4.T + b4
    expected = torch.nn.functional.cross_entropy(x, torch.tensor(chain._targets))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(chain.weights, weights, strict=True):
        assert ours.gradient == pytest.approx(theirs.grad.numpy(), abs=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_optimizers_are_those_of_pytorch(numpy_runtime, optimizer):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weight = numpy_runtime.Weight(rng, (4, 3), 3)
    tensor = torch.tensor(weight.value.copy(), requires_grad=True)
    makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    extra = {"momentum": 0.9} if optimizer == "sgd" else {}
    theirs = makers[optimizer]([tensor], lr=0.05, **extra)
    for _ in range(3):
        weight.gradient = rng.normal(size=(4, 3)).astype(np.float32)
        tensor.grad = torch.tensor(weight.gradient)
        weight.update(optimizer, 0.05)
        theirs.step()
    assert weight.value == pytest.approx(tensor.detach().numpy(), abs=1e-5)


def list_printed_commands():
    """Return the commands of the page, shortened."""
    block = re.search(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    lines = block.replace("--seconds 120", "--points 2").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("joulecast ")]


def test_page_runs_as_printed(numpy_runtime, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JOULECAST_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("JOULECAST_ROUNDS", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    results = {}
    for words in list_printed_commands():
        done = CliRunner().invoke(cli, [*words, "--json"])
        assert done.exit_code == 0, done.output
        results[words[0]] = json.loads(done.stdout)
    framework = f"numpy-{np.__version__}"
    assert results["measure"]["runtime"] == framework
    assert results["profile"]["profile"]["runtime"] == framework
    assert results["estimate"]["runtime"] == framework
    # The network was measured as a whole; other programs may slow the rest down.
    ratio = results["estimate"]["duration_s"] / results["measure"]["duration_s"]
    assert 1 / 3 < ratio < 3
