"""Phrases that several reports share: intervals, provenance, counts, setups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from joulecast.records import Setup
from joulecast.system.units import format_energy, format_interval

_DESCRIPTIONS = {
    "measured": "measured by a meter",
    "imported": "imported from another source",
    "modelled": "modelled, not measured: CPU time x a stated power",
    "datasheet": "from a data sheet, never measured on this device",
    "simulated": "simulated, not a real device",
}


def format_level(level: float) -> str:
    """Return ``95 % interval``."""
    return f"{100 * level:g} % interval"


def format_with_interval(
    energy_j: float, interval_j: Sequence[float], level: float, provenance: str
) -> str:
    """Return ``2.07 J (95 % interval 1.87–2.29 J)``, labelled unless it was measured."""
    label = "" if provenance == "measured" else f"{provenance}, "
    interval = f"{format_level(level)} {format_interval(interval_j, format_energy)}"
    return f"{format_energy(energy_j)} ({label}{interval})"


def format_optional(value: float | None, form: Callable[[float], str]) -> str:
    """Return a formatted value, or a dash for None."""
    return "-" if value is None else form(value)


def format_percent(percent: float) -> str:
    """Return a percentage with one decimal; large ones have none."""
    return f"{percent:.1f} %" if abs(percent) < 1000 else f"{percent:,.0f} %"


def format_time(at_s: float) -> str:
    """Return the date and time of a moment, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def plural(count: int, noun: str) -> str:
    """Return ``1 net`` or ``2 nets``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def make_bar(share: float, width: int = 20) -> str:
    """Return a bar in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def shorten(text: str, size: int) -> str:
    """Return a text of at most ``size`` characters, cut with an ellipsis."""
    return text if len(text) <= size else text[: size - 1] + "…"


def shorten_path(name: str, size: int) -> str:
    """Return a dotted name of at most ``size`` characters, without its beginning: ``….blocks.3``.

    The end tells layers apart. A name whose last part alone is too long is left to the table.
    """
    if len(name) <= size:
        return name
    parts = name.split(".")
    tails = (".".join(parts[at:]) for at in range(1, len(parts)))
    return next((f"….{tail}" for tail in tails if len(tail) + 2 <= size), name)


def describe_provenance(provenance: str) -> str:
    """Return a clause that says where a number comes from."""
    return _DESCRIPTIONS[provenance]


def describe_coverage(provenance: str, covers: str) -> str:
    """Return a clause that says which joules a number contains."""
    if provenance == "datasheet":
        return f"energy is that of the {covers}"
    return f"the meter covers {covers}"


def label_provenance(provenance: str) -> str:
    """Return the label of a number that was not measured; empty for one that was."""
    return "" if provenance == "measured" else f" ({provenance})"


def describe_setup(setup: Setup, gpus: int = 1) -> str:
    """Return a short description: ``batch 32, sgd, fp32``, or ``batch 32 per GPU, ...``."""
    words = describe_fields(setup)
    words["batch"] += " per GPU" if gpus > 1 else ""
    return ", ".join(filter(None, words.values()))


def describe_fields(setup: Setup) -> dict[str, str]:
    """Return the parts of a setup in words; empty for what is usual or the runtime's choice."""
    has_loss = setup.loss != "cross_entropy" and not is_inference(setup)
    return {
        "batch": f"batch {setup.batch}",
        "accumulate": f"{setup.accumulate} batches per step" if setup.accumulate > 1 else "",
        "optimizer": "inference" if is_inference(setup) else setup.optimizer,
        "precision": setup.precision,
        "threads": plural(setup.threads, "thread") if setup.threads else "",
        "processor": setup.processor,
        "compiled": "compiled" if setup.compiled else "",
        "cuda_graphs": "CUDA graphs" if setup.cuda_graphs else "",
        "loss": f"{setup.loss} loss" if has_loss else "",
    }


def is_inference(setup: Setup) -> bool:
    """Return whether the net is run, not trained."""
    return setup.phase == "inference"


def begin_sentence(setup: Setup) -> str:
    """Return ``A step``, ``An inference``, or ``An inference of 8 samples``."""
    if not is_inference(setup):
        return "A step"
    return "An inference" + (f" of {setup.batch} samples" if setup.batch > 1 else "")


def explain_not_included(setup: Setup) -> str:
    """Return what the energy of a step or an inference does not include."""
    if is_inference(setup):
        return "Not included: loading and preparing inputs."
    return "Not included: loading data, evaluation and checkpoint files."


def list_setup_options(setup: Setup) -> str:
    """Return the options of the command line for a setup: ``--batch 16 --threads 1``."""
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
