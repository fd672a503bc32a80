"""Profile this machine, estimate a net, measure it, and compare: the whole tool in a few minutes.

    python examples/demo.py [--seconds 100] [--seed 1]

The demo prints and runs the same commands that you would type. Measurements go into a temporary
store, which is deleted at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import sys
import tempfile
from pathlib import Path

import joulecast
from joulecast.cli.main import cli
from joulecast.system.units import format_energy

LARGEST = "cnn5:16,32,64,128"
# One thread, because the durations of small nets vary least on one.
OPTIONS = ["--input", "3x32x32", "--batch", "16", "--threads", "1"]


def main() -> None:
    """Parse arguments and run the demo with a temporary store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=100, help="duration of profiling")
    parser.add_argument("--seed", type=int, help="seed of the net that is estimated")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JOULECAST_STORE"] = str(Path(folder) / "demo.sqlite")
        run_demo(args.seconds, random.Random(args.seed))


def run_demo(seconds: int, rng: random.Random) -> None:
    """Detect meters, profile, estimate, measure and compare."""
    print_paragraph("How much energy does training take on this machine? First, list the meters.")
    run_command("detect")
    print_paragraph(
        f"Now profile this machine for about {seconds} s: isolated layers of a five-layer CNN are\n"
        "trained under the best available meter, always the one that lowers the uncertainty most."
    )
    run_command("profile", LARGEST, "--on", "cpu", *OPTIONS, "--seconds", str(seconds))
    widths = [rng.randint(1, largest) for largest in (16, 32, 64, 128)]
    net = "cnn5:" + ",".join(map(str, widths))
    print_paragraph(f"Estimate a net of random widths that was never measured: {net}.")
    run_command("estimate", net, *OPTIONS, "--steps", "10000", "--battery", "15Wh")
    # Made before the measurement below, which the profile would otherwise include.
    estimate = joulecast.estimate(net, input_shape=(3, 32, 32), batch=16, threads=1)
    print_paragraph("Now measure the same net with the same meter.")
    run_command("measure", net, "--on", "cpu", *OPTIONS, "--rounds", "9")
    print_comparison(estimate, joulecast.load_profile().observations[-1])


def print_comparison(estimate: joulecast.Estimate, observation: joulecast.Observation) -> None:
    """Print estimate, interval and measurement side by side."""
    assert observation.energy_j is not None
    low_j, high_j = estimate.interval_j
    error = estimate.energy_j / observation.energy_j - 1
    inside = "inside" if low_j <= observation.energy_j <= high_j else "outside"
    print_paragraph("Side by side, for one training step:")
    print(f"  estimated     {format_energy(estimate.energy_j)}")
    print(f"  95 % interval {format_energy(low_j)} – {format_energy(high_j)}")
    print(f"  measured      {format_energy(observation.energy_j)} (meter {observation.meter!r})")
    print_paragraph(
        f"The error of the estimate is {100 * error:+.1f} %; the measurement is {inside} the "
        "interval."
    )
    if observation.provenance == "modelled":
        print(
            "These energies are modelled, not measured (CPU time x a stated power), because this\n"
            "machine has no energy sensor that can be read. Other programs on the machine change\n"
            "the duration of a step from minute to minute."
        )


def print_paragraph(text: str) -> None:
    """Print a text between empty lines."""
    print(f"\n{text}\n", flush=True)


def run_command(*words: str) -> None:
    """Print a command and run it; exit if it fails."""
    print(f"$ joulecast {shlex.join(words)}\n", flush=True)
    try:
        cli.main(list(words), prog_name="joulecast")
    except SystemExit as end:
        if end.code:
            sys.exit(end.code)


if __name__ == "__main__":
    main()
