"""Results that a trace does not leave to PyTorch."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from joulecast.runtimes.torch.tracer import replace_result

GROUPED = torch.ops.aten._grouped_mm.default


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        ((10, 8), (4, 8, 6), (10, 6)),
        ((4, 6, 8), (8, 10), (6, 10)),
        ((6, 10), (10, 8), (4, 6, 8)),
        ((4, 5, 8), (4, 8, 6), (4, 5, 6)),
    ],
)
def test_grouped_products_of_fake_tensors_have_a_shape(
    left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]
) -> None:
    with FakeTensorMode():
        offsets = torch.zeros(4, dtype=torch.int32)
        args = (torch.zeros(left), torch.zeros(right))
        made = replace_result(GROUPED, args, {"offs": offsets})
    assert tuple(made.shape) == out


def test_random_scalars_are_typical_and_can_be_compared() -> None:
    rand = torch.ops.aten.rand.default
    assert replace_result(rand, ([],), {}) == 0.5
    assert replace_result(rand, ([3],), {}) is None
    with FakeTensorMode():
        drawn = replace_result(rand, ([],), {"device": torch.device("cpu")})
        assert not drawn < 0.1
