"""Test names, layers, random members and known sizes of families."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.families import (
    FAMILIES,
    WIDEST,
    build_family,
    count_members,
    draw_family,
    is_family,
    make_family,
    name_member,
)
from joulecast.operators import input_shape, network_work, output_shape
from joulecast.records import Network, Setup
from joulecast.system.errors import InputError, NetError

every_family = pytest.mark.parametrize("name", FAMILIES)


def drawn_networks():
    """Return a strategy for random members of all families."""
    return st.builds(
        lambda name, seed: draw_family(name, random.Random(seed).randint),
        st.sampled_from(list(FAMILIES)),
        st.integers(0, 10**6),
    )


def read_shapes(network, index):
    """Yield the shapes that a layer reads; before the first layer is the network's input."""
    for back in network.layers[index].reads:
        source = index - back
        yield network.input.shape if source < 0 else output_shape(network.layers[source])


@every_family
def test_members_are_built_once_and_named_without_building(name):
    params = dict(FAMILIES[name].params)
    network = build_family(name, params)
    assert build_family(name, params) is network
    assert name_member(name, params) == network.name


@given(drawn_networks())
def test_layers_fit_together_and_json_or_name_restore_them(network):
    for index, layer in enumerate(network.layers):
        shapes = list(read_shapes(network, index))
        assert (len(shapes) > 1) == (layer.join != "none")
        if layer.join == "concat":
            (space,) = {shape[1:] for shape in shapes}
            assert (sum(shape[0] for shape in shapes), *space) == input_shape(layer)
            continue
        assert set(shapes) == {input_shape(layer)}, layer.name
        assert layer.sizes.get("inputs", 1) == len(shapes)
    count = len(network.layers)
    read = {index - back for index, layer in enumerate(network.layers) for back in layer.reads}
    assert set(range(count - 1)) <= read
    assert [layer.input_grad for layer in network.layers] == [False] + [True] * (count - 1)
    edges = [edge for group in network.groups for edge in group]
    assert edges == sorted(edges)
    assert all(0 <= start < stop <= count for start, stop in network.groups)
    assert is_family(network.name)
    for again in (Network.from_dict(network.to_dict()), make_family(network.name)):
        assert again == network and again.name == network.name


@given(st.sampled_from(list(FAMILIES)), st.integers(0, 10**6))
def test_random_members_are_within_bounds(name, seed):
    family = FAMILIES[name]
    bounds = []

    def draw(low, high):
        bounds.append((low, high))
        return random.Random(seed).randint(low, high)

    network = draw_family(name, draw)
    values = dict(zip(family.params, map(int, network.name.split(":")[1].split(",")), strict=True))
    assert all(values[one[0]] in family.list_values(*one) for one in family.params.items())
    assert all(values[key] % step == 0 for key, step in family.steps.items())
    assert all(values[key] == family.params[key] for key in family.fixed)
    assert len(bounds) == len(family.params) - len(family.fixed)


@every_family
def test_original_is_between_the_smallest_and_the_largest_member(name):
    largest = draw_family(name, lambda low, high: high)
    smallest = draw_family(name, lambda low, high: low)
    setup = Setup()
    params = [network_work(one, setup).params for one in (smallest, make_family(name), largest)]
    assert 0 < params[0] < params[1] <= params[2]
    # As in the paper, where no other range is given.
    assert (largest == make_family(name)) == (FAMILIES[name].share_range is None)


def test_values_of_random_members():
    family = FAMILIES["shufflenetv2"]
    channels = family.list_values("c2", 116)
    assert (channels[0], channels[-1], channels.step) == (24, 208, 2)
    assert list(family.list_values("k2", 3)) == [3, 5]
    assert list(family.list_values("k2", 7)) == [5, 7, 9]
    assert list(FAMILIES["densenet"].list_values("d1", 6)) == [6]
    assert list(FAMILIES["transformer"].list_values("width", 12)) == [4, 8, 12]


def test_members_are_counted():
    assert count_members("lstm") == 128
    assert count_members("transformer") == 64 * 4
    assert count_members("resnet") == 104 * 104 * 206 * 410 * 820 * 3 * 2**4


@every_family
def test_every_parameter_changes_the_work(name):
    family = FAMILIES[name]
    original = network_work(make_family(name), Setup())
    for key in family.params:
        step = 2 if key in family.kernels else family.steps.get(key, 1)
        # Small changes of an Inception block may be lost when its channels are divided.
        value = family.params[key]
        more = {**family.params, key: value + step * max(1, value // 10 // step)}
        larger = network_work(build_family(name, more), Setup())
        assert larger.params > original.params
        assert larger.total.flops > original.total.flops


@every_family
def test_description_names_every_parameter(name):
    family = FAMILIES[name]
    assert family.description
    assert family.batch >= 1
    for key in family.params:
        assert key.upper() in family.description
    names = [layer.name for layer in make_family(name).layers]
    assert len(set(names)) == len(names)
    assert all(names)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("lenet5", 61_706),
        ("resnet18", 11_181_642),
        ("resnet34", 21_289_802),
        ("resnet50", 23_528_522),
        ("lstm", 10_000 * 128 + 4 * 128 * (128 + 128 + 2) + 128 * 10 + 10),
    ],
)
def test_number_of_parameters_is_that_of_the_literature(name, params):
    assert network_work(make_family(name), Setup()).params == params


@pytest.mark.parametrize(
    ("name", "params", "billion_multiply_adds"),
    [
        # https://pytorch.org/vision/stable/models.html: alexnet, densenet121, resnet18,
        # mobilenet_v2, shufflenet_v2_x1_0, squeezenet1_0; googlenet without auxiliary classifiers.
        ("alexnet", 61_100_840, 0.71),
        ("densenet", 7_978_856, 2.83),
        ("googlenet", 6_624_904, 1.50),
        ("resnet", 11_689_512, 1.81),
        ("mobilenetv2", 3_504_872, 0.30),
        ("shufflenetv2", 2_278_604, 0.14),
        ("squeezenet", 1_248_424, 0.82),
        # Howard et al., arXiv:1704.04861, table 4: 4.2 million and 569 million.
        ("mobilenetv1", 4_231_976, 0.569),
        # Cai et al., arXiv:1812.00332, ProxylessNAS (Mobile), 4.1 million and 320 million.
        ("proxylessnas", 4_080_512, 0.320),
    ],
)
def test_image_families_have_published_parameters_and_flops(name, params, billion_multiply_adds):
    work = network_work(make_family(name), Setup(batch=1, phase="inference"))
    assert work.params == params
    found = work.forward.flops / 2e9
    assert round(found, len(str(billion_multiply_adds)) - 2) == billion_multiply_adds


@pytest.mark.parametrize(
    ("name", "full_name"),
    [
        ("cnn5", "cnn5:64,128,256,512"),
        ("cnn5:8", "cnn5:8,128,256,512"),
        ("cnn5:c3=8", "cnn5:64,128,8,512"),
        ("cnn5:8,c4=16", "cnn5:8,128,256,16"),
        ("transformer:width=64,depth=2", "transformer:64,2"),
        ("resnet18:32", "resnet18:32,2,2,2,2"),
    ],
)
def test_names_may_be_abbreviated(name, full_name):
    assert make_family(name) == make_family(full_name)
    assert make_family(name).name == full_name


INVALID = """vgg16 resnet:k1=4 resnet:k1=99 shufflenetv2:c2=15 cnn5:0 cnn5:-3 cnn5:a cnn5:1.5 cnn5:,
cnn5:1,2,3,4,5 cnn5:depth=3 cnn5:c1= cnn5:=4 transformer:30 transformer:width=2 cnn5:65537
transformer:depth=1001 resnet18:64,2,2,2,1001 lstm:hidden=1000000000000"""


@pytest.mark.parametrize("name", ["", *INVALID.split()])
def test_invalid_name_is_refused_in_one_line(name):
    with pytest.raises(NetError, match=r".+") as caught:
        make_family(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        *((shape, "3x96x96") for shape in ((), (3,), (3, 96), (3, 96, 96, 1), (3, 0, 96))),
        ((3, 10**9, 10**9), "65,536"),
        ((3, 8, 8), "larger input"),
    ],
)
def test_input_that_does_not_fit_is_refused_in_one_line(shape, named):
    with pytest.raises(InputError, match=named) as caught:
        make_family("cnn5", shape)
    assert "\n" not in str(caught.value)


@every_family
def test_widths_are_limited(name):
    width = next(iter(FAMILIES[name].params))
    assert make_family(f"{name}:{WIDEST}").layers
    with pytest.raises(NetError, match=f"{width} is {2 * WIDEST}; .* at most 65,536"):
        make_family(f"{name}:{2 * WIDEST}")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet5", (3, 32, 32)),
        ("cnn5", (1, 33, 47)),
        ("har", (3, 50)),
        ("lstm", (5,)),
        ("transformer", (3,)),
        ("resnet18", (1, 32, 32)),
        ("resnet50", (3, 224, 224)),
    ],
)
def test_layers_fit_together_for_other_inputs(name, shape):
    network = make_family(name, shape)
    assert network.input.shape == shape
    assert input_shape(network.layers[0]) == shape
    for index, layer in enumerate(network.layers):
        assert set(read_shapes(network, index)) == {input_shape(layer)}


def test_deep_members_are_not_kept():
    deep = {"width": 64, "depth": 100}
    one, two = (
        build_family("transformer", {**FAMILIES["transformer"].params, **deep}) for _ in "ab"
    )
    assert one == two and one is not two
