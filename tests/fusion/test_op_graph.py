"""Test the graph of operators."""

from itertools import pairwise

from joulecast.families import make_family
from joulecast.fusion.op_graph import DATA, list_op_nodes, list_readers


def test_layers_and_tails_become_a_chain():
    nodes = list_op_nodes(make_family("lenet5"))
    assert [node.name for node in nodes[:3]] == ["conv", "relu", "maxpool"]
    assert [node.sources for node in nodes[:3]] == [(DATA,), (0,), (1,)]
    assert [node.layer_index for node in nodes[:4]] == [0, 0, 0, 1]
    assert nodes[3].sources == (2,) and nodes[3].begins_layer
    for before, node in pairwise(nodes):
        assert node.in_shape == before.out_shape


def test_residual_results_have_two_readers():
    nodes = list_op_nodes(make_family("resnet18"))
    readers = list_readers(nodes)
    stem = next(at for at, node in enumerate(nodes) if node.name == "maxpool")
    assert len(readers[stem]) == 2
    assert readers[-1] == []
