"""Equal blocks of a network are found wherever they are."""

from dataclasses import replace

from joulecast.families import make_family
from joulecast.records import Layer, Network, Sizes, find_equal_blocks


def make_blocks(*widths: int) -> Network:
    """Return a network of blocks of two linear layers, the second of which adds its input."""
    layers = []
    for at, width in enumerate(widths):
        sizes = Sizes({"cin": width, "cout": width, "lead": ()})
        layers += [
            Layer("linear", sizes, name=f"h.{at}.first"),
            Layer("linear", sizes, reads=(1, 2), join="add", name=f"h.{at}.second"),
        ]
    return Network(tuple(layers), groups=tuple((2 * at, 2 * at + 2) for at in range(len(widths))))


def test_equal_blocks_are_found_once_with_their_positions():
    (block,) = find_equal_blocks(make_blocks(8, 8, 8))
    assert (block.name, block.count, block.layer_count) == ("h.0–2", 3, 2)
    assert block.starts == (0, 2, 4)


def test_alternating_blocks_are_two_kinds():
    one, other = find_equal_blocks(make_blocks(8, 4, 8, 4))
    assert (one.name, one.starts) == ("h.0…2", (0, 4))
    assert (other.name, other.starts) == ("h.1…3", (2, 6))


def test_a_block_without_equals_is_alone_and_plain_layers_are_none():
    assert [(one.name, one.count) for one in find_equal_blocks(make_blocks(8, 4, 8, 8))] == [
        ("h.0…3", 3),
        ("h.1", 1),
    ]
    assert find_equal_blocks(make_family("cnn5")) == ()


def test_blocks_differ_by_what_runs_and_not_by_what_they_read_outside():
    network = make_blocks(8, 8)
    layers = list(network.layers)
    layers[3] = replace(layers[3], reads=(1, 4))
    (block,) = find_equal_blocks(replace(network, layers=tuple(layers)))
    assert block.count == 2
    layers[3] = replace(layers[3], trains=False)
    apart = find_equal_blocks(replace(network, layers=tuple(layers)))
    assert [block.count for block in apart] == [1, 1]


def test_names_are_shortened_to_what_differs():
    stages = find_equal_blocks(make_family("resnet50"))
    assert [block.name for block in stages if block.count > 1] == [
        "stage1.1–2",
        "stage2.1–3",
        "stage3.1–5",
        "stage4.1–2",
    ]
    network = make_blocks(8, 8)
    renamed = [replace(layer, name=layer.name.replace("h.1", "tail")) for layer in network.layers]
    (block,) = find_equal_blocks(replace(network, layers=tuple(renamed)))
    assert block.name == "h.0–tail"
