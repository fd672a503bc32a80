"""Write all results of a folder as one page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joulecast.uses.reproduce.experiment import ExperimentResult


def write_summary(results: Sequence[ExperimentResult], folder: Path) -> str:
    """Return the page: a table of verdicts, then every experiment with its picture."""
    if not results:
        return "# The experiments of the AMPERE paper\n\nNothing was measured yet.\n"
    first = results[0]
    lines = [
        f"# The experiments of the AMPERE paper on {first.device.name}",
        "",
        f"Energies are {first.provenance}; the meter covers {first.covers}; {first.runtime}"
        f"{', ' + first.device.driver if first.device.driver else ''}, last measured on "
        f"{first.date or 'no day'}{', with --quick' if first.is_quick else ''}.",
        "",
        "| experiment | the paper's statement | on this device |",
        "|---|---|---|",
    ]
    lines += [f"| [{one.name}](#{one.name}) | {one.title} | {one.verdict} |" for one in results]
    for one in results:
        lines += ["", *_write_section(one, folder)]
    return "\n".join(lines) + "\n"


def _write_section(result: ExperimentResult, folder: Path) -> list[str]:
    lines = [
        f'## <a id="{result.name}"></a>{result.name}: {result.title}',
        "",
        f"**The paper:** {result.statement}",
        "",
        f"**Criterion:** {result.criterion}",
        "",
        f"**It {result.verdict}.** {result.finding}",
    ]
    if (folder / f"{result.name}.svg").exists():
        lines += ["", f"![{result.title}]({result.name}.svg)"]
    lines += [line for note in result.notes for line in ("", f"*{note}*")]
    if result.device_seconds:
        lines += ["", f"Device time of its observations: {result.device_seconds:.0f} s."]
    return lines
