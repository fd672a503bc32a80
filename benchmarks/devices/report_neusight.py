"""Write the tables and the plot of predictions for left-out GPUs, beside their file.

python benchmarks/devices/report_neusight.py RESULTS.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from neusight_data import INFERENCE, PRODUCT_OPS, RIVALS, TRAINING
from run_neusight import ANCHORS, DATA_SHEET, load_results

Json = dict[str, Any]
Z95 = 1.959964
OWN = (DATA_SHEET, ANCHORS)
METHODS = (*OWN, *RIVALS)
TITLES = {
    DATA_SHEET: "data sheet",
    ANCHORS: "anchors",
    "neusight": "NeuSight",
    "roofline": "roofline",
    "habitat": "Habitat",
    "li": "Li et al.",
    TRAINING: "training",
    INFERENCE: "inference",
}


@dataclass(frozen=True)
class ScoredStep:
    """A step with the relative error of each method, and z of our own."""

    device: str
    mode: str
    errors: dict[str, float]
    z: dict[str, float]


def main() -> None:
    """Write tables and plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("results", type=Path, help="what run_neusight.py wrote")
    path = parser.parse_args().results
    results = load_results(path)
    steps = score_steps(results)
    text = "\n\n".join([table_errors(steps), table_coverage(steps), table_kernels(results)]) + "\n"
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    draw_errors(steps, path.with_suffix(".svg"))


def score_steps(results: dict[str, Json]) -> list[ScoredStep]:
    """Return every step of every GPU."""
    scored = []
    for device, variants in results.items():
        found = {name: variants[name]["steps"] for name in OWN if name in variants}
        for number, row in enumerate(next(iter(found.values()))):
            measured_ms = row["measured_ms"]
            errors = {
                name: row[f"{name}_ms"] / measured_ms - 1.0
                for name in RIVALS
                if f"{name}_ms" in row
            }
            z = {}
            for name, rows in found.items():
                own = rows[number]
                errors[name] = own["predicted_ms"] / measured_ms - 1.0
                z[name] = float(np.log1p(errors[name]) / own["log_sd"])
            scored.append(ScoredStep(device, row["mode"], errors, z))
    return scored


def table_errors(steps: Sequence[ScoredStep]) -> str:
    """Return the MAPE of each GPU and mode by method, with means."""
    rows = [["GPU", "", "steps", *(TITLES[name] for name in METHODS)]]
    for mode in (TRAINING, INFERENCE):
        of_mode = [one for one in steps if one.mode == mode]
        devices = sorted({one.device for one in of_mode})
        groups = [[one for one in of_mode if one.device == device] for device in devices]
        for device, group in zip(devices, groups, strict=True):
            rows.append([device, TITLES[mode], str(len(group)), *_format_errors(group)])
        if groups:
            means = [_mean_of_means(groups, name) for name in METHODS]
            rows.append(["mean over GPUs", TITLES[mode], "", *map(_format_share, means)])
            nvidia = [one for one in of_mode if not one.device.startswith("AMD")]
            count = str(len(nvidia))
            rows.append(["NVIDIA steps", TITLES[mode], count, *_format_errors(nvidia)])
    return _format_table(rows)


def table_coverage(steps: Sequence[ScoredStep]) -> str:
    """Return how often the 95 % interval held, and the root mean square of z."""
    rows = [["", "steps", "inside the 95 % interval", "rms z"]]
    for name in OWN:
        for mode in (TRAINING, INFERENCE):
            z = np.array([one.z[name] for one in steps if name in one.z and one.mode == mode])
            if len(z):
                inside, rms = f"{np.mean(np.abs(z) <= Z95):.0%}", f"{np.sqrt(np.mean(z**2)):.2f}"
                rows.append([f"{TITLES[name]}, {TITLES[mode]}", str(len(z)), inside, rms])
    return _format_table(rows)


def table_kernels(results: dict[str, Json]) -> str:
    """Return the median error of products and of vector kernels of each GPU."""
    head = [f"{what}, {TITLES[name]}" for what in ("products", "vector") for name in OWN]
    rows = [["GPU", *head]]
    choices: tuple[Callable[[str], bool], ...] = (
        lambda op: op in PRODUCT_OPS,
        lambda op: op not in PRODUCT_OPS,
    )
    for device, variants in sorted(results.items()):
        cells = [_median_error(variants.get(name), chosen) for chosen in choices for name in OWN]
        if any(cells):
            rows.append([device, *cells])
    return _format_table(rows)


def draw_errors(steps: Sequence[ScoredStep], path: Path) -> None:
    """Draw the MAPE of each GPU and mode by method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups = sorted({(one.mode, one.device) for one in steps}, reverse=True)
    figure, axes = plt.subplots(figsize=(8.0, 0.45 * len(groups) + 1.2))
    for place, name in enumerate(METHODS):
        points = []
        for height, (mode, device) in enumerate(groups):
            own = [one for one in steps if (one.mode, one.device) == (mode, device)]
            points.append((_mape(own, name), height))
        known = [(100.0 * mape, height) for mape, height in points if mape is not None]
        if known:
            size = 55 if name in OWN else 28
            mapes, heights = zip(*known, strict=True)
            axes.scatter(mapes, heights, s=size, label=TITLES[name], color=f"C{place}")
    axes.set_yticks(range(len(groups)), [f"{device}, {TITLES[mode]}" for mode, device in groups])
    axes.set_xlabel("MAPE of step latency on the left-out GPU (%)")
    axes.set_xlim(left=0.0)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _mape(steps: Iterable[ScoredStep], name: str) -> float | None:
    errors = [abs(one.errors[name]) for one in steps if name in one.errors]
    return float(np.mean(errors)) if errors else None


def _mean_of_means(groups: Iterable[Sequence[ScoredStep]], name: str) -> float | None:
    means = [mape for group in groups if (mape := _mape(group, name)) is not None]
    return float(np.mean(means)) if means else None


def _median_error(found: Json | None, chosen: Callable[[str], bool]) -> str:
    if found is None:
        return ""
    errors = [e for op, one in found["kernels"].items() if chosen(op) for e in one["errors"]]
    return f"{np.median(np.abs(errors)):.1%}" if errors else ""


def _format_errors(steps: Sequence[ScoredStep]) -> list[str]:
    return [_format_share(_mape(steps, name)) for name in METHODS]


def _format_share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _format_table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
