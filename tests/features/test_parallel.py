"""Options of several GPUs: what is refused is named, in one line that says what to do."""

from __future__ import annotations

import pytest

from joulecast.features.parallel import ParallelOptions, make_gpu_group
from joulecast.system.errors import ArgumentError, InputError

NAMES = ("tensor", "pipeline", "expert", "sequence", "context")
OTHERS = {name: f"{name} parallelism" for name in NAMES}
OTHERS |= {"fsdp": "FSDP", "FSDP": "FSDP", "zero": "ZeRO"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ((4, one), f"^{OTHERS[one]} is not modelled yet: give parallel='data'")
            for one in OTHERS
        ),
        ((0,), "gpus is 0: give a whole number from 1 to 16"),
        ((17, "data"), "gpus is 17: .* of one machine"),
        ((2,), "2 GPUs have to share the work"),
        ((2, "magic"), "there is no parallelism 'magic': give parallel='data'"),
        ((2, "data", 0.0), "link_gb_s is 0.0: give GB/s"),
        ((2, "data", float("inf")), "link_gb_s is inf: give GB/s"),
    ],
)
def test_wrong_values_are_one_clear_line(options, message) -> None:
    with pytest.raises(InputError, match=message):
        ParallelOptions(*options)


def test_bandwidths_are_bytes_per_second_of_a_number_of_gpus() -> None:
    assert ParallelOptions().link_bytes_per_s is None
    assert ParallelOptions(4, "data", 300).link_bytes_per_s == 300e9
    with pytest.raises(ArgumentError, match="link_gb_s needs gpus"):
        make_gpu_group(None, "", 32.0)
