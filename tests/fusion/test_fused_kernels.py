"""Test that kernels account for the whole network, and what they move after fusion."""

import pytest

from joulecast.campaign.atlas import load_networks
from joulecast.families import FAMILIES, make_family
from joulecast.fusion import FUSION_TABLES, list_kernels, merge_kernels
from joulecast.kinds import make_layer, make_op, network_work
from joulecast.records import Input, Network, Setup

INFERENCE = Setup(batch=2, phase="inference")
RELU, NORM = make_op("elementwise", fn="relu"), make_op("batch_norm")
every_table = pytest.mark.parametrize("table", FUSION_TABLES.values(), ids=list(FUSION_TABLES))


def make_conv_network() -> Network:
    """Return a convolution of 3 to 8 channels with a norm and ReLU."""
    sizes = {"cin": 3, "cout": 8, "space": (10, 12), "kernel": 3, "padding": 1, "bias": 0}
    return Network((make_layer("conv2d", (NORM, RELU), **sizes),), Input((3, 10, 12)))


def check_totals(network: Network, setup: Setup, table) -> None:
    """Check that kernels have the FLOPs and parameters of their network."""
    kernels, work = list_kernels(network, setup, table), network_work(network, setup)
    flops = sum(kernel.flops * kernel.count for kernel in kernels)
    assert flops == pytest.approx(work.total.flops)
    assert sum(kernel.params for kernel in kernels) == work.params


@every_table
@pytest.mark.parametrize("phase", ["inference", "train"])
def test_kernels_of_families_have_all_flops_and_parameters(table, phase):
    for name in FAMILIES:
        check_totals(make_family(name), Setup(batch=2, phase=phase), table)


@every_table
def test_kernels_of_all_architectures_have_all_flops_and_parameters(table):
    for network in load_networks()[:32]:
        check_totals(network, INFERENCE, table)


@every_table
@pytest.mark.parametrize("model", ["Bert", "GPT2", "ConvNext"])
def test_kernels_of_real_modules_have_all_flops_and_parameters(table, model):
    hf = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from joulecast.runtimes.torch.losses import cross_entropy_loss
    from joulecast.runtimes.torch.net_reader import read_net

    if model == "ConvNext":
        config = hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])
        inputs = {"pixel_values": torch.zeros(2, 3, 32, 32, device="meta")}
    else:
        sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
        config = getattr(hf, f"{model}Config")(vocab_size=100, **sizes)
        inputs = {"input_ids": torch.zeros(2, 16, dtype=torch.long, device="meta")}
    with torch.device("meta"):
        net = getattr(hf, f"{model}Model")(config)
    network = read_net(net.eval(), inputs, cross_entropy_loss, model)
    check_totals(network, INFERENCE, table)


def test_fused_kernel_moves_neither_the_norms_input_nor_its_output():
    (kernel,) = list_kernels(make_conv_network(), INFERENCE, FUSION_TABLES["onnxruntime"])
    assert kernel.kind == "conv+bn+relu"
    weights, pixels = 3 * 8 * 9, 10 * 12
    assert kernel.size_bytes == 4 * (2 * (3 + 8) * pixels + weights)
    eager = list_kernels(make_conv_network(), INFERENCE, FUSION_TABLES["torch"])
    assert [one.kind for one in eager] == ["conv", "bn", "relu"]
    assert sum(one.size_bytes for one in eager) == kernel.size_bytes + 4 * 2 * 4 * 8 * pixels


def test_int8_activations_take_a_byte():
    table = FUSION_TABLES["onnxruntime"]
    network = Network((make_layer("elementwise", fn="add", inputs=2, shape=(8, 4, 4)),))
    (full,) = list_kernels(network, INFERENCE, table)
    (short,) = list_kernels(network, Setup(2, "inference", "int8"), table)
    assert full.size_bytes == 4 * short.size_bytes


def test_equal_kernels_are_merged():
    kernels = list_kernels(make_family("resnet18"), INFERENCE, FUSION_TABLES["tflite"])
    merged = merge_kernels(kernels)
    assert len(merged) < len(kernels)
    assert sum(one.count for one in merged) == len(kernels)
    assert len(set(merged)) == len(merged)


def test_repeated_calls_count_and_shared_weights_do_not():
    from dataclasses import replace

    network = make_conv_network()
    layer = replace(network.layers[0], calls=3, tied=True)
    (kernel,) = list_kernels(replace(network, layers=(layer,)), INFERENCE, FUSION_TABLES["tflite"])
    assert (kernel.count, kernel.params) == (3, 0)


@every_table
def test_shares_of_layers_sum_to_one(table):
    network = make_family("resnet50")
    for kernel in list_kernels(network, INFERENCE, table):
        assert sum(share for _, share in kernel.layers) == pytest.approx(1.0)
        assert all(0 <= at < len(network.layers) for at, _ in kernel.layers)
