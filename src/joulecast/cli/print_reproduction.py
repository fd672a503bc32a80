"""Print what ``joulecast reproduce`` plans and found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from joulecast.cli.terminal import (
    Json,
    describe_provenance,
    label_provenance,
    make_console,
    print_notes,
    print_table,
)
from joulecast.features.reproduce import ReproduceOptions

if TYPE_CHECKING:
    from joulecast.uses.reproduce import PlannedWork, Reproduction

_MAX_FAILURES = 8


def print_plan(plan: Mapping[str, Sequence[PlannedWork]]) -> None:
    """Print what each experiment measures, with expected seconds."""
    console = make_console()
    rows = []
    for name, works in plan.items():
        if not works:
            rows.append((name, "nothing of its own", "", ""))
        for place, work in enumerate(works):
            label = "" if place else name
            rows.append((label, work.name, f"{work.trials:,}", f"{work.seconds:,.0f} s"))
    every = [work for works in plan.values() for work in works]
    trials, seconds = sum(one.trials for one in every), sum(one.seconds for one in every)
    footer = ("", "all", f"{trials:,}", f"{seconds:,.0f} s")
    print_table(console, ("experiment", "measures", ">trials", ">expected"), rows, footer=footer)
    print_notes(
        console,
        ["Seconds are those of an H200; what several experiments need is measured once."],
    )


def make_plan_data(plan: Mapping[str, Sequence[PlannedWork]]) -> Json:
    """Return the plan as JSON."""
    return {
        name: [{"name": one.name, "trials": one.trials, "seconds": one.seconds} for one in works]
        for name, works in plan.items()
    }


def print_results(outcome: Reproduction, options: ReproduceOptions) -> None:
    """Print a verdict and a sentence for each experiment, and where the pictures are."""
    console = make_console()
    for one in outcome.results:
        label = label_provenance(one.provenance)
        console.print(f"{one.name}  {one.title}{label}: {one.verdict}", style="bold")
        console.print(f"  The paper: {one.statement}")
        console.print(f"  {one.device.name}: {one.finding}\n")
    if options.measure_only:
        console.print("Measured; `--redraw` analyses and draws what the folder holds.")
    for reason in outcome.failures[:_MAX_FAILURES]:
        console.print(f"Left out: {reason}")
    if not outcome.is_complete:
        console.print("The time is spent before everything was measured: run it again to continue.")
    notes = [f"Pictures, numbers, observations and summary.md are in {options.out}."]
    for provenance in dict.fromkeys(one.provenance for one in outcome.results):
        notes.append(f"Provenance: {describe_provenance(provenance)}.")
    print_notes(console, notes)


def make_result_data(outcome: Reproduction) -> Json:
    """Return results as JSON."""
    return {
        "results": [one.to_dict() for one in outcome.results],
        "files": [str(path) for path in outcome.files],
        "failures": list(outcome.failures),
        "is_complete": outcome.is_complete,
    }
