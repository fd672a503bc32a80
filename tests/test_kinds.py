"""Laws of the table of kinds: how work adds, scales and shrinks, and how layers are resized."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.families import FAMILIES, make_family
from joulecast.kinds import (
    KINDS,
    add_calls,
    count_calls,
    find_kind,
    free_widths,
    input_shape,
    layer_work,
    make_layer,
    make_op,
    network_work,
    output_shape,
    peak_memory,
    resize_layer,
    get_width,
    width_step,
)
from joulecast.records import Input, Network, Setup, fold_blocks

TOKENS = {"tokens": 7, "kv_tokens": 9}
POOL = {"fn": "max", "kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "shape": (6, 8, 8)}
# One layer of every kind at least, standing alone.
LAYERS = {
    "conv1d": make_layer("conv1d", cin=4, cout=6, space=16, kernel=3, padding=1),
    "conv2d": make_layer("conv2d", cin=4, cout=6, space=16, kernel=3, stride=2, dilation=2),
    "conv2d grouped": make_layer("conv2d", cin=4, cout=8, space=8, kernel=3, groups=2),
    "conv2d depthwise": make_layer("conv2d", cin=6, cout=12, space=8, kernel=3, groups=6, bias=0),
    "conv2d narrowing": make_layer("conv2d", cin=12, cout=4, space=8, kernel=3, groups=2),
    "conv3d": make_layer("conv3d", cin=2, cout=3, space=5, kernel=(1, 2, 3)),
    "conv_transpose1d": make_layer("conv_transpose1d", cin=4, cout=6, space=5, kernel=3, stride=2),
    "conv_transpose2d": make_layer(
        "conv_transpose2d", cin=4, cout=6, space=5, kernel=3, stride=2, output_padding=1
    ),
    "conv_transpose3d": make_layer("conv_transpose3d", cin=2, cout=3, space=4, kernel=2),
    "linear": make_layer("linear", cin=12, cout=5),
    "linear of tokens": make_layer("linear", cin=12, cout=5, lead=(7,), bias=0),
    "embedding": make_layer("embedding", vocabulary=100, width=8, lead=(7,)),
    "lstm": make_layer("lstm", cin=5, hidden=6, tokens=7),
    "lstm both ways": make_layer("lstm", cin=5, hidden=6, tokens=7, depth=2, bidirectional=1),
    "gru": make_layer("gru", cin=5, hidden=6, tokens=7, bias=0),
    "rnn": make_layer("rnn", cin=5, hidden=6, tokens=7),
    "attention": make_layer("attention", width=8, heads=2, **TOKENS),
    "sdpa": make_layer("sdpa", heads=4, kv_heads=2, head_dim=8, **TOKENS),
    "matmul": make_layer("matmul", count=3, m=4, k=5, n=6),
    "batch_norm": make_layer("batch_norm", shape=(6, 8, 8)),
    "group_norm": make_layer("group_norm", groups=2, shape=(6, 8, 8)),
    "layer_norm": make_layer("layer_norm", shape=(7, 8)),
    "rms_norm": make_layer("rms_norm", shape=(7, 8)),
    "elementwise": make_layer("elementwise", fn="relu", shape=(6, 8, 8)),
    "pool": make_layer("pool", **POOL),
    "dropout": make_layer("dropout", p=0.5, shape=(7, 8)),
    "flatten": make_layer("flatten", shape=(6, 8, 8)),
    "view": make_layer("view", out=(48, 8), shape=(6, 8, 8)),
    "permute": make_layer("permute", order=(1, 0), shape=(7, 8)),
    "last": make_layer("last", shape=(7, 8)),
}
WITH_WEIGHTS = [name for name, layer in LAYERS.items() if layer_work(layer, Setup()).params]
WITH_WIDTHS = [name for name, layer in LAYERS.items() if free_widths(layer)]
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
SETUPS = st.builds(
    Setup,
    batch=st.integers(1, 64),
    precision=st.sampled_from(["fp32", "bf16"]),
    optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
)
NETWORKS = st.sampled_from([make_family(name) for name in FAMILIES])


def test_every_kind_has_an_example_here():
    assert {layer.kind for layer in LAYERS.values()} == set(KINDS)


@every_layer
def test_work_is_never_negative_and_inference_only_goes_forward(layer):
    train = layer_work(layer, Setup())
    for work in (train.forward, train.backward, train.update):
        assert min(work.flops, work.size_bytes, work.launches, work.memory_bytes) >= 0
    inference = layer_work(layer, Setup(phase="inference"))
    assert inference.backward.size_bytes == 0
    assert inference.update.size_bytes == 0
    assert inference.forward.memory_bytes == 0
    assert inference.forward.flops == train.forward.flops
    assert inference.params == train.params


@every_layer
def test_a_batch_twice_as_large_doubles_flops_and_leaves_the_update_alone(layer):
    one, two = (layer_work(layer, Setup(batch=batch)) for batch in (8, 16))
    for stage in ("forward", "backward"):
        before, after = getattr(one, stage), getattr(two, stage)
        assert after.flops == pytest.approx(2 * before.flops)
        assert after.launches == before.launches
        # Weights are read once, however large the batch is.
        assert before.size_bytes <= after.size_bytes <= 2 * before.size_bytes
    assert two.update == one.update
    assert two.params == one.params


@every_layer
def test_calls_repeat_the_passes_and_not_the_update(layer):
    once, thrice = layer_work(layer, Setup()), layer_work(replace(layer, calls=3), Setup())
    assert thrice.forward == once.forward.times(3)
    assert thrice.backward == once.backward.times(3)
    assert (thrice.update, thrice.params) == (once.update, once.params)


@every_layer
def test_half_precision_halves_what_is_moved_but_not_the_weights(layer):
    full, half = (layer_work(layer, Setup(precision=name)) for name in ("fp32", "bf16"))
    assert half.forward.flops == full.forward.flops
    assert half.forward.size_bytes <= full.forward.size_bytes
    assert half.update == full.update


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_frozen_weights_have_no_update_and_no_gradient_of_their_own(name):
    layer = LAYERS[name]
    trained = layer_work(layer, Setup())
    frozen = layer_work(replace(layer, trains=False), Setup())
    assert frozen.forward == trained.forward
    assert frozen.backward.flops <= trained.backward.flops
    assert frozen.backward.size_bytes <= trained.backward.size_bytes
    assert (frozen.update.size_bytes, frozen.update.launches) == (0, 0)
    assert 0 < frozen.update.memory_bytes < trained.update.memory_bytes
    assert frozen.params == trained.params
    if trained.backward.flops:
        assert frozen.backward.flops < trained.backward.flops


@every_layer
def test_first_layers_have_less_backward(layer):
    inside = layer_work(layer, Setup())
    first = layer_work(replace(layer, input_grad=False), Setup())
    assert first.forward == inside.forward
    assert first.update == inside.update
    assert first.backward.flops <= inside.backward.flops
    assert first.backward.size_bytes <= inside.backward.size_bytes
    if layer.kind.startswith("conv") or layer.kind == "linear":
        assert first.backward.flops == inside.backward.flops / 2


@every_layer
def test_nothing_flows_back_through_a_frozen_first_layer(layer):
    work = layer_work(replace(layer, trains=False, input_grad=False), Setup())
    assert work.backward.flops == work.backward.size_bytes == work.backward.launches == 0


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_tied_weights_are_counted_where_they_belong(name):
    tied = layer_work(replace(LAYERS[name], tied=True), Setup())
    assert (tied.params, tied.update.size_bytes, tied.update.memory_bytes) == (0, 0, 0)
    assert tied.forward == layer_work(LAYERS[name], Setup()).forward


@given(NETWORKS, SETUPS, st.integers(0, 60))
def test_work_adds_over_layers(network, setup, cut):
    head, tail = (Network(network.layers[:cut]), Network(network.layers[cut:]))
    whole = network_work(network, setup)
    joined = network_work(head, setup) + network_work(tail, setup)
    assert joined.params == whole.params
    for stage in ("forward", "backward", "update", "total"):
        one, other = getattr(joined, stage), getattr(whole, stage)
        assert one.flops == pytest.approx(other.flops)
        assert one.size_bytes == pytest.approx(other.size_bytes)
        assert one.launches == other.launches


@given(NETWORKS, SETUPS)
def test_blocks_work_as_much_as_their_parts(network, setup):
    folded = fold_blocks(network)
    one, other = network_work(folded, setup), network_work(network, setup)
    assert one.params == other.params
    assert one.total.flops == pytest.approx(other.total.flops)
    assert one.total.size_bytes == pytest.approx(other.total.size_bytes)
    assert [output_shape(layer) for layer in folded.layers[-1:]] == [
        (output_shape(network.layers[-1]))
    ]
    assert input_shape(folded.layers[0]) == input_shape(network.layers[0])


@given(NETWORKS, SETUPS)
def test_the_peak_holds_weights_gradients_and_grows_with_the_batch(network, setup):
    peak = peak_memory(network, setup)
    assert peak >= 2 * 4 * network_work(network, setup).params
    assert peak < peak_memory(network, replace(setup, batch=setup.batch + 1))
    assert peak_memory(network, replace(setup, phase="inference")) < peak


def test_nothing_takes_nothing():
    assert peak_memory(Network(), Setup()) == 0
    assert network_work(Network(), Setup()).total.size_bytes == 0


# ---------------------------------------------------------------------------------------------
# Known numbers


@pytest.mark.parametrize(
    ("name", "params", "flops", "shape"),
    [
        ("conv1d", 4 * 6 * 3 + 6, 2 * 4 * 6 * 3 * 16, (6, 16)),
        ("conv2d", 4 * 6 * 9 + 6, 2 * 4 * 6 * 9 * 36, (6, 6, 6)),
        ("conv2d grouped", 2 * 8 * 9 + 8, 2 * 2 * 8 * 9 * 36, (8, 6, 6)),
        ("conv2d depthwise", 12 * 9, 2 * 12 * 9 * 36, (12, 6, 6)),
        ("conv3d", 2 * 3 * 6 + 3, 2 * 2 * 3 * 6 * 60, (3, 5, 4, 3)),
        ("conv_transpose1d", 4 * 6 * 3 + 6, 2 * 4 * 6 * 3 * 5, (6, 11)),
        ("conv_transpose2d", 4 * 6 * 9 + 6, 2 * 4 * 6 * 9 * 25, (6, 12, 12)),
        ("linear", 12 * 5 + 5, 2 * 12 * 5, (5,)),
        ("linear of tokens", 12 * 5, 2 * 7 * 12 * 5, (7, 5)),
        ("embedding", 800, 0, (7, 8)),
        ("lstm", 4 * 6 * (5 + 6 + 2), 2 * 7 * 4 * 6 * (5 + 6), (7, 6)),
        (
            "lstm both ways",
            2 * 4 * 6 * (5 + 6 + 2) + 2 * 4 * 6 * (12 + 6 + 2),
            2 * 7 * 4 * 6 * 2 * (5 + 6 + 12 + 6),
            (7, 12),
        ),
        ("gru", 3 * 6 * (5 + 6), 2 * 7 * 3 * 6 * (5 + 6), (7, 6)),
        ("attention", 4 * (64 + 8), 2 * 64 * (7 + 9 + 9 + 7) + 4 * 8 * 7 * 9, (7, 8)),
        ("sdpa", 0, 4 * 4 * 8 * 7 * 9, (7, 32)),
        ("matmul", 0, 2 * 3 * 4 * 5 * 6, (3, 4, 6)),
        ("batch_norm", 12, 0, (6, 8, 8)),
        ("group_norm", 12, 0, (6, 8, 8)),
        ("layer_norm", 16, 0, (7, 8)),
        ("rms_norm", 8, 0, (7, 8)),
        ("pool", 0, 0, (6, 4, 4)),
        ("flatten", 0, 0, (384,)),
        ("view", 0, 0, (48, 8)),
        ("permute", 0, 0, (8, 7)),
        ("last", 0, 0, (8,)),
    ],
)
def test_parameters_flops_and_shapes_are_those_of_the_textbook(name, params, flops, shape):
    work = layer_work(LAYERS[name], Setup(batch=3))
    assert work.params == params
    assert work.forward.flops == 3 * flops
    assert output_shape(LAYERS[name]) == shape


@pytest.mark.parametrize(("optimizer", "held"), [("sgd", 3), ("adam", 4), ("adamw", 4)])
def test_the_update_holds_weight_gradient_and_state(optimizer, held):
    work = layer_work(LAYERS["linear"], Setup(optimizer=optimizer))
    assert work.update.memory_bytes == held * 4 * work.params


def test_a_tail_works_on_what_stands_before_it():
    conv = LAYERS["conv2d"]
    relu = make_op("elementwise", fn="relu")
    alone = make_layer("elementwise", fn="relu", shape=output_shape(conv))
    with_tail = layer_work(replace(conv, tail=(relu,)), Setup())
    apart = layer_work(conv, Setup()) + layer_work(alone, Setup())
    assert with_tail == apart


# ---------------------------------------------------------------------------------------------
# Sizes


@pytest.mark.parametrize("name", WITH_WIDTHS)
@pytest.mark.parametrize("factor", [1, 2, 5])
def test_resizing_there_and_back_gives_the_layer_back(name, factor):
    layer = LAYERS[name]
    before = {width: get_width(layer, width) for width in free_widths(layer)}
    wanted = {width: factor * value for width, value in before.items()}
    resized = resize_layer(layer, **wanted)
    assert {width: get_width(resized, width) for width in wanted} == wanted
    assert resize_layer(resized, **before) == layer
    assert free_widths(resized) == free_widths(layer)
    if factor > 1:
        work, other = layer_work(layer, Setup()), layer_work(resized, Setup())
        assert other.forward.size_bytes > work.forward.size_bytes


@pytest.mark.parametrize("name", WITH_WIDTHS)
@given(times=st.integers(1, 40))
def test_widths_in_steps_make_layers_that_can_be(name, times):
    layer = LAYERS[name]
    step = width_step(layer)
    wanted = dict.fromkeys(free_widths(layer), step * times)
    resized = resize_layer(layer, **wanted)
    assert {width: get_width(resized, width) for width in wanted} == wanted
    assert min(output_shape(resized)) >= 1
    assert layer_work(resized, Setup()).forward.size_bytes > 0
    groups = resized.sizes.get("groups", 1)
    if layer.kind.startswith("conv"):
        assert resized.sizes["cin"] % groups == 0
        assert resized.sizes["cout"] % groups == 0


def test_depthwise_stays_depthwise():
    resized = resize_layer(LAYERS["conv2d depthwise"], cout=20)
    assert [resized.sizes[name] for name in ("cin", "cout", "groups")] == [10, 20, 10]
    assert free_widths(resized) == ("cout",)
    assert width_step(resized) == 2


def test_whole_numbers_stand_for_all_dimensions():
    short = make_layer("conv2d", cin=1, cout=1, space=8, kernel=3)
    spelled = make_layer(
        "conv2d", cin=1, cout=1, space=(8, 8), kernel=(3, 3), stride=(1, 1), padding=(0, 0)
    )
    assert short == spelled


@pytest.mark.parametrize(
    "make",
    [
        lambda: find_kind("teleport"),
        lambda: make_op("teleport"),
        lambda: make_layer("linear", cin=3),
        lambda: make_layer("linear", cin=3, cout=2, colour=1),
        lambda: output_shape(make_layer("conv2d", cin=1, cout=1, space=2, kernel=5)),
        lambda: output_shape(make_layer("pool", **{**POOL, "kernel": (9, 9)})),
        lambda: input_shape(make_layer("elementwise", fn="relu")),
    ],
)
def test_what_cannot_be_is_said_in_one_line(make):
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_pooling_never_reads_past_its_input(size, kernel, stride, padding, ceil):
    op = make_op(
        "pool",
        fn="max",
        kernel=(kernel,),
        stride=(stride,),
        padding=(min(padding, kernel // 2),),
        ceil=int(ceil),
    )
    layer = make_layer("pool", shape=(1, size), **op.sizes)
    pad = op.sizes["padding"][0]
    if size + 2 * pad < kernel:
        return
    (out,) = output_shape(layer)[1:]
    # The last window begins inside the input or its left padding.
    assert (out - 1) * stride < size + pad
    assert out >= math.floor((size + 2 * pad - kernel) / stride) + 1


def test_inputs_of_families_are_what_their_first_layers_take():
    for name in FAMILIES:
        network = make_family(name)
        assert isinstance(network.input, Input)
        assert input_shape(network.layers[0]) == network.input.shape


def test_a_norm_written_before_spelling_was_told_apart_is_fused():
    layer = make_layer("rms_norm", shape=(7, 8))
    sizes = {name: size for name, size in layer.sizes.items() if name != "spelled"}
    old = replace(layer, sizes=sizes)
    assert layer_work(old, Setup(batch=3)) == layer_work(layer, Setup(batch=3))
    spelled = layer_work(make_layer("rms_norm", spelled=1, shape=(7, 8)), Setup(batch=3))
    assert spelled.total.launches > layer_work(layer, Setup(batch=3)).total.launches


# -- what the host does -----------------------------------------------------------------------


@every_layer
def test_the_host_visits_as_many_weights_whatever_the_optimizer(layer):
    counts = {count_calls(layer, Setup(optimizer=name)) for name in ("sgd", "adam", "adamw")}
    assert len(counts) == 1
    assert bool(counts.pop()[1]) == bool(layer_work(layer, Setup()).params)


@every_layer
def test_only_products_in_half_precision_are_cast(layer):
    launches, weights, products, casts = count_calls(layer, Setup())
    assert casts == 0
    assert bool(products) == bool(layer_work(layer, Setup()).forward.flops)
    half = count_calls(layer, Setup(precision="bf16"))
    assert half == (launches, weights, products, products)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers_issue_their_tokens_at_once(kind):
    short, long = (make_layer(kind, cin=5, hidden=6, tokens=tokens) for tokens in (7, 70))
    assert count_calls(short, Setup()) == count_calls(long, Setup())


@given(NETWORKS, SETUPS)
def test_the_host_does_as_much_for_blocks_as_for_their_parts(network, setup):
    one, other = (
        add_calls(*(count_calls(layer, setup) for layer in net.layers))
        for net in (fold_blocks(network), network)
    )
    assert one == other
