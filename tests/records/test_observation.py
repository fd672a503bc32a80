"""Profiles: which observations share one, and the provenance of several together."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.records import PROVENANCES, Device, Profile, weakest_provenance
from joulecast.testing import record_strategies as draw


def test_key_is_the_same_in_every_version():
    board = Profile(Device("board"), "torch-2.13.0", "gpu", "measured")
    assert board.key == "79f66f4a79c8e465"
    # Units of a device share a profile.
    assert replace(board, device=Device("board", unit="1a2b")).key == board.key


@given(draw.devices, draw.names, draw.names, st.sampled_from(PROVENANCES))
def test_power_mode_runtime_coverage_and_provenance_have_their_own_profiles(
    device, runtime, covers, provenance
):
    profile = Profile(device, runtime, covers, provenance)
    others = [
        replace(profile, device=replace(device, power_mode=device.power_mode + "!")),
        replace(profile, runtime=runtime + "!"),
        replace(profile, covers=covers + "!"),
        replace(profile, provenance=PROVENANCES[PROVENANCES.index(provenance) - 1]),
    ]
    assert len({profile.key, *(other.key for other in others)}) == 5
    assert replace(profile, fits={"flops": {}}).key == profile.key
    grown = replace(device, memory_bytes=device.memory_bytes + 1)
    assert replace(profile, device=grown).key == profile.key


@given(st.lists(st.sampled_from(PROVENANCES)))
def test_weakest_provenance_is_the_last_in_the_list(provenances):
    weakest = weakest_provenance(provenances)
    assert all(PROVENANCES.index(weakest) >= PROVENANCES.index(one) for one in provenances)
    assert weakest in (provenances or ["measured"])


@pytest.mark.parametrize(
    ("mode", "limit_w"),
    [("limit 700W", 700.0), ("MIG 1g, limit 62.5 W", 62.5), ("performance", None), ("", None)],
)
def test_a_power_mode_may_have_a_power_limit(mode: str, limit_w: float | None) -> None:
    assert Device("gpu", power_mode=mode).power_limit_w == limit_w
