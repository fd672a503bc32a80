"""Measure kernels alone, networks of families, and the nets of the benchmark in ONNX Runtime.

    python benchmarks/inference_cpu/measure.py OUT [--precision fp32] [--passes 3] [--seconds N]

Kernels are visited in random order, several times; whole networks are visited between them all the
time, so that a change of the machine's pace affects both alike. A visit is the fastest of several
short windows. OUT/visits.json keeps every visit.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from inference_nets import DEVELOPMENT_NETS, TEST_NETS, Net, make_net
from kernel_pool import RUNTIME, SEED, draw_kernels

from joulecast.devices import detect_device
from joulecast.errors import JoulecastError
from joulecast.estimators.kernels.kernel_points import make_overhead_trial
from joulecast.families import make_family
from joulecast.fusion import FusedKernel, find_fusion_table, list_kernels, merge_kernels
from joulecast.records import Execution, Network, Setup, Trial
from joulecast.runtimes import Step, open_runtime
from joulecast.runtimes.onnx.own_file import OnnxFile
from joulecast.runtimes.onnx_files.net_file import read_onnx_net
from joulecast.runtimes.torch.losses import mean_square_loss
from joulecast.runtimes.torch.net_reader import read_net

WINDOW_S = 0.015
WINDOWS = 6
NET_WINDOW_S = 0.06
OPSET = 18
# Copies of a kernel have so many bytes of weights together, within bounds: more than a cache holds.
TARGET_BYTES = 32e6
FEWEST_COPIES, MOST_COPIES = 3, 8
# Whole networks of other architectures than those of the nets, as a profile has some.
FAMILIES = ("alexnet", "densenet", "googlenet", "mobilenetv1", "squeezenet", "cnn5", "transformer")
KERNELS_BETWEEN_NETS = 90


@dataclass
class Item:
    """Something that is visited."""

    group: str
    name: str
    trial: Trial
    prepare: Callable[[], Step]
    visits: list[float] = field(default_factory=list)
    refusal: str = ""

    def visit(self, window_s: float) -> None:
        """Add the seconds of one run: the fastest of several windows."""
        if self.refusal:
            return
        try:
            step = self.prepare()
        except JoulecastError as error:
            self.refusal = str(error)
            return
        try:
            self.visits.append(time_step(step, window_s))
        finally:
            step.close()

    def to_dict(self) -> dict[str, Any]:
        """Return what is kept of it."""
        found: dict[str, Any] = {"group": self.group, "name": self.name}
        found["trial"] = self.trial.to_dict()
        found["visits_s"] = [float(f"{one:.5g}") for one in self.visits]
        return {**found, "refusal": self.refusal} if self.refusal else found


def time_step(step: Step, window_s: float) -> float:
    """Return the seconds of one run of a step."""
    started_s = time.perf_counter()
    step.run(2)
    one_s = (time.perf_counter() - started_s) / 2
    count = max(1, round(window_s / one_s))
    step.run(count)
    fastest_s = float("inf")
    for _ in range(WINDOWS):
        started_s = time.perf_counter()
        step.run(count)
        fastest_s = min(fastest_s, (time.perf_counter() - started_s) / count)
    return fastest_s


def list_kernel_items(setup: Setup, seed: int) -> Iterator[Item]:
    """Return the drawn kernels, and an empty graph."""
    runtime = open_runtime("onnx:cpu")
    overhead = make_overhead_trial(setup)
    yield Item("overhead", "empty graph", overhead, partial(runtime.prepare, overhead))
    for kernel in draw_kernels(setup, seed):
        trial = make_kernel_trial(kernel, setup)
        yield Item("kernel", kernel.kind, trial, partial(runtime.prepare, trial))


def list_own_items(setup: Setup, networks: Sequence[Network]) -> Iterator[Item]:
    """Return the kernels of the nets themselves, for the second table."""
    runtime, table = open_runtime("onnx:cpu"), find_fusion_table(RUNTIME, setup)
    listed = (kernel for one in networks for kernel in list_kernels(one, setup, table))
    for kernel in merge_kernels(listed):
        if kernel.network.buildable:
            trial = make_kernel_trial(kernel, setup)
            yield Item("own", kernel.kind, trial, partial(runtime.prepare, trial))


def make_kernel_trial(kernel: FusedKernel, setup: Setup) -> Trial:
    """Return the trial of a kernel alone, in copies with weights of their own."""
    weights_bytes = 4.0 * max(kernel.params, 1)
    copies = min(MOST_COPIES, max(FEWEST_COPIES, round(TARGET_BYTES / weights_bytes)))
    return Trial(kernel.network, setup, Execution(copies=copies, upstream="random"))


def list_family_items(setup: Setup) -> Iterator[Item]:
    """Return the networks of families."""
    runtime = open_runtime("onnx:cpu")
    for name in FAMILIES:
        trial = Trial(make_family(name), setup)
        yield Item("family", name, trial, partial(runtime.prepare, trial))


def export_net(net: Net, folder: Path) -> tuple[Path, Network, Network]:
    """Return a net's ONNX file, and its network as read from the file and from the module."""
    path = folder / f"{net.name}.onnx"
    torch.onnx.export(net.module, (net.inputs,), path, dynamo=False, opset_version=OPSET)
    from_file = read_onnx_net(str(path), None, 1).network
    from_module = read_net(net.module, net.inputs, mean_square_loss, net.name)
    return path, replace(from_file, name=net.name), from_module


def list_net_items(
    setup: Setup, folder: Path, is_test: bool
) -> Iterator[tuple[Item, dict[str, Any]]]:
    """Return the nets of the benchmark as exported files, and their networks by reader."""
    runtime = open_runtime("onnx:cpu")
    for make in TEST_NETS if is_test else DEVELOPMENT_NETS:
        net = make_net(make)
        path, from_file, from_module = export_net(net, folder)
        trial, file = Trial(from_file, setup), OnnxFile(path)
        read = {"onnx": from_file.to_dict(), "torch": from_module.to_dict()}
        group = "test" if is_test else "development"
        item = Item(group, net.name, trial, partial(file.prepare, runtime, trial))
        yield item, {"name": net.name, "group": group, **read}


def visit_all(kernels: list[Item], nets: list[Item], passes: int, until_s: float) -> None:
    """Visit everything, until all is done or the time is over."""
    for number in range(passes):
        order = random.Random(number).sample(kernels, len(kernels))
        for place, item in enumerate(order):
            if place % KERNELS_BETWEEN_NETS == 0:
                for net in nets:
                    net.visit(NET_WINDOW_S)
            if time.monotonic() > until_s:
                return
            item.visit(WINDOW_S)
        print(f"pass {number + 1} of {passes} is done", flush=True)


def describe_machine() -> dict[str, Any]:
    """Return what is to be known about the measurements."""
    device = detect_device("cpu")
    return {
        "processor": device.processor,
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "torch": torch.__version__,
        "seed": SEED,
        "began": time.strftime("%Y-%m-%d %H:%M"),
    }


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--development", action="store_true", help="without the six nets")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    setup = Setup(batch=1, phase="inference", precision=options.precision, threads=1)
    machine = describe_machine()
    until_s = time.monotonic() + options.seconds
    read: list[dict[str, Any]] = []
    nets: list[Item] = []
    for is_test in (False,) if options.development else (False, True):
        for item, networks in list_net_items(setup, options.out, is_test):
            nets.append(item)
            read.append(networks)
    own = [*list_own_items(setup, [item.trial.network for item in nets])]
    nets += list_family_items(setup)
    kernels = [*list_kernel_items(setup, options.seed), *own]
    print(f"{len(kernels)} kernels, {len(nets)} networks", flush=True)
    visit_all(kernels, nets, options.passes, until_s)
    machine["ended"] = time.strftime("%Y-%m-%d %H:%M")
    rows = [item.to_dict() for item in (*kernels, *nets) if item.visits or item.refusal]
    found = {"machine": machine, "setup": setup.to_dict(), "items": rows}
    (options.out / "visits.json").write_text(json.dumps(found), encoding="utf-8")
    (options.out / "networks.json").write_text(json.dumps(read), encoding="utf-8")


if __name__ == "__main__":
    main()
