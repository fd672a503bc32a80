"""Measure and estimate the networks of benchmarks/anywhere, network by network.

    python benchmarks/anywhere/run.py --on cuda:0 --out OUT --until-s 560 [--networks second]
    python benchmarks/anywhere/run.py --stage rivals --out OUT         needs no device
    python benchmarks/anywhere/run.py --on cpu --tiny --out OUT        a dry run

    shipped   read the module and estimate it from the shipped profile
    truth     a plain PyTorch training loop under the energy meter
    probed    estimate with probes of the module's layers on the device, in a store of its own
    rivals    estimate what ``shipped`` read by other estimators, from the same profile

What is done is not done again; a failure is recorded and counts as done, unless ``--retry``. After
a CUDA error nothing more can be measured in the process: it ends with exit code 3, and ``run.sh``
starts it again.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
from development import DEVELOPMENT
from estimates import (
    DEVICE,
    UNNAMED,
    Rivals,
    estimate_probed,
    estimate_shipped,
    read_network,
)
from fourth_networks import FOURTH_NETWORKS
from networks import NETWORKS
from result_files import RunFolder, open_folder
from second_networks import SECOND_NETWORKS
from third_networks import THIRD_NETWORKS
from truth import TINY, TruthRules, measure_truth

import joulecast
from joulecast.devices import detect_device, find_gpu
from joulecast.meters import Meter, make_meter
from joulecast.testing.commits import find_commit
from training_examples import BenchmarkNetwork, TrainingExample

Json = dict[str, Any]

TABLES = {
    "first": NETWORKS,
    "second": SECOND_NETWORKS,
    "third": THIRD_NETWORKS,
    "fourth": FOURTH_NETWORKS,
    "development": DEVELOPMENT,
}
DEVICE_STAGES = ("shipped", "truth", "probed")
STAGES = (*DEVICE_STAGES, "rivals")
CUDA_ERROR_CODE = 3


def main() -> None:
    """Do what is missing until the time is spent, then print a table."""
    args = parse_arguments()
    table = TABLES[args.networks]
    unknown = set(args.only) - {entry.name for entry in table}
    if unknown:
        sys.exit(f"no network {', '.join(sorted(unknown))}: give names of the table")
    folder = open_folder(args.out)
    with ExitStack() as stack:
        runner = Runner(args, folder, stack, started_s=time.monotonic())
        for entry in table:
            if args.only and entry.name not in args.only:
                continue
            if runner.is_over():
                print("The time is over: run the same command to resume.", flush=True)
                break
            runner.run_network(entry)
    print_table(folder, table)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of this run's files")
    parser.add_argument("--on", default="cuda:0", help="device of truth and probes")
    parser.add_argument("--stage", choices=STAGES, nargs="+", default=DEVICE_STAGES)
    parser.add_argument("--device", default=DEVICE, help="device whose shipped profile is used")
    parser.add_argument("--only", nargs="+", default=[], help="names of networks")
    parser.add_argument("--networks", choices=TABLES, default="first", help="which test's networks")
    parser.add_argument("--until-s", type=float, default=1e9, help="start no stage after this time")
    parser.add_argument("--probe-seconds", type=float, help="longest duration of a probe")
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    parser.add_argument("--tiny", action="store_true", help="small batches, to try the script")
    return parser.parse_args()


@dataclass
class Runner:
    """Runs the stages of networks and stores what they find."""

    args: argparse.Namespace
    folder: RunFolder
    stack: ExitStack
    started_s: float
    meter: Meter | None = None
    rivals: Rivals | None = None
    example: tuple[str, TrainingExample] | None = None

    def is_over(self) -> bool:
        """Return whether no stage may start any more."""
        return bool(time.monotonic() - self.started_s > self.args.until_s)

    def run_network(self, entry: BenchmarkNetwork) -> None:
        """Run the stages of a network that are missing."""
        batch = entry.tiny_batch if self.args.tiny else entry.batch
        how = {"batch": batch, "precision": entry.precision, "optimizer": entry.optimizer}
        if self.folder.results.get(entry.name, {}).get("setup", how) != how:
            sys.exit(f"{entry.name} is in {self.folder.path} with another setup: give a new --out")
        self.folder.add_stage(entry.name, "setup", how)
        self.folder.add_stage(entry.name, "about", {"domain": entry.domain})
        for stage in self.args.stage:
            if self.is_done(entry.name, stage) or self.is_over():
                continue
            if stage == "rivals" and entry.name not in self.folder.networks:
                print(f"{entry.name} {stage}: run the stage shipped first", flush=True)
                continue
            if stage != "rivals" and not entry.is_available:
                print(f"{entry.name} {stage}: {entry.library} is not installed", flush=True)
                continue
            started_s = time.monotonic()
            self.run_stage(entry, stage)
            free_memory()
            found = self.folder.results[entry.name][stage]
            outcome = found.get("error", "done")
            print(
                f"{entry.name} {stage}: {outcome}, {time.monotonic() - started_s:.1f} s", flush=True
            )

    def is_done(self, name: str, stage: str) -> bool:
        """Return whether a stage needs no run; probes and truth must be of the same card."""
        found = self.folder.results.get(name, {})
        if stage not in found or (self.args.retry and "error" in found[stage]):
            return False
        needs_probe = "probed" in self.args.stage and not self.is_done_once(found, "probed")
        if stage == "truth" and needs_probe:
            return bool(found["truth"].get("unit") == find_unit(self.args.on))
        return True

    def is_done_once(self, found: Json, stage: str) -> bool:
        """Return whether a stage has a result that stands."""
        return stage in found and not (self.args.retry and "error" in found[stage])

    def run_stage(self, entry: BenchmarkNetwork, stage: str) -> None:
        """Run a stage and store its result, or why it failed."""
        run = {
            "shipped": self.run_shipped,
            "truth": self.run_truth,
            "probed": self.run_probed,
            "rivals": self.run_rivals,
        }
        try:
            found = run[stage](entry)
        except Exception as error:  # one network must not end the run
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        if stage != "rivals":
            found |= describe_place(self.args.on if stage != "shipped" else "")
        self.folder.add_stage(entry.name, stage, found)
        if "CUDA error" in found.get("error", ""):
            sys.stdout.flush()
            os._exit(CUDA_ERROR_CODE)

    def run_shipped(self, entry: BenchmarkNetwork) -> Json:
        """Read the module and estimate it from the shipped profile."""
        network, setup, read_s = read_network(entry, self.build_example(entry))
        self.folder.add_network(entry.name, network, setup)
        found = estimate_shipped(network, setup, self.args.device)
        return {**found, "read_s": read_s, "profile_units": list_units(self.args.device)}

    def run_truth(self, entry: BenchmarkNetwork) -> Json:
        """Measure the user's training loop; keep an earlier truth of another card."""
        before = self.folder.results[entry.name].get("truth")
        if before and "error" not in before:
            self.folder.add_stage(entry.name, "earlier_truth", before)
        rules = TINY if self.args.tiny else TruthRules()
        return measure_truth(entry, self.args.on, self.open_meter(), rules, self.args.tiny)

    def run_probed(self, entry: BenchmarkNetwork) -> Json:
        """Estimate with probes on the device."""
        if self.meter is not None:
            self.meter.close()
            self.meter = None
        found, observations = estimate_probed(
            entry, self.build_example(entry), self.args.on, self.args.probe_seconds
        )
        self.folder.add_probes(entry.name, observations)
        return found

    def run_rivals(self, entry: BenchmarkNetwork) -> Json:
        """Estimate by all other estimators, as the network was read."""
        if self.rivals is None:
            self.rivals = Rivals(joulecast.load_profile(self.args.device))
        return self.rivals.estimate(*self.folder.load_network(entry.name))

    def build_example(self, entry: BenchmarkNetwork) -> TrainingExample:
        """Build the module on the processor, once for all stages of a network."""
        if self.example is None or self.example[0] != entry.name:
            self.example = None
            self.example = entry.name, entry.build(tiny=self.args.tiny)
        return self.example[1]

    def open_meter(self) -> Meter:
        """Return the open meter of the device."""
        if self.meter is None:
            gpu = find_gpu(self.args.on) if self.args.on.startswith("cuda") else None
            self.meter = make_meter("auto", self.args.on, gpu)
            self.meter.open()
            self.stack.callback(self.meter.close)
        return self.meter


def free_memory() -> None:
    """Give the memory of the last network back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def describe_place(on: str) -> Json:
    """Return where and when a stage ran; without a device, only when."""
    facts = {
        "torch": torch.__version__,
        "commit": find_commit(__file__),
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return {**facts, "device": detect_device(on).name, "unit": find_unit(on)} if on else facts


def find_unit(on: str) -> str:
    """Return what identifies this very device among others of its type."""
    return detect_device(on).unit


@cache
def list_units(device: str) -> list[str]:
    """Return the devices that a profile was measured on."""
    profile = joulecast.load_profile(device)
    return sorted({one.device.unit or UNNAMED for one in profile.observations})


def print_table(folder: RunFolder, table: tuple[BenchmarkNetwork, ...]) -> None:
    """Print what is done. Errors of estimates are the report's."""
    print(f"{'network':24} {'batch':>6} {'truth J':>9} {'ms':>8} {'W':>5} {'spread %':>8}  left")
    for entry in table:
        found = folder.results.get(entry.name, {})
        truth = found.get("truth", {})
        failed = [stage for stage in STAGES if "error" in found.get(stage, {})]
        left = [stage for stage in STAGES if stage not in found]
        state = " ".join([*left, *(f"{stage}:failed" for stage in failed)])
        row = f"{entry.name:24} {entry.batch:6}"
        if "energy_j" in truth:
            row += f" {truth['energy_j']:9.3f} {1e3 * truth['duration_s']:8.2f}"
            row += f" {truth['power_w']:5.0f} {100 * truth['energy_spread_share']:8.1f}"
        else:
            row += f" {'-':>9} {'-':>8} {'-':>5} {'-':>8}"
        print(f"{row}  {state}", flush=True)


if __name__ == "__main__":
    main()
