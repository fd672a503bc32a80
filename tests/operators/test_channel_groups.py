"""Test that networks are narrowed consistently."""

from dataclasses import replace

import pytest

from joulecast.families import make_family
from joulecast.operators import check_network, make_op
from joulecast.operators.channel_groups import (
    ChannelGroup,
    ChannelSlot,
    Coupling,
    check_counts,
    list_slots,
    narrow_network,
)
from joulecast.system.errors import InputError

NETWORK = make_family("cnn5:8,8,8,8", (3, 16, 16))
FIRST = ChannelGroup(
    "conv1",
    1,
    (Coupling("conv1", "out", ()), Coupling("conv2", "in", ())),
    (ChannelSlot(0, 0, "cout", -1, 1), ChannelSlot(1, 0, "cin", -1, 1)),
    (0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1),
)
PAIRS = replace(FIRST, name="pairs", step=2, importance=(0.25,) * 4)


def test_narrowed_network_is_the_smaller_member_of_the_family():
    assert narrow_network(NETWORK, [FIRST], {"conv1": 5}) == make_family(
        "cnn5:5,8,8,8", (3, 16, 16)
    )
    check_network(narrow_network(NETWORK, [FIRST], {"conv1": 1}))


def test_groups_without_a_count_keep_their_channels():
    assert narrow_network(NETWORK, [FIRST], {}) is NETWORK
    assert narrow_network(NETWORK, [FIRST], {"conv1": 8}) == NETWORK


def test_layers_keep_their_names():
    narrowed = narrow_network(NETWORK, [FIRST], {"conv1": 5})
    assert [layer.name for layer in narrowed.layers] == [layer.name for layer in NETWORK.layers]


def test_slot_in_a_tail_shrinks_one_axis():
    tail = (make_op("view", out=(8, 16, 16)),)
    network = replace(NETWORK, layers=(replace(NETWORK.layers[0], tail=tail),))
    group = replace(FIRST, slots=(ChannelSlot(0, 0, "cout", -1, 1), ChannelSlot(0, 1, "out", 0, 1)))
    (layer,) = narrow_network(network, [group], {"conv1": 3}).layers
    assert layer.sizes["cout"] == 3
    assert layer.tail[0].sizes["out"] == (3, 16, 16)
    assert list_slots(network)[0, 1, "out", 0] == 8


@pytest.mark.parametrize(
    ("group", "counts", "message"),
    [
        (FIRST, {"conv9": 3}, "unknown channel group 'conv9'; known groups: conv1"),
        (FIRST, {"conv1": 0}, "cannot have 0 channels: give a multiple of 1 from 1 to 8"),
        (FIRST, {"conv1": 9}, "cannot have 9 channels"),
        (PAIRS, {"pairs": 3}, "cannot have 3 channels: give a multiple of 2 from 2 to 8"),
    ],
)
def test_impossible_count_is_refused(group, counts, message):
    with pytest.raises(InputError, match=message):
        check_counts([group], counts)


def test_steps_are_ranked_by_importance_then_position():
    assert FIRST.rank() == [1, 2, 3, 4, 5, 6, 7, 0]
    assert FIRST.channels == PAIRS.channels == 8
    assert FIRST.members == (("conv1", "out"), ("conv2", "in"))
