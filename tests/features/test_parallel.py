"""Options of several GPUs: what is refused is named, in one line that says what to do."""

from __future__ import annotations

import pytest

from joulecast.features.parallel import ParallelOptions, make_gpu_group
from joulecast.system.errors import ArgumentError, InputError


def test_bandwidths_are_bytes_per_second() -> None:
    assert ParallelOptions().link_bytes_per_s is None
    assert ParallelOptions(4, "data", 300).link_bytes_per_s == 300e9


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("tensor", "tensor parallelism"),
        ("pipeline", "pipeline parallelism"),
        ("fsdp", "FSDP"),
        ("FSDP", "FSDP"),
        ("zero", "ZeRO"),
        ("expert", "expert parallelism"),
        ("sequence", "sequence parallelism"),
        ("context", "context parallelism"),
    ],
)
def test_other_parallelism_is_refused_by_name(name: str, called: str) -> None:
    with pytest.raises(InputError, match=f"^{called} is not modelled yet: give parallel='data'"):
        ParallelOptions(4, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0}, "gpus is 0: give a whole number from 1 to 16"),
        ({"gpus": 17, "parallel": "data"}, "gpus is 17: .* of one machine"),
        ({"gpus": 2}, "2 GPUs have to share the work"),
        ({"gpus": 2, "parallel": "magic"}, "there is no parallelism 'magic': give parallel='data'"),
        ({"gpus": 2, "parallel": "data", "link_gb_s": 0.0}, "link_gb_s is 0.0: give GB/s"),
        ({"gpus": 2, "parallel": "data", "link_gb_s": float("inf")}, "link_gb_s is inf: give GB/s"),
    ],
)
def test_wrong_values_are_one_clear_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ParallelOptions(**options)  # type: ignore[arg-type]


def test_how_many_gpus_has_to_be_said() -> None:
    with pytest.raises(ArgumentError, match="link_gb_s needs gpus"):
        make_gpu_group(None, "", 32.0)
