"""Print what ``joulecast generate`` found."""

from __future__ import annotations

from rich.table import Table

from joulecast.cli.setups import describe_setup
from joulecast.cli.terminal import (
    describe_coverage,
    describe_provenance,
    format_interval,
    format_with_interval,
    make_console,
    print_notes,
)
from joulecast.records import Setup
from joulecast.units import format_duration, format_energy, format_wh
from joulecast.uses.generate import GenerationEstimate


def print_generation(name: str, setup: Setup, found: GenerationEstimate) -> None:
    """Print the energy of a prompt token, of a generated token and of a request, and notes."""
    console = make_console()
    console.print(f"Generating with {name} on {found.device}: {describe_setup(setup)}\n")
    request = format_with_interval(
        found.request_j, found.request_interval_j, found.level, found.provenance
    )
    console.print(
        f"A prompt of {found.prompt_tokens:,} tokens and {found.new_tokens:,} generated ones take "
        f"{request}.",
        style="bold",
    )
    sequences = f" for {found.batch:,} sequences at once" if found.batch > 1 else ""
    console.print(
        f"{format_wh(1000.0 * found.request_j)} per 1,000 requests · "
        f"{format_duration(found.request_s)}{sequences} · "
        f"{found.tokens_per_s:,.0f} generated tokens/s\n"
    )
    console.print(_make_table(found))
    console.print()
    provenance = describe_provenance(found.provenance)
    source = f"Provenance: {provenance}; {describe_coverage(found.provenance, found.covers)}."
    print_notes(console, [source, *found.notes, _EXPLANATION])


_EXPLANATION = (
    "Prompt tokens are computed together, and only the last one gets logits. A generated token "
    "reads all weights and the cached keys and values of its context. Sampling and tokenisation "
    "are not included."
)


def _make_table(found: GenerationEstimate) -> Table:
    level = f"{100 * found.level:g} % interval"
    table = Table("", "Energy per token", level, "Duration of the step", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row(
        f"Prompt, {found.prompt_tokens:,} tokens",
        format_energy(found.prompt_token_j),
        format_interval(found.prompt_token_interval_j, format_energy),
        format_duration(found.prefill_s),
    )
    for token in found.decode:
        table.add_row(
            f"Token {token.context:,}",
            format_energy(token.token_j),
            format_interval(token.token_interval_j, format_energy),
            format_duration(token.step_s),
        )
    return table
