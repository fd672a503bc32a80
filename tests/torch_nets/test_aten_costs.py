"""Every operator that multiplies matrices has a rule for its FLOPs, or is named."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from joulecast.torch_nets.aten_costs import (
    _RULES,
    count_grouped_product,
    count_op_flops,
    flop_registry,
    is_product_name,
)
from joulecast.torch_nets.net_reader import read_net
from torch_nets.made_net import MadeNet

A, B = torch.randn(3, 4, 5), torch.randn(3, 5, 6)
SQUARE = torch.eye(4).expand(3, 4, 4).contiguous()
aten = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "args", "flops"),
    [
        (aten.mm.default, (A[0], B[0]), 2 * 4 * 5 * 6),
        (aten.bmm.default, (A, B), 2 * 3 * 4 * 5 * 6),
        (aten.mv.default, (A[0], B[0, :, 0]), 2 * 4 * 5),
        (aten.dot.default, (A[0, 0], B[0, :, 0]), 2 * 5),
        (aten.addmm.default, (torch.zeros(6), A[0], B[0]), 2 * 4 * 5 * 6),
        (aten.addmv.default, (torch.zeros(4), A[0], B[0, :, 0]), 2 * 4 * 5),
        (aten.addbmm.default, (torch.zeros(4, 6), A, B), 2 * 3 * 4 * 5 * 6),
        (aten.baddbmm.default, (torch.zeros(3, 4, 6), A, B), 2 * 3 * 4 * 5 * 6),
        (aten.linear.default, (A, torch.zeros(7, 5)), 2 * 3 * 4 * 5 * 7),
        (aten.linalg_cholesky_ex.default, (SQUARE,), 3 * 4**3 / 3),
        (aten.linalg_solve_triangular.default, (SQUARE, A), 3 * 4 * 4 * 5),
        (aten._fft_c2c.default, (A.cfloat(), [2], 0, True), 5 * 60 * math.log2(5)),
        (aten._trilinear.default, (A[0], A[0], A[0], [], [], [], [1]), 2 * 4 * 5),
    ],
    ids=lambda value: str(value) if hasattr(value, "overloadpacket") else "",
)
def test_rule_matches_the_textbook(func, args, flops) -> None:
    kwargs = {"upper": False} if func is aten.linalg_solve_triangular.default else {}
    out = None
    if "fft" in str(func):
        out = func(*args)
    assert count_op_flops(func, args, kwargs, out) == pytest.approx(flops)


def test_rows_of_a_grouped_product_belong_to_one_group_each() -> None:
    """Ten rows cost the same for two experts and for eight."""
    rows = torch.zeros(10, 4)
    for experts in (2, 8):
        weights = torch.zeros(experts, 4, 6)
        assert count_grouped_product(rows, weights) == 2 * 10 * 4 * 6
    assert count_grouped_product(torch.zeros(4, 10), torch.zeros(10, 6)) == 2 * 4 * 10 * 6
    assert count_grouped_product(torch.zeros(8, 6, 4), torch.zeros(4, 10)) == 2 * 6 * 4 * 10


# Operators of other backends, sparse or quantised tensors; a module that runs one is told so.
WITHOUT_RULE = {
    "attention": {
        "_cudnn_attention_backward", "_cudnn_attention_forward",
        "_flash_attention_forward_no_dropout_inplace", "_native_multi_head_attention",
        "_triton_multi_head_attention", "_triton_scaled_dot_attention",
    },
    "other backends": {
        "_lstm_mps", "_mps_convolution", "_mps_convolution_transpose", "_slow_conv2d_backward",
        "convolution_backward_overrideable", "cudnn_convolution_transpose", "linear_backward",
        "lstm_mps_backward", "matmul_backward", "miopen_convolution_add_relu",
        "miopen_convolution_relu", "miopen_convolution_transpose", "mkldnn_linear_backward",
        "mkldnn_linear_backward_input", "mkldnn_linear_backward_weights",
        "mps_convolution_backward", "mps_convolution_transpose_backward", "slow_conv_transpose2d",
        "slow_conv_transpose3d", "_pdist_backward",
    },
    "sparse or quantised": {
        "_cslt_sparse_mm", "_cslt_sparse_mm_search", "_dyn_quant_matmul_4bit",
        "_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward",
        "_sparse_semi_structured_addmm", "_sparse_semi_structured_linear",
        "_sparse_semi_structured_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu",
        "_weight_int4pack_mm_with_scales_and_zeros", "quantized_gru", "quantized_lstm",
    },
}  # fmt: skip


def list_dispatched_products() -> set[str]:
    """Return the operators of this PyTorch that multiply and are not made of others."""
    counted = {str(packet).removeprefix("aten.") for packet in flop_registry} | set(_RULES)
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    found = set()
    for name in (name.removeprefix("aten::") for name in names if name.startswith("aten::")):
        packet = getattr(aten, name, None)
        if packet is None or not is_product_name(name) or name.rstrip("_") in counted:
            continue
        overloads = [getattr(packet, one).name() for one in packet.overloads()]
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        if not any(has_kernel(one, "CompositeImplicitAutograd") for one in overloads):
            found.add(name)
    return found


def test_products_of_the_dispatcher_have_rules() -> None:
    known = set.union(*WITHOUT_RULE.values())
    if torch.__version__.startswith("2.13"):
        assert list_dispatched_products() == known
    assert not known & set(_RULES)


@pytest.mark.parametrize(
    "name", ["upsample_bilinear2d", "linalg_vector_norm", "add", "relu", "prelu", "lu_unpack"]
)
def test_names_that_only_look_like_products(name: str) -> None:
    assert not is_product_name(name)


# The same product of a batch with a matrix, written in many ways.
WAYS = {
    "matmul": lambda x, w: x @ w,
    "einsum": lambda x, w: torch.einsum("btc,cd->btd", x, w),
    "tensordot": lambda x, w: torch.tensordot(x, w, dims=1),
    "linear": F.linear,
    "baddbmm": lambda x, w: torch.baddbmm(x * 0, x, w.expand(x.shape[0], 8, 8)),
    "addmm": lambda x, w: torch.addmm(w[0], x.flatten(0, 1), w).view(x.shape),
    "multi_dot": lambda x, w: torch.linalg.multi_dot([x.flatten(0, 1), w]).view(x.shape),
    "inner": torch.inner,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_product_counts_the_same_however_it_is_written(way: str) -> None:
    weight = nn.Parameter(torch.zeros(8, 8))
    product = MadeNet(lambda net, x: WAYS[way](x, net.weight), weight=weight)
    totals = read_net(nn.Sequential(nn.Linear(8, 8), product), torch.randn(4, 6, 8)).totals
    one = 2 * 4 * 6 * 8 * 8
    assert totals.flops == (2 + 3) * one
    assert totals.unattributed_flops_share == totals.unattributed_params_share == 0.0
    assert totals.ops_without_rule == ()


@torch.library.custom_op("joulecast_test::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x * 2


mystery.register_fake(torch.empty_like)
mystery.register_autograd(lambda ctx, grad: grad * 2)


def test_operators_without_a_rule_are_named() -> None:
    unknown = MadeNet(lambda net, x: torch.ops.joulecast_test.mystery(x))
    net = nn.Sequential(nn.Linear(64, 64), unknown, nn.Linear(64, 64), unknown)
    totals = read_net(net, torch.randn(32, 64)).totals
    assert totals.ops_without_rule == (("joulecast_test::mystery", 2),)
    assert 0.0 < totals.uncounted_bytes_share < 0.5
