"""Write results as a page: the summary of a folder, or docs/paper.md between its two marks.

    python -m papers.ampere.report benchmarks/paper/results [FOLDER ...]

An experiment is taken from the first folder that has it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from papers.ampere.experiment import TABLE, Result
from papers.ampere.lab import Folder

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def main(folders: Sequence[str], page: Path = PAGE) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    text, after = write_results([Path(one) for one in folders], page), rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def write_results(folders: Sequence[Path], page: Path) -> str:
    """Return a table of verdicts, then each experiment with its sentence and picture."""
    found: list[tuple[Result, Path]] = []
    # As the paper numbers them.
    for name in sorted(TABLE, key=lambda name: (name == "table1", len(name), name)):
        results = ((Folder(folder).find(Result, name), folder) for folder in folders)
        found += [(one, folder.resolve()) for one, folder in results if one is not None][:1]
    if not found:
        return "Nothing was measured yet."
    first = found[0][0]
    lines = [
        f"On an {first.device.processor or first.device.name} with {first.runtime}, "
        f"{first.provenance}{first.date and ', '}{first.date}"
        f"{', with `--quick`' if first.is_quick else ''}; the meter covers {first.covers}.",
        "",
        "| experiment | the paper states | on this device |",
        "|---|---|---|",
    ]
    for one, _ in found:
        letters = [letter for letter in one.heading.lower() if letter.isalnum() or letter in " -"]
        anchor = "".join(letters).replace(" ", "-")
        lines.append(f"| [{one.name}](#{anchor}) | {one.title} | {one.verdict} |")
    for one, folder in found:
        lines += ["", f"### {one.heading}", "", f"**The paper.** {one.statement}"]
        lines += ["", f"**Criterion.** {one.criterion}", "", f"**It {one.verdict}.** {one.finding}"]
        picture = folder / f"{one.name}.svg"
        if picture.exists():
            path = Path(os.path.relpath(picture, page.resolve().parent)).as_posix()
            lines += ["", f"![{one.title}]({path})"]
        notes = list(one.notes)
        if one.device.unit != first.device.unit:
            notes.append("Measured on another unit than the first experiment.")
        lines += [line for note in notes for line in ("", f"*{note}*")]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
