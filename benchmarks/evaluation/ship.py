"""Makes the profile that ships with the package, from kept observations.

Takes profiles (``.json``) and stores (``.sqlite``) of one device, leaves out every test net of an
evaluation and every probe that was made for one, drops what was fed fp32 under autocast by mistake,
fits, and writes one file.

    python benchmarks/evaluation/ship.py OUT.json FILE ...

FILE@UNIT says which unit of the device made what does not say so itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from joulecast.estimators import find_estimator
from joulecast.files import read_profile, write_profile
from joulecast.records import Observation, Profile
from joulecast.store import open_store

ESTIMATORS = ("additive", "subtractive")
JUDGED = ("test1", "test2", "probe")
# Steps of one structure under one setup that tell the host's seconds and nothing else.
ENOUGH = 6
SHIPPED = "shipped "
# When the runtime began to hold weights still; up to so many layers it is a variant of the paper's.
STILL_SINCE_S, VARIANT_LAYERS = 1794756000.0, 3
# What rivals measured for themselves is of no use to the estimators that ship.
RIVALS = ("neuralpower", "flops", "flops-linear", "subtractive")


def main() -> None:
    """Collect, fit, write."""
    if len(sys.argv) < 3:
        sys.exit("give OUT.json and at least one profile or store")
    out, *files = sys.argv[1:]
    found = [profile for file in files for profile in read_all(file)]
    if len({profile.key for profile in found}) != 1:
        sys.exit("the files hold profiles of several devices: give those of one")
    kept = {(s.trial.key, s.run, s.taken_at_s): s for p in found for s in p.observations if fit(s)}
    seen = tuple(map(rename, thin(sorted(kept.values(), key=lambda one: one.taken_at_s))))
    fits = {name: find_estimator(name).fit(seen).to_dict() for name in ESTIMATORS}
    write_profile(replace(found[0], observations=seen, fits=fits), Path(out))
    print(f"{out}: {len(seen)} observations, {Path(out).stat().st_size / 1e6:.2f} MB")


def thin(seen: list[Observation]) -> tuple[Observation, ...]:
    """Of eager steps that only tell the host's seconds, a few of each structure are enough."""
    counts: Counter[tuple[object, ...]] = Counter()
    left = []
    for one in seen:
        kinds = tuple(layer.kind for layer in one.trial.network.layers)
        host = one.energy_j is None and one.trial.execution.mode == "eager" and len(kinds) > 1
        name = (kinds, one.trial.setup)
        counts[name] += host
        if not host or counts[name] <= ENOUGH:
            left.append(one)
    return tuple(left)


def rename(one: Observation) -> Observation:
    """An observation that no evaluation takes for its own when it runs elsewhere."""
    return one if one.run.startswith(SHIPPED) else replace(one, run=SHIPPED + one.run)


def read_all(words: str) -> Iterator[Profile]:
    """Profiles of a file; a store's without what rivals measured for themselves."""
    name, _, unit = words.partition("@")
    if name.endswith(".json"):
        yield name_unit(read_profile(name), unit)
        return
    # What ships already is none of the store's own.
    with open_store(name, create=False, shipped=Path("nowhere")) as store:
        for one in store.profiles():
            if not one.shipped:
                profile = store.profile(one.key)
                own = [seen for seen in profile.observations if not seen.run.endswith(RIVALS)]
                yield name_unit(replace(profile, observations=tuple(own)), unit)


def name_unit(profile: Profile, unit: str) -> Profile:
    """A profile whose observations say which unit made them."""
    if not unit:
        return profile
    seen = [replace(one, device=replace(one.device, unit=unit)) for one in profile.observations]
    return replace(profile, observations=tuple(seen))


def fit(seen: Observation) -> bool:
    """Whether an observation may ship: no test net, and fed as its net would feed it."""
    judged = seen.run.endswith(JUDGED)
    return not judged and not seen.source and _is_fed_right(seen) and not _is_drifting(seen)


def _is_drifting(seen: Observation) -> bool:
    """A whole net in joules from before weights stood still while they are measured."""
    whole = seen.trial.execution.mode == "eager" and len(seen.trial.network.layers) > VARIANT_LAYERS
    return whole and seen.energy_j is not None and seen.taken_at_s < STILL_SINCE_S


def _is_fed_right(seen: Observation) -> bool:
    """Of what ran alone under autocast only convolution blocks were once fed fp32 by mistake."""
    network, half = seen.trial.network, seen.trial.setup.precision in ("bf16", "fp16")
    if not half or seen.trial.execution.upstream != "random" or network.input.half:
        return True
    first = network.layers[0]
    return first.kind in ("layer_norm", "embedding") or not first.input_grad


if __name__ == "__main__":
    main()
