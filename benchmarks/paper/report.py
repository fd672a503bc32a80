"""Write what folders of results hold into docs/paper.md, between its two marks.

python benchmarks/paper/report.py benchmarks/paper/results [FOLDER ...]

An experiment is taken from the first folder that has it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from joulecast.uses.reproduce import EXPERIMENTS, ExperimentResult, ResultFolder

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def main() -> None:
    """Replace the results of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    results = find_results(args.folders)
    before, _, rest = args.page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    text = write_results(results, args.page)
    args.page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def sort_names() -> list[str]:
    """Return the names of experiments as the paper numbers them."""
    return sorted(EXPERIMENTS, key=lambda name: (name[:3] != "fig", int(name.lstrip("figtable"))))


def find_results(folders: Sequence[Path]) -> list[tuple[ExperimentResult, Path]]:
    """Return the result of each experiment, with the folder that it is from."""
    found = []
    for name in sort_names():
        for folder in folders:
            if (result := ResultFolder(folder).find_result(name)) is not None:
                found.append((result, folder))
                break
    return found


def write_results(results: Sequence[tuple[ExperimentResult, Path]], page: Path) -> str:
    """Return a table of verdicts, and each experiment with its sentence and picture."""
    if not results:
        return "Nothing was measured yet."
    first = results[0][0]
    lines = [
        f"On an {first.device.processor or first.device.name} with {first.runtime}, "
        f"{first.provenance}, {first.date}"
        f"{', with `--quick`' if first.is_quick else ''}.",
        "",
        "| experiment | the paper states | there |",
        "|---|---|---|",
        *(
            f"| [{one.name}](#{make_anchor(one)}) | {one.title} | {one.verdict} |"
            for one, _ in results
        ),
    ]
    for one, folder in results:
        lines += ["", f"### {make_heading(one)}", "", f"**The paper.** {one.statement}", ""]
        lines += [f"**Criterion.** {one.criterion}", ""]
        lines += [f"**It {one.verdict}.** {one.finding}"]
        picture = folder / f"{one.name}.svg"
        if picture.exists():
            target = Path(*[".."] * len(page.parent.relative_to(ROOT).parts))
            path = target / picture.resolve().relative_to(ROOT)
            lines += ["", f"![{one.title}]({path.as_posix()})"]
        is_other = one.device.unit != first.device.unit
        notes = (*one.notes, *(["Measured on another unit than the first experiment."] * is_other))
        lines += [line for note in notes for line in ("", f"*{note}*")]
    return "\n".join(lines)


def make_heading(result: ExperimentResult) -> str:
    """Return ``Fig. 2: Equal convolutions``."""
    kind, number = ("Fig.", result.name[3:]) if result.name[:3] == "fig" else ("Table", "1")
    return f"{kind} {number}: {result.title}"


def make_anchor(result: ExperimentResult) -> str:
    """Return the anchor of a heading."""
    words = make_heading(result).lower()
    kept = "".join(letter for letter in words if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


if __name__ == "__main__":
    main()
