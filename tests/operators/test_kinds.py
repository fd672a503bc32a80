"""Test parameters, FLOPs and shapes of every kind against textbook formulas."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast
from joulecast.families import FAMILIES, make_family
from joulecast.operators import (
    KINDS,
    check_chain,
    check_network,
    check_observed,
    count_output_channels,
    find_kind,
    free_widths,
    get_width,
    input_shape,
    layer_work,
    make_layer,
    make_op,
    output_shape,
    resize_layer,
    width_step,
)
from joulecast.operators.check import check_layer
from joulecast.records import Input, Network, Setup, Sizes, fold_blocks
from joulecast.system.errors import InputError
from kind_examples import LAYERS, POOL, WITH_WIDTHS


def test_examples_cover_every_kind():
    assert {layer.kind for layer in LAYERS.values()} == set(KINDS)


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
        ("linear on tokens", 12 * 5, 2 * 7 * 12 * 5, (7, 5)),
        ("embedding", 800, 0, (7, 8)),
        ("embedding_bag", 800, 0, (2, 8)),
        ("grouped_linear", 3 * 12 * 5, 2 * 7 * 12 * 5, (7, 5)),
        ("index", 0, 0, (21, 8)),
        ("index of a table", 80, 0, (7, 8)),
        ("scatter", 0, 0, (7, 8)),
        ("topk", 0, 0, (7, 2)),
        ("slice", 0, 0, (8,)),
        ("gradient_copy", 0, 0, (7, 8)),
        ("lstm", 4 * 6 * (5 + 6 + 2), 2 * 7 * 4 * 6 * (5 + 6), (7, 6)),
        (
            "lstm bidirectional",
            2 * 4 * 6 * (5 + 6 + 2) + 2 * 4 * 6 * (12 + 6 + 2),
            2 * 7 * 4 * 6 * 2 * (5 + 6 + 12 + 6),
            (7, 12),
        ),
        ("gru", 3 * 6 * (5 + 6), 2 * 7 * 3 * 6 * (5 + 6), (7, 6)),
        ("attention", 4 * (64 + 8), 2 * 64 * (7 + 9 + 9 + 7) + 4 * 8 * 7 * 9, (7, 8)),
        ("sdpa", 0, 4 * 4 * 8 * 7 * 9, (7, 32)),
        ("sdpa in windows", 0, 3 * 4 * 4 * 8 * 7 * 9, (3, 7, 32)),
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
def test_parameters_flops_and_shapes_match_textbook_formulas(name, params, flops, shape):
    work = layer_work(LAYERS[name], Setup(batch=3))
    assert work.params == params
    assert work.forward.flops == 3 * flops
    assert output_shape(LAYERS[name]) == shape


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_pooling_windows_begin_inside_the_input(size, kernel, stride, padding, ceil):
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


def test_rms_norm_stored_without_the_size_spelled_is_fused():
    layer = make_layer("rms_norm", shape=(7, 8))
    sizes = {name: size for name, size in layer.sizes.items() if name != "spelled"}
    old = replace(layer, sizes=Sizes(sizes))
    assert layer_work(old, Setup(batch=3)) == layer_work(layer, Setup(batch=3))
    spelled = layer_work(make_layer("rms_norm", spelled=1, shape=(7, 8)), Setup(batch=3))
    assert spelled.total.launches > layer_work(layer, Setup(batch=3)).total.launches


def test_sizes_that_are_left_out_are_filled_in():
    short = make_layer("conv2d", cin=1, cout=1, space=8, kernel=3)
    sizes = {"space": (8, 8), "kernel": (3, 3), "stride": (1, 1), "padding": (0, 0)}
    assert short == make_layer("conv2d", cin=1, cout=1, **sizes)
    assert make_op("pool", fn="max", kernel=(2, 3)).sizes["stride"] == (2, 3)
    assert make_op("pool", fn="max", kernel=(2, 3)).sizes["padding"] == (0, 0)


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
def test_invalid_operator_is_refused_in_one_line(make):
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_first_layer_of_a_family_takes_its_input():
    for name in FAMILIES:
        network = make_family(name)
        assert isinstance(network.input, Input)
        assert input_shape(network.layers[0]) == network.input.shape


@pytest.mark.parametrize("name", WITH_WIDTHS)
@pytest.mark.parametrize("factor", [1, 2, 5])
def test_resizing_back_returns_the_same_layer(name, factor):
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
def test_multiples_of_the_width_step_make_valid_layers(name, times):
    layer = LAYERS[name]
    step = width_step(layer)
    wanted = dict.fromkeys(free_widths(layer), step * times)
    resized = resize_layer(layer, **wanted)
    assert {width: get_width(resized, width) for width in wanted} == wanted
    assert min(output_shape(resized)) >= 1
    assert layer_work(resized, Setup()).forward.size_bytes > 0
    groups = resized.sizes.get("groups", 1)
    if find_kind(layer.kind).is_convolution:
        assert resized.sizes["cin"] % groups == 0
        assert resized.sizes["cout"] % groups == 0


def test_resized_depthwise_convolution_is_still_depthwise():
    resized = resize_layer(LAYERS["conv2d depthwise"], cout=20)
    assert [resized.sizes[name] for name in ("cin", "cout", "groups")] == [10, 20, 10]
    assert free_widths(resized) == ("cout",)
    assert width_step(resized) == 2


@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (LAYERS["conv2d"], 6),
        (LAYERS["embedding"], 8),
        (LAYERS["lstm"], 6),
        (LAYERS["sdpa"], 32),
        (LAYERS["layer_norm"], 8),
        (LAYERS["batch_norm"], 6),
        (LAYERS["elementwise"], 6),
        (make_layer("batch_norm", shape=(6, 9)), 6),
        (make_layer("elementwise", fn="relu", shape=(7, 8)), 8),
        (make_layer("pool", (make_op("flatten"),), fn="max", kernel=(2,), shape=(6, 8)), 24),
    ],
)
def test_output_channels_are_counted_along_the_channel_axis(layer, channels):
    assert count_output_channels(layer) == channels


SETUP = Setup(batch=4)


def test_gradient_of_an_index_fills_the_input_with_zeros():
    small = make_layer("index", fn="index", axes=(0,), shape=(10, 8), out=(5, 8))
    large = make_layer("index", fn="index", axes=(0,), shape=(100, 8), out=(5, 8))
    one, two = layer_work(small, SETUP), layer_work(large, SETUP)
    assert one.forward == two.forward
    assert two.backward.size_bytes - one.backward.size_bytes == 4 * 90 * 8 * 4


def test_indices_across_samples_are_not_shared():
    shared = make_layer("index", fn="index", axes=(0,), shape=(10, 8), out=(5, 8))
    own = make_layer("index", fn="index", axes=(0,), across=1, shape=(10, 8), out=(5, 8))
    sizes = [layer_work(layer, SETUP).forward.size_bytes for layer in (shared, own)]
    assert sizes[1] - sizes[0] == (4 - 1) * 5 * 8


@pytest.mark.parametrize("kind", ["index", "sort", "slice", "gradient_copy", "scatter"])
def test_no_gradient_no_backward(kind):
    sizes = {"fn": kind, "shape": (16, 8), "out": (2, 8), "source": (2, 8)}
    wanted = dict.fromkeys(("slice", "gradient_copy"), ("shape", "out"))
    wanted |= {"scatter": ("fn", "shape", "source")}
    names = wanted.get(kind, ("fn", "shape", "out"))
    layer = make_layer(kind, **{name: sizes[name] for name in names})
    assert layer_work(layer, SETUP).backward.size_bytes > 0
    assert layer_work(replace(layer, input_grad=False), SETUP).backward.size_bytes == 0


@pytest.mark.parametrize(
    ("shape", "out", "moved"),
    [((3, 4, 8), (4, 8), 2 * 96), ((4, 8), (8, 4), 2 * 32), ((2, 8), (2, 3, 8), 16 + 48)],
)
def test_copied_gradient_is_read_and_written(shape, out, moved):
    work = layer_work(make_layer("gradient_copy", shape=shape, out=out), SETUP)
    assert work.forward.size_bytes == 0
    assert work.backward.size_bytes == 4 * moved * 4


def test_scatter_out_of_place_copies_its_target():
    layer = make_layer("scatter", fn="scatter_add", shape=(16, 8), source=(2, 8))
    copied = make_layer("scatter", fn="scatter_add", copies=1, shape=(16, 8), source=(2, 8))
    one, two = (layer_work(each, SETUP).forward for each in (layer, copied))
    assert two.size_bytes - one.size_bytes == 2 * 4 * 16 * 8 * 4
    assert (one.launches, two.launches) == (1, 2)


SOURCE = Path(joulecast.__file__).parent
# The table, and the modules of runtimes that a new kind has to be added to.
ALLOWED = (
    "operators/",
    "onnx_nets/ort_operators.py",
    "torch_nets/op_readers.py",
    "torch_nets/modules.py",
)
# A field ``kind`` of another meaning: events of a schedule, sorts of batteries and NumPy types.
OTHER_MEANING = (
    "features/plan",
    "meters/battery.py",
    "onnx_nets/ort_graph.py",
    "onnx_nets/ort_runtime.py",
)


@pytest.mark.parametrize("row", KINDS.values(), ids=KINDS)
def test_facts_of_a_kind_agree(row):
    assert set(row.input_widths) <= set(row.widths)
    assert not row.width_divisor or row.width_divisor in row.sizes
    assert row.channel_axis in (0, -1, None)
    assert row.is_view or not (row.flattens or row.permutes_axes or row.selects_elements)
    assert row.can_be_in_tail or not row.is_view


def test_kinds_of_each_sort():
    assert names_where("is_convolution") == {name for name in KINDS if name.startswith("conv")}
    assert names_where("is_recurrent") == {"lstm", "gru", "rnn"}
    assert names_where("is_view") == {"flatten", "view", "permute", "last"}
    assert names_where("reads_tokens") == {"embedding", "embedding_bag"}
    assert names_where("combines_inputs") == {"elementwise"}
    assert names_where("counts_params") == {"elementwise", "index", "slice"}
    assert names_where("has_head_dim") == names_where("packs_inputs") == {"sdpa"}
    moves = {"index", "scatter", "sort", "slice", "gradient_copy"}
    assert names_where("is_function") == {"elementwise", "matmul", "sdpa", *moves}
    assert [KINDS[f"conv{dims}d"].spatial_dims for dims in (1, 2, 3)] == [1, 2, 3]


def names_where(attribute):
    return {name for name, row in KINDS.items() if getattr(row, attribute)}


QUESTION = re.compile(
    r"""\.kind\ (==|!=|in|not\ in)\ [("'\[{A-Z_]   # layer.kind == "linear", layer.kind in NAMES
    | ["']\ (not\ )?in\ \w+\.kind\b               # "conv" in op.kind
    | \.kind\.(startswith|endswith|partition|split|find)\((?!"block:")
    | \.kind\[""",
    re.VERBOSE,
)


def test_no_other_module_asks_for_a_kind_by_name():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith((*ALLOWED, *OTHER_MEANING)):
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [f"{name}: {line.strip()}" for line in lines if QUESTION.search(line)]
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('layer.kind == "linear"', True),
        ('layer.kind in ("lstm", "gru")', True),
        ("layer.kind in NAMES", True),
        ('"conv" in op.kind', True),
        ('op.kind.startswith("conv")', True),
        ("op.kind[-2]", True),
        ('layer.kind.startswith("block:")', False),
        ("old.kind == new.kind", False),
        ("find_kind(layer.kind).is_view", False),
        ("names[layer.kind]", False),
    ],
)
def test_guard_finds_tests_of_a_kind(source, expected):
    assert bool(QUESTION.search(source)) is expected


CONV = LAYERS["conv2d"]


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_examples_of_every_kind_are_valid(layer):
    check_layer(layer)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_valid(name):
    check_network(make_family(name))
    check_network(replace(fold_blocks(make_family(name)), buildable=False, groups=()))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (replace(CONV, sizes=Sizes({**CONV.sizes, "cin": 0})), "cin is 0; give an integer from 1"),
        (replace(CONV, sizes=Sizes({**CONV.sizes, "kernel": (3,)})), "conv2d needs 2 numbers"),
        (replace(CONV, sizes=Sizes({**CONV.sizes, "groups": 4})), "cout is 6; .* its 4 groups"),
        (
            make_layer("attention", width=9, heads=2, tokens=3, kv_tokens=3),
            "width is 9; .* 2 heads",
        ),
        (make_layer("dropout", p=1.5, shape=(3,)), "p is 1.5; give a share"),
        (replace(CONV, tail=(make_op("pool", fn="max", kernel=(9, 9)),)), "larger input"),
        (replace(CONV, tail=(LAYERS["linear"],)), "linear cannot be in a tail"),
        (replace(LAYERS["linear"], channels_last=True), "is not an image"),
        (replace(LAYERS["batch_norm"], channels_last_weights=True), "no weights in that format"),
    ],
)
def test_invalid_layer_is_refused(layer, message):
    with pytest.raises(InputError, match=message) as caught:
        check_layer(layer)
    assert "\n" not in str(caught.value)


def test_measured_layer_may_lack_a_size_that_is_new():
    whole = LAYERS["grouped_linear"]
    older = replace(whole, sizes=Sizes({k: v for k, v in whole.sizes.items() if k != "half"}))
    network = Network((older, whole), Input((4,)))
    check_observed(network)
    with pytest.raises(InputError, match="needs the size 'half'"):
        check_layer(older)
    wrong = replace(whole, sizes=Sizes({**whole.sizes, "cin": "many"}))
    with pytest.raises(InputError, match="cin is 'many'"):
        check_observed(replace(network, layers=(wrong,)))


def test_error_names_the_layer_and_both_shapes():
    first = replace(make_layer("linear", cin=4, cout=5), name="fc1")
    second = replace(make_layer("linear", cin=6, cout=2), name="fc2")
    message = r"layer 2 \(fc2, linear\) is invalid: its input is \[6\], but it reads \[5\]"
    with pytest.raises(InputError, match=message):
        check_chain(Network((first, second), Input((4,))))


def test_product_of_two_inputs_may_read_another_shape():
    first = make_layer("linear", cin=5, cout=5, lead=(4,))
    product = replace(make_layer("matmul", m=4, k=5, n=4), reads=(1, 2))
    check_chain(Network((first, product), Input((4, 5))))
