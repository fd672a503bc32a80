"""``python -m papers.ampere fig2 ... table1 | all``: the command line.

Measuring needs PyTorch, NumPy, SciPy and scikit-learn, and nothing that draws or prints. It ends
with 0, with 1 and one line on an error, and with 3 if the time was spent before all was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from joulecast.devices.detect import parse_on
from joulecast.features.progress_report import ProgressReport
from joulecast.runtimes import find_hardware
from joulecast.system.errors import JoulecastError
from papers.ampere.experiment import Work
from papers.ampere.run import Outcome, choose_settings, find_experiments, plan, run

INTERRUPTED, NOT_COMPLETE = 130, 3
_ABOUT = """Run experiments of the AMPERE paper: fig2 ... fig13, table1, or all of them. Each one
measures networks, draws the figure of the paper from them, and says whether the paper's statement
held on this device. Every observation is kept at once: after an interruption, the same command
continues."""
_HELP = {
    "on": "device: cpu, cuda:0, simulated:7, or the address of an agent",
    "meter": "meter, as `joulecast detect` lists them",
    "device_name": "name to record for the device",
    "out": "folder of observations, results and pictures",
    "celeba": "folder of CelebA for fig13, instead of drawn faces",
    "quick": "use fewer networks and less device time",
    "measure_only": "leave analysing and drawing to a later run",
    "redraw": "use what the folder holds, without a device",
    "faithful": "the paper's algorithm without our deviations, and 500 steps a measurement",
    "until_s": "measure nothing more after this time",
    "beside": "also draw the results of another folder; several times for several",
}
"""Options of ``run``, which has their defaults."""
_CONVERSIONS: dict[str, Any] = {"until_s": {"type": float}}
_CONVERSIONS["beside"] = {"action": "append", "default": []}


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit code."""
    parser = argparse.ArgumentParser("python -m papers.ampere", description=_ABOUT)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT")
    for name, text in _HELP.items():
        default = signature(run).parameters[name].default
        how = {"action": "store_true"} if default is False else {"default": default}
        how |= _CONVERSIONS.get(name, {})
        parser.add_argument(f"--{name.replace('_', '-')}", help=text, **how)
    dry = "list what would be measured, and how long it takes"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = vars(parser.parse_args(words))
    is_json, names = args.pop("json"), args.pop("experiments")
    try:
        if args.pop("dry_run"):
            # The device need not be here, but has to exist.
            hardware = None if "://" in args["on"] else find_hardware(args["on"])
            if hardware is not None:
                parse_on(hardware)
            settings = choose_settings(args["on"], args["quick"], args["faithful"])
            _print_plan(plan(find_experiments(names), settings), is_json)
            return 0
        started_s = due_s = time.monotonic()

        def report(progress: ProgressReport) -> None:
            """Write a line of progress every five seconds."""
            nonlocal due_s
            if (now_s := time.monotonic()) >= due_s:
                due_s = now_s + 5.0
                share = 100 * progress.done / max(progress.total, 1e-9)
                line = f"{now_s - started_s:6.0f} s  {share:3.0f} %  {progress.what}"
                print(f"{line}  {progress.detail[:60]}", file=sys.stderr, flush=True)

        outcome = run(*names, **args, on_progress=report)
    except JoulecastError as error:
        print(f"papers.ampere: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        kept = "what was measured is stored; run it again to resume"
        print(f"\npapers.ampere: interrupted: {kept}", file=sys.stderr)
        return INTERRUPTED
    _print_outcome(outcome, args["out"], is_json)
    return 0 if outcome.is_complete else NOT_COMPLETE


def _print_plan(plans: Mapping[str, Sequence[Work]], is_json: bool) -> None:
    if is_json:
        keys = ("name", "trials", "seconds")
        rows = {n: [{k: getattr(one, k) for k in keys} for one in plans[n]] for n in plans}
        print(json.dumps(rows, indent=2))
        return
    every = [one for works in plans.values() for one in works]
    whole = "in all, on an H200; what is shared counts once"
    trials, seconds = sum(one.trials for one in every), sum(one.seconds for one in every)
    for name, works in plans.items():
        print(f"{name}{'' if works else ': nothing of its own'}")
        for one in works:
            print(f"{one.trials:8,} trials {one.seconds:7,.0f} s  {one.name}")
    print(f"{trials:8,} trials {seconds:7,.0f} s  {whole}")


def _print_outcome(outcome: Outcome, out: str, is_json: bool) -> None:
    if is_json:
        data = {
            "results": [one.to_dict() for one in outcome.results],
            "files": [str(path) for path in outcome.files],
            "failures": list(outcome.failures),
            "is_complete": outcome.is_complete,
        }
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for one in outcome.results:
        print(f"{one.name}  {one.title}: {one.verdict}")
        print(f"  The paper: {one.statement}\n  {one.device_label}: {one.finding}\n")
    for reason in outcome.failures[:8]:
        print(f"Left out: {reason}")
    if not outcome.is_complete:
        print("The time is spent before everything was measured: run it again to continue.")
    what = "Pictures, numbers, observations and summary.md" if outcome.files else "Observations"
    print(f"{what} are in {out}.{'' if outcome.files else ' --redraw analyses and draws them.'}")


if __name__ == "__main__":
    sys.exit(main())
