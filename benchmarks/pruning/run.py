"""Whether pruning keeps its budget: twenty networks pruned to half of their energy, and measured.

    python -m benchmarks.pruning.run --on cuda:0 --out DIR --until-s 280
    python -m benchmarks.pruning.run --on simulated:7 --out DIR
    python -m benchmarks.pruning.run --report DIR

The protocol is in README.md. The same command resumes: rows are written one by one. Choosing takes
processors, measuring the device: other processes choose for the next seeds in the meantime.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import fmean
from typing import Any

from joulecast.features.channel_search import Counts, PruneOptions, prune_network
from joulecast.features.measurers import MeasureOptions, lock_device, open_any_measurer
from joulecast.features.nets import NetRequest, ResolvedNet
from joulecast.features.profile import ProfileOptions, run_profiling
from joulecast.features.prune_report import PruningResult
from joulecast.features.run import RunLength, parse_budget
from joulecast.operators.channel_groups import ChannelGroup, ChannelSlot, narrow_network
from joulecast.records import Network, Observation, Setup, Trial
from joulecast.store.files import read_profile, write_profile
from joulecast.system.errors import JoulecastError

Json = dict[str, Any]
WIDTHS, SIZE, BUDGET = (64, 128, 256, 512), 64, "50%"
SEEDS, PROFILE_S = 20, 40.0
# Options of each guide, and whether it is verified.
GUIDES = {
    "verified": (PruneOptions(), True),
    "not verified": (PruneOptions(), False),
    "walk": (PruneOptions(strategy="walk", confidence=0.5), False),
}
Measure = Callable[[Network, int], Observation]
"""Measures a step of a network in a number of windows."""


def make_setup(on: str) -> Setup:
    """Return how all networks are trained: as those of Fig. 13."""
    return Setup(batch=512, precision="tf32" if on.startswith("cuda") else "fp32")


def read_widest() -> Network:
    """Return the network of Fig. 13: four convolutions and a linear layer."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for inside, width in zip((3, *WIDTHS), WIDTHS, strict=False):
        layers += [nn.Conv2d(inside, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    space = (SIZE // 2 ** len(WIDTHS)) ** 2
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(WIDTHS[-1] * space, 2))
    network = NetRequest(module, torch.zeros(2, 3, SIZE, SIZE)).resolve()[0].network
    return replace(network, name="faces", totals=None)


def make_groups(network: Network) -> tuple[ChannelGroup, ...]:
    """Return a group for each convolution, with all channels alike."""
    groups = []
    for place, layer in enumerate(network.layers[:-1]):
        width, following = layer.sizes["cout"], network.layers[place + 1].sizes["cin"]
        slots = (
            ChannelSlot(place, 0, "cout", -1, 1),
            ChannelSlot(place + 1, 0, "cin", -1, following // width),
        )
        groups.append(ChannelGroup(layer.name, 1, (), slots, (1.0 / width,) * width))
    return tuple(groups)


def draw_seed(widest: Network, seed: int) -> tuple[Network, tuple[ChannelGroup, ...]]:
    """Return a network of random widths, and its groups with random importance."""
    rng, groups = random.Random(f"pruning {seed}"), make_groups(widest)
    widths = {one.name: rng.randint(one.channels // 2, one.channels) for one in groups}
    drawn = []
    for group in groups:
        scores = [rng.lognormvariate(0.0, 0.5) for _ in range(widths[group.name])]
        importance = tuple(score / sum(scores) for score in scores)
        drawn.append(replace(group, importance=importance))
    return narrow_network(widest, groups, widths), tuple(drawn)


def profile(folder: Path, on: str, widest: Network) -> None:
    """Profile the device for networks of these widths and narrower ones, once."""
    rng, groups = random.Random("pruning profile"), make_groups(widest)
    members = [widest]
    for _ in range(12):
        counts = {one.name: rng.randint(one.channels // 10, one.channels) for one in groups}
        members.append(narrow_network(widest, groups, counts))
    setup = make_setup(on)
    net = ResolvedNet(widest, setup.batch, draw_members=lambda: tuple(members))
    options = ProfileOptions(seconds=PROFILE_S)
    store = str(folder / "store.sqlite")
    found = run_profiling(net, setup, MeasureOptions(on, rounds=1), options, store)[1]
    write_profile(found, str(folder / "profile.json"))


def choose(folder: Path, on: str, seed: int, guides: list[str], pipe: Connection) -> None:
    """Choose by each guide; what has to be measured is asked for through a pipe."""
    network, groups = draw_seed(read_widest(), seed)
    known, setup = read_profile(str(folder / "profile.json")), make_setup(on)

    def measure(counts: Counts, pruned: Network) -> Observation:
        pipe.send((pruned, None))
        found: Observation = pipe.recv()
        return found

    results: dict[str, PruningResult | str] = {}
    for name in guides:
        options, is_verified = GUIDES[name]
        question = (network, groups, setup, parse_budget(BUDGET, RunLength()), known)
        options = replace(options, seed=seed)
        try:
            found = prune_network(*question, options, measure if is_verified else None)
            results[name] = found
        except JoulecastError as error:
            results[name] = str(error)
    pipe.send((network, results))


def run_seeds(
    folder: Path,
    on: str,
    measure: Measure,
    until_s: float,
    workers: int,
    used: Sequence[str] = tuple(GUIDES),
) -> None:
    """Let workers choose, measure what they ask for, and write the rows of finished seeds."""
    context = multiprocessing.get_context("spawn")
    done = {(row["seed"], row["guide"]) for row in read_rows(folder)}
    waiting = {
        seed: [one for one in used if (seed, one) not in done] for seed in range(1, SEEDS + 1)
    }
    queue = [(seed, guides) for seed, guides in waiting.items() if guides]
    pipes: dict[Any, tuple[int, Any]] = {}
    try:
        while queue or pipes:
            while queue and len(pipes) < workers:
                seed, guides = queue.pop(0)
                here, there = context.Pipe()
                process = context.Process(target=choose, args=(folder, on, seed, guides, there))
                process.start()
                there.close()
                pipes[here] = seed, process
            # The first seeds first, so that their rows are soon complete.
            pipe: Any = min(wait(list(pipes)), key=lambda one: pipes[one][0])
            network, results = pipe.recv()
            if results is None and time.monotonic() > until_s:
                print("the time is spent: run it again to continue", file=sys.stderr)
                break
            if results is None:
                pipe.send(measure(network, 1))
                continue
            seed, process = pipes.pop(pipe)
            process.join()
            write_seed(folder, seed, network, results, measure)
    finally:
        for _, process in pipes.values():
            process.terminate()


def write_seed(
    folder: Path,
    seed: int,
    network: Network,
    results: dict[str, PruningResult | str],
    measure: Measure,
) -> None:
    """Measure the unpruned network of a seed and what each guide chose, and write rows."""
    whole = measure(network, 2)
    for guide, result in results.items():
        row: Json = {"seed": seed, "guide": guide}
        if isinstance(result, str):
            row["failure"] = result
        else:
            one = measure(result.pruned, 2)
            assert one.energy_j and whole.energy_j
            row |= {
                "widths": [layer.sizes["cout"] for layer in network.layers[:-1]],
                "counts": list(result.counts.values()),
                "share": one.energy_j / whole.energy_j,
                "expected_share": result.cost_after / result.cost_before,
                "probability": result.budget_probability,
                "importance_share": result.importance_share,
                "rounds": [each.share for each in result.rounds],
                "energy_j": one.energy_j,
                "unpruned_j": whole.energy_j,
                "duration_s": one.duration_s,
                "provenance": one.provenance,
                "device": one.device.name,
                "unit": one.device.unit,
            }
        with (folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(seed, guide, row.get("failure") or f"{100 * row['share']:.1f} %", flush=True)


def read_rows(folder: Path) -> Iterator[Json]:
    """Yield the complete rows of a folder."""
    with suppress(FileNotFoundError):
        for line in (folder / "rows.jsonl").read_text().splitlines():
            yield json.loads(line)


def report(folder: Path) -> None:
    """Print a row for each guide."""
    rows = list(read_rows(folder))
    sources = sorted({f"{row['provenance']}, {row['device']}" for row in rows if "share" in row})
    print(f"Budget {BUDGET}; {'; '.join(sources)}\n")
    print("| guide | networks | mean | range | above the budget | importance kept | measured |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for guide in GUIDES:
        own = [row for row in rows if row["guide"] == guide and "share" in row]
        if not own:
            continue
        shares = [100 * row["share"] for row in own]
        above = sum(share > 50.0 for share in shares)
        kept = 100 * fmean(row["importance_share"] for row in own)
        steps = fmean(len(row["rounds"]) for row in own)
        print(
            f"| {guide} | {len(own)} | {fmean(shares):.1f} % | {min(shares):.1f}–{max(shares):.1f} "
            f"% | {above} of {len(own)} | {kept:.1f} % | {steps:.1f} |"
        )
    for row in rows:
        if "failure" in row:
            print(f"\nSeed {row['seed']}, {row['guide']}: {row['failure']}")


def main() -> None:
    """Measure or report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("pruning"))
    parser.add_argument("--until-s", type=float, default=1e9)
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--guides", nargs="+", default=tuple(GUIDES), choices=tuple(GUIDES))
    parser.add_argument("--report", type=Path, metavar="DIR")
    given = parser.parse_args()
    if given.report:
        report(given.report)
        return
    until_s = time.monotonic() + given.until_s
    given.out.mkdir(parents=True, exist_ok=True)
    # Few users have a shipped profile of their device, and workers share few processors.
    (given.out / "no-profiles").mkdir(exist_ok=True)
    os.environ["JOULECAST_PROFILES"] = str(given.out / "no-profiles")
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if not (given.out / "profile.json").exists():
        profile(given.out, given.on, read_widest())
    setup = make_setup(given.on)
    with lock_device(given.on), open_any_measurer(MeasureOptions(given.on, rounds=1)) as measurer:
        run_seeds(
            given.out,
            given.on,
            lambda network, rounds: measurer.change_run(measurer.run, rounds).measure(
                Trial(network, setup)
            ),
            until_s,
            given.workers,
            given.guides,
        )
    report(given.out)


if __name__ == "__main__":
    main()
