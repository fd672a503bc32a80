"""The main job in a few minutes: learn this machine, estimate a net, train it, compare.

    python examples/demo.py [--seconds 100] [--seed 1]

Everything happens through the same commands that a person would type; they are printed as they are
run. What is measured goes into a store that is thrown away at the end.
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
from joulecast.units import format_energy

LARGEST = "cnn5:16,32,64,128"
# One thread, because the steps of small nets differ least on one.
OPTIONS = ["--input", "3x32x32", "--batch", "16", "--threads", "1"]


def main() -> None:
    """Tell the story."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=100, help="for learning")
    parser.add_argument("--seed", type=int, help="of the net that is estimated")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JOULECAST_STORE"] = str(Path(folder) / "demo.sqlite")
        tell_story(args.seconds, random.Random(args.seed))


def tell_story(seconds: int, rng: random.Random) -> None:
    """Detect, profile, estimate, train, compare."""
    say("What will training a net cost on this machine? First: what can measure energy here?")
    run("detect")
    say(
        "Now learn this machine: layers of a five-layer CNN are trained alone under the best\n"
        f"meter there is, for about {seconds} s, the next one always where such nets gain most."
    )
    run("profile", LARGEST, "--on", "cpu", *OPTIONS, "--seconds", str(seconds))
    widths = [rng.randint(1, largest) for largest in (16, 32, 64, 128)]
    net = "cnn5:" + ",".join(map(str, widths))
    say(f"A net that was never profiled, of random widths: {net}. What will training it cost?")
    run("estimate", net, *OPTIONS, "--steps", "10000", "--battery", "15Wh")
    # Kept from before the run: what is measured now would be learnt from.
    answer = joulecast.estimate(net, input_shape=(3, 32, 32), batch=16, threads=1)
    say("And what does it really cost? Train it under the same meter.")
    run("measure", net, "--on", "cpu", *OPTIONS, "--rounds", "9")
    compare(answer, joulecast.load_profile().observations[-1])


def compare(answer: joulecast.Estimate, seen: joulecast.Observation) -> None:
    """Print estimate, interval and measured value side by side."""
    assert seen.energy_j is not None
    low, high = answer.interval_j
    error = answer.energy_j / seen.energy_j - 1
    held = "holds" if low <= seen.energy_j <= high else "does not hold"
    say("Side by side, for one step of training:")
    print(f"  estimated  {format_energy(answer.energy_j):>9}   before it ever ran")
    print(f"  interval   {format_energy(low):>9} to {format_energy(high)} with 95 %")
    print(f"  measured   {format_energy(seen.energy_j):>9}   under the meter {seen.meter!r}")
    say(f"The estimate is off by {100 * error:+.1f} %, and the interval {held}.")
    if seen.provenance == "modelled":
        print(
            "The joules above are modelled, not measured: CPU time x a stated power, as no energy\n"
            "sensor can be read here. The method is the same where one can. Other programs on the\n"
            "machine change what a step takes from minute to minute."
        )


def say(text: str) -> None:
    """Print a paragraph."""
    print(f"\n{text}\n", flush=True)


def run(*words: str) -> None:
    """Print a command and run it; the story ends where it fails."""
    print(f"$ joulecast {shlex.join(words)}\n", flush=True)
    try:
        cli.main(list(words), prog_name="joulecast")
    except SystemExit as end:
        if end.code:
            sys.exit(end.code)


if __name__ == "__main__":
    main()
