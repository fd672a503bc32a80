"""Estimate the networks of a run again from its files, with the current code and profile.

    python benchmarks/anywhere/rescore.py OUT --out AGAIN [--device PROFILE.json]

Needs no device and none of the modules: networks are those that were read, probes those that were
measured. The truth is copied. Estimates with probes come from the profile's observations and those
of the network's own probes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimates import DEVICE, UNNAMED, Rivals, estimate_shipped, sum_costs
from result_files import RunFolder, open_folder

import joulecast
from joulecast.errors import JoulecastError
from joulecast.testing.commits import find_commit

Json = dict[str, Any]


def main() -> None:
    """Estimate all networks of a run again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder that run.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--device", default=DEVICE, help="device or profile file")
    args = parser.parse_args()
    profile = joulecast.load_profile(args.device)
    before, after = open_folder(args.run), open_folder(args.out)
    rivals = Rivals(profile)
    for name in before.networks:
        rescore_network(name, before, after, rivals)
        print(name, flush=True)


def rescore_network(name: str, before: RunFolder, after: RunFolder, rivals: Rivals) -> None:
    """Estimate one network again and store it with its truth."""
    profile = rivals.profile
    network, setup = before.load_network(name)
    commit = find_commit(__file__)
    results = before.results[name]
    for stage in ("setup", "about", "truth"):
        if stage in results:
            after.add_stage(name, stage, results[stage])
    after.add_network(name, network, setup)
    found = catch(lambda: estimate_shipped(network, setup, profile))
    units = sorted({one.device.unit or UNNAMED for one in profile.observations})
    after.add_stage(name, "shipped", {**found, "profile_units": units, "commit": commit})
    after.add_stage(name, "rivals", rivals.estimate(network, setup))
    if name in before.probes:
        probes = before.load_probes(name)
        after.add_probes(name, list(probes))
        known = replace(profile, observations=(*profile.observations, *probes))
        found = catch(lambda: estimate_shipped(network, setup, known))
        kept = {"measuring_s": sum_costs(probes), "observations": len(probes), "commit": commit}
        unit = results.get("probed", {}).get("unit", "")
        after.add_stage(name, "probed", {**found, **kept, "unit": unit})


def catch(estimate: Any) -> Json:
    """Return an estimate, or why there is none."""
    try:
        found: Json = estimate()
    except JoulecastError as error:
        return {"error": str(error)}
    return found


if __name__ == "__main__":
    main()
