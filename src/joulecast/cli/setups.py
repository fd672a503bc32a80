"""Describe setups in messages and commands."""

from __future__ import annotations

from joulecast.records import Setup


def describe_setup(setup: Setup) -> str:
    """Return a short description: ``batch 32, sgd, fp32``."""
    words = [f"batch {setup.batch}", setup.precision]
    words.insert(1, "inference" if setup.phase == "inference" else setup.optimizer)
    if setup.threads:
        words.append(f"{setup.threads} thread{'s' if setup.threads > 1 else ''}")
    if setup.loss != "cross_entropy":
        words.append(f"{setup.loss} loss")
    return ", ".join(words)


def list_setup_options(setup: Setup) -> str:
    """Return the options that specify a setup: ``--batch 16 --threads 1``."""
    default = Setup()
    flags = [f"--batch {setup.batch}"]
    for name in ("optimizer", "precision", "loss", "threads"):
        value = getattr(setup, name)
        if value != getattr(default, name):
            flags.append(f"--{name} {value}")
    return " ".join(flags + (["--inference"] if setup.phase == "inference" else []))
