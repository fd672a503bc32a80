"""Run the cases of golden.json again, and print what differs; exit 1 if anything does."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cases
import running


def main() -> int:
    """Check the chosen cases with the joulecast that this Python imports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression of names of cases")
    parser.add_argument("--quick", action="store_true", help="about 30 cheap cases of all groups")
    parser.add_argument("--text", action="store_true", help="compare notes and reasons as well")
    parser.add_argument("--tolerance", type=float, default=1e-9, help="relative")
    parser.add_argument("--lines", type=int, default=6, help="differences printed per case")
    chosen = parser.parse_args()
    golden = json.loads(running.GOLDEN.read_text())
    names = running.choose(golden, chosen.only, cases.QUICK if chosen.quick else ())
    running.prepare()
    import joulecast

    print(f"{len(names)} cases with {Path(joulecast.__file__).parent}", flush=True)
    differing = 0
    for name in names:
        new = {
            "commands": golden[name]["commands"],
            **json.loads(json.dumps(running.run_case(golden[name]["commands"]))),
        }
        lines = running.compare(golden[name], new, chosen.tolerance, chosen.text)
        if not lines:
            continue
        differing += 1
        print(f"\n{name}: joulecast {' ; '.join(golden[name]['commands'])}")
        for line in lines[: chosen.lines]:
            print(f"    {line}")
        if len(lines) > chosen.lines:
            print(f"    ... and {len(lines) - chosen.lines} more")
        if golden[name]["codes"] != new["codes"]:
            print(f"    stderr was: {golden[name].get('stderr', '').strip()}")
            print(f"    stderr is:  {new.get('stderr', '').strip()}", flush=True)
    print(f"\n{len(names) - differing} of {len(names)} cases are equal.")
    return 1 if differing or not names else 0


if __name__ == "__main__":
    sys.exit(main())
