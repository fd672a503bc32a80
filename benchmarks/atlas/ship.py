"""Write the profile that ships with the package, from stored observations.

    python -m benchmarks.atlas.ship OUT.json FILE ...

Reads profiles (``.json``), observations (``.json.xz``) and stores (``.sqlite``) of one device,
leaves out every test network of an evaluation, drops observations that were fed fp32 under autocast
by mistake, fits the estimators, and writes one file. Probes of a test network may ship once it is a
development network; until then, do not give their file. ``FILE@UNIT`` names the unit of the device
for observations that do not record it.

The H200's was made of its predecessor and of ``atlas/results/*.json.xz``,
``anywhere/results/probes.json.xz`` and ``accuracy/results/observations-outside*.json.xz``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import read_json, read_profiles
from joulecast.estimators import find_estimator
from joulecast.estimators.additive.estimator import FittedAdditive
from joulecast.estimators.plausibility import drop_contradicted
from joulecast.records import Observation, Profile
from joulecast.store.files import write_profile

ESTIMATORS = ("additive", "subtractive")
# Eager steps without energy that are kept of one structure and setup.
MAX_PER_STRUCTURE = 6
SHIPPED = "shipped "
# Since then the runtime keeps weights steady. Networks of up to three layers are variants.
STEADY_SINCE_S, VARIANT_LAYERS = 1794756000.0, 3
# Observations of test networks, and of campaigns that are of no use to the estimators that ship.
LEFT_OUT = ("test1", "test2", "neuralpower", "flops", "flops-linear", "subtractive")


def main() -> None:
    """Collect, fit and write."""
    if len(sys.argv) < 3:
        sys.exit("give OUT.json and at least one profile or store")
    out, *files = sys.argv[1:]
    found = [profile for file in files for profile in read_all(file)]
    if len({profile.key for profile in found}) != 1:
        sys.exit("the files contain profiles of several devices: give those of one")
    unique = {
        (one.trial.key, one.run, one.taken_at_s): one
        for profile in found
        for one in profile.observations
        if is_shippable(one)
    }
    counts: Counter[object] = Counter()
    observations = []
    for one in sorted(unique.values(), key=lambda one: one.taken_at_s):
        kinds = tuple(layer.kind for layer in one.trial.network.layers)
        is_eager = one.trial.execution.mode == "eager"
        is_host_only = is_eager and one.energy_j is None and len(kinds) > 1
        counts[kinds, one.trial.setup] += is_host_only
        if not is_host_only or counts[kinds, one.trial.setup] <= MAX_PER_STRUCTURE:
            # With a run tag that no evaluation takes for its own.
            is_tagged = one.run.startswith(SHIPPED)
            observations.append(one if is_tagged else replace(one, run=SHIPPED + one.run))
    fits = {name: fit_estimator(name, tuple(observations)) for name in ESTIMATORS}
    shipped = replace(found[0], observations=tuple(observations), fits={}).add_fits(fits)
    write_profile(shipped, Path(out))
    print(f"{out}: {len(observations)} observations, {Path(out).stat().st_size / 1e6:.2f} MB")


def fit_estimator(name: str, observations: tuple[Observation, ...]) -> dict[str, Any]:
    """Return an estimator's fit for any unit of the device, as JSON."""
    fitted = find_estimator(name).fit(drop_contradicted(observations))
    if isinstance(fitted, FittedAdditive):
        fitted = fitted.for_any_unit()
    return fitted.to_dict()


def read_all(text: str) -> Iterator[Profile]:
    """Yield the profiles of a file; a packed list of observations is a profile too."""
    name, _, unit = text.partition("@")
    if name.endswith(".json.xz") and "profile" not in (data := read_json(Path(name))):
        observations = tuple(find_observations(data))
        first = observations[0]
        made = Profile(first.device, first.runtime, first.covers, first.provenance, observations)
        profiles = [made]
    else:
        profiles = read_profiles(Path(name))
    for profile in profiles:
        own = profile.observations
        if unit:
            own = tuple(replace(one, device=replace(one.device, unit=unit)) for one in own)
        yield replace(profile, observations=tuple(own))


def find_observations(data: Any) -> Iterator[Observation]:
    """Yield all observations anywhere in JSON values."""
    if isinstance(data, dict) and "trial" in data:
        yield Observation.from_dict(data)
    elif isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from find_observations(value)


def is_shippable(observation: Observation) -> bool:
    """Return whether an observation may ship."""
    trial = observation.trial
    network, is_eager = trial.network, trial.execution.mode == "eager"
    # Grouped products in fp32 cannot be captured: these ran in half precision, at three times the
    # peak of fp32, which their records do not say.
    kinds = {layer.kind for layer in network.layers if not layer.sizes.get("half")}
    if not is_eager and "grouped_linear" in kinds:
        return False
    if observation.run.startswith(SHIPPED):
        return True
    if observation.run.endswith(LEFT_OUT) or observation.source:
        return False
    # Energies of whole networks from before weights were kept steady drift.
    is_whole = is_eager and len(network.layers) > VARIANT_LAYERS
    if is_whole and observation.energy_j is not None and observation.taken_at_s < STEADY_SINCE_S:
        return False
    # Of isolated layers under autocast, convolutions were once fed fp32 by mistake.
    is_half = trial.setup.precision in ("bf16", "fp16")
    if not is_half or trial.execution.upstream != "random" or network.input.half:
        return True
    first = network.layers[0]
    return first.kind in ("layer_norm", "embedding") or not first.input_grad


if __name__ == "__main__":
    main()
