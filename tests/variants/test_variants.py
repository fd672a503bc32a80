"""Variants and isolated trials: every layer and block has them, and they are read back."""

import random
from dataclasses import replace

import pytest

from joulecast.families import FAMILIES, IMAGE_FAMILIES, draw_family, make_family
from joulecast.operators import (
    Work,
    checkpoint_blocks,
    input_shape,
    layer_work,
    make_layer,
    make_op,
    output_shape,
    resize_layer,
)
from joulecast.records import Input, Network, Setup, fold_blocks
from joulecast.variants import (
    REPEATED,
    ROLES,
    Block,
    block_widths,
    curve_key,
    describe_block,
    make_isolated_trial,
    make_variant,
    match_phase,
    read_isolated_block,
    read_variant,
    resize_block,
    split_blocks,
    split_network,
    width_names,
)
from joulecast.variants.blocks import find_block_scale, find_least_scale, find_scale_step
from joulecast.variants.curves import BLOCKS, LAYERS, Partition, plan_curves, read_block_variant

SETUP = Setup()
IMAGE = Input((3, 16, 16))

# Curves are the paper's method, with members from 1 to the original's widths.
PAPER_FAMILIES = [name for name in FAMILIES if name not in IMAGE_FAMILIES]


def sample_widths(found):
    """Return widths of a range: both ends and something between them."""
    middle = tuple(
        max(low, high // 2 // step * step)
        for low, high, step in zip(found.lows, found.highs, found.steps, strict=True)
    )
    return {found.lows, middle, found.highs}


def check_chain(network):
    """Assert that every layer reads the shape that it takes."""
    shapes = [network.input.shape]
    for layer in network.layers:
        read = [shapes[-back] for back in layer.reads]
        if layer.join == "concat":
            channels = sum(shape[0] for shape in read)
            read = [(channels, *read[0][1:])]
        assert all(shape == input_shape(layer) for shape in read), (network.name, layer)
        shapes.append(output_shape(layer))
    assert len(shapes[-1]) >= 1


def wrap(*layers, data=IMAGE):
    """Return a network of some layers with a stem and a pooled output."""
    shape = output_shape(layers[-1])
    pool = make_layer("pool", (make_op("flatten"),), fn="adaptive_avg", kernel=(1, 1), shape=shape)
    stem = make_layer("conv2d", cin=3, cout=8, space=(16, 16), kernel=3, padding=1)
    head = make_layer("linear", cin=shape[0], cout=10)
    return Network((replace(stem, input_grad=False), *layers, pool, head), data)


SPLITS = {
    "layers": LAYERS,
    "blocks": BLOCKS,
    "paper's layers": Partition(False, True, False),
    "paper's blocks": Partition(True, True, False),
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", ["lenet5", "cnn5", "har", "lstm", "transformer", "resnet18"])
def test_variants_of_every_curve_fit_together_and_are_read_back(name, split):
    network = make_family(name)
    plan = plan_curves(network, split)
    keys = {curve_key(found.block, SETUP) for found in plan}
    for found in plan:
        for widths in sample_widths(found):
            block = resize_block(found.block, widths)
            assert block_widths(block) == widths
            assert curve_key(block, SETUP) == curve_key(found.block, SETUP)
            variant = split.make_variant(block, network)
            check_chain(variant)
            shown, *others = split.read_variant(variant)
            # The input precision depends on the network, not on the curve.
            assert block_widths(shown) == widths
            assert curve_key(shown, SETUP) == curve_key(block, SETUP)
            assert {curve_key(other, SETUP) for other in others} <= keys, "what is subtracted"
            roles = {"output": [], "input": ["output"]}.get(block.role, ["input", "output"])
            assert [other.role for other in others] == roles


@pytest.mark.parametrize("name", PAPER_FAMILIES)
def test_ranges_contain_every_member_and_every_block_to_subtract(name):
    rng = random.Random(name)
    network = make_family(name)
    plan = {curve_key(found.block, SETUP): found for found in plan_curves(network)}
    members = [draw_family(name, rng.randint) for _ in range(4)]
    blocks = [placed.block for one in [network, *members] for placed in split_network(one)]
    for found in plan.values():
        blocks += read_variant(make_variant(found.block, network))
    for block in blocks:
        found = plan[curve_key(block, SETUP)]
        ends = zip(found.lows, block_widths(block), found.highs, strict=True)
        # A norm needs a few features; a member with fewer is below the range.
        assert all(width <= high and (low <= width or low == 4) for low, width, high in ends)


def test_curves_of_cnn5():
    curves = plan_curves(make_family("cnn5"))
    plan = {describe_block(found.block): (found.highs, found.steps) for found in curves}
    assert plan["output linear"] == ((512 * 36,), (36,))
    assert plan["input conv2d 96x96 kernel 3x3, relu, max pool"][0] == (64,)
    assert plan["hidden conv2d 24x24 kernel 3x3, relu, max pool"][0] == (128, 256)
    assert len(plan) == 11
    # As the paper has it, all of them have the network's own ends.
    own = [one.block.role for one in plan_curves(make_family("cnn5"), Partition(own_ends=True))]
    assert (len(own), own.count("output")) == (7, 1)
    # Without a block that repeats, both partitions are the same.
    assert plan_curves(make_family("cnn5"), BLOCKS) == curves


@pytest.mark.parametrize("name", PAPER_FAMILIES)
def test_curves_come_in_the_order_of_subtraction_and_have_short_names(name):
    blocks = [found.block for found in plan_curves(make_family(name))]
    roles = [ROLES.index(block.role) for block in blocks]
    assert roles == sorted(roles)
    descriptions = set(map(describe_block, blocks))
    assert len(descriptions) == len(blocks)
    assert max(map(len, descriptions)) < 72


def test_descriptions_mention_frozen_layers():
    (first, *_, last) = split_network(make_family("lenet5"))
    for block in (first.block, last.block):
        frozen = replace(block, layers=(replace(block.layers[0], trains=False),))
        assert describe_block(frozen) == f"{describe_block(block)}, frozen"
    trained = replace(last.block, layers=(replace(last.block.layers[0], input_grad=False),))
    assert describe_block(trained) == f"{describe_block(last.block)}, first to train"


def test_calls_of_a_curve_are_those_of_its_layers():
    curves = plan_curves(make_family("transformer:width=64,depth=3"))
    counts = {describe_block(found.block): found.calls for found in curves}
    wanted = {"hidden elementwise 64, add 2": 6, "hidden sdpa 64": 3, "input embedding 64": 1}
    assert wanted.items() <= counts.items()


def test_folded_blocks_are_split_into_layers():
    network = make_family("resnet18")
    assert split_network(fold_blocks(network)) == split_network(network)


def test_other_networks_are_not_read_as_variants():
    assert read_variant(Network()) is None
    assert all(read_variant(make_family(name)) is None for name in FAMILIES if name != "lstm")
    cnn, transformer = make_family("cnn5"), make_family("transformer")
    variant = make_variant(plan_curves(cnn)[-1].block, cnn)
    assert read_variant(variant) is not None
    stem, layer, head = variant.layers
    for odd in (replace(layer, reads=(2,)), replace(layer, calls=2), replace(layer, tied=True)):
        assert read_variant(replace(variant, layers=(stem, odd, head))) is None
    # Layers do not read variants of blocks.
    variant = make_variant(plan_curves(transformer, BLOCKS)[-1].block, transformer)
    assert read_variant(variant) is None and read_block_variant(variant) is not None
    stem, *others = variant.layers
    again = replace(variant, layers=(replace(stem, calls=2), *others))
    whole = map(make_family, ("transformer:width=8,depth=1", "resnet18"))
    assert [read_block_variant(one) for one in (again, Network(), *whole)] == [None] * 4


def make_conv(**sizes):
    usual = {"cin": 8, "cout": 12, "space": (16, 16), "kernel": 3, "padding": 1}
    return make_layer("conv2d", **{**usual, **sizes})


CONV = make_conv()


@pytest.mark.parametrize(
    "other",
    [
        replace(CONV, trains=False),
        replace(CONV, input_grad=False),
        replace(CONV, tail=(make_op("elementwise", fn="relu"),)),
        replace(CONV, reads=(1, 1), join="add"),
        replace(CONV, recomputed=True),
        make_conv(kernel=5, padding=2),
        make_conv(stride=2),
        make_conv(space=(8, 8)),
        make_conv(bias=0),
        make_conv(cout=8, groups=8),
        make_conv(cout=8, groups=4),
    ],
)
def test_other_properties_than_widths_make_another_curve(other):
    key = curve_key(Block("hidden", (CONV,)), SETUP)
    assert curve_key(Block("hidden", (other,)), SETUP) != key
    assert curve_key(Block("hidden", (CONV,)), Setup(batch=7)) != key
    assert curve_key(Block("input", (CONV,)), SETUP) != key


def test_connections_and_names_do_not_make_another_curve():
    other = replace(CONV, reads=(2,), calls=3, tied=True, name="conv")
    one, two = (split_network(wrap(make_conv(cout=8), layer))[2] for layer in (CONV, other))
    assert one.block == two.block
    assert (one.calls, two.calls) == (1, 3)


@pytest.mark.parametrize(
    ("layer", "widths"),
    [
        (make_conv(cout=8, groups=8), (8,)),
        (make_conv(cout=16, groups=8), (16,)),
        (make_conv(cout=16, groups=4), (16,)),
        (make_conv(cout=4, groups=2), ()),
        (replace(CONV, tail=(make_op("group_norm", groups=4),)), (8, 12)),
        (replace(CONV, tail=(make_op("view", out=(12, 16, 16)),)), ()),
        (make_layer("batch_norm", shape=(8, 16, 16)), (8,)),
        (make_layer("conv_transpose2d", cin=8, cout=6, space=(16, 16), kernel=2, stride=2), (8, 6)),
    ],
)
def test_grouped_layers_and_layers_with_fixed_widths_keep_their_structure(layer, widths):
    network = wrap(layer)
    (found,) = (
        f for f in plan_curves(network) if f.block.layers == split_network(network)[1].block.layers
    )
    assert found.highs == widths
    for sample in sample_widths(found):
        block = resize_block(found.block, sample)
        assert curve_key(block, SETUP) == curve_key(found.block, SETUP)
        check_chain(make_variant(block, network))


def test_joined_inputs_are_joined_in_the_variant():
    add = make_layer("elementwise", fn="add", inputs=2, shape=(8, 16, 16))
    wide = make_conv(cin=16, cout=4)
    for layer, join in ((add, "add"), (wide, "concat")):
        network = wrap(make_conv(cout=8), replace(layer, reads=(1, 2), join=join))
        variant = make_variant(split_network(network)[2].block, network)
        assert variant.layers[1].reads == (1, 1)
        check_chain(variant)


def test_layer_after_frozen_layers_has_a_frozen_stem():
    for grad in (True, False):
        network = wrap(replace(CONV, input_grad=grad))
        stem, layer, *head = make_variant(split_network(network)[1].block, network).layers
        assert stem.trains is grad
        assert layer.input_grad is grad
        assert all(one.input_grad for one in head)
    frozen = wrap(replace(CONV, input_grad=False, trains=False))
    head = make_variant(split_network(frozen)[1].block, frozen).layers[2:]
    assert not any(one.input_grad for one in head)


def test_large_vocabulary_is_neither_stem_nor_head():
    data = Input((16,), 50_000)
    embedding = make_layer("embedding", vocabulary=50_000, width=32, lead=(16,))
    layer = make_layer("linear", cin=32, cout=32, lead=(16,))
    head = make_layer("linear", cin=32, cout=50_000, lead=(16,))
    network = Network((replace(embedding, input_grad=False), layer, head), data)
    kinds = [one.kind for one in make_variant(split_network(network)[1].block, network).layers]
    assert kinds == ["linear", "linear", "elementwise", "linear"]
    # A second embedding, such as one of positions, reads data too.
    again = Network((*network.layers[:1], replace(embedding, reads=(2,)), head), data)
    assert [placed.block.role for placed in split_network(again)] == ["input", "input", "output"]


def test_widths_that_vary_depend_on_the_role():
    network = make_family("cnn5")
    names = [width_names(placed.block) for placed in split_network(network)]
    assert names == [("cout",), ("cin", "cout"), ("cin", "cout"), ("cin", "cout"), ("cin",)]


def test_layer_on_one_number_a_sample_has_a_curve_without_widths():
    """A score of a whole sequence, as a conditional random field adds them up."""
    layers = [make_layer("elementwise", fn=fn, shape=()) for fn in ("add", "exp")]
    keys = {curve_key(Block("hidden", (layer,)), SETUP) for layer in layers}
    assert len(keys) == 2


def test_inference_cannot_tell_frozen_layers_or_first_ones_from_others():
    layer = make_layer("linear", cin=8, cout=8)
    frozen = replace(layer, trains=False, input_grad=False, recomputed=True)
    setup = Setup(phase="inference")
    for role in ("input", "output"):
        assert match_phase(Block(role, (frozen,)), setup) == Block("hidden", (layer,))
    assert match_phase(Block("output", (frozen,)), Setup()) == Block("output", (frozen,))


def test_checkpointed_layers_stay_so_when_they_run_alone():
    network = checkpoint_blocks(make_family("transformer:16,2"))
    for split in (split_network, split_blocks):
        blocks = [layer for placed in split(network) for layer in placed.block.layers]
        assert sum(layer.recomputed for layer in blocks) == 14
    block = list_blocks(network)[0]
    assert read_isolated_block(make_isolated_trial(block, Setup())).layers == block.layers


def test_inference_runs_more_copies_of_small_layers_and_no_dropout():
    train, inference = (Setup(phase=phase) for phase in ("train", "inference"))
    layer = make_layer("linear", (make_op("dropout", p=0.1),), cin=8, cout=8)
    copies = [
        make_isolated_trial(Block("hidden", (layer,)), setup).execution.copies
        for setup in (train, inference)
    ]
    assert copies[1] > copies[0]
    (matched,) = match_phase(Block("hidden", (layer,)), inference).layers
    assert matched.tail == ()
    dropout = make_layer("dropout", p=0.1, shape=(8,))
    assert layer_work(dropout, train).forward.size_bytes > 0
    assert layer_work(dropout, inference).total == Work()


# -- blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["transformer", "resnet18", "resnet50"])
def test_ranges_contain_the_blocks_of_every_member(name):
    plan = {curve_key(one.block, SETUP): one for one in plan_curves(make_family(name), BLOCKS)}
    rng = random.Random(name)
    for block in (one for _ in range(4) for one in list_blocks(draw_family(name, rng.randint))):
        found = plan[curve_key(block, SETUP)]
        assert found.lows <= block_widths(block) <= found.highs


def list_blocks(network):
    return [placed.block for placed in split_blocks(network) if placed.block.role == REPEATED]


@pytest.mark.parametrize(
    ("family", "scale"),
    [("transformer:width=64,depth=1", 16), ("resnet18:width=24", 24), ("resnet50:width=8", 8)],
)
def test_scale_divides_all_channels(family, scale):
    assert block_widths(list_blocks(make_family(family))[0]) == (scale,)


@pytest.mark.parametrize("family", ["transformer", "resnet34", "resnet50"])
def test_resized_block_is_the_block_of_a_narrower_network(family):
    (wide, narrow) = (list_blocks(make_family(name))[0] for name in (family, f"{family}:width=32"))
    assert resize_block(wide, block_widths(narrow)) == narrow


def test_block_of_other_ratios_lies_on_another_curve():
    first, second = (make_layer("linear", cin=8, cout=cout, lead=(4,)) for cout in (8, 16))
    back = make_layer("linear", cin=16, cout=8, lead=(4,))
    same, wider = Block(REPEATED, (first, first)), Block(REPEATED, (second, back))
    assert curve_key(same, SETUP) != curve_key(wider, SETUP)
    assert curve_key(same, SETUP) == curve_key(resize_block(same, (3,)), SETUP)


def test_connections_belong_to_the_curve():
    block = list_blocks(make_family("transformer"))[0]
    *layers, last = block.layers
    other = replace(block, layers=(*layers, replace(last, reads=(1, 9))))
    assert curve_key(other, SETUP) != curve_key(block, SETUP)


def test_grouped_convolutions_are_not_scaled():
    block = Block(REPEATED, (make_conv(cout=8, groups=8), make_conv(cout=8)))
    assert find_block_scale(block.layers) is None
    assert block_widths(block) == ()
    assert resize_block(block, ()) == block


def test_scales_keep_heads_and_norms_valid():
    attention = make_layer("attention", width=12, heads=3, tokens=5, kv_tokens=5)
    norm = make_layer("layer_norm", shape=(5, 12))
    assert find_scale_step((norm, attention)) == 3
    assert find_least_scale((norm, attention), 12) == 4
    assert find_least_scale(list_blocks(make_family("transformer"))[0].layers, 64) == 1


# -- the network's own input and output layers, as in the paper ---------------------------------


def test_a_convolution_is_framed_by_the_first_convolution_and_the_classifier():
    network = make_family("cnn5")
    hidden = split_network(network)[1].block
    variant = make_variant(hidden, network, own_ends=True)
    check_chain(variant)
    stem, layer, flat, output = variant.layers
    first, last = network.layers[0], network.layers[-1]
    assert (stem.kind, stem.tail, stem.sizes["kernel"]) == (first.kind, first.tail, (3, 3))
    assert stem.sizes["space"] == (96, 96), "the image whose output the layer reads"
    assert flat.kind == "flatten"
    assert output.sizes["cout"] == last.sizes["cout"]
    assert output.sizes["cin"] == 128 * 24 * 24
    assert layer.sizes == network.layers[1].sizes


def test_pooling_of_the_output_layer_reads_other_images():
    *layers, last = make_family("resnet18").layers
    # Not as many classes as heads of ours have.
    network = replace(make_family("resnet18"), layers=(*layers, resize_layer(last, cout=7)))
    variant = make_variant(list_blocks(network)[0], network, own_ends=True)
    pool, output = variant.layers[-2:]
    assert pool.kind == "pool" and pool.sizes["shape"] == (64, 24, 24)
    assert output.sizes["cout"] == 7


def test_what_does_not_fit_keeps_our_ends():
    """A convolution computes no features of a linear layer."""
    network = make_family("lenet5")
    blocks = [one.block for one in split_network(network)]
    linear = next(one for one in blocks if one.layers[0].kind == "linear")
    assert make_variant(linear, network, own_ends=True).layers[0].kind == "linear"
