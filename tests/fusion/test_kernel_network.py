"""Test that a kernel is a network that can be built alone."""

import pytest

from joulecast.campaign.atlas import load_networks
from joulecast.families import make_family
from joulecast.fusion import FUSION_TABLES, list_kernels, merge_kernels
from joulecast.kinds import check_network, network_work
from joulecast.records import Setup

INFERENCE = Setup(batch=1, phase="inference")
ATLAS = {network.name: network for network in load_networks()}


def list_distinct(network, table):
    return merge_kernels(list_kernels(network, INFERENCE, FUSION_TABLES[table]))


@pytest.mark.parametrize("table", FUSION_TABLES)
def test_kernel_alone_is_the_same_kernel(table):
    for network in (make_family("resnet18"), make_family("transformer"), make_family("lenet5")):
        for kernel in list_distinct(network, table):
            (alone,) = list_kernels(kernel.network, INFERENCE, FUSION_TABLES[table])
            assert (alone.kind, alone.network) == (kernel.kind, kernel.network)
            assert alone.features == kernel.features
            assert alone.size_bytes == kernel.size_bytes
            if kernel.network.buildable:
                check_network(kernel.network)


def test_kernel_whose_inputs_have_other_shapes_is_not_buildable():
    kernels = list_distinct(make_family("resnet50"), "onnxruntime")
    sums = [kernel for kernel in kernels if kernel.kind == "conv+bn+add+relu"]
    assert sums and not any(kernel.network.buildable for kernel in sums)
    others = [kernel for kernel in kernels if "add" not in kernel.kind]
    assert all(kernel.network.buildable for kernel in others)


def test_norm_after_a_lost_view_keeps_its_own_shape():
    network = ATLAS["convnext"]
    kernels = list_kernels(network, INFERENCE, FUSION_TABLES["onnxruntime"])
    found = sum(network_work(kernel.network, INFERENCE).params for kernel in kernels)
    assert found == network_work(network, INFERENCE).params


def test_concatenation_alone_has_equal_widths():
    network = ATLAS["densenet"]
    concats = [one for one in list_distinct(network, "torch") if one.kind == "concat"]
    assert concats
    for kernel in concats:
        (layer,) = kernel.network.layers
        assert layer.sizes["shape"][0] == len(layer.reads) * kernel.network.input.shape[0]
