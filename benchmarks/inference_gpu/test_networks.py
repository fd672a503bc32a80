"""The networks of the test: unseen variants of DeepEn2023's nine families."""

from __future__ import annotations

import random
from dataclasses import replace

from joulecast.families import draw_family
from joulecast.records import Network, Setup, Trial

FAMILIES = (
    "alexnet",
    "densenet",
    "googlenet",
    "mobilenetv1",
    "mobilenetv2",
    "proxylessnas",
    "resnet",
    "shufflenetv2",
    "squeezenet",
)
# One variant of each family for each setup.
SETUPS = (
    Setup(1, phase="inference"),
    Setup(1, phase="inference", precision="bf16"),
    Setup(16, phase="inference", precision="tf32"),
)


def list_trials() -> tuple[Trial, ...]:
    """Return every variant with CUDA graphs and without."""
    return tuple(
        Trial(network, replace(setup, cuda_graphs=is_graph))
        for number, setup in enumerate(SETUPS)
        for family in FAMILIES
        for network in (draw_variant(family, f"test {number}"),)
        for is_graph in (True, False)
    )


def list_pace_trials() -> tuple[Trial, ...]:
    """Return other variants that show how fast the host is: one of each family, not of the test."""
    return tuple(Trial(draw_variant(family, "pace"), SETUPS[0]) for family in FAMILIES)


def draw_variant(family: str, seed: str) -> Network:
    """Return a random variant; equal seeds give equal variants."""
    return draw_family(family, random.Random(f"{family} {seed}").randint)
