"""Case study: prune a net to half its training energy, by estimated energy and by FLOPs.

    python benchmarks/pruning/study.py --on cuda:0 --out DIR                # measure: 5 minutes
    python benchmarks/pruning/study.py --on simulated:7 --quick --out DIR   # a dry run, no GPU
    python benchmarks/pruning/study.py --report --out DIR                   # the table again

The result of every seed is written at once and never computed again, so the same command resumes
a run that was interrupted or ended by ``--until-s``. Measurements of pruned nets are stored
separately from the observations that the estimator is fitted to.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from faces import SIZE, DrawBatch, draw_faces, read_celeba
from torch import Tensor, nn

import joulecast
from joulecast.records import Observation, Profile, Setup
from joulecast.store import open_store
from joulecast.testing.commits import find_commit

WIDTHS = (64, 128, 256, 512)
# The device is profiled with nets of these shares of the widths.
PROFILED_SHARES = (1.0, 0.5, 0.25, 0.125)
SEEDS = tuple(range(1, 11))
BUDGET = "50%"
CONFIDENCE = 0.9
TEST_SEED, TEST_PARTS = 90_210, 16
# The published run had 0.05, at which training failed for three of ten nets.
LEARNING_RATE = 0.02
METHODS = ("unpruned", "estimate", "flops")


@dataclass(frozen=True)
class StudyPlan:
    """Settings of one run."""

    on: str
    meter: str
    out: Path
    setup: Setup
    widths: tuple[int, ...]
    train_batch: int
    test_batch: int
    train_steps: int
    tune_steps: int
    profile_s: float
    probe_s: float
    rounds: int
    draw: DrawBatch

    @property
    def where(self) -> torch.device:
        """PyTorch device for training; the CPU if the measured device is simulated."""
        return torch.device("cpu" if self.on.startswith("simulated") else self.on)

    @property
    def store_path(self) -> str:
        """Store of the observations that the estimator is fitted to."""
        return str(self.out / "learnt.sqlite")


def main() -> None:
    """Measure what is missing, then report."""
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    # Most devices have no shipped profile, so none is used here.
    no_profiles = args.out / "no-profiles"
    no_profiles.mkdir(exist_ok=True)
    os.environ["JOULECAST_PROFILES"] = str(no_profiles)
    if not args.report:
        plan = make_plan(args)
        profile_device(plan)
        for seed in args.seeds:
            path = args.out / f"seed-{seed}.json"
            if path.exists():
                continue
            if time.monotonic() - started_s > args.until_s:
                print(f"stopped before seed {seed}: --until-s has passed; run it again to resume")
                break
            path.write_text(json.dumps(run_seed(plan, seed), indent=1) + "\n")
            print(f"seed {seed}: {time.monotonic() - started_s:.0f} s so far", flush=True)
    write_report(args.out)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; the defaults are those of the published run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--meter", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=parse_seeds, default=SEEDS)
    parser.add_argument(
        "--until-s", type=float, default=1e9, help="start no seed after this many seconds"
    )
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--profile-s", type=float, default=48.0, help="device time of the profile")
    parser.add_argument("--probe-s", type=float, default=8.0, help="device time of each probe")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--train-batch", type=int, default=256)
    parser.add_argument("--train-steps", type=int, default=500)
    parser.add_argument("--tune-steps", type=int, default=200)
    parser.add_argument("--celeba", type=Path, help="folder of CelebA, instead of drawn faces")
    parser.add_argument("--quick", action="store_true", help="hardly train, to try the script")
    parser.add_argument("--report", action="store_true", help="only report")
    return parser.parse_args()


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a text like ``1,2,5``."""
    return tuple(int(word) for word in text.split(","))


def make_plan(args: argparse.Namespace) -> StudyPlan:
    """Return the settings of the arguments."""
    return StudyPlan(
        on=args.on,
        meter=args.meter,
        out=args.out,
        setup=Setup(batch=args.batch, precision=args.precision),
        widths=WIDTHS,
        train_batch=4 if args.quick else args.train_batch,
        test_batch=4 if args.quick else args.batch,
        train_steps=4 if args.quick else args.train_steps,
        tune_steps=2 if args.quick else args.tune_steps,
        profile_s=args.profile_s,
        probe_s=args.probe_s,
        rounds=args.rounds,
        draw=read_celeba(args.celeba) if args.celeba else draw_faces,
    )


def make_net(widths: tuple[int, ...]) -> nn.Module:
    """Return four convolutions with norms and pooling, and one linear layer."""
    layers: list[nn.Module] = []
    inside = 3
    for width in widths:
        layers += [nn.Conv2d(inside, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        inside = width
    space = SIZE // 2 ** len(widths)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inside * space**2, 2))


# ---------------------------------------------------------------------------------------------
# Profiling


def profile_device(plan: StudyPlan) -> None:
    """Profile layers of the nets, once."""
    done = plan.out / "profiled"
    if done.exists():
        return
    for share in PROFILED_SHARES:
        joulecast.profile(
            make_net(tuple(round(share * width) for width in plan.widths)),
            torch.zeros(plan.setup.batch, 3, SIZE, SIZE),
            on=plan.on,
            meter=plan.meter,
            setup=plan.setup,
            seconds=plan.profile_s / len(PROFILED_SHARES),
            interval_share=0.005,
            rounds=1,
            store=plan.store_path,
        )
    done.write_text("")


def find_profile(plan: StudyPlan) -> Profile:
    """Return the profile so far."""
    with open_store(plan.store_path) as store:
        (key,) = [one.key for one in store.list_profiles() if not one.shipped]
        return store.load_profile(key)


# ---------------------------------------------------------------------------------------------
# One seed


def run_seed(plan: StudyPlan, seed: int) -> dict[str, Any]:
    """Train a net, prune it by both objectives, fine-tune all nets equally, and measure."""
    clock = Stopwatch()
    torch.manual_seed(seed)
    rng = torch.Generator(plan.where).manual_seed(seed)
    net = make_net(plan.widths).to(plan.where)
    train(plan, net, rng, plan.train_steps)
    clock.record("train_s")
    nets, choices = {"unpruned": copy.deepcopy(net)}, {}
    for method in ("estimate", "flops"):
        pruned = prune(plan, net, method)
        nets[method], choices[method] = pruned.net.to(plan.where), pruned.pruning
        clock.record(f"prune_{method}_s")
    scores = {}
    for name, one in nets.items():
        train(plan, one, torch.Generator(plan.where).manual_seed(1000 + seed), plan.tune_steps)
        scores[name] = score(plan, one)
    clock.record("tune_s")
    order = [METHODS[(seed + at) % len(METHODS)] for at in range(len(METHODS))]
    observations = {name: measure(plan, nets[name], rng) for name in order}
    clock.record("measure_s")
    before_j = observations["unpruned"].energy_j or 0.0
    rows = {
        name: {
            **scores[name],
            "energy_j": observations[name].energy_j,
            "energy_sd_j": observations[name].energy_sd_j,
            "duration_s": observations[name].duration_s,
            "share": (observations[name].energy_j or 0.0) / before_j,
            "pruning": describe(choices[name]) if name in choices else None,
        }
        for name in METHODS
    }
    return {
        "seed": seed,
        "about": describe_run(plan, observations["unpruned"]),
        "methods": rows,
        **clock.durations_s,
    }


class Stopwatch:
    """Durations between calls."""

    def __init__(self) -> None:
        self.last_s = time.monotonic()
        self.durations_s: dict[str, float] = {}

    def record(self, name: str) -> None:
        """Record the time since the last call."""
        now_s = time.monotonic()
        self.durations_s[name], self.last_s = now_s - self.last_s, now_s


def prune(plan: StudyPlan, net: nn.Module, method: str) -> Any:
    """Prune a net to half of its energy, or of its FLOPs.

    For energy the layers of the pruned net are probed, and pruning continues from there.
    """
    by_energy = method == "estimate"
    return joulecast.prune(
        copy.deepcopy(net).cpu(),
        torch.zeros(plan.setup.batch, 3, SIZE, SIZE),
        budget=BUDGET,
        device=find_profile(plan),
        setup=plan.setup,
        objective="energy" if by_energy else method,
        confidence=CONFIDENCE if by_energy else 0.5,
        store=plan.store_path,
        probe=by_energy,
        probe_seconds=plan.probe_s,
        on=plan.on,
        meter=plan.meter,
    )


def train(plan: StudyPlan, net: nn.Module, rng: torch.Generator, steps: int) -> None:
    """Train with SGD on new batches and a one-cycle learning rate."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    allowed = plan.setup.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    for _ in range(steps):
        images, labels = plan.draw(plan.train_batch, rng)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()


def score(plan: StudyPlan, net: nn.Module) -> dict[str, float]:
    """Return accuracy and loss on the same images for every net."""
    net.eval()
    rng = torch.Generator(plan.where).manual_seed(TEST_SEED)
    right, loss = 0.0, 0.0
    with torch.no_grad():
        for _ in range(TEST_PARTS):
            images, labels = plan.draw(plan.test_batch, rng)
            logits = net(images)
            loss += float(F.cross_entropy(logits, labels)) / TEST_PARTS
            right += float((logits.argmax(1) == labels).float().mean()) / TEST_PARTS
    return {"accuracy": right, "loss": loss}


def measure(plan: StudyPlan, net: nn.Module, rng: torch.Generator) -> Observation:
    """Measure a training step of this net on faces; it is not added to the profile."""
    images, labels = plan.draw(plan.setup.batch, rng)

    def loss(output: Tensor) -> Tensor:
        return F.cross_entropy(output, labels.to(output.device))

    observation = joulecast.measure(
        copy.deepcopy(net).cpu(),
        images.cpu(),
        loss=loss,
        on=plan.on,
        meter=plan.meter,
        setup=plan.setup,
        rounds=plan.rounds,
    )
    with open_store(str(plan.out / "measured.sqlite")) as store:
        store.add_observation(observation)
    return observation


def describe(pruning: Any) -> dict[str, Any]:
    """Return the result of pruning without its layers."""
    data = pruning.to_dict()
    for side in ("before", "after"):
        keys = ("energy_j", "interval_j", "duration_s", "level", "provenance")
        data[side] = {key: data[side][key] for key in keys}
    return {key: value for key, value in data.items() if key not in ("layers", "net")}


def describe_run(plan: StudyPlan, observation: Observation) -> dict[str, Any]:
    """Describe where, when and how this was measured."""
    return {
        "device": observation.device.to_dict(),
        "runtime": observation.runtime,
        "meter": observation.meter,
        "covers": observation.covers,
        "provenance": observation.provenance,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "setup": plan.setup.to_dict(),
        "widths": list(plan.widths),
        "train_batch": plan.train_batch,
        "train_steps": plan.train_steps,
        "tune_steps": plan.tune_steps,
        "profile_s": plan.profile_s,
        "probe_s": plan.probe_s,
        "budget": BUDGET,
        "confidence": CONFIDENCE,
    }


# ---------------------------------------------------------------------------------------------
# All seeds


def write_report(out: Path) -> None:
    """Print the table and write summary.json."""
    paths = sorted(out.glob("seed-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    seeds = [json.loads(path.read_text()) for path in paths]
    if not seeds:
        print("no seed was measured yet")
        return
    share = float(BUDGET.rstrip("%")) / 100
    summary: dict[str, Any] = {"about": seeds[0]["about"], "seeds": len(seeds), "methods": {}}
    print(f"{len(seeds)} seeds, {seeds[0]['about']['provenance']}")
    print(" " * 10, "   energy   share    off  worst above  accuracy    loss")
    for name in METHODS:
        rows = [seed["methods"][name] for seed in seeds]
        row = summarise(rows, [seed["methods"]["unpruned"] for seed in seeds], share)
        summary["methods"][name] = row
        print(
            f"{name:10s} {row['energy_j']:7.3f} J {100 * row['share']:5.1f} % "
            f"{row['points_off']:6.2f} {row['points_off_worst']:6.2f} {row['above_budget']:5d} "
            f"{100 * row['accuracy']:7.2f} % {row['loss']:7.4f}"
        )
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


def summarise(rows: list[Any], whole: list[Any], share: float) -> dict[str, Any]:
    """Return means over seeds and deviations from the budget in percentage points."""
    points_off = [100 * (row["share"] - share) for row in rows]
    points_lost = [
        100 * (one["accuracy"] - row["accuracy"]) for row, one in zip(rows, whole, strict=True)
    ]
    return {
        "energy_j": statistics.fmean(row["energy_j"] for row in rows),
        "share": statistics.fmean(row["share"] for row in rows),
        "points_off": statistics.fmean(points_off),
        "points_off_worst": max(points_off, key=abs),
        "above_budget": sum(one > 0 for one in points_off),
        "accuracy": statistics.fmean(row["accuracy"] for row in rows),
        "accuracy_points_lost": statistics.fmean(points_lost),
        "loss": statistics.fmean(row["loss"] for row in rows),
    }


if __name__ == "__main__":
    main()
