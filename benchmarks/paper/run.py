"""Measure the experiments of the AMPERE paper into a folder, as far as the time allows.

    python benchmarks/paper/run.py OUT --on cuda:0 --until-s 540
    joulecast reproduce all --out OUT --redraw              # anywhere, without the device

Every observation is on the disk before the next one is measured, and the same command continues.
It needs PyTorch, NumPy, SciPy and scikit-learn, and nothing that draws or prints. It ends with 0
when everything is measured, and with 3 when the time was spent before.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import joulecast

REPORT_EVERY_S = 5.0
NOT_COMPLETE = 3


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("experiments", nargs="*", default=["all"])
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--until-s", type=float)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--faithful", action="store_true")
    args = parser.parse_args()
    started_s = time.monotonic()
    due_s = 0.0

    def report(progress: Any) -> None:
        nonlocal due_s
        now_s = time.monotonic() - started_s
        if now_s >= due_s:
            due_s = now_s + REPORT_EVERY_S
            share = 100 * progress.done / max(progress.total, 1e-9)
            detail = progress.detail[:60]
            print(f"{now_s:6.0f} s  {share:3.0f} %  {progress.what}  {detail}", flush=True)

    outcome = joulecast.reproduce(
        args.experiments,
        on=args.on,
        out=args.out,
        quick=args.quick,
        faithful=args.faithful,
        until_s=args.until_s,
        measure_only=True,
        on_progress=report,
    )
    for reason in outcome.failures:
        print(f"left out: {reason}")
    state = "everything is measured" if outcome.is_complete else "run it again to continue"
    print(f"{time.monotonic() - started_s:.0f} s: {state}")
    return 0 if outcome.is_complete else NOT_COMPLETE


if __name__ == "__main__":
    sys.exit(main())
