"""Record golden.json: what every case answers with the code of this checkout."""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cases
import running


def main() -> None:
    """Record all cases, or those that match --only, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression; the others stay")
    parser.add_argument("--out", type=Path, default=running.GOLDEN)
    chosen = parser.parse_args()
    all_cases = cases.list_cases()
    known = json.loads(chosen.out.read_text()) if chosen.only and chosen.out.exists() else {}
    running.prepare()
    for name in running.choose(all_cases, chosen.only):
        started = time.perf_counter()
        known[name] = {"commands": all_cases[name], **running.run_case(all_cases[name])}
        took = time.perf_counter() - started
        print(f"{took:6.2f} s  {known[name]['codes']}  {name}", flush=True)
    # One line per case: differences of two files can be read.
    rows = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in all_cases if name in known)
    chosen.out.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
