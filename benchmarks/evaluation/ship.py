"""Write the profile that ships with the package, from stored observations.

Reads profiles (``.json``), observations (``.json.gz``) and stores (``.sqlite``) of one device,
leaves out every test net of an evaluation, drops observations that were fed fp32 under autocast by
mistake, fits the estimators, and writes one file. Probes of a test net may ship once it is a
development net; until then, do not give their file.

    python benchmarks/evaluation/ship.py OUT.json FILE ...

The H200's was made of its predecessor, ``atlas/results/observations.json.gz``, 60 s of
``joulecast profile --atlas``, ``anywhere/results/probes.json.gz`` and, unpacked,
``accuracy/results/observations-outside*.json.gz``, without the whole nets and the filter of
precisions for the last two.

FILE@UNIT names the unit of the device for observations that do not record it.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from joulecast.estimators import find_estimator
from joulecast.estimators.additive.estimator import FittedAdditive
from joulecast.estimators.plausibility import drop_contradicted
from joulecast.files import read_profile, write_profile
from joulecast.records import Observation, Profile
from joulecast.store import open_store

ESTIMATORS = ("additive", "subtractive")
TEST_SUFFIXES = ("test1", "test2")
# Eager steps without energy that are kept of one structure and setup.
MAX_PER_STRUCTURE = 6
SHIPPED = "shipped "
# Since then the runtime keeps weights steady. Networks of up to three layers are variants.
STEADY_SINCE_S, VARIANT_LAYERS = 1794756000.0, 3
# Observations of these campaigns are of no use to the estimators that ship.
BASELINES = ("neuralpower", "flops", "flops-linear", "subtractive")


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
    ordered = sorted(unique.values(), key=lambda one: one.taken_at_s)
    observations = tuple(map(tag_shipped, drop_repeats(ordered)))
    fits = {name: fit_estimator(name, observations) for name in ESTIMATORS}
    shipped = replace(found[0], observations=observations, fits={}).add_fits(fits)
    write_profile(shipped, Path(out))
    print(f"{out}: {len(observations)} observations, {Path(out).stat().st_size / 1e6:.2f} MB")


def fit_estimator(name: str, observations: tuple[Observation, ...]) -> dict[str, Any]:
    """Return an estimator's fit for any unit of the device, as JSON."""
    fitted = find_estimator(name).fit(drop_contradicted(observations))
    if isinstance(fitted, FittedAdditive):
        fitted = fitted.for_any_unit()
    return fitted.to_dict()


def drop_repeats(observations: list[Observation]) -> tuple[Observation, ...]:
    """Return observations with only a few eager steps without energy of each structure."""
    counts: Counter[tuple[object, ...]] = Counter()
    kept_observations = []
    for one in observations:
        kinds = tuple(layer.kind for layer in one.trial.network.layers)
        is_eager = one.trial.execution.mode == "eager"
        is_host_only = is_eager and one.energy_j is None and len(kinds) > 1
        name = (kinds, one.trial.setup)
        counts[name] += is_host_only
        if not is_host_only or counts[name] <= MAX_PER_STRUCTURE:
            kept_observations.append(one)
    return tuple(kept_observations)


def tag_shipped(one: Observation) -> Observation:
    """Return an observation with a run tag that no evaluation takes for its own."""
    return one if one.run.startswith(SHIPPED) else replace(one, run=SHIPPED + one.run)


def read_all(text: str) -> Iterator[Profile]:
    """Yield the profiles of a file; those of a store without campaigns of baselines."""
    name, _, unit = text.partition("@")
    if name.endswith(".json"):
        yield name_unit(read_profile(name), unit)
        return
    if name.endswith(".json.gz"):
        observations = tuple(
            find_observations(json.loads(gzip.decompress(Path(name).read_bytes())))
        )
        first = observations[0]
        made = Profile(first.device, first.runtime, first.covers, first.provenance)
        yield name_unit(replace(made, observations=observations), unit)
        return
    # Leave out the profiles that already ship.
    with open_store(name, create=False, shipped=Path("nowhere")) as store:
        for one in store.list_profiles():
            if not one.shipped:
                profile = store.load_profile(one.key)
                own = [one for one in profile.observations if not one.run.endswith(BASELINES)]
                yield name_unit(replace(profile, observations=tuple(own)), unit)


def find_observations(data: Any) -> Iterator[Observation]:
    """Yield all observations anywhere in JSON values."""
    if isinstance(data, dict) and "trial" in data:
        yield Observation.from_dict(data)
    elif isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from find_observations(value)


def name_unit(profile: Profile, unit: str) -> Profile:
    """Return a profile whose observations record the unit of the device."""
    if not unit:
        return profile
    observations = [
        replace(one, device=replace(one.device, unit=unit)) for one in profile.observations
    ]
    return replace(profile, observations=tuple(observations))


def is_shippable(observation: Observation) -> bool:
    """Return whether an observation may ship: not of a test net, and with the right precision."""
    is_test = observation.run.endswith(TEST_SUFFIXES)
    return (
        not is_test
        and not observation.source
        and _has_right_precision(observation)
        and not _is_drifting(observation)
    )


def _is_drifting(observation: Observation) -> bool:
    """Return whether it is the energy of a whole net from before weights were kept steady."""
    whole = (
        observation.trial.execution.mode == "eager"
        and len(observation.trial.network.layers) > VARIANT_LAYERS
    )
    return whole and observation.energy_j is not None and observation.taken_at_s < STEADY_SINCE_S


def _has_right_precision(observation: Observation) -> bool:
    """Return whether the input had the precision that it has inside a network.

    Of isolated pieces under autocast, convolution blocks were once fed fp32 by mistake.
    """
    network, half = observation.trial.network, observation.trial.setup.precision in ("bf16", "fp16")
    if not half or observation.trial.execution.upstream != "random" or network.input.half:
        return True
    first = network.layers[0]
    return first.kind in ("layer_norm", "embedding") or not first.input_grad


if __name__ == "__main__":
    main()
