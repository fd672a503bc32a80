"""The atlas: its networks, their layers and blocks, and trials in the order of a design."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.atlas.build_atlas import find_covered_share
from joulecast.campaign.anchors import GIB, assume_scale
from joulecast.campaign.atlas import (
    draw_members,
    drop_observed,
    list_trials,
    load_networks,
    order_points,
    split_members,
)
from joulecast.estimators.additive.layers import set_up_layer
from joulecast.operators import check_network, peak_memory
from joulecast.records import Device, Observation, Setup
from joulecast.torch_nets.build import build_net
from joulecast.torch_nets.inputs import make_empty_input
from joulecast.torch_nets.losses import cross_entropy_loss
from joulecast.torch_nets.net_reader import read_net
from joulecast.torch_nets.runtime import TorchRuntime
from joulecast.variants import make_isolated_trial, split_network

PRECISIONS = ("bf16", "fp32", "tf32")
MODES = ("eager", "graph")
SCALE = assume_scale(True, 141 * GIB)


@pytest.fixture(scope="module")
def members():
    return draw_members(111)


@pytest.fixture(scope="module")
def blocks(members):
    return split_members(members)


@pytest.fixture(scope="module")
def trials(blocks):
    return list_trials(blocks, SCALE, MODES)


# -- networks -----------------------------------------------------------------------------------


def test_networks_are_valid_and_of_many_architectures():
    networks = load_networks()
    assert len(networks) == 300
    assert len({network.name for network in networks}) == 32
    for network in networks[:37]:
        check_network(network)


def name_layers(network, setup):
    return [set_up_layer(placed.block, setup).label for placed in split_network(network)]


@pytest.mark.parametrize("name", ["mlp", "gan generator", "densenet", "conv1d", "torch encoder"])
def test_built_networks_read_back_with_the_same_labels(name):
    network = next(net for net in load_networks() if net.name == name and net.buildable)
    with torch.device("meta"):
        found = read_net(build_net(network), make_empty_input(network, 2))
    assert name_layers(found, Setup(batch=2)) == name_layers(network, Setup(batch=2))


ENCODER = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [2, 2, 2, 2]}


# ``benchmarks/atlas/build_atlas.py check`` does the same for many more.
@pytest.mark.parametrize(
    "model, config, sizes",
    [
        ("LlamaForCausalLM", "LlamaConfig", {**ENCODER, "num_key_value_heads": 2}),
        ("BertForMaskedLM", "BertConfig", ENCODER),
        ("ViTForImageClassification", "ViTConfig", {**ENCODER, "image_size": 64}),
        ("ConvNextForImageClassification", "ConvNextConfig", STAGES),
        ("ResNetForImageClassification", "ResNetConfig", {**STAGES, "embedding_size": 16}),
    ],
)
def test_atlas_covers_the_work_of_real_networks(model, config, sizes, blocks):
    hf = pytest.importorskip("transformers")
    with torch.device("meta"):
        net = getattr(hf, model)(getattr(hf, config)(**sizes))
        image, text = torch.zeros(2, 3, 64, 64), torch.zeros(2, 32, dtype=torch.long)
    inputs = {"pixel_values": image} if "Image" in model else {"input_ids": text}
    network = read_net(net.train(), inputs, cross_entropy_loss)
    labels = {one.layer.label for one in blocks}
    for precision in PRECISIONS:
        assert find_covered_share(network, labels, precision) >= 0.95


# -- members and their layers -------------------------------------------------------------------


def test_batches_reach_from_one_to_what_fills_a_card(members):
    batches = [member.setup.batch for member in members]
    assert min(batches) == 1 and max(batches) > 500
    small = draw_members(111, assume_scale(is_gpu=False, memory_bytes=16 * GIB))
    assert sum(member.setup.batch for member in small) < sum(batches)
    assert {member.setup.precision for member in small} == {"fp32", "bf16"}
    # Fewer members are the first ones.
    assert draw_members(40) == members[:40]


def test_half_of_the_inferences_run_one_sample():
    setups = [member.setup for member in draw_members(60, phase="inference")]
    assert {setup.phase for setup in setups} == {"inference"}
    assert 20 < sum(setup.batch == 1 for setup in setups) < 45


def test_every_label_of_layers_occurs_in_every_precision(blocks):
    kinds: dict[str, set[str]] = {}
    for one in blocks:
        if not one.is_repeated:
            kind, _, precision = one.layer.label.rpartition(" ")
            kinds.setdefault(kind, set()).add(precision)
    assert {kind for kind, found in kinds.items() if found != set(PRECISIONS)} == set()


def test_work_shares_of_layers_sum_to_one(members, blocks):
    drawn = {member.setup for member in members}
    shares = [one.work_share for one in blocks if not one.is_repeated and one.setup in drawn]
    assert 1.0 <= sum(shares) < 1.3  # rare labels are copied to other precisions


def test_isolated_layers_train(blocks):
    """The smallest layer of each kind; several inputs of one function cannot be built yet."""
    runtime = TorchRuntime("cpu", Device("a-cpu"))
    smallest = {}
    for one in sorted(blocks, key=lambda one: one.layer.size_bytes):
        is_large = one.layer.flops > 1e8 or one.layer.size_bytes > 1e7
        if not (one.is_repeated or is_large or "stack" in one.layer.label):
            smallest.setdefault(one.layer.label.rpartition(" ")[0], one)
    assert len(smallest) > 20
    for one in smallest.values():
        if one.block.role == "output" and not any(layer.trains for layer in one.block.layers):
            continue
        setup = replace(one.setup, batch=2, precision="fp32", threads=1)
        runtime.prepare(make_isolated_trial(one.block, setup)).close()


# -- trials -------------------------------------------------------------------------------------


def test_order_of_trials_never_changes(blocks, trials):
    """Campaigns on a device continue each other, and profiles rest on these trials."""
    assert list_trials(blocks, SCALE, MODES, most=30) == trials[:30]
    keys = [one.trial.key for one in trials[10:]]
    first = ["ba01d4e4dc3fa213", "3247efd3fec3a665", "1454728adae915cf", "c20f3a370bc1df90"]
    assert keys[:4] == first and len(set(keys)) == len(keys)


def test_anchors_come_first_then_every_label_within_a_third(trials):
    assert [one.with_energy for one in trials[:10]] == [False] * 5 + [True] * 5
    assert [one.reason == "anchor" for one in trials] == [True] * 10 + [False] * (len(trials) - 10)
    labels = {one.label for one in trials}
    assert {one.label for one in trials[: len(trials) // 3]} == labels


def test_about_one_trial_in_five_is_measured_with_energy(trials):
    for size in (200, 500, len(trials)):
        share = sum(one.with_energy for one in trials[:size]) / size
        assert 0.12 < share < 0.3
    kinds = {one.label.rpartition(" ")[0] for one in trials if not one.label.startswith("block:")}
    assert kinds <= {one.label.rpartition(" ")[0] for one in trials if one.with_energy}


def test_structures_of_blocks_are_issued_eagerly_once_beside_graphs(blocks, trials):
    hosts = [one for one in trials if one.reason == "host"]
    assert len(hosts) > 20 and not any(one.with_energy for one in hosts)
    for one in trials:
        assert one.trial.execution.mode == ("eager" if one.reason == "host" else "graph")
    eager = list_trials(blocks, SCALE, ("eager",))
    assert {one.reason for one in eager} == {"anchor", "block"}
    assert {one.trial.execution.mode for one in eager} == {"eager"}


@pytest.mark.parametrize("memory_bytes", [1 * GIB, 141 * GIB])
def test_trials_fit_the_memory(blocks, memory_bytes):
    found = [one.trial for one in list_trials(blocks, assume_scale(True, memory_bytes), MODES)]
    assert len(found) > 100 and min(trial.execution.copies for trial in found) >= 1
    for trial in found:
        assert trial.execution.copies * peak_memory(trial.network, trial.setup) <= memory_bytes


def test_a_processor_gets_trials_in_its_precisions_only(blocks):
    found = list_trials(blocks, assume_scale(False, 16 * GIB, has_bf16=False))
    assert {one.trial.setup.precision for one in found} == {"fp32"}


def test_what_was_observed_is_left_out(trials):
    done = [
        Observation(one.trial, energy_j=1.0 if one.with_energy else None, duration_s=1.0)
        for one in trials[:50]
    ]
    assert drop_observed(trials, done) == trials[50:]
    wanted = next(one for one in trials if one.with_energy and one.reason == "block")
    timed, refused = Observation(wanted.trial, duration_s=1.0), Observation(wanted.trial)
    assert wanted in drop_observed(trials, [timed])
    assert wanted not in drop_observed(trials, [refused])


# -- design -------------------------------------------------------------------------------------


def make_points(count):
    values = np.random.default_rng(0).uniform(0.0, 10.0, (count, 2))
    return [tuple(map(float, value)) for value in values]


def test_all_points_appear_once_and_ranks_count_within_labels():
    labels = ["a", "b", "b", "c"] * 10
    design = order_points(labels, make_points(40), [1.0] * 40)
    assert sorted(index for index, _ in design) == list(range(40))
    for label in "abc":
        ranks = [rank for index, rank in design if labels[index] == label]
        assert ranks == list(range(len(ranks)))
    assert order_points([], [], []) == []
    equal = order_points(["a"] * 3, [(1.0, 2.0)] * 3, [0.0] * 3)
    assert sorted(index for index, _ in equal) == [0, 1, 2]


def test_first_points_fill_space():
    """Twenty of 500 points leave no other far away; the first twenty drawn do."""
    points = make_points(500)
    distances = np.linalg.norm(np.array(points)[:, None] - np.array(points)[None], axis=2)
    chosen = [index for index, _ in order_points(["a"] * 500, points, [1.0] * 500)[:20]]
    radius, drawn = (distances[taken].min(axis=0).max() for taken in (chosen, list(range(20))))
    assert radius < 0.75 * drawn


def test_labels_with_more_work_get_more_points_but_all_come_early():
    labels = ["heavy"] * 300 + ["light"] * 300 + ["rare"] * 3
    shares = [0.9 / 300] * 300 + [0.1 / 300] * 300 + [1e-9] * 3
    for scale in (1e-12, 1.0):  # the unit of shares does not matter
        design = order_points(labels, make_points(603), [scale * share for share in shares])
        prefix = [labels[index] for index, _ in design[:100]]
        assert prefix.count("heavy") > prefix.count("light") > 0
        assert "rare" in prefix
