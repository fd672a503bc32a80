"""Measure and estimate networks as people train them: compiled, checkpointed or accumulated.

    python run.py --out results/test.jsonl --on cuda:0

Each network is trained in a plain PyTorch loop under the energy meter, and estimated twice: from
the shipped profile alone, and after a probe of its layers. Estimates see the module and its inputs,
never the truth. Networks that are already in the file are skipped.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from run_networks import DEVELOPMENT, TEST, RunNetwork
from truth_loop import measure_steps

import joulecast
from joulecast.devices import find_gpu
from joulecast.meters import make_meter

Json = dict[str, Any]


def main() -> None:
    """Run the networks that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--on", default="cuda:0")
    parser.add_argument("--development", action="store_true", help="run the development networks")
    parser.add_argument("--only", default="", help="run networks whose name contains this")
    parser.add_argument("--seconds", type=float, default=540.0, help="start no network after this")
    parser.add_argument("--probe-seconds", type=float, default=20.0)
    args = parser.parse_args()
    started_s = time.monotonic()
    done = {row["name"] for row in _read(args.out)}
    meter = make_meter("auto", args.on, find_gpu(args.on))
    meter.open()
    for entry in DEVELOPMENT if args.development else TEST:
        if entry.name in done or args.only not in entry.name:
            continue
        if time.monotonic() - started_s > args.seconds:
            print("time is over")
            break
        row = _run(entry, args.on, meter, args.probe_seconds)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(describe(row), flush=True)
    meter.close()


def describe(row: Json) -> str:
    """Return a line with the measured energy and the errors of both estimates."""
    parts = [f"{row['name']:28s}"]
    for name in ("truth", "shipped", "probed"):
        part = row[name]
        if "error" in part:
            parts.append(f"{name}: {part['error'][:160]}")
            continue
        text = f"{name} {part['energy_j']:8.3f} J {1e3 * part['duration_s']:8.2f} ms"
        if name != "truth" and "energy_j" in row["truth"]:
            text += f" {100 * (part['energy_j'] / row['truth']['energy_j'] - 1):+6.1f} %"
        parts.append(text)
    return " | ".join(parts)


def _run(entry: RunNetwork, on: str, meter: Any, probe_seconds: float) -> Json:
    row: Json = {"name": entry.name}
    with tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Callable[[], Json]] = {
            "truth": lambda: measure_steps(entry, on, meter),
            "shipped": lambda: _estimate(entry, device="nvidia-h200"),
            "probed": lambda: _estimate(
                entry,
                probe=True,
                on=on,
                store=f"{folder}/probes.sqlite",
                probe_seconds=probe_seconds,
            ),
        }
        for name, run in ways.items():
            started_s = time.monotonic()
            try:
                row[name] = run()
            # One network that fails must not end the others.
            except Exception as error:
                row[name] = {"error": f"{type(error).__name__}: {error}"}
            row[name]["took_s"] = time.monotonic() - started_s
            _free_memory(on)
    return row


def _estimate(entry: RunNetwork, **where: Any) -> Json:
    module, inputs = entry.make(), entry.make_inputs(entry.batch)
    estimate = joulecast.estimate(
        module,
        inputs,
        batch=entry.batch,
        precision=entry.precision,
        optimizer=entry.optimizer,
        accumulate=entry.accumulate,
        compiled=entry.compiled,
        **where,
    )
    low_j, high_j = estimate.interval_j
    return {
        "energy_j": estimate.energy_j,
        "interval_j": [low_j, high_j],
        "duration_s": estimate.duration_s,
        "notes": list(estimate.notes),
    }


def _free_memory(on: str) -> None:
    torch.compiler.reset()
    gc.collect()
    if on.startswith("cuda"):
        torch.cuda.empty_cache()


def _read(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
