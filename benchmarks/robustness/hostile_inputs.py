"""Give hostile inputs to everything that reads outside data; count what goes wrong.

python benchmarks/robustness/hostile_inputs.py --inputs 100000 --out results/inputs.json

traceback   a reader raised something else than one of our errors with one short line, or a
            message showed the password of a URL
code run    an input made Joulecast run code that it names
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from conditions import describe_conditions
from readers import HostileFolder, Reader

from joulecast.testing.hostile_inputs import find_defect

# A slow reader gets half as many inputs as a fast one.
FAST_WEIGHT, SLOW_WEIGHT = 2, 1
_MOST_SHOWN = 5


def main() -> None:
    """Run all readers and print what they did."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out.resolve() if options.out else None
    warnings.simplefilter("ignore", RuntimeWarning)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        # Settings are those of the present folder, and of no user.
        os.chdir(name)
        os.environ["XDG_CONFIG_HOME"] = str(Path(name) / "config")
        folder = HostileFolder(Path(name))
        rows = [
            run_reader(reader, count, options.seed)
            for reader, count in share_inputs(folder.list_readers(), options.inputs)
        ]
        has_run_code = folder.has_run_code()
        os.chdir("/")
    result = {
        "inputs": sum(row["inputs"] for row in rows),
        "tracebacks": sum(row["tracebacks"] for row in rows),
        "code_run": int(has_run_code),
        "seconds": round(time.monotonic() - started_s, 1),
        "readers": rows,
    }
    print(json.dumps({key: value for key, value in result.items() if key != "readers"}))
    if out:
        kept = {**describe_conditions(), **result}
        out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    sys.exit(bool(result["tracebacks"] or result["code_run"]))


def share_inputs(readers: list[Reader], inputs: int) -> list[tuple[Reader, int]]:
    """Return how many inputs each reader gets."""
    weights = [SLOW_WEIGHT if one.is_slow else FAST_WEIGHT for one in readers]
    shares = [inputs * weight / sum(weights) for weight in weights]
    return [(reader, round(share + 0.5)) for reader, share in zip(readers, shares, strict=True)]


def run_reader(reader: Reader, count: int, seed: int) -> dict[str, Any]:
    """Return what a reader did with ``count`` hostile inputs."""
    rng, defects = random.Random(f"{seed} {reader.name}"), Counter[str]()
    started_s = time.monotonic()
    for _ in range(count):
        defect = find_defect(reader.draw(rng))
        if defect is not None:
            defects[f"{type(defect).__name__}: {str(defect)[:200]}"] += 1
    row = {
        "reader": reader.name,
        "inputs": count,
        "tracebacks": defects.total(),
        "seconds": round(time.monotonic() - started_s, 1),
        "examples": [text for text, _ in defects.most_common(_MOST_SHOWN)],
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
