"""Describe setups in messages and commands."""

from __future__ import annotations

from joulecast.records import Setup

_OUTSIDE_STEPS = "loading data, evaluation and checkpoint files"


def describe_setup(setup: Setup, gpus: int = 1) -> str:
    """Return a short description: ``batch 32, sgd, fp32``, or ``batch 32 per GPU, ...``."""
    words = [f"batch {setup.batch}" + (" per GPU" if gpus > 1 else ""), setup.precision]
    words.insert(1, "inference" if is_inference(setup) else setup.optimizer)
    if setup.threads:
        words.append(f"{setup.threads} thread{'s' if setup.threads > 1 else ''}")
    words += [setup.processor] if setup.processor else []
    if setup.accumulate > 1:
        words.insert(1, f"{setup.accumulate} batches a step")
    words += ["compiled"] if setup.compiled else []
    words += ["CUDA graphs"] if setup.cuda_graphs else []
    if setup.loss != "cross_entropy" and not is_inference(setup):
        words.append(f"{setup.loss} loss")
    return ", ".join(words)


def is_inference(setup: Setup) -> bool:
    """Return whether the net is run, not trained."""
    return setup.phase == "inference"


def begin_sentence(setup: Setup) -> str:
    """Return ``A step``, ``An inference``, or ``An inference of 8 samples``."""
    if not is_inference(setup):
        return "A step"
    return "An inference" + (f" of {setup.batch} samples" if setup.batch > 1 else "")


def name_activity(setup: Setup) -> str:
    """Return the first word of a report: ``Training`` or ``Running``."""
    return "Running" if is_inference(setup) else "Training"


def explain_not_included(setup: Setup) -> str:
    """Return what the energy of a step or an inference does not include."""
    what = "loading and preparing inputs" if is_inference(setup) else _OUTSIDE_STEPS
    return f"Not included: {what}."


def list_setup_options(setup: Setup) -> str:
    """Return the options that specify a setup: ``--batch 16 --threads 1``."""
    default = Setup()
    flags = [f"--batch {setup.batch}"]
    names = ("precision", "threads", "processor")
    for name in names if is_inference(setup) else ("optimizer", "loss", "accumulate", *names):
        value = getattr(setup, name)
        if value != getattr(default, name):
            flags.append(f"--{name} {value}")
    flags += ["--compile"] if setup.compiled else []
    flags += ["--cuda-graphs"] if setup.cuda_graphs else []
    return " ".join(flags + (["--inference"] if is_inference(setup) else []))
