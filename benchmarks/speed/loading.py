"""Time a cold ``joulecast estimate`` with a large shipped profile, and what it spends its time on.

The profile that ships is enlarged to 5,000 observations by repeating them. It is written twice:
packed, as profiles are written now, and plain, as version 1 of the file format was, in which every
observation is parsed when the file is read. Every figure comes from new processes with compiled
modules; the minimum of several counts, because other load can make a figure larger, never smaller.

    python benchmarks/speed/loading.py                a table
    python benchmarks/speed/loading.py --out FILE     also write it as JSON
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from joulecast.estimators import DEFAULT
from joulecast.files import read_profile, write_profile
from joulecast.records import Observation, Profile
from joulecast.store.profiles import SHIPPED
from joulecast.testing.commits import find_commit
from joulecast.testing.machines import find_processor

OBSERVATIONS = 5_000
COMMAND = "from joulecast.cli.main import main; main()"
WORDS = ("estimate", "cnn5", "--device", "nvidia-h200")
IMPORTS = "import joulecast.cli.main, joulecast.cli.estimate, rich.console"
READ = "from joulecast.files import read_profile; {0}; profile = read_profile({1!r}); {2}"
START, STOP = "import time; t = time.process_time()", "print(time.process_time() - t)"
PREDICT = (
    "from joulecast.api.profiles import load_profile; "
    "from joulecast.estimators import estimate_network; "
    "from joulecast.families import make_family; from joulecast.records import Setup; "
    "import joulecast.cli.estimate; profile = load_profile('nvidia-h200'); "
    f"{START}; estimate_network(profile, make_family('cnn5'), Setup()); {STOP}"
)

Json = dict[str, Any]


def main() -> None:
    """Measure and print, and write the figures if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure_all(Path(folder), args.repeats)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(make_table(report))


def measure_all(folder: Path, repeats: int) -> Json:
    """Return all figures: the least CPU seconds of several processes each."""
    source = next(SHIPPED.glob("nvidia-h200.json"))
    profile = enlarge(read_profile(source))
    sizes = {}
    for name, write in (("plain", write_plain), ("packed", write_profile)):
        (folder / name).mkdir()
        write(profile, folder / name / source.name)
        sizes[name] = (folder / name / source.name).stat().st_size
    figures: dict[str, list[float]] = {}
    for number in range(repeats + 1):
        for label, seconds in measure_once(folder, source.name).items():
            # The first round compiles the modules.
            if number:
                figures.setdefault(label, []).append(seconds)
    return {
        "processor": find_processor(),
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": find_commit(__file__),
        "observations": len(profile.observations),
        "repeats": repeats,
        "file_bytes": sizes,
        "cpu_s": {label: round(min(values), 4) for label, values in figures.items()},
        "all_cpu_s": {label: [round(v, 4) for v in values] for label, values in figures.items()},
    }


def measure_once(folder: Path, name: str) -> dict[str, float]:
    """Return every figure once, each from a process of its own."""
    figures = {
        "python": run([], "", folder / "packed"),
        "numpy": run([], "import numpy", folder / "packed"),
    }
    figures["imports"] = run([], IMPORTS, folder / "packed")
    for form in ("plain", "packed"):
        file = str(folder / form / name)
        figures[f"read {form}"] = run_timed(READ.format(START, file, STOP), folder / form)
    parse = f"list(profile.observations); {STOP}"
    figures["read packed and parse"] = run_timed(
        READ.format(START, str(folder / "packed" / name), parse), folder / "packed"
    )
    figures["estimate"] = run(WORDS, COMMAND, folder / "packed")
    figures["predict"] = run_timed(PREDICT, folder / "packed")
    return figures


def enlarge(profile: Profile) -> Profile:
    """Return a profile with as many observations as an atlas has, and the default fit."""
    many = tuple(islice(_repeat(profile), OBSERVATIONS))
    larger = replace(profile, observations=many, fits={})
    return larger.add_fits({DEFAULT: profile.fits[DEFAULT]})


def _repeat(profile: Profile) -> Iterator[Observation]:
    number = 0
    while True:
        for one in profile.observations:
            yield _retake(one, number)
        number += 1


def _retake(one: Observation, number: int) -> Observation:
    """Return a repetition that no estimator uses, so that the stored fit stays valid."""
    if not number:
        return one
    later_s = one.taken_at_s + number
    refused = replace(one, refusal="a repetition", taken_at_s=later_s)
    return replace(refused, energy_j=None, duration_s=None, issue_s=None)


def write_plain(profile: Profile, path: Path) -> None:
    """Write a profile as version 1 of the format did."""
    data = profile.to_dict()
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    head = {"format": "joulecast-profile", "version": 1, "sha256": digest}
    path.write_text(json.dumps({**head, "profile": data}))


def run(words: Sequence[str], code: str, folder: Path) -> float:
    """Return the CPU seconds of a whole process."""
    before = os.times()
    _call(code, words, folder)
    after = os.times()
    return (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )


def run_timed(code: str, folder: Path) -> float:
    """Return the CPU seconds that a process says it spent."""
    return float(_call(code, [], folder).splitlines()[-1])


def _call(code: str, words: Sequence[str], folder: Path) -> str:
    environment = {
        **os.environ,
        "JOULECAST_PROFILES": str(folder),
        "JOULECAST_STORE": str(folder / "none.sqlite"),
        "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def make_table(report: Json) -> str:
    """Return the figures as a table."""
    sizes = ", ".join(f"{form} {size / 1e6:.2f} MB" for form, size in report["file_bytes"].items())
    lines = [f"{report['observations']:,} observations: {sizes}; CPU s, minimum of repeats"]
    lines += [f"{label:24s} {seconds:8.3f}" for label, seconds in report["cpu_s"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
