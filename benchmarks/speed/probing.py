"""Time what ``joulecast estimate --probe`` takes beyond its measurements, with a large profile.

The estimator proposes, as in a campaign, until the network is known; observations are made up in no
time (a launch takes 10 us, a device 30 TFLOP/s and 3 TB/s), added to those of the shipped profile.

    python benchmarks/speed/probing.py                a table
    python benchmarks/speed/probing.py --out FILE     also write it as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import joulecast
from joulecast.estimators import find_estimator, fit_profile
from joulecast.estimators.base import Proposal, Target
from joulecast.families import make_family
from joulecast.kinds import make_layer, make_op, network_work
from joulecast.records import Input, Network, Observation, Setup, Trial
from joulecast.testing.commits import find_commit
from joulecast.testing.machines import find_processor

DEVICE, SETUP, SEED = "nvidia-h200", Setup(batch=16), 3
LAYERS, WIDEST = 300, 512
MOST_PROPOSALS = 60
LAUNCH_S, FLOP_RATE, BYTE_RATE, POWER_W = 1e-5, 3e13, 3e12, 400.0

Json = dict[str, Any]


def main() -> None:
    """Measure and print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    networks = {
        "resnet50:48,10,25,45,19 (403 layers in blocks)": make_family("resnet50:48,10,25,45,19"),
        f"{LAYERS} layers, all of different sizes": make_distinct_network(LAYERS),
    }
    report = {
        "processor": find_processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "observations": len(joulecast.load_profile(DEVICE).observations),
        "networks": {name: time_probe(network) for name, network in networks.items()},
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(make_table(report))


def make_distinct_network(layers: int) -> Network:
    """Return convolutions in a row, of random widths."""
    rng, tail = random.Random(SEED), (make_op("batch_norm"), make_op("elementwise", fn="relu"))
    widths = [3, *(rng.randint(16, WIDEST) for _ in range(layers))]
    pairs = pairwise(widths)
    sizes = {"space": (28, 28), "kernel": 3, "padding": 1}
    chain = (make_layer("conv2d", tail, cin=cin, cout=cout, **sizes) for cin, cout in pairs)
    return Network(tuple(chain), Input((3, 28, 28)), name="convolutions")


def time_probe(network: Network) -> Json:
    """Return the CPU seconds of all proposals, of the last fit and of the estimate."""
    profile, estimator = joulecast.load_profile(DEVICE), find_estimator("additive")
    started_s = time.process_time()
    observations = list(profile.observations)
    fitted = fit_profile(profile, "additive").fitted
    target = Target(network, SETUP, "probe", networks=(network,), modes=("graph", "eager"))
    measured = proposals = 0
    for _ in range(MOST_PROPOSALS):
        proposal = estimator.propose(target, [*observations], fitted)
        fitted, proposals = proposal.fitted or fitted, proposals + 1
        if proposal.trial is None:
            break
        new = make_observations(proposal, profile.observations[-1])
        observations += new
        measured += len(new)
    fitted = estimator.fit(observations, fitted)
    fitted.predict([network], [SETUP], per_layer=True)
    seconds = time.process_time() - started_s
    return {"cpu_s": seconds, "proposals": proposals, "measured": measured}


def make_observations(proposal: Proposal, template: Observation) -> list[Observation]:
    """Return made-up observations of what was proposed."""
    trials: Sequence[Trial] = proposal.probes or ((proposal.trial,) if proposal.trial else ())
    return [make_observation(trial, proposal.with_energy, template) for trial in trials]


def make_observation(trial: Trial, with_energy: bool, template: Observation) -> Observation:
    """Return an observation whose duration follows from the work of the trial."""
    work = network_work(trial.network, trial.setup).total
    duration_s = LAUNCH_S * work.launches + work.flops / FLOP_RATE + work.size_bytes / BYTE_RATE
    duration_s *= trial.execution.copies
    return replace(
        template,
        trial=trial,
        duration_s=duration_s,
        duration_sd_s=None,
        energy_j=POWER_W * duration_s if with_energy else None,
        energy_sd_j=None,
        issue_s=duration_s if trial.execution.mode == "eager" else None,
        refusal="",
    )


def make_table(report: Json) -> str:
    """Return one line for each network."""
    lines = [
        f"{report['processor']}, {report['cores']} cores, load {report['load']:.1f}; "
        f"{report['observations']:,} observations"
    ]
    for name, row in report["networks"].items():
        counts = f"{row['measured']} measurements, {row['proposals']} proposals"
        lines.append(f"{name:50s} {row['cpu_s']:6.1f} s of CPU time, {counts}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
